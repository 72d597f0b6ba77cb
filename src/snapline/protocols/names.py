"""Names of the checkpointing protocols, and the properties of each.

A fleet has one protocol, fixed for one run. Its *mode* defines which component decides when an agent takes a checkpoint:

- coordinated: the coordinator, for the whole fleet (`chandy-lamport`) or for the agents that must take part (`koo-toueg`);
- uncoordinated: each agent decides for itself;
- communication-induced: each agent decides for itself, and the piggyback of a message may force an additional checkpoint.

In *logged* protocols, all but `chandy-lamport`, agents store their own checkpoints with a log of sent messages, and the
coordinator groups them into epochs. In *autonomous* protocols the coordinator requests no checkpoints, and computes the
recovery line.
"""

from snapline.errors import UsageError

CHANDY_LAMPORT = "chandy-lamport"
KOO_TOUEG = "koo-toueg"
UNCOORDINATED = "uncoordinated"

BCS = "bcs"

CIC_PROTOCOLS = (BCS, "hmnr", "fdas", "fdi", "bhmr", "nras", "cbr", "cas")
"""Communication-induced protocols; the last three are baselines."""

PROTOCOLS = (CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED, *CIC_PROTOCOLS)

COORDINATED_MODE = "coordinated"
UNCOORDINATED_MODE = "uncoordinated"
COMMUNICATION_INDUCED_MODE = "communication-induced"


def mode_of(protocol: str) -> str:
    """Return "coordinated", "uncoordinated" or "communication-induced".

    Raises:
        UsageError: the protocol does not exist.
    """
    if protocol in (CHANDY_LAMPORT, KOO_TOUEG):
        return COORDINATED_MODE
    if protocol == UNCOORDINATED:
        return UNCOORDINATED_MODE
    if protocol in CIC_PROTOCOLS:
        return COMMUNICATION_INDUCED_MODE
    raise UsageError(f"protocol {protocol!r} is not known: use one of {', '.join(PROTOCOLS)}")


def is_logged(protocol: str) -> bool:
    """Return whether agents store checkpoints of their own, with a log of what they sent."""
    return protocol in PROTOCOLS and protocol != CHANDY_LAMPORT


def is_autonomous(protocol: str) -> bool:
    """Return whether agents checkpoint without a request, so that the recovery line must be computed."""
    return is_logged(protocol) and protocol != KOO_TOUEG

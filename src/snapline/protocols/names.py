"""The names of the checkpointing protocols, and what follows from a name alone.

A fleet has one protocol, fixed for one run. Its *mode* defines who decides when an agent takes a checkpoint:

- coordinated: the coordinator, for the whole fleet (`chandy-lamport`) or for those who must (`koo-toueg`);
- uncoordinated: each agent for itself;
- communication-induced: each agent for itself, and the piggyback of a message may force one more.

In *logged* protocols, all but `chandy-lamport`, agents store checkpoints of their own with the log of what they sent, and the
coordinator makes epochs of them. In *autonomous* ones no agent is asked for a checkpoint, and the recovery line is
computed.
"""

from snapline.errors import UsageError

CHANDY_LAMPORT = "chandy-lamport"
KOO_TOUEG = "koo-toueg"
UNCOORDINATED = "uncoordinated"

BCS = "bcs"

CIC_PROTOCOLS = (BCS, "hmnr", "fdas", "fdi", "bhmr", "nras", "cbr", "cas")
"""Communication-induced; the last three are yardsticks."""

PROTOCOLS = (CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED, *CIC_PROTOCOLS)

COORDINATED_MODE = "coordinated"
UNCOORDINATED_MODE = "uncoordinated"
COMMUNICATION_INDUCED_MODE = "communication-induced"


def mode_of(protocol: str) -> str:
    """Return "coordinated", "uncoordinated" or "communication-induced".

    Raises:
        UsageError: no such protocol.
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
    """Return whether agents checkpoint without being asked: the recovery line is computed."""
    return is_logged(protocol) and protocol != KOO_TOUEG

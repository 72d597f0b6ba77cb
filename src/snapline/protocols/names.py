"""Names and properties of the checkpointing protocols.

A fleet has one protocol, which cannot change during a run. A protocol's *mode* defines who decides when an agent takes a checkpoint.

- In *coordinated* mode, the coordinator decides, either for the whole fleet (`chandy-lamport`) or for the agents that must take part
  (`koo-toueg`).
- In *uncoordinated* mode, each agent decides for itself.
- In *communication-induced* mode, each agent decides for itself, but data attached to a message may force an additional checkpoint.

A protocol is called *logged* if each agent stores its own checkpoints together with a log of its sent messages. All protocols except
`chandy-lamport` are logged. Under an *autonomous* protocol, the coordinator requests no checkpoints and must compute the recovery line.
"""

from snapline.errors import UsageError

CHANDY_LAMPORT = "chandy-lamport"
KOO_TOUEG = "koo-toueg"
UNCOORDINATED = "uncoordinated"

BCS = "bcs"

CIC_PROTOCOLS = (BCS, "hmnr", "fdas", "fdi", "bhmr", "nras", "cbr", "cas")
"""The communication-induced protocols. The last three are baselines for comparison."""

PROTOCOLS = (CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED, *CIC_PROTOCOLS)

COORDINATED_MODE = "coordinated"
UNCOORDINATED_MODE = "uncoordinated"
COMMUNICATION_INDUCED_MODE = "communication-induced"


def mode_of(protocol: str) -> str:
    """Return the protocol's mode: "coordinated", "uncoordinated" or "communication-induced".

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
    """Return whether each agent stores its own checkpoints, with a log of the messages that it has sent."""
    return protocol in PROTOCOLS and protocol != CHANDY_LAMPORT


def is_autonomous(protocol: str) -> bool:
    """Return whether agents take checkpoints without a request from the coordinator, so that the recovery line must be computed."""
    return is_logged(protocol) and protocol != KOO_TOUEG


GLOBAL, LOCAL = "global", "local"
"""Kinds of recovery. After a failure, a fleet with global recovery goes back to an epoch. With local recovery, hosts regularly append
commits (states of agents) to their logs, and each agent that is lost goes back to its newest commit or checkpoint."""


def problem_of_recovery(recovery: str, protocol: str) -> str:
    """Return why a fleet with this protocol cannot have this kind of recovery, or "" if it can."""
    if recovery not in (GLOBAL, LOCAL):
        return f'recovery is "{GLOBAL}" or "{LOCAL}", not {recovery!r}'
    if recovery == LOCAL and protocol != CHANDY_LAMPORT:
        return f'recovery="{LOCAL}" needs the protocol {CHANDY_LAMPORT!r}, not {protocol!r}'
    return ""

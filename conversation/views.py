"""What people ask a host about one agent, or all that it has, and what it answers; `view_wire.py` makes bytes of it."""

import msgspec

STATE, LIVE, DESCRIPTION, EFFECTS = "state", "live", "description", "effects"

VIEW_BYTES_MAX = 16 * 1024 * 1024
"""Of one document: as much as a message may have. More is read from the store itself."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """What is asked.

    Attributes:
        what: "state": of the newest snapshot; "live": now, between two turns; "description": how the agent stands; "effects": those at which
            agents of this host stand, whatever `agent` is.
        field: of a state only what stands at this path.
    """

    agent: str
    what: str
    field: str = ""


class AgentState(msgspec.Struct, frozen=True):
    """The state of one agent.

    Attributes:
        agent, kind: its id; its class, "module:Class".
        host, incarnation: where it ran, or runs, and in which of its lives.
        epoch: of the snapshot; None of a live state.
        time: when the snapshot was begun, or the live state looked at, UTC.
        is_live: it is of the agent as it was between two turns just then: a recovery may undo it.
        is_unborn: the message that creates the agent is on its way: it has no state yet.
        field: the path that was asked for; empty: none.
        state: plain values, as JSON has them; of a field, what stands there.
    """

    agent: str
    kind: str
    host: str
    incarnation: int
    epoch: int | None
    time: str
    is_live: bool
    is_unborn: bool
    field: str
    state: object


class NotHereError(Exception):
    """The host does not know just now, and says why."""

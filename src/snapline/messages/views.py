"""Questions to a host about one agent, or all that it has, and its answers; `view_wire.py` makes bytes of them."""

from typing import Annotated

import msgspec

STATE, LIVE, DESCRIPTION, EFFECTS, WAITING, TRACE = "state", "live", "description", "effects", "waiting", "trace"

VIEW_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of one document, as of a message. More is read from the store itself."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """Question to a host.

    Attributes:
        what: "state": of the newest snapshot; "live": now, between two turns; "description": the agent's condition; "effects": those at which
            agents of this host wait, "waiting": its agents with which something waits, "trace": events here in the last seconds;
            these whatever `agent` is.
        field: of a state only the value at this path; of a trace, which part (`TraceWanted`).
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
        field: the path that was requested; empty: none.
        state: plain values, as JSON has them; of a field, its value.
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


class WaitingAgent(msgspec.Struct, frozen=True):
    """An agent with which something waits, as its host sees it just now; a recovery may undo it.

    Attributes:
        host: where it is.
        turn: what its durable turn was begun for: "message", "input", "timer", "start", "create", "letter"; "": it is in none.
        sender: of that.
        steps: entries of the turn's journal.
        waits_for: what the turn waits for, as in `snapline agent describe`; "": it goes on. waits_s: for so long.
        problem: why the turn cannot go on, or "".
        put_off: messages that the turn has passed by.
        inputs: from outside, that no turn has consumed.
        dead_letters: how many it has.
    """

    agent: str
    host: str = ""
    turn: str = ""
    sender: str = ""
    steps: int = 0
    waits_for: str = ""
    waits_s: float = 0.0
    problem: str = ""
    put_off: int = 0
    inputs: int = 0
    dead_letters: int = 0


class WaitingAgents(msgspec.Struct, frozen=True):
    """Waiting agents of some hosts. `more`: agents that were left out; `silent_hosts`: those that have not answered."""

    agents: tuple[WaitingAgent, ...] = ()
    more: int = 0
    silent_hosts: tuple[str, ...] = ()


class TraceWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a host's trace that is requested. Asking makes the host trace, for some seconds.

    Attributes:
        after: cursor of the last answer; "": all that the host has, which is nothing if nobody has asked before.
        every: of each channel, every N-th message is traced from now on: both ends trace the same ones.
        most: lines; of more the newest are returned.
    """

    after: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 20_000


class RecentTrace(msgspec.Struct, frozen=True):
    """Events on a host since an earlier question.

    Attributes:
        cursor: for the next question.
        every: of each channel, every N-th message is traced from now on.
        missed: lines that were lost or left out since the cursor that was given.
        time_ns: of the answer, since 1970, by the host's clock.
        lines: as `snapline run --trace` writes them (`recovery/host_trace.py`), the first of them a plan line.
    """

    host: str
    cursor: str = ""
    every: int = 1
    missed: int = 0
    time_ns: int = 0
    lines: list[msgspec.Raw] = []


class NotHereError(Exception):
    """The host does not know just now, and says why."""

"""Requests of clients to a host, and its answers: inputs for its agents with the outcome of each, and questions about agents.

Names are those of `inputs.proto`; `client_wire.py` encodes the structs of this module. A request holds at most `INPUTS_MAX` inputs, whose
payloads together are no larger than one message between agents. Therefore the cost of a request is bounded, and a client with more inputs
makes several requests.
"""

from typing import Annotated

import msgspec

INPUTS_MAX = 1000
"""Largest number of inputs in one request. Encoding a batch of this size and answering the request take milliseconds."""

PART_BYTES = 1024 * 1024
"""Size in bytes of one message of a request. A larger input is split into parts; a server accepts at most 2 MiB at once."""

KEY_CHARACTERS_MAX = 128
"""Largest length of a key, the same as of an id. An agent's checkpoints hold the keys of the agent's latest inputs."""

ACCEPTED, REPEATED, RETRY, REFUSED, NOT_PUBLIC = "accepted", "repeated", "retry", "refused", "not public"
"""Outcomes of an input: newly durable; already durable; retry later; rejected permanently; rejected because no public handler accepts
it."""


class GivenInput(msgspec.Struct, frozen=True, gc=False):
    """An input that a client gives to a host.

    Attributes:
        key: idempotency key; two inputs with the same key are one input.
        payload: name of the type followed by MessagePack, as `encode_message` makes it; if `type` is set, JSON of that type.
        public_only: deliver only to a handler that is marked public.
    """

    agent: str
    key: str
    payload: bytes
    type: str = ""
    public_only: bool = False


class InputOutcome(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one input.

    Attributes:
        status: "accepted", "repeated", "retry", "refused" or "not public".
        number: number of the input among the inputs of its agent; 0 if it has none.
        reason: reason why the input was not accepted.
        host, address: location of the agent, if the agent is on another host and its location is known.
    """

    status: str
    number: int = 0
    reason: str = ""
    host: str = ""
    address: str = ""


REPLIED, BURIED, UNKNOWN = "replied", "buried", "unknown"
"""Outcomes of an accepted input: its turn has run; it is a dead letter; its key is unknown. "retry" means to ask again."""


class AskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Result of asking for the answer to one input.

    Attributes:
        status: "replied", "buried", "retry" or "unknown".
        number: number of the input among the inputs of its agent; 0 if it has none.
        type: name of the answer's type; empty if the turn gave no answer.
        body: the answer in MessagePack.
        reason: reason for "retry" and "unknown".
        host, address: location of the agent, if the agent is on another host and its location is known.
    """

    status: str
    number: int = 0
    type: str = ""
    body: bytes = b""
    reason: str = ""
    host: str = ""
    address: str = ""


STATE, LIVE, DESCRIPTION, EFFECTS, WAITING, TRACE = "state", "live", "description", "effects", "waiting", "trace"

VIEW_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of one document in bytes, the same as of a message. Larger states are read from the store itself."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """Question to a host about an agent or about all its agents.

    Attributes:
        what: "state": state in the newest snapshot; "live": current state, between two turns; "description": the agent's condition. Three
            values ask about all agents of the host and ignore `agent`: "effects": effects that agents wait for; "waiting": agents with
            pending work; "trace": events of the last seconds.
        field: for a state, the path of the only value to return; for a trace, the part requested (`TraceWanted`).
    """

    agent: str
    what: str
    field: str = ""


class AgentState(msgspec.Struct, frozen=True):
    """State of one agent, as plain values.

    Attributes:
        agent, kind: id of the agent; its class, `"module:Class"`.
        host, incarnation: host on which the agent ran or runs, and its incarnation there.
        epoch: epoch of the snapshot; None if the state is live.
        time: UTC time at which the snapshot began, or the live state was read.
        is_live: the state is the agent's current state between two turns, which a recovery may undo.
        is_unborn: the message that creates the agent is in transit, so the agent has no state yet.
        field: path that was requested; empty if none was.
        state: state as plain JSON values; with `field`, the value at that path.
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
    """An agent with pending work, as its host sees it now. A recovery may undo this.

    Attributes:
        host: id of the agent's host.
        turn: cause of the agent's durable turn: "message", "input", "timer", "start", "create", "letter"; "" if no durable turn is open.
        sender: sender of that message or input.
        steps: number of entries in the turn's journal.
        waits_for: what the turn waits for, as in `snapline agent describe`; "" if the turn is running.
        waits_s: time in seconds for which the turn has waited.
        problem: reason why the turn cannot continue, or "".
        put_off: number of messages that the turn has deferred.
        inputs: number of inputs from clients that no turn has consumed.
        dead_letters: number of the agent's dead letters.
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
    """Agents with pending work on some hosts. `more` is the number of agents omitted; `silent_hosts` are hosts that have not answered."""

    agents: tuple[WaitingAgent, ...] = ()
    more: int = 0
    silent_hosts: tuple[str, ...] = ()


class TraceWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for a part of a host's trace. Each request makes the host trace for some seconds.

    Attributes:
        after: cursor of the last answer; "" for all events that the host has, which are none before the first request.
        every: sampling interval N: every N-th message of each channel is traced from now on, the same messages at both ends.
        most: largest number of lines; if there are more, the newest are returned.
    """

    after: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 20_000


class RecentTrace(msgspec.Struct, frozen=True):
    """Events on a host after the given cursor.

    Attributes:
        cursor: cursor for the next request.
        every: sampling interval N: every N-th message of each channel is traced from now on.
        missed: number of lines lost or omitted since the given cursor.
        time_ns: time of the answer since 1970, by the host's clock.
        lines: lines as `snapline run --trace` writes them (`recovery/trace_merge.py`), the first of which is a plan line.
    """

    host: str
    cursor: str = ""
    every: int = 1
    missed: int = 0
    time_ns: int = 0
    lines: list[msgspec.Raw] = []


class NotHereError(Exception):
    """The host cannot answer now. The error's text says why."""

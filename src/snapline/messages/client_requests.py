"""Requests from clients to a host, and the host's answers. A request sends inputs to the host's agents, or asks a question about agents.

Structs and fields have the same names as in `inputs.proto`. `client_wire.py` encodes the structs of this module. A request holds at most
`INPUTS_MAX` inputs, and the total size of their payloads is limited to the largest size of one message between agents. Therefore the cost
of a request is bounded. A client with more inputs makes several requests.
"""

from typing import Annotated

import msgspec

INPUTS_MAX = 1000
"""Largest number of inputs in one request. A batch of this size is encoded and answered within milliseconds."""

PART_BYTES = 1024 * 1024
"""Target size in bytes of each message of a request. A larger input is split into parts, since a server accepts at most 2 MiB per
message."""

KEY_CHARACTERS_MAX = 128
"""Largest length of an idempotency key in characters, the same as for an id. The length is limited because an agent's checkpoints hold the
keys of its latest inputs."""

ACCEPTED, REPEATED, RETRY, REFUSED, NOT_PUBLIC = "accepted", "repeated", "retry", "refused", "not public"
"""Outcomes of an input. "accepted" means that the input is now durable, and "repeated" that it was durable already. "retry" means that it
must be resent later. "refused" means that it is rejected permanently, and "not public" that no public handler accepts it."""


class GivenInput(msgspec.Struct, frozen=True, gc=False):
    """An input that a client sends to a host.

    Attributes:
        key: idempotency key. Two inputs with the same key count as one input.
        payload: the type's name followed by the fields in MessagePack, as encoded by `encode_message`. If `type` is set, the fields in JSON
            instead.
        public_only: whether only a handler that is marked public may receive the input.
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
        number: sequence number of the input among the inputs of its agent. 0 if it has not been assigned one.
        reason: reason why the input was not accepted.
        host, address: the host where the agent runs, if that is a different host and it is known.
    """

    status: str
    number: int = 0
    reason: str = ""
    host: str = ""
    address: str = ""


REPLIED, BURIED, UNKNOWN = "replied", "buried", "unknown"
"""Outcomes of an accepted input. "replied" means that its turn has run, "buried" that it is a dead letter, and "unknown" that its key is
unknown. The fourth outcome, "retry", means that the client must ask again."""


class AskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Result of a request for the answer to one input.

    Attributes:
        status: "replied", "buried", "retry" or "unknown".
        number: sequence number of the input among the inputs of its agent. 0 if it has not been assigned one.
        type: name of the answer's message type. Empty if the turn gave no answer.
        body: the answer, encoded in MessagePack.
        reason: reason for "retry" and "unknown".
        host, address: the host where the agent runs, if that is a different host and it is known.
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
"""Largest size of one document in bytes, the same as for a message. Larger states must be read directly from the store."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """A question to a host about one agent, or about all agents on the host.

    Attributes:
        what: "state" requests the agent's state in the newest snapshot. "live" requests its current state between two turns. "description"
            requests its current condition. All other values concern all agents of the host and ignore `agent`. "effects" requests the
            effects for which agents wait. "waiting" requests the agents with pending work. "trace" requests the events of the last seconds.
        field: if a state is requested, the path of the only value to return. If a trace is requested, the part to return (`TraceWanted`).
    """

    agent: str
    what: str
    field: str = ""


class AgentState(msgspec.Struct, frozen=True):
    """The state of one agent, as plain values.

    Attributes:
        agent, kind: id of the agent, and its class as `"module:Class"`.
        host, incarnation: host on which the agent ran or runs, and its incarnation there.
        epoch: epoch number of the snapshot. None if the state is the live state.
        time: UTC time at which the snapshot began, or the live state was read.
        is_live: whether this is the agent's current state between two turns, which a recovery may undo.
        is_unborn: whether the agent has no state yet because the message that creates it is in transit.
        field: path that was requested. Empty if no path was requested.
        state: the state as plain JSON values. If `field` is set, only the value at that path.
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
    """An agent with pending work, as its host currently sees the agent. A recovery may undo that work.

    Attributes:
        host: id of the agent's host.
        turn: cause of the agent's open durable turn: "message", "input", "timer", "start", "create" or "letter" (a dead letter). "" if no
            durable turn is open.
        sender: sender of the message or input that the turn handles.
        steps: number of entries in the turn's journal.
        waits_for: description of the event for which the turn waits, as in `snapline agent describe`. "" if the turn is running.
        waits_s: time in seconds for which the turn has been waiting.
        problem: reason why the turn cannot continue. "" if it can continue.
        put_off: number of messages that are deferred until the turn ends.
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
    """The agents with pending work on one or more hosts. `more` is the number of agents omitted. `silent_hosts` lists the hosts that have
    not answered."""

    agents: tuple[WaitingAgent, ...] = ()
    more: int = 0
    silent_hosts: tuple[str, ...] = ()


class TraceWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for a part of a host's trace. Each request makes the host record a trace for the next few seconds.

    Attributes:
        after: cursor from the previous answer. "" requests all events that the host has recorded. Before the first request, the host has
            recorded none.
        every: sampling interval N. From now on, every N-th message of each channel is traced. Both ends of a channel trace the same
            messages.
        most: largest number of lines to return. If there are more, only the newest are returned.
    """

    after: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 20_000


class RecentTrace(msgspec.Struct, frozen=True):
    """Events on a host after the given cursor.

    Attributes:
        cursor: cursor for the next request.
        every: sampling interval N. From now on, every N-th message of each channel is traced.
        missed: number of lines that were lost or omitted since the given cursor.
        time_ns: time of the answer in nanoseconds since 1970, according to the host's clock.
        lines: trace lines in the format of `snapline run --trace` (`recovery/trace_merge.py`). The first is a plan line.
    """

    host: str
    cursor: str = ""
    every: int = 1
    missed: int = 0
    time_ns: int = 0
    lines: list[msgspec.Raw] = []


class NotHereError(Exception):
    """The host cannot answer now. The error's text gives the reason."""

"""Requests from clients to a host, and the host's answers. A request either sends inputs to agents on the host, or asks a question about
agents.

Structs and their fields have the same names as in `inputs.proto`. `client_wire.py` encodes these structs. A request contains at most
`INPUTS_MAX` inputs. The total size of their payloads is at most the maximum size of a message between agents. So the cost of a request is
bounded. A client sends more inputs in several requests.
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
        key: idempotency key. Inputs with the same key count as one input.
        payload: the name of the type followed by the fields in MessagePack, as encoded by `encode_message`. If `type` is set, the payload
            instead contains the fields as JSON.
        public_only: whether the input may be handled only by a handler that is marked as public.
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
        number: sequence number of the input among all inputs of the agent; 0 if no number has been assigned.
        reason: why the input was not accepted.
        host, address: the host where the agent runs, if this is known and it is a different host.
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
        number: sequence number of the input among all inputs of the agent; 0 if no number has been assigned.
        type: name of the answer's message type; empty if the turn gave no answer.
        body: the answer, encoded as MessagePack.
        reason: reason for the status "retry" or "unknown".
        host, address: the host where the agent runs, if this is known and it is a different host.
    """

    status: str
    number: int = 0
    type: str = ""
    body: bytes = b""
    reason: str = ""
    host: str = ""
    address: str = ""


STATE, LIVE, DESCRIPTION, EFFECTS = "state", "live", "description", "effects"
APPROVALS, WAITING, TRACE = "approvals", "waiting", "trace"

VIEW_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of one document in bytes, the same as for a message. Larger states must be read directly from the store."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """A question to a host about one agent, or about all agents on the host.

    Attributes:
        what: "state" requests the agent's state in the newest snapshot, "live" its current state between two turns, and "description" a
            description of what the agent is currently doing. All other values concern all agents on the host and ignore `agent`: "effects"
            and "approvals" request those for which agents are waiting, "waiting" the agents with pending work, and "trace" the events of the last
            few seconds.
        field: if a state is requested, the path of the single value to return. If a trace is requested, the part of the trace to return
            (`TraceWanted`).
    """

    agent: str
    what: str
    field: str = ""


class AgentState(msgspec.Struct, frozen=True):
    """The state of one agent, as plain values.

    Attributes:
        agent, kind: the agent's id, and its class in the form `"module:Class"`.
        host, incarnation: the host on which the agent runs or ran, and the agent's incarnation there.
        epoch: epoch number of the snapshot, or None for the live state.
        time: UTC time at which the snapshot began or the live state was read.
        is_live: whether this is the agent's current state between two turns. A recovery may undo this state.
        is_unborn: whether the agent has no state yet because the message that creates the agent is in transit.
        field: the requested path; empty if no path was requested.
        state: the state as JSON values. If `field` is set, `state` is only the value at this path.
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
    """An agent with pending work, as currently seen by its host. A recovery may undo this work.

    Attributes:
        host: id of the agent's host.
        turn: cause of the agent's unfinished durable turn: "message", "input", "timer", "start", "create" or "letter" (a dead letter).
            `turn` is "" if the agent has no unfinished durable turn.
        sender: sender of the message or input that this turn handles.
        steps: number of entries in the journal of the turn.
        waits_for: description of the event for which the turn waits, as shown by `snapline agent describe`. `waits_for` is "" if the turn
            is running.
        waits_s: how long the turn has been waiting, in seconds.
        problem: why the turn cannot continue, or "" if it can continue.
        put_off: number of messages that are deferred until the turn ends.
        inputs: number of client inputs that no turn has consumed yet.
        dead_letters: number of dead letters of the agent.
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
    """The agents with pending work on one or more hosts. `more` is the number of further agents that are not listed. `silent_hosts`
    contains the hosts that have not replied."""

    agents: tuple[WaitingAgent, ...] = ()
    more: int = 0
    silent_hosts: tuple[str, ...] = ()


class TraceWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for part of a host's trace. Each request makes the host record a trace for the next few seconds.

    Attributes:
        after: cursor from the previous answer, or "" to request all recorded events. Before the first request, the host has not recorded
            any events.
        every: sampling interval N. From now on, every N-th message of each channel is traced. The sender and the receiver of a channel
            trace the same messages.
        most: maximum number of lines to return. If there are more lines, only the newest are returned.
    """

    after: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 20_000


class RecentTrace(msgspec.Struct, frozen=True):
    """Events on a host after a given cursor.

    Attributes:
        cursor: cursor to pass in the next request.
        every: sampling interval N. From now on, every N-th message of each channel is traced.
        missed: number of lines after the given cursor that were lost or omitted.
        time_ns: time of the answer on the host's clock, in nanoseconds since 1970.
        lines: lines of the trace in the format of `snapline run --trace` (`recovery/trace_merge.py`). The first line of the trace describes
            the plan.
    """

    host: str
    cursor: str = ""
    every: int = 1
    missed: int = 0
    time_ns: int = 0
    lines: list[msgspec.Raw] = []


class NotHereError(Exception):
    """The host is currently unable to answer. The error message contains the reason."""

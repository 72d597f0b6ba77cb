"""Requests of clients to a host, and its answers: inputs for its agents with the outcome of each, and questions about agents.

Names are those of `inputs.proto`; `client_wire.py` encodes everything here. A request holds at most `INPUTS_MAX` inputs, and their payloads
together are no larger than one message between agents. Therefore the cost of a request is bounded, and a client with more inputs
makes several requests.
"""

from typing import Annotated

import msgspec

INPUTS_MAX = 1000
"""Largest number of inputs in one request: encoding its batch and answering it then take milliseconds."""

PART_BYTES = 1024 * 1024
"""Size of a message of a request; a larger input is split into parts. A server accepts at most 2 MiB at once."""

KEY_CHARACTERS_MAX = 128
"""Largest length of a key, the same as of an id. An agent's checkpoints hold the keys of its last inputs."""

ACCEPTED, REPEATED, RETRY, REFUSED, NOT_PUBLIC = "accepted", "repeated", "retry", "refused", "not public"
"""Outcomes of an input: durable now; durable before; retry later; rejected permanently; rejected because no public handler accepts it."""


class GivenInput(msgspec.Struct, frozen=True, gc=False):
    """Input from a client.

    Attributes:
        key: idempotency key; two inputs with the same key are one input.
        payload: MessagePack behind its type's name, as `encode_message` makes it; if `type` is set, JSON of that type.
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
        number: its number among the inputs of its agent; 0: none.
        reason: why it was not accepted.
        host, address: location of the agent, if it is not here and its location is known.
    """

    status: str
    number: int = 0
    reason: str = ""
    host: str = ""
    address: str = ""


REPLIED, BURIED, UNKNOWN = "replied", "buried", "unknown"
"""Outcomes of an accepted input: its turn has run; it is a dead letter; its key is unknown. "retry": ask again."""


class AskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Result of one input.

    Attributes:
        status: "replied", "buried", "retry" or "unknown".
        number: its number among the inputs of its agent; 0: none.
        type: name of the answer's type; empty: the turn gave no answer.
        body: the answer as MessagePack.
        reason: reason for "retry" and "unknown".
        host, address: location of the agent, if it is not here and its location is known.
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
"""Largest size of one document, the same as of a message. Larger states are read from the store itself."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """Question to a host.

    Attributes:
        what: "state": state in the newest snapshot; "live": state now, between two turns; "description": the agent's condition. For all agents of
            the host, whatever `agent` is: "effects": effects that agents wait for; "waiting": agents with pending work; "trace": events of the
            last seconds.
        field: for a state, the path of the only value to return; for a trace, the part requested (`TraceWanted`).
    """

    agent: str
    what: str
    field: str = ""


class AgentState(msgspec.Struct, frozen=True):
    """The state of one agent.

    Attributes:
        agent, kind: its id; its class, "module:Class".
        host, incarnation: where it ran, or runs, and in which incarnation.
        epoch: epoch of the snapshot; None for a live state.
        time: when the snapshot was begun, or the live state was read; UTC.
        is_live: the state is the agent's state between two turns just now; a recovery may undo it.
        is_unborn: the message that creates the agent is in transit, so the agent has no state yet.
        field: path that was requested; empty: none.
        state: plain JSON values; with `field`, the value at that path.
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
    """An agent with pending work, as its host sees it now; a recovery may undo it.

    Attributes:
        host: host of the agent.
        turn: cause of its durable turn: "message", "input", "timer", "start", "create", "letter"; "": no durable turn is open.
        sender: sender of that message or input.
        steps: entries of the turn's journal.
        waits_for: what the turn waits for, as in `snapline agent describe`; "": it is running. waits_s: how long it has waited.
        problem: why the turn cannot go on, or "".
        put_off: number of messages that the turn has deferred.
        inputs: number of inputs from clients that no turn has consumed.
        dead_letters: number of its dead letters.
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
    """Waiting agents of some hosts. `more`: number of agents omitted; `silent_hosts`: hosts that have not answered."""

    agents: tuple[WaitingAgent, ...] = ()
    more: int = 0
    silent_hosts: tuple[str, ...] = ()


class TraceWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a host's trace that is requested. Each request makes the host trace for some seconds.

    Attributes:
        after: cursor of the last answer; "": everything that the host has, which is nothing before the first request.
        every: sampling interval: every N-th message of each channel is traced from now on, the same ones at both ends.
        most: largest number of lines; if there are more, the newest are returned.
    """

    after: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 20_000


class RecentTrace(msgspec.Struct, frozen=True):
    """Events on a host since an earlier request.

    Attributes:
        cursor: cursor for the next request.
        every: sampling interval: every N-th message of each channel is traced from now on.
        missed: number of lines lost or omitted since the given cursor.
        time_ns: time of the answer since 1970, by the host's clock.
        lines: lines as `snapline run --trace` writes them (`recovery/trace_merge.py`), the first of them a plan line.
    """

    host: str
    cursor: str = ""
    every: int = 1
    missed: int = 0
    time_ns: int = 0
    lines: list[msgspec.Raw] = []


class NotHereError(Exception):
    """The host cannot answer now; the text says why."""

"""Events and commands of a client's core.

The adapter assigns numbers to sends, the core to requests. Each LookUpAgents is answered exactly once by AgentsFound or LookupFailed, each
OfferInputs by RequestAnswered or RequestFailed, and each AskHost by AnswerHeard or RequestFailed.
"""

import msgspec

from snapline.messages.answers import LocateReply
from snapline.messages.client_requests import AskOutcome, InputOutcome

TAKEN, REFUSED, NOT_PUBLIC, MISSING, ENDED, DENIED = "taken", "refused", "not public", "missing", "ended", "denied"
UNKNOWN, NOT_TAKEN = "unknown", "not taken"
ANSWERED, BURIED, FORGOTTEN, LATE = "answered", "buried", "forgotten", "late"


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of the core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base of the core's commands."""


# ---- from the program ---------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """One input from the program to an agent. The adapter holds its key and payload."""

    send: int
    agent: str
    size_bytes: int
    deadline_ns: int


class InputsGiven(Event, frozen=True, gc=False):
    """Inputs of the program, in the order of their delivery to each agent."""

    sends: tuple[Send, ...]


class SendsDropped(Event, frozen=True, gc=False):
    """Sends that no program waits for any more."""

    sends: tuple[int, ...]


class AnswerRequested(Event, frozen=True, gc=False):
    """The program waits for the agent's answer to an accepted input. The adapter assigns numbers to asks."""

    ask: int
    agent: str
    deadline_ns: int


class AskDropped(Event, frozen=True, gc=False):
    """An ask that no program waits for any more."""

    ask: int


class ClientClosed(Event, frozen=True, gc=False):
    """The client is closed: the core starts no more requests."""


# ---- from the coordinator, hosts, the clock -----------------------------------------------------------------------


class AgentsFound(Event, frozen=True, gc=False):
    request: int
    reply: LocateReply


class LookupFailed(Event, frozen=True, gc=False):
    """Agents could not be looked up. `is_final`: every attempt would fail."""

    request: int
    reason: str
    is_final: bool = False


class RequestAnswered(Event, frozen=True, gc=False):
    """One outcome for each send, in the order of the request."""

    request: int
    outcomes: tuple[InputOutcome, ...]


class AnswerHeard(Event, frozen=True, gc=False):
    """Outcome of an input, as reported by a host."""

    request: int
    outcome: AskOutcome


class RequestFailed(Event, frozen=True, gc=False):
    """Request without an answer. `is_unsent`: the host has certainly accepted none of it. `is_final`: every attempt would fail."""

    request: int
    reason: str
    is_unsent: bool = False
    is_final: bool = False


class TimerFired(Event, frozen=True, gc=False):
    """The time `wakeup_ns` is reached."""


# ---- commands -----------------------------------------------------------------------------------------------------


class LookUpAgents(Command, frozen=True, gc=False):
    """Ask the coordinator for the places of these agents, within the limit."""

    request: int
    agents: tuple[str, ...]
    limit_ns: int


class OfferInputs(Command, frozen=True, gc=False):
    """Offer these inputs to a host, in this order, and wait for its answer within the limit."""

    request: int
    host: str
    address: str
    sends: tuple[int, ...]
    limit_ns: int


class AskHost(Command, frozen=True, gc=False):
    """Wait for the answer from a host, within the limit."""

    request: int
    host: str
    address: str
    ask: int
    limit_ns: int


class FinishAsk(Command, frozen=True, gc=False):
    """Outcome of an ask.

    Attributes:
        ending: "answered"; "buried": the input is a dead letter; "forgotten": its agent does not know the key, or has stopped; "late": the deadline
            has passed; "missing", "ended", "denied" as for a send.
        reason: a readable sentence without its full stop.
        outcome: the host's outcome, for the first two endings.
    """

    ask: int
    ending: str
    reason: str = ""
    outcome: AskOutcome | None = None


class FinishSend(Command, frozen=True, gc=False):
    """Outcome of a send.

    Attributes:
        ending: "taken": accepted; "refused" permanently; "missing": the agent does not exist; "ended": the fleet has ended; "denied":
            this client has no permission; "unknown": the input may have been accepted; "not taken": it was certainly not accepted in time.
        reason: a readable sentence without its full stop.
        number: number of the input, among those of its agent.
        is_repeated: the key was known before.
    """

    send: int
    ending: str
    reason: str = ""
    number: int = 0
    is_repeated: bool = False

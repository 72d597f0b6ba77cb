"""Events and commands of a client's core.

The adapter assigns numbers to sends; the core assigns numbers to requests. AgentsFound or LookupFailed answers each LookUpAgents exactly
once, RequestAnswered or RequestFailed each OfferInputs, and AnswerHeard or RequestFailed each AskHost.
"""

import msgspec

from snapline.messages.answers import LocateReply
from snapline.messages.client_requests import AskOutcome, InputOutcome

TAKEN, REFUSED, NOT_PUBLIC, MISSING, ENDED, DENIED = "taken", "refused", "not public", "missing", "ended", "denied"
UNKNOWN, NOT_TAKEN = "unknown", "not taken"
ANSWERED, BURIED, FORGOTTEN, LATE = "answered", "buried", "forgotten", "late"


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base class of the events that the core handles."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of the commands that the core returns."""


# ---- from the program ---------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """One input from the program to an agent. The adapter holds the input's key and payload."""

    send: int
    agent: str
    size_bytes: int
    deadline_ns: int


class InputsGiven(Event, frozen=True, gc=False):
    """The program has sent inputs, in the order of their delivery to each agent."""

    sends: tuple[Send, ...]


class SendsDropped(Event, frozen=True, gc=False):
    """The program no longer waits for these sends."""

    sends: tuple[int, ...]


class AnswerRequested(Event, frozen=True, gc=False):
    """The program waits for the agent's answer to an accepted input. The adapter assigns numbers to asks."""

    ask: int
    agent: str
    deadline_ns: int


class AskDropped(Event, frozen=True, gc=False):
    """The program no longer waits for this ask."""

    ask: int


class ClientClosed(Event, frozen=True, gc=False):
    """The client is closed: the core starts no more requests."""


# ---- from the coordinator, hosts, the clock -----------------------------------------------------------------------


class AgentsFound(Event, frozen=True, gc=False):
    request: int
    reply: LocateReply


class LookupFailed(Event, frozen=True, gc=False):
    """Agents could not be looked up. `is_final` means that every attempt would fail."""

    request: int
    reason: str
    is_final: bool = False


class RequestAnswered(Event, frozen=True, gc=False):
    """A host has answered a request with one outcome for each send, in the order of the request."""

    request: int
    outcomes: tuple[InputOutcome, ...]


class AnswerHeard(Event, frozen=True, gc=False):
    """A host has reported the outcome of an input."""

    request: int
    outcome: AskOutcome


class RequestFailed(Event, frozen=True, gc=False):
    """A request ended without an answer. `is_unsent`: the host has certainly accepted none of its inputs. `is_final`: every attempt would
    fail."""

    request: int
    reason: str
    is_unsent: bool = False
    is_final: bool = False


class TimerFired(Event, frozen=True, gc=False):
    """The clock has reached the time `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class LookUpAgents(Command, frozen=True, gc=False):
    """Ask the coordinator for the locations of these agents, within the time limit."""

    request: int
    agents: tuple[str, ...]
    limit_ns: int


class OfferInputs(Command, frozen=True, gc=False):
    """Offer these inputs to a host, in this order, and wait for the host's answer within the time limit."""

    request: int
    host: str
    address: str
    sends: tuple[int, ...]
    limit_ns: int


class AskHost(Command, frozen=True, gc=False):
    """Wait for a host's answer to an ask, within the time limit."""

    request: int
    host: str
    address: str
    ask: int
    limit_ns: int


class FinishAsk(Command, frozen=True, gc=False):
    """Report the outcome of an ask to the program.

    Attributes:
        ending: "answered"; "buried": the input is a dead letter; "forgotten": the agent does not know the key, or has stopped; "late": the
            deadline has passed; "missing", "ended" and "denied" as for a send.
        reason: a readable sentence without the full stop.
        outcome: the host's outcome, for the first two endings.
    """

    ask: int
    ending: str
    reason: str = ""
    outcome: AskOutcome | None = None


class FinishSend(Command, frozen=True, gc=False):
    """Report the outcome of a send to the program.

    Attributes:
        ending: "taken": accepted; "refused" permanently; "missing": the agent does not exist; "ended": the fleet has ended; "denied":
            this client has no permission; "unknown": the input may have been accepted; "not taken": the input was certainly not accepted
            in time.
        reason: a readable sentence without the full stop.
        number: number of the input among the inputs of its agent.
        is_repeated: the host knew the key before this request.
    """

    send: int
    ending: str
    reason: str = ""
    number: int = 0
    is_repeated: bool = False

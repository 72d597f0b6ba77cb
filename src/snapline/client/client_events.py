"""Events and commands of a client's core.

The adapter, which does the I/O, assigns numbers to sends. The core assigns numbers to requests. Each LookUpAgents is answered exactly once,
by AgentsFound or LookupFailed. Each OfferInputs is answered by RequestAnswered or RequestFailed, and each AskHost by AnswerHeard or
RequestFailed.
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
    """One input that the program sends to an agent. The adapter holds the input's key and payload."""

    send: int
    agent: str
    size_bytes: int
    deadline_ns: int


class InputsGiven(Event, frozen=True, gc=False):
    """The program has sent inputs. Each agent must receive its inputs in this order."""

    sends: tuple[Send, ...]


class SendsDropped(Event, frozen=True, gc=False):
    """The program no longer waits for these sends."""

    sends: tuple[int, ...]


class AnswerRequested(Event, frozen=True, gc=False):
    """The program waits for the agent's answer to an accepted input. `ask` is a number that the adapter assigns."""

    ask: int
    agent: str
    deadline_ns: int


class AskDropped(Event, frozen=True, gc=False):
    """The program no longer waits for this ask."""

    ask: int


class ClientClosed(Event, frozen=True, gc=False):
    """The client has been closed, so the core must start no more requests."""


# ---- from the coordinator, hosts, the clock -----------------------------------------------------------------------


class AgentsFound(Event, frozen=True, gc=False):
    request: int
    reply: LocateReply


class LookupFailed(Event, frozen=True, gc=False):
    """The locations of agents could not be looked up. `is_final` means that every further attempt would fail."""

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
    """A request ended without an answer. `is_unsent` means that the host has certainly accepted none of the request's inputs. `is_final`
    means that every further attempt would fail."""

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
    """Request the answer to an input from a host, and wait for it within the time limit."""

    request: int
    host: str
    address: str
    ask: int
    limit_ns: int


class FinishAsk(Command, frozen=True, gc=False):
    """Report the outcome of an ask to the program.

    Attributes:
        ending: "answered" if the answer has arrived. "buried" if the input is a dead letter. "forgotten" if the agent does not know the key
            or has stopped. "late" if the deadline has passed. "missing", "ended" and "denied" have the same meaning as in FinishSend.
        reason: the reason as a readable sentence without a full stop.
        outcome: the outcome that the host reported, if `ending` is "answered" or "buried".
    """

    ask: int
    ending: str
    reason: str = ""
    outcome: AskOutcome | None = None


class FinishSend(Command, frozen=True, gc=False):
    """Report the outcome of a send to the program.

    Attributes:
        ending: "taken" if the input was accepted. "refused" or "not public" if the host will never accept the input. "missing" if the agent
            does not exist. "ended" if the fleet has ended. "denied" if this client has no permission. "unknown" if the input may have been
            accepted. "not taken" if the input was certainly not accepted in time.
        reason: the reason as a readable sentence without a full stop.
        number: sequence number of the input among all inputs of its agent.
        is_repeated: whether the host had already accepted an input with this key before this request.
    """

    send: int
    ending: str
    reason: str = ""
    number: int = 0
    is_repeated: bool = False

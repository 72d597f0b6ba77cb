"""Events and commands of a client's core.

The adapter, which does the core's I/O, assigns a number to each send. The core assigns a number to each request. Each LookUpAgents
command is answered by exactly one event: AgentsFound or LookupFailed. Each OfferInputs command is answered by RequestAnswered or
RequestFailed, and each AskHost command by AnswerHeard or RequestFailed.
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
    """Event: the program has sent inputs. The core must deliver each agent's inputs in this order."""

    sends: tuple[Send, ...]


class SendsDropped(Event, frozen=True, gc=False):
    """Event: the program has cancelled these sends."""

    sends: tuple[int, ...]


class AnswerRequested(Event, frozen=True, gc=False):
    """Event: the program is waiting for an agent's answer to an accepted input. `ask` is a number that the adapter assigns."""

    ask: int
    agent: str
    deadline_ns: int


class AskDropped(Event, frozen=True, gc=False):
    """Event: the program has cancelled this ask."""

    ask: int


class ClientClosed(Event, frozen=True, gc=False):
    """Event: the client has been closed, so the core must not start any new requests."""


# ---- from the coordinator, hosts, the clock -----------------------------------------------------------------------


class AgentsFound(Event, frozen=True, gc=False):
    request: int
    reply: LocateReply


class LookupFailed(Event, frozen=True, gc=False):
    """Event: the lookup of agents' hosts has failed. `is_final` means that every further attempt would fail."""

    request: int
    reason: str
    is_final: bool = False


class RequestAnswered(Event, frozen=True, gc=False):
    """Event: a host has answered a request, with one outcome per send in the order of the request."""

    request: int
    outcomes: tuple[InputOutcome, ...]


class AnswerHeard(Event, frozen=True, gc=False):
    """Event: a host has reported the outcome of an input."""

    request: int
    outcome: AskOutcome


class RequestFailed(Event, frozen=True, gc=False):
    """Event: a request has ended without an answer. `is_unsent` means that the host has definitely not accepted any of the request's
    inputs. `is_final` means that every further attempt would fail."""

    request: int
    reason: str
    is_unsent: bool = False
    is_final: bool = False


class TimerFired(Event, frozen=True, gc=False):
    """Event: the clock has reached `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class LookUpAgents(Command, frozen=True, gc=False):
    """Command: ask the coordinator, within the time limit, on which hosts these agents run."""

    request: int
    agents: tuple[str, ...]
    limit_ns: int


class OfferInputs(Command, frozen=True, gc=False):
    """Command: send these inputs to a host in this order, and wait for its answer within the time limit."""

    request: int
    host: str
    address: str
    sends: tuple[int, ...]
    limit_ns: int


class AskHost(Command, frozen=True, gc=False):
    """Command: request an input's answer from a host, and wait for it within the time limit."""

    request: int
    host: str
    address: str
    ask: int
    limit_ns: int


class FinishAsk(Command, frozen=True, gc=False):
    """Command: report the outcome of an ask to the program.

    Attributes:
        ending: "answered" if the answer has arrived. "buried" if the input is a dead letter. "forgotten" if the agent does not know the key
            or has stopped. "late" if the deadline has passed. "missing", "ended" and "denied" mean the same as in FinishSend.
        reason: explanation for users, without a full stop.
        outcome: the host's reported outcome; only set if `ending` is "answered" or "buried".
    """

    ask: int
    ending: str
    reason: str = ""
    outcome: AskOutcome | None = None


class FinishSend(Command, frozen=True, gc=False):
    """Command: report the outcome of a send to the program.

    Attributes:
        ending: "taken" if the input was accepted. "refused" or "not public" if the host will never accept the input. "missing" if the agent
            does not exist. "ended" if the fleet has ended. "denied" if this client has no permission. "unknown" if the input may have been
            accepted. "not taken" if the time limit passed and the input was definitely not accepted.
        reason: explanation for users, without a full stop.
        number: sequence number of the input among all inputs of its agent.
        is_repeated: whether an earlier request with the same key had already been accepted.
    """

    send: int
    ending: str
    reason: str = ""
    number: int = 0
    is_repeated: bool = False

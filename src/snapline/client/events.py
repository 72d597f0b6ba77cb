"""Events and commands of a client's core.

Sends are numbered by the adapter, requests by the core. Every FindAgents is answered by AgentsFound or FindingFailed, every
OfferInputs by RequestAnswered or RequestFailed, every AskHost by AnswerHeard or RequestFailed, once.
"""

import msgspec

from snapline.messages.answers import LocateReply
from snapline.messages.inputs import AskOutcome, InputOutcome

TAKEN, REFUSED, NOT_PUBLIC, MISSING, ENDED, DENIED = "taken", "refused", "not public", "missing", "ended", "denied"
UNKNOWN, NOT_TAKEN = "unknown", "not taken"
ANSWERED, BURIED, FORGOTTEN, LATE = "answered", "buried", "forgotten", "late"


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of the core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base of the core's commands."""


# ---- from the program ---------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """One input that the program wants an agent to have. Its key and payload are the adapter's."""

    send: int
    agent: str
    size_bytes: int
    deadline_ns: int


class InputsGiven(Event, frozen=True, gc=False):
    """Inputs of the program, in the order that each agent is to get them."""

    sends: tuple[Send, ...]


class SendsDropped(Event, frozen=True, gc=False):
    """Sends that are no longer waited for."""

    sends: tuple[int, ...]


class AnswerWanted(Event, frozen=True, gc=False):
    """The program waits for its agent's answer to an input that has been taken. Asks are numbered by the adapter."""

    ask: int
    agent: str
    deadline_ns: int


class AskDropped(Event, frozen=True, gc=False):
    """An ask that is no longer waited for."""

    ask: int


class ClientClosed(Event, frozen=True, gc=False):
    """Client closed: nothing is tried any more."""


# ---- from the coordinator, hosts, the clock -----------------------------------------------------------------------


class AgentsFound(Event, frozen=True, gc=False):
    request: int
    reply: LocateReply


class FindingFailed(Event, frozen=True, gc=False):
    """Agents could not be looked up. `is_final`: it would fail every time."""

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
    """Request without an answer. `is_unsent`: the host has certainly taken nothing of it. `is_final`: it would fail every time."""

    request: int
    reason: str
    is_unsent: bool = False
    is_final: bool = False


class TimerFired(Event, frozen=True, gc=False):
    """The time of `wakeup_ns` has come."""


# ---- commands -----------------------------------------------------------------------------------------------------


class FindAgents(Command, frozen=True, gc=False):
    """Ask the coordinator where these live, within the limit."""

    request: int
    agents: tuple[str, ...]
    limit_ns: int


class OfferInputs(Command, frozen=True, gc=False):
    """Offer these to a host, in this order, and wait for its answer within the limit."""

    request: int
    host: str
    address: str
    sends: tuple[int, ...]
    limit_ns: int


class AskHost(Command, frozen=True, gc=False):
    """Wait at a host for the answer, within the limit."""

    request: int
    host: str
    address: str
    ask: int
    limit_ns: int


class FinishAsk(Command, frozen=True, gc=False):
    """An ask is over.

    Attributes:
        ending: "answered"; "buried": it is a dead letter; "forgotten": its agent does not know the key, or has stopped; "late": no time was left;
            "missing", "ended", "denied" as of a send.
        reason: a sentence without its full stop, for people.
        outcome: of the first two.
    """

    ask: int
    ending: str
    reason: str = ""
    outcome: AskOutcome | None = None


class FinishSend(Command, frozen=True, gc=False):
    """A send is over.

    Attributes:
        ending: "taken"; "refused" permanently; "missing": there is no such agent; "ended": there is no fleet any more; "denied":
            this client has no permission; "unknown": it may have been taken; "not taken": it certainly was not, in the time there was.
        reason: a sentence without its full stop, for people.
        number: of the input, among those of its agent.
        is_repeated: its key was known.
    """

    send: int
    ending: str
    reason: str = ""
    number: int = 0
    is_repeated: bool = False

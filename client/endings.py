"""What a send comes to, for the program: a receipt, or an error that says what is known."""

import msgspec

from snapline.client import events as ev
from snapline.errors import (
    AgentMissingError,
    FleetEndedError,
    InputNotTakenError,
    InputRefusedError,
    InputUnknownError,
    MisuseError,
    SnaplineError,
)


class Receipt(msgspec.Struct, frozen=True):
    """An input is in the fleet's log for good: its agent consumes it once, whatever dies and whatever is rolled back.

    Attributes:
        number: of the input, 1, 2, 3 … among those of its agent, which consumes them in this order.
        key: tells it from all others of its agent: the same key again is the same input.
        is_repeated: it had been taken before, under this number.
    """

    agent: str
    number: int
    key: str
    is_repeated: bool = False


def ending_of(said: ev.FinishSend, agent: str, key: str) -> Receipt | SnaplineError:
    """What the program gets."""
    if said.ending == ev.TAKEN:
        return Receipt(agent, said.number, key, said.is_repeated)
    error = _error_of(said.ending, said.reason, agent, key)
    if isinstance(error, _ABOUT_INPUTS):
        error.agent, error.key = agent, key
    return error


_ABOUT_INPUTS = (AgentMissingError, FleetEndedError, InputNotTakenError, InputRefusedError, InputUnknownError)


def _error_of(ending: str, reason: str, agent: str, key: str) -> SnaplineError:
    match ending:
        case ev.REFUSED:
            return InputRefusedError(reason)
        case ev.MISSING:
            return AgentMissingError(reason)
        case ev.ENDED:
            return FleetEndedError(reason)
        case ev.DENIED:
            return MisuseError(reason)
        case ev.NOT_TAKEN:
            return InputNotTakenError(f"the input with key {key} for agent {agent} was not taken in time: {reason}")
        case _:
            return InputUnknownError(
                f"the input with key {key} for agent {agent} may have been taken, or may be yet ({reason}): "
                "give it again with the same key"
            )

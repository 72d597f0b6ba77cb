"""Defines the requests of turns that want to go another way: `ctx.rollback` and `ctx.restart_turn`."""

import sys

import msgspec

from snapline.errors import UsageError
from snapline.ids import is_plain

REASON_CHARACTERS_MAX = 1_000

RESTARTS_MAX = 100
"""Largest number of restarts of a turn. The turn's record contains all earlier attempts."""


class RollbackRequest(msgspec.Struct, frozen=True):
    """A turn's request to roll back the fleet. `snapshot` is "last", "turn", a tag or an epoch number. `place` is the function, file and
    line of the call. Rollback requests are counted per `place` and reason, and refused above `at_most`."""

    snapshot: str
    reason: str
    place: str
    at_most: int = 1


class RollbackRequestedError(BaseException):
    """Raised to end the turn that requests a rollback. This class is not an `Exception`, so handlers do not catch it by accident, and sagas
    do not undo their effects because of it."""

    def __init__(self, rollback_request: RollbackRequest) -> None:
        super().__init__(
            f"the turn asks that the fleet goes back to {rollback_request.snapshot}: {rollback_request.reason}"
        )
        self.rollback_request = rollback_request


class RestartRequest(msgspec.Struct, frozen=True):
    """A turn's request to begin again, for this reason. If it has begun again `at_most` times, it fails permanently."""

    reason: str
    at_most: int


class RestartRequestedError(BaseException):
    """Raised to end the attempt at a turn that wants to begin again. This class is no `Exception` for the same reasons as
    `RollbackRequestedError`."""

    def __init__(self, restart_request: RestartRequest) -> None:
        super().__init__(f"the turn wants to begin again: {restart_request.reason}")
        self.restart_request = restart_request


NOT_UNDONE = 'ctx.rollback leaves the agent as it was before its turn: it needs on_error = "undo"'
CAUGHT = "the handler has caught what ctx.rollback or ctx.restart_turn raises: let it pass"

FAILURES = (Exception, RollbackRequestedError, RestartRequestedError, SystemExit)
"""Exceptions that end a turn when its handler raises them."""


def request_in(error: BaseException, on_error: str) -> tuple[RollbackRequest | None, BaseException]:
    """Return the rollback request of a failed turn, and the error with which the turn failed. The rollback request is None if the turn did
    not make one, or if its agent must not make one. If the agent must not make rollback requests, the returned error is a UsageError."""
    if not isinstance(error, RollbackRequestedError):
        return None, error
    return (error.rollback_request, error) if on_error == "undo" else (None, UsageError(NOT_UNDONE))


def make_restart_request(reason: str, at_most: int) -> RestartRequest:
    """Return the request for a call of `ctx.restart_turn`. Raise UsageError if an argument is invalid."""
    if not is_plain(reason) or not 0 < len(reason) <= REASON_CHARACTERS_MAX:
        raise UsageError(
            f"ctx.restart_turn takes a reason of 1 to {REASON_CHARACTERS_MAX:,} characters, not {reason!r:.100}"
        )
    if type(at_most) is not int or not 0 <= at_most <= RESTARTS_MAX:
        raise UsageError(f"ctx.restart_turn begins again 0 to {RESTARTS_MAX} times, not {at_most!r}")
    return RestartRequest(reason, at_most)


ROLLBACKS_MAX = 16
"""Largest number of rollbacks that one call may cause before an operator must decide. The fleet remembers so many."""


def make_rollback_request(reason: str, snapshot: str, at_most: int) -> RollbackRequest:
    """Return the rollback request for a call of `ctx.rollback`. Raise UsageError if an argument is invalid."""
    if not is_plain(reason) or not 0 < len(reason) <= REASON_CHARACTERS_MAX:
        raise UsageError(
            f"ctx.rollback takes a reason of 1 to {REASON_CHARACTERS_MAX:,} characters, not {reason!r:.100}"
        )
    if not is_plain(snapshot) or not snapshot:
        raise UsageError(f'ctx.rollback goes to "last", "turn", a tag or an epoch, as text, not to {snapshot!r:.100}')
    if type(at_most) is not int or not 1 <= at_most <= ROLLBACKS_MAX:
        raise UsageError(f"ctx.rollback goes back 1 to {ROLLBACKS_MAX} times for one reason, not {at_most!r}")
    frame = sys._getframe(2)
    file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return RollbackRequest(snapshot, reason, f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})", at_most)

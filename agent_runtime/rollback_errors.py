"""Defines the rollback requests that turns make with `ctx.rollback`."""

import sys

import msgspec

from snapline.errors import UsageError
from snapline.ids import is_plain

REASON_CHARACTERS_MAX = 1_000


class RollbackRequest(msgspec.Struct, frozen=True):
    """A turn's request to roll back the fleet. `snapshot` is "last", a tag or an epoch number. `place` is the function, file and line of
    the call. Rollback requests are counted per `place`."""

    snapshot: str
    reason: str
    place: str


class RollbackRequestedError(BaseException):
    """Raised to end the turn that requests a rollback. This class is not an `Exception`, so handlers do not catch it by accident, and sagas
    do not undo their effects because of it."""

    def __init__(self, rollback_request: RollbackRequest) -> None:
        super().__init__(
            f"the turn asks that the fleet goes back to {rollback_request.snapshot}: {rollback_request.reason}"
        )
        self.rollback_request = rollback_request


NOT_UNDONE = 'ctx.rollback leaves the agent as it was before its turn: it needs on_error = "undo"'
CAUGHT = "the handler has caught what ctx.rollback raises: let it pass"

FAILURES = (Exception, RollbackRequestedError, SystemExit)
"""Exceptions that end a turn when its handler raises them."""


def request_in(error: BaseException, on_error: str) -> tuple[RollbackRequest | None, BaseException]:
    """Return the rollback request of a failed turn, and the error with which the turn failed. The rollback request is None if the turn did
    not make one, or if its agent must not make one. If the agent must not make rollback requests, the returned error is a UsageError."""
    if not isinstance(error, RollbackRequestedError):
        return None, error
    return (error.rollback_request, error) if on_error == "undo" else (None, UsageError(NOT_UNDONE))


def make_rollback_request(reason: str, snapshot: str) -> RollbackRequest:
    """Return the rollback request for a call of `ctx.rollback`. Raise UsageError if an argument is invalid."""
    if not is_plain(reason) or not 0 < len(reason) <= REASON_CHARACTERS_MAX:
        raise UsageError(
            f"ctx.rollback takes a reason of 1 to {REASON_CHARACTERS_MAX:,} characters, not {reason!r:.100}"
        )
    if not is_plain(snapshot) or not snapshot:
        raise UsageError(f'ctx.rollback goes to "last", a tag or an epoch, as text, not to {snapshot!r:.100}')
    frame = sys._getframe(2)
    file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return RollbackRequest(snapshot, reason, f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})")

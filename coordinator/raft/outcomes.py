"""Outcomes of a proposal."""

import msgspec
from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The entry is in the log permanently, and applied here."""

    result: object
    """Return value of the machine's `apply` on this replica."""


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The entry is not in the log, and this attempt will not add it."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The entry may be in the log, now or later. Propose the same request again: the state recognises a repetition."""

    reason: str


Outcome = Committed | Rejected | Unknown

_REJECTED = {
    FAIL_REASON.QUEUE_FULL: "too many proposals wait",
    FAIL_REASON.MISSING_LEADER: "there is no leader",
    FAIL_REASON.DISCARDED: "another entry took its place",
    FAIL_REASON.NOT_LEADER: "the leader has changed",
    FAIL_REASON.REQUEST_DENIED: "the leader refuses it",
}

_UNKNOWN = {
    FAIL_REASON.LEADER_CHANGED: "the leader changed, or the connection to it broke, before it answered",
    FAIL_REASON.UNKNOWN_OUTCOME: "its place in the log was passed before its answer came",
}


def outcome_of(result: object, code: int | None) -> Outcome:
    """Translate the arguments of the library's callback. Only codes that mean "not appended" are rejections."""
    if code == FAIL_REASON.SUCCESS:
        return Committed(result)
    reason = _REJECTED.get(code)
    if reason is not None:
        return Rejected(reason)
    return Unknown(_UNKNOWN.get(code, f"the library answered {code}"))

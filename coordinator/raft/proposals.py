"""Proposals of one replica, with their outcomes, time-outs and counters.

An outcome is *committed*, *rejected* or *unknown*. A proposal in flight gets its outcome from the library's callback. If the callback is
not called before the time-out, the outcome is *unknown*.
"""

import asyncio
import math
from typing import TypeVar

import msgspec
from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types

from snapline.telemetry.metrics import Distribution


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an entry that is in the log permanently and has been applied on this replica."""

    result: object
    """The value that the machine's `apply` returned on this replica."""


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an entry that is not in the log, and that this attempt will not add."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an entry that may be in the log, now or later. The caller proposes the same request again; the state detects
    duplicates."""

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
    """Convert the arguments of the library's callback to an outcome. Only codes that mean "not appended" become rejections."""
    if code == FAIL_REASON.SUCCESS:
        return Committed(result)
    reason = _REJECTED.get(code)
    if reason is not None:
        return Rejected(reason)
    return Unknown(_UNKNOWN.get(code, f"the library answered {code}"))


T = TypeVar("T")


class Pending:
    """Futures of one event loop, each of which receives the outcome of its proposal, or *unknown* after a time-out.

    All futures share one timer, because a separate timer for each would take a seventh of the CPU time of a proposal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[asyncio.Future[Outcome], tuple[float, float]] = {}
        """Future → (deadline by the loop's clock, time-out), both in seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, timeout_s: float) -> "asyncio.Future[Outcome]":
        """Return a future for one more proposal. The caller must call `discard` once the future has its outcome."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        at_s = self._loop.time() + timeout_s
        self._deadlines[future] = at_s, timeout_s
        if at_s < self._timer_s:
            self._set_timer(at_s)
        return future

    def discard(self, future: "asyncio.Future[Outcome]") -> None:
        """Stop tracking a future."""
        del self._deadlines[future]

    def give_up(self, reason: str) -> None:
        """Set the outcome of all futures to unknown."""
        for future in self._deadlines:
            settle(future, Unknown(reason))

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def _look(self) -> None:
        now_s = self._loop.time()
        for future, (at_s, timeout_s) in self._deadlines.items():
            if at_s <= now_s:
                settle(future, Unknown(f"no answer within {timeout_s} s"))
        self._timer, self._timer_s = None, math.inf
        next_s = min([at_s for at_s, _ in self._deadlines.values() if at_s > now_s], default=math.inf)
        if next_s < math.inf:
            self._set_timer(next_s)


def settle(future: "asyncio.Future[T]", value: T) -> None:
    """Set a future's result, unless the future is done or cancelled."""
    if not future.done():
        future.set_result(value)


def settle_error(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Set a future's exception, unless the future is done or cancelled."""
    if not future.done():
        future.set_exception(error)


LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds, in seconds, of the buckets for commit latency. A further bucket has no upper bound."""


class Counters:
    """Counters of one replica since its start. `commits_s` counts commits by their duration in seconds."""

    def __init__(self) -> None:
        self.proposals = self.committed = self.rejected = self.unknown = 0
        self.barriers = self.reads = 0
        self.ticks = self.tick_errors = 0
        self.tick_s_max = 0.0
        """Duration of the longest tick, in seconds. Dumps and slow disks cause long ticks, which must stay shorter than the election
        time-out."""
        self.leader_changes = 0
        self.commits_s = Distribution(LATENCY_BUCKETS_S)

    def count_outcome(self, outcome: Outcome, took_s: float) -> None:
        match outcome:
            case Committed():
                self.committed += 1
                self.commits_s.observe(took_s)
            case Rejected():
                self.rejected += 1
            case Unknown():
                self.unknown += 1

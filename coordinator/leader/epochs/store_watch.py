"""Health of the store, judged by the results of epochs and the hosts' reports, and the timer for periodic epochs.

Problem. A full, slow or unreachable store must not block the agents as long as hosts have memory for unstored data. However, even an epoch
that is certain to fail costs the fleet a capture of all agents' states. Triggers are therefore deferred while the store fails, and tools
display the reason.

The store's health is judged from two sources: epochs and heartbeats. *Epochs*: each epoch that could not be stored counts as a failure,
and each written ref as a success. Epochs that end for another reason (a lost host, a plan, an inconsistent cut, a long turn) count as
neither. Based on these results, a circuit breaker (`Breaker`) decides when the next regular epoch may begin. *Heartbeats*: in protocols
with sender logs, hosts write checkpoints of single agents, and report in every heartbeat whether these writes fail.

The store is *degraded* while the breaker is open or any host reports a problem. While the store is degraded, only regular epochs are
delayed. Manually requested epochs and epochs needed for a plan begin at once. The judgement of the store is volatile, and a new leader
assumes that the store is healthy.

*The periodic trigger* fires when the next regular epoch is due. Due times are one period apart, counted from the time when the fleet
starts to run. Missed due times are skipped. A trigger is skipped if the store is failing or still storing an epoch, so the interval
becomes a multiple of the period.

**The circuit breaker** decides how often a failing store is tried. Problem. Each attempt on a full or unreachable store fails, and is
expensive: states are captured, packs are partly written, and network and log are loaded. A store that has recovered should nevertheless be
used again soon.

Model. An *attempt* ends in one of three ways: it succeeds, it fails because of the store, or it ends for an unrelated reason. Attempts may
overlap and end in any order. The breaker is either closed or open:

    closed   regular attempts may begin at any time
    open     after FAILURES_TO_OPEN consecutive failures. One regular attempt, called the *probe*, may begin at `next_try_ns`. If the probe
    fails, the wait before the next probe doubles, up to PROBE_NS_MAX. If the probe ends for an unrelated reason, the next probe may begin
    at once.

Any success closes the breaker. User-requested attempts may begin at any time without the breaker's permission, but the breaker counts their
outcomes. If a user-requested attempt fails while a probe is running, the wait is not extended. If it were extended, manual retries would
delay the next probe.

Invariants (`validate`): the breaker opens at the FAILURES_TO_OPEN-th consecutive failure and closes at the next success; no probe runs
while it is closed; the wait between two probes is PROBE_NS × 2ⁿ, at most PROBE_NS_MAX.

The breaker is deterministic and uses no clock, no I/O and no randomness. The caller passes the current time, which must never decrease.
No guarantee depends on the breaker, because it decides only when an attempt begins, never whether data counts as stored.
"""

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.messages.status import Concern

FAILURES_TO_OPEN = 3
"""Number of consecutive failures that opens the breaker. One or two failures may be transient, such as a leader change in an object store;
a third rarely is."""

PROBE_NS = 1_000_000_000
"""Time, in nanoseconds, from the opening failure to the first probe (1 s). A full disk is rarely cleared faster."""

PROBE_NS_MAX = 60_000_000_000
"""Longest wait for a probe, in nanoseconds (1 min). A recovered store is used again within a minute, and one probe per minute is negligible
load."""


class Breaker:
    """Circuit breaker that decides when a failing store is tried again. The class is not thread-safe.

    Attributes:
        is_open: whether the breaker is open, so that only probes may begin.
        failures: number of consecutive failures.
        reason: why the latest attempt failed; "" after a success.
        since_ns: time of the first of the current consecutive failures; 0 if there are none.
        next_try_ns: while the breaker is open, the time of the next probe; otherwise 0.
    """

    __slots__ = ("_probe", "_wait_ns", "failures", "is_open", "next_try_ns", "reason", "since_ns")

    def __init__(self) -> None:
        self.is_open = False
        self.failures = 0
        self.reason = ""
        self.since_ns = 0
        self.next_try_ns = 0
        self._wait_ns = PROBE_NS
        self._probe: int | None = None

    def allows(self, now_ns: int) -> bool:
        """Return whether a regular attempt may begin now."""
        return not self.is_open or (self._probe is None and now_ns >= self.next_try_ns)

    def begun(self, attempt: int, now_ns: int) -> None:
        """Record the start of an attempt, whether regular or requested by a user. If a probe is due, this attempt becomes the probe."""
        if self.is_open and self.allows(now_ns):
            self._probe = attempt

    def succeeded(self, attempt: int) -> bool:
        """Record that the attempt has succeeded. Return whether this success has closed the breaker."""
        has_closed = self.is_open
        self.is_open = False
        self.failures, self.reason, self.since_ns, self.next_try_ns = 0, "", 0, 0
        self._wait_ns, self._probe = PROBE_NS, None
        return has_closed

    def failed(self, attempt: int, now_ns: int, reason: str) -> bool:
        """Record that the attempt failed because of the store. The same attempt may fail several times. Return whether this failure has
        opened the breaker."""
        self.failures += 1
        self.reason = reason
        if self.failures == 1:
            self.since_ns = now_ns
        if not self.is_open and self.failures >= FAILURES_TO_OPEN:
            self.is_open = True
            self.next_try_ns = now_ns + self._wait_ns
            return True
        if attempt == self._probe:
            self._probe = None
            self._wait_ns = min(2 * self._wait_ns, PROBE_NS_MAX)
            self.next_try_ns = now_ns + self._wait_ns
        return False

    def ended(self, attempt: int) -> None:
        """Record that the attempt ended for a reason unrelated to the store. Calls for attempts whose outcome is already known have no
        effect."""
        if attempt == self._probe:
            self._probe = None

    def validate(self) -> None:
        """Check the invariants.

        Raises:
            AssertionError: an invariant does not hold.
        """
        assert self.is_open == (self.failures >= FAILURES_TO_OPEN), "open without failures, or the other way round"
        assert (self.failures > 0) == bool(self.reason), "a failure without its reason, or the other way round"
        assert self.is_open == (self.next_try_ns > 0), "a probe is planned while closed, or none while open"
        assert self._probe is None or self.is_open, "a probe while closed"
        assert PROBE_NS <= self._wait_ns <= PROBE_NS_MAX, "a wait out of bounds"


class Period:
    """Timer for periodic epochs.

    Attributes:
        next_ns: time when the next epoch is due; None if it is unknown.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.next_ns: int | None = None

    def stop(self) -> None:
        """Stop the timer because the fleet is not running. When the fleet runs again, a new period begins."""
        self.next_ns = None

    def is_over(self) -> bool:
        """Return whether a periodic epoch is due, but return True only once per period."""
        now, period_ns = self._shared.now, self._shared.state.image.period_ns
        if not period_ns:
            return False
        if self.next_ns is None:
            self.next_ns = now + period_ns
        if now < self.next_ns:
            return False
        self.next_ns += period_ns
        if self.next_ns <= now:
            self.next_ns = now + period_ns
        return True

    def first_from(self, time_ns: int) -> int | None:
        """Return the first due time that is not before `time_ns`, or None if the due times are unknown. If no period is configured,
        return `next_ns`."""
        period_ns = self._shared.state.image.period_ns
        if not period_ns or self.next_ns is None or self.next_ns >= time_ns:
            return self.next_ns
        return self.next_ns - (self.next_ns - time_ns) // period_ns * period_ns


LOOK_NS = SECOND_NS // 10
"""Time, in nanoseconds, between two checks of all heartbeats. A check after each of thousands of events would be too much work."""

OK, DEGRADED = "ok", "degraded"


class StoreCondition(msgspec.Struct, frozen=True):
    """Condition of the store, as shown by tools.

    Attributes:
        state: "ok" or "degraded".
        since_ns: duration, in nanoseconds, for which the store has been degraded; 0 if it is healthy.
        reason: why the latest attempt failed; "" if the store is healthy.
        next_try_ns: time, in nanoseconds, until a regular epoch may begin; 0 if one may begin now or there are no periodic epochs.
        skipped: number of epoch triggers and basic checkpoints that store failures have deferred since this leader started.
    """

    state: str = OK
    since_ns: int = 0
    reason: str = ""
    next_try_ns: int = 0
    skipped: int = 0


class StoreWatch:
    """The store's health as known to this leader. The modules that follow epochs report their results to this object.

    Attributes:
        skipped: number of regular triggers deferred because of store failures.
    """

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, period: Period) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._period = period
        self._breaker = Breaker()
        self._host_reasons: dict[str, str] = {}
        """Host → why it currently cannot store checkpoints of its agents."""
        self._host_since_ns: int | None = None
        self._standing: dict[str, int] = {}
        """Host whose agents are paused because its memory for unstored data is full → time since which they have been paused."""
        self._look_ns = 0
        self._is_reported = False
        """True if a warning was logged that the store is degraded, and its recovery has not been logged yet."""
        self._reported_ns = 0
        self.skipped = 0

    # ---- results of epochs ----------------------------------------------------------------------------------------

    def allows(self) -> bool:
        """Return whether the breaker allows a regular epoch to begin now."""
        return self._breaker.allows(self._shared.now)

    def begun(self, epoch: int) -> None:
        """Record that an epoch has begun, as an attempt of the circuit breaker."""
        self._breaker.begun(epoch, self._shared.now)

    def allows_trigger(self) -> bool:
        """Return whether a trigger may begin an epoch now. If the trigger may not begin an epoch, count it as skipped."""
        self.skipped += not self.allows()
        return self.allows()

    def failed(self, epoch: int, reason: str, *, is_news: bool = False) -> None:
        """Record that the epoch or its ref could not be stored. If `is_news` is set and the store is not yet degraded, log the failure."""
        if is_news and not self.is_degraded:
            self._shared.note("error", reason)
        self._breaker.failed(epoch, self._shared.now, reason)

    def stored(self, epoch: int) -> None:
        """Record that the epoch's ref or its release has been written."""
        self._breaker.succeeded(epoch)

    def ended(self, epoch: int) -> None:
        """Record that the epoch has been aborted or condemned. If the store caused the abort, the caller has already called `failed`."""
        self._breaker.ended(epoch)

    # ---- reports --------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Check the heartbeats. Log a line when the store becomes degraded, and another when it has recovered."""
        if self._shared.now >= self._look_ns:
            self._look_ns = self._shared.now + LOOK_NS
            self._look()
        if self.is_degraded and not self._is_reported:
            self._is_reported, self._reported_ns = True, self._shared.now
            self._shared.note("warning", f"the store is degraded: {self._reason}")
        elif self._is_reported and not self.is_degraded:
            self._is_reported = False
            lasted_s = (self._shared.now - self._reported_ns) / SECOND_NS
            self._shared.note("info", f"the store works again; it was degraded for {lasted_s:.1f} s")

    def host_problem(self, hosts: list[str]) -> str:
        """Return the reason why one of these hosts cannot use the store, or "" if all of them can."""
        return next((self._host_reasons[host] for host in hosts if host in self._host_reasons), "")

    def is_storing(self, host: str) -> bool:
        """Return whether this host reports that it is currently writing its part of an epoch."""
        session = self._host_sessions.attached_session(host)
        return session is not None and session.heartbeat.storing > 0

    def condition(self) -> StoreCondition:
        """Return the store's condition. The next attempt is expected at the first periodic trigger after the breaker's delay."""
        skipped = self.skipped + sum(x.heartbeat.put_off for x in self._sessions())
        if not self.is_degraded:
            return StoreCondition(skipped=skipped)
        now = self._shared.now
        since_ns = min([x for x in (self._breaker.since_ns, self._host_since_ns) if x])
        try_ns = self._period.first_from(self._breaker.next_try_ns)
        wait_ns = 0 if try_ns is None else max(0, try_ns - now)
        return StoreCondition(DEGRADED, now - since_ns, self._reason, wait_ns, skipped)

    def concerns(self) -> list[Concern]:
        """Return one concern for each host whose agents are paused."""
        concerns = []
        for host, since_ns in self._standing.items():
            lasts_ns = self._shared.now - since_ns
            text = f"host {host}: no more can wait in memory for the store, and its agents are paused for {lasts_ns / 1e9:.1f} s"
            concerns.append(Concern("memory", (host,), lasts_ns, text))
        return concerns

    @property
    def is_degraded(self) -> bool:
        """Return whether the store is degraded, because the breaker is open or a host cannot use the store."""
        return self._breaker.is_open or bool(self._host_reasons)

    @property
    def _reason(self) -> str:
        return self._breaker.reason if self._breaker.is_open else next(iter(self._host_reasons.values()), "")

    def _sessions(self) -> list[HostSession]:
        sessions = [self._host_sessions.attached_session(host) for host in self._host_sessions.attached()]
        return [session for session in sessions if session is not None]

    def _look(self) -> None:
        sessions = self._sessions()
        self._standing = {
            x.host: self._standing.get(x.host, self._shared.now) for x in sessions if x.heartbeat.is_standing
        }
        problems = {x.host: x.heartbeat.store_problem for x in sessions}
        self._host_reasons = {host: f"host {host}: {problem}" for host, problem in problems.items() if problem}
        self._host_since_ns = (self._host_since_ns or self._shared.now) if self._host_reasons else None

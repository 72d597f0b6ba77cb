"""A circuit breaker: decides how often to try a failing store.

Problem. A full or unreachable store fails every attempt, and each attempt costs: states are captured, packs are
partly written, the network is loaded, the log fills. Yet a store that works again should be used soon.

Model. An *attempt* is anything that ends in one of three ways: it succeeds, it fails because of the store, or it
ends for a reason that shows nothing about the store. Attempts may overlap and end in any order. The breaker is

    closed   regular attempts may begin at any time
    open     after FAILURES_TO_OPEN failures in a row. One regular attempt, the *probe*, may begin at `next_try_ns`.
             If it fails, the wait for the next one doubles, up to PROBE_NS_MAX; if it shows nothing, the next one may begin at once

Any success closes the breaker. Attempts that a user requests may begin at any time, without the breaker's permission, but their
outcome counts. Their failures during the probe do not lengthen the wait; otherwise a user who retries manually would delay the recovery.

Invariants (`validate`): open exactly from the FAILURES_TO_OPEN-th failure in a row to the next success; no probe
while closed; the wait between two probes is PROBE_NS × 2ⁿ, at most PROBE_NS_MAX.

Pure: no clock, no I/O, no randomness. The caller passes the time, which must not run backwards. The breaker carries no guarantee: it decides when
something is tried, never what counts as stored.
"""

FAILURES_TO_OPEN = 3
"""Failures in a row that open the breaker. One or two may be transient, such as a leader change of an object store; a third seldom is."""

PROBE_NS = 1_000_000_000
"""Nanoseconds from the opening failure to the first probe (1 s). A full disk is not emptied faster."""

PROBE_NS_MAX = 60_000_000_000
"""Longest wait for a probe in nanoseconds (1 min): a working store is used again within a minute, and a probe a minute is negligible load."""


class Breaker:
    """Decides when a failing store is tried again. Not thread-safe.

    Attributes:
        is_open: see the module's text.
        failures: number of failures in a row.
        reason: reason of the latest failure; "" after a success.
        since_ns: time of the first failure in a row; 0 if there is none.
        next_try_ns: time of the next probe while open; 0 while closed.
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
        """Record that attempt number `attempt` has begun, regular or requested by a user. If a probe is due, the attempt is the probe."""
        if self.is_open and self.allows(now_ns):
            self._probe = attempt

    def succeeded(self, attempt: int) -> bool:
        """Record that the attempt has succeeded. Return whether this has closed the breaker."""
        has_closed = self.is_open
        self.is_open = False
        self.failures, self.reason, self.since_ns, self.next_try_ns = 0, "", 0, 0
        self._wait_ns, self._probe = PROBE_NS, None
        return has_closed

    def failed(self, attempt: int, now_ns: int, reason: str) -> bool:
        """Record that the store has failed the attempt, for the first time or again. Return whether this has opened the breaker."""
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
        """Record that the attempt has ended and shows nothing about the store. May be called again for attempts with a known outcome."""
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

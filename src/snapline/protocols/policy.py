"""Policies that decide when an agent takes its basic (unforced) checkpoints. Users declare a policy, and a `PolicyClock` applies it.

Theory of operation
-------------------
A *policy* is part of a fleet's definition. Users declare a policy as a value or as text. Each agent has a `PolicyClock`, which receives
events and decides when a checkpoint is due. A `PolicyClock` neither reads the system's clock nor uses random numbers.

- Under `Every`, a checkpoint is due a fixed time after the last one, plus or minus a pseudorandom jitter.
- Under `EveryMessages`, a checkpoint is due when the agent has consumed a given number of messages since the last one.
- Under `Adaptive`, a checkpoint is due after the interval that minimizes the average loss of work. Daly's formula (below) computes this
  interval from the measured cost of a checkpoint and the mean time between failures.
- Under `Manual`, a checkpoint is never due automatically.
- Under `AnyOf`, a checkpoint is due as soon as one of several policies requires it.

Under each policy, the agent may also request a checkpoint. All times and message counts start at the agent's last checkpoint, even if the
protocol forced that checkpoint. If the agent has consumed no message since its last checkpoint, no checkpoint is due, because it would
equal the last one. If the time expires before the agent has consumed a message, a checkpoint is due after the next message.

The jitter prevents agents that start at the same time from always taking checkpoints at the same time. The jitter is a hash of the agent,
the checkpoint's number and the seed. So the jitter differs between agents and between checkpoints, but is the same in a replay.

The mean time between failures refers to the whole fleet, since any failure may roll this agent back. If the user does not declare the mean
time between failures, it is estimated as (observation time + one hour) / (failures + 1), as if one failure had occurred in one hour before
the observation. The estimate corresponds to a gamma posterior of the failure rate, whose prior is equivalent to one failure in one hour of
observation.

The caller's duties:

1. Call `consumed` for every message that a turn consumes. A timer that fires counts as a message. Call `taken` after every checkpoint.
2. After each turn, call `is_due`. If no checkpoint is due and `due_ns` is not None, set a timer for `due_ns`. Call `is_due` again when the
   timer fires.
3. When an agent is restored, create a new clock with the number of the agent's checkpoint.

Checkpoint intervals of Young and of Daly
-----------------------------------------
Let C be the pause that one checkpoint causes. Failures occur at random, with a mean time M between failures. Each failure undoes the work
since the last checkpoint. If checkpoints are rare, failures cost more time. If checkpoints are frequent, pauses cost more time. If the time
between failures is exponentially distributed, the expected time per unit of work is proportional to (e^((T + C)/M) - 1)/T, where T is the
work between two checkpoints. The expected time is nearly constant around its minimum, so simple formulas are nearly optimal.

- Young (1974) gives T = sqrt(2CM), which is accurate if C is much smaller than M. For C = M/10, Young's formula costs 0.5 % more than the
  optimum.
- Daly (2006) gives T = sqrt(2CM) * (1 + sqrt(C/2M)/3 + C/18M) - C if C < 2M, otherwise T = M. Daly's formula costs at most 0.2 % more than
  the optimum.

C includes only the time for which an agent pauses, not the upload in the background. The upload of a checkpoint increases the loss per
failure instead. T should be longer than the duration of the upload.
"""

import math
import re
from hashlib import blake2b
from typing import Self, assert_never

import msgspec

from snapline.errors import UsageError


def daly(cost_s: float, mtbf_s: float) -> float:
    """Return the optimal working time between two checkpoints, in seconds, according to Daly's higher-order formula.

    Args:
        cost_s: the pause that one checkpoint causes, in seconds.
        mtbf_s: the fleet's mean time between failures, in seconds. The fleet's mean time equals one host's mean time between failures
            divided by the number of hosts.

    Raises:
        UsageError: an argument is not a finite number greater than 0.
    """
    for name, value in (("cost_s", cost_s), ("mtbf_s", mtbf_s)):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} is {value}: give the measured seconds, a finite number above 0")
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


JITTER = 0.1
"""Jitter of adaptive intervals, and default jitter of periodic intervals. It is large enough to spread agents out within a few
checkpoints."""

MTBF_PRIOR_S = 3_600.0
"""Length in seconds of the period before the first observation in which one failure is assumed. If a checkpoint takes 10 ms, this leads to
one checkpoint every 8 s."""

COST_MIN_S = 1e-6
"""Smallest assumed cost of a checkpoint, in seconds. A measured cost of 0 only reflects the clock's resolution, and would lead to
continuous checkpoints."""

PERIOD_MAX_S = 1e9
"""Longest time in a policy, in seconds. It is about thirty years, which in nanoseconds still fits into 64 bits."""

INTERVAL_MIN_S = 1.0
INTERVAL_MAX_S = 600.0
"""Default bounds of an adaptive interval, in seconds. Checkpoints more often than once a second are a considerable load. Ten minutes of
work are as much as most users accept to lose, however rare failures are."""

POLICY_MESSAGES_MAX = 10**12
"""Largest number of messages in a policy. It is more than an agent handles in a year."""

POLICIES_MAX = 16
"""Largest number of policies in one `AnyOf`. Usually one policy of each kind makes sense. Sixteen leave some room, and bound the length of
the text."""

_NS = 1_000_000_000


class Every(msgspec.Struct, frozen=True, gc=False, tag="every"):
    """Policy: take a checkpoint `seconds` after the last one. The period varies each time by up to the fraction `jitter` in either
    direction.

    Raises:
        UsageError: `seconds` is not positive or too large, or `jitter` is not in 0 <= jitter < 1.
    """

    seconds: float
    jitter: float = JITTER

    def __post_init__(self) -> None:
        _check_period("every", self.seconds)
        if not 0 <= self.jitter < 1:
            raise UsageError(f"a jitter of {self.jitter} is not possible: use a fraction, at least 0 and below 1")


class EveryMessages(msgspec.Struct, frozen=True, gc=False, tag="messages"):
    """Policy: take a checkpoint as soon as the agent has consumed `count` messages since its last checkpoint.

    Raises:
        UsageError: `count` is less than 1 or greater than 10**12.
    """

    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= POLICY_MESSAGES_MAX:
            raise UsageError(
                f"a checkpoint every {self.count} messages is not possible: use 1 to {POLICY_MESSAGES_MAX:,}"
            )


class Adaptive(msgspec.Struct, frozen=True, gc=False, tag="adaptive"):
    """Policy: take a checkpoint after the interval that minimizes the loss of work, limited to the range from `least_s` to `most_s`.

    Attributes:
        mtbf_s: the fleet's mean time between failures, in seconds. If the value is None, the mean time is estimated from the observed
            failures.

    Raises:
        UsageError: a time is not positive or too large, or `least_s` is greater than `most_s`.
    """

    mtbf_s: float | None = None
    least_s: float = INTERVAL_MIN_S
    most_s: float = INTERVAL_MAX_S

    def __post_init__(self) -> None:
        if self.mtbf_s is not None:
            _check_period("mtbf", self.mtbf_s)
        _check_period("least", self.least_s)
        _check_period("most", self.most_s)
        if self.least_s > self.most_s:
            raise UsageError(f"an adaptive policy with least {self.least_s} s above most {self.most_s} s: swap them")


class Manual(msgspec.Struct, frozen=True, gc=False, tag="by hand"):
    """Policy: take a checkpoint only when the agent or an operator requests one."""


Single = Every | EveryMessages | Adaptive | Manual


class AnyOf(msgspec.Struct, frozen=True, gc=False, tag="any of"):
    """Policy: take a checkpoint as soon as one of `policies` requires it.

    Raises:
        UsageError: there are fewer than two policies, or more than POLICIES_MAX.
    """

    policies: tuple[Single, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.policies) <= POLICIES_MAX:
            raise UsageError(f"any of {len(self.policies)} policies is not possible: combine 2 to {POLICIES_MAX}")


Policy = Every | EveryMessages | Adaptive | Manual | AnyOf


def _check_period(name: str, seconds: float) -> None:
    if not 0 < seconds <= PERIOD_MAX_S:
        raise UsageError(f"{name} {seconds} s is not possible: use a time above 0, and at most {PERIOD_MAX_S:g} s")


# -- the clock --------------------------------------------------------------------------------------------------------


class PolicyClockImage(msgspec.Struct, frozen=True):
    """A hashable copy of a policy clock's state."""

    agent: str
    seed: int
    number: int
    last_ns: int
    messages: int
    is_asked: bool
    cost_ns: int | None
    mtbf_s: float


class PolicyClock:
    """Clock that decides when an agent's next basic checkpoint is due. The clock is not thread-safe and does no I/O.

    Attributes:
        agent: this agent's id. Together with the seed and `number`, the agent's id determines the jitter.
        number: number of the agent's last checkpoint.
        cost_ns: moving average of the time for which a checkpoint pauses the agent, or None before the first measurement.
        _is_asked: whether the agent or an operator has requested a checkpoint since the last checkpoint.
        _mtbf_s: estimate of the fleet's mean time between failures.
        _timer_ns: earliest time at which a timed policy requires a checkpoint, or None if there is no timed policy.
        _messages_due: smallest `count` of the `EveryMessages` policies, or None if there is no such policy.
    """

    __slots__ = (
        *("_is_asked", "_last_ns", "_messages", "_messages_due", "_mtbf_s", "_parts", "_seed", "_timer_ns"),
        *("agent", "cost_ns", "number", "policy"),
    )

    def __init__(self, policy: Policy, agent: str, seed: int = 0, *, now_ns: int = 0, number: int = 0) -> None:
        """Create the clock of an agent whose last checkpoint, with the given number, was taken or restored at `now_ns`."""
        self.policy = policy
        self.agent = agent
        self.number = number
        self.cost_ns: int | None = None
        self._seed = seed
        self._last_ns = now_ns
        self._messages = 0
        self._is_asked = False
        self._mtbf_s = MTBF_PRIOR_S
        self._parts: tuple[Single, ...] = policy.policies if isinstance(policy, AnyOf) else (policy,)
        self._messages_due = min((part.count for part in self._parts if isinstance(part, EveryMessages)), default=None)
        self._timer_ns = self._next_timer_ns()

    @property
    def due_ns(self) -> int | None:
        """Return the time at which a checkpoint becomes due if the agent consumes no further messages. Return None if there is no timed
        policy, or if the agent has consumed no message since its last checkpoint."""
        return self._timer_ns if self._messages else None

    @property
    def has_consumed(self) -> bool:
        """Return whether a consumed message has been reported to this clock since the last checkpoint."""
        return self._messages > 0

    def is_due(self, now_ns: int) -> bool:
        """Return whether a checkpoint is due now. No checkpoint is due until the agent has consumed a message since its last checkpoint."""
        if not self._messages:
            return False
        if self._is_asked or (self._messages_due is not None and self._messages >= self._messages_due):
            return True
        return self._timer_ns is not None and now_ns >= self._timer_ns

    def consumed(self, count: int = 1) -> None:
        """Record that turns have consumed `count` messages."""
        self._messages += count

    def asked(self) -> None:
        """Request a checkpoint on behalf of the agent or an operator. The checkpoint is due as soon as its state would differ from the last
        checkpoint."""
        self._is_asked = True

    def taken(self, now_ns: int, cost_ns: int | None = None) -> None:
        """Record that a checkpoint, whatever its cause, was taken at `now_ns`. `cost_ns` is the time for which the checkpoint delayed
        turns, or None if it is not known yet.

        Raises:
            UsageError: the cost is negative.
        """
        if cost_ns is not None:
            self.measured(cost_ns)
        self.number += 1
        self._last_ns = now_ns
        self._messages = 0
        self._is_asked = False
        self._timer_ns = self._next_timer_ns()

    def measured(self, cost_ns: int) -> None:
        """Record that the last checkpoint delayed turns for `cost_ns` nanoseconds.

        Raises:
            UsageError: the cost is negative.
        """
        if cost_ns < 0:
            raise UsageError(f"a checkpoint of {self.agent} cannot cost {cost_ns} ns; measure with a monotonic clock")
        self.cost_ns = cost_ns if self.cost_ns is None else (3 * self.cost_ns + cost_ns) // 4
        self._timer_ns = self._next_timer_ns()

    def failure_rate(self, failures: int, observed_ns: int) -> None:
        """Set the number of failures observed so far and the observation time, both since the fleet was started. The new values replace the
        previous ones.

        Raises:
            UsageError: a number is negative.
        """
        if failures < 0 or observed_ns < 0:
            raise UsageError(f"{failures} failures in {observed_ns} ns is not possible; both are at least 0")
        self._mtbf_s = (observed_ns / _NS + MTBF_PRIOR_S) / (failures + 1)
        self._timer_ns = self._next_timer_ns()

    def _next_timer_ns(self) -> int | None:
        intervals = [interval for part in self._parts if (interval := self._interval_s(part)) is not None]
        return self._last_ns + max(1, round(min(intervals) * _NS)) if intervals else None

    def _interval_s(self, part: Single) -> float | None:
        match part:
            case Every():
                return part.seconds * (1 + part.jitter * self._spread())
            case Adaptive():
                return min(max(self._best_s(part) * (1 + JITTER * self._spread()), part.least_s), part.most_s)
            case EveryMessages() | Manual():
                return None
            case _:
                assert_never(part)

    def _best_s(self, part: Adaptive) -> float:
        """Return the optimal checkpoint interval in seconds, according to Daly's formula. Before the first measurement, return the shortest
        allowed interval, so that the cost of a checkpoint is measured soon."""
        if self.cost_ns is None:
            return part.least_s
        mtbf_s = self._mtbf_s if part.mtbf_s is None else part.mtbf_s
        return daly(cost_s=max(self.cost_ns / _NS, COST_MIN_S), mtbf_s=mtbf_s)

    def _spread(self) -> float:
        """Return a pseudorandom number between -1 and 1, which depends on the seed, the agent and the checkpoint number."""
        text = f"{self._seed}/{self.number}/{self.agent}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**63 - 1

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: If an invariant is violated. Either this clock has a bug, or a caller has passed a negative count.
        """
        assert self._messages >= 0, f"{self.agent}: {self._messages} messages consumed"
        assert self._timer_ns == self._next_timer_ns(), (
            f"{self.agent}: the timer is not the one of checkpoint {self.number}"
        )
        assert self._timer_ns is None or self._timer_ns > self._last_ns, f"{self.agent}: due before the last checkpoint"

    def freeze(self) -> PolicyClockImage:
        """Return a hashable image of the complete state."""
        return PolicyClockImage(
            *(self.agent, self._seed, self.number, self._last_ns),
            *(self._messages, self._is_asked, self.cost_ns, self._mtbf_s),
        )

    @classmethod
    def restore(cls, policy: Policy, image: PolicyClockImage) -> Self:
        """Return a clock whose state is exactly the state in the image. This method is not used for recoveries, which create a new clock
        instead."""
        clock = cls(policy, image.agent, image.seed, now_ns=image.last_ns, number=image.number)
        clock._messages, clock._is_asked = image.messages, image.is_asked
        clock.cost_ns, clock._mtbf_s = image.cost_ns, image.mtbf_s
        clock._timer_ns = clock._next_timer_ns()
        return clock


# -- text -------------------------------------------------------------------------------------------------------------

_UNITS: dict[str, tuple[int, int]] = {"h": (3_600, 1), "m": (60, 1), "s": (1, 1), "ms": (1, 1_000)}
"""Unit → its length in seconds as a fraction, so that 300 ms is read as exactly the float 0.3. The largest unit comes first."""

_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PERIOD = rf"{_NUMBER}(?:ms|s|m|h)"
_FORMS = (
    re.compile(rf"every (?P<seconds>{_PERIOD})(?: jitter (?P<jitter>{_NUMBER}))?"),
    re.compile(r"(?:every )?(?P<count>\d{1,13}) messages?"),
    re.compile(
        rf"adaptive(?: mtbf (?P<mtbf>{_PERIOD}))?(?: least (?P<least>{_PERIOD}))?(?: most (?P<most>{_PERIOD}))?"
    ),
    re.compile(r"by hand"),
)
_CHOICES = (
    "'every 2s', 'every 2s jitter 0.2', '100 messages', 'adaptive', 'adaptive mtbf 1h least 1s most 10m', 'by hand', "
    "or several joined by 'or'; units are ms, s, m and h"
)


def parse_policy(text: str) -> Policy:
    """Parse a policy from its text form. The text is "every 2s", "100 messages", "adaptive", "by hand", or several of these joined by "or".

    Raises:
        UsageError: If the text is not a valid policy. The message shows the invalid part of the text and the valid forms.
    """
    parts = tuple(_parse_single(" ".join(part.split())) for part in re.split(r"\sor\s", text.strip()))
    return parts[0] if len(parts) == 1 else AnyOf(parts)


def _parse_single(text: str) -> Single:
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is not None:
            return _single_from(match.groupdict())
    raise UsageError(f"{text!r} is no policy: write {_CHOICES}")


def _single_from(found: dict[str, str | None]) -> Single:
    match found:
        case {"seconds": str(seconds), "jitter": jitter}:
            return Every(_seconds(seconds), JITTER if jitter is None else float(jitter))
        case {"count": str(count)}:
            return EveryMessages(int(count))
        case {"mtbf": mtbf, "least": least, "most": most}:
            times = {"mtbf_s": mtbf, "least_s": least, "most_s": most}
            return Adaptive(**{name: _seconds(time) for name, time in times.items() if time is not None})
        case _:
            return Manual()


def format_policy(policy: Policy) -> str:
    """Return the text form of a policy. `parse_policy` converts the text back to an equal policy."""
    match policy:
        case Every():
            jitter = "" if policy.jitter == JITTER else f" jitter {policy.jitter!r}"
            return f"every {_period(policy.seconds)}{jitter}"
        case EveryMessages():
            return f"{policy.count} message{'s' * (policy.count != 1)}"
        case Adaptive():
            named = (
                ("mtbf", policy.mtbf_s, None),
                ("least", policy.least_s, INTERVAL_MIN_S),
                ("most", policy.most_s, INTERVAL_MAX_S),
            )
            return "adaptive" + "".join(
                f" {name} {_period(time)}" for name, time, usual in named if time is not None and time != usual
            )
        case Manual():
            return "by hand"
        case AnyOf():
            return " or ".join(format_policy(part) for part in policy.policies)
        case _:
            assert_never(policy)


def _seconds(text: str) -> float:
    number = text.rstrip("hms")
    times, over = _UNITS[text[len(number) :]]
    return float(number) * times / over


def _period(seconds: float) -> str:
    """Format a period in the largest unit in which it is a whole number. If the period is not a whole number in any unit, format it in
    seconds with all digits."""
    for unit, (times, over) in _UNITS.items():
        text = f"{round(seconds * over / times)}{unit}"
        if _seconds(text) == seconds:
            return text
    return f"{seconds!r}s"

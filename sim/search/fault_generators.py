"""Generators that draw one fault of a kind: start, duration, targets and parameters.

Names in a drawn fault are names of nodes that exist at the time of drawing. Other targets are drawn when the fault begins.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from snapline.sim.choices import Choices
from snapline.sim.faults.fault_kinds import (
    EVERY_HOST,
    ROLLING_PAUSE_NS,
    CaptureFault,
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    Fault,
    HangFault,
    HoldFault,
    LossFault,
    MembershipFault,
    Moment,
    PartitionFault,
    PauseFault,
    ResetFault,
    SlowFault,
    SwizzleFault,
    format_duration,
)
from snapline.sim.scenario import PatternPart, Scenario, coordinator_names, host_names

US = 1_000
MS = 1_000_000
S = 1_000_000_000

MESSAGES_ENDLESS = 1000
"""Number of messages that is assumed for one run of an endless pattern."""

_Option = TypeVar("_Option")


class ScenarioDraw:
    """Helper that draws typed values from the swarm's streams of choices."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def below(self, n: int, *key: str | int) -> int:
        return self._choices.pick("swarm", key, n)

    def between(self, least: int, most: int, *key: str | int) -> int:
        """Draw a number from `least` to `most`, both included; `most` if the range is empty."""
        return min(least, most) + self.below(max(1, most - least + 1), *key)

    def of(self, options: Sequence[_Option], *key: str | int) -> _Option:
        return options[self.below(len(options), *key)]

    def one_in(self, n: int, *key: str | int) -> bool:
        return self.below(n, *key) == n - 1

    def one_in_separate(self, n: int, *key: str | int) -> bool:
        """Draw from a separate stream, so that a new kind of draw does not change the other draws of a seed."""
        return self._choices.pick("swarm, apart", key, n) == n - 1

    def below_separate(self, n: int, *key: str | int) -> int:
        """Draw a number below `n` from the separate stream of `one_in_separate`."""
        return self._choices.pick("swarm, apart", key, n)

    def below_for_clients(self, n: int, *key: str | int) -> int:
        """Draw a number below `n` from the stream for clients."""
        return self._choices.pick("swarm, clients", key, n)

    def below_for_outputs(self, n: int, *key: str | int) -> int:
        """Draw a number below `n` from the stream for outputs."""
        return self._choices.pick("swarm, outputs", key, n)

    def below_for_operators(self, n: int, *key: str | int) -> int:
        """Draw a number below `n` from the stream for operators."""
        return self._choices.pick("swarm, operators", key, n)

    def below_for_steps(self, n: int, *key: str | int) -> int:
        """Draw a number below `n` from the stream for steps."""
        return self._choices.pick("swarm, steps", key, n)

    def ns(self, least_ns: int, most_ns: int, *key: str | int) -> int:
        """Draw a time in nanoseconds, evenly over orders of magnitude: double `least_ns` a drawn number of times, then draw a value up
        to the next doubling, rounded to two or three digits."""
        doublings = max(0, (most_ns // max(1, least_ns)).bit_length() - 1)
        base_ns = least_ns << self.between(0, doublings, *key, "doubling")
        drawn_ns = base_ns + base_ns * self.below(16, *key, "sixteenth") // 16
        rounded_ns = drawn_ns - drawn_ns % (MS if drawn_ns >= 10 * MS else 10 * US)
        return max(least_ns, min(rounded_ns, most_ns))

    def duration(self, least_ns: int, most_ns: int, *key: str | int) -> str:
        return format_duration(self.ns(least_ns, max(least_ns, most_ns), *key))


_START_NS = 400 * MS
"""Approximate working time of a fleet at full speed, and its approximate start-up time."""


def _work_ns(pattern: PatternPart) -> int:
    """Return the approximate time in nanoseconds for which a pattern's messages keep a fleet busy."""
    messages = pattern.messages or MESSAGES_ENDLESS
    return round(messages / pattern.rate_per_s) * S if pattern.rate_per_s else _START_NS


class Span:
    """Start and duration of one fault. In two thirds of cases the fault begins during the work, soon after the fleet's start.

    Attributes:
        at: start of the fault.
        room_ns: time from the start until all faults of the run must have ended.
    """

    def __init__(self, dice: ScenarioDraw, scenario: Scenario, index: int, faults_max: int) -> None:
        self.dice = dice
        self.fleet = scenario.fleet
        self._index = index
        self._nodes = host_names(scenario) + coordinator_names(scenario)
        self.hosts_most = len(host_names(scenario)) + faults_max
        until_ns = scenario.run.until_ns
        if scenario.fleet.module or not dice.one_in(3, "is late", index):
            at_ns = min(dice.ns(10 * MS, _START_NS + _work_ns(scenario.fleet.pattern), "early", index), until_ns // 2)
        else:
            at_ns = dice.between(1, until_ns // (125 * MS) * 10, "at", index) * 10 * MS
        self.at = format_duration(at_ns)
        self.room_ns = until_ns - at_ns

    def key(self, *what: str) -> tuple[str | int, ...]:
        return (self._index, *what)

    def of(self, options: Sequence[_Option], what: str) -> _Option:
        return self.dice.of(options, *self.key(what))

    def one_in(self, n: int, what: str) -> bool:
        return self.dice.one_in(n, *self.key(what))

    def between(self, least: int, most: int, *what: str) -> int:
        return self.dice.between(least, most, *self.key(*what))

    def lasts(self) -> str:
        """Draw a duration. Half of the drawn durations are longer than it takes to declare a host lost and recover without it."""
        if self.room_ns > 2 * S and self.one_in(2, "is long"):
            return self.dice.duration(3 * S // 2, min(5 * S, self.room_ns), *self.key("for"))
        return self.dice.duration(50 * MS, min(2 * S, self.room_ns), *self.key("for"))

    def path(self) -> tuple[list[str], Literal["both", "one-way"]]:
        """Draw the scope of a network fault: all nodes in a third of cases, otherwise a pair or one direction of a pair."""
        scope = self.of(("all", "pair", "one-way"), "scope")
        if scope == "all" or len(self._nodes) < 2:
            return [], "both"
        one = self.between(0, len(self._nodes) - 1, "from")
        other = (one + self.between(1, len(self._nodes) - 1, "to")) % len(self._nodes)
        return [self._nodes[one], self._nodes[other]], "one-way" if scope == "one-way" else "both"

    def moment(self) -> Moment:
        """Draw a moment at which a fault happens, usually one of the coordinator's moments."""
        return self.of(("telling", "telling", "deciding", "hearing", "working"), "moment")

    def hit(self) -> int:
        """Draw which occurrence of the moment causes the fault. A run has tens to hundreds of occurrences."""
        return 1 << self.between(0, 5, "hit", "doubling") | self.between(0, 31, "hit", "rest") >> 1

    def back_after(self) -> str:
        return self.dice.duration(200 * MS, min(2 * S, self.room_ns), *self.key("back"))

    def restart_delay_or_never(self) -> str:
        return "" if self.one_in(8, "never") else self.back_after()


def _draw_delay_word(span: Span) -> Fault:
    least = span.dice.duration(5 * MS, 200 * MS, *span.key("least"))
    between, direction = span.path()
    fault = DelayFault(at=span.at, lasts=span.lasts(), least=least, between=between, direction=direction)
    return msgspec.structs.replace(fault, jitter=span.of(("0s", least, "300ms"), "jitter"))


def _draw_slow(span: Span) -> Fault:
    return SlowFault(at=span.at, lasts=span.lasts(), percent=span.of((50, 10, 2), "percent"))


def _draw_loss(span: Span) -> Fault:
    between, direction = span.path()
    fault = LossFault(at=span.at, lasts=span.lasts(), between=between, direction=direction)
    return msgspec.structs.replace(fault, per_mille=span.of((10, 100, 300, 700), "per mille"))


def _draw_reset(span: Span) -> Fault:
    if span.one_in(4, "is in a moment"):
        return ResetFault(at=span.at, when=span.moment(), hit=span.hit())
    times = span.between(1, 5, "times")
    every = span.dice.duration(10 * MS, min(500 * MS, span.room_ns // times), *span.key("every"))
    return ResetFault(at=span.at, times=times, every=every)


def _draw_hold(span: Span) -> Fault:
    return HoldFault(at=span.at, lasts=span.lasts())


def _draw_clog(span: Span) -> Fault:
    return ClogFault(at=span.at, lasts=span.lasts())


def _draw_swizzle(span: Span) -> Fault:
    return SwizzleFault(at=span.at, lasts=span.lasts())


def _draw_partition(span: Span) -> Fault:
    shapes = (
        "one",
        "pair",
        "pair",
        "majority",
        "minority-third",
        "majorities-ring",
        "bridge",
        "isolate-leader",
        "isolate-host",
    )
    fault = PartitionFault(at=span.at, lasts=span.lasts(), direction=span.of(("both", "one-way"), "direction"))
    return msgspec.structs.replace(fault, shape=span.of((*shapes, "isolate-agent"), "shape"))


def _draw_crash(span: Span) -> Fault:
    """Draw a crash. Half of the crashes happen at a given time. A rolling crash is drawn only if there is time for all hosts."""
    after = span.back_after()
    match span.between(0, 7, "style"):
        case 0 | 1:
            when = span.of(("recording", "recovering"), "when")
            fault = CrashFault(at=span.at, restart_after=after, hit=span.between(1, 4, "hit"))
            return msgspec.structs.replace(fault, when=when)
        case 7:
            return CrashFault(at=span.at, restart_after=after, when=span.moment(), hit=span.hit())
        case 2:
            return CrashFault(at=span.at, restart_after=after, is_all=True)
        case 3:
            most_ns = span.room_ns // span.hosts_most - ROLLING_PAUSE_NS
            if most_ns < 50 * MS:
                return CrashFault(at=span.at, restart_after=after)
            rolling = span.dice.duration(50 * MS, most_ns, *span.key("rolling"))
            return CrashFault(at=span.at, restart_after=rolling, is_rolling=True)
        case _:
            return CrashFault(at=span.at, restart_after=span.restart_delay_or_never())


def _draw_capture(span: Span) -> Fault:
    return CaptureFault(at=span.at, hit=span.between(1, 12, "hit"), times=span.of((1, 1, 1, 3), "times"))


def _draw_pause(span: Span) -> Fault:
    return PauseFault(at=span.at, lasts=span.lasts())


def _draw_hang(span: Span) -> Fault:
    """Draw a hang. If there is time, half of the hangs last longer than the fleet waits for a host without progress."""
    long_ns = 6 * S
    is_long = span.room_ns > long_ns and span.one_in(2, "hangs long")
    lasts = span.dice.duration(long_ns, min(2 * long_ns, span.room_ns), *span.key("for")) if is_long else span.lasts()
    fault = HangFault(at=span.at, lasts=lasts, what=span.of(("store", "store", "stop"), "what"))
    is_blocked = span.dice.one_in_separate(3, *span.key("blocked"))
    return msgspec.structs.replace(fault, what="loop") if is_blocked else fault


def _draw_disk(span: Span) -> Fault:
    modes = ("power-cut", "power-cut", "torn", "bit-flip", "eio", "failed-sync", "full", "slow", "stale-read")
    mode = span.of(modes, "mode")
    fault = DiskFault(at=span.at, lasts=span.lasts(), restart_after=span.restart_delay_or_never())
    host = EVERY_HOST if mode != "bit-flip" and span.one_in(4, "everybody") else ""
    if span.dice.one_in_separate(4, *span.key("away")):
        mode = "away"
    return msgspec.structs.replace(fault, mode=mode, host=host)


def _draw_clock(span: Span) -> Fault:
    sign = span.of(("", "-"), "sign")
    skew = sign + span.dice.duration(MS, 3600 * S, *span.key("skew"))
    return ClockFault(at=span.at, lasts=span.lasts(), skew=skew, drift_ppm=span.of((0, 500, -500, 100_000), "drift"))


def _draw_coordinator(span: Span) -> Fault:
    kind = span.of(("kill-leader", "lose-quorum", "depose", "unknown-outcome", "kill"), "kind")
    lasts = "" if kind != "unknown-outcome" and span.one_in(8, "never") else span.lasts()
    fault = CoordinatorFault(at=span.at, lasts=lasts, per_mille=span.of((100, 300, 1000), "per mille"))
    return msgspec.structs.replace(fault, kind=kind)


def _draw_membership(span: Span) -> Fault:
    fault = MembershipFault(at=span.at, back_after="" if span.one_in(3, "never") else span.back_after())
    return msgspec.structs.replace(fault, kind=span.of(("leave", "join"), "kind"))


FAULT_GENERATORS: Mapping[str, Callable[[Span], Fault]] = {
    "delay": _draw_delay_word,
    "slow": _draw_slow,
    "loss": _draw_loss,
    "reset": _draw_reset,
    "hold": _draw_hold,
    "clog": _draw_clog,
    "swizzle": _draw_swizzle,
    "partition": _draw_partition,
    "crash": _draw_crash,
    "capture": _draw_capture,
    "pause": _draw_pause,
    "hang": _draw_hang,
    "disk": _draw_disk,
    "clock": _draw_clock,
    "coordinator": _draw_coordinator,
    "membership": _draw_membership,
}

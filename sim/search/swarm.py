"""Swarm testing: each run draws a concrete scenario from a template and its seed.

If a test enables every feature, it uses each feature only a little. So each run first draws *which* kinds of faults are allowed (each kind
with probability ½), and then draws faults of only these kinds. Fleet sizes, delays and speeds are drawn over orders of magnitude, rather
than around a mean (Groce and others, "Swarm Testing", ISSTA 2012; FoundationDB does the same with its knobs). In some runs, each failpoint
is active with probability ¼, as in FoundationDB.

If all nodes had the same conditions, bugs that depend on differences between nodes would stay hidden. So a delay or loss may affect only
one pair of nodes, or only one direction between them, and in some runs it is permanent. In half of the runs with built-in patterns, some of
the product's limits are reduced (`product_patches.py`), so that small fleets reach limits that only large fleets would reach otherwise.
`sweep.py` counts the scenarios in which each of these elements occurs.

If the template's budget is "within", a drawn fault is omitted if it would exceed the fault budget. Faults defined by the template are
always kept. If the template defines any faults, its hosts and coordinators are kept too, because the faults may name them.

For each kind of fault, a generator draws the start, duration, targets and parameters of one fault. A drawn fault only names nodes that
exist when the scenario is drawn. All other targets are drawn when the fault occurs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from snapline.channels import channel, order
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS, is_autonomous
from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.faults.fault_kinds import (
    EVERY_HOST,
    FAILPOINTS,
    ROLLING_PAUSE_NS,
    CaptureFault,
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    FaultKind,
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
    duration_ns,
    format_duration,
)
from snapline.sim.faults.faults import budget_problems
from snapline.sim.scenario import (
    FAULT_KINDS,
    PATTERN_NAMES,
    ClientsPart,
    Coordinators,
    DelayPart,
    FaultPart,
    FleetPart,
    LivenessPart,
    NetworkPart,
    OutputsPart,
    PatternPart,
    RestoresPart,
    RunPart,
    Scenario,
    StepsPart,
    StorePart,
    SwarmPart,
    TriggerPart,
    coordinator_names,
    host_names,
)
from snapline.sim.workloads.patterns import takes_inputs
from snapline.sim.world.product_patches import LIMITS

US = 1_000
MS = 1_000_000
S = 1_000_000_000

MESSAGES_ENDLESS = 1000
"""Number of messages that one run of an endless pattern is assumed to send."""

_Option = TypeVar("_Option")


class ScenarioDraw:
    """Draws values of several types from the swarm's streams of choices."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def below(self, n: int, *key: str | int) -> int:
        return self._choices.pick("swarm", key, n)

    def between(self, least: int, most: int, *key: str | int) -> int:
        """Draw an integer from `least` to `most`, inclusive. If `least` is greater than `most`, return `most`."""
        return min(least, most) + self.below(max(1, most - least + 1), *key)

    def of(self, options: Sequence[_Option], *key: str | int) -> _Option:
        return options[self.below(len(options), *key)]

    def one_in(self, n: int, *key: str | int) -> bool:
        return self.below(n, *key) == n - 1

    def one_in_separate(self, n: int, *key: str | int) -> bool:
        """Return True with probability 1 / `n`, drawn from a separate stream. New kinds of draws use the separate stream so that they do
        not change a seed's existing draws."""
        return self._choices.pick("swarm, apart", key, n) == n - 1

    def below_separate(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the same separate stream as `one_in_separate`."""
        return self._choices.pick("swarm, apart", key, n)

    def below_for_clients(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the stream for clients."""
        return self._choices.pick("swarm, clients", key, n)

    def below_for_outputs(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the stream for outputs."""
        return self._choices.pick("swarm, outputs", key, n)

    def below_for_operators(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the stream for operators."""
        return self._choices.pick("swarm, operators", key, n)

    def below_for_steps(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the stream for steps."""
        return self._choices.pick("swarm, steps", key, n)

    def below_for_recovery(self, n: int, *key: str | int) -> int:
        """Draw an integer below `n` from the stream for the kind of recovery."""
        return self._choices.pick("swarm, recovery", key, n)

    def ns(self, least_ns: int, most_ns: int, *key: str | int) -> int:
        """Draw a duration in nanoseconds, such that each order of magnitude is about equally likely. Double `least_ns` a random number of
        times, draw a value up to the next doubling, and round it to two or three digits."""
        doublings = max(0, (most_ns // max(1, least_ns)).bit_length() - 1)
        base_ns = least_ns << self.between(0, doublings, *key, "doubling")
        drawn_ns = base_ns + base_ns * self.below(16, *key, "sixteenth") // 16
        rounded_ns = drawn_ns - drawn_ns % (MS if drawn_ns >= 10 * MS else 10 * US)
        return max(least_ns, min(rounded_ns, most_ns))

    def duration(self, least_ns: int, most_ns: int, *key: str | int) -> str:
        return format_duration(self.ns(least_ns, max(least_ns, most_ns), *key))


_START_NS = 400 * MS
"""Approximate time that a fleet takes for its work at full speed, and approximate time that it takes to start."""


def _work_ns(pattern: PatternPart) -> int:
    """Return approximately how long the pattern's messages keep a fleet busy, in nanoseconds."""
    messages = pattern.messages or MESSAGES_ENDLESS
    return round(messages / pattern.rate_per_s) * S if pattern.rate_per_s else _START_NS


class Span:
    """Draws a fault's start, duration and other parameters. In two thirds of all cases, the fault begins soon after the fleet's start,
    while the fleet is working.

    Attributes:
        at: time when the fault begins.
        room_ns: time between the start of the fault and the time when all faults must have ended.
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
        """Draw a duration. If there is enough time, half of the durations are long enough for the fleet to declare the host lost and to
        recover without it."""
        if self.room_ns > 2 * S and self.one_in(2, "is long"):
            return self.dice.duration(3 * S // 2, min(5 * S, self.room_ns), *self.key("for"))
        return self.dice.duration(50 * MS, min(2 * S, self.room_ns), *self.key("for"))

    def path(self) -> tuple[list[str], Literal["both", "one-way"]]:
        """Draw the nodes that a network fault affects. In a third of all cases, these are all nodes, and otherwise a pair of nodes or one
        direction between them."""
        scope = self.of(("all", "pair", "one-way"), "scope")
        if scope == "all" or len(self._nodes) < 2:
            return [], "both"
        one = self.between(0, len(self._nodes) - 1, "from")
        other = (one + self.between(1, len(self._nodes) - 1, "to")) % len(self._nodes)
        return [self._nodes[one], self._nodes[other]], "one-way" if scope == "one-way" else "both"

    def moment(self) -> Moment:
        """Draw the moment at which the fault happens. In most cases, the fault happens at one of the coordinator's moments."""
        return self.of(("telling", "telling", "deciding", "hearing", "working"), "moment")

    def hit(self) -> int:
        """Draw which occurrence of the moment triggers the fault. Each moment occurs tens to hundreds of times in a run."""
        return 1 << self.between(0, 5, "hit", "doubling") | self.between(0, 31, "hit", "rest") >> 1

    def back_after(self) -> str:
        return self.dice.duration(200 * MS, min(2 * S, self.room_ns), *self.key("back"))

    def restart_delay_or_never(self) -> str:
        return "" if self.one_in(8, "never") else self.back_after()


def _draw_delay_word(span: Span) -> FaultKind:
    least = span.dice.duration(5 * MS, 200 * MS, *span.key("least"))
    between, direction = span.path()
    fault = DelayFault(at=span.at, lasts=span.lasts(), least=least, between=between, direction=direction)
    return msgspec.structs.replace(fault, jitter=span.of(("0s", least, "300ms"), "jitter"))


def _draw_slow(span: Span) -> FaultKind:
    return SlowFault(at=span.at, lasts=span.lasts(), percent=span.of((50, 10, 2), "percent"))


def _draw_loss(span: Span) -> FaultKind:
    between, direction = span.path()
    fault = LossFault(at=span.at, lasts=span.lasts(), between=between, direction=direction)
    return msgspec.structs.replace(fault, per_mille=span.of((10, 100, 300, 700), "per mille"))


def _draw_reset(span: Span) -> FaultKind:
    if span.one_in(4, "is in a moment"):
        return ResetFault(at=span.at, when=span.moment(), hit=span.hit())
    times = span.between(1, 5, "times")
    every = span.dice.duration(10 * MS, min(500 * MS, span.room_ns // times), *span.key("every"))
    return ResetFault(at=span.at, times=times, every=every)


def _draw_hold(span: Span) -> FaultKind:
    return HoldFault(at=span.at, lasts=span.lasts())


def _draw_clog(span: Span) -> FaultKind:
    return ClogFault(at=span.at, lasts=span.lasts())


def _draw_swizzle(span: Span) -> FaultKind:
    return SwizzleFault(at=span.at, lasts=span.lasts())


def _draw_partition(span: Span) -> FaultKind:
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


def _draw_crash(span: Span) -> FaultKind:
    """Draw a crash. Half of the crashes affect one host at a fixed time. A rolling crash of all hosts is drawn only if there is enough time
    for it."""
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


def _draw_capture(span: Span) -> FaultKind:
    return CaptureFault(at=span.at, hit=span.between(1, 12, "hit"), times=span.of((1, 1, 1, 3), "times"))


def _draw_pause(span: Span) -> FaultKind:
    return PauseFault(at=span.at, lasts=span.lasts())


def _draw_hang(span: Span) -> FaultKind:
    """Draw a hang. If there is enough time, half of the hangs last longer than the fleet's timeout for a host that makes no progress."""
    long_ns = 6 * S
    is_long = span.room_ns > long_ns and span.one_in(2, "hangs long")
    lasts = span.dice.duration(long_ns, min(2 * long_ns, span.room_ns), *span.key("for")) if is_long else span.lasts()
    fault = HangFault(at=span.at, lasts=lasts, what=span.of(("store", "store", "stop"), "what"))
    is_blocked = span.dice.one_in_separate(3, *span.key("blocked"))
    return msgspec.structs.replace(fault, what="loop") if is_blocked else fault


def _draw_disk(span: Span) -> FaultKind:
    modes = ("power-cut", "power-cut", "torn", "bit-flip", "eio", "failed-sync", "full", "slow", "stale-read")
    mode = span.of(modes, "mode")
    fault = DiskFault(at=span.at, lasts=span.lasts(), restart_after=span.restart_delay_or_never())
    host = EVERY_HOST if mode != "bit-flip" and span.one_in(4, "everybody") else ""
    if span.dice.one_in_separate(4, *span.key("away")):
        mode = "away"
    return msgspec.structs.replace(fault, mode=mode, host=host)


def _draw_clock(span: Span) -> FaultKind:
    sign = span.of(("", "-"), "sign")
    skew = sign + span.dice.duration(MS, 3600 * S, *span.key("skew"))
    return ClockFault(at=span.at, lasts=span.lasts(), skew=skew, drift_ppm=span.of((0, 500, -500, 100_000), "drift"))


def _draw_coordinator(span: Span) -> FaultKind:
    kind = span.of(("kill-leader", "lose-quorum", "depose", "unknown-outcome", "kill"), "kind")
    lasts = "" if kind != "unknown-outcome" and span.one_in(8, "never") else span.lasts()
    fault = CoordinatorFault(at=span.at, lasts=lasts, per_mille=span.of((100, 300, 1000), "per mille"))
    return msgspec.structs.replace(fault, kind=kind)


def _draw_membership(span: Span) -> FaultKind:
    fault = MembershipFault(at=span.at, back_after="" if span.one_in(3, "never") else span.back_after())
    return msgspec.structs.replace(fault, kind=span.of(("leave", "join"), "kind"))


FAULT_GENERATORS: Mapping[str, Callable[[Span], FaultKind]] = {
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


AGENTS_LEAST = 2
"""Minimum number of agents. Every pattern can run with two."""

MANUAL_ONLY_ONE_IN = 16
"""One run in sixteen has no trigger, only manual snapshots."""

ROUND_WAYS, ROUND_CALLS = 3, 4
"""Number of sequential messages (request, answer, outcome) and store calls (pack, recovery line, manifest, ref) in a koo-toueg round."""

COMMITS_AWAITED = 4
"""Number of sequential commits for which a message and its acknowledgement wait. Each of the two may have to wait for an older commit first.
"""

EPOCH_EXCHANGES = 6
"""Number of sequential exchanges in an epoch: the begin is logged, the begin is sent, markers are sent, checkpoints are
stored, reports are sent, and the completion is logged. A koo-toueg round has twice as many."""

_LOGGED_POINTS = ("store.checkpoints.", "coordinator.line.")
"""Prefixes of failpoints that fleets with the protocol chandy-lamport never reach."""

_INPUT_POINTS = "store.log."
_OUTPUT_POINTS = "store.outputs."
"""Prefixes of failpoints that fleets without clients (for inputs) or without consumers (for outputs) never reach."""

_COSTLY = ("memory", "orders")
"""Patterns whose runs take ten times as long as runs with other patterns."""

_BOOKING = ("booking", "booking-until")
_PAYING = ("paying", *_BOOKING)
"""Patterns whose agents call stubs and whose operators handle failed compensations."""

PAYING_NS = 90 * S
"""Additional time for a run with effects, because calls may fail repeatedly and then an operator issues a retry command."""

EPOCH_PERIOD_MIN_NS = 250 * MS
"""Minimum interval between epochs that a timer triggers in a run with effects. The effects request further epochs."""

_DURABLE = ("planning", *_PAYING)
"""Patterns that are tested mainly by recoveries during a turn. One of their turns takes as long as a whole run with another pattern."""

_RARE_PATTERNS = {
    "astray": (21, "pattern"),
    "planning": (12, "planning"),
    "paying": (19, "paying"),
    "returning": (37, "returning"),
}
"""Maps a pattern to (n, key of the draw). One seed in n uses this pattern instead of the pattern that was drawn. The
seed's other draws do not change."""

_ALTERNATING_PATTERNS = ("booking", "planning", "booking", "paying", "booking-until", "booking", "returning", "booking")
"""Patterns that every second seed uses, in turn. They combine the newest parts of the product, and would rarely be chosen by random draws.
"""

_PATTERNS_DRAWN = (
    *[name for name in PATTERN_NAMES if name not in (*_COSTLY, *_RARE_PATTERNS, *_BOOKING)] * 2,
    *_COSTLY,
)

_PROTOCOLS_DRAWN = (*(CHANDY_LAMPORT,) * 4, *PROTOCOLS)
"""Protocols to draw from. chandy-lamport is drawn in a third of all runs, because most fleets use it."""


def draw(template: Scenario, seed: int) -> Scenario:
    """Draw a seed's scenario from a template. The same template and seed always yield the same scenario. A template without a section
    `swarm` is returned unchanged."""
    swarm = template.swarm
    if swarm is None:
        return template
    dice = ScenarioDraw(RandomChoices(seed))
    run = _draw_run(dice, template)
    heal = template.liveness.heal if template.liveness.heal_ns >= run.until_ns else ""
    liveness = msgspec.structs.replace(template.liveness, heal=heal)
    changed = msgspec.structs.replace(template, run=run, liveness=liveness, swarm=None)
    if swarm.fleet:
        changed = msgspec.structs.replace(changed, fleet=_draw_fleet(dice, template, run, seed))
    if swarm.network:
        changed = msgspec.structs.replace(
            changed,
            network=NetworkPart(delay=_draw_delay(dice, "network", 2 * MS, 40 * MS)),
            store=StorePart(delay=_draw_delay(dice, "store", 100 * US, 20 * MS)),
        )
    if swarm.clients and not template.fleet.module and takes_inputs(changed.fleet.pattern.name):
        changed = msgspec.structs.replace(changed, clients=_draw_clients(dice, changed.fleet.pattern.name))
    if swarm.outputs:
        outputs = _draw_outputs(dice)
        if template.fleet.module:  # a user's agents emit their own outputs
            outputs = OutputsPart(is_watched=not swarm.faults and outputs.is_watched)
        changed = msgspec.structs.replace(changed, outputs=outputs)
    is_paying = changed.fleet.pattern.name in _PAYING and not template.fleet.module
    if swarm.clients and is_paying:
        clients = msgspec.structs.replace(changed.clients, is_settling=True)
        changed = msgspec.structs.replace(changed, clients=clients)
    if swarm.steps and swarm.faults_max and (template.fleet.module or is_paying):
        changed = msgspec.structs.replace(changed, steps=_draw_steps(dice))
    is_of_all = bool(swarm.faults_max and not swarm.faults)
    if swarm.restores and is_of_all:
        divisor = 3 if changed.fleet.pattern.name in _DURABLE else 1
        restores, moves = _draw_restores(dice, 6 // divisor), _draw_moves(dice, 8 // divisor)
        if template.fleet.module:  # restores that drop inputs would violate a user's own invariants
            times = template.restores.times or restores.times
            restores, moves = RestoresPart(times=times), template.run.moves or moves
        run = msgspec.structs.replace(changed.run, moves=moves)
        changed = msgspec.structs.replace(changed, restores=restores, run=run)
    if swarm.fleet and is_paying and changed.restores.times:
        # With local recovery, a restore may undo effects that were called since the snapshot (docs/local-recovery.md).
        changed = msgspec.structs.replace(changed, fleet=msgspec.structs.replace(changed.fleet, recovery="global"))
    changed = _with_faults(dice, changed, swarm)
    if is_of_all and (not template.fleet.module or changed.clients.count):
        changed = _with_pattern_specific_faults(dice, changed)
    if swarm.network:
        changed = msgspec.structs.replace(changed, network=_draw_paths(dice, changed))
    if swarm.limits and (is_of_all or not template.fleet.module):
        limits = _draw_limits(dice) | _draw_local_limits(dice, changed.fleet)
        if changed.restores.times and dice.one_in_separate(2, "swept"):
            limits |= {"sweep_ms": LIMITS["sweep_ms"].drawn[0]}  # restores need old epochs, so sweep often
        changed = msgspec.structs.replace(changed, limits=limits | template.limits)
        changed = msgspec.structs.replace(changed, run=_draw_retention(dice, changed.run))
        if swarm.fleet:
            changed = msgspec.structs.replace(changed, fleet=_draw_bounds(dice, changed.fleet))
            if dice.one_in_separate(MANUAL_ONLY_ONE_IN, "by hand"):
                changed = _with_manual_snapshots_only(changed)
    if swarm.fleet and changed.fleet.pattern.name == "returning":  # rollbacks need snapshots
        every = changed.run.snapshots_every or "250ms"
        changed = msgspec.structs.replace(changed, run=msgspec.structs.replace(changed.run, snapshots_every=every))
    if swarm.fleet and not template.fleet.module:
        timeout = template.fleet.epoch_timeout or _feasible_epoch_timeout(changed)
        changed = msgspec.structs.replace(changed, fleet=msgspec.structs.replace(changed.fleet, epoch_timeout=timeout))
        changed = msgspec.structs.replace(changed, liveness=_with_enough_time(changed))
    if template.fleet.module and changed.limits:
        changed = msgspec.structs.replace(changed, liveness=_with_enough_time(changed))
    return changed


def small_limits(seed: int) -> dict[str, int]:
    """Draw small values for some of the product's limits, so that a run reaches them."""
    dice = ScenarioDraw(RandomChoices(seed))
    return {
        name: dice.of(LIMITS[name].drawn, "limit", name, "value")
        for name in _GENERAL_LIMITS
        if dice.one_in(4, "limit", name)
    }


_GENERAL_LIMITS = [name for name in LIMITS if not LIMITS[name].is_local]
_LOCAL_LIMITS = [name for name in LIMITS if LIMITS[name].is_local]


def _feasible_epoch_timeout(scenario: Scenario) -> str:
    """Return the scenario's epoch timeout, or the default ("") if no epoch could finish within the timeout."""
    exchanges = EPOCH_EXCHANGES * (2 if scenario.fleet.protocol == KOO_TOUEG else 1)
    least_ns = exchanges * _exchange_ns(scenario)
    timeout = scenario.fleet.epoch_timeout
    return timeout if timeout and duration_ns(timeout) >= least_ns else ""


def _exchange_ns(scenario: Scenario) -> int:
    """Return the longest time, in nanoseconds, that a message and its acknowledgement can take. If a large message is sent in small parts,
    it waits for one acknowledgement per full window."""
    network = scenario.network
    way_ns = max(delay.least_ns + delay.jitter_ns for delay in (network.delay, *network.paths.values()))
    parts = -(-scenario.fleet.pattern.payload_bytes // scenario.limits.get("part_bytes", channel.PART_BYTES)) or 1
    windows = -(-parts // scenario.limits.get("frames_unacked", order.FRAMES_UNACKED_MAX))
    return windows * (2 * way_ns + scenario.limits.get("tell_delay_ms", 0) * MS)


def _with_enough_time(scenario: Scenario) -> LivenessPart:
    """Return the scenario's liveness section, with enough time for the slowest run that is possible.

    If agents pass a counter from one to the next, the work takes as long as all its round trips together. If the window is one frame or the
    credit is one message, each message waits for the acknowledgement of the previous message. Rounds of koo-toueg may follow each other
    without a pause, so a message may wait for one round at its sender and for another round at its receiver. With local recovery, a message
    waits for a commit at its sender, and its acknowledgement for another one at its receiver.
    """
    network, store = scenario.network, scenario.store.delay
    way_ns = max(delay.least_ns + delay.jitter_ns for delay in (network.delay, *network.paths.values()))
    each_ns = _exchange_ns(scenario)
    if scenario.fleet.protocol == KOO_TOUEG:
        each_ns += 2 * (ROUND_WAYS * way_ns + ROUND_CALLS * (store.least_ns + store.jitter_ns))
    if scenario.fleet.recovery == "local":
        each_ns += COMMITS_AWAITED * (store.least_ns + store.jitter_ns) + scenario.limits.get("commit_age_ms", 0) * MS
    within_ns = scenario.liveness.within_ns + scenario.fleet.pattern.messages * each_ns
    within_ns += PAYING_NS if scenario.fleet.pattern.name in _PAYING else 0
    return msgspec.structs.replace(scenario.liveness, within=format_duration(within_ns))


def _draw_run(dice: ScenarioDraw, template: Scenario) -> RunPart:
    """Draw the section `run`. The run has 2.5 s to 7 s of virtual time for faults, or more if the template's own faults need it."""
    run, hosts = template.run, len(host_names(template))
    ends_ns = max([fault.word.ends_ns(hosts) for fault in template.fault], default=0)
    return msgspec.structs.replace(
        run,
        until=format_duration(max(ends_ns, dice.between(25, 70, "until") * 100 * MS)),
        faults_from="start" if dice.one_in(6, "from start") else "running",
        keep_epochs=dice.of((max(2, run.keep_epochs), 2, 10), "keep"),
        rejoin_grace=dice.of((run.rejoin_grace, "100ms", "3s"), "grace"),
        turns_in_a_row=dice.of((1, 4, 64), "turns"),
    )


def _draw_fleet(dice: ScenarioDraw, template: Scenario, run: RunPart, seed: int) -> FleetPart:
    swarm, fleet = template.swarm or SwarmPart(), template.fleet
    protocol = dice.of(swarm.protocols or _PROTOCOLS_DRAWN, "protocol")
    if fleet.module:
        return msgspec.structs.replace(fleet, protocol=protocol, trigger=_draw_trigger(dice, protocol))
    name = dice.of(swarm.patterns or _PATTERNS_DRAWN, "pattern")
    for rare_name, (one_in, key) in _RARE_PATTERNS.items() if not swarm.patterns else ():
        name = rare_name if dice.one_in_separate(one_in, key) else name
    if seed % 2 and not swarm.patterns:
        name = _ALTERNATING_PATTERNS[seed // 2 % len(_ALTERNATING_PATTERNS)]
    counts: tuple[Coordinators, ...] = (1, 3, 5)
    coordinators = dice.of([count for count in counts if count <= swarm.coordinators_max], "coordinators")
    return FleetPart(
        agents=dice.between(AGENTS_LEAST, swarm.agents_max, "agents"),
        hosts=fleet.hosts if template.fault else dice.between(1, swarm.hosts_max, "hosts"),
        coordinators=fleet.coordinators if template.fault else coordinators,
        protocol=protocol,
        recovery=_draw_recovery(dice, fleet, protocol),
        pattern=_draw_pattern(dice, fleet.pattern, name, run),
        trigger=_rare_requests(_draw_trigger(dice, protocol)) if name in _PAYING else _draw_trigger(dice, protocol),
    )


def _draw_recovery(dice: ScenarioDraw, fleet: FleetPart, protocol: str) -> Literal["global", "local"]:
    """Draw what starts again after a failure. Half of the fleets whose protocol supports local recovery have it, or all of them if the
    template's fleet has it."""
    is_drawn = dice.below_for_recovery(2, "recovery") == 1
    return "local" if protocol == CHANDY_LAMPORT and (is_drawn or fleet.recovery == "local") else "global"


def _rare_requests(trigger: TriggerPart) -> TriggerPart:
    """Return the checkpoint trigger with an interval of at least `EPOCH_PERIOD_MIN_NS`. A fleet whose effects are executed one after
    another runs for a minute, so frequent epochs would dominate the cost of the run."""
    return msgspec.structs.replace(trigger, every=format_duration(max(trigger.every_ns, EPOCH_PERIOD_MIN_NS)))


def _draw_pattern(dice: ScenarioDraw, pattern: PatternPart, name: str, run: RunPart) -> PatternPart:
    """Draw a pattern's parameters. A third of the fleets spread their messages over part of the run. All other fleets send at full
    speed."""
    messages = pattern.messages // dice.of((1, 1, 2), "messages")
    window_ns = run.until_ns // dice.of((2, 4, 8), "window")
    spread = (messages or pattern.messages or MESSAGES_ENDLESS) * S // window_ns
    is_paced = not messages or dice.one_in(3, "pace")
    return msgspec.structs.replace(
        pattern, name=name, messages=messages, rate_per_s=float(max(1, spread)) if is_paced else 0.0
    )


def _draw_trigger(dice: ScenarioDraw, protocol: str) -> TriggerPart:
    """Draw a trigger. Under a coordinated protocol, checkpoints are triggered only by a timer."""
    every = dice.duration(20 * MS, 600 * MS, "every")
    jitter = dice.of((0.1, 0.0, 0.5), "trigger jitter")
    match dice.below(8, "trigger") if is_autonomous(protocol) else 7:
        case 0 | 1:
            return TriggerPart(kind="messages", messages=dice.between(5, 100, "trigger messages"), every=every)
        case 2:
            return TriggerPart(kind="adaptive", every=every)
        case _:
            return TriggerPart(kind="period", every=every, jitter=jitter)


def _draw_clients(dice: ScenarioDraw, pattern: str) -> ClientsPart:
    """Draw the clients, which half of the runs have. A booking pattern always has clients, but they send fewer inputs, because each input
    causes a lot of work."""
    is_booking = pattern in _BOOKING
    count = ((1, 1, 2, 3) if is_booking else (0, 0, 1, 3))[dice.below_for_clients(4, "clients")]
    inputs = ((8, 5, 16) if is_booking else (20, 5, 60))[dice.below_for_clients(3, "inputs")]
    pause = ("20ms", "5ms", "200ms")[dice.below_for_clients(3, "pause of clients")]
    is_settling = bool(count) and dice.below_for_operators(2, "settling") == 1
    return ClientsPart(count=count, inputs=inputs, pause=pause, is_settling=is_settling)


def _draw_outputs(dice: ScenarioDraw) -> OutputsPart:
    """Draw outputs. Agents emit outputs in half of the runs. In half of these runs, a consumer reads the outputs as they arrive."""
    one_in = (0, 0, 0, 3, 1, 12)[dice.below_for_outputs(6, "outputs")]
    return OutputsPart(one_in=one_in, is_watched=bool(one_in) and dice.below_for_outputs(2, "watched outputs") == 1)


def _draw_steps(dice: ScenarioDraw) -> StepsPart:
    """Draw, in two thirds of the runs, how often calls to the stub services fail."""
    late, lost, failed = (
        (0, 0, 20, 200)[dice.below_for_steps(4, "calls", what)] for what in ("late", "lost", "failed")
    )
    is_well = dice.below_for_steps(3, "calls") == 0
    return StepsPart() if is_well else StepsPart(late_per_mille=late, lost_per_mille=lost, failed_per_mille=failed)


def _draw_restores(dice: ScenarioDraw, one_in: int) -> RestoresPart:
    """Draw restores that an operator requests in one of every `one_in` runs. There are one or two restores, and either all of them or about
    half of them discard inputs."""
    if not dice.one_in_separate(one_in, "restores"):
        return RestoresPart()
    times = 2 if dice.one_in_separate(2, "restores twice") else 1
    return RestoresPart(times=times, drops_one_in=1 if dice.one_in_separate(2, "restores drop") else 2)


def _draw_moves(dice: ScenarioDraw, one_in: int) -> int:
    """Draw how many times an operator moves agents. An operator moves agents once or four times in one of every `one_in` runs, and never in
    all other runs."""
    return (4 if dice.one_in_separate(2, "many moves") else 1) if dice.one_in_separate(one_in, "moves") else 0


def _draw_delay(dice: ScenarioDraw, where: str, least_ns: int, most_ns: int) -> DelayPart:
    """Draw a delay. A slow network keeps many messages in flight, so the fleet is still busy when faults occur."""
    least = dice.duration(least_ns, most_ns, where, "least")
    return DelayPart(least=least, jitter=dice.duration(100 * US, most_ns, where, "jitter"))


def _draw_paths(dice: ScenarioDraw, scenario: Scenario) -> NetworkPart:
    """Draw, in a quarter of the runs, up to three directed pairs of nodes whose delay is permanently much longer or shorter than the usual
    delay."""
    if not dice.one_in(4, "paths"):
        return scenario.network
    nodes = host_names(scenario) + coordinator_names(scenario)
    paths = dict(scenario.network.paths)
    for index in range(dice.between(1, 3, "paths", "count")):
        sender = dice.below(len(nodes), "path", index, "from")
        receiver = (sender + 1 + dice.below(len(nodes) - 1, "path", index, "to")) % len(nodes)
        least = dice.of(("100us", "20ms", "60ms", "150ms"), "path", index, "least")
        jitter = dice.of(("0s", "5ms", least), "path", index, "jitter")
        paths[f"{nodes[sender]}>{nodes[receiver]}"] = DelayPart(least=least, jitter=jitter)
    return msgspec.structs.replace(scenario.network, paths=paths)


def _draw_retention(dice: ScenarioDraw, run: RunPart) -> RunPart:
    """Draw a retention policy in a quarter of the runs. Independently of this, draw manual snapshots in a quarter of the runs."""
    retention = run.retention
    if not retention and dice.one_in(4, "retention"):
        last, hourly, daily = (dice.between(least, 3, "retention", least) for least in (1, 0, 0))
        retention = f"last={last},hourly={hourly},daily={daily}"
    every = run.snapshots_every
    if not every and dice.one_in(4, "snapshots"):
        every = dice.duration(50 * MS, 2 * S, "snapshots every")
    return msgspec.structs.replace(run, retention=retention, snapshots_every=every)


def _with_manual_snapshots_only(scenario: Scenario) -> Scenario:
    every = scenario.run.snapshots_every or "250ms"
    return msgspec.structs.replace(
        scenario,
        fleet=msgspec.structs.replace(scenario.fleet, trigger=TriggerPart(kind="none")),
        run=msgspec.structs.replace(scenario.run, snapshots_every=every),
    )


def _draw_limits(dice: ScenarioDraw) -> dict[str, int]:
    """Draw small values for some limits in half of the runs. Each limit is small with a probability that is drawn per run: 1/2, 1/4 or
    1/16."""
    if not dice.one_in(2, "limits"):
        return {}
    one_in = dice.of((2, 4, 16), "limits", "how many")
    chosen = [name for name in _GENERAL_LIMITS if dice.one_in(one_in, "limit", name)]
    return {name: dice.of(LIMITS[name].drawn, "limit", name, "value") for name in chosen}


def _draw_local_limits(dice: ScenarioDraw, fleet: FleetPart) -> dict[str, int]:
    """Draw the limits of commits, each in a quarter of the fleets with local recovery. Large states are not split into parts of a hundredth,
    because a commit would then take a hundred calls of the store, one after the other."""
    if fleet.recovery != "local":
        return {}
    chosen = [name for name in _LOCAL_LIMITS if dice.below_for_recovery(4, "limit", name) == 3]
    if fleet.pattern.name == "memory":
        chosen = [name for name in chosen if name != "commit_part_bytes"]
    values = {name: LIMITS[name].drawn for name in chosen}
    return {name: drawn[dice.below_for_recovery(len(drawn), "limit", name, "value")] for name, drawn in values.items()}


def _draw_bounds(dice: ScenarioDraw, fleet: FleetPart) -> FleetPart:
    """Draw a fleet's log size, epoch timeout and payload size, unless the template defines them."""
    pattern = fleet.pattern
    if dice.one_in(3, "payload") and pattern.payload_bytes == PatternPart().payload_bytes:
        pattern = msgspec.structs.replace(pattern, payload_bytes=dice.of((0, 100, 600, 3000), "payload bytes"))
    return msgspec.structs.replace(
        fleet,
        pattern=pattern,
        log_bytes_max=fleet.log_bytes_max or dice.of((0, 0, 500, 2000, 8000), "log bytes"),
        epoch_timeout=fleet.epoch_timeout or dice.of(("", "", "", "1s", "4s"), "epoch timeout"),
    )


def _with_faults(dice: ScenarioDraw, scenario: Scenario, swarm: SwarmPart) -> Scenario:
    kinds = [kind for kind in swarm.faults or FAULT_KINDS if dice.one_in(2, "kind", kind)]
    count = dice.below(swarm.faults_max + 1, "faults") if kinds else 0
    for index in range(count):
        kind = dice.of(kinds, "fault", index)
        word = FAULT_GENERATORS[kind](Span(dice, scenario, index, swarm.faults_max))
        scenario = _with_fault(scenario, [_fault_of(kind, word)])
    for index, kind in enumerate(swarm.always if swarm.faults_max else (), swarm.faults_max):
        word = (
            _draw_crash_at_work(dice, scenario)
            if kind == "crash"
            else FAULT_GENERATORS[kind](Span(dice, scenario, index, 0))
        )
        scenario = _with_fault(scenario, [_fault_of(kind, word)])
    if swarm.faults_max and "crash" in kinds and dice.one_in(2, "failpoints"):
        scenario = _with_fault(scenario, _draw_failpoints(dice, scenario, kinds))
    return scenario


def _with_pattern_specific_faults(dice: ScenarioDraw, scenario: Scenario) -> Scenario:
    """Add faults without which some patterns and clients would not be tested well."""
    if scenario.fleet.pattern.name in _DURABLE:
        scenario = _with_restarts(dice, scenario)
    if not scenario.clients.count:
        return scenario
    if dice.one_in_separate(4, "failing logs"):
        scenario = _with_failing_logs(dice, scenario)
    return _with_long_pause(dice, scenario) if dice.one_in_separate(4, "standstill") else scenario


def _with_restarts(dice: ScenarioDraw, scenario: Scenario) -> Scenario:
    """Add host restarts that may interrupt durable turns."""
    for index in range((0, 1, 2, 4)[dice.below_separate(4, "restarts")]):
        at = format_duration((1 + dice.below_separate(40, "restart", index)) * (scenario.run.until_ns - S) // 40)
        after = ("50ms", "200ms", "1s")[dice.below_separate(3, "restart", index, "after")]
        scenario = _with_fault(scenario, [FaultPart(crash=CrashFault(at=at, restart_after=after))])
    return scenario


def _with_failing_logs(dice: ScenarioDraw, scenario: Scenario) -> Scenario:
    """Add faults that make a write to the input log fail once, so that the retry succeeds."""
    for point in [point for point in FAILPOINTS if point.startswith(_INPUT_POINTS)]:
        if dice.one_in_separate(4, "failing", point):
            hit = 1 + dice.below_separate(6, "failing", point, "hit")
            scenario = _with_fault(scenario, [FaultPart(disk=DiskFault(mode="eio", failpoint=point, hit=hit))])
    return scenario


def _with_long_pause(dice: ScenarioDraw, scenario: Scenario) -> Scenario:
    """Add one long pause of a host. When the host resumes, the fleet has already recovered without it, and clients' inputs are waiting for
    the host."""
    at_ns = (1 + dice.below_separate(10, "standstill", "at")) * 200 * MS
    lasts_ns = min(4 * S, scenario.run.until_ns - at_ns)
    pause = PauseFault(at=format_duration(at_ns), lasts=format_duration(lasts_ns))
    return _with_fault(scenario, [FaultPart(pause=pause)])


def _draw_crash_at_work(dice: ScenarioDraw, scenario: Scenario) -> CrashFault:
    """Draw a crash and restart of a host that is executing a turn in the first half of the work. In a user's fleet, the crash happens in
    the second quarter of the turns."""
    turns = scenario.run.turns or scenario.fleet.pattern.messages or MESSAGES_ENDLESS
    least = max(1, scenario.run.turns // 4)
    hit = dice.between(least, max(least, turns // 2), "at work", "hit")
    after = dice.duration(200 * MS, 2 * S, "at work", "back")
    return CrashFault(at="0s", when="working", hit=hit, restart_after=after)


def _with_fault(scenario: Scenario, faults: Sequence[FaultPart]) -> Scenario:
    """Return the scenario with the given faults added, or unchanged if these would exceed the fault budget."""
    extended = msgspec.structs.replace(scenario, fault=[*scenario.fault, *faults])
    return extended if scenario.budget == "beyond" or not any(budget_problems(extended)) else scenario


def _fault_of(kind: str, word: FaultKind) -> FaultPart:
    return msgspec.structs.replace(FaultPart(), **{kind: word})


def _draw_failpoints(dice: ScenarioDraw, scenario: Scenario, kinds: Collection[str]) -> list[FaultPart]:
    """Draw faults at failpoints. Most faults at failpoints are crashes. If the run may have other kinds of faults, some
    are power cuts, pauses or disk errors.

    Only these faults cause power cuts of coordinators, namely at the failpoints in the coordinators' disk writes.
    """
    kinds = frozenset(kinds)
    points = FAILPOINTS
    if scenario.fleet.protocol == CHANDY_LAMPORT:
        points = tuple(point for point in FAILPOINTS if not point.startswith(_LOGGED_POINTS))
    if not scenario.clients.count:
        points = tuple(point for point in points if not point.startswith(_INPUT_POINTS))
    output_points = [point for point in points if point.startswith(_OUTPUT_POINTS)]
    points = tuple([point for point in points if point not in output_points])
    if scenario.outputs.one_in:
        points += tuple([point for point in output_points if dice.below_for_outputs(4, point) == 3])
    faults = []
    for point in points:
        if point in output_points or dice.one_in(4, point):
            hit = dice.between(1, 4, point, "hit")
            after = dice.duration(200 * MS, 2 * S, point, "after")
            match dice.below(8, point, "how") if kinds.issuperset(("pause", "disk")) else 7:
                case 0:
                    faults.append(FaultPart(pause=PauseFault(failpoint=point, hit=hit, lasts=after)))
                case 1:
                    faults.append(FaultPart(disk=DiskFault(mode="eio", failpoint=point, hit=hit)))
                case _:
                    is_power_cut = "disk" in kinds and dice.one_in_separate(2, point, "power")
                    crash = CrashFault(failpoint=point, hit=hit, restart_after=after, is_power_cut=is_power_cut)
                    faults.append(FaultPart(crash=crash))
    return faults


STANDARD = Scenario(name="swarm", swarm=SwarmPart())
"""Template in which everything is drawn and faults stay within the fault budget."""

BUILT_IN: Mapping[str, Scenario] = {
    "quiet": Scenario(name="quiet", swarm=SwarmPart(faults_max=0)),
    "crashes": Scenario(
        name="crashes", swarm=SwarmPart(faults=["crash", "pause", "slow", "membership"], always=["crash"])
    ),
    "partitions": Scenario(
        name="partitions",
        swarm=SwarmPart(
            faults=["partition", "clog", "swizzle", "reset", "loss", "delay", "hold"], always=["partition"]
        ),
    ),
    "disks": Scenario(name="disks", swarm=SwarmPart(faults=["disk"], always=["disk"])),
    "coordinator": Scenario(
        name="coordinator", swarm=SwarmPart(faults=["coordinator", "partition"], always=["coordinator"])
    ),
    "orders": Scenario(
        name="orders",
        fleet=FleetPart(pattern=PatternPart(messages=120)),
        swarm=SwarmPart(patterns=["orders"], always=["crash"]),
    ),
    "swarm": STANDARD,
}
"""Built-in templates by name, for the command `snapline sim sweep NAME`."""

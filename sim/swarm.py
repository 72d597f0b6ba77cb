"""Draws a concrete scenario from a template and a seed: swarm testing.

A test that may do everything does a little of everything, and never much of one thing. So each run first draws *which*
kinds of faults it may have (each with chance ½), and then faults of these kinds alone; and fleet, delays and pace are drawn
over orders of magnitude rather than around a middle (Groce and others, "Swarm Testing", ISSTA 2012; FoundationDB does the
same with its knobs). In a part of the runs every failpoint is active with chance ¼, as in FoundationDB.

What is drawn stays within the fault budget if the template says so: a fault that would exceed it is left out. The faults
and the network that the template itself names are kept, and then hosts and coordinators too, since faults name them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from snapline.protocols.names import CHANDY_LAMPORT, PROTOCOLS, is_autonomous
from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.fault_words import (
    EVERY_HOST,
    FAILPOINTS,
    ROLLING_PAUSE_NS,
    ClockWord,
    ClogWord,
    CoordinatorWord,
    CrashWord,
    DelayWord,
    DiskWord,
    HoldWord,
    LossWord,
    MembershipWord,
    PartitionWord,
    PauseWord,
    ResetWord,
    SlowWord,
    SwizzleWord,
    Word,
    format_duration,
)
from snapline.sim.faults import budget_problems
from snapline.sim.scenario import (
    PATTERN_NAMES,
    WORDS,
    Coordinators,
    DelayPart,
    FaultPart,
    FleetPart,
    LivenessPart,
    NetworkPart,
    PatternPart,
    RunPart,
    Scenario,
    StorePart,
    SwarmPart,
    TriggerPart,
    host_names,
)

_US = 1_000
_MS = 1_000_000
_S = 1_000_000_000

AGENTS_LEAST = 2
"""All patterns can be played by two."""

_LOGGED_POINTS = ("store.checkpoints.", "coordinator.line.")
"""Points that fleets with one coordinated protocol, chandy-lamport, never pass."""

_PROTOCOLS_DRAWN = (*(CHANDY_LAMPORT,) * 4, *PROTOCOLS)
"""A third of all runs have the protocol that most fleets have; the other ten share the rest."""

_Option = TypeVar("_Option")


def draw(template: Scenario, seed: int) -> Scenario:
    """The same for the same template and seed; a template without `swarm` is a scenario as it stands."""
    swarm = template.swarm
    if swarm is None:
        return template
    dice = Dice(RandomChoices(seed))
    run = _draw_run(dice, template)
    heal = template.liveness.heal if template.liveness.heal_ns >= run.until_ns else ""
    liveness = msgspec.structs.replace(template.liveness, heal=heal)
    changed = msgspec.structs.replace(template, run=run, liveness=liveness, swarm=None)
    if swarm.fleet:
        changed = msgspec.structs.replace(changed, fleet=_draw_fleet(dice, template, run))
    if swarm.network:
        changed = msgspec.structs.replace(
            changed,
            network=NetworkPart(delay=_draw_delay(dice, "network", 2 * _MS, 40 * _MS)),
            store=StorePart(delay=_draw_delay(dice, "store", 100 * _US, 20 * _MS)),
        )
    if swarm.fleet and not template.fleet.module:
        changed = msgspec.structs.replace(changed, liveness=_patient(changed))
    return _with_faults(dice, changed, swarm)


def _patient(scenario: Scenario) -> LivenessPart:
    """A single counter that is passed on takes as long as all its messages, one after the other, and blocking protocols twice."""
    delay = scenario.network.delay
    work_ns = 2 * scenario.fleet.pattern.messages * (delay.least_ns + delay.jitter_ns)
    within_ns = scenario.liveness.within_ns + work_ns
    return msgspec.structs.replace(scenario.liveness, within=format_duration(within_ns))


class Dice:
    """Picks from one stream, in the words of what is drawn."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def below(self, n: int, *key: str | int) -> int:
        return self._choices.pick("swarm", key, n)

    def between(self, least: int, most: int, *key: str | int) -> int:
        """Both included; `most` if there is nothing between."""
        return min(least, most) + self.below(max(1, most - least + 1), *key)

    def of(self, options: Sequence[_Option], *key: str | int) -> _Option:
        return options[self.below(len(options), *key)]

    def one_in(self, n: int, *key: str | int) -> bool:
        return self.below(n, *key) == n - 1

    def ns(self, least_ns: int, most_ns: int, *key: str | int) -> int:
        """Evenly over orders of magnitude: a doubling is drawn, then a place in it; to two or three digits."""
        doublings = max(0, (most_ns // max(1, least_ns)).bit_length() - 1)
        base_ns = least_ns << self.between(0, doublings, *key, "doubling")
        drawn_ns = base_ns + base_ns * self.below(16, *key, "sixteenth") // 16
        rounded_ns = drawn_ns - drawn_ns % (_MS if drawn_ns >= 10 * _MS else 10 * _US)
        return max(least_ns, min(rounded_ns, most_ns))

    def duration(self, least_ns: int, most_ns: int, *key: str | int) -> str:
        return format_duration(self.ns(least_ns, max(least_ns, most_ns), *key))


def _draw_run(dice: Dice, template: Scenario) -> RunPart:
    """2.5 s to 7 s; more if the template's own faults need it."""
    run, hosts = template.run, len(host_names(template))
    ends_ns = max([fault.word.ends_ns(hosts) for fault in template.fault], default=0)
    return msgspec.structs.replace(
        run,
        until=format_duration(max(ends_ns, dice.between(25, 70, "until") * 100 * _MS)),
        faults_from="start" if dice.one_in(6, "from start") else "running",
        keep_epochs=dice.of((max(2, run.keep_epochs), 2, 10), "keep"),
        rejoin_grace=dice.of((run.rejoin_grace, "100ms", "3s"), "grace"),
        turns_in_a_row=dice.of((1, 4, 64), "turns"),
    )


def _draw_fleet(dice: Dice, template: Scenario, run: RunPart) -> FleetPart:
    swarm, fleet = template.swarm or SwarmPart(), template.fleet
    protocol = dice.of(swarm.protocols or _PROTOCOLS_DRAWN, "protocol")
    if fleet.module:
        return msgspec.structs.replace(fleet, protocol=protocol, trigger=_draw_trigger(dice, protocol))
    name = dice.of(swarm.patterns or PATTERN_NAMES, "pattern")
    counts: tuple[Coordinators, ...] = (1, 3, 5)
    coordinators = dice.of([count for count in counts if count <= swarm.coordinators_max], "coordinators")
    return FleetPart(
        agents=dice.between(AGENTS_LEAST, swarm.agents_max, "agents"),
        hosts=fleet.hosts if template.fault else dice.between(1, swarm.hosts_max, "hosts"),
        coordinators=fleet.coordinators if template.fault else coordinators,
        protocol=protocol,
        pattern=_draw_pattern(dice, fleet.pattern, name, run),
        trigger=_draw_trigger(dice, protocol),
    )


def _draw_pattern(dice: Dice, pattern: PatternPart, name: str, run: RunPart) -> PatternPart:
    """A third of the fleets spread their messages over a part of the run, the others run as fast as the network lets them."""
    messages = pattern.messages // dice.of((1, 1, 2), "messages")
    window_ns = run.until_ns // dice.of((2, 4, 8), "window")
    spread = (messages or pattern.messages or _MESSAGES_ENDLESS) * _S // window_ns
    is_paced = not messages or dice.one_in(3, "pace")
    return msgspec.structs.replace(
        pattern, name=name, messages=messages, rate_per_s=float(max(1, spread)) if is_paced else 0.0
    )


_MESSAGES_ENDLESS = 1000
"""In one run, of a pattern without an end."""


def _draw_trigger(dice: Dice, protocol: str) -> TriggerPart:
    """Where the coordinator asks for checkpoints it does so by the clock."""
    every = dice.duration(20 * _MS, 600 * _MS, "every")
    jitter = dice.of((0.1, 0.0, 0.5), "trigger jitter")
    match dice.below(8, "trigger") if is_autonomous(protocol) else 7:
        case 0 | 1:
            return TriggerPart(kind="messages", messages=dice.between(5, 100, "trigger messages"), every=every)
        case 2:
            return TriggerPart(kind="adaptive", every=every)
        case _:
            return TriggerPart(kind="period", every=every, jitter=jitter)


def _draw_delay(dice: Dice, where: str, least_ns: int, most_ns: int) -> DelayPart:
    """A slow network keeps much in flight, and a fleet busy long enough to meet its faults."""
    least = dice.duration(least_ns, most_ns, where, "least")
    return DelayPart(least=least, jitter=dice.duration(100 * _US, most_ns, where, "jitter"))


def _with_faults(dice: Dice, scenario: Scenario, swarm: SwarmPart) -> Scenario:
    kinds = [kind for kind in swarm.faults or WORDS if dice.one_in(2, "kind", kind)]
    count = dice.below(swarm.faults_max + 1, "faults") if kinds else 0
    for index in range(count):
        kind = dice.of(kinds, "fault", index)
        word = _DRAWN_BY[kind](Span(dice, scenario, index, swarm.faults_max))
        scenario = _with_fault(scenario, [_fault_of(kind, word)])
    if swarm.faults_max and "crash" in kinds and dice.one_in(2, "failpoints"):
        scenario = _with_fault(scenario, _draw_failpoints(dice, scenario))
    return scenario


def _with_fault(scenario: Scenario, faults: Sequence[FaultPart]) -> Scenario:
    """With these too, if that is within the budget; else as it was."""
    more = msgspec.structs.replace(scenario, fault=[*scenario.fault, *faults])
    return more if scenario.budget == "beyond" or not any(budget_problems(more)) else scenario


def _fault_of(kind: str, word: Word) -> FaultPart:
    return msgspec.structs.replace(FaultPart(), **{kind: word})


def _draw_failpoints(dice: Dice, scenario: Scenario) -> list[FaultPart]:
    points = FAILPOINTS
    if scenario.fleet.protocol == CHANDY_LAMPORT:
        points = tuple(point for point in FAILPOINTS if not point.startswith(_LOGGED_POINTS))
    faults = []
    for point in points:
        if dice.one_in(4, point):
            hit = dice.between(1, 4, point, "hit")
            after = dice.duration(200 * _MS, 2 * _S, point, "after")
            faults.append(FaultPart(crash=CrashWord(failpoint=point, hit=hit, restart_after=after)))
    return faults


_START_NS = 400 * _MS
"""How long a fleet at full speed has work to do, about; and how long it takes to begin."""


def _work_ns(pattern: PatternPart) -> int:
    """About how long its messages keep a fleet busy."""
    messages = pattern.messages or _MESSAGES_ENDLESS
    return round(messages / pattern.rate_per_s) * _S if pattern.rate_per_s else _START_NS


class Span:
    """When one fault happens: it begins in the midst of the work in two thirds of cases, soon after the fleet's start.

    Attributes:
        at: when it begins. room_ns: from there until the run's faults must be over.
    """

    def __init__(self, dice: Dice, scenario: Scenario, index: int, faults_max: int) -> None:
        self.dice = dice
        self.fleet = scenario.fleet
        self._index = index
        self.hosts_most = len(host_names(scenario)) + faults_max
        until_ns = scenario.run.until_ns
        if not dice.one_in(3, "is late", index):
            at_ns = min(dice.ns(10 * _MS, _START_NS + _work_ns(scenario.fleet.pattern), "early", index), until_ns // 2)
        else:
            at_ns = dice.between(1, until_ns // (125 * _MS) * 10, "at", index) * 10 * _MS
        self.at = format_duration(at_ns)
        self.room_ns = until_ns - at_ns

    def key(self, *what: str) -> tuple[str | int, ...]:
        return (self._index, *what)

    def of(self, options: Sequence[_Option], what: str) -> _Option:
        return self.dice.of(options, *self.key(what))

    def one_in(self, n: int, what: str) -> bool:
        return self.dice.one_in(n, *self.key(what))

    def between(self, least: int, most: int, what: str) -> int:
        return self.dice.between(least, most, *self.key(what))

    def lasts(self) -> str:
        """Half of them last longer than it takes to find a host lost and go on without it."""
        if self.room_ns > 2 * _S and self.one_in(2, "is long"):
            return self.dice.duration(3 * _S // 2, min(5 * _S, self.room_ns), *self.key("for"))
        return self.dice.duration(50 * _MS, min(2 * _S, self.room_ns), *self.key("for"))

    def back_after(self) -> str:
        return self.dice.duration(200 * _MS, min(2 * _S, self.room_ns), *self.key("back"))

    def back_or_never(self) -> str:
        return "" if self.one_in(8, "never") else self.back_after()


def _draw_delay_word(span: Span) -> Word:
    least = span.dice.duration(5 * _MS, 200 * _MS, *span.key("least"))
    return DelayWord(at=span.at, lasts=span.lasts(), least=least, jitter=span.of(("0s", least, "300ms"), "jitter"))


def _draw_slow(span: Span) -> Word:
    return SlowWord(at=span.at, lasts=span.lasts(), percent=span.of((50, 10, 2), "percent"))


def _draw_loss(span: Span) -> Word:
    return LossWord(at=span.at, lasts=span.lasts(), per_mille=span.of((10, 100, 300, 700), "per mille"))


def _draw_reset(span: Span) -> Word:
    times = span.between(1, 5, "times")
    every = span.dice.duration(10 * _MS, min(500 * _MS, span.room_ns // times), *span.key("every"))
    return ResetWord(at=span.at, times=times, every=every)


def _draw_hold(span: Span) -> Word:
    return HoldWord(at=span.at, lasts=span.lasts())


def _draw_clog(span: Span) -> Word:
    return ClogWord(at=span.at, lasts=span.lasts())


def _draw_swizzle(span: Span) -> Word:
    return SwizzleWord(at=span.at, lasts=span.lasts())


def _draw_partition(span: Span) -> Word:
    shapes = ("one", "majority", "minority-third", "majorities-ring", "bridge", "isolate-leader", "isolate-host")
    word = PartitionWord(at=span.at, lasts=span.lasts(), direction=span.of(("both", "one-way"), "direction"))
    return msgspec.structs.replace(word, shape=span.of((*shapes, "isolate-agent"), "shape"))


def _draw_crash(span: Span) -> Word:
    """Half of them at a time; a rolling one only if there is time for all hosts."""
    after = span.back_after()
    match span.between(0, 7, "style"):
        case 0 | 1:
            when = span.of(("recording", "recovering"), "when")
            word = CrashWord(at=span.at, restart_after=after, hit=span.between(1, 4, "hit"))
            return msgspec.structs.replace(word, when=when)
        case 2:
            return CrashWord(at=span.at, restart_after=after, is_all=True)
        case 3:
            most_ns = span.room_ns // span.hosts_most - ROLLING_PAUSE_NS
            if most_ns < 50 * _MS:
                return CrashWord(at=span.at, restart_after=after)
            rolling = span.dice.duration(50 * _MS, most_ns, *span.key("rolling"))
            return CrashWord(at=span.at, restart_after=rolling, is_rolling=True)
        case _:
            return CrashWord(at=span.at, restart_after=span.back_or_never())


def _draw_pause(span: Span) -> Word:
    return PauseWord(at=span.at, lasts=span.lasts())


def _draw_disk(span: Span) -> Word:
    modes = ("power-cut", "power-cut", "torn", "bit-flip", "eio", "failed-sync", "full", "slow", "stale-read")
    mode = span.of(modes, "mode")
    word = DiskWord(at=span.at, lasts=span.lasts(), restart_after=span.back_or_never())
    host = EVERY_HOST if mode != "bit-flip" and span.one_in(4, "everybody") else ""
    return msgspec.structs.replace(word, mode=mode, host=host)


def _draw_clock(span: Span) -> Word:
    sign = span.of(("", "-"), "sign")
    skew = sign + span.dice.duration(_MS, 3600 * _S, *span.key("skew"))
    return ClockWord(at=span.at, lasts=span.lasts(), skew=skew, drift_ppm=span.of((0, 500, -500, 100_000), "drift"))


def _draw_coordinator(span: Span) -> Word:
    kind = span.of(("kill-leader", "lose-quorum", "depose", "unknown-outcome", "kill"), "kind")
    lasts = "" if kind != "unknown-outcome" and span.one_in(8, "never") else span.lasts()
    word = CoordinatorWord(at=span.at, lasts=lasts, per_mille=span.of((100, 300, 1000), "per mille"))
    return msgspec.structs.replace(word, kind=kind)


def _draw_membership(span: Span) -> Word:
    word = MembershipWord(at=span.at, back_after="" if span.one_in(3, "never") else span.back_after())
    return msgspec.structs.replace(word, kind=span.of(("leave", "join"), "kind"))


_DRAWN_BY: Mapping[str, Callable[[Span], Word]] = {
    "delay": _draw_delay_word,
    "slow": _draw_slow,
    "loss": _draw_loss,
    "reset": _draw_reset,
    "hold": _draw_hold,
    "clog": _draw_clog,
    "swizzle": _draw_swizzle,
    "partition": _draw_partition,
    "crash": _draw_crash,
    "pause": _draw_pause,
    "disk": _draw_disk,
    "clock": _draw_clock,
    "coordinator": _draw_coordinator,
    "membership": _draw_membership,
}

STANDARD = Scenario(name="swarm", swarm=SwarmPart())
"""Everything drawn, within the budget."""

BUILT_IN: Mapping[str, Scenario] = {
    "quiet": Scenario(name="quiet", swarm=SwarmPart(faults_max=0)),
    "crashes": Scenario(name="crashes", swarm=SwarmPart(faults=["crash", "pause", "slow", "membership"])),
    "partitions": Scenario(
        name="partitions", swarm=SwarmPart(faults=["partition", "clog", "swizzle", "reset", "loss", "delay", "hold"])
    ),
    "disks": Scenario(name="disks", swarm=SwarmPart(faults=["disk"])),
    "coordinator": Scenario(name="coordinator", swarm=SwarmPart(faults=["coordinator", "partition"])),
    "swarm": STANDARD,
}
"""Templates by name, for `snapline sim sweep NAME`."""

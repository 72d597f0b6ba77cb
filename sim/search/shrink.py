"""Make a failing run small, while the same oracle keeps failing.

Theory of operation
-------------------
A failing run is given by three things: scenario, seed, and the choices that were not benign. Each *step* tries simpler ones
and keeps a candidate if running it still fails with the same oracle; candidates that pass, or fail otherwise, are dropped. So
nothing needs to be known about the bug, and every kept state has been seen to fail.

1. Plainly: no choice but benign ones, or only those of one stream; if that loses the bug, the same at other paces of messages
   and checkpoints. Most bugs show somewhere there, and then all that follows is quick: there is little left to reshuffle.
2. Faults, by delta debugging (`ddmin.py`). Keys of the stream "fault" begin with the fault's place in the list and are
   renumbered with it, so that removing one fault does not reshuffle the draws of the others.
3. The fleet: agents, messages, payload, hosts, coordinators: the smallest first, then by halves. Fewer messages may be
   handled before the first checkpoint or fault; so they are also tried with checkpoints and faults as much earlier.
4. Paces: slower messages, sooner or later checkpoints, if less happens then before the bug shows.
5. Times: the end of the run, when faults begin and how long they last.
6. Delays of network and store to the least, if that makes nothing else larger, then
7. choices to 0: whole streams, then delta debugging over the rest; then their values towards 1.

Choices of a kept state are replayed by key: those for situations that no longer occur are ignored, new situations get the
benign choice. Removing an agent or half of the messages often moves the bug elsewhere in the space of interleavings, so in
the first round a candidate is also tried with fresh choices, of this seed and a few others, in the streams that have any; it
is kept if nothing grows. The steps repeat until nothing changes or the time is over. The result is verified once more, from
the very text that is written out.

A candidate for a violation may take a few times as many events as the state it comes from: one that passes would
otherwise run to its end, which takes a hundred times as long.

The size of a state is the number of choices that are not benign, of faults, and of messages consumed.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import msgspec

from snapline.errors import SnaplineError, UsageError
from snapline.sim.choices import Key, RandomChoices, Record, RecordedChoices
from snapline.sim.result import Result
from snapline.sim.scenario import DelayPart, Scenario, StepsPart, format_scenario, parse_scenario
from snapline.sim.search.ddmin import ddmin, lowest
from snapline.sim.search.shrink_steps import (
    MS,
    TIMES,
    FreshChoices,
    duration_of,
    in_fleet,
    in_pattern,
    is_valid,
    with_delays,
    with_every_ms,
    with_fault_time,
    with_less_work,
    with_part,
    with_rate,
    with_trigger_messages,
    with_until_ms,
)
from snapline.sim.search.worker import Runner, error_kind, load_runner, name_of

OTHER_SEEDS = 4
"""Tried for a candidate whose replayed choices lose the bug. A bug that one seed in four shows is then kept seven times out
of ten; more would cost more time than they save."""

ROUNDS_MAX = 8
"""Largest number of rounds of all steps; mostly two or three change anything."""

FAULT_STREAM = "fault"

EVENTS_FACTOR, EVENTS_LEAST = 3, 2_000
"""A candidate for a violation is given up after so many times the events of the smallest state so far, and so many more."""

PLAIN_DELAYS = ("100ms", "30ms", "10ms", "3ms", "1ms")
PLAIN_INTERVALS_MS = (3, 10, 30, 100, 300)
"""Paces of messages and of checkpoints that are tried. Slow messages first: then few are consumed before anything happens."""

RATES_PER_S = (2.0, 10.0, 50.0)
"""Message rates to try, for runs in which too many messages pass while something slow happens."""

PACE = "another pace"

FINENESS = 8
"""Values are halved until they are known to an eighth; the next round goes on from there."""


class Size(msgspec.Struct, frozen=True, order=True):
    """Size of a failing case."""

    choices: int
    faults: int
    messages: int

    @property
    def total(self) -> int:
        return self.choices + self.faults + self.messages


class ShrinkStep(msgspec.Struct, frozen=True):
    """One kept simplification: what was done, and what was left then, after how many tries."""

    text: str
    size: Size
    tries: int


class Shrunk(msgspec.Struct):
    """The smallest state that was found. `result` is of the run that verified it; `record` its choices."""

    scenario: Scenario
    seed: int
    record: Record
    result: Result
    signature: str
    before: Size
    steps: list[ShrinkStep]
    tries: int
    seconds: float

    @property
    def size(self) -> Size:
        return size_of(self.scenario, self.record, self.result)


def signature_of(result: Result) -> str:
    """Return what must stay the same: the first oracle that failed, that something is pending, or the kind of error."""
    match result.verdict:
        case "violation":
            return f"violation {result.violations[0].oracle}" if result.violations else "violation"
        case "broken":
            return f"broken {error_kind(result.error)}"
        case other:
            return other


def is_same_bug(result: Result, signature: str) -> bool:
    """Return whether a run fails the same way; the order of several violations does not matter."""
    if result.verdict == "violation":
        return any(signature == f"violation {violation.oracle}" for violation in result.violations)
    return signature_of(result) == signature


def size_of(scenario: Scenario, record: Record, result: Result) -> Size:
    return Size(len(record), len(scenario.fault), result.messages)


def shrink(
    scenario: Scenario,
    seed: int,
    result: Result,
    *,
    runner: Runner | None = None,
    time_limit_s: float = 30.0,
    on_progress: Callable[[ShrinkStep], None] | None = None,
) -> Shrunk:
    """Make a failing run small.

    Args:
        scenario: as drawn; with its seed it gave `result`.
        result: says which oracle must keep failing.
        runner: None is `snapline.sim.run.run`.
        time_limit_s: of real time; the smallest state so far counts then.
        on_progress: called with every simplification that is kept.

    Raises:
        UsageError: the run passed, or does not end like that when it is run again.
    """
    signature = signature_of(result)
    if signature == "pass":
        raise UsageError(f"seed {seed} of {scenario.name} passes: there is nothing to shrink")
    call = load_runner(name_of(runner)) if runner is None else runner
    shrinker = Shrinker(call, signature, time_limit_s=time_limit_s, on_progress=on_progress)
    shrinker.begin(scenario, seed)
    shrinker.minimise()
    return shrinker.finish()


class OutOfTimeError(Exception):
    """Ends the search."""


class Shrinker:
    """The smallest failing state so far, and ways to a smaller one.

    Attributes:
        scenario, seed, record, result: that state; `result` is its run.
        tries: runs so far.
    """

    def __init__(
        self,
        runner: Runner,
        signature: str,
        *,
        time_limit_s: float,
        on_progress: Callable[[ShrinkStep], None] | None = None,
    ) -> None:
        self._run = runner
        self._signature = signature
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + time_limit_s
        self._on_progress = on_progress
        self._steps: list[ShrinkStep] = []
        self._kept = 0
        self._is_first_round = True
        self._seen: dict[bytes, None] = {}  # digests of candidates that did not fail
        self.tries = 0

    def begin(self, scenario: Scenario, seed: int) -> None:
        """Run it as it is, and write down its choices.

        Raises:
            UsageError: it does not fail in the same way.
        """
        choices = RandomChoices(seed, is_recording=True)
        self.tries += 1
        self.result = self._run(scenario, seed, choices=choices)
        if not is_same_bug(self.result, self._signature):
            raise UsageError(
                f"seed {seed} of {scenario.name} ended as {self._signature!r} and now as "
                f"{signature_of(self.result)!r}: check its determinism first"
            )
        self.scenario, self.seed, self.record = scenario, seed, choices.record or {}
        self._before = size_of(scenario, self.record, self.result)
        self._original = (scenario, seed, self.record)

    def minimise(self) -> None:
        """Repeat all steps until nothing changes or the time is over."""
        try:
            for number in range(ROUNDS_MAX):
                kept = self._kept
                self._is_first_round = number == 0
                ways = (self._plainly, self._faults, self._fleet, self._paces, self._times, self._delays, self._choices)
                for step in ways:
                    step()
                if self._kept == kept:
                    return
        except OutOfTimeError:
            return

    def finish(self) -> Shrunk:
        """Verify the state from its text.

        Raises:
            SnaplineError: neither it nor the first state fails any more: runs are not repeatable.
        """
        for scenario, seed, record in ((self.scenario, self.seed, self.record), self._original):
            written = parse_scenario(format_scenario(scenario), source="the shrunk scenario")
            choices = RecordedChoices(record)
            result = self._run(written, seed, choices=choices)
            self.tries += 1
            if is_same_bug(result, self._signature):
                return self._shrunk(written, seed, choices.used, result)
        raise SnaplineError(f"seed {self.seed} fails only sometimes: check its determinism")

    def _shrunk(self, scenario: Scenario, seed: int, record: Record, result: Result) -> Shrunk:
        return Shrunk(
            scenario,
            seed,
            record,
            result,
            self._signature,
            self._before,
            self._steps,
            self.tries,
            time.monotonic() - self._started_s,
        )

    # Trying.

    def _try(
        self, text: str, scenario: Scenario, record: Record, *, has_fresh: bool = False, growth_max: int | None = None
    ) -> bool:
        """Keep a candidate if it fails likewise: with these choices or, if `has_fresh`, with fresh ones."""
        if self._fails(scenario, self.seed, record, text, growth_max=growth_max):
            return True
        is_worth_it = has_fresh and self._is_first_round and self.record
        return bool(is_worth_it) and self._try_fresh(text, scenario, self._streams())

    def _try_fresh(self, text: str, scenario: Scenario, streams: Sequence[str]) -> bool:
        """Try fresh choices in these streams, and benign ones in the others; the size must not grow."""
        seeds = range(self.seed, self.seed + 1 + OTHER_SEEDS)
        return any(self._fails(scenario, seed, streams, text, growth_max=0) for seed in seeds)

    def _fails(
        self, scenario: Scenario, seed: int, chosen: Record | Sequence[str], text: str, *, growth_max: int | None = None
    ) -> bool:
        """Return whether a candidate fails the same way, and keep it then. `chosen`: its choices, or the streams that the seed draws."""
        if time.monotonic() > self._deadline_s:
            raise OutOfTimeError
        digest = _digest(scenario, seed, chosen)
        if digest in self._seen:
            return False
        choices = RecordedChoices(chosen) if isinstance(chosen, dict) else FreshChoices(seed, chosen)
        self.tries += 1
        result = self._run(self._limited(scenario), seed, choices=choices)
        if not is_same_bug(result, self._signature):
            self._seen[digest] = None
            return False
        used = choices.used if isinstance(choices, RecordedChoices) else choices.record or {}
        growth = size_of(scenario, used, result).total - self._size.total
        if growth_max is not None and growth > growth_max:
            return False
        is_same = scenario == self.scenario and used == self.record
        self.scenario, self.seed, self.record, self.result = scenario, seed, used, result
        if not is_same:
            self._note(text)
        return True

    @property
    def _size(self) -> Size:
        return size_of(self.scenario, self.record, self.result)

    def _limited(self, scenario: Scenario) -> Scenario:
        """Limit the events of a candidate; a violation after the limit counts as none."""
        if not self._signature.startswith("violation"):
            return scenario
        events_max = min(scenario.run.events_max, EVENTS_FACTOR * self.result.events + EVENTS_LEAST)
        return msgspec.structs.replace(scenario, run=msgspec.structs.replace(scenario.run, events_max=events_max))

    def _note(self, text: str) -> None:
        self._kept += 1
        step = ShrinkStep(text, self._size, self.tries)
        if self._steps and self._steps[-1].text == text:
            self._steps[-1] = step  # a search in many small moves is one step
        else:
            self._steps.append(step)
        if self._on_progress is not None:
            self._on_progress(step)

    # Steps.

    def _plainly(self) -> None:
        """Try all choices benign, or all but those of one stream; or all of them at another pace."""
        text = "choices made benign"
        if not self.record or self._try(text, self.scenario, {}):
            return
        if not self._is_first_round:
            return
        for stream in self._streams():
            if self._try_fresh(f"choices in {stream} alone", self.scenario, [stream]):
                return
        for least in PLAIN_DELAYS:
            for every_ms in PLAIN_INTERVALS_MS:
                if self._try_valid("choices made benign, at another pace", self._paced(least, every_ms), {}):
                    return
        for stream in self._streams():
            self._try(text, self.scenario, self._without(stream))

    def _paced(self, least: str, every_ms: int) -> Scenario:
        return with_delays(with_every_ms(self.scenario, every_ms), DelayPart(least=least, jitter="0s"))

    def _paces(self) -> None:
        """Try fewer messages at another pace: the order of events that the bug needs may come sooner there."""
        messages = self.scenario.fleet.trigger.messages
        lowest(messages, 1, lambda n: self._try_smaller(PACE, with_trigger_messages(self.scenario, n)))
        for rate in RATES_PER_S:
            self._try_smaller(PACE, with_rate(self.scenario, rate))
        for every_ms in PLAIN_INTERVALS_MS:
            self._try_smaller(PACE, with_every_ms(self.scenario, every_ms), growth_max=-1)
        is_smaller = True
        while is_smaller and self.scenario.fleet.pattern.messages > 1:
            fewer = self.scenario.fleet.pattern.messages * 3 // 4
            is_smaller = any(
                self._try_smaller(PACE, in_pattern(self._paced(least, every_ms), messages=fewer))
                for least in PLAIN_DELAYS
                for every_ms in PLAIN_INTERVALS_MS
            )

    def _faults(self) -> None:
        """Leave out faults: all, then by delta debugging."""
        original, record = self.scenario, self.record

        def needed(kept: list[int]) -> list[int] | None:
            fewer = msgspec.structs.replace(original, fault=[original.fault[index] for index in kept])
            is_kept = self._try("faults left out", fewer, renumbered(record, kept), has_fresh=True)
            return kept if is_kept else None

        if original.fault and needed([]) is None:
            ddmin(list(range(len(original.fault))), needed)

    def _fleet(self) -> None:
        """Try fewer of everything; a user's own fleet stays as it is."""
        self._users()
        if not self.scenario.fleet.module:
            self._pattern()
        elif self.scenario.steps != StepsPart():
            self._try_valid("stubs answer well", msgspec.structs.replace(self.scenario, steps=StepsPart()))
        self._lower("hosts", lambda s: s.fleet.hosts, lambda s, n: in_fleet(s, hosts=n), least=1)
        if self.scenario.fleet.coordinators > 1:
            self._try_valid("coordinators", in_fleet(self.scenario, coordinators=1))

    def _users(self) -> None:
        """Reduce clients, inputs, restores and moves."""
        self._lower("clients", lambda s: s.clients.count, lambda s, n: with_part(s, "clients", count=n))
        if self.scenario.clients.count:
            self._lower("inputs", lambda s: s.clients.inputs, lambda s, n: with_part(s, "clients", inputs=n), least=1)
        if self.scenario.outputs.is_watched:
            self._try_valid("watched outputs", with_part(self.scenario, "outputs", is_watched=False))
        self._lower("restores", lambda s: s.restores.times, lambda s, n: with_part(s, "restores", times=n))
        self._lower("moves", lambda s: s.run.moves, lambda s, n: with_part(s, "run", moves=n))

    def _pattern(self) -> None:
        if self.scenario.clients.is_settling:
            self._try_valid("words about letters", with_part(self.scenario, "clients", is_settling=False))
        self._lower("outputs", lambda s: s.outputs.one_in, lambda s, n: with_part(s, "outputs", one_in=n))
        self._lower("agents", lambda s: s.fleet.agents, lambda s, n: in_fleet(s, agents=n), least=1)
        self._lower("messages", lambda s: s.fleet.pattern.messages, lambda s, n: in_pattern(s, messages=n), least=1)
        self._lower("messages, in less time", lambda s: s.fleet.pattern.messages, with_less_work, least=1)
        self._lower("payload", lambda s: s.fleet.pattern.payload_bytes, lambda s, n: in_pattern(s, payload_bytes=n))

    def _times(self) -> None:
        """An earlier end, earlier and shorter faults."""
        self._lower("end of the run", lambda s: s.run.until_ns // MS, with_until_ms, least=1)
        for index, fault in enumerate(self.scenario.fault):
            for field in TIMES:
                if duration_of(fault, field):
                    self._lower_time(index, field)

    def _lower_time(self, index: int, field: str) -> None:
        def get(scenario: Scenario) -> int:
            return duration_of(scenario.fault[index], field) // MS

        def put(scenario: Scenario, time_ms: int) -> Scenario:
            return with_fault_time(scenario, index, field, time_ms)

        self._lower(f"times of the fault {self.scenario.fault[index].kind}", get, put)

    def _lower(
        self, text: str, get: Callable[[Scenario], int], put: Callable[[Scenario, int], Scenario], *, least: int = 0
    ) -> None:
        """A smaller value: the first that keeps the bug of `least`, +1, +2, +4 …; then halve what lies below it."""
        lowest(get(self.scenario), least, lambda value: self._try_valid(text, put(self.scenario, value)), FINENESS)

    def _try_valid(self, text: str, candidate: Scenario, record: Record | None = None) -> bool:
        """A scenario that names a host that there is no more is no candidate."""
        if not is_valid(candidate):
            return False
        if record is not None:
            return self._try(text, candidate, record)
        return self._try(text, candidate, self.record, has_fresh=True)

    def _delays(self) -> None:
        """Delays that are always the same, and short."""
        same = DelayPart(least="1ms", jitter="0s")
        steady = msgspec.structs.replace(self.scenario.network.delay, jitter="0s")
        self._try_smaller("delays", with_delays(self.scenario, steady))
        self._try_smaller("delays", with_delays(self.scenario, same))
        store = msgspec.structs.replace(self.scenario.store, delay=same)
        self._try_smaller("delays", msgspec.structs.replace(self.scenario, store=store))
        trigger = msgspec.structs.replace(self.scenario.fleet.trigger, jitter=0.0)
        self._try_smaller("jitter of the trigger", in_fleet(self.scenario, trigger=trigger))

    def _try_smaller(self, text: str, candidate: Scenario, *, growth_max: int = 0) -> bool:
        """Try a candidate, unless the state grows by more than `growth_max`."""
        if candidate == self.scenario or not is_valid(candidate):
            return False
        return self._try(text, candidate, self.record, has_fresh=True, growth_max=growth_max)

    def _choices(self) -> None:
        """Choices to 0: all, by stream, then by delta debugging; what is left, to 1."""
        text = "choices made benign"
        if not self.record or self._try(text, self.scenario, {}):
            return
        for stream in self._streams():
            self._try(text, self.scenario, self._without(stream))
        record = dict(self.record)

        def needed(kept: list[tuple[str, Key]]) -> list[tuple[str, Key]] | None:
            is_kept = self._try(text, self.scenario, {key: record[key] for key in kept})
            return [key for key in kept if key in self.record] if is_kept else None

        ddmin(list(record), needed)
        for key in list(self.record):
            lowest(self.record.get(key, 0), 1, partial(self._try_value, key))

    def _streams(self) -> list[str]:
        return list(dict.fromkeys(stream for stream, _ in self.record))

    def _without(self, stream: str) -> Record:
        return {key: value for key, value in self.record.items() if key[0] != stream}

    def _try_value(self, key: tuple[str, Key], value: int) -> bool:
        return self._try("choices made smaller", self.scenario, {**self.record, key: value})


def renumbered(record: Record, kept: Sequence[int]) -> Record:
    """The record for a scenario that keeps only these of its faults."""
    places = {old: new for new, old in enumerate(kept)}
    found: Record = {}
    for (stream, key), value in record.items():
        if stream == FAULT_STREAM and key and isinstance(key[0], int):
            if key[0] in places:
                found[stream, (places[key[0]], *key[1:])] = value
        else:
            found[stream, key] = value
    return found


def _digest(scenario: Scenario, seed: int, chosen: Record | Sequence[str]) -> bytes:
    return blake2b(repr((scenario, seed, chosen)).encode(), digest_size=16).digest()

"""Shrinks a failing run to a smaller run in which the same oracle reports a violation.

Theory of operation
-------------------
A failing run is defined by its scenario, its seed, and its choices that are not benign. Each *shrinking step* tries simpler candidates, and
keeps a candidate if its run still fails with the same oracle. A candidate is dropped if its run passes or fails in a different way. So the
shrinker needs no knowledge of the bug, and every state that it keeps is known to fail.

1. Benign choices: make all choices benign, or all choices except those of one stream. If the bug no longer occurs, try again with other
   message delays and checkpoint intervals. Most bugs still occur after this step, and then the later steps are fast, because few choices
   are left.
2. Faults: remove faults by delta debugging (`ddmin`). In the stream "fault", keys begin with the index of the fault in the scenario's list.
   When a fault is removed, the keys are renumbered accordingly, so that the draws of the remaining faults do not change.
3. The fleet: reduce agents, messages, payload, hosts and coordinators. The smallest values are tried first, followed by bisection. If there
   are few messages, the fleet may handle all of them before the first checkpoint or fault. So whenever messages are removed, checkpoints
   and faults are also tried at proportionally earlier times.
4. Speeds: try slower messages and earlier or later checkpoints. Keep a change if it reduces the number of events before the bug.
5. Times: try an earlier end of the run, and earlier and shorter faults.
6. Delays: try the minimum delays of the network and the store, and keep these delays unless the state's size grows.
7. Choices to 0: set all choices of a stream to 0, then apply delta debugging to the remaining choices, and then lower the remaining values
   towards 1.

When a kept state is run again, its choices are replayed by key. Recorded choices are ignored if their situations no longer occur, and in
new situations the choice is benign. If an agent or half of the messages are removed, the bug often needs a different order of events. So in
the first round of steps, a candidate is also tried with new random choices in all streams that have recorded choices. The new choices are
drawn from the original seed and from a few other seeds. A candidate with new choices is kept only if the state's size does not grow. The
steps are repeated until nothing changes or the time limit is reached. Finally, the result is verified: its scenario is written as text,
parsed again and run.

If the bug is a violation, a candidate may use at most a small multiple of the number of events in the smallest state so far. Without this
limit, a passing candidate would run to its end, which takes about a hundred times as long.

The size of a state is the number of its non-benign choices, faults and consumed messages.

Delta debugging (`ddmin`) is Zeller and Hildebrandt's algorithm ("Simplifying and isolating failure-inducing input",
2002). It removes items from a list as long as a test still fails, in these steps:

1. Split the list into n parts.
2. If the test fails with a single part, continue with this part.
3. Otherwise, if the test fails with all parts except one, continue with these remaining parts.
4. Otherwise, double the number of parts, until each part contains one item.

The result is *1-minimal*: removing any single item makes the test pass. However, a shorter failing list may exist. If a single item causes
the failure, the number of tests is a small multiple of log₂ of the list's length. If no item can be removed, the number of tests is at most
quadratic in the list's length. Departure from the paper: a failing test may report which items it used, and all unused items are removed at
once. Similarly, the function `lowest` searches for a smaller number for which the test still fails. Times are reduced in steps of whole
milliseconds.

`render` produces the files that describe a shrunk bug to the developer who fixes it:

- `<name>.toml` contains the scenario, for `snapline sim run`.
- `choices.json` contains the choices that are not benign, for `snapline sim replay`.
- `test_<name>.py` fails as long as the bug exists. Keep this file as a regression test.
- `steps.txt` lists what was removed, and which faults, choices and journal entries remain.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import msgspec

from snapline.errors import SnaplineError, UsageError
from snapline.sim.choices import Key, RandomChoices, Record, RecordedChoices
from snapline.sim.faults.fault_kinds import duration_ns, format_duration
from snapline.sim.report.run_folder import choices_json
from snapline.sim.result import Result
from snapline.sim.scenario import DelayPart, FaultPart, Scenario, StepsPart, format_scenario, parse_scenario
from snapline.sim.search.worker import Runner, error_kind, load_runner, name_of

# -- delta debugging ------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def ddmin(items: Sequence[T], needed: Callable[[list[T]], list[T] | None]) -> list[T]:
    """Return a 1-minimal sublist of `items` for which the test still fails.

    Args:
        needed: the test. The test returns None if it passes with the given list. If the test fails, it returns the items that it used, in
            order.
    """
    kept = list(items)
    parts = 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        smaller, is_part = _smaller(chunks, needed)
        if smaller is not None:
            kept, parts = smaller, 2 if is_part else max(parts - 1, 2)
        elif size == 1:
            return kept
        else:
            parts = min(2 * parts, len(kept))
    if kept and needed([]) is not None:
        return []
    return kept


def _smaller(chunks: list[list[T]], needed: Callable[[list[T]], list[T] | None]) -> tuple[list[T] | None, bool]:
    """Try each chunk, and then the complement of each chunk. Return the items needed by the first failing test, or None if all tests pass.
    Also return whether this test was of a single chunk."""
    for chunk in chunks:
        needed_items = needed(chunk)
        if needed_items is not None:
            return needed_items, True
    if len(chunks) == 2:
        return None, False  # with two chunks, the complement of one is the other
    for index in range(len(chunks)):
        needed_items = needed([item for place, chunk in enumerate(chunks) if place != index for item in chunk])
        if needed_items is not None:
            return needed_items, False
    return None, False


def lowest(value: int, least: int, works: Callable[[int], bool], fineness: int = 2**62) -> None:
    """Search for a lower value that works. First try `least`, `least` + 1, `least` + 2, `least` + 4 and so on. Then bisect below the first
    value that works.

    Args:
        value: the initial value, which is known to work.
        fineness: the search stops when the remaining range is at most 1/`fineness` of the value.
    """
    low = least - 1
    for lower in doubling_steps(least, value):
        if works(lower):
            value = lower
            break
        low = lower
    while value - low > 1 and (value - low) * fineness > value:
        middle = (value + low) // 2
        if works(middle):
            value = middle
        else:
            low = middle


def doubling_steps(least: int, value: int) -> Iterator[int]:
    """Yield `least`, `least` + 1, `least` + 2, `least` + 4 and so on, as long as the number is less than `value`."""
    step = 0
    while least + step < value:
        yield least + step
        step = max(1, step * 2)


# -- simpler scenarios and choices ----------------------------------------------------------------------------------------

MS = 10**6
"""A millisecond in nanoseconds. Times are reduced in whole milliseconds."""

TIMES = ("at", "lasts", "restart_after", "back_after", "every")
"""Fields of faults that contain times or durations."""


class FreshChoices(RandomChoices):
    """Choices that are drawn from a seed in the given streams, and are benign in all other streams."""

    def __init__(self, seed: int, streams: Collection[str]) -> None:
        super().__init__(seed, is_recording=True)
        self._drawn = frozenset(streams)

    def pick(self, stream: str, key: Key, n: int) -> int:
        return super().pick(stream, key, n) if stream in self._drawn else 0


def duration_of(fault: FaultPart, field: str) -> int:
    """Return the value of a fault's duration field in nanoseconds, or 0 if the field does not exist or is empty."""
    text = getattr(fault.word, field, "")
    return duration_ns(text) if isinstance(text, str) and text else 0


def is_valid(scenario: Scenario) -> bool:
    """Return whether the scenario is valid, that is, whether it would be accepted if it were read from a file."""
    try:
        parse_scenario(format_scenario(scenario), source="a candidate")
    except UsageError:
        return False
    return True


def in_fleet(scenario: Scenario, **fields: object) -> Scenario:
    return msgspec.structs.replace(scenario, fleet=msgspec.structs.replace(scenario.fleet, **fields))


def in_pattern(scenario: Scenario, **fields: object) -> Scenario:
    return in_fleet(scenario, pattern=msgspec.structs.replace(scenario.fleet.pattern, **fields))


def with_part(scenario: Scenario, part: str, **fields: object) -> Scenario:
    """Return a copy of the scenario in which some fields of one section, such as "clients", are changed."""
    return msgspec.structs.replace(scenario, **{part: msgspec.structs.replace(getattr(scenario, part), **fields)})


def with_less_work(scenario: Scenario, messages: int) -> Scenario:
    """Return the scenario with the given number of messages, and with proportionally earlier checkpoints and faults."""
    most = max(1, scenario.fleet.pattern.messages)

    def earlier(time_ns: int) -> int:
        return max(1, time_ns * messages // (most * MS))

    every = format_duration(earlier(scenario.fleet.trigger.every_ns) * MS)
    reduced = in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, every=every))
    for index, fault in enumerate(scenario.fault):
        for field in TIMES:
            if duration_of(fault, field):
                reduced = with_fault_time(reduced, index, field, earlier(duration_of(fault, field)))
    return in_pattern(reduced, messages=messages)


def with_every_ms(scenario: Scenario, every_ms: int) -> Scenario:
    every = format_duration(every_ms * MS)
    return in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, every=every, jitter=0.0))


def with_rate(scenario: Scenario, rate_per_s: float) -> Scenario:
    return in_pattern(scenario, rate_per_s=rate_per_s)


def with_trigger_messages(scenario: Scenario, messages: int) -> Scenario:
    return in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, messages=messages))


def with_delays(scenario: Scenario, delay: DelayPart) -> Scenario:
    return msgspec.structs.replace(scenario, network=msgspec.structs.replace(scenario.network, delay=delay))


def with_until_ms(scenario: Scenario, until_ms: int) -> Scenario:
    until = format_duration(until_ms * 10**6)
    return msgspec.structs.replace(scenario, run=msgspec.structs.replace(scenario.run, until=until))


def with_fault_time(scenario: Scenario, index: int, field: str, time_ms: int) -> Scenario:
    part = scenario.fault[index]
    word = msgspec.structs.replace(part.word, **{field: format_duration(time_ms * 10**6)})
    fault = list(scenario.fault)
    fault[index] = msgspec.structs.replace(part, **{part.kind: word})
    return msgspec.structs.replace(scenario, fault=fault)


# -- the shrinker ---------------------------------------------------------------------------------------------------------

OTHER_SEEDS = 4
"""Number of further seeds to try if a candidate does not fail with the replayed choices. If a bug occurs with one seed
in four, it is then kept with probability 0.7. More seeds would cost more time than they save."""

ROUNDS_MAX = 8
"""Maximum number of rounds of all steps. Usually, only two or three rounds change anything."""

FAULT_STREAM = "fault"

EVENTS_FACTOR, EVENTS_LEAST = 3, 2_000
"""If the bug is a violation, a candidate's event limit is this factor times the events of the smallest state so far, plus this constant."""

PLAIN_DELAYS = ("100ms", "30ms", "10ms", "3ms", "1ms")
PLAIN_INTERVALS_MS = (3, 10, 30, 100, 300)
"""Message delays and checkpoint intervals to try. Slow messages come first, because with slow messages few messages are
consumed before the bug."""

RATES_PER_S = (2.0, 10.0, 50.0)
"""Message rates to try. They help if many messages are consumed while a slow operation is in progress."""

PACE = "another pace"

FINENESS = 8
"""Bisection stops when the remaining range is at most the value divided by this number. The next round continues from there."""


class Size(msgspec.Struct, frozen=True, order=True):
    """Size of a failing state."""

    choices: int
    faults: int
    messages: int

    @property
    def total(self) -> int:
        return self.choices + self.faults + self.messages


class ShrinkStep(msgspec.Struct, frozen=True):
    """A simplification that the shrinker kept, with the state's new size and the number of runs so far."""

    text: str
    size: Size
    tries: int


class Shrunk(msgspec.Struct):
    """The smallest failing state that the shrinker found. `result` is the result of the verification run, and `record` contains this run's
    choices."""

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
    """Return the bug's signature, which must not change during shrinking: the first oracle that reported a violation, the verdict
    "undecided", or the kind of error."""
    match result.verdict:
        case "violation":
            return f"violation {result.violations[0].oracle}" if result.violations else "violation"
        case "broken":
            return f"broken {error_kind(result.error)}"
        case other:
            return other


def is_same_bug(result: Result, signature: str) -> bool:
    """Return whether a run's failure has this signature. If a run reported several violations, any of them may match."""
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
    """Shrink a failing run.

    Args:
        result: the result of the original scenario with this seed, which determines the bug's signature.
        runner: function that runs a candidate. None means `snapline.sim.run.run`.
        time_limit_s: limit in real time. At the limit, the smallest failing state so far is returned.
        on_progress: function that is called after each simplification that is kept.

    Raises:
        UsageError: If the run passed, or if it did not fail in the same way when it was repeated.
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
    """Raised if the search exceeds its time limit."""


class Shrinker:
    """Keeps the smallest failing state found so far, and tries smaller states.

    Attributes:
        scenario, seed, record, result: the smallest failing state found so far, and the result of its run.
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
        """Run the original scenario, and record its choices.

        Raises:
            UsageError: If the original scenario does not fail in the same way again.
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
        """Repeat all shrinking steps until nothing changes or the time limit is reached."""
        try:
            for number in range(ROUNDS_MAX):
                kept = self._kept
                self._is_first_round = number == 0
                steps = (
                    self._try_benign_choices,
                    self._try_fewer_faults,
                    self._try_smaller_fleet,
                    self._try_speeds,
                    self._try_shorter_times,
                    self._delays,
                    self._try_fewer_choices,
                )
                for step in steps:
                    step()
                if self._kept == kept:
                    return
        except OutOfTimeError:
            return

    def finish(self) -> Shrunk:
        """Verify the smallest state: write its scenario as text, parse it again and run it. Return the verified state. If the smallest
        state does not fail again, return the original state.

        Raises:
            SnaplineError: If neither the smallest nor the original state fails again, which means that runs are not repeatable.
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
        """Run a candidate with the given choices and, if `has_fresh` is set, also with new random choices. Keep the candidate if one of its
        runs fails in the same way. Return whether it was kept."""
        if self._fails(scenario, self.seed, record, text, growth_max=growth_max):
            return True
        is_worth_it = has_fresh and self._is_first_round and self.record
        return bool(is_worth_it) and self._try_fresh(text, scenario, self._streams())

    def _try_fresh(self, text: str, scenario: Scenario, streams: Sequence[str]) -> bool:
        """Try a candidate with new random choices in the given streams and benign choices in all other streams. Keep the candidate only if
        the state's size does not grow. Return whether it was kept."""
        seeds = range(self.seed, self.seed + 1 + OTHER_SEEDS)
        return any(self._fails(scenario, seed, streams, text, growth_max=0) for seed in seeds)

    def _fails(
        self, scenario: Scenario, seed: int, chosen: Record | Sequence[str], text: str, *, growth_max: int | None = None
    ) -> bool:
        """Run a candidate, and keep it if it fails in the same way. Return whether it was kept.

        `chosen` is either the candidate's choices or the streams whose choices are drawn from the seed.
        """
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
        """Limit the candidate's number of events if the bug is a violation. A violation beyond this limit is not found."""
        if not self._signature.startswith("violation"):
            return scenario
        events_max = min(scenario.run.events_max, EVENTS_FACTOR * self.result.events + EVENTS_LEAST)
        return msgspec.structs.replace(scenario, run=msgspec.structs.replace(scenario.run, events_max=events_max))

    def _note(self, text: str) -> None:
        self._kept += 1
        step = ShrinkStep(text, self._size, self.tries)
        if self._steps and self._steps[-1].text == text:
            self._steps[-1] = step  # merge successive simplifications of the same search
        else:
            self._steps.append(step)
        if self._on_progress is not None:
            self._on_progress(step)

    # Steps.

    def _try_benign_choices(self) -> None:
        """Try making all choices benign, and then all choices except those of one stream. If this fails, try the same with other message
        delays and checkpoint intervals."""
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
                if self._try_valid("choices made benign, at another pace", self._at_speed(least, every_ms), {}):
                    return
        for stream in self._streams():
            self._try(text, self.scenario, self._without(stream))

    def _at_speed(self, least: str, every_ms: int) -> Scenario:
        return with_delays(with_every_ms(self.scenario, every_ms), DelayPart(least=least, jitter="0s"))

    def _try_speeds(self) -> None:
        """Try other checkpoint triggers, message rates, delays and intervals, which may make the bug occur earlier."""
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
                self._try_smaller(PACE, in_pattern(self._at_speed(least, every_ms), messages=fewer))
                for least in PLAIN_DELAYS
                for every_ms in PLAIN_INTERVALS_MS
            )

    def _try_fewer_faults(self) -> None:
        """Try to remove all faults at once. If the bug no longer occurs, remove as many faults as possible by delta debugging."""
        original, record = self.scenario, self.record

        def needed(kept: list[int]) -> list[int] | None:
            fewer = msgspec.structs.replace(original, fault=[original.fault[index] for index in kept])
            is_kept = self._try("faults left out", fewer, renumbered(record, kept), has_fresh=True)
            return kept if is_kept else None

        if original.fault and needed([]) is None:
            ddmin(list(range(len(original.fault))), needed)

    def _try_smaller_fleet(self) -> None:
        """Try a smaller fleet. If the fleet is a user's own fleet, keep all its agents."""
        self._try_fewer_clients()
        if not self.scenario.fleet.module:
            self._pattern()
        elif self.scenario.steps != StepsPart():
            self._try_valid("stubs answer well", msgspec.structs.replace(self.scenario, steps=StepsPart()))
        self._lower("hosts", lambda s: s.fleet.hosts, lambda s, n: in_fleet(s, hosts=n), least=1)
        if self.scenario.fleet.coordinators > 1:
            self._try_valid("coordinators", in_fleet(self.scenario, coordinators=1))

    def _try_fewer_clients(self) -> None:
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

    def _try_shorter_times(self) -> None:
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
        lowest(get(self.scenario), least, lambda value: self._try_valid(text, put(self.scenario, value)), FINENESS)

    def _try_valid(self, text: str, candidate: Scenario, record: Record | None = None) -> bool:
        """Try a candidate, unless its scenario is invalid. A scenario is invalid, for example, if it names a host that was removed. Return
        whether the candidate was kept."""
        if not is_valid(candidate):
            return False
        if record is not None:
            return self._try(text, candidate, record)
        return self._try(text, candidate, self.record, has_fresh=True)

    def _delays(self) -> None:
        same = DelayPart(least="1ms", jitter="0s")
        steady = msgspec.structs.replace(self.scenario.network.delay, jitter="0s")
        self._try_smaller("delays", with_delays(self.scenario, steady))
        self._try_smaller("delays", with_delays(self.scenario, same))
        store = msgspec.structs.replace(self.scenario.store, delay=same)
        self._try_smaller("delays", msgspec.structs.replace(self.scenario, store=store))
        trigger = msgspec.structs.replace(self.scenario.fleet.trigger, jitter=0.0)
        self._try_smaller("jitter of the trigger", in_fleet(self.scenario, trigger=trigger))

    def _try_smaller(self, text: str, candidate: Scenario, *, growth_max: int = 0) -> bool:
        """Try a candidate, and keep it if the state's size grows by no more than `growth_max`. Return whether it was kept."""
        if candidate == self.scenario or not is_valid(candidate):
            return False
        return self._try(text, candidate, self.record, has_fresh=True, growth_max=growth_max)

    def _try_fewer_choices(self) -> None:
        """Try to set choices to 0. Start with all choices at once, continue stream by stream, and then use delta debugging. Finally, try to
        lower the remaining choices towards 1."""
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
    """Return the recorded choices for a scenario in which only the faults with the given indices are left and are renumbered."""
    places = {old: new for new, old in enumerate(kept)}
    renamed: Record = {}
    for (stream, key), value in record.items():
        if stream == FAULT_STREAM and key and isinstance(key[0], int):
            if key[0] in places:
                renamed[stream, (places[key[0]], *key[1:])] = value
        else:
            renamed[stream, key] = value
    return renamed


def _digest(scenario: Scenario, seed: int, chosen: Record | Sequence[str]) -> bytes:
    return blake2b(repr((scenario, seed, chosen)).encode(), digest_size=16).digest()


# -- files of a shrunk bug ------------------------------------------------------------------------------------------------

JOURNAL_MAX = 400
"""Maximum number of journal entries to show. A shrunk run usually has only tens of entries."""

TEST = '''"""{title}

{evidence}
"""

from snapline.sim.choices import RecordedChoices
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario

SCENARIO = """
{scenario}"""

CHOICES = {choices}


def test_{name}() -> None:
    scenario = parse_scenario(SCENARIO, source="{name}")
    result = run(scenario, {seed}, choices=RecordedChoices(CHOICES))
    assert result.verdict == "pass", result.violations or result.pending or result.error
'''


def render(shrunk: Shrunk, *, journal: Sequence[str] = ()) -> dict[str, str]:
    """Return the contents of the files that describe a shrunk bug, by file name."""
    name = identifier(shrunk)
    return {
        f"{name.replace('_', '-')}.toml": format_scenario(shrunk.scenario),
        "choices.json": choices_json(shrunk.record).decode(),
        f"test_{name}.py": test_file(shrunk, name),
        "steps.txt": "\n".join(shrink_report(shrunk, journal)) + "\n",
    }


def identifier(shrunk: Shrunk) -> str:
    """Return a Python identifier that names the scenario and its seed."""
    slug = re.sub(r"[^a-z0-9]+", "_", shrunk.scenario.name.lower()).strip("_") or "scenario"
    return f"{slug}_seed_{shrunk.seed}"


def test_file(shrunk: Shrunk, name: str) -> str:
    """Return the source of a test that fails while the bug exists."""
    return TEST.format(
        title=f"Found by simulation and shrunk: {_quoted(shrunk.signature)}.",
        evidence=_quoted("\n".join(evidence(shrunk))),
        scenario=_quoted(format_scenario(shrunk.scenario)),
        choices=choices_literal(shrunk.record),
        name=name,
        seed=shrunk.seed,
    )


def choices_literal(record: Record) -> str:
    """Return the recorded choices as a Python literal with one choice per line."""
    if not record:
        return "{}"
    rows = [f"    ({stream!r}, {key!r}): {value}," for (stream, key), value in record.items()]
    return "\n".join(["{", *rows, "}"])


def evidence(shrunk: Shrunk) -> list[str]:
    """Describe the failure, with one sentence per line."""
    result = shrunk.result
    lines = [f"{violation.guarantee} {violation.oracle}: {violation.text}" for violation in result.violations]
    return lines or result.pending or [result.error]


def shrink_report(shrunk: Shrunk, journal: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of `steps.txt`, which lists what was removed and what remains."""
    yield f"{shrunk.signature}: from {size_text(shrunk.before)} to {size_text(shrunk.size)}"
    yield f"in {shrunk.tries} runs, {shrunk.seconds:.1f} s"
    yield ""
    for step in shrunk.steps:
        yield f"  run {step.tries:>5}  {step.text:<32} {size_text(step.size)}"
    yield ""
    yield from evidence(shrunk)
    yield ""
    yield f"seed {shrunk.seed}, {_fleet_text(shrunk.scenario)}"
    for fault in shrunk.result.faults:
        yield f"  fault at {fault.at_ns / 1e9:.6f} s: {fault.text}"
    for (stream, key), value in shrunk.record.items():
        yield f"  choice {stream} {' '.join(str(part) for part in key)} = {value}"
    if journal:
        yield ""
        yield from (f"  {entry}" for entry in journal[-JOURNAL_MAX:])


def size_text(size: Size) -> str:
    return f"{size.choices} choices, {size.faults} faults, {size.messages} messages"


def _fleet_text(scenario: Scenario) -> str:
    fleet = scenario.fleet
    return f"{fleet.protocol}, {fleet.pattern.name}, {fleet.agents} agents on {fleet.hosts} hosts"


def _quoted(text: str) -> str:
    """Escape a text for use in a triple-quoted string."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')

"""Reports for display in a terminal. One report describes the outcome of a single run, and another the failure of a test that runs many
seeds.

*Outcome* (`summarise`). The report of a single run fits on one screen and begins with the most important parts. It has at most `LINES_MAX`
lines with at most `WIDTH` characters each. Omitted items are counted. Control characters in a user's error message are removed.

*Test* (`run_seeds`). If a run fails, the report states the cause, the command that repeats the run, and the smallest scenario that fails.
The failed run is first shrunk, within a time limit, and then repeated with a recording. The run's folder contains the diagrams, the
choices, and the steps of shrinking. The report shows only those settings of the scenario that differ from the defaults, and the folder
contains all settings.
"""

import shlex
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from snapline.diagrams.style import clean, shortened
from snapline.errors import SnaplineError
from snapline.sim.checking import Subject
from snapline.sim.choices import RandomChoices, Record, RecordedChoices
from snapline.sim.oracles.probes import CATALOGUE
from snapline.sim.report.run_folder import REPRO, folder_for, write_run
from snapline.sim.result import ARMED, ExecutedFault, Result, Violation, count, seconds, time_span
from snapline.sim.scenario import Scenario, format_toml
from snapline.sim.search.replay import read_repro
from snapline.sim.search.shrink import Shrunk, is_same_bug, shrink, shrink_report, signature_of, size_of, size_text
from snapline.sim.search.sweep import Collector, SweepSummary
from snapline.sim.world.recording import Recording

STEPS = "steps.txt"

CHOICES_SHOWN_MAX = 12
"""Maximum number of choices to show. The folder contains all choices."""

ERROR_LINES_MAX = 30
"""Maximum number of lines to show from the end of a broken run's traceback."""

LOOK_FOR = (
    "Look for values kept outside of an agent's state, in a module, a class or the object itself, for sets that are "
    "iterated, and for random and time instead of ctx.random() and ctx.now()."
)

NOT_REPEATABLE = (
    f"The seed ran again and went another way. {LOOK_FOR} If it is a value in a module, give a function that sets it back and "
    "makes the fleet: then the failure can be repeated, and made small."
)

HINTS = {
    "replay": f"The same turns in the same order gave another result on a fresh object. {LOOK_FOR}",
    "workload": f"If it holds without faults, something outlived a recovery that should not, or did not and should. {LOOK_FOR}",
}
"""Hints for finding the bug in the user's code, by the oracle that found the violation."""

HINT_WIDTH = 96


class Failure(msgspec.Struct):
    """A failed run and its scenario.

    Attributes:
        passed: number of seeds that passed before this run.
        is_repeatable: whether, as far as known, repeating the run produces the same trace.
        folder: folder of the original run if this run is a replay. Otherwise None.
    """

    scenario: Scenario
    seed: int
    result: Result
    passed: int = 0
    is_repeatable: bool = True
    folder: Path | None = None


class TestLocation(msgspec.Struct, frozen=True):
    """Location of a test. `command` runs the test, and the files of a failed run are written to `folder`."""

    command: str
    folder: Path


def run_seeds(subject: Subject, seeds: Sequence[int], *, allow_undecided: bool) -> tuple[Failure | None, SweepSummary]:
    """Run seeds until the first failure. Run the first seed twice to detect a fleet whose runs are not repeatable. Return the failure, or
    None if all runs passed, together with the summary of all runs.

    Raises:
        UsageError: See `Subject.scenario`.
    """
    collector = Collector(subject.name, catalogue=CATALOGUE)
    began_s = time.monotonic()
    failure = None
    for passed, seed in enumerate(seeds):
        scenario = subject.scenario(seed)
        result = subject.run(scenario, seed)
        collector.add(result)
        failure = failure_of(scenario, seed, result, allow_undecided=allow_undecided)
        if failure is None and passed == 0:
            again = subject.run(scenario, seed)
            failure = failure_of(scenario, seed, again, allow_undecided=allow_undecided)
            if failure is None and again.trace_hash != result.trace_hash:
                again.verdict, again.error = "broken", NOT_REPEATABLE
                failure = Failure(scenario, seed, again, is_repeatable=False)
        if failure is not None:
            failure.passed = passed
            break
    return failure, collector.summary(elapsed_s=time.monotonic() - began_s)


def failure_of(scenario: Scenario, seed: int, result: Result, *, allow_undecided: bool) -> Failure | None:
    """Return the run's failure, or None if the run counts as passed."""
    is_ok = result.verdict == "pass" or (result.verdict == "undecided" and allow_undecided)
    return None if is_ok else Failure(scenario, seed, result)


def run_folder(subject: Subject, folder: Path) -> tuple[Failure | None, SweepSummary]:
    """Repeat the run that is stored in a folder. If the run belongs to a different fleet, do nothing, because the same test may check
    several fleets.

    Raises:
        UsageError: If the folder is not a run folder.
    """
    collector = Collector(subject.name, catalogue=CATALOGUE)
    scenario, seed, record = read_repro(folder)
    if scenario.name != subject.name:
        return None, collector.summary(elapsed_s=0.0)
    began_s = time.monotonic()
    result = subject.run(scenario, seed, None if record is None else RecordedChoices(record))
    collector.add(result)
    failure = failure_of(scenario, seed, result, allow_undecided=False)
    if failure is not None:
        failure.folder = folder
    return failure, collector.summary(elapsed_s=time.monotonic() - began_s)


def explain(subject: Subject, failure: Failure, place: TestLocation, *, shrink_s: float) -> str:
    """Shrink a failure, write its run folder, and return the text of the report."""
    lines = [headline(failure), *_evidence(failure.result), ""]
    if failure.folder is not None:
        return "\n".join([*lines, _replay_line(place, failure.folder), *_hints(failure.result)])
    lines.append(f"repeat: {place.command} --snapline-seed {failure.seed}")
    try:
        lines += _shrink_report(subject, failure, place, shrink_s)
    except SnaplineError as error:  # report the failure even if it cannot be shrunk or written
        lines += ["", f"it was not shrunk: {error}"]
    return "\n".join(lines)


def _shrink_report(subject: Subject, failure: Failure, place: TestLocation, shrink_s: float) -> Iterator[str]:
    failure.is_repeatable = failure.is_repeatable and _is_repeatable(subject, failure)
    if failure.is_repeatable:
        yield from _hints(failure.result)
    elif failure.result.error != NOT_REPEATABLE:
        yield from ("", *textwrap.wrap(NOT_REPEATABLE, HINT_WIDTH))
    shrunk = _shrunk(subject, failure, shrink_s)
    yield ""
    if shrunk is not None:
        yield from _small(shrunk)
    elif failure.result.verdict != "broken":
        yield from _toml_of(failure.scenario)
    folder = _write(subject, failure, shrunk, place)
    yield f"files: {folder}"
    if shrunk is not None:
        yield _replay_line(place, folder)


def _replay_line(place: TestLocation, folder: Path) -> str:
    return f"replay: {place.command} --snapline-replay {shlex.quote(str(folder))}"


def headline(failure: Failure) -> str:
    """Return one sentence that states how the failed run ended."""
    before = f", after {failure.passed} that passed" if failure.passed else ""
    return f"{failure.scenario.name}: seed {failure.seed} ended as {failure.result.verdict!r}{before}"


def _evidence(result: Result) -> Iterator[str]:
    if result.verdict == "broken":
        yield from result.error.rstrip().splitlines()[-ERROR_LINES_MAX:]
        return
    yield from summarise(result).splitlines()[1:]


def _hints(result: Result) -> Iterator[str]:
    for oracle in dict.fromkeys(violation.oracle for violation in result.violations):
        if oracle in HINTS:
            yield from ("", *textwrap.wrap(HINTS[oracle], HINT_WIDTH))


def _is_repeatable(subject: Subject, failure: Failure) -> bool:
    again = subject.run(failure.scenario, failure.seed)
    return again.trace_hash == failure.result.trace_hash and is_same_bug(again, signature_of(failure.result))


def _shrunk(subject: Subject, failure: Failure, shrink_s: float) -> Shrunk | None:
    """Return the shrunk failure. Return None if `shrink_s` is 0, or if the run is broken or not repeatable."""
    if shrink_s <= 0 or failure.result.verdict == "broken" or not failure.is_repeatable:
        return None
    shrunk = shrink(failure.scenario, failure.seed, failure.result, runner=subject.run, time_limit_s=shrink_s)
    shrunk.scenario = _with_fleet_of(failure.scenario, shrunk.scenario)
    return shrunk


def _with_fleet_of(original: Scenario, shrunk: Scenario) -> Scenario:
    """Return the shrunk scenario with the original fleet settings. These settings do not affect a user's fleet, so shrinking has simplified
    them without effect."""
    fleet = original.fleet
    if not fleet.module:
        return shrunk
    changed = {"agents": fleet.agents, "pattern": fleet.pattern, "trigger": fleet.trigger}
    return msgspec.structs.replace(shrunk, fleet=msgspec.structs.replace(shrunk.fleet, **changed))


def _small(shrunk: Shrunk) -> Iterator[str]:
    before, after = size_text(shrunk.before), size_text(shrunk.size)
    yield f"shrunk in {shrunk.tries} runs, {shrunk.seconds:.1f} s, from {before} to {after}:"
    yield from _toml_of(shrunk.scenario)
    for (stream, key), value in list(shrunk.record.items())[:CHOICES_SHOWN_MAX]:
        yield f"  choice {stream} {' '.join(str(part) for part in key)} = {value}"
    if len(shrunk.record) > CHOICES_SHOWN_MAX:
        yield f"  … {len(shrunk.record) - CHOICES_SHOWN_MAX} more choices"


def _toml_of(scenario: Scenario) -> Iterator[str]:
    """Yield the lines of a scenario's TOML text, omitting keys that have their default values."""
    fields = _differing(msgspec.to_builtins(scenario), msgspec.to_builtins(Scenario()))
    yield from (f"  {line}" for line in format_toml(fields).splitlines() if line)


def _differing(fields: dict[str, object], usual: dict[str, object]) -> dict[str, object]:
    differing: dict[str, object] = {}
    for key, value in fields.items():
        other = usual.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _differing(value, other):
                differing[key] = inner
        elif value != other:
            differing[key] = value
    return differing


def _write(subject: Subject, failure: Failure, shrunk: Shrunk | None, place: TestLocation) -> Path:
    """Repeat the failed run or its shrunk form with a recording, and write its folder. Return the folder that was written."""
    recording = Recording()
    if shrunk is None:
        scenario, seed = failure.scenario, failure.seed
        choices = RandomChoices(seed, is_recording=True)
        result = subject.run(scenario, seed, choices, recording=recording)
        record: Record = choices.record or {}
        steps = [f"not shrunk: {size_text(size_of(scenario, record, result))}"]
    else:
        scenario, seed, record = shrunk.scenario, shrunk.seed, shrunk.record
        result = subject.run(scenario, seed, RecordedChoices(record), recording=recording)
        steps = list(shrink_report(shrunk))
    folder = folder_for(place.folder, scenario.name, seed, datetime.now(UTC))
    write_run(folder, scenario, result, recording, choices=record, commit="")
    (folder / STEPS).write_text("\n".join(steps) + "\n", encoding="utf-8")
    again = _replay_line(place, folder).removeprefix("replay: ")
    (folder / REPRO).write_text(f"{again}\n# only the test checks its own invariants\n", encoding="utf-8")
    return folder


WIDTH = 96
BRIEF_WIDTH = 160
"""Maximum width, in characters, of a line in `brief_summary`."""

LINES_MAX = 24
"""Maximum number of lines in an outcome. It equals the height of the smallest common terminal."""

VIOLATIONS_MAX, PENDING_MAX, FAULTS_MAX = 3, 5, 5
TEXT_LINES_MAX = 5
"""Maximum number of lines that describe one violation or error."""

_Item = TypeVar("_Item")


def summarise(result: Result) -> str:
    """Return the outcome of a run in at most `LINES_MAX` lines, followed by a newline."""
    size = f"{count(result.events, 'event')}, {count(result.messages, 'message')}"
    lines = [
        shortened(clean(f"{result.verdict.upper()}  {result.name}, seed {result.seed}"), WIDTH),
        f"{seconds(result.virtual_ns)} of virtual time in {result.cpu_s:.2f} s CPU: {size}",
        shortened(clean(exercised(result)), WIDTH),
        *_several(result.violations, VIOLATIONS_MAX, _violation, "more violation"),
        *_several(result.pending, PENDING_MAX, _pending, "more thing missing", "more things missing"),
        *_wrapped(result.error, "error: "),
        *_unstubbed_steps(result),
        *_several(result.faults, FAULTS_MAX, _fault, "more fault"),
        *_probes(result),
    ]
    if result.trace_hash:
        lines.append(f"trace {shortened(clean(result.trace_hash), 40)}")
    if len(lines) > LINES_MAX:
        lines[LINES_MAX - 1 :] = ["…"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def brief_summary(result: Result, scenario: Scenario) -> str:
    """Return four lines about a passed run: its verdict, its size, what happened in it, and what was checked."""
    fleet, figures, hits = scenario.fleet, result.metrics, result.probes
    turns, epochs = int(figures.get("turns", 0)), int(figures.get("epochs_complete", 0))
    agents = f"{count(fleet.agents, 'agent')} on {count(fleet.hosts, 'host')}"
    size = f"{agents}, {count(turns, 'turn')}, {count(result.messages, 'message')}"
    size += f", {result.virtual_ns / 1e9:.1f} s of virtual time in {result.cpu_s:.2f} s CPU"
    recoveries = hits.get("recovery", 0)
    events = [f"{recoveries} {'recovery' if recoveries == 1 else 'recoveries'}", f"{count(epochs, 'complete epoch')}"]
    events += [", ".join(kinds_of(result.faults)) or "no fault"]
    checks = [f"all guarantees, {count(hits.get('replayed', 0), 'agent')} run again"]
    checks += [name for name in (fleet.invariant, fleet.at_end) if name]
    checks += [*_unstubbed_steps(result)]
    lines = [f"{result.verdict.upper()}  {result.name}, seed {result.seed}", f"ran      {size}"]
    lines += [f"met      {', '.join(events[:2])}; {events[2]}", f"checked  {'; '.join(checks)}"]
    return "".join([f"{shortened(clean(line), BRIEF_WIDTH)}\n" for line in lines])


def exercised(result: Result) -> str:
    """Return a line that states the number of turns, epochs and recoveries in the run, and the kinds of faults."""
    counts = {
        "turn": int(result.metrics.get("turns", 0)),
        "epoch": int(result.metrics.get("epochs_complete", 0)),
        "recovery": int(result.metrics.get("recoveries", 0)),
    }
    parts = [f"{number} {name if number == 1 else _plural(name)}" for name, number in counts.items()]
    kinds = kinds_of(result.faults)
    return f"exercised: {', '.join(parts)}; faults: {', '.join(kinds) or 'none'}"


def _plural(name: str) -> str:
    return "recoveries" if name == "recovery" else f"{name}s"


def kinds_of(faults: Iterable[ExecutedFault]) -> list[str]:
    """Return the kinds of the faults that were executed. Omit faults whose failpoint was never reached."""
    return list(dict.fromkeys(_kind(fault) for fault in faults if ARMED not in fault.text))


def _kind(fault: ExecutedFault) -> str:
    return fault.text.partition(" ")[0] if fault.kind == "failpoint" else fault.kind


def _violation(violation: Violation) -> Iterator[str]:
    yield shortened(clean(f"{violation.guarantee} {violation.oracle}, at {seconds(violation.t_ns)}"), WIDTH)
    yield from _wrapped(violation.text, "  ")


def _pending(words: str) -> Iterator[str]:
    yield shortened(clean(f"missing: {words}"), WIDTH)


def _fault(fault: ExecutedFault) -> Iterator[str]:
    when = time_span(fault.at_ns, fault.until_ns) if fault.until_ns else f"at {seconds(fault.at_ns)}"
    yield shortened(clean(f"fault: {fault.text or fault.kind}"), WIDTH - len(when) - 2) + f", {when}"


def _unstubbed_steps(result: Result) -> Iterator[str]:
    """Yield a line that lists the executed steps without stubs, if there are any."""
    if result.unstubbed_steps:
        names = ", ".join(result.unstubbed_steps)
        yield shortened(clean(f"no stubs (Fleet(simulate=…)), so these steps really ran: {names}"), WIDTH)


def _probes(result: Result) -> Iterator[str]:
    hit = [name for name, hits in sorted(result.probes.items()) if hits]
    if hit:
        yield shortened(clean(f"{count(len(hit), 'probe')} hit: {', '.join(hit)}"), WIDTH)


def _several(
    items: Sequence[_Item], items_max: int, lines: Callable[[_Item], Iterator[str]], more: str, many: str = ""
) -> Iterator[str]:
    """Yield lines for the first items, and then a line with the number of omitted items."""
    for item in items[:items_max]:
        yield from lines(item)
    remaining = len(items) - items_max
    if remaining > 0:
        yield f"  … {remaining:,} {many or more + 's'}" if remaining > 1 else f"  … 1 {more}"


def _wrapped(words: str, before: str) -> Iterator[str]:
    if not words:
        return
    flat = clean(" ".join(words.split()))
    yield from textwrap.wrap(
        flat,
        WIDTH,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        max_lines=TEXT_LINES_MAX,
        placeholder=" …",
    )

"""Replay of runs, to check that a run is deterministic, and to find the first difference between two runs.

A run must depend only on the scenario, the seed and the choices. Bugs that make a run depend on something else (iteration over a set, a
string's hash, state left over from an earlier run) become visible if the run is repeated in a new interpreter with a different
PYTHONHASHSEED.

Runs are compared by their trace hash. Runs also record a hash after every thousand journal entries (a *waypoint*). If the trace hashes
differ, the waypoints locate the first difference to within a thousand entries. Both runs are then repeated with a journal of only the range
between these waypoints, and the first differing entry of each run is shown. The first differing entry is the first visible effect of the
nondeterminism, and is usually close to its cause.

The folder of a run (`sim/report/run_folder.py`) contains everything needed to repeat the run: the scenario with all drawn values, the seed
and the choices.
"""

from contextlib import closing
from pathlib import Path

import msgspec

from snapline.errors import UsageError
from snapline.sim.choices import Choices, Record, RecordedChoices
from snapline.sim.report import run_folder
from snapline.sim.result import Result, Violation
from snapline.sim.scenario import SCHEMA, Scenario, parse_scenario
from snapline.sim.search.pool import make_setup, other_hash_seed, run_tasks
from snapline.sim.search.worker import Runner, Task, journaled, load_runner, name_of
from snapline.sim.world.kernel import PIECE

SHOWN_BEFORE = 3
"""Number of journal entries to show before the first differing entry, for context."""


class Fingerprint(msgspec.Struct, frozen=True):
    """Values that must be the same in any two runs of the same seed."""

    trace_hash: str
    verdict: str
    violations: tuple[Violation, ...]
    events: int
    messages: int
    virtual_ns: int


class Divergence(msgspec.Struct):
    """Difference between two runs of the same seed.

    Attributes:
        differing: names of the fingerprint fields that differ, such as "trace_hash".
        window: range of journal entries that contains the first difference, or (0, 0) if the range is unknown.
        entry: index of the first differing journal entry, or None if it is unknown.
        before: the last journal entries before the first differing entry, which are equal in both runs.
        here: the differing entry in the first run.
        there: the differing entry in the second run.
    """

    seed: int
    differing: list[str]
    window: tuple[int, int] = (0, 0)
    entry: int | None = None
    before: list[str] = []
    here: str = ""
    there: str = ""
    note: str = ""

    @staticmethod
    def of(seed: int, first: Fingerprint, second: Fingerprint) -> "Divergence":
        names = Fingerprint.__struct_fields__
        return Divergence(seed, [name for name in names if getattr(first, name) != getattr(second, name)])

    @property
    def text(self) -> str:
        """Return a report on the difference for the terminal."""
        lines = [f"seed {self.seed} ran twice and differed in {', '.join(self.differing)}"]
        if self.entry is not None:
            lines.append(f"first at entry {self.entry} of the journal:")
            lines += [f"    {entry}" for entry in self.before]
            lines += [f"  - {self.here}", f"  + {self.there}"]
        elif self.window[1]:
            lines.append(f"first between the entries {self.window[0]} and {self.window[1]} of the journal")
        return "\n".join([*lines, self.note] if self.note else lines)


def fingerprint_of(result: Result) -> Fingerprint:
    """Return the fingerprint of a run."""
    return Fingerprint(
        result.trace_hash,
        result.verdict,
        tuple(result.violations),
        result.events,
        result.messages,
        result.virtual_ns,
    )


def check_determinism(scenario: Scenario, seed: int, *, runner: Runner | None = None) -> Divergence | None:
    """Run a seed in this process, and again in a new interpreter with a different hash seed. Return the difference, or
    None if the runs are equal.

    Args:
        runner: a module-level function that runs a seed. If the runner supports the argument `window_at`, the first differing journal
            entry is determined.
    """
    setup_runner = load_runner(name_of(runner))
    first = setup_runner(scenario, seed)
    second = _run_in_new_interpreter(scenario, Task(seed), runner)
    mine, other = fingerprint_of(first), fingerprint_of(second)
    if mine == other:
        return None
    divergence = Divergence.of(seed, mine, other)
    piece = piece_of(first.waypoints, second.waypoints)
    divergence.window = (piece * PIECE, (piece + 1) * PIECE)
    if second.verdict == "broken" and second.error:
        divergence.note = f"the second run: {second.error}"
    first_again = journaled(setup_runner, scenario, seed, piece)
    second_again = _run_in_new_interpreter(scenario, Task(seed, window_at=piece), runner)
    _narrow(divergence, first_again.journal, second_again.journal)
    return divergence


def piece_of(first: list[str], second: list[str]) -> int:
    """Given the waypoints of two runs, return the index of the journal piece that contains the first difference."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def _run_in_new_interpreter(scenario: Scenario, task: Task, runner: Runner | None) -> Result:
    setup = make_setup([scenario], runner=runner)
    with closing(run_tasks(setup, [task], jobs=1, hash_seed=other_hash_seed())) as answers:
        for _, result in answers:
            return result
    raise AssertionError("every task has an answer")


def _narrow(found: Divergence, here: list[str], there: list[str]) -> None:
    """Compare a piece of the journal from both runs, and record the first entry that differs."""
    if not here and not there:
        return
    pairs = enumerate(zip(here, there, strict=False))
    index = next((index for index, (one, other) in pairs if one != other), min(len(here), len(there)))
    if index == len(here) == len(there):
        found.note = "run once more, the journals agree: it does not differ each time, look for clocks and threads"
        return
    found.entry = found.window[0] + index
    found.before = here[max(0, index - SHOWN_BEFORE) : index]
    found.here = here[index] if index < len(here) else "(nothing more)"
    found.there = there[index] if index < len(there) else "(nothing more)"


# -- folders of runs --------------------------------------------------------------------------------------------------


class ReplayResult(msgspec.Struct):
    """Result of a replayed run. `warnings` lists reasons why the result may differ from the stored run. `expected_hash` is the stored run's
    trace hash, or "" if it is unknown."""

    result: Result
    expected_hash: str
    warnings: list[str]

    @property
    def is_same(self) -> bool:
        return self.result.trace_hash == self.expected_hash


def replay(folder: Path, *, commit: str = "", runner: Runner | None = None) -> ReplayResult:
    """Replay the run that is stored in a folder, with the stored choices. `commit` is the git commit of the running code, or "" if it is
    unknown.

    Raises:
        UsageError: See `read_repro`.
    """
    scenario, seed, record = read_repro(folder)
    expected, _ = run_folder.read_result(folder / run_folder.RESULT)
    choices: Choices | None = None if record is None else RecordedChoices(record)
    result = load_runner(name_of(runner))(scenario, seed, choices=choices)
    return ReplayResult(result, expected.trace_hash, repro_warnings(folder, commit=commit))


def read_repro(folder: Path) -> tuple[Scenario, int, Record | None]:
    """Return the scenario, seed and choices stored in a folder. The choices are None if the folder contains only the seed.

    Raises:
        UsageError: If the folder does not contain a run, or if it has an unsupported schema.
    """
    result, provenance = run_folder.read_result(folder / run_folder.RESULT)
    if provenance.schema != SCHEMA:
        hint = f", of commit {provenance.commit}" if provenance.commit else ""
        raise UsageError(f"{folder} has schema {provenance.schema}, this is for {SCHEMA}: use its own snapline{hint}")
    choices = folder / run_folder.CHOICES
    return (
        _scenario(folder / run_folder.CONFIG),
        result.seed,
        run_folder.read_choices(choices) if choices.exists() else None,
    )


def _scenario(path: Path) -> Scenario:
    try:
        return parse_scenario(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give the folder of a run") from error


def repro_warnings(folder: Path, *, commit: str) -> list[str]:
    """Return reasons why a replayed run may differ from the stored run."""
    _, provenance = run_folder.read_result(folder / run_folder.RESULT)
    if not commit or not provenance.commit or provenance.commit == commit:
        return []
    return [f"the run was made at commit {provenance.commit}, and this is {commit}: it may end differently"]

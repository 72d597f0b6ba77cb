"""Sweeps: run many seeds of one scenario, and collect failures, metrics, probes that were never reached, and the elements that the swarm
drew.

The runs are independent, so a process pool (`pool.py`) executes them and returns the results in any order. The summary does not depend on
the order of the results, because it consists of counts, the smallest seeds, and values computed from sorted lists. So the number of
processes affects only the elapsed time in the summary.

One seed in twenty, chosen by BLAKE2b(seed), is repeated in a new interpreter with a different PYTHONHASHSEED, as
FoundationDB does. Both runs of a seed must produce the same trace. If they differ, the sweep gets the verdict "broken", because the results
of a nondeterministic simulator cannot be trusted.

`CATALOGUE` lists the elements that a swarm may draw for a scenario. A sweep reports which elements occurred in its scenarios and which did
not. However, a drawn fault may have no effect, and a drawn limit may never be reached. Probes show what actually happened in a run.
"""

import csv
import io
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import msgspec

from snapline.protocols.names import PROTOCOLS
from snapline.sim.faults.fault_kinds import (
    FAILPOINTS,
    MOMENTS,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    HangFault,
    LossFault,
    MembershipFault,
    PartitionFault,
    ResetFault,
)
from snapline.sim.faults.faults import DESCRIPTIONS
from snapline.sim.result import EXIT_CODES, Result, Verdict
from snapline.sim.scenario import PATTERN_NAMES, FaultPart, Scenario
from snapline.sim.search.compare import Summary, summarise
from snapline.sim.search.pool import SEED_TIMEOUT_S, make_setup, other_hash_seed, run_tasks
from snapline.sim.search.replay import Divergence, Fingerprint, check_determinism, fingerprint_of
from snapline.sim.search.swarm import draw
from snapline.sim.search.worker import Runner, Task, error_kind
from snapline.sim.world.product_patches import LIMITS

# -- drawn elements -------------------------------------------------------------------------------------------------------

BEYOND_BUDGET = "disk: stale-read"
"""Fault that may be drawn, but is omitted from all scenarios whose faults stay within the budget."""

CATALOGUE: dict[str, tuple[str, ...]] = {
    "protocols": PROTOCOLS,
    "patterns": PATTERN_NAMES,
    "triggers": ("period", "messages", "adaptive", "none"),
    "bounds": (
        "log_bytes_max",
        "epoch_timeout",
        "payload",
        "few epochs kept",
        "many epochs kept",
        "retention",
        "snapshots by hand",
        "clients",
        "words about letters",
        "outputs",
        "watched outputs",
        "taken back",
        "taken back without inputs",
        "local recovery",
    ),
    "faults": tuple(word for _, word, _ in DESCRIPTIONS if word != BEYOND_BUDGET),
    "paths": ("delay of one pair", "delay one way", "loss of one pair", "loss one way", "uneven for good"),
    "moments": tuple(MOMENTS),
    "failpoints": FAILPOINTS,
    "limits": tuple(LIMITS),
}
"""Names of everything that a swarm can draw, by group."""

DrawnCounts = dict[str, dict[str, int]]
"""Number of runs in which each name occurred, by group and name."""


def empty_counts() -> DrawnCounts:
    """Return a count of zero for each entry of the catalogue."""
    return {group: dict.fromkeys(names, 0) for group, names in CATALOGUE.items()}


def count_drawn(drawn: DrawnCounts, scenario: Scenario) -> None:
    """Increment the count of each catalogue entry that occurs in a scenario."""
    parts = (*_of_fleet(scenario), *_of_faults(scenario.fault))
    for group, name in dict.fromkeys((group, name) for group, names in parts for name in names):
        counts = drawn.setdefault(group, {})
        counts[name] = counts.get(name, 0) + 1


def never_drawn(drawn: DrawnCounts) -> dict[str, list[str]]:
    """Return the catalogue entries that occurred in no run, by group. Omit groups in which every entry occurred."""
    missing = {group: [name for name, runs in counts.items() if not runs] for group, counts in drawn.items()}
    return {group: names for group, names in missing.items() if names}


def _of_fleet(scenario: Scenario) -> Iterator[tuple[str, list[str]]]:
    fleet = scenario.fleet
    yield "protocols", [fleet.protocol]
    yield "patterns", [fleet.module or fleet.pattern.name]
    yield "triggers", [fleet.trigger.kind]
    has = {
        "log_bytes_max": fleet.log_bytes_max > 0,
        "epoch_timeout": fleet.epoch_timeout != "",
        "payload": fleet.pattern.payload_bytes != type(fleet.pattern)().payload_bytes,
        "few epochs kept": scenario.run.keep_epochs <= 2,
        "many epochs kept": scenario.run.keep_epochs >= 10,
        "retention": scenario.run.retention != "",
        "snapshots by hand": scenario.run.snapshots_every != "",
        "clients": scenario.clients.count > 0,
        "words about letters": scenario.clients.is_settling,
        "outputs": scenario.outputs.one_in > 0,
        "watched outputs": scenario.outputs.is_watched,
        "agents moved": scenario.run.moves > 0,
        "taken back": scenario.restores.times > 0,
        "taken back without inputs": scenario.restores.times > 0 and scenario.restores.drops_one_in > 0,
        "local recovery": fleet.recovery == "local",
    }
    yield "bounds", [name for name, is_present in has.items() if is_present]
    yield "paths", ["uneven for good"] if scenario.network.paths else []
    yield "limits", list(scenario.limits)


def _of_faults(faults: Iterable[FaultPart]) -> Iterator[tuple[str, list[str]]]:
    for fault in faults:
        word = fault.word
        match word:
            case PartitionFault():
                yield "faults", [f"partition: {word.shape}"]
            case DiskFault():
                yield "faults", [f"disk: {word.mode}"]
            case HangFault():
                yield "faults", [f"hang: {word.what}"]
            case CoordinatorFault() | MembershipFault():
                yield "faults", [f"{fault.kind}: {word.kind}"]
            case HangFault():
                yield "faults", [f"hang: {word.what}"]
            case _:
                yield "faults", [fault.kind]
        if isinstance(word, DelayFault | LossFault) and word.between:
            yield "paths", [f"{fault.kind} {'one way' if word.direction == 'one-way' else 'of one pair'}"]
        if isinstance(word, CrashFault | ResetFault) and word.when:
            yield "moments", [word.when]
        if word.point in FAILPOINTS:
            yield "failpoints", [word.point]


# -- sweep ----------------------------------------------------------------------------------------------------------------

CHECKED_PER_MILLE = 50
"""Proportion of seeds that are run twice, per thousand."""

NARROWED_MAX = 3
"""Maximum number of divergences for which the first differing journal entry is determined. More would give no new information."""

SEEDS_KEPT = 10
"""Maximum number of seeds that are listed per finding. The smallest seeds are listed."""

VERDICTS: tuple[Verdict, ...] = ("pass", "violation", "undecided", "broken")


class SweepFinding(msgspec.Struct):
    """A problem that one or more seeds have: the oracle that reported a violation, or the reason why a run was undecided or broken.

    Attributes:
        oracle: oracle that reported the violation, "liveness", or the kind of error that broke the run.
        seeds: the smallest of the seeds with this finding.
        text: evidence from the smallest seed.
    """

    verdict: Verdict
    oracle: str
    guarantee: str
    count: int
    seeds: list[int]
    text: str


class SweepSummary(msgspec.Struct, kw_only=True):
    """Result of a sweep.

    Attributes:
        runs: number of completed runs, which is less than the number of seeds if the sweep was stopped early.
        verdicts: number of runs for each verdict.
        findings: all findings, ordered by severity of the verdict and then by number of seeds, worst first.
        probes: total number of hits of each probe in all runs.
        never_hit: names of the catalogue's probes that were hit in no run.
        drawn: number of runs in which each element of `CATALOGUE` occurred, by group and element name. The counts are empty if the template
            has no section `swarm`.
        never_drawn: names of the elements that occurred in no run, by group.
        metrics: summary of each metric over all runs that passed.
        checked: number of seeds that were run twice to check determinism.
        divergences: seeds whose two runs differed.
        elapsed_s: real time of the sweep, including the start of processes but not the determinism check.
    """

    name: str
    runs: int = 0
    verdicts: dict[str, int] = {}
    findings: list[SweepFinding] = []
    probes: dict[str, int] = {}
    never_hit: list[str] = []
    drawn: DrawnCounts = {}
    never_drawn: dict[str, list[str]] = {}
    metrics: dict[str, Summary] = {}
    events: int = 0
    messages: int = 0
    virtual_ns: int = 0
    checked: int = 0
    divergences: list[Divergence] = []
    is_stopped: bool = False
    elapsed_s: float = 0.0

    @property
    def seeds_per_s(self) -> float:
        return self.runs / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all runs. From worst to best, the verdicts are violation, broken, undecided and pass. A divergence between
        two runs counts as broken. Probes that were never hit do not affect the verdict."""
        if self.verdicts.get("violation"):
            return "violation"
        if self.verdicts.get("broken") or self.divergences:
            return "broken"
        return "undecided" if self.verdicts.get("undecided") else "pass"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


class MetricTable:
    """Metrics of many runs, in the order in which the runs were completed. Each metric is a column with eight bytes per value. Missing
    values are NaN."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.verdicts: list[Verdict] = []
        self._columns: dict[str, array[float]] = {}

    def add(self, result: Result) -> None:
        for name in result.metrics:
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * len(self.seeds)
        for name, column in self._columns.items():
            column.append(result.metrics.get(name, math.nan))
        self.seeds.append(result.seed)
        self.verdicts.append(result.verdict)

    def summaries(self) -> dict[str, Summary]:
        """Return a summary of each metric over all runs that passed. Metrics of runs that did not pass are not comparable."""
        passed = [verdict == "pass" for verdict in self.verdicts]
        summaries: dict[str, Summary] = {}
        for name in sorted(self._columns):
            pairs = zip(self._columns[name], passed, strict=True)
            values = [value for value, is_passed in pairs if is_passed and not math.isnan(value)]
            if values:
                summaries[name] = summarise(values)
        return summaries

    def to_csv(self) -> str:
        """Return the metrics as CSV, with one line per run, sorted by seed. Missing values are empty."""
        names = sorted(self._columns)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["seed", "verdict", *names])
        for index in sorted(range(len(self.seeds)), key=self.seeds.__getitem__):
            values = [self._columns[name][index] for name in names]
            shown = ["" if math.isnan(value) else repr(value).removesuffix(".0") for value in values]
            writer.writerow([self.seeds[index], self.verdicts[index], *shown])
        return text.getvalue()


class Collector:
    """Collects the results of runs, in any order."""

    def __init__(self, name: str, *, catalogue: Iterable[str], template: Scenario | None = None) -> None:
        """`template` is the template of all runs. If the template has a section `swarm`, the drawn elements are counted."""
        self._template = template if template is not None and template.swarm is not None else None
        self.table = MetricTable()
        self.fingerprints: dict[int, Fingerprint] = {}
        self._summary = SweepSummary(name=name, verdicts=dict.fromkeys(VERDICTS, 0))
        if self._template is not None:
            self._summary.drawn = empty_counts()
        self._findings: dict[tuple[str, str, str], SweepFinding] = {}
        self._catalogue = list(catalogue)

    @property
    def runs(self) -> int:
        """Number of runs completed so far."""
        return self._summary.runs

    @property
    def failures(self) -> int:
        """Number of runs so far that were broken or ended with a violation."""
        return self._summary.verdicts["violation"] + self._summary.verdicts["broken"]

    def add(self, result: Result) -> None:
        """Add the result of one run."""
        summary = self._summary
        summary.runs += 1
        summary.verdicts[result.verdict] += 1
        summary.events += result.events
        summary.messages += result.messages
        summary.virtual_ns += result.virtual_ns
        for name, hits in result.probes.items():
            summary.probes[name] = summary.probes.get(name, 0) + hits
        self.table.add(result)
        if self._template is not None:
            count_drawn(summary.drawn, draw(self._template, result.seed))
        if is_checked(result.seed) and result.trace_hash:  # a run without a trace hash did not finish
            self.fingerprints[result.seed] = fingerprint_of(result)
        for finding in findings_of(result):
            self._merge(finding)

    def _merge(self, new: SweepFinding) -> None:
        key = (new.verdict, new.oracle, new.guarantee)
        old = self._findings.setdefault(key, new)
        if old is new:
            return
        if new.seeds[0] < old.seeds[0]:
            old.text = new.text
        old.count += new.count
        old.seeds = sorted({*old.seeds, *new.seeds})[:SEEDS_KEPT]

    def summary(self, *, elapsed_s: float, is_stopped: bool = False) -> SweepSummary:
        """Return the summary of the results so far."""
        summary = self._summary
        summary.elapsed_s, summary.is_stopped = elapsed_s, is_stopped
        order = {verdict: rank for rank, verdict in enumerate(("violation", "broken", "undecided"))}
        findings = self._findings.values()
        summary.findings = sorted(findings, key=lambda one: (order[one.verdict], -one.count, one.seeds[0], one.oracle))
        summary.probes = dict(sorted(summary.probes.items()))
        summary.never_hit = [name for name in self._catalogue if not summary.probes.get(name)]
        summary.never_drawn = never_drawn(summary.drawn)
        summary.metrics = self.table.summaries()
        return summary


def findings_of(result: Result) -> list[SweepFinding]:
    """Return the findings in a result: one finding for each oracle that reported a violation, or a single finding if the run was undecided
    or broken."""
    seed = result.seed
    match result.verdict:
        case "pass":
            return []
        case "violation":
            first = {violation.oracle: violation for violation in reversed(result.violations)}
            return [SweepFinding("violation", v.oracle, v.guarantee, 1, [seed], v.text) for v in first.values()]
        case "undecided":
            text = "; ".join(result.pending)
            return [SweepFinding("undecided", "liveness", "G10", 1, [seed], text)]
        case "broken":
            return [SweepFinding("broken", error_kind(result.error), "", 1, [seed], result.error)]


def is_checked(seed: int) -> bool:
    """Return whether a sweep runs this seed twice to check determinism."""
    digest = blake2b(f"determinism/{seed}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 1000 < CHECKED_PER_MILLE


def sweep(
    template: Scenario,
    seeds: Sequence[int],
    *,
    jobs: int,
    runner: Runner | None = None,
    on_result: Callable[[Result], None] | None = None,
    stop_after: int | None = None,
    is_determinism_checked: bool = True,
    seed_timeout_s: float = SEED_TIMEOUT_S,
    catalogue: Iterable[str] = (),
    metrics_csv: Path | None = None,
) -> SweepSummary:
    """Run the scenario `draw(template, seed)` for each seed.

    When Ctrl-C stops the sweep, the summary of the results so far is returned, with `is_stopped` set.

    Args:
        seeds: seeds to run. No seed may occur twice.
        jobs: number of worker processes. With 0 jobs, everything runs in this process.
        runner: module-level function that runs a seed. Other processes must be able to import the runner. None means
            `snapline.sim.run.run`.
        on_result: function that is called with each result, in the order of completion.
        stop_after: the sweep stops after this number of runs that were broken or ended with a violation.
        catalogue: names of probes that the sweep should hit.
        metrics_csv: file to which each seed's metrics are written.

    Raises:
        UsageError: If other processes cannot import the runner, or if `jobs` is out of range.
    """
    setup = make_setup([template], runner=runner, seed_timeout_s=seed_timeout_s)
    collector = Collector(template.name, catalogue=catalogue, template=template)
    started_s = time.monotonic()
    is_stopped = False
    try:
        with closing(run_tasks(setup, [Task(seed) for seed in seeds], jobs=jobs)) as answers:
            for _, result in answers:
                collector.add(result)
                if on_result is not None:
                    on_result(result)
                if stop_after is not None and collector.failures >= stop_after:
                    is_stopped = collector.runs < len(seeds)
                    break
    except KeyboardInterrupt:
        is_stopped = True
        is_determinism_checked = False
    summary = collector.summary(elapsed_s=time.monotonic() - started_s, is_stopped=is_stopped)
    if is_determinism_checked:
        check_determinism_of_sweep(
            template, collector, summary, jobs=jobs, runner=runner, seed_timeout_s=seed_timeout_s
        )
    if metrics_csv is not None:
        metrics_csv.write_text(collector.table.to_csv())
    return summary


def check_determinism_of_sweep(
    template: Scenario,
    collector: Collector,
    summary: SweepSummary,
    *,
    jobs: int,
    runner: Runner | None,
    seed_timeout_s: float = SEED_TIMEOUT_S,
) -> None:
    """Repeat the runs selected for the determinism check, in new interpreters with a different hash seed. Record each seed whose second run
    differs from the first."""
    first = collector.fingerprints
    setup = make_setup([template], runner=runner, seed_timeout_s=seed_timeout_s)
    differing: list[Divergence] = []
    tasks = [Task(seed) for seed in sorted(first)]
    with closing(run_tasks(setup, tasks, jobs=max(jobs, 1), hash_seed=other_hash_seed())) as answers:
        for task, result in answers:
            second = fingerprint_of(result)
            if result.trace_hash and second != first[task.seed]:
                differing.append(Divergence.of(task.seed, first[task.seed], second))
    differing.sort(key=lambda one: one.seed)
    summary.checked = len(first)
    summary.divergences = [
        _located(template, one, runner) if rank < NARROWED_MAX else one for rank, one in enumerate(differing)
    ]


def _located(template: Scenario, found: Divergence, runner: Runner | None) -> Divergence:
    narrowed = check_determinism(draw(template, found.seed), found.seed, runner=runner)
    if narrowed is not None:
        return narrowed
    found.note = "alone, both runs agree, so state is left over from earlier runs: look for global state"
    return found

"""Sweeps over toy runners: nothing is lost, whatever a run does, and the order of answers does not matter."""

import csv
import io
import os
import signal
import threading
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.sim import toys

from snapline.errors import UsageError
from snapline.sim.choices import Choices
from snapline.sim.result import Result
from snapline.sim.scenario import FleetPart, PatternPart, Scenario
from snapline.sim.search import pool
from snapline.sim.search.pool import make_setup, other_hash_seed, run_tasks
from snapline.sim.search.replay import check_determinism, piece_of
from snapline.sim.search.sweep import Collector, MetricTable, SweepSummary, is_checked, sweep
from snapline.sim.search.worker import Runner, Task, Worker, load_runner, name_of


def scenario(*, messages: int = 20) -> Scenario:
    return Scenario(name="toy", fleet=FleetPart(pattern=PatternPart(messages=messages)))


def without_time(summary: SweepSummary) -> SweepSummary:
    summary.elapsed_s = 0.0
    return summary


def seen(seeds: range, runner: Runner, *, jobs: int = 2, timeout_s: float = 60.0) -> dict[int, Result]:
    """Results by seed; each exactly once."""
    found: dict[int, Result] = {}

    def take(result: Result) -> None:
        assert result.seed not in found
        found[result.seed] = result

    sweep(
        scenario(),
        seeds,
        jobs=jobs,
        runner=runner,
        on_result=take,
        is_determinism_checked=False,
        seed_timeout_s=timeout_s,
    )
    return found


# -- the same summary ---------------------------------------------------------------------------------------------------


def test_two_processes_and_none_give_the_same_summary(tmp_path: Path) -> None:
    summaries, tables = [], []
    for jobs in (0, 2):
        path = tmp_path / f"{jobs}.csv"
        summary = sweep(scenario(), range(120), jobs=jobs, runner=toys.many_verdicts, metrics_csv=path)
        summaries.append(without_time(summary))
        tables.append(path.read_text())
    assert summaries[0] == summaries[1]
    assert tables[0] == tables[1]
    assert summaries[0].checked > 0 and not summaries[0].divergences


def test_the_summary_does_not_depend_on_the_order_of_results() -> None:
    results = [toys.many_verdicts(scenario(), seed) for seed in range(200)]
    expected = collect(results)
    for shuffle in range(5):
        Random(shuffle).shuffle(results)
        assert collect(results) == expected


def collect(results: list[Result]) -> SweepSummary:
    collector = Collector("toy", catalogue=["late", "very late", "never"])
    for result in results:
        collector.add(result)
    return collector.summary(elapsed_s=1.0)


def test_the_summary_says_what_was_found() -> None:
    summary = collect([toys.many_verdicts(scenario(), seed) for seed in range(1, 201)])
    undecided = [seed for seed in range(1, 201) if seed % 10 == 0]
    broken = [seed for seed in range(1, 201) if seed % 11 == 0 and seed % 10]
    wrong = [seed for seed in range(1, 201) if seed % 7 == 0 and seed % 10 and seed % 11]
    assert summary.verdicts["undecided"] == len(undecided)
    assert summary.verdicts["broken"] == len(broken)
    assert summary.verdicts["violation"] == len(wrong)
    assert summary.verdicts["pass"] == 200 - len(undecided) - len(broken) - len(wrong)
    orphans = [seed for seed in wrong if seed % 2]
    found = {finding.oracle: finding for finding in summary.findings}
    assert found["orphan"].seeds == orphans[:10] and found["orphan"].count == len(orphans)
    assert found["orphan"].text == f"evidence of {orphans[0]}"
    assert found["KeyError"].count == len(broken)
    assert [finding.verdict for finding in summary.findings] == ["violation"] * 2 + ["broken", "undecided"]
    assert summary.probes["rare"] == 15
    assert summary.never_hit == ["very late", "never"]
    assert (summary.verdict, summary.exit_code) == ("violation", 6)


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        ({"pass": 3}, "pass", 0),
        ({"pass": 3, "undecided": 1}, "undecided", 3),
        ({"undecided": 1, "broken": 1}, "broken", 1),
        ({"broken": 1, "violation": 1}, "violation", 6),
    ],
)
def test_the_worst_run_decides_the_exit_code(verdicts: dict[str, int], verdict: str, code: int) -> None:
    summary = SweepSummary(name="toy", verdicts=verdicts)
    assert (summary.verdict, summary.exit_code) == (verdict, code)


def test_metrics_are_of_the_runs_that_passed_and_all_are_in_the_table() -> None:
    table = MetricTable()
    results = [toys.many_verdicts(scenario(), seed) for seed in range(39, 0, -1)]
    for result in results:
        table.add(result)
    passed = [result.metrics["finish_s"] for result in results if result.verdict == "pass"]
    assert table.summaries()["finish_s"].count == len(passed)
    assert table.summaries()["finish_s"].max == max(passed)
    assert table.summaries()["rare_s"].count == len([13, 26, 39])
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["seed"] for row in rows] == [str(seed) for seed in range(1, 40)]
    assert rows[12]["rare_s"] == "1.3" and rows[11]["rare_s"] == ""
    assert rows[0]["messages"] == "20" and rows[9]["verdict"] == "undecided"


# -- runs that go wrong -------------------------------------------------------------------------------------------------


def test_a_run_that_raises_or_ends_its_process_is_broken_and_no_other() -> None:
    found = seen(range(40), toys.dying)
    assert sorted(found) == list(range(40))
    assert [seed for seed in sorted(found) if found[seed].verdict == "broken"] == [3, 7, 20]
    assert "exit code 9" in found[7].error and "SIGKILL" in found[20].error
    assert found[3].error == seen(range(3, 5), toys.dying, jobs=0)[3].error == "ZeroDivisionError: three"
    assert found[7].name == "toy"
    assert msgspec.structs.replace(found[8], cpu_s=0.0) == as_result(toys.toy(scenario(), 8))


def as_result(result: Result) -> Result:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Result)


def test_a_run_that_never_ends_is_ended_and_says_where_it_was() -> None:
    found = seen(range(12), toys.endless, timeout_s=0.5)
    assert sorted(found) == list(range(12))
    assert [seed for seed in sorted(found) if found[seed].verdict == "broken"] == [5]
    assert "toys.py" in found[5].error and "0.5 s" in found[5].error


def test_a_run_that_hears_no_alarm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.2)
    found = seen(range(12), toys.deaf, timeout_s=0.3)
    assert sorted(found) == list(range(12))
    assert [seed for seed in sorted(found) if found[seed].verdict == "broken"] == [5]
    assert "did not answer" in found[5].error


def test_a_sweep_ends_after_so_many_failures() -> None:
    summary = sweep(scenario(), range(10_000), jobs=1, runner=toys.many_verdicts, stop_after=3)
    assert summary.verdicts["violation"] + summary.verdicts["broken"] == 3
    assert summary.runs < 30 and summary.is_stopped


def test_ctrl_c_ends_a_sweep_at_once_and_keeps_what_there_is() -> None:
    """A run that sleeps must not hold it up."""
    came: list[int] = []

    def press(result: Result) -> None:
        came.append(result.seed)
        if len(came) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    summary = sweep(scenario(), range(3, 5000), jobs=2, runner=toys.deaf, on_result=press, seed_timeout_s=60.0)
    assert summary.is_stopped and 3 <= summary.runs <= 4 and not children()


def test_workers_end_with_their_pool() -> None:
    answers = run_tasks(make_setup([scenario()], runner=toys.deaf), [Task(5), Task(1)], jobs=2)
    next(answers)
    before = children()
    answers.close()
    assert before and not children() & before


def children() -> set[str]:
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(path.read_text().split())


# -- runners by name ----------------------------------------------------------------------------------------------------


def test_workers_collect_no_garbage_within_a_run() -> None:
    found = seen(range(3), toys.telling_collection, jobs=1)
    assert {result.metrics["is_collecting"] for result in found.values()} == {0.0}


def test_a_runner_that_is_no_function_of_a_module_is_refused() -> None:
    def local(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
        return toys.toy(scenario, seed)

    with pytest.raises(UsageError, match="as a function of a module"):
        sweep(scenario(), [1], jobs=1, runner=local)


def test_a_runner_is_found_by_its_file_if_its_module_is_not_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(Path(toys.__file__).read_text())
    name = msgspec.structs.replace(name_of(toys.toy), module="elsewhere", file=str(tmp_path / "elsewhere.py"))
    setup = msgspec.structs.replace(make_setup([scenario()]), runner=name)
    answers = list(run_tasks(setup, [Task(1)], jobs=1))
    assert answers[0][1].trace_hash == toys.toy(scenario(), 1).trace_hash
    assert load_runner(name)(scenario(), 1).trace_hash == toys.toy(scenario(), 1).trace_hash


def test_workers_that_cannot_load_the_runner_say_so() -> None:
    setup = make_setup([scenario()], runner=toys.toy)
    gone = msgspec.structs.replace(setup, runner=msgspec.structs.replace(setup.runner, name="gone"))
    with pytest.raises(UsageError, match="gone"):
        list(run_tasks(gone, [Task(1)], jobs=1))


def test_other_numbers_of_jobs_are_refused() -> None:
    with pytest.raises(UsageError, match="jobs is -1"):
        sweep(scenario(), [1], jobs=-1, runner=toys.toy)


# -- determinism --------------------------------------------------------------------------------------------------------


def test_a_twentieth_of_the_seeds_is_checked() -> None:
    chosen = sum(is_checked(seed) for seed in range(20_000))
    assert 900 < chosen < 1100


def test_the_first_entry_that_depends_on_the_hash_seed_is_found() -> None:
    found = check_determinism(scenario(messages=2500), 1, runner=toys.hashing)
    assert found is not None
    assert found.differing == ["trace_hash"]
    assert (found.window, found.entry) == ((1000, 2000), 1500)
    assert found.before == ["entry 1497", "entry 1498", "entry 1499"]
    assert found.here.startswith("entry 1500 ") and found.there.startswith("entry 1500 ")
    assert found.here != found.there
    assert "entry 1500 of the journal" in found.text


def test_a_runner_without_a_journal_is_narrowed_to_a_thousand_entries() -> None:
    found = check_determinism(scenario(messages=2500), 1, runner=toys.hashing_unseen)
    assert found is not None
    assert (found.window, found.entry) == ((1000, 2000), None)
    assert "between the entries 1000 and 2000" in found.text


def test_a_sweep_finds_what_depends_on_the_hash_seed() -> None:
    checked = next(seed for seed in range(60) if is_checked(seed))
    summary = sweep(scenario(messages=1600), range(checked - 1, checked + 2), jobs=1, runner=toys.hashing)
    assert [(one.seed, one.entry) for one in summary.divergences] == [(checked, 1500)]
    assert summary.verdict == "broken"


def test_a_sweep_finds_what_is_left_over_from_run_to_run() -> None:
    summary = sweep(scenario(), range(60), jobs=1, runner=toys.manifests_cached)
    assert summary.checked == len([seed for seed in range(60) if is_checked(seed)])
    assert summary.divergences


@pytest.mark.parametrize(
    ("first", "second", "piece"),
    [([], [], 0), (["a", "b"], ["a", "b"], 2), (["a", "b"], ["a", "c"], 1), (["a", "b", "c"], ["a"], 1)],
)
def test_way_points_tell_the_piece(first: list[str], second: list[str], piece: int) -> None:
    assert piece_of(first, second) == piece


@pytest.mark.parametrize("given", ["", "random", "0", "20260131"])
def test_the_second_run_has_another_hash_seed(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", given)
    assert other_hash_seed() != pool.current_hash_seed()


def test_a_worker_answers_what_it_is_asked() -> None:
    worker = Worker(make_setup([scenario(), scenario(messages=1600)], runner=toys.hashing))
    assert worker.perform(Task(1)).messages == 20
    result = worker.perform(Task(1, template=1, window_at=1))
    assert result.messages == 1600 and len(result.journal) == 600 and result.journal[0] == "entry 1000"

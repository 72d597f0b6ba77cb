"""Shrinking: what comes out still fails with the same oracle, and nothing can be left out of it."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim import toys

from snapline.errors import SnaplineError, UsageError
from snapline.sim.choices import Choices, RandomChoices, Record, RecordedChoices
from snapline.sim.faults.fault_kinds import CrashFault, PauseFault
from snapline.sim.report.run_folder import read_choices
from snapline.sim.result import Result, Verdict, Violation
from snapline.sim.scenario import FaultPart, FleetPart, PatternPart, Scenario, TriggerPart, parse_scenario
from snapline.sim.search.shrink import (
    ShrinkStep,
    Shrunk,
    ddmin,
    doubling_steps,
    lowest,
    render,
    renumbered,
    shrink,
    signature_of,
)

# -- delta debugging ----------------------------------------------------------------------------------------------------

Test = Callable[[list[int]], bool]


def needing(culprits: set[int]) -> Test:
    return lambda kept: culprits <= set(kept)


def run_ddmin(items: list[int], fails: Test) -> tuple[list[int], int]:
    """The minimum, and how many tests it took."""
    tests = 0

    def needed(kept: list[int]) -> list[int] | None:
        nonlocal tests
        tests += 1
        assert kept == [item for item in items if item in set(kept)], "order is kept, nothing comes twice"
        return kept if fails(kept) else None

    return ddmin(items, needed), tests


@given(st.integers(0, 60), st.sets(st.integers(0, 59), max_size=6))
def test_a_bug_that_needs_some_items_keeps_exactly_those(length: int, culprits: set[int]) -> None:
    culprits = {culprit for culprit in culprits if culprit < length}
    found, _ = run_ddmin(list(range(length)), needing(culprits))
    assert found == sorted(culprits)


@given(st.integers(1, 16), st.integers(0, 2**32))
def test_any_bug_leaves_a_one_minimal_list(length: int, seed: int) -> None:
    """Also one that has no reason at all: whether a set fails is drawn."""

    def fails(kept: list[int]) -> bool:
        return len(kept) == length or Random(f"{seed}/{sorted(kept)}").random() < 0.3

    found, tests = run_ddmin(list(range(length)), fails)
    assert fails(found)
    assert not any(fails([item for item in found if item != left_out]) for left_out in found)
    assert tests <= length**2 + 3 * length + 1


@pytest.mark.parametrize("length", [100, 1000])
def test_one_culprit_costs_a_logarithm(length: int) -> None:
    for culprit in (0, length // 3, length - 1):
        found, tests = run_ddmin(list(range(length)), needing({culprit}))
        assert found == [culprit] and tests <= 2 * math.log2(length) + 3


def test_items_that_were_never_looked_at_are_left_out_at_once() -> None:
    def needed(kept: list[int]) -> list[int] | None:
        tried.append(len(kept))
        return [item for item in kept if item in (3, 900)] if {3, 900} <= set(kept) else None

    tried: list[int] = []
    assert ddmin(list(range(1000)), needed) == [3, 900]
    assert len(tried) < 12


@given(st.integers(0, 10), st.integers(0, 10_000))
def test_growing_values_are_few_and_below(least: int, value: int) -> None:
    values = list(doubling_steps(least, value))
    assert values == sorted(set(values)) and all(least <= one < value for one in values)
    assert len(values) <= 2 + math.log2(max(value, 2))
    assert not values or values[0] == least


# -- shrinking a run ----------------------------------------------------------------------------------------------------


def failing(*, crashes: int = 1, pauses: int = 3, messages: int = 120) -> tuple[Scenario, int, Result]:
    """A run of the toy that fails, with faults that have nothing to do with it."""
    faults = [FaultPart(pause=PauseFault(at="1s", lasts="2s"))] * pauses
    faults[1:1] = [FaultPart(crash=CrashFault(at="3s"))] * crashes
    fleet = FleetPart(agents=6, hosts=3, coordinators=3, pattern=PatternPart(messages=messages))
    scenario = Scenario(name="Toy: late", fleet=fleet, fault=faults)
    for seed in range(100):
        result = toys.toy(scenario, seed)
        if result.verdict == "violation":
            return scenario, seed, result
    raise AssertionError("no seed fails")


def test_the_smallest_failing_run_of_the_toy_is_found() -> None:
    scenario, seed, result = failing(crashes=2)
    shrunk = shrink(scenario, seed, result, runner=toys.toy)
    assert shrunk.result.violations[0].oracle == "overtaken"
    assert [fault.kind for fault in shrunk.scenario.fault] == ["crash"]
    fleet = shrunk.scenario.fleet
    assert (fleet.agents, fleet.hosts, fleet.coordinators, fleet.pattern.messages) == (2, 1, 1, 4)
    assert len(shrunk.record) == 2 and set(shrunk.record.values()) == {toys.LATE}
    assert (shrunk.size.choices, shrunk.size.faults, shrunk.size.messages) == (2, 1, 4)
    assert shrunk.scenario.network.delay.jitter == "0s"
    assert shrunk.before.choices >= 10


def test_what_comes_out_fails_again_from_its_text() -> None:
    shrunk = shrink(*failing(), runner=toys.toy)
    again = toys.toy(shrunk.scenario, shrunk.seed, choices=RecordedChoices(shrunk.record))
    assert again.trace_hash == shrunk.result.trace_hash
    assert signature_of(again) == shrunk.signature == "violation overtaken"


def test_shrinking_repeats_itself() -> None:
    first, second = (shrink(*failing(), runner=toys.toy) for _ in range(2))
    first.seconds = second.seconds = 0.0
    assert first == second


def test_the_oracle_stays_the_same() -> None:
    """With fewer messages the toy of this test fails by another oracle, which is another bug."""

    def two_bugs(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
        result: Result = toys.toy(scenario, seed, choices=choices)
        count = scenario.fleet.pattern.messages
        oracle = "large" if count >= 50 else "small"
        result.verdict, result.violations = "violation", [Violation(oracle, "G1", 0, str(count))]
        return result

    scenario, seed, _ = failing()
    shrunk = shrink(scenario, seed, two_bugs(scenario, seed), runner=two_bugs)
    assert shrunk.result.violations[0].oracle == "large"
    assert 50 <= shrunk.scenario.fleet.pattern.messages <= 57
    assert shrunk.record == {} and shrunk.scenario.fault == []


def test_undecided_and_broken_runs_can_be_made_small_too() -> None:
    def stuck(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
        result: Result = toys.toy(scenario, seed, choices=choices)
        result.verdict, result.violations = "pass", []
        if scenario.fleet.agents >= 3:
            result.verdict, result.pending = "undecided", ["epoch 1"]
        if scenario.fleet.hosts >= 2:
            result.verdict, result.error = "broken", f"KeyError: {seed}"
        return result

    scenario, seed, _ = failing()
    shrunk = shrink(scenario, seed, stuck(scenario, seed), runner=stuck)
    assert (shrunk.signature, shrunk.scenario.fleet.hosts, shrunk.scenario.fleet.agents) == ("broken KeyError", 2, 1)
    one_host = msgspec.structs.replace(scenario, fleet=msgspec.structs.replace(scenario.fleet, hosts=1))
    shrunk = shrink(one_host, seed, stuck(one_host, seed), runner=stuck)
    assert (shrunk.signature, shrunk.scenario.fleet.agents) == ("undecided", 3)


def test_no_time_gives_the_run_as_it_was() -> None:
    scenario, seed, result = failing()
    shrunk = shrink(scenario, seed, result, runner=toys.toy, time_limit_s=0.0)
    assert shrunk.scenario == scenario and shrunk.seed == seed
    assert shrunk.result.trace_hash == result.trace_hash
    assert shrunk.size == shrunk.before and shrunk.tries == 2


def test_progress_tells_of_every_kept_step() -> None:
    steps: list[ShrinkStep] = []
    shrunk = shrink(*failing(), runner=toys.toy, on_progress=steps.append)
    assert steps[-1].size == shrunk.size
    totals = [step.tries for step in steps]
    assert totals == sorted(totals) and totals[-1] <= shrunk.tries
    assert {step.text for step in shrunk.steps} >= {"faults left out", "agents", "messages"}


def test_a_run_that_passes_is_refused() -> None:
    scenario, seed, result = failing()
    result.verdict, result.violations = "pass", []
    with pytest.raises(UsageError, match="nothing to shrink"):
        shrink(scenario, seed, result, runner=toys.toy)


def test_a_run_that_does_not_fail_again_is_refused() -> None:
    scenario, seed, result = failing()
    with pytest.raises(UsageError, match="check its determinism"):
        shrink(scenario, seed, result, runner=toys.flagged_pass)


def test_a_run_that_fails_only_once_is_never_returned() -> None:
    scenario, seed, result = failing()
    result.violations = [Violation("once", "G1", 0, "only once")]
    toys.forget()
    with pytest.raises(SnaplineError, match="only sometimes"):
        shrink(scenario, seed, result, runner=toys.sometimes)


def test_few_messages_are_reached_where_checkpoints_and_faults_must_come_as_early() -> None:
    """The bug needs three checkpoints and a crash while messages flow; fewer alone would be over before."""

    def paced(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
        messages, every_ms = scenario.fleet.pattern.messages, scenario.fleet.trigger.every_ns // 10**6
        crash_ms = scenario.fault[0].word.at_ns // 10**6 if scenario.fault else 10**9
        is_wrong = 3 * every_ms < messages and 2 * every_ms <= crash_ms < messages
        violations = [Violation("paced", "G1", 0, "wrong")] if is_wrong else []
        verdict: Verdict = "violation" if is_wrong else "pass"
        return Result(name="paced", seed=seed, verdict=verdict, violations=violations, messages=messages)

    fleet = FleetPart(pattern=PatternPart(messages=4000), trigger=TriggerPart(every="1s"))
    scenario = Scenario(name="paced", fleet=fleet, fault=[FaultPart(crash=CrashFault(at="3s"))])
    shrunk = shrink(scenario, 1, paced(scenario, 1), runner=paced)
    assert shrunk.scenario.fleet.pattern.messages <= 40


def test_choices_of_faults_move_with_them() -> None:
    record: Record = {("fault", (0, "host")): 1, ("fault", (2, "host")): 2, ("net", (0, 1)): 3, ("fault", ("x",)): 4}
    assert renumbered(record, [2]) == {("fault", (0, "host")): 2, ("net", (0, 1)): 3, ("fault", ("x",)): 4}
    assert renumbered(record, [0, 1, 2]) == record


def test_leaving_out_one_fault_keeps_the_draws_of_the_others() -> None:
    """The bug needs the host that the last fault drew; without renumbering it would be lost."""

    def drawn(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
        choices = choices or RandomChoices(seed)
        hosts = [choices.pick("fault", (index, "host"), 50) for index in range(len(scenario.fault))]
        is_hit = any(host == 41 for host, part in zip(hosts, scenario.fault, strict=True) if part.crash)
        violations = [Violation("hit", "G1", 0, "host 41 crashed")] if is_hit else []
        verdict: Verdict = "violation" if is_hit else "pass"
        return Result(name="drawn", seed=seed, verdict=verdict, violations=violations)

    faults = [FaultPart(pause=PauseFault())] * 4 + [FaultPart(crash=CrashFault())]
    scenario = Scenario(name="drawn", fault=faults)
    seed = next(seed for seed in range(1000) if drawn(scenario, seed).verdict == "violation")
    shrunk = shrink(scenario, seed, drawn(scenario, seed), runner=drawn)
    assert [fault.kind for fault in shrunk.scenario.fault] == ["crash"]
    assert shrunk.record == {("fault", (0, "host")): 41}


# -- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fineness", [1, 8, 2**62])
def test_the_lowest_value_that_works_is_found(fineness: int) -> None:
    for bound in range(1, 130):
        found = [130]

        def works(value: int, bound: int = bound, found: list[int] = found) -> bool:
            assert 1 <= value < found[-1]
            found.extend([value] if value >= bound else [])
            return value >= bound

        lowest(130, 1, works, fineness)
        assert bound <= found[-1] <= (bound if fineness > 130 else 2 * bound)


def rendered() -> tuple[Shrunk, dict[str, str]]:
    shrunk = shrink(*failing(), runner=toys.toy)
    return shrunk, render(shrunk, journal=["entry 1", "entry 2"])


def test_the_files_hold_what_is_needed_to_run_it_again(tmp_path: Path) -> None:
    shrunk, files = rendered()
    stem = f"toy_late_seed_{shrunk.seed}"
    assert set(files) == {f"{stem.replace('_', '-')}.toml", "choices.json", f"test_{stem}.py", "steps.txt"}
    assert parse_scenario(files[f"{stem.replace('_', '-')}.toml"], source="file") == shrunk.scenario
    path = tmp_path / "choices.json"
    path.write_text(files["choices.json"])
    assert read_choices(path) == shrunk.record


def test_the_written_test_fails_while_the_bug_is_there_and_passes_without_it(tmp_path: Path) -> None:
    shrunk, files = rendered()
    code = files[f"test_toy_late_seed_{shrunk.seed}.py"]
    with pytest.raises(AssertionError, match="too late"):
        called(tmp_path, code, "toy")
    called(tmp_path, code, "flagged_pass")


def called(folder: Path, code: str, toy: str) -> None:
    """Run the written test with a toy instead of the world."""
    path = folder / f"test_{toy}.py"
    path.write_text(code.replace("from snapline.sim.run import run", f"from tests.sim.toys import {toy} as run"))
    names = runpy.run_path(str(path))
    next(value for name, value in names.items() if name.startswith("test_"))()


def test_the_story_tells_steps_faults_choices_and_journal() -> None:
    shrunk, files = rendered()
    text = files["steps.txt"]
    assert "2 choices, 1 faults, 4 messages" in text
    assert "choice net a b 0 = 7" in text and "choice net a b 3 = 7" in text
    assert "G2 overtaken: message 3 came too late" in text
    assert text.endswith("  entry 1\n  entry 2\n")
    assert str(shrunk.tries) in text

"""Comparisons over a toy whose costs are known, so that tables, differences and advice can be checked by arithmetic."""

import math
import re
from functools import cache
from random import Random
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim import toys

from snapline.errors import UsageError
from snapline.protocols.policy import daly
from snapline.sim.result import ExecutedFault, Result
from snapline.sim.scenario import FleetPart, PatternPart, RunPart, Scenario, format_scenario, parse_scenario
from snapline.sim.search.compare import (
    Comparison,
    Setting,
    Summary,
    compare,
    difference_of,
    failures,
    scenario_of,
    values_of,
    work_s,
)
from snapline.sim.search.compare_report import advice_text, figure, recommend, table, ticks
from snapline.sim.search.swarm import STANDARD

TEMPLATE = Scenario(name="bank", fleet=FleetPart(pattern=PatternPart(messages=100)), run=RunPart(until="20s"))


@cache
def compared(
    *protocols: str,
    intervals: tuple[str, ...] = ("250ms", "500ms", "1s", "2s", "4s"),
    rates: tuple[float, ...] = (0.0, 0.5),
    seeds: int = 20,
) -> Comparison:
    return compare(
        TEMPLATE,
        protocols=protocols or ("chandy-lamport", "uncoordinated"),
        intervals=intervals,
        failure_rates_per_s=rates,
        seeds=range(seeds),
        jobs=0,
        runner=toys.priced,
    )


# -- cells --------------------------------------------------------------------------------------------------------------


def test_one_process_and_two_give_the_same_comparison() -> None:
    here = compare(TEMPLATE, protocols=["bcs", "hmnr"], seeds=range(4), jobs=0, runner=toys.priced)
    there = compare(TEMPLATE, protocols=["bcs", "hmnr"], seeds=range(4), jobs=2, runner=toys.priced)
    assert here.to_json() == there.to_json()


def test_every_cell_has_its_price() -> None:
    """The toy's price per second of work is that of one checkpoint divided by the interval."""
    for cell in compared(rates=(0.0,)).cells:
        price = toys.PRICES_S[cell.setting.protocol] / cell.setting.interval_s
        assert cell.metrics["overhead"].mean == pytest.approx(price, rel=0.2)
        assert cell.passed == 20 and not cell.failed


def test_a_failure_costs_what_the_toy_says() -> None:
    for cell in compared(rates=(0.0, 0.5)).cells:
        if cell.setting.failure_rate_per_s:
            expected = toys.loss_s(cell.setting.protocol, cell.setting.interval_s)
            assert cell.metrics["loss_s"].mean == pytest.approx(expected, rel=0.02)


def test_all_cells_run_the_same_seeds_with_the_same_failures() -> None:
    one = scenario_of(STANDARD, Setting("bcs", "ring", 0.5, 2.0), 7)
    other = scenario_of(STANDARD, Setting("hmnr", "ring", 2.0, 2.0), 7)
    assert one.fault == other.fault and one.fleet.agents == other.fleet.agents and one.network == other.network
    assert (one.fleet.protocol, one.fleet.trigger.every, other.fleet.trigger.every) == ("bcs", "500ms", "2s")
    assert scenario_of(STANDARD, Setting("bcs", "ring", 0.5, 2.0), 8).fault != one.fault
    assert parse_scenario(format_scenario(one), source="one") == one
    bare = scenario_of(STANDARD, Setting("chandy-lamport", "ring", 0.0, 0.0), 7)
    assert bare.fleet.trigger.kind == "none" and not bare.fault


def test_failures_come_at_their_rate_without_memory() -> None:
    at_s = [[fault.word.at_ns / 1e9 for fault in failures(TEMPLATE, 2.0, seed)] for seed in range(300)]
    counts = [len(one) for one in at_s]
    assert sum(counts) / len(counts) == pytest.approx(40, rel=0.03)
    gaps = [after - before for one in at_s for before, after in zip([0.0, *one], one, strict=False)]
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), rel=0.05)
    assert failures(TEMPLATE, 0.0, 1) == []


def test_a_seed_that_did_not_pass_has_no_values() -> None:
    passed = Result(name="", seed=1, verdict="pass", metrics={"finish_s": 4.0, "checkpoints_basic": 2.0})
    undecided = msgspec.structs.replace(passed, verdict="undecided")
    assert values_of(undecided, None, 2.0) == {}
    found = values_of(passed, None, 2.0)
    assert (found["overhead"], found["forced_ratio"], found["failures"]) == (1.0, 0.0, 0.0)
    assert "overhead" not in values_of(passed, None, math.nan)


def test_failures_after_the_work_are_not_counted() -> None:
    faults = [ExecutedFault("crash", "", 10**9), ExecutedFault("delay", "", 1), ExecutedFault("crash", "", 5 * 10**9)]
    calm = Result(name="", seed=1, verdict="pass", metrics={"finish_s": 4.0})
    shaken = msgspec.structs.replace(calm, metrics={"finish_s": 4.5}, faults=faults)
    found = values_of(shaken, calm, 4.0)
    assert (found["failures"], found["loss_s"]) == (1.0, 0.5)


def test_work_that_never_ends_is_measured_by_its_pace() -> None:
    result = Result(name="", seed=1, verdict="pass", metrics={"throughput_per_s": 500.0})
    assert work_s(result) == 2.0
    assert math.isnan(work_s(Result(name="", seed=1, verdict="pass")))


# -- differences --------------------------------------------------------------------------------------------------------


def test_seeds_without_a_value_in_both_are_left_out() -> None:
    found = difference_of([1.0, math.nan, 3.0, 4.0], [2.0, 2.0, math.nan, 5.0])
    assert (found.count, found.mean, found.low, found.high) == (2, 1.0, 1.0, 1.0)


def test_a_protocol_is_not_different_from_itself() -> None:
    twins = compared("bcs", "fdas", rates=(0.0,))
    assert toys.PRICES_S["bcs"] == toys.PRICES_S["fdas"]
    overheads = [one.difference for one in twins.contrasts if one.metric == "overhead"]
    assert overheads and not any(one.is_clear for one in overheads)


def test_a_dearer_protocol_is_clearly_dearer() -> None:
    found = [one for one in compared(rates=(0.0,)).contrasts if one.metric == "overhead"]
    assert len(found) == 5
    for one in found:
        price = toys.PRICES_S["uncoordinated"] - toys.PRICES_S["chandy-lamport"]
        assert one.difference.is_clear and one.baseline == "chandy-lamport"
        assert one.difference.low <= price / one.setting.interval_s <= one.difference.high


# -- advice -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mtbf_s", [3.0, 10.0, 30.0, 100.0, 300.0])
def test_the_advised_interval_costs_nearly_the_least_that_is_possible(mtbf_s: float) -> None:
    advice = recommend(compared("chandy-lamport"), mtbf_s)

    def true_cost(interval_s: float) -> float:
        return toys.PRICES_S["chandy-lamport"] / interval_s + toys.loss_s("chandy-lamport", interval_s) / mtbf_s

    least = min(true_cost(0.25 * 1.01**power) for power in range(280))
    assert 0.25 <= advice.interval_s <= 4
    assert true_cost(advice.interval_s) <= 1.06 * least


def test_daly_s_interval_is_taken_where_it_was_measured_around() -> None:
    advice = recommend(compared("chandy-lamport"), 30.0)
    assert advice.interval_s == pytest.approx(daly(toys.PRICES_S["chandy-lamport"], 30.0), rel=0.1)
    assert any("Daly" in words for words in advice.why)


def test_an_interval_outside_of_the_measured_ones_is_not_advised() -> None:
    advice = recommend(compared("chandy-lamport", intervals=("250ms", "500ms")), 500.0)
    assert advice.interval_s == 0.5
    assert any("outside of what was measured" in words for words in advice.why)


def test_the_cheaper_protocol_wins_and_the_advice_says_by_how_much() -> None:
    advice = recommend(compared("uncoordinated", "chandy-lamport"), 30.0)
    assert advice.protocol == "chandy-lamport"
    words = next(words for words in advice.why if words.startswith("uncoordinated, at its best interval"))
    assert re.search(r"costs [0-9.]+ s an hour more than chandy-lamport \(95 %: [0-9.]+ to [0-9.]+\)", words)


def test_of_protocols_that_cannot_be_told_apart_the_simplest_is_advised() -> None:
    advice = recommend(compared("fdas", "bcs"), 30.0)
    assert advice.protocol == "bcs"
    assert any("cannot tell it from fdas" in words for words in advice.why)


def test_a_price_that_cannot_be_told_from_nothing_is_no_input_for_a_formula() -> None:
    advice = recommend(compared("cas"), 30.0)
    assert toys.PRICES_S["cas"] == 0
    assert advice.interval_s == 0.25
    assert any("cannot be told from nothing" in words for words in advice.why)


def test_lost_turns_are_used_where_runs_tell_them() -> None:
    """The toy's lost turns say twice what the slowdown says."""
    counted = compare(
        TEMPLATE,
        protocols=["chandy-lamport"],
        intervals=["1s"],
        failure_rates_per_s=[0.0, 0.5],
        seeds=range(10),
        jobs=0,
        runner=toys.priced_in_turns,
    )
    options = recommend(counted, 30.0).options[0]
    assert options.loss_s == pytest.approx(2 * toys.loss_s("chandy-lamport", 1.0), rel=0.02)


def test_expected_costs_add_up() -> None:
    for one in recommend(compared(), 60.0).options:
        assert one.cost_s == pytest.approx(3600 * (one.overhead + one.loss_s / 60))
        assert one.low_s <= one.cost_s <= one.high_s


@pytest.mark.parametrize("mtbf_s", [0.0, -1.0, math.inf, math.nan])
def test_impossible_times_between_failures_are_refused(mtbf_s: float) -> None:
    with pytest.raises(UsageError, match="mtbf_s is"):
        recommend(compared("bcs", seeds=2, intervals=("1s",)), mtbf_s)


def test_advice_without_failures_is_refused() -> None:
    with pytest.raises(UsageError, match="without failures and cells with them"):
        recommend(compared("bcs", rates=(0.0,), seeds=2), 10.0)


# -- views --------------------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_per_cell_and_marks_what_differs() -> None:
    found = compared()
    lines = table(found).splitlines()
    assert len(lines) == 1 + len(found.cells) + 1
    assert all("*" in line for line in lines[1:-1] if "uncoordinated" in line)
    assert not any("*" in line for line in lines[1:-1] if "chandy-lamport" in line)
    assert "20/20" in lines[1]


def test_the_figure_has_a_bar_and_a_whisker_per_cell() -> None:
    found = compared()
    root = ElementTree.fromstring(figure(found))
    groups = [node for node in root.iter("{http://www.w3.org/2000/svg}g") if node.get("data-protocol")]
    assert len(groups) == len(found.cells)
    assert all(len(list(group.iter("{http://www.w3.org/2000/svg}path"))) == 1 for group in groups)
    assert figure(found) == figure(found)


def test_a_figure_of_an_unknown_metric_names_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="overhead"):
        figure(compared("bcs", seeds=2, intervals=("1s",)), "beauty")


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_ticks_are_few_round_and_hold_everything(means: list[float]) -> None:
    summaries = [Summary(1, mean, mean, mean, mean, -math.inf, math.inf) for mean in means]
    found = ticks(summaries)
    assert 2 <= len(found) <= 8 and 0 in found
    rounding = 1e-9 * (max(0.0, *means) - min(0.0, *means)) + 1e-12
    assert found[0] <= min(means) + rounding and found[-1] >= max(means) - rounding


def test_the_advice_reads_as_text() -> None:
    text = advice_text(recommend(compared(), 30.0))
    assert text.startswith("Run chandy-lamport with a checkpoint every")
    assert "in virtual time" in text


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"protocols": ["gossip"]}, "chandy-lamport"),
        ({"protocols": []}, "protocols to compare"),
        ({"intervals": []}, "intervals above 0"),
        ({"failure_rates_per_s": [-1.0]}, "failure rates"),
        ({"intervals": ["soon"]}, "not a duration"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, list[str]], match: str) -> None:
    arguments: dict[str, object] = {"protocols": ["bcs"], "jobs": 0, "runner": toys.priced, **changes}
    with pytest.raises(UsageError, match=match):
        compare(TEMPLATE, **arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_the_order_of_cells_does_not_change_the_advice() -> None:
    found = compared("chandy-lamport", "uncoordinated", "bcs", seeds=5, intervals=("500ms", "2s"))
    cells = found.cells.copy()
    Random(0).shuffle(cells)
    assert recommend(msgspec.structs.replace(found, cells=cells), 30.0) == recommend(found, 30.0)

"""A user's fleet is given inputs, in virtual time: by clients, with faults, restores and moves; what it pays twice is found."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.sim import given_fleets as given

from snapline.errors import UsageError
from snapline.sim.checking import Subject, run_fleet
from snapline.sim.choices import DrawnRandom, RandomChoices, RecordedChoices
from snapline.sim.report.test_report import summarise
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import format_scenario, parse_scenario
from snapline.sim.search.shrink import shrink

QUIET: dict[str, Any] = {"faults": "quiet", "hosts": 2, "coordinators": 1}

SEEDS = 10
"""So many a wrong fleet has to be convicted within."""

SOUND_SEEDS = 3
"""A sound fleet passes all of them; the wrong ones are convicted within the first two."""

MODULE = "tests.sim.given_fleets"


def checked(result: Result) -> Result:
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    return result


# -- what is given --------------------------------------------------------------------------------------------------------


def test_a_list_of_inputs_is_given_once_each_and_all_of_it() -> None:
    result = run_fleet(
        given.counting, 1, inputs=given.ORDERS, at_end=given.all_taken, invariant=given.once_each, **QUIET
    )
    assert checked(result).probes["send taken"] >= 20
    assert result.probes["ask replied"] and result.probes["output released"]


def test_without_inputs_nobody_speaks_to_the_fleet() -> None:
    result = run_fleet(given.counting, 1, **QUIET)
    assert result.verdict == "undecided" and "nothing was exercised" in result.pending[-1]
    assert result.pending[-1].endswith("; if clients begin its work, give --inputs")
    nobody = run_fleet(given.counting, 1, inputs=[], **QUIET)
    assert nobody.verdict == "undecided" and not any("--inputs" in each for each in nobody.pending)


@pytest.mark.parametrize("inputs", ["drawn", "endless"])
def test_a_function_gives_inputs(inputs: str) -> None:
    result = run_fleet(given.counting, 2, inputs=getattr(given, inputs), clients=2, invariant=given.once_each, **QUIET)
    assert checked(result).probes["send taken"]


def test_a_file_of_recorded_inputs(tmp_path: Path) -> None:
    lines = [{"agent": agent, "type": "Order", "fields": {"number": order.number}} for agent, order in given.ORDERS]
    place = tmp_path / "orders.jsonl"
    place.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    checked(run_fleet(given.counting, 1, inputs=str(place), at_end=given.all_taken, **QUIET))


def test_the_same_content_twice_is_two_inputs() -> None:
    result = run_fleet(given.counting, 1, inputs=given.SAME, at_end=lambda states: total(states) == 3, **QUIET)
    checked(result)


def total(states: Any) -> int:
    return sum(len(state.taken) for state in states.values())


def test_what_an_agent_cannot_take_is_refused_and_the_rest_is_taken() -> None:
    result = run_fleet(given.counting, 1, inputs=given.WRONG, at_end=lambda states: total(states) == 1, **QUIET)
    assert checked(result).probes["send refused"] and result.probes["send missing"]


def test_a_function_that_raises_breaks_the_run_and_is_named() -> None:
    result = run_fleet(given.counting, 1, inputs=given.raising, **QUIET)
    assert result.verdict == "broken" and "no more orders" in result.error and "raising" in result.error


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (7, "cannot be given"),
        ([("clerk1",)], "is no input"),
        (f"{MODULE}:nothing", "nothing"),
        ("no/such/file.jsonl", "cannot be read"),
    ],
)
def test_inputs_that_are_none_are_refused_at_once(inputs: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Subject(given.counting, inputs=inputs)


def test_a_line_that_is_no_input_is_named(tmp_path: Path) -> None:
    place = tmp_path / "orders.jsonl"
    place.write_text('{"agent": "clerk1", "type": "Order", "fields": {"number": 1}}\n{"agent": "clerk1"}\n')
    with pytest.raises(UsageError, match=r"orders\.jsonl:2"):
        Subject(given.counting, inputs=place)


# -- what is found --------------------------------------------------------------------------------------------------------


def first_failure(target: Any, seeds: int = SEEDS, **options: Any) -> tuple[Subject, Result] | None:
    subject = Subject(target, **options)
    for seed in range(seeds):
        result = subject.run(subject.scenario(seed), seed)
        if result.verdict != "pass":
            return subject, result
    return None


def test_a_double_charge_is_found_and_said_in_one_sentence() -> None:
    found = first_failure(given.careless, inputs=given.ORDERS)
    assert found is not None, "an order that is paid in a plain turn is paid twice after a crash"
    subject, result = found
    assert result.verdict == "violation" and result.violations[0].oracle == "stub", result
    assert "is charged twice" in result.violations[0].text and "\n" not in result.violations[0].text
    assert "is charged twice" in summarise(result)
    shrunk = shrink(subject.scenario(result.seed), result.seed, result, runner=subject.run, time_limit_s=4)
    assert "is charged twice" in shrunk.result.violations[0].text
    assert shrunk.scenario.clients.count <= subject.scenario(result.seed).clients.count


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (given.forgetful, "order [0-9]+ is charged, and neither shipped nor refunded"),
        (
            given.random_clerks,
            "clerk[12]: on_order .* departs from it: .* it calls random.random, at .*given_fleets.py:",
        ),
        (given.totalling, "on_order .* changes the global variable TOTAL, at .*given_fleets.py:.* no checkpoint holds"),
    ],
)
def test_what_is_wrong_with_a_fleet_that_is_given_inputs_is_said_in_one_sentence(fleet: Any, words: str) -> None:
    subject = Subject(fleet, inputs=given.ORDERS, at_end=given.only_what_is_taken_is_paid)
    for seed in range(2):
        result = subject.run(subject.scenario(seed), seed)
        assert result.verdict == "violation", (seed, result.pending, result.error)
        assert re.search(words, result.violations[0].text) and "\n" not in result.violations[0].text


def test_the_same_in_a_durable_turn_is_sound() -> None:
    found = first_failure(given.durable, SOUND_SEEDS, inputs=given.ORDERS, invariant=given.once_each)
    assert found is None, found


# -- restores, moves, limits ------------------------------------------------------------------------------------------------


def test_a_fleet_is_taken_back_with_its_inputs() -> None:
    taken_back = 0
    for seed in range(2):
        result = checked(
            run_fleet(given.counting, seed, inputs=given.ORDERS, restores=2, limits=True, at_end=given.all_taken)
        )
        taken_back += result.probes.get("fleet taken back", 0)
        assert "input dropped" not in result.probes
    assert taken_back


def test_agents_are_moved_while_they_are_given_inputs() -> None:
    options: dict[str, Any] = {"inputs": given.ORDERS, "moves": 3, "at_end": given.all_taken, "faults": "quiet"}
    moved = [
        checked(run_fleet(given.counting, seed, **options)).probes.get("agents moved on purpose") for seed in (2, 3)
    ]
    assert all(moved), moved


def test_options_are_in_the_scenario_which_repeats_from_its_text() -> None:
    subject = Subject(
        f"{MODULE}:counting", inputs=f"{MODULE}:drawn", clients=3, restores=1, moves=2, limits=True, until="3s"
    )
    scenario = subject.scenario(3)
    clients = scenario.clients
    assert (clients.count, clients.inputs_from) == (3, f"{MODULE}:drawn")
    assert (scenario.restores.times, scenario.restores.drops_one_in, scenario.run.moves) == (1, 0, 2)
    written = parse_scenario(format_scenario(scenario), source="the scenario")
    assert written == scenario
    assert run(written, 3).trace_hash == subject.run(scenario, 3).trace_hash


def test_restores_moves_limits_and_watched_outputs_are_drawn_for_a_users_fleet_in_the_swarm_alone() -> None:
    everything = Subject(given.counting, inputs=given.ORDERS, faults="swarm")
    drawn = [everything.scenario(seed) for seed in range(80)]
    assert {0, 1} <= {scenario.restores.times for scenario in drawn} and any(s.run.moves for s in drawn)
    assert all(scenario.restores.drops_one_in == 0 for scenario in drawn), "a user's inputs are kept"
    assert any(scenario.limits for scenario in drawn) and any(s.outputs.is_watched for s in drawn)
    crashes = Subject(given.counting, inputs=given.ORDERS)
    assert not any(s.restores.times or s.run.moves or s.limits for s in map(crashes.scenario, range(40)))


def test_the_swarm_around_a_sound_fleet_with_inputs_finds_nothing() -> None:
    found = first_failure(given.durable, SOUND_SEEDS, inputs=given.drawn, faults="swarm", invariant=given.once_each)
    assert found is None, found


# -- chance ---------------------------------------------------------------------------------------------------------------


def test_a_users_random_comes_from_the_choices_of_the_run() -> None:
    choices = RandomChoices(7, is_recording=True)
    chance = DrawnRandom(choices, "inputs")
    seen = [chance.random(), chance.randrange(1000), chance.choice("abc"), chance.sample(range(10), 3)]
    assert choices.record is not None
    again = DrawnRandom(RecordedChoices(choices.record), "inputs")
    assert seen == [again.random(), again.randrange(1000), again.choice("abc"), again.sample(range(10), 3)]
    benign = DrawnRandom(RecordedChoices({}), "inputs")
    assert (benign.random(), benign.randrange(1000), benign.choice("abc")) == (0.0, 0, "a")
    assert isinstance(benign, random.Random)

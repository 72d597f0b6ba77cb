"""Fleets under test: what may be given, what is drawn around them, and how their invariants are asked."""

import functools
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim import checked_fleets as fleets

import snapline
from snapline.cli import sim_scenarios
from snapline.errors import FleetDefinitionError, UsageError
from snapline.sim.checking import (
    DEFAULT_FAULTS,
    Subject,
    reference_of,
    run_fleet,
    template_of,
    trigger_part,
    turns_of,
)
from snapline.sim.faults.fault_kinds import CrashFault, PauseFault, duration_ns
from snapline.sim.report.test_report import exercised
from snapline.sim.run import run
from snapline.sim.scenario import (
    FaultPart,
    FleetPart,
    PatternPart,
    RunPart,
    Scenario,
    format_scenario,
    host_names,
    parse_scenario,
)
from snapline.sim.search.swarm import BUILT_IN, draw
from snapline.sim.workloads import user_triggers, user_workload, workload

QUICK: dict[str, Any] = {"faults": "quiet", "hosts": 2, "coordinators": 1}

# -- what is drawn ------------------------------------------------------------------------------------------------------


@functools.cache
def sound_subject(**options: Any) -> Subject:
    """Measure the fleet once for all seeds."""
    return Subject(fleets.sound, **options)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), faults=st.sampled_from([*BUILT_IN, ("crash",), ("disk", "clock"), ()]))
def test_every_drawn_scenario_is_one_of_a_file_and_leaves_the_fleet_as_it_is(
    seed: int, faults: str | tuple[str, ...]
) -> None:
    subject = sound_subject(faults=faults)
    scenario = subject.scenario(seed)
    assert parse_scenario(format_scenario(scenario), source="drawn") == scenario
    assert scenario == subject.scenario(seed)
    assert scenario.swarm is None
    assert (scenario.fleet.agents, scenario.fleet.protocol) == (3, "chandy-lamport")
    allowed = BUILT_IN[faults].swarm.faults if isinstance(faults, str) else faults  # type: ignore[union-attr]  # all have
    if faults not in ("quiet", ()):
        assert all(part.kind in (allowed or [part.kind]) for part in scenario.fault)
    else:
        assert scenario.fault == []


def test_hosts_coordinators_and_faults_differ_between_seeds() -> None:
    subject = Subject(fleets.sound, faults="swarm")
    drawn = [subject.scenario(seed) for seed in range(60)]
    assert {scenario.fleet.hosts for scenario in drawn} == {2, 3}, "no more than there are agents"
    assert {scenario.fleet.coordinators for scenario in drawn} == {1, 3}
    assert len({part.kind for scenario in drawn for part in scenario.fault}) > 5


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), until=st.sampled_from(["300ms", "3s", "20s"]))
def test_options_are_kept_and_faults_are_over_in_time(seed: int, until: str) -> None:
    scenario = sound_subject(hosts=7, coordinators=5, until=until, budget="beyond").scenario(seed)
    assert (scenario.fleet.hosts, scenario.fleet.coordinators, scenario.budget) == (7, 5, "beyond")
    assert scenario.run.until == scenario.liveness.heal == until
    assert all(part.word.ends_ns(len(host_names(scenario))) <= duration_ns(until) for part in scenario.fault)


@pytest.mark.parametrize(("name", "turns", "messages"), [("ping_pong", 300, 500), ("short_ping_pong", 102, 99)])
def test_no_default_run_is_hollow_even_if_the_fleet_is_soon_done(name: str, turns: int, messages: int) -> None:
    """Neither on the command line nor in pytest: each run has a crash, in the midst of enough work, and a recovery."""
    assert DEFAULT_FAULTS == sim_scenarios.DEFAULT_FAULTS == "crashes"
    template = sim_scenarios.ScenarioChanges().template(f"tests.sim.checked_fleets:{name}")
    subject = Subject(getattr(fleets, name))
    assert subject.scenario(1).run.turns == turns_of(
        subject.scenario(1), lambda: user_workload(getattr(fleets, name)())
    )
    for scenario, play in ((draw(template, 1), run), (subject.scenario(1), subject.run)):
        hits = [part.crash.hit for part in scenario.fault if part.crash is not None and part.crash.when == "working"]
        assert hits and all(turns // 4 <= hit <= max(turns // 2, 300) for hit in hits)
        result = play(scenario, 1)
        assert result.verdict == "pass" and result.probes["recovery"] and "crash" in exercised(result), result.pending
        assert result.messages >= messages and result.metrics["turns"] >= turns


def test_a_run_whose_crash_has_not_come_is_hollow() -> None:
    crash = FaultPart(crash=CrashFault(at="0s", when="working", hit=10_000))
    fleet = FleetPart(agents=2, module="tests.sim.checked_fleets:short_ping_pong")
    result = run(Scenario(fleet=fleet, fault=[crash], run=RunPart(until="1s", turns=102)), 1)
    assert result.verdict == "undecided" and result.pending == [
        "the run is hollow: the fleet was done after 102 turns, before the crash that was to come in the midst of them"
    ]


def test_a_run_without_a_turn_is_undecided() -> None:
    result = run_fleet(fleets.mute, 1, faults="quiet")
    assert result.verdict == "undecided" and "nothing was exercised" in result.pending[0]


def test_an_attribute_that_is_not_saved_is_found_by_default() -> None:
    """Within thirty seeds; without faults nobody could tell."""
    subject = Subject(fleets.forgetful)
    found = (subject.run(subject.scenario(seed), seed) for seed in range(1, 31))
    first = next(result for result in found if result.verdict != "pass")
    assert first.violations[0].oracle == "replay", (first.violations, first.pending, first.error)
    assert run_fleet(fleets.forgetful, 1, faults="quiet").verdict == "pass"


def test_a_run_lasts_until_the_time_that_is_asked_for() -> None:
    assert run_fleet(fleets.clock, until="7s", **QUICK).virtual_ns >= 7 * 10**9


def test_faults_that_name_hosts_keep_them() -> None:
    faults = Scenario(fleet=FleetPart(hosts=3), fault=[FaultPart(pause=PauseFault(host="h3"))])
    scenario = Subject(fleets.sound, faults=faults).scenario(1)
    assert (scenario.fleet.hosts, scenario.fault, scenario.name) == (3, faults.fault, "passers")
    with pytest.raises(UsageError, match=r"passers: fault\[0\]\.pause\.host is \"h3\": use h1, h2"):
        Subject(fleets.sound, faults=faults, hosts=2).scenario(1)


def test_a_scenario_is_drawn_as_it_stands(tmp_path: Path) -> None:
    template = BUILT_IN["crashes"]
    path = tmp_path / "mine.toml"
    path.write_text(format_scenario(template))
    for target in (template, path, str(path)):
        assert Subject(target).scenario(4) == draw(template, 4)


# -- what may be given --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (3, {}, "3 cannot be checked: give a snapline.Fleet"),
        ("fleets", {}, "cannot be checked"),
        ("nowhere.toml", {}, "nowhere.toml cannot be read"),
        (lambda: 3, {}, "made a int: return a snapline.Fleet"),
        (fleets.sound, {"faults": "crash"}, "faults is 'crash': use quiet, crashes"),
        (fleets.sound, {"faults": ["crashes"]}, "faults holds 'crashes': use delay"),
        (fleets.sound, {"budget": "over"}, 'budget is "over": use within, beyond'),
        (fleets.sound, {"coordinators": 2}, "coordinators is 2: use 1, 3, 5"),
        (fleets.sound, {"hosts": -1}, "hosts is -1"),
        (fleets.sound, {"until": "soon"}, "'soon' is not a duration"),
        (fleets.sound, {"every": "soon"}, "'soon' is not a duration"),
        (fleets.sound, {"agents": 3}, "there is no option 'agents': use faults"),
        (fleets.sound, {"arguments": {"a": "1"}}, "arguments are for 'module:fleet'"),
        (Scenario(), {"hosts": 3}, "hosts is for fleets: write it into the scenario"),
    ],
)
def test_what_is_not_possible_is_said_in_one_sentence(target: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Subject(target, **options).scenario(1)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(FleetDefinitionError, match="there is no module 'nowhere'"):
        Subject("nowhere:fleet")


def test_an_empty_list_of_faults_is_none_at_all() -> None:
    template = template_of([])
    assert template.swarm is not None and template.swarm.faults_max == 0


def test_a_fleet_is_named_so_that_another_process_finds_it() -> None:
    assert reference_of(fleets.sound) == "tests.sim.checked_fleets:sound"
    assert reference_of("module:fleet") == "module:fleet"
    for nameless in (fleets.sound(), lambda: fleets.sound(), functools.partial(fleets.sound)):
        assert reference_of(nameless) == ""
    scenario = Subject(fleets.sound(), place="tests/test_mine.py::test_it").scenario(0)
    assert scenario.fleet.module == "tests/test_mine.py::test_it"


def test_a_module_s_fleet_gets_its_arguments() -> None:
    subject = Subject("snapline.examples.bank:fleet", arguments={"agents": "3", "transfers": "5"}, **QUICK)
    scenario = subject.scenario(0)
    assert scenario.fleet.agents == 3 and scenario.fleet.arguments == {"agents": "3", "transfers": "5"}
    assert subject.run(scenario, 0).verdict == "pass"


def test_a_scenario_runs_with_its_own_pattern_and_a_further_invariant() -> None:
    scenario = Scenario(fleet=FleetPart(pattern=PatternPart(name="ring", messages=40)))
    assert run_fleet(scenario).verdict == "pass"
    assert run_fleet(scenario, invariant=lambda cut: len(cut.states) < 5).violations[0].oracle == "workload"


# -- triggers -----------------------------------------------------------------------------------------------------------


def with_triggers(*triggers: Any, protocol: str = "chandy-lamport") -> snapline.Fleet:
    return snapline.Fleet("f", agents={"a": fleets.Dicer(0.0)}, protocol=protocol, triggers=triggers)


def test_a_fleet_saves_at_least_each_second() -> None:
    every, messages = snapline.Every, snapline.EveryMessages
    assert user_triggers(with_triggers(every(0.3)), "") == (every(0.3),)
    assert user_triggers(with_triggers(every(60, 0.2)), "") == (every(1.0, 0.2),)
    assert user_triggers(with_triggers(), "") == (every(0.5),)
    assert user_triggers(with_triggers(protocol="bcs"), "") == ()
    assert user_triggers(with_triggers(messages(5), every(9), protocol="bcs"), "") == (messages(5), every(1.0))
    assert user_triggers(with_triggers(every(60)), "20ms") == (every(0.02),)


def test_the_scenario_says_when_the_fleet_saves() -> None:
    assert trigger_part(with_triggers(snapline.Every(0.3, 0.0))).every == "300ms"
    assert trigger_part(with_triggers(snapline.EveryMessages(7), protocol="bcs")).messages == 7
    assert trigger_part(with_triggers(snapline.Adaptive(), protocol="bcs")).kind == "adaptive"
    assert trigger_part(with_triggers()).kind == "none"


def test_the_user_s_fleet_stays_as_it_is() -> None:
    fleet = with_triggers(snapline.Every(60))
    run_fleet(fleet, every="200ms", **QUICK)
    assert fleet.triggers == (snapline.Every(60),)


# -- invariants ---------------------------------------------------------------------------------------------------------


def test_every_complete_cut_is_asked_about_and_nothing_a_true_value_or_an_empty_sentence_is_well() -> None:
    seen: list[int] = []
    answers = [None, True, "", 3]

    def invariant(cut: snapline.Cut) -> object:
        seen.append(cut.epoch)
        return answers[len(seen) % 4]

    result = run_fleet(fleets.sound, invariant=invariant, **QUICK)
    assert result.verdict == "pass"
    assert len(seen) == result.metrics["epochs_complete"] > len(answers)


def _fails(cut: snapline.Cut) -> None:
    raise AssertionError("that is it")


def _fails_silently(cut: snapline.Cut) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("invariant", "words"),
    [
        (lambda cut: "a sentence", "epoch 1: a sentence"),
        (lambda cut: False, f"epoch 1: the invariant is False ({__file__}:"),
        (_fails, f"epoch 1: _fails: that is it ({__file__}:"),
        (_fails_silently, f"epoch 1: _fails_silently: assert ({__file__}:"),
    ],
)
def test_a_sentence_a_false_value_or_a_failed_assert_is_a_violation(invariant: Any, words: str) -> None:
    result = run_fleet(fleets.sound, invariant=invariant, **QUICK)
    assert result.verdict == "violation"
    assert result.violations[0].oracle == "workload"
    assert result.violations[0].text.startswith(words)


def test_an_invariant_that_raises_makes_the_run_broken() -> None:
    result = run_fleet(fleets.sound, invariant=lambda cut: 1 // 0, **QUICK)
    assert (result.verdict, result.violations) == ("broken", [])
    assert result.error.startswith("the invariant raised\n") and "ZeroDivisionError" in result.error
    assert result.error.count('File "') == 1, "frames of ours say nothing"
    assert re.search(
        rf"^at [0-9.]+ m?s, epoch 1: the invariant raised \({re.escape(__file__)}:\d+; it read no state\)$",
        result.error,
        re.MULTILINE,
    )


def test_what_pytest_adds_to_a_failed_assert_stands_behind_its_place() -> None:
    def fails(cut: snapline.Cut) -> None:
        raise AssertionError("assert 1 == 2\n +  where 1 = f(x)")

    text = run_fleet(fleets.sound, invariant=fails, **QUICK).violations[0].text
    assert re.fullmatch(r"epoch 1: fails: assert 1 == 2 \(.*; it read no state\)\n \+  where 1 = f\(x\)", text)


def _is_small(cut: snapline.Cut) -> bool:
    return all(getattr(state, "balance", 0) < 0 for state in cut.states.values())


def _has_field(cut: snapline.Cut) -> bool:
    return all(operator.attrgetter("nothing")(state) for state in cut.states.values())


def test_it_is_told_which_state_an_invariant_read_last() -> None:
    """`all` and `any` stop at the agent that decides; an attribute that is not there raises at its agent."""
    text = run_fleet(fleets.sound, invariant=_is_small, **QUICK).violations[0].text
    assert re.search(r"_is_small is False \(.*:\d+; the last state it read: \w+, Purse\(.*\)\)$", text), text
    error = run_fleet(fleets.sound, invariant=_has_field, **QUICK).error
    assert re.search(r"epoch 1: _has_field raised \(.*; the last state it read: \w+, Purse\(", error), error
    error = run_fleet(fleets.sound, invariant=lambda cut: cut.states["nobody"], **QUICK).error
    assert "KeyError" in error and "there is no agent 'nobody'" in error
    assert re.search(rf"raised \({re.escape(__file__)}:\d+; there is no agent", error), "not in the mapping's own code"


def test_a_long_state_is_cut_and_a_broken_repr_does_no_harm() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise OSError("no")

    states = workload._ReadStates({"a": "x" * 10**6, "b": Loud()})
    _ = states["a"]
    assert len(states.last_state_text()) < 300
    _ = states["b"]
    assert states.last_state_text().endswith("b, <its repr raised OSError>")


# -- at the end ---------------------------------------------------------------------------------------------------------


class End:
    """What the states were at the end."""

    def __init__(self) -> None:
        self.states: Mapping[str, Any] = {}

    def __call__(self, states: Mapping[str, Any]) -> None:
        self.states = states


def test_at_the_end_all_states_are_there_though_the_fleet_has_ended_itself() -> None:
    end = End()
    assert run_fleet(fleets.ending, 1, faults="crashes", at_end=end).verdict == "pass"
    assert sum(account.balance for account in end.states.values()) == 300


def test_a_fleet_that_waits_for_a_timer_is_not_at_rest() -> None:
    end = End()
    result = run_fleet(fleets.clock, at_end=end, **QUICK)
    assert (result.verdict, end.states) == ("pass", {"a": 0})
    assert result.virtual_ns > 12 * 400_000_000


def test_a_fleet_that_never_comes_to_rest_is_undecided() -> None:
    subject = Subject(fleets.sound, at_end=lambda states: None, until="100ms", **QUICK)
    drawn = subject.scenario(0)
    soon = msgspec.structs.replace(drawn, liveness=msgspec.structs.replace(drawn.liveness, within="3s"))
    result = subject.run(soon, 0)
    assert (result.verdict, result.pending) == ("undecided", ["the workload is not done"])


def test_what_is_wrong_at_the_end_is_a_violation() -> None:
    result = run_fleet(fleets.ending, at_end=lambda states: len(states) == 2, **QUICK)
    assert [violation.text[:33] for violation in result.violations] == ["at the end: the invariant is False"[:33]]


# -- wrong fleets -------------------------------------------------------------------------------------------------------


def test_where_nothing_is_run_again_a_crash_and_the_invariant_show_it() -> None:
    faults = Scenario(fleet=FleetPart(hosts=2), fault=[FaultPart(crash=CrashFault(host="h1", restart_after="300ms"))])
    sound = run_fleet(functools.partial(fleets.passers, fleets.Passer, 17), faults=faults, invariant=fleets.all_there)
    assert (sound.verdict, sound.metrics["recoveries"]) == ("pass", 1)
    result = run_fleet(fleets.wrong_and_large, faults=faults, invariant=fleets.all_there)
    assert result.verdict == "violation"
    assert (result.violations[0].oracle, result.violations[0].guarantee) == ("workload", "G3")
    assert "all_there" in result.violations[0].text


def test_without_a_crash_the_same_fleet_is_well() -> None:
    assert run_fleet(fleets.wrong_and_large, invariant=fleets.all_there, **QUICK).verdict == "pass"

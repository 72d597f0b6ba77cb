"""Agents that can never take a turn again, and creations that were refused: both were believed, and are looked into now."""

from collections.abc import Callable

import pytest
from tests.sim.mutants.catalogue import mutated
from tests.sim.test_books import make_judge
from tests.sim.test_found_bugs import SPAWN_PENDING

from snapline.agent_runtime.host.modes.logged import HostFreeze
from snapline.agent_runtime.host.plans import creation_payload
from snapline.coordinator.leader.epochs.publishing import Releases
from snapline.sim.oracles.judge import Judge
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    DelayPart,
    FleetPart,
    LivenessPart,
    OutputsPart,
    PatternPart,
    RunPart,
    Scenario,
    StorePart,
    TriggerPart,
    parse_scenario,
)
from snapline.sim.workloads import Workload, make_workload

CREATION = creation_payload("m:C", b"state")
SPAWN = ("c", "m:C", b"state")


def refused(judge: Judge, *, parent: str = "a0", child: str = "c", plan: int = 1) -> list[tuple[str, str]]:
    judge.on_turn(5, plan, parent, "start", parent, b"", [], [(child, "m:C", b"state")])
    judge.on_refused(6, plan, parent, child, CREATION)
    return [(violation.oracle, violation.guarantee) for violation in judge.violations]


def test_a_creation_that_is_refused_for_nothing_is_a_violation() -> None:
    assert refused(make_judge()) == [("refused", "G3")]


def test_an_id_that_has_been_created_may_be_refused() -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a1", "start", "a1", b"", [], [SPAWN])
    assert refused(judge) == []
    assert refused(make_judge(), child="a1") == [], "an agent of the fleet"


def test_of_two_creations_of_one_id_only_one_may_be_refused() -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a1", "start", "a1", b"", [], [SPAWN])
    refused(judge)
    judge.on_refused(7, 1, "a1", "c", CREATION)
    assert [violation.oracle for violation in judge.violations] == ["refused"]


def test_a_creation_of_an_undone_turn_is_no_reason() -> None:
    judge = make_judge()
    judge.on_loaded(0, 1, 0, "a0", None)
    judge.on_turn(1, 1, "a0", "start", "a0", b"", [], [SPAWN])
    judge.on_loaded(2, 2, 0, "a0", None)
    assert refused(judge, plan=2) == [("refused", "G3")]


# -- in the world -------------------------------------------------------------------------------------------------------


def spawn_pending() -> Result:
    """A user's fleet, of whose sums nobody knows."""
    scenario = parse_scenario(SPAWN_PENDING, source="here")
    return run(scenario, 3, workload=Workload(make_workload(scenario.fleet).fleet))


def test_a_repeated_spawn_that_is_refused_is_found() -> None:
    """The mutant: no recovery knows that a member of its line was unborn there."""
    with mutated("members-never-unborn"):
        assert [violation.oracle for violation in spawn_pending().violations][:1] == ["refused"]


def test_an_agent_that_is_never_born_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mutant, and an oracle that believes it."""
    monkeypatch.setattr(Judge, "on_refused", lambda self, *what: self.on_unroutable(*what))
    with mutated("members-never-unborn"):
        found = spawn_pending()
    assert found.verdict == "undecided" and "is not born, for ever" in found.pending[0], found.pending


def frozen(monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., None] | None) -> Result:
    """Dominoes whose logs outgrow their limit at once: the fleet freezes again and again."""
    fleet = FleetPart(
        agents=4, protocol="uncoordinated", pattern=PatternPart(name="domino", messages=0, rate_per_s=200.0)
    )
    workload = make_workload(fleet)
    workload.fleet.log_bytes_max = 4_000
    if mutant is not None:
        monkeypatch.setattr(HostFreeze, "on_thaw_agents", mutant)
    return run(Scenario(fleet=fleet), 1, workload=workload)


def test_a_fleet_that_is_thawed_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    result = frozen(monkeypatch, None)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


def test_a_fleet_that_stays_frozen_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    found = frozen(monkeypatch, lambda self, event: None)
    assert found.verdict == "undecided", (found.verdict, found.violations)
    assert any("is held, for ever" in each for each in found.pending), found.pending


QUICKLY = Scenario(
    fleet=FleetPart(pattern=PatternPart(messages=0), trigger=TriggerPart(every="30ms")),
    store=StorePart(delay=DelayPart(least="20ms")),
    outputs=OutputsPart(one_in=3),
    run=RunPart(until="1s"),
    liveness=LivenessPart(within="2s"),
)
"""An epoch begins before the one before is released, always."""


def test_a_fleet_whose_epochs_come_quickly_is_judged_by_what_was_complete_a_while_ago() -> None:
    result = run(QUICKLY, 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["output released"]


def test_a_fleet_whose_outputs_stay_inside_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Releases, "_next", lambda self: 0)
    found = run(QUICKLY, 1)
    assert (found.verdict, found.pending) == ("undecided", ["outputs are not released"])

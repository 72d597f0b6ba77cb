"""What survives is in the line of the plan: who froze in time, where they stood, and the greatest line that this gives."""

import pytest
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.test_books import make_judge

from snapline.agent_runtime.host import driver
from snapline.coordinator.leader.modes.autonomous_epochs import FREEZE_NS
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents, StopEvaluated
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import CutPlace, CutRecord
from snapline.sim.oracles.line_oracles import Freezes, Frozen, LineOracle, LivePlaces
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, Scenario, TriggerPart
from snapline.sim.search.swarm import draw

PLAN = ("c1.1", 7)
ASK = FreezeAgents(plan=1, number=5)
ANSWER = AgentsFrozen(plan=1, number=5, host_start=1, running=("busy",))


def asked(*, answered_ns: int | None, proposed_ns: int = 10) -> Freezes:
    freezes = Freezes()
    freezes.on_freeze_sent(1, "h1", ASK, 0)
    if answered_ns is not None and answered_ns <= proposed_ns:
        freezes.on_answered(1, ANSWER, answered_ns)
    freezes.on_plan_proposed(PLAN, proposed_ns)
    if answered_ns is not None and answered_ns > proposed_ns:
        freezes.on_answered(1, ANSWER, answered_ns)
    return freezes


def in_time(freezes: Freezes, *hosts: str) -> list[Frozen]:
    return list(freezes.in_time(PLAN, hosts))


def test_who_answers_within_the_time_has_frozen_in_time() -> None:
    frozen = [Frozen("h1", 1, 5, ("busy",), start=1)]
    assert in_time(asked(answered_ns=5), "h1") == frozen
    assert in_time(asked(answered_ns=20), "h1") == frozen, "though nobody had waited for it"
    assert in_time(asked(answered_ns=5), "h2") == frozen, "what it said in time is in the store"
    assert in_time(asked(answered_ns=20), "h2") == [], "the plan goes on without it, and nobody had to wait"
    assert in_time(asked(answered_ns=FREEZE_NS + 1, proposed_ns=FREEZE_NS), "h1") == []


def test_nobody_may_go_on_before_the_time_is_over() -> None:
    assert in_time(asked(answered_ns=None), "h1") == [Frozen("h1", 1, 5, is_awaited=True)]
    assert in_time(asked(answered_ns=None, proposed_ns=FREEZE_NS), "h1") == []
    assert in_time(asked(answered_ns=None), "h2") == [], "the plan goes on without it: it is lost"


def test_who_was_asked_later_or_on_a_broken_stream_demands_nothing() -> None:
    freezes = Freezes()
    freezes.on_plan_proposed(PLAN, 10)
    freezes.on_freeze_sent(1, "h1", ASK, 11)
    freezes.on_answered(1, ANSWER, 12)
    assert in_time(freezes, "h1") == []
    freezes = asked(answered_ns=5)
    freezes.on_closed(1)
    assert in_time(freezes, "h1") == []
    freezes = asked(answered_ns=None)
    freezes.on_answered(1, AgentsFrozen(plan=1, number=4, host_start=1), 5)
    assert in_time(freezes, "h1")[0].is_awaited, "an answer to another question"


def played() -> GroundTruth:
    """a0 has sent three messages, of which one waits in its outbox; a1 has consumed one."""
    books = make_judge().ground_truth
    books.on_turn(0, 1, "a0", "start", "a0", b"", [("a1", b"1"), ("a1", b"2"), ("a1", b"3")], [])
    books.on_left(1, "a0", "a1", is_in_turn=False)
    books.on_left(1, "a0", "a1", is_in_turn=False)
    books.on_turn(1, 1, "a1", "message", "a0", b"1", [], [])
    return books


def live(books: GroundTruth, *agents: str) -> dict[str, CutPlace]:
    places = LivePlaces(books)
    places.on_frozen("h1", 1, 1, 5, agents)
    return dict(places.of([Frozen("h1", 1, 5, ("busy",), start=1)], 1))


def test_a_live_place_knows_what_has_not_left() -> None:
    found = live(played(), "a0", "a1")
    assert (found["a0"].turns, found["a0"].parked, found["a1"].turns) == (1, {"a1": 1}, 1)


def test_a_run_that_was_started_later_has_nothing_that_stands_still() -> None:
    """It is asked under the same number, and answers at once."""
    places = LivePlaces(played())
    places.on_frozen("h1", 1, 1, 5, ["a0", "a1"])
    assert dict(places.of([Frozen("h1", 1, 5, start=2)], 1)) == {}


def test_who_cannot_be_saved_has_stood_still_for_nothing() -> None:
    places = LivePlaces(played())
    places.on_frozen("h1", 1, 1, 5, ["a0", "a1"])
    places.on_unsaved("h1", 1, 1, 5, "a0")
    assert [*places.of([Frozen("h1", 1, 5, start=1)], 1)] == ["a1"]


def findings(books: GroundTruth, cut: CutRecord | None, *agents: str) -> list[str]:
    return [text for _, _, text in LineOracle(books).check_plan(1, cut, live(books, *agents), PLAN)]


def test_a_line_below_what_lives_is_found() -> None:
    books = played()
    assert "starts where a0 had taken 0 turns; a consistent line with 1" in findings(books, None, "a0", "a1")[0]
    assert "starts where a0" in findings(books, None, "a0")[0]
    assert findings(books, None, "a1") == [], "alone it is an orphan of what is lost"
    at_rest = CutRecord(1, 1, {agent: place for agent, place in live(books, "a0", "a1").items()}, {})
    assert findings(books, at_rest, "a0", "a1") == []


def test_the_sound_product_is_judged_often() -> None:
    scenario = MUTANTS["freeze-not-awaited"].scenario
    judged = [run(draw(scenario, seed), seed).probes.get("survivors judged", 0) for seed in range(4)]
    assert sum(judged) >= 4, judged


# -- stop_when ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fleet_that_does_not_end_though_its_stop_when_holds_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it may not end otherwise is the mutant "stops-too-early"."""
    pattern, trigger = PatternPart(name="orders", messages=60), TriggerPart(every="50ms")
    scenario = Scenario(fleet=FleetPart(agents=4, pattern=pattern, trigger=trigger))
    sound = run(scenario, 1)
    assert sound.verdict == "pass" and sound.probes["stopped by itself"]
    monkeypatch.setattr(driver, "ask_stop", lambda fleet, store, epoch, is_decided: StopEvaluated(epoch, False))
    found = run(scenario, 1)
    assert found.verdict == "undecided" and "stop_when holds of epoch" in found.pending[0], found.pending

"""The leader core: agents that ask the fleet to go back (`ctx.rollback`). Their word may come twice, late, or to a leader that dies."""

from typing import Any

import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ROLLBACKS_KEPT
from snapline.messages import host_messages as msg
from snapline.messages.past_rollbacks import REQUESTS_BYTES_MAX, PastRollback, encode_requests


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start_fleet("h1", "h2")
    for _ in range(3):
        made.snapshot("h1", "h2")
    return made


def ask(
    bench: Bench, *, to: str = "last", reason: str = "astray", place: str = "f (a.py:1)", life: int = 0, **more: Any
) -> None:
    incarnation = life or bench.state.image.agents["a0"].incarnation
    bench.say("h1", msg.WantRollback("a0", incarnation, to, reason, place, **more))


def restores(bench: Bench) -> list[tuple[str, int, str]]:
    return [(x.agent, x.line_epoch, x.reason) for x in bench.log if isinstance(x, op.Restore)]


def refusals(bench: Bench, host: str = "h1") -> list[msg.RollbackRefused]:
    return [x for x in bench.directives(host) if isinstance(x, msg.RollbackRefused)]


def wanted_by(bench: Bench) -> str:
    """The agent whose wish the leader pursues."""
    wanted = bench.core.parts.restores.wanted
    return wanted.said.agent if wanted is not None and wanted.said is not None else ""


def concerns(bench: Bench) -> list[str]:
    return [x.kind for x in bench.core.standing().concerns]


def test_an_agent_takes_the_fleet_back_to_the_newest_snapshot(bench: Bench) -> None:
    ask(bench)
    assert restores(bench) == [("a0", 3, "agent a0 asked to go back, at f (a.py:1): astray")]
    bench.apply_plan("h1", "h2")
    assert bench.state.phase == "running" and refusals(bench) == [] and concerns(bench) == []


def test_or_to_a_tag_and_what_came_after_is_void(bench: Bench) -> None:
    bench.tags["good"] = 1
    ask(bench, to="good")
    assert [epoch for _, epoch, _ in restores(bench)] == [1] and bench.state.newest_complete() == 1


def test_a_tag_that_is_none_is_refused_and_the_agent_stands(bench: Bench) -> None:
    ask(bench, to="nobody")
    assert restores(bench) == [] and len(refusals(bench)) == 1 and "no snapshot nobody" in refusals(bench)[0].reason
    assert concerns(bench) == ["rollback"]


def test_a_word_that_comes_twice_is_done_once_and_one_of_an_earlier_life_not_at_all(bench: Bench) -> None:
    life = bench.state.image.agents["a0"].incarnation
    bench.held = (ev.CheckLine,)
    ask(bench)
    ask(bench)
    bench.held = ()
    bench.release()
    ask(bench, life=life)
    bench.apply_plan("h1", "h2")
    ask(bench, life=life)
    assert len(restores(bench)) == 1 and bench.state.plan_number == 2 and refusals(bench) == []


def test_the_second_time_at_the_same_place_goes_to_people_also_after_the_leader_has_died(bench: Bench) -> None:
    ask(bench)
    bench.apply_plan("h1", "h2")
    ask(bench)
    assert len(restores(bench)) == 1 and len(refusals(bench)) == 1 and concerns(bench) == ["rollback"]
    bench.start_leader("next")
    for host in ("h1", "h2"):
        bench.attach(host, f"{host}-1", plan=2)
    assert concerns(bench) == []
    ask(bench)
    told = len(refusals(bench))
    ask(bench)
    assert len(restores(bench)) == 1 and len(refusals(bench)) == told + 1, "said again it is refused again"
    assert concerns(bench) == ["rollback"]


@pytest.mark.parametrize("other", [{"reason": "lost"}, {"place": "f (a.py:2)"}])
def test_another_reason_or_place_is_another_wish(bench: Bench, other: dict[str, str]) -> None:
    ask(bench)
    bench.apply_plan("h1", "h2")
    ask(bench, **other)  # type: ignore[arg-type]  # names of its texts
    assert len(restores(bench)) == 2 and refusals(bench) == []


def test_an_operator_who_takes_the_fleet_back_has_looked(bench: Bench) -> None:
    ask(bench)
    bench.apply_plan("h1", "h2")
    ask(bench)
    bench.feed(ev.RestoreRequested(1, "t", 1, "back to 1"))
    bench.apply_plan("h1", "h2")
    assert concerns(bench) == [], "the agent has another life"
    ask(bench)
    assert [agent for agent, _, _ in restores(bench)] == ["a0", "", "a0"]


def test_the_log_refuses_the_second_time_too(bench: Bench) -> None:
    """A leader that does not know what the last one has done proposes it, perhaps."""
    ask(bench)
    again = next(x for x in bench.log if isinstance(x, op.Restore))
    other = op.Restore(bench.state.plan_number, 3, ("h1", "h2"), again.reason, 0, 0, "new", False, "a0", again.place)
    result = bench.state.apply(op.Operation(bench.now, "c", 1, other))
    assert result.is_refused and bench.state.plan_number == 2


def test_a_leader_that_dies_before_the_entry_has_done_nothing_and_the_word_comes_again(bench: Bench) -> None:
    bench.held = (ev.CheckLine,)
    ask(bench)
    bench.held, bench.waiting = (), []
    bench.start_leader("next")
    for host in ("h1", "h2"):
        bench.attach(host, f"{host}-1", plan=1)
    assert bench.state.plan_number == 1
    ask(bench)
    assert len(restores(bench)) == 1


def test_another_plan_that_comes_first_ends_the_wish(bench: Bench) -> None:
    bench.held = (ev.Propose,)
    bench.say("h1", msg.AgentFailed("a0", bench.state.image.agents["a0"].incarnation, "bug"))
    ask(bench)
    assert wanted_by(bench) == "a0"
    bench.held = ()
    bench.release()
    assert bench.state.plan_number == 2 and restores(bench) == [] and wanted_by(bench) == ""


def test_without_a_snapshot_there_is_nothing_to_go_back_to() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    ask(bench)
    assert "no snapshot is complete" in refusals(bench)[0].reason


def past(bench: Bench) -> list[PastRollback]:
    """What the newest plan tells the hosts of returns."""
    return list([x for x in bench.directives("h1") if isinstance(x, msg.Plan)][-1].rollbacks)


def test_plans_say_which_returns_there_have_been_why_and_what_the_turn_had_done(bench: Bench) -> None:
    done = encode_requests([("step", "look", "done"), ("call", "b", "late")])
    ask(bench, done=done)
    bench.apply_plan("h1", "h2")
    assert past(bench) == [PastRollback(1, 3, "a0", "f (a.py:1)", "astray", done)]
    assert past(bench)[0].requests == (("step", "look", "done"), ("call", "b", "late"))
    bench.feed(ev.RestoreRequested(1, "t", 1, "back to 1"))
    bench.apply_plan("h1", "h2")
    bench.say("h2", msg.Leave("gone"))
    bench.apply_plan("h1")
    assert [(x.number, x.epoch, x.agent, x.reason) for x in past(bench)] == [
        (1, 3, "a0", "astray"),
        (2, 1, "", "back to 1"),
    ], "and the loss of a host is none"


def test_only_the_newest_returns_are_kept_and_their_numbers_go_on(bench: Bench) -> None:
    for number in range(ROLLBACKS_KEPT + 2):
        ask(bench, reason=f"reason {number}")
        bench.apply_plan("h1", "h2")
    assert [x.number for x in past(bench)] == list(range(3, ROLLBACKS_KEPT + 3))


def test_whoever_may_go_back_twice_is_refused_the_third_time(bench: Bench) -> None:
    for _ in range(3):
        ask(bench, at_most=2)
        bench.apply_plan("h1", "h2") if not refusals(bench) else None
    assert len(restores(bench)) == 2 and "it has gone back 2 times" in refusals(bench)[0].reason


@pytest.mark.parametrize(("turn", "epoch"), [(4, 3), (3, 2), (2, 1)])
def test_before_the_turn_is_the_newest_snapshot_in_which_it_has_not_begun(bench: Bench, turn: int, epoch: int) -> None:
    bench.begun_turns = {1: 1, 2: 2, 3: 3}
    ask(bench, to="turn", turn=turn)
    assert [line for _, line, _ in restores(bench)] == [epoch]


def test_a_turn_that_has_begun_in_all_of_them_is_refused(bench: Bench) -> None:
    bench.begun_turns = {1: 7, 2: 7, 3: 7}
    ask(bench, to="turn", turn=7)
    assert restores(bench) == [] and len(refusals(bench)) == 1


def test_a_plain_turn_has_begun_in_no_snapshot(bench: Bench) -> None:
    ask(bench, to="turn")
    assert [line for _, line, _ in restores(bench)] == [3]


def test_what_a_turn_had_done_is_cut_at_its_beginning() -> None:
    many = [("step", f"{number:0500d}", "done") for number in range(64)]
    kept = PastRollback(1, 1, "a", "f", "why", encode_requests(many)).requests
    assert len(encode_requests(many)) <= REQUESTS_BYTES_MAX and kept == tuple(many[-len(kept) :]) and kept

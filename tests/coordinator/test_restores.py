"""The leader core: going back on purpose, who hears what, and leaders that die in its middle."""

import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.recovery_plans import REFUSE_NS
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Rejected, Unknown
from snapline.messages import host_messages as msg


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start_fleet("h1", "h2")
    return made


def ask(bench: Bench, epoch: int, *, request: int = 1, token: str = "t", drop: bool = False) -> None:
    bench.feed(ev.RestoreRequested(request, token, epoch, f"back to {epoch}", drop))


def answers(bench: Bench) -> list[ev.AnswerRestore]:
    return [x for x in bench.commands if isinstance(x, ev.AnswerRestore)]


def plans(bench: Bench, host: str = "h1") -> list[tuple[int, int, int]]:
    found = [x for x in bench.directives(host) if isinstance(x, msg.Plan)]
    return [(x.number, x.line_epoch, x.drop_before) for x in found]


def snapshots(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.snapshot("h1", "h2")


def test_target_is_read_first_and_one_that_is_damaged_is_refused(bench: Bench) -> None:
    snapshots(bench, 2)
    bench.damaged[1] = "packs/x"
    ask(bench, 1)
    assert [x.refused for x in answers(bench)] == ["epoch 1 is damaged: go back to one of epochs 2"]
    assert plans(bench) == [(1, 0, 0)] and bench.state.phase == "running"


def test_asked_twice_it_is_done_once(bench: Bench) -> None:
    snapshots(bench, 2)
    bench.held = (ev.CheckLine,)
    ask(bench, 1)
    ask(bench, 1, request=2)
    bench.held = ()
    bench.release()
    ask(bench, 1, request=3)
    assert answers(bench) == [ev.AnswerRestore(1, 2), ev.AnswerRestore(2, 2), ev.AnswerRestore(3, 2)]
    assert bench.count(op.Restore) == 1


def test_of_two_at_once_the_second_is_refused_and_may_come_again(bench: Bench) -> None:
    snapshots(bench, 3)
    bench.held = (ev.CheckLine,)
    ask(bench, 2)
    ask(bench, 1, request=2, token="other")
    bench.held = ()
    bench.release()
    assert [(x.request, x.plan) for x in answers(bench)] == [(2, 0), (1, 2)] and "about to go back" in answers(bench)[
        0
    ].refused
    ask(bench, 1, request=3, token="other")
    assert plans(bench)[-1] == (3, 1, 0)


def test_next_leader_answers_who_asks_again_from_the_log(bench: Bench) -> None:
    snapshots(bench, 2)
    ask(bench, 1)
    bench.start_leader("next")
    ask(bench, 1, request=7)
    assert answers(bench)[-1] == ev.AnswerRestore(7, 2) and bench.count(op.Restore) == 1


@pytest.mark.parametrize("held", [ev.CheckLine, ev.Propose])
def test_leader_that_dies_before_the_entry_has_done_nothing(bench: Bench, held: type[ev.Command]) -> None:
    snapshots(bench, 2)
    bench.held = (held,)
    ask(bench, 1)
    bench.held, bench.waiting = (), []
    bench.start_leader("next")
    assert bench.state.newest_complete() == 2 and bench.state.plan_number == 1
    for host in ("h1", "h2"):
        bench.attach(host, f"{host}-1", plan=1)
    ask(bench, 1, request=2)
    assert answers(bench) == [ev.AnswerRestore(2, 2)]


def test_leader_that_dies_after_the_entry_leaves_a_plan_that_the_next_one_tells(bench: Bench) -> None:
    snapshots(bench, 2)
    ask(bench, 1)
    bench.start_leader("next")
    for host in ("h1", "h2"):
        bench.attach(host, f"{host}-1", plan=1)
    assert plans(bench)[-1] == (2, 1, 0)
    bench.apply_plan("h1", "h2")
    assert bench.state.phase == "running"


@pytest.mark.parametrize("outcome", [Unknown("late"), Rejected("no leader")])
def test_entry_that_did_not_come_through_is_proposed_again(bench: Bench, outcome: Unknown | Rejected) -> None:
    snapshots(bench, 2)
    bench.outcomes[op.Restore] = [outcome]
    ask(bench, 1)
    bench.pass_time(0.5)
    assert answers(bench) == [ev.AnswerRestore(1, 2)] and bench.state.newest_complete() == 1


def test_during_a_recovery_it_is_the_answer_to_the_recovery(bench: Bench) -> None:
    snapshots(bench, 2)
    bench.drop("h2")
    bench.pass_time(3, silent=("h2",))
    assert bench.state.phase == "recovering"
    ask(bench, 1)
    bench.pass_time(4, silent=("h2",))
    plan = bench.state.plan
    assert plan is not None and (plan.line_epoch, plan.hosts, plan.lost) == (1, ["h1"], ["h2"])
    assert answers(bench) == [ev.AnswerRestore(1, 2)]


def test_word_that_no_plan_follows_for_a_minute_is_not_carried_out_later(bench: Bench) -> None:
    snapshots(bench, 2)
    bench.held = (ev.CheckLine,)
    ask(bench, 1)
    bench.pass_time(5)
    assert "restore" in [x.kind for x in bench.core.standing().concerns]
    bench.pass_time(REFUSE_NS / 1e9)
    assert "no plan could be made for 60 s" in answers(bench)[-1].refused
    bench.held = ()
    bench.release()
    assert bench.state.newest_complete() == 2 and bench.state.plan_number == 1


def test_fleet_that_has_not_begun_or_has_ended_goes_nowhere(bench: Bench) -> None:
    young = Bench()
    ask(young, 1)
    assert "has not begun" in answers(young)[-1].refused
    snapshots(bench, 1)
    bench.say("h1", msg.StopEvaluated(1, True))
    ask(bench, 1)
    assert "has ended" in answers(bench)[-1].refused

"""In which epoch a fleet ends by `stop_when`: in the newest complete one, and in none with open effects."""

import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as ends
from snapline.messages import host_messages as msg

HOSTS = ("h1", "h2")


@pytest.fixture
def bench() -> Bench:
    """A fleet that runs, whose first epoch h1 is asked about."""
    made = Bench()
    made.start_fleet(*HOSTS)
    made.snapshot(*HOSTS)
    return made


def ended(bench: Bench) -> tuple[str, int, str]:
    image = bench.state.image
    return image.outcome, image.outcome_epoch, image.ending


def asked(bench: Bench) -> msg.EvaluateStop:
    found = [x for host in HOSTS for x in bench.directives(host) if isinstance(x, msg.EvaluateStop)]
    return max(found, key=lambda x: x.epoch)


def holds(bench: Bench, host: str = "h2") -> list[tuple[bool, bool]]:
    """What it was told to hold: inputs, effects."""
    return [(x.holds_inputs, x.holds_effects) for x in bench.directives(host) if isinstance(x, ends.Quiesce)]


def test_yes_about_an_older_epoch_ends_the_fleet_in_the_newest(bench: Bench) -> None:
    bench.snapshot(*HOSTS)
    bench.say("h1", msg.StopEvaluated(1, True))
    assert not bench.state.image.outcome and holds(bench) == [(True, False)]
    assert asked(bench) == msg.EvaluateStop(2, "root-2", is_decided=True)
    bench.say("h1", msg.StopEvaluated(2, True))
    assert ended(bench) == (
        "stopped",
        2,
        "stop_when holds, and epoch 2 is the last one (it was asked of epoch 1)",
    )


def test_no_epoch_begins_while_one_is_looked_at_that_may_be_the_last(bench: Bench) -> None:
    bench.snapshot(*HOSTS)
    bench.say("h1", msg.StopEvaluated(1, True))
    bench.say("h2", msg.WantEpoch(1))
    bench.pass_time(1)
    assert not bench.state.open_epochs()


def test_snapshots_that_are_asked_for_all_the_time_do_not_keep_a_fleet_from_its_end(bench: Bench) -> None:
    """Each epoch is published only after the next one is complete, so there is always a newer one than the checked one."""
    bench.snapshot(*HOSTS)
    bench.held = (ev.PublishEpoch,)
    epoch = bench.snapshot(*HOSTS)
    bench.say("h1", msg.StopEvaluated(1, True))
    for number in range(4):
        bench.say("h1", msg.StopEvaluated(asked(bench).epoch, True))
        bench.feed(ev.SnapshotRequested(10 + number))
        bench.release()
        bench.held = (ev.PublishEpoch,)
        for host in HOSTS:
            for opened in bench.state.open_epochs():
                bench.report(host, opened)
    assert ended(bench)[:2] == ("stopped", epoch)


def test_effects_that_are_open_have_their_ends_first(bench: Bench) -> None:
    bench.say("h1", msg.StopEvaluated(1, False, "", ("desk: pay",)))
    assert not bench.state.image.outcome and holds(bench) == [(True, False)]
    assert "desk: pay" in bench.core.standing().concerns[0].text
    for is_open in (True, False):
        bench.pass_time(1.2)
        (epoch,) = bench.state.open_epochs()
        for host in HOSTS:
            bench.report(host, epoch)
        assert asked(bench) == msg.EvaluateStop(epoch, f"root-{epoch}", is_decided=True)
        bench.say("h1", msg.StopEvaluated(epoch, not is_open, "", ("desk: pay",) if is_open else ()))
    assert ended(bench)[:2] == ("stopped", 3)


def test_epoch_that_completes_before_the_end_is_in_the_log_is_looked_at_too(bench: Bench) -> None:
    bench.feed(ev.SnapshotRequested(7))
    bench.report("h1", 2)
    bench.held = (ev.Propose,)
    bench.say("h1", msg.StopEvaluated(1, True))
    (end,) = [x for x in bench.waiting if isinstance(x, ev.Propose) and isinstance(x.kind, op.EndFleet)]
    bench.held, bench.waiting = (), []
    bench.report("h2", 2)
    assert bench.state.newest_complete() == 2
    operation = op.Operation(bench.now, end.client, end.sequence, end.kind)
    bench.feed(ev.ProposalEnded(end.token, Committed(bench.state.apply(operation))))
    assert not bench.state.image.outcome
    bench.pass_time(1)
    bench.say("h1", msg.StopEvaluated(2, True))
    assert ended(bench)[:2] == ("stopped", 2)


def test_fleet_whose_predicate_fails_ends_in_its_newest_epoch_too(bench: Bench) -> None:
    bench.snapshot(*HOSTS)
    bench.say("h1", msg.StopEvaluated(1, False, "ZeroDivisionError"))
    bench.say("h1", msg.StopEvaluated(2, True))
    assert ended(bench) == ("failed", 2, "stop_when failed on epoch 1: ZeroDivisionError")


def test_plan_takes_the_decision_back_since_it_starts_from_an_older_state(bench: Bench) -> None:
    bench.say("h1", msg.StopEvaluated(1, False, "", ("desk: pay",)))
    bench.say("h1", msg.AgentFailed("a0", 1, "it failed"))
    bench.apply_plan(*HOSTS)
    assert bench.state.plan_number == 2 and bench.state.phase == "running"
    assert asked(bench) == msg.EvaluateStop(1, "root-1")
    bench.say("h1", msg.StopEvaluated(1, False))
    assert bench.core.standing().concerns == () and holds(bench)[-1] == (False, False)


def test_host_that_comes_back_is_told_to_take_no_inputs(bench: Bench) -> None:
    bench.say("h1", msg.StopEvaluated(1, False, "", ("desk: pay",)))
    bench.drop("h2")
    bench.attach("h2", plan=1)
    assert holds(bench) == [(True, False)]


def test_log_of_an_earlier_release_may_end_a_fleet_in_an_older_epoch(bench: Bench) -> None:
    bench.snapshot(*HOSTS)
    state = FleetState.restore(bench.state.freeze())
    late = op.EndFleet(1, "stopped", "it holds", is_newest=True)
    assert state.apply(op.Operation(1, "x", 1, late)).is_refused
    assert not state.apply(op.Operation(1, "x", 2, op.EndFleet(1, "stopped", "it holds"))).is_refused


def test_turns_that_have_done_something_outside_have_some_seconds_to_end(bench: Bench) -> None:
    going_on = ("desk: a turn that has done pay",)
    bench.say("h1", msg.StopEvaluated(1, True, "", going_on))
    assert not bench.state.image.outcome
    for _ in range(6):
        bench.pass_time(1.2)
        if open_epochs := bench.state.open_epochs():
            for host in HOSTS:
                bench.report(host, open_epochs[0])
            bench.say("h1", msg.StopEvaluated(open_epochs[0], True, "", going_on))
    assert ended(bench)[0] == "stopped"

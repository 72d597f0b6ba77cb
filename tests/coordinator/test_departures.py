"""Planned ends: hosts that are to stop, and agents that are to move, wait for effects that are being called, and for a snapshot."""

from collections.abc import Callable

import pytest
from tests.coordinator.bench import Bench
from tests.coordinator.logged_world import LoggedHost, LoggedWorld

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.messages import host_messages as ends
from snapline.messages import host_messages as msg

HOSTS = ("h1", "h2")


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start_fleet(*HOSTS)
    return made


def may_leave(bench: Bench, host: str = "h1") -> list[int]:
    return [x.epoch for x in bench.directives(host) if isinstance(x, ends.MayLeave)]


def holds(bench: Bench, host: str = "h1") -> list[bool]:
    return [x.holds_effects for x in bench.directives(host) if isinstance(x, ends.Quiesce)]


def report_open(bench: Bench) -> int:
    (epoch,) = bench.state.open_epochs()
    for host in HOSTS:
        bench.report(host, epoch)
    return epoch


def test_host_that_is_to_stop_leaves_when_an_epoch_holds_what_was_done(bench: Bench) -> None:
    bench.say("h1", ends.WantLeave("SIGTERM"))
    assert holds(bench) == [True] and may_leave(bench) == []
    bench.pass_time(1)
    epoch = report_open(bench)
    assert may_leave(bench) == [epoch] and may_leave(bench, "h2") == []
    bench.pass_time(1)
    assert not bench.state.open_epochs(), "one is enough"
    bench.say("h1", msg.Leave())
    bench.pass_time(1)
    assert bench.state.plan_number == 2 and bench.state.plan is not None and bench.state.plan.line_epoch == epoch


def test_epoch_that_was_open_when_effects_were_called_is_not_the_last(bench: Bench) -> None:
    bench.feed(ev.SnapshotRequested(1))
    bench.calling = ["h2"]
    bench.say("h1", ends.WantLeave("SIGTERM"))
    report_open(bench)
    bench.pass_time(1)
    assert may_leave(bench) == [] and not bench.state.open_epochs(), "h2 calls an effect"
    assert [(x.kind, x.hosts) for x in bench.core.standing().concerns] == [("effects", ("h2",))]
    bench.say("h2", ends.Quiesced(1))
    bench.pass_time(1)
    assert may_leave(bench) == [] and report_open(bench) == 2
    assert may_leave(bench) == [2]


def test_effects_are_waited_for_for_half_a_minute(bench: Bench) -> None:
    bench.calling = ["h2"]
    bench.say("h1", ends.WantLeave("SIGTERM"))
    bench.pass_time(29)
    assert not bench.state.open_epochs()
    bench.pass_time(2)
    report_open(bench)
    assert may_leave(bench) == [1]


def test_host_of_a_fleet_that_does_not_run_may_leave_at_once() -> None:
    bench = Bench()
    bench.attach("h1")
    bench.say("h1", ends.WantLeave("SIGTERM"))
    assert may_leave(bench) == [0]


def test_all_hosts_share_one_last_epoch(bench: Bench) -> None:
    for host in HOSTS:
        bench.say(host, ends.WantLeave("SIGTERM"))
    bench.pass_time(1)
    report_open(bench)
    assert may_leave(bench) == may_leave(bench, "h2") == [1]


def test_host_that_goes_before_its_epoch_holds_up_nothing(bench: Bench) -> None:
    bench.say("h1", ends.WantLeave("SIGTERM"))
    bench.drop("h1")
    bench.attach("h1", plan=1)
    bench.pass_time(1)
    assert holds(bench, "h2") == [True, False]


def test_coordinator_that_is_to_stop_waits_for_an_epoch_and_sends_nobody_away(bench: Bench) -> None:
    bench.feed(words.CoordinatorStopRequested())
    assert not bench.core.parts.departures.is_saved
    bench.pass_time(1)
    report_open(bench)
    assert bench.core.parts.departures.is_saved
    assert may_leave(bench) == [] == may_leave(bench, "h2")


def test_agents_do_not_move_while_an_effect_is_called(bench: Bench) -> None:
    bench.calling = ["h2"]
    bench.feed(words.MovesRequested(1, ("h1",), (), False))
    bench.pass_time(1)
    assert holds(bench) == [True] and not bench.state.open_epochs()
    bench.say("h2", ends.Quiesced(1))
    bench.pass_time(1)
    epoch = report_open(bench)
    bench.pass_time(1)
    assert bench.state.plan_number == 2 and bench.state.plan is not None and bench.state.plan.line_epoch == epoch


@pytest.mark.parametrize("protocol", ["uncoordinated", "bcs", "koo-toueg"])
def test_last_epoch_holds_all_agents_also_where_they_checkpoint_by_themselves(protocol: str) -> None:
    world = LoggedWorld(1, protocol, hosts=2, agents=4, period_ms=0)
    world.run(5)
    heard: list[ends.MayLeave] = []
    for host in world.hosts.values():
        assert isinstance(host, LoggedHost)
        host.hear = _kept(heard, host.hear)  # type: ignore[method-assign,assignment]
    moved = {
        name: agent.number
        for host in world.hosts.values()
        if isinstance(host, LoggedHost)
        for name, agent in host.living.items()
        if agent.has_moved
    }
    assert moved, "somebody has done something since its last checkpoint"
    world.hosts["h1"].say(ends.WantLeave("SIGTERM"))
    assert world.run(30, lambda: bool(heard))
    assert heard[0].epoch == world.state.newest_complete()
    base = world.core.parts.lines.ledger.base  # type: ignore[union-attr]
    assert all(base[agent] > number for agent, number in moved.items() if agent in base), (base, moved)
    world.run(2)
    assert not world.frozen_hosts()


def _kept(heard: list[ends.MayLeave], hear: Callable[[msg.Directive], None]) -> Callable[[msg.Directive], None]:
    def keep(directive: msg.Directive) -> None:
        if isinstance(directive, ends.MayLeave):
            heard.append(directive)
        hear(directive)

    return keep

"""The leader core: what holds the fleet up although every host can be heard. Each case is decided within three host time-outs."""

import pytest
from tests.coordinator.bench import MS, SECOND, Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.hosts.failure_detector import CUT_NS, STANDBY_NS
from snapline.coordinator.leader.recovery_plans import ANSWER_NS
from snapline.coordinator.state import operations as op
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import UnreachedPeer
from snapline.messages.status import Concern

THREE_TIMEOUTS_S = 3 * CUT_NS / SECOND


class Cables:
    """What hosts say of their links: `pull` one, `mend` it. Told by both sides, or by one."""

    def __init__(self, bench: Bench, *hosts: str) -> None:
        self.bench = bench
        self.since: dict[tuple[str, str], int] = {}
        self.is_waited = True
        for host in hosts:
            bench.beats[host] = lambda host=host: self.beat(host)  # type: ignore[misc]  # mypy cannot infer the lambda

    def beat(self, host: str) -> msg.Heartbeat:
        plan, hosts = self.bench.state.plan, self.bench.state.image.hosts
        is_there = plan is not None and host in plan.hosts
        unreached = [
            UnreachedPeer(peer, hosts[peer].start, self.bench.now - since, self.is_waited)
            for (teller, peer), since in self.since.items()
            if teller == host and is_there and plan is not None and peer in plan.hosts
        ]
        return msg.Heartbeat(1, plan=self.bench.state.plan_number, unreached=tuple(unreached))

    def pull(self, one: str, *others: str, is_one_sided: bool = False) -> None:
        for other in others:
            self.since[one, other] = self.bench.now
            if not is_one_sided:
                self.since[other, one] = self.bench.now

    def mend(self, one: str, other: str) -> None:
        self.since.pop((one, other), None)
        self.since.pop((other, one), None)


def fleet(*hosts: str, agents: int = 0) -> tuple[Bench, Cables]:
    bench = Bench(hosts_expected=len(hosts), agents=agents or 2 * len(hosts))
    bench.start_fleet(*hosts)
    return bench, Cables(bench, *hosts)


def evict(bench: Bench) -> list[str]:
    """Who was put out so far, in order."""
    return [lost.host for kind in bench.log if isinstance(kind, op.LoseHosts) and kind.is_spare for lost in kind.hosts]


def come_back(bench: Bench, *hosts: str) -> None:
    """Hosts whose streams were closed open others."""
    for host in hosts:
        if host not in bench.current:
            bench.attach(host, plan=bench.state.plan_number)


def kinds(bench: Bench) -> list[str]:
    return [concern.kind for concern in bench.core.standing().concerns]


def the_only(concerns: tuple[Concern, ...]) -> Concern:
    (concern,) = concerns
    return concern


# ---- cuts -----------------------------------------------------------------------------------------------------------


def test_where_very_many_agents_have_their_first_turns_links_have_time() -> None:
    """Hosts of a hundred thousand put each other out as soon as the fleet ran."""
    bench, cables = fleet("h1", "h2", "h3", agents=30_000)
    cables.pull("h1", "h2")
    bench.pass_time(3 + CUT_NS / SECOND - 0.5)
    assert evict(bench) == []
    bench.pass_time(1.5)
    assert evict(bench) == ["h2"]


def test_of_a_cut_pair_the_larger_id_goes_and_its_agents_move() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(THREE_TIMEOUTS_S)
    assert evict(bench) == ["h2"]
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.hosts, plan.lost) == (2, ["h1", "h3"], ["h2"])
    assert plan.reason.startswith("host h2: cut from h1 for 2."), plan.reason
    assert {record.host for _, record in bench.state.living_agents()} == {"h1", "h3"}
    bench.apply_plan("h1", "h3")
    assert bench.state.phase == "running"


def test_a_host_that_was_put_out_comes_back_and_the_fleet_goes_on_without_it_while_the_cut_lasts() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.held = (ev.CheckLine,)
    bench.pass_time(2.2)
    come_back(bench, "h2")
    bench.release()
    assert bench.state.image.hosts["h2"].state == "alive"
    bench.apply_plan("h1", "h3")
    bench.pass_time(120)
    assert evict(bench) == ["h2"] and bench.state.plan_number == 2 and bench.state.phase == "running"


def test_the_plan_does_not_wait_for_who_was_put_out_nor_use_it_when_it_is_back_before() -> None:
    bench, cables = fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.held = (ev.CheckLine,)
    cables.pull("h1", "h2")
    bench.pass_time(2.2)
    assert bench.state.phase == "recovering" and bench.state.plan_number == 1
    come_back(bench, "h2")
    assert bench.core.parts.host_sessions.attached() == ["h1", "h2"]
    bench.release()
    plan = bench.state.plan
    assert plan is not None and plan.hosts == ["h1"]


def test_who_is_cut_from_more_peers_goes() -> None:
    bench, cables = fleet("h1", "h2", "h3", "h4", "h5")
    cables.pull("h1", "h2")
    bench.pass_time(0.5)
    cables.pull("h1", "h3", "h4")
    bench.pass_time(2)
    assert evict(bench) == ["h1"]


def test_a_network_that_falls_apart_is_decided_at_once() -> None:
    bench, cables = fleet("h1", "h2", "h3", "h4", "h5")
    for one in ("h1", "h2"):
        cables.pull(one, "h3", "h4", "h5")
    bench.pass_time(2.5)
    assert evict(bench) == ["h2", "h1"]
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.hosts) == (2, ["h3", "h4", "h5"])


def test_one_side_that_says_so_is_enough() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h3", is_one_sided=True)
    bench.pass_time(2.5)
    assert evict(bench) == ["h3"]


def test_a_link_that_nothing_waits_for_is_left_alone() -> None:
    bench, cables = fleet("h1", "h2")
    cables.is_waited = False
    cables.pull("h1", "h2")
    bench.pass_time(60)
    assert evict(bench) == [] and kinds(bench) == []
    cables.is_waited = True
    bench.pass_time(1)
    assert evict(bench) == ["h2"], "now something does, and it has been cut for long"


def test_a_link_that_comes_back_in_time_costs_nobody_anything() -> None:
    bench, cables = fleet("h1", "h2")
    for _ in range(10):
        cables.pull("h1", "h2")
        bench.pass_time(1.2)
        cables.mend("h1", "h2")
        bench.pass_time(0.5)
    assert evict(bench) == []


def test_a_host_that_is_busy_is_cut_from_nobody() -> None:
    """Its event loop is held: it answers no peer that opens a link, and what it said of its own is old."""
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(0.5)
    bench.pass_time(60, silent=("h2",))
    assert evict(bench) == []
    bench.pass_time(1.5)
    assert evict(bench) == [], "it opens its links now"
    cables.mend("h1", "h2")
    bench.pass_time(60)
    assert evict(bench) == []


def test_a_cut_that_outlasts_that_a_host_was_busy_is_decided() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(10, silent=("h2",))
    bench.pass_time(3)
    assert evict(bench) == ["h2"]


def test_words_of_another_plan_or_of_another_run_do_not_count() -> None:
    bench, _ = fleet("h1", "h2")
    bench.pass_time(10)
    for plan, start in ((2, 1), (1, 2), (0, 1)):
        unreached = (UnreachedPeer("h2", start, 60 * SECOND, True),)
        bench.say("h1", msg.Heartbeat(1, plan=plan, unreached=unreached))
        bench.feed(ev.TimerFired())
    bench.say("h1", msg.Heartbeat(1, plan=1, unreached=(UnreachedPeer("h1", 1, 60 * SECOND, True),)))
    bench.say("h1", msg.Heartbeat(1, plan=1, unreached=(UnreachedPeer("h9", 1, 60 * SECOND, True),)))
    bench.feed(ev.TimerFired())
    assert evict(bench) == []


def test_a_cut_counts_from_when_the_fleet_runs() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    cables = Cables(bench, "h1", "h2")
    cables.pull("h1", "h2")
    bench.apply_plan("h1")
    bench.pass_time(4)
    assert evict(bench) == []
    bench.apply_plan("h2")
    bench.pass_time(1.9)
    assert evict(bench) == []
    bench.pass_time(0.3)
    assert evict(bench) == ["h2"]


def test_a_new_leader_in_the_middle_learns_of_the_cut() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(1.9)
    bench.start_leader("leader-2")
    come_back(bench, "h1", "h2", "h3")
    bench.apply_plan("h1", "h2", "h3")
    bench.pass_time(0.8)
    assert kinds(bench) == [], "it counts anew"
    bench.pass_time(1.7)
    assert evict(bench) == ["h2"]


def test_a_new_leader_between_the_loss_and_the_plan_does_without_the_host_too() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    bench.snapshot("h1", "h2", "h3")
    bench.held = (ev.CheckLine,)
    cables.pull("h1", "h2")
    bench.pass_time(2.2)
    assert evict(bench) == ["h2"]
    bench.held, bench.waiting = (), []
    bench.start_leader("leader-2")
    come_back(bench, "h2", "h1", "h3")
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.hosts) == (2, ["h1", "h3"])


def test_a_leader_that_did_not_run_suspects_no_link_for_that() -> None:
    bench, cables = fleet("h1", "h2")
    cables.pull("h1", "h2")
    bench.pass_time(0.9)
    bench.now += 10 * SECOND
    bench.feed(ev.TimerFired())
    assert evict(bench) == []
    cables.mend("h1", "h2")
    bench.pass_time(5)
    assert evict(bench) == []


def test_nobody_is_put_out_twice_within_the_rejoin_grace() -> None:
    """A host that was started anew is used again; then its agents' host may be cut off as before."""
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(CUT_NS / SECOND + 0.2)
    gone_ns = bench.now
    bench.attach("h2", "h2-2")
    bench.say("h3", msg.Leave("drained"))
    plan = bench.state.plan
    assert plan is not None and plan.hosts == ["h1", "h2"]
    bench.apply_plan("h1", "h2")
    cables.pull("h1", "h2")
    while len(evict(bench)) < 2 and bench.now < gone_ns + 10 * SECOND:
        bench.pass_time(0.5)
    assert evict(bench) == ["h2", "h2"]
    grace_ns = bench.options.rejoin_grace_ns
    assert grace_ns - 500 * MS <= bench.now - gone_ns <= grace_ns + 500 * MS


def test_a_spare_host_gets_no_agents_unless_nobody_else_is_left() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(2.5)
    come_back(bench, "h2")
    bench.apply_plan("h1", "h3")
    bench.say("h3", msg.Leave("drained"))
    plan = bench.state.plan
    assert plan is not None and plan.hosts == ["h1"]
    bench.apply_plan("h1")
    bench.say("h1", msg.Leave("drained"))
    plan = bench.state.plan
    assert plan is not None and plan.hosts == ["h2"]
    assert bench.state.image.hosts["h2"].spare == ""


def test_a_spare_host_is_used_again_after_a_time() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h1", "h2")
    bench.pass_time(2.5)
    come_back(bench, "h2")
    bench.apply_plan("h1", "h3")
    cables.mend("h1", "h2")
    bench.pass_time(STANDBY_NS / SECOND)
    bench.say("h3", msg.Leave("drained"))
    plan = bench.state.plan
    assert plan is not None and plan.hosts == ["h1", "h2"] and kinds(bench) == []


def test_status_says_who_is_cut_from_whom_and_then_who_is_spare() -> None:
    bench, cables = fleet("h1", "h2", "h3")
    cables.pull("h2", "h1")
    bench.pass_time(1.5)
    concern = the_only(bench.core.standing().concerns)
    assert (concern.kind, concern.hosts) == ("cut", ("h1", "h2"))
    assert concern.text.startswith("hosts h1 and h2 have not reached each other for 1.") and concern.text[-2:] == " s"
    bench.pass_time(1)
    concern = the_only(bench.core.standing().concerns)
    assert (concern.kind, concern.hosts) == ("spare", ("h2",))
    assert "host h2 is alive and gets no agents for now: host h2: cut from h1 for 2." in concern.text


# ---- plans that are not answered ------------------------------------------------------------------------------------


def test_a_host_that_never_applies_the_plan_counts_as_failed() -> None:
    bench = Bench(hosts_expected=3)
    for host in ("h1", "h2", "h3"):
        bench.attach(host)
    bench.apply_plan("h1", "h3")
    bench.pass_time(1.5)
    concern = the_only(bench.core.standing().concerns)
    assert (concern.kind, concern.hosts) == ("plan", ("h2",))
    assert concern.text.startswith("host h2: it has not applied plan 1, and not got on with it for 1.")
    bench.pass_time(THREE_TIMEOUTS_S - 1.5)
    assert evict(bench) == ["h2"]
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.hosts) == (2, ["h1", "h3"])
    come_back(bench, "h2")
    bench.apply_plan("h1", "h3")
    bench.pass_time(30)
    assert bench.state.phase == "running" and bench.state.plan_number == 2


def test_a_plan_that_nobody_answers_is_made_anew_for_all_and_each_time_waited_for_twice_as_long() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.pass_time(THREE_TIMEOUTS_S)
    assert bench.state.plan_number == 2 and evict(bench) == []
    bench.pass_time(2 * ANSWER_NS / SECOND - 1.5)
    assert bench.state.plan_number == 2
    bench.pass_time(1)
    assert bench.state.plan_number == 3
    bench.apply_plan("h1", "h2")
    assert bench.state.phase == "running"


def test_a_host_that_gets_on_with_loading_is_waited_for() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.apply_plan("h1")
    steps = 0

    def beat() -> msg.Heartbeat:
        return msg.Heartbeat(1, plan=1, steps_loaded=steps)

    bench.beats["h2"] = beat
    for steps in range(10):  # noqa: B007  # the heartbeat reads it
        bench.pass_time(4)
    assert evict(bench) == [] and bench.state.plan_number == 1
    bench.pass_time(THREE_TIMEOUTS_S)
    assert evict(bench) == ["h2"]


def test_a_host_that_is_silent_while_it_loads_is_busy_and_waited_for() -> None:
    """The user's code holds Python's lock; once it is heard again it has to get on."""
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.apply_plan("h1")
    bench.pass_time(1)
    bench.pass_time(30, silent=("h2",))
    assert evict(bench) == [] and bench.state.plan_number == 1
    bench.pass_time(THREE_TIMEOUTS_S)
    assert evict(bench) == ["h2"]


def test_steps_under_an_older_plan_are_no_answer() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.apply_plan("h1")
    steps = iter(range(1000))
    bench.beats["h2"] = lambda: msg.Heartbeat(1, plan=0, steps_loaded=next(steps))
    bench.pass_time(THREE_TIMEOUTS_S)
    assert evict(bench) == ["h2"]


def test_a_plan_that_was_applied_in_time_is_waited_for_as_long_as_at_first_the_next_time() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.pass_time(THREE_TIMEOUTS_S)
    bench.apply_plan("h1", "h2")
    bench.say("h1", msg.AgentFailed("a0", 2, "it raised"))
    assert bench.state.plan_number == 3
    bench.pass_time(THREE_TIMEOUTS_S)
    assert bench.state.plan_number == 4


def test_a_leader_that_did_not_run_finds_no_answer_overdue_for_that() -> None:
    bench = Bench(hosts_expected=2)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.apply_plan("h1")
    bench.pass_time(1)
    bench.now += 10 * SECOND
    bench.feed(ev.TimerFired())
    bench.pass_time(1)
    assert evict(bench) == []


# ---- a predicate that hangs -----------------------------------------------------------------------------------------


def asked(bench: Bench, host: str) -> list[int]:
    return [x.epoch for x in bench.directives(host) if isinstance(x, msg.EvaluateStop)]


def test_a_host_that_does_not_answer_whether_to_stop_is_replaced_by_the_next() -> None:
    bench, _ = fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    assert asked(bench, "h1") == [epoch] and asked(bench, "h2") == []
    bench.pass_time(THREE_TIMEOUTS_S)
    assert asked(bench, "h2") == [epoch]
    concern = the_only(bench.core.standing().concerns)
    assert (concern.kind, concern.hosts) == ("stop", ("h1",))
    said = f"host h1 was asked whether the fleet may stop (stop_when, epoch {epoch}) and has not answered for "
    assert concern.text.startswith(said), concern.text
    bench.say("h2", msg.StopEvaluated(epoch, True))
    assert bench.state.image.outcome == "stopped"


def test_a_late_answer_counts() -> None:
    bench, _ = fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    bench.pass_time(30)
    bench.say("h1", msg.StopEvaluated(epoch, True))
    assert bench.state.image.outcome == "stopped"


def test_nobody_is_asked_twice_at_once_and_the_epochs_that_are_asked_about_are_kept() -> None:
    bench, _ = fleet("h1", "h2")
    first = bench.snapshot("h1", "h2")
    bench.pass_time(6)
    second = bench.snapshot("h1", "h2")
    bench.pass_time(12)
    assert (asked(bench, "h1"), asked(bench, "h2")) == ([first], [first])
    assert [concern.hosts for concern in bench.core.standing().concerns] == [("h1",), ("h2",)]
    for _ in range(12):
        bench.snapshot("h1", "h2")
    assert first in bench.state.image.epochs and second not in bench.state.image.epochs
    bench.say("h2", msg.StopEvaluated(first, False))
    assert asked(bench, "h2") == [first, bench.state.image.begun]


def test_who_loses_its_stream_is_asked_again() -> None:
    bench, _ = fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    bench.drop("h1")
    assert asked(bench, "h2") == [epoch]
    bench.attach("h1", plan=1)
    assert asked(bench, "h1") == []


def test_a_leader_that_did_not_run_asks_nobody_else_for_that() -> None:
    bench, _ = fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.now += 10 * SECOND
    bench.feed(ev.TimerFired())
    assert asked(bench, "h2") == []


@pytest.mark.parametrize("is_over", [False, True])
def test_a_fleet_that_has_ended_has_no_concerns(is_over: bool) -> None:
    bench, _ = fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    bench.pass_time(6)
    assert kinds(bench) == ["stop"]
    if is_over:
        bench.say("h1", msg.StopEvaluated(epoch, True))
        assert kinds(bench) == []

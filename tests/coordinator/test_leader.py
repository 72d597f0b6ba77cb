"""The leader core: who is there, starting, recovering, ending."""

import pytest
from tests.coordinator.bench import MS, SECOND, Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Rejected, Unknown
from snapline.messages import host_messages as msg
from snapline.messages.status import Concern

# ---- joining and the first plan -----------------------------------------------------------------------------------------


def test_a_host_in_the_middle_of_its_probe_does_not_count() -> None:
    bench = Bench(hosts_expected=1)
    number = bench.join("h1")
    bench.say("h1", bench.definition)
    assert not bench.state.is_defined and not bench.state.image.hosts
    assert bench.kinds("h1") == ["ReadProbe"]
    bench.say("h1", msg.ProbeRead(f"probes/{number}", b"content"))
    assert bench.kinds("h1") == ["ReadProbe", "Welcome", "Roster", "Roster"]
    bench.say("h1", bench.definition)
    assert bench.last("h1").number == 1  # type: ignore[attr-defined]  # a Plan
    assert bench.given(ev.RemoveProbe) == 1


def test_a_host_that_sees_another_store_is_turned_away_for_good_and_nothing_is_committed_for_it() -> None:
    bench = Bench(hosts_expected=1)
    number = bench.join("h1")
    bench.say("h1", msg.ProbeRead(f"probes/{number}", b"", "no such file"))
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final
    assert "--store must be the same shared directory" in away.reason
    assert bench.closed == [number] and bench.given(ev.RemoveProbe) == 1
    bench.pass_time(1)
    assert not bench.log and not bench.state.image.hosts


def test_of_a_host_one_new_run_is_probed_at_a_time() -> None:
    bench = Bench(hosts_expected=1)
    first = bench.join("h1", "h1-1")
    bench.attach("h1", "h1-2")
    away = bench.heard[first][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final and first in bench.closed
    bench.feed(ev.MessageReceived(first, msg.ProbeRead(f"probes/{first}", b"content")))
    assert bench.state.image.hosts["h1"].instance == "h1-2"
    assert bench.given(ev.RemoveProbe) == 2


def test_a_new_run_that_does_not_see_the_store_does_not_end_the_old_one() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    old = bench.current["h2"]
    number = bench.join("h2", "h2-2")
    bench.say("h2", msg.ProbeRead(f"probes/{number}", b"", "no such file"))
    bench.current["h2"] = old
    bench.pass_time(3)
    assert (bench.state.image.hosts["h2"].start, bench.state.phase, bench.state.plan_number) == (1, "running", 1)


def test_a_host_that_had_the_store_and_starts_while_it_is_away_may_come_again() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    bench.drop("h2")
    number = bench.join("h2", "h2-2")
    bench.say("h2", msg.ProbeRead(f"probes/{number}", b"", "there is no store"))
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final and "cannot read the store now" in away.reason
    bench.attach("h2", "h2-3")
    assert bench.state.image.hosts["h2"].start == 2


def test_a_host_that_is_over_is_forgotten_after_ten_minutes() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    for name in ("h3", "h4"):
        bench.attach(name, plan=0)
        bench.drop(name)
    bench.drop("h2")
    bench.pass_time(5)
    bench.apply_plan("h1")
    assert {host: x.state for host, x in bench.state.image.hosts.items()} == {
        "h1": "alive",
        "h2": "lost",
        "h3": "lost",
        "h4": "lost",
    }
    bench.attach("h4")
    bench.pass_time(590)
    assert len(bench.state.image.hosts) == 4
    bench.pass_time(11)
    assert list(bench.state.image.hosts) == ["h1", "h4"]
    assert bench.count(op.ForgetHosts) == 2
    bench.attach("h2", "h2-2")
    assert bench.state.image.hosts["h2"].start == 2, "above all that were forgotten: G9"


def test_a_spare_host_can_be_forgotten() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    bench.attach("h3", plan=0)
    bench.state.image.hosts["h3"].spare = "it held the fleet up"
    bench.pass_time(1)
    assert [x.hosts for x in bench.core.standing().concerns] == [("h3",)]
    bench.drop("h3")
    bench.pass_time(2)
    bench.feed(words.ForgetHostRequested(1, "h3"))
    bench.pass_time(1)
    assert "h3" not in bench.state.image.hosts and not bench.core.standing().concerns


def test_an_operator_forgets_a_host_but_not_one_that_is_needed() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    bench.attach("h3", plan=0)
    for number, name in enumerate(("h1", "h3", "nobody")):
        bench.feed(words.ForgetHostRequested(number, name))
    assert list(bench.state.image.hosts) == ["h1", "h2", "h3"]
    bench.drop("h3")
    bench.pass_time(2)
    bench.feed(words.ForgetHostRequested(1, "h3"))
    assert list(bench.state.image.hosts) == ["h1", "h2"]


def test_a_store_that_cannot_be_written_turns_hosts_away_for_now() -> None:
    bench = Bench(hosts_expected=1)
    bench.held = (ev.WriteProbe,)
    number = bench.join("h1")
    bench.feed(ev.ProbeWritten(number, "", b"", "disk full"))
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final


def test_a_host_that_never_answers_its_probe_is_turned_away() -> None:
    bench = Bench(hosts_expected=1)
    number = bench.join("h1")
    bench.pass_time(11)
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final


def test_a_host_whose_probe_is_never_written_is_turned_away() -> None:
    """The coordinator's call to the store hangs: nothing else would tell why the host is not there."""
    bench = Bench(hosts_expected=1)
    bench.held = (ev.WriteProbe,)
    number = bench.join("h1")
    bench.pass_time(11)
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final and "could not write a probe" in away.reason


def test_another_definition_is_turned_away_before_and_after_the_fleet_is_defined() -> None:
    bench = Bench(hosts_expected=3)
    early = bench.join("h2", digest=b"other")
    bench.attach("h1")
    late = bench.join("h3", digest=b"other")
    for number in (early, late):
        away = bench.heard[number][-1]
        assert isinstance(away, msg.TurnedAway) and away.is_final and "another definition of fleet" in away.reason
        assert "triggers" in away.reason and "snapline snapshot fork" in away.reason


KEPT = ("agents=a (m:A), b (m:B)", "protocol=p", "triggers=every 1 s", "rpo_s=None")


@pytest.mark.parametrize(
    ("parts", "changed"),
    [
        (("agents=a (m:A)", "protocol=p", "triggers=every 5 s", "odd"), "no agent b any more; triggers (was every 1 s, is every 5 s)"),
        (("agents=a (m:A), b (m:B), d (m:D), c (m:C)", *KEPT[1:]), "new agents c, d"),
        (("agents=a (n:A), b (m:B)", *KEPT[1:]), "the class of agent a (was m:A, is n:A)"),
        (("agents=a (n:A), b (n:A), c (n:A)", *KEPT[1:]), "new agent c; the class of agents a (was m:A, is n:A), b (was m:B, is n:A)"),
        (("agents=5 of digest aa", *KEPT[1:]), "agents (was a (m:A), b (m:B), is 5 of digest aa)"),
        ((f"agents={', '.join(f'x{n} (m:A)' for n in range(9))}", *KEPT[1:]), "new agents x0, x1, x2 and 6 more; no agents a, b any more"),
        (KEPT, "agents, their order and classes, protocol"),
    ],
)  # fmt: skip
def test_the_refusal_of_a_changed_definition_names_only_the_changes(parts: tuple[str, ...], changed: str) -> None:
    bench = Bench(hosts_expected=2)
    bench.parts = KEPT
    bench.attach("h1")
    away = bench.heard[bench.join("h2", digest=b"other", parts=parts)][-1]
    assert isinstance(away, msg.TurnedAway)
    assert f"Changed: {changed}" in away.reason and "snapline snapshot fork" in away.reason


def test_a_definition_that_cannot_be_run_is_turned_away() -> None:
    bench = Bench(hosts_expected=1)
    bench.definition = msg.FleetDefinition("f", "p", 0, 0, (msg.AgentKind("a", "m:A"), msg.AgentKind("a", "m:A")))
    number = bench.attach("h1")
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final and "defined twice" in away.reason


def test_large_definitions_go_into_the_log_in_batches() -> None:
    bench = Bench(hosts_expected=1)
    agents = tuple(msg.AgentKind(f"agent-{n:05}-{'x' * 60}", f"module.{'y' * 60}:Class") for n in range(3000))
    bench.definition = msg.FleetDefinition("f", "p", 0, 0, agents)
    bench.attach("h1")
    assert bench.state.is_defined and len(bench.state.image.agents) == 3000
    assert bench.count(op.DefineAgents) > 5


def test_a_definition_half_in_the_log_is_finished_by_the_next_leader() -> None:
    bench = Bench(hosts_expected=1)
    agents = tuple(msg.AgentKind(f"agent-{n:05}-{'x' * 60}", "m:A") for n in range(2000))
    bench.definition = msg.FleetDefinition("f", "p", 0, 0, agents)
    bench.outcomes[op.DefineAgents] = [Rejected("crash")]
    bench.attach("h1")
    assert not bench.state.is_defined
    bench.start_leader("second")
    bench.attach("h1")
    assert bench.state.is_defined and list(bench.state.image.agents) == [x.agent for x in agents]


def test_a_newer_run_ends_the_older_one() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    old = bench.current["h2"]
    bench.attach("h2", "h2-2")
    assert isinstance(bench.heard[old][-1], msg.TurnedAway) and old in bench.closed
    assert bench.state.image.hosts["h2"].start == 2
    plan = bench.last("h2")
    assert isinstance(plan, msg.Plan) and plan.number == 2
    late = bench.join("h2", "h2-1")
    away = bench.heard[late][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final and "newer process" in away.reason


def test_a_host_of_another_run_of_the_fleet_is_turned_away() -> None:
    bench = Bench(hosts_expected=1)
    number = bench.join("h1", plan=3)
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final and "another run of the fleet" in away.reason


def asked(bench: Bench) -> list[str]:
    """Hosts whose streams stand that were asked for the fleet's definition."""
    said = {host: bench.heard.get(number, []) for host, number in bench.current.items()}
    return [
        host for host, heard in said.items() if any(isinstance(x, msg.Welcome) and x.wants_definition for x in heard)
    ]


def join_unasked(bench: Bench, host: str) -> None:
    """Its Welcome comes; what it asks for is not said yet."""
    number = bench.join(host)
    probe = bench.heard[number][-1]
    assert isinstance(probe, msg.ReadProbe)
    bench.say(host, msg.ProbeRead(probe.path, b"content"))
    assert "Welcome" in bench.kinds(host)


def test_of_many_hosts_some_are_asked_what_the_fleet_is_and_others_for_those_that_go() -> None:
    """All hosts of a large fleet said it at once, none was heard in time, and it never began."""
    bench, hosts = Bench(hosts_expected=8), [f"h{number}" for number in range(8)]
    for host in hosts:
        join_unasked(bench, host)
    assert asked(bench) == hosts[:4]
    bench.drop("h1")
    bench.feed(ev.TimerFired())
    assert asked(bench) == ["h0", "h2", "h3", "h4"]
    bench.pass_time(9.0, silent=("h0",))
    assert asked(bench) == ["h0", "h2", "h3", "h4"]
    bench.pass_time(1.5, silent=("h0",))
    assert bench.state.image.hosts["h0"].state == "alive", "it is busy"
    assert asked(bench) == ["h0", "h2", "h3", "h4", "h5"]
    bench.say("h4", bench.definition)
    assert bench.state.is_defined
    bench.join("h1")
    assert asked(bench) == ["h0", "h2", "h3", "h4", "h5"]


def test_what_a_stream_that_comes_back_hears_in_this_order() -> None:
    bench = Bench(hosts_expected=2)
    bench.start_fleet("h1", "h2")
    bench.feed(ev.SnapshotRequested(1))
    bench.feed(ev.SnapshotRequested(2))
    bench.drop("h2")
    bench.say("h1", msg.EpochRefused(1, "cannot"))
    number = bench.join("h2", plan=1)
    kinds = bench.kinds("h2")
    assert kinds == ["Welcome", "Roster", "Plan", "EndEpoch", "BeginEpoch"]
    welcome = bench.heard[number][0]
    assert isinstance(welcome, msg.Welcome) and not welcome.wants_definition
    assert bench.state.plan_number == 1, "a short break is no loss"


# ---- suspicion ----------------------------------------------------------------------------------------------------------


def test_a_host_whose_stream_stands_is_busy_however_long_it_is_silent() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.pass_time(1.8, silent=("h2",))
    assert busy(bench) == []
    bench.pass_time(60, silent=("h2",))
    assert bench.count(op.LoseHosts) == 0 and bench.state.plan_number == 1
    (concern,) = busy(bench)
    assert concern.hosts == ("h2",) and concern.since_ns >= 60 * SECOND and "h2 is alive" in concern.text
    bench.pass_time(1)
    assert busy(bench) == []


def test_a_stream_that_breaks_after_a_second_of_silence_is_a_loss_at_once() -> None:
    """gRPC breaks that of a frozen host 2 s after its last byte: there is nothing more to wait for."""
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.pass_time(2.0, silent=("h2",))
    bench.drop("h2")
    assert bench.state.image.hosts["h2"].state == "lost"


def test_a_host_that_reports_that_it_is_busy_is_not_lost_with_its_stream() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.pass_time(2.0, silent=("h2",))
    said = ev.HostBusyReported("h2", "h2-1", 2 * SECOND, "agent a1, handler on_go (app.py:7)")
    bench.feed(said)
    bench.drop("h2")
    for _ in range(20):
        bench.say("h1", msg.PeerSuspected("h2", 1, "EOF"))
        bench.pass_time(1)
        bench.feed(said)
    assert bench.count(op.LoseHosts) == 0
    (concern,) = busy(bench)
    assert "agent a1, handler on_go (app.py:7)" in concern.text
    bench.pass_time(2.2)
    assert bench.state.image.hosts["h2"].state == "lost", "its reports have ended, and its stream is not back"
    assert busy(bench) == []


def test_a_new_leader_waits_for_a_host_that_reports_that_it_is_busy() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.start_leader("second")
    bench.attach("h1", plan=1)
    for _ in range(20):
        bench.feed(ev.HostBusyReported("h2", "h2-1", 2 * SECOND, "agent a1"))
        bench.pass_time(1)
    assert bench.count(op.LoseHosts) == 0
    bench.feed(ev.HostBusyReported("h2", "h2-0", 2 * SECOND, "of an older process"))
    bench.pass_time(1.2)
    assert bench.state.image.hosts["h2"].state == "lost"


def busy(bench: Bench) -> list[Concern]:
    return [concern for concern in bench.core.standing().concerns if concern.kind == "busy"]


def test_a_coordinator_that_was_stopped_suspects_nobody() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.now += 30 * SECOND
    bench.feed(ev.TimerFired())
    bench.pass_time(1.0)
    assert bench.count(op.LoseHosts) == 0


def test_a_broken_stream_is_a_loss_after_a_second() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.drop("h2")
    bench.pass_time(0.9)
    assert bench.state.image.hosts["h2"].state == "alive"
    bench.pass_time(0.3)
    assert bench.state.image.hosts["h2"].state == "lost"


def test_a_peers_suspicion_counts_at_once_while_the_stream_is_broken() -> None:
    for is_first in (True, False):
        bench = Bench()
        bench.start_fleet("h1", "h2")
        if is_first:
            bench.say("h1", msg.PeerSuspected("h2", 1, "EOF"))
            assert bench.count(op.LoseHosts) == 0, "the stream stands"
            bench.drop("h2")
        else:
            bench.drop("h2")
            bench.say("h1", msg.PeerSuspected("h2", 1, "EOF"))
        assert bench.state.image.hosts["h2"].state == "lost"


def test_a_suspicion_of_an_older_run_counts_for_nothing() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.attach("h2", "h2-2")
    bench.drop("h2")
    bench.say("h1", msg.PeerSuspected("h2", 1, "EOF"))
    bench.feed(ev.HostExitReported("h2", "h2-1", "killed"))
    assert bench.state.image.hosts["h2"].state == "alive"
    bench.feed(ev.HostExitReported("h2", "h2-2", "killed"))
    assert bench.state.image.hosts["h2"].state == "lost"


def test_a_new_leader_gives_hosts_three_seconds_to_come_back() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.start_leader("second")
    bench.pass_time(2.5)
    bench.attach("h1", plan=1)
    assert bench.kinds("h1") == ["ReadProbe", "Welcome", "Roster", "Plan"]
    bench.pass_time(0.7)
    assert [bench.state.image.hosts[x].state for x in ("h1", "h2")] == ["alive", "lost"]


# ---- recovering ---------------------------------------------------------------------------------------------------------


def test_agents_wait_for_their_host_and_move_after_the_grace() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.feed(ev.HostExitReported("h2", "h2-1", "killed"))
    bench.pass_time(2.5)
    assert bench.state.plan_number == 1
    bench.pass_time(1.0)
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.hosts, plan.lost) == (2, ["h1"], ["h2"])


def test_a_host_back_within_its_grace_gets_its_agents_again() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.feed(ev.HostExitReported("h2", "h2-1", "killed"))
    bench.pass_time(1.0)
    bench.attach("h2", "h2-2")
    plan = bench.last("h2")
    assert isinstance(plan, msg.Plan) and (plan.number, plan.hosts) == (2, ("h1", "h2"))
    assert [x.host for x in plan.agents] == [0, 1, 0, 1]


def test_a_leaving_host_has_no_grace() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.say("h2", msg.Leave("drained"))
    assert bench.state.image.hosts["h2"].state == "left"
    assert bench.state.plan is not None and bench.state.plan.hosts == ["h1"]


def test_after_the_loss_of_all_the_first_one_back_waits_for_the_others() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for host in ("h1", "h2"):
        bench.drop(host)
    bench.pass_time(30)
    bench.attach("h1", "h1-2")
    bench.pass_time(2.0)
    assert bench.state.plan_number == 1
    bench.attach("h2", "h2-2")
    assert bench.state.plan is not None and bench.state.plan.hosts == ["h1", "h2"]


def test_an_older_plan_is_not_sent_to_a_host_that_was_started_again() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.drop("h1")
    bench.attach("h2", "h2-2")
    assert "Plan" not in bench.kinds("h2")


def test_damaged_epochs_are_condemned_and_skipped_down_to_the_initial_states() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for _ in range(2):
        bench.snapshot("h1", "h2")
    bench.damaged = {1: "manifests/one", 2: "packs/two"}
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    plan = bench.state.plan
    assert plan is not None and (plan.line_epoch, plan.condemned) == (0, [2, 1])
    assert [x.path for x in bench.state.image.condemned] == ["packs/two", "manifests/one"]
    assert any(note.level == "warning" and "packs/two" in note.text for note in bench.notes)


def test_a_store_that_is_away_is_waited_for_and_told_of() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.held = (ev.CheckLine,)
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    for _ in range(100):
        bench.feed(ev.LineChecked(1, "the store is away"))
        bench.waiting.clear()
        bench.pass_time(1.2)
    assert not bench.state.image.outcome and not bench.state.image.condemned
    (concern,) = [x for x in bench.core.standing().concerns if x.kind == "store"]
    assert "the store is away" in concern.text and concern.since_ns > 100 * 10**9
    bench.release()
    assert bench.state.plan is not None and bench.state.plan.line_epoch == 1
    assert not [x for x in bench.core.standing().concerns if x.kind == "store"]


def test_hosts_that_cannot_read_the_store_now_do_not_end_the_fleet() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    for number in range(2, 12):
        assert bench.state.plan_number == number
        bench.say("h2", msg.PlanRefused(number, 1, 0, "", "the store is away", may_pass=True))
    assert not bench.state.image.outcome


def test_a_fleet_without_a_whole_snapshot_begins_anew_only_by_an_operators_word() -> None:
    bench = Bench(may_begin_anew=False)
    bench.start_fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.held = (ev.CheckLine,)
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    bench.feed(ev.LineChecked(1, "flipped", "manifests/one"))
    bench.waiting.clear()
    bench.pass_time(30)
    assert bench.state.plan_number == 1 and bench.state.image.condemned
    (concern,) = [x for x in bench.core.standing().concerns if x.kind == "store"]
    assert "--begin-anew" in concern.text


def test_a_plan_refused_for_damage_goes_to_the_epoch_before() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for _ in range(2):
        bench.snapshot("h1", "h2")
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    bench.say("h2", msg.PlanRefused(2, 1, 2, "packs/two", "flipped"))
    plan = bench.state.plan
    assert plan is not None and (plan.number, plan.line_epoch, plan.condemned) == (3, 1, [2])


def test_three_other_refusals_end_the_fleet() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    for number in (2, 3, 4):
        assert bench.state.plan_number == number and not bench.state.image.outcome
        for _ in range(2):
            bench.say("h2", msg.PlanRefused(number, 1, 0, "", "no such class"))
    assert bench.state.phase == "failed" and "no such class" in bench.state.image.ending


def test_an_agent_of_an_older_incarnation_cannot_fail_again() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for _ in range(3):
        bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    assert bench.state.plan_number == 2
    bench.say("h2", msg.AgentFailed("a0", 2, "not mine"))
    assert bench.state.plan_number == 2


def test_an_agent_that_fails_for_ever_ends_the_fleet() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for number in range(1, 30):
        bench.say("h1", msg.AgentFailed("a0", number, "bug"))
    assert bench.state.phase == "failed" and "did not help" in bench.state.image.ending


def test_applied_plans_of_older_numbers_or_runs_confirm_nothing() -> None:
    bench = Bench()
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.say("h1", msg.PlanApplied(0, 1))
    bench.say("h1", msg.PlanApplied(1, 7))
    assert bench.count(op.ConfirmPlan) == 0


# ---- requests of hosts ----------------------------------------------------------------------------------------------------


def test_a_creation_is_answered_with_what_its_agents_must_know() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.feed(ev.SnapshotRequested(1))
    request = msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),))
    bench.say("h1", request)
    assert bench.last("h1") == msg.AgentsReserved(1, recorded=1, open_epochs=(1,), incarnation=1, ordinals=(4,))
    bench.say("h2", msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),)))
    answer = bench.last("h2")
    assert isinstance(answer, msg.AgentsReserved) and "created before" in answer.refused


def test_who_was_over_when_it_asked_hears_nothing() -> None:
    """The next plan settles it. A survivor that buried its creation for this reason would keep the loss."""
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.held = (ev.Propose,)
    bench.say("h1", msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),)))
    held, bench.held, bench.waiting = bench.waiting, (), []
    bench.state.apply(op.Operation(bench.now, "", 0, op.LoseHosts((op.LostHost("h1", 1),), "cut")))
    bench.waiting = held
    bench.release()
    assert not any(isinstance(x, msg.AgentsReserved) for heard in bench.heard.values() for x in heard)


def test_who_asks_again_for_a_creation_that_a_plan_has_made_void_hears_nothing() -> None:
    """It has not heard of the plan, and would create an agent that nobody knows, under another one's ordinal."""
    bench = Bench()
    bench.start_fleet("h1", "h2")
    epoch = bench.snapshot("h1", "h2")
    request = msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),))
    bench.say("h1", request)
    bench.drop("h1")
    going_back = op.Restore(1, epoch, ("h1", "h2"), "asked for", request="mine")
    assert not bench.state.apply(op.Operation(bench.now, "", 0, going_back)).is_refused
    bench.join("h1", plan=1)
    bench.say("h1", request)
    assert "AgentsReserved" not in bench.kinds("h1")


def test_a_repeated_request_gets_the_same_answer_from_the_next_leader() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    request = msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),))
    bench.say("h1", request)
    first = bench.last("h1")
    bench.start_leader("second")
    bench.attach("h1", plan=1)
    bench.say("h1", request)
    assert bench.last("h1") == first


def test_a_refusal_that_was_lost_with_its_stream_is_said_again_at_once() -> None:
    """The host asks once on each stream: without an answer the agent that wants to create another one would stand still for ever."""
    bench = Bench()
    bench.start_fleet("h1", "h2")
    request = msg.ReserveAgents(1, 1, (msg.AgentKind("a0", "m:N"),))
    bench.say("h1", request)
    refusal = bench.last("h1")
    assert isinstance(refusal, msg.AgentsReserved) and refusal.refused
    bench.drop("h1")
    bench.join("h1", plan=1)
    bench.say("h1", request)
    assert bench.last("h1") == refusal


def test_an_answer_reaches_the_stream_that_stands_now() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.held = (ev.Propose,)
    bench.say("h1", msg.RetireAgent(1, 1, "a0"))
    bench.drop("h1")
    bench.join("h1", plan=1)
    bench.release()
    assert bench.last("h1") == msg.AgentRetired(1)


def test_whereabouts() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.say("h1", msg.RetireAgent(1, 1, "a2"))
    bench.say("h1", msg.LocateAgents(2, ("a0", "a1", "a2", "nobody")))
    assert bench.last("h1") == msg.AgentsLocated(
        2, ("a0", "a1", "a2", "nobody"), ("h1", "h2", "", ""), (1, 1, 0, 0), (0, 1, 0, 0)
    )


def test_unknown_outcomes_are_proposed_again_under_their_request_id() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.outcomes[op.CreateAgents] = [Unknown("?"), Rejected("queue full"), Unknown("?")]
    bench.say("h1", msg.ReserveAgents(1, 1, (msg.AgentKind("new", "m:N"),)))
    bench.pass_time(1.0)
    proposed = [x for x in bench.commands if isinstance(x, ev.Propose) and isinstance(x.kind, op.CreateAgents)]
    assert len(proposed) == 4 and len({(x.client, x.sequence) for x in proposed}) == 1
    assert bench.last("h1") == msg.AgentsReserved(1, incarnation=1, ordinals=(4,))


def test_an_unknown_outcome_is_proposed_again_where_no_timer_ever_fires() -> None:
    """Each event puts off the next wish for a timer; hosts and tools may say something more often than that, for ever."""
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.outcomes[op.BeginEpoch] = [Unknown("?")]
    bench.feed(ev.SnapshotRequested(1))
    for _ in range(4):
        bench.now += 50 * MS
        bench.say("h1", msg.Heartbeat(1))
    proposed = [x for x in bench.commands if isinstance(x, ev.Propose) and isinstance(x.kind, op.BeginEpoch)]
    assert len(proposed) == 2 and bench.state.image.begun == 1


# ---- the end --------------------------------------------------------------------------------------------------------------


def test_the_stop_predicate_is_asked_once_at_a_time_about_the_newest_epoch() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    for _ in range(3):
        bench.snapshot("h1", "h2")
    asked = [x for x in bench.directives("h1") if isinstance(x, msg.EvaluateStop)]
    assert [x.epoch for x in asked] == [1]
    bench.say("h1", msg.StopEvaluated(1, False))
    assert bench.last("h1") == msg.EvaluateStop(3, "root-3")
    bench.drop("h1")
    bench.join("h1", plan=1)
    bench.say("h1", msg.StopEvaluated(3, True))
    assert not bench.state.image.outcome, "h2 was asked meanwhile"
    assert bench.last("h2") == msg.EvaluateStop(3, "root-3")
    bench.say("h2", msg.StopEvaluated(3, True))
    assert bench.state.phase == "finished"
    assert bench.last("h1") == msg.Finish(3, "stopped", "stop_when holds in epoch 3")


def test_the_run_ends_when_all_hosts_have_gone_or_after_five_seconds() -> None:
    for leaves in (True, False):
        bench = Bench()
        bench.start_fleet("h1", "h2")
        bench.snapshot("h1", "h2")
        bench.say("h1", msg.StopEvaluated(1, True))
        assert bench.given(ev.EndRun) == 0
        if leaves:
            for host in ("h1", "h2"):
                bench.drop(host)
        else:
            bench.pass_time(5.1)
        ends = [x for x in bench.commands if isinstance(x, ev.EndRun)]
        assert [x.exit_code for x in ends] == [0]
        assert bench.count(op.LoseHosts) == 0


def test_a_host_that_comes_back_after_the_end_hears_of_it() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.drop("h2")
    bench.say("h1", msg.StopEvaluated(1, True))
    bench.join("h2", plan=1)
    assert bench.kinds("h2") == ["Welcome", "Roster", "Finish"]
    stranger = bench.join("h3")
    assert isinstance(bench.heard[stranger][-1], msg.Finish) and stranger in bench.closed


def test_a_host_of_another_fleet_that_comes_after_the_end_is_turned_away_and_hears_both_names() -> None:
    """It would else end as if its own fleet had: `snapline run` in a folder that belongs to another one."""
    bench = Bench(hosts_expected=1)
    bench.start_fleet("h1")
    bench.snapshot("h1")
    bench.say("h1", msg.StopEvaluated(1, True))
    away = bench.heard[bench.join("h3", digest=b"other", fleet="mine")][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final
    assert "defines fleet 'mine', and its coordinator has fleet 'f'" in away.reason and "--data-dir" in away.reason

"""The leader core: epochs, their reports, refs and retention."""

from typing import Any

import pytest
from tests.coordinator.bench import MS, SECOND, Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.epochs.epoch_lifecycle import FORGET_AT_ONCE
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import EPOCHS_OPEN_MAX, Rejected
from snapline.messages import host_messages as msg


def running(**options: Any) -> Bench:
    bench = Bench(**options)
    bench.start_fleet("h1", "h2")
    return bench


def test_only_hosts_with_agents_take_part() -> None:
    bench = Bench(hosts_expected=3, agents=2)
    bench.start_fleet("h1", "h2", "h3")
    bench.feed(ev.SnapshotRequested(1))
    assert "BeginEpoch" not in bench.kinds("h3")
    bench.report("h1", 1)
    bench.report("h2", 1)
    assert bench.state.newest_complete() == 1


def test_reports_of_older_runs_and_repeated_ones_count_once() -> None:
    bench = running()
    bench.feed(ev.SnapshotRequested(1))
    bench.report("h1", 1)
    bench.report("h1", 1)
    bench.say("h2", msg.EpochReport(1, 9, msg.ReportedPack("packs/x", 1, b"")))
    assert bench.given(ev.WriteManifest) == 0
    bench.report("h2", 1)
    bench.report("h2", 1)
    assert bench.given(ev.WriteManifest) == 1
    assert bench.last("h2") == msg.EndEpoch(1, True), "a repeated report is answered with the outcome"


def test_a_ref_that_cannot_be_written_is_tried_again() -> None:
    bench = running()
    bench.held = (ev.PublishEpoch,)
    bench.snapshot("h1", "h2")
    bench.feed(ev.EpochPublished(1, "disk full"))
    bench.pass_time(1.2)
    assert len(bench.waiting) == 2 and not bench.answers
    bench.feed(ev.EpochPublished(1))
    assert bench.answers[0].is_complete


def test_two_fleets_on_one_store_end_this_one() -> None:
    bench = running()
    bench.held = (ev.PublishEpoch,)
    bench.snapshot("h1", "h2")
    bench.feed(ev.EpochPublished(1, "two fleets on one store", is_final=True))
    assert bench.state.phase == "failed"


@pytest.mark.parametrize(
    ("changes", "reason", "level"),
    [
        ({"agents": (0,), "unborn": (False,)}, "no report on a2", "warning"),
        ({"unborn": (False,)}, "differ in length", "error"),
        ({"names": ("a0",)}, "name 1 of 1", "error"),
        ({"names": ("a0", "a1")}, "which is on host h2", "error"),
        ({"names": ("a0", "ghost")}, "not in epoch 1", "error"),
        ({"sent_from": (0,), "sent_to": (1,), "sent_number": (3,)}, "a0→a2: 3 sent, 0 received", "warning"),
        (
            {"received_from": (0,), "received_to": (1,), "received_number": (3,), "recorded_count": (0,)},
            "orphan messages on a0→a2: 0 sent, 3 received",
            "error",
        ),
        ({"pack": msg.ReportedPack("", 0, b"")}, "without a pack", "error"),
    ],
)
def test_an_epoch_that_is_not_whole_is_aborted_loudly(changes: dict[str, object], reason: str, level: str) -> None:
    bench = running()
    bench.feed(ev.SnapshotRequested(1))
    if "pack" in changes:
        pack = changes.pop("pack")
        assert isinstance(pack, msg.ReportedPack)
        bench.say("h1", msg.EpochReport(1, 1, pack, ("a0",), (0,), (False,)))
    else:
        bench.report("h1", 1, **changes)
    bench.report("h2", 1)
    assert bench.state.newest_complete() == 0 and bench.given(ev.WriteManifest) == 0
    assert any(note.level == level and reason in note.text for note in bench.notes), bench.notes
    assert not bench.answers[0].is_complete and reason in bench.answers[0].reason


def test_unborn_agents_belong_to_the_epoch_if_a_sender_inside_names_them() -> None:
    bench = running()
    bench.feed(ev.SnapshotRequested(1))
    bench.say("h1", msg.ReserveAgents(1, 1, (msg.AgentKind("named", "m:N"), msg.AgentKind("unnamed", "m:N"))))
    bench.report(
        "h1",
        1,
        names=("a0", "a2", "named", "unnamed"),
        agents=(0, 1, 2, 3),
        unborn=(False, False, True, True),
        sent_from=(0,),
        sent_to=(2,),
        sent_number=(1,),
        received_from=(0,),
        received_to=(2,),
        received_number=(0,),
        recorded_count=(1,),
    )
    bench.report("h2", 1)
    assert bench.state.image.epochs[1].unborn == ["named"]
    manifest = next(x for x in bench.commands if isinstance(x, ev.WriteManifest))
    assert {x.agent: x.is_unborn for x in manifest.agents} == {
        "a0": False,
        "a2": False,
        "named": True,
        "a1": False,
        "a3": False,
    }
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    plan = bench.last("h1")
    assert isinstance(plan, msg.Plan)
    assert [(x.agent, x.is_unborn) for x in plan.agents][-1] == ("named", True)


def test_a_member_whose_creation_has_not_been_sent_can_be_created_again_after_a_recovery() -> None:
    """Its id was committed before the epoch began, and its parent recorded before it heard that: the spawn is pending there."""
    bench = running()
    bench.say("h1", msg.ReserveAgents(1, 1, (msg.AgentKind("child", "m:N"),)))
    bench.feed(ev.SnapshotRequested(1))
    bench.report("h1", 1, names=("a0", "a2", "child"), agents=(0, 1, 2), unborn=(False, False, True))
    bench.report("h2", 1)
    assert bench.state.image.epochs[1].unborn == ["child"]
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    plan = bench.last("h1")
    assert isinstance(plan, msg.Plan) and [x.agent for x in plan.agents if x.is_unborn] == ["child"]
    bench.say("h1", msg.ReserveAgents(2, 2, (msg.AgentKind("child", "m:N"),)))
    answer = bench.last("h1")
    assert isinstance(answer, msg.AgentsReserved) and not answer.refused


def test_what_a_leaver_was_sent_is_not_checked_and_its_own_sends_are() -> None:
    bench = running()
    bench.say("h1", msg.RetireAgent(1, 1, "a2"))
    bench.feed(ev.SnapshotRequested(1))
    fields: dict[str, object] = {
        "names": ("a0", "a2"),
        "agents": (0,),
        "unborn": (False,),
        "sent_from": (0, 1),
        "sent_to": (1, 0),
        "sent_number": (9, 4),
        "received_from": (1,),
        "received_to": (0,),
        "received_number": (4,),
        "recorded_count": (0,),
    }
    bench.report("h1", 1, **fields)
    bench.report("h2", 1)
    assert bench.state.newest_complete() == 1
    bench.feed(ev.SnapshotRequested(2))
    bench.report("h1", 2, **{**fields, "received_number": (3,)})
    bench.report("h2", 2)
    assert bench.state.newest_complete() == 1


def test_an_epoch_that_takes_too_long_is_aborted() -> None:
    bench = running(timeout_ns=2 * SECOND)
    bench.feed(ev.SnapshotRequested(1))
    bench.report("h1", 1)
    bench.pass_time(2.2)
    assert bench.answers[0].reason == "not complete in time: no report of h2"
    assert msg.EndEpoch(1, False, "not complete in time: no report of h2") in bench.directives("h1")
    bench.report("h2", 1)
    assert isinstance(bench.last("h2"), msg.EndEpoch) and bench.state.newest_complete() == 0


def test_an_epoch_whose_decision_is_on_its_way_is_not_timed_out() -> None:
    bench = running(timeout_ns=2 * SECOND)
    bench.feed(ev.SnapshotRequested(1))
    bench.outcomes[op.CompleteEpoch] = [Rejected("busy")] * 40
    bench.report("h1", 1)
    bench.report("h2", 1)
    bench.pass_time(8)
    assert bench.state.newest_complete() == 1


def test_a_refused_epoch_is_aborted_and_a_final_refusal_ends_the_fleet() -> None:
    bench = running()
    bench.feed(ev.SnapshotRequested(1))
    bench.say("h1", msg.EpochRefused(1, "agent a0, field x: a lock"))
    assert "a lock" in bench.answers[0].reason and bench.state.phase == "running"
    bench.feed(ev.SnapshotRequested(2))
    bench.say("h1", msg.EpochRefused(2, "agent a0, field x: a lock", True))
    assert bench.state.phase == "failed" and "a lock" in bench.state.image.ending


def test_a_loss_aborts_what_is_open() -> None:
    bench = running()
    bench.feed(ev.SnapshotRequested(1))
    bench.feed(ev.HostExitReported("h2", "h2-1", "killed"))
    assert "killed" in bench.answers[0].reason
    bench.feed(ev.SnapshotRequested(2))
    assert bench.answers[1] == ev.AnswerSnapshot(
        2, 0, False, "the fleet is recovering: snapshots are taken while it runs", ""
    )


def test_the_period_begins_when_the_fleet_runs_and_skips_while_four_are_open() -> None:
    bench = Bench(period_ns=200 * MS)
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.pass_time(1.0)
    assert bench.state.image.begun == 0
    bench.apply_plan("h1", "h2")
    bench.pass_time(0.1)
    assert bench.state.image.begun == 0
    bench.pass_time(0.15)
    assert bench.state.image.begun == 1
    bench.pass_time(2.0)
    assert bench.state.image.begun == EPOCHS_OPEN_MAX and bench.core.standing().triggers_skipped in (6, 7)
    bench.feed(ev.SnapshotRequested(1))
    assert "are open" in bench.answers[0].reason


def test_tools_that_ask_together_share_an_epoch() -> None:
    bench = running()
    bench.held = (ev.Propose,)
    for number in (1, 2, 3):
        bench.feed(ev.SnapshotRequested(number))
    bench.release()
    for epoch in (1, 2):
        for host in ("h1", "h2"):
            bench.report(host, epoch)
    assert [(x.request, x.epoch) for x in bench.answers] == [(1, 1), (2, 2), (3, 2)]


def test_the_last_epochs_are_kept_and_older_ones_deleted_together_after_the_log_forgot_them() -> None:
    bench = running(keep_epochs=3)
    for number in range(1, 3 + FORGET_AT_ONCE):
        epoch = bench.snapshot("h1", "h2")
        bench.say("h1", msg.StopEvaluated(epoch, False))
        assert len(bench.state.complete_epochs()) == number
    last = bench.snapshot("h1", "h2")
    assert bench.state.complete_epochs() == [last - 2, last - 1, last]
    deleted = [x.epochs for x in bench.commands if isinstance(x, ev.DeleteEpochs)]
    assert deleted == [tuple(range(1, FORGET_AT_ONCE + 1))]


def test_the_epoch_that_a_host_looks_at_is_kept_until_it_has_answered() -> None:
    bench = running(keep_epochs=2)
    for _ in range(2 + FORGET_AT_ONCE):
        last = bench.snapshot("h1", "h2")
    assert bench.state.complete_epochs() == [1, last - 1, last]
    bench.say("h1", msg.StopEvaluated(1, False))
    for _ in range(FORGET_AT_ONCE):
        bench.say("h1", msg.StopEvaluated(last, False))
        last = bench.snapshot("h1", "h2")
    assert 1 not in bench.state.complete_epochs()


def test_the_store_is_swept_after_aborts_and_never_of_what_is_undecided() -> None:
    bench = running(timeout_ns=SECOND)
    first = [x for x in bench.commands if isinstance(x, ev.SweepStore)]
    assert len(first) == 1, "once at the start: a leader before may have died between log and store"
    bench.snapshot("h1", "h2")
    bench.feed(ev.SnapshotRequested(2))
    bench.pass_time(1.2)
    bench.held = (ev.PublishEpoch,)
    bench.snapshot("h1", "h2")
    bench.feed(ev.SnapshotRequested(4))
    bench.state.image.epoch_timeout_ns = 1000 * SECOND
    entry = bench.core.parts.open_epochs.get(4)
    assert entry is not None
    entry.deadline_ns += 1000 * SECOND
    bench.pass_time(31)
    sweeps = [x for x in bench.commands if isinstance(x, ev.SweepStore)]
    assert sweeps[1:] == [ev.SweepStore(kept=(1, 3), undecided=(4, 3), begun=4)]


def test_a_damaged_base_is_condemned_and_hosts_hear_of_an_older_one() -> None:
    """Else every later epoch that refers to it would fail as well."""
    bench = running()
    for _ in range(2):
        bench.snapshot("h1", "h2")
    bench.held = (ev.WriteManifest,)
    bench.feed(ev.SnapshotRequested(7))
    assert bench.last("h1") == msg.BeginEpoch(3, 1, ("h1", "h2"), 2, 2)
    for host in ("h1", "h2"):
        bench.report(host, 3)
    bench.feed(ev.ManifestWritten(3, "", "flipped", 2, "manifests/two"))
    assert [(x.epoch, x.path) for x in bench.state.image.condemned] == [(2, "manifests/two")]
    assert [(x.epoch, x.is_complete) for x in bench.answers[-1:]] == [(3, False)]
    assert bench.state.phase == "running" and bench.state.newest_complete() == 1
    bench.feed(ev.SnapshotRequested(8))
    assert bench.last("h1") == msg.BeginEpoch(4, 1, ("h1", "h2"), 1, 3)
    bench.attach("h2", "h2-1", plan=1)
    assert msg.BeginEpoch(4, 1, ("h1", "h2"), 1, 3) in bench.directives("h2")


# ---- reports of what has changed ------------------------------------------------------------------------------------

CHANNEL: dict[str, object] = {"names": ("a0", "a2", "a1"), "sent_from": (0,), "sent_to": (2,), "sent_number": (3,)}
OTHER_END: dict[str, object] = {
    "names": ("a1", "a3", "a0"),
    "received_from": (2,),
    "received_to": (0,),
    "received_number": (3,),
    "recorded_count": (0,),
}


def with_a_channel() -> Bench:
    """Epoch 1 is complete, and holds the channel from a0, on h1, to a1, on h2; epoch 2 has begun."""
    bench = running()
    assert [agent for agent, record in bench.state.image.agents.items() if record.host == "h1"] == ["a0", "a2"]
    bench.snapshot()
    bench.report("h1", 1, **CHANNEL)
    bench.report("h2", 1, **OTHER_END)
    bench.feed(ev.SnapshotRequested(2))
    begin = bench.last("h1")
    assert isinstance(begin, msg.BeginEpoch) and begin.told == 1 and not begin.again
    return bench


def test_what_has_not_changed_is_not_told_and_is_in_the_manifest() -> None:
    bench = with_a_channel()
    bench.report("h1", 2, since=1)
    bench.report("h2", 2, **OTHER_END)  # who has not heard what may be left out tells all
    assert bench.state.newest_complete() == 2
    manifests = [command for command in bench.commands if isinstance(command, ev.WriteManifest)]
    assert [manifest.channels for manifest in manifests] == [(("a0", "a1"),)] * 2


def test_reports_that_do_not_suffice_are_asked_for_again_of_those_who_left_something_out() -> None:
    bench = with_a_channel()
    bench.report("h1", 2, since=1)
    bench.report("h2", 2, **{**OTHER_END, "received_number": (4,)})
    again = bench.last("h1")
    assert isinstance(again, msg.BeginEpoch) and again.epoch == 2 and again.again and again.told == 0
    assert not any(isinstance(x, msg.BeginEpoch) and x.again for x in bench.directives("h2"))
    bench.report("h1", 2, since=1)  # it was on its way
    assert bench.state.outcome_of(2) is None
    bench.report("h1", 2, **CHANNEL)
    outcome = bench.state.outcome_of(2)
    assert outcome is not None and "a0→a1: 3 sent, 4 received" in outcome.reason


def test_a_host_that_was_asked_again_is_one_report_in_the_account() -> None:
    bench = with_a_channel()
    bench.report("h2", 2, **{**OTHER_END, "received_number": (4,)})
    bench.report("h1", 2, since=1)
    bench.report("h1", 2, **{**CHANNEL, "sent_number": (4,)})
    assert bench.state.newest_complete() == 2
    completed = [kind for kind in bench.log if isinstance(kind, op.CompleteEpoch)]
    assert [kind.account.reports for kind in completed if kind.account is not None] == [2, 2]


def test_a_new_leader_has_been_told_nothing() -> None:
    bench = with_a_channel()
    bench.start_leader("second")
    for host in ("h1", "h2"):
        bench.attach(host, plan=1)
        assert [(x.epoch, x.told) for x in bench.directives(host) if isinstance(x, msg.BeginEpoch)] == [(2, 0)]
    bench.report("h1", 2, since=1)  # to the leader before
    bench.report("h2", 2, **OTHER_END)
    assert bench.given(ev.WriteManifest) == 1, "of an epoch before it, it knows nothing"
    bench.report("h1", 2, **CHANNEL)
    assert bench.state.newest_complete() == 2


def test_after_an_agent_has_left_all_is_told_again() -> None:
    """Its channels are in the epoch before; that they are left out does not say that they are there still."""
    bench = with_a_channel()
    bench.report("h1", 2, since=1)
    bench.report("h2", 2, since=1)
    bench.say("h1", msg.RetireAgent(1, 1, "a2"))
    bench.feed(ev.SnapshotRequested(3))
    for host in ("h1", "h2"):
        bench.report(host, 3, since=2)
    again = bench.last("h1")
    assert isinstance(again, msg.BeginEpoch) and again.again
    bench.report("h1", 3, **{**CHANNEL, "agents": (0,), "unborn": (False,)})
    bench.report("h2", 3, **OTHER_END)
    assert bench.state.newest_complete() == 3


def test_under_another_plan_all_is_told() -> None:
    bench = with_a_channel()
    bench.report("h1", 2, since=1)
    bench.report("h2", 2, since=1)
    record = bench.state.image.hosts["h2"]
    bench.feed(ev.HostExitReported("h2", record.instance, "killed"))
    bench.attach("h2", "h2-2")
    bench.pass_time(3)
    bench.apply_plan(*bench.current)
    bench.feed(ev.SnapshotRequested(3))
    begin = next(x for x in reversed(bench.directives("h1")) if isinstance(x, msg.BeginEpoch))
    assert bench.state.plan_number == 2 and begin.plan == 2 and begin.told == 0

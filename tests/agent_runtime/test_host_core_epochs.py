"""The host core's part in epochs and plans. Events in, commands out."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.agent_runtime.driving import MS, SECOND, Driver, checkpoint, coordinated

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.coordinator_messages import heartbeat_of
from snapline.agent_runtime.host.modes import coordinated as mode
from snapline.channels.frame import LinkHello
from snapline.channels.link_events import LINK_VERSION
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import InTransitMessage

Drive = Callable[..., Driver]


def begin(driver: Driver, epoch: int) -> list[ev.HostOutput]:
    return driver.feed(msg.BeginEpoch(epoch, driver.plan))


def mark(driver: Driver, epoch: int, **numbers: int) -> None:
    """The other host has recorded: its marker item arrives, with the last numbers of `z`."""
    if not driver.is_connected:
        driver.connect()
    driver.remote.mark(epoch, {("z", receiver): number for receiver, number in numbers.items()})
    driver.flush()


def stored(driver: Driver, epoch: int) -> ev.StoreEpoch:
    (found,) = [command for command in driver.all_of(ev.StoreEpoch) if command.epoch == epoch]
    return found


def in_transit(driver: Driver, epoch: int, agent: str) -> dict[str, list[bytes]]:
    record = stored(driver, epoch).records[agent]
    return {sender: [message.payload for message in messages] for sender, messages in record.in_transit.items()}


# ---- recording ------------------------------------------------------------------------------------------------------


def captured(said: list[ev.HostOutput]) -> list[str]:
    return [command.agent for command in said if isinstance(command, ev.CaptureState)]


def test_who_is_idle_records_by_and_by_and_at_the_latest_before_its_turn(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with thousands of agents goes on hearing and answering meanwhile."""
    monkeypatch.setattr(mode, "RECORDED_AT_ONCE", 1)
    driver = drive()
    driver.connect()
    assert captured(begin(driver, 1)) == ["a"]
    assert driver.core.wakeup_ns is not None and driver.core.wakeup_ns <= driver.now
    assert not driver.remote.heard, "the marker says that all have recorded"
    driver.wake("b")
    last = [type(x) for x in driver.said if isinstance(x, ev.CaptureState | ev.StartTurn)][-2:]
    assert len(driver.captures("b")) == 1 and last == [ev.CaptureState, ev.StartTurn]
    assert captured(driver.feed(ev.TimerFired())) == []
    assert driver.core.wakeup_ns is None or driver.core.wakeup_ns > driver.now


def test_begun_twice_or_for_another_plan_means_nothing(drive: Drive) -> None:
    driver = drive()
    begin(driver, 1)
    assert begin(driver, 1) == []
    assert driver.feed(msg.BeginEpoch(2, 7)) == []


def test_two_epochs_at_once_share_one_image(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    begin(driver, 1)
    driver.remote_sends("z", "a", b"\x01w0", stamp=0)
    driver.remote_sends("z", "a", b"\x01w1", stamp=1)
    begin(driver, 2)
    driver.remote_sends("z", "a", b"\x01w2", stamp=2)
    driver.end("a", ("b", b"\x01x"))
    (capture,) = driver.captures("a")
    assert capture.epochs == (1, 2)
    assert [capture.epochs for capture in driver.captures("b")] == [(1,), (2,)]
    mark(driver, 1, a=2)
    mark(driver, 2, a=3)
    assert in_transit(driver, 1, "a") == {"z": [b"\x01w0"]}
    assert in_transit(driver, 2, "a") == {"z": [b"\x01w0", b"\x01w1"]}
    assert in_transit(driver, 1, "b") == in_transit(driver, 2, "b") == {"a": [b"\x01x"]}


# ---- links that are opened meanwhile -----------------------------------------------------------------------------------


def test_a_link_brings_the_epoch_that_has_begun_there(drive: Drive) -> None:
    driver = drive()
    driver.remote.link.begun = 4
    driver.connect()
    assert [capture.epochs for capture in driver.captures("a")] == [(1, 2, 3, 4)] and coordinated(
        driver.core
    ).epochs.keys() == {1, 2, 3, 4}
    assert [store.epoch for store in driver.all_of(ev.StoreEpoch)] == [1, 2, 3, 4], "no marker is waited for"


def test_an_epoch_that_begins_while_a_link_is_being_opened_waits_for_what_its_ends_agree_on(drive: Drive) -> None:
    driver = drive()
    driver.feed(ev.StreamOpened("h2", 1))
    begin(driver, 1)
    assert not driver.all_of(ev.StoreEpoch), "the other end may have been linked first"
    driver.feed(ev.StreamClosed("h2"))
    driver.connect(attempt=2)
    assert driver.core.peers["h2"].floor == 1 and stored(driver, 1)


def test_at_who_is_lost_or_far_away_nobody_knocks_without_end(drive: Drive) -> None:
    """A time that has passed and stays would keep the processor busy until the next plan."""
    driver = drive(host="h3", starts=False)
    driver.end("a", ("z", b"\x011"))
    driver.feed(ev.TimerFired(), 10 * SECOND)
    assert len(driver.all_of(ev.KnockAtPeer)) == 2 and driver.core.wakeup_ns == driver.now + 2 * SECOND
    driver.feed(msg.Roster((msg.RosterEntry("h3", "", 1),)))
    driver.feed(ev.TimerFired(), 3 * SECOND)
    assert len(driver.all_of(ev.KnockAtPeer)) == 2
    assert driver.core.wakeup_ns is not None and driver.core.wakeup_ns > driver.now


def test_whoever_knocks_is_dialled_if_it_is_of_this_plan(drive: Drive) -> None:
    driver = drive()
    wrong = ({"plan": 2}, {"host_start": 9}, {"cluster": "another"}, {"host": "h9"}, {"peer_start": 9})
    for fields in wrong:
        assert driver.feed(ev.PeerKnocked(knock(**fields))) == []
    assert driver.feed(ev.PeerKnocked(knock())) == [ev.DialPeer("h2", "")]
    assert driver.feed(ev.PeerKnocked(knock())) == [], "it is dialled already"


def knock(**changes: Any) -> LinkHello:
    fields: dict[str, Any] = {"cluster": "c", "host": "h2", "host_start": 1, "peer_start": 1, "plan": 1}
    return LinkHello(**{**fields, **changes}, attempt=0, received=0, version=LINK_VERSION)


# ---- ending ---------------------------------------------------------------------------------------------------------


def test_an_epoch_that_ended_before_it_was_known_is_never_recorded(drive: Drive) -> None:
    driver = drive()
    driver.feed(msg.EndEpoch(1, False))
    driver.remote_sends("z", "a", b"\x011", stamp=1)
    assert not driver.all_of(ev.CaptureState) and not coordinated(driver.core).epochs
    driver.end("a")
    begin(driver, 2)
    assert driver.captures("a")[0].epochs == (2,)


def test_an_epoch_that_ends_while_it_is_owed_is_dropped(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    begin(driver, 1)
    assert ev.DropEpoch(1) in driver.feed(msg.EndEpoch(1, False))
    driver.end("a")
    assert not driver.captures("a")
    mark(driver, 1)
    assert not driver.all_of(ev.StoreEpoch)


def test_an_epoch_that_ends_while_a_later_one_is_owed(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    begin(driver, 1)
    begin(driver, 2)
    driver.feed(msg.EndEpoch(1, False))
    driver.end("a")
    assert driver.captures("a")[0].epochs == (2,)


def test_a_durable_part_is_reported_and_said_again(drive: Drive) -> None:
    driver = drive()
    begin(driver, 1)
    mark(driver, 1)
    assert driver.feed(ev.EpochStored(1, 9)) == [], "of another plan"
    assert driver.feed(ev.EpochStored(1, 1)) == [ev.ReportEpoch(1)]
    assert ev.ReportEpoch(1) in driver.feed(msg.Welcome(1, "c"))
    driver.feed(msg.EndEpoch(1, True))
    assert ev.ReportEpoch(1) not in driver.feed(msg.Welcome(1, "c"))
    assert driver.feed(ev.EpochStored(1, 1)) == []


def test_an_epoch_without_an_image_is_refused_and_never_reported(drive: Drive) -> None:
    """Stored without it, the agent would count as not created yet, and be lost with the next recovery."""
    driver = drive()
    begin(driver, 1)
    assert driver.feed(ev.CaptureFailed("a", (1,), "no such field")) == [msg.EpochRefused(1, "no such field")]
    mark(driver, 1)
    driver.feed(ev.EpochStored(1, 1))  # it was on its way to the store already
    assert not driver.all_of(ev.ReportEpoch)
    assert msg.EpochRefused(1, "no such field") in driver.feed(msg.Welcome(1, "c")), (
        "the word may be lost with the stream"
    )
    driver.feed(msg.EndEpoch(1, False))
    assert not any(isinstance(command, msg.EpochRefused) for command in driver.feed(msg.Welcome(1, "c")))


def test_that_a_part_could_not_be_written_is_said_until_the_epoch_has_ended(drive: Drive) -> None:
    """There may be no coordinator just then: the epoch would wait for its time-out."""
    driver = drive()
    begin(driver, 1)
    mark(driver, 1)
    refusal = msg.EpochRefused(1, "disk full")
    assert driver.feed(ev.EpochNotStored(1, 7, "of another plan")) == []
    assert driver.feed(ev.EpochNotStored(1, 1, "disk full")) == [refusal]
    assert refusal in driver.feed(msg.Welcome(1, "c"))
    driver.feed(msg.EndEpoch(1, False))
    assert refusal not in driver.feed(msg.Welcome(1, "c"))


def test_a_refused_epoch_is_not_written(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    begin(driver, 1)
    driver.feed(ev.CaptureFailed("a", (1,), "no such field"))
    mark(driver, 1)
    assert not driver.all_of(ev.StoreEpoch)


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_ends_everything_and_loads_anew(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    begin(driver, 1)
    commands = driver.receive_plan(2, begun=1)
    assert [type(command) for command in commands] == [ev.UndialPeer, ev.DropEpoch, ev.CancelTurns, ev.LoadAgents]
    assert driver.last(ev.LoadAgents).agents == tuple(ev.Placement(agent, "k", "h1", 2) for agent in "ab")
    assert not driver.core.agents and not driver.core.is_loaded
    loaded = driver.load(2)
    assert msg.PlanApplied(2, 1) in loaded and not driver.core.peers
    assert [turn.incarnation for turn in driver.turns.values()] == [2, 2]


def test_older_plans_are_ignored_and_the_same_one_is_confirmed_again(drive: Drive) -> None:
    driver = drive(plan=3)
    assert driver.receive_plan(2) == []
    assert driver.receive_plan(3) == [msg.PlanApplied(3, 1)]
    assert driver.load(2) == [] and driver.load(3) == []


def test_a_plan_that_comes_while_another_is_loaded_takes_its_place(drive: Drive) -> None:
    driver = drive()
    driver.receive_plan(2)
    assert driver.receive_plan(2) == [], "it is being loaded"
    driver.receive_plan(3)
    assert driver.load(2) == [] and not driver.core.agents
    assert msg.PlanApplied(3, 1) in driver.load(3)


def test_nothing_of_the_fleet_is_taken_while_a_plan_is_loaded(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    driver.receive_plan(2)
    assert begin(driver, 5) == []
    assert driver.feed(ev.StreamOpened("h2", 2)) == [ev.CloseStream("h2", "no link of this plan")]
    driver.feed(ev.TimerFired())
    driver.feed(ev.BatchEnded())
    assert msg.PlanApplied(2, 1) not in driver.feed(msg.Welcome(1, "c"))


def test_a_plan_that_cannot_be_loaded_is_refused_until_the_next(drive: Drive) -> None:
    driver = drive()
    driver.receive_plan(2, line=3)
    refusal = msg.PlanRefused(2, 1, 3, "packs/x", "damaged")
    assert driver.feed(ev.LoadFailed(1, 3, "", "late")) == []
    assert driver.feed(ev.LoadFailed(2, 3, "packs/x", "damaged")) == [refusal]
    assert refusal in driver.feed(msg.Welcome(1, "c"))
    driver.receive_plan(4)
    assert refusal not in driver.feed(msg.Welcome(1, "c"))


def test_a_store_that_cannot_be_read_just_now_is_tried_again_for_a_minute(drive: Drive) -> None:
    """Refused at once, a plan would be followed by another one for the same line, and three of them end the fleet."""
    driver = drive()
    driver.receive_plan(2, line=3)
    load = driver.last(ev.LoadAgents)
    failed = ev.LoadFailed(2, 0, "", "no such mount", may_pass=True)
    for _ in range(60):
        assert driver.feed(failed) == []
        assert driver.core.wakeup_ns == driver.now + 1000 * MS
        assert driver.feed(ev.TimerFired(), 999 * MS) == [], "too early"
        assert driver.feed(ev.TimerFired(), 1 * MS) == [load] and driver.core.wakeup_ns is None
    refusal = msg.PlanRefused(2, 1, 0, "", "no such mount", may_pass=True)
    assert driver.feed(failed) == [refusal]
    assert refusal in driver.feed(msg.Welcome(1, "c"))


def test_a_gap_in_a_saved_channel_is_found(drive: Drive) -> None:
    saved = checkpoint("a", received={"z": 4}, in_transit={"z": [InTransitMessage(6, 1, b"\x01")]})
    with pytest.raises(ProtocolError, match="channel z → a: message 6 is saved where 5 is due"):
        drive(here=("a",), checkpoints={"a": saved}, begun=3)


def test_a_channel_that_opens_with_the_wrong_number_is_found(drive: Drive) -> None:
    driver = drive(here=("a",), checkpoints={"a": checkpoint("a", received={"z": 4})}, begun=3)
    driver.connect()
    driver.remote.open(1, "z", "a", 4)
    with pytest.raises(ProtocolError, match="channel z → a opens with message 4, but 4 have arrived"):
        driver.pump()


# ---- links ----------------------------------------------------------------------------------------------------------


def test_a_broken_stream_loses_nothing(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    driver.wake("a")
    driver.end("a", ("z", b"\x011"))
    driver.feed(ev.BatchEnded())
    written = [c for c in driver.feed(ev.WriteReady("h2")) if isinstance(c, ev.WriteFrame)]
    assert written, "written, and lost"
    driver.disconnect()
    begin(driver, 1)
    driver.connect(attempt=2)
    driver.flush()
    assert driver.items() == [(("a", "z"), b"\x011", 0)]
    assert driver.remote.heard[-1] == ("marker", 1, {("a", "z"): 1})


def test_a_peer_whose_stream_broke_is_reported_and_a_silent_one_is_not(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    driver.feed(ev.TimerFired(), 3_000 * MS)
    assert driver.all_of(msg.PeerSuspected) == []
    driver.feed(ev.StreamClosed("h2"))
    assert driver.all_of(msg.PeerSuspected) == [msg.PeerSuspected("h2", 1, "stream broken")]


def unreached(driver: Driver) -> list[tuple[str, int, int, bool]]:
    beat = heartbeat_of(driver.core, 1, now_ns=driver.now)
    assert beat.plan == driver.core.plan
    return [(x.host, x.host_start, x.elapsed_ns, x.is_waited) for x in beat.unreached]


def test_heartbeats_say_which_hosts_of_the_plan_are_not_reached_since_when_and_what_waits(drive: Drive) -> None:
    driver = drive(starts=False)
    assert unreached(driver) == [], "nobody has anything to say to it"
    driver.end("b", ("z", b"\x011"))
    assert driver.all_of(ev.DialPeer) == [ev.DialPeer("h2", "")]
    began = driver.now
    driver.now += SECOND
    assert unreached(driver) == [("h2", 1, driver.now - began, True)]
    driver.flush()
    assert unreached(driver) == []
    driver.feed(ev.StreamClosed("h2"))
    broken = driver.now
    driver.feed(ev.StreamOpened("h2", 7))
    driver.feed(ev.StreamClosed("h2"), 1_500 * MS)
    assert unreached(driver) == [("h2", 1, driver.now - broken, False)], (
        "an attempt that comes to nothing changes nothing"
    )
    driver.end("a", ("z", b"\x011"))
    assert unreached(driver) == [("h2", 1, driver.now - broken, True)]
    driver.connect(attempt=8)
    assert unreached(driver) == []


def test_a_marker_waits_for_a_link_too(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    driver.flush()
    driver.disconnect()
    assert [row[3] for row in unreached(driver)] == [False]
    begin(driver, 1)
    assert [row[3] for row in unreached(driver)] == [True]


def test_events_of_unknown_peers_close_their_streams(drive: Drive) -> None:
    driver = drive()
    for event in (ev.StreamOpened("h9", 1), ev.StreamClosed("h9"), ev.WriteReady("h9")):
        assert driver.feed(event) == [ev.CloseStream("h9", "no link of this plan")]

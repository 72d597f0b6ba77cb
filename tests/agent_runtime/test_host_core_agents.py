"""The host core's agents: creation, departure, whereabouts. Events in, commands out."""

from collections.abc import Callable

import pytest
from tests.agent_runtime.driving import Driver, checkpoint, coordinated

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.plans import creation_payload
from snapline.channels import link_events as lk
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.messages import host_messages as msg
from snapline.protocols.names import PROTOCOLS
from snapline.storage.packs.checkpoint import InTransitMessage, ParkedMessage, SpawnRequest

Drive = Callable[..., Driver]

CREATION = creation_payload("k", b"S")


def spawn(driver: Driver, *sends: tuple[str, bytes], agent: str = "c", **outcome: object) -> int:
    """`a` spawns; returns the number of the request."""
    driver.wake("a")
    driver.end("a", *sends, spawns=[(agent, "k", b"S")], **outcome)
    return driver.last(msg.ReserveAgents).request


def reserve(
    driver: Driver, request: int, *, recorded: int = 0, open_epochs: tuple[int, ...] = (), refused: str = ""
) -> list[ev.HostOutput]:
    return driver.feed(msg.AgentsReserved(request, recorded, open_epochs, driver.plan, refused))


def stop(driver: Driver, agent: str = "a", *sends: tuple[str, bytes]) -> int:
    driver.wake(agent)
    driver.end(agent, *sends, stops=True)
    return driver.last(msg.RetireAgent).request


def marked(driver: Driver) -> list[int]:
    """Epochs whose marker item came out on the link."""
    driver.flush()
    return [row[1] for row in driver.remote.heard if row[0] == "marker"]  # type: ignore[misc]  # numbers


def consumed(driver: Driver) -> int:
    """How many messages of h2 hold no room in the link's window any more."""
    link = driver.core.peers["h2"].link
    assert link is not None
    return link._in.consumed_items  # there is no other way to see it


# ---- creation -------------------------------------------------------------------------------------------------------


def test_an_answer_to_an_unknown_request_means_nothing(drive: Drive) -> None:
    driver = drive()
    assert reserve(driver, 99) == []
    assert driver.feed(msg.AgentRetired(99, (), "")) == []
    assert driver.feed(msg.AgentsLocated(99, (), (), ())) == []


def test_a_message_that_overtakes_the_creation_waits_for_it(drive: Drive) -> None:
    """A third agent heard of the child from the coordinator sooner than this host did."""
    driver = drive()
    request = spawn(driver)
    driver.remote_sends("z", "c", b"\x011", b"\x012")
    assert not driver.turns and not driver.core.shared.counts.dead_letters
    reserve(driver, request)
    order = []
    while "c" in driver.turns:
        order.append(driver.turns["c"].payload)
        driver.end("c")
    assert order == [CREATION, b"\x011", b"\x012"]


def test_a_channel_that_opens_before_the_creation_belongs_to_it(drive: Drive) -> None:
    """Its first message may come in a later frame, when the agent is there."""
    driver = drive()
    request = spawn(driver)
    driver.connect(attempt=2)
    driver.remote.open(2, "y", "c", 1)
    driver.pump()
    reserve(driver, request)
    driver.end("c")
    driver.remote_sends("y", "c", b"\x011")
    assert driver.turns["c"].payload == b"\x011" and not driver.core.shared.counts.dead_letters


def test_what_came_early_for_a_refused_spawn_is_dead_letters(drive: Drive) -> None:
    driver = drive()
    request = spawn(driver)
    driver.remote_sends("z", "c", b"\x011", b"\x012")
    reserve(driver, request, refused="no")
    assert driver.core.shared.counts.dead_letters == 3
    (inlet,) = [inlet for inlet in driver.core.peers["h2"].inlets.values() if inlet.receiver == "c"]
    assert inlet.consumed == 2, "else the sender's window would stay narrow"


def test_a_child_is_unborn_in_the_epochs_open_at_its_creation(drive: Drive) -> None:
    driver = drive()
    driver.feed(msg.BeginEpoch(1, 1))
    request = spawn(driver)
    reserve(driver, request, recorded=1, open_epochs=(1,))
    driver.end("c")
    driver.remote.mark(1, {})
    driver.flush()
    assert set(driver.last(ev.StoreEpoch).records) == {"a", "b"}, "its creation is outside the cut too"


def test_all_children_of_one_turn_are_in_an_epoch_begun_after_their_creation(drive: Drive) -> None:
    """The host has heard of the epoch before it hears that their creation was committed."""
    driver = drive()
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S"), ("d", "k", b"S")])
    request = driver.last(msg.ReserveAgents).request
    driver.feed(msg.BeginEpoch(1, 1))
    driver.remote.mark(1, {})
    driver.flush()
    reserve(driver, request, recorded=0, open_epochs=())
    assert set(driver.last(ev.StoreEpoch).records) == {"a", "b", "c", "d"}


def test_a_creation_inside_the_cut_is_in_transit_to_an_unborn_agent(drive: Drive) -> None:
    driver = drive()
    driver.wake("b")
    request = spawn(driver)
    driver.end("b")
    driver.wake("b")
    # The coordinator has begun epoch 1 before it reserved; its word to this host comes in that order, the answer tells.
    reserve(driver, request, recorded=1, open_epochs=(1,))
    driver.end_all()
    driver.remote.mark(1, {})
    driver.flush()
    records = driver.last(ev.StoreEpoch).records
    assert records["c"].is_unborn and [m.payload for m in records["c"].in_transit["a"]] == [CREATION]
    assert records["a"].sent == {"c": 1}


def test_markers_wait_for_pending_reservations(drive: Drive) -> None:
    """A child reserved before the epoch began is in it, and sends its marker too."""
    driver = drive()
    request = spawn(driver)
    driver.remote_sends("z", "b", b"\x011", stamp=1)  # the link brings the news sooner than the coordinator
    assert driver.captures("a") and driver.captures("b") and marked(driver) == []
    reserve(driver, request, recorded=0)
    driver.end_all()
    assert [capture.epochs for capture in driver.captures("c")] == [(1,)]
    assert marked(driver) == [1]


def test_a_restored_spawn_is_reserved_again_and_holds_the_sends_back(drive: Drive) -> None:
    saved = checkpoint("a", spawns=[SpawnRequest("c", "k", b"S")], outbox=[ParkedMessage("b", b"\x012")])
    driver = drive(checkpoints={"a": saved, "b": checkpoint("b")}, begun=3)
    request = driver.last(msg.ReserveAgents).request
    assert not driver.turns
    reserve(driver, request, recorded=3)
    assert driver.turns["c"].what == "create" and driver.turns["b"].payload == b"\x012"


def test_an_unborn_agent_waits_for_its_creation(drive: Drive) -> None:
    """A third agent's message to it was inside the cut, its creation was not."""
    unborn = checkpoint("c", is_unborn=True, is_started=False, in_transit={"z": [InTransitMessage(1, 2, b"\x011")]})
    driver = drive(here=("a", "c"), checkpoints={"a": checkpoint("a"), "c": unborn}, begun=3)
    assert not driver.turns
    request = spawn(driver)
    reserve(driver, request, recorded=3)
    assert driver.turns["c"].what == "create"
    driver.end("c")
    assert driver.turns["c"].payload == b"\x011"


def test_an_unborn_agent_whose_creation_is_in_transit_is_created_again(drive: Drive) -> None:
    transit = {"z": [InTransitMessage(1, 2, b"\x011")], "a": [InTransitMessage(1, 2, CREATION)]}
    unborn = checkpoint("c", is_unborn=True, is_started=False, in_transit=transit)
    driver = drive(here=("a", "c"), checkpoints={"a": checkpoint("a", sent={"c": 1}), "c": unborn}, begun=3)
    assert driver.turns["c"] == ev.StartTurn("c", 1, "create", "a", CREATION)
    driver.end("c")
    assert driver.turns["c"].payload == b"\x011"


def test_what_waits_for_a_creation_holds_no_window_and_is_counted_once(drive: Drive) -> None:
    """The creation may come over the same link: behind a full window it never would."""
    unborn = checkpoint("c", is_unborn=True, is_started=False, in_transit={"z": [InTransitMessage(1, 2, b"\x010")]})
    driver = drive(here=("a", "c"), checkpoints={"a": checkpoint("a"), "c": unborn}, begun=3)
    freed = []
    for payloads in ([b"\x011", b"\x012"], [CREATION], [b"\x013"]):
        driver.remote_sends("y", "c", *payloads, stamp=3)
        driver.flush()
        freed.append(consumed(driver))
    opening = 1  # an item too, which takes room only until it is read
    assert freed == [opening + 2, opening + 3, opening + 3] and driver.turns["c"].what == "create"
    while "c" in driver.turns:
        driver.end("c")
    driver.flush()
    assert consumed(driver) == opening + 4 and driver.core.agents["c"].inlets["y"].consumed == 4


def test_what_a_creator_sent_before_the_creation_is_consumed_before_it(drive: Drive) -> None:
    """Else a checkpoint that counts one consumed message would stand for the first, which was not: lost, and the creation repeated."""
    transit = {"z": [InTransitMessage(1, 2, b"\x010")], "a": [InTransitMessage(1, 2, b"\x011")]}
    unborn = checkpoint("c", is_unborn=True, is_started=False, in_transit=transit)
    driver = drive(here=("a", "c"), checkpoints={"a": checkpoint("a", sent={"c": 1}), "c": unborn}, begun=3)
    assert not driver.turns
    reserve(driver, spawn(driver, ("c", b"\x012")), recorded=3)
    child = driver.core.agents["c"]
    assert driver.turns["c"].what == "create" and child.inlets["a"].consumed == 1
    (letter,) = child.dead_letters
    assert letter.payload == b"\x011" and letter.error == "it left before its sender created agent 'c'"
    order = []
    while "c" in driver.turns:
        order.append(driver.turns["c"].payload)
        driver.end("c")
    assert order == [CREATION, b"\x010", b"\x012"] and child.inlets["a"].consumed == 3


def test_a_second_creation_does_not_touch_the_agent(drive: Drive) -> None:
    transit = {"z": [InTransitMessage(1, 2, CREATION)], "a": [InTransitMessage(1, 2, CREATION)]}
    unborn = checkpoint("c", is_unborn=True, is_started=False, in_transit=transit)
    driver = drive(here=("a", "c"), checkpoints={"a": checkpoint("a", sent={"c": 1}), "c": unborn}, begun=3)
    driver.end("c")
    assert "c" not in driver.turns, "a second turn would replace its state"
    assert "ids are never used twice" in driver.core.agents["c"].dead_letters[0].error


def test_a_child_whose_start_fails_lives_on(drive: Drive) -> None:
    """As one of the fleet's own agents does: its handlers work, and its state is saved."""
    driver = drive()
    reserve(driver, spawn(driver, ("c", b"\x011")))
    driver.fail("c", retries=1)
    assert driver.turns["c"].what == "create"
    driver.fail("c", retries=1)
    assert driver.turns["c"].payload == b"\x011"
    driver.end("c")
    driver.feed(msg.BeginEpoch(1, 1))
    control = driver.captures("c")[0].control
    assert control.is_born and control.is_started and control.dead_letter_count == 1


def test_a_child_that_cannot_be_made_stays_unborn(drive: Drive) -> None:
    driver = drive()
    reserve(driver, spawn(driver, ("c", b"\x011")))
    driver.fail("c", "no such class", is_final=True)
    driver.fail("c", "was never created", is_final=True)
    driver.feed(msg.BeginEpoch(1, 1))
    assert not driver.captures("c")[0].control.is_born


def test_a_child_does_not_record_what_ended_before_it_came(drive: Drive) -> None:
    """Its parent heard of the end; the child would keep that epoch open for ever."""
    driver = drive()
    request = spawn(driver)
    driver.feed(msg.BeginEpoch(1, 1))
    driver.feed(msg.BeginEpoch(2, 1))
    driver.feed(msg.EndEpoch(1, False))
    reserve(driver, request, recorded=0)
    assert [capture.epochs for capture in driver.captures("c")] == [(2,)]
    assert driver.core.agents["c"].protocol.open_epochs() == (2,)


def test_a_child_is_not_unborn_in_an_epoch_that_has_ended_here(drive: Drive) -> None:
    """An answer that is said again after a broken stream is as old as its commit."""
    driver = drive()
    request = spawn(driver)
    driver.feed(msg.BeginEpoch(1, 1))
    driver.feed(msg.EndEpoch(1, False))
    reserve(driver, request, recorded=1, open_epochs=(1,))
    assert driver.core.agents["c"].protocol.open_epochs() == ()


# ---- departure ------------------------------------------------------------------------------------------------------


def test_what_is_sent_to_an_agent_that_left_is_dead_letters(drive: Drive) -> None:
    driver = drive()
    driver.wake("b")
    driver.end("b", ("a", b"\x011"))
    driver.end("a", stops=True)
    driver.feed(msg.AgentRetired(driver.last(msg.RetireAgent).request, (), ""))
    driver.wake("b")
    driver.end("b", *[("a", b"\x01")] * 1000, ("z", b"\x01z"))
    driver.remote_sends("z", "a", *[b"\x01"] * CHANNEL_CREDIT)
    assert driver.core.shared.counts.dead_letters == 1000 + CHANNEL_CREDIT
    assert driver.core.agents["b"].parked == 0
    driver.flush()
    assert driver.remote.credits[driver.remote.channels["z", "a"]] == 2 * CHANNEL_CREDIT


def test_what_was_parked_for_an_agent_that_left_is_dead_letters(drive: Drive) -> None:
    """Parked for ever, it would hold its sender back."""
    driver = drive()
    driver.wake("a")
    driver.wake("b")
    driver.end("b", *[("a", b"\x01")] * 5000)
    driver.end("a", stops=True)
    driver.feed(msg.AgentRetired(driver.last(msg.RetireAgent).request, (), ""))
    assert driver.core.agents["b"].parked == 0 and driver.core.shared.counts.dead_letters == 5000
    driver.wake("b")
    driver.end("b", *[("a", b"\x01")] * 1000)
    assert driver.core.agents["b"].parked == 0 and driver.core.shared.counts.dead_letters == 6000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_channel_stays_usable_when_another_to_the_same_departed_receiver_closes(drive: Drive, protocol: str) -> None:
    """`z` has left. `h2` has closed the channel from `a`, and not yet that from `b`, which opened later."""
    driver = drive(protocol=protocol, starts=False)
    driver.end("a", ("z", b"\x01a"))
    driver.end("b", ("z", b"\x01b"), ("b", b"\x01w"))
    driver.flush()
    channels = {sender: channel for channel, (sender, _, _) in driver.remote.opened.items()}
    driver.remote.link.handle(driver.now, lk.ChannelClosed(channels["a"], by_receiver=True))
    driver.pump()
    driver.end("b", ("z", b"\x01late"))
    driver.flush()
    assert [payload for _, payload, _ in driver.items()] == [b"\x01a", b"\x01b", b"\x01late"]


def test_an_outbox_drains_before_the_leave_is_asked_for(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", *[("b", b"\x01")] * (CHANNEL_CREDIT + 1), stops=True)
    assert not driver.all_of(msg.RetireAgent)
    driver.end_all()
    assert len(driver.all_of(msg.RetireAgent)) == 1


def test_a_turn_may_spawn_and_stop(drive: Drive) -> None:
    driver = drive()
    request = spawn(driver, stops=True)
    assert not driver.all_of(msg.RetireAgent)
    reserve(driver, request)
    assert driver.turns["c"].what == "create" and driver.last(msg.RetireAgent).agent == "a"


def test_a_leaver_stays_until_the_epochs_begun_before_have_ended(drive: Drive) -> None:
    driver = drive()
    driver.feed(msg.BeginEpoch(1, 1))
    driver.feed(msg.BeginEpoch(2, 1))
    request = stop(driver)
    driver.feed(msg.AgentRetired(request, (1, 2), ""))
    driver.feed(msg.EndEpoch(2, True))
    assert "a" in driver.core.agents
    driver.feed(msg.BeginEpoch(3, 1))
    assert len(driver.captures("a")) == 2, "it is in no later epoch"
    assert ev.ForgetAgent("a") in driver.feed(msg.EndEpoch(1, False))


def test_a_leaver_records_an_epoch_begun_before_its_leave_that_is_news_here(drive: Drive) -> None:
    """It is a member, and the epoch waits for it; the stream broke and the word comes late."""
    driver = drive()
    request = stop(driver)
    driver.feed(msg.AgentRetired(request, (1,), ""))
    assert [capture.epochs for capture in driver.captures("a")] == [(1,)]
    driver.feed(msg.BeginEpoch(1, 1))
    driver.remote.mark(1, {})
    driver.flush()
    assert "a" in driver.last(ev.StoreEpoch).records


def test_the_numbers_of_a_leaver_are_reported_until_a_later_epoch_is_complete(drive: Drive) -> None:
    driver = drive()
    driver.feed(msg.AgentRetired(stop(driver, "a", ("b", b"\x01"), ("b", b"\x01")), (), ""))
    driver.end_all()
    for epoch, is_complete in ((1, False), (2, True), (3, True)):
        driver.feed(msg.BeginEpoch(epoch, 1))
        driver.remote.mark(epoch, {})
        driver.flush()
        assert driver.last(ev.StoreEpoch).epoch == epoch
        driver.feed(msg.EndEpoch(epoch, is_complete))
    assert [store.departed for store in driver.all_of(ev.StoreEpoch)] == [{"a": {"b": 2}}, {"a": {"b": 2}}, {}]


def test_a_leaver_whose_leave_was_not_committed_asks_again_after_a_recovery(drive: Drive) -> None:
    driver = drive(checkpoints={"a": checkpoint("a", is_leaving=True), "b": checkpoint("b")}, begun=3)
    assert driver.last(msg.RetireAgent).agent == "a"


def test_a_leaver_is_back_when_its_leave_is_void(drive: Drive) -> None:
    driver = drive(checkpoints={agent: checkpoint(agent) for agent in "ab"}, begun=3)
    driver.feed(msg.AgentRetired(stop(driver), (), ""))
    assert "a" not in driver.core.agents
    driver.receive_plan(2, begun=3, line=3)
    driver.load(2)
    assert not driver.core.agents["a"].is_leaving and coordinated(driver.core).departed == {}
    driver.wake("a")
    assert "a" in driver.turns


def test_timers_of_a_leaver_come_to_nothing(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", timers=[("t", 5, b"\x01")], stops=True)
    driver.feed(ev.TimerFired())
    driver.feed(msg.AgentRetired(driver.last(msg.RetireAgent).request, (), ""))
    assert not driver.turns and driver.core.shared.counts.dead_letters == 0


# ---- whereabouts ----------------------------------------------------------------------------------------------------


def test_the_coordinator_is_asked_once_where_an_agent_is(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.wake("b")
    driver.end("a", ("y", b"\x011"), ("y", b"\x012"))
    driver.end("b", ("y", b"\x013"))
    (located,) = driver.all_of(msg.LocateAgents)
    assert located.agents == ("y",)
    driver.feed(msg.AgentsLocated(located.request, ("y",), ("h2",), (1,), (0,)))
    driver.flush()
    assert driver.items() == [(("a", "y"), b"\x011", 0), (("a", "y"), b"\x012", 0), (("b", "y"), b"\x013", 0)]


def test_messages_to_nobody_are_dead_letters_of_their_sender(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", ("y", b"\x011"), ("y", b"\x012"))
    request = driver.last(msg.LocateAgents).request
    driver.feed(msg.AgentsLocated(request, ("y",), ("",), (0,), (0,)))
    letters = driver.core.agents["a"].dead_letters
    assert [letter.payload for letter in letters] == [b"\x011", b"\x012"]
    assert "there is no agent 'y': check the id, or spawn it first" in letters[0].error
    assert driver.core.agents["a"].parked == 0 and "y" not in driver.core.agents["a"].outlets


def test_an_outbox_to_nobody_may_be_all_that_kept_a_leaver(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", ("y", b"\x011"), stops=True)
    assert not driver.all_of(msg.RetireAgent)
    driver.feed(msg.AgentsLocated(driver.last(msg.LocateAgents).request, ("y",), ("",), (0,), (0,)))
    assert driver.last(msg.RetireAgent).agent == "a"


def test_what_waited_for_an_answer_leaves_when_the_agent_is_spawned_here(drive: Drive) -> None:
    driver = drive()
    driver.wake("b")
    driver.end("b", ("c", b"\x011"))
    request = spawn(driver)
    reserve(driver, request)
    driver.end("c")
    driver.wake("b")
    driver.end("b", ("c", b"\x012"))
    driver.feed(msg.AgentsLocated(driver.last(msg.LocateAgents).request, ("c",), ("h1",), (1,), (0,)))
    got = []
    while "c" in driver.turns:
        got.append(driver.turns["c"].payload)
        driver.end("c")
    assert got == [b"\x011", b"\x012"] and driver.core.agents["b"].parked == 0


def test_an_older_answer_does_not_undo_what_is_known_here(drive: Drive) -> None:
    """ "Nobody" was true when the coordinator looked; the child has been created since."""
    driver = drive()
    driver.wake("b")
    driver.end("b", ("c", b"\x011"))
    located = driver.last(msg.LocateAgents).request
    reserve(driver, spawn(driver))
    driver.end("c")
    driver.feed(msg.AgentsLocated(located, ("c",), ("",), (0,), (0,)))
    assert driver.turns["c"].payload == b"\x011"


def test_messages_for_an_agent_that_is_not_here_are_dead_letters(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "ghost", b"\x011", b"\x012")
    assert driver.core.shared.counts.dead_letters == 2 and not driver.turns


def test_messages_for_another_incarnation_are_dead_letters(drive: Drive) -> None:
    driver = drive()
    driver.connect()
    driver.remote.send("z", "a", b"\x011", incarnation=7)
    driver.pump()
    assert driver.core.shared.counts.dead_letters == 1 and not driver.turns


def test_what_the_coordinator_may_not_have_heard_is_said_again(drive: Drive) -> None:
    driver = drive()
    spawned = spawn(driver)
    stopped = stop(driver, "b")
    again = driver.feed(msg.Welcome(1, "c"))
    assert msg.PlanApplied(1, 1) in again
    assert msg.ReserveAgents(spawned, 1, (msg.AgentKind("c", "k"),), parent="a") in again
    assert msg.RetireAgent(stopped, 1, "b") in again


def test_a_question_for_whereabouts_is_said_again_too(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", ("y", b"\x01"))
    assert driver.last(msg.LocateAgents) in driver.feed(msg.Welcome(1, "c"))

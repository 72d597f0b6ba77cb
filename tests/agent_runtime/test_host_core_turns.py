"""The host core's turns: order, parking, failures, timers. Events in, commands out."""

from collections.abc import Callable

import pytest
from tests.agent_runtime.driving import MS, SECOND, Driver, checkpoint

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_state import DEAD_LETTERS_KEPT, PARKED_MESSAGES_MAX
from snapline.channels.channel import CHANNEL_CREDIT, WINDOW_ITEMS
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import InTransitMessage, SavedTimer

Drive = Callable[..., Driver]


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [b"\x01" + number.to_bytes(4, "big") for number in range(start, start + count)]


# ---- one turn at a time ---------------------------------------------------------------------------------------------


def test_the_end_of_a_turn_of_another_incarnation_means_nothing(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    assert driver.feed(ev.TurnEnded("a", 7, [("b", b"\x01")])) == []
    assert driver.feed(ev.TurnFailed("a", 7, "late", 0)) == []
    assert driver.feed(ev.TurnEnded("nobody", 1)) == []
    driver.end("a")
    assert driver.feed(ev.TurnEnded("a", 1, [("b", b"\x01")])) == [], "no turn of it runs"


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_turn_is_undone_and_tried_again_then_buried_with_its_traceback(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    first = driver.turns["a"]
    for _ in range(2):
        assert driver.fail("a", retries=2) == [ev.UndoTurn("a"), first]
    commands = driver.fail("a", "Traceback …\nValueError: no", retries=2)
    (buried,) = driver.all_of(ev.MessageDeadLettered)
    assert commands[0] == ev.UndoTurn("a") and (buried.agent, buried.error) == ("a", "ValueError: no")
    (letter,) = driver.core.agents["a"].dead_letters
    assert (letter.sender, letter.payload, letter.attempts, letter.time_ns) == ("z", b"\x01w", 3, 5)
    assert letter.error == "Traceback …\nValueError: no" and driver.core.shared.counts.dead_letters == 1


def test_keep_tries_again_without_undoing(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    assert not any(isinstance(command, ev.UndoTurn) for command in driver.fail("a", on_error="keep", retries=1))
    driver.end("a")


def test_what_cannot_help_is_not_tried_again(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    commands = driver.fail("a", retries=2, is_final=True)
    assert not any(isinstance(command, ev.UndoTurn | ev.StartTurn) for command in commands)
    assert len(driver.core.agents["a"].dead_letters) == 1


def test_a_dead_letter_counts_as_received(drive: Drive) -> None:
    """Else the sender's window would narrow, and a restore deliver it again."""
    driver = drive()
    driver.remote_sends("z", "a", *payloads(CHANNEL_CREDIT))
    for _ in range(CHANNEL_CREDIT):
        driver.fail("a", is_final=True)
    driver.flush()
    assert driver.remote.credits == {1: 2 * CHANNEL_CREDIT}
    assert len(driver.core.agents["a"].dead_letters) == DEAD_LETTERS_KEPT
    assert driver.core.agents["a"].dead_letter_count == CHANNEL_CREDIT


def test_a_failing_start_is_tried_again_and_given_up(drive: Drive) -> None:
    driver = drive(starts=False)
    driver.fail("a", retries=1)
    kinds = [driver.turns["a"].what]
    driver.fail("a", retries=1)
    assert driver.core.agents["a"].is_started
    driver.end("b", ("a", b"\x011"))
    assert [*kinds, driver.turns["a"].what] == ["start", "message"]


# ---- on_error = "recover" -------------------------------------------------------------------------------------------


def crash(driver: Driver, agent: str = "a", retries: int = 2) -> list[ev.HostOutput]:
    return driver.fail(agent, "boom", on_error="recover", retries=retries)


def recover(driver: Driver) -> None:
    """A plan from the line; `a` gets its message again."""
    driver.receive_plan(driver.plan + 1, begun=3, line=3)
    driver.load(driver.plan)


def test_a_crashed_agent_is_reported_and_takes_no_more_turns(drive: Drive) -> None:
    driver = drive()
    driver.remote_sends("z", "a", *payloads(2))
    assert crash(driver) == [msg.AgentFailed("a", 1, "boom")]
    driver.remote_sends("z", "a", *payloads(1))
    assert "a" not in driver.turns
    assert driver.feed(msg.Welcome(1, "c"))[-1] == msg.AgentFailed("a", 1, "boom"), "said again"


def test_the_state_of_a_crashed_agent_is_never_recorded(drive: Drive) -> None:
    """It is half changed. The epoch waits, and the plan that follows aborts it."""
    driver = drive()
    driver.wake("a")
    driver.feed(msg.BeginEpoch(1, 1))
    crash(driver)
    driver.remote_sends("z", "a", b"\x01", stamp=0)
    driver.feed(msg.BeginEpoch(2, 1))
    assert not driver.captures("a") and driver.captures("b")
    assert not driver.all_of(ev.StoreEpoch)


def test_a_message_that_keeps_crashing_its_agent_is_buried(drive: Drive) -> None:
    waiting = checkpoint("a", received={"z": 4}, in_transit={"z": [InTransitMessage(5, 2, b"\x01bad")]})
    driver = drive(here=("a",), checkpoints={"a": waiting}, begun=3)
    for _ in range(3):
        assert driver.turns["a"].payload == b"\x01bad"
        crash(driver)
        recover(driver)
    assert "a" not in driver.turns
    (letter,) = driver.core.agents["a"].dead_letters
    assert (letter.payload, letter.attempts) == (b"\x01bad", 3) and "crashed the agent 3 times" in letter.error
    assert driver.core.agents["a"].inlets["z"].consumed == 5


def test_crashes_are_forgotten_once_the_message_succeeded(drive: Drive) -> None:
    """Timers often carry equal messages: a crash an hour must not bury them for ever after the third."""
    waiting = checkpoint("a", in_transit={"z": [InTransitMessage(1, 2, b"\x01tick")]})
    driver = drive(here=("a",), checkpoints={"a": waiting}, begun=3)
    for _ in range(4):
        crash(driver)
        recover(driver)
        assert "a" in driver.turns
        driver.end("a")
        recover(driver)
    driver.end("a")


def test_a_start_that_keeps_crashing_is_given_up(drive: Drive) -> None:
    driver = drive(here=("a",), checkpoints={"a": checkpoint("a", is_started=False)}, begun=3, starts=False)
    for _ in range(3):
        crash(driver)
        recover(driver)
    assert driver.core.agents["a"].is_started and not driver.turns


# ---- credit and room ------------------------------------------------------------------------------------------------


def test_without_room_messages_are_parked_channel_by_channel(drive: Drive) -> None:
    names = [f"z{number}" for number in range(40)]
    driver = drive(there=("z", *names))
    driver.wake("a")
    total = WINDOW_ITEMS + 1000
    driver.end("a", *[(names[n % 40], payload) for n, payload in enumerate(payloads(total))])
    assert driver.core.agents["a"].parked == 1000 + 40, "channel openings take room as well"
    driver.flush()
    for _ in range(3):
        driver.flush()
    assert driver.core.agents["a"].parked == 0
    for name in names:
        got = [row[1] for row in driver.items() if row[0] == ("a", name)]
        assert got == [payload for n, payload in enumerate(payloads(total)) if names[n % 40] == name]


# ---- turns an agent gave itself -------------------------------------------------------------------------------------


def test_a_full_outbox_holds_back_the_turns_an_agent_gave_itself(drive: Drive) -> None:
    """A source then runs no faster than its receivers; turns for others go on, or a cycle would stand still."""
    driver = drive()
    driver.wake("a")
    flood = [("b", payload) for payload in payloads(PARKED_MESSAGES_MAX + CHANNEL_CREDIT + 1)]
    driver.end("a", *flood, ("a", b"\x01own"), timers=[("t", MS, b"\x01tick")])
    driver.feed(ev.TimerFired(), 2 * MS)
    assert "a" not in driver.turns and len(driver.core.agents["a"].deferred) == 2
    driver.wake("a")
    assert driver.turns["a"].sender == "z"
    driver.end("a")
    while "a" not in driver.turns:
        driver.end("b")
    order = []
    while "a" in driver.turns:
        order.append(driver.turns["a"].payload)
        driver.end("a")
    assert order == [b"\x01own", b"\x01tick"]


def test_messages_to_itself_do_not_hold_themselves_back(drive: Drive) -> None:
    """However many an agent sends itself in one turn: each lets another one go."""
    driver = drive()
    driver.wake("a")
    count = PARKED_MESSAGES_MAX + CHANNEL_CREDIT + 1
    driver.end("a", *[("a", payload) for payload in payloads(count)])
    assert driver.core.agents["a"].parked == PARKED_MESSAGES_MAX + 1
    taken = 0
    while "a" in driver.turns:
        taken += 1
        driver.end("a")
    assert taken == count


def test_what_is_held_back_belongs_to_the_checkpoint(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    flood = [("b", payload) for payload in payloads(PARKED_MESSAGES_MAX + CHANNEL_CREDIT + 1)]
    driver.end("a", *flood, ("a", b"\x01own"), timers=[("t", MS, b"\x01tick")])
    driver.feed(ev.TimerFired(), 2 * MS)
    driver.feed(msg.BeginEpoch(1, 1))
    control = driver.captures("a")[-1].control
    assert control.timers == [SavedTimer("t", 0, b"\x01tick")]
    assert len(control.outbox) == PARKED_MESSAGES_MAX + 1
    record = driver.core.agents["a"].protocol.record_of(1)
    assert [message.payload for message in record.in_transit["a"]] == [b"\x01own"]


def test_they_go_on_when_the_outbox_turns_out_to_be_dead_letters(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", *[("nobody", payload) for payload in payloads(PARKED_MESSAGES_MAX + 1)], ("a", b"\x01own"))
    assert "a" not in driver.turns
    request = driver.last(msg.LocateAgents).request
    driver.feed(msg.AgentsLocated(request, ("nobody",), ("",), (0,), (0,)))
    assert driver.turns["a"].payload == b"\x01own"


# ---- timers ---------------------------------------------------------------------------------------------------------


def test_a_timer_becomes_a_turn_when_it_is_due(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", timers=[("t", 10 * MS, b"\x01t")])
    assert driver.core.wakeup_ns is not None and driver.core.wakeup_ns <= driver.now + 10 * MS
    driver.feed(ev.TimerFired(), 9 * MS)
    assert "a" not in driver.turns
    driver.feed(ev.TimerFired(), MS)
    assert driver.turns["a"] == ev.StartTurn("a", 1, "timer", "a", b"\x01t")


@pytest.mark.parametrize("name", ["t", ""])
def test_the_same_name_replaces_a_timer(drive: Drive, name: str) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", timers=[(name, 5 * MS, b"\x01early"), (name, 10 * MS, b"\x01late")])
    driver.feed(ev.TimerFired(), 6 * MS)
    assert "a" not in driver.turns
    driver.feed(ev.TimerFired(), 6 * MS)
    assert driver.turns["a"].payload == b"\x01late"
    driver.end("a")
    assert not driver.core.agents["a"].timers


def test_a_cancelled_timer_stays_silent(drive: Drive) -> None:
    driver = drive()
    driver.wake("a")
    driver.end("a", timers=[("t", 5 * MS, b"\x01"), ("u", 5 * MS, b"\x01u")])
    driver.wake("a")
    driver.end("a", cancelled=["t", "unknown"])
    driver.feed(ev.TimerFired(), SECOND)
    assert driver.turns["a"].payload == b"\x01u"
    driver.end("a")
    assert "a" not in driver.turns


def test_what_has_passed_since_the_checkpoint_counts_for_its_timers(drive: Drive) -> None:
    saved = [
        SavedTimer("late", 90 * MS, b"\x01l"),
        SavedTimer("mid", 50 * MS, b"\x01m"),
        SavedTimer("early", 20 * MS, b"\x01e"),
    ]
    driver = drive(here=("a",), checkpoints={"a": checkpoint("a", timers=saved)}, begun=3)
    driver.receive_plan(2, begun=3, line=3)
    driver.load(2, passed_ns=60 * MS)
    driver.feed(ev.TimerFired(), 0)
    assert driver.turns["a"].payload == b"\x01e", "both are due, and come in the order in which they were"
    driver.end("a")
    assert driver.turns["a"].payload == b"\x01m"
    driver.end("a")
    driver.feed(ev.TimerFired(), 20 * MS)
    assert "a" not in driver.turns, "30 ms are left of the third, less some of the driver's own"
    driver.feed(ev.TimerFired(), 10 * MS)
    assert driver.turns["a"].payload == b"\x01l"


def test_a_fired_timer_that_waits_is_saved_beside_a_new_one_of_its_name(drive: Drive) -> None:
    """Both are owed: the first has fired, the second was set since."""
    driver = drive()
    driver.wake("a")
    driver.end("a", timers=[("t", MS, b"\x01first")])
    driver.wake("a")
    driver.feed(ev.TimerFired(), 2 * MS)
    driver.wake("a")  # behind the timer
    driver.feed(msg.BeginEpoch(1, 1))
    driver.end("a", timers=[("t", 50 * MS, b"\x01second")])
    (capture,) = driver.captures("a")
    assert sorted(capture.control.timers, key=lambda timer: timer.remaining_ns) == [
        SavedTimer("t", 0, b"\x01first"),
        SavedTimer("t", 50 * MS, b"\x01second"),
    ]
    restored = drive(here=("a",), checkpoints={"a": checkpoint("a", timers=capture.control.timers)}, begun=3)
    restored.feed(ev.TimerFired())
    assert restored.turns["a"].payload == b"\x01first"
    restored.end("a")
    restored.feed(ev.TimerFired(), 60 * MS)
    assert restored.turns["a"].payload == b"\x01second"


def test_checkpoints_are_numbered_on_after_a_recovery(drive: Drive) -> None:
    driver = drive(here=("a",), checkpoints={"a": checkpoint("a", number=4)}, begun=3)
    driver.feed(msg.BeginEpoch(4, 1))
    driver.feed(msg.BeginEpoch(5, 1))
    assert [capture.control.number for capture in driver.captures("a")] == [5, 6]

"""Durable turns whose waits meet what is rare: time-outs beside what came, full channels, calls that nobody will answer, large answers."""

import msgspec
import pytest
from tests.agent_runtime.driving import MS, SECOND, Driver, checkpoint
from tests.agent_runtime.test_durable_turns import (
    CALL,
    GO,
    OTHER,
    RECEIVE,
    SEED,
    SLEEP,
    STEP,
    TOLD,
    control,
    done,
    finish_step,
    offer,
    pause,
    reply,
    waiting,
)

from snapline.agent_runtime import durable
from snapline.agent_runtime.durable import call_payload
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_io import REPLIES_BYTES_MAX
from snapline.channels.channel import CHANNEL_CREDIT, WINDOW_ITEMS
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import TURN_TIMER, JournalEntry, ParkedMessage, SavedTimer, SavedTurn

ID = b"01234567"
REFUSED = durable.reply_payload(ID, b"")

# -- time-outs ---------------------------------------------------------------------------------------------------------


def both(driver: Driver) -> None:
    """While the agent is held, what it waits for comes, and the time-out behind it."""
    agent = driver.core.agents["a"]
    agent.is_held = True
    driver.remote_sends("z", "a", TOLD)
    driver.feed(ev.TimerFired(), 20 * MS)
    agent.is_held = False
    driver.remote_sends("z", "a", OTHER)


def test_a_time_out_that_comes_behind_what_was_waited_for_is_none() -> None:
    driver = waiting(RECEIVE, 10 * MS)
    both(driver)
    assert driver.turns["a"].found == done(RECEIVE, TOLD, sender="z")
    pause(driver, SLEEP, timeout_ns=5 * SECOND)
    assert "a" not in driver.turns, "the sleep has only begun"
    assert len(control(driver).timers) == 1


def test_a_time_out_does_not_outlive_its_turn() -> None:
    driver = waiting(RECEIVE, 10 * MS)
    both(driver)
    driver.end("a")
    assert driver.turns["a"].payload == OTHER
    driver.end("a")
    assert "a" not in driver.turns and not control(driver).timers


# -- full channels -------------------------------------------------------------------------------------------------------


def test_what_is_waited_for_comes_though_the_channel_is_full() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", *[OTHER] * CHANNEL_CREDIT)
    driver.flush()
    assert driver.core.agents["a"].inlets["z"].credit_sent > CHANNEL_CREDIT + 1, "else the reply could not leave"
    driver.remote_sends("z", "a", reply())
    assert driver.turns["a"].found == done(CALL, TOLD, sender="z")
    assert len(driver.core.agents["a"].stash) == CHANNEL_CREDIT


@pytest.mark.parametrize("waits", [CALL, SLEEP, STEP])
def test_only_a_channel_that_may_hold_it_is_put_off(waits: JournalEntry) -> None:
    driver = waiting(waits, there=("z", "y"))
    driver.remote_sends("y", "a", *[OTHER] * CHANNEL_CREDIT)
    assert not driver.core.agents["a"].stash


def test_what_waits_for_the_end_of_a_long_turn_does_not_hold_the_window_of_its_link() -> None:
    senders = tuple([f"z{number}" for number in range(WINDOW_ITEMS // CHANNEL_CREDIT)])
    driver = Driver(there=("z", *senders))
    for sender in senders[:2]:
        driver.remote_sends(sender, "a", *[OTHER] * CHANNEL_CREDIT)
    pause(driver, STEP)
    for sender in senders[2:]:
        driver.flush()
        driver.remote_sends(sender, "a", *[OTHER] * CHANNEL_CREDIT)
    driver.flush()
    assert driver.remote.link.items_room == WINDOW_ITEMS


def test_no_room_is_given_back_twice() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO, OTHER, OTHER)
    pause(driver, STEP)
    driver.remote_sends("z", "a", OTHER)
    finish_step(driver)
    driver.end("a")
    driver.remote_sends("z", "a", OTHER)
    driver.end_all()
    driver.flush()
    assert driver.remote.link.items_room == WINDOW_ITEMS and driver.core.agents["a"].received() == {"z": 5}


@pytest.mark.parametrize("before", [0, 200, 300, 700])
def test_what_is_waited_for_from_the_same_host_comes_from_among_many(before: int) -> None:
    driver = waiting(msgspec.structs.replace(CALL, name="b"))
    driver.remote_sends("z", "b", GO)
    driver.end("b", *[("a", OTHER)] * before, ("a", reply()), *[("a", TOLD)] * 400)
    assert driver.turns["a"].found == done(msgspec.structs.replace(CALL, name="b"), TOLD, sender="b")
    seen = []
    while "a" in driver.turns:
        driver.end("a")
        seen += [driver.turns["a"].payload] if "a" in driver.turns else []
    assert seen == [OTHER] * before + [TOLD] * 400


def test_a_turn_that_sends_itself_more_than_its_outbox_holds_goes_on() -> None:
    driver = waiting(STEP)
    finish_step(driver)
    pause(driver, STEP, *[("a", OTHER)] * 5000)
    finish_step(driver, place=1)
    assert driver.turns["a"].what == "segment"


# -- calls that nobody will answer -----------------------------------------------------------------------------------------


def heard(driver: Driver) -> list[bytes]:
    driver.flush()
    return [payload for _, payload, *_ in driver.items()]  # type: ignore[misc]


def test_a_call_whose_turn_fails_for_good_is_answered() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", call_payload(ID, OTHER))
    driver.fail("a", retries=0)
    assert heard(driver) == [REFUSED]


def test_a_call_whose_durable_turn_fails_for_good_is_answered() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", call_payload(ID, OTHER))
    pause(driver, STEP)
    finish_step(driver)
    driver.fail("a", retries=0)
    assert heard(driver) == [REFUSED] and control(driver).turn is None


def test_a_call_to_an_agent_that_is_not_there_is_over() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    call = JournalEntry("call", "nobody", b"12345678")
    pause(driver, call, ("nobody", call_payload(durable.call_id(SEED, 0), OTHER)), timeout_ns=SECOND)
    asked = driver.last(msg.LocateAgents)
    driver.feed(msg.AgentsLocated(asked.request, ("nobody",), ("",), (0,), (0,)))
    assert driver.turns["a"].found == done(call) and not control(driver).timers
    assert len(driver.core.agents["a"].dead_letters) == 1


def test_an_agent_that_is_gone_has_said_what_it_said() -> None:
    driver = waiting(CALL)
    agent = driver.core.agents["a"]
    driver.core._durable.gone(agent, "b")
    assert "a" not in driver.turns
    agent.is_held = True
    driver.remote_sends("z", "a", reply())
    driver.core._durable.gone(agent, "z")
    agent.is_held = False
    driver.remote_sends("z", "a", OTHER)
    assert driver.turns["a"].found == done(CALL, TOLD, sender="z")


NOBODY = JournalEntry("call", "nobody", b"12345678")


def called(waits: JournalEntry, **fields: object) -> Driver:
    """The fleet has gone back to where `a` waited in a call; its handler runs again."""
    turn = SavedTurn("message", "y", GO, SEED, "", [], waits)
    image = msgspec.structs.replace(checkpoint("a", **fields), saved_turn=turn)
    return Driver(here=("a",), checkpoints={"a": image})


def called_nobody() -> Driver:
    """And meanwhile the host has heard that there is no such agent."""
    asking = ParkedMessage("nobody", call_payload(durable.call_id(SEED, 0), OTHER))
    driver = called(NOBODY, outbox=[asking], timers=[SavedTimer(TURN_TIMER, SECOND, b"")])
    asked = driver.last(msg.LocateAgents)
    driver.feed(msg.AgentsLocated(asked.request, ("nobody",), ("",), (0,), (0,)))
    assert len(driver.core.agents["a"].dead_letters) == 1
    return driver


def test_a_call_to_nobody_is_over_also_for_a_turn_that_is_being_run_again() -> None:
    driver = called_nobody()
    pause(driver, NOBODY)
    assert driver.turns["a"].found == done(NOBODY) and not control(driver).timers


def test_a_turn_that_fails_while_it_is_run_again_learns_it_all_the_same() -> None:
    driver = called_nobody()
    driver.fail("a", retries=5)
    driver.feed(ev.TimerFired(), SECOND // 2)
    pause(driver, NOBODY)
    assert driver.turns["a"].found == done(NOBODY)


def test_a_call_that_was_sent_is_waited_for_again() -> None:
    driver = called(CALL, sent={"z": 1})
    pause(driver, CALL)
    assert "a" not in driver.turns
    driver.remote_sends("z", "a", reply())
    assert driver.turns["a"].found == done(CALL, TOLD, sender="z")


def test_a_reply_that_is_here_counts_though_its_sender_is_gone() -> None:
    driver = called(CALL, sent={"z": 1})
    driver.remote_sends("z", "a", reply())
    del driver.core.agents["a"].outlets["z"]
    pause(driver, CALL)
    assert driver.turns["a"].found == done(CALL, TOLD, sender="z")


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_a_large_answer_is_kept_though_later_inputs_are_known() -> None:
    driver = Driver()
    offer(driver, "k1", GO)
    pause(driver, RECEIVE)
    offer(driver, "k2", TOLD)
    driver.end("a", reply=bytes(REPLIES_BYTES_MAX + 1))
    known = {each.key: len(each.reply) for each in control(driver).inputs.keys}
    assert known == {"k1": REPLIES_BYTES_MAX + 1, "k2": 0}

"""The host core's part in durable turns: segments, what they wait for, what is put off, and what a checkpoint holds of it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import MS, SECOND, Driver, checkpoint

from snapline.agent_runtime import durable
from snapline.agent_runtime.durable import DONE, FAILED, LATE, Pause, call_id
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.coordinator_messages import heartbeat_of
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.view_service import description
from snapline.messages import host_messages as msg
from snapline.messages import payloads
from snapline.messages.client_requests import REPEATED, REPLIED
from snapline.messages.host_messages import StandingAgent
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn, StashedMessage

SEED = bytes(16)
GO, TOLD, OTHER = b"\x02Go\x01", b"\x04Told\x01", b"\x05Other\x02"
STEP = JournalEntry("step", "look", b"")
SLEEP = JournalEntry("sleep", "", b"12345678")
RECEIVE = JournalEntry("receive", "Told")
CALL = JournalEntry("call", "z", b"12345678")

Patch = pytest.MonkeyPatch


def pause(
    driver: Driver, waits: JournalEntry, *sends: tuple[str, bytes], timeout_ns: int | None = None
) -> list[ev.HostOutput]:
    return driver.end("a", *sends, pause=Pause(SEED, waits, timeout_ns, []))


def waiting(waits: JournalEntry, timeout_ns: int | None = None, **options: Any) -> Driver:
    """A driver whose agent `a` has taken GO of z, and waits."""
    driver = Driver(**options)
    driver.remote_sends("z", "a", GO)
    pause(driver, waits, timeout_ns=timeout_ns)
    return driver


def done(entry: JournalEntry, result: bytes = b"", outcome: str = DONE, sender: str = "") -> JournalEntry:
    return msgspec.structs.replace(entry, outcome=outcome, result=result, sender=sender)


def finish_step(driver: Driver, result: bytes = b"r", place: int = 0) -> None:
    driver.feed(ev.StepEnded("a", 1, place, DONE, result))


def control(driver: Driver) -> ev.Control:
    """What a checkpoint of `a` would hold."""
    return driver.core.agents["a"].control(driver.now)


# -- segments --------------------------------------------------------------------------------------------------------


def test_a_segment_ends_with_its_sends_and_counts_its_message_as_received() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    said = pause(driver, STEP, ("z", TOLD))
    assert ev.RunStep("a", 1, 0, "look") in said
    driver.flush()
    assert [payload for kind, _, payload, *_ in driver.remote.heard if kind == "item"] == [TOLD]
    agent = driver.core.agents["a"]
    assert agent.received() == {"z": 1} and "a" not in driver.turns
    assert control(driver).turn == SavedTurn("message", "z", GO, SEED, "", [], STEP)


def test_other_messages_wait_until_the_turn_is_over() -> None:
    driver = waiting(STEP)
    driver.remote_sends("z", "a", OTHER)
    assert "a" not in driver.turns
    finish_step(driver)
    turn = driver.turns["a"]
    assert (turn.what, turn.found, turn.turn) == ("segment", done(STEP, b"r"), None)
    driver.end("a")
    assert driver.turns["a"].payload == OTHER and control(driver).turn is None


def test_an_epoch_records_an_agent_that_waits() -> None:
    driver = waiting(STEP)
    said = driver.feed(msg.BeginEpoch(1, 1))
    captured = {each.agent: each.control for each in said if isinstance(each, ev.CaptureState)}
    assert captured["a"].turn is not None and captured["a"].turn.waits == STEP


def test_a_step_that_is_over_is_heard_once() -> None:
    driver = waiting(STEP)
    driver.feed(ev.StepEnded("a", 9, 0, DONE, b"of another life"))
    driver.feed(ev.StepEnded("a", 1, 3, DONE, b"of another place"))
    driver.feed(ev.StepEnded("nobody", 1, 0, DONE, b""))
    assert "a" not in driver.turns
    finish_step(driver)
    finish_step(driver)
    pause(driver, STEP)
    finish_step(driver)
    assert "a" not in driver.turns, "the first step's end, said again"
    finish_step(driver, place=1)
    assert driver.turns["a"].found == done(STEP, b"r")


def test_a_sleep_is_a_timer_and_its_rest_is_saved() -> None:
    driver = waiting(SLEEP, SECOND)
    driver.feed(ev.TimerFired(), SECOND - 10 * MS)
    (timer,) = control(driver).timers
    assert 0 < timer.remaining_ns <= 10 * MS and "a" not in driver.turns
    driver.feed(ev.TimerFired(), 10 * MS)
    assert driver.turns["a"].found == done(SLEEP) and not control(driver).timers


@pytest.mark.parametrize("waits", [RECEIVE, CALL])
def test_what_does_not_come_in_time_is_late(waits: JournalEntry) -> None:
    driver = waiting(waits, SECOND)
    driver.feed(ev.TimerFired(), SECOND)
    assert driver.turns["a"].found == done(waits, outcome=LATE)


def test_what_comes_in_time_ends_the_timer() -> None:
    driver = waiting(RECEIVE, SECOND)
    driver.remote_sends("z", "a", TOLD)
    assert driver.turns["a"].found == done(RECEIVE, TOLD, sender="z")
    pause(driver, SLEEP, timeout_ns=5 * SECOND)
    driver.feed(ev.TimerFired(), SECOND)
    assert "a" not in driver.turns, "the timer of the receive"


# -- what is put off -----------------------------------------------------------------------------------------------------


def reply(place: int = 0) -> bytes:
    return durable.reply_payload(call_id(SEED, place), TOLD)


def test_earlier_messages_of_the_channel_are_received_with_it_and_have_their_turns_later() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", OTHER, GO)
    assert "a" not in driver.turns
    driver.remote_sends("z", "a", reply())
    assert driver.turns["a"].found == done(CALL, TOLD, sender="z")
    agent = driver.core.agents["a"]
    assert agent.received() == {"z": 4}
    assert agent.stash == [StashedMessage("z", OTHER), StashedMessage("z", GO)]
    driver.remote_sends("z", "a", TOLD)
    driver.end("a")
    for payload in (OTHER, GO, TOLD):
        assert driver.turns["a"].payload == payload
        driver.end("a")
    assert not agent.stash and "a" not in driver.turns


def test_what_was_put_off_is_saved() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", OTHER, reply())
    pause(driver, STEP)
    saved = control(driver)
    assert saved.stash == [StashedMessage("z", OTHER)]
    assert saved.turn is not None and saved.turn.journal == [done(CALL, TOLD, sender="z")]


def test_what_was_put_off_can_be_received() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", TOLD, reply())
    pause(driver, RECEIVE)
    assert driver.turns["a"].found == done(RECEIVE, TOLD, sender="z")
    driver.end("a")
    assert "a" not in driver.turns and not driver.core.agents["a"].stash


def test_a_reply_to_another_call_is_none() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", reply(7), durable.reply_payload(b"another!", TOLD))
    assert "a" not in driver.turns


def test_what_was_put_off_fails_as_it_would_have() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", OTHER, reply())
    driver.end("a")
    driver.fail("a", retries=1, waits_ns=(SECOND,))
    assert driver.core.agents["a"].stash == [StashedMessage("z", OTHER)], "it waits, and a checkpoint has it"
    driver.feed(ev.TimerFired(), SECOND)
    driver.fail("a", retries=1, waits_ns=(SECOND,))
    (letter,) = driver.core.agents["a"].dead_letters
    assert (letter.sender, letter.payload, letter.attempts) == ("z", OTHER, 2)


def test_an_agent_that_stops_buries_what_was_put_off() -> None:
    driver = waiting(CALL)
    driver.remote_sends("z", "a", OTHER, reply())
    driver.end("a", stops=True)
    agent, before = driver.core.agents["a"], driver.core.shared.counts.dead_letters
    driver.core._mailboxes.drain(agent)
    assert not agent.stash and driver.core.shared.counts.dead_letters == before + 1


# -- failures ------------------------------------------------------------------------------------------------------------


def test_a_turn_that_fails_is_run_again_by_its_journal() -> None:
    driver = waiting(STEP)
    finish_step(driver)
    undone, again = driver.fail("a", retries=1)
    assert undone == ev.UndoTurn("a") and isinstance(again, ev.StartTurn)
    assert again.found is None and again.turn == SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"r")])


def test_a_step_whose_failure_fails_its_turn_is_run_again() -> None:
    driver = waiting(STEP)
    finish_step(driver)
    pause(driver, STEP)
    driver.feed(ev.StepEnded("a", 1, 1, FAILED, b"no"))
    _, again = driver.fail("a", retries=1, is_of_step=True)
    assert isinstance(again, ev.StartTurn)
    assert again.turn == SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"r")], STEP), "it waits there again"
    said = pause(driver, STEP)
    assert ev.RunStep("a", 1, 1, "look") in said
    driver.feed(ev.StepEnded("a", 1, 1, FAILED, b"no"))
    driver.fail("a", retries=1, is_of_step=True)
    (letter,) = driver.core.agents["a"].dead_letters
    assert letter.attempts == 2


def test_a_failed_step_that_the_turn_went_on_from_is_not_run_again() -> None:
    driver = waiting(STEP)
    driver.feed(ev.StepEnded("a", 1, 0, FAILED, b"no"))
    pause(driver, STEP)
    finish_step(driver, place=1)
    _, again = driver.fail("a", retries=1, is_of_step=True)
    assert isinstance(again, ev.StartTurn)
    assert again.turn == SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"no", FAILED), done(STEP, b"r")])


def test_a_failed_step_that_did_not_fail_the_turn_is_not_run_again() -> None:
    """Its handler has caught that, and then something else was wrong."""
    driver = waiting(STEP)
    driver.feed(ev.StepEnded("a", 1, 0, FAILED, b"no"))
    _, again = driver.fail("a", retries=1)
    assert isinstance(again, ev.StartTurn)
    assert again.turn == SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"no", FAILED)])


def test_a_turn_that_fails_for_good_is_a_dead_letter_of_its_message() -> None:
    driver = waiting(STEP)
    driver.remote_sends("z", "a", OTHER)
    finish_step(driver)
    driver.fail("a", retries=0)
    (letter,) = driver.core.agents["a"].dead_letters
    assert (letter.sender, letter.payload) == ("z", GO) and control(driver).turn is None
    assert driver.turns["a"].payload == OTHER


def test_a_turn_that_does_not_repeat_itself_stands_and_nothing_is_lost() -> None:
    driver = waiting(STEP)
    finish_step(driver)
    said = driver.fail("a", "…\nDivergenceError: entry 1 is another", retries=5, is_divergent=True)
    assert ev.UndoTurn("a") in said
    (note,) = [each for each in said if isinstance(each, ev.Note)]
    assert note.text == "agent a stands in the middle of a turn: DivergenceError: entry 1 is another"
    driver.remote_sends("z", "a", OTHER)
    assert "a" not in driver.turns and not driver.core.agents["a"].dead_letters
    saved = control(driver).turn
    assert saved is not None and saved.journal == [done(STEP, b"r")]


def test_a_standing_turn_is_in_the_heartbeats_with_since_when() -> None:
    driver = waiting(STEP)
    finish_step(driver)
    assert heartbeat_of(driver.core, 1, now_ns=driver.now).standing == ()
    driver.fail("a", "…\nDivergenceError: entry 1 is another", is_divergent=True)
    beat = heartbeat_of(driver.core, 2, now_ns=driver.now + 3 * SECOND)
    assert beat.standing == (StandingAgent("a", "turn", "DivergenceError: entry 1 is another", 3 * SECOND),)
    assert beat.agents_standing == 1


# -- recoveries ----------------------------------------------------------------------------------------------------------


def restored(turn: SavedTurn, *stash: StashedMessage) -> Driver:
    image = msgspec.structs.replace(checkpoint("a", received={"z": 1}), saved_turn=turn, saved_stash=list(stash))
    return Driver(here=("a",), checkpoints={"a": image})


def test_a_restored_turn_is_run_again_before_all_else_and_waits_as_before() -> None:
    driver = restored(SavedTurn("message", "z", GO, SEED, "", [done(SLEEP)], STEP), StashedMessage("z", OTHER))
    start = driver.turns["a"]
    assert start.what == "segment" and start.turn is not None and start.turn.waits == STEP
    said = pause(driver, STEP)
    assert ev.RunStep("a", 1, 1, "look") in said and "a" not in driver.turns
    finish_step(driver, place=1)
    driver.end("a")
    assert driver.turns["a"].payload == OTHER


def test_a_restored_turn_that_has_what_it_waited_for_goes_on() -> None:
    driver = restored(SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"r")]))
    assert driver.turns["a"].turn is not None
    driver.end("a")
    assert control(driver).turn is None


# -- for people --------------------------------------------------------------------------------------------------------


def viewed(driver: Driver) -> ev.AgentView:
    (answer,) = [each for each in driver.feed(ev.ViewRequested(1, "a", True)) if isinstance(each, ev.AnswerView)]
    assert answer.view is not None
    return answer.view


def test_people_see_where_a_turn_stands() -> None:
    driver = waiting(CALL, SECOND)
    driver.remote_sends("z", "a", OTHER, reply())
    pause(driver, SLEEP, timeout_ns=5 * SECOND)
    driver.now += 2 * SECOND
    view = viewed(driver)
    assert view.turn == "" and view.timers == () and view.durable is not None
    assert view.durable.newest == (done(CALL, TOLD, sender="z"),) and view.durable.waits == SLEEP
    assert (view.durable.entries, view.durable.put_off, view.durable.waits_ns // SECOND) == (1, 1, 2)
    told = description(view, "m:A", "h1", None)["durable_turn"]
    assert isinstance(told, dict)
    assert (told["waits_for"], told["journal"]) == ("sleep", [{"number": 1, "asked": "call z", "outcome": "done"}])
    driver.end_all()
    driver.feed(ev.TimerFired(), 5 * SECOND)
    driver.end_all()
    assert viewed(driver).durable is None


# -- inputs --------------------------------------------------------------------------------------------------------------


def offer(driver: Driver, key: str, payload: bytes) -> list[ev.HostOutput]:
    said = driver.feed(ev.InputsOffered(1, "web", 5, (ev.OfferedInput("a", key, payload),)))
    if any(isinstance(each, msg.OpenLog) for each in said):
        said = driver.feed(msg.LogOpened(driver.plan))
    for each in said:
        if isinstance(each, ev.AppendBatch):
            said = driver.feed(ev.BatchAppended(each.log, each.number))
    return said


def answers(said: list[ev.HostOutput]) -> list[ev.AskAnswer]:
    return [each.answer for each in said if isinstance(each, ev.AnswerAsk)]


def test_an_input_is_answered_when_its_turn_is_over_and_that_is_in_an_epoch() -> None:
    driver = Driver()
    offer(driver, "k", GO)
    assert driver.turns["a"].what == "input"
    pause(driver, STEP)
    (again,) = [each for each in offer(driver, "k", GO) if isinstance(each, ev.AnswerInputs)]
    assert again.answers[0].status == REPEATED
    assert not answers(driver.feed(ev.ReplyAwaited(7, "a", "k", False)))
    assert not answers(driver.feed(ev.ReplyAwaited(8, "a", "k", True)))
    assert control(driver).inputs.settled == 0
    assert not answers(driver.feed(msg.EndEpoch(1, True, "", ("a",), (0,))))
    finish_step(driver)
    early = answers(driver.end("a", reply=TOLD))
    assert [(each.status, each.reply) for each in early] == [(REPLIED, TOLD)]
    assert control(driver).inputs.settled == 1
    final = answers(driver.feed(msg.EndEpoch(2, True, "", ("a",), (1,))))
    assert [(each.status, each.reply) for each in final] == [(REPLIED, TOLD)]


def test_an_input_can_be_received_and_one_before_it_is_put_off() -> None:
    driver = waiting(RECEIVE)
    offer(driver, "k1", OTHER)
    offer(driver, "k2", TOLD)
    assert driver.turns["a"].found == done(RECEIVE, TOLD, sender="@web")
    saved = control(driver)
    assert saved.inputs.number == 2 and saved.inputs.settled == 0
    assert saved.stash == [StashedMessage("@web", OTHER, "k1")]
    driver.end("a")
    assert driver.turns["a"].payload == OTHER and driver.turns["a"].sender == "@web"
    driver.end("a", reply=TOLD)
    assert control(driver).inputs.settled == 2
    assert {known.key: known.reply for known in control(driver).inputs.keys} == {"k1": TOLD, "k2": b""}


# -- mutants: each is found by one of the tests above ----------------------------------------------------------------------


def stash_not_saved(patch: Patch) -> None:
    original = LocalAgent.control
    patch.setattr(LocalAgent, "control", lambda *a, **k: msgspec.structs.replace(original(*a, **k), stash=[]))


def replies_of_all_calls(patch: Patch) -> None:
    patch.setattr("snapline.agent_runtime.host.durable_turns._reply_to", lambda turn, place: payloads.REPLY)


def divergence_is_a_failure(patch: Patch) -> None:
    patch.setattr(DurableTurns, "failed", lambda self, agent, event: True)


def answered_at_the_first_segment(patch: Patch) -> None:
    patch.setattr("snapline.agent_runtime.host.agent_io.AgentInputs.close", lambda *a, **k: None)
    patch.setattr("snapline.agent_runtime.host.agent_io.KnownKey", lambda *a: _closed(*a))


def _closed(*fields: Any) -> Any:
    from snapline.storage.packs.checkpoint import KnownKey

    return KnownKey(*fields[:6])


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (stash_not_saved, test_what_was_put_off_is_saved),
        (replies_of_all_calls, test_a_reply_to_another_call_is_none),
        (divergence_is_a_failure, test_a_turn_that_does_not_repeat_itself_stands_and_nothing_is_lost),
        (answered_at_the_first_segment, test_an_input_is_answered_when_its_turn_is_over_and_that_is_in_an_epoch),
    ],
)
def test_a_mutant_is_found(mutant: Callable[[Patch], None], test: Callable[[], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        test()

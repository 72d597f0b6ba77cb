"""The host core's part in steps that are logged: when a turn goes on, what a batch holds, and what a plan gives to turns that come again."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import Driver, checkpoint
from tests.agent_runtime.test_durable_turns import (
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
)

from snapline.agent_runtime.durable import DONE, FAILED, LoggedSteps, Pause, rolled
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import host_log
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.entries import Entry
from snapline.agent_runtime.host.host_log import PendingEntry, StepLog
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import LoggedEntry, LogName
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

NOW = JournalEntry("now", "", b"", DONE, bytes(8))

Patch = pytest.MonkeyPatch


def stand(
    driver: Driver, waits: JournalEntry = STEP, *entries: JournalEntry, is_logged: bool = True
) -> list[ev.HostOutput]:
    """The turn of `a` has asked for this, after it had these at once."""
    return driver.end("a", pause=Pause(SEED, waits, None, list(entries), is_logged))


def waiting(*entries: JournalEntry) -> Driver:
    """A driver with an open log, whose agent `a` stands at a logged step."""
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    stand(driver, STEP, *entries)
    return driver


def batches(driver: Driver) -> list[ev.AppendBatch]:
    return [each for each in driver.said if isinstance(each, ev.AppendBatch)]


def appended(driver: Driver) -> None:
    last = batches(driver)[-1]
    driver.feed(ev.BatchAppended(last.log, last.number))


def logged(place: int, entry: JournalEntry, *before: JournalEntry, turn: int = 1, agent: str = "a") -> LoggedEntry:
    return LoggedEntry(agent, turn, SEED, place, rolled(b"", before), entry)


# -- into the log ------------------------------------------------------------------------------------------------------


def test_a_turn_goes_on_when_its_step_is_in_the_log() -> None:
    driver = waiting()
    finish_step(driver)
    assert [each for each in driver.said if isinstance(each, msg.OpenLog)] == [
        msg.OpenLog(1)
    ] and "a" not in driver.turns
    driver.feed(msg.LogOpened(1))
    (batch,) = batches(driver)
    assert (batch.log, batch.number, batch.inputs) == (LogName(1, "h1", 1), 1, ())
    assert batch.entries == (logged(0, done(STEP, b"r")),) and "a" not in driver.turns
    driver.remote_sends("z", "a", OTHER)
    assert "a" not in driver.turns, "nothing else goes on either"
    appended(driver)
    assert driver.turns["a"].found == done(STEP, b"r")


def test_a_checkpoint_has_the_result_before_the_log_does() -> None:
    driver = waiting()
    finish_step(driver)
    saved = control(driver)
    assert saved.turn == SavedTurn("message", "z", GO, SEED, "", [done(STEP, b"r")]) and saved.durable_turns == 1


def test_a_step_in_checkpoints_only_does_not_wait_and_goes_with_the_next_one_that_does() -> None:
    """Else the logged one would stand behind a result that its repetition does not have."""
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    stand(driver, STEP, NOW, is_logged=False)
    finish_step(driver, place=1)
    assert "a" in driver.turns and not batches(driver)
    stand(driver, STEP)
    finish_step(driver, b"s", place=2)
    driver.feed(msg.LogOpened(1))
    entries = [NOW, done(STEP, b"r"), done(STEP, b"s")]
    assert batches(driver)[0].entries == tuple([logged(n, entry, *entries[:n]) for n, entry in enumerate(entries)])


def test_what_comes_by_channels_is_digested_and_not_logged() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    appended(driver)
    stand(driver, RECEIVE)
    driver.remote_sends("z", "a", TOLD)
    stand(driver, STEP)
    finish_step(driver, b"s", place=2)
    before = (done(STEP, b"r"), done(RECEIVE, TOLD, sender="z"))
    assert batches(driver)[1].entries == (logged(2, done(STEP, b"s"), *before),)


def test_steps_of_many_turns_share_a_batch_with_inputs() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    driver.remote_sends("z", "b", GO)
    driver.end("b", pause=Pause(SEED, STEP, None, [], True))
    driver.feed(ev.InputsOffered(1, "web", 5, (ev.OfferedInput("b", "k", OTHER),)))
    driver.feed(step_ended("b"))
    assert [len(each.entries) for each in batches(driver)] == [1], "one batch at a time"
    appended(driver)
    assert "a" in driver.turns and "b" not in driver.turns
    second = batches(driver)[1]
    assert [each.agent for each in second.entries] == ["b"] and [each.key for each in second.inputs] == ["k"]
    appended(driver)
    assert "b" in driver.turns


def step_ended(agent: str) -> ev.StepEnded:
    return ev.StepEnded(agent, 1, 0, DONE, b"r")


def test_a_turn_waits_for_all_batches_that_its_entries_need(monkeypatch: Patch) -> None:
    monkeypatch.setattr(host_log, "BATCH_BYTES_MAX", 10)
    driver = waiting(NOW, NOW)
    driver.feed(msg.LogOpened(1))
    finish_step(driver, place=2)
    appended(driver)
    assert "a" not in driver.turns
    appended(driver)
    assert [len(each.entries) for each in batches(driver)] == [1, 2] and "a" in driver.turns


def test_a_sealed_log_lets_nobody_go_on_and_the_next_plan_ends_it() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    last = batches(driver)[-1]
    driver.feed(ev.LogSealed(last.log, last.number))
    assert "a" not in driver.turns
    driver.receive_plan(2)
    driver.load(2)
    assert driver.turns["a"].what == "start"


def test_a_step_in_a_batch_that_was_kept_out_of_the_log_goes_into_the_next_plans_log() -> None:
    """Where agents go on under the next plan. Another host has sealed the log before this one has heard of that plan."""
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    last = batches(driver)[-1]
    driver.feed(ev.LogSealed(last.log, last.number))
    driver.core.log.carry_over()
    (pending,) = driver.core.log._queue
    assert isinstance(pending, PendingEntry) and pending.entry == last.entries[0]


def test_what_a_plan_overtakes_moves_nobody() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    driver.receive_plan(2)
    driver.load(2)
    appended(driver)
    assert driver.turns["a"].what == "start"


def test_a_store_without_logs_is_told_of_once_and_steps_go_on() -> None:
    driver = Driver(starts=False)
    driver.receive_plan(2)
    agents = tuple([ev.LoadedAgent(agent, 2, None) for agent in driver.here])
    driver.feed(ev.AgentsLoaded(2, agents, why_no_log="the store X overwrites objects"))
    driver.end_all()
    driver.remote_sends("z", "a", GO)
    for place in range(2):
        stand(driver)
        driver.feed(msgspec.structs.replace(step_ended("a"), incarnation=2, place=place))
        assert "a" in driver.turns
    told = [each.text for each in driver.all_of(ev.Note) if "durable turns" in each.text]
    assert len(told) == 1 and told[0].startswith(
        "the store X overwrites objects: steps of durable turns are in checkpoints"
    )
    said = driver.feed(ev.InputsOffered(1, "web", 5, (ev.OfferedInput("a", "k", OTHER),)))
    (answer,) = [each for each in said if isinstance(each, ev.AnswerInputs)]
    assert answer.answers[0].reason == "the store X overwrites objects: a fleet with inputs needs another one"


def test_a_failed_step_that_is_run_again_is_in_the_log_twice() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    driver.feed(ev.StepEnded("a", 1, 0, FAILED, b"no"))
    appended(driver)
    driver.fail("a", retries=1, is_of_step=True)
    stand(driver)
    finish_step(driver)
    appended(driver)
    first, second = [each.entries for each in batches(driver)]
    assert first == (logged(0, done(STEP, b"no", FAILED)),) and second == (logged(0, done(STEP, b"r")),)
    assert LoggedSteps(SEED, [*first, *second]).find(0, "step", "look", b"") == done(STEP, b"r")


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_durable_turns_are_counted_whether_they_wait_fail_or_neither() -> None:
    driver = waiting()
    driver.feed(msg.LogOpened(1))
    finish_step(driver)
    appended(driver)
    driver.end("a", is_durable=True)
    assert (control(driver).durable_turns, control(driver).ended_turns) == (1, 1)
    driver.remote_sends("z", "a", GO)
    assert driver.turns["a"].number == 2
    driver.end("a", is_durable=True)
    driver.remote_sends("z", "a", GO)
    driver.fail("a", is_final=True, is_durable=True)
    assert control(driver).durable_turns == 3
    driver.remote_sends("z", "a", GO)
    assert driver.turns["a"].number == 4
    stand(driver, SLEEP)
    assert (control(driver).durable_turns, control(driver).ended_turns) == (4, 3)


def test_an_agent_without_durable_turns_says_nothing_of_them() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    driver.end("a")
    assert driver.core.agents["a"].begun is None and control(driver).durable_turns == 0


# -- out of the log ----------------------------------------------------------------------------------------------------


def recovered(
    *entries: LoggedEntry, turn: SavedTurn | None = None, turns: int = 1, here: tuple[str, ...] = ("a",)
) -> Driver:
    """Under plan 2, from a checkpoint of `a` that had begun so many durable turns."""
    image = msgspec.structs.replace(
        checkpoint("a", received={"z": 1} if turn is not None else {}),
        saved_turns=turns,
        saved_turn=turn or msgspec.UNSET,
    )
    driver = Driver(here=here, checkpoints={"a": image}, starts=False)
    driver.receive_plan(2)
    agents = tuple([ev.LoadedAgent(agent, 2, driver.checkpoints.get(agent)) for agent in driver.here])
    driver.feed(ev.AgentsLoaded(2, agents, entries=entries))
    return driver


FIRST, SECOND = done(STEP, b"r"), done(STEP, b"s")


def test_a_restored_turn_gets_what_the_logs_hold_of_its_number() -> None:
    mine = logged(0, FIRST)
    driver = recovered(mine, logged(0, FIRST, turn=2), turn=SavedTurn("message", "z", GO, SEED, "", [], STEP))
    start = driver.turns["a"]
    assert start.turn is not None and (start.number, start.logged) == (1, (mine,))
    stand(driver, STEP, FIRST)
    saved = control(driver).turn
    assert saved is not None and (saved.journal, saved.waits) == ([FIRST], STEP)


def test_turns_to_come_get_theirs_and_those_that_have_ended_nothing() -> None:
    of_two = logged(0, FIRST, turn=2)
    driver = recovered(logged(0, FIRST), of_two)
    driver.remote_sends("z", "a", GO)
    assert (driver.turns["a"].number, driver.turns["a"].logged) == (2, (of_two,))
    driver.end("a", is_durable=True)
    driver.remote_sends("z", "a", GO)
    assert (driver.turns["a"].number, driver.turns["a"].logged) == (3, ())
    assert not driver.core.agents["a"].begun.logged  # type: ignore[union-attr]  # it has had some


def test_a_step_that_failed_before_a_recovery_is_run_again_when_its_turn_is() -> None:
    failed = logged(0, done(STEP, b"no", FAILED))
    driver = recovered(failed, turn=SavedTurn("message", "z", GO, SEED, "", [], STEP))
    assert driver.turns["a"].logged == (failed,)
    _, again = driver.fail("a", retries=1, is_of_step=True)
    assert isinstance(again, ev.StartTurn) and again.turn is not None and again.logged == ()


def test_what_is_in_the_log_is_not_written_again_and_what_is_not_is() -> None:
    """A checkpoint may have had what its host's last batch lacked; an older one may be gone back to."""
    driver = recovered(logged(0, FIRST), turn=SavedTurn("message", "z", GO, SEED, "", [FIRST, SECOND]))
    stand(driver)
    driver.feed(msgspec.structs.replace(step_ended("a"), incarnation=2, place=2))
    driver.feed(msg.LogOpened(2))
    assert [each.place for each in batches(driver)[-1].entries] == [1, 2]


def test_agents_that_are_nowhere_get_theirs_when_they_are_made_again() -> None:
    of_child = logged(0, FIRST, agent="child")
    driver = recovered(of_child, logged(0, FIRST, agent="z"))
    driver.remote_sends("z", "a", GO)
    driver.end("a", spawns=[("child", "k", b"state")])
    request = next(each for each in driver.said if isinstance(each, msg.ReserveAgents)).request
    driver.feed(msg.AgentsReserved(request, incarnation=1))
    begun = driver.core.agents["child"].begun
    assert begun is not None and begun.logged == {1: (of_child,)}


# -- mutants ---------------------------------------------------------------------------------------------------------------


def goes_on_at_once(patch: Patch) -> None:
    original = DurableTurns.next_entry

    def next_entry(self: DurableTurns, agent: LocalAgent) -> Entry | None:
        if agent.turn is not None:
            agent.turn.unlogged = 0
        return original(self, agent)

    patch.setattr(DurableTurns, "next_entry", next_entry)


def number_not_saved(patch: Patch) -> None:
    original = LocalAgent.control
    patch.setattr(LocalAgent, "control", lambda *a, **k: msgspec.structs.replace(original(*a, **k), durable_turns=0))


def only_the_step_itself(patch: Patch) -> None:
    original = StepLog.put

    def put(self: StepLog, agent: LocalAgent, turn: Any) -> None:
        turn.logged = len(turn.journal) - 1
        original(self, agent, turn)

    patch.setattr(StepLog, "put", put)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (goes_on_at_once, test_a_turn_goes_on_when_its_step_is_in_the_log),
        (number_not_saved, test_durable_turns_are_counted_whether_they_wait_fail_or_neither),
        (only_the_step_itself, test_a_step_in_checkpoints_only_does_not_wait_and_goes_with_the_next_one_that_does),
    ],
)
def test_a_mutant_is_found(mutant: Callable[[Patch], None], test: Callable[[], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        test()

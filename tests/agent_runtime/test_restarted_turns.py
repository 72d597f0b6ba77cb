"""Durable turns that give up an attempt and begin again: `ctx.restart_turn`, and what the next attempt knows of the earlier ones."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_durable import SEED, Clock, Go, Notes
from tests.agent_runtime.test_effects import checkpoint, done, intent, stages
from tests.agent_runtime.test_inputs import Client
from tests.agent_runtime.test_inputs import ask as ask_answer
from tests.agent_runtime.test_inputs import asked as answers

import snapline
from snapline.agent_runtime import rollback_errors
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, Pause, TurnJournal
from snapline.agent_runtime.effect_ledger import UNDO, read_undo
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.durable_turns import ABANDONED_ENTRIES_MAX, DurableTurns
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.rollback_errors import RESTARTS_MAX, RestartRequest, RestartRequestedError
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import AbandonedTurn, JournalEntry, SavedTurn

GO = encode_message(Go())
STEP = JournalEntry("step", "look")
AGAIN = RestartRequest("too dear", 3)

# -- the handler's side ---------------------------------------------------------------------------------------------------


class Trier(snapline.Agent):
    """An agent whose turn begins again until it has been tried twice before."""

    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        self.state.seen.append(str(len(ctx.abandoned)))
        if len(ctx.abandoned) < 2:
            ctx.restart_turn(f"attempt {len(ctx.abandoned)}")


def turns_of(made: snapline.Agent) -> Turns:
    fleet = snapline.Fleet("tries", agents={"a": made})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", fleet.make("a"))
    return turns


def test_the_error_names_the_reason_and_the_state_is_undone() -> None:
    turns = turns_of(Trier(Notes()))
    failed = turns.run(ev.StartTurn("a", 1, "message", "z", GO))
    assert isinstance(failed, ev.TurnFailed) and failed.restart == RestartRequest("attempt 0", 3)
    assert failed.on_error == "undo" and "the turn wants to begin again: attempt 0" in failed.error
    turns.undo("a")
    before = (AbandonedTurn("attempt 0"), AbandonedTurn("attempt 1"))
    ended = turns.run(ev.StartTurn("a", 1, "stashed", "z", GO, abandoned=before))
    assert isinstance(ended, ev.TurnEnded)
    state = turns.object_of("a").state
    assert isinstance(state, Notes) and state.seen == ["2"]


def test_a_rerun_attempt_knows_the_same_earlier_attempts() -> None:
    before = [AbandonedTurn("why", [("step", "look", DONE)])]
    ctx = Context("a", 1, "z", Clock())
    ctx.begin(journal=TurnJournal(b"", SavedTurn("stashed", "z", GO, SEED, abandoned=before)))
    assert ctx.abandoned == tuple(before)
    plain = Context("a", 1, "z", Clock())
    assert plain.abandoned == ()


class Catcher(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        try:
            ctx.restart_turn("again")
        except BaseException:
            return


def test_a_handler_that_catches_the_request_fails() -> None:
    failed = turns_of(Catcher(Notes())).run(ev.StartTurn("a", 1, "message", "z", GO))
    assert isinstance(failed, ev.TurnFailed) and failed.restart is None and rollback_errors.CAUGHT in failed.error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("",), "takes a reason of 1 to 1,000 characters"),
        (("x" * 1001,), "takes a reason of 1 to 1,000 characters"),
        ((5,), "takes a reason"),
        (("why", RESTARTS_MAX + 1), "begins again 0 to 100 times, not 101"),
        (("why", True), "begins again 0 to 100 times, not True"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(arguments: tuple[Any, ...], text: str) -> None:
    ctx = Context("a", 1, "z", Clock())
    ctx.begin(journal=TurnJournal(SEED))
    reason, *most = arguments
    with pytest.raises(UsageError, match=text):
        ctx.restart_turn(reason, **({"at_most": most[0]} if most else {}))
    ctx.begin()
    with pytest.raises(UsageError, match=r"ctx\.restart_turn waits, and a plain turn cannot"):
        ctx.restart_turn("why")


def test_sagas_do_not_undo_because_of_a_restart() -> None:
    assert not issubclass(RestartRequestedError, Exception), "the agent undoes all effects of the turn, by one turn"


# -- the core's side ------------------------------------------------------------------------------------------------------


UNDOABLE = intent(undo="m:f")


def fail(driver: Driver, request: RestartRequest = AGAIN) -> None:
    driver.fail("a", "RestartRequestedError", restart=request, is_durable=True)


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_turn_begins_again_from_its_message_as_the_next_turn(has_waited: bool) -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO, b"\x02no")
    first = driver.turns["a"]
    entries = []
    if has_waited:
        driver.end("a", pause=Pause(SEED, STEP, None, []))
        driver.feed(ev.StepEnded("a", 1, 0, DONE, b"r"))
        entries = [("step", "look", DONE)]
    fail(driver)
    assert driver.last(ev.UndoTurn).agent == "a"
    again = driver.turns["a"]
    assert (again.what, again.sender, again.payload) == ("stashed", "z", GO)
    assert again.number == first.number + 1, "another seed, and none of its steps is found in the log"
    assert again.abandoned == (AbandonedTurn("too dear", entries),)
    driver.end("a", is_durable=True)
    assert driver.turns["a"].payload == b"\x02no", "what came later waits behind it"
    agent = driver.core.agents["a"]
    assert not agent.dead_letters and not agent.stash


def test_the_attempts_are_in_checkpoints_and_their_entries_are_bounded() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    many = [JournalEntry("now", f"{n}", b"", DONE) for n in range(ABANDONED_ENTRIES_MAX + 5)]
    driver.end("a", pause=Pause(SEED, STEP, None, many))
    driver.feed(ev.StepEnded("a", 1, len(many), DONE, b"r"))
    fail(driver)
    driver.end("a", pause=Pause(SEED, STEP, None, []))
    turn = checkpoint(driver).turn
    assert turn is not None
    (attempt,) = turn.abandoned
    assert len(attempt.entries) == ABANDONED_ENTRIES_MAX and attempt.entries[-1] == ("step", "look", DONE)


def test_a_turn_that_has_begun_again_often_enough_fails_for_good() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    for number in range(3):
        fail(driver)
        assert len(driver.turns["a"].abandoned) == number + 1
    fail(driver)
    agent = driver.core.agents["a"]
    assert "a" not in driver.turns and len(agent.dead_letters) == 1
    assert agent.dead_letters[0].payload == GO


def test_effects_of_an_attempt_are_undone_before_the_next_one_begins() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    done(driver, UNDOABLE)
    fail(driver)
    undoing = driver.turns["a"]
    assert undoing.payload.startswith(UNDO)
    assert [each.key for each in read_undo(undoing.payload[len(UNDO) :])] == ["k"]
    driver.end("a", is_durable=True)
    again = driver.turns["a"]
    assert again.payload == GO and again.abandoned[0].entries == [("effect", "pay", DONE)]
    assert stages(driver)[-1] == "done k", "nothing of it is left"


def test_a_client_gets_the_answer_of_the_last_attempt() -> None:
    driver = Driver()
    client = Client(driver)
    client.offer(("a", "k", GO))
    client.open()
    client.append()
    ask_answer(driver, 5, "a", "k", is_early=True)
    fail(driver)
    assert 5 not in answers(driver)
    driver.end("a", is_durable=True, reply=b"\x01x")
    assert answers(driver)[5] == ("replied", 1, b"\x01x")


# -- mutants --------------------------------------------------------------------------------------------------------------


def effects_stay_with_their_turn(patch: pytest.MonkeyPatch) -> None:
    original = AgentEffects.turn_ended
    patch.setattr(AgentEffects, "turn_ended", lambda self, dead_letter=None: original(self, dead_letter or None))


def again_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    original = DurableTurns.restart

    def restart(self: DurableTurns, agent: Any, *rest: Any) -> bool:
        is_again = original(self, agent, *rest)
        agent.stash.append(agent.stash.pop(0))
        return is_again

    patch.setattr(DurableTurns, "restart", restart)


def answered_by_the_first_attempt(patch: pytest.MonkeyPatch) -> None:
    original = DurableTurns.ended
    patch.setattr(
        DurableTurns, "ended", lambda self, agent, *, is_restarted=False, **rest: original(self, agent, **rest)
    )


def orphan_test() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    done(driver, UNDOABLE)
    fail(driver)
    effects = driver.core.agents["a"].effects
    assert effects is not None and effects.keys["k"].is_orphan, "so that it may be compensated"


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (effects_stay_with_their_turn, orphan_test),
        (again_behind_the_others, test_effects_of_an_attempt_are_undone_before_the_next_one_begins),
        (answered_by_the_first_attempt, test_a_client_gets_the_answer_of_the_last_attempt),
    ],
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        test()

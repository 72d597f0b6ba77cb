"""What people say about an effect in doubt, in one host core: its turn takes it once, and a recovery before the word and one after it come to the same."""

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_effects import (
    DIGEST,
    ask,
    begun,
    checkpoint,
    intent,
    ledger,
    release,
    runs,
)
from tests.agent_runtime.test_inputs import WALL_NS, Client
from tests.agent_runtime.test_inputs import ask as ask_answer
from tests.agent_runtime.test_inputs import asked as answers

from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.host import durable_events as de
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.view_events import AnswerEffects, AnswerView, EffectsWanted, ViewWanted
from snapline.agent_runtime.results import encode_result
from snapline.conversation import messages as msg
from snapline.conversation.effect_records import StandingEffect
from snapline.conversation.effect_words import EffectWord, effect_word_payload, read_effect_word
from snapline.conversation.letters import GONE
from snapline.errors import ProtocolError
from snapline.storage.log.records import LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry

OURS = intent(is_repeatable=False)
TOLD = encode_result("pay", "receipt 8")


def said(number: int = 1, *, is_done: bool = True, key: str = "k", generation: int = 1) -> bytes:
    return effect_word_payload(EffectWord(key, generation, number, is_done, TOLD if is_done else b""))


def saved(driver: Driver) -> AgentCheckpoint:
    """Of `a` now, with its inputs, as it is read back."""
    control = driver.core.agents["a"].control(driver.now)
    return msgspec.structs.replace(checkpoint(driver), inputs=control.inputs)


def restarted(kept: AgentCheckpoint, *inputs: LoggedInput) -> Driver:
    """A later life from this checkpoint; the handler has run up to the effect, if its turn stands there."""
    driver = Driver(checkpoints={"a": kept}, begun=1, starts=False, here=("a",))
    driver.receive_plan(2)
    driver.turns.clear()
    driver.load(2, *inputs)
    if "a" in driver.turns and driver.turns["a"].turn is not None and kept.effects is not None and kept.effects.open:
        ask(driver, OURS)
    return driver


def in_doubt() -> Driver:
    """A life whose agent stands at an effect that an earlier one may have called."""
    first = begun(here=("a",))
    ask(first, OURS)
    release(first)
    return restarted(saved(first))


def agent_of(driver: Driver) -> LocalAgent:
    return driver.core.agents["a"]


class People(Client):
    """Who say words, to a host whose log is open."""

    def say(self, payload: bytes, key: str = "w") -> int:
        self.count += 1
        offered = ev.OfferedInput("a", key, payload, is_word=True)
        self.driver.feed(ev.InputsOffered(self.count, "op", WALL_NS, (offered,)))
        return self.count

    def settle(self, payload: bytes, key: str = "w") -> None:
        self.say(payload, key)
        self.open()
        self.append()


def logged(payload: bytes, number: int = 1, key: str = "w") -> LoggedInput:
    return LoggedInput("a", number, "op", key, payload, WALL_NS)


def told(driver: Driver, key: str = "w") -> tuple[str, bytes]:
    ask_answer(driver, 77, "a", key, is_early=True)
    status, _, reply = answers(driver)[77]
    return status, reply


def found(driver: Driver) -> JournalEntry | None:
    return driver.turns["a"].found


def test_a_word_with_a_result_is_the_effects_outcome() -> None:
    driver = in_doubt()
    assert not driver.turns and not runs(driver.said)
    People(driver).settle(said())
    assert found(driver) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#1")
    assert [record.stage for record in ledger(driver)][-1] == "done" and not runs(driver.said)
    assert told(driver) == ("replied", b"")


def test_what_was_not_done_is_called_when_that_is_released() -> None:
    driver = in_doubt()
    People(driver).settle(said(is_done=False))
    assert not driver.turns and not runs(driver.said), "a recovery could find the word again"
    assert [record.stage for record in ledger(driver)][-1] == "not-done"
    assert [run.key for run in runs(release(driver, epoch=2))] == ["c/a/k"]
    assert told(driver) == ("replied", b"")


def test_what_is_called_after_a_word_is_in_doubt_again_after_a_crash_and_the_word_says_nothing_of_that() -> None:
    """A checkpoint that releases the call has the word as consumed; another word like it is about a doubt that is over."""
    driver = in_doubt()
    people = People(driver)
    people.settle(said(is_done=False))
    people.say(said(is_done=False), "too late")
    assert people.answers[2][0][0] == "refused"
    kept = saved(driver)
    assert runs(release(driver, epoch=2))
    later = restarted(kept, logged(said(is_done=False), 2, "found in the log"))
    release(later, epoch=2, number=2)
    assert not runs(later.said), "it may have been called"
    People(later).say(said(number=2), "newer")
    later.feed(msg.LogOpened(2))
    People(later).append()
    assert found(later) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#1")
    later.end("a")
    assert told(later, "found in the log") == ("replied", GONE)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_recovery_to_before_the_word_and_one_to_after_it_come_to_the_same(is_done: bool) -> None:
    driver = in_doubt()
    before = saved(driver)
    people = People(driver)
    people.offer(("a", "earlier", b"\x02Go\x02"))
    people.open()
    people.append()
    people.say(said(is_done=is_done))
    people.append()
    words = logged(b"\x02Go\x02", 1, "earlier"), logged(said(is_done=is_done), 2)
    ends = []
    for kept, inputs in ((None, ()), (before, words), (saved(driver), ())):
        life = driver if kept is None else restarted(kept, *inputs)
        if not is_done:
            if life is driver or kept is before:
                assert runs(release(life, epoch=2))
                life.feed(de.StepEnded("a", 2, 0, DONE, TOLD, WALL_NS))
            else:
                release(life, epoch=2)
                assert not runs(life.said), "it may have been called since"
                continue
        life.end("a")
        assert life.turns["a"].payload == b"\x02Go\x02", "what stood before the word comes when the turn is over"
        life.end("a")
        kept_now = saved(life)
        ends.append((kept_now.effects, kept_now.inputs.number, kept_now.turn, kept_now.stash))
    assert all(end == ends[0] for end in ends) and len(ends) == (3 if is_done else 2)


def test_only_what_needs_people_takes_a_word() -> None:
    first = begun(here=("a",))
    first.feed(msg.LogOpened(1))
    ask(first, OURS)
    people = People(first)
    assert people.say(said()) and "needs nobody's word" in people.reason(1)
    people.say(said(key="other"), "v")
    assert "does not stand at effect 'other' any more: see `snapline agent describe a`" in people.reason(2)
    release(first)
    people.say(said(), "u")
    assert "needs nobody's word" in people.reason(3)


def test_who_asks_how_the_agent_stands_is_told_that_it_needs_people() -> None:
    driver = in_doubt()
    driver.feed(ViewWanted(5, "a", is_settled=False))
    view = [each for each in driver.said if isinstance(each, AnswerView)][-1].view
    assert view is not None and view.durable is not None and view.durable.effect is not None
    assert (view.durable.effect.key, view.durable.effect_stands) == ("k", "needs people")


def standing(driver: Driver) -> tuple[StandingEffect, ...]:
    driver.feed(EffectsWanted(6))
    return driver.last(AnswerEffects).effects


def test_a_host_tells_how_effects_stand_that_have_not_ended() -> None:
    driver = begun(here=("a",))
    assert standing(driver) == ()
    ask(driver, OURS)
    (told_of,) = standing(driver)
    assert (told_of.agent, told_of.key, told_of.stands, told_of.asked_ns) == ("a", "k", "waiting", 5)
    assert told_of.intent is not None and told_of.intent.arguments == '["order"]'
    release(driver)
    assert standing(driver) == (StandingEffect("a", "k", 1, "open"),)
    (again,) = standing(in_doubt())
    assert again.stands == "needs people"
    later = begun(here=("a",))
    ask(later, intent(has_probe=True))
    later = Driver(checkpoints={"a": checkpoint(later)}, begun=1, starts=False)
    assert [each.stands for each in standing(later)] == ["in doubt"], "before its handler has come to it"
    ask(later, intent(has_probe=True))
    release(later)
    assert [each.stands for each in standing(later)] == ["in doubt"], "while it is asked after"
    later.feed(de.StepEnded("a", 1, 0, DONE, TOLD, 9))
    assert standing(later) == ()


def test_a_word_that_cannot_be_read_is_none() -> None:
    for payload in (b"", b"\x00effect", b"\x00effect\x93", b"\x00retry"):
        with pytest.raises(ProtocolError):
            read_effect_word(payload)
    assert read_effect_word(said()) == EffectWord("k", 1, 1, True, TOLD)


# ---- mutants -----------------------------------------------------------------------------------------------------------


def test_a_call_right_after_the_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another output to wait for, a recovery to before the word would call a second time."""
    monkeypatch.setattr(AgentEffects, "not_done", _at_once)
    with pytest.raises(AssertionError):
        test_what_was_not_done_is_called_when_that_is_released()


def _at_once(effects: AgentEffects, number: int) -> None:
    effects.is_in_doubt, effects.is_ready, effects.needs_people = False, True, False

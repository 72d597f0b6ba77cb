"""What people wish of effects that have ended, in one host core: tried again, or undone, once, whatever is restored."""

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_effect_words import People, agent_of, logged, restarted, saved, told
from tests.agent_runtime.test_effects import (
    BROKEN,
    GO,
    PAID,
    PROTOCOLS,
    ask,
    begun,
    done,
    end,
    failing,
    intent,
    release,
    runs,
    stages,
)

from snapline.agent_runtime.durable import DONE, FAILED, EffectIntent
from snapline.agent_runtime.effect_ledger import UNDO as UNDO_MESSAGE
from snapline.agent_runtime.effect_ledger import read_undo
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import (
    RETRY,
    TARGET_GONE,
    UNDO,
    EffectRetry,
    effect_request_payload,
    parse_effect_key,
    read_effect_request,
)
from snapline.storage.packs.checkpoint import AgentCheckpoint, KnownEffect

BACK = intent(undo="m:undo", undo_arguments=[b"\x07"])
"""It can be undone."""


def wish(verb: str, shown: str = "k") -> bytes:
    return effect_request_payload(EffectRetry(verb, *parse_effect_key(shown)))


def paid(protocol: str = "chandy-lamport", asked: EffectIntent = BACK) -> Driver:
    """An agent that has paid, in a turn that stands."""
    driver = begun(here=("a",), protocol=protocol)
    done(driver, asked)
    driver.end("a")
    return driver


def failed() -> Driver:
    """One whose payment, and with it its turn, has failed."""
    driver = begun(here=("a",))
    done(driver, intent(), outcome=FAILED)
    failing(driver)
    return driver


def undo(driver: Driver, outcome: str = DONE, shown: str = "k/undo") -> None:
    """The turn that stands there asks for the compensation, and it comes to that."""
    turn = driver.turns["a"]
    assert (turn.what, turn.sender) == ("letter", "a") and turn.payload.startswith(UNDO_MESSAGE)
    (made,) = read_undo(turn.payload[len(UNDO_MESSAGE) :])
    assert (made.key, made.undo, made.undo_arguments) == ("k", "m:undo", [b"\x07"])
    ask(driver, intent(is_undo=True, generation=made.generation), "pay/undo")
    (run,) = runs(release(driver, epoch=2))
    assert run.key == f"c/a/{shown}"
    end(driver, outcome, PAID if outcome == DONE else BROKEN)


def outcome_of(driver: Driver, key: str = "k") -> tuple[str, bool]:
    effects = agent_of(driver).effects
    assert effects is not None
    return effects.keys[key].outcome, effects.keys[key].is_orphan


def reason(driver: Driver, payload: bytes) -> str:
    people = People(driver, count=len(driver.said))
    request = people.say(payload, "refused")
    assert people.answers[request] == [("refused", 0)]
    return people.reason(request)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_stands_is_undone_in_a_turn_of_its_own_and_asked_for_again_it_is_another_one(protocol: str) -> None:
    driver = paid(protocol)
    People(driver).settle(wish(UNDO))
    undo(driver)
    driver.end("a")
    assert outcome_of(driver) == ("compensated", False) and told(driver) == ("replied", b"")
    driver.remote_sends("z", "a", GO)
    ask(driver, BACK)
    assert [run.key for run in runs(release(driver, epoch=3))] == ["c/a/k#2"]


def test_the_same_wish_twice_is_the_same_as_once() -> None:
    driver = paid()
    people = People(driver)
    people.settle(wish(UNDO))
    people.say(wish(UNDO), "v")
    undo(driver)
    people.append()
    driver.end("a")
    assert told(driver, "v") == ("replied", b"") and "a" not in driver.turns
    people.say(wish(UNDO), "u")
    people.append()
    assert told(driver, "u") == ("replied", b"") and "a" not in driver.turns
    assert stages(driver).count("intent k/undo") == 0 == len(agent_of(driver).dead_letters)


def test_a_later_generation_is_not_undone_by_a_wish_about_an_earlier_one() -> None:
    driver = paid()
    people = People(driver)
    people.settle(wish(UNDO))
    undo(driver)
    driver.end("a")
    driver.remote_sends("z", "a", GO)
    ask(driver, BACK)
    release(driver, epoch=3)
    end(driver)
    driver.end("a")
    people.say(wish(UNDO, "k"), "again")
    people.append()
    assert "a" not in driver.turns and outcome_of(driver) == (DONE, False)
    people.say(wish(UNDO, "k#2"), "second")
    people.append()
    assert driver.turns["a"].payload.startswith(UNDO_MESSAGE)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_recovery_in_the_middle_of_an_undoing_goes_on_with_it(is_begun: bool) -> None:
    driver = paid()
    before = saved(driver)
    people = People(driver)
    people.settle(wish(UNDO))
    kept: AgentCheckpoint = before
    if is_begun:
        ask(driver, intent(is_undo=True, generation=1), "pay/undo")
        kept = saved(driver)
    later = Driver(checkpoints={"a": kept}, begun=1, starts=False, here=("a",))
    later.receive_plan(2)
    later.turns.clear()
    later.load(2, *([] if is_begun else [logged(wish(UNDO))]))
    if not is_begun:
        assert later.turns["a"].what == "letter"
    ask(later, intent(is_undo=True, generation=1), "pay/undo")
    assert [run.is_in_doubt for run in runs(release(later, epoch=2))] == [is_begun]


def test_a_compensation_that_fails_is_a_dead_letter_and_can_be_wished_again() -> None:
    driver = paid()
    people = People(driver)
    people.settle(wish(UNDO))
    undo(driver, FAILED)
    failing(driver)
    (letter,) = agent_of(driver).dead_letters
    assert letter.payload.startswith(UNDO_MESSAGE) and outcome_of(driver) == (DONE, True)
    people.say(wish(RETRY, "k/undo"), "again")
    people.append()
    undo(driver)
    driver.end("a")
    assert outcome_of(driver) == ("compensated", False) and told(driver, "again") == ("replied", b"")


def test_a_retry_gives_the_dead_letter_of_its_turn_another_turn() -> None:
    driver = failed()
    other = b"\x04Next\x01"
    driver.remote_sends("z", "a", other)
    failing(driver)
    assert [each.payload for each in agent_of(driver).dead_letters] == [GO, other]
    people = People(driver)
    people.settle(wish(RETRY))
    turn = driver.turns["a"]
    assert (turn.what, turn.sender, turn.payload) == ("letter", "z", GO)
    ask(driver, intent())
    assert [run.key for run in runs(release(driver, epoch=2))] == ["c/a/k"]
    end(driver)
    driver.end("a")
    assert outcome_of(driver) == (DONE, False) and told(driver) == ("replied", b"")
    assert [each.payload for each in agent_of(driver).dead_letters] == [other]


def test_a_retry_whose_letter_somebody_else_has_settled_finds_nothing() -> None:
    driver = failed()
    people = People(driver)
    people.settle(wish(RETRY))
    people.say(wish(RETRY), "v")
    people.append()
    driver.end("a")
    assert told(driver, "v") == ("replied", TARGET_GONE) and "a" not in driver.turns


SENTENCES = [
    (UNDO, "other", "is not known to it, or not any more: see `snapline effect list --agent a`"),
    (UNDO, "k#2", "effect 'k#2' of agent 'a' is not known to it"),
    (UNDO, "k#0", "is not known to it"),
    (RETRY, "k", "is done: there is nothing to try again"),
    (RETRY, "k/undo", "is not known to it"),
]


@pytest.mark.parametrize(("verb", "shown", "sentence"), SENTENCES)
def test_what_makes_no_sense_is_refused_in_one_sentence(verb: str, shown: str, sentence: str) -> None:
    assert sentence in reason(paid(), wish(verb, shown))


def test_what_has_no_compensation_is_not_undone() -> None:
    assert "was asked for without a compensation" in reason(paid(asked=intent()), wish(UNDO))


def test_what_has_not_ended_is_neither_tried_again_nor_undone() -> None:
    driver = begun(here=("a",))
    ask(driver, BACK)
    for verb in (RETRY, UNDO):
        assert "has not ended: see `snapline agent describe a`" in reason(driver, wish(verb))


def test_what_was_undone_is_not_tried_again_and_no_compensation_is_undone() -> None:
    driver = paid()
    People(driver).settle(wish(UNDO))
    undo(driver)
    driver.end("a")
    assert "was undone: it is done anew when its agent asks for it again" in reason(driver, wish(RETRY))
    assert "is done: there is nothing to try again" in reason(driver, wish(RETRY, "k/undo"))
    assert "undoes another one, and is not undone itself" in reason(driver, wish(UNDO, "k/undo"))


def test_a_failure_that_its_turn_has_taken_is_left_to_the_agent_and_one_without_its_letter_too() -> None:
    driver = begun(here=("a",))
    done(driver, intent(), outcome=FAILED)
    driver.end("a")
    assert "its turn went on without it" in reason(driver, wish(RETRY))
    driver = failed()
    agent_of(driver).dead_letters.clear()
    agent_of(driver).dead_letter_numbers.clear()
    assert "the dead letter of that is gone" in reason(driver, wish(RETRY))


def test_what_the_window_holds_comes_back_from_a_checkpoint_and_older_ones_have_less() -> None:
    driver = paid()
    kept = saved(driver).effects
    assert kept is not None and kept.keys[0].undo == "m:undo"
    old = msgspec.msgpack.decode(
        msgspec.msgpack.encode(list(msgspec.structs.astuple(kept.keys[0]))[:8]), type=KnownEffect
    )
    assert (old.key, old.undo, old.dead_letter) == ("k", "", 0)
    again = restarted(saved(driver))
    again.feed(msg.LogOpened(2))
    People(again).say(wish(UNDO))
    People(again).append()
    assert again.turns["a"].payload.startswith(UNDO_MESSAGE)


def test_a_wish_that_cannot_be_read_is_none() -> None:
    for payload in (b"", b"\x00wish", b"\x00wish\x93", effect_request_payload(EffectRetry("drop", "k", 1))):
        with pytest.raises(ProtocolError):
            read_effect_request(payload)
    assert [parse_effect_key(x) for x in ("k", "k#2", "k/undo", "k#2/undo", "a#b")] == [
        ("k", 1), ("k", 2), ("k/undo", 1), ("k#2/undo", 1), ("a#b", 1),
    ]  # fmt: skip


# ---- mutants -----------------------------------------------------------------------------------------------------------


def test_an_effect_that_goes_on_to_belong_to_its_turn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that the compensation is adopted as needless, and nothing is undone."""
    monkeypatch.setattr(AgentEffects, "give_up", lambda effects, key: None)
    with pytest.raises(ValueError, match="unpack"):
        test_what_stands_is_undone_in_a_turn_of_its_own_and_asked_for_again_it_is_another_one("chandy-lamport")

"""The host core's part in effects: they are called when their intents are released, what is known of their keys, what a failed turn leaves."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from tests.agent_runtime.driving import Driver

from snapline.agent_runtime.durable import (
    ADOPTED,
    DONE,
    FAILED,
    REFUSED,
    EffectIntent,
    Pause,
    encode_error,
    encode_result,
)
from snapline.agent_runtime.effect_ledger import UNDO, read_undo
from snapline.agent_runtime.host import agent_effects
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.entries import StashedEntry
from snapline.messages import host_messages as msg
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.payloads import split_message
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    JournalEntry,
    SavedEffects,
    decode_checkpoint,
    encode_checkpoint,
)

SEED = bytes(16)
GO = b"\x02Go\x01"
DIGEST, OTHER = b"12345678", b"87654321"
PAID = encode_result("pay", "receipt 7")
BROKEN = encode_error(ValueError("no funds"))
PROTOCOLS = ["chandy-lamport", "hmnr", "uncoordinated"]


def intent(key: str = "k", **options: object) -> EffectIntent:
    return EffectIntent(key, '["order"]', 5, **options)  # type: ignore[arg-type]


def ask(driver: Driver, asked: EffectIntent, name: str = "pay", digest: bytes = DIGEST) -> list[ev.HostOutput]:
    """The running segment of `a` ends at an effect."""
    turn = driver.core.agents["a"].turn
    place = len(turn.journal) if turn is not None else 0
    return driver.end("a", pause=Pause(SEED, JournalEntry("effect", name, digest), None, [], False, {place: asked}))


def begun(**options: object) -> Driver:
    """A driver whose agent `a` has been told to go."""
    driver = Driver(**options)  # type: ignore[arg-type]
    driver.remote_sends("z", "a", GO)
    return driver


def release(driver: Driver, *, epoch: int = 1, number: int | None = None) -> list[ev.HostOutput]:
    """An epoch that holds all that `a` has emitted, or up to this number, is released."""
    outputs = driver.core.agents["a"].outputs
    assert outputs is not None
    number = outputs.number if number is None else number
    return driver.feed(msg.EndEpoch(epoch, True, emitters=("a",), outputs=(number,)))


def runs(said: Sequence[ev.HostOutput]) -> list[ev.RunEffect]:
    return [each for each in said if isinstance(each, ev.RunEffect)]


def end(driver: Driver, outcome: str = DONE, result: bytes = PAID, place: int = 0) -> list[ev.HostOutput]:
    """The call has ended."""
    return driver.feed(ev.StepEnded("a", 1, place, outcome, result, 9))


def ledger(driver: Driver) -> list[EffectRecord]:
    """What `a` has emitted and nobody has released."""
    outputs = driver.core.agents["a"].outputs
    pending = [] if outputs is None else [x for x in outputs.pending if x.topic == EFFECTS_TOPIC]
    return [msgspec.msgpack.decode(split_message(x.payload)[1], type=EffectRecord) for x in pending]


def stages(driver: Driver) -> list[str]:
    return [f"{record.stage} {record.key}" for record in ledger(driver)]


def saved(driver: Driver) -> SavedEffects | None:
    return driver.core.agents["a"].control(driver.now).effects


def checkpoint(driver: Driver) -> AgentCheckpoint:
    """Of `a`, as it is read back."""
    control = driver.core.agents["a"].control(driver.now)
    made = AgentCheckpoint(
        agent="a",
        kind="k:K",
        epoch=1,
        is_started=True,
        dead_letters=control.dead_letters,
        saved_outputs=control.outputs if control.outputs.number else msgspec.UNSET,
        saved_turn=control.turn or msgspec.UNSET,
        saved_stash=control.stash or msgspec.UNSET,
        saved_effects=control.effects or msgspec.UNSET,
        saved_group=control.effect_group or msgspec.UNSET,
    )
    return decode_checkpoint(encode_checkpoint(made))


def recovered(driver: Driver) -> Driver:
    """From a checkpoint of now; its agent's handler runs again."""
    return Driver(checkpoints={"a": checkpoint(driver)}, begun=1, starts=False)


def done(driver: Driver, asked: EffectIntent, name: str = "pay", *, outcome: str = DONE, place: int = 0) -> None:
    """From the asking to the next segment."""
    ask(driver, asked, name)
    (run,) = runs(release(driver))
    assert run.place == place
    end(driver, outcome, PAID if outcome == DONE else BROKEN, place)


# ---- when it is called -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_effect_is_called_when_its_intent_is_released(protocol: str) -> None:
    driver = begun(protocol=protocol)
    said = ask(driver, intent())
    assert not runs(said) and stages(driver) == ["intent k"]
    assert msg.WantEpoch(1) in driver.said
    said = release(driver)
    assert runs(said) == [ev.RunEffect("a", 1, 0, "pay", "c/a/k", is_in_doubt=False)]
    assert not runs(release(driver, epoch=2, number=1)), "and once"


def test_an_epoch_that_does_not_hold_the_intent_lets_nothing_happen() -> None:
    driver = begun()
    driver.end("a", outputs=[("topic", b"before", 1)])
    driver.remote_sends("z", "a", GO)
    ask(driver, intent())
    driver.said.clear()
    assert not runs(release(driver, number=1))
    assert msg.WantEpoch(1) in driver.said, "another one is wanted"
    assert not runs(driver.feed(msg.EndEpoch(2, False, "aborted")))
    assert runs(release(driver, epoch=3))


@pytest.mark.parametrize("protocol", ["hmnr", "uncoordinated"])
@pytest.mark.parametrize("is_watched", [False, True])
def test_each_checkpoint_of_an_agent_that_stands_at_an_effect_holds_its_intent(protocol: str, is_watched: bool) -> None:
    """Also where the turn has said something before, for which somebody waits: that brings a checkpoint of its own."""
    driver = begun(protocol=protocol)
    driver.feed(msg.OutputsWatched(is_watched))
    pause = Pause(SEED, JournalEntry("effect", "pay", DIGEST), None, [], False, {0: intent()})
    driver.end("a", pause=pause, outputs=[("topic", b"before", 1)])
    taken = [x.control for x in driver.all_of(ev.TakeCheckpoint) if x.agent == "a" and x.control.outputs.number]
    assert taken and [x.outputs.number for x in taken] == [2] * len(taken), "a freeze would have kept the first one"
    assert all(x.effects is not None and x.effects.open is not None for x in taken)


@pytest.mark.parametrize("protocol", ["hmnr", "uncoordinated"])
def test_no_checkpoint_holds_a_part_of_an_outcome(protocol: str) -> None:
    """Whoever reads outputs brings a checkpoint when one is told of the outcome: then the journal has it, too."""
    driver = begun(protocol=protocol)
    driver.feed(msg.OutputsWatched(True))
    ask(driver, intent())
    release(driver)
    driver.core.mode.moved(driver.core.agents["a"])
    end(driver)
    taken = [x.control for x in driver.all_of(ev.TakeCheckpoint) if x.agent == "a"][-1]
    assert taken.effects is not None and taken.turn is not None
    assert (taken.effects.open is None) == bool(taken.turn.journal), "all of it, or nothing"


def test_the_outcome_is_in_the_journal_the_window_and_the_ledger_at_once() -> None:
    driver = begun()
    ask(driver, intent())
    release(driver)
    end(driver)
    assert driver.turns["a"].found == JournalEntry("effect", "pay", DIGEST, DONE, PAID, "k#1")
    (record,) = ledger(driver)
    assert (record.stage, record.outside_key, record.result) == ("done", "c/a/k", '"receipt 7"')
    found = saved(driver)
    assert found is not None and found.open is None
    assert [(known.key, known.outcome, known.result) for known in found.keys] == [("k", DONE, PAID)]


def test_what_comes_late_of_an_effect_changes_nothing() -> None:
    driver = begun()
    ask(driver, intent())
    release(driver)
    driver.feed(ev.StepEnded("a", 9, 0, DONE, b"of another life"))
    driver.feed(ev.StepEnded("a", 1, 3, DONE, b"of another place"))
    assert "a" not in driver.turns
    end(driver)
    end(driver)
    assert stages(driver) == ["done k"]


# ---- recoveries ------------------------------------------------------------------------------------------------------


def test_an_effect_that_comes_from_a_checkpoint_is_in_doubt() -> None:
    driver = begun()
    ask(driver, intent())
    again = recovered(driver)
    assert again.turns["a"].turn is not None, "its handler runs again first"
    assert not runs(release(again)), "the line's release is told, and nobody stands there yet"
    assert runs(ask(again, intent())) == [ev.RunEffect("a", 1, 0, "pay", "c/a/k", is_in_doubt=True)]


def test_an_intent_of_the_line_that_is_not_released_is_waited_for() -> None:
    driver = begun()
    ask(driver, intent())
    again = recovered(driver)
    assert not runs(ask(again, intent())) and stages(again) == ["intent k"]
    assert [run.is_in_doubt for run in runs(release(again))] == [True]
    end(again)
    assert stages(again) == ["done k"]


def test_a_turn_whose_intent_is_not_in_the_line_says_it_anew() -> None:
    """A checkpoint may have been taken between the end of the segment and the intent."""
    driver = begun()
    ask(driver, intent())
    without = msgspec.structs.replace(checkpoint(driver), saved_effects=msgspec.UNSET, saved_outputs=msgspec.UNSET)
    again = Driver(checkpoints={"a": without}, begun=1, starts=False)
    ask(again, intent())
    assert stages(again) == ["intent k"]
    assert [run.is_in_doubt for run in runs(release(again))] == [False]


def test_agents_without_effects_save_nothing_of_them() -> None:
    driver = begun()
    driver.end("a")
    assert saved(driver) is None and b"effects" not in encode_checkpoint(checkpoint(driver))


# ---- keys ------------------------------------------------------------------------------------------------------------


def next_turn(driver: Driver) -> None:
    """The turn ends well, and another one begins."""
    driver.end("a")
    driver.remote_sends("z", "a", GO)


def test_a_key_that_is_done_is_adopted_at_once_in_whatever_turn() -> None:
    driver = begun()
    done(driver, intent())
    next_turn(driver)
    driver = Driver(checkpoints={"a": checkpoint(driver)}, begun=1, starts=False)
    driver.remote_sends("z", "a", GO)
    assert not runs(ask(driver, intent()))
    assert driver.turns["a"].found == JournalEntry("effect", "pay", DIGEST, ADOPTED, PAID)
    assert stages(driver) == ["done k"], "nothing new"


def test_a_key_with_other_arguments_is_refused_with_both() -> None:
    driver = begun()
    done(driver, intent())
    next_turn(driver)
    ask(driver, EffectIntent("k", '["else"]', 5), digest=OTHER)
    found = driver.turns["a"].found
    assert found is not None and found.outcome == REFUSED
    assert b'["order"]' in found.result and b'["else"]' in found.result


def test_a_key_that_failed_is_tried_again_under_the_same_outside_key() -> None:
    driver = begun()
    done(driver, intent(), outcome=FAILED)
    next_turn(driver)
    ask(driver, intent())
    assert [run.key for run in runs(release(driver))] == ["c/a/k"]


def test_a_key_that_was_compensated_is_really_done_again() -> None:
    driver = begun()
    done(driver, intent(undo="m:undo"))
    done(driver, intent(is_undo=True), "pay/undo", place=1)
    ask(driver, intent())
    (run,) = runs(release(driver))
    assert run.key == "c/a/k#2"
    end(driver, place=2)
    ask(driver, intent(is_undo=True), "pay/undo")
    assert [run.key for run in runs(release(driver))] == ["c/a/k#2/undo"], "and its undoing is another effect"


def test_keys_that_were_made_up_are_forgotten_with_their_turn() -> None:
    driver = begun()
    done(driver, intent("@1"))
    driver.end("a")
    assert saved(driver) is None


def test_the_window_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_effects, "KEYS_KEPT", 5)
    monkeypatch.setattr(agent_effects, "KEYS_KEPT_NS", 50)
    monkeypatch.setattr(agent_effects, "RESULTS_BYTES_MAX", 60)
    chance = random.Random(1)
    effects, now, ended = AgentEffects(), 0, dict[str, tuple[int, int]]()
    for turn in range(300):
        made = [f"{turn}.{n}" for n in range(chance.randrange(1, 4))]
        for key in made:
            now += chance.randrange(30)
            size = chance.randrange(40)
            effects.begin(0, intent(key), DIGEST, 1, "pay")
            effects.end(0, is_done=True, result=b"r" * size, ended_ns=now)
            ended[key] = now, size
            assert set(made[: made.index(key) + 1]) <= set(effects.keys), "what the turn has made"
        effects.turn_ended()
        kept = list(effects.keys)
        assert kept == list(ended)[len(ended) - len(kept) :], "the newest ones, in order"
    allowed = [key for key in list(ended)[-5:] if now - ended[key][0] <= 50]
    assert set(effects.keys) <= {*allowed, *made}


def test_a_clock_that_jumps_makes_no_effect_old() -> None:
    effects = AgentEffects()
    for number, ended_ns in enumerate((1, 10**18, 2 * 10**18, 10**18, 3 * 10**18)):
        effects.begin(0, intent(f"k{number}"), DIGEST, 1, "pay")
        effects.end(0, is_done=True, result=b"", ended_ns=ended_ns)
        effects.turn_ended()
    assert list(effects.keys) == ["k0", "k1", "k2", "k3", "k4"]


# ---- turns that fail -------------------------------------------------------------------------------------------------


def failing(driver: Driver) -> list[ev.HostOutput]:
    return driver.fail("a", is_final=True)


def test_what_a_failed_turn_has_done_is_undone_next_and_newest_first() -> None:
    driver = begun()
    for place, (key, undo, outcome) in enumerate(
        [("one", "m:undo", DONE), ("two", "", DONE), ("three", "m:undo", FAILED), ("four", "", FAILED)]
    ):
        done(driver, intent(key, undo=undo, undo_arguments=[b"\x07"]), outcome=outcome, place=place)
    driver.remote_sends("z", "a", b"\x04Next\x01")
    failing(driver)
    turn = driver.turns["a"]
    assert turn.what == "stashed" and turn.sender == "a" and turn.payload.startswith(UNDO)
    found = read_undo(turn.payload[len(UNDO) :])
    assert [(made.key, made.generation, made.undo, made.undo_arguments) for made in found] == [
        ("three", 1, "m:undo", [b"\x07"]),
        ("one", 1, "m:undo", [b"\x07"]),
    ]
    assert [stage for stage in stages(driver) if stage.startswith("left")] == ["left two", "left four"]
    (letter,) = driver.core.agents["a"].dead_letters
    assert letter.payload == GO


def test_an_effect_that_a_later_turn_takes_over_is_done_in_the_ledger_again() -> None:
    """Otherwise an operator would undo by hand what the retry of its turn has made part of the agent's work."""
    driver = begun()
    done(driver, intent("one"))
    failing(driver)
    assert stages(driver)[-1] == "left one"
    driver.remote_sends("z", "a", GO)
    ask(driver, intent("one"))
    found = driver.turns["a"].found
    assert found is not None and (found.outcome, found.result) == (DONE, PAID)
    record = ledger(driver)[-1]
    assert (record.stage, record.key, record.generation, record.outside_key) == ("done", "one", 1, "c/a/one")
    taken_over = stages(driver)
    next_turn(driver)
    ask(driver, intent("one"))
    assert stages(driver) == taken_over, "it belongs to a turn that has succeeded"


def test_a_turn_that_ends_well_leaves_nothing_to_undo() -> None:
    driver = begun()
    done(driver, intent(undo="m:undo"))
    driver.end("a")
    driver.remote_sends("z", "a", GO)
    failing(driver)
    assert "a" not in driver.turns and not [stage for stage in stages(driver) if stage.startswith("left")]


def test_what_was_adopted_from_a_turn_that_stands_is_not_undone() -> None:
    driver = begun()
    done(driver, intent(undo="m:undo"))
    next_turn(driver)
    ask(driver, intent(undo="m:undo"))
    failing(driver)
    assert "a" not in driver.turns
    undone = driver.core.agents["a"].effects
    assert undone is not None and undone.keys["k"].outcome == DONE


def undoing(driver: Driver, outcome: str) -> None:
    """The turn after one that failed runs, and its compensation comes to that."""
    done(driver, intent(is_undo=True, generation=1), "pay/undo", outcome=outcome)


def test_a_failed_compensation_is_tried_again_by_its_letter_unless_a_later_turn_has_adopted_the_effect() -> None:
    driver = begun()
    done(driver, intent(undo="m:undo"))
    failing(driver)
    undoing(driver, FAILED)
    failing(driver)
    again = Driver(checkpoints={"a": checkpoint(driver)}, begun=1, starts=False)
    again.remote_sends("z", "a", GO)
    ask(again, intent(is_undo=True, generation=1), "pay/undo")
    assert [run.key for run in runs(release(again))] == ["c/a/k/undo"]
    other = Driver(checkpoints={"a": checkpoint(driver)}, begun=1, starts=False)
    other.remote_sends("z", "a", GO)
    ask(other, intent(undo="m:undo"))
    found = other.turns["a"].found
    assert found is not None and (found.outcome, found.result) == (DONE, PAID), "as if this turn had done it"
    next_turn(other)
    ask(other, intent(is_undo=True, generation=1), "pay/undo")
    found = other.turns["a"].found
    assert found is not None and found.outcome == ADOPTED, "it belongs to a turn that stands"


def test_a_turn_that_fails_on_its_way_to_an_effect_in_doubt_undoes_it() -> None:
    driver = begun()
    ask(driver, intent(undo="m:undo"))
    again = recovered(driver)
    release(again)
    failing(again)
    assert [made.key for made in read_undo(again.turns["a"].payload[len(UNDO) :])] == ["k"]
    assert stages(again) == ["failed k"]


def test_the_stash_of_a_failed_turn_survives() -> None:
    driver = begun()
    done(driver, intent(undo="m:undo"))
    failing(driver)
    again = Driver(checkpoints={"a": checkpoint_before_turn(driver)}, begun=1, starts=False)
    assert again.turns["a"].payload.startswith(UNDO)


def checkpoint_before_turn(driver: Driver) -> AgentCheckpoint:
    """As one that was taken just before the turn that undoes."""
    agent = driver.core.agents["a"]
    entry = agent.current
    assert isinstance(entry, StashedEntry)
    found = checkpoint(driver)
    return msgspec.structs.replace(found, saved_stash=[entry.stashed, *agent.stash])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fork_that_is_not_live_refuses_effects_and_knows_what_its_parent_has_done(protocol: str) -> None:
    driver = begun(protocol=protocol)
    ask(driver, intent())
    release(driver)
    end(driver)
    driver.feed(msg.Welcome(1, "c", refuses_effects=True))
    ask(driver, intent("other"))
    turn = driver.core.agents["a"].turn
    assert turn is not None and turn.journal[-1].outcome == REFUSED
    assert (
        b"effect 'pay' (key other) is refused: the fleet is a fork that was made without --live"
        in turn.journal[-1].result
    )
    said = ask(driver, intent())
    assert turn.journal[-1].outcome == ADOPTED and runs(said) == []

"""What people say about an effect in doubt, in one host core: its turn takes it once, and a recovery before the word and one after it come to the same."""

from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_effects import (
    BROKEN,
    DIGEST,
    GO,
    SEED,
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

from snapline.agent_runtime.durable import DONE, FAILED, EffectIntent, Pause, encode_result, rolled
from snapline.agent_runtime.effect_ledger import UNDO, read_undo
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects, AwaitedEffect
from snapline.agent_runtime.host.coordinator_messages import heartbeat_of
from snapline.agent_runtime.host.host_log import StepLog, is_mark, mark_of
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import (
    TARGET_GONE,
    EffectResolution,
    effect_resolution_payload,
    read_effect_resolution,
)
from snapline.messages.effect_records import UnfinishedEffect
from snapline.storage.log.log_record import LoggedEntry, LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry

OURS = intent(is_repeatable=False)
TOLD = encode_result("pay", "receipt 8")


def said(number: int = 1, *, is_done: bool = True, key: str = "k", generation: int = 1) -> bytes:
    return effect_resolution_payload(EffectResolution(key, generation, number, is_done, TOLD if is_done else b""))


def saved(driver: Driver) -> AgentCheckpoint:
    """Of `a` now, with its inputs, as it is read back."""
    control = driver.core.agents["a"].control(driver.now)
    return msgspec.structs.replace(checkpoint(driver), inputs=control.inputs)


def begin(driver: Driver, *, epoch: int = 1, number: int | None = None) -> list[ev.HostOutput]:
    """Its intent, or what people have said, is released, and its call begins: the log says so first."""
    said = release(driver, epoch=epoch, number=number)
    people = People(driver)
    assert not runs(said)
    people.open()
    before = len(driver.said)
    people.append()
    return driver.said[before:]


def restarted(
    kept: AgentCheckpoint, *inputs: LoggedInput, logged: tuple[LoggedEntry, ...] = (), asked: EffectIntent = OURS
) -> Driver:
    """A later life from this checkpoint; the handler has run up to the effect, if its turn stands there. `logged`: what host logs hold of turns."""
    driver = Driver(checkpoints={"a": kept}, begun=1, starts=False, here=("a",))
    driver.receive_plan(2)
    driver.turns.clear()
    driver.load(2, *inputs, entries=logged)
    if "a" in driver.turns and driver.turns["a"].turn is not None and kept.effects is not None and kept.effects.open:
        ask(driver, asked)
    return driver


def in_doubt() -> Driver:
    """A life whose agent stands at an effect that an earlier one may have called."""
    first = begun(here=("a",))
    ask(first, OURS)
    assert runs(begin(first))
    return restarted(saved(first))


def agent_of(driver: Driver) -> LocalAgent:
    return driver.core.agents["a"]


class People(Client):
    """Who say words, to a host whose log is open."""

    def say(self, payload: bytes, key: str = "w") -> int:
        self.count += 1
        offered = ev.OfferedInput("a", key, payload, is_operator_command=True)
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


def test_an_effect_that_needs_people_is_in_the_heartbeats() -> None:
    driver = in_doubt()
    beat = heartbeat_of(driver.core, 1, now_ns=driver.now)
    (told,) = beat.standing
    assert (told.agent, told.kind, beat.agents_standing) == ("a", "in_doubt", 1)
    assert "key 'k'" in told.reason and "only people can say" in told.reason


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
    assert [run.key for run in runs(begin(driver, epoch=2))] == ["c/a/k"]
    assert told(driver) == ("replied", b"")


def test_what_is_called_after_a_word_is_in_doubt_again_after_a_crash_and_the_word_says_nothing_of_that() -> None:
    """A checkpoint that releases the call has the word as consumed; another word like it is about a doubt that is over."""
    driver = in_doubt()
    people = People(driver)
    people.settle(said(is_done=False))
    people.say(said(is_done=False), "too late")
    assert people.answers[2][0][0] == "refused"
    kept = saved(driver)
    assert runs(begin(driver, epoch=2))
    later = restarted(kept, logged(said(is_done=False), 2, "found in the log"), logged=driver.logged)
    release(later, epoch=2, number=2)
    assert not runs(later.said), "it may have been called"
    People(later).say(said(number=2), "newer")
    later.feed(msg.LogOpened(2))
    People(later).append()
    assert found(later) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#1")
    later.end("a")
    assert told(later, "found in the log") == ("replied", TARGET_GONE)


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
        life = driver if kept is None else restarted(kept, *inputs, logged=() if kept is before else driver.logged)
        if not is_done:
            if life is driver or kept is before:
                assert runs(begin(life, epoch=2))
                life.feed(ev.StepEnded("a", 2, 0, DONE, TOLD, WALL_NS))
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


@pytest.mark.parametrize("is_resolved", [False, True])
def test_a_resolution_consumed_again_says_nothing_of_the_call_that_followed_it(is_resolved: bool) -> None:
    """A restore takes the agent back to before the resolution. The logs hold the resolution, and the mark of the call after it."""
    driver = in_doubt()
    before = saved(driver)
    People(driver).settle(said(is_done=False))
    assert runs(begin(driver, epoch=2)), "it is called"
    words = [logged(said(is_done=False)), logged(said(2), 2, "found in the log")]
    later = restarted(before, *words[: 1 + is_resolved], logged=driver.logged)
    release(later, epoch=3)
    assert not runs(later.said)
    if not is_resolved:
        assert [each.stands for each in standing(later)] == ["needs people"]
        People(later).settle(said(2), "newer")
    assert found(later) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#1")


def test_only_what_needs_people_takes_a_word() -> None:
    first = begun(here=("a",))
    ask(first, OURS)
    people = People(first)
    assert people.say(said()) and "needs nobody's word" in people.reason(1)
    people.say(said(key="other"), "v")
    assert "does not wait for effect 'other' any more: see `snapline agent describe a`" in people.reason(2)
    begin(first)
    people.say(said(), "u")
    assert "needs nobody's word" in people.reason(3)


def released_only() -> tuple[AgentCheckpoint, Driver]:
    """A life whose intent is released, and the checkpoint of that; it dies before the log says that it calls, or after."""
    first = begun(here=("a",))
    ask(first, OURS)
    kept = saved(first)
    assert not runs(release(first))
    return kept, first


def opened_and_appended(driver: Driver) -> tuple[LoggedEntry, ...]:
    """What its log holds then."""
    people = People(driver)
    people.open()
    people.append()
    return driver.logged


def test_what_no_log_says_to_be_about_to_be_called_was_not_called_and_is() -> None:
    kept, _ = released_only()
    later = restarted(kept)
    assert [run.is_in_doubt for run in runs(begin(later, epoch=2))] == [False]
    assert not [each for each in later.said if isinstance(each, ev.Note)], "people are not asked"


def test_what_a_log_says_to_be_about_to_be_called_waits_for_people_and_checkpoints_know_it_from_then_on() -> None:
    kept, first = released_only()
    opened_and_appended(first)
    assert runs(first.said), "it was"
    later = restarted(kept, logged=first.logged)
    for life in (later, restarted(saved(later)), restarted(saved(first))):
        release(life, epoch=2)
        assert not runs(life.said) and [each.stands for each in standing(life)] == ["needs people"]


def test_what_was_said_of_an_earlier_call_says_nothing_of_a_later_one() -> None:
    """People have said that it was not done; its host dies before it calls."""
    driver = in_doubt()
    People(driver).settle(said(is_done=False))
    _, first = released_only()
    later = restarted(saved(driver), logged=opened_and_appended(first))
    assert [run.key for run in runs(begin(later, epoch=2, number=2))] == ["c/a/k"]


def test_checkpoints_of_earlier_builds_know_of_no_marks_and_leave_it_to_people() -> None:
    kept, _ = released_only()
    effects = kept.effects
    assert effects is not None and effects.open is not None
    old = msgspec.structs.replace(effects, open=msgspec.structs.replace(effects.open, is_marked=False))
    later = restarted(msgspec.structs.replace(kept, saved_effects=old))
    release(later, epoch=2)
    assert [each.stands for each in standing(later)] == ["needs people"]


PROBED = intent(has_probe=True)
CAREFUL = intent(is_repeatable=False, has_probe=True)


@pytest.mark.parametrize("asked", [PROBED, CAREFUL])
def test_what_has_a_probe_is_asked_after_when_it_was_about_to_be_called(asked: EffectIntent) -> None:
    first = begun(here=("a",))
    ask(first, asked)
    kept = saved(first)
    assert [run.is_in_doubt for run in runs(begin(first))] == [False], "the first call is no repetition"
    for logged_then, is_in_doubt in ((first.logged, True), ((), False)):
        later = restarted(kept, logged=logged_then, asked=asked)
        said = release(later, epoch=2) if is_in_doubt else begin(later, epoch=2)
        assert [run.is_in_doubt for run in runs(said)] == [is_in_doubt]
        assert not [each for each in later.said if isinstance(each, ev.Note)]


def failed(asked: EffectIntent, late_s: float = 0.0) -> Driver:
    """Its effect has failed, and may have been done; its turn goes on."""
    driver = begun(here=("a",))
    ask(driver, asked)
    assert runs(begin(driver) if asked.has_probe or not asked.is_repeatable else release(driver))
    driver.feed(ev.StepEnded("a", 1, 0, FAILED, BROKEN, 9, late_s))
    return driver


def test_what_has_failed_is_asked_after_before_it_is_called_under_its_key_again() -> None:
    driver = failed(PROBED)
    ask(driver, PROBED)
    assert [run.is_in_doubt for run in runs(begin(driver, epoch=2))] == [True]


def test_what_has_failed_and_may_not_be_repeated_needs_people_when_it_is_asked_for_again() -> None:
    driver = failed(OURS)
    driver.end("a")
    driver.remote_sends("z", "a", GO)
    ask(driver, OURS)
    release(driver, epoch=2)
    assert not runs(driver.said[-3:]) and [each.stands for each in standing(driver)] == ["needs people"]
    later = restarted(saved(driver))
    assert [each.stands for each in standing(later)] == ["needs people"], "also without a mark"
    People(later).settle(said(3, is_done=False))
    assert [run.is_in_doubt for run in runs(begin(later, epoch=3))] == [False]


def test_a_service_that_knows_keys_is_called_again_at_once() -> None:
    driver = failed(intent())
    ask(driver, intent())
    assert [run.is_in_doubt for run in runs(release(driver, epoch=2))] == [False]


@pytest.mark.parametrize("late_s", [0.0, 12.5])
def test_a_compensation_waits_until_no_call_of_what_it_undoes_can_be_on_its_way(late_s: float) -> None:
    driver = failed(intent(undo="m:undo"), late_s)
    ask(driver, intent(is_undo=True), "pay/undo")
    (run,) = runs(release(driver, epoch=2))
    assert (run.key, run.undoes, run.wait_s) == ("c/a/k/undo", "c/a/k", late_s)


# ---- going back on purpose -------------------------------------------------------------------------------------------


def taken_back(asked: EffectIntent, *entries: LoggedEntry, digest: bytes = DIGEST) -> Driver:
    """To before anything was done; the turn that asks comes again, with another past. `entries`: what the logs hold of it."""
    driver = Driver(begun=1, starts=False, here=("a",), checkpoints={"a": before()})
    driver.receive_plan(2)
    driver.load(2, entries=entries)
    driver.turns.clear()
    driver.remote_sends("z", "a", GO)
    ask(driver, asked, digest=digest)
    return driver


def before() -> AgentCheckpoint:
    return AgentCheckpoint(agent="a", kind="k:K", epoch=1, is_started=True, dead_letters=[])


def call(outcome: str, result: bytes = b"", key: str = "k#1") -> LoggedEntry:
    return LoggedEntry("a", 3, b"another history.", 0, b"", JournalEntry("effect", "pay", DIGEST, outcome, result, key))


@pytest.mark.parametrize("asked", [OURS, PROBED, CAREFUL, intent()])
def test_what_a_history_that_was_given_up_has_done_is_not_done_again(asked: EffectIntent) -> None:
    driver = taken_back(asked, call("begun"), call(DONE, TOLD))
    assert found(driver) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#1")
    assert [(record.stage, record.key) for record in ledger(driver)] == [("done", "k")], "the ledger has it again"
    assert not runs(driver.said)


def test_what_a_history_that_was_given_up_may_have_done_is_asked_after() -> None:
    for entries in ((call("begun"),), (call("begun"), call(FAILED, BROKEN))):
        assert [run.is_in_doubt for run in runs(begin(taken_back(PROBED, *entries), epoch=2))] == [True]
        stands = taken_back(OURS, *entries)
        release(stands, epoch=2)
        assert not runs(stands.said) and [each.stands for each in standing(stands)] == ["needs people"]


def test_an_effect_without_a_key_is_known_there_as_well() -> None:
    """It has the key that its turn, its place and its arguments give it, whatever else the turn has seen in its other past."""
    driver = taken_back(intent("@made"), call("begun", key="@made#1"), call(DONE, TOLD, "@made#1"))
    assert found(driver) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "@made#1") and not runs(driver.said)
    careful = intent("@made", is_repeatable=False)
    stands = taken_back(careful, call("begun", key="@made#1"))
    release(stands, epoch=2)
    assert not runs(stands.said) and [each.stands for each in standing(stands)] == ["needs people"]


def test_the_log_has_the_right_past_of_each_step_although_a_mark_came_first() -> None:
    """What a checkpoint holds of the turn, and no log any more, is logged after the mark of its effect: at lower places (swarm, seed 1641)."""
    step, effect = JournalEntry("step", "look", DIGEST, DONE, TOLD), JournalEntry("effect", "pay", DIGEST)
    first = begun(here=("a",))
    first.end("a", pause=Pause(SEED, effect, None, [step, step], True, {2: OURS}))
    driver = Driver(checkpoints={"a": saved(first)}, begun=1, starts=False, here=("a",))
    driver.receive_plan(2)
    driver.turns.clear()
    driver.load(2)
    driver.end("a", pause=Pause(SEED, effect, None, [], True, {2: OURS}))
    assert runs(begin(driver))
    driver.feed(ev.StepEnded("a", 2, 2, DONE, TOLD, 9))
    logged = [each for batch in driver.said if isinstance(batch, ev.AppendBatch) for each in batch.entries]
    turn = agent_of(driver).turn
    assert turn is not None and [each.place for each in logged] == [2, 0, 1, 2]
    assert [each.prefix for each in logged] == [rolled(b"", turn.journal[: each.place]) for each in logged]


def test_what_it_takes_over_is_undone_in_the_turns_own_order() -> None:
    """The turn asked for it last, so it is undone first, though the other history had done it before."""
    driver = taken_back(intent("now", undo="m:undo"), call("begun"), call(DONE, TOLD))
    assert runs(release(driver, epoch=2))
    driver.feed(ev.StepEnded("a", 2, 0, DONE, TOLD, 9))
    ask(driver, intent(undo="m:undo"))
    driver.fail("a", is_final=True)
    turn = driver.turns["a"]
    assert [made.key for made in read_undo(turn.payload[len(UNDO) :])] == ["k", "now"]


def test_its_key_with_other_arguments_is_an_error_there_too() -> None:
    driver = taken_back(OURS, call(DONE, TOLD), digest=b"other..8")
    answer = found(driver)
    assert answer is not None and answer.outcome == "refused" and b"was used for an effect" in answer.result


def test_what_was_undone_since_is_done_anew() -> None:
    undone = msgspec.structs.replace(call(DONE, b"", "k/undo#1").entry, name="pay/undo")
    driver = taken_back(
        intent(), call(DONE, TOLD), msgspec.structs.replace(call(DONE), entry=undone), call("begun", key="@made#1")
    )
    assert [run.key for run in runs(release(driver, epoch=2))] == ["c/a/k#2"]


def test_what_stood_open_was_undone_and_done_anew_since_belongs_to_the_turn_that_comes_again() -> None:
    first = begun(here=("a",))
    ask(first, intent())
    undone = msgspec.structs.replace(call(DONE).entry, name="pay/undo", sender="k/undo#1")
    entries = (call(DONE, TOLD), msgspec.structs.replace(call(DONE), entry=undone), call(DONE, TOLD, "k#2"))
    later = restarted(saved(first), logged=entries, asked=intent())
    assert found(later) == JournalEntry("effect", "pay", DIGEST, DONE, TOLD, "k#2")
    assert [(record.stage, record.generation) for record in ledger(later)] == [
        ("intent", 1),
        ("failed", 1),
        ("done", 2),
    ]


def test_who_asks_how_the_agent_stands_is_told_that_it_needs_people() -> None:
    driver = in_doubt()
    driver.feed(ev.ViewRequested(5, "a", is_settled=False))
    view = [each for each in driver.said if isinstance(each, ev.AnswerView)][-1].view
    assert view is not None and view.durable is not None and view.durable.effect is not None
    assert (view.durable.effect.key, view.durable.effect_stands) == ("k", "needs people")


def standing(driver: Driver) -> tuple[UnfinishedEffect, ...]:
    driver.feed(ev.OpenWaitsRequested(6))
    return driver.last(ev.AnswerOpenWaits).effects


def test_a_host_tells_how_effects_stand_that_have_not_ended() -> None:
    driver = begun(here=("a",))
    assert standing(driver) == ()
    ask(driver, OURS)
    (told_of,) = standing(driver)
    assert (told_of.agent, told_of.key, told_of.stands, told_of.asked_ns) == ("a", "k", "waiting", 5)
    assert told_of.intent is not None and told_of.intent.arguments == '["order"]'
    release(driver)
    assert standing(driver) == (UnfinishedEffect("a", "k", 1, "open"),)
    (again,) = standing(in_doubt())
    assert again.stands == "needs people"
    later = begun(here=("a",))
    ask(later, intent(has_probe=True))
    assert runs(begin(later))
    later = Driver(checkpoints={"a": checkpoint(later)}, begun=1, starts=False)
    assert [each.stands for each in standing(later)] == ["in doubt"], "before its handler has come to it"
    ask(later, intent(has_probe=True))
    release(later)
    assert [each.stands for each in standing(later)] == ["in doubt"], "while it is asked after"
    later.feed(ev.StepEnded("a", 1, 0, DONE, TOLD, 9))
    assert standing(later) == ()


def test_a_word_that_cannot_be_read_is_none() -> None:
    for payload in (b"", b"\x00effect", b"\x00effect\x93", b"\x00retry"):
        with pytest.raises(ProtocolError):
            read_effect_resolution(payload)
    assert read_effect_resolution(said()) == EffectResolution("k", 1, 1, True, TOLD)


# ---- mutants -----------------------------------------------------------------------------------------------------------


def marks_nothing(patch: pytest.MonkeyPatch) -> None:
    """It is called at once."""
    patch.setattr(
        StepLog, "mark", lambda log, agent, turn, place, opened: log._effects.marked(agent, turn, mark_of(opened))
    )


def finds_nothing(patch: pytest.MonkeyPatch) -> None:
    """Logs are not asked."""
    patch.setattr("snapline.agent_runtime.host.host_log._note_earlier_call", lambda agent, entry: None)


def keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints do not know what a log said."""
    saved_now = AgentEffects.saved

    def mutant(effects, *, is_grouped):  # type: ignore[no-untyped-def]  # as the method
        found = saved_now(effects, is_grouped=is_grouped)
        if found is None or found.open is None:
            return found
        return msgspec.structs.replace(found, open=msgspec.structs.replace(found.open, is_begun=False))

    patch.setattr(AgentEffects, "saved", mutant)


def takes_any(patch: pytest.MonkeyPatch) -> None:
    """Whatever the log says of that effect counts."""
    patch.setattr(
        "snapline.agent_runtime.host.host_log._note_earlier_call",
        lambda agent, entry: agent.effects.open[0].begun() if is_mark(entry) else None,
    )


@pytest.mark.parametrize("mutant", [marks_nothing, finds_nothing, keeps_nothing, takes_any])
def test_marks_that_are_not_what_they_should_be_are_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        test_what_a_log_says_to_be_about_to_be_called_waits_for_people_and_checkpoints_know_it_from_then_on()
        test_what_was_said_of_an_earlier_call_says_nothing_of_a_later_one()


def test_a_call_right_after_the_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another output to wait for, a recovery to before the word would call a second time."""
    monkeypatch.setattr(AwaitedEffect, "not_done", _at_once)
    with pytest.raises(AssertionError):
        test_what_was_not_done_is_called_when_that_is_released()


def _at_once(effect: AwaitedEffect, number: int) -> None:
    effect.is_in_doubt, effect.is_ready, effect.needs_people = False, True, False

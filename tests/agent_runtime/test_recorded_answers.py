"""Recorded answers: which log entries count, in which order occurrences are counted, and what a host core makes of them."""

import asyncio

import msgspec
import pytest

import snapline
from snapline.agent_runtime.durable import ADOPTED, DONE, FAILED, REFUSED, encode_failure
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_answers import find_answer
from snapline.agent_runtime.host.host_state import DurableTurn, HostState, LocalAgent
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.recorded_answers import AnswerBook, AskedQuestions
from snapline.agent_runtime.snapshots.answer_collection import answers_in
from snapline.agent_runtime.snapshots.answer_comparison import tokens_in
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers
from snapline.storage.log.log_record import BEGUN, LoggedEntry
from snapline.storage.packs.checkpoint import AgentCheckpoint, AskedQuestion, JournalEntry, SavedTurn

SEED, OTHER = b"s" * 16, b"o" * 16


def logged(turn: int, place: int, result: int, *, name: str = "ask", seed: bytes = SEED, **more: str) -> LoggedEntry:
    kind, outcome = more.get("kind", "step"), more.get("outcome", DONE)
    return LoggedEntry("a", turn, seed, place, b"", JournalEntry(kind, name, b"", outcome, bytes([result])))


def found(
    *entries: LoggedEntry, checkpoints: tuple[AgentCheckpoint, ...] = (), **more: bool
) -> list[tuple[str, int, int]]:
    return [(x.name, x.occurrence, x.result[0]) for x in answers_in(entries, checkpoints, **more)]


def checkpoint(turns: int, turn: SavedTurn | None = None) -> AgentCheckpoint:
    return AgentCheckpoint(agent="a", kind="m:A", epoch=1, saved_turns=turns, saved_turn=turn or msgspec.UNSET)


def test_occurrences_are_counted_by_turn_and_place_and_not_by_the_time_of_the_answer() -> None:
    entries = [logged(2, 0, 4), logged(1, 2, 3), logged(1, 0, 1), logged(1, 1, 2, name="other")]
    assert found(*entries) == [("ask", 1, 1), ("ask", 2, 3), ("ask", 3, 4), ("other", 1, 2)]


def test_of_several_runs_of_a_turn_the_newest_one_counts() -> None:
    old = [logged(1, place, 1 + place) for place in range(3)]
    new = [logged(1, 0, 7, seed=OTHER), logged(1, 1, 8, seed=OTHER)]
    assert found(*old, *new) == [("ask", 1, 7), ("ask", 2, 8)]
    again = [logged(1, 1, 9, name="else")]
    assert found(*old, *again) == [("ask", 1, 1), ("ask", 2, 3), ("else", 1, 9)]


def test_failures_leave_a_gap_and_a_step_that_was_tried_again_counts_once() -> None:
    entries = [logged(1, 0, 1, outcome=FAILED), logged(1, 1, 2, outcome=FAILED), logged(1, 1, 3)]
    assert found(*entries) == [("ask", 2, 3)]
    assert found(*entries, has_failures=True) == [("ask", 1, 1), ("ask", 2, 3)]


def test_effects_and_approvals_count_and_times_and_marks_do_not() -> None:
    entries = [
        logged(1, 0, 1, kind="effect", outcome=BEGUN),
        logged(1, 0, 2, kind="effect"),
        logged(1, 1, 3, kind="now"),
        logged(1, 2, 4, kind="approval"),
        logged(1, 3, 5, kind="effect", outcome=ADOPTED),
    ]
    assert found(*entries) == [("ask", 1, 4), ("ask", 1, 2), ("ask", 2, 5)]


def test_answers_begin_at_the_snapshot_with_the_turn_that_was_open_in_it() -> None:
    journal = [JournalEntry("step", "ask", b"", DONE, b"\x05"), JournalEntry("call", "b", b"", DONE, b"")]
    members = [JournalEntry("step", "ask", b""), JournalEntry("step", "ask", b"", DONE, b"\x07")]
    turn = SavedTurn("message", "b", b"", SEED, journal=journal, members=members)
    entries = [logged(1, 0, 1), logged(2, 0, 2), logged(2, 2, 6), logged(2, 3, 3), logged(3, 0, 8)]
    expected = [("ask", 1, 5), ("ask", 2, 6), ("ask", 3, 7), ("ask", 4, 8)]
    assert found(*entries, checkpoints=(checkpoint(2, turn),)) == expected
    assert found(*entries, checkpoints=(checkpoint(2),)) == [("ask", 1, 8)]


def test_only_questions_with_answers_are_counted_and_a_checkpoint_keeps_the_counts() -> None:
    answer = RecordedAnswer("a", "step", "ask", b"", 2, DONE, b"\x01")
    book = AnswerBook(RecordedAnswers([answer]))
    asked = AskedQuestions()
    entries = [JournalEntry("step", "ask", b""), JournalEntry("step", "else", b""), JournalEntry("step", "ask", b"1")]
    asked.add("a", entries, book)
    asked.add("b", entries, book)
    assert asked.saved() == [AskedQuestion("step", "ask", b"", 1)]
    again = AskedQuestions(msgspec.convert(msgspec.to_builtins(asked.saved()), list[AskedQuestion]))
    question = ("step", "ask", b"")
    assert book.find("a", question, again.occurrence(question, [])) == answer
    assert again.occurrence(question, entries) == 3
    assert book.find("a", question, 3) is None and book.find("b", question, 2) is None


def test_tokens_are_those_that_a_result_of_a_model_says() -> None:
    results: list[object] = [
        {"usage": {"input_tokens": 3, "output_tokens": 4, "details": {}}, "parts": []},
        {"usage": {"prompt_tokens": 5, "completion_tokens": 6}},
        {"usage": {"input_tokens": 3}},
        {"usage": None},
        ["usage"],
        7,
    ]
    assert [tokens_in(msgspec.msgpack.encode(each)) for each in results] == [
        (3, 4),
        (5, 6),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
    ]
    assert tokens_in(b"\xff\xff\xc1") == (0, 0)


def test_a_journal_is_counted_as_it_grows_and_again_when_a_failed_step_has_left_it() -> None:
    asked, question, entry = AskedQuestions(), ("step", "ask", b""), JournalEntry("step", "ask", b"")
    journal = [entry]
    assert asked.occurrence(question, journal) == 2
    journal += [entry, JournalEntry("step", "else", b"")]
    assert asked.occurrence(question, journal, [entry]) == 4
    del journal[1:]
    assert asked.occurrence(question, journal) == 2
    assert asked.occurrence(question, []) == 1, "another turn"


# -- what a host makes of them ----------------------------------------------------------------------------------------


class Go(snapline.Message):
    is_plain: bool = False


class Known(msgspec.Struct):
    texts: list[str] = []


class Sure(msgspec.Struct):
    text: str


def ask(question: int) -> Sure:
    return Sure(f"asked {question}")


class Asker(snapline.Agent):
    state: Known

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        self.state.texts.append((await ctx.step("ask", ask, 1)).text)


class PlainAsker(Asker):
    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        await ctx.step("ask", ask, 1)


async def ended(answer: RecordedAnswer, *, has_all: bool = False) -> ev.StepEnded:
    """Run a turn up to its step, and let the step take this answer."""
    steps: asyncio.Queue[ev.StepEnded] = asyncio.Queue()
    fleet = snapline.Fleet("askers", agents={"a": Asker(Known())})
    turns = Turns(fleet, lambda event: None, lambda text: None, step_ended=steps.put_nowait)
    turns.use_store(takes_outputs=True, has_all_answers=has_all)
    turns.add("a", fleet.make("a"))
    paused = turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go())))
    assert isinstance(paused, ev.TurnEnded) and paused.pause is not None
    turns.run_step(ev.TakeAnswer("a", 1, 0, "ask", answer))
    return await asyncio.wait_for(steps.get(), 10)


def recorded(value: object, outcome: str = DONE) -> RecordedAnswer:
    result = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    return RecordedAnswer("a", "step", "ask", b"", 1, outcome, result)


async def test_a_recorded_answer_is_taken_as_it_is_also_a_failure() -> None:
    found = await ended(recorded({"text": "recorded"}))
    assert (found.outcome, msgspec.msgpack.decode(found.result)) == (DONE, {"text": "recorded"})
    failure = encode_failure("ConnectionError", "no answer")
    found = await ended(recorded(failure, FAILED))
    assert (found.outcome, found.result) == (FAILED, failure)


async def test_an_answer_of_another_type_is_asked_anew_or_fails_if_nothing_may_be_asked() -> None:
    found = await ended(recorded(["other"]))
    assert (found.outcome, msgspec.msgpack.decode(found.result)) == (DONE, {"text": "asked 1"})
    found = await ended(recorded(["other"]), has_all=True)
    assert found.outcome == FAILED and b"is not what" in found.result


async def test_a_plain_turn_asks_nothing_if_all_answers_are_recorded() -> None:
    failures: asyncio.Queue[ev.TurnEnded | ev.TurnFailed] = asyncio.Queue()
    fleet = snapline.Fleet("askers", agents={"a": PlainAsker(Known())})
    turns = Turns(fleet, failures.put_nowait, lambda text: None)
    turns.use_store(takes_outputs=True, has_all_answers=True)
    turns.add("a", fleet.make("a"))
    assert turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go()))) is None
    failed = await asyncio.wait_for(failures.get(), 10)
    assert isinstance(failed, ev.TurnFailed) and "mark the handler @snapline.handler(durable=True)" in failed.error


@pytest.mark.parametrize("kind", ["step", "effect", "approval", "call", "receive"])
def test_only_what_the_outside_answers_is_found_and_the_rest_fails_or_is_asked(kind: str) -> None:
    shared, agent = HostState("h", trace_every=0, is_watched=False), LocalAgent("a", "m:A", 1)
    turn = DurableTurn(SavedTurn("message", "b", b"", SEED))
    request = JournalEntry(kind, "x", b"d")
    answer = RecordedAnswer("a", kind, "x", b"d", 1, DONE, b"\x01")
    is_outside = kind in ("step", "effect", "approval")

    def find(**more: bool) -> RecordedAnswer | None:
        shared.answers = AnswerBook(RecordedAnswers([answer], **more))
        return find_answer(shared, agent, turn, 0, request)

    assert find() == (answer if is_outside else None)
    assert find(asks_people=True) == (answer if kind in ("step", "effect") else None)
    request = JournalEntry(kind, "x", b"other")
    assert find() is None
    missing = find(is_complete=True)
    outcomes = {"step": FAILED, "effect": REFUSED}
    assert (missing.outcome if missing is not None else None) == outcomes.get(kind)

"""What a durable turn takes from the host log when it runs again: what it had there, and nothing of another past."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent_runtime.test_durable import SEED, WORDS, Clock, Go, Notes, answer, play, saved

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DONE,
    LOGGED_KINDS,
    LoggedSteps,
    SegmentEnd,
    TurnJournal,
    argument_digest,
    encode_result,
    rolled,
    turn_seed,
)
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message, has_one_order
from snapline.errors import MessageTooLargeError
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry


class Life:
    """One durable turn under failures, driven by hand. The log outlives all of them; a checkpoint, if it was taken.

    Attributes:
        ran: places of steps, as often as they were run to their ends.
        seen, left: of the present history.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.clock = Clock()
        self.log: list[LoggedEntry] = []
        self.ran: list[int] = []
        self.journal: list[JournalEntry] = []
        self.left: list[tuple[str, bytes]] = []
        self.waits: JournalEntry | None = None
        self.checkpoints = [self.checkpoint()]
        self.seen: list[object] = []
        self.coroutine: Any = None
        self.ctx: Context

    def checkpoint(self) -> tuple[list[JournalEntry], JournalEntry | None, list[tuple[str, bytes]]]:
        return list(self.journal), self.waits, list(self.left)

    def go_back(self, place: int) -> None:
        """To one of the checkpoints: later ones never were."""
        del self.checkpoints[1 + place % len(self.checkpoints) :]
        journal, self.waits, left = self.checkpoints[-1]
        self.journal, self.left, self.coroutine = list(journal), list(left), None

    def begin(self) -> None:
        self.seen = []
        self.ctx = Context("a", 1, "z", self.clock)
        begun = saved(self.journal, self.waits) if self.journal or self.waits is not None else None
        self.ctx.begin(journal=TurnJournal(SEED, begun, self.log))
        self.coroutine = play(self.ctx, self.words, self.seen)

    def segment(self) -> bool:
        """Run until the handler stands; returns whether it is over."""
        found = self.journal[-1] if self.coroutine is not None else None
        if self.coroutine is None:
            self.begin()
        try:
            stand = self.coroutine.send(found)
        except StopIteration:
            self.left += self.ctx.take_segment().sends
            return True
        segment = self.ctx.take_segment().sends
        if not stand.is_repeated:
            self.left += segment
        self.journal += stand.entries
        self.waits = stand.waits
        self.stand = stand
        return False

    def finish(self, stand: SegmentEnd) -> None:
        """What it stands at has come; of a step the log holds it, before all else."""
        place = len(self.journal)
        self.journal.append(answer(stand, place))
        self.waits = None
        if stand.waits.kind == "step":
            self.ran.append(place)
            known = {each.place: each for each in self.log}
            for at, entry in enumerate(self.journal):
                if entry.kind in LOGGED_KINDS and at not in known:
                    self.log.append(LoggedEntry("a", 1, SEED, at, rolled(b"", self.journal[:at]), entry))


def live(words: Sequence[str], failures: Sequence[tuple[int, int]]) -> Life:
    """Each failure comes after so many events, and goes back to that checkpoint."""
    life = Life(words)
    waiting = list(failures)
    count = 0

    def fails() -> bool:
        nonlocal count
        count += 1
        if not waiting or count < waiting[0][0]:
            return False
        count = 0
        life.go_back(waiting.pop(0)[1])
        return True

    while not life.segment():
        life.checkpoints.append(life.checkpoint())
        if fails():
            continue
        life.finish(life.stand)
        life.checkpoints.append(life.checkpoint())
        fails()
    return life


FAILURES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), max_size=6)


def others(seen: Sequence[object]) -> list[object]:
    """All but times: these may have been asked anew, as long as nothing in the log stood behind them."""
    return [each for each in seen if not isinstance(each, int) or each < 10**6]


def check(words: Sequence[str], failures: Sequence[tuple[int, int]]) -> None:
    life, alone = live(words, failures), live(words, [])
    assert life.left == alone.left and others(life.seen) == others(alone.seen)
    times = [int.from_bytes(entry.result, "big") for entry in life.journal if entry.kind == "now"]
    assert len(life.ran) == len(set(life.ran)), "a step that had ended was run again"
    assert [each for each in life.seen if isinstance(each, int) and each >= 10**6][: len(times)] == times


@settings(max_examples=300)
@given(WORDS, FAILURES)
def test_a_turn_that_fails_anywhere_comes_to_the_same_and_runs_no_finished_step_again(
    words: list[str], failures: list[tuple[int, int]]
) -> None:
    check(words, failures)


def wrong(place: int = 1, **changes: Any) -> LoggedEntry:
    """The entry of the second step, as its very turn would find it, but for these changes."""
    first = JournalEntry("step", "s0", argument_digest("s0", (0,)), DONE, encode_result("s0", 0))
    second = JournalEntry("step", "s1", argument_digest("s1", (1,)), DONE, encode_result("s1", 77))
    logged = LoggedEntry("a", 1, SEED, place, rolled(b"", [first]), second)
    return msgspec.structs.replace(logged, **changes)


def second_step(logged: LoggedEntry) -> list[object]:
    """What the handler sees when this is in the log, and it has had its first step."""
    seen: list[object] = []
    ctx = Context("a", 1, "z", Clock())
    first = JournalEntry("step", "s0", argument_digest("s0", (0,)), DONE, encode_result("s0", 0))
    ctx.begin(journal=TurnJournal(SEED, saved([first]), [logged]))
    coroutine = play(ctx, ["step", "step"], seen)
    with pytest.raises(StopIteration):
        stand = coroutine.send(None)
        coroutine.send(answer(stand, 1))
    return seen


OTHER = wrong().entry


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": bytes(16)},
        {"place": 2},
        {"prefix": bytes(16)},
        {"prefix": rolled(b"", [msgspec.structs.replace(OTHER, name="s0")])},
        {"entry": msgspec.structs.replace(OTHER, digest=b"otherarg")},
        {"entry": msgspec.structs.replace(OTHER, name="s2")},
        {"entry": msgspec.structs.replace(OTHER, kind="now")},
    ],
)
def test_an_entry_of_another_past_is_not_adopted_and_nothing_diverges(changes: dict[str, Any]) -> None:
    assert second_step(wrong()) == [0, 77]
    assert second_step(wrong(**changes)) == [0, 1]


def test_what_was_asked_for_before_an_adopted_step_leaves_with_the_next_segment() -> None:
    """It has not left: the history in which it had was undone."""
    first = JournalEntry("step", "s1", argument_digest("s1", (1,)), DONE, encode_result("s1", 1))
    logged = LoggedEntry("a", 1, SEED, 0, b"", first)
    ctx = Context("a", 1, "z", Clock())
    ctx.begin(journal=TurnJournal(SEED, None, [logged]))
    stand = play(ctx, ["send", "step", "send", "sleep"], []).send(None)
    assert [to for to, _ in ctx.take_segment().sends] == ["c", "c"]
    assert (stand.waits.kind, stand.entries, stand.is_repeated) == ("sleep", [first], False)


def test_what_had_left_before_the_step_at_which_the_turn_stood_is_not_sent_again() -> None:
    first = JournalEntry("step", "s1", argument_digest("s1", (1,)), DONE, encode_result("s1", 1))
    ctx = Context("a", 1, "z", Clock())
    waits = msgspec.structs.replace(first, outcome="", result=b"")
    ctx.begin(journal=TurnJournal(SEED, saved([], waits), [LoggedEntry("a", 1, SEED, 0, b"", first)]))
    stand = play(ctx, ["send", "step", "send", "sleep"], []).send(None)
    assert len(ctx.take_segment().sends) == 1 and (stand.entries, stand.is_repeated) == ([first], False)


def test_a_turn_is_what_it_hangs_on() -> None:
    seeds = {
        turn_seed("c", "a", 1, sender="z", payload=b"p", state=b"s"),
        turn_seed("d", "a", 1, sender="z", payload=b"p", state=b"s"),
        turn_seed("c", "b", 1, sender="z", payload=b"p", state=b"s"),
        turn_seed("c", "a", 2, sender="z", payload=b"p", state=b"s"),
        turn_seed("c", "a", 1, sender="y", payload=b"p", state=b"s"),
        turn_seed("c", "a", 1, sender="z", payload=b"q", state=b"s"),
        turn_seed("c", "a", 1, sender="z", payload=b"p", state=b"t"),
    }
    assert len(seeds) == 7 and turn_seed("c", "a", 1, sender="z", payload=b"p", state=b"s") in seeds


def test_what_the_log_has_nothing_of_is_not_digested() -> None:
    steps = LoggedSteps(SEED, [wrong(seed=bytes(16))])
    steps.passed(0, OTHER)
    assert steps._prefix == b""


# -- turns -------------------------------------------------------------------------------------------------------------


class Walker(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        if message.what == "none":
            raise ValueError(message.what)
        self.state.seen.append(str(await ctx.step("look", int, 5, durability=message.what)))


def seat() -> Turns:
    fleet = snapline.Fleet("walkers", agents={"a": Walker(Notes())})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", fleet.make("a"))
    return turns


def start(what: str = "log", **more: Any) -> ev.StartTurn:
    return ev.StartTurn("a", 1, "message", "z", encode_message(Go(what)), **more)


def test_the_same_turn_has_the_same_seed_and_says_whether_its_step_is_logged() -> None:
    first, again = seat().run(start()), seat().run(start())
    assert isinstance(first, ev.TurnEnded) and first == again and first.pause is not None and first.pause.is_logged
    kept = seat().run(start("checkpoint"))
    assert isinstance(kept, ev.TurnEnded) and kept.pause is not None and not kept.pause.is_logged
    other = seat().run(start(number=2))
    assert isinstance(other, ev.TurnEnded) and other.pause is not None and other.pause.seed != first.pause.seed


def test_a_turn_whose_state_is_another_adopts_nothing() -> None:
    turns, changed = seat(), seat()
    paused = turns.run(start())
    assert isinstance(paused, ev.TurnEnded) and paused.pause is not None
    waits = paused.pause.waits
    entry = msgspec.structs.replace(waits, outcome=DONE, result=encode_result("look", 5))
    logged = (LoggedEntry("a", 1, paused.pause.seed, 0, b"", entry),)
    again = seat().run(start(logged=logged))
    assert again == ev.TurnEnded("a", 1, is_durable=True, entries=[entry]), "all of it is known"
    changed.object_of("a").state.seen.append("more")
    stands = changed.run(start(logged=logged))
    assert isinstance(stands, ev.TurnEnded) and stands.pause is not None and stands.pause.waits == waits


def test_a_durable_turn_that_fails_is_told_as_one() -> None:
    failed = seat().run(start("none"))
    assert isinstance(failed, ev.TurnFailed) and failed.is_durable


def test_there_are_two_durabilities() -> None:
    failed = seat().run(start("never"))
    assert isinstance(failed, ev.TurnFailed)
    assert "durability of step 'look' is 'never': use \"log\" or \"checkpoint\"" in failed.error


def test_a_result_has_a_bound() -> None:
    with pytest.raises(
        MessageTooLargeError, match=r"step 'look' returned 16,777,22\d bytes, the limit is 16,777,216: put it into"
    ):
        encode_result("look", bytes(2**24))


# -- mutants ---------------------------------------------------------------------------------------------------------------


def _forgets_sends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnJournal, "has_left", property(lambda self: True, lambda self, value: None), raising=False)


def _ignores_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoggedSteps, "find", lambda *arguments: None)


@pytest.mark.parametrize("mutant", [_forgets_sends, _ignores_the_log])
def test_the_property_can_fail(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words, failures = ["send", "step", "send", "step", "send"], [(2, 0)]
    check(words, failures)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(words, failures)


class Votes(msgspec.Struct):
    by_name: dict[str, int]
    line: list["Votes"] = []
    weights: np.ndarray | None = None


class Names(msgspec.Struct):
    known: set[int]


class Counter(snapline.Agent):
    state: Votes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        first = next(iter(self.state.by_name))
        await ctx.step("announce", lambda: first)


class Knower(snapline.Agent):
    state: Names

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        await ctx.step("announce", int, 5)


def seed_of(made: snapline.Agent) -> bytes:
    fleet = snapline.Fleet("counters", agents={"a": made})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", made)
    paused = turns.run(start())
    assert isinstance(paused, ev.TurnEnded) and paused.pause is not None
    return paused.pause.seed


def test_a_state_that_is_equal_in_another_order_is_another_past() -> None:
    """Whose messages came first is seen in the order of a dictionary, and by the handler: the log's result would be that of another history."""
    seeds = [seed_of(Counter(Votes({name: 1 for name in names}))) for names in ("ab", "ba", "ab")]
    assert seeds[0] != seeds[1] and seeds[0] == seeds[2]


def test_sets_have_no_order() -> None:
    """Small integers hash to themselves, so that the two orders differ in every process: eight lies where zero would."""
    one, other = set[int](), set[int]()
    one.update((0, 8))
    other.update((8, 0))
    assert list(one) != list(other) and seed_of(Knower(Names(one))) == seed_of(Knower(Names(other)))


class Nested(msgspec.Struct):
    inner: dict[str, tuple[int, list["Votes | None"]]]


class Sly(msgspec.Struct):
    inner: dict[str, tuple[int, frozenset[int]]]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(Votes, True), (Nested, True), (Names, False), (Sly, False), (Any, False), (snapline.History[int], False)],
)
def test_types_that_may_hold_sets_are_known(declared: Any, expected: bool) -> None:
    assert has_one_order(declared) is expected

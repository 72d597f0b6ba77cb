"""Durable handlers that do what they should not: the host must outlive it, and the turn must fail, or stand, in a way that can be told."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, FAILED, argument_digest
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

SEED = bytes(range(16))


class Go(snapline.Message):
    what: str = ""


class Told(snapline.Message):
    number: int


class Short(snapline.Message):
    pass


class Notes(msgspec.Struct):
    seen: list[str] = []


def undecodable() -> None:
    raise FileNotFoundError("no file \udcff" + "x" * 100_000)


def count() -> int:
    return 7


class Clumsy(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        self.state.seen.append("half")
        await getattr(self, message.what)(ctx)

    @snapline.handler
    async def on_short(self, message: Short, ctx: Context) -> None:
        """It was durable once."""
        ctx.send("b", Told(1))

    async def tidy(self, ctx: Context) -> None:
        try:
            await ctx.sleep(1)
        finally:
            ctx.send("b", Told(1))
            await ctx.sleep(2)

    async def deaf(self, ctx: Context) -> None:
        while True:
            try:
                await ctx.sleep(1)
            except:  # noqa: E722, S112  what people write
                continue

    async def swallow(self, ctx: Context) -> None:
        for _ in range(3):
            try:
                await ctx.sleep(1)
            except Exception:
                ctx.send("b", Told(1))

    async def shrug(self, ctx: Context) -> None:
        try:
            ctx.now()
        except Exception:
            ctx.send("b", Told(1))

    async def stray(self, ctx: Context) -> None:
        self.later = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._aside, ctx)
        await ctx.sleep(1)
        ctx.send("b", Told(2))
        await ctx.sleep(1)

    def _aside(self, ctx: Context) -> None:
        try:
            ctx.send("b", Told(1))
            self.later.set_result(None)
        except snapline.UsageError as error:
            self.later.set_result(error)

    async def cancelled(self, ctx: Context) -> None:
        raise asyncio.CancelledError

    async def counting(self, ctx: Context) -> None:
        await ctx.step("count", count)

    async def counting_deaf(self, ctx: Context) -> None:
        with contextlib.suppress(Exception):
            await self.counting(ctx)

    async def trip(self, ctx: Context) -> None:
        await ctx.step("open", undecodable)

    async def colours(self, ctx: Context) -> None:
        await ctx.step("paint", len, {"red", "green", "blue"})


class Seat:
    """Turns of one agent."""

    def __init__(self) -> None:
        self.told: list[ev.StepEnded] = []
        self.running: list[Any] = []
        fleet = snapline.Fleet("clumsy", agents={"a": Clumsy(Notes())})
        self.turns = Turns(fleet, lambda event: None, lambda text: None, start=self._begin, step_ended=self.told.append)
        self.turns.add("a", fleet.make("a"))

    def _begin(self, coroutine: Any) -> Any:
        self.running.append(coroutine)

    def start(self, what: str) -> Any:
        return self.turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go(what))))

    def go_on(self, found: JournalEntry) -> Any:
        return self.turns.run(ev.StartTurn("a", 1, "segment", "z", b"", found))

    def again(self, message: snapline.Message, *journal: JournalEntry, waits: JournalEntry | None = None) -> Any:
        begun = SavedTurn("message", "z", encode_message(message), SEED, "", list(journal), waits)
        return self.turns.run(ev.StartTurn("a", 1, "segment", "z", begun.payload, None, begun))


STEP = JournalEntry("step", "look", b"", DONE, b"\x00")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python complains of it too
@pytest.mark.parametrize("what", ["tidy", "deaf"])
def test_a_handler_that_does_not_let_go_does_not_hold_a_recovery_up(what: str) -> None:
    seat = Seat()
    assert type(seat.start(what)) is ev.TurnEnded
    seat.turns.forget_all()
    assert not seat.turns.has("a")


@pytest.mark.parametrize("what", ["swallow", "shrug"])
def test_a_handler_cannot_shrug_off_that_it_does_not_repeat_itself(what: str) -> None:
    failed = Seat().again(Go(what), STEP)
    assert type(failed) is ev.TurnFailed and failed.is_divergent
    assert "entry 1 of the turn's journal is step 'look', and now the handler asks for a " in failed.error


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Short(), "its handler is not durable any more"),
        (Go("nowhere"), "'nowhere'"),
        (Told(1), "has no handler for messages of type 'Told'"),
    ],
)
def test_a_turn_whose_handler_is_another_now_stands(message: snapline.Message, text: str) -> None:
    seat = Seat()
    failed = seat.again(message, STEP)
    assert type(failed) is ev.TurnFailed and text in failed.error
    assert failed.is_divergent == (message != Go("nowhere"))


@pytest.mark.parametrize("what", ["counting", "counting_deaf"])
def test_a_turn_stands_whose_result_is_not_what_its_step_declares_any_more(what: str) -> None:
    counted = JournalEntry("step", "count", b"", DONE, msgspec.msgpack.encode("seven"))
    failed = Seat().again(Go(what), counted)
    assert type(failed) is ev.TurnFailed and failed.is_divergent
    assert "entry 1 of the turn's journal cannot be read: the result of step 'count' is not what" in failed.error


def test_a_handler_that_ends_before_its_journal_does_not_repeat_itself() -> None:
    class Brief(Clumsy):
        @snapline.handler(durable=True)
        async def on_go(self, message: Go, ctx: Context) -> None:
            ctx.send("b", Told(1))

    seat = Seat()
    seat.turns.add("a", Brief(Notes()))
    failed = seat.again(Go(), STEP)
    assert type(failed) is ev.TurnFailed and failed.is_divergent
    assert "entry 1 of the turn's journal is step 'look', and now the handler has ended" in failed.error


async def test_a_context_is_not_for_what_runs_while_the_turn_waits() -> None:
    seat = Seat()
    paused = seat.start("stray")
    outcome = await seat.turns.object_of("a").later  # type: ignore[attr-defined]
    assert isinstance(outcome, snapline.UsageError) and "waits" in str(outcome)
    found = msgspec.structs.replace(paused.pause.waits, outcome=DONE)
    ended = seat.go_on(found)
    assert ended.sends == [("b", encode_message(Told(2)))]


def test_a_cancellation_out_of_nowhere_fails_the_turn() -> None:
    failed = Seat().start("cancelled")
    assert type(failed) is ev.TurnFailed and "CancelledError" in failed.error


async def test_a_step_is_over_whatever_its_error_says() -> None:
    seat = Seat()
    paused = seat.start("trip")
    seat.turns.run_step(ev.RunStep("a", 1, 0, "open"))
    await seat.running.pop()
    (told,) = seat.told
    assert told.outcome == FAILED and len(told.result) < 10_000
    found = msgspec.structs.replace(paused.pause.waits, outcome=told.outcome, result=told.result)
    failed = seat.go_on(found)
    assert "step 'open' failed: FileNotFoundError: no file ?xxx" in failed.error


def test_who_looks_in_the_middle_of_a_turn_sees_the_state_before_it() -> None:
    seat = Seat()
    known, _, _ = seat.turns.capture("a")
    seat.start("tidy")
    assert seat.turns.object_of("a").state.seen == ["half"]
    assert known.state_decoder.decode(seat.turns.look_at("a")) == Notes([])
    seat.turns.forget_all()


def test_sets_are_the_same_arguments_in_whatever_order_they_come() -> None:
    assert argument_digest("s", ({"b", "a"},)) == argument_digest("s", (["a", "b"],))
    assert argument_digest("s", ({"k": {2, 1}},)) == argument_digest("s", ({"k": [1, 2]},))
    assert argument_digest("s", (["b", "a"],)) != argument_digest("s", (["a", "b"],))
    assert argument_digest("s", ({1, "a"},)), "not in any order that could be told"

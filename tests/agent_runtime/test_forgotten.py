"""Coroutines that nobody awaits: their turn fails with a sentence, and nothing of it was done."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime import unawaited
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import FAILED
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message


class Go(snapline.Message):
    what: str = ""


class Plain(snapline.Message):
    what: str = ""


class Notes(msgspec.Struct):
    seen: list[str] = []


called: list[str] = []


def do(what: str, *, key: str = "") -> str:
    called.append(what)
    return what


async def helper() -> None:
    called.append("helper")


def forget() -> None:
    helper()  # type: ignore[unused-coroutine]


async def forget_later() -> None:
    await asyncio.sleep(0)
    forget()


class Hasty(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        await getattr(self, message.what)(ctx)

    @snapline.handler
    async def on_plain(self, message: Plain, ctx: Context) -> None:
        await getattr(self, message.what)(ctx)

    async def collect(self, ctx: Context) -> None:
        cycle: list[Any] = [helper()]
        cycle.append(cycle)
        del cycle
        gc.collect()

    async def step(self, ctx: Context) -> None:
        ctx.step("pay", do, "pay")  # type: ignore[unused-coroutine]

    async def effect(self, ctx: Context) -> None:
        ctx.effect("pay", do, "pay", key="k")  # type: ignore[unused-coroutine]

    async def call(self, ctx: Context) -> None:
        ctx.call("b", Go(), Go)  # type: ignore[unused-coroutine]

    async def sleep(self, ctx: Context) -> None:
        kept = ctx.sleep(1)
        self.state.seen.append(type(kept).__name__)

    async def receive(self, ctx: Context) -> None:
        ctx.receive(Go)  # type: ignore[unused-coroutine]

    async def before_risk(self, ctx: Context) -> None:
        ctx.before_risk()  # type: ignore[unused-coroutine]

    async def then_another(self, ctx: Context) -> None:
        ctx.step("pay", do, "pay")  # type: ignore[unused-coroutine]
        ctx.send("b", Go())
        await ctx.step("other", do, "other")

    async def task(self, ctx: Context) -> None:
        self.kept: asyncio.Task[Any] = asyncio.create_task(ctx.step("pay", do, "pay"))

    async def harmless(self, ctx: Context) -> None:
        pass

    async def raising(self, ctx: Context) -> None:
        ctx.step("pay", do, "pay")  # type: ignore[unused-coroutine]
        raise RuntimeError("something else")

    async def later(self, ctx: Context) -> None:
        first = ctx.step("pay", do, "pay")
        await ctx.sleep(1)
        await first

    async def own(self, ctx: Context) -> None:
        helper()  # type: ignore[unused-coroutine]

    async def taskgroup(self, ctx: Context) -> None:
        async with asyncio.TaskGroup():
            pass

    async def timeout(self, ctx: Context) -> None:
        async with asyncio.timeout(1):
            await ctx.step("pay", do, "pay")

    async def gather(self, ctx: Context) -> None:
        await asyncio.gather(ctx.step("pay", do, "pay"), ctx.step("pay", do, "other"))

    async def beside(self, ctx: Context) -> None:
        self.kept = asyncio.create_task(helper())

    async def gathered(self, ctx: Context) -> None:
        await asyncio.gather(self.own(ctx), asyncio.sleep(0))

    async def threaded(self, ctx: Context) -> None:
        await asyncio.to_thread(forget)

    async def outlived(self, ctx: Context) -> None:
        self.kept = asyncio.create_task(forget_later())

    async def in_async_step(self, ctx: Context) -> None:
        await ctx.step("late", forget_later)

    async def in_step(self, ctx: Context) -> None:
        await ctx.step("now", forget)

    async def wait_for(self, ctx: Context) -> None:
        await asyncio.wait_for(ctx.step("pay", do, "pay"), 1)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    called.clear()
    monkeypatch.setattr("warnings._warn_unawaited_coroutine", unawaited._on_freed)
    yield
    unawaited.freed.clear()


class Seat:
    """Turns of one agent, in a loop."""

    def __init__(self) -> None:
        self.reported: list[Any] = []
        fleet = snapline.Fleet("hasty", agents={"a": Hasty(Notes())})
        self.steps: asyncio.Queue[ev.StepEnded] = asyncio.Queue()
        self.turns = Turns(fleet, self.reported.append, lambda text: None, step_ended=self.steps.put_nowait)
        self.turns.add("a", fleet.make("a"))

    async def run(self, message: snapline.Message) -> Any:
        ended = self.turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(message)))
        while ended is None and not self.reported:
            await asyncio.sleep(0)
        return ended or self.reported[0]


@pytest.mark.parametrize("what", ["step", "effect", "call", "sleep", "receive", "before_risk", "then_another"])
async def test_what_a_durable_turn_forgets_to_await_fails_it(what: str) -> None:
    failed = await Seat().run(Go(what))
    assert type(failed) is ev.TurnFailed and not called
    method = {"then_another": "step"}.get(what, what)
    assert f"ctx.{method}(" in failed.error and "was never awaited" in failed.error and f"{__file__}:" in failed.error


@pytest.mark.parametrize("what", ["step", "task"])
async def test_and_so_in_a_plain_turn(what: str) -> None:
    seat = Seat()
    failed = await seat.run(Plain(what))
    assert type(failed) is ev.TurnFailed and "ctx.step('pay', …)" in failed.error and not called
    if what == "task":
        with pytest.raises(snapline.UsageError, match="has ended"):
            await seat.turns.object_of("a").kept  # type: ignore[attr-defined]


@pytest.mark.parametrize("message", [Go("own"), Plain("own"), Plain("gathered"), Plain("threaded")])
async def test_a_coroutine_of_the_agents_own_fails_its_turn(message: snapline.Message) -> None:
    failed = await Seat().run(message)
    assert type(failed) is ev.TurnFailed and "helper(…) at " in failed.error and not called


@pytest.mark.parametrize("what", ["in_step", "in_async_step"])
async def test_a_coroutine_that_a_step_forgets_fails_the_step(what: str) -> None:
    seat = Seat()
    paused = await seat.run(Go(what))
    assert type(paused) is ev.TurnEnded and paused.pause is not None
    seat.turns.run_step(ev.RunStep("a", 1, 0, paused.pause.waits.name))
    ended = await seat.steps.get()
    assert ended.outcome == FAILED and b"helper(" in ended.result and b"was never awaited" in ended.result


async def test_python_warns_of_what_a_task_forgets_that_outlives_its_turn() -> None:
    seat = Seat()
    assert type(await seat.run(Plain("outlived"))) is ev.TurnEnded
    with pytest.warns(RuntimeWarning, match=r"helper.*never awaited"):
        await seat.turns.object_of("a").kept  # type: ignore[attr-defined]
    assert type(await seat.run(Plain("harmless"))) is ev.TurnEnded


async def test_python_warns_of_what_no_turn_has_forgotten() -> None:
    await asyncio.create_task(forget_later())
    with pytest.warns(RuntimeWarning, match=r"helper.*never awaited"):
        assert type(await Seat().run(Plain("harmless"))) is ev.TurnEnded


async def test_no_turn_is_blamed_for_what_a_collection_of_garbage_finds() -> None:
    """Another agent's, in a cycle: whoever runs when Python looks has not made it."""
    gc.callbacks.append(unawaited._on_collection)
    try:
        with pytest.warns(RuntimeWarning, match=r"helper.*never awaited"):
            assert type(await Seat().run(Plain("collect"))) is ev.TurnEnded
    finally:
        gc.callbacks.remove(unawaited._on_collection)


async def test_a_turn_that_fails_says_why_by_itself() -> None:
    seat = Seat()
    failed = await seat.run(Go("raising"))
    assert type(failed) is ev.TurnFailed and "something else" in failed.error and "awaited" not in failed.error
    seat.reported.clear()
    assert type(await seat.run(Go("later"))) is ev.TurnEnded, "nothing is left of it"


@pytest.mark.parametrize("what", ["taskgroup", "timeout", "gather", "wait_for", "task", "beside"])
async def test_what_asyncio_has_for_tasks_gets_a_sentence_in_a_durable_turn(what: str) -> None:
    failed = await Seat().run(Go(what))
    assert type(failed) is ev.TurnFailed and "run steps together with ctx.gather" in failed.error
    await asyncio.sleep(0)
    assert not called

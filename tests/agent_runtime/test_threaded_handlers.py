"""Handlers that run in a thread: `@snapline.handler(thread=True)`."""

import asyncio
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest

import snapline
from snapline.agent_runtime import turn_environment
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import FleetDefinitionError, UsageError

pytestmark = pytest.mark.timeout(60)

LIMIT_S = 30


class Work(snapline.Message):
    what: str = ""


class Later(snapline.Message):
    """Handled by an `async def`."""


class Done(msgspec.Struct):
    total: int = 0


class Worker(snapline.Agent):
    """`gate`: handlers wait for it. `left`: a context, and what it raised after its turn was undone."""

    state: Done

    def __init__(self, state: Done) -> None:
        super().__init__(state)
        GATES.setdefault("gate", threading.Event())

    @snapline.handler(thread=True)
    def on_work(self, message: Work, ctx: snapline.Context) -> None:
        self.state.total += 1
        ENTERED.set()
        assert GATES["gate"].wait(LIMIT_S)
        if message.what == "raise":
            raise ValueError("no")
        if message.what == "stop iteration":
            next(iter(()))
        try:
            ctx.send("other", Work())
            ctx.set_timer("t", 1.0, Work())
        except UsageError as error:
            LATE.append(error)
        LEFT.set()

    @snapline.handler(thread=True)
    async def on_later(self, message: Later, ctx: snapline.Context) -> None:
        await asyncio.sleep(0)
        self.state.total += await ctx.step("add", lambda: 10)


GATES: dict[str, threading.Event] = {}
ENTERED, LEFT = threading.Event(), threading.Event()
LATE: list[Exception] = []


class Bench:
    def __init__(self) -> None:
        self.ended: asyncio.Queue[ev.TurnEnded | ev.TurnFailed] = asyncio.Queue()
        fleet = snapline.Fleet("f", agents={"w": Worker(Done()), "other": Worker(Done())})
        self.turns = Turns(fleet, self.ended.put_nowait, lambda text: None)
        for agent in fleet.agents:
            self.turns.add(agent, fleet.make(agent))

    def begin(self, message: object, agent: str = "w") -> None:
        turn = ev.StartTurn(agent, 1, "message", "x", encode_message(message))
        assert self.turns.run(turn) is None, "it goes on beside the loop"

    def total(self, agent: str = "w") -> int:
        return int(self.turns.object_of(agent).state.total)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    for event in (ENTERED, LEFT):
        event.clear()
    LATE.clear()
    GATES["gate"] = threading.Event()
    yield Bench()
    GATES["gate"].set()


async def happens(event: threading.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not event.is_set():
            await asyncio.sleep(0.005)


async def test_the_loop_runs_on_while_the_handler_blocks_and_its_turn_ends_as_any_other(bench: Bench) -> None:
    bench.begin(Work())
    await happens(ENTERED)
    assert bench.ended.empty()
    GATES["gate"].set()
    ended = await asyncio.wait_for(bench.ended.get(), LIMIT_S)
    assert isinstance(ended, ev.TurnEnded)
    assert [receiver for receiver, _ in ended.sends] == ["other"] and len(ended.timers) == 1
    assert bench.total() == 1


async def test_an_async_handler_has_an_event_loop_of_its_own(bench: Bench) -> None:
    bench.begin(Later())
    assert isinstance(await asyncio.wait_for(bench.ended.get(), LIMIT_S), ev.TurnEnded)
    assert bench.total() == 10


@pytest.mark.parametrize("what", ["raise", "stop iteration"])
async def test_what_it_raises_fails_its_turn_and_the_state_goes_back(bench: Bench, what: str) -> None:
    GATES["gate"].set()
    bench.begin(Work(what))
    failed = await asyncio.wait_for(bench.ended.get(), LIMIT_S)
    assert isinstance(failed, ev.TurnFailed) and "on_work" in failed.error
    bench.turns.undo("w")
    assert bench.total() == 0


async def test_what_a_late_thread_does_after_its_turn_was_undone_counts_for_nothing(bench: Bench) -> None:
    bench.begin(Work())
    await happens(ENTERED)
    late = bench.turns.object_of("w")
    bench.turns.forget("w")
    bench.turns.add("w", Worker(Done(5)))
    await asyncio.sleep(0)
    GATES["gate"].set()
    await happens(LEFT)
    assert len(LATE) == 1 and "has ended" in str(LATE[0])
    assert late.state.total == 1 and bench.total() == 5 and bench.ended.empty()


async def test_so_many_run_at_the_same_time_and_a_late_one_counts_until_it_returns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_environment, "HANDLER_THREADS_MAX", 1)
    bench.begin(Work())
    await happens(ENTERED)
    bench.turns.forget("w")
    bench.begin(Work(), "other")
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert bench.total("other") == 0, "it waits for the thread of the turn that was undone"
    GATES["gate"].set()
    assert isinstance(await asyncio.wait_for(bench.ended.get(), LIMIT_S), ev.TurnEnded)
    assert bench.total("other") == 1


def test_a_handler_is_durable_or_runs_in_a_thread() -> None:
    with pytest.raises(FleetDefinitionError, match="not both"):
        snapline.handler(durable=True, thread=True)
    assert agent_type(Worker).handlers[Work.__qualname__].is_threaded

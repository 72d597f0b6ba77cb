"""Asynchronous code of others inside a durable turn: its requests come in rounds, in one order, whatever ends first."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.turns import Answer, Turn, answered
from tests.agent_runtime.test_durable import Quote, Told

from snapline.adapters.rounds import Rounds, current_rounds
from snapline.agent_runtime.durable import GROUP_MAX, encode_result
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import StepFailedError, UsageError
from snapline.storage.packs.checkpoint import JournalEntry

Main = Callable[[], Coroutine[Any, Any, Any]]


def rounds() -> Rounds:
    found = current_rounds()
    assert found is not None
    return found


async def step(name: str) -> Any:
    """What code of others does, somewhere deep inside."""
    return await rounds().wait(lambda: rounds().ctx.step(name, int))


def turn_of(main: Main, journal: Any = None, answer: Answer = lambda entry: entry.name) -> Turn:
    """A turn that runs `main`."""
    return Turn(lambda ctx: Rounds(ctx).run(main), journal, answer=answer)


async def worker(name: str, count: int) -> list[Any]:
    return [await step(f"{name}{number}") for number in range(count)]


async def two_and_a_rest() -> list[Any]:
    found = await asyncio.gather(worker("a", 3), worker("b", 1), worker("c", 2))
    return [*found, await step("last")]


def test_all_that_tasks_wait_for_is_one_group_in_the_order_of_the_requests() -> None:
    run = turn_of(two_and_a_rest)
    assert run.end() == [["a0", "a1", "a2"], ["b0"], ["c0", "c1"], "last"]
    assert run.asked == [*(["step a0", "step b0", "step c0"], ["step a1", "step c1"], ["step a2"], ["step last"])]


@given(st.data())
def test_a_rerun_from_anywhere_asks_only_for_what_is_missing(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))

    async def main() -> list[Any]:
        return list(await asyncio.gather(*[worker(f"w{n}-", count) for n, count in enumerate(counts)]))

    whole = turn_of(main)
    result = whole.end()
    cut = data.draw(st.integers(0, len(whole.journal)))
    again = turn_of(main, whole.journal[:cut])
    assert again.end() == result
    kept = sum(entry.kind == "step" for entry in whole.journal[:cut])
    assert len([each for asked in again.asked for each in asked]) >= sum(counts) - kept
    finished = turn_of(main, whole.journal)
    assert finished.end() == result and finished.asked == []


def test_time_passes_only_by_sleeps_of_the_turn() -> None:
    async def main() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        async with asyncio.timeout(5):
            await step("slow")  # the time limit around it does not count
        times.append(loop.time())
        await asyncio.gather(asyncio.sleep(2), asyncio.sleep(0.5))
        times.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(30)
        times.append(loop.time())
        return times

    run = turn_of(main, answer=lambda entry: b"" if entry.kind == "sleep" else entry.name)
    assert run.end() == [0.0, 2.0, 3.0]
    assert run.asked == [["step slow"], ["sleep"], ["sleep"], ["sleep"]]


def test_an_error_reaches_the_task_that_asked() -> None:
    async def main() -> list[object]:
        return list(await asyncio.gather(step("good"), step("bad"), return_exceptions=True))

    run = turn_of(main)
    found: Any = run.handler.send(None)
    failed = JournalEntry("step", "bad", b"", "failed", encode_result("bad", ["ValueError", "no"]))
    with pytest.raises(StopIteration) as over:
        run.handler.send([answered(found.members[0], 5), failed])
    good, bad = over.value.value
    assert good == 5 and isinstance(bad, StepFailedError) and bad.reason == "no"


def test_calls_and_effects_are_requests_too() -> None:
    async def main() -> list[Any]:
        ctx = rounds().ctx
        call = rounds().wait(lambda: ctx.call("b", Quote(1), Told))
        pay = rounds().wait(lambda: ctx.effect("pay", str))
        return list(await asyncio.gather(step("x"), call, pay, step("y")))

    answer = {"call": encode_message(Told(7))}
    run = turn_of(main, answer=lambda entry: answer.get(entry.kind, entry.name))
    found = run.end()
    assert found == ["x", Told(7), "pay", "y"]
    assert run.asked == [["step x", "call b", "effect pay", "step y"]]


def test_more_than_a_group_takes_comes_in_several() -> None:
    async def main() -> int:
        return len(await asyncio.gather(*[step(f"s{n}") for n in range(GROUP_MAX + 3)]))

    run = turn_of(main)
    assert run.end() == GROUP_MAX + 3
    assert [len(asked) for asked in run.asked] == [GROUP_MAX, 3]


def test_a_wait_for_something_else_is_refused_in_a_sentence() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(UsageError, match="waits for a thread or the network: do that in a tool, or in a step"):
        turn_of(main).end()


def test_the_thread_and_all_tasks_end_when_the_turn_is_undone() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def other() -> None:
            try:
                await step("other")
            finally:
                ended.append("other")

        try:
            await asyncio.gather(step("main"), other())
        finally:
            ended.append("main")

    run = turn_of(main)
    run.handler.send(None)
    before = {thread.name for thread in threading.enumerate()}
    assert "snapline-stepped" in before
    run.handler.close()
    gc.collect()
    assert sorted(ended) == ["main", "other"]
    assert "snapline-stepped" not in {thread.name for thread in threading.enumerate()}


def test_outside_of_a_turn_there_are_no_rounds() -> None:
    assert current_rounds() is None

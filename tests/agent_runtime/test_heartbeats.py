"""Steps that say that they live, and hear when nobody waits for them any more."""

import asyncio
import threading
from typing import Any

import pytest

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import StepWork
from snapline.agent_runtime.turn_environment import TurnEnvironment, run_step
from snapline.errors import StepCancelledError, UsageError

LONG_S = 60.0
"""Nothing here waits so long."""


async def step(function: Any, **work: Any) -> Any:
    return await run_step(TurnEnvironment(), "look", StepWork(function, **work))


async def test_the_next_attempt_hears_what_was_told_last() -> None:
    heard: list[object] = []

    def download() -> str:
        heard.append(snapline.heartbeat())
        if len(heard) < 3:
            snapline.heartbeat(len(heard) * 10)
            snapline.heartbeat()
        if len(heard) < 4:
            raise OSError("cut")
        return "done"

    assert await step(download, waits_s=(0.0,) * 3) == "done"
    assert heard == [None, 10, 20, 20]


async def test_steps_of_which_nothing_is_heard_are_tried_again() -> None:
    attempts: list[asyncio.Event] = []

    async def hang() -> int:
        attempts.append(asyncio.Event())
        if len(attempts) == 1:
            await attempts[0].wait()
        return len(attempts)

    assert await step(hang, waits_s=(0.0,), heartbeat_s=0.001) == 2
    with pytest.raises(TimeoutError, match=r"not heard of for 0\.001 s"):
        await step(asyncio.Event().wait, heartbeat_s=0.001)


async def test_a_step_that_is_heard_of_goes_on_for_any_time() -> None:
    """Each look of the one who waits lets the step say once more that it lives."""
    looks = 0
    wait = asyncio.wait

    async def counted(tasks: Any, timeout: float | None = None) -> Any:
        nonlocal looks
        looks += 1
        go_on.set()
        return await wait(tasks, timeout=timeout)

    go_on = asyncio.Event()

    async def work() -> int:
        for _ in range(20):
            await go_on.wait()
            go_on.clear()
            snapline.heartbeat()
        return looks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "wait", counted)
        assert await step(work, heartbeat_s=0.001) == 20


class Impatient(TurnEnvironment):
    """Gives a step up as soon as its thread runs."""

    def __init__(self, began: threading.Event) -> None:
        self._began = began

    async def limited(self, running: Any, seconds: float) -> Any:
        task = asyncio.ensure_future(running)
        await asyncio.to_thread(self._began.wait, LONG_S)
        task.cancel()
        raise TimeoutError


@pytest.mark.parametrize("how", ["undone", "late", "silent"])
async def test_a_thread_hears_that_nobody_waits_for_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[BaseException] = []
    wait = asyncio.wait

    async def wait_for_the_thread(tasks: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            return await wait(tasks)
        await asyncio.to_thread(began.wait, LONG_S)
        return set(), tasks

    def work() -> None:
        began.set()
        may_go_on.wait(LONG_S)
        try:
            snapline.heartbeat()
        except StepCancelledError as error:
            seen.append(error)
        ended.set()

    monkeypatch.setattr(asyncio, "wait", wait_for_the_thread)
    given = {"undone": StepWork(work), "late": StepWork(work, LONG_S), "silent": StepWork(work, heartbeat_s=LONG_S)}
    task = asyncio.ensure_future(run_step(Impatient(began), "look", given[how]))
    await asyncio.to_thread(began.wait, LONG_S)
    if how == "undone":
        task.cancel()
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await task
    may_go_on.set()
    await asyncio.to_thread(ended.wait, LONG_S)
    assert len(seen) == 1 and "nobody waits for this step any more" in str(seen[0])


async def test_a_step_that_raises_raises_its_own_error() -> None:
    def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await step(fail, heartbeat_s=LONG_S, timeout_s=LONG_S)


async def test_outside_a_step_it_does_nothing() -> None:
    """Also after one: what runs in the same task is no step."""
    assert snapline.heartbeat("far") is None

    async def tell() -> object:
        return snapline.heartbeat("further")

    assert await step(tell) is None
    assert snapline.heartbeat() is None


@pytest.mark.parametrize("seconds", [0, -1.0, 1e12])
async def test_what_is_no_time_is_refused(seconds: float) -> None:
    ctx = Context("a", 1, "", TurnEnvironment())
    with pytest.raises(UsageError, match="heartbeat_s of step 'look' is"):
        await ctx.step("look", print, heartbeat_s=seconds)

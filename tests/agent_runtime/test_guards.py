"""Guards and fallbacks of steps: a rejected result is a failed attempt, and what a fallback returns is the step's result."""

import asyncio
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.durable import StepWork, argument_digest, encode_result
from snapline.agent_runtime.turn_environment import TurnEnvironment, run_step
from snapline.errors import GuardViolationError
from snapline.sim.pytest_plugin import Simulation
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers, encode_export


def is_even(value: int) -> str | None:
    return f"{value} is odd" if value % 2 else None


def run(function: Callable[[], Any], retries: int = 0, fallback: Callable[[], Any] | None = None) -> Any:
    work = StepWork(function, waits_s=(0.0,) * retries, guard=is_even, fallback=fallback)
    return asyncio.run(run_step(TurnEnvironment(), "ask", work))


def test_a_rejected_result_is_tried_again_and_an_accepted_one_is_the_steps() -> None:
    numbers = iter([1, 3, 4])
    assert run(lambda: next(numbers), retries=2) == 4


def test_the_last_violation_is_raised_or_the_fallback_takes_over() -> None:
    with pytest.raises(GuardViolationError, match="the guard of step 'ask' rejects its result: 7 is odd"):
        run(lambda: 7, retries=1)
    assert run(lambda: 7, fallback=lambda: 9) == 9, "no guard looks at it"

    async def later() -> int:
        return 11

    def fail() -> int:
        raise ConnectionError

    assert run(fail, retries=1, fallback=later) == 11
    with pytest.raises(ZeroDivisionError):
        run(fail, fallback=lambda: 1 // 0)


class Go(snapline.Message):
    pass


class Seen(msgspec.Struct):
    left: int
    numbers: list[int] = []


def ask(left: int) -> int:
    raise AssertionError("the simulator calls the stub")


class Asker(snapline.Agent):
    state: Seen

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("asker", Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        state = self.state
        state.numbers.append(await ctx.step("ask", ask, state.left, retries=1, guard=is_even, fallback=ask))
        state.left -= 1
        if state.left:
            ctx.send("asker", Go())


def fleet() -> snapline.Fleet:
    numbers = itertools.count()
    stubs = {"ask": lambda left: next(numbers) // 2, "ask/fallback": lambda left: -left}
    return snapline.Fleet(
        "askers", agents={"asker": Asker(Seen(20))}, triggers=[snapline.Every(seconds=0.2)], simulate=stubs
    )


def check(cut: snapline.Cut) -> None:
    state = cut.states["asker"]
    assert isinstance(state, Seen)
    assert all(number % 2 == 0 or number < 0 for number in state.numbers), state


def test_no_turn_goes_on_with_a_rejected_result_whatever_crashes(snapline_sim: Simulation) -> None:
    seen: list[int] = []

    def at_end(states: Any) -> None:
        seen.extend(states["asker"].numbers)

    snapline_sim.check(fleet, seeds=8, invariant=check, at_end=at_end)
    assert min(seen) < 0 < max(seen), "both the step and its fallback were used"


def test_a_guard_looks_at_recorded_answers_too(snapline_sim: Simulation, tmp_path: Path) -> None:
    digest = functools.partial(argument_digest, "ask")
    answers = [
        RecordedAnswer("asker", "step", "ask", digest((left,)), 1, "done", encode_result("ask", left))
        for left in range(1, 21)
    ]
    file = tmp_path / "answers"
    file.write_bytes(encode_export(RecordedAnswers(answers)))
    expected = [left if left % 2 == 0 else -left for left in range(20, 0, -1)]

    def at_end(states: Any) -> None:
        assert states["asker"].numbers == expected

    snapline_sim.check(fleet, seeds=3, at_end=at_end, answers=str(file), faults="quiet")

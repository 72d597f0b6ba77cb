"""Pieces of threads are whole: cuts of two banks at any moment have every token, recoveries at any moment leave nothing behind; and mutants fall."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.grpc_services.bank_fleets import TOKENS
from tests.adapters.grpc_services.bank_pair import Pair, Saved, often_switched

from snapline.adapters.grpc.member_threads import Finish, MemberThreads, Reenter, RegisteredThread, Work


async def hand_on(pair: Pair, *, busy_cuts: int, recoveries: int) -> None:
    """Take cuts as often as possible, and recover from the newest after some `busy_cuts` cuts within calls.

    Raises:
        AssertionError: a cut has another total.
    """
    chance = random.Random(5)
    line: Saved | None = None
    cuts = 0
    for _ in range(recoveries + 1):
        await pair.go_back(line)
        left = round(busy_cuts * chance.uniform(0.7, 1.3))
        while left > 0:
            saved = pair.cut()
            if saved is not None:
                cuts, left, line = cuts + 1, left - saved.is_busy, saved
                assert saved.total == 2 * TOKENS, f"cut {cuts} has {saved.total} tokens"
            await asyncio.sleep(chance.uniform(0, 0.008))  # the last one too: a recovery finds threads inside


def play(
    folder: Path, *, busy_cuts: int = 20, recoveries: int = 3, threads: type[MemberThreads] = MemberThreads
) -> None:
    with often_switched():
        Pair(folder, threads).run(partial(hand_on, busy_cuts=busy_cuts, recoveries=recoveries))


@pytest.mark.timeout(60)
def test_every_cut_has_every_token(tmp_path: Path) -> None:
    play(tmp_path, busy_cuts=40)


class MakesCallsOutside(MemberThreads):
    """A thread leaves, and its call is made later."""

    def _wait(self, thread: RegisteredThread, begin: Callable[[], Finish], answer: Any) -> None:
        self.gate.leave(thread.number)
        self.loop.call_later(0.001, super()._wait, thread, begin, answer)


class TakesAnswersOutside(MemberThreads):
    """The answer leaves the ledger, and its thread comes in later."""

    async def _waited(self, thread: RegisteredThread, finish: Finish, answer: Any) -> None:
        async def later(reenter: Reenter) -> Any:
            result = await finish(at_once)
            await asyncio.sleep(0.001)
            await reenter()
            return result

        await super()._waited(thread, later, answer)


class EndsBeforeItsAnswer(MemberThreads):
    """A handler's thread ends, and its answer comes into the ledger later."""

    async def _outcome(self, thread: RegisteredThread, outcome: "asyncio.Future[Any]") -> Any:
        result = await super()._outcome(thread, outcome)
        await asyncio.sleep(0.001)
        return result


class WaitsForNobody(MemberThreads):
    """The fleet goes back while threads of before are inside."""

    def when_work_ended(self, then: Work) -> None:
        then()


class LetsThemIn(MemberThreads):
    """A cut is taken whoever is inside."""

    async def enter(self, thread: RegisteredThread) -> None:
        await super().enter(thread)
        self.gate.leave(thread.number)


async def at_once() -> None:
    """A thread is in."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "mutant",
    [MakesCallsOutside, TakesAnswersOutside, EndsBeforeItsAnswer, WaitsForNobody, LetsThemIn],
    ids=lambda x: x.__name__,
)
def test_mutants_fall(tmp_path: Path, mutant: type[MemberThreads]) -> None:
    with pytest.raises(AssertionError, match="tokens"):
        play(tmp_path, recoveries=30, threads=mutant)

"""A bank with threads and a bank of grpc.aio hand tokens to each other in one process: cuts and recoveries at any moment, without a fleet.

Both members have one event loop, so that a cut of both is taken in one step of it; and must have every token, if pieces are whole.
"""

import asyncio
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec
import pytest
from tests.adapters.grpc_services.bank_fleets import PROTO, TOKENS, BankAgent, mesh
from tests.adapters.grpc_services.meshes import CutOfBanks, free_ports
from tests.adapters.grpc_services.threaded_bank import ThreadedBank, server_of
from tests.adapters.grpc_services.token_bank import Bank

from snapline.adapters.grpc import Member, ThreadedMember
from snapline.adapters.grpc.ledger import LedgerImage
from snapline.adapters.grpc.member_threads import ComeIn, Finish, HistoryOverError, MemberThreads, PieceThread, Work
from snapline.adapters.grpc.service_agent import ServiceState
from snapline.errors import MisuseError

DAWDLE_S = 0.002
"""Pieces are this long at most: beside some 200 cuts a second, halves would be seen."""

SWITCH_S = 1e-4
"""Python's threads take turns so often, for more of their orders."""


class Saved(NamedTuple):
    """One cut of both."""

    states: dict[str, ServiceState]
    total: int
    is_busy: bool


class Pair:
    """Both, and what goes on between them. All in the loop of the threaded one."""

    def __init__(self, folder: Path) -> None:
        fleet, where = mesh("a", "b"), {"coordinator": "127.0.0.1:1", "store": str(folder / "store")}
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip("ab", free_ports(2), strict=True)}
        self.waiting = ThreadedBank("a", str(folder / "stop"), [], dawdle_s=DAWDLE_S)
        self.waiting.member = self.threaded = ThreadedMember(self.waiting, agent="a", fleet=fleet, **where)
        self.awaiting = Bank("b", str(folder / "stop"), [])
        self.awaiting.member = Member(self.awaiting, agent="b", fleet=fleet, **where)
        self.members = {"a": self.threaded._member, "b": self.awaiting.member}
        self.services: Any = grpc.services(PROTO)
        self.waiting.stubs = [self.services.BankStub(self.threaded.channel(self.addresses["b"]))]
        self.plan = 0

    def run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        """With the servers of both, until `work` has ended."""
        waiting = server_of(self.waiting, self.addresses["a"])
        waiting.start()
        loop = self.threaded._loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._run(work))
        finally:
            self.threaded._threads.close()
            waiting.stop(0).wait()

    async def _run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        self.awaiting.stubs = [self.services.BankStub(self.awaiting.member.channel(self.addresses["a"]))]
        server = grpc.aio.server(interceptors=[self.awaiting.member.interceptor])
        self.services.add_BankServicer_to_server(self.awaiting, server)
        server.add_insecure_port(self.addresses["b"])
        await server.start()
        try:
            await work(self)
        finally:
            for member in self.members.values():
                member.going_back()
            await server.stop(0)

    def cut(self) -> Saved | None:
        """Of both in this moment, if both are ready."""
        if not all([member._front.ready() for member in self.members.values()]):
            return None
        states = {
            name: ServiceState(member._front.capture(), member.ledger.image()) for name, member in self.members.items()
        }
        for member in self.members.values():
            member._front.on_cut(0)
        return Saved(states, *counted(states, self.addresses))

    async def go_back(self, line: Saved | None) -> None:
        """As the host has it: at once, and from the line on when threads are over."""
        self.plan += 1
        over = asyncio.Event()
        for member in self.members.values():
            member.going_back()
        for member in self.members.values():
            member._desk.plan = self.plan
        self.members["a"].when_over(over.set)
        await over.wait()
        for name, member in self.members.items():
            member._desk.agents = {name: None}  # type: ignore[dict-item]  # no epoch is recorded here
            state = line.states[name] if line else ServiceState(calls=LedgerImage())
            member.gone_back(BankAgent(msgspec.structs.replace(state)))


def counted(states: dict[str, ServiceState], addresses: dict[str, str]) -> tuple[int, bool]:
    plain = {name: msgspec.msgpack.decode(msgspec.msgpack.encode(state)) for name, state in states.items()}
    kept = {name: msgspec.msgpack.decode(state.service or b"")["tokens"] for name, state in states.items()}
    cut = CutOfBanks(plain, {address: name for name, address in addresses.items()}, kept)
    return cut.total(), not cut.is_quiet()


@contextmanager
def often_switched() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


async def hand_on(pair: Pair, *, seconds: float, recoveries: int) -> None:
    """Cuts as often as may be, and recoveries from the newest at any moment. Raises AssertionError: a cut has another total."""
    chance = random.Random(5)
    line: Saved | None = None
    cuts = busy = 0
    for _ in range(recoveries + 1):
        await pair.go_back(line)
        until_s = time.monotonic() + seconds * chance.uniform(0.7, 1.3)
        while time.monotonic() < until_s:
            await asyncio.sleep(chance.uniform(0, 0.008))
            saved = pair.cut()
            if saved is not None:
                cuts, busy, line = cuts + 1, busy + saved.is_busy, saved
                assert saved.total == 2 * TOKENS, f"cut {cuts} has {saved.total} tokens"
    assert cuts > 10 * (recoveries + 1) and busy > cuts / 4, f"{busy} of {cuts} cuts are busy: this shows little"


def play(
    folder: Path, *, seconds: float = 0.5, recoveries: int = 3, threads: type[MemberThreads] = MemberThreads
) -> None:
    pair = Pair(folder)
    pair.threaded._threads.__class__ = threads
    with often_switched():
        pair.run(partial(hand_on, seconds=seconds, recoveries=recoveries))


@pytest.mark.timeout(60)
def test_every_cut_has_every_token(tmp_path: Path) -> None:
    play(tmp_path, seconds=1.0)


class MakesCallsOutside(MemberThreads):
    """A thread leaves, and its call is made later."""

    def _wait(self, thread: PieceThread, begin: Callable[[], Finish], answer: Any) -> None:
        self.gate.leave(thread.number)
        self.loop.call_later(0.001, super()._wait, thread, begin, answer)


class TakesAnswersOutside(MemberThreads):
    """The answer leaves the ledger, and its thread comes in later."""

    async def _waited(self, thread: PieceThread, finish: Finish, answer: Any) -> None:
        async def later(come_in: ComeIn) -> Any:
            result = await finish(at_once)
            await asyncio.sleep(0.001)
            await come_in()
            return result

        await super()._waited(thread, later, answer)


class EndsBeforeItsAnswer(MemberThreads):
    """A handler's thread ends, and its answer comes into the ledger later."""

    async def _outcome(self, thread: PieceThread, outcome: "asyncio.Future[Any]") -> Any:
        result = await super()._outcome(thread, outcome)
        await asyncio.sleep(0.001)
        return result


class WaitsForNobody(MemberThreads):
    """The fleet goes back while threads of before are inside."""

    def when_over(self, then: Work) -> None:
        then()


class LetsThemIn(MemberThreads):
    """A cut is taken whoever is inside."""

    async def enter(self, thread: PieceThread) -> None:
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

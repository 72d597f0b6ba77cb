"""A bank with threads and a bank of grpc.aio hand tokens to each other in one process: cuts and recoveries at any moment, without a fleet.

Both members have one event loop, so that a cut of both is taken in one step of it; and must have every token, if pieces are whole.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import grpc
import grpc.aio
import msgspec
from tests.adapters.grpc_services.bank_fleets import PROTO, BankAgent, mesh
from tests.adapters.grpc_services.meshes import CutOfBanks, free_ports
from tests.adapters.grpc_services.threaded_bank import ThreadedBank, server_of
from tests.adapters.grpc_services.token_bank import Bank

from snapline.adapters.grpc import Member, ThreadedMember
from snapline.adapters.grpc.ledger import LedgerImage
from snapline.adapters.grpc.member_threads import MemberThreads
from snapline.adapters.grpc.service_agent import ServiceState

DAWDLE_S = 0.002
"""Pieces are this long at most: beside some 200 cuts a second, halves would be seen."""

SWITCH_S = 1e-4
"""Python's threads take turns so often, for more of their orders."""


class Saved(NamedTuple):
    """One cut of both."""

    states: dict[str, ServiceState]
    total: int
    is_busy: bool


class Where(TypedDict):
    """Of a fleet that is not there."""

    coordinator: str
    store: str


class Pair:
    """Both, and what goes on between them. All in the loop of the threaded one.

    Attributes:
        more: handlers that their servers have beside.
    """

    def __init__(self, folder: Path, threads: type[MemberThreads] = MemberThreads) -> None:
        fleet, where = mesh("a", "b"), Where(coordinator="127.0.0.1:1", store=str(folder / "store"))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip("ab", free_ports(2), strict=True)}
        self.waiting = ThreadedBank("a", str(folder / "stop"), [], dawdle_s=DAWDLE_S)
        self.waiting.member = self.threaded = ThreadedMember(self.waiting, agent="a", fleet=fleet, **where)
        self.awaiting = Bank("b", str(folder / "stop"), [])
        self.awaiting.member = Member(self.awaiting, agent="b", fleet=fleet, **where)
        self.threads = self.threaded._threads
        self.threads.__class__ = threads
        self.members = {"a": self.threaded._member, "b": self.awaiting.member}
        self.services: Any = grpc.services(PROTO)
        self.waiting.stubs = [self.services.BankStub(self.threaded.channel(self.addresses["b"]))]
        self.more: dict[str, list[Any]] = {"a": [], "b": []}
        self.plan = 0

    def run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        """With the servers of both, until `work` has ended."""
        waiting = server_of(self.waiting, self.addresses["a"])
        waiting.add_generic_rpc_handlers(tuple(self.more["a"]))
        waiting.start()
        loop = self.threaded._loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._run(work))
        finally:
            self.threads.close()
            waiting.stop(0).wait()

    async def _run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        self.awaiting.stubs = [self.services.BankStub(self.awaiting.member.channel(self.addresses["a"]))]
        server = grpc.aio.server(interceptors=[self.awaiting.member.interceptor])
        self.services.add_BankServicer_to_server(self.awaiting, server)
        server.add_generic_rpc_handlers(tuple(self.more["b"]))
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
        if not all(member._front.ready() for member in self.members.values()):
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
            member._shared.plan = self.plan
        self.members["a"].when_work_ended(over.set)
        await over.wait()
        for name, member in self.members.items():
            member._shared.agents = {name: None}  # type: ignore[dict-item]  # no epoch is recorded here
            state = line.states[name] if line else ServiceState(calls=LedgerImage())
            member.on_rolled_back(BankAgent(msgspec.structs.replace(state)))


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

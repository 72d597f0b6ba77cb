"""Real replicas in one process, over loopback gRPC: real files, real threads, real time.

`Ledger` is a small replicated state: registers, and a table of requests so that a repeated one is done once. Clients of
`Cluster` try again until they know, as section 7 of the design says, and write down a history for the checker.
"""

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.linearizability import Operation, register
from tests.coordinator.raft.marks import Marks

from snapline.channels.servers import server_options
from snapline.coordinator.raft.messages import Hello
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode, raft_configuration
from snapline.coordinator.raft.raft_driver import Committed, Outcome, Replica, ReplicaOptions
from snapline.errors import CoordinatorUnavailableError, LogError
from snapline.security.transport import Security

ELECTION_S, HEARTBEAT_S, FALLBACK_S = (0.35, 0.7), 0.08, 0.6

SecurityOf = Callable[[str], Security]


class Ledger:
    """Registers of integers. An entry is [client, sequence, register, operation]; a repeated one gets its old result."""

    def __init__(self) -> None:
        self.registers: dict[str, int] = {}
        self.results: dict[str, Any] = {}
        self.applied: list[str] = []
        """Requests in the order in which they were done."""

    def apply(self, entry: bytes) -> object:
        client, sequence, name, asked = msgspec.json.decode(entry)
        request = f"{client}/{sequence}"
        if request not in self.results:
            after, result = register(self.registers.get(name, 0), tuple(asked))
            self.registers[name] = after
            self.results[request] = result
            self.applied.append(request)
        return self.results[request]

    def freeze(self) -> bytes:
        return msgspec.json.encode([self.registers, self.results, self.applied])

    def restore(self, image: bytes) -> None:
        self.registers, self.results, self.applied = msgspec.json.decode(image)


def entry_of(client: str, sequence: int, name: str, asked: tuple[Any, ...]) -> bytes:
    return msgspec.json.encode([client, sequence, name, asked])


def fast_configuration(rank: int, *, compaction_entries: int = 4000) -> SyncObjConf:
    """A third of the real times, for tests that wait for elections."""
    made = raft_configuration(rank, election_s=ELECTION_S, heartbeat_s=HEARTBEAT_S, fallback_s=FALLBACK_S)
    made.logCompactionMinEntries = compaction_entries + rank * compaction_entries // 4
    return made


def real_configuration(rank: int, *, compaction_entries: int = 4000) -> SyncObjConf:
    """The real times, but dumps as often as the test wants."""
    made = raft_configuration(rank)
    made.logCompactionMinEntries = compaction_entries + rank * compaction_entries // 4
    return made


class CrashError(BaseException):
    """The end of a replica's thread as SIGKILL would end it: nothing more is written, nothing more leaves."""


class Cluster:
    """`c1`, `c2`, …: started, stopped, cut off."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        security_of: SecurityOf | None = None,
        compaction_entries: int = 4000,
        machine: Callable[[], Any] = Ledger,
        configuration: Callable[..., SyncObjConf] = fast_configuration,
    ) -> None:
        self.folder = folder
        self.names = [f"c{number + 1}" for number in range(count)]
        self.security_of = security_of or (lambda _: Security.loopback())
        self.compaction_entries = compaction_entries
        self.make_machine = machine
        self.configuration = configuration
        self.members: dict[str, str] = {}
        self.replicas: dict[str, Replica] = {}
        self.servers: dict[str, grpc.aio.Server] = {}
        self.machines: dict[str, Any] = {}
        self.alarms: list[str] = []
        self.marks = Marks()

    async def start(self) -> "Cluster":
        for name in self.names:
            with socket.socket() as reserved:
                reserved.bind(("127.0.0.1", 0))
                self.members[name] = f"127.0.0.1:{reserved.getsockname()[1]}"
        await asyncio.gather(*[self.start_one(name) for name in self.names])
        return self

    async def start_one(self, name: str) -> Replica:
        security = self.security_of(name)
        machine = self.machines[name] = self.make_machine()
        options = ReplicaOptions(
            node=name,
            members=self.members,
            folder=self.folder / name,
            cluster="tests",
            marks=self.marks,
            security=security,
            configuration=self.configuration(self.names.index(name), compaction_entries=self.compaction_entries),
        )
        replica = Replica(options, machine, on_alarm=self.alarms.append)
        server = grpc.aio.server(options=server_options())
        replica.add_to_server(server)
        for _ in range(50):
            try:
                security.add_port(server, self.members[name])
                break
            except Exception:
                await asyncio.sleep(0.05)
        await server.start()
        await replica.start()
        self.servers[name], self.replicas[name] = server, replica
        return replica

    async def stop_one(self, name: str) -> None:
        replica, server = self.replicas.pop(name), self.servers.pop(name)
        await replica.stop()
        await server.stop(None)

    async def crash_one(self, name: str) -> None:
        """End it without a last sync; what the journal has not committed is gone."""
        replica, server = self.replicas.pop(name), self.servers.pop(name)
        journal = replica.driver._node._SyncObj__raftLog  # type: ignore[union-attr]  # it is started

        def die() -> None:
            journal.abandon()
            raise CrashError(name)

        replica.streams.inbox.put(die)
        await replica.stop()
        await server.stop(None)

    def isolate(self, name: str) -> None:
        """Cut it off from all others, both ways, until `heal`; its clients still reach it."""
        for other in self.replicas:
            if other != name:
                self._block(name, other)
                self._block(other, name)

    def heal(self) -> None:
        for replica in self.replicas.values():
            for name in ("_dial_once", "_disagreement"):
                replica.streams.__dict__.pop(name, None)

    def _block(self, name: str, other: str) -> None:
        """`name` neither reaches `other` nor takes its streams."""
        streams: Any = self.replicas[name].streams
        dial, judge = streams._dial_once, streams._disagreement

        async def dial_unless(node: RaftNode, *rest: Any) -> bool:
            return False if node.id == other else bool(await dial(node, *rest))

        def judge_unless(context: Any, hello: Hello) -> str | None:
            return "cut off" if hello.node == other else judge(context, hello)

        streams._dial_once, streams._disagreement = dial_unless, judge_unless
        streams.cut(other)

    async def stop(self) -> None:
        await asyncio.gather(*[self.stop_one(name) for name in list(self.replicas)])

    def leader(self) -> str | None:
        """Who leads, if exactly one says so of the newest term."""
        standings = {name: replica.driver.standing for name, replica in self.replicas.items()}
        newest = max((each.term for each in standings.values()), default=0)
        leading = [name for name, each in standings.items() if each.is_leader and each.term == newest]
        return leading[0] if len(leading) == 1 else None

    async def wait_leader(self, timeout_s: float = 10.0) -> str:
        async with asyncio.timeout(timeout_s):
            while True:
                leader = self.leader()
                if leader is not None:
                    try:
                        await self.replicas[leader].driver.wait_ready(timeout_s=1.0)
                        return leader
                    except (CoordinatorUnavailableError, KeyError):
                        pass
                await asyncio.sleep(0.02)

    async def value(self, name: str, register_name: str) -> object:
        """A register, read at replica `name`."""
        machine = self.machines[name]
        return await self.replicas[name].driver.read(lambda: machine.registers.get(register_name, 0))

    async def wait_equal(self, timeout_s: float = 10.0) -> bytes:
        """Wait until all replicas hold the same state; return it."""
        async with asyncio.timeout(timeout_s):
            while True:
                images: set[bytes] = set()
                for name, replica in self.replicas.items():
                    images.add(await replica.driver.read(self.machines[name].freeze))
                if len(images) == 1:
                    return images.pop()
                await asyncio.sleep(0.05)


class Client:
    """Does one operation at a time on any replica, and repeats it until it knows or gives up."""

    def __init__(self, cluster: Cluster, name: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.name = name
        self.chance = chance
        self.sequence = 0
        self.history: list[Operation] = []
        self.acked: set[str] = set()
        """Requests known to be done."""

    async def write(self, name: str, asked: tuple[Any, ...], *, give_up_s: float = 8.0) -> None:
        self.sequence += 1
        entry = entry_of(self.name, self.sequence, name, asked)
        began = time.monotonic()

        async def attempt() -> tuple[bool, object]:
            timeout_s = min(1.5, began + give_up_s - time.monotonic())
            outcome: Outcome = await self._replica().driver.propose(entry, timeout_s=timeout_s)
            return isinstance(outcome, Committed), getattr(outcome, "result", None)

        is_known, answer = await self._until_known(attempt, began + give_up_s)
        ended = time.monotonic() if is_known else None
        if is_known:
            self.acked.add(f"{self.name}/{self.sequence}")
        self.history.append(Operation(began, ended, asked, answer, name))

    async def read(self, name: str, *, give_up_s: float = 8.0) -> None:
        began = time.monotonic()

        async def attempt() -> tuple[bool, object]:
            replica = self._replica()
            machine = next(self.cluster.machines[key] for key, each in self.cluster.replicas.items() if each is replica)
            return True, await replica.driver.read(lambda: machine.registers.get(name, 0), timeout_s=1.5)

        is_known, answer = await self._until_known(attempt, began + give_up_s)
        if is_known:
            self.history.append(Operation(began, time.monotonic(), ("read",), answer, name))

    def _replica(self) -> Replica:
        return self.cluster.replicas[self.chance.choice(sorted(self.cluster.replicas))]

    async def _until_known(
        self, attempt: Callable[[], Awaitable[tuple[bool, object]]], deadline: float
    ) -> tuple[bool, object]:
        while time.monotonic() < deadline:
            try:
                is_known, answer = await attempt()
                if is_known:
                    return True, answer
            except (CoordinatorUnavailableError, LogError, IndexError):
                pass
            await asyncio.sleep(self.chance.uniform(0.01, 0.05))
        return False, None

"""One replica as a process of its own, for the chaos: Raft over gRPC, clients over a Unix socket.

    python -m tests.coordinator.raft.chaos_node '{"name": "c1", …}'

The socket takes a line of JSON per request, and answers each with one: `propose` (an entry of `Ledger`), `read` (a register),
`image` (the whole state, behind a barrier), `leads`. Every term this replica leads goes into `leads.log`, from the thread
that ticks, as soon as it leads; every alarm into `alarms.log`. The process dies with its parent.
"""

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.replicas import Ledger, real_configuration

from snapline.channels.servers import server_options
from snapline.coordinator.raft.journal import SqliteJournal
from snapline.coordinator.raft.node import SafeSyncObj
from snapline.coordinator.raft.raft_driver import Committed, Replica, ReplicaOptions
from snapline.errors import SnaplineError
from snapline.security.transport import Security
from snapline.storage.store.store import Store

LINE_BYTES_MAX = 256 * 1024 * 1024
"""Of a request or an answer: a whole state is one."""

PR_SET_PDEATHSIG = 1
BIND_ATTEMPTS = 100


class Orders(msgspec.Struct, frozen=True):
    """What the parent wants.

    Attributes:
        address: of the Unix socket.
        is_durable: False leaves out every sync: a mutant, which must be found out.
    """

    name: str
    members: dict[str, str]
    folder: str
    address: str
    compaction_entries: int
    is_durable: bool = True


def note(path: Path, line: str) -> None:
    """Append a line with one write: SIGKILL leaves it whole or out."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


class Node:
    """The replica and its clients' requests. Made on the event loop."""

    def __init__(self, orders: Orders) -> None:
        folder = Path(orders.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.orders = orders
        self.machine = Ledger()
        self.leads_log = folder / "leads.log"
        options = ReplicaOptions(
            node=orders.name,
            members=orders.members,
            folder=folder / "raft",
            cluster="chaos",
            marks=Store.open_or_create(folder.parent / "store"),
            configuration=self._configuration(),
        )
        self.replica = Replica(options, self.machine, on_alarm=functools.partial(note, folder / "alarms.log"))

    def _configuration(self) -> SyncObjConf:
        orders = self.orders
        rank = sorted(orders.members).index(orders.name)
        made = real_configuration(rank, compaction_entries=orders.compaction_entries)
        made.onStateChanged = self._state_changed
        return made

    def _state_changed(self, _before: object, _after: object) -> None:
        node = self.replica.driver._node
        if node is not None and node.is_leader:
            note(self.leads_log, str(node.raftCurrentTerm))

    async def run(self) -> None:
        server = grpc.aio.server(options=server_options())
        self.replica.add_to_server(server)
        await self._bind(server)
        await server.start()
        await self.replica.start()
        Path(self.orders.address).unlink(missing_ok=True)
        listening = await asyncio.start_unix_server(self._serve, self.orders.address, limit=LINE_BYTES_MAX)
        await listening.serve_forever()

    async def _bind(self, server: grpc.aio.Server) -> None:
        """The process before may be gone a moment longer than its port."""
        for attempt in range(BIND_ATTEMPTS):
            try:
                Security.loopback().add_port(server, self.orders.members[self.orders.name])
                return
            except Exception:
                if attempt == BIND_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    answer = await self._answer(json.loads(line))
                except SnaplineError as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        driver, machine = self.replica.driver, self.machine
        match asked["do"]:
            case "propose":
                outcome = await driver.propose(asked["entry"].encode(), timeout_s=asked["timeout_s"])
                return {"result": outcome.result} if isinstance(outcome, Committed) else {"error": outcome.reason}
            case "read":
                name = asked["register"]
                read = driver.read(lambda: machine.registers.get(name, 0), timeout_s=asked["timeout_s"])
                return {"result": await read}
            case "image":
                return {"result": (await driver.read(machine.freeze, timeout_s=asked["timeout_s"])).decode()}
            case "leads":
                return {"result": driver.standing.is_leader}
        return {"error": f"no such request: {asked['do']}"}


def forget_to_sync() -> None:
    """The mutant: nothing is durable but terms and votes."""
    SafeSyncObj.sync_journal = lambda self: None  # type: ignore[method-assign]
    SqliteJournal.onOneSecondTimer = lambda self: None  # type: ignore[method-assign]


async def run(orders: Orders) -> None:
    await Node(orders).run()


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux the test must end it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    if not orders.is_durable:
        forget_to_sync()
    asyncio.run(run(orders))


if __name__ == "__main__":
    main()

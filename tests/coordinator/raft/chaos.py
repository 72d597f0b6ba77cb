"""Replicas as processes: killed, paused, started again, while clients work and write down what they saw."""

import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from tests.coordinator.raft.chaos_node import LINE_BYTES_MAX, Orders
from tests.coordinator.raft.linearizability import Operation
from tests.coordinator.raft.replicas import entry_of

PORTS = range(20_000, 32_000)
"""Below what the kernel gives to connections, so that a replica finds its port again."""

ATTEMPT_S = 1.5
GIVE_UP_S = 8.0
GIVE_UP_EARLY_S = 0.004
"""Some clients do not wait: what they asked for may have happened, or happen later."""

LIMIT_S = 60.0
"""For a leader to be found and replicas to be equal again, on a busy machine."""


class Unreachable(Exception):
    """No answer: what was asked for may have been done."""


class Connection:
    """One client's connection to one replica: one request at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, do: str, *, timeout_s: float, **asked: object) -> Any:  # Any: JSON
        """The result. Raises Unreachable if there is none within the time, or the replica says that it has none."""
        request = {"do": do, "timeout_s": timeout_s, **asked}
        try:
            async with asyncio.timeout(timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(str(self._path), limit=LINE_BYTES_MAX)
                reader, writer = self._streams
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
            answer = json.loads(line) if line else {"error": "the replica is gone"}
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            self.close()  # the answer may come later, and is not that of the next request
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Unreachable(str(error)) from error
        if not line:
            self.close()
        if "error" in answer:
            raise Unreachable(answer["error"])
        return answer["result"]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Replicas:
    """`c1`, `c2`, …, each in a process of its own. Use `replicas()`."""

    def __init__(self, folder: Path, sockets: Path, count: int, *, compaction_entries: int, is_durable: bool) -> None:
        self.folder = folder
        self.names = [f"c{number + 1}" for number in range(count)]
        self.sockets = {name: sockets / name for name in self.names}
        self.members = dict(zip(self.names, free_addresses(count), strict=True))
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._compaction_entries = compaction_entries
        self._is_durable = is_durable
        self._connections = {name: Connection(self.sockets[name]) for name in self.names}

    async def start(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        orders = Orders(
            name=name,
            members=self.members,
            folder=str(folder),
            address=str(self.sockets[name]),
            compaction_entries=self._compaction_entries,
            is_durable=self._is_durable,
        )
        with (folder / "errors.log").open("ab") as errors:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.coordinator.raft.chaos_node", msgspec.json.encode(orders).decode()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    async def kill(self, *names: str) -> None:
        """SIGKILL, all at once."""
        for name in names:
            self._send(name, signal.SIGKILL)
        await asyncio.gather(*[self.processes.pop(name).wait() for name in names])

    async def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP for a while."""
        self._send(name, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._send(name, signal.SIGCONT)

    def _send(self, name: str, what: signal.Signals) -> None:
        self.check()
        self.processes[name].send_signal(what)

    def check(self) -> None:
        """Nobody may have ended by itself."""
        for name, process in self.processes.items():
            if process.returncode is not None:
                raise AssertionError(f"{name} ended by itself with {process.returncode}: {self.errors(name)}")

    def errors(self, name: str) -> str:
        """What the processes of a replica wrote."""
        return (self.folder / name / "errors.log").read_text()

    async def leader(self) -> str | None:
        """Who says that it leads, if exactly one does."""
        self.check()
        leading = [name for name in list(self.processes) if await self._leads(name)]
        return leading[0] if len(leading) == 1 else None

    async def _leads(self, name: str) -> bool:
        try:
            return bool(await self._connections[name].ask("leads", timeout_s=0.5))
        except Unreachable:
            return False

    async def wait_leader(self) -> str:
        async with asyncio.timeout(LIMIT_S):
            while (leader := await self.leader()) is None:
                await asyncio.sleep(0.05)
        return leader

    async def equal_image(self) -> bytes:
        """Wait until all replicas run and hold the same state; return it."""
        images: set[str] = set()
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            self.check()
            with contextlib.suppress(Unreachable):
                images = {await self._connections[name].ask("image", timeout_s=5.0) for name in self.names}
                if len(images) == 1:
                    return images.pop().encode()
            await asyncio.sleep(0.1)
        raise AssertionError(f"the replicas stay different, or away: {len(images)} states")

    def leaders(self) -> dict[int, set[str]]:
        """Term → who has led in it, from the replicas' own logs."""
        found: dict[int, set[str]] = {}
        for name in self.names:
            log = self.folder / name / "leads.log"
            for line in log.read_text().splitlines() if log.exists() else []:
                found.setdefault(int(line), set()).add(name)
        return found

    def alarms(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("*/alarms.log"))]

    async def stop(self) -> None:
        """End all that runs, paused or not."""
        for connection in self._connections.values():
            connection.close()
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*[process.wait() for process in self.processes.values()])


@contextlib.asynccontextmanager
async def replicas(
    folder: Path, count: int = 3, *, compaction_entries: int = 150, is_durable: bool = True
) -> AsyncIterator[Replicas]:
    """Started replicas; all of their processes are gone afterwards."""
    with TemporaryDirectory(prefix="chaos-") as sockets:  # a socket's path has at most 107 bytes
        made = Replicas(folder, Path(sockets), count, compaction_entries=compaction_entries, is_durable=is_durable)
        try:
            await asyncio.gather(*map(made.start, made.names))
            await made.wait_leader()
            yield made
        finally:
            await made.stop()


def free_addresses(count: int) -> list[str]:
    """Addresses where nobody listens."""
    found: list[str] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as reserved:
            reserved.bind(("127.0.0.1", port))
            found.append(f"127.0.0.1:{port}")
    return list(dict.fromkeys(found)) if len(set(found)) == count else free_addresses(count)


class Client:
    """Does one operation at a time on any replica, and repeats it until it knows or gives up.

    Attributes:
        history: what it asked for, when, and what it heard.
        acked: requests known to be done.
    """

    def __init__(self, made: Replicas, name: str, chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.sequence = 0
        self.history: list[Operation] = []
        self.acked: set[str] = set()
        self.attempts = 0
        self._connections = [Connection(made.sockets[each]) for each in made.names]

    async def work(self, end_s: float, acked_min: int) -> None:
        """Do operations of all kinds until then, and until so many are acknowledged. Registers change twice a second, so that histories stay short."""
        while time.monotonic() < end_s or len(self.acked) < acked_min:
            name = f"r{self.chance.randrange(3)}.{int(2 * (end_s - time.monotonic()))}"
            asked: tuple[Any, ...] = self.chance.choice(
                [("add", 1), ("write", self.sequence), ("cas", self.sequence % 3, self.sequence % 5), ("read",)]
            )
            give_up_s = GIVE_UP_EARLY_S if self.chance.random() < 0.05 else GIVE_UP_S
            await (self.read(name) if asked == ("read",) else self.write(name, asked, give_up_s))
            await asyncio.sleep(self.chance.uniform(0, 0.02))
        for connection in self._connections:
            connection.close()

    async def write(self, name: str, asked: tuple[Any, ...], give_up_s: float = GIVE_UP_S) -> None:
        self.sequence += 1
        entry = entry_of(self.name, self.sequence, name, asked).decode()
        called_s = time.monotonic()
        answer = await self._until_known(called_s + give_up_s, "propose", entry=entry)
        if answer:
            self.acked.add(f"{self.name}/{self.sequence}")
        answered_s = time.monotonic() if answer else None
        self.history.append(Operation(called_s, answered_s, asked, answer[0] if answer else None, name))

    async def read(self, name: str) -> None:
        called_s = time.monotonic()
        answer = await self._until_known(called_s + GIVE_UP_S, "read", register=name)
        if answer:
            self.history.append(Operation(called_s, time.monotonic(), ("read",), answer[0], name))

    async def _until_known(self, deadline_s: float, do: str, **asked: object) -> tuple[Any] | None:
        while (left_s := deadline_s - time.monotonic()) > 0:
            self.attempts += 1
            try:
                return (await self.chance.choice(self._connections).ask(do, timeout_s=min(ATTEMPT_S, left_s), **asked),)
            except Unreachable:
                await asyncio.sleep(self.chance.uniform(0.01, 0.05))
        return None


async def harm(
    made: Replicas, end_s: float, harmed_min: int, chance: random.Random, say: Callable[[str], None]
) -> Counter[str]:
    """Kill and pause until then, and at least so often; everything runs again afterwards. Returns what was done how often."""
    done: Counter[str] = Counter()
    while time.monotonic() < end_s or done.total() < harmed_min:
        await asyncio.sleep(chance.uniform(0.3, 2.0))
        leader = await made.leader()
        name = leader if leader is not None and chance.random() < 0.7 else chance.choice(made.names)
        role = "leader" if name == leader else "follower"
        what = chance.choice(["kill", "kill", "pause", "kill all"])
        if what == "pause":
            await made.pause(name, chance.uniform(0.2, 4.0))
        else:
            names = made.names if what == "kill all" else [name]
            await made.kill(*names)
            await asyncio.sleep(chance.uniform(0, 1.0))
            for each in chance.sample(names, len(names)):
                await made.start(each)
        what = what if what == "kill all" else f"{what} {role}"
        done[what] += 1
        say(f"{max(0.0, end_s - time.monotonic()):6.1f} s left: {what} {name}")
        if chance.random() < 0.7:  # else the next comes in the middle of the election
            await made.wait_leader()
    return done

"""What the replicated log costs and how long it is away: our Raft, durable, beside stock pysyncobj, in one run.

    .venv/bin/python benchmarks/raft.py [--rounds 5] [--seconds 1] [--kills 12] [--sizes 1 3 5] [--quick]

Replicas are processes of their own on this machine. *Ours* is `snapline.coordinator.raft` as the coordinator runs it: SQLite
with a sync before every answer, gRPC streams, and as its client coroutines that await `propose`. *Stock* is pysyncobj with
its own TCP transport, its log in memory only, no sync at all, the same timings, and as its client callbacks on its own tick
thread, each of which proposes the next entry at once: its fastest way. Entries have 100 bytes; both compact every few
thousand of them. Takes about four minutes.

The client sits in the leader's process and keeps so many proposals under way. Each round runs every contender once with
every number in flight, in random order, both clusters being up all the time; ratios are within a round, the table shows
medians, with the lowest and highest ratio. Latency is from proposing to the answer.

Outage: all replicas write, one proposal at a time, trying again when refused. The leader gets SIGKILL. The outage lasts from
there to the first commit, on any replica, of an entry proposed after the kill.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio
from pysyncobj import SyncObj, replicated  # type: ignore[import-untyped]  # the library has no types

from snapline.channels.grpc_link import keep_freed_memory
from snapline.channels.servers import server_options
from snapline.coordinator.raft.pysyncobj_adapter import TICK_S, raft_configuration
from snapline.coordinator.raft.raft_driver import Committed, Replica, ReplicaOptions
from snapline.security.transport import Security
from snapline.storage.store.store import Store

OURS, STOCK = "ours", "stock"
IN_FLIGHT = (1, 64, 512)
ENTRY = bytes(range(100))
GOAL_RATIO, GOAL_MEDIAN_S, GOAL_WORST_S = 0.8, 1.5, 3.0
WARM_UP_S = 0.3
LIMIT_S = 60.0


class Load:
    """A constant number of open proposals: time and latency of each answer."""

    def __init__(self, seconds: float) -> None:
        self.begin_s = time.perf_counter() + WARM_UP_S
        self.end_s = self.begin_s + seconds
        self.seconds = seconds
        self.took_s: list[float] = []
        self.failed = 0

    def answered(self, began_s: float, is_committed: bool) -> bool:
        """Note an answer; return whether to propose the next."""
        now_s = time.perf_counter()
        if not is_committed:
            self.failed += 1
        elif self.begin_s <= now_s < self.end_s:
            self.took_s.append(now_s - began_s)
        return now_s < self.end_s

    def summary(self) -> dict[str, float]:
        ordered = sorted(self.took_s) or [float("nan")]
        return {
            "rate": len(self.took_s) / self.seconds,
            "median_ms": 1e3 * statistics.median(ordered),
            "p99_ms": 1e3 * ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))],
            "failed": self.failed,
        }


# ---- the replicas' processes ----------------------------------------------------------------------------------------


class Contender(Protocol):
    """One replica in this process."""

    @property
    def leads(self) -> bool: ...
    async def run(self, in_flight: int, load: Load) -> None: ...
    async def propose(self, timeout_s: float) -> bool: ...


class Counter:
    """The replicated state: how many entries there were."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entry: bytes) -> object:
        self.count += 1
        return self.count

    def freeze(self) -> bytes:
        return self.count.to_bytes(8, "little")

    def restore(self, image: bytes) -> None:
        self.count = int.from_bytes(image, "little")


class Ours:
    """A replica of the coordinator's Raft, with its server."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    @classmethod
    async def start(cls, name: str, members: dict[str, str], folder: Path) -> "Ours":
        marks = Store.open_or_create(folder.parent / "store")
        options = ReplicaOptions(node=name, members=members, folder=folder, cluster="bench", marks=marks)
        replica = Replica(options, Counter(), on_alarm=lambda sentence: print(sentence, file=sys.stderr))
        server = grpc.aio.server(options=server_options())
        replica.add_to_server(server)
        Security.loopback().add_port(server, members[name])
        await server.start()
        await replica.start()
        contender = cls(replica)
        contender.server = server  # type: ignore[attr-defined]  # keep a reference
        return contender

    @property
    def leads(self) -> bool:
        return self.replica.driver.standing.is_leader

    async def run(self, in_flight: int, load: Load) -> None:
        async def keep_one_under_way() -> None:
            propose = self.replica.driver.propose
            more = True
            while more:
                began_s = time.perf_counter()
                outcome = await propose(ENTRY)
                more = load.answered(began_s, type(outcome) is Committed)

        await asyncio.gather(*[keep_one_under_way() for _ in range(in_flight)])

    async def propose(self, timeout_s: float) -> bool:
        return isinstance(await self.replica.driver.propose(ENTRY, timeout_s=timeout_s), Committed)


class StockCounter(SyncObj):  # type: ignore[misc]  # the library has no types
    """The same state as the library's users write it."""

    def __init__(self, own: str, others: list[str], rank: int) -> None:
        conf = raft_configuration(rank)
        conf.autoTick, conf.autoTickPeriod = True, TICK_S
        self.count = 0
        super().__init__(own, others, conf)

    @replicated  # type: ignore[untyped-decorator]
    def add(self, entry: bytes) -> int:
        self.count += 1
        return self.count


class Stock:
    """A replica of the stock library."""

    def __init__(self, node: StockCounter) -> None:
        self._node = node

    @classmethod
    async def start(cls, name: str, members: dict[str, str], folder: Path) -> "Stock":
        others = [address for other, address in members.items() if other != name]
        return cls(StockCounter(members[name], others, sorted(members).index(name)))

    @property
    def leads(self) -> bool:
        return bool(self._node._isLeader())

    async def run(self, in_flight: int, load: Load) -> None:
        done = threading.Semaphore(0)

        def propose_one() -> None:
            began_s = time.perf_counter()

            def answered(_: object, code: int) -> None:
                if load.answered(began_s, code == 0):
                    propose_one()
                else:
                    done.release()

            self._node.add(ENTRY, callback=answered)

        for _ in range(in_flight):
            propose_one()
        for _ in range(in_flight):
            await asyncio.to_thread(done.acquire, timeout=LIMIT_S)

    async def propose(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def settle(is_committed: bool) -> None:
            if not answer.done():
                answer.set_result(is_committed)

        self._node.add(ENTRY, callback=lambda _, code: loop.call_soon_threadsafe(settle, code == 0))
        await asyncio.wait({answer}, timeout=timeout_s)
        return answer.done() and answer.result()


class Writer:
    """Writes one entry at a time and notes, of each commit, when its proposal began and when it was answered."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._commits: list[tuple[float, float]] = []

    async def write(self) -> None:
        while True:
            began_s = time.monotonic()
            if await self._contender.propose(1.0):
                self._commits.append((began_s, time.monotonic()))
                del self._commits[:-10_000]
            await asyncio.sleep(0.005)

    def first_after(self, instant_s: float) -> float | None:
        """When the first entry that was proposed after `instant_s` was committed."""
        return next((answered_s for began_s, answered_s in self._commits if began_s > instant_s), None)


async def serve(kind: str, name: str, members: dict[str, str], folder: Path) -> None:
    """Be one replica, and do what stdin says until it ends."""
    if kind == STOCK:
        logging.disable()  # it warns about every AppendEntries for older entries
    contender: Contender = await (Ours if kind == OURS else Stock).start(name, members, folder)
    writer, writing = Writer(contender), None
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        answer: Any = None
        match order["do"]:
            case "leads":
                answer = contender.leads
            case "run":
                load = Load(order["seconds"])
                await contender.run(order["in_flight"], load)
                answer = load.summary()
            case "write":
                writing = writing or asyncio.create_task(writer.write())
            case "first after":
                answer = writer.first_after(order["instant_s"])
        print(json.dumps(answer), flush=True)
    os._exit(0)


# ---- the measurement ------------------------------------------------------------------------------------------------


class Process:
    """Handle of a replica's process, for the parent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, do: str, **order: object) -> Any:  # Any: JSON
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), LIMIT_S)
        if not line:
            raise SystemExit(f"a replica ended with {await self.process.wait()}")
        return json.loads(line)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Cluster:
    """The replicas of one contender."""

    def __init__(self, kind: str, size: int, folder: Path) -> None:
        self.kind = kind
        self.folder = folder / kind
        self.members = {f"c{number + 1}": f"127.0.0.1:{free_port()}" for number in range(size)}
        self.processes: dict[str, Process] = {}

    async def start(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--node", self.kind, name, json.dumps(self.members), str(folder)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.processes[name] = Process(process)

    async def leader(self) -> str:
        """Who leads, once exactly one says so."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            leads = {name: await process.ask("leads") for name, process in self.processes.items()}
            if sum(leads.values()) == 1:
                return next(name for name in leads if leads[name])
            await asyncio.sleep(0.05)
        raise SystemExit(f"{self.kind}: no leader within {LIMIT_S} s")

    async def measure(self, in_flight: int, seconds: float) -> dict[str, float]:
        leader = self.processes[await self.leader()]
        figures: dict[str, float] = await leader.ask("run", in_flight=in_flight, seconds=seconds)
        return figures

    async def outage_s(self) -> float:
        """Kill the leader; return the time without commits. Restarts the replica before it returns."""
        for process in self.processes.values():
            await process.ask("write")
        leader = await self.leader()
        await asyncio.sleep(random.uniform(0.5, 1.0))
        killed_s = time.monotonic()
        await self.processes.pop(leader).kill()
        firsts: list[float] = []
        while not firsts:
            await asyncio.sleep(0.05)
            first_commits = [
                await process.ask("first after", instant_s=killed_s) for process in self.processes.values()
            ]
            firsts = [at_s for at_s in first_commits if at_s is not None]
            if time.monotonic() > killed_s + LIMIT_S:
                raise SystemExit(f"{self.kind}: nothing committed for {LIMIT_S} s after a kill")
        await self.start(leader)
        await self.processes[leader].ask("leads")
        return min(firsts) - killed_s


@contextlib.asynccontextmanager
async def clusters(size: int, kinds: tuple[str, ...]) -> AsyncIterator[list[Cluster]]:
    """Run a cluster of each kind; all processes end at exit."""
    with tempfile.TemporaryDirectory(prefix="snapline-raft-") as name:
        started = [Cluster(kind, size, Path(name)) for kind in kinds]
        try:
            for cluster in started:
                await asyncio.gather(*[cluster.start(each) for each in cluster.members])
            for cluster in started:
                await cluster.leader()
            yield started
        finally:
            await asyncio.gather(*[process.kill() for cluster in started for process in cluster.processes.values()])


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


async def throughput(size: int, rounds: int, seconds: float) -> dict[int, float]:
    """Measure one cluster size; returns the median ratio by number in flight."""
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    async with clusters(size, (OURS, STOCK)) as running:
        for round_number in range(rounds + 1):
            runs = [(cluster, in_flight) for cluster in running for in_flight in IN_FLIGHT]
            for cluster, in_flight in random.sample(runs, len(runs)):
                result = await cluster.measure(in_flight, seconds if round_number else 0.2)
                if round_number:  # the first is the warm-up
                    results.setdefault((cluster.kind, in_flight), []).append(result)
    return {in_flight: report(size, in_flight, results) for in_flight in IN_FLIGHT}


def report(size: int, in_flight: int, found: dict[tuple[str, int], list[dict[str, float]]]) -> float:
    def middle(kind: str, what: str) -> float:
        return statistics.median(each[what] for each in found[kind, in_flight])

    pairs = zip(found[OURS, in_flight], found[STOCK, in_flight], strict=True)
    ratios = [ours["rate"] / stock["rate"] for ours, stock in pairs]
    columns = [f"{size:>8} {in_flight:>9}"]
    for kind in (OURS, STOCK):
        columns.append(
            f"{middle(kind, 'rate'):>9,.0f} {middle(kind, 'median_ms'):>8.2f} {middle(kind, 'p99_ms'):>8.1f}"
        )
    ratio = statistics.median(ratios)
    failed = sum(each["failed"] for each in found[OURS, in_flight])
    lost = f"  ({failed:.0f} of ours refused or unknown)" if failed else ""
    print("  ".join(columns) + f"   {ratio:6.2f} ({min(ratios):.2f}–{max(ratios):.2f}){lost}", flush=True)
    return ratio


async def outages(size: int, kills: int) -> list[float]:
    durations: list[float] = []
    async with clusters(size, (OURS,)) as (cluster,):
        for _ in range(kills):
            durations.append(await cluster.outage_s())
    spread = ", ".join(f"{outage_s:.2f}" for outage_s in sorted(durations))
    print(
        f"\nwrite outage after SIGKILL of the leader, {size} replicas, {kills} kills: "
        f"median {statistics.median(durations):.2f} s, worst {max(durations):.2f} s ({spread})",
        flush=True,
    )
    return durations


def verdict(what: str, value: float, goal: float, compare: Callable[[float, float], bool]) -> None:
    print(f"goal: {what}: {value:.2f}, {'met' if compare(value, goal) else 'MISSED'} (goal {goal})")


async def run(options: argparse.Namespace) -> None:
    print(f"{'':>18}  {'ours: durable':^27}  {'stock: no sync':^27}")
    head = f"{'1/s':>9} {'ms':>8} {'p99 ms':>8}"
    print(f"{'replicas':>8} {'in flight':>9}  {head}  {head}   ours ÷ stock (lowest–highest)")
    ratios = {size: await throughput(size, options.rounds, options.seconds) for size in options.sizes}
    outages_s = await outages(3, options.kills) if options.kills else []
    print()
    for size in options.sizes:
        if size > 1:
            label = f"throughput at 64 in flight, {size} replicas, ÷ stock"
            verdict(label, ratios[size][64], GOAL_RATIO, lambda value, goal: value >= goal)
    if outages_s:
        verdict("median outage, s", statistics.median(outages_s), GOAL_MEDIAN_S, lambda value, goal: value <= goal)
        verdict("worst outage, s", max(outages_s), GOAL_WORST_S, lambda value, goal: value <= goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--kills", type=int, default=12, help="of the leader; 0: only throughput")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 3, 5], help="replicas")
    parser.add_argument("--quick", action="store_true", help="few short rounds, three kills")
    parser.add_argument("--node", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_freed_memory()
    if options.node:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
        kind, name, members, folder = options.node
        asyncio.run(serve(kind, name, json.loads(members), Path(folder)))
        return
    if options.quick:
        options.rounds, options.seconds, options.kills = 2, 0.6, min(options.kills, 3)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, load {load}; Python {platform.python_version()}, grpcio {grpc.__version__}, "
        f"pysyncobj {importlib.metadata.version('pysyncobj')}; {len(ENTRY)}-byte entries\n"
    )
    asyncio.run(run(options))


if __name__ == "__main__":
    main()

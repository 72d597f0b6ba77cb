"""What the outside world costs: inputs acknowledged, answers, and durable steps, on a local fleet of real processes, with fsync on.

    .venv/bin/python benchmarks/world.py [--rounds 5] [--hosts 2] [--agents 64] [--steps 200] [--dbos PYTHON]

Each round runs every contender once, in random order; what is printed is the median over the rounds, with the lowest and highest, and
ratios are medians of the ratios within a round.

    fsync       one append of 4 KiB with fdatasync, beside the store: what the disk costs
    inputs      64-byte inputs acknowledged per second: `send_many` of 2,000 for all agents at once, four at a time
    send        one input alone, to its receipt
    ask early   one input, to its answer at the end of the turn; `ask` to the final one, which waits for a snapshot: of a fleet that is idle,
                a tenth of a second after the one before, and `ask in a row` of one that has just ended the last one's snapshot
    steps       durable steps per second: one turn of so many steps for each agent, all at once, each step a call that does nothing,
                and the CPU of the hosts for each; "logged": each in the host log before its turn goes on, "kept": in checkpoints only
    dbos        the same in one process of DBOS on SQLite, if a Python that has it is named (its steps are committed one by one: ours
                that are logged share batches)
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import snapline
from snapline.deploy.local import LocalFleet

ROOT = Path(__file__).resolve().parents[1]
PAID = ("Paid", {"amount": 1, "note": "x" * 44})
"""About 64 bytes."""

BATCH, AT_ONCE = 2_000, 4
ALONE = 40
"""Number of sequential sends, and of asks, in a round."""

DBOS_STEPS = 20
"""Steps of each workflow, one for each agent; few, since DBOS is slow."""

DBOS = """
import os, sys, tempfile, time
from dbos import DBOS
count, steps = int(sys.argv[1]), int(sys.argv[2])
folder = tempfile.mkdtemp(dir=sys.argv[3])
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/db.sqlite", "log_level": "ERROR"})
@DBOS.step()
def look(number): return number
@DBOS.workflow()
def walk(steps): return sum(look(number) for number in range(steps))
DBOS.launch()
start, cpu = time.perf_counter(), time.process_time()
for handle in [DBOS.start_workflow(walk, steps) for _ in range(count)]:
    handle.get_result()
print(count * steps / (time.perf_counter() - start), (time.process_time() - cpu) / (count * steps) * 1e6, flush=True)
os._exit(0)
"""

Figures = dict[str, list[float]]


class Bench:
    """One fleet, one client, and the measurements: name → a figure for each round."""

    def __init__(self, options: argparse.Namespace, folder: Path, client: snapline.Client, hosts: list[int]) -> None:
        self.options = options
        self.folder = folder
        self.client = client
        self.hosts = hosts
        self.figures: Figures = {}
        self.round = 0

    def note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    def agent(self, number: int) -> str:
        return f"till-{number % self.options.agents}"

    async def fsync(self) -> None:
        """Median milliseconds of one append."""
        self.note("fsync ms", statistics.median(appends_ms(self.folder / "appended")))

    async def inputs(self) -> None:
        """Acknowledged per second."""

        async def give(batch: int) -> None:
            keys = [f"r{self.round}-{batch}-{number}" for number in range(BATCH)]
            await self.client.send_many([(self.agent(n), PAID, key) for n, key in enumerate(keys)])

        start_s = time.perf_counter()
        await asyncio.gather(*[give(batch) for batch in range(AT_ONCE)])
        self.note("inputs /s", BATCH * AT_ONCE / (time.perf_counter() - start_s))

    async def send(self) -> None:
        await self._alone("send ms", lambda agent, key: self.client.send(agent, PAID, key))

    async def ask_early(self) -> None:
        await self._alone("ask early ms", lambda agent, key: self.client.ask(agent, PAID, key, early=True))

    async def ask(self) -> None:
        await self._alone("ask ms", lambda agent, key: self.client.ask(agent, PAID, key), pause_s=0.1)

    async def ask_in_a_row(self) -> None:
        await self._alone("ask in a row ms", lambda agent, key: self.client.ask(agent, PAID, key))

    async def _alone(self, name: str, call: Callable[[str, str], Awaitable[object]], pause_s: float = 0.0) -> None:
        times = []
        for number in range(ALONE):
            await asyncio.sleep(pause_s)
            start_s = time.perf_counter()
            await call(self.agent(number), f"{name}-{self.round}-{number}")
            times.append((time.perf_counter() - start_s) * 1e3)
        self.note(f"{name}, p50", statistics.median(times))
        self.note(f"{name}, worst", max(times))

    async def logged(self) -> None:
        await self._steps("logged", "log")

    async def kept(self) -> None:
        await self._steps("kept", "checkpoint")

    async def _steps(self, name: str, durability: str) -> None:
        """Start all agents at once; wait until each has answered."""
        agents, steps = self.options.agents, self.options.steps
        cpu_s, start_s = self._cpu_s(), time.perf_counter()
        await asyncio.gather(
            *[
                self.client.ask(
                    self.agent(n),
                    ("Walk", {"steps": steps, "durability": durability}),
                    f"{name}-{self.round}-{n}",
                    True,
                    300.0,
                )
                for n in range(agents)
            ]
        )
        self.note(f"{name} steps /s", agents * steps / (time.perf_counter() - start_s))
        self.note(f"{name} step CPU µs", (self._cpu_s() - cpu_s) / (agents * steps) * 1e6)

    def _cpu_s(self) -> float:
        """Of the hosts' processes."""
        ticks = os.sysconf("SC_CLK_TCK")
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in self.hosts]
        return sum([int(each[11]) + int(each[12]) for each in fields]) / ticks

    async def dbos(self) -> None:
        arguments = ["-c", DBOS, str(self.options.agents), str(DBOS_STEPS), str(self.folder)]
        process = await asyncio.create_subprocess_exec(
            self.options.dbos, *arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        out, _ = await process.communicate()
        rate, cpu_us = out.decode().split()[-2:]
        self.note("dbos steps /s", float(rate))
        self.note("dbos step CPU µs", float(cpu_us))
        self.note("steps ÷ dbos", self.figures["logged steps /s"][-1] / float(rate))


async def measure(options: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        arguments = {"agents": str(options.agents), "period": str(options.period), "protocol": options.protocol}
        fleet = LocalFleet(
            data_dir=folder / "data",
            fleet="benchmarks.world_fleet:fleet",
            hosts=options.hosts,
            arguments=arguments,
            environment={"PYTHONPATH": str(ROOT)},
        )
        async with fleet, await connected(fleet.address) as client:
            hosts = [pid for host in fleet.hosts if (pid := fleet.pid(host)) is not None]
            bench = Bench(options, folder, client, hosts)
            await _rounds(bench, options)
            return bench.figures


async def connected(address: str) -> snapline.Client:
    while True:
        with contextlib.suppress(snapline.CoordinatorUnavailableError):
            return await snapline.Client.connect(address)
        await asyncio.sleep(0.1)


async def _rounds(bench: Bench, options: argparse.Namespace) -> None:
    await bench.client.ask("till-0", PAID, "first")
    for bench.round in range(options.rounds):
        contenders = [bench.fsync, bench.inputs, bench.send, bench.ask_early, bench.ask, bench.ask_in_a_row]
        contenders += [bench.logged, bench.kept]
        random.shuffle(contenders)
        for contender in contenders:
            await contender()
        if options.dbos:
            await bench.dbos()


def appends_ms(file: Path, count: int = ALONE) -> list[float]:
    """Milliseconds of so many appends, each with fdatasync."""
    times = []
    with file.open("ab", buffering=0) as opened:
        for _ in range(count):
            start_s = time.perf_counter()
            opened.write(bytes(4096))
            os.fdatasync(opened.fileno())
            times.append((time.perf_counter() - start_s) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="of each durable turn")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between snapshots nobody asks for")
    parser.add_argument("--protocol", default="chandy-lamport")
    parser.add_argument("--dbos", default="", metavar="PYTHON", help="an interpreter that has dbos")
    parser.add_argument(
        "--folder", default=None, help="on the disk that is meant; default: the system's for temporary files"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.2f}, {options.agents} agents, {options.hosts} hosts"
    )
    for name, values in asyncio.run(measure(options)).items():
        print(f"  {name:20} {statistics.median(values):12,.2f}   ({min(values):,.2f} – {max(values):,.2f})")


if __name__ == "__main__":
    main()

"""How a fleet grows: time to a complete cut, to a recovery, and what an epoch costs the coordinator and the hosts, for more agents and more hosts.

    .venv/bin/python benchmarks/scale.py [--agents 100 1000 10000] [--hosts 4] [--more-hosts 2 8 32] [--per-host 4] [--rounds 3]
    .venv/bin/python benchmarks/scale.py --busy 20 --agents 100 500 --more-hosts
    .venv/bin/python benchmarks/scale.py --simulated 30 100 300 1000

First so many agents on `--hosts` host processes, then the largest number of agents on so many hosts. All is real: processes, gRPC, fsync. Each fleet
passes one token for every ten agents, so that cuts hold messages and hosts are not busy; with --busy each agent handles so many messages a second, as far
as the processors go (see "idle": beyond 1,000 for each they are all busy). In each round an epoch is taken by hand after each other (their CPU is
that of the processes between), then a host is killed, and the fleet recovers. Sizes are taken in turns, so that what else the machine does falls on all.

    cut ms        from the call to its answer: the epoch is complete, durable and published
    coordinator   CPU-ms of its process for one epoch; µs for each agent
    hosts         CPU-ms of all host processes together for one epoch
    idle          CPU-ms a second of all hosts and the coordinator while no epoch is taken; it is taken off the two before
    messages/s    that all agents handle together
    recovery s    from SIGKILL of a host to the plan that all others have confirmed

With --simulated only the coordinator is real: its leader core and its state machine, fed by so many hosts of 100 agents that report at once. CPU is this
process's; wire and disk are not in it.

The growth is printed as an exponent, log(cost) against log(size) between neighbours: 1 is linear.
"""

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from snapline.deploy.local import LocalFleet
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 5
"""Epochs of a round."""

AGENTS_EACH = 100
"""Agents of a simulated host."""

LIMIT_S = 300.0
IDLE_S = 2.0
COLUMNS = (
    "hosts",
    "agents",
    "cut ms",
    "coordinator ms",
    "µs an agent",
    "hosts ms",
    "idle ms/s",
    "messages/s",
    "recovery s",
)

Figures = dict[str, list[float]]
Size = tuple[int, int]


def cpu_s(pids: Sequence[int]) -> float:
    """Of these processes, so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
    return sum([int(each[11]) + int(each[12]) for each in fields]) / ticks


class Fleet:
    """One fleet from its start to its end."""

    def __init__(self, local: LocalFleet, client: CoordinatorClient, agents: int) -> None:
        self._local = local
        self._client = client
        self._agents = agents

    async def until(self, is_so: Callable[[FleetStatus], bool]) -> FleetStatus:
        """Wait for such a status."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(SnaplineError):
                now = await self._client.status()
                if is_so(now):
                    return now
            await asyncio.sleep(0.01)
        raise SystemExit(f"in vain: {self._agents} agents on {len(self._local.hosts)} hosts; {self._local.data_dir}")

    def _pids(self, names: Sequence[str]) -> list[int]:
        return [pid for name in names if (pid := self._local.pid(name)) is not None]

    async def measure(self) -> dict[str, float]:
        """Epochs, then a host that dies."""
        await self.until(lambda now: now.phase == "running" and now.agents == self._agents)
        await self._cut()
        coordinator, hosts = self._pids(self._local.coordinators), self._pids(self._local.hosts)
        turns, before = await self._turns(), (cpu_s(coordinator), cpu_s(hosts))
        await asyncio.sleep(IDLE_S)
        handled = (await self._turns() - turns) / 2 / IDLE_S
        idle = [(now - then) / IDLE_S for now, then in zip((cpu_s(coordinator), cpu_s(hosts)), before, strict=True)]
        before = cpu_s(coordinator), cpu_s(hosts)
        cuts = [await self._cut() for _ in range(EPOCHS)]
        after = cpu_s(coordinator), cpu_s(hosts)
        own, others = [
            max(0.0, now - then - rate * sum(cuts)) for now, then, rate in zip(after, before, idle, strict=True)
        ]
        return {
            "cut ms": statistics.median(cuts) * 1e3,
            "coordinator ms": own / EPOCHS * 1e3,
            "µs an agent": own / EPOCHS / self._agents * 1e6,
            "hosts ms": others / EPOCHS * 1e3,
            "idle ms/s": sum(idle) * 1e3,
            "messages/s": handled,
            "recovery s": await self._recovery(),
        }

    async def _turns(self) -> int:
        """So many have ended, as of the hosts' last heartbeats: one takes a message, the next one sends it on."""
        return sum([host.turns for host in (await self._client.status()).hosts])

    async def _cut(self) -> float:
        start_s = time.perf_counter()
        outcome = await self._client.create_snapshot(LIMIT_S)
        if not outcome.is_complete:
            raise SystemExit(f"no cut of {self._agents} agents: {outcome.reason}")
        return time.perf_counter() - start_s

    async def _recovery(self) -> float:
        before = await self.until(lambda now: now.phase == "running")
        victim = next(host.host for host in reversed(before.hosts) if host.agents)
        start_s = time.perf_counter()
        self._local.kill(victim, is_kept_down=True)
        await self.until(lambda now: now.plan > before.plan and now.phase == "running")
        return time.perf_counter() - start_s


async def one(size: Size, busy: float) -> dict[str, float]:
    """A fleet of `size`, hosts and agents."""
    hosts, agents = size
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = {"agents": str(agents), "busy": str(busy)}
        local = LocalFleet(
            data_dir=folder / "data",
            fleet="benchmarks.scale_fleet:fleet",
            hosts=hosts,
            arguments=arguments,
            on_failure="move",
            environment={"PYTHONPATH": str(ROOT)},
        )
        async with local:
            client = CoordinatorClient(local.address)
            try:
                return await Fleet(local, client, agents).measure()
            finally:
                await client.close()


async def real(options: argparse.Namespace) -> None:
    sizes = [(options.hosts, agents) for agents in options.agents]
    sizes += [(hosts, max(options.agents)) for hosts in options.more_hosts]
    figures: dict[Size, Figures] = {size: {} for size in sizes}
    for _ in range(options.rounds):
        for size in sizes:
            for key, value in (await one(size, options.busy)).items():
                figures[size].setdefault(key, []).append(value)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = [(size, {key: statistics.median(values) for key, values in figures[size].items()}) for size in sizes]
    show(f"{options.hosts} hosts, more and more agents", [row for row in rows[: len(options.agents)]], 1)
    by_hosts = sorted([rows[len(options.agents) - 1], *rows[len(options.agents) :]], key=lambda row: row[0][0])
    show(f"{max(options.agents):,} agents, more and more hosts", by_hosts, 0)


def show(title: str, rows: list[tuple[Size, dict[str, float]]], at: int) -> None:
    """A table; beneath it how each column grows with hosts (`at` 0) or agents (1)."""
    print(f"\n{title}")
    columns = [column for column in COLUMNS[2:] if column in rows[0][1]]
    print("".join([f"{column:>16}" for column in (*COLUMNS[:2], *columns)]))
    for (hosts, agents), found in rows:
        cells = [f"{found[column]:>16.2f}" for column in columns]
        print(f"{hosts:>16,}{agents:>16,}{''.join(cells)}")
    for (small, before), (large, after) in itertools.pairwise(rows):
        step = math.log(large[at] / small[at])
        cells = [
            f"{math.log(max(after[column], 1e-9) / max(before[column], 1e-9)) / step:>16.2f}" for column in columns
        ]
        print(f"{'growth':>16}{f'{small[at]:,} → {large[at]:,}':>16}{''.join(cells)}")


def simulated(sizes: Sequence[int], rounds: int) -> None:
    """The leader core and the state machine alone."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.scale_leader import LargeLeader

    for one_in, talking in ((1, "all"), (10, "every tenth")):
        rows = []
        for hosts in sizes:
            figures: Figures = {}
            for _ in range(rounds):
                for key, value in LargeLeader(hosts, AGENTS_EACH, one_in).measure().items():
                    figures.setdefault(key, []).append(value)
            medians = {key: statistics.median(values) for key, values in figures.items()}
            rows.append(((hosts, hosts * AGENTS_EACH), medians))
        show(f"the coordinator alone, hosts of {AGENTS_EACH} agents, {talking} talking", rows, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--more-hosts", type=int, nargs="*", default=[2, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=float, default=0.0, help="messages a second that each agent handles; 0: few")
    parser.add_argument(
        "--simulated", type=int, nargs="+", metavar="HOSTS", help="the coordinator alone, of so many hosts"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.2f}, {options.rounds} rounds, medians"
    )
    if options.simulated:
        simulated(options.simulated, options.rounds)
    else:
        asyncio.run(real(options))


if __name__ == "__main__":
    main()

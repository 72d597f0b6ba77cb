"""One query on real processes, as a check of the virtual workers: what a turn costs under each protocol, and how soon a killed host's agents are back.

Rounds of all protocols, in turns. In each run a query's input comes at a fixed rate; processor time of all processes is counted over a window of it,
then a host is killed, and at the end the rows must be those of the oracle.
"""

import asyncio
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.checkmate import queries
from benchmarks.checkmate.oracle import expected
from benchmarks.checkmate.queries import DIGESTS, NONE, Seen, streams
from benchmarks.checkmate.virtual import quantile
from benchmarks.snapshot import cpu_s
from tests.integration.running import Running, running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.storage.store.store import Store

PROTOCOLS = (NONE, "chandy-lamport", "uncoordinated", "hmnr")
QUERY, HOSTS, RATE_PER_S, INPUT_S, EVERY_S = "q12", 3, 2_000.0, 7.0, 1.0
EVENTS = round(RATE_PER_S * INPUT_S)
WINDOW_S = 3.0
WARM_S = 1.5


class Run(NamedTuple):
    """`turn_us`: of processor time. `restart_s`: from SIGKILL until the fleet runs again."""

    turn_us: float
    p50_s: float
    restart_s: float


async def run(folder: Path, protocol: str) -> Run:
    """One of them.

    Raises:
        AssertionError: other rows have come out than the oracle says.
    """
    arguments = {
        "query": QUERY, "protocol": protocol, "workers": str(HOSTS), "rate": repr(RATE_PER_S), "events": str(EVENTS), "every": repr(EVERY_S)
    }  # fmt: skip
    async with running(folder, "benchmarks.checkmate.queries:fleet", arguments, hosts=HOSTS) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        await asyncio.sleep(WARM_S)
        turn_us = await _window(fleet)
        plan = (await fleet.client.status()).plan
        killed_s = time.monotonic()
        fleet.local.kill("h2")
        await fleet.until(lambda now: now.plan > plan and now.phase == "running")
        restart_s = time.monotonic() - killed_s
        await (fleet.end_by_hand() if protocol == NONE else fleet.end())
    store = Store.open(folder / "store")
    states = load_cut(store, store.epochs()[-1], queries.fleet(**arguments)).states
    sinks = [state for state in states.values() if isinstance(state, Seen)]
    result = sum(x.rows for x in sinks), sum(x.digests for x in sinks) % DIGESTS
    assert result == expected(QUERY, streams(QUERY, HOSTS, RATE_PER_S, EVENTS, 0.0, 0.05)), f"{protocol}: {result}"
    latencies: dict[int, int] = {}
    for state in sinks:
        for number, count in state.latencies.items():
            latencies[number] = latencies.get(number, 0) + count
    return Run(turn_us, quantile(latencies, 0.5), restart_s)


async def _window(fleet: Running) -> float:
    """Microseconds of processor time for a turn; hosts say with each heartbeat how many they have taken, so a window is whole heartbeats."""
    pids = [fleet.pid(name) for name in ("coordinator", *fleet.local.hosts)]
    cpu_before_s, turns_before = cpu_s(pids), await _turns(fleet)
    await asyncio.sleep(WINDOW_S)
    return (cpu_s(pids) - cpu_before_s) / (await _turns(fleet) - turns_before) * 1e6


async def _turns(fleet: Running) -> int:
    return sum(host.turns for host in (await fleet.client.status()).hosts)


async def measure(rounds: int) -> dict[str, list[Run]]:
    """Protocol → its runs."""
    runs: dict[str, list[Run]] = {protocol: [] for protocol in PROTOCOLS}
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        for number in range(rounds):
            for protocol in PROTOCOLS if number % 2 == 0 else PROTOCOLS[::-1]:
                runs[protocol].append(await run(Path(name) / f"{protocol}-{number}", protocol))
    return runs


def main(rounds: int) -> None:
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; {QUERY} on {HOSTS} hosts, "
        f"{RATE_PER_S:,.0f} events/s, a checkpoint every {EVERY_S:g} s, {rounds} rounds",
        flush=True,
    )
    print(f"{'protocol':<15}{'CPU µs a turn':>16}{'÷ none, by round':>28}{'p50 s':>8}{'restart s':>11}")
    runs_of = asyncio.run(measure(rounds))
    for protocol, runs in runs_of.items():
        ratios = [one.turn_us / bare.turn_us for one, bare in zip(runs, runs_of[NONE], strict=True)]
        ratio_text = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        turn_us, p50_s, restart_s = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{protocol:<15}{turn_us:>16.0f}{ratio_text:>28}{p50_s:>8.3f}{restart_s:>11.2f}")

"""What snapshots do to latency: how long an agent waits for the answer of one on the other host, with ten snapshots a second and with none.

    .venv/bin/python -m benchmarks.latency [--pairs 10] [--window 3] [--per-second 10] [--rates 0 12000]

Two hosts; twenty agents on each ask one of the other ten times a second, beside agents that send each other `rate` messages a second in all. Windows
with and without snapshots alternate in one run. Times are from the turn that asks to the turn that takes the answer: two messages, four turns' queues.
The ratio is that of each pair's 99th percentiles.
"""

import argparse
import asyncio
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.latency_agents import RECORD
from benchmarks.snapshot import cpu_s, snapshots, until_running

from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.sim.search.compare import percentile

SETTLE_S = 0.3
"""Left out behind each change: what was asked before it."""


def latencies_ms(folder: Path, since_ns: int, until_ns: int) -> list[float]:
    """Of the questions asked in between, sorted."""
    found: list[float] = []
    for path in folder.glob("*.latencies"):
        data = path.read_bytes()
        whole = data[: len(data) // RECORD.size * RECORD.size]
        found += [took_ns / 1e6 for asked_ns, took_ns in RECORD.iter_unpack(whole) if since_ns <= asked_ns < until_ns]
    return sorted(found)


async def measure(rate: int, pairs: int, seconds: float, per_second: float) -> None:
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        folder = Path(name)
        fleet = LocalFleet(
            data_dir=folder / "run",
            fleet="benchmarks.latency_agents:fleet",
            hosts=2,
            arguments={"folder": str(folder), "rate": str(rate)},
        )
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            await until_running(client)
            await asyncio.sleep(2.0)
            await client.create_snapshot(30.0)
            pids = [pid for each in fleet.hosts if (pid := fleet.pid(each)) is not None]
            chance = random.Random(time.time_ns())
            found: dict[bool, list[list[float]]] = {False: [], True: []}
            busy: list[float] = []
            complete = 0
            for _ in range(pairs):
                for is_on in chance.sample([True, False], 2):
                    since_ns, before_s = time.monotonic_ns() + int(SETTLE_S * 1e9), cpu_s(pids)
                    if is_on:
                        complete += (await snapshots(client, time.monotonic() + seconds, per_second))[0]
                    else:
                        await asyncio.sleep(seconds)
                        busy.append((cpu_s(pids) - before_s) / seconds / len(pids))
                    until_ns = time.monotonic_ns()
                    await asyncio.sleep(SETTLE_S)
                    found[is_on].append(latencies_ms(folder, since_ns, until_ns))
            await client.close()
    _show(rate, found, statistics.median(busy), complete / pairs / seconds)


def _show(rate: int, found: dict[bool, list[list[float]]], busy: float, complete: float) -> None:
    print(
        f"\n{rate:,} other messages a second; a host's processor {busy:.0%} busy without snapshots; {complete:.1f} snapshots a second complete"
    )
    print(f"  {'':<12}{'p50':>10}{'p90':>10}{'p99':>10}{'asked':>10}")
    for is_on, label in ((False, "without"), (True, "with")):
        whole = sorted(value for window in found[is_on] for value in window)
        shown = "".join(f"{percentile(whole, share):8.2f}ms" for share in (0.5, 0.9, 0.99))
        print(f"  {label:<12}{shown}{len(whole):>10,}")
    for share in (0.5, 0.99):
        ratios = [
            percentile(on, share) / percentile(off, share) for on, off in zip(found[True], found[False], strict=True)
        ]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(
            f"  p{share * 100:.0f} with ÷ without, by pair: {statistics.median(ratios):.2f} ({quartiles[0]:.2f} to {quartiles[2]:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--window", type=float, default=3.0, help="seconds")
    parser.add_argument("--per-second", type=float, default=10.0, help="snapshots")
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 12_000], help="other messages a second")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, 2 hosts")
    for rate in options.rates:
        asyncio.run(measure(rate, options.pairs, options.window, options.per_second))


if __name__ == "__main__":
    main()

"""What metrics cost: CPU per handled message while every process of a fleet is asked for them each second, against nobody asking.

    .venv/bin/python -m benchmarks.observe [--pairs 30] [--window 2]

The fleet of `snapshot.py`: 100 agents on two hosts that message without pause, here with a snapshot every second, and `--metrics` on every
process. Windows in which all are scraped alternate with windows in which nobody asks, in random order in one run. CPU is that of the
coordinator and of both hosts, not of who asks. What is left out is what `--metrics` costs without being asked: two readings of the clock
for each agent and epoch. The interval is that of the median, of order statistics, at 95 %.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from benchmarks.snapshot import cpu_s, handled, until_running

from snapline.channels.security import Security
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.deploy.data_directory import METRICS_FOLDER
from snapline.deploy.local import LocalFleet

PERIOD_S = 1.0


def scrape(address: str) -> int:
    """Bytes of one answer."""
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return len(answer.read())


async def asked(addresses: list[str], until_s: float) -> list[int]:
    """Ask all of them every second."""
    sizes = []
    while time.monotonic() < until_s:
        sizes += await asyncio.gather(*(asyncio.to_thread(scrape, address) for address in addresses))
        await asyncio.sleep(max(0.0, min(PERIOD_S, until_s - time.monotonic())))
    return sizes


async def window(client: CoordinatorClient, pids: list[int], counts: Path, seconds: float, asks: list[str]) -> float:
    """CPU microseconds per message in one window."""
    start_s, cpu, messages = time.monotonic(), cpu_s(pids), handled(counts)
    asking = asyncio.create_task(asked(asks, start_s + seconds))
    while time.monotonic() < start_s + seconds - 0.5:
        await client.create_snapshot(30.0)
        await asyncio.sleep(max(0.0, min(PERIOD_S, start_s + seconds - time.monotonic())))
    await asking
    await asyncio.sleep(max(0.0, start_s + seconds - time.monotonic()))
    return (cpu_s(pids) - cpu) / (handled(counts) - messages) * 1e6


def interval(values: list[float]) -> tuple[float, float]:
    """Of their median, at 95 %."""
    ordered, count = sorted(values), len(values)
    rank = max(0, int(count / 2 - 0.98 * count**0.5))
    return ordered[rank], ordered[count - 1 - rank]


async def measure(pairs: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        folder = Path(name)
        counts = folder / "counts"
        counts.mkdir()
        fleet = LocalFleet(
            data_dir=folder / "run",
            fleet="benchmarks.snapshot_agents:fleet",
            hosts=2,
            arguments={"folder": str(counts)},
            metrics="127.0.0.1:0",
        )
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            await until_running(client)
            await asyncio.sleep(2.0)
            files = sorted((folder / "run" / METRICS_FOLDER).glob("*.json"))
            addresses = [json.loads(file.read_text())[0]["targets"][0] for file in files]
            pids = [pid for each in ("coordinator", *fleet.hosts) if (pid := fleet.pid(each)) is not None]
            await _pairs(client, pids, counts, pairs, seconds, addresses)
            await client.close()


async def _pairs(
    client: CoordinatorClient, pids: list[int], counts: Path, pairs: int, seconds: float, addresses: list[str]
) -> None:
    chance = random.Random(time.time_ns())
    ratios = []
    for _ in range(pairs):
        found = {}
        for is_asked in chance.sample([True, False], 2):
            found[is_asked] = await window(client, pids, counts, seconds, addresses if is_asked else [])
        ratios.append(found[True] / found[False])
        print(f"  {found[False]:6.2f} µs → {found[True]:6.2f} µs   × {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    print(
        f"\n{len(addresses)} processes asked once a second: × {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    asyncio.run(measure(options.pairs, options.window))


if __name__ == "__main__":
    main()

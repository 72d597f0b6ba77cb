"""What viewers cost a fleet: CPU of its coordinator while three look at it, against none, in the same running fleet.

    .venv/bin/python -m benchmarks.view_load [--pairs 20] [--window 10] [--viewers 3] [--period 1]

The fleet of `snapshot.py`, 100 agents on two hosts, with a snapshot by hand every `--period` seconds, and its view as a process of its own. Slices in which
three viewers read the Fleet screen's stream alternate with slices in which nobody does, in random order in one run. CPU is user plus system time of the
coordinator's process alone, of one core. The interval is that of the median of the differences, of order statistics, at 95 %.
"""

import argparse
import asyncio
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.observe import interval
from benchmarks.snapshot import until_running
from benchmarks.view import look

from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security


def cpu_s(pid: int) -> float:
    """User plus system seconds of this process so far, all threads, to the microsecond: /proc counts hundredths of a second."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


async def snapshots(client: CoordinatorClient, until_s: float, period_s: float) -> int:
    """Take one every period; returns how many."""
    count = 0
    while time.monotonic() < until_s - period_s / 2:
        count += (await client.create_snapshot(30.0)).is_complete
        await asyncio.sleep(max(0.0, min(period_s, until_s - time.monotonic())))
    return count


async def share(
    client: CoordinatorClient, pid: int, address: str, *, seconds: float, viewers: int, period_s: float
) -> tuple[float, int]:
    """Of a core, that the coordinator takes in one slice; and the bytes that viewers were sent."""
    sizes: list[int] = []
    begun_s, before_s = time.monotonic(), cpu_s(pid)
    looks = [look(address, begun_s + seconds, sizes) for _ in range(viewers)]
    await asyncio.gather(snapshots(client, begun_s + seconds, period_s), *looks)
    await asyncio.sleep(max(0.0, begun_s + seconds - time.monotonic()))
    return (cpu_s(pid) - before_s) / (time.monotonic() - begun_s), sum(sizes)


async def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        folder = Path(name)
        counts, data_dir = folder / "counts", folder / "run"
        counts.mkdir()
        arguments = {"folder": str(counts), "tokens": "1"}
        fleet = LocalFleet(data_dir=data_dir, fleet="benchmarks.snapshot_agents:fleet", hosts=2, arguments=arguments)
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            await until_running(client)
            pid = fleet.pid("coordinator")
            assert pid is not None
            command = [sys.executable, "-m", "snapline", "ui", "serve", "--data-dir", str(data_dir)]
            view = await asyncio.create_subprocess_exec(
                *command, "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE
            )
            try:
                assert view.stdout is not None
                address = (await view.stdout.readline()).decode().strip()
                await _pairs(client, pid, address, options)
            finally:
                view.terminate()
                await view.wait()
            await client.close()


async def _pairs(client: CoordinatorClient, pid: int, address: str, options: argparse.Namespace) -> None:
    viewers, pairs = options.viewers, options.pairs
    chance = random.Random(time.time_ns())
    without, more = [], []
    for _ in range(pairs):
        slices = {}
        for count in chance.sample([0, viewers], 2):
            slices[count], sent = await share(
                client, pid, address, seconds=options.window, viewers=count, period_s=options.period
            )
            assert bool(sent) == bool(count), "viewers see something"
        without.append(100 * slices[0])
        more.append(100 * (slices[viewers] - slices[0]))
        print(f"  {without[-1]:6.2f} % → {without[-1] + more[-1]:6.2f} %   {more[-1]:+.2f}", flush=True)
    low, high = interval(more)
    base = statistics.median(without)
    print(f"\nthe coordinator without viewers: median {base:.2f} % of a core")
    print(f"with {viewers}: {statistics.median(more):+.2f} points ({low:+.2f} to {high:+.2f}, 95 %), n = {pairs}")
    ratios = [1 + gain / alone for gain, alone in zip(more, without, strict=True)]
    low, high = interval(ratios)
    print(f"which is × {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--window", type=float, default=10.0, help="seconds")
    parser.add_argument("--viewers", type=int, default=3)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two snapshots")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    asyncio.run(measure(options))
    print(f"load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()

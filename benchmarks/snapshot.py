"""What checkpoints cost: CPU per handled message with so many snapshots a second, against none, in the same running fleet.

    .venv/bin/python benchmarks/snapshot.py [--pairs 30] [--window 2] [--per-second 10]

100 agents on two hosts, each with eight channels out, messaging without pause. Windows with and without snapshots
alternate in random order in one run, so that the machine's drift falls on both alike. CPU is user plus system time of
the coordinator and of both hosts, all threads; messages are counted in the handlers. Ratios are per pair of windows.

With `--tokens 0` the fleet does nothing else: printed is what one epoch costs each process, its loop (the main thread), gRPC's threads and the
others, which write files and keep the log; what they cost without snapshots is taken off.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import statistics
import struct
import tempfile
import time
from pathlib import Path

from snapline.deploy.local import LocalFleet
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: list[int]) -> float:
    """User plus system seconds of these processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def thread_ms(pid: int) -> dict[str, float]:
    """CPU milliseconds of a process so far: of its loop, of gRPC's threads, and of the others."""
    times_ms = dict.fromkeys(("loop", "gRPC", "others"), 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        of_grpc = (task / "comm").read_text().startswith(("event_engine", "grpc", "iomgr", "timer"))
        kind = "loop" if int(task.name) == pid else "gRPC" if of_grpc else "others"
        times_ms[kind] += int((task / "schedstat").read_text().split()[0]) / 1e6
    return times_ms


def handled(folder: Path) -> int:
    return sum(struct.unpack("Q", path.read_bytes())[0] for path in folder.glob("*.count"))


async def snapshots(client: CoordinatorClient, until_s: float, per_second: float) -> tuple[int, int]:
    """Ask for snapshots at that pace; returns how many were complete and how many not."""
    pending = []
    due_s = time.monotonic()
    while due_s < until_s:
        pending.append(asyncio.create_task(client.create_snapshot(10.0)))
        due_s += 1 / per_second
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    replies = await asyncio.gather(*pending, return_exceptions=True)
    complete = sum(not isinstance(reply, BaseException) and reply.is_complete for reply in replies)
    return complete, len(replies) - complete


async def window(
    client: CoordinatorClient, pids: list[int], counts: Path, seconds: float, *, per_second: float
) -> tuple[float, float, int, int]:
    """CPU microseconds per message and messages per second in one window, snapshots complete and not. `per_second`: asked for; 0: none."""
    start_s, cpu, messages = time.monotonic(), cpu_s(pids), handled(counts)
    complete = failed = 0
    if per_second:
        complete, failed = await snapshots(client, start_s + seconds, per_second)
    await asyncio.sleep(max(0.0, start_s + seconds - time.monotonic()))
    done = handled(counts) - messages
    elapsed_s = time.monotonic() - start_s
    return (cpu_s(pids) - cpu) / done * 1e6, done / elapsed_s, complete, failed


async def measure(pairs: int, seconds: float, agents: int, tokens: int, per_second: float) -> None:
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name:
        folder = Path(name)
        counts = folder / "counts"
        counts.mkdir()
        fleet = LocalFleet(
            data_dir=folder / "run",
            fleet="benchmarks.snapshot_agents:fleet",
            hosts=2,
            arguments={"folder": str(counts), "agents": str(agents), "tokens": str(tokens)},
        )
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            await until_running(client)
            await asyncio.sleep(2.0)
            await client.create_snapshot(30.0)
            pids = {each: pid for each in ("coordinator", *fleet.hosts) if (pid := fleet.pid(each)) is not None}
            if tokens:
                await _pairs(client, list(pids.values()), counts, pairs, seconds, per_second)
            else:
                await _by_thread(client, pids, pairs * seconds, per_second)
            await client.close()


async def until_running(client: CoordinatorClient) -> None:
    """Wait for the fleet's first turns, for a minute."""
    for _ in range(600):
        with contextlib.suppress(SnaplineError):
            if (await client.status()).phase == "running":
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the fleet does not run after a minute: see the logs of its hosts")


async def _pairs(
    client: CoordinatorClient, pids: list[int], counts: Path, pairs: int, seconds: float, per_second: float
) -> None:
    chance = random.Random(time.time_ns())
    ratios: list[float] = []
    with_us: list[float] = []
    without_us: list[float] = []
    complete = failed = 0
    for _ in range(pairs):
        figures: dict[bool, float] = {}
        rate = 0.0
        for is_on in chance.sample([True, False], 2):
            figures[is_on], rate, done, lost = await window(
                client, pids, counts, seconds, per_second=per_second if is_on else 0
            )
            complete, failed = complete + done, failed + lost
        ratios.append(figures[True] / figures[False])
        with_us.append(figures[True])
        without_us.append(figures[False])
        print(
            f"  {figures[False]:6.2f} µs → {figures[True]:6.2f} µs   × {ratios[-1]:.3f}   {rate:,.0f} messages/s",
            flush=True,
        )
    print(f"\nCPU per message without snapshots: median {statistics.median(without_us):.2f} µs")
    print(f"CPU per message with {per_second:g} a second: median {statistics.median(with_us):.2f} µs")
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    print(f"ratio per pair: median {statistics.median(ratios):.3f}, quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}")
    seconds_on = pairs * seconds
    print(f"snapshots: {complete} complete ({complete / seconds_on:.1f} a second), {failed} not")


async def _by_thread(client: CoordinatorClient, pids: dict[str, int], seconds: float, per_second: float) -> None:
    await snapshots(client, time.monotonic() + 2.0, per_second)  # so that old snapshots are deleted
    at_first = {name: thread_ms(pid) for name, pid in pids.items()}
    await asyncio.sleep(seconds)
    idle = {name: thread_ms(pid) for name, pid in pids.items()}
    complete, failed = await snapshots(client, time.monotonic() + seconds, per_second)
    for name, pid in pids.items():
        spent = {
            kind: (now - 2 * idle[name][kind] + at_first[name][kind]) / complete for kind, now in thread_ms(pid).items()
        }
        print(f"{name:12}" + "".join(f"  {kind} {ms:5.2f} ms" for kind, ms in spent.items()), flush=True)
    print(f"snapshots: {complete} complete ({complete / seconds:.1f} a second), {failed} not")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    parser.add_argument("--per-second", type=float, default=10.0, help="snapshots")
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=4, help="messages under way per agent; 0: CPU by thread")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.2f}, {options.agents} agents, 2 hosts"
    )
    asyncio.run(measure(options.pairs, options.window, options.agents, options.tokens, options.per_second))


if __name__ == "__main__":
    main()

"""What metrics and spans cost: CPU per handled message with them, against without.

    .venv/bin/python -m benchmarks.observe [--pairs 30] [--window 2] [--spans]

The fleet of `snapshot.py`: 100 agents on two hosts that message without pause, here with a snapshot every second, and `--metrics` on every
process. Windows in which all are scraped alternate with windows in which nobody asks, in random order in one run. CPU is that of the
coordinator and of both hosts, not of who asks. What is left out is what `--metrics` costs without being asked: two readings of the clock
for each agent and epoch. The interval is that of the median, of order statistics, at 95 %.

With `--spans`: one fleet with `--otel 1`, in which a token rests now and then: a timer sends it on, a trace begins there, and goes on for 255
turns. Windows in which so many rest that one message in a hundred is followed alternate with windows in which none does; before each it is
waited until the traces of the one before have ended. A collector in this process counts the spans. What is left out is what `--otel` costs a
message that nobody follows: `benchmarks/turns.py` has that.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from benchmarks.snapshot import cpu_s, handled, until_running
from benchmarks.snapshot_agents import RESTING

from snapline.deploy.data_directory import METRICS_FOLDER
from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

PERIOD_S = 1.0

RESTS_EVERY = 25_500
"""Every N-th turn of a host begins a trace of 255 turns, so that a hundredth of all turns are traced."""

SETTLE_S = 4.0
"""Wait for traces to end: a token makes some hundred turns a second."""


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


# -- spans ----------------------------------------------------------------------------------------------------------------


class Counted:
    """A collector that counts the spans of turns."""

    def __init__(self) -> None:
        self.turns = 0
        counted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # keeps connections, as collectors do

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                counted.turns += body.count(b"turn Token") + body.count(b"turn Later")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def counting() -> Iterator[Counted]:
    counted = Counted()
    thread = threading.Thread(target=counted.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        counted.server.shutdown()
        thread.join()


async def measure_spans(pairs: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="snapline-bench-") as name, counting() as counted:
        folder = Path(name)
        counts = folder / "counts"
        counts.mkdir()
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{counted.server.server_port}"
        fleet = LocalFleet(
            data_dir=folder / "run",
            fleet="benchmarks.snapshot_agents:fleet",
            hosts=2,
            arguments={"folder": str(counts), "tokens": "1", "rests": str(RESTS_EVERY)},
            log=("--otel", "1"),
        )
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            await until_running(client)
            await asyncio.sleep(2.0)
            pids = [pid for each in ("coordinator", *fleet.hosts) if (pid := fleet.pid(each)) is not None]
            await _pairs_of_spans(client, pids, counts, counted, pairs, seconds)
            await client.close()


async def _pairs_of_spans(
    client: CoordinatorClient, pids: list[int], counts: Path, counted: Counted, pairs: int, seconds: float
) -> None:
    chance = random.Random(time.time_ns())
    ratios, spans, messages = [], 0, 0
    for _ in range(pairs):
        found = {}
        for is_followed in chance.sample([True, False], 2):
            (counts / RESTING).touch() if is_followed else (counts / RESTING).unlink(missing_ok=True)
            await asyncio.sleep(SETTLE_S)
            before = counted.turns, handled(counts)
            found[is_followed] = await window(client, pids, counts, seconds, [])
            if is_followed:
                spans, messages = spans + counted.turns - before[0], messages + handled(counts) - before[1]
        ratios.append(found[True] / found[False])
        print(f"  {found[False]:6.2f} µs → {found[True]:6.2f} µs   × {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    print(
        f"\n{spans / messages:.2%} of the turns followed: × {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    parser.add_argument("--spans", action="store_true", help="of spans, not of metrics")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    if options.spans:
        asyncio.run(measure_spans(options.pairs, options.window))
    else:
        asyncio.run(measure(options.pairs, options.window))


if __name__ == "__main__":
    main()

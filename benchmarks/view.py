"""What the view costs whoever looks: a fleet of 10,000 agents on 100 hosts that changes each second, in Chromium.

    .venv/bin/python -m benchmarks.view [--agents 10000] [--hosts 100] [--loads 20] [--minutes 2]

Needs Chromium and playwright, as `make test-ui` fetches them. The fleet is simulated (`tests/view/simulated.py`): what hosts tell is new
each second, for each of them. Told are, each with its median and its 95th percentile:

    first paint     of a page that is opened in a new profile: the first contentful paint, and the table's last row, after navigation began
    event → DOM     from the moment at which the browser has an event to the end of the script that changes the page,
                    and to the end of the next frame, when it is on the screen
    memory          the page's JavaScript heap once a minute, as it is and after a forced collection; its DOM nodes and listeners
    the view        CPU of its process with nobody, one viewer and three, bytes of an event, and its resident memory
"""

import argparse
import asyncio
import contextlib
import importlib
import os
import platform
import random
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.snapshot import cpu_s
from tests.view.simulated import SimulatedFleet

from snapline.messages.status import FleetStatus

Page = Any  # playwright is optional

ROWS = 100
"""Agents in the first table (`fleet_page.ROWS_MAX`)."""

IN_PAGE = """
window.changes = [];
window.EventSource = class extends EventSource {
  set onmessage(handle) {
    super.onmessage = (event) => {
      const begun = performance.now(), late = begun - event.timeStamp;
      handle(event);
      const done = performance.now();
      requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = () => window.changes.push([late + done - begun, late + performance.now() - begun, event.data.length]);
        channel.port2.postMessage(0);
      });
    };
  }
};
"""
"""Installed before the view's own script, which is not changed. A message posted by a frame's callback arrives after that frame."""

LOADED = """async (rows) => {
  const isThere = () => document.readyState === "complete" && document.querySelectorAll("#found tbody tr").length === rows;
  while (!isThere()) await new Promise(requestAnimationFrame);
  const there = performance.getEntriesByType("navigation")[0].domContentLoadedEventStart;
  for (;;) {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    if (paint) return [paint.startTime, there, performance.getEntriesByType("navigation")[0].decodedBodySize];
    await new Promise(requestAnimationFrame);
  }
}"""


class BusyFleet(SimulatedFleet):
    """Fleet whose hosts report new figures at each request."""

    def __init__(self, hosts: int, agents: int) -> None:
        super().__init__(hosts, agents)
        self._chance = random.Random(1)

    async def status(self) -> FleetStatus:
        self.turns += self._chance.randrange(500, 1500)
        for name in self.names:
            turns = self.turns + self._chance.randrange(400)
            self.figures[name] = {"turns": turns, "parked": self._chance.randrange(9), "inputs_waiting": turns % 7}
        self.asked.clear()
        return await super().status()


async def serve(hosts: int, agents: int) -> None:
    """The view before such a fleet, until it is ended."""
    from snapline.gateway.http_server import serve_app
    from snapline.view.view_app import View

    view = View(BusyFleet(hosts, agents))
    try:
        await serve_app(view.app(), ("127.0.0.1", 0))
    finally:
        await view.close()


@contextlib.asynccontextmanager
async def served(hosts: int, agents: int) -> AsyncIterator[tuple[int, str]]:
    """Start a process that serves the fleet; yield its id and its address."""
    command = [sys.executable, "-m", "benchmarks.view", "--serve", "--hosts", str(hosts), "--agents", str(agents)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process.pid, (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """A browser."""
    async with importlib.import_module("playwright.async_api").async_playwright() as player:
        browser = await player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


def told(name: str, values: Sequence[float], unit: str, limit: float | None = None) -> None:
    """One line: median, 95th percentile, spread."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    aim = "" if limit is None else f"   aim {limit:g}: {'met' if p95 <= limit else 'MISSED'}"
    low, high = ordered[0], ordered[-1]
    print(
        f"{name:34} median {statistics.median(ordered):8.1f}  p95 {p95:8.1f}  ({low:.1f} to {high:.1f}) {unit}, n = {len(ordered)}{aim}",
        flush=True,
    )


async def first_paints(browser: Any, address: str, loads: int) -> None:
    """Open the page so often, each time in a profile that has nothing of it."""
    samples = []
    for _ in range(loads):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(address, wait_until="commit")
        samples.append(await page.evaluate(LOADED, ROWS))
        await context.close()
        await asyncio.sleep(random.uniform(0.0, 1.0))  # at a random moment of the view's second
    told("first contentful paint", [each[0] for each in samples], "ms", 1000)
    told("the table is there", [each[1] for each in samples], "ms", 1000)
    told("bytes of the page", [each[2] / 1024 for each in samples], "KiB")


async def watched(browser: Any, address: str, minutes: float) -> None:
    """One page that stays open."""
    page = await (await browser.new_context()).new_page()
    await page.add_init_script(IN_PAGE)
    await page.goto(address)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    started_s, heaps = time.monotonic(), []
    print("minute  heap MB  collected MB   nodes  listeners")
    while True:
        passed_s = time.monotonic() - started_s
        heap = (await figures(session))["JSHeapUsedSize"]
        await session.send("HeapProfiler.collectGarbage")
        kept = await figures(session)
        heaps.append((heap, kept["JSHeapUsedSize"]))
        numbers = f"{int(kept['Nodes']):7}  {int(kept['JSEventListeners']):9}"
        print(f"{passed_s / 60:6.1f}  {heap / 1e6:7.1f}  {heaps[-1][1] / 1e6:12.1f} {numbers}", flush=True)
        if passed_s >= 60 * minutes:
            break
        await asyncio.sleep(min(60.0, max(0.1, 60 * minutes - passed_s)))
    changes = await page.evaluate("window.changes")
    told("event → DOM changed", [each[0] for each in changes], "ms", 100)
    told("event → on the screen", [each[1] for each in changes], "ms")
    told("bytes of an event", [each[2] / 1024 for each in changes], "KiB")
    told("heap before a collection", [each[0] / 1e6 for each in heaps], "MB", 100)
    told("heap after a collection", [each[1] / 1e6 for each in heaps], "MB", 100)
    await page.context.close()


async def figures(session: Any) -> dict[str, float]:
    """What Chromium says of the page."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return {each["name"]: each["value"] for each in metrics}


async def look(address: str, until_s: float, sizes: list[int]) -> None:
    """A viewer that reads the stream, and draws nothing."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /events/fleet HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(until_s - time.monotonic()):
            while data := await reader.read(1 << 20):
                sizes.append(len(data))
    writer.close()


async def views_cost(pid: int, address: str, seconds: float) -> None:
    """CPU of the view's process, of one core."""
    for viewers in (0, 1, 3):
        sizes: list[int] = []
        begun_s, before_s = time.monotonic(), cpu_s([pid])
        looks = [look(address, begun_s + seconds, sizes) for _ in range(viewers)]
        await asyncio.gather(asyncio.sleep(seconds), *looks)
        passed_s = time.monotonic() - begun_s
        share, rate = (cpu_s([pid]) - before_s) / passed_s, sum(sizes) / passed_s
        print(
            f"the view with {viewers} viewers:  {100 * share:5.1f} % of a core, {rate / 1024:8.1f} KiB/s sent",
            flush=True,
        )
    resident = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    print(f"the view's memory: {int(resident.split()[1]) / 1024:.0f} MiB", flush=True)


async def measure(hosts: int, agents: int, loads: int, minutes: float) -> None:
    async with served(hosts, agents) as (pid, address), chromium() as browser:
        print(f"Chromium {browser.version}, {agents:,} agents on {hosts} hosts")
        await views_cost(pid, address, 20.0)
        await first_paints(browser, address, loads)
        await watched(browser, address, minutes)
        await views_cost(pid, address, 20.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.hosts, options.agents))
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    asyncio.run(measure(options.hosts, options.agents, options.loads, options.minutes))
    print(f"load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()

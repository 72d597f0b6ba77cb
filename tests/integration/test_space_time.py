"""The screen Space-time before a fleet of real processes: what its hosts do is seen, markers among it, and downloads are of that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.diagrams.test_scene import elements
from tests.diagrams.test_space_time import check_shiviz, shiviz_events
from tests.integration.processes import LIMIT_S, start
from tests.integration.running import running
from tests.view.parsed import parse

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[httpx.AsyncClient]:
    """`snapline ui serve` as a process."""
    view = await start("ui", "serve", *arguments, "--listen", "127.0.0.1:0")
    try:
        assert view.stdout is not None
        address = (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
        async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S, follow_redirects=True) as http:
            yield http
    finally:
        view.terminate()
        assert await asyncio.wait_for(view.wait(), LIMIT_S) == 0


def told_in(page: str) -> list[str]:
    """The events in words."""
    return [row.find("a")[0].text for row in parse(page).find("ol", class_="events")[0].child("li")]


async def until_told(http: httpx.AsyncClient, *kinds: str) -> str:
    """Look, as a browser without scripts does, until there are events of all these kinds."""
    page = ""
    async with asyncio.timeout(LIMIT_S):
        while True:
            page = (await http.get("/space-time?count=480")).text
            told = told_in(page)
            if all(any(kind in words for words in told) for kind in kinds):
                return page
            await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_what_a_fleet_does_is_seen_while_somebody_looks(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    arguments = {"stop": str(stop), "period": "0.1"}  # in each look there are markers
    async with running(data_dir, "paced_bank:fleet", arguments, hosts=2) as fleet:
        await fleet.until_epochs(1)
        async with serving("--data-dir", str(data_dir)) as http:
            assert told_in((await http.get("/space-time")).text), "the first look shows something"
            page = await until_told(
                http, "sends message", "receives message", "takes checkpoint", "sends the marker", "receives the marker"
            )
            links = {a.text.strip(): a.attributes["href"] for a in parse(page).find("nav", class_="moves")[0].find("a")}
            svg, log = (await http.get(links["SVG"])).text, (await http.get(links["ShiViz"])).text
            states = {arrow.get("data-state") for arrow in elements(svg, "message")}
            assert "marker" in states and len(states) > 1
            events = shiviz_events(log)
            check_shiviz(events)
            assert [words for _, _, words in events][-len(told_in(page)) :] == told_in(page)
            assert {"host:h1", "host:h2"} <= {host for host, _, _ in events}
        stop.touch()
        await fleet.end()

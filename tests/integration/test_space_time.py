"""The screen Space-time before a fleet of real processes: what its hosts do is seen, markers among it, and hosts trace only while somebody looks."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from tests.integration.processes import LIMIT_S
from tests.integration.running import running
from tests.pictures.test_scene import elements
from tests.pictures.test_space_time import check_shiviz, shiviz_events
from tests.view.parsed import parse

from snapline.agent_runtime.host.recent_trace import LOOK_S

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[httpx.AsyncClient]:
    """`snapline ui serve` as a process."""
    command = [sys.executable, "-m", "snapline", "ui", "serve", *arguments, "--listen", "127.0.0.1:0"]
    view = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
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


def age_s(page: str) -> float:
    """Of the newest event of a page of now."""
    told = parse(page).find("ol", class_="events")[0].child("li")[-1].find("span")[0].text
    hours, minutes, seconds = told.split(":")
    now = datetime.now(UTC)
    then_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    return (now.hour * 3600 + now.minute * 60 + now.second + now.microsecond / 1e6 - then_s) % 86_400


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


async def test_what_a_fleet_does_is_seen_while_somebody_looks(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    arguments = {"stop": str(stop), "period": "0.5"}
    async with running(data_dir, "paced_bank:fleet", arguments, hosts=2) as fleet:
        await fleet.until_epochs(1)
        async with serving("--data-dir", str(data_dir)) as http:
            assert "Nothing has happened yet" in (await http.get("/space-time")).text, "nobody had looked before"
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
            assert age_s(page) < LOOK_S
            await asyncio.sleep(LOOK_S + 1)
            again = (await http.get("/space-time?count=480")).text
            assert age_s(again) > LOOK_S, "while nobody looked nothing was traced: there is only what was known before"
            await until_told(http, "sends the marker")
        stop.touch()
        await fleet.end()

"""The view as a process of its own, before a fleet of real processes: its page follows while a host is killed."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.processes import LIMIT_S, snapline, start
from tests.integration.running import running
from tests.view.parsed import parse, value_in

from snapline.deploy.data_directory import STORE_FOLDER
from snapline.storage.store.store import Holds, Store

pytestmark = pytest.mark.timeout(120)


async def test_the_page_follows_a_host_that_is_killed(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop)}) as fleet:
        await fleet.until_epochs(1)
        view = await start("ui", "serve", "--data-dir", data_dir, "--listen", "127.0.0.1:0")
        try:
            assert view.stdout is not None
            address = (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
            async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S) as http:
                page = (await http.get("/")).text
                assert page.count('"pill good">alive<') == 3 + 9 and "paced-bank" in page
                watching = asyncio.create_task(rows_until(http, "host-h2", '<td class="number">2</td>'))
                await fleet.recovered_from("h2")
                assert await asyncio.wait_for(watching, LIMIT_S), "its second start"
                described = (await http.get("/agents/teller-1")).text
                shown = await snapline("top", "--once", "--data-dir", data_dir)
                assert shown.code == 0 and "9 agents on 3 of 3 hosts" in shown.out and "paced-bank" in shown.out
                assert "paced_bank:PacedTeller" in described and "incarnation 2" in described
        finally:
            view.terminate()
            code = await asyncio.wait_for(view.wait(), LIMIT_S)
        stop.touch()
        await fleet.end()
    assert code == 0


async def rows_until(http: httpx.AsyncClient, id: str, words: str) -> bool:
    """Follow the page until an element of it has these words."""
    async with http.stream("GET", "/events/fleet") as stream:
        async for line in stream.aiter_lines():
            changed = dict(json.loads(line.removeprefix("data: "))) if line.startswith("data: ") else {}
            if words in changed.get(id, ""):
                return True
    return False


async def test_a_file_holds_what_a_running_fleet_says(data_dir: Path) -> None:
    """The same snapshot by `snapshot show`, and by the file; and the recovery that there was."""
    stop, file = data_dir.with_name("stop"), data_dir.with_name("fleet.html")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop), "period": "1"}) as fleet:
        await fleet.until_epochs(1)
        plan = (await fleet.recovered_from("h2"))["plan"]
        created = await fleet.client.create_snapshot()
        Holds(Store.open(str(data_dir / STORE_FOLDER)), now_s=time.time).pin(created.epoch)  # newer ones do not end it
        saved: Any = await fleet.client.read_snapshots("show", str(created.epoch))
        exporting = await snapline("ui", "export", file, "--data-dir", data_dir, "--snapshot", str(created.epoch))
        assert exporting.code == 0, exporting.err
        stop.touch()
        await fleet.end()
    page = parse(file.read_text())
    assert "could not be had" not in page.text
    for agent in saved["agents"]:
        (card,) = page.find("details", id=f"snapshot-agent-{agent['agent']}")
        assert value_in(card.find("dd")[0]) == agent["state"]
    rows = [row for part in page.find("section", id="snapshot-transit") for row in part.find("tr")[1:]]
    messages = [each["message"]["fields"] for channel in saved["channels"] for each in channel["in_transit"]]
    shown: list[Any] = [value_in(row.child("td")[-1]) for row in rows]
    assert [fields for each in shown for fields in each.values()] == messages
    (history,) = page.find("section", id="recovery-history")
    assert [row.find("th")[0].text for row in history.find("tbody")[0].child("tr")] == [str(plan)]
    assert len(page.find("details", id="recovery-each-table")[0].find("tbody")[0].child("tr")) == 9 + 3


async def test_reports_are_shown_without_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    view = await start("ui", "serve", "--reports", "runs", "--listen", "127.0.0.1:0")
    try:
        assert view.stdout is not None
        address = (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
        async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S, follow_redirects=True) as http:
            assert "There is none: `snapline sim run`" in (await http.get("/")).text
    finally:
        view.terminate()
        assert await asyncio.wait_for(view.wait(), LIMIT_S) == 0

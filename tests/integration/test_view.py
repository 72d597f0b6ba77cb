"""The view as a process of its own, before a fleet of real processes: its page follows while a host is killed."""

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest
from tests.integration.processes import LIMIT_S
from tests.integration.running import running

pytestmark = pytest.mark.timeout(120)


async def test_the_page_follows_a_host_that_is_killed(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop)}) as fleet:
        await fleet.until_epochs(1)
        command = [sys.executable, "-m", "snapline", "ui", "serve", "--data-dir", str(data_dir)]
        view = await asyncio.create_subprocess_exec(
            *command, "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
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
                top = [sys.executable, "-m", "snapline", "top", "--once", "--data-dir", str(data_dir)]
                shown = await asyncio.create_subprocess_exec(*top, stdout=asyncio.subprocess.PIPE)
                told = (await asyncio.wait_for(shown.communicate(), LIMIT_S))[0].decode()
                assert shown.returncode == 0 and "9 agents on 3 of 3 hosts" in told and "paced-bank" in told
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

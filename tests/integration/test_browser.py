"""The view in a real browser, before a fleet of real processes: every screen, while a host is killed, and what people must not meet."""

import asyncio
import importlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.processes import LIMIT_S
from tests.integration.running import Running, running
from tests.view.test_simulation import CONFIG, SMALLER, simulated, sweep_document, write

from snapline.sim.result import Violation

CHROMIUM = shutil.which("chromium") or ""
AXE = Path(os.environ.get("SNAPLINE_AXE", ""))
"""axe-core's script, which `make test-ui` fetches."""

IS_THERE = importlib.util.find_spec("playwright") is not None
Page = Any  # playwright's: not everybody has it

pytestmark = [
    pytest.mark.ui,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM or not IS_THERE, reason="needs Chromium and playwright: `make test-ui`"),
]

SCREENS = ("/", "/epochs", "/recovery", "/waiting", "/recovery?failed=host:h1", "/epochs/latest", "/agents/teller-1")
SIZES = ((1280, 900), (400, 800))
SHOTS = Path(os.environ.get("SNAPLINE_SCREENSHOTS", ""))
"""Where pictures of every screen are left for people; "": nowhere."""


@asynccontextmanager
async def browsing(address: str, **options: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and what went wrong in it: errors, words on the console, requests to elsewhere."""
    async with importlib.import_module("playwright.async_api").async_playwright() as player:
        browser = await player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(base_url=address, **options)
        page, wrong = await context.new_page(), list[str]()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda words: wrong.append(f"{words.type}: {words.text}"))
        page.on("request", lambda request: wrong.extend([request.url] if not request.url.startswith(address) else []))
        try:
            yield page, wrong
        finally:
            await browser.close()


@asynccontextmanager
async def viewed(data_dir: Path, **arguments: str) -> AsyncIterator[tuple[Running, str]]:
    """A fleet that runs, and the address of its view."""
    stop = data_dir.with_name("stop")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop), **arguments}) as fleet:
        await fleet.until_epochs(1)
        command = [sys.executable, "-m", "snapline", "ui", "serve", "--data-dir", str(data_dir)]
        view = await asyncio.create_subprocess_exec(
            *command, "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        try:
            assert view.stdout is not None
            address = (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
            yield fleet, address
        finally:
            view.terminate()
            await asyncio.wait_for(view.wait(), LIMIT_S)
        stop.touch()
        await fleet.end()


async def test_every_screen_is_sound_while_a_host_is_killed(data_dir: Path) -> None:
    async with viewed(data_dir) as (fleet, address), browsing(address) as (page, wrong):
        await page.goto("/")
        await page.wait_for_selector("#live.on")
        await fleet.recovered_from("h2")
        await page.wait_for_selector("#host-h2 >> text=alive")
        starts = page.locator("#host-h2 td").nth(8)
        await page.wait_for_function("cell => cell.textContent === '2'", arg=await starts.element_handle())
        for path in SCREENS:
            await page.goto(path)
            assert await page.locator("h1").count() == 1 and not await page.locator(".strip.bad").count(), path
        await page.goto("/recovery")
        assert await page.locator("#history tbody tr").count() == 1
        assert not wrong, wrong


@pytest.mark.parametrize(("size", "scheme"), [*itertools.product(SIZES, ("light", "dark"))])
async def test_every_screen_fits_and_people_with_other_senses_can_use_it(
    data_dir: Path, size: tuple[int, int], scheme: Any
) -> None:
    width, height = size
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    async with viewed(data_dir) as (_, address), browsing(address, **options) as (page, wrong):
        for number, path in enumerate(SCREENS):
            await page.goto(path)
            if path == "/":
                await page.wait_for_selector("#live.on")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (
                f"{path} is wider than the window"
            )
            if SHOTS.name:
                await page.screenshot(path=SHOTS / f"{number}-{scheme}-{width}.png", full_page=True)
            assert AXE.is_file(), "`make test-ui` fetches axe-core"
            # As a script of the page it would be refused by the page's policy, which is right.
            found = await page.evaluate(
                f"async () => {{ {AXE.read_text()}\n return JSON.stringify(await axe.run()); }}"
            )
            serious = [x for x in json.loads(found)["violations"] if x["impact"] in ("serious", "critical")]
            told = [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in serious]
            assert not told, (path, told)
        assert not wrong, wrong


async def test_the_line_on_the_screen_is_what_the_coordinator_says(data_dir: Path) -> None:
    choices = random.Random(7)
    names = [*(f"teller-{number}" for number in range(9)), "host:h1", "host:h2", "host:h3"]
    arguments = {"protocol": "hmnr", "period": "1"}
    async with viewed(data_dir, **arguments) as (fleet, address), browsing(address) as (page, wrong):
        await page.goto("/recovery")
        compared = 0
        while compared < 20:
            failed = choices.sample(names, choices.randint(1, 4))
            before = await fleet.client.recovery_line(failed)
            query = "&".join(f"failed={name}" for name in failed)
            await page.goto(f"/recovery?{query}")
            after = await fleet.client.recovery_line(failed)
            if before["recovery_line"] != after["recovery_line"]:
                continue  # somebody has taken a checkpoint meanwhile
            compared += 1
            rows = await page.locator("#line tbody tr").all()
            shown = {
                await row.locator("th").inner_text(): int(
                    (await row.locator("td").nth(0).inner_text()).replace(",", "")
                )
                for row in rows
            }
            line: Any = after["recovery_line"]
            assert shown == {agent: to for agent, to in line.items() if to is not None}
            ticked = page.locator("input[name=failed]:checked")
            assert {await each.get_attribute("value") for each in await ticked.all()} == set(failed)
        assert not wrong, wrong


async def test_by_the_keyboard_alone(data_dir: Path) -> None:
    async with viewed(data_dir) as (_, address), browsing(address) as (page, wrong):
        await page.goto("/recovery")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")  # skip to content
        await page.keyboard.press("Tab")
        await page.keyboard.press("Space")  # the first box
        await page.wait_for_function("document.getElementById('line').textContent.includes('if host h1 fails')")
        assert not wrong, wrong


async def test_a_snapshot_on_the_screen_is_what_was_saved(data_dir: Path) -> None:
    async with viewed(data_dir) as (fleet, address), browsing(address) as (page, wrong):
        created = await fleet.client.create_snapshot()
        saved: Any = await fleet.client.read_snapshots("show", str(created.epoch))
        await page.goto(f"/epochs/{created.epoch}")
        for agent in saved["agents"]:
            card = page.locator(f"#agent-{agent['agent']}")
            if await card.get_attribute("open") != "":
                await card.locator("summary").first.click()
            words = await card.inner_text()
            assert f"balance{agent['state']['balance']}" in words.replace(" ", "").replace("\n", "")
        messages = [(c["sender"], c["receiver"], m["number"]) for c in saved["channels"] for m in c["in_transit"]]
        rows = await page.locator("#transit tbody tr").all()
        shown = []
        for row in rows:
            cells = [await row.locator("th, td").nth(place).inner_text() for place in range(3)]
            shown.append((cells[0], cells[1], int(cells[2].replace(",", ""))))
        assert shown == messages
        assert not wrong, wrong


async def check_it_fits_and_is_sound(page: Page, width: int, shot: str) -> None:
    """No wider than the window, and usable by people with other senses."""
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    if SHOTS.name:
        await page.screenshot(path=SHOTS / f"{shot}.png", full_page=True)
    assert AXE.is_file(), "`make test-ui` fetches axe-core"
    found = await page.evaluate(f"async () => {{ {AXE.read_text()}\n return JSON.stringify(await axe.run()); }}")
    serious = [each for each in json.loads(found)["violations"] if each["impact"] in ("serious", "critical")]
    assert not serious, (page.url, [(each["id"], each["nodes"][0]["html"][:120]) for each in serious])


@pytest.mark.parametrize(("size", "scheme"), [(SIZES[0], "light"), (SIZES[1], "dark")])
async def test_reports_of_simulations_are_sound(tmp_path: Path, size: tuple[int, int], scheme: Any) -> None:
    """Without a fleet: a run, its shrunk form next to it, a sweep; pictures are drawn, and have their colours."""
    width, height = size
    wrong = {"verdict": "violation", "violations": [Violation("workload", "G3", 500_000_000, "a sum is wrong")]}
    write(tmp_path / "run", simulated(CONFIG, 7, **wrong))
    write(tmp_path / "run" / "shrunk", simulated(SMALLER, 7, **wrong))
    (tmp_path / "run" / "shrunk" / "steps.txt").write_text("faults left out")
    (tmp_path / "sweep.json").write_text(json.dumps(sweep_document()))
    command = [sys.executable, "-m", "snapline", "ui", "serve", "--reports", str(tmp_path), "--listen", "127.0.0.1:0"]
    view = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    try:
        assert view.stdout is not None
        address = (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
        async with browsing(address, **options) as (page, wrong_there):
            for number, path in enumerate(("", "/runs/0/run", "/pairs/0/run", "/sweeps/0/sweep.json")):
                await page.goto(f"/simulation{path}", wait_until="networkidle")
                for picture in await page.locator("img").all():
                    await picture.scroll_into_view_if_needed()
                    await picture.evaluate("each => each.decode()")
                await check_it_fits_and_is_sound(page, width, f"simulation-{number}-{scheme}-{width}")
            assert not wrong_there, wrong_there
            await page.goto("/simulation/pictures/timeline/0/run")
            paper = await page.locator(".snapline-spacetime").first.evaluate(
                "each => getComputedStyle(each).backgroundColor"
            )
            assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)"), (
                "its own style is allowed"
            )
    finally:
        view.terminate()
        await asyncio.wait_for(view.wait(), LIMIT_S)


@pytest.mark.parametrize(("size", "scheme"), [(SIZES[0], "light"), (SIZES[1], "dark")])
async def test_an_exported_file_opens_alone_and_without_scripts(
    data_dir: Path, size: tuple[int, int], scheme: Any
) -> None:
    width, height = size
    file = data_dir.with_name("fleet.html")
    async with viewed(data_dir):
        command = [sys.executable, "-m", "snapline", "ui", "export", str(file), "--data-dir", str(data_dir)]
        exporting = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(exporting.wait(), LIMIT_S) == 0
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    async with browsing(file.as_uri(), java_script_enabled=False, **options) as (page, wrong):
        await page.goto(file.as_uri())
        for name in ("Epochs", "Snapshot", "Recovery", "Waiting", "Fleet"):
            await page.click(f"nav >> text={name}")
            assert page.url == f"{file.as_uri()}#{name.lower()}"
            await page.wait_for_selector(f"#{name.lower()} h1 >> visible=true")
        size_of_title = await page.locator("h1").first.evaluate("each => getComputedStyle(each).fontSize")
        assert size_of_title == "24px", "its style is in it, and its policy allows it"
        assert not wrong, wrong
    async with browsing(file.as_uri(), **options) as (page, wrong):
        await page.goto(file.as_uri())
        await check_it_fits_and_is_sound(page, width, f"file-{scheme}-{width}")
        assert not wrong, wrong

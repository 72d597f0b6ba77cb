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
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.fleets.spiteful import MARKUP
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

SCREENS = (
    *(
        "/",
        "/coordinators",
        "/epochs",
        "/recovery",
        "/waiting",
        "/recovery?failed=host:h1",
        "/epochs/latest",
        "/agents/teller-1",
    ),
    *("/space-time", "/space-time?rows=hosts", "/act", "/act/snapshot", "/act/kill?host=h2"),
)
LONGEST = "agent-0-".ljust(128, "n")
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
async def serving(*options: str) -> AsyncIterator[str]:
    """The address of a view."""
    command = [sys.executable, "-m", "snapline", "ui", "serve", *options, "--listen", "127.0.0.1:0"]
    view = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    try:
        assert view.stdout is not None
        yield (await asyncio.wait_for(view.stdout.readline(), LIMIT_S)).decode().strip()
    finally:
        view.terminate()
        await asyncio.wait_for(view.wait(), LIMIT_S)


@asynccontextmanager
async def viewed(data_dir: Path, **arguments: str) -> AsyncIterator[tuple[Running, str]]:
    """A fleet that runs, and the address of its view, which may act."""
    stop = data_dir.with_name("stop")
    async with running(data_dir, "paced_bank:fleet", {"stop": str(stop), **arguments}) as fleet:
        await fleet.until_epochs(1)
        async with serving("--data-dir", str(data_dir), "--allow-actions") as address:
            yield fleet, address
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
            if path.startswith("/space-time"):
                await page.wait_for_selector(".snapline-spacetime a")
            await check_it_fits_and_is_sound(page, width, f"{number:02}-{scheme}-{width}")
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
        await page.wait_for_selector("#line >> text=if host h1 fails")  # the policy refuses a script's text
        await page.goto("/act")
        await page.focus("a[href='/act/snapshot']")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/act/snapshot")
        await page.focus("form.confirm button")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=/Epoch [0-9]+ is complete/")
        await page.goto("/space-time")
        await page.focus(".snapline-spacetime a >> nth=-1")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#event")
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


async def test_what_agents_hold_and_say_is_text_and_the_page_stays_quick(data_dir: Path) -> None:
    """On a real fleet: states and messages that are markup, control characters, marks of direction; and 200 MB of states."""
    stop = data_dir.with_name("stop")
    arguments = {"stop": str(stop), "text_mb": "50", "agents": "4"}
    async with running(data_dir, "spiteful:fleet", arguments, hosts=2) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        large = (await fleet.client.create_snapshot()).epoch
        async with serving("--data-dir", str(data_dir)) as address, browsing(address) as (page, wrong):
            for path in ("/", f"/epochs/{large}", f"/epochs/{large}?q=owned", "/waiting", "/recovery"):
                await check_it_is_harmless(page, path)
            await page.goto(f"/epochs/{large}")
            assert await page.locator("text=too large beside the others").count() == 4
            assert (await fleet.client.status()).hosts[0].host_start == 1, "nobody has been taken for dead meanwhile"
            assert not wrong, wrong
        stop.touch()


async def test_hostile_states_are_shown_as_what_they_are(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "spiteful:fleet", {"stop": str(stop)}, hosts=2) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        for _ in range(2):
            epoch = (await fleet.client.create_snapshot()).epoch
        async with serving("--data-dir", str(data_dir)) as address, browsing(address) as (page, wrong):
            for path in (
                "/",
                f"/epochs/{epoch}",
                f"/epochs/{epoch}?to={epoch - 1}",
                "/waiting",
                "/space-time",
                f"/agents/{LONGEST}",
            ):
                await check_it_is_harmless(page, path)
            await page.goto(f"/epochs/{epoch}")
            words = await page.locator("main").inner_text()
            assert MARKUP in words and "‹202E›" in words and "␛" in words and "\0" not in words
            assert not wrong, wrong
        stop.touch()


async def check_it_is_harmless(page: Page, path: str) -> None:
    """Nothing of what it shows runs or is an element, it is no wider than the window, and it comes within seconds."""
    begun_s = time.monotonic()
    answer = await page.goto(path)
    took_s, size_bytes = time.monotonic() - begun_s, len(await answer.body())
    print(f"{path}: {took_s:.2f} s, {size_bytes:,} bytes")
    assert took_s < 10.0 and size_bytes < 1_000_000, path
    assert not await page.evaluate("'harmed' in window"), path
    assert not await page.locator("img, main script, main style, [onerror], [onload]").count(), path
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


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
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("a-token-of-thirty-two-characters-x")
    options: dict[str, Any] = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    async with (
        serving("--reports", str(tmp_path), "--token-file", str(tmp_path / "token")) as address,
        browsing(address, **options) as (page, wrong_there),
    ):
        await page.goto("/")
        await check_it_fits_and_is_sound(page, width, f"sign-in-{scheme}-{width}")
        await page.focus("#token")
        await page.keyboard.type("a-token-of-thirty-two-characters-x")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/simulation")
        for number, path in enumerate(("", "/runs/0/run", "/pairs/0/run", "/sweeps/0/sweep.json")):
            await page.goto(f"/simulation{path}", wait_until="networkidle")
            for picture in await page.locator("img").all():
                await picture.scroll_into_view_if_needed()
                await picture.evaluate("each => each.decode()")
            await page.evaluate("scrollTo(0, 0)")
            await check_it_fits_and_is_sound(page, width, f"simulation-{number}-{scheme}-{width}")
        assert not wrong_there, wrong_there
        await page.goto("/simulation/pictures/timeline/0/run")
        picture = page.locator(".snapline-spacetime").first
        paper = await picture.evaluate("each => getComputedStyle(each).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)"), "its own style is allowed"


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

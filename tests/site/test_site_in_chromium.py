"""The built site in a real browser, opened as files and without a network: what every reader meets, on a screen and on a phone."""

import importlib
import importlib.util
import itertools
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or ""
AXE = Path(os.environ.get("SNAPLINE_AXE", ""))
IS_THERE = importlib.util.find_spec("playwright") is not None
Page = Any  # playwright's: not everybody has it

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not CHROMIUM or not IS_THERE, reason="needs Chromium and playwright: `make test-site`"),
]

SIZES = ((1280, 900), (390, 844))
SHOTS = Path(os.environ.get("SNAPLINE_SCREENSHOTS", ""))
"""Where pictures of the pages are left for people; "": nowhere."""

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "preload": False}
"""For axe-core. It would preload style sheets by requests, which pages that are files may not make."""

PARTS_MAX = 60
"""Paragraphs, tables and blocks of a page that axe-core looks at: the same styles follow, and it takes a minute for the longest pages."""


@asynccontextmanager
async def browsing(**options: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and what went wrong in it: errors, words on the console, requests that leave the site."""
    async with importlib.import_module("playwright.async_api").async_playwright() as player:
        browser = await player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(offline=True, **options)
        page, wrong = await context.new_page(), list[str]()
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        page.on("console", lambda words: wrong.append(f"{page.url}: {words.type}: {words.text}"))
        page.on("request", lambda one: wrong.extend([one.url] if not re.match("file:|data:", one.url) else []))
        try:
            yield page, wrong
        finally:
            await browser.close()


def listed(site: Path) -> list[Path]:
    """Return the pages of the navigation and a decision; the others look like it."""
    names = re.findall(r"\]\(([^)]+)\.md\)", (site / "llms.txt").read_text())
    return [site / f"{name}.html" for name in (*names, "decisions/0001-one-report-per-host")]


async def offences(page: Page, name: str) -> list[str]:
    """Return what axe-core finds on the page."""
    assert AXE.is_file(), "`make test-site` fetches axe-core"
    await page.evaluate(AXE.read_text())
    await page.evaluate(
        f"document.querySelectorAll('article > *').forEach((each, n) => n > {PARTS_MAX} && each.remove())"
    )
    found = await page.evaluate(f"async () => JSON.stringify((await axe.run({json.dumps(RULES)})).violations)")
    return [f"{name}: {each['id']}: {node['html'][:160]}" for each in json.loads(found) for node in each["nodes"][:2]]


async def test_no_page_has_an_error_and_each_has_one_title(site: Path) -> None:
    async with browsing() as (page, wrong):
        for path in sorted(site.rglob("*.html")):
            if path.name != "404.html":  # it is for servers: its links begin with a slash
                await page.goto(path.as_uri())
                assert await page.locator("h1").count() == 1, path
        assert not wrong, wrong


@pytest.mark.parametrize(("size", "scheme"), [*itertools.product(SIZES, ("light", "dark"))])
async def test_pages_fit_and_have_contrast_names_and_an_order(site: Path, size: tuple[int, int], scheme: Any) -> None:
    width, height = size
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "reduced_motion": "reduce"}
    async with browsing(**options) as (page, wrong):
        found = []
        for path in listed(site):
            await page.goto(path.as_uri())
            drawn = await page.evaluate("document.body.getAttribute('data-md-color-scheme')")
            assert drawn == {"light": "default", "dark": "slate"}[scheme]
            if await page.evaluate("document.documentElement.scrollWidth") > width:
                found.append(f"{path.name}: wider than the window")
            if SHOTS.name:
                await page.screenshot(
                    path=SHOTS / f"site-{'-'.join(path.relative_to(site).with_suffix('').parts)}-{scheme}-{width}.png"
                )
            found += await offences(page, path.name)
        assert not found, "\n".join(found)
        assert not wrong, wrong


async def test_the_search_finds_a_term_without_a_network(site: Path) -> None:
    async with browsing() as (page, wrong):
        await page.goto((site / "index.html").as_uri())
        await page.keyboard.press("/")
        await page.keyboard.type("Koo-Toueg")
        first = page.locator(".md-search-result__item a").first
        await first.wait_for(timeout=30_000)
        await first.click()
        await page.wait_for_load_state()
        assert "koo-toueg" in (await page.locator("article").inner_text()).lower()
        assert not wrong, wrong


@pytest.mark.parametrize("size", SIZES)
async def test_a_keyboard_reaches_the_content_the_colours_and_the_search(site: Path, size: tuple[int, int]) -> None:
    async with browsing(viewport={"width": size[0], "height": size[1]}) as (page, _):
        await page.goto((site / "modes.html").as_uri())
        await page.keyboard.press("Tab")
        assert "md-skip" in await page.evaluate("document.activeElement.className")
        focused = []
        for _step in range(40):
            await page.keyboard.press("Tab")
            focused.append(await page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
        assert any("md-search__input" in each or "__search" in each for each in focused), focused
        before = await page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        await page.locator("label[for^=__palette]:visible").first.focus()
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.body.getAttribute('data-md-color-scheme')") != before


async def test_a_moving_picture_moves_stops_and_keeps_still_for_who_wants_that(site: Path) -> None:
    ours = (
        "document.getAnimations().filter(each => each.effect.target.closest('.moving svg'))"  # others are the theme's
    )
    states = f"{ours}.map(each => each.playState)"
    async with browsing() as (page, _):
        await page.goto((site / "modes.html").as_uri())
        assert "running" in await page.evaluate(states)
        for switch in await page.locator(".moving .stop input").all():
            await switch.check()
        assert set(await page.evaluate(states)) == {"paused"}
    async with browsing(reduced_motion="reduce") as (page, _):
        await page.goto((site / "modes.html").as_uri())
        assert not await page.evaluate(f"{states}.includes('running')")
        shown = await page.evaluate(
            "[...document.querySelectorAll('.moving-domino .caption')]"
            ".filter(each => getComputedStyle(each.parentNode).opacity === '1').map(each => each.textContent)"
        )
        assert len(shown) == 1 and "initial state" in shown[0]

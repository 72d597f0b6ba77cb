"""The built site in a real browser, opened as files and without a network: what every reader meets, on a screen and on a phone."""

import importlib
import importlib.util
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

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
COLOUR_RULES = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""For axe-core: those of a page, and those of its second theme, which only has other colours."""

ALWAYS = {"preload": False, "resultTypes": ["violations"], "selectors": False}
"""It would preload style sheets by requests, which pages that are files may not make. The others are for speed."""

DARK = """() => {
  document.body.setAttribute("data-md-color-scheme", "slate");
  document.getAnimations().filter((each) => each instanceof CSSTransition).forEach((each) => each.finish());
}"""
"""Draws the page in its dark colours at once."""

PARTS_MAX = 60
"""Children of each part of a page that axe-core looks at: the same styles follow, and it takes minutes for the longest tables and files."""


WIDE_TABLES = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText.slice(0, 60))"""


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


async def offences(page: Page, name: str, rules: dict[str, Any]) -> list[str]:
    """Return what axe-core finds on the page."""
    found = await page.evaluate(f"async () => JSON.stringify((await axe.run({json.dumps(rules | ALWAYS)})).violations)")
    return [f"{name}: {each['id']}: {node['html'][:160]}" for each in json.loads(found) for node in each["nodes"][:2]]


async def shoot(page: Page, name: str) -> None:
    """Leave a picture of the page for people."""
    if SHOTS.name:
        await page.screenshot(path=SHOTS / f"site-{name}.png")


async def test_no_page_has_an_error_or_a_table_that_is_too_wide_and_each_has_one_title(site: Path) -> None:
    width, height = SIZES[0]
    async with browsing(viewport={"width": width, "height": height}) as (page, wrong):
        for path in sorted(site.rglob("*.html")):
            if path.name != "404.html":  # it is for servers: its links begin with a slash
                await page.goto(path.as_uri())
                assert await page.locator("h1").count() == 1, path
                assert await page.evaluate(WIDE_TABLES) == [], path
        assert not wrong, wrong


@pytest.mark.parametrize("size", SIZES)
async def test_pages_fit_and_have_contrast_names_and_an_order(site: Path, size: tuple[int, int]) -> None:
    assert AXE.is_file(), "`make test-site` fetches axe-core"
    width, height = size
    options = {"viewport": {"width": width, "height": height}, "color_scheme": "light", "reduced_motion": "reduce"}
    async with browsing(**options) as (page, wrong):
        found = []
        for path in listed(site):
            name = "-".join(path.relative_to(site).with_suffix("").parts)
            await page.goto(path.as_uri())
            if await page.evaluate("document.documentElement.scrollWidth") > width:
                found.append(f"{name}: wider than the window")
            await shoot(page, f"{name}-light-{width}")
            await page.evaluate(AXE.read_text())
            await page.evaluate(
                f"document.querySelectorAll('article :nth-child(n + {PARTS_MAX + 1})').forEach(each => each.remove())"
            )
            found += await offences(page, f"{name}, light", RULES)
            await page.evaluate(DARK)
            await shoot(page, f"{name}-dark-{width}")
            found += await offences(page, f"{name}, dark", COLOUR_RULES)
        assert not found, "\n".join(found)
        assert not wrong, wrong


@pytest.mark.parametrize(("preferred", "drawn"), [("light", "default"), ("dark", "slate")])
async def test_the_theme_is_the_one_that_the_reader_prefers(site: Path, preferred: Any, drawn: str) -> None:
    async with browsing(color_scheme=preferred) as (page, _):
        await page.goto((site / "index.html").as_uri())
        assert await page.evaluate("document.body.getAttribute('data-md-color-scheme')") == drawn


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

"""The built site: strict, whole, and without a network."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.site.site_files import PageParts, parts_of

pytestmark = [pytest.mark.site, pytest.mark.timeout(300)]

PAGES_MIN = 130
"""Pages there are at least, with the decisions: a site that lost some would pass all other tests."""


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, PageParts]:
    return parts_of(site)


def test_every_page_has_one_title(pages: dict[Path, PageParts]) -> None:
    assert len(pages) > PAGES_MIN
    assert {path.name: each.headings for path, each in pages.items() if each.headings != 1} == {}


def test_no_link_and_no_anchor_is_dead(site: Path, pages: dict[Path, PageParts]) -> None:
    dead = []
    for path, each in pages.items():
        for link in each.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)} → {link}")
    assert not dead, "\n".join(sorted(set(dead)))


def test_a_page_loads_only_files_of_the_site(site: Path, pages: dict[Path, PageParts]) -> None:
    for path, each in pages.items():
        for address in each.loaded:
            assert not urlsplit(address).scheme and not address.startswith("//"), f"{path.name}: {address}"
            assert (path.parent / urlsplit(address).path).exists(), f"{path.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style


def test_every_page_has_its_markdown_and_llms_txt_lists_the_pages(site: Path, pages: dict[Path, PageParts]) -> None:
    for path in pages:
        text = path.with_suffix(".md").read_text()
        assert re.match(r"(?:<!--.*?-->\s*)?# \S", text, re.DOTALL), path
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text())
    assert len(listed) > 50 and all((site / name).exists() for name in listed)
    assert {"first-fleet.md", "modes.md", "protos.md", "api.md"} < set(listed)


def test_links_of_the_markdown_lead_somewhere(site: Path) -> None:
    offences = [
        f"{page.relative_to(site)} → {target}"
        for page in site.rglob("*.md")
        for target in re.findall(
            r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not offences, "\n".join(offences)


def test_there_is_no_sitemap_without_an_address_of_the_site(site: Path) -> None:
    assert list(site.glob("sitemap*")) == []


def test_moving_pictures_are_part_of_their_page_and_can_be_stopped(site: Path) -> None:
    text = (site / "modes.html").read_text()
    assert text.count('<svg aria-label="') == 2 == text.count('<label class="stop">')


def test_the_search_knows_every_page(site: Path, pages: dict[Path, PageParts]) -> None:
    index = (site / "search" / "search_index.js").read_text().partition("=")[2]
    found = {entry["location"].partition("#")[0] for entry in json.loads(index.strip().rstrip(";"))["docs"]}
    assert {path.relative_to(site).as_posix() for path in pages} <= found

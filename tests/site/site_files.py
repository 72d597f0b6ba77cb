"""The built documentation site, and what its pages hold."""

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
IS_THERE = all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings"))


def build(folder: Path) -> Path:
    """Build the site into an empty folder; a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class PageParts(HTMLParser):
    """Links, anchors and headings of one page.

    Attributes:
        links: targets of `<a>`.
        loaded: addresses that a browser loads by itself: scripts, style sheets, pictures.
        anchors: ids and names.
        headings: number of `<h1>`.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.headings = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.headings += tag == "h1"
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])


def parts_of(site: Path) -> dict[Path, PageParts]:
    """Return the parts of all pages by file."""
    return {path: PageParts(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}

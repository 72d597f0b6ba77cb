"""Pages of the documentation, as `mkdocs.yml` lists them, and the blocks of code that they show."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """A fenced or indented block of a page: the number of its first line, the language that its fence names, and its text."""

    line: int
    language: str
    text: str


def pages_of(*sections: str) -> list[str]:
    """Return the pages of these sections of the navigation, in its order, as paths below docs/."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    found = dict(re.findall(r"^  - ([^\n]+):\n((?:    .*\n)+)", navigation, re.MULTILINE))
    return [page for section in sections for page in re.findall(r"([\w/-]+\.md)$", found[section], re.MULTILINE)]


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks of a page. An indented block begins after an empty line, and not in a list."""
    lines: list[str] = []
    begun, language, previous = 0, "", ""
    for number, line in enumerate([*page.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            if begun:
                yield Block(begun, language, "\n".join(lines))
                begun, lines = 0, []
            else:
                begun, language = number + 1, line.strip()[3:]
        elif begun:
            lines.append(line)
        elif line.startswith("    ") and (lines or not previous):
            lines.append(line[4:])
        elif lines:
            yield Block(number - len(lines), "", "\n".join(lines))
            lines = []
        previous = line

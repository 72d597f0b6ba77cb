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

    @property
    def file(self) -> str:
        """The name of the file that it is, by its first line, or ""."""
        found = re.match(r"# ([\w-]+\.\w+|Containerfile)\n", self.text)
        return found[1] if found and self.language != "console" else ""


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
                indent = len(line) - len(line.lstrip())
                yield Block(begun, language, "".join(f"{each[indent:]}\n" for each in lines))
                begun, lines = 0, []
            else:
                begun, language = number + 1, line.strip()[3:]
        elif begun:
            lines.append(line)
        elif line.startswith("    ") and (lines or not previous):
            lines.append(line[4:])
        elif lines:
            yield Block(number - len(lines), "", "".join(f"{each}\n" for each in lines))
            lines = []
        previous = line

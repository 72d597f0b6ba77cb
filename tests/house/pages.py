"""Pages of the documentation, as `mkdocs.yml` lists them, and the blocks of code, the commands and the files that they show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

ENDED_WITH = re.compile(r"\(exit code (\d+)\)")
"""A line behind a command's output: the command's exit code, if it is not 0."""


@dataclass
class Command:
    """A command that a page shows, and the output it shows."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)
    code: int = 0


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

    @property
    def commands(self) -> list[Command]:
        """The commands of a block marked `console`: lines after `$ `, continued after a backslash, then their output."""
        found: list[Command] = []
        is_continued = False
        for number, line in enumerate(self.text.splitlines() if self.language == "console" else (), self.line):
            if is_continued:
                found[-1].text += "\n" + line.removeprefix("> ")
                is_continued = line.endswith("\\")
            elif line.startswith("$ "):
                found.append(Command(number, line[2:]))
                is_continued = line.endswith("\\")
            else:
                assert found, f"line {number} is behind no command: {line}"
                if ended := ENDED_WITH.fullmatch(line):
                    found[-1].code = int(ended[1])
                else:
                    found[-1].output.append(line)
        return found


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


def commands_of(page: str) -> list[Command]:
    """Return the commands of all blocks of a page."""
    return [command for block in blocks_of(page) for command in block.commands]


def files_of(page: str) -> dict[str, str]:
    """Return the blocks of a page whose first line names a file, such as `# shards.py`."""
    return {block.file: block.text for block in blocks_of(page) if block.file}


def read_page(name: str, section: str = "") -> str:
    """Return the text of a page, or of one of its sections."""
    text = (ROOT / name).read_text()
    if section:
        assert f"\n## {section}\n" in text, f"{name} has no section {section}"
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return text

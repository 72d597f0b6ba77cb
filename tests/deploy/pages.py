"""The how-tos of the launchers (`docs/deploy-*.md`), run as a reader runs them, in a folder with the files of the first tutorial."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.house.test_texts import Command, commands_of, end_processes_in, files_of, matches, run_on_terminal

DOCS = Path(__file__).resolve().parents[2] / "docs"

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

NAMED = re.compile(r"# ([\w-]+\.\w+|Containerfile)\n")
"""First line of a block that is a file."""


def page_of(name: str, swapped: Mapping[str, str], section: str = "") -> str:
    """Return a page, or one section of it, with other texts in place of those that only the reader's machines have."""
    text = (DOCS / name).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for shown, here in swapped.items():
        assert shown in text, f"{name} does not hold {shown!r} any more"
        text = text.replace(shown, here)
    return text


def write_files(page: str, folder: Path) -> None:
    """Write `bank.py`, `audit.py` and the files that the page shows."""
    shown = {first[1]: text for _, text in FENCED.findall(page) if (first := NAMED.match(text))}
    for name, text in {**files_of((DOCS / "first-fleet.md").read_text()), **shown}.items():
        (folder / name).write_text(text)


def check_blocks(page: str, *elsewhere: str) -> None:
    """Check that each block is of commands, is a file, or is of a language whose blocks another test reads."""
    for language, text in FENCED.findall(page):
        assert language in ("console", *elsewhere) or NAMED.match(text), f"nothing runs this block:\n{text}"


def run_command(command: Command, folder: Path, limit_s: float) -> None:
    """Run one command of a page, and compare what it prints with what the page shows."""
    code, out, err = run_on_terminal(command.text, folder, limit_s)
    printed = "\n".join(out) + "\n" + err
    assert code == command.code, f"line {command.line}: $ {command.text}\nended with {code}\n{printed}"
    if command.output:
        assert matches(command.output, out), f"line {command.line}: $ {command.text}\nprinted\n{printed}"


def run_page(name: str, folder: Path, swapped: Mapping[str, str], limit_s: float = 110.0, *, section: str = "") -> None:
    """Run all commands of a page, or of one section of it, in this folder, in their order."""
    page = page_of(name, swapped, section)
    check_blocks(page)
    write_files(page, folder)
    try:
        for command in commands_of(page):
            run_command(command, folder, limit_s)
    finally:
        end_processes_in(folder)

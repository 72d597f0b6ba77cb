"""The how-tos of the launchers (`docs/deploy-*.md`), run as a reader runs them, in a folder with the files of the first tutorial."""

from collections.abc import Mapping
from pathlib import Path

from tests.house.pages import ROOT, blocks_of
from tests.house.test_texts import commands_of, end_processes_in, files_of, run_command

DOCS = ROOT / "docs"


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
    shown = {block.file: block.text for block in blocks_of(page) if block.file}
    for name, text in {**files_of((DOCS / "first-fleet.md").read_text()), **shown}.items():
        (folder / name).write_text(text)


def check_blocks(page: str, *elsewhere: str) -> None:
    """Check that each block is of commands, is a file, or is of a language whose blocks another test reads."""
    for block in blocks_of(page):
        assert block.language in ("console", *elsewhere) or block.file, f"nothing runs this block:\n{block.text}"


def run_page(name: str, folder: Path, swapped: Mapping[str, str], limit_s: float = 110.0, *, section: str = "") -> None:
    """Run all commands of a page, or of one section of it, in this folder, in their order."""
    page = page_of(name, swapped, section)
    check_blocks(page)
    write_files(page, folder)
    try:
        for command in commands_of(page):
            run_command(command, folder, name, limit_s)
    finally:
        end_processes_in(folder)

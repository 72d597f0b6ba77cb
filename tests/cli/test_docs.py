"""docs/cli.md is what the commands say, and has every exit code; pages for operators name commands that there are."""

import re
from pathlib import Path

import pytest
import typer.main
from docs.make_cli import PAGE, make_page, walk

from snapline.agent_runtime.host import loop_watch
from snapline.cli import command as exits
from snapline.cli.main import app
from snapline.coordinator.raft import durability
from snapline.deploy import data_directory  # its error belongs to the tree as well
from snapline.errors import SnaplineError

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == make_page(), "run `make docs`"


@pytest.mark.parametrize(("page", "least"), [("runbook.md", 20), ("operating.md", 10)])
def test_pages_for_operators_name_commands_that_there_are(page: str, least: int) -> None:
    """Who reads them at night has no time for a command that was renamed."""
    options = {
        each.words: {name for one in each.command.params for name in one.opts}
        for each in walk(typer.main.get_command(app))
        if not each.is_group
    }
    named = re.findall(r"(?:`|^)snapline ([^`\n]+)(?:`|$)", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert len(named) > least
    for line in named:
        words = max((words for words in options if f"{line} ".startswith(f"{words} ")), key=len, default="")
        assert words, f"no command: snapline {line}"
        for option in re.findall(r"--[a-z-]+", line):
            assert option in options[words], f"snapline {line}"


def test_every_exit_code_is_described_and_no_other() -> None:
    def codes(error: type[SnaplineError]) -> set[int]:
        return {error.exit_code}.union(*(codes(below) for below in error.__subclasses__()))

    used = codes(SnaplineError) | {
        0,
        exits.INTERRUPTED,
        exits.PARTIAL,
        data_directory.DirectoryInUseError.exit_code,
        durability.FAIL_STOP_EXIT_CODE,
        loop_watch.HELD_EXIT_CODE,
    }
    assert set(exits.EXIT_CODES) == used

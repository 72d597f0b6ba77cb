"""docs/cli.md names every command, option and exit code there is."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapline.cli import command
from snapline.coordinator.raft import fail_stop
from snapline.deploy import data_directory  # its error belongs to the tree as well
from snapline.errors import SnaplineError


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def commands(run: Callable[..., Any], words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command with its help."""
    help_text = run(*words, "--help").out
    listed = help_text.partition("\nCommands:\n")[2]
    names = re.findall(r"^  (\S+)", listed, re.MULTILINE)
    if not names:
        yield words, help_text
    for name in names:
        yield from commands(run, (*words, name))


def test_every_command_and_option_is_described(run: Callable[..., Any], page: str) -> None:
    seen = list(commands(run))
    assert len(seen) >= 17
    for words, help_text in seen:
        assert f"`snapline {' '.join(words)}" in page
        for option in re.findall(r"--[a-z-]+", help_text.partition("Options:")[2]):
            assert option in page or option == "--help", f"{words}: {option}"


def test_the_runbook_names_commands_that_there_are(run: Callable[..., Any]) -> None:
    """Who reads it at night has no time for a command that was renamed."""
    known = dict(commands(run))
    text = (Path(__file__).resolve().parents[2] / "docs" / "runbook.md").read_text()
    named = re.findall(r"`snapline ([^`]+)`", text)
    assert len(named) > 20
    for line in named:
        (words,) = [words for words in known if f"{line} ".startswith(f"{' '.join(words)} ")] or [()]
        assert words, f"no command: snapline {line}"
        for option in re.findall(r"--[a-z-]+", line):
            assert option in known[words], f"snapline {line}"


def test_every_exit_code_is_described(page: str) -> None:
    table = page.partition("## Exit codes")[2]
    described = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}

    def codes(error: type[SnaplineError]) -> set[int]:
        return {error.exit_code}.union(*(codes(below) for below in error.__subclasses__()))

    used = codes(SnaplineError) | {
        0,
        command.INTERRUPTED,
        command.PARTIAL,
        data_directory.DirectoryInUseError.exit_code,
        fail_stop.FAIL_STOP_EXIT_CODE,
    }
    assert described == used

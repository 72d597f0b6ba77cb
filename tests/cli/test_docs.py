"""docs/cli.md names every command, option and exit code there is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from snapline.agent_runtime.host import loop_watch
from snapline.cli import command as exits
from snapline.cli.main import app
from snapline.coordinator.raft import durability
from snapline.deploy import data_directory  # its error belongs to the tree as well
from snapline.errors import SnaplineError


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


@pytest.fixture(scope="module")
def commands() -> dict[tuple[str, ...], str]:
    """Every command's words, with its help."""
    group = typer.main.get_command(app)
    return dict(walk(group, typer.Context(group, info_name="snapline"), ()))


def walk(command: Any, context: typer.Context, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The commands below this one, or itself."""
    below = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    if not below:
        yield words, command.get_help(context)
    for name, each in below.items():
        yield from walk(each, typer.Context(each, info_name=name, parent=context), (*words, name))


def test_every_command_and_option_is_described(commands: dict[tuple[str, ...], str], page: str) -> None:
    assert len(commands) >= 17
    for words, help_text in commands.items():
        assert f"`snapline {' '.join(words)}" in page
        for option in re.findall(r"--[a-z-]+", help_text.partition("Options:")[2]):
            assert option in page or option == "--help", f"{words}: {option}"


def test_the_runbook_names_commands_that_there_are(commands: dict[tuple[str, ...], str]) -> None:
    """Who reads it at night has no time for a command that was renamed."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "runbook.md").read_text()
    named = re.findall(r"`snapline ([^`]+)`", text)
    assert len(named) > 20
    for line in named:
        (words,) = [words for words in commands if f"{line} ".startswith(f"{' '.join(words)} ")] or [()]
        assert words, f"no command: snapline {line}"
        for option in re.findall(r"--[a-z-]+", line):
            assert option in commands[words], f"snapline {line}"


def test_every_exit_code_is_described(page: str) -> None:
    table = page.partition("## Exit codes")[2]
    described = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}

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
    assert described == used

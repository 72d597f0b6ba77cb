"""docs/cli.md is what the commands say, and has every exit code; tutorials and how-to guides name commands that there are."""

import re

import pytest
import typer.main
from docs.make_cli import PAGE, make_page, walk
from tests.house.pages import ROOT, pages_of

from snapline.agent_runtime.host import loop_watch
from snapline.cli import command as exits
from snapline.cli.main import app
from snapline.coordinator.raft import durability
from snapline.deploy import data_directory  # its error belongs to the tree as well
from snapline.errors import SnaplineError


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == make_page(), "run `make docs`"


OPERATORS = {"runbook.md": 20, "operating.md": 10, "deploy.md": 20, "security.md": 10}
"""Pages that must name more commands than this: who reads them at night has no time for a command that was renamed."""

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

KEY_CONTEXT = "pack 1"
"""`snapline pack 1` derives the keys of packs (docs/protection.md)."""

COMMANDS = {each.words: each for each in walk(typer.main.get_command(app))}


def commands_named(page: str) -> list[str]:
    """Commands in inline code, in blocks without a language, and in those for a console, without the `snapline` before them."""
    text = re.sub(r"\\\n(?:> )?", " ", page)
    blocks = "".join(block for language, block in FENCED.findall(text) if language in ("", "console"))
    inline = re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    lines = [line.split(" # ")[0] for line in [*inline, *blocks.splitlines()]]
    parts = [part for line in lines for part in re.split(r" (?:&&|\|\||[|;&])|\$\(|\)|; ", line)]
    found = [
        re.match(r"(?:\$? |\w+=\S* |until |while |if |do |timeout \d+ )*snapline ([a-z].*)", part) for part in parts
    ]
    return [each[1] for each in found if each and each[1] != KEY_CONTEXT]


@pytest.mark.parametrize("page", ["../README.md", *pages_of("Tutorials", "How-to guides")])
def test_pages_name_commands_and_options_that_there_are(page: str) -> None:
    named = commands_named((ROOT / "docs" / page).read_text())
    assert len(named) > OPERATORS.get(page, -1)
    for line in named:
        words = max((words for words in COMMANDS if f"{line} ".startswith(f"{words} ")), key=len, default="")
        assert words and (not COMMANDS[words].is_group or line == words), f"no command: snapline {line}"
        options = {name for one in COMMANDS[words].command.params for name in (*one.opts, *one.secondary_opts)}
        for option in re.findall(r"(?<![\w=-])--[a-z-]+", line):
            assert option in options, f"snapline {line}"


def test_commands_are_found_in_a_page() -> None:
    page = """`snapline up` and `snapline pack 1`:
```console
$ snapline up a:b \\
> --hosts 2 && snapline approval grant $(snapline approval list --wait | head -c 16)  # waits
snapline: an error
```
"""
    assert commands_named(page) == [
        *("up", "up a:b  --hosts 2", "approval grant ", "approval list --wait"),
    ]


def test_every_exit_code_is_described_and_no_other() -> None:
    def codes(error: type[SnaplineError]) -> set[int]:
        return {error.exit_code}.union(*(codes(below) for below in error.__subclasses__()))

    used = codes(SnaplineError) | {
        0,
        exits.INTERRUPTED,
        exits.PARTIAL,
        exits.OUTPUT_CLOSED,
        data_directory.DirectoryInUseError.exit_code,
        durability.FAIL_STOP_EXIT_CODE,
        loop_watch.HELD_EXIT_CODE,
    }
    assert set(exits.EXIT_CODES) == used

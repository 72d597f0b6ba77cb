"""docs/checkmate.md: its commands run, for six seconds of input, and one query and two protocols where the page measures all, and print its columns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.house.pages import ROOT
from tests.kit.shown_page import shown

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]

SMALLER = {
    ".venv/bin/python": sys.executable,
    "checkmate table": "checkmate table --queries q12 --seconds 6 --protocols none chandy-lamport",
    "checkmate real": "checkmate real --rounds 1",
}
"""What the page shows → what runs: the whole takes hours."""


def test_the_commands_of_the_page_print_its_columns(tmp_path: Path) -> None:
    with shown("docs/checkmate.md", tmp_path, SMALLER) as page:
        commands = page.commands("checkmate table")
        page.take("checkmate table")
    columns = re.findall(
        r"^\| ([\w/ ,]+) \| .* \|$", page.text.partition("printed column")[2].partition("## ")[0], re.MULTILINE
    )
    assert len(commands) == 6 and len(columns) > 6
    for command in commands:
        done = subprocess.run(
            command.text, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "checkmate table" in command.text:
            header = done.stdout.splitlines()[1]
            for name in ", ".join(columns).split(", "):
                assert name.removesuffix(" s") in header, name

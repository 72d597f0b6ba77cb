"""Runs the blocks of a page of documentation as its reader does: in one folder, in the order of a test, and none may be left over.

A block marked `console` holds commands and what they print (`tests/house/test_texts.py`); a command that ends with ` &` runs until the test
has ended, and an `export` holds for all that follow. A block whose first line is `# NAME.EXT` is a file of the folder. All others are for the test to take.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.house.pages import ROOT, blocks_of
from tests.house.test_texts import Command, commands_of, end_processes_in, matches, run_on_terminal

READY_S = 60.0
"""For a command in the background to print its first line."""

PIP = {"pip install": f"{sys.executable} -m pip install --no-index"}
"""Without a package registry: pip says whether all that a page installs is there."""


class ShownPage:
    """A page whose blocks a test runs."""

    def __init__(self, name: str, folder: Path, replaced: Mapping[str, str]) -> None:
        """Read the page, and write its files.

        Args:
            replaced: what is shown → what is run, where this machine needs something else than the reader's. Each must be shown.
        """
        text = (ROOT / name).read_text()
        for shown, run in replaced.items():
            assert shown in text, f"{name} does not show {shown}"
            text = text.replace(shown, run)
        self.name, self.text = name, text
        self.folder = folder
        self.exports: list[str] = []
        self.ran: list[str] = []
        self.background: list[subprocess.Popen[bytes]] = []
        self.left = list(blocks_of(text))
        for block in [each for each in self.left if each.file]:
            (folder / block.file).write_text(block.text)
            self.left.remove(block)

    def block(self, part: str) -> str:
        """Return the block with this text."""
        found = [block.text for block in self.left if part in block.text]
        assert len(found) == 1, f"{self.name}: {len(found)} blocks with {part}"
        return found[0]

    def take(self, part: str) -> str:
        """Return the block with this text, which has run, or which the test runs by itself."""
        found = self.block(part)
        self.left = [block for block in self.left if block.text != found]
        return found

    def commands(self, part: str) -> list[Command]:
        """Return the commands of the block with this text."""
        return list(commands_of(f"```console\n{self.block(part)}```\n"))

    def shell(self, command: str) -> tuple[int, list[str], str]:
        """Run a command in the page's folder; returns exit code, lines of stdout, stderr."""
        return run_on_terminal("\n".join([*self.exports, command]), self.folder)

    def run(self, part: str) -> list[list[str]]:
        """Run the commands of the block with this text; returns the lines that each printed.

        Raises:
            AssertionError: a command ends or prints otherwise than the page shows.
        """
        printed = []
        for command in self.commands(part):
            if command.text.startswith("export "):
                self.exports.append(command.text)
                continue
            if command.text.endswith(" &"):
                printed.append([self.start(command.text.removesuffix(" &"))])
                continue
            code, out, err = self.shell(command.text)
            seen = "\n".join([f"{self.name}: $ {command.text}", *out, err, self._logs()])
            assert code == command.code, f"ended with {code}: {seen}"
            assert not command.output or matches(command.output, out), seen
            printed.append(out)
            self.ran.append(command.text)
        self.take(part)
        return printed

    def start(self, command: str) -> str:
        """Run a command in the background; returns the first line that it prints, which says that it serves."""
        log = self.folder / f"background-{len(self.background)}.log"
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join([*self.exports, f"exec {command}"])],
                cwd=self.folder,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=file,
            )
        self.background.append(process)
        deadline_s = time.monotonic() + READY_S
        while b"\n" not in log.read_bytes() and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert process.poll() is None and b"\n" in log.read_bytes(), f"{command}: {log.read_text()}"
        return log.read_text().splitlines()[0]

    def _logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("background-*.log")))

    def end(self) -> None:
        """End what runs in the background, and what the page's commands have left."""
        for process in self.background:
            process.send_signal(signal.SIGTERM)
        for process in self.background:
            process.wait(timeout=READY_S)
        end_processes_in(self.folder)


@contextmanager
def shown(name: str, folder: Path, replaced: Mapping[str, str] | None = None) -> Iterator[ShownPage]:
    """Run a page inside; at the end each of its blocks must have run."""
    page = ShownPage(name, folder, replaced or {})
    try:
        yield page
    finally:
        page.end()
    assert not page.left, f"{name}: no test runs {page.left}"


def free_port() -> int:
    """Return a port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port

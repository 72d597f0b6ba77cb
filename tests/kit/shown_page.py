"""Runs the blocks of a page of documentation as its reader does: in one folder, in the page's order or a test's, and none may be left over.

A block marked `console` holds commands and what they print: `…` is any text in its line, alone in a line any lines. A command that ends with ` &`
runs until the test has ended, and an `export` holds for all that follow. A block whose first line is `# NAME.EXT` is a file of the folder.
All others are for the test to take.
"""

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.house.pages import Block, Command, blocks_of, files_of, read_page

READY_S = 60.0
"""For a command in the background to print its first line."""

COMMAND_S = 240.0
"""Limit for a command: those of most pages together take some ten seconds, and ten times as long on a machine that does much else."""

PIP = {"pip install": f"{sys.executable} -m pip install --no-index"}
"""Without a package registry: pip says whether all that a page installs is there."""

ANY_TEXT = re.compile(r"…|\.\.\.")

PORT = r"(?:(?<=127\.0\.0\.1:)|(?<=--port ))[1-9]\d*"
"""The ports of addresses of this machine, and those of `--port`."""


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether what was printed is what is shown; `…` stands for any text in its line, alone in a line for any lines."""
    parts = []
    for line in shown:
        if ANY_TEXT.fullmatch(line.strip()):
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in ANY_TEXT.split(line.rstrip())) + r"\n")
    return re.fullmatch("".join(parts), "".join(line.rstrip() + "\n" for line in printed)) is not None


def environment() -> dict[str, str]:
    """Return the variables of a page's commands: they find the programs of this interpreter first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}


def run_on_terminal(command: str, folder: Path, limit_s: float = COMMAND_S) -> tuple[int, list[str], str]:
    """Run with stdout on a terminal, as the reader does; returns exit code, lines of stdout, stderr."""
    ours, theirs = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 65_536):
                chunks.append(chunk)
        except OSError:  # Linux says so when the other end is closed
            pass

    reader = threading.Thread(target=read)
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    reader.start()
    try:
        _, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        err = (late.stderr or b"") + f"\nnot ended after {limit_s:g} s".encode()
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(ours)
    return process.returncode, b"".join(chunks).decode().splitlines(), err.decode()


def end_processes_in(folder: Path) -> None:
    """Kill what a page has started in the background and has not ended, because one of its commands failed."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve().is_relative_to(folder):
                os.kill(int(process.name), signal.SIGKILL)


def free_port() -> int:
    """Return a port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def for_this_machine(page: str, replaced: Mapping[str, str]) -> str:
    """Replace these texts of a page, and each port of this machine that is not in them by one on which nobody listens."""
    here = dict(replaced)
    named = "|".join([*map(re.escape, replaced), PORT])
    return re.sub(named, lambda shown: here.setdefault(shown[0], f"{free_port()}"), page)


class ShownPage:
    """A page whose blocks a test runs."""

    def __init__(self, name: str, text: str, folder: Path, limit_s: float) -> None:
        self.name, self.text = name, text
        self.folder = folder
        self.limit_s = limit_s
        self.exports: list[str] = []
        self.ran: list[str] = []
        self.background: list[subprocess.Popen[bytes]] = []
        self.left = [block for block in blocks_of(text) if not block.file]

    def _find(self, part: str) -> Block:
        found = [block for block in self.left if part in block.text]
        assert len(found) == 1, f"{self.name}: {len(found)} blocks with {part}"
        return found[0]

    def take(self, part: str) -> str:
        """Return the block with this text, which the test runs by itself, or which another test runs."""
        block = self._find(part)
        self.left.remove(block)
        return block.text

    def commands(self, part: str) -> list[Command]:
        """Return the commands of the block with this text."""
        return self._find(part).commands

    def all_commands(self) -> Iterator[Command]:
        """Take the blocks of commands that are left, in the page's order, and yield their commands for the test to run."""
        for block in [each for each in self.left if each.commands]:
            yield from block.commands
            self.left.remove(block)

    def shell(self, command: str) -> tuple[int, list[str], str]:
        """Run a command in the page's folder; returns exit code, lines of stdout, stderr."""
        return run_on_terminal("\n".join([*self.exports, command]), self.folder, self.limit_s)

    def run_command(self, command: Command) -> list[str]:
        """Run a command; returns the lines that it printed.

        Raises:
            AssertionError: it ends or prints otherwise than the page shows.
        """
        if command.text.startswith("export "):
            self.exports.append(command.text)
            return []
        if command.text.endswith(" &"):
            return [self.start(command.text.removesuffix(" &"))]
        code, out, err = self.shell(command.text)
        seen = "\n".join([f"{self.name}:{command.line}: $ {command.text}", *out, err, self._logs()])
        assert code == command.code, f"ended with {code}: {seen}"
        assert not command.output or matches(command.output, out), seen
        self.ran.append(command.text)
        return out

    def run(self, part: str) -> list[list[str]]:
        """Run the commands of the block with this text; returns the lines that each printed."""
        commands = self.commands(part)
        self.take(part)
        return [self.run_command(each) for each in commands]

    def run_all(self) -> int:
        """Run the commands of all blocks that are left, in the page's order; returns their number."""
        return len([self.run_command(command) for command in self.all_commands()])

    def start(self, command: str) -> str:
        """Run a command in the background; returns the first line that it prints, which says that it serves."""
        log = self.folder / f"background-{len(self.background)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join([*self.exports, f"exec {command}"])],
                cwd=self.folder,
                env={**environment(), "PYTHONUNBUFFERED": "1"},
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
def shown(
    name: str,
    folder: Path,
    replaced: Mapping[str, str] | None = None,
    *,
    section: str = "",
    files_from: str = "",
    limit_s: float = COMMAND_S,
) -> Iterator[ShownPage]:
    """Write the files of a page, and run it inside; at the end each of its blocks must have run.

    Args:
        replaced: what is shown → what is run, where this machine needs something else than the reader's. Each must be shown.
        section: only this section of the page.
        files_from: another page, whose files the reader of this one has already.
        limit_s: for each command.
    """
    text = read_page(name, section)
    for each in replaced or {}:
        assert each in text, f"{name} does not show {each}"
    text = for_this_machine(text, replaced or {})
    for file, lines in {**(files_of(read_page(files_from)) if files_from else {}), **files_of(text)}.items():
        (folder / file).write_text(lines)
    page = ShownPage(name, text, folder, limit_s)
    try:
        yield page
    finally:
        page.end()
    assert not page.left, f"{name}: no test runs {page.left}"

"""Texts hold what they say: commands of the README run, links lead somewhere, no file knows one person's machine."""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.integration.proxies import free_port

from snapline.chaos.preload import reason_against

pytestmark = pytest.mark.processes

PAGE_S = 240
"""Limit for all commands of a page together: they take some ten seconds, and ten times as long on a machine that does much else."""

NOT_RUN = ("make ", "git clone ", "cd ")
"""`make` would run these tests again; the others are about where one is."""

ENDED_WITH = re.compile(r"\(exit code (\d+)\)")
"""A line behind a command's output: what it ends with, if not with 0."""

ANY_TEXT = re.compile(r"…|\.\.\.")


@dataclass
class Command:
    """A command that a page shows, and the output it shows."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)
    code: int = 0


def commands_of(page: str) -> Iterator[Command]:
    """Commands in blocks marked `console`: lines after `$ `, continued after a backslash, then their output."""
    command: Command | None = None
    is_console = is_continued = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if command is not None:
                yield command
            command, is_console = None, line.strip() == "```console"
        elif is_console and is_continued and command is not None:
            command.text += "\n" + line.removeprefix("> ")
            is_continued = line.endswith("\\")
        elif is_console and command is not None and ENDED_WITH.fullmatch(line):
            command.code = int(ENDED_WITH.fullmatch(line)[1])  # type: ignore[index]  # it has matched
        elif is_console and line.startswith("$ "):
            if command is not None:
                yield command
            command, is_continued = Command(number, line[2:]), line.endswith("\\")
        elif is_console and command is not None:
            command.output.append(line)


def files_of(page: str) -> dict[str, str]:
    """Blocks of Python whose first line names a file, such as `# shards.py`."""
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return {name: code for code, name in blocks}


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether what was printed is what is shown; `…` stands for any text in its line, alone in a line for any lines."""
    parts = []
    for line in shown:
        if ANY_TEXT.fullmatch(line.strip()):
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in ANY_TEXT.split(line.rstrip())) + r"\n")
    return re.fullmatch("".join(parts), "".join(line.rstrip() + "\n" for line in printed)) is not None


def run_on_terminal(command: str, folder: Path, limit_s: float = PAGE_S) -> tuple[int, list[str], str]:
    """Run with stdout on a terminal, as the reader does; returns exit code, lines of stdout, stderr."""
    ours, theirs = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 65_536):
                chunks.append(chunk)
        except OSError:  # Linux says so when the other end is closed
            pass

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}
    reader = threading.Thread(target=read)
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
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


def with_free_ports(page: str) -> str:
    """Replace the ports of addresses of this machine that a page names, and those of `--port`, by ports on which nobody listens."""
    ports: dict[str, int] = {}
    named = r"(?:(?<=127\.0\.0\.1:)|(?<=--port ))[1-9]\d*"
    return re.sub(named, lambda port: str(ports.setdefault(port[0], free_port())), page)


def run_command(command: Command, folder: Path, page: str, limit_s: float = PAGE_S) -> None:
    """Run a command of a page, and compare how it ends, and what it prints, with what the page shows."""
    code, out, err = run_on_terminal(command.text, folder, limit_s)
    seen = f"{page}:{command.line}: $ {command.text}\nended with {code}, and printed\n" + "\n".join([*out, err])
    assert code == command.code, seen
    assert not command.output or matches(command.output, out), seen


def run_as_shown(path: Path, folder: Path) -> int:
    """Write a page's files into the folder, run its commands there, and compare what they print with what it shows; returns how many there were."""
    page = with_free_ports(path.read_text())
    commands = [command for command in commands_of(page) if not command.text.startswith(NOT_RUN)]
    for file, text in files_of(page).items():
        (folder / file).write_text(text)
    for command in commands:
        run_command(command, folder, path.name)
    return len(commands)


SLOW = (pytest.mark.slow,)
PAGES = (
    "README.md",
    "docs/clients.md",
    "docs/dead-letters.md",
    "docs/dependencies.md",
    "docs/does-not-end.md",
    "docs/durable-turns.md",
    "docs/effects.md",
    "docs/examples.md",
    "docs/first-fleet.md",
    "docs/forks.md",
    "docs/going-back.md",
    "docs/recorded-answers.md",
    "docs/tutorial.md",
    pytest.param("docs/crash-kit.md", marks=pytest.mark.skipif(bool(reason_against()), reason=reason_against())),
    pytest.param("docs/testing.md", marks=SLOW),
)
"""Pages whose commands run, each in an empty folder with its files; those that wait for long, with `make test-slow`."""


@pytest.mark.timeout(PAGE_S + 10)
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_and_print_what_it_shows(root: Path, tmp_path: Path, name: str) -> None:
    try:
        assert run_as_shown(root / name, tmp_path), f"{name} shows no commands"
    finally:
        end_processes_in(tmp_path)


def test_a_newcomer_sees_install_and_code_in_the_first_thirty_lines(root: Path) -> None:
    top = "\n".join((root / "README.md").read_text().splitlines()[:30])
    for word in (
        "`pip install .`",
        "Python 3.11",
        "](#next)",
        "# ping.py",
        "@snapline.handler",
        "fleet = snapline.Fleet(",
    ):
        assert word in top, word
    assert top.endswith("\n```"), "the whole example"


PAGE = """
```console
$ printf 'a\\nb c\\n'
a
b …
$ test -t 1 && \\
> echo terminal
...
$ exit 3
(exit code 3)
```
```python
# shown.py
print(1)
```
```python
print(2)
```
"""


def test_commands_and_files_are_found_in_a_page() -> None:
    first, second, third = commands_of(PAGE)
    assert (third.text, third.output, third.code, first.code) == ("exit 3", [], 3, 0)
    assert (first.text, first.output) == (r"printf 'a\nb c\n'", ["a", "b …"])
    assert (second.text, second.output) == ("test -t 1 && \\\necho terminal", ["..."])
    assert files_of(PAGE) == {"shown.py": "# shown.py\nprint(1)\n"}


def test_addresses_of_this_machine_get_free_ports() -> None:
    first, second, third = with_free_ports("127.0.0.1:7400, --port 7400, 127.0.0.1:0").split(", ")
    assert first[10:] == second[7:] != "7400" and third == "127.0.0.1:0"


def test_commands_run_on_a_terminal(tmp_path: Path) -> None:
    first, second, _ = commands_of(PAGE)
    assert run_on_terminal(first.text, tmp_path) == (0, ["a", "b c"], "")
    assert run_on_terminal(second.text, tmp_path) == (0, ["terminal"], "")


@pytest.mark.parametrize(
    ("shown", "printed", "is_match"),
    [
        (["a"], ["a  "], True),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (["a … c"], ["a b c"], True),
        (["a … c"], ["a b d"], False),
        (["a", "…", "d"], ["a", "b", "c", "d"], True),
        (["a", "…", "d"], ["a", "d"], True),
        (["…"], [], True),
        (["a.c"], ["abc"], False),
    ],
)
def test_wildcards(shown: list[str], printed: list[str], is_match: bool) -> None:
    assert matches(shown, printed) is is_match


def test_links_between_our_pages_lead_somewhere(root: Path, files: list[Path]) -> None:
    offences = []
    for page in (path for path in files if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
                offences.append(f"{page.relative_to(root)} → {target}")
    assert not offences, "\n".join(offences)


def test_no_file_knows_the_machine_it_was_written_on(root: Path, files: list[Path]) -> None:
    places = {Path.home().as_posix(), *("/" + name for name in ("work", "root"))}
    if len(root.parts) > 2:
        places.add(root.parent.as_posix())
    personal = re.compile(
        rf"(?<![\w.}}])(?:{'|'.join(re.escape(place) for place in sorted(places) if len(place) > 1)}|/(?:home|Users)/\w+)/"
    )
    offences = []
    for path in files:
        if path.is_symlink():
            assert not path.readlink().is_absolute(), path
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(root)
        offences += [
            f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if personal.search(line)
        ]
    assert not offences, "\n".join(offences)


def test_the_tools_of_these_tests_are_there() -> None:
    assert shutil.which("bash") and shutil.which("curl") and shutil.which("git")

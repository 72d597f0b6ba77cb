"""Runs the program that a crash kit tests. This process loads the program once, and forks a child process for each run of the
program. A run is called a *life*.

The process is started as `python -m snapline.chaos.crash_child FILE FUNCTION` by `crash_kit.py`, which provides its environment and
standard input. Each line of standard input names a folder. The program runs with this folder in a new child process. The child process
writes the program's notes and result to standard output, one line of JSON each. Each line is written by one system call, so a note that was
written before a SIGKILL is not lost. Only child processes change files below the root folder, so only child processes are killed.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapline.chaos.preload import FaultCounters

OUT = 1


def say(to: int, word: str, of: object) -> None:
    """Write one line of JSON with a single system call."""
    os.write(to, json.dumps([word, of]).encode() + b"\n")


class CrashNote:
    """Lets the program under test report its progress as notes. The parameter `of` may be any name, such as the name of a step, an input or
    a payment."""

    def __init__(self, to: int, counters: FaultCounters) -> None:
        self._to = to
        self._counters = counters

    def _say(self, word: str, of: object) -> None:
        """Write a note. The process can also be killed just before it writes a note, after the program has made the change that the note
        reports."""
        number = self._counters.get("changes") + 1
        self._counters.set("changes", number)
        if number == self._counters.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        say(self._to, word, of)

    def found(self, *of: str) -> None:
        """Write a note that lists the items in the opened store. Without arguments, the note says that the store is empty. Call this method
        once per run."""
        self._say("found", of)

    def began(self, of: str) -> None:
        """Write a note that the program now begins the step `of`."""
        self._say("began", of)

    def kept(self, of: str) -> None:
        """Write a note that the store has confirmed `of` as durable."""
        self._say("kept", of)


def load(file: str, function: str) -> Callable[[Path, CrashNote], Any]:
    """Load the program from a file, which need not be on the import path."""
    spec = importlib.util.spec_from_file_location("_crash_program", file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    program: Callable[[Path, CrashNote], Any] = getattr(module, function)
    return program


def _live(program: Callable[[Path, CrashNote], Any], folder: str, to: int, counters: FaultCounters) -> None:
    """Run the program once in this child process. This function never returns."""
    try:
        result = program(Path(folder), CrashNote(to, counters))
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        say(to, "done", json.dumps(result, sort_keys=True, default=repr))
    except BaseException as error:
        say(to, "failed", f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        os._exit(0)


def main() -> None:
    to = os.dup(OUT)
    os.dup2(2, OUT)  # the program's own output must not be read as notes
    counters = FaultCounters(Path(os.environ["SNAPLINE_CHAOS_CONTROL"]))
    program = load(*sys.argv[1:])
    say(to, "ready", "")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _live(program, line.strip(), to, counters)
        say(to, "pid", child)
        _, status = os.waitpid(child, 0)
        say(to, "ended", -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()

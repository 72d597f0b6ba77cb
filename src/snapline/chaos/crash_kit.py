"""Checks that a program resumes rightly from its own store: kills it at every write, and reads afterwards what it finds. For other people's stores,
too.

    def program(folder, note):          # opens its store in `folder`, goes on from what is there, and returns when it has ended
        with Store(folder) as store:
            note.found(*store.steps())
            for step in PLAN[len(store.steps()):]:
                note.began(step)
                ...
                store.save(step)
                note.kept(step)
            return store.state()

    def test_it_resumes(snapline_crash_kit):
        snapline_crash_kit.check(program)

Theory of operation. An undisturbed life shows how many moments there are: changes to files, which are writes, syncs, truncations, and names that
are given and taken away (`preload.c`, which is between the process and the C library), and words. Then there is one story for each of them. Its
first life is killed with SIGKILL just before that change, or that word; the second, which has to resume, at a moment that is drawn; the third and
the fourth are
left alone: the program has to end, and to end again without doing anything twice. Their notes are judged (`crash_judge.py`). A kill leaves what the
kernel has received: that a machine loses power, and what was not synced with it, is not in it.

Lives are forks of one process that has loaded the program (`crash_child.py`), so a story takes as long as the program's work.
"""

import inspect
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec

from snapline.chaos import crash_child, preload
from snapline.chaos.control import FaultCounters
from snapline.chaos.crash_judge import CrashFinding, Life, judge
from snapline.errors import ExternalFailureError, UsageError

if TYPE_CHECKING:
    from snapline.chaos.crash_child import CrashNote

POINTS = 200
"""Stories of a check that does not say: of a program with more moments so many of them, evenly."""

LIFE_S_MAX = 60.0
"""Time limit of one life: a longer one hangs."""

START_S_MAX = 120.0
"""Time limit for loading the program."""

Program = Callable[[Path, "CrashNote"], Any]


class CrashReport(msgspec.Struct, frozen=True):
    """Report of a check: what was tried, and what was found.

    Attributes:
        moments: of the program undisturbed: changes to files, and words.
        points: the moments at which first lives were killed.
        kills: lives that were killed, second ones included.
        findings: what must not be.
    """

    moments: int
    points: tuple[int, ...]
    kills: int
    findings: tuple[CrashFinding, ...] = ()


class CrashKit:
    """Crash kit that the fixture `snapline_crash_kit` gives to a test."""

    def run(self, program: Program, *, points: int | Iterable[int] = POINTS, seed: int = 0) -> CrashReport:
        """Kill a program at its writes and notes, and judge what it reports.

        Args:
            program: a function of a module (or an `async` one) that takes a folder, which is empty at first, and a `CrashNote`. It reports with
                `note.found` what its store holds, and must return something that JSON or its `repr` can represent.
            points: how many moments at most, or which, from 1.
            seed: what else is drawn.

        Raises:
            UsageError: the program cannot be run by itself, or fails undisturbed.
            ExternalFailureError: there is no C compiler here, or the process does not start.
        """
        file, name = _place(program)
        if preload.reason_against():
            raise ExternalFailureError(preload.reason_against())
        with (
            tempfile.TemporaryDirectory(prefix="snapline-crash-") as folder,
            _Lives(Path(folder).resolve(), file, name) as lives,
        ):
            return _stories(lives, points, random.Random(seed), name)

    def check(self, program: Program, *, points: int | Iterable[int] = POINTS, seed: int = 0) -> CrashReport:
        """Run like `run`, and raise an AssertionError that names the findings, if there are any."""
        report = self.run(program, points=points, seed=seed)
        if report.findings:
            raise AssertionError(said(report, program.__name__))
        return report


def said(report: CrashReport, name: str) -> str:
    """The findings, in words."""
    shown = [f"  {each.kind}, {_when(each)}: {each.sentence}" for each in report.findings[:10]]
    more = len(report.findings) - len(shown)
    head = f"{name} does not resume rightly ({report.kills} kills at {len(report.points)} of {report.moments} moments)"
    last = [f"  … and {more} more"] if more else []
    return "\n".join([head, *shown, *last, f"one of them again: points=[{report.findings[0].at}]"])


def _when(finding: CrashFinding) -> str:
    return f"killed at {finding.at}" if finding.at else "without a kill"


def _stories(lives: "_Lives", points: int | Iterable[int], chance: random.Random, name: str) -> CrashReport:
    whole = [lives.live("whole", 0), lives.live("whole", 0)]
    moments = lives.moments
    if whole[0].ended != "done":
        raise UsageError(f"{name} does not work undisturbed: {whole[0].result or whole[0].ended}")
    wrong = judge(whole, whole[0].result)
    if wrong:
        return CrashReport(moments, (), 0, tuple(wrong))
    if not lives.changes:
        raise UsageError(f"{name} changes no file below its folder: give its store a path there")
    chosen = _chosen(points, moments)
    findings: list[CrashFinding] = []
    kills = 0
    for point in chosen:
        story = [lives.live(f"at-{point}", at) for at in (point, chance.randint(1, moments), 0, 0)]
        lives.forget(f"at-{point}")
        kills += sum(life.ended == "killed" for life in story)
        findings += judge(story, whole[0].result)
    return CrashReport(moments, tuple(chosen), kills, tuple(findings))


def _chosen(points: int | Iterable[int], moments: int) -> list[int]:
    if not isinstance(points, int):
        return sorted(set(points))
    count = min(points, moments)
    return sorted({1 + index * moments // count for index in range(count)})


def _place(program: Program) -> tuple[str, str]:
    name, file = getattr(program, "__qualname__", ""), inspect.getsourcefile(program)
    if not name.isidentifier() or file is None:
        raise UsageError(f"{name or program!r} is no function of a module: a process of its own could not load it")
    return file, name


class _Said:
    """Notes of one life so far."""

    def __init__(self, die_at: int) -> None:
        self.pid = self.count = 0
        self._die_at = die_at
        self._found: tuple[str, ...] | None = None
        self._words: list[tuple[str, str]] = []
        self._end, self._result = "failed", "it ended without a word"

    def take(self, word: str, of: Any) -> None:
        if word == "pid":
            self.pid = of
        elif word in ("done", "failed"):
            self._end, self._result = word, of
        else:
            self.count += 1
            if word == "found":
                self._found = (*(self._found or ()), *of)
            else:
                self._words.append((word, of))

    def life(self, status: int) -> Life:
        """`status`: below 0 if a signal has ended it."""
        is_killed = self._die_at > 0 and status == -signal.SIGKILL
        ended, result = ("killed", "") if is_killed else (self._end, self._result)
        return Life(self._die_at, ended, result, self._found, tuple(self._words))


class _Lives:
    """Driver of the process that forks, with its output."""

    def __init__(self, folder: Path, file: str, name: str) -> None:
        self._root = folder / "stores"
        self._root.mkdir()
        self._control = FaultCounters(folder / "control")
        self.moments = self.changes = 0
        """Counts of the longest life so far; changes are those that are no words."""
        added = preload.environment(
            preload.build(folder), control=folder / "control", journal=folder / "journal", root=self._root
        )
        path = os.pathsep.join(each for each in sys.path if each)
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", crash_child.__name__, file, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **added, "PYTHONPATH": path},
        )
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> Self:
        try:
            if self._hear(START_S_MAX) is None:
                raise ExternalFailureError(f"the program is not loaded within {START_S_MAX:g} s")
        except ExternalFailureError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._control.close()
        self._errors.close()

    def live(self, store: str, die_at: int) -> Life:
        """Run one life on a store, which is made if it is not there. `die_at`: the number of a change; 0: let it live."""
        folder = self._root / store
        folder.mkdir(exist_ok=True)
        self._control.set("changes", 0)
        self._control.set("die_at", die_at)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        said, until_s = _Said(die_at), time.monotonic() + LIFE_S_MAX
        while (word := self._hear(until_s - time.monotonic())) is not None:
            if word[0] == "ended":
                self.moments = max(self.moments, self._control.get("changes"))
                self.changes = max(self.changes, self._control.get("changes") - said.count)
                return said.life(word[1])
            said.take(*word)
        with suppress(ProcessLookupError):
            os.kill(said.pid, signal.SIGKILL)
        while (word := self._hear(LIFE_S_MAX)) is not None and word[0] != "ended":
            pass
        return msgspec.structs.replace(said.life(0), ended="hangs", result="")

    def forget(self, store: str) -> None:
        """Remove the store of a finished story."""
        shutil.rmtree(self._root / store, ignore_errors=True)

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._said.put(tuple(json.loads(line)))
        self._said.put(("gone", ""))

    def _hear(self, limit_s: float) -> tuple[str, Any] | None:
        try:
            word, of = self._said.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return None
        if word == "gone":
            raise ExternalFailureError(f"the process in which the program lives has ended: {self._told()}")
        return word, of

    def _told(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else "it says nothing"

"""Checks that a program resumes correctly from its own store. The crash kit kills the program at every write, and checks the data that the
next run finds.

The crash kit works with any store.

    def program(folder, note):          # opens its store in `folder`, resumes from its contents, and returns when it is done
        with Store(folder) as store:
            note.found(*store.steps())
            for step in PLAN[len(store.steps()):]:
                note.began(step)
                store.save(step)
                note.kept(step)
            return store.state()

    def test_it_resumes(snapline_crash_kit):
        snapline_crash_kit.check(program)

Theory of operation. A first run without kills counts the *moments* at which the program can be killed. A moment is either a note of the
program or a change to a file. A change is a write, a sync, a truncation, or the creation or removal of a file name (`preload.c` intercepts
the C library). Then the kit runs one *story* for each moment. A story consists of four runs of the program, which are called *lives*.

1. The first life is killed with SIGKILL just before the story's moment.
2. The second life must resume, and is killed at a random moment.
3. The third life is not killed and must finish the program's work.
4. The fourth life must finish again without repeating any work.

`judge` checks the notes of the four lives. Data that the kernel received before a kill is kept. The kit does not simulate the loss of
unsynced data in a power cut.

Each life is a child process, forked from one process that has loaded the program (`crash_child.py`). So a story takes only as long as the
program's own work.

All lives of a story use the same store. Each life writes notes: items that it found in the store, items that it begins, and items that the
store has confirmed as durable ("kept"). A store is correct if all of the following conditions hold.

* No life fails or hangs, because a store must still open after a crash (*broken*).
* Every later life that reports the store's contents finds all kept items (*lost*), and no item that was never begun (*invented*).
* No later life begins an item again that an earlier life reported as kept (*repeated*). So no durable step is repeated, and each input is
  consumed once.
* The program returns the same result as without a kill (*different*), and a further run changes nothing (*unsettled*).
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
from snapline.chaos.preload import FaultCounters
from snapline.errors import ExternalFailureError, UsageError

if TYPE_CHECKING:
    from snapline.chaos.crash_child import CrashNote


class Life(msgspec.Struct, frozen=True):
    """The observations of one life, that is, of one run of the program.

    Attributes:
        killed_at: number of the moment just before which the life was killed, or 0 if the life was not killed.
        ended: how the life ended: "killed", "done", "failed" or "hangs".
        result: the program's result as JSON, or its error message.
        found: items that the program found in the store, or None if it did not report them.
        words: the remaining notes in order, each as a pair of "began" or "kept" and the item.
    """

    killed_at: int
    ended: str
    result: str = ""
    found: tuple[str, ...] | None = None
    words: tuple[tuple[str, str], ...] = ()


class CrashFinding(msgspec.Struct, frozen=True):
    """A defect of the store that a story has revealed.

    Attributes:
        kind: violated condition: "broken", "lost", "invented", "repeated", "different" or "unsettled".
        at: moment at which the first life of the story was killed.
        sentence: description of the defect.
    """

    kind: str
    at: int
    sentence: str


def judge(lives: list[Life], undisturbed: str) -> list[CrashFinding]:
    """Return the defects that a story has revealed. `undisturbed` is the result that the program returns if it is not killed."""
    at = lives[0].killed_at
    broken = [
        CrashFinding("broken", at, f"life {number} {'hangs' if life.ended == 'hangs' else f'fails: {life.result}'}")
        for number, life in enumerate(lives, 1)
        if life.ended in ("failed", "hangs")
    ]
    findings = broken or [*_note_findings(lives, at), *_end_findings(lives, at, undisturbed)]
    return list({(each.kind, each.sentence): each for each in findings}.values())


def _note_findings(lives: list[Life], at: int) -> list[CrashFinding]:
    findings = []
    begun: dict[str, None] = {}
    kept: dict[str, int] = {}
    for number, life in enumerate(lives, 1):
        kept_before = dict(kept)
        visible = kept_before if life.found is None else dict.fromkeys(life.found)
        for item in [x for x in kept_before if x not in visible]:
            findings.append(
                CrashFinding(
                    "lost", at, f"{item} was kept in life {kept_before[item]}, and life {number} does not find it"
                )
            )
        for item in [x for x in visible if x not in begun and x not in kept_before]:
            findings.append(CrashFinding("invented", at, f"life {number} finds {item}, which was never begun"))
        for word, item in life.words:
            if word == "began" and item in kept_before:
                findings.append(
                    CrashFinding(
                        "repeated", at, f"{item} was kept in life {kept_before[item]}, and life {number} does it again"
                    )
                )
            if word == "began":
                begun[item] = None
            else:
                kept.setdefault(item, number)
    return findings


def _end_findings(lives: list[Life], at: int, undisturbed: str) -> list[CrashFinding]:
    last, again = lives[-2:]
    if last.result != undisturbed:
        return [
            CrashFinding("different", at, f"it ends with {_clip(last.result)}, undisturbed with {_clip(undisturbed)}")
        ]
    if again.result != last.result:
        return [
            CrashFinding(
                "unsettled", at, f"once more after its end it gives {_clip(again.result)}, not {_clip(last.result)}"
            )
        ]
    return []


def _clip(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


POINTS = 200
"""Default number of stories. If a program has more moments, this number of moments is chosen evenly."""

LIFE_S_MAX = 60.0
"""Time limit of one life. A life that takes longer counts as hanging."""

START_S_MAX = 120.0
"""Time limit for loading the program."""

Program = Callable[[Path, "CrashNote"], Any]


class CrashReport(msgspec.Struct, frozen=True):
    """The report of a check: the kills that were tried and the defects that were found.

    Attributes:
        moments: number of file changes and notes in the run without kills.
        points: moments at which the first lives of the stories were killed.
        kills: number of killed lives, including each story's second life.
        findings: the defects that were found.
    """

    moments: int
    points: tuple[int, ...]
    kills: int
    findings: tuple[CrashFinding, ...] = ()


class CrashKit:
    """The crash kit that the fixture `snapline_crash_kit` provides to a test."""

    def run(self, program: Program, *, points: int | Iterable[int] = POINTS, seed: int = 0) -> CrashReport:
        """Kill a program at its writes and notes, and check the notes of the runs.

        Args:
            program: a function defined in a module. It may be `async`. The program receives a folder, which is empty at first, and a
                `CrashNote`. The program reports the contents of its store with `note.found`. Its result must be convertible to JSON or have
                a stable `repr`.
            points: maximum number of moments at which the program is killed, or the list of these moments. Moments are numbered from 1.
            seed: seed for the random moments.

        Raises:
            UsageError: If the program cannot be loaded in another process, or fails without a kill.
            ExternalFailureError: If this machine has no C compiler, or the process does not start.
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
        """Check the program as `run` does. If any defects are found, raise an AssertionError that lists them."""
        report = self.run(program, points=points, seed=seed)
        if report.findings:
            raise AssertionError(said(report, program.__name__))
        return report


def said(report: CrashReport, name: str) -> str:
    """Return the defects as text."""
    shown = [f"  {finding.kind}, {_when(finding)}: {finding.sentence}" for finding in report.findings[:10]]
    more = len(report.findings) - len(shown)
    head = f"{name} does not resume rightly ({report.kills} kills at {len(report.points)} of {report.moments} moments)"
    last = [f"  … and {more} more"] if more else []
    return "\n".join([head, *shown, *last, f"one of them again: points=[{report.findings[0].at}]"])


def _when(finding: CrashFinding) -> str:
    return f"killed at {finding.at}" if finding.at else "without a kill"


def _stories(lives: "_Lives", points: int | Iterable[int], chance: random.Random, name: str) -> CrashReport:
    unkilled = [lives.live("whole", 0), lives.live("whole", 0)]
    moments = lives.moments
    if unkilled[0].ended != "done":
        raise UsageError(f"{name} does not work undisturbed: {unkilled[0].result or unkilled[0].ended}")
    findings_unkilled = judge(unkilled, unkilled[0].result)
    if findings_unkilled:
        return CrashReport(moments, (), 0, tuple(findings_unkilled))
    if not lives.changes:
        raise UsageError(f"{name} changes no file below its folder: give its store a path there")
    chosen = _chosen(points, moments)
    findings: list[CrashFinding] = []
    kills = 0
    for point in chosen:
        story = [lives.live(f"at-{point}", at) for at in (point, chance.randint(1, moments), 0, 0)]
        lives.forget(f"at-{point}")
        kills += sum(life.ended == "killed" for life in story)
        findings += judge(story, unkilled[0].result)
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


class _LifeNotes:
    """The notes that one life has written so far."""

    def __init__(self, die_at: int) -> None:
        self.pid = self.count = 0
        self._die_at = die_at
        self._found: tuple[str, ...] | None = None
        self._words: list[tuple[str, str]] = []
        self._end, self._result = "failed", "it ended without output"

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
        """Return the life. `status` is the exit status of the process. The status is negative if a signal ended the process."""
        is_killed = self._die_at > 0 and status == -signal.SIGKILL
        ended, result = ("killed", "") if is_killed else (self._end, self._result)
        return Life(self._die_at, ended, result, self._found, tuple(self._words))


class _Lives:
    """Controls the process that forks the lives, and reads this process's output."""

    def __init__(self, folder: Path, file: str, name: str) -> None:
        self._root = folder / "stores"
        self._root.mkdir()
        self._control = FaultCounters(folder / "control")
        self.moments = self.changes = 0
        """Counts of the longest life so far. `changes` counts the moments that are not notes."""
        added = preload.environment(
            preload.build(folder), control=folder / "control", journal=folder / "journal", root=self._root
        )
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", crash_child.__name__, file, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **added, "PYTHONPATH": path},
        )
        self._messages: queue.Queue[tuple[str, Any]] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> Self:
        try:
            if self._receive(START_S_MAX) is None:
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
        """Run one life on a store. If the store's folder is missing, create it. `die_at` is the moment at which to kill the life, or 0 for
        a life without a kill."""
        folder = self._root / store
        folder.mkdir(exist_ok=True)
        self._control.set("changes", 0)
        self._control.set("die_at", die_at)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        notes, deadline_s = _LifeNotes(die_at), time.monotonic() + LIFE_S_MAX
        while (message := self._receive(deadline_s - time.monotonic())) is not None:
            if message[0] == "ended":
                self.moments = max(self.moments, self._control.get("changes"))
                self.changes = max(self.changes, self._control.get("changes") - notes.count)
                return notes.life(message[1])
            notes.take(*message)
        with suppress(ProcessLookupError):
            os.kill(notes.pid, signal.SIGKILL)
        while (message := self._receive(LIFE_S_MAX)) is not None and message[0] != "ended":
            pass
        return msgspec.structs.replace(notes.life(0), ended="hangs", result="")

    def forget(self, store: str) -> None:
        """Remove the store of a story that has finished."""
        shutil.rmtree(self._root / store, ignore_errors=True)

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._messages.put(tuple(json.loads(line)))
        self._messages.put(("gone", ""))

    def _receive(self, limit_s: float) -> tuple[str, Any] | None:
        try:
            word, of = self._messages.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return None
        if word == "gone":
            raise ExternalFailureError(f"the process in which the program lives has ended: {self._last_error_line()}")
        return word, of

    def _last_error_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else "it says nothing"

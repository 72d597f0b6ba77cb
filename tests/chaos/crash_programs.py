"""Programs with small stores for the crash kit: one that is right, and each other wrong in its own way."""

import json
import os
import signal
import time
from pathlib import Path

from snapline.chaos.crash_child import CrashNote

STEPS = [f"step-{number}" for number in range(5)]


def _read(folder: Path) -> list[str]:
    path = folder / "steps.json"
    found: list[str] = json.loads(path.read_text()) if path.exists() else []
    return found


def _write(folder: Path, steps: list[str]) -> None:
    """All of it or nothing."""
    with (folder / "new").open("w") as file:
        json.dump(steps, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "new", folder / "steps.json")


def right(folder: Path, note: CrashNote) -> list[str]:
    steps = _read(folder)
    note.found(*steps)
    for step in STEPS[len(steps) :]:
        note.began(step)
        steps.append(step)
        _write(folder, steps)
        note.kept(step)
    return steps


async def right_and_asynchronous(folder: Path, note: CrashNote) -> list[str]:
    return right(folder, note)


def torn(folder: Path, note: CrashNote) -> list[str]:
    """Writes over what is there."""
    steps = _read(folder)
    note.found(*steps)
    for step in STEPS[len(steps) :]:
        note.began(step)
        steps.append(step)
        (folder / "steps.json").write_text(json.dumps(steps))
        note.kept(step)
    return steps


def hasty(folder: Path, note: CrashNote) -> list[str]:
    """Promises before it has written."""
    steps = _read(folder)
    note.found(*steps)
    for step in STEPS[len(steps) :]:
        note.began(step)
        steps.append(step)
        note.kept(step)
        _write(folder, steps)
    return steps


def forgetful(folder: Path, note: CrashNote) -> list[str]:
    """Does all of it again."""
    note.found(*_read(folder))
    for count, step in enumerate(STEPS, 1):
        note.began(step)
        _write(folder, STEPS[:count])
        note.kept(step)
    return STEPS


def repeating(folder: Path, note: CrashNote) -> list[str]:
    """Does its last step again when it resumes, to be sure."""
    steps = _read(folder)
    note.found(*steps)
    for step in STEPS[max(0, len(steps) - (0 < len(steps) < len(STEPS))) :]:
        note.began(step)
        steps = sorted({*steps, step})
        _write(folder, steps)
        note.kept(step)
    return steps


def inventive(folder: Path, note: CrashNote) -> list[str]:
    """Writes down that it has done what it is about to do next."""
    steps = _read(folder)
    note.found(*steps)
    for step in STEPS[len(steps) :]:
        steps.append(step)
        _write(folder, steps)
        note.began(step)
        note.kept(step)
    return steps


def counting(folder: Path, note: CrashNote) -> int:
    """Its count and its step are two files."""
    steps, path = _read(folder), folder / "count"
    note.found(*steps)
    for step in STEPS[len(steps) :]:
        note.began(step)
        count = int(path.read_text()) if path.exists() else 0
        (folder / "c").write_text(str(count + 1))
        os.replace(folder / "c", path)
        steps.append(step)
        _write(folder, steps)
        note.kept(step)
    return int(path.read_text())


def once_more(folder: Path, note: CrashNote) -> int:
    """Every start counts."""
    path = folder / "starts"
    starts = len(path.read_bytes()) + 1 if path.exists() else 1
    right(folder, note)
    path.write_bytes(b"x" * starts)
    return starts


def ends_badly(folder: Path, note: CrashNote) -> None:
    raise ValueError("no store")


def writes_nothing(folder: Path, note: CrashNote) -> int:
    return 1


CHANGES = 11


def each_change(folder: Path, note: CrashNote) -> str:
    """One of each kind, by the calls that are made for it. It minds what is there already, if it is not all."""
    if (folder / "end").exists():
        return "end"
    if any(folder.iterdir()):
        raise RuntimeError("somebody was here")
    (folder / "folder").mkdir()
    file = os.open(folder / "file", os.O_CREAT | os.O_RDWR)
    os.write(file, b"0123456789")
    os.pwrite(file, b"ab", 4)
    os.ftruncate(file, 8)
    os.fsync(file)
    os.fdatasync(file)
    os.link(folder / "file", folder / "other")
    os.unlink(folder / "other")
    os.rename(folder / "file", folder / "moved")
    os.close(file)
    (folder / "end").mkdir()
    return "end"


def talks_for_ever(folder: Path, note: CrashNote) -> None:
    _write(folder, [])
    while True:
        note.began("more")
        time.sleep(0.01)


def takes_all_along(folder: Path, note: CrashNote) -> None:
    os.kill(os.getppid(), signal.SIGKILL)

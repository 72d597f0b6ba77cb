"""Find and read simulation reports in the given folders. Files outside the given folders are never read.

    FOLDER/…/result.json      a run, with other files in the same folder (`sim/report/run_folder.py`)
    FOLDER/…/shrunk/          the shrunk run: the smallest run found that shows the same problem
    FOLDER/…/*-sweep.json     a sweep; other files that contain the document of a sweep are also found

Reports are untrusted. Files are read only up to a size limit, and a trace is used only after its unpacked size has been checked. Nothing in
a report is executed, all content is shown as text, and the view generates pages and pictures itself. A report's address is its path below a
given folder, and links that lead out of the folder are rejected.

Missing values in a document are replaced by neutral defaults.
"""

import contextlib
import gzip
import os
import stat
import tomllib
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from snapline.errors import NotFoundError, UsageError
from snapline.sim.report.run_folder import StoredRun, read_choices, read_recording, read_result
from snapline.sim.scenario import parse_scenario
from snapline.view.display_text import size


class FoundViolation(msgspec.Struct, frozen=True):
    """Guarantee violated in a run."""

    oracle: str = ""
    guarantee: str = ""
    t_ns: int = 0
    text: str = ""


class RunHead(msgspec.Struct, frozen=True):
    """Fields of `result.json` that the list of runs shows."""

    kind: str
    name: str
    seed: int
    verdict: str
    violations: tuple[FoundViolation, ...] = ()
    pending: tuple[str, ...] = ()
    error: str = ""
    messages: int = 0
    virtual_ns: int = 0
    commit: str = ""

    @property
    def why(self) -> str:
        """Return the run's first problem (a violation, a pending condition or an error) as text, or "" if there is none."""
        if self.violations:
            return self.violations[0].text
        return self.pending[0] if self.pending else self.error.strip().rpartition("\n")[2]

    @property
    def oracles(self) -> str:
        """Return the names of the oracles that detected a violation."""
        return ", ".join(dict.fromkeys([f"{each.guarantee} {each.oracle}".strip() for each in self.violations]))


class FoundRun(msgspec.Struct, frozen=True):
    """Run found in one of the folders.

    Attributes:
        place: the part of the run's address below `/simulation/…`. The part consists of the number of the given folder and the path below
            that folder.
        written_s: modification time of the report's file, in seconds since 1970.
        protocol: name of the protocol, or of the fleet's own module that implements it.
        shrunk: `place` of the shrunk run, or "" if there is none.
        of: `place` of the original run if this is a shrunk run, otherwise "".
    """

    place: str
    head: RunHead
    written_s: float = 0.0
    protocol: str = ""
    shrunk: str = ""
    of: str = ""


class SweepFound(msgspec.Struct, frozen=True):
    """Finding of a sweep, with the seeds whose runs show it."""

    verdict: str = ""
    oracle: str = ""
    guarantee: str = ""
    count: int = 0
    seeds: tuple[int, ...] = ()
    text: str = ""
    repeat: str = ""


class SweepFacts(msgspec.Struct, frozen=True):
    """The output of `snapline sim sweep -o json`."""

    kind: str
    name: str
    verdict: str = ""
    runs: int = 0
    verdicts: dict[str, int] = {}
    findings: tuple[SweepFound, ...] = ()
    never_hit: tuple[str, ...] = ()
    checked: int = 0
    divergences: tuple[dict[str, object], ...] = ()
    is_stopped: bool = False
    elapsed_s: float = 0.0
    messages: int = 0


class FoundSweep(msgspec.Struct, frozen=True):
    """Sweep found in one of the folders. The fields have the same meaning as in `FoundRun`."""

    place: str
    facts: SweepFacts
    written_s: float = 0.0


class FoundReports(msgspec.Struct, frozen=True):
    """Reports found in the folders.

    Attributes:
        runs, sweeps: reports that were read, newest first.
        is_cut: whether the search reached its limit and stopped early.
        older: number of older runs found but not read.
        unreadable: number of files that are damaged, or that this release cannot interpret as reports.
    """

    runs: tuple[FoundRun, ...] = ()
    sweeps: tuple[FoundSweep, ...] = ()
    is_cut: bool = False
    older: int = 0
    unreadable: int = 0


_Known = TypeVar("_Known")

RESULT, CONFIG, TRACE, STEPS, SHRUNK = "result.json", "config.toml", "trace.jsonl.gz", "steps.txt", "shrunk"
COMPANION_FILES = ("timeline.json", "choices.json")
FLEET_FILES = frozenset({"coordinator.json", "launcher.lock"})
"""Files that identify a fleet's folder. The search skips such a folder, because its store has thousands of files and no report."""

DEPTH_MAX, ENTRIES_MAX = 5, 50_000
"""Largest number of levels searched below a given folder, and of directory entries read in total. Reading this many entries takes about a
second."""

RUNS_MAX, SWEEPS_MAX = 500, 100
"""Largest numbers of runs and sweeps in the lists, which contain the newest ones. The limits bound the time, because each file must be
read."""

FILE_BYTES_MAX = 16 << 20
"""Largest size of a document. The document of a sweep has some 100 KiB, and the result of a run has at most 1 MiB."""

TRACE_BYTES_MAX = 128 << 20
"""Largest unpacked size of a trace, which is about a million events. Unpacking a larger file stops at this size."""

CONFIG_BYTES_MAX = 1 << 20
STEPS_BYTES_MAX = 1 << 20


class SimReports:
    """Reads the reports in the folders. All methods block, so they must be called in a thread."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Set the folders to search. Raise UsageError if a path is not a folder."""
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"--reports {folder} is no folder")
        self._roots = [folder.resolve() for folder in folders]
        self.names = [str(folder) for folder in folders]
        self._heads: dict[Path, tuple[int, FoundRun | None]] = {}

    # ---- lists ---------------------------------------------------------------------------------------------------

    def found(self) -> FoundReports:
        """Search the folders for runs and sweeps, newest first."""
        results: list[tuple[float, int, Path]] = []
        documents: list[tuple[float, int, Path]] = []
        is_cut = False
        for number, root in enumerate(self._roots):
            walk = _Walk(root)
            for path, written_s in walk.documents():
                (results if path.name == RESULT else documents).append((written_s, number, path))
            is_cut |= walk.is_cut
        results.sort(reverse=True)
        documents.sort(reverse=True)
        runs = [self._run(*each) for each in results[:RUNS_MAX]]
        sweeps = [self._sweep(*each) for each in documents[:SWEEPS_MAX]]
        self._heads = {path: self._heads[path] for _, _, path in results[:RUNS_MAX] if path in self._heads}
        return FoundReports(
            runs=tuple(each for each in runs if each is not None),
            sweeps=tuple(each for each in sweeps if each is not None),
            is_cut=is_cut or len(documents) > SWEEPS_MAX,
            older=max(0, len(results) - RUNS_MAX),
            unreadable=runs.count(None),
        )

    def _run(self, written_s: float, number: int, path: Path) -> FoundRun | None:
        """Read the summary of a run. Return None if the file is unreadable."""
        folder, written_ns = path.parent, int(written_s * 1e9)
        known = self._heads.get(path)
        if known is None or known[0] != written_ns:
            try:
                head: FoundRun | None = self._read_head(written_s, number, folder)
            except (UsageError, NotFoundError):
                head = None
            known = self._heads[path] = (written_ns, head)
        if known[1] is None:
            return None
        has_shrunk = folder.name != SHRUNK and (folder / SHRUNK / RESULT).is_file()
        shrunk = self._place(number, folder / SHRUNK) if has_shrunk else ""
        return msgspec.structs.replace(known[1], shrunk=shrunk)

    def _read_head(self, written_s: float, number: int, folder: Path) -> FoundRun:
        head = _decoded(folder / RESULT, RunHead)
        if head.kind != "SimulationResult":
            raise UsageError(f"{folder / RESULT} is no result of a simulation")
        fleet = _config(folder).get("fleet", {})
        protocol = fleet.get("module") or fleet.get("protocol") if isinstance(fleet, dict) else ""
        above = folder.parent
        is_below = folder.name == SHRUNK and above != self._roots[number] and (above / RESULT).is_file()
        return FoundRun(
            place=self._place(number, folder),
            head=head,
            written_s=written_s,
            protocol=str(protocol or ""),
            of=self._place(number, above) if is_below else "",
        )

    def _sweep(self, written_s: float, number: int, path: Path) -> FoundSweep | None:
        try:
            facts = _decoded(path, SweepFacts)
        except (UsageError, NotFoundError):
            return None  # not a report
        return FoundSweep(self._place(number, path), facts, written_s) if facts.kind == "SimulationSweep" else None

    def _place(self, number: int, path: Path) -> str:
        return f"{number}/{path.relative_to(self._roots[number]).as_posix()}"

    # ---- one report -------------------------------------------------------------------------------------------------

    def path_of(self, place: str) -> Path:
        """Return the path of the report whose address is `place`. Raise NotFoundError if no such report exists."""
        number, _, relative = place.partition("/")
        if (
            not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number) < len(self._roots))
            or "\0" in relative
        ):
            raise NotFoundError(f"there is no report {place!r}")
        root = self._roots[int(number)]
        try:
            path = (root / relative).resolve(strict=True) if not Path(relative).is_absolute() else None
        except (OSError, RuntimeError):
            path = None
        if path is None or not path.is_relative_to(root):
            raise NotFoundError(f"there is no report {place!r}")
        return path

    def run(self, place: str) -> FoundRun:
        """Return the summary of a run. Raise NotFoundError if the run does not exist, and UsageError if it is unreadable."""
        folder = self.path_of(place)
        result = folder / RESULT
        if not result.is_file():
            raise NotFoundError(f"there is no report {place!r}")
        number = int(place.partition("/")[0])
        summary = self._run(result.stat().st_mtime, number, result)
        return self._read_head(result.stat().st_mtime, number, folder) if summary is None else summary

    def stored(self, place: str) -> tuple[StoredRun, str]:
        """Return a run, and a sentence that replaces its recording if the recording is too large.

        Raise NotFoundError if the run does not exist, and UsageError if it is unreadable.
        """
        folder = self.path_of(place)
        sizes = {RESULT: FILE_BYTES_MAX, CONFIG: CONFIG_BYTES_MAX, **dict.fromkeys(COMPANION_FILES, FILE_BYTES_MAX)}
        for name, size_max in sizes.items():
            if name in (RESULT, CONFIG) or os.path.lexists(folder / name):
                _check_file(folder / name, size_max)
        result, provenance = read_result(folder / RESULT)
        config = _text(folder / CONFIG, CONFIG_BYTES_MAX)
        is_there = os.path.lexists(folder / TRACE)
        if is_there:
            _check_file(folder / TRACE, TRACE_BYTES_MAX)
        too_large = "" if not is_there or _fits(folder / TRACE) else "The run's trace is too large to be drawn here."
        recording = read_recording(folder / TRACE, folder / COMPANION_FILES[0]) if is_there and not too_large else None
        choices = read_choices(folder / COMPANION_FILES[1]) if os.path.lexists(folder / COMPANION_FILES[1]) else None
        scenario = parse_scenario(config, source=CONFIG)
        return StoredRun(scenario, config, result, provenance, recording, choices), too_large

    def sweep(self, place: str) -> FoundSweep:
        """Return a sweep. Raise NotFoundError if the sweep does not exist, and UsageError if it is unreadable."""
        path = self.path_of(place)
        summary = (
            self._sweep(path.stat().st_mtime, int(place.partition("/")[0]), path) if path.suffix == ".json" else None
        )
        if summary is None:
            raise NotFoundError(f"there is no sweep {place!r}")
        return summary

    def steps(self, place: str) -> str:
        """Return the log of the shrinking steps, or "" if no log was recorded."""
        path = self.path_of(place) / STEPS
        return _text(path, STEPS_BYTES_MAX) if os.path.lexists(path) else ""


class _Walk:
    """Walks through a folder, up to a maximum number of entries. `is_cut` becomes True when the limit is reached."""

    def __init__(self, root: Path) -> None:
        self.is_cut = False
        self._waiting = [(root, 0)]
        self._left = ENTRIES_MAX

    def documents(self) -> Iterator[tuple[Path, float]]:
        """Yield files that may be reports, with their modification times.

        From a run's folder, only the result is yielded. Do not follow links.
        """
        while self._waiting:
            folder, depth = self._waiting.pop()
            entries = self._entries(folder)
            names = {entry.name for entry in entries}
            if names & FLEET_FILES:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):  # the file was deleted in the meantime
                    if entry.is_dir(follow_symlinks=False):
                        self._enter(entry, depth + 1)
                    elif entry.is_file(follow_symlinks=False) and _is_document(entry.name, names):
                        yield Path(entry.path), entry.stat(follow_symlinks=False).st_mtime

    def _enter(self, entry: "os.DirEntry[str]", depth: int) -> None:
        if depth > DEPTH_MAX:
            self.is_cut = True
        elif not entry.name.startswith("."):
            self._waiting.append((Path(entry.path), depth))

    def _entries(self, folder: Path) -> "list[os.DirEntry[str]]":
        entries: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError), os.scandir(folder) as listed:  # the folder was deleted, or is unreadable
            for entry in listed:
                if self._left <= 0:
                    self.is_cut = True
                    break
                self._left -= 1
                entries.append(entry)
        return entries


def _is_document(name: str, names: Collection[str]) -> bool:
    return name == RESULT if RESULT in names else name.endswith(".json")


def _decoded(path: Path, kind: type[_Known]) -> _Known:
    """Read a report file. Raise NotFoundError if the file does not exist, and UsageError if it is not a report."""
    _check_file(path, FILE_BYTES_MAX)
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path.name} cannot be read: {error}") from error


def _config(folder: Path) -> dict[str, object]:
    try:
        return tomllib.loads(_text(folder / CONFIG, CONFIG_BYTES_MAX))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{CONFIG} cannot be read: {error}") from error


def _text(path: Path, size_max: int) -> str:
    _check_file(path, size_max)
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error


def _check_file(path: Path, size_max: int) -> None:
    """Check that a path is a regular file of at most `size_max` bytes, rather than a link or a pipe."""
    try:
        status = path.lstat()
    except OSError as error:
        raise NotFoundError(f"there is no {path.name} in this report") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path.name} is no file of this report")
    if status.st_size > size_max:
        raise UsageError(f"{path.name} is too large to be shown: {size(status.st_size)}, at most {size(size_max)}")


def _fits(packed: Path) -> bool:
    """Return whether the unpacked size of a trace is within the limit. The trace is unpacked to measure its size, because the size in its
    header may be false."""
    bytes_left = TRACE_BYTES_MAX
    try:
        with gzip.open(packed) as stream:
            while bytes_left > 0:
                part = stream.read(min(bytes_left, 1 << 20))
                if not part:
                    return True
                bytes_left -= len(part)
    except (OSError, EOFError, zlib.error):
        return True  # the reader of the trace reports the error
    return False

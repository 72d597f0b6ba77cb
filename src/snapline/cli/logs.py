"""`snapline logs` shows the output of all processes of a fleet, ordered by time.

A log entry begins with a line that contains a time. This line is either text in snapline's log format or a JSON object with a field `time`.
Lines without a time, such as the lines of a traceback, belong to the preceding log entry.

The order of a process's lines is more reliable than their times. Clocks can be set back, and threads read the clock before they write. So a
log entry is sorted by its *order*, which is the latest time seen so far in the log of its process. The order never decreases within a log,
so merging keeps only one entry per process in memory. The result is the same as that of a stable sort. If a clock is set back by an hour,
all log entries of the following hour therefore share the same order.

The functions that parse lines and merge log entries do no I/O. `ProcessLog` opens the files of one process and reads them from the oldest
to the newest, even while they grow.
"""

import heapq
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from snapline.cli.command import Display, command
from snapline.cli.fleet_locations import folder_of, logs_of
from snapline.cli.output import OutputFormat, document
from snapline.cli.settings import UserSettings
from snapline.cli.up import Context
from snapline.errors import NotFoundError, UsageError
from snapline.security.printable import printable

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

FINAL_ERROR_PREFIXES = ("snapline: ", "Fatal Python error: ")
"""Prefixes of the error line that a process writes before it exits. Such lines have no time, but count as separate entries of level ERROR,
so that filters show them."""

ENTRY_CHARACTERS_MAX = 1 << 20
"""Largest size of an entry in characters. This size limits the memory that endless output without times requires."""

_NS_PER = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:\d\d)?"
_TIMED = re.compile(rf"{_TIME}(?= |$)(?: ({'|'.join(LEVELS)})\b)?(?: ([\w.-]+):(?= |$))?", re.ASCII)
_INSTANT = re.compile(_TIME, re.ASCII)
_AGO = re.compile(r"-?(\d{1,9})([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One log entry of a process.

    Attributes:
        process: name of the process, such as `h1` or `coordinator`.
        order_ns: sort key, which never decreases within the log of one process.
        at_ns: time in the entry, or None if the entry contains no time.
        level: one of LEVELS, or "" if the entry has no level.
        logger: name of the entry's logger, or "" if the entry contains none.
        message: rest of the entry's first line, and all following lines.
        fields: remaining fields of the entry, if the entry is a JSON line.
        text: all lines of the entry, unchanged.
    """

    process: str
    order_ns: int
    at_ns: int | None
    level: str
    logger: str
    message: str
    fields: Mapping[str, object]
    text: str


@dataclass(slots=True)
class _FirstLine:
    """The first line of a log entry, parsed."""

    at_ns: int | None = None
    level: str = ""
    logger: str = ""
    message: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


class EntryReader:
    """Parses one process's lines into entries. An entry is complete when the next entry begins or `end` is called."""

    def __init__(self, process: str, order_ns: int) -> None:
        """Create the reader. `order_ns` is the order of lines that precede the first line with a time."""
        self._process = process
        self._order_ns = order_ns
        self._first: _FirstLine | None = None
        self._lines: list[str] = []
        self._characters = 0
        self._level = ""

    def feed(self, line: str) -> LogEntry | None:
        """Add the next line. If the line begins a new entry, return the previous entry. Otherwise return None."""
        begun = parse_first_line(line)
        is_full = self._characters + len(line) > ENTRY_CHARACTERS_MAX
        if begun is None and not is_full and self._first is not None:
            self._lines.append(line)
            self._characters += len(line) + 1
            return None
        ended = self.end()
        # The rest of a split entry keeps the entry's level.
        self._first = begun or _FirstLine(level=self._level, message=line)
        self._level = self._first.level
        self._order_ns = max(self._order_ns, self._first.at_ns or 0)
        self._lines, self._characters = [line], len(line) + 1
        return ended

    def end(self) -> LogEntry | None:
        """Complete and return the current entry, or return None if there is none. If the next line contains no time, it nevertheless begins
        a new entry."""
        first, self._first, self._characters = self._first, None, 0
        if first is None:
            return None
        return LogEntry(
            process=self._process,
            order_ns=self._order_ns,
            at_ns=first.at_ns,
            level=first.level,
            logger=first.logger,
            message="\n".join([first.message, *self._lines[1:]]),
            fields=first.fields,
            text="\n".join(self._lines),
        )


def merge(streams: Iterable[Iterator[LogEntry]]) -> Iterator[LogEntry]:
    """Merge the log entries of several processes by their order. Entries with equal orders are sorted by the position of their stream in
    `streams`."""
    return heapq.merge(*streams, key=lambda entry: entry.order_ns)


def has_level(entry: LogEntry, level: str) -> bool:
    """Return whether the entry has at least this level, or has no level."""
    return not entry.level or LEVELS.index(entry.level) >= LEVELS.index(level)


def parse_first_line(line: str) -> _FirstLine | None:
    """Parse a line as the first line of an entry. Return None if the line belongs to the previous entry."""
    if line.startswith("{"):
        return _parse_json_line(line)
    if line.startswith(FINAL_ERROR_PREFIXES):
        return _FirstLine(level="ERROR", message=line)
    match = _TIMED.match(line)
    if match is None:
        return None
    at_ns = _nanoseconds(match[1], match[2], match[3])
    if at_ns is None:
        return None
    return _FirstLine(at_ns, match[4] or "", match[5] or "", line[match.end() :].removeprefix(" "))


def first_time(lines: Iterable[str]) -> int | None:
    """Return the first time that the lines contain, or None if they contain none."""
    beginnings = (parse_first_line(line) for line in lines)
    return next((begun.at_ns for begun in beginnings if begun is not None and begun.at_ns is not None), None)


def parse_since(text: str, now_ns: int) -> int:
    """Convert a duration such as `10m` or `-2h`, or an RFC 3339 time, to nanoseconds since 1970. A time without a time zone is local time.

    Raises:
        UsageError: If the text is neither a duration nor a time.
    """
    ago, instant = _AGO.fullmatch(text), _INSTANT.fullmatch(text)
    at_ns = None
    if ago is not None:
        at_ns = now_ns - int(ago[1]) * _NS_PER[ago[2]]
    elif instant is not None:
        at_ns = _nanoseconds(instant[1], instant[2], instant[3])
    if at_ns is None:
        raise UsageError(f"--since {text!r} is no time: write 10m, 2h, 1d or 2026-01-31T12:00:00Z")
    return at_ns


def parse_level(text: str) -> str:
    """Return the entry of LEVELS that `text` names. Case is ignored.

    Raises:
        UsageError: If the text names no level.
    """
    if text.upper() not in LEVELS:
        raise UsageError(f"{text!r} is no level: choose of {', '.join(LEVELS).lower()}")
    return text.upper()


def format_instant(at_ns: int) -> str:
    """Format a time in UTC in RFC 3339 format, with microseconds."""
    return (_EPOCH + timedelta(microseconds=at_ns // 1000)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _parse_json_line(line: str) -> _FirstLine | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None  # the line is incomplete, or is not JSON
    if not isinstance(fields, dict) or not isinstance(fields.get("time"), str):
        return None
    match = _INSTANT.fullmatch(fields.pop("time"))
    at_ns = _nanoseconds(match[1], match[2], match[3]) if match else None
    if at_ns is None:
        return None
    level, logger, message = (str(fields.pop(name, "")) for name in ("level", "logger", "message"))
    if isinstance(fields.get("traceback"), str):
        message += "\n" + fields.pop("traceback")
    return _FirstLine(at_ns, level.upper() if level.upper() in LEVELS else "", logger, message, fields)


def _nanoseconds(second: str, fraction: str | None, zone: str | None) -> int | None:
    second_ns = _second(second, zone or "")
    return None if second_ns is None else second_ns + int((fraction or "0").ljust(9, "0"))


@lru_cache(maxsize=1024)
def _second(second: str, zone: str) -> int | None:
    """Parse a time with a resolution of one second. Return None for an invalid time such as the 31st of February.

    Results are cached, because many lines share a second.
    """
    try:
        moment = datetime.fromisoformat(second + zone)
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError, OSError):
        return None


LINE_BYTES_MAX = 1 << 20
"""Largest length of a line in bytes. A longer line is read in pieces, so that an endless line fits into memory. A piece may then be
mistaken for a new entry."""

FIRST_BYTES = 1 << 16
"""Number of bytes that are searched for the first time in a log. If they contain no time, the file's modification time is used."""

_NAME = re.compile(r"(.+)\.log(?:\.(\d{1,9}))?", re.ASCII)
_NUMBERS = re.compile(r"(\d+)", re.ASCII)


class ProcessLog:
    """The log files of one process, which are read from the beginning. Later calls continue at the position where the previous call
    stopped."""

    def __init__(self, process: str, files: list[Path]) -> None:
        """Create the log. `files` are sorted from the oldest to the newest. The process writes to the last file. When this file is large,
        it is rotated."""
        self.process = process
        self._live = files[-1]
        self._waiting = list(files)
        self._opened: BinaryIO | None = None
        self._reader: EntryReader | None = None
        self._partial_line = b""

    def entries(self, *, is_final: bool) -> Iterator[LogEntry]:
        """Yield the new entries.

        An incomplete line or entry is kept for the next call unless `is_final` is set. If no line has been added since the previous call,
        the last entry counts as complete.
        """
        has_come = False
        for line in self._lines(is_final=is_final):
            has_come = True
            yield from self._fed(line)
        if self._reader is not None and (is_final or not has_come):
            ended = self._reader.end()
            if ended is not None:
                yield ended
        if is_final:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _fed(self, line: str) -> Iterator[LogEntry]:
        assert self._reader is not None
        ended = self._reader.feed(line)
        if ended is not None:
            yield ended

    def _lines(self, *, is_final: bool) -> Iterator[str]:
        yield from self._pieces()
        while self._has_next():
            yield from self._pieces()  # read the lines that were written before the file was rotated
            if self._partial_line:
                yield self._take()
            self._open_next()
            yield from self._pieces()
        if is_final and self._partial_line:
            yield self._take()

    def _pieces(self) -> Iterator[str]:
        while self._opened is not None and (piece := self._opened.readline(LINE_BYTES_MAX)):
            self._partial_line += piece
            if self._partial_line.endswith(b"\n") or len(self._partial_line) >= LINE_BYTES_MAX:
                yield self._take()

    def _take(self) -> str:
        line, self._partial_line = self._partial_line, b""
        return line.decode(errors="replace").rstrip("\r\n")

    def _has_next(self) -> bool:
        """Return whether another file follows or the current file was truncated."""
        if self._waiting:
            return True
        try:
            status = self._live.stat()
        except FileNotFoundError:
            return False  # the file is currently being rotated: a later call finds the new file
        if self._opened is None:
            return True
        return not os.path.samestat(os.fstat(self._opened.fileno()), status) or status.st_size < self._opened.tell()

    def _open_next(self) -> None:
        path = self._waiting.pop(0) if self._waiting else self._live
        try:
            following = path.open("rb")
        except FileNotFoundError:
            return
        self.close()
        self._opened = following
        if self._reader is None:
            self._reader = EntryReader(self.process, _order_of_first(following))


def find_logs(folder: Path) -> dict[str, ProcessLog]:
    """Return the logs in a folder, by the name of the process. h2 comes before h10. Return an empty dict if there are no logs or the folder
    is missing."""
    paths: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and path.is_file():
            paths.setdefault(name[1], []).append((int(name[2] or 0), path))
    logs: dict[str, ProcessLog] = {}
    for process in sorted(paths, key=_natural):
        files = [path for _, path in sorted(paths[process], reverse=True)]
        live = folder / f"{process}.log"
        logs[process] = ProcessLog(process, files if files[-1] == live else [*files, live])
    return logs


def _order_of_first(opened: BinaryIO) -> int:
    first_ns = first_time(opened.read(FIRST_BYTES).decode(errors="replace").split("\n"))
    opened.seek(0)
    return os.fstat(opened.fileno()).st_mtime_ns if first_ns is None else first_ns


def _natural(name: str) -> list[str | int]:
    """Return a sort key that compares the numbers in names by value, so that h2 precedes h10."""
    return [int(part) if index % 2 else part for index, part in enumerate(_NUMBERS.split(name))]


LOOK_S = 0.25
"""Interval in seconds between two reads of the logs with `--follow`."""


LinesOption = Annotated[
    int | None,
    typer.Option(
        "--lines",
        "-n",
        min=1,
        metavar="N",
        help="Number of entries, counted from the end.",
        show_default="all",
    ),
]


@command
def logs(
    display: Display,
    processes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROCESS]…", help="Names of logs, such as h1, coordinator or c2.", show_default="all"),
    ] = None,
    lines: LinesOption = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="Lowest level to show: debug, info, warning, error, critical. Entries without a level are shown.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Oldest time to show: an age (10m, 2h, 1d), or a time such as 2026-01-31T12:00:00Z; without a zone, local "
            "time.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new entries as they arrive, also of new hosts, until interrupted."),
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of a fleet that `snapline up` has started.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Folder of the fleet.", show_default="as `snapline up` takes it"
        ),
    ] = None,
    context: Context = None,
) -> None:
    """Print the output of all processes of a fleet, ordered by time, oldest first.

    Reads DIR/logs/*.log, also rotated files such as h1.log.1; the folder must be on this machine. An entry is a line with a time and
    the lines without one that follow, such as a traceback. The last error of a process (`snapline: …`) is an entry of its own. Lines of
    one process keep their order, also when its clock was set back; clocks of different machines are not corrected. Lines before the
    first time in a file get that time; without any, the file's.

    In JSON each entry is a document on its own line, with `process`, `time` (UTC; null if unknown), `level`, `logger`, `message` and
    `fields`, the rest of a JSON line. Exit codes: 4: no such folder or process. 130: --follow was interrupted.
    """
    at_least = None if level is None else parse_level(level)
    since_ns = None if since is None else parse_since(since, time.time_ns())
    reading = _LogReader(_folder(name, data_dir, context), tuple(processes or ()))
    shown = _EntryPrinter(reading, is_json=display.printer().format is OutputFormat.JSON)

    def wanted(found: Iterable[LogEntry]) -> Iterator[LogEntry]:
        for entry in found:
            if (since_ns is None or entry.order_ns >= since_ns) and (at_least is None or has_level(entry, at_least)):
                yield entry

    first = wanted(reading.look(is_last=not follow))
    shown.print(first if lines is None else deque(first, maxlen=lines))
    while follow:
        time.sleep(LOOK_S)
        shown.print(wanted(reading.look(is_last=False)))


class _LogReader:
    """Reads the requested logs. Each call of `look` returns the log entries that were added since the previous call."""

    def __init__(self, folder: Path, processes: tuple[str, ...]) -> None:
        self._folder = folder
        self._processes = processes
        self.logs = find_logs(folder)
        if not self.logs:
            raise NotFoundError(f"there are no logs in {folder}: those of other machines stay there")
        for process in processes:
            if process not in self.logs:
                raise NotFoundError(f"no log of {process!r} in {folder}: there are logs of {', '.join(self.logs)}")

    def look(self, *, is_last: bool) -> Iterator[LogEntry]:
        """Return the new log entries, sorted by their order.

        Entries that a later call returns may be older than entries that an earlier call returned.
        """
        for process, log in find_logs(self._folder).items():
            self.logs.setdefault(process, log)
        return merge(log.entries(is_final=is_last) for log in self._selected())

    def _selected(self) -> list[ProcessLog]:
        return [log for process, log in self.logs.items() if not self._processes or process in self._processes]


class _EntryPrinter:
    """Prints log entries as text or as JSON documents."""

    def __init__(self, reading: _LogReader, *, is_json: bool) -> None:
        self._reading = reading
        self._is_json = is_json

    def print(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            line = _document_line(entry) if self._is_json else self._lines(entry)
            print(printable(line), flush=True)

    def _lines(self, entry: LogEntry) -> str:
        width = max(map(len, self._reading.logs))
        text = _readable(entry) if entry.text.startswith("{") and entry.at_ns is not None else entry.text
        return "\n".join(f"{entry.process:<{width}} | {line}" for line in text.split("\n"))


def _folder(name: str | None, data_dir: Path | None, context: str | None) -> Path:
    settings = UserSettings(context)
    if data_dir is not None:
        return logs_of(data_dir)
    return logs_of(folder_of(settings, settings.get("name", name).value, None, "local"))


def _readable(entry: LogEntry) -> str:
    """Convert an entry that was read from a JSON line to snapline's text format."""
    assert entry.at_ns is not None
    first, *others = entry.message.split("\n")
    fields = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in entry.fields.items())
    head = f"{format_instant(entry.at_ns)} {entry.level or '-'} {entry.logger or '-'}: {first}"
    return "\n".join([f"{head} [{fields}]" if fields else head, *others])


def _document_line(entry: LogEntry) -> str:
    written = None if entry.at_ns is None else format_instant(entry.at_ns)
    entry_document = document(
        "LogEntry",
        process=entry.process,
        time=written,
        level=entry.level or None,
        logger=entry.logger or None,
        message=entry.message,
        fields=dict(entry.fields),
    )
    return json.dumps(entry_document, ensure_ascii=False)

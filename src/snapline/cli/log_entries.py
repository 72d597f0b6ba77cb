"""Log entries of processes: read from lines, and merged by time. Pure: no file is opened here.

An entry begins with a line that has a time: text in our log format, or a JSON object with a `time`. Lines without a time, such as those of a
traceback, belong to the entry before them.

The order of a process's lines is more reliable than its clock: clocks can be set back, and threads read them before they write. So an entry's
*order* is the latest time seen so far in its process. As the order never decreases, merging needs only one entry of each process in memory, and
gives the same result as a stable sort. The limit: after a clock is set back by an hour, all entries of that hour get the earlier time.
"""

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from snapline.errors import UsageError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

FINAL_ERROR_PREFIXES = ("snapline: ", "Fatal Python error: ")
"""Prefixes of a process's final error lines, which have no time. They are separate entries of level ERROR, so that filters show them."""

ENTRY_CHARACTERS_MAX = 1 << 20
"""Largest size of an entry, so that endless output without times can be read in bounded memory."""

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
        process: name of its log, such as `h1` or `coordinator`.
        order_ns: sort key; never less than that of the previous entry of its process.
        at_ns: time in the entry; None if it has none.
        level: one of LEVELS; "" if it has none.
        logger: name of its logger; "" if it has none.
        message: the rest of its first line, and its further lines.
        fields: other fields of a JSON line.
        text: all its lines as in the log.
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
    """The first line of an entry."""

    at_ns: int | None = None
    level: str = ""
    logger: str = ""
    message: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


class EntryReader:
    """Parses one process's lines into entries. An entry is complete when the next one begins, or when `end` is called."""

    def __init__(self, process: str, order_ns: int) -> None:
        """Create the reader; `order_ns`: order of the lines before the first time."""
        self._process = process
        self._order_ns = order_ns
        self._first: _FirstLine | None = None
        self._lines: list[str] = []
        self._characters = 0
        self._level = ""

    def feed(self, line: str) -> LogEntry | None:
        """Add the next line; return the previous entry if this line begins a new one."""
        begun = parse_first_line(line)
        is_full = self._characters + len(line) > ENTRY_CHARACTERS_MAX
        if begun is None and not is_full and self._first is not None:
            self._lines.append(line)
            self._characters += len(line) + 1
            return None
        ended = self.end()
        # The rest of a split entry keeps its level.
        self._first = begun or _FirstLine(level=self._level, message=line)
        self._level = self._first.level
        self._order_ns = max(self._order_ns, self._first.at_ns or 0)
        self._lines, self._characters = [line], len(line) + 1
        return ended

    def end(self) -> LogEntry | None:
        """Complete and return the current entry. A later line without a time begins a new entry."""
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
    """Merge the streams of several processes by order. For equal times, the earlier stream comes first."""
    return heapq.merge(*streams, key=lambda entry: entry.order_ns)


def has_level(entry: LogEntry, level: str) -> bool:
    """Return whether the entry has at least this level; True if it has no level."""
    return not entry.level or LEVELS.index(entry.level) >= LEVELS.index(level)


def parse_first_line(line: str) -> _FirstLine | None:
    """Parse the first line of an entry; None if the line belongs to the previous entry."""
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
    """Return the first time in the lines; None if there is none."""
    beginnings = (parse_first_line(line) for line in lines)
    return next((begun.at_ns for begun in beginnings if begun is not None and begun.at_ns is not None), None)


def parse_since(text: str, now_ns: int) -> int:
    """Convert `10m`, `-2h` or an RFC 3339 time to nanoseconds. A time without a zone is local time.

    Raises:
        UsageError: the text is neither.
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
    """Return one of LEVELS, from any case.

    Raises:
        UsageError: the text is no level.
    """
    if text.upper() not in LEVELS:
        raise UsageError(f"{text!r} is no level: choose of {', '.join(LEVELS).lower()}")
    return text.upper()


def format_instant(at_ns: int) -> str:
    """Format a time by RFC 3339 in UTC, with microseconds."""
    return (_EPOCH + timedelta(microseconds=at_ns // 1000)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _parse_json_line(line: str) -> _FirstLine | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None  # an incomplete line, or no JSON
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
    """Parse a time in whole seconds, cached because many lines share a second; None for an invalid time such as the 31st of February."""
    try:
        moment = datetime.fromisoformat(second + zone)
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError, OSError):
        return None

"""Log entries of processes: read from lines, and merged by time. Pure: no file is opened here.

An entry begins with a line that says when it was written, in the text that we log, or as a JSON object with a `time`. Lines without
a time, such as those of a traceback, belong to the entry before them.

The order of a process's own lines is truer than its clock, which can be set back, and which threads read before they write. So an
entry sorts no earlier than the one before it in its process: its *order* is the latest time seen so far. Merging streams whose
order never falls needs one entry of each in memory, and gives what sorting all of them, stably, would give. The price: when a clock is
set back by an hour, entries of the hour after are all placed at the time from before.
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

OWN_BEGINNINGS = ("snapline: ", "Fatal Python error: ")
"""A process's last words have no time. They are an entry of their own, an error: else a filter for errors would hide them."""

ENTRY_CHARACTERS_MAX = 1 << 20
"""Largest size of an entry, so that a process that prints without end and without times is read in bounded memory."""

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
        process: the name of its log, such as `h1` or `coordinator`.
        order_ns: its place among all: never before the entry before it in its process.
        at_ns: when it was written, as it says itself; None: it does not say.
        level: one of LEVELS; "" if it says none.
        logger: its logger; "" if it names none.
        message: the rest of its first line, and those that belong to it.
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
class _Beginning:
    """The first line of an entry."""

    at_ns: int | None = None
    level: str = ""
    logger: str = ""
    message: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


class EntryReader:
    """Makes entries of one process's lines. An entry is known to be whole when the next one begins, or when `end` is called."""

    def __init__(self, process: str, order_ns: int) -> None:
        """`order_ns`: order of lines before the first time."""
        self._process = process
        self._order_ns = order_ns
        self._first: _Beginning | None = None
        self._lines: list[str] = []
        self._characters = 0
        self._level = ""

    def feed(self, line: str) -> LogEntry | None:
        """Take the next line; returns the entry that it ends by beginning another."""
        begun = beginning_of(line)
        is_full = self._characters + len(line) > ENTRY_CHARACTERS_MAX
        if begun is None and not is_full and self._first is not None:
            self._lines.append(line)
            self._characters += len(line) + 1
            return None
        ended = self.end()
        # What goes on without a time is as serious as what it belongs to.
        self._first = begun or _Beginning(level=self._level, message=line)
        self._level = self._first.level
        self._order_ns = max(self._order_ns, self._first.at_ns or 0)
        self._lines, self._characters = [line], len(line) + 1
        return ended

    def end(self) -> LogEntry | None:
        """Nothing more comes for now: returns the entry that was begun. What comes later without a time is one of its own."""
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
    """One stream of those of several processes, each in its own order. Of the same time the earlier stream's come first."""
    return heapq.merge(*streams, key=lambda entry: entry.order_ns)


def is_as_serious(entry: LogEntry, level: str) -> bool:
    """Return whether it has this level or a higher one; true if it has no level."""
    return not entry.level or LEVELS.index(entry.level) >= LEVELS.index(level)


def beginning_of(line: str) -> _Beginning | None:
    """Parse a line that begins an entry; None: it belongs to the entry before."""
    if line.startswith("{"):
        return _json_beginning(line)
    if line.startswith(OWN_BEGINNINGS):
        return _Beginning(level="ERROR", message=line)
    found = _TIMED.match(line)
    if found is None:
        return None
    at_ns = _nanoseconds(found[1], found[2], found[3])
    if at_ns is None:
        return None
    return _Beginning(at_ns, found[4] or "", found[5] or "", line[found.end() :].removeprefix(" "))


def first_time(lines: Iterable[str]) -> int | None:
    """The first time in the lines."""
    found = (beginning_of(line) for line in lines)
    return next((begun.at_ns for begun in found if begun is not None and begun.at_ns is not None), None)


def parse_since(text: str, now_ns: int) -> int:
    """`10m`, `-2h` or an RFC 3339 instant, as nanoseconds. An instant without a zone is of this machine's.

    Raises:
        UsageError: it is neither.
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
    """One of LEVELS, however it is written.

    Raises:
        UsageError: it is none.
    """
    if text.upper() not in LEVELS:
        raise UsageError(f"{text!r} is no level: choose of {', '.join(LEVELS).lower()}")
    return text.upper()


def format_instant(at_ns: int) -> str:
    """RFC 3339 in UTC, with microseconds."""
    return (_EPOCH + timedelta(microseconds=at_ns // 1000)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _json_beginning(line: str) -> _Beginning | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None  # torn, or no JSON at all
    if not isinstance(said, dict) or not isinstance(said.get("time"), str):
        return None
    found = _INSTANT.fullmatch(said.pop("time"))
    at_ns = _nanoseconds(found[1], found[2], found[3]) if found else None
    if at_ns is None:
        return None
    level, logger, message = (str(said.pop(name, "")) for name in ("level", "logger", "message"))
    if isinstance(said.get("traceback"), str):
        message += "\n" + said.pop("traceback")
    return _Beginning(at_ns, level.upper() if level.upper() in LEVELS else "", logger, message, said)


def _nanoseconds(second: str, fraction: str | None, zone: str | None) -> int | None:
    begun_ns = _second(second, zone or "")
    return None if begun_ns is None else begun_ns + int((fraction or "0").ljust(9, "0"))


@lru_cache(maxsize=1024)
def _second(second: str, zone: str) -> int | None:
    """Many lines are of one second. None: there is no such time, such as on a 31st of February."""
    try:
        moment = datetime.fromisoformat(second + zone)
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError, OSError):
        return None

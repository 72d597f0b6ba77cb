"""Format the log lines of a process as text, or as JSON objects that name their subject.

    2026-01-31T12:00:00.123Z INFO snapline.host: plan 3: loading 9 agents from epoch 7
    {"time":"2026-01-31T12:00:00.123456Z","level":"INFO","logger":"snapline.host","message":"plan 3: …","fleet":"bank","host":"h1","epoch":7}

Code of agents that uses `logging` is in these logs too. A JSON line has `time` (UTC), `level`, `logger`, `message`, for an error `traceback`,
and these ids. Unknown ones are omitted; threads other than the main one log only the ids of the process.

- `fleet`, and `host` or `replica`: the process.
- `host_start`, `plan`, `epoch`: number of this start of the host, the plan that is applied, and the newest epoch known to have begun.
- `agent`, `incarnation`: agent whose turn or step runs.
- `request`, `call`: id and name of the call that is being served; streams have none.

The last error of a process (`snapline: …`), and prints of a fleet's own code, are not JSON.

Bound ids come from three sources; a later source overrides an earlier one:

1. the ids given at the start of the process;
2. the scope of the task that logs, such as an RPC or an agent's waiting turn;
3. the state of the host or leader, which is read only when something is logged.

`extra=` of the logging library overrides all of them. So log lines of user code name their agent without further effort.
Tasks and timers that a task starts inherit its ids. Closing the scope removes the ids, which timers would otherwise keep for ever.

Times are UTC in both forms: logs of several machines are merged (`snapline logs`).
"""

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from snapline.security.printable import printable

TEXT, JSON = "text", "json"

Ids = Mapping[str, object]


class LogScope:
    """Ids of one task, and of the tasks and timers that it starts, until the scope is closed."""

    __slots__ = ("ids",)

    def __init__(self, **ids: object) -> None:
        self.ids: Ids = {**_open_ids(), **ids}

    def enter(self) -> None:
        """Make this the scope for the rest of the current task or context."""
        _SCOPE.set(self)

    def close(self, _: object = None) -> None:
        """Close the scope. The ignored parameter lets a task use this as its done callback."""
        self.ids = {}


_SCOPE: ContextVar[LogScope] = ContextVar("SCOPE")


def _open_ids() -> Ids:
    scope = _SCOPE.get(None)
    return {} if scope is None else scope.ids


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Fields of every log record; all others come from `extra`."""


class BoundIds:
    """Ids in all log lines of a process."""

    def __init__(self, **ids: object) -> None:
        """Bind the ids that are known when the process starts."""
        self._ids = ids
        self._read: Callable[[], Ids] | None = None
        self._thread = 0

    def add(self, **ids: object) -> None:
        """Add ids that were not known at the start."""
        self._ids.update(ids)

    @contextlib.contextmanager
    def reading(self, read: Callable[[], Ids]) -> Iterator[None]:
        """Add the ids that `read` returns to this thread's log lines while the context is open; other threads may log about other subjects."""
        self._read, self._thread = read, threading.get_ident()
        try:
            yield
        finally:
            self._read = None

    def now(self) -> dict[str, object]:
        """Return all ids that apply to the calling code, without unknown ones ("", 0, None)."""
        ids = {**self._ids, **_open_ids()}
        if self._read is not None and threading.get_ident() == self._thread:
            ids.update({name: value for name, value in self._read().items() if value})
        return {name: value for name, value in ids.items() if value}


class TextLines(logging.Formatter):
    """Formatter for people: the time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # name of the base class
        return _instant(record.created, "milliseconds")


class JsonLines(logging.Formatter):
    """Formatter for programs: one JSON object on a line."""

    def __init__(self, bound: BoundIds) -> None:
        super().__init__()
        self._bound = bound

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _instant(record.created, "microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        traceback = self._traceback(record)
        if traceback:
            extra["traceback"] = traceback
        fields = {**fields, **self._bound.now(), **extra, **fields}
        try:
            return printable(json.dumps(fields, ensure_ascii=False, allow_nan=False, default=repr))
        except (TypeError, ValueError, RecursionError):  # a key that is not text, a circular reference, an infinity
            return printable(json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False))

    def _traceback(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else [record.exc_text or ""]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(part for part in parts if part)


def start_logging(form: str, level: str, bound: BoundIds, stream: TextIO | None = None) -> logging.Handler:
    """Log records of `level` and above to `stream`, by default stderr, in this format; return the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(bound) if form == JSON else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return handler


def _instant(created_s: float, precision: str) -> str:
    return datetime.fromtimestamp(created_s, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int) else repr(value)

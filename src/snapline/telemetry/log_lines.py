"""Format the log lines of a process as text, or as JSON objects that contain the ids of their subject.

    2026-01-31T12:00:00.123Z INFO snapline.host: plan 3: loading 9 agents from epoch 7
    {"time":"2026-01-31T12:00:00.123456Z","level":"INFO","logger":"snapline.host","message":"plan 3: …","fleet":"bank","host":"h1","epoch":7}

Log lines that an agent's own code writes with `logging` are formatted in the same way. A JSON line has the fields `time` (UTC), `level`,
`logger` and `message`. The line of an error also has the field `traceback`. All other fields are ids, as listed below. Unknown ids are
omitted. On threads other than the main thread, log lines contain only the ids of the process.

- `fleet`, and `host` or `replica`, identify the process.
- `host_start`, `plan` and `epoch` are the host's start number, the plan being applied, and the newest epoch known to have begun.
- `agent` and `incarnation` identify the agent whose turn or step is running.
- `request` and `call` are the id and name of the RPC that is being served. Lines of streaming RPCs have neither field.

The final error message of a process (`snapline: …`) and text printed by a fleet's own code are not JSON.

Ids in log lines come from three sources. A later source in this list overrides an earlier source:

1. the ids given when the process starts;
2. the log scope of the current task, such as an RPC or an agent's waiting turn;
3. the state of the host or leader, which is read only when something is logged.

The argument `extra=` of the logging library overrides all three sources. So log lines of user code name their agent automatically. Tasks
and timers inherit the log scope of the task that starts them. Closing a scope removes its ids, because timers would otherwise keep them
forever.

Both formats give times in UTC, since `snapline logs` merges the logs of several machines.
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
    """Log scope: ids that a task, and the tasks and timers it starts, log until the scope is closed."""

    __slots__ = ("ids",)

    def __init__(self, **ids: object) -> None:
        self.ids: Ids = {**_open_ids(), **ids}

    def enter(self) -> None:
        """Use this scope for the rest of the current task or context."""
        _SCOPE.set(self)

    def close(self, _: object = None) -> None:
        """Close the scope. The ignored parameter allows this method to be a task's done callback."""
        self.ids = {}


_SCOPE: ContextVar[LogScope] = ContextVar("SCOPE")


def _open_ids() -> Ids:
    scope = _SCOPE.get(None)
    return {} if scope is None else scope.ids


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Fields that every log record has. All other fields of a record come from `extra`."""


class BoundIds:
    """Ids that all log lines of a process contain."""

    def __init__(self, **ids: object) -> None:
        """Set the ids that are known when the process starts."""
        self._ids = ids
        self._read: Callable[[], Ids] | None = None
        self._thread = 0

    def add(self, **ids: object) -> None:
        """Add ids that were not known when the process started."""
        self._ids.update(ids)

    @contextlib.contextmanager
    def reading(self, read: Callable[[], Ids]) -> Iterator[None]:
        """Add the ids that `read` returns to log lines of this thread while the context is open. Lines of other threads do not get these
        ids, since they may concern another subject."""
        self._read, self._thread = read, threading.get_ident()
        try:
            yield
        finally:
            self._read = None

    def now(self) -> dict[str, object]:
        """Return all ids that apply to the calling code. Empty ids ("", 0 or None) are omitted."""
        ids = {**self._ids, **_open_ids()}
        if self._read is not None and threading.get_ident() == self._thread:
            ids.update({name: value for name, value in self._read().items() if value})
        return {name: value for name, value in ids.items() if value}


class TextLines(logging.Formatter):
    """Formatter for readers. Each line has the time, the level, the logger and the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    # The base class defines this name.
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _instant(record.created, "milliseconds")


class JsonLines(logging.Formatter):
    """Formatter for programs. Each line is one JSON object."""

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
        # Caused by a key that is not text, a circular reference or an infinity.
        except (TypeError, ValueError, RecursionError):
            return printable(json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False))

    def _traceback(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else [record.exc_text or ""]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(part for part in parts if part)


def start_logging(form: str, level: str, bound: BoundIds, stream: TextIO | None = None) -> logging.Handler:
    """Write log records of at least `level` to `stream` in the given format. The default stream is stderr. Return the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(bound) if form == JSON else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return handler


def _instant(created_s: float, precision: str) -> str:
    return datetime.fromtimestamp(created_s, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int) else repr(value)

"""`snapline logs`: output of all processes of a fleet, by time."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.fleet_locations import folder_of, logs_of
from snapline.cli.log_entries import LogEntry, format_instant, has_level, merge, parse_level, parse_since
from snapline.cli.log_files import ProcessLog, find_logs
from snapline.cli.options import Display
from snapline.cli.output import OutputFormat, document
from snapline.cli.settings import Context, UserSettings
from snapline.errors import NotFoundError
from snapline.security.printable import printable

LOOK_S = 0.25
"""Interval between two reads with `--follow`."""


@command
def logs(
    display: Display,
    processes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROCESS]…", help="Only these hosts and coordinators.", show_default="all"),
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=1,
            metavar="N",
            help="The last so many, each with what belongs to it.",
            show_default="all",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", metavar="LEVEL", help="Lowest level to show: debug, info, warning, error, critical."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Not older: 10m, 2h, 1d, or 2026-01-31T12:00:00Z.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come, until interrupted.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the fleet that `snapline up` has taken up.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="The fleet's folder.", show_default="as `snapline up` takes it"),
    ] = None,
    context: Context = None,
) -> None:
    """Print what all processes of a fleet have printed, by time, oldest first.

    Of a fleet whose folder is on this machine. Lines without a time belong to the line before them. In JSON each entry is a document on
    a line of its own.
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
    """The requested logs; each call of `look` returns the new entries."""

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
        """Return the new entries sorted by time. Entries of a later call may be older than those of an earlier one."""
        for process, log in find_logs(self._folder).items():
            self.logs.setdefault(process, log)
        return merge(log.entries(is_final=is_last) for log in self._selected())

    def _selected(self) -> list[ProcessLog]:
        return [log for process, log in self.logs.items() if not self._processes or process in self._processes]


class _EntryPrinter:
    """Prints entries as text or as JSON documents."""

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
    """Format the entry of a JSON line in our text format."""
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

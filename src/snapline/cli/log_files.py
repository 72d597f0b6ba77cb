"""The log files of one folder: finds them, and reads their lines from the oldest to the newest, also while they grow."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from snapline.cli.log_entries import EntryReader, LogEntry, first_time

LINE_BYTES_MAX = 1 << 20
"""A longer line is read in pieces, so that an endless line fits into memory. A piece may then be taken for a new entry."""

FIRST_BYTES = 1 << 16
"""Number of bytes searched for the first time of a log. If there is none, the file's modification time is used."""

_NAME = re.compile(r"(.+)\.log(?:\.(\d{1,9}))?", re.ASCII)
_NUMBERS = re.compile(r"(\d+)", re.ASCII)


class ProcessLog:
    """The files of one process, read from the beginning; later reads continue from the last position."""

    def __init__(self, process: str, files: list[Path]) -> None:
        """Create the log; `files`: oldest first. The process writes to the last one, which is rotated when it is large."""
        self.process = process
        self._live = files[-1]
        self._waiting = list(files)
        self._opened: BinaryIO | None = None
        self._reader: EntryReader | None = None
        self._partial_line = b""

    def entries(self, *, is_final: bool) -> Iterator[LogEntry]:
        """Yield the new entries.

        An incomplete line or entry waits for the next call, unless this call is the last one. An entry is also complete if no
        line has come since the previous call.
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
            yield from self._pieces()  # lines written before the file was rotated
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
        """Return whether another file follows, or this one was truncated."""
        if self._waiting:
            return True
        try:
            status = self._live.stat()
        except FileNotFoundError:
            return False  # just being rotated: a later call finds the new file
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
    """Return the logs in a folder by process, h2 before h10; empty if there are none or the folder is missing."""
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
    """Return a sort key that compares numbers in names by value."""
    return [int(part) if index % 2 else part for index, part in enumerate(_NUMBERS.split(name))]

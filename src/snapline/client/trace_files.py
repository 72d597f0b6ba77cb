"""Trace files written by hosts or in the same format (docs/protocols.md): a single file, or a folder of them."""

import contextlib
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from snapline.errors import TraceError, UsageError
from snapline.recovery.trace import Trace as Events
from snapline.recovery.trace import read_items, read_trace
from snapline.recovery.trace_merge import Merged, TracedEvent, gather, merge_traces, read_part

STANDARD_INPUT = "-"
SUFFIX = ".jsonl"
"""Suffix of the trace files that hosts write."""

GZIP_MAGIC = b"\x1f\x8b"


def read_file(place: str) -> Events:
    """Read the trace at `place`, a path or "-" for standard input; possibly compressed with gzip.

    Raises:
        UsageError: the trace cannot be opened.
        TraceError: the trace cannot be read, or contradicts itself.
    """
    with _lines(place) as lines:
        try:
            return read_trace(lines)
        except TraceError as error:
            raise TraceError(f"{name_of(place)}: {error}") from error


def merge_folder(folder: Path) -> Merged:
    """Merge the traces that hosts have written into `folder`.

    Raises:
        UsageError: there are no traces, or a file cannot be opened.
        TraceError: a file cannot be read, or they contradict each other.
    """
    files = {path.name: _lines_of(path) for path in _files_of(folder)}
    try:
        return merge_traces(files)
    except TraceError as error:
        raise TraceError(f"{folder}: {error}") from error


def read_merged(merged: Merged, folder: Path) -> Events:
    """Read the merged traces of `folder`.

    Raises:
        TraceError: the trace contradicts itself.
    """
    try:
        return read_trace(merged.lines())
    except TraceError as error:
        raise TraceError(f"{folder}, merged: {error}") from error


def read_trace_events(place: Path) -> list[TracedEvent]:
    """Return all events of a file or of the traces in a folder, with hosts, times and markers.

    Raises:
        UsageError: `place` cannot be opened, or the folder has no traces.
        TraceError: a trace cannot be read, or contradicts itself.
    """
    if not place.is_dir():
        with _lines(str(place)) as lines:
            try:
                return [TracedEvent(item) for item in read_items(lines)]
            except TraceError as error:
                raise TraceError(f"{place}: {error}") from error
    files = _files_of(place)
    try:
        return gather([read_part(path.name, path.name.split(".")[0], _lines_of(path)) for path in files])
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from error


def _files_of(folder: Path) -> list[Path]:
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise UsageError(f"{folder} has no traces (*{SUFFIX}): name the folder that the hosts traced into")
    return files


def name_of(place: str) -> str:
    """Return the name of `place` in messages."""
    return "standard input" if place == STANDARD_INPUT else place


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the file is opened at the first line."""
    with _lines(str(path)) as lines:
        yield from lines


@contextlib.contextmanager
def _lines(place: str) -> Iterator[Iterable[bytes]]:
    """Yield the lines at `place`, uncompressed; failures are translated into snapline's errors."""
    with contextlib.ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if place == STANDARD_INPUT else stack.enter_context(open(place, "rb"))
            first_line = stream.readline()
            lines: Iterable[bytes] = itertools.chain([first_line], stream)
            if first_line.startswith(GZIP_MAGIC):
                lines = gzip.GzipFile(fileobj=io.BytesIO(first_line + stream.read()))
            yield lines
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{name_of(place)} cannot be unpacked: {error}") from error
        except OSError as error:
            raise UsageError(f"{name_of(place)} cannot be read: {error.strerror or error}") from error

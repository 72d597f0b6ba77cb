"""Prints results to stdout and everything else to stderr. Results are printed as tables for people or as JSON for programs.

A command builds one *document*, a dict of plain values with `apiVersion` and `kind`. The command also provides a function that shows the
document as tables. JSON and tables are produced from the same document, so both have the same content. A coordinator's document may come
from another release. Tables therefore omit fields that are missing.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING

from snapline.security.printable import printable
from snapline.view.text_columns import COLUMN_GAP, columns_that_fit, shrink, wrap

if TYPE_CHECKING:
    from rich.console import Console

API_VERSION = "snapline/v1"
"""Version of all JSON documents. The version changes when the name or meaning of a field changes."""

Document = Mapping[str, object]

PIPE_WIDTH = 500
"""Width in characters of tables that are not printed to a terminal. The width is large, so that no column is left out, and little is wrapped."""

LISTED = 20
"""Default largest number of rows of lists that may be long, in tables. JSON contains all."""

PREVIEW_CHARACTERS_MAX = 300
"""Largest number of characters of a state or message in a table. JSON contains all of it."""


class OutputFormat(StrEnum):
    """Values of `-o`."""

    TABLE = "table"
    JSON = "json"


def document(kind: str, **fields: object) -> dict[str, object]:
    """Build a document of the given kind with the given fields."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


class DocumentTables:
    """Prints the tables and lines of one document.

    Tables and fields never break a word, so that ids, roots, addresses and times can be copied.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print one line of text unchanged."""
        self._console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def wrapped(self, label: str, text: str) -> None:
        """Print a text after its label, and wrap the text under itself. A text with a word too long for that begins beneath its label."""
        text, room = printable(text), self._console.width - len(label)
        if max(map(len, text.split()), default=0) > room:
            self.line(label.rstrip())
            label, room = "  ", self._console.width - 2
        for part in wrap(text, room):
            self.line(label + part)
            label = " " * len(label)

    def fields(self, rows: Iterable[tuple[str, object]]) -> None:
        """Print the names and values of fields. Omit fields whose value is None or ""."""
        shown = [(printable(name), text(value)) for name, value in rows if value is not None and value != ""]
        width = max([len(name) for name, _ in shown], default=0)
        for name, value in shown:
            self.wrapped(f"{name:<{width}}  ", value)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, optional: Sequence[str] = ()) -> None:
        """Print a table without borders. Columns of numbers are right-aligned.

        If the rows are too wide for a terminal, leave out columns in the order of `optional` until they fit, then wrap the longest cells.
        """
        from rich.cells import cell_len

        lines = [list(row) for row in rows]
        cells = [list(columns), *([_cell(value) for value in line] for line in lines)]
        natural = [max(cell_len(part) for row in cells for part in row[at].split("\n")) for at in range(len(columns))]
        may_go = [columns.index(name) for name in optional if name in columns]
        shown = columns_that_fit(natural, may_go if self._console.width < PIPE_WIDTH else [], self._console.width)
        least = [max(_least_width(row[at], is_heading=row is cells[0]) for row in cells) for at in shown]
        room = self._console.width - COLUMN_GAP * (len(shown) - 1)
        widths = shrink([natural[at] for at in shown], least, room)
        numeric = [bool(lines) and all(isinstance(line[at], int) for line in lines) for at in shown]
        for row in cells:
            wrapped = [wrap(row[at], width) for at, width in zip(shown, widths, strict=True)]
            for parts in zip_longest(*wrapped, fillvalue=""):
                line = (" " * COLUMN_GAP).join(map(_align, parts, widths, numeric))
                self.line(line.rstrip(), style="bold" if row is cells[0] else None)

    def rest(self, hidden: int, total: int, word: str = "more") -> None:
        """Print how many of all rows a list leaves out, if any, and how to see them."""
        if hidden:
            self.line(f"and {hidden:,} {word}: `--limit {total}` lists all")


class Printer:
    """Prints one command's result and its progress."""

    def __init__(self, output: OutputFormat | None = None, *, quiet: bool = False, no_color: bool = False) -> None:
        """Create the printer.

        If `output` is None, print tables to a terminal and JSON otherwise. If `quiet` is set, print no progress, only warnings and results.
        """
        self.format = output or (OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.JSON)
        self.is_quiet = quiet
        self._no_color = no_color or bool(os.environ.get("NO_COLOR"))

    def result(self, result: Document, show: Callable[[Document, DocumentTables], None]) -> None:
        """Print the command's result to stdout."""
        if self.format is OutputFormat.JSON:
            print(printable(json.dumps(readable(result), indent=2, ensure_ascii=False, allow_nan=True)))
            return
        from rich.console import Console

        width = None if sys.stdout.isatty() else PIPE_WIDTH
        show(result, DocumentTables(Console(no_color=self._no_color, highlight=False, width=width, emoji=False)))

    def limit(self, given: int | None) -> int | None:
        """Return the largest number of rows to list, or None for all, from the value of an option `--limit`."""
        return LISTED if given is None and self.format is OutputFormat.TABLE else given

    def progress(self, text: str) -> None:
        """Print progress on stderr."""
        if not self.is_quiet:
            print(printable(text), file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        """Print a warning to stderr."""
        print(printable(f"snapline: {text}"), file=sys.stderr, flush=True)


def readable(value: object) -> object:
    """Convert any value to types that JSON supports. Keys become text, and bytes become text or hexadecimal digits."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else text(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((readable(item) for item in value), key=repr)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def text(value: object) -> str:
    """Format a value on one line."""
    if isinstance(value, str):
        return value
    shown = json.dumps(readable(value), ensure_ascii=False)
    return shown if len(shown) <= PREVIEW_CHARACTERS_MAX else shown[: PREVIEW_CHARACTERS_MAX - 1] + "…"


def last_line(error: str) -> str:
    """Return the last line of a traceback, which describes the exception."""
    return error.rstrip().rpartition("\n")[2]


def size(number: object) -> str:
    """Format a number of bytes, for example as `1.4 MiB`."""
    amount = float(number) if isinstance(number, int | float) else 0.0
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the loop returns")


def count(number: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun, for example as `1 agent` or `2 agents`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def utc_time(instant: object) -> str:
    """Format a time of a document, such as `2026-11-30T09:15:49.031Z`, without fractions of a second, for a column in UTC."""
    return text(instant or "").replace("T", " ")[: len("2026-11-30 09:15:49")]


def rows_of(result: Document, name: str) -> list[Mapping[str, object]]:
    """Return the list of objects in the field `name`, or an empty list if the document has no such list."""
    rows = result.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []


def integer_of(result: Document, name: str) -> int:
    """Return the integer in the field `name`, or 0 if the document has no such integer."""
    value = result.get(name)
    return value if isinstance(value, int) else 0


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(text(value))


def _align(part: str, width: int, is_right: bool) -> str:
    from rich.cells import cell_len

    blanks = " " * (width - cell_len(part))
    return blanks + part if is_right else part + blanks


WRAPPED_MIN = 20
"""Smallest number of characters of a cell that is wrapped in a narrow terminal. A time has 19, and stays on one line."""


def _least_width(cell: str, *, is_heading: bool) -> int:
    """Return the width at which a cell need not be broken within a word. Short cells are not broken at all, unless they are headings."""
    from rich.cells import cell_len

    is_whole = cell_len(cell) < WRAPPED_MIN and not is_heading
    return max([cell_len(part) for part in (cell.splitlines() if is_whole else cell.split())], default=0)


def _bytes_text(value: bytes) -> str:
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return decoded if decoded.isprintable() else value.hex()


def concern_lines(result: Document) -> list[str]:
    """Describe each concern about the fleet in one line, with its start time and its remedy."""
    return [_concern_line(row, time.time()) for row in rows_of(result, "concerns")]


def _concern_line(row: Document, now_s: float) -> str:
    from snapline.view.display_text import describe_concern

    since_s = row.get("since_s")
    age_s = since_s if isinstance(since_s, int | float) else 0.0
    return describe_concern(str(row.get("text", "")), str(row.get("remedy") or ""), since_s=age_s, now_s=now_s)


def show_changes(result: Document, tables: DocumentTables) -> None:
    """Print how dependencies differ from those of a snapshot, if they do."""
    import msgspec

    from snapline.messages.dependencies import DependencyChange, describe_changes

    changes = msgspec.convert(result.get("dependencies"), tuple[DependencyChange, ...])
    if changes:
        tables.line(f"other dependencies than in the snapshot: {describe_changes(changes)}")

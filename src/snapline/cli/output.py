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
from typing import TYPE_CHECKING

from snapline.security.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

API_VERSION = "snapline/v1"
"""Version of all JSON documents. The version changes when the name or meaning of a field changes."""

Document = Mapping[str, object]

PIPE_WIDTH = 500
"""Width in characters of tables that are not printed to a terminal. The width is large, so that nothing is cut off or wrapped."""

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
    """Prints the tables and lines of one document."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def line(self, text: str = "") -> None:
        """Print one line of text unchanged."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def fields(self, rows: Iterable[tuple[str, object]]) -> None:
        """Print the names and values of fields. Omit fields whose value is None or ""."""
        shown = [(name, text(value)) for name, value in rows if value is not None and value != ""]
        self.table(("", ""), shown, has_header=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, has_header: bool = True) -> None:
        """Print a table without borders. Columns of numbers are right-aligned."""
        from rich.table import Table

        lines = [list(row) for row in rows]
        rich_table = Table(box=None, show_header=has_header, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for index, column in enumerate(columns):
            numeric = bool(lines) and all(isinstance(line[index], int) for line in lines)
            rich_table.add_column(column, justify="right" if numeric and has_header else "left", overflow="fold")
        for line in lines:
            rich_table.add_row(*(_cell(value) for value in line))
        self._console.print(rich_table)


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


def rows_of(result: Document, name: str) -> list[Mapping[str, object]]:
    """Return the list of objects in the field `name`, or an empty list if the document has no such list."""
    rows = result.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []


def integer_of(result: Document, name: str) -> int:
    """Return the integer in the field `name`, or 0 if the document has no such integer."""
    value = result.get(name)
    return value if isinstance(value, int) else 0


def _cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(printable(text(value)))


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

"""`snapline snapshot diff` shows the changes between two snapshots.

This module also shows the fields of a state for `snapshot show --agent`.

The changes themselves are computed by `agent_runtime/snapshots/snapshot_difference.py`. A state is shown field by field. A single field is
shown in full. An array can be written to a file in NumPy's format.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, size, text
from snapline.cli.snapshot_retention import SNAPSHOT_HELP, StorePlace
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.storage.capture.saved_values import SavedArray
    from snapline.storage.store.store import Store


@command
def diff(
    place: StorePlace,
    display: Display,
    before: Annotated[str, typer.Argument(metavar="A", help=SNAPSHOT_HELP)],
    after: Annotated[str, typer.Argument(metavar="B", help=SNAPSHOT_HELP)],
    agent: Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Compare only this agent.")] = None,
) -> None:
    """Show what changed from snapshot A to snapshot B.

    Compares agents, fields of their states, classes and versions, hosts, timers, outboxes, dead letters and channels. Numbers of epochs
    and checkpoints, times, turns and protocol data are not compared. No class of the fleet is loaded, and no pickle is opened. Only the
    chunks of arrays that differ are read.

    Arrays: number of changed elements, first and last of them, largest absolute change (needs NumPy). Lists and histories: records
    appended, inserted, edited and dropped, with the first three of each. Blobs: changed bytes. Shows 50 changes per agent, 1,000 agents
    and 1,000 channels, and counts the rest. Exit codes: 0: with or without changes. 6: a snapshot is damaged.
    """
    from snapline.agent_runtime.snapshots.snapshot_difference import snapshot_difference

    difference = snapshot_difference(place.open(), before, after, agent=agent)
    display.printer().result(document("SnapshotDifference", **difference), _show)


def _show(result: Document, tables: DocumentTables) -> None:
    _show_heads(result, tables)
    for row in rows_of(result, "metadata"):
        tables.line(f"{row.get('path')}: {_change(row)}")
    _show_more(result, "metadata", tables)
    for name, sign in (("agents_added", "+"), ("agents_removed", "-")):
        for row in rows_of(result, name):
            tables.line(f"{sign} agent {row.get('agent')} ({row.get('kind')}) on {row.get('host')}")
        _show_more(result, name, tables)
    for row in rows_of(result, "agents_changed"):
        tables.line()
        tables.line(f"agent {row.get('agent')}")
        for change in rows_of(row, "changes"):
            _show_change(change, tables)
        if row.get("more"):
            tables.line(f"  … and {row.get('more'):,} more")
    _show_more(result, "agents_changed", tables)
    _show_channels(result, tables)
    unchanged = result.get("agents_unchanged")
    tables.line()
    tables.line(f"{count(unchanged if isinstance(unchanged, int) else 0, 'agent')} unchanged")


def _show_heads(result: Document, tables: DocumentTables) -> None:
    heads = [head if isinstance(head := result.get(name), Mapping) else {} for name in ("before", "after")]
    columns = ("epoch", "root", "created", "trigger", "plan", "agent_count")
    tables.table(
        ("", "EPOCH", "ROOT", "CREATED", "TRIGGER", "PLAN", "AGENTS"),
        [
            (sign, *(text(head.get(name))[:12] if name == "root" else head.get(name) for name in columns))
            for sign, head in zip("-+", heads, strict=True)
        ],
    )


def _show_change(change: Document, tables: DocumentTables) -> None:
    tables.line(f"  {change.get('path')}: {_change(change)}")
    for record in rows_of(change, "records"):
        for name in ("edited", "dropped", "inserted", "appended"):
            if name in record:
                tables.line(f"    {name} [{record[name]}]: {_values(record)}")


def _change(change: Document) -> str:
    match change.get("change"):
        case "added":
            return f"added {text(change.get('after'))}"
        case "removed":
            return f"removed {text(change.get('before'))}"
        case "array":
            return _array(change)
        case "list" | "history":
            return _sequence(change)
        case _ if "removed_bytes" in change:
            sizes = f"{size(change.get('size_before'))} → {size(change.get('size_after'))}"
            at = f"at byte {change.get('offset'):,}"
            return f"{change.get('change')}, {sizes}: {at} {change.get('removed_bytes'):,} bytes became {change.get('added_bytes'):,}"
        case _:
            return _values(change)


def _values(change: Document) -> str:
    if "before" in change and "after" in change:
        return f"{text(change['before'])} → {text(change['after'])}"
    return text(change.get("after", change.get("before")))


def _array(change: Document) -> str:
    span = f"from {text(change.get('first_changed'))} to {text(change.get('last_changed'))}"
    largest = change.get("largest_change")
    by = (
        ""
        if largest is None
        else f", by {largest:g} at most"
        if isinstance(largest, float)
        else f", by {largest} at most"
    )
    return f"{change.get('array')}: {change.get('changed_elements'):,} of {change.get('elements'):,} elements changed, {span}{by}"


def _sequence(change: Document) -> str:
    names = ("appended", "inserted", "edited", "dropped")
    parts = [f"{number:,} {name}" for name in names if isinstance(number := change.get(name), int) and number]
    return f"{change.get('length_before'):,} → {change.get('length_after'):,} records: {', '.join(parts)}"


def _show_channels(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "channels")
    if not rows:
        return
    tables.line()
    tables.table(
        ("FROM", "TO", "SENT", "RECEIVED", "CAME IN TRANSIT", "NO LONGER", "STILL"),
        [
            (
                row.get("sender"),
                row.get("receiver"),
                _numbers(row, "sent"),
                _numbers(row, "received"),
                row.get("in_transit_added"),
                row.get("in_transit_removed"),
                row.get("in_transit_kept"),
            )
            for row in rows
        ],
    )
    for row in rows:
        for name, sign in (("removed", "-"), ("added", "+")):
            for message in rows_of(row, name):
                channel = f"{row.get('sender')} → {row.get('receiver')}"
                tables.line(f"{sign} {channel} {message.get('number')}: {text(message.get('message'))}")
            hidden = int(str(row.get(f"in_transit_{name}") or 0)) - len(rows_of(row, name))
            if hidden > 0:
                tables.line(f"  … and {hidden:,} more")
    _show_more(result, "channels", tables)


def _numbers(row: Document, name: str) -> str:
    before, after = row.get(f"{name}_before"), row.get(f"{name}_after")
    return text(before) if before == after else f"{before} → {after}"


def _show_more(result: Document, name: str, tables: DocumentTables) -> None:
    more = result.get(f"{name}_more")
    if more:
        tables.line(f"… and {more:,} more")


ARRAY_VALUES_MAX = 1000
"""Largest number of values that are printed of an array. Write the array to a file to get more values."""


def field_document(store: "Store", snapshot: str, agent: str, path: str, out: Path | None) -> dict[str, object]:
    """Return the document of the field at `path`. If `out` is given, write the array in this field to the file `out`.

    Raises:
        NotFoundError: If the snapshot, the agent or the field does not exist.
        DamagedDataError: If the data is damaged.
        UsageError: If `out` is given but the field is not an array, or the file already exists.
    """
    from snapline.storage.capture.saved_value_formats import find_field
    from snapline.storage.capture.saved_values import SavedArray, read_state

    epoch = store.resolve(snapshot)
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    state = read_state(store.read_checkpoint(manifest, agent), store.part_reader(manifest).read)
    value = find_field(state, path)
    about = {"store": store.location, "epoch": epoch, "agent": agent, "field": path}
    if out is None:
        return document("SnapshotField", **about, value=_in_full(value))
    if not isinstance(value, SavedArray):
        raise UsageError(f"--out writes an array, and {path} is none: leave --out away to see what it is")
    return document("SnapshotField", **about, **_written(value, out))


def _written(array: "SavedArray", out: Path) -> dict[str, object]:
    from snapline.storage.capture.saved_value_formats import write_npy

    size_bytes = write_npy(array, out)
    return {"dtype": array.dtype, "shape": list(array.shape), "file": str(out), "size_bytes": size_bytes}


def _in_full(value: object) -> object:
    from snapline.storage.capture.saved_value_formats import describe, describe_array
    from snapline.storage.capture.saved_values import SavedArray, SavedHistory

    if isinstance(value, SavedArray):
        return describe_array(value, ARRAY_VALUES_MAX)
    if isinstance(value, SavedHistory):
        return describe(value.records(), reads_parts=True)
    return describe(value, reads_parts=True)


def show_state(state: Mapping[str, object], tables: DocumentTables) -> None:
    """Print each field of a state on one line, and then the first and last records of each history."""
    tables.line("state:")
    tables.fields((f"  {name}", _on_a_line(value)) for name, value in state.items())
    for name, value in state.items():
        if isinstance(value, Mapping) and set(value) >= {"records", "first"}:
            _show_records(name, value, tables)


def _on_a_line(value: object) -> object:
    """Format an array as in `<f8 [1000]: 0.5, 1.0, …`, and a history as in `30 records, 628 B`. Return any other value unchanged."""
    if isinstance(value, Mapping) and set(value) == {"dtype", "shape", "values"}:
        values = value["values"]
        shown = ", ".join(map(text, values)) if isinstance(values, list) else text(values)
        return f"{value['dtype']} {text(value['shape'])}: {shown}"
    if isinstance(value, Mapping) and set(value) >= {"records", "bytes"}:
        return f"{count(int(value['records']), 'record')}, {size(value['bytes'])}"
    return value


def _show_records(name: str, history: Document, tables: DocumentTables) -> None:
    first, last = ([*rows] if isinstance(rows := history.get(x), list) else [] for x in ("first", "last"))
    length = history.get("records")
    hidden = (length if isinstance(length, int) else 0) - len(first) - len(last)
    tables.line(f"{name}:")
    for record in first:
        tables.line(f"  {text(record)}")
    if hidden > 0:
        tables.line(f"  … {count(hidden, 'record')} between")
    for record in last:
        tables.line(f"  {text(record)}")


def show_field(result: Document, tables: DocumentTables) -> None:
    """Print one line for each field of a record, or one line for each record of a list or history."""
    if "file" in result:
        about = f"{text(result.get('dtype'))} {text(result.get('shape'))}"
        tables.line(f"{result.get('file')}: {about}, {size(result.get('size_bytes'))}")
        return
    value = result.get("value")
    if isinstance(value, list | tuple):
        tables.line(f"{count(len(value), 'record')}:" if value else "empty")
        for record in value:
            tables.line(text(record))
    elif isinstance(value, dict):
        tables.fields((str(name), item) for name, item in value.items())
    else:
        tables.line(text(value))

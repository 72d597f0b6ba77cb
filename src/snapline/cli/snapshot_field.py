"""`snapline snapshot show --agent`: a state field by field, and one field in full; an array also as a file for NumPy."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.cli.output import Document, DocumentTables, count, document, size, text
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.storage.capture.saved_values import SavedArray
    from snapline.storage.store.store import Store

ARRAY_VALUES_MAX = 1000
"""Largest number of an array's values that is printed; use a file for more."""


def field_document(store: "Store", snapshot: str, agent: str, path: str, out: Path | None) -> dict[str, object]:
    """Return the document of the field at `path`; with `out`, write the array into that file.

    Raises:
        NotFoundError: there is no such snapshot, agent or field.
        DamagedDataError: the data is damaged.
        UsageError: `out` is given, but the field is no array or the file exists.
    """
    from snapline.storage.capture.plain_values import find_field
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
    from snapline.storage.capture.npy_file import write_npy

    size_bytes = write_npy(array, out)
    return {"dtype": array.dtype, "shape": list(array.shape), "file": str(out), "size_bytes": size_bytes}


def _in_full(value: object) -> object:
    from snapline.storage.capture.describe import describe, describe_array
    from snapline.storage.capture.saved_values import SavedArray, SavedHistory

    if isinstance(value, SavedArray):
        return describe_array(value, ARRAY_VALUES_MAX)
    if isinstance(value, SavedHistory):
        return describe(value.records(), reads_parts=True)
    return describe(value, reads_parts=True)


def show_state(state: Mapping[str, object], tables: DocumentTables) -> None:
    """Print each field on a line, then the first and last records of histories."""
    tables.line("state:")
    tables.fields((f"  {name}", _on_a_line(value)) for name, value in state.items())
    for name, value in state.items():
        if isinstance(value, Mapping) and set(value) >= {"records", "first"}:
            _show_records(name, value, tables)


def _on_a_line(value: object) -> object:
    """Return `<f8 [1000]: 0.5, 1.0, …` for an array, `30 records, 628 B` for a history, anything else as it is."""
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
    """Print a line for each field of a record, or each record of a list or history."""
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

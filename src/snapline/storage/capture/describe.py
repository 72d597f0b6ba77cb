"""Encoded states and messages as text for people, without the classes that wrote them, and without NumPy.

A description is made of dicts, lists and scalars:

    array, tensor   {"dtype", "shape", "values"}: the first values, in C order
    history         {"records", "bytes", "first", "last"}; an inline history is a list
    blob            its bytes; for a large blob {"bytes"}

Values in a part of their own are only read on request; otherwise only their size is shown as `bytes`.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.storage.capture.first_values import first_values
from snapline.storage.capture.image import Buffer
from snapline.storage.capture.saved_values import SavedArray, SavedBytes, SavedHistory, read_record
from snapline.storage.packs.checkpoint import StatePart

VALUES_SHOWN = 8
"""Number of values shown of an array, and of records at each end of a history."""

HISTORY_BYTES_MAX = 4 * 2**20
"""Largest history that is shown. A history must be read as a whole, and its description must fit a response of the coordinator. For a larger one only
the number of records is shown, unless it is requested by its path."""

ELLIPSIS = "…"
"""Follows the shown values if there are more."""


def plain(value: object, parts: Sequence[StatePart] = (), read: Callable[[StatePart], Buffer] | None = None) -> object:
    """Decode bytes of unknown type: structs become dicts, arrays a short description. Without `read` parts are not read.

    Raises:
        One of `saved_values.FAILURES`: the bytes cannot be decoded.
        DamagedDataError: the bytes of a part differ from those written.
    """
    if not isinstance(value, bytes):
        return value
    return describe(read_record(value, parts, read), reads_parts=read is not None)


def describe(value: object, *, reads_parts: bool) -> object:
    """Describe a tree of `saved_values`.

    Raises:
        DamagedDataError: some bytes differ from those written.
    """
    match value:
        case dict():
            return {key: describe(item, reads_parts=reads_parts) for key, item in value.items()}
        case list() | tuple():
            return [describe(item, reads_parts=reads_parts) for item in value]
        case SavedArray():
            return describe_array(value, VALUES_SHOWN, reads_parts=reads_parts)
        case SavedHistory():
            return _describe_history(value, reads_parts=reads_parts)
        case SavedBytes():
            return _describe_bytes(value)
        case msgspec.msgpack.Ext():
            return f"<extension {value.code}, {memoryview(value.data).nbytes} bytes>"
    return value


def describe_array(array: SavedArray, count: int, *, reads_parts: bool = True) -> dict[str, object]:
    """Describe an array by its first `count` values."""
    head: dict[str, object] = {"dtype": array.dtype, "shape": list(array.shape)}
    if array.content.part is not None and not reads_parts:
        return {**head, "bytes": array.content.size_bytes}
    values = first_values(array, count)
    if values is None:
        return {**head, "values": f"<{array.content.size_bytes} bytes>"}
    return {**head, "values": [*values, ELLIPSIS] if len(values) < array.size else values}


def _describe_history(history: SavedHistory, *, reads_parts: bool) -> object:
    if history.content.part is None:
        return describe(history.records(), reads_parts=reads_parts)
    size_bytes = history.content.size_bytes
    head = {"records": history.length, "bytes": size_bytes}
    if not reads_parts or size_bytes > HISTORY_BYTES_MAX:
        return head
    records = [describe(record, reads_parts=True) for record in _ends(history.records())]
    last = records[VALUES_SHOWN:]
    return {**head, "first": records[:VALUES_SHOWN], **({"last": last} if last else {})}


def _ends(records: list[object]) -> list[object]:
    """Return the first and last records, without duplicates."""
    return records if len(records) <= 2 * VALUES_SHOWN else records[:VALUES_SHOWN] + records[-VALUES_SHOWN:]


def _describe_bytes(value: SavedBytes) -> object:
    if value.name == "blob":
        return bytes(value.content.whole()) if value.content.part is None else {"bytes": value.content.size_bytes}
    return f"<{value.name}, {value.content.size_bytes} bytes>"

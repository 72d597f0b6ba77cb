"""Named consumers of outputs. The position of each is stored, so outputs it has not read are kept.

A position is a record of kind `OCUR`, written once. A new position has the next number, and the older files are deleted. If several processes
acknowledge at once, each either writes the next number or reads the position again, also if it finds a later number. A consumer never moves back.
"""

import contextlib
from collections.abc import Callable

import msgspec

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.disk.layout import OUTPUTS
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.disk.record import canonical, check_store, damaged, seal, unseal
from snapline.storage.outputs.output_record import (
    CONSUMERS,
    Cursor,
    consumer_path,
    parse_consumer_path,
    parse_cursor,
)
from snapline.storage.store import files

CURSOR_KIND = b"OCUR"

TRIES_MAX = 20
"""Largest number of attempts to move a consumer while others move it: each failure is another process's success."""

_ID_BYTES = 16


class ConsumerPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of a consumer: its cursor as text, and the wall-clock time of its acknowledgement in nanoseconds since 1970."""

    cursor: str
    acknowledged_ns: int


class _PositionBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    acknowledged_ns: int
    consumer: str
    cursor: str
    store: str


def read_consumers(disk: Disk, store_id: str) -> dict[str, ConsumerPosition]:
    """Return all named consumers, sorted by name.

    Raises:
        DamagedDataError: the newest position of a consumer is damaged.
        StoreError: the store cannot be read.
    """
    for _ in range(TRIES_MAX):
        with contextlib.suppress(_ChangedError):
            return {name: _read(disk, name, numbers[-1], store_id) for name, numbers in _list(disk).items()}
    raise StoreError(f"the consumers of outputs in {disk.location} change faster than they can be read: try again")


def acknowledge(
    disk: Disk, store_id: str, name: str, cursor: str, *, now_ns: int, random_bytes: Callable[[int], bytes]
) -> ConsumerPosition:
    """Move a consumer forward to `cursor`, durably; return its position. The first call creates the consumer.

    Raises:
        UsageError: the consumer's name or the cursor is invalid.
        StoreError: the position could not be written; repeat the call.
    """
    wanted = parse_cursor(cursor)
    consumer_path(name, 1)
    with files.writing(disk, f"the place of consumer {name!r}"):
        for directory in (OUTPUTS, CONSUMERS):
            make_durable_directory(disk, directory)
        for _ in range(TRIES_MAX):
            with contextlib.suppress(_ChangedError):
                return _advance(disk, store_id, name, wanted, now_ns=now_ns, random_bytes=random_bytes)
    raise StoreError(f"consumer {name!r} is moved by others faster than it can be written: try again")


def forget(disk: Disk, name: str) -> bool:
    """Remove a consumer: outputs are no longer kept for it; return whether it existed."""
    consumer_path(name, 1)
    with files.writing(disk, f"the removal of consumer {name!r}"):
        paths = [consumer_path(name, number) for number in _list(disk).get(name, [])]
        removed = files.unlink(disk, paths)
        if removed:
            disk.sync_directory(CONSUMERS)
    return bool(removed)


def check_place(disk: Disk, path: str, *, store_id: str | None) -> None:
    """Read and check a whole position file of a consumer; raises DamagedDataError, StoreError."""
    name, _ = parse_consumer_path(path) or ("", 0)
    _decode(disk, path, name, store_id)


class _ChangedError(Exception):
    """The listed files have changed."""


def _advance(
    disk: Disk, store_id: str, name: str, wanted: Cursor, *, now_ns: int, random_bytes: Callable[[int], bytes]
) -> ConsumerPosition:
    numbers = _list(disk).get(name, [])
    known = _read_if_whole(disk, name, numbers[-1], store_id) if numbers else None
    if known is not None and parse_cursor(known.cursor) >= wanted:
        disk.sync_directory(CONSUMERS)
        return known
    place = ConsumerPosition(str(wanted), now_ns)
    body = _PositionBody(acknowledged_ns=now_ns, consumer=name, cursor=place.cursor, store=store_id)
    number = max(numbers, default=0) + 1
    path, data = consumer_path(name, number), seal(CURSOR_KIND, canonical.encode(body))
    temporary_name = f"output-0-{random_bytes(_ID_BYTES).hex()}"
    try:
        write_once(disk, path, (data,), temporary_name=temporary_name, point="store.outputs.consumer")
    except FileExistsError as error:
        raise _ChangedError from error
    if max(_list(disk).get(name, []), default=0) > number:
        raise _ChangedError  # Others moved on by two steps and had removed this number before it was written.
    files.unlink(disk, [consumer_path(name, old_number) for old_number in numbers])
    return place


def _read_if_whole(disk: Disk, name: str, number: int, store_id: str) -> ConsumerPosition | None:
    try:
        return _read(disk, name, number, store_id)
    except DamagedDataError:
        return None


def _read(disk: Disk, name: str, number: int, store_id: str) -> ConsumerPosition:
    path = consumer_path(name, number)
    try:
        return _decode(disk, path, name, store_id)
    except DamagedDataError as error:
        if number not in _list(disk).get(name, []):
            raise _ChangedError from error
        raise


def _decode(disk: Disk, path: str, name: str, store_id: str | None) -> ConsumerPosition:
    data = files.read_file(disk, path, epoch=None, size_bytes_max=files.SMALL_BYTES_MAX)
    raw = unseal(CURSOR_KIND, data, path=path, epoch=None)
    with files.decoding(path):
        body = msgspec.msgpack.decode(raw, type=_PositionBody)
    if body.consumer != name:
        raise damaged(path, f"it is the place of consumer {body.consumer!r}")
    check_store(body.store, path, store_id)
    try:
        parse_cursor(body.cursor)
    except UsageError as error:
        raise damaged(path, str(error)) from error
    return ConsumerPosition(body.cursor, body.acknowledged_ns)


def _list(disk: Disk) -> dict[str, list[int]]:
    """Return the numbers of all position files, ascending, by consumer."""
    entries = files.listed(disk, CONSUMERS)
    places = [parse_consumer_path(f"{CONSUMERS}/{entry.name}") for entry in entries if not entry.is_directory]
    numbers: dict[str, list[int]] = {}
    for name, number in sorted([place for place in places if place is not None]):
        numbers.setdefault(name, []).append(number)
    return numbers


def lowest_cursor(places: dict[str, ConsumerPosition]) -> Cursor | None:
    """Return the position that all consumers have reached; None if there are no consumers."""
    return min([parse_cursor(place.cursor) for place in places.values()], default=None)

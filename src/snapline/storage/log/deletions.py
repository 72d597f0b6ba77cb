"""Records of deleted batches of host logs, made by the deleter.

The problem. Anyone who can write to the store can remove a batch, and what it held would be missing without a trace: logs have gaps where garbage
was deleted, and nothing else records their ends. The model is that of `keys/protection.py`: the attacker has no key.

So where a store is signed or encrypted, a record lists what is deleted, before it is (`log/deleted.<random>`, kind `LDEL`): ranges of
numbers for each log, vouched for with a key. Every number of a log up to its highest batch, and up to the newest one that the coordinator
knows of, is a batch or in such a range; anything else is missing.

Several processes may delete at once: what counts is the union of all records. A writer of one puts all others' ranges in it, and removes those that
it has read. So a record that comes back is still true, and ranges are never lost. A batch in a range may be there still, after a crash, or again,
because somebody has brought it back: it is garbage, and is ignored.

Carries R1 of inputs, also against changes on purpose.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.log.names import LogName, deletions_path, is_deletions_path, parse_directory
from snapline.storage.store import files
from snapline.storage.store.damage import check_store, damaged
from snapline.storage.store.disk import Disk, write_once
from snapline.storage.store.guard import Guard
from snapline.storage.store.layout import LOG
from snapline.storage.store.record import canonical, seal, unseal

DELETIONS_KIND = b"LDEL"

DELETIONS_BYTES_MAX = 2**26
"""A log takes some 40 bytes, and a few more for each batch that stays among those that went. Checked before anything is read."""

TRIES_MAX = 10
"""A record is replaced once a sweep, every few seconds at most; reading all takes milliseconds."""

_PURPOSE = "snapline deletions 1"

Spans = list[tuple[int, int]]
"""Ranges of numbers, first and last, ascending, with gaps between."""


class DeletionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a record of deletions.

    Attributes:
        logs: directory of a log → what was deleted of it.
        store: where it belongs.
        tag: `Guard.vouch` of all of that.
    """

    logs: dict[str, Spans]
    store: str
    tag: bytes = b""

    def message(self) -> bytes:
        """Return what is vouched for."""
        return canonical.encode((_PURPOSE, self.store, self.logs))


_decoder = msgspec.msgpack.Decoder(DeletionsBody)


def find_deletions(disk: Disk) -> list[str]:
    """Return the paths of all records of deletions."""
    paths = [f"{LOG}/{entry.name}" for entry in files.listed(disk, LOG) if not entry.is_directory]
    return [path for path in paths if is_deletions_path(path)]


def read_deletions(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None) -> DeletionsBody:
    """Return the body of one record.

    Raises:
        DamagedDataError: it is missing, damaged, or of another store.
        StoreError: it was written without a key.
    """
    body = unseal(
        DELETIONS_KIND,
        files.read_file(disk, path, epoch=None, size_bytes_max=DELETIONS_BYTES_MAX),
        path=path,
        epoch=None,
    )
    with files.decoding(path):
        found = _decoder.decode(body)
    check_store(found.store, path, store_id)
    if any(parse_directory(directory) is None for directory in found.logs):
        raise damaged(path, "it names what is no log")
    if guard is not None and not guard.is_vouched(found.message(), found.tag):
        raise StoreError(f"{path} was not written by somebody with the key: remove it")
    return found


def read_all(disk: Disk, *, store_id: str | None, guard: Guard) -> tuple[dict[str, Spans], list[str]]:
    """Return what was deleted, directory → ranges, and the paths of the records of it.

    Raises:
        StoreError: a record is damaged, or was written without a key; or the store cannot be read.
    """
    for _ in range(TRIES_MAX):
        paths = find_deletions(disk)
        try:
            records = [read_deletions(disk, path, store_id=store_id, guard=guard) for path in paths]
        except DamagedDataError as error:
            if set(paths) <= set(find_deletions(disk)):
                raise StoreError(str(error)) from error  # no reason to go back to an older epoch
            continue  # somebody has replaced it
        union: dict[str, Spans] = {}
        for record in records:
            for directory, spans in record.logs.items():
                union[directory] = join(union.get(directory, []) + spans)
        return union, paths
    raise StoreError(f"the records of what was deleted in {LOG} are replaced faster than they can be read: try again")


def note_deletions(
    disk: Disk,
    wanted: Mapping[LogName, Iterable[int]],
    *,
    store_id: str,
    guard: Guard,
    random: str,
    temporary_name: str,
) -> None:
    """Write down, durably, that these batches are deleted; OSError, or errors as `read_deletions` and `Guard.vouch`."""
    logs, replaced = read_all(disk, store_id=store_id, guard=guard)
    for log, numbers in wanted.items():
        logs[log.directory] = join(logs.get(log.directory, []) + [(number, number) for number in numbers])
    body = DeletionsBody(logs, store_id)
    data = seal(DELETIONS_KIND, canonical.encode(msgspec.structs.replace(body, tag=guard.vouch(body.message()))))
    path = deletions_path(random)
    write_once(disk, path, (data,), temporary_name=temporary_name, point="store.log.deletions")
    files.unlink(disk, replaced)


def join(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the same numbers in as few ranges as possible."""
    joined: Spans = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def holds(spans: Spans, number: int) -> bool:
    """Return whether a number is in one of the ranges."""
    place = bisect_right(spans, number, key=lambda span: span[0])
    return place > 0 and number <= spans[place - 1][1]


def first_missing(batches: Collection[int], spans: Spans, newest: int) -> int:
    """Return the lowest number that is neither there nor deleted, up to the highest batch and to `newest`; 0: none."""
    known = join([*[(number, number) for number in batches], *spans])
    end = known[0][1] if known and known[0][0] <= 1 else 0
    return end + 1 if end < max([newest, *batches]) else 0

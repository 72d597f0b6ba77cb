"""Pins and tags, which are requests to keep a snapshot. The module creates pins and tags, and deletes only snapshots that are neither
pinned nor tagged.

    pins/<epoch>.<random>        the epoch is kept                        record PINS {created, epoch, root, store}
    tags/<name>                  the epoch is kept under a name           record TAGS {created, epoch, maker, name, root, store}
    deleting/<epoch>.<random>    a process is about to delete the epoch   record DELE {begun_s, epoch, store}

The problem: a command pins a snapshot while the coordinator or another command deletes it, perhaps at the same moment and on another
machine. Either the pin must stop the deletion, or the pin must be refused. A pin must never be granted for a snapshot that is then deleted.

The model: all processes use the same store, which is a local directory or an object store. Listings are up to date, and creating a file
fails if the file already exists. Any process may die or be delayed at any step. The two sides follow Dekker's algorithm: each raises its
flag before it looks for the other side's flag:

| pinning or tagging | deleting |
| --- | --- |
| 1. read the ref | 1. create `deleting/<epoch>.<random>` |
| 2. create the pin or tag | 2. list pins |
| 3. list `deleting`: another process's intent → refused | 3. list tags: one names the epoch → not deleted |
| 4. read the ref: missing → refused | 4. delete: the ref first |
| if refused: remove the file created in step 2 | 5. remove the intent created in step 1 |

Why the algorithm works: if the pinner's step 3 precedes the deleter's step 1, the pin existed before the deleter's steps 2 and 3, and one
of them finds it. If the deleter's step 1 comes first, the pinner's step 3 finds the intent to delete, unless the deleter has already
removed the intent. A deleter that has deleted the epoch removes the ref before the intent, so the pinner's step 4 finds no ref. **Step 3
must come before step 4.**

Each process creates its own files, and pins and intents have random names. A refused pinner removes only its own pin, and a deleter removes
only its own intent. So several processes may pin an epoch concurrently, and several may try to delete it. Only one process can create a tag
with a given name. A second process that uses the name is refused, even if its tag names the same epoch.

Cleanup after dead processes. An intent to delete blocks new pins of the epoch until `clear_leftovers` removes the intent. `clear_leftovers`
removes an intent if the ref is gone or the intent is older than `INTENT_S_MAX`. If the caller knows that no other process deletes, all
intents are removed. A pin is valid even if the process that created it died between steps 2 and 4. `clear_leftovers` removes a pin if both
the ref and the manifest of its snapshot are gone. If only the ref is gone, the pin is kept, because a deletion removes the manifest or
leaves an intent, so the ref was lost rather than deleted.

This module supports G7.
"""

import contextlib
import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.ids import check_id
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, make_durable_directory
from snapline.storage.disk.record import canonical, check_store, damaged, seal, unseal
from snapline.storage.packs.manifest import read_ref
from snapline.storage.timestamps import instant

PINS, TAGS, DELETING = "pins", "tags", "deleting"
DIRECTORIES = (PINS, TAGS, DELETING)
"""Directories of pins, tags and intents. Each directory is created together with its first file."""

PIN_KIND, TAG_KIND, INTENT_KIND = b"PINS", b"TAGS", b"DELE"

INTENT_S_MAX = 3600
"""Age in seconds from which an intent counts as left by a dead process. A deletion takes milliseconds, or minutes on a slow store."""

HOLDS_MAX = 10_000
"""Maximum number of pins, and of tags. Requests for more are refused, because each deletion reads all tags."""

DELETED_AT_ONCE = 64
"""Number of epochs that are deleted after each check of the pins and tags. A crash leaves at most this many intents."""

PINNED = "pinned"

_CLAIM = re.compile(rf"(pins|deleting)/{layout.NUMBER_PATTERN}\.([0-9a-f]{{32}})")
_TAG = re.compile(r"tags/([A-Za-z0-9_.-]{1,128})")
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a pin. `root` is the root of the snapshot, and `created` is the creation time of the pin (UTC, ISO 8601)."""

    epoch: int
    root: str
    store: str
    created: str


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a tag. `maker` is random, so that no two processes write the same bytes. The other fields are the tag's name and the fields
    that a pin has."""

    name: str
    maker: str
    epoch: int
    root: str
    store: str
    created: str


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an intent to delete. `begun_s` is the start time of the deletion in seconds since 1970."""

    epoch: int
    store: str
    begun_s: int


Record = Pin | Tag | Intent
_Record = TypeVar("_Record", bound=Record)
_Result = TypeVar("_Result")
_KINDS: dict[type, bytes] = {Pin: PIN_KIND, Tag: TAG_KIND, Intent: INTENT_KIND}
_TYPES: dict[str, type[Record]] = {PINS: Pin, TAGS: Tag, DELETING: Intent}

Steps = Generator[None, None, _Result]
"""A procedure that yields wherever another process may interleave. Between two yields, the code accesses shared state at most once."""


# -- names ------------------------------------------------------------------------------------------------------------


def check_tag(name: str) -> str:
    """Return `name` if it is a valid tag name. Raise UsageError otherwise."""
    check_id(name, "tag")
    if name in (".", "..", "latest") or name.isdecimal():
        raise UsageError(f"a tag cannot be called {name!r}: as the name of a snapshot it means something else")
    return name


def parse_claim_path(path: str) -> int | None:
    """Parse the path of a pin or intent into its epoch. Return None for any other path."""
    match = _CLAIM.fullmatch(path)
    return None if match is None or int(match[2]) > layout.EPOCH_MAX else int(match[2])


def parse_tag_path(path: str) -> str | None:
    """Parse the path of a tag into its name. Return None if the path is invalid."""
    match = _TAG.fullmatch(path)
    with contextlib.suppress(UsageError):
        return None if match is None else check_tag(match[1])
    return None


# -- pins and tags ----------------------------------------------------------------------------------------------------


def pin(disk: Disk, store_id: str, epoch: int, *, token: str, now_s: float) -> Pin:
    """Pin a snapshot durably. A snapshot may be pinned several times.

    `token` must consist of 32 random hexadecimal digits, and must be different for each call. All functions in this module that take a
    `token` have this requirement.

    Raises:
        NotFoundError: If the snapshot does not exist.
        StoreError: If the snapshot is being deleted, or the disk failed.
        UsageError: If there are already `HOLDS_MAX` pins.
    """
    return _run(pin_steps(disk, store_id, epoch, token=token, now_s=now_s))


def tag(disk: Disk, store_id: str, name: str, epoch: int, *, token: str, now_s: float) -> Tag:
    """Tag a snapshot durably. Raise UsageError if the tag exists, and the errors of `pin`. To move a tag, remove it first."""
    return _run(tag_steps(disk, store_id, name, epoch, token=token, now_s=now_s))


def pin_steps(disk: Disk, store_id: str, epoch: int, *, token: str, now_s: float) -> Steps[Pin]:
    """Perform the steps of `pin`, yielding between them."""
    root = _root_of(disk, store_id, epoch)
    made = Pin(epoch, root, store_id, instant(now_s))
    yield from _claim(disk, f"{PINS}/{epoch}.{_check_token(token)}", made, token, what=f"a pin of epoch {epoch}")
    return made


def tag_steps(disk: Disk, store_id: str, name: str, epoch: int, *, token: str, now_s: float) -> Steps[Tag]:
    """Perform the steps of `tag`, yielding between them."""
    root = _root_of(disk, store_id, epoch)
    made = Tag(check_tag(name), _check_token(token), epoch, root, store_id, instant(now_s))
    try:
        yield from _claim(disk, f"{TAGS}/{name}", made, token, what=f"tag {name}")
    except FileExistsError:
        raise UsageError(f"tag {name} exists already: remove it first, or choose another name") from None
    return made


def unpin(disk: Disk, epoch: int) -> bool:
    """Remove all pins of an epoch, and return whether any existed. Tags of the epoch are kept."""
    paths = [path for path in _paths(disk, PINS) if parse_claim_path(path) == epoch]
    return bool(_remove(disk, PINS, paths))


def unpin_own(disk: Disk, epoch: int, token: str) -> None:
    """Remove the pin that was created with this token, if it still exists."""
    _remove(disk, PINS, [f"{PINS}/{epoch}.{_check_token(token)}"])


def untag(disk: Disk, name: str) -> bool:
    """Remove a tag, even if it is damaged. Return whether the tag existed."""
    return bool(_remove(disk, TAGS, [f"{TAGS}/{check_tag(name)}"]))


def list_pins(disk: Disk, store_id: str) -> list[Pin]:
    """Return one pin per pinned epoch, in ascending order of epochs.

    Raises:
        DamagedDataError: If a pin is unreadable.
    """
    pins: dict[int, Pin] = {}
    for path in _paths(disk, PINS):
        epoch = parse_claim_path(path)
        record = None if epoch is None else _read(disk, path, Pin, store_id)
        if record is not None:
            pins.setdefault(record.epoch, record)
    return [pins[epoch] for epoch in sorted(pins)]


def pinned_epochs(disk: Disk) -> list[int]:
    """Return the pinned epochs in ascending order. Only file names are read, so damaged pins count too."""
    return sorted({epoch for path in _paths(disk, PINS) if (epoch := parse_claim_path(path)) is not None})


def list_tags(disk: Disk, store_id: str) -> list[Tag]:
    """Return the tags, sorted by name.

    Raises:
        DamagedDataError: If a tag is unreadable.
    """
    paths = [path for path in _paths(disk, TAGS) if parse_tag_path(path) is not None]
    return [record for path in paths if (record := _read(disk, path, Tag, store_id)) is not None]


def tagged_epoch(disk: Disk, store_id: str, name: str) -> int | None:
    """Return the epoch of the tag `name`, or None if `name` is invalid or the tag does not exist.

    Raises:
        DamagedDataError: If the tag is unreadable.
    """
    path = f"{TAGS}/{name}"
    record = None if parse_tag_path(path) is None else _read(disk, path, Tag, store_id)
    return None if record is None else record.epoch


def held_epochs(disk: Disk, store_id: str) -> dict[int, str]:
    """Return the reason for which each held epoch is kept, either `"pinned"` or `"tag NAME"`.

    Raises:
        DamagedDataError: If a tag is unreadable. An unreadable tag may hold any epoch, so nothing may be deleted.
    """
    return _run(_held_steps(disk, store_id))


# -- deleting ---------------------------------------------------------------------------------------------------------


def guarded_delete(
    disk: Disk,
    store_id: str,
    epochs: Sequence[int],
    delete: Callable[[int], list[str]],
    *,
    tokens: Callable[[], str],
    now_s: float,
) -> dict[int, list[str] | None]:
    """Delete all given epochs that are not held. Return the removed paths of each epoch, or None for an epoch that is held.

    `delete` must delete one epoch, removing its ref first (`Store.delete_epoch`). If `delete` raises an exception, later epochs are not
    deleted, and the intents are removed.
    """
    done: dict[int, list[str] | None] = {}
    for first in range(0, len(epochs), DELETED_AT_ONCE):
        batch = epochs[first : first + DELETED_AT_ONCE]
        done |= _run(delete_steps(disk, store_id, batch, delete, token=tokens(), now_s=now_s))
    return done


def delete_steps(
    disk: Disk,
    store_id: str,
    epochs: Sequence[int],
    delete: Callable[[int], list[str]],
    *,
    token: str,
    now_s: float,
) -> Steps[dict[int, list[str] | None]]:
    """Perform the steps of `guarded_delete` for at most `DELETED_AT_ONCE` epochs, yielding between them."""
    own: list[str] = []
    done: dict[int, list[str] | None] = {}
    try:
        for epoch in epochs:
            path = f"{DELETING}/{layout.check_epoch(epoch)}.{_check_token(token)}"
            own.append(path)
            _create(disk, path, Intent(epoch, store_id, int(now_s)), token, what=f"the deletion of epoch {epoch}")
            failpoint("store.intent.created")
            yield
        held = yield from _held_steps(disk, store_id)
        for epoch in epochs:
            if epoch not in held:
                failpoint("store.intent.unheld")
                yield
            done[epoch] = None if epoch in held else delete(epoch)
        yield
    except Exception:  # If the process dies instead, `clear_leftovers` removes its intents.
        with contextlib.suppress(StoreError):
            _remove(disk, DELETING, own)
        raise
    _remove(disk, DELETING, own)
    return done


def clear_leftovers(disk: Disk, store_id: str, *, now_s: float, is_alone: bool = False) -> list[str]:
    """Remove files that dead processes left behind while pinning or deleting. Return the paths of these files.

    Set `is_alone` only if no other process deletes snapshots, which means that every intent is left over from a dead process.
    """
    intents = [(path, epoch) for path in _paths(disk, DELETING) if (epoch := parse_claim_path(path)) is not None]
    dead = [
        path
        for path, epoch in intents
        if is_alone or not _is_there(disk, layout.ref_path(epoch)) or _is_old(disk, path, store_id, now_s)
    ]
    removed = _remove(disk, DELETING, dead)
    being_deleted = frozenset([epoch for path, epoch in intents if path not in dead])
    for directory in (PINS, TAGS):
        stray = [path for path in _paths(disk, directory) if _is_stray(disk, path, store_id, being_deleted)]
        removed += _remove(disk, directory, stray)
    return removed


def read_record(disk: Disk, path: str, store_id: str | None) -> Record | None:
    """Read the record at `path`, which is in one of `DIRECTORIES`. Return None if the file has just been removed.

    If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the file is damaged or has an invalid name.
    """
    if not _is_claim(path):
        raise damaged(path, "no file of a snapline store has this name")
    return _read(disk, path, _TYPES[path.partition("/")[0]], store_id)


# -- inside -----------------------------------------------------------------------------------------------------------


def _run(steps: Steps[_Result]) -> _Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _claim(disk: Disk, path: str, record: Pin | Tag, token: str, *, what: str) -> Steps[None]:
    """Perform steps 2 to 4 of pinning or tagging. Raise FileExistsError if the path exists."""
    directory = path.partition("/")[0]
    if len(_paths(disk, directory)) >= HOLDS_MAX:
        raise UsageError(f"the store {disk.location} has {HOLDS_MAX} {directory}: remove some first")
    yield
    _create(disk, path, record, token, what=what)
    failpoint("store.pin.created")
    yield
    is_being_deleted = any(parse_claim_path(other) == record.epoch for other in _paths(disk, DELETING))
    yield
    if not is_being_deleted and _is_there(disk, layout.ref_path(record.epoch)):
        return
    yield
    _remove(disk, directory, [path])
    if not is_being_deleted:
        raise NotFoundError(f"epoch {record.epoch} has just been deleted: `snapshot list` shows what is there")
    raise StoreError(
        f"epoch {record.epoch} is being deleted: try again in a minute; if the fleet has ended, run `snapshot prune` first"
    )


def _held_steps(disk: Disk, store_id: str) -> Steps[dict[int, str]]:
    pinned = pinned_epochs(disk)
    yield
    held = {tag.epoch: f"tag {tag.name}" for tag in reversed(list_tags(disk, store_id))}
    return held | dict.fromkeys(pinned, PINNED)


def _create(disk: Disk, path: str, record: Record, token: str, *, what: str) -> None:
    directory = path.partition("/")[0]
    data = seal(_KINDS[type(record)], canonical.encode(record))
    with store_files.writing(disk, what):
        if not _is_there(disk, directory):
            make_durable_directory(disk, directory)
        try:
            # Only this call writes these bytes. If the file contains them, an earlier attempt succeeded but its reply was lost.
            store_files.create_or_compare(
                disk, path, data, temporary_name=f"{record.epoch}-{token}", point="store.held"
            )
        except FileExistsError:
            is_taken = True
        else:
            is_taken = False
    if is_taken:
        raise FileExistsError(path)


def _read(disk: Disk, path: str, kind: type[_Record], store_id: str | None) -> _Record | None:
    """Read and check the record at `path`. Return None if the file has just been removed."""
    try:
        data = store_files.read_file(disk, path, epoch=None, size_bytes_max=store_files.SMALL_BYTES_MAX)
        body = unseal(_KINDS[kind], data, path=path, epoch=None)
        with store_files.decoding(path):
            record = msgspec.msgpack.decode(body, type=kind)
        check_store(record.store, path, store_id)
        reason = _contradiction(record, path)
        if reason:
            raise damaged(path, reason)
    except DamagedDataError:
        if _is_there(disk, path):
            raise
        return None
    return record


def _contradiction(record: Record, path: str) -> str:
    if isinstance(record, Tag):
        return "" if path == f"{TAGS}/{record.name}" else f"it is tag {record.name!r}"
    return "" if parse_claim_path(path) == record.epoch else f"it is of epoch {record.epoch}"


def _root_of(disk: Disk, store_id: str, epoch: int) -> str:
    if not _is_there(disk, layout.ref_path(epoch)):
        raise NotFoundError(f"epoch {epoch} is not in the store {disk.location}: `snapshot list` shows what is")
    return read_ref(disk, epoch, store_id)


def _is_claim(path: str) -> bool:
    return parse_claim_path(path) is not None or parse_tag_path(path) is not None


def _is_stray(disk: Disk, path: str, store_id: str, being_deleted: frozenset[int]) -> bool:
    """Return whether the snapshot of this pin or tag was deleted. If only the ref is gone, it was lost rather than deleted, and the result
    is False."""
    record = None
    with contextlib.suppress(DamagedDataError):
        record = _read(disk, path, _TYPES[path.partition("/")[0]], store_id) if _is_claim(path) else None
    if not isinstance(record, Pin | Tag) or record.epoch in being_deleted:
        return False
    return not _is_there(disk, layout.ref_path(record.epoch)) and not _is_there(disk, layout.manifest_path(record.root))


def _is_old(disk: Disk, path: str, store_id: str, now_s: float) -> bool:
    try:
        record = _read(disk, path, Intent, store_id)
    except DamagedDataError:
        return False
    return record is not None and now_s - record.begun_s > INTENT_S_MAX


def _paths(disk: Disk, directory: str) -> list[str]:
    with store_files.reading(disk, directory):
        try:
            entries = disk.list_directory(directory)
        except FileNotFoundError:
            return []
    return [f"{directory}/{entry.name}" for entry in entries if not entry.is_directory]


def _remove(disk: Disk, directory: str, paths: list[str]) -> list[str]:
    """Durably remove the files, and return the paths of those that existed."""
    with store_files.writing(disk, f"the removal of {directory}"):
        removed = store_files.unlink(disk, paths)
        if removed:
            disk.sync_directory(directory)
    return removed


def _is_there(disk: Disk, path: str) -> bool:
    with store_files.reading(disk, path):
        try:
            disk.size(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def _check_token(token: str) -> str:
    if _TOKEN.fullmatch(token) is None:
        raise UsageError(f"{token!r} is not a token: use 32 random hexadecimal digits")
    return token

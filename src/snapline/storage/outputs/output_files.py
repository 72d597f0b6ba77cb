"""Storage of released outputs. The module releases an epoch's outputs and delivers each output once to a reader that has a cursor. The
module also deletes old outputs, and outputs that all consumers have read.

**Reading.** A reader receives each output once, and a notice when outputs are reverted. The model: release files are written in ascending
order of their epochs, and never change. Each release file names the previous epoch *in its history* (`after`), and the newest release file
that existed when it was written (`previous`). Readers process release files in ascending order of their epochs. If a release file's `after`
is lower than the epoch of the file read before, the fleet was rolled back. After a rollback, all outputs that the reader has received from
epochs above `after` are reverted. Before the contents of that file, the reader receives a notice of the reverted epochs (`RevertedEpochs`).

So a reader's outputs always come from the files of one history: the newest file, then the newest file at or below its `after`, and so on.
The newest file at or below `after` always belongs to the same history as `after`. If a history skips another history's file,
`OutputWriter` writes a file for the skipping epoch.

A cursor names the last file that its reader has read. So a reader that reconnects with its cursor receives the same outputs as a reader
that stayed connected. Retention deletes files and thereby leaves gaps, which readers detect by `previous`. If the previous file is newer
than the cursor or has more outputs than the cursor counts, the reader has missed outputs and gets an error.

A release file counts as durable only after its reader has synced the directory. The same rule applies to entries of host logs.

**Named consumers.** The store keeps the position of each named consumer, and all outputs that a named consumer has not read yet. Each
position is a record of kind `OCUR`, which is written once. Each new position gets the next number, and the files of older positions are
deleted. Several processes may acknowledge outputs for one consumer concurrently. Each process writes the next number, or reads the position
again if another process has already written that number or a later one. A consumer's position never moves backwards.

**Writing.** The problem: each epoch's outputs must be released exactly once and never be undone, no matter how many processes release them
or crash meanwhile. A slow leader may be unaware that it has been replaced, and writes the same release as its successor.

The model: if several processes create a file with the same name, exactly one succeeds, as for host logs. *Part 0* of an epoch's release is
written last and completes the release. The names of all other parts contain a random id that identifies the attempt to release. So parts of
different attempts do not collide, and part 0 names only the parts of its own attempt. The epoch determines the outputs, so it does not
matter which attempt finishes first.

The caller's duties:

1. Epochs must be released in ascending order: after a release, no lower epoch with outputs may be released for the first time.
2. `after` must be the previous epoch of the same history, and the newest file at or below `after` must belong to that history too.
3. The first epoch after each rollback must be released, with or without outputs.

**Releasing** an epoch again succeeds if part 0 exists with the same root and `after`, or if part 0 of a higher epoch exists. If a higher
epoch has been released, duty 1 implies that the lower epoch was released before, and its files may have been deleted since. Readers report
damage to an existing part 0, but the writer ignores such damage, because the file was intact when it was released.

**No file is written** for an epoch without outputs, with two exceptions. First, if files between `after` and the epoch are skipped, readers
of the skipped files need a notice. Second, the caller may force a file to be written so that nobody writes it later, for example because
the epoch's bytes are damaged. So the newest file at or below any file's `after` belongs to that file's history, as `OutputReader` requires.

**Deleting** removes release files in ascending order, but never the newest file. The newest file shows later leaders which outputs were
released, and shows readers which releases were deleted (`previous`). Parts that no part 0 refers to are deleted after a higher epoch is
released, because no process will complete their release. An extremely slow process may create a part 0 whose epoch is lower than those of
all remaining files. The outputs in a late part 0 are correct. Readers that continue from a late part 0 get the error for missed outputs,
and no other reader notices the file.
"""

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import OUTPUTS, TEMPORARY, check_root, parse_temporary_path
from snapline.storage.disk.local_disk import Disk, creates_only, make_durable_directory, write_once
from snapline.storage.disk.record import Guard, canonical, check_store, damaged, seal, unseal
from snapline.storage.outputs.output_record import (
    CONSUMERS,
    FILE_BYTES_MAX,
    START,
    Cursor,
    EmittedOutput,
    OutputBody,
    PartName,
    Release,
    check_outputs,
    consumer_path,
    decode_part,
    encode_parts,
    first_path,
    open_outputs,
    parse_consumer_path,
    parse_cursor,
    parse_part_path,
    split_into_parts,
)
from snapline.storage.timestamps import ages_ns


class RevertedEpochs(msgspec.Struct, frozen=True, gc=False):
    """Notice of a rollback, which reverts all outputs of epochs above `after`.

    Attributes:
        after: the epoch to which the fleet was rolled back, or a later epoch of the same history.
        epochs: epochs with reverted outputs, ascending. The list may omit epochs whose files no longer exist.
    """

    after: int
    epochs: tuple[int, ...]


class OutputBatch(msgspec.Struct, frozen=True):
    """Batch of outputs: one part of a release, or the rest of a part if the cursor points into the part.

    Attributes:
        epoch: epoch of the release.
        first: number of outputs in the release that precede this batch.
        outputs: the outputs, sorted by agent and number.
        undone: notice of epochs that were reverted before this batch, or None if no epochs were reverted.
        created_ns: wall-clock time at which the release was created, in nanoseconds since 1970.
    """

    epoch: int
    first: int
    outputs: list[EmittedOutput]
    undone: RevertedEpochs | None = None
    created_ns: int = 0

    @property
    def end(self) -> Cursor:
        """Cursor of a reader that has read the whole batch."""
        return Cursor(self.epoch, self.first + len(self.outputs))

    def cursor(self, index: int) -> Cursor:
        """Return the cursor after the first `index` outputs of the batch. If `index` is 0, the cursor covers only the reverts before the
        batch."""
        return Cursor(self.epoch, self.first + index)


class OutputReader:
    """Reader of the outputs of one store. Threads may share a reader."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._durable = 0
        """Newest epoch that this reader has listed and made durable by syncing the directory."""

    def epochs(self) -> list[int]:
        """Return the epochs that have a complete and durable release, in ascending order. See `Store.output_epochs`."""
        epochs = released_epochs(list_parts(self._disk))
        if epochs and epochs[-1] > self._durable:
            failpoint("store.outputs.read.found")
            with store_files.reading(self._disk, OUTPUTS):
                self._disk.sync_directory(OUTPUTS)
            self._durable = epochs[-1]
        return epochs

    def head(self, epoch: int) -> OutputBody:
        """Return part 0 of a release. Raise the errors of `read_part`."""
        return read_part(self._disk, first_path(epoch), store_id=self._store_id)

    def release(self, epoch: int) -> Release:
        """Return a whole release. See `Store.read_release`."""
        if not _is_there(self._disk, first_path(epoch)):
            raise NotFoundError(f"epoch {epoch} has no outputs in the store {self._disk.location}")
        head = self.head(epoch)
        outputs = [output for part in range(len(head.counts)) for output in self._part(head, part)]
        return Release(epoch, head.after, head.root, head.created_ns, outputs)

    def batches(self, after: str, epochs: Sequence[int] | None = None) -> Iterator[OutputBatch]:
        """Yield the outputs that have been released after this cursor. See `Store.read_outputs`."""
        position = parse_cursor(after)
        if epochs is None:
            epochs = self.epochs()
        if position != START and (not epochs or epochs[-1] < position.epoch):
            raise UsageError(f"the store {self._disk.location} has no outputs up to {after!r}: it is another's cursor")
        damage: DamagedDataError | None = None
        for epoch in epochs[bisect_left(epochs, position.epoch) :]:
            try:
                head = self.head(epoch)
            except DamagedDataError as error:
                if damage is not None or (epoch != position.epoch and _is_there(self._disk, first_path(epoch))):
                    raise
                damage = error if _is_there(self._disk, first_path(epoch)) else None
                continue  # The file was deleted meanwhile, or was perhaps read already. The next release shows whether outputs are missing.
            if damage is not None and Cursor(*head.previous) > position:
                raise damage
            damage = None
            yield from self._rest_of(head, position, epochs)
            position = head.end
        if damage is not None:
            raise damage

    def _rest_of(self, head: OutputBody, position: Cursor, epochs: Sequence[int]) -> Iterator[OutputBatch]:
        """Yield the outputs of the release after `position`, which is a cursor into this release or an earlier one."""
        undone = None
        if head.epoch == position.epoch:
            if position > head.end:
                raise UsageError(f"epoch {head.epoch} has {head.end.taken} outputs: {position} is another's cursor")
            skipped = position.taken
        else:
            self._check_gap(head, position, epochs)
            undone, skipped = self._undone(head, position, epochs), 0
        for part, count in enumerate(head.counts):
            first = sum(head.counts[:part])
            if first + count > skipped or undone is not None:
                outputs = self._part(head, part)[max(0, skipped - first) :]
                yield OutputBatch(head.epoch, max(first, skipped), outputs, undone, head.created_ns)
            undone = None

    def _check_gap(self, head: OutputBody, position: Cursor, epochs: Sequence[int]) -> None:
        previous = Cursor(*head.previous)
        if position == START or previous <= position:
            return
        raise NotFoundError(
            f"outputs after {str(position)!r} were deleted from the store {self._disk.location}: the oldest that are left "
            f"are of epoch {epochs[0]}; read from '' on to get them"
        )

    def _undone(self, head: OutputBody, position: Cursor, epochs: Sequence[int]) -> RevertedEpochs | None:
        """Return the epochs that this release reverts and from which a reader at `position` has received outputs, or None if there are
        none."""
        if position.epoch <= head.after:
            return None
        undone, epoch = [position.epoch], position.epoch
        while epoch in epochs:
            try:
                before = self.head(epoch).after
            except DamagedDataError:
                break
            epoch = max([candidate for candidate in epochs if candidate <= before], default=0)
            if epoch <= head.after:
                break
            undone.append(epoch)
        return RevertedEpochs(head.after, tuple(reversed(undone)))

    def _part(self, head: OutputBody, part: int) -> list[EmittedOutput]:
        if part == 0:
            return open_outputs(head, self._guard)
        path = head.part_path(part)
        try:
            body = read_part(self._disk, path, store_id=self._store_id)
        except DamagedDataError as error:
            if _is_there(self._disk, first_path(head.epoch)):
                raise
            raise NotFoundError(f"the outputs of epoch {head.epoch} were deleted while they were read") from error
        check_same_release(body, head)
        return open_outputs(body, self._guard)


def check_same_release(body: OutputBody, head: OutputBody) -> None:
    """Check that a part belongs to the same release as the part 0 in `head`. Raise DamagedDataError if it does not."""
    if msgspec.structs.replace(head, part=body.part, data=body.data, key=body.key) != body:
        raise damaged(body.path, f"its release data differs from that of {head.path}")


def list_parts(disk: Disk) -> list[PartName]:
    """Return the parts of all releases, sorted by epoch and part number. The result is empty if the store has never contained outputs."""
    entries = store_files.listed(disk, OUTPUTS)
    names = [parse_part_path(f"{OUTPUTS}/{entry.name}") for entry in entries if not entry.is_directory]
    return sorted([name for name in names if name is not None], key=lambda name: (name.epoch, name.part, name.release))


def released_epochs(parts: list[PartName]) -> list[int]:
    """Return the epochs that have a part 0, and thus a complete release, in ascending order."""
    return [name.epoch for name in parts if name.part == 0]


def read_part(disk: Disk, path: str, *, store_id: str | None) -> OutputBody:
    """Read a part, and make every check that needs no key.

    Raises:
        DamagedDataError, StoreError: As in `decode_part`, or if the file is missing or unreadable.
    """
    data = store_files.read_file(disk, path, epoch=None, size_bytes_max=FILE_BYTES_MAX)
    return decode_part(data, path=path, store_id=store_id)


def holds_outputs(disk: Disk) -> bool:
    return bool(list_parts(disk))


def keys_of_outputs(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys with which the store's outputs are encrypted. Raise the errors of `read_part`."""
    keys = {read_part(disk, name.path, store_id=store_id).key for name in list_parts(disk)}
    return keys - {""}


def _is_there(disk: Disk, path: str) -> bool:
    with store_files.reading(disk, path):
        try:
            disk.size(path)
        except FileNotFoundError:
            return False
    return True


CURSOR_KIND = b"OCUR"

TRIES_MAX = 20
"""Limit on attempts to move a consumer while other processes move it. Each failed attempt means that another process succeeded."""

_ID_BYTES = 16


class ConsumerPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of a named consumer: its cursor as text, and the wall-clock time of its last acknowledgement in nanoseconds since 1970."""

    cursor: str
    acknowledged_ns: int


class _PositionBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    acknowledged_ns: int
    consumer: str
    cursor: str
    store: str


def read_consumers(disk: Disk, store_id: str) -> dict[str, ConsumerPosition]:
    """Return the positions of all named consumers, sorted by name.

    Raises:
        DamagedDataError: If the newest position of a consumer is damaged.
        StoreError: If the store cannot be read.
    """
    for _ in range(TRIES_MAX):
        with contextlib.suppress(_ChangedError):
            return {name: _read(disk, name, numbers[-1], store_id) for name, numbers in _list(disk).items()}
    raise StoreError(f"the consumers of outputs in {disk.location} change faster than they can be read: try again")


def acknowledge(
    disk: Disk, store_id: str, name: str, cursor: str, *, now_ns: int, random_bytes: Callable[[int], bytes]
) -> ConsumerPosition:
    """Durably move a consumer forward to `cursor`, and return the consumer's position. The first call creates the consumer.

    Raises:
        UsageError: If the consumer's name or the cursor is invalid.
        StoreError: If the position cannot be written. The caller should then repeat the call.
    """
    wanted = parse_cursor(cursor)
    consumer_path(name, 1)
    with store_files.writing(disk, f"the place of consumer {name!r}"):
        for directory in (OUTPUTS, CONSUMERS):
            make_durable_directory(disk, directory)
        for _ in range(TRIES_MAX):
            with contextlib.suppress(_ChangedError):
                return _advance(disk, store_id, name, wanted, now_ns=now_ns, random_bytes=random_bytes)
    raise StoreError(f"consumer {name!r} is moved by others faster than it can be written: try again")


def forget(disk: Disk, name: str) -> bool:
    """Remove a consumer, so that outputs are no longer kept for it. Return whether the consumer existed."""
    consumer_path(name, 1)
    with store_files.writing(disk, f"the removal of consumer {name!r}"):
        paths = [consumer_path(name, number) for number in _list(disk).get(name, [])]
        removed = store_files.unlink(disk, paths)
        if removed:
            disk.sync_directory(CONSUMERS)
    return bool(removed)


def check_place(disk: Disk, path: str, *, store_id: str | None) -> None:
    """Read and check a consumer's position file. Raise DamagedDataError or StoreError."""
    name, _ = parse_consumer_path(path) or ("", 0)
    _decode(disk, path, name, store_id)


class _ChangedError(Exception):
    """The position files have changed since they were listed."""


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
        raise _ChangedError  # Other processes wrote two later positions and removed this number before this process wrote it.
    store_files.unlink(disk, [consumer_path(name, old_number) for old_number in numbers])
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
    data = store_files.read_file(disk, path, epoch=None, size_bytes_max=store_files.SMALL_BYTES_MAX)
    raw = unseal(CURSOR_KIND, data, path=path, epoch=None)
    with store_files.decoding(path):
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
    """Return the numbers of each consumer's position files in ascending order."""
    entries = store_files.listed(disk, CONSUMERS)
    places = [parse_consumer_path(f"{CONSUMERS}/{entry.name}") for entry in entries if not entry.is_directory]
    numbers: dict[str, list[int]] = {}
    for name, number in sorted([place for place in places if place is not None]):
        numbers.setdefault(name, []).append(number)
    return numbers


def lowest_cursor(places: dict[str, ConsumerPosition]) -> Cursor | None:
    """Return the lowest cursor of all consumers, or None if there are no consumers."""
    return min([parse_cursor(place.cursor) for place in places.values()], default=None)


AGE_NS_MAX = 7 * 24 * 3600 * 10**9
"""Default age in nanoseconds at which releases are deleted (a week). A consumer may be offline for a long weekend without losing
outputs."""

AGE_NS_MIN = 3600 * 10**9
"""Default minimum age of a deleted release, in nanoseconds (an hour). The minimum protects unnamed readers, whose positions are not stored,
from named consumers that read faster."""

STEPS = 24
"""Divisor of those ages. The time between two releases counts as at most the age limit divided by `STEPS` (`storage/timestamps.py`). So the
newest releases survive a jump of the clock."""

LOOKED_AT = 256
"""Approximate number of releases that one deletion reads. If there are more releases, the deletion reads a sample. If a sampled release may
be deleted, all earlier releases are deleted too."""


class OutputWriter:
    """Writer of the outputs of one store. Threads may share a writer."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        *,
        guard: Guard | None,
        random_bytes: Callable[[int], bytes],
        watchers: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """Create the writer. After each release, each watcher is called with the epoch, and after each deletion with 0. The call may come
        from any thread."""
        self._watchers = watchers
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._random_bytes = random_bytes
        self._newest: OutputBody | None = None
        """The newest known release, without its outputs."""
        self._heads: dict[int, OutputBody] = {}
        """Part 0 of each release that the last deletion sampled, without its outputs."""
        self._last_released = 0
        """Epoch that this object released last. Only the release of the next epoch skips the check of the store. Before any other release,
        another leader may have released epochs."""
        self._lock = threading.Lock()
        """Lock held while this process writes temporary files, and while it removes leftover temporary files."""

    def release(
        self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None, *, created_ns: int
    ) -> None:
        """Release outputs with an epoch. See `Store.release_outputs`."""
        path, ordered = first_path(epoch), check_outputs(outputs or [])
        check_root(root)
        if not 0 <= after < epoch:
            raise UsageError(f"epoch {after} cannot be before epoch {epoch}")
        with self._lock, store_files.writing(self._disk, f"the outputs of epoch {epoch}"):
            newest = (
                self._newest if self._newest is not None and epoch == self._last_released + 1 else self._find_newest()
            )
            if newest is not None and newest.epoch >= epoch:
                self._check_same(path, root, after)
            elif ordered or outputs is None or (newest is not None and newest.epoch > after):
                head = self._make_head(epoch, root, after, newest, created_ns)
                self._write(head, split_into_parts(ordered))
            else:
                self._last_released = epoch
                return
            self._last_released = epoch
        self._notify_watchers(epoch)

    def acknowledge(self, consumer: str, cursor: str, *, now_ns: int) -> ConsumerPosition:
        """Move a consumer forward. See `Store.acknowledge_outputs`."""
        self._require_create_only()
        self._check_reached(parse_cursor(cursor))
        with self._lock:
            return acknowledge(
                self._disk, self._store_id, consumer, cursor, now_ns=now_ns, random_bytes=self._random_bytes
            )

    def forget(self, consumer: str) -> bool:
        """Remove a consumer, and return whether it existed."""
        return forget(self._disk, consumer)

    def delete(self, *, now_ns: int, age_ns_max: int, age_ns_min: int) -> list[str]:
        """Delete releases that are too old or that all consumers have read. See `Store.delete_outputs`."""
        with store_files.writing(self._disk, "the deletion of outputs"):
            parts = list_parts(self._disk)
            epochs = released_epochs(parts)
            if not epochs:
                return []
            due = self._deletable_epochs(epochs, now_ns, age_ns_max, age_ns_min)
            heads = [name.path for name in parts if name.epoch in due and not name.part]
            others = [name.path for name in parts if name.epoch in due and name.part]
            removed = self._unlink(heads, others + self._abandoned(parts, epochs, due))
            failpoint("store.outputs.deleted")
            removed += self._sweep_temporary(epochs[-1])
        if removed:
            self._notify_watchers(0)
        return removed

    def _notify_watchers(self, epoch: int) -> None:
        for watcher in self._watchers:
            watcher(epoch)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_reached(self, cursor: Cursor) -> None:
        """Reject a cursor beyond all releases, because accepting it would allow the deletion of all releases up to the cursor."""
        if self._newest is not None and self._newest.epoch >= cursor.epoch:
            return
        if cursor.epoch > max(released_epochs(list_parts(self._disk)), default=0):
            raise UsageError(f"the store {self._disk.location} has no outputs up to {cursor}: it is another's cursor")

    def _find_newest(self) -> OutputBody | None:
        epochs = released_epochs(list_parts(self._disk))
        return self._head_of(epochs[-1]) if epochs else None

    def _head_of(self, epoch: int) -> OutputBody:
        """Return part 0 of a release without its outputs. If part 0 is damaged, only the epoch of the returned body is valid."""
        try:
            return msgspec.structs.replace(self._read(epoch), data=b"")
        except DamagedDataError:
            return OutputBody(epoch - 1, [0], 0, b"", epoch, "", 0, (0, 0), "", "", self._store_id)

    def _read(self, epoch: int) -> OutputBody:
        return read_part(self._disk, first_path(epoch), store_id=self._store_id)

    def _check_same(self, path: str, root: str, after: int) -> None:
        """Check that the epoch was released with the same root and `after`, and make that release durable."""
        try:
            self._disk.size(path)
            head = read_part(self._disk, path, store_id=self._store_id)
        except (FileNotFoundError, DamagedDataError):
            head = None
        if head is not None and (head.root, head.after) != (root, after):
            raise StoreError(
                f"two fleets on one store: the outputs of epoch {head.epoch} of {self._disk.location} are of root "
                f"{head.root[:12]}… after epoch {head.after}, not {root[:12]}… after {after}; give each fleet a store of its own"
            )
        self._prepare_directory()
        self._disk.sync_directory(OUTPUTS)

    def _make_head(self, epoch: int, root: str, after: int, newest: OutputBody | None, created_ns: int) -> OutputBody:
        if newest is not None and newest.after < after < newest.epoch:
            raise UsageError(
                f"epoch {after} is not before epoch {epoch}: the fleet went back from it to {newest.after}"
            )
        previous = _previous(newest)
        return OutputBody(
            after=after,
            counts=[],
            created_ns=created_ns,
            data=b"",
            epoch=epoch,
            key="",
            part=0,
            previous=(previous.epoch, previous.taken),
            release=self._random_bytes(_ID_BYTES).hex(),
            root=root,
            store=self._store_id,
        )

    def _write(self, head: OutputBody, parts: Sequence[Sequence[EmittedOutput]]) -> None:
        head = msgspec.structs.replace(head, counts=[len(part) for part in parts])
        encoded = encode_parts(head, parts, self._guard)
        self._prepare_directory()
        failpoint("store.outputs.directory")
        for part in order_of_parts(len(encoded)):
            name = f"output-{head.epoch}-{self._random_bytes(_ID_BYTES).hex()}"
            write = partial(write_once, self._disk, head.part_path(part), (encoded[part],), temporary_name=name)
            try:
                write(point="store.outputs.part") if part else write(point="store.outputs.release")
            except FileExistsError:
                self._check_same(head.part_path(part), head.root, head.after)
                self._newest = self._head_of(head.epoch)
                return
        self._newest = head

    def _deletable_epochs(self, epochs: list[int], now_ns: int, age_ns_max: int, age_ns_min: int) -> set[int]:
        """Return the epochs whose releases may be deleted, which are all epochs up to the last deletable release in the sample, but never
        the newest."""
        passed = lowest_cursor(read_consumers(self._disk, self._store_id))
        heads = self._sample_heads(epochs)
        times = [head.created_ns for head in heads] + [now_ns]
        olds, youngs = (ages_ns(times, max(1, limit // STEPS)) for limit in (age_ns_max, age_ns_min))
        last = 0
        for head, old_ns, young_ns in zip(heads[:-1], olds, youngs, strict=False):
            is_passed = passed is not None and passed >= head.end and young_ns >= age_ns_min
            if not is_passed and old_ns <= age_ns_max:
                break
            last = head.epoch
        return {epoch for epoch in epochs[:-1] if epoch <= last}

    def _sample_heads(self, epochs: list[int]) -> list[OutputBody]:
        """Return part 0 of the newest release and of evenly sampled older releases. Consecutive calls use the same sample. Damaged parts
        are omitted."""
        apart = 1 << max(0, len(epochs) // LOOKED_AT).bit_length()
        sampled = [epoch for epoch in epochs[:-1] if epoch % apart == 0] + epochs[-1:]
        heads = [self._heads.get(epoch) or self._head_of(epoch) for epoch in sampled]
        self._heads = {head.epoch: head for head in heads if head.release}
        return list(self._heads.values())

    def _unlink(self, heads: list[str], others: list[str]) -> list[str]:
        """Unlink releases. The removal of each release's part 0 is durable before the release's other parts are removed."""
        removed = store_files.unlink(self._disk, heads)
        if removed and others:
            self._disk.sync_directory(OUTPUTS)
        return removed + store_files.unlink(self._disk, others)

    def _abandoned(self, parts: list[PartName], epochs: list[int], due: set[int]) -> list[str]:
        """Return the parts that belong to no complete release, up to the newest released epoch."""
        lower = [name for name in parts if name.part and name.epoch <= epochs[-1] and name.epoch not in due]
        releases: dict[int, str] = {}
        for epoch in {name.epoch for name in lower} & set(epochs):
            with contextlib.suppress(DamagedDataError):
                releases[epoch] = self._read(epoch).release
        unread = set(epochs) - set(releases)
        return [x.path for x in lower if x.epoch not in unread and x.release != releases.get(x.epoch)]

    def _sweep_temporary(self, epoch: int) -> list[str]:
        """Remove temporary files of releases up to this epoch. While this process holds the lock, none of its threads uses these files."""
        with self._lock:
            try:
                entries = self._disk.list_directory(TEMPORARY)
            except FileNotFoundError:
                return []
            paths = [f"{TEMPORARY}/{entry.name}" for entry in entries]
            temporary_files = [(path, *(parse_temporary_path(path) or ("", 0))) for path in paths]
            return store_files.unlink(
                self._disk, [path for path, folder, n in temporary_files if folder == OUTPUTS and n <= epoch]
            )

    def _prepare_directory(self) -> None:
        self._require_create_only()
        make_durable_directory(self._disk, OUTPUTS)

    def _require_create_only(self) -> None:
        if not creates_only(self._disk):
            raise UsageError(
                f"the store {self._disk.location} overwrites objects: a fleet with outputs needs another one"
            )


def order_of_parts(count: int) -> list[int]:
    """Return the part numbers in the order in which the parts are written. Part 0 comes last, because it completes the release."""
    return [*range(1, count), 0]


def _previous(newest: OutputBody | None) -> Cursor:
    """Return the cursor that a reader must have reached before the next release, or else the reader has missed outputs. Releases that
    neither contain nor revert outputs are ignored."""
    if newest is None:
        return START
    before = Cursor(*newest.previous)
    return newest.end if newest.end.taken or before.epoch > newest.after or not newest.release else before

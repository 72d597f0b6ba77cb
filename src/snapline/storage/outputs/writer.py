"""Releasing outputs with an epoch, and deleting outputs that all consumers have read.

The problem. A release is never undone and exists once, whichever processes release it, however often, and wherever they die. A slow
leader that was replaced without knowing it does the same as its successor.

The model. If several processes create the same name, exactly one succeeds, as for host logs. *Part 0* of an epoch's release is created last and
completes the release. The names of the other parts contain the random id of the try. So parts of other tries stay untouched, and part 0 names only
its own. The outputs follow from the epoch, so any try may be first.

The caller's duties:

1. Epochs are released in ascending order: after a release, no lower epoch with outputs is released for the first time.
2. `after` is the previous epoch of the same history, and the newest file ≤ `after` is of that history too.
3. The first epoch after each rollback is released, with or without outputs.

**Releasing** a second time succeeds in two cases. Either part 0 exists with the same root and `after`. Or a higher epoch's part 0 exists; by duty 1
this epoch was released once and perhaps deleted since. Damage to an existing part 0 is left for readers to find: the file was whole when released.

**No file is written** for an epoch without outputs, with two exceptions. If files between `after` and the epoch are skipped, readers of
those need a notice. And the caller may have to ensure that nobody writes the file later: the epoch's bytes are damaged, and a leader may be about
to release it. So for any file, the newest file ≤ its `after` is in its history, as `OutputReader` requires.

**Deleting** goes in ascending order and spares the newest file. That file shows a later leader what was released, and readers what
was deleted (`previous`). Parts that no part 0 names are deleted after a higher epoch is released: they will never be completed. An extremely
slow process may create a part 0 below the remaining files. Its outputs are correct; readers that read on from there get the error for
a gap, and no other reader notices it.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.ages import ages_ns
from snapline.storage.disk.guard import Guard
from snapline.storage.disk.layout import OUTPUTS, TEMPORARY, check_root, parse_temporary_path
from snapline.storage.disk.local_disk import Disk, creates_only, make_durable_directory, write_once
from snapline.storage.outputs.consumers import (
    _ID_BYTES,
    ConsumerPosition,
    acknowledge,
    forget,
    lowest_cursor,
    read_consumers,
)
from snapline.storage.outputs.output_record import (
    START,
    Cursor,
    EmittedOutput,
    OutputBody,
    PartName,
    check_outputs,
    encode_parts,
    first_path,
    parse_cursor,
    split_into_parts,
)
from snapline.storage.outputs.reader import list_parts, read_part, released_epochs
from snapline.storage.store import files

AGE_NS_MAX = 7 * 24 * 3600 * 10**9
"""Default age at which releases are deleted, in nanoseconds (a week): enough for a consumer that is away over a long weekend."""

AGE_NS_MIN = 3600 * 10**9
"""Default minimum age of a deletion, in nanoseconds (an hour): fast named consumers do not cut off unnamed readers, for which nothing waits."""

STEPS = 24
"""Divisor: the time between two releases counts as at most this fraction of those ages (`storage/ages.py`). So the newest releases survive a
jump of the clock."""

LOOKED_AT = 256
"""Approximate number of releases that one deletion reads. If there are more, it reads a sample, and deletes each with the releases before it."""


class OutputWriter:
    """Writes the outputs of one store. Threads may share it."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        *,
        guard: Guard | None,
        random_bytes: Callable[[int], bytes],
        watchers: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """Create the writer. `watchers` are called from any thread, with the epoch of each release, and with 0 after a deletion."""
        self._watchers = watchers
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._random_bytes = random_bytes
        self._newest: OutputBody | None = None
        """The newest known release, without its data."""
        self._heads: dict[int, OutputBody] = {}
        """Heads of releases that deletions have read."""
        self._last_released = 0
        """Epoch last released by this object. Only its direct successor needs no check of the store: another leader may have released others."""
        self._lock = threading.Lock()
        """Held while temporary files are written, and while other processes' temporary files are removed."""

    def release(
        self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None, *, created_ns: int
    ) -> None:
        """Release outputs with an epoch; see `Store.release_outputs`."""
        path, ordered = first_path(epoch), check_outputs(outputs or [])
        check_root(root)
        if not 0 <= after < epoch:
            raise UsageError(f"epoch {after} cannot be before epoch {epoch}")
        with self._lock, files.writing(self._disk, f"the outputs of epoch {epoch}"):
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
        """Move a consumer; see `Store.acknowledge_outputs`."""
        self._require_create_only()
        self._check_reached(parse_cursor(cursor))
        with self._lock:
            return acknowledge(
                self._disk, self._store_id, consumer, cursor, now_ns=now_ns, random_bytes=self._random_bytes
            )

    def forget(self, consumer: str) -> bool:
        """Remove a consumer; return whether there was one."""
        return forget(self._disk, consumer)

    def delete(self, *, now_ns: int, age_ns_max: int, age_ns_min: int) -> list[str]:
        """Delete releases that all consumers have read, and old ones; see `Store.delete_outputs`."""
        with files.writing(self._disk, "the deletion of outputs"):
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
        """Refuse a cursor beyond all releases: it would allow the deletion of all releases up to it."""
        if self._newest is not None and self._newest.epoch >= cursor.epoch:
            return
        if cursor.epoch > max(released_epochs(list_parts(self._disk)), default=0):
            raise UsageError(f"the store {self._disk.location} has no outputs up to {cursor}: it is another's cursor")

    def _find_newest(self) -> OutputBody | None:
        epochs = released_epochs(list_parts(self._disk))
        return self._head_of(epochs[-1]) if epochs else None

    def _head_of(self, epoch: int) -> OutputBody:
        """Return part 0 of a release without its data. For a damaged one only the epoch is filled in: readers find the damage."""
        try:
            return msgspec.structs.replace(self._read(epoch), data=b"")
        except DamagedDataError:
            return OutputBody(epoch - 1, [0], 0, b"", epoch, "", 0, (0, 0), "", "", self._store_id)

    def _read(self, epoch: int) -> OutputBody:
        return read_part(self._disk, first_path(epoch), store_id=self._store_id)

    def _check_same(self, path: str, root: str, after: int) -> None:
        """Check that this epoch was released with the same root and `after`, and make that release durable."""
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
        """Return the lowest of `epochs` up to the last deletable one; never the newest. Of a damaged one only its epoch is known."""
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
        """Return heads of the newest release and of an even sample of others; the sample is the same at the next call. Damaged ones are left out."""
        apart = 1 << max(0, len(epochs) // LOOKED_AT).bit_length()
        sampled = [epoch for epoch in epochs[:-1] if epoch % apart == 0] + epochs[-1:]
        heads = [self._heads.get(epoch) or self._head_of(epoch) for epoch in sampled]
        self._heads = {head.epoch: head for head in heads if head.release}
        return list(self._heads.values())

    def _unlink(self, heads: list[str], others: list[str]) -> list[str]:
        """Unlink releases, each part 0 durably before the other parts."""
        removed = files.unlink(self._disk, heads)
        if removed and others:
            self._disk.sync_directory(OUTPUTS)
        return removed + files.unlink(self._disk, others)

    def _abandoned(self, parts: list[PartName], epochs: list[int], due: set[int]) -> list[str]:
        """Return the parts below the newest release that belong to no release."""
        lower = [name for name in parts if name.part and name.epoch <= epochs[-1] and name.epoch not in due]
        releases: dict[int, str] = {}
        for epoch in {name.epoch for name in lower} & set(epochs):
            with contextlib.suppress(DamagedDataError):
                releases[epoch] = self._read(epoch).release
        unread = set(epochs) - set(releases)
        return [x.path for x in lower if x.epoch not in unread and x.release != releases.get(x.epoch)]

    def _sweep_temporary(self, epoch: int) -> list[str]:
        """Remove temporary files up to that of the newest release; none of them is in use in this process."""
        with self._lock:
            try:
                entries = self._disk.list_directory(TEMPORARY)
            except FileNotFoundError:
                return []
            paths = [f"{TEMPORARY}/{entry.name}" for entry in entries]
            temporary_files = [(path, *(parse_temporary_path(path) or ("", 0))) for path in paths]
            return files.unlink(
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
    """Return the numbers of the parts in the order of creation. Part 0 is last: it completes the release."""
    return [*range(1, count), 0]


def _previous(newest: OutputBody | None) -> Cursor:
    """Return the cursor that a reader must have reached before the next release. Releases that hold and revert nothing do not
    count."""
    if newest is None:
        return START
    before = Cursor(*newest.previous)
    return newest.end if newest.end.taken or before.epoch > newest.after or not newest.release else before

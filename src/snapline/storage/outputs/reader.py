"""Reading outputs from a cursor: each output once, with notices of reverted ones.

The model. Files are released in ascending order of their epochs, and never change. Each names the previous epoch *in its history* (`after`), and
the newest file when it was written (`previous`). A reader reads the files in ascending order. A file whose `after`
is below the last file read shows that the fleet went back. Then all outputs that the reader has from epochs above `after` are reverted. The reader
gets a notice (`RevertedEpochs`) before the contents of the file.

So the reader always has the contents of the files of one history: the newest file's, its `after`'s, and so on. The reason: the newest file ≤
`after` is in the history of `after`. A history that skips a file has a file of its own at that place
(`OutputWriter`).

The cursor of a returning reader names the file that it read last, so it gets the same outputs as one that stayed. Retention
deletes files and leaves gaps, which `previous` shows. If the previous file is above the cursor, or has more outputs than the cursor counts, outputs
were missed, and the reader gets an error.

A file counts as durable only after its reader has synced the directory, as with host logs.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk.guard import Guard
from snapline.storage.disk.layout import OUTPUTS
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import damaged
from snapline.storage.outputs.output_record import (
    FILE_BYTES_MAX,
    START,
    Cursor,
    EmittedOutput,
    OutputBody,
    PartName,
    Release,
    decode_part,
    first_path,
    open_outputs,
    parse_cursor,
    parse_part_path,
)
from snapline.storage.store import files


class RevertedEpochs(msgspec.Struct, frozen=True, gc=False):
    """The fleet went back to an earlier epoch: all outputs of epochs above `after` are reverted.

    Attributes:
        after: the epoch to which the fleet went back, or a later one of the same history.
        epochs: epochs whose outputs are reverted, ascending, as far as their files still exist.
    """

    after: int
    epochs: tuple[int, ...]


class OutputBatch(msgspec.Struct, frozen=True):
    """Outputs delivered together: one part of a release, or the rest of it after the cursor.

    Attributes:
        epoch: epoch of the release.
        first: number of outputs of the release before these.
        outputs: sorted by agent and number.
        undone: epochs that are reverted before these outputs apply; None if none.
        created_ns: wall-clock time at which the release was written, in nanoseconds since 1970.
    """

    epoch: int
    first: int
    outputs: list[EmittedOutput]
    undone: RevertedEpochs | None = None
    created_ns: int = 0

    @property
    def end(self) -> Cursor:
        """Cursor of a reader after the batch."""
        return Cursor(self.epoch, self.first + len(self.outputs))

    def cursor(self, index: int) -> Cursor:
        """Return the cursor after the first `index` outputs of the batch; 0 means after the reverts only."""
        return Cursor(self.epoch, self.first + index)


class OutputReader:
    """Reads the outputs of one store. Threads may share it."""

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._durable = 0
        """Newest epoch that this reader has listed before a sync."""

    def epochs(self) -> list[int]:
        """Return the epochs that have a released file, ascending, durable; see `Store.output_epochs`."""
        epochs = released_epochs(list_parts(self._disk))
        if epochs and epochs[-1] > self._durable:
            failpoint("store.outputs.read.found")
            with files.reading(self._disk, OUTPUTS):
                self._disk.sync_directory(OUTPUTS)
            self._durable = epochs[-1]
        return epochs

    def head(self, epoch: int) -> OutputBody:
        """Return part 0 of a release; errors as `read_part`."""
        return read_part(self._disk, first_path(epoch), store_id=self._store_id)

    def release(self, epoch: int) -> Release:
        """Return a whole release; see `Store.read_release`."""
        if not _is_there(self._disk, first_path(epoch)):
            raise NotFoundError(f"epoch {epoch} has no outputs in the store {self._disk.location}")
        head = self.head(epoch)
        outputs = [output for part in range(len(head.counts)) for output in self._part(head, part)]
        return Release(epoch, head.after, head.root, head.created_ns, outputs)

    def batches(self, after: str, epochs: Sequence[int] | None = None) -> Iterator[OutputBatch]:
        """Yield the outputs after this cursor that are released now; see `Store.read_outputs`."""
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
                continue  # Deleted meanwhile, or perhaps already read: the next release shows whether outputs are missing.
            if damage is not None and Cursor(*head.previous) > position:
                raise damage
            damage = None
            yield from self._rest_of(head, position, epochs)
            position = head.end
        if damage is not None:
            raise damage

    def _rest_of(self, head: OutputBody, position: Cursor, epochs: Sequence[int]) -> Iterator[OutputBatch]:
        """Yield the outputs of this release after `position`, which is in this release or the one before."""
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
        """Return the epochs that a reader at `position` has and that the fleet has reverted."""
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
    """Check that a part belongs to the release that part 0 names; raises DamagedDataError."""
    if msgspec.structs.replace(head, part=body.part, data=body.data, key=body.key) != body:
        raise damaged(body.path, f"its release data differs from that of {head.path}")


def list_parts(disk: Disk) -> list[PartName]:
    """Return all parts, by epoch and part. A store without outputs has no folder for them."""
    entries = files.listed(disk, OUTPUTS)
    names = [parse_part_path(f"{OUTPUTS}/{entry.name}") for entry in entries if not entry.is_directory]
    return sorted([name for name in names if name is not None], key=lambda name: (name.epoch, name.part, name.release))


def released_epochs(parts: list[PartName]) -> list[int]:
    """Return the epochs of which there is a part 0, ascending."""
    return [name.epoch for name in parts if name.part == 0]


def read_part(disk: Disk, path: str, *, store_id: str | None) -> OutputBody:
    """Return the body of a part, after every check that needs no key.

    Raises:
        DamagedDataError, StoreError: see `decode_part`; or the file is missing or cannot be read.
    """
    data = files.read_file(disk, path, epoch=None, size_bytes_max=FILE_BYTES_MAX)
    return decode_part(data, path=path, store_id=store_id)


def holds_outputs(disk: Disk) -> bool:
    """Return whether there is any part."""
    return bool(list_parts(disk))


def keys_of_outputs(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys under which outputs are encrypted; errors as `read_part`."""
    keys = {read_part(disk, name.path, store_id=store_id).key for name in list_parts(disk)}
    return keys - {""}


def _is_there(disk: Disk, path: str) -> bool:
    with files.reading(disk, path):
        try:
            disk.size(path)
        except FileNotFoundError:
            return False
    return True

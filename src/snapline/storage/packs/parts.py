"""Reading the parts of states: each chunk goes straight into the memory that the array will use.

Adjacent chunks of a pack are read with one call. If they are stored plain, no copy is made: headers and
contents go to their own buffers (`read_into`). Every digest is checked before the bytes are returned (G11). Two threads read large
amounts: reading and hashing both release the interpreter's lock. From an object store, several ranges are always read in parallel.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from snapline.errors import DamagedDataError
from snapline.storage.capture.decoder import buffer_for
from snapline.storage.disk.guard import Guard
from snapline.storage.disk.local_disk import Disk, parallel_map, read_into, requests_at_once
from snapline.storage.disk.record import damaged, digest_of
from snapline.storage.packs.blob import (
    CODEC_PLAIN,
    PLAIN_KEYRING,
    BlobEntry,
    Keyring,
    check_encryption,
    decode_blob,
    encode_header,
    end_of,
    header_bytes,
)
from snapline.storage.packs.checkpoint import StatePart
from snapline.storage.packs.checkpoint_packs import keyring_of
from snapline.storage.packs.pack import PackIndex
from snapline.storage.store import files
from snapline.storage.store.manifest import Manifest

RUN_BYTES_MAX = 8 * 2**20
"""Largest read: large enough that call overhead is negligible, small enough that two threads share the work evenly."""

RUN_CHUNKS_MAX = 500
"""Chunks per read: each takes two buffers, and the kernel takes 1,024 in one call."""

PARALLEL_BYTES_MIN = 64 * 2**20
"""Below this size, starting threads costs more than it saves."""

THREADS = 2


class ChunkSource(msgspec.Struct, frozen=True, gc=False):
    """Place of a chunk, and the keyring that decrypts it."""

    path: str
    entry: BlobEntry
    keyring: Keyring = PLAIN_KEYRING


class _Task(msgspec.Struct, gc=False):
    source: ChunkSource
    target: memoryview


class PartReader:
    """Reads the parts of checkpoints of one epoch, or of one checkpoint pack. May be used by several threads."""

    def __init__(
        self,
        disk: Disk,
        sources: Mapping[bytes, ChunkSource],
        *,
        epoch: int | None,
        where: str,
        others: Callable[[], Iterable["PartReader"]] = tuple,
    ) -> None:
        """Create the reader. `others` is called once if a chunk cannot be read: compaction may have moved it (`generations.py`)."""
        self._disk = disk
        self._sources = sources
        self._epoch = epoch
        self._where = where
        self._others = others

    def read(self, agent: str, parts: Sequence[StatePart]) -> list[memoryview]:
        """Return the bytes of each part, in its own writable memory.

        Raises:
            DamagedDataError: a chunk is missing, or its bytes differ from those written; names file, epoch and agent.
        """
        try:
            return self._read_here(agent, parts)
        except DamagedDataError:
            for other in self._others():
                with contextlib.suppress(DamagedDataError):
                    return other.read(agent, parts)
            raise

    def _read_here(self, agent: str, parts: Sequence[StatePart]) -> list[memoryview]:
        contents = [buffer_for(part) for part in parts]
        first: dict[bytes, _Task] = {}
        again: list[tuple[memoryview, memoryview]] = []
        for part, content in zip(parts, contents, strict=True):
            offset = 0
            for chunk in part.chunks():
                target = content[offset : offset + chunk.size_bytes]
                offset += chunk.size_bytes
                known = first.get(chunk.digest)
                if known is None:
                    first[chunk.digest] = _Task(self._find(agent, chunk.digest, chunk.size_bytes), target)
                else:
                    again.append((target, known.target))
        self._execute_tasks(list(first.values()))
        for target, known_content in again:
            target[:] = known_content
        return contents

    def _find(self, agent: str, digest: bytes, size_bytes: int) -> ChunkSource:
        source = self._sources.get(digest)
        if source is None or source.entry.size_bytes != size_bytes:
            reason = f"it does not hold chunk {digest.hex()[:12]} as agent {agent!r} needs it"
            raise damaged(self._where, reason, epoch=self._epoch)
        return source

    def _execute_tasks(self, tasks: list[_Task]) -> None:
        is_much = sum([task.source.entry.stored_bytes for task in tasks]) >= PARALLEL_BYTES_MIN
        threads = max(requests_at_once(self._disk), THREADS if is_much else 1)
        for _ in parallel_map(self._read_run, list(_runs(tasks)), threads):
            pass

    def _read_run(self, run: list[_Task]) -> None:
        path = run[0].source.path
        if any(task.source.entry.codec != CODEC_PLAIN for task in run):
            self._read_packed(path, run)
            return
        headers = [bytearray(header_bytes("")) for _ in run]
        buffers = [memoryview(x) for task, header in zip(run, headers, strict=True) for x in (header, task.target)]
        with files.reading(self._disk, path, epoch=self._epoch):
            read_bytes = read_into(self._disk, path, run[0].source.entry.offset, buffers)
        if read_bytes < sum(map(len, buffers)):
            raise damaged(
                path, f"truncated: {read_bytes} bytes left at {run[0].source.entry.offset}", epoch=self._epoch
            )
        for task, header in zip(run, headers, strict=True):
            self._check(task, header)

    def _check(self, task: _Task, header: bytearray) -> None:
        entry = task.source.entry
        check_encryption(entry, task.source.keyring, task.source.path)
        if header != encode_header(entry):
            reason = f"the header of chunk {entry.digest.hex()[:12]} is not what the manifest says"
        elif digest_of(task.target) != entry.digest:
            reason = f"chunk {entry.digest.hex()[:12]} at offset {entry.offset} does not match its digest"
        else:
            return
        raise damaged(task.source.path, reason, epoch=self._epoch)

    def _read_packed(self, path: str, run: list[_Task]) -> None:
        """Read a run that is compressed or encrypted, and therefore needs a copy."""
        start, end = run[0].source.entry.offset, end_of(run[-1].source.entry)
        with files.reading(self._disk, path, epoch=self._epoch):
            data = memoryview(self._disk.read(path, start, end - start))
        for task in run:
            entry = task.source.entry
            stored = data[entry.offset - start : end_of(entry) - start]
            task.target[:] = decode_blob(stored, entry, path=path, epoch=self._epoch, keyring=task.source.keyring)


def reader_of_manifest(
    disk: Disk,
    manifest: Manifest,
    *,
    store_id: str,
    guard: Guard | None,
    path: str,
    others: Callable[[], Iterable[PartReader]] = tuple,
) -> PartReader:
    """Return a reader for the parts of the checkpoints in `manifest`, the file at `path`."""
    keyrings = [keyring_of(guard, store_id=store_id, path=pack.path, key_id=pack.key_id) for pack in manifest.packs]
    sources = {
        chunk.digest: ChunkSource(manifest.packs[chunk.pack].path, chunk.entry(), keyrings[chunk.pack])
        for chunk in manifest.chunks
    }
    return PartReader(disk, sources, epoch=manifest.metadata.epoch, where=path, others=others)


def reader_of_pack(disk: Disk, index: PackIndex, path: str, *, store_id: str, guard: Guard | None) -> PartReader:
    """Return a reader for the parts of the checkpoints in a checkpoint pack, which holds all their chunks."""
    keyring = keyring_of(guard, store_id=store_id, path=path, key_id=index.key)
    sources = {entry.digest: ChunkSource(path, entry, keyring) for entry in index.chunks()}
    return PartReader(disk, sources, epoch=None, where=path)


def _runs(tasks: Iterable[_Task]) -> Iterable[list[_Task]]:
    """Yield tasks in lists that one read can serve."""
    run: list[_Task] = []
    for task in sorted(tasks, key=lambda each: (each.source.path, each.source.entry.offset)):
        entry = task.source.entry
        if run:
            first, last = run[0].source, run[-1].source
            is_next = task.source.path == last.path and entry.offset == end_of(last.entry)
            is_small = end_of(entry) - first.entry.offset <= RUN_BYTES_MAX and len(run) < RUN_CHUNKS_MAX
            if not (is_next and is_small):
                yield run
                run = []
        run.append(task)
    if run:
        yield run

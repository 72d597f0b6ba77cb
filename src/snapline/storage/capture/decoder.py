"""Restores a state from a checkpoint, given the skeleton, the parts, and the parts' bytes.

Restored arrays and tensors are views of the buffers that the store has read and verified, which saves a second copy of large states. So
after the restore, each buffer belongs to one object, and no other code may write to it.

All parts are self-describing except histories, whose records can be decoded only with their declared type. When decoding an extension,
msgspec reports the declared type only after the extension, and for a field declared as `Any` it reports no type. So an extension is first
decoded as a placeholder, which is replaced by the object as soon as the declared type is known. If a placeholder remains at the end, it is
in a field declared as `Any`. If a history's placeholder remains, the skeleton is decoded again, and the history's records become dicts and
lists. If a pickle remains as a placeholder, it is refused. A pickle is loaded only if it is declared as `Pickled[…]`, so nobody can inject
a pickle into another field by tampering with the store.

If a state has no parts, a cached decoder decodes it in one step.

**Reading the parts.** Each chunk is read directly into the memory that the restored array will use. Adjacent chunks in a pack are read with
a single call. If chunks are neither compressed nor encrypted, they are not copied: headers and contents are read into separate buffers
(`read_into`). Each digest is verified before the bytes are returned (G11). Large amounts of data are read by two threads, because reading
and hashing both release the interpreter's lock. From an object store, several ranges are always read at the same time.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture import numpy_and_torch, tracked_arrays
from snapline.storage.capture.history import History
from snapline.storage.capture.image import (
    PART_ARRAY,
    PART_BLOB,
    PART_HISTORY,
    PART_TENSOR,
    ChunkTable,
    map_memory,
)
from snapline.storage.capture.values import (
    PART_EXTENSION,
    PICKLE_EXTENSION,
    PICKLE_INLINE,
    PICKLE_PART,
    ArrayHead,
    Blob,
    Pickled,
    decode_declared,
    decode_own_value,
    make_array,
    record_type_of,
)
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import Disk, parallel_map, read_into, requests_at_once
from snapline.storage.disk.record import Buffer, Guard, damaged, digest_of
from snapline.storage.packs.checkpoint import ChunkReference, StatePart
from snapline.storage.packs.checkpoint_packs import keyring_of
from snapline.storage.packs.manifest import Manifest
from snapline.storage.packs.pack import (
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

MAPPED_BYTES_MIN = 4 * 1024 * 1024
"""Size in bytes from which parts are read into memory with huge pages."""

_FAILURES = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError, msgspec.DecodeError, IndexError)


class RestoredState(msgspec.Struct):
    """A restored state, with the table of its chunks, which is the base of the agent's next capture."""

    state: Any
    table: ChunkTable


class StateDecoder:
    """Decoder for states with one declared type. Several threads may share a decoder.

    Raises:
        TypeError: If msgspec does not support the declared type.
    """

    def __init__(self, declared: Any, *, allow_pickle: bool = False) -> None:
        self._declared = declared
        self._allow_pickle = allow_pickle
        self._plain: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            declared, ext_hook=_decode_extension, dec_hook=decode_declared
        )

    def decode(self, skeleton: Buffer) -> Any:
        """Return the state that is encoded in a skeleton without parts.

        Raises:
            EncodingError, TypeError, ValueError, NotImplementedError, msgspec.DecodeError: If the skeleton cannot be decoded as declared.
        """
        try:
            return self._plain.decode(skeleton)
        except _NeedsSessionError:
            return _Session(self._declared, [], [], allow_pickle=self._allow_pickle).decode(skeleton)

    def restore(self, skeleton: Buffer, parts: Sequence[StatePart], contents: Sequence[Buffer]) -> RestoredState:
        """Decode a state that has parts, as the declared type. See `decode_state`."""
        try:
            _check_contents(parts, contents)
            if not parts:
                return RestoredState(self.decode(skeleton), ChunkTable())
            session = _Session(self._declared, parts, contents, allow_pickle=self._allow_pickle)
            state = session.decode(skeleton)
        except EncodingError:
            raise
        except _FAILURES as error:
            raise EncodingError(f"the saved state does not decode as declared: {error}") from error
        return RestoredState(state, _table_of(parts, session))


def decode_state(
    declared: Any,
    skeleton: Buffer,
    parts: Sequence[StatePart],
    contents: Sequence[Buffer],
    *,
    allow_pickle: bool = False,
) -> RestoredState:
    """Return the decoded state and the table of its chunks.

    Args:
        skeleton: the skeleton of an image, or a state that was written by an earlier release.
        parts: the checkpoint's parts, in order.
        contents: the verified bytes of each part, as one buffer per part. If a buffer is writable, the restored array or tensor uses it
            without a copy. If the buffer of an array or tensor is read-only, it is copied.
        allow_pickle: whether the agent class allows pickles to be loaded.

    Raises:
        EncodingError: If the skeleton and the parts cannot be decoded as `declared`, or if a part does not match its head.
        DamagedDataError: If the operations of a history cannot be replayed.
    """
    return StateDecoder(declared, allow_pickle=allow_pickle).restore(skeleton, parts, contents)


class _NeedsSessionError(Exception):
    """Raised if the record contains an extension that must be decoded in two steps."""


def _decode_extension(code: int, data: memoryview) -> object:
    if code in (PART_EXTENSION, PICKLE_EXTENSION):
        raise _NeedsSessionError
    return decode_own_value(code, data)


class _HistoryPlaceholder:
    """Placeholder for a history that is stored in a part, until the type of the history's records is known."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _PicklePlaceholder:
    """Placeholder for a pickle. The placeholder is used until it is known whether the field is declared as `Pickled`."""

    __slots__ = ("data",)

    def __init__(self, data: Buffer) -> None:
        self.data = data


class _Session:
    """State of the decoder while it decodes one record.

    Attributes:
        tokens: for the parts that track changes, map from token to chunk.
    """

    def __init__(
        self, declared: Any, parts: Sequence[StatePart], contents: Sequence[Buffer], *, allow_pickle: bool
    ) -> None:
        self.histories: dict[int, Any] = {}
        self.tokens: dict[int, ChunkReference] = {}
        self._declared = declared
        self._parts = parts
        self._contents = contents
        self._allow_pickle = allow_pickle
        self._used: dict[int, None] = {}
        self._unclaimed: dict[int, None] = {}  # parts that are histories in fields declared as Any
        self._pickles = 0  # number of pickles seen but not loaded

    def decode(self, skeleton: Buffer) -> Any:
        """Return the decoded state."""
        state = self._pass(skeleton)
        leftover = [
            index for index in self._used if self._parts[index].kind == PART_HISTORY and index not in self.histories
        ]
        if leftover:
            self._unclaimed = dict.fromkeys(leftover)
            state = self._pass(skeleton)
        if self._pickles:
            raise EncodingError("a pickled value stands in a field that is not declared as Pickled: declare it so")
        return state

    def _pass(self, skeleton: Buffer) -> Any:
        self._used, self.histories, self.tokens, self._pickles = {}, {}, {}, 0
        return msgspec.msgpack.decode(
            skeleton, type=self._declared, ext_hook=self._decode_extension, dec_hook=self._decode_declared
        )

    def _decode_extension(self, code: int, data: memoryview) -> object:
        if code == PART_EXTENSION:
            return self._make(self._take(data))
        if code == PICKLE_EXTENSION:
            return self._make_pickle_placeholder(data)
        return decode_own_value(code, data)

    def _take(self, data: memoryview) -> int:
        """Return the part index that is encoded in `data`. Raise an error if this part was already used, because two objects would share
        one buffer."""
        index = msgspec.msgpack.decode(data, type=int)
        if not 0 <= index < len(self._parts):
            raise EncodingError(f"the state names its part {index}, the checkpoint has {len(self._parts)}")
        if index in self._used:
            raise EncodingError(f"the state names its part {index} twice")
        self._used[index] = None
        return index

    def _make(self, index: int) -> object:
        part, content = self._parts[index], self._contents[index]
        if part.kind == PART_HISTORY:
            return self._make_history(index, Any) if index in self._unclaimed else _HistoryPlaceholder(index)
        if part.kind == PART_BLOB:
            return self._make_blob(part, content)
        if part.kind in (PART_ARRAY, PART_TENSOR):
            return self._make_values(part, content)
        raise EncodingError(f"a part of the state is of kind {part.kind}, which is not known: use a newer snapline")

    def _make_history(self, index: int, record_type: Any) -> object:
        made = History.restore(record_type, self._parts[index], self._contents[index])
        self.histories[index] = made
        self.tokens |= made.table_entries()
        return made

    def _make_blob(self, part: StatePart, content: Buffer) -> object:
        made = Blob.restore(part, content)
        self.tokens |= made.table_entries()
        return made

    def _make_values(self, part: StatePart, content: Buffer) -> object:
        """Return an array or tensor that uses the memory of `content` directly."""
        head = msgspec.msgpack.decode(part.head, type=ArrayHead)
        writable = bytearray(content) if memoryview(content).readonly else content
        if part.kind == PART_TENSOR:
            return numpy_and_torch.make_tensor(head.dtype, head.shape, writable)
        if not head.is_tracked:
            return make_array(head, writable)
        array = tracked_arrays.retrack(memoryview(writable), head.dtype, head.shape)
        self.tokens |= tracked_arrays.assume_stored(array, part.chunks(), chunk_bytes=part.chunk_bytes)
        return array

    def _make_pickle_placeholder(self, data: memoryview) -> object:
        if not self._allow_pickle:
            raise EncodingError(
                "the state holds a pickled value: set allow_pickle = True on the agent class to load it"
            )
        self._pickles += 1
        if data[:1] == PICKLE_INLINE:
            return _PicklePlaceholder(bytes(data[1:]))
        if data[:1] != PICKLE_PART:
            raise EncodingError("a pickled value is of a form that is not known: use a newer snapline")
        return _PicklePlaceholder(self._contents[self._take(data[1:])])

    def _decode_declared(self, declared: Any, value: object) -> object:
        if isinstance(value, _HistoryPlaceholder) and _is_declared_as(declared, "History"):
            return self._make_history(value.index, record_type_of(declared))
        if isinstance(value, _PicklePlaceholder) and _is_declared_as(declared, "Pickled"):
            self._pickles -= 1
            return Pickled(_unpickled(value.data))
        return decode_declared(declared, value)


def _is_declared_as(declared: Any, name: str) -> bool:
    origin = getattr(declared, "__origin__", declared)
    if name == "Pickled":
        return origin is Pickled
    return origin is History


def _unpickled(data: Buffer) -> Any:
    """Load a pickle. Loading a pickle runs code that it contains, so call this function only if both the declaration and the agent class
    allow it."""
    import pickle

    try:
        return pickle.loads(data)
    except Exception as error:  # The classes in the pickle may raise anything.
        raise EncodingError(
            f"a pickled value cannot be loaded ({type(error).__name__}: {error}): run the code that wrote it"
        ) from error


def _check_contents(parts: Sequence[StatePart], contents: Sequence[Buffer]) -> None:
    if len(parts) != len(contents):
        raise EncodingError(f"the checkpoint has {len(parts)} parts, {len(contents)} were read")
    for index, (part, content) in enumerate(zip(parts, contents, strict=True)):
        if part.size_bytes != memoryview(content).nbytes:
            raise EncodingError(
                f"part {index} of the state has {part.size_bytes:,} bytes, {memoryview(content).nbytes:,} were read"
            )


def _table_of(parts: Sequence[StatePart], session: _Session) -> ChunkTable:
    """Return the table of the chunks of all parts. For copied arrays, the chunks have neither a token nor a hash yet, so later captures
    compare digests."""
    table = ChunkTable(by_token=session.tokens, by_place={}, digests={})
    for index, part in enumerate(parts):
        chunks = part.chunks()
        table.digests |= {chunk.digest: chunk for chunk in chunks}
        if part.kind in (PART_ARRAY, PART_TENSOR):
            table.by_place |= {(index, place): (b"", chunk) for place, chunk in enumerate(chunks)}
    return table


def buffer_for(part: StatePart) -> memoryview:
    """Return zero-filled, writable memory into which a part can be read. Check `part.contradiction()` before the call.

    For a write-tracked array, the memory can be tracked again. For any other large part, the memory causes few page faults.

    Raises:
        StoreError, ExternalFailureError: If the machine is out of memory.
    """
    if part.kind == PART_ARRAY and msgspec.msgpack.decode(part.head, type=ArrayHead).is_tracked:
        return tracked_arrays.allocate(part.size_bytes)
    if part.size_bytes < MAPPED_BYTES_MIN:
        return memoryview(bytearray(part.size_bytes))
    return memoryview(map_memory(part.size_bytes))[: part.size_bytes]


RUN_BYTES_MAX = 8 * 2**20
"""Largest read in bytes. Call overhead is negligible at this size, and two threads share the work evenly."""

RUN_CHUNKS_MAX = 500
"""Largest number of chunks per read. Each chunk takes two buffers, and the kernel accepts 1,024 buffers in one call."""

PARALLEL_BYTES_MIN = 64 * 2**20
"""Size in bytes below which starting threads costs more than it saves."""

THREADS = 2


class ChunkSource(msgspec.Struct, frozen=True, gc=False):
    """The location of a chunk, and the keyring that can decrypt the chunk."""

    path: str
    entry: BlobEntry
    keyring: Keyring = PLAIN_KEYRING


class _Task(msgspec.Struct, gc=False):
    source: ChunkSource
    target: memoryview


class PartReader:
    """Reader for the parts of checkpoints in one epoch or one checkpoint pack. Several threads may share a reader."""

    def __init__(
        self,
        disk: Disk,
        sources: Mapping[bytes, ChunkSource],
        *,
        epoch: int | None,
        where: str,
        others: Callable[[], Iterable["PartReader"]] = tuple,
    ) -> None:
        """Create the reader. `others` returns other readers to try if a chunk cannot be read, because a compaction may have moved the
        chunk."""
        self._disk = disk
        self._sources = sources
        self._epoch = epoch
        self._where = where
        self._others = others

    def read(self, agent: str, parts: Sequence[StatePart]) -> list[memoryview]:
        """Return the bytes of each part, each in its own writable memory.

        Raises:
            DamagedDataError: If a chunk is missing, or if its bytes differ from the bytes that were written. The message names the file,
                the epoch and the agent.
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
        with store_files.reading(self._disk, path, epoch=self._epoch):
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
        """Read a run of compressed or encrypted chunks, whose plaintext has to be copied."""
        start, end = run[0].source.entry.offset, end_of(run[-1].source.entry)
        with store_files.reading(self._disk, path, epoch=self._epoch):
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
    """Return a reader for the parts of all checkpoints in `manifest`. If a chunk is missing, the error names the manifest as `path`."""
    keyrings = [keyring_of(guard, store_id=store_id, path=pack.path, key_id=pack.key_id) for pack in manifest.packs]
    sources = {
        chunk.digest: ChunkSource(manifest.packs[chunk.pack].path, chunk.entry(), keyrings[chunk.pack])
        for chunk in manifest.chunks
    }
    return PartReader(disk, sources, epoch=manifest.metadata.epoch, where=path, others=others)


def _runs(tasks: Iterable[_Task]) -> Iterable[list[_Task]]:
    """Group the tasks into lists such that each list can be served by a single read."""
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

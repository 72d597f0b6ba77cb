"""`Blob`: opaque bytes in a state, such as a large document or a serialized model.

A blob never changes, so an agent that keeps the same `Blob` keeps the same bytes: they are hashed and stored once. A new `Blob` with almost the
same bytes shares most chunks with the old one, since the content decides where chunks are cut.

Cutting takes 2 to 3 ns per byte: too long for the pause. So the first capture passes on the whole blob under one token,
the first of a block that belongs to it. The worker (`chunking.py`) cuts it and numbers the chunks `token`, `token + 1`,
… in its table. When that table is the base, the blob finds its chunks there. So the threads share nothing, and
the blob itself remembers only one number. If the epoch fails, the next worker cuts again.
"""

import typing

from snapline.errors import DamagedDataError, UsageError
from snapline.storage.capture.image import PART_BLOB, Buffer, CapturedPart, ChunkTable, SourceChunk, fresh_token
from snapline.storage.packs.checkpoint import ChunkReference, StatePart


@typing.final
class Blob:
    """Opaque bytes that never change. Equal if the bytes are equal.

    Raises:
        UsageError: `data` is not a bytes-like object.
    """

    __slots__ = ("__weakref__", "_data", "_references", "_token")

    def __init__(self, data: Buffer = b"") -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"a Blob holds bytes, not {type(data).__qualname__}: encode the value first")
        self._data = bytes(data)  # no copy if they are bytes already
        self._token = 0
        self._references: list[ChunkReference] = []

    @property
    def data(self) -> bytes:
        """The bytes."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        return self._data == other._data if isinstance(other, Blob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"<Blob of {len(self._data):,} bytes>"

    def __copy__(self) -> "Blob":
        return self

    def __deepcopy__(self, memo: object) -> "Blob":
        return self

    def __reduce__(self) -> tuple[type["Blob"], tuple[bytes]]:
        """Reduce without the token, which is meaningless in another process."""
        return Blob, (self._data,)

    def capture(self, base: ChunkTable | None) -> CapturedPart:
        """Return the blob as a part; the cost does not depend on its size. Call only between two turns."""
        if not self._token:
            self._token = fresh_token()
        size = len(self._data)
        chunks = _unchanged(self._token, size, base)
        if not chunks and size:
            chunks = [SourceChunk(self._token, self._data, size)]
        return CapturedPart(PART_BLOB, b"", size, 0, chunks)

    @classmethod
    def restore(cls, part: StatePart, buffer: Buffer) -> "Blob":
        """Return a blob with a copy of the checked bytes in `buffer`.

        Raises:
            DamagedDataError: the lengths of buffer and part differ.
        """
        if part.contradiction() or memoryview(buffer).nbytes != part.size_bytes:
            raise DamagedDataError("a blob of the state has another length than its chunks: restore an earlier epoch")
        blob = cls(buffer)
        blob._token, blob._references = fresh_token(), part.chunks()
        return blob

    def table_entries(self) -> dict[int, ChunkReference]:
        """Return token → chunk as restored, for the first base, so that no chunk is stored again."""
        return dict(enumerate(self._references, self._token))


def _unchanged(token: int, size_bytes: int, base: ChunkTable | None) -> list[SourceChunk]:
    """Return the chunks as in the base; empty if the base lacks any."""
    chunks: list[SourceChunk] = []
    known = {} if base is None else base.by_token
    rest = size_bytes
    while rest > 0:
        reference = known.get(token + len(chunks))
        if reference is None:
            break
        chunks.append(SourceChunk(token + len(chunks), None, reference.size_bytes))
        rest -= reference.size_bytes
    return chunks if rest == 0 else []

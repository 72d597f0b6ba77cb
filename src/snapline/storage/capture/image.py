"""Result of a capture, for the writer: a skeleton and parts.

A state is one MessagePack record, the *skeleton*, and a list of *parts*. A part holds a large or rarely changed value:
the bytes of an array, the records of a history, an opaque blob. The skeleton holds the part's index in the list.

A part is cut into *chunks*, the unit in which the store keeps and deduplicates bytes. Chunks of a base epoch are not
stored again. A chunk known to be unchanged has a *token*: a number that identifies one content and is never reused. If it is unknown
whether a chunk has changed (in an array that was copied whole), its token is 0 and the writer compares hashes.

    event loop, between turns   encoder: state, base -> `StateImage`      (the pause: one copy at memory speed at most)
    worker thread               chunking: image, base -> `StatePart`s for the checkpoint, new chunks, and a `ChunkTable`
    when the epoch is complete  its table is the next base

An image is used once, by one worker, and then released: its buffers go back to the arena.
"""

from collections.abc import Callable

import msgspec

from snapline.storage.packs.checkpoint import ChunkReference

PART_ARRAY = 1
"""Head: MessagePack of `[dtype, shape]`. Chunks are of one fixed size."""
PART_HISTORY = 2
"""Head: MessagePack of `[count]`, the records alive. Chunks are segments: see `history.py`."""
PART_BLOB = 3
"""Kind of a part. Head: empty. Opaque bytes; the content decides where chunks end."""
PART_TENSOR = 4
"""Kind of a part: like an array. Head: MessagePack of `[torch dtype, shape]`."""
PART_JOURNAL = 5
"""Part of a durable turn, not of the state. Head: MessagePack of `[count]`, the number of entries. Chunks are runs: see `sealed_journal.py`."""

Buffer = bytes | bytearray | memoryview


class SourceChunk(msgspec.Struct, gc=False):
    """A captured chunk of a part.

    Attributes:
        token: identifies the content; 0 if it may have changed.
        data: its bytes; None if unchanged since the base, whose table contains `token`.
        size_bytes: length of the content.
    """

    token: int
    data: Buffer | None
    size_bytes: int


class CapturedPart(msgspec.Struct):
    """One part of an image. `chunk_bytes`: the fixed size of all chunks but the last; 0 if sizes vary."""

    kind: int
    head: bytes
    size_bytes: int
    chunk_bytes: int
    chunks: list[SourceChunk]


class Authors(msgspec.Struct):
    """Handlers that may have changed a state since its previous image.

    Attributes:
        handlers: names of the handlers, in the order of their first turn.
        is_refused: the image was unusable, so the next one inherits these authors.
    """

    handlers: dict[str, None] = {}
    is_refused: bool = False


class StateImage(msgspec.Struct):
    """One agent's state between two turns.

    Attributes:
        skeleton: MessagePack; extension `PART_EXTENSION` refers to a part.
        parts: parts in the order of the skeleton.
        on_release: callbacks that return the buffers; called once, when the parts have been written or dropped.
        pending: returns the skeleton that another process is still encoding; see `resolve`.
        authors: used in the error message if the image is unusable.
    """

    skeleton: bytes
    parts: list[CapturedPart] = []
    on_release: list[Callable[[], None]] = []
    pending: Callable[[], bytes] | None = None
    authors: Authors = msgspec.field(default_factory=Authors)

    @property
    def size_bytes(self) -> int:
        """Size of the state: skeleton and parts."""
        return len(self.skeleton) + sum([part.size_bytes for part in self.parts])

    def resolve(self) -> None:
        """Wait for the skeleton, if another process encodes it. For a worker thread.

        Raises:
            EncodingError: the state cannot be saved.
            StoreError: the other process failed.
        """
        if self.pending is not None:
            self.skeleton, self.pending = self.pending(), None

    def release(self) -> None:
        """Release the bytes of the parts, which are no longer needed."""
        callbacks, self.on_release = self.on_release, []
        for callback in callbacks:
            callback()


class ChunkTable(msgspec.Struct):
    """Chunks of one agent's checkpoint of one epoch; the next checkpoint may refer to them.

    Attributes:
        by_token: token → chunk.
        by_place: (part, chunk) → (hash, chunk), for chunks without a token. The hash is `xxh3_128` under this process's
            seed; empty after a restore, where only the digest is known.
        digests: digest → chunk, of all chunks.
    """

    by_token: dict[int, ChunkReference] = {}
    by_place: dict[tuple[int, int], tuple[bytes, ChunkReference]] = {}
    digests: dict[bytes, ChunkReference] = {}

"""A state with everything in it, and what stands for store and worker in tests of images."""

import hashlib
import random
from typing import Any

import msgspec
import numpy as np

from snapline.storage.capture.decoder import RestoredState, buffer_for, decode_state
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ArenaPool, ChunkTable, StateImage
from snapline.storage.capture.values import Blob
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import ChunkReference, StatePart


class Turn(msgspec.Struct, frozen=True):
    who: str
    words: tuple[str, ...] = ()


class Memory(msgspec.Struct):
    name: str = ""
    arrays: dict[str, np.ndarray] = {}
    talk: History[Turn] = msgspec.field(default_factory=History)
    paper: Blob | None = None
    dice: random.Random | None = None
    draws: np.random.Generator | None = None
    anything: Any = None


class Shelf:
    """Keeps chunks by token and by content, and knows nothing of how they were cut: token -> bytes, and digest -> bytes. Never told what changed."""

    def __init__(self) -> None:
        self.by_token: dict[int, bytes] = {}
        self.by_digest: dict[bytes, bytes] = {}

    def store(self, image: StateImage) -> tuple[list[StatePart], ChunkTable]:
        """Keep an image and release it; return its parts and the table for a next base."""
        parts, table = [], ChunkTable(by_token={}, by_place={}, digests={})
        for part in image.parts:
            digests, sizes = [], []
            for chunk in part.chunks:
                data = self.by_token[chunk.token] if chunk.data is None else bytes(chunk.data)
                assert len(data) == chunk.size_bytes
                digest = hashlib.blake2b(data, digest_size=32).digest()
                reference = ChunkReference(digest, len(data))
                self.by_digest[digest] = data
                if chunk.token:
                    assert self.by_token.setdefault(chunk.token, data) == data
                    table.by_token[chunk.token] = reference
                digests.append(digest)
                sizes.append(len(data))
            listed = [] if part.chunk_bytes else sizes
            parts.append(StatePart(part.kind, part.head, part.size_bytes, part.chunk_bytes, listed, b"".join(digests)))
            assert not parts[-1].contradiction()
        image.release()
        return parts, table

    def contents(self, parts: list[StatePart]) -> list[Buffer]:
        """The bytes of each part, read into a buffer as the store does."""
        made: list[Buffer] = []
        for part in parts:
            buffer = buffer_for(part)
            buffer[:] = b"".join([self.by_digest[chunk.digest] for chunk in part.chunks()])
            made.append(buffer)
        return made


def roundtrip(state: Any, *, declared: Any = None, allow_pickle: bool = False) -> RestoredState:
    pool, object_stream = ArenaPool(), Shelf()
    image = StateEncoder(pool, allow_pickle=allow_pickle).encode(state)
    skeleton = image.skeleton
    parts, _ = object_stream.store(image)
    assert pool.taken_bytes == 0
    contents = object_stream.contents(parts)
    return decode_state(declared or type(state), skeleton, parts, contents, allow_pickle=allow_pickle)


def same(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())

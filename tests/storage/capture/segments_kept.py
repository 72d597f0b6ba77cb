"""A store of histories in memory, and a reader that was written from the description of the format."""

import struct
from typing import Any

import msgspec

from snapline.storage.capture.history import History
from snapline.storage.capture.image import PART_HISTORY, CapturedPart, ChunkTable
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import ChunkReference, StatePart


class Message(msgspec.Struct, frozen=True):
    role: str
    text: str
    number: int


def message(number: int, length: int = 20) -> Message:
    return Message("user", "x" * length, number)


class Kept:
    """A checkpoint of one history: bytes of each segment, in order, and what the history was."""

    def __init__(self, part: CapturedPart, base: "Kept | None", model: list[Any]) -> None:
        known: dict[int, bytes] = base.by_token if base else {}
        self.by_token: dict[int, bytes] = {
            c.token: known[c.token] if c.data is None else bytes(c.data) for c in part.chunks
        }
        self.contents = [self.by_token[chunk.token] for chunk in part.chunks]
        self.model = list(model)
        assert [len(content) for content in self.contents] == [chunk.size_bytes for chunk in part.chunks]
        assert part.size_bytes == sum(map(len, self.contents)) and part.kind == PART_HISTORY
        assert 0 not in self.by_token and len(self.by_token) == len(part.chunks)
        assert all(chunk.data is None or chunk.token not in known for chunk in part.chunks)
        self.head = part.head

    def table(self) -> ChunkTable:
        return ChunkTable({token: ChunkReference(b"", len(data)) for token, data in self.by_token.items()})

    def bytes_of(self, reference: ChunkReference) -> bytes:
        return next(content for content in self.contents if digest_of(content) == reference.digest)

    def state_part(self) -> StatePart:
        digests = b"".join(map(digest_of, self.contents))
        sizes = list(map(len, self.contents))
        return StatePart(PART_HISTORY, self.head, sum(sizes), 0, sizes, digests)

    def restored(self, record_type: Any) -> History[Any]:
        return History.restore(record_type, self.state_part(), bytearray(b"".join(self.contents)))


def read(contents: list[bytes], record_type: Any) -> list[Any]:
    """Replay segments; shares nothing with `storage/`."""
    data, place = b"".join(contents), 0
    result: list[Any] = []
    while place < len(data):
        code, length = struct.unpack_from("<BI", data, place)
        body = data[place + 5 : place + 5 + length]
        place += 5 + length
        index = struct.unpack_from("<Q", body)[0] if code > 1 else len(result)
        if code == 3:
            count = struct.unpack_from("<Q", body, 8)[0]
            result = result[:index] + result[index + count :]
            continue
        records = msgspec.msgpack.decode(body[8 if code > 1 else 0 :], type=list[record_type])
        result = result[:index] + records + result[index + (len(records) if code == 2 else 0) :]
    return result


def take(history: History[Any], base: Kept | None) -> Kept:
    part = history.capture(base.table() if base else None)
    return Kept(part, base, list(history))


def new_bytes(history: History[Any], base: Kept | None) -> int:
    part = history.capture(base.table() if base else None)
    return sum(chunk.size_bytes for chunk in part.chunks if chunk.data is not None)

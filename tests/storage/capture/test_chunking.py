"""From an image to the parts of a checkpoint, and blobs, whose pieces are cut on the way."""

import copy
import hashlib
import itertools
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.capture import chunking
from snapline.storage.capture.chunking import CUT_BYTES_MIN, ChunkedState, chunk_image, compresses, cut
from snapline.storage.capture.history import History
from snapline.storage.capture.image import (
    BLOCK_TOKENS,
    PART_ARRAY,
    PART_BLOB,
    PART_HISTORY,
    CapturedPart,
    ChunkTable,
    SourceChunk,
    StateImage,
    fresh_token,
)
from snapline.storage.capture.values import Blob
from snapline.storage.disk.record import Buffer, digest_of
from snapline.storage.packs.checkpoint import ChunkReference, StatePart

MIB = 1024 * 1024


def array_part(data: bytes, chunk_bytes: int = 64) -> CapturedPart:
    view = memoryview(data)
    chunks = [
        SourceChunk(0, view[i : i + chunk_bytes], len(view[i : i + chunk_bytes]))
        for i in range(0, len(data), chunk_bytes)
    ]
    return CapturedPart(PART_ARRAY, b"head", len(data), chunk_bytes, chunks)


def image_of(*parts: CapturedPart) -> StateImage:
    return StateImage(b"", list(parts))


class Shelf:
    """A store in memory: chunks by digest. Takes what a chunked state says and checks it."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}

    def write(self, state: ChunkedState, base: ChunkTable | None, digest: Callable[[Buffer], bytes] = digest_of) -> int:
        """Returns how many bytes were new."""
        old = {} if base is None else base.digests
        new = [chunk.digest for chunk in state.new]
        reused = [reference.digest for reference in state.reused]
        assert len({*new, *reused}) == len(new) + len(reused), "no digest twice"
        assert not set(new) & set(old) and set(reused) <= set(old)
        assert all(digest(chunk.data) == chunk.digest for chunk in state.new)
        named = {reference.digest: reference for part in state.parts for reference in part.chunks()}
        assert set(named) == {*new, *reused} and state.table.digests == named
        self.chunks |= {chunk.digest: bytes(chunk.data) for chunk in state.new}
        return sum(len(chunk.data) for chunk in state.new)

    def read(self, part: StatePart) -> bytes:
        assert not part.contradiction()
        assert all(len(self.chunks[chunk.digest]) == chunk.size_bytes for chunk in part.chunks())
        return b"".join(self.chunks[chunk.digest] for chunk in part.chunks())


def test_first_all_is_new_and_then_what_changed() -> None:
    object_stream, data = Shelf(), bytearray(random.Random(1).randbytes(640))
    first = chunk_image(image_of(array_part(bytes(data))), None)
    assert object_stream.write(first, None) == 640
    data[100] ^= 1
    second = chunk_image(image_of(array_part(bytes(data))), first.table)
    assert object_stream.write(second, first.table) == 64 and len(second.reused) == 9
    assert object_stream.read(second.parts[0]) == bytes(data) and object_stream.read(first.parts[0]) != bytes(data)
    assert (second.parts[0].kind, second.parts[0].head, second.parts[0].sizes) == (PART_ARRAY, b"head", [])


changes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700), st.binary(max_size=90)), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(changes, st.integers(0, 3)), min_size=1, max_size=8))
def test_every_checkpoint_can_be_read_whatever_its_base_was(
    rounds: list[tuple[list[tuple[int, int, bytes]], int]],
) -> None:
    """Arrays that grow, shrink and change, a history and a blob; against any earlier table."""
    object_stream, arrays = Shelf(), [bytearray(b"ab" * 200), bytearray(300), bytearray()]
    history, blob = History(["first"]), Blob(b"blob")
    tables: list[ChunkTable] = []
    for edits, back in rounds:
        for which, place, new in edits:
            arrays[which][place : place + len(new) // 2] = new
            history.append(new.hex())
            blob = Blob(new) if place % 7 == 0 else blob
        base = tables[-back] if 0 < back <= len(tables) else None
        parts = [array_part(bytes(data)) for data in arrays]
        state = chunk_image(image_of(*parts, history.capture(base), blob.capture(base)), base)
        object_stream.write(state, base)
        assert [object_stream.read(part) for part in state.parts[:3]] == arrays
        assert History.restore(str, state.parts[3], object_stream.read(state.parts[3])) == history
        assert Blob.restore(state.parts[4], object_stream.read(state.parts[4])) == blob
        tables.append(state.table)


def test_a_restored_table_knows_digests_only_and_all_is_reused() -> None:
    data = random.Random(2).randbytes(6400)
    first = chunk_image(image_of(array_part(data)), None)
    places = {(0, i): (b"", reference) for i, reference in enumerate(first.parts[0].chunks())}
    restored = ChunkTable({}, places, first.table.digests)
    second = chunk_image(image_of(array_part(data)), restored)
    assert not second.new and second.parts == first.parts and len(second.reused) == 100
    assert second.table == first.table


def test_a_part_that_moves_to_another_place_is_not_stored_again() -> None:
    data = random.Random(3).randbytes(6400)
    first = chunk_image(image_of(array_part(data)), None)
    second = chunk_image(image_of(array_part(b"x" * 64), array_part(data)), first.table)
    assert [bytes(chunk.data) for chunk in second.new] == [b"x" * 64]


def test_unchanged_chunks_are_not_digested() -> None:
    """Digests cost four times what the comparison costs."""
    asked = []

    def digest(data: Buffer) -> bytes:
        asked.append(bytes(data))
        return digest_of(data)

    data = bytearray(random.Random(4).randbytes(640))
    base = chunk_image(image_of(array_part(bytes(data))), None, digest=digest).table
    asked.clear()
    data[0:2] = b"!!"
    chunk_image(image_of(array_part(bytes(data))), base, digest=digest)
    assert asked == [bytes(data[:64])]


def test_names_come_from_the_given_digest_alone() -> None:
    """With encryption digests are keyed: a plain one would tell what an agent holds."""

    def keyed(data: Buffer) -> bytes:
        return hashlib.blake2b(data, key=b"key", digest_size=32).digest()

    blob = Blob(random.Random(5).randbytes(MIB))
    parts = [array_part(b"ab" * 100), History(["a"]).capture(None), blob.capture(None)]
    state = chunk_image(image_of(*parts), None, digest=keyed)
    Shelf().write(state, None, keyed)


def test_a_token_of_the_base_is_believed_and_its_bytes_are_not_looked_at() -> None:
    token, name = fresh_token(), ChunkReference(b"d" * 32, 5)
    base = ChunkTable({token: name}, {}, {name.digest: name})
    for data in (None, b"other"):
        part = CapturedPart(PART_HISTORY, b"", 5, 0, [SourceChunk(token, data, 5)])
        state = chunk_image(image_of(part), base)
        assert state.reused == [name] and not state.new and state.parts[0].digests == name.digest
        assert state.table.by_token == {token: name}


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (SourceChunk(77, None, 5), "the base does not have it"),
        (SourceChunk(0, None, 5), "the base does not have it"),
        (SourceChunk(5, None, 4), "has 4 bytes, and 5 in the base"),
        (SourceChunk(0, b"1234", 5), "should have 5 bytes and has 4"),
    ],
)
def test_an_image_that_contradicts_its_base_is_refused(chunk: SourceChunk, message: str) -> None:
    """Rather than a checkpoint that cannot be restored."""
    name = ChunkReference(b"d" * 32, 5)
    part = CapturedPart(PART_HISTORY, b"", chunk.size_bytes, 0, [chunk])
    with pytest.raises(StoreError, match=message):
        chunk_image(image_of(part), ChunkTable({5: name}, {}, {name.digest: name}))


def test_the_same_content_twice_is_written_once() -> None:
    data = b"a" * 64 + b"b" * 64 + b"a" * 64
    state = chunk_image(image_of(array_part(data), array_part(data)), None)
    assert [bytes(chunk.data[:1]) for chunk in state.new] == [b"a", b"b"]
    again = chunk_image(image_of(array_part(data), array_part(data)), state.table)
    assert [reference.digest for reference in again.reused] == [chunk.digest for chunk in state.new]


def test_the_table_forgets_what_the_image_does_not_hold() -> None:
    """Else hosts would reuse chunks that the collector may have deleted (G7)."""
    first = chunk_image(image_of(array_part(b"a" * 64)), None)
    second = chunk_image(image_of(array_part(b"b" * 64)), first.table)
    assert list(second.table.digests) == [digest_of(b"b" * 64)]
    assert [bytes(c.data) for c in chunk_image(image_of(array_part(b"a" * 64)), second.table).new] == [b"a" * 64]


@pytest.mark.parametrize("pool", [None, "given"])
def test_threads_find_the_same(monkeypatch: pytest.MonkeyPatch, pool: str | None) -> None:
    """Pieces of work of several sizes, of several parts, changed in places."""
    data = bytearray(random.Random(6).randbytes(40_000))
    parts = [
        array_part(bytes(data[:30_000])),
        array_part(b""),
        Blob(b"abc").capture(None),
        array_part(bytes(data[30_000:])),
    ]
    base = chunk_image(image_of(*parts), None).table
    data[5000:9000] = bytes(4000)
    parts[0] = array_part(bytes(data[:30_000]))
    expected = chunk_image(image_of(*parts), base)
    asked: list[bytes] = []
    monkeypatch.setattr(chunking, "PARALLEL_BYTES_MIN", 1000)
    monkeypatch.setattr(chunking, "_RANGE_BYTES", 900)
    threads: set[int] = set()

    def digest(piece: Buffer) -> bytes:
        threads.add(threading.get_ident())
        asked.append(bytes(piece))
        return digest_of(piece)

    with ThreadPoolExecutor(1) as executor:
        found = chunk_image(image_of(*parts), base, digest=digest, executor=executor if pool else None)
    assert found == expected
    assert threading.get_ident() not in threads
    assert len(asked) == 4000 // 64 + 1, "each thread compares with the right places"


def test_small_images_are_hashed_by_the_caller() -> None:
    """The simulator has one thread."""
    threads = []

    def digest(data: Buffer) -> bytes:
        threads.append(threading.get_ident())
        return digest_of(data)

    chunk_image(image_of(array_part(random.Random(1).randbytes(640))), None, digest=digest)
    assert threads == [threading.get_ident()] * 10


def test_a_failing_digest_ends_the_threads_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "PARALLEL_BYTES_MIN", 1)
    monkeypatch.setattr(chunking, "_RANGE_BYTES", 64)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        chunk_image(image_of(array_part(bytes(640))), None, digest=lambda data: bytes(1 // 0))
    assert threading.active_count() == before


def test_the_verdict_on_compression_is_that_of_the_part() -> None:
    noise, text = random.Random(7).randbytes(MIB), b"the quick brown fox " * 50_000
    half = text[: MIB // 2] + noise[: MIB // 2]
    state = chunk_image(image_of(*(array_part(data, 64 * 1024) for data in (noise, text, half))), None)
    verdicts = {chunk.digest: chunk.compresses for chunk in state.new}
    for part, verdict in zip(state.parts[:2], (False, True), strict=True):
        assert {verdicts[chunk.digest] for chunk in part.chunks()} == {verdict}
    assert compresses([half]) and not compresses([noise]) and not compresses([b""]) and not compresses([])
    assert compresses([memoryview(half)[i : i + 65536] for i in range(0, len(half), 65536)])
    assert compresses([noise[:65536], *[text[:65536]] * 7])


# Blobs.


def test_a_blob_is_a_value() -> None:
    blob = Blob(b"abc")
    assert blob == Blob(bytearray(b"abc")) == Blob(memoryview(b"abc")) and blob != Blob(b"abd") and blob != b"abc"
    assert (
        hash(blob) == hash(Blob(b"abc"))
        and len(blob) == 3
        and blob.data == b"abc"
        and repr(blob) == "<Blob of 3 bytes>"
    )
    assert pickle.loads(pickle.dumps(blob)) == blob and copy.deepcopy(blob) is blob and copy.copy(blob) is blob
    with pytest.raises(AttributeError):
        blob.data = b""  # type: ignore[misc]  # meant
    with pytest.raises(UsageError, match="a Blob holds bytes, not str"):
        Blob("abc")  # type: ignore[arg-type]  # meant


@pytest.mark.parametrize("size", [0, 1, CUT_BYTES_MIN - 1, CUT_BYTES_MIN, 3 * MIB])
def test_an_unchanged_blob_costs_nothing(size: int) -> None:
    object_stream, blob = Shelf(), Blob(random.Random(8).randbytes(size))
    first = chunk_image(image_of(blob.capture(None)), None)
    assert object_stream.write(first, None) == size and object_stream.read(first.parts[0]) == blob.data
    assert first.parts[0].sizes == (cut(blob.data) if size >= CUT_BYTES_MIN else [size] * (size > 0))
    part = blob.capture(first.table)
    assert part.kind == PART_BLOB and all(chunk.data is None for chunk in part.chunks)
    second = chunk_image(image_of(part), first.table)
    assert not second.new and second.parts == first.parts and second.table == first.table


def test_a_changed_blob_shares_its_other_chunks() -> None:
    data = random.Random(9).randbytes(3 * MIB)
    base = chunk_image(image_of(Blob(data).capture(None)), None).table
    changed = Blob(data[:MIB] + b"inserted" + data[MIB:])
    assert 0 < Shelf().write(chunk_image(image_of(changed.capture(base)), base), base) < 3 * 256 * 1024


def test_a_restored_blob_costs_nothing() -> None:
    object_stream, blob = Shelf(), Blob(random.Random(10).randbytes(MIB))
    first = chunk_image(image_of(blob.capture(None)), None)
    object_stream.write(first, None)
    back = Blob.restore(first.parts[0], bytearray(object_stream.read(first.parts[0])))
    base = ChunkTable(back.table_entries(), {}, first.table.digests)
    assert back == blob and all(chunk.data is None for chunk in back.capture(base).chunks)
    assert chunk_image(image_of(back.capture(base)), base).parts == first.parts


def test_a_base_that_knows_some_pieces_only_gets_the_blob_whole() -> None:
    blob = Blob(random.Random(11).randbytes(MIB))
    first = chunk_image(image_of(blob.capture(None)), None)
    for missing in (min(first.table.by_token), max(first.table.by_token)):
        entries = {token: name for token, name in first.table.by_token.items() if token != missing}
        base = ChunkTable(entries, {}, first.table.digests)
        (chunk,) = blob.capture(base).chunks
        assert chunk.data is blob.data
        assert chunk_image(image_of(blob.capture(base)), base).parts == first.parts


def test_pieces_that_do_not_add_up_are_not_believed() -> None:
    blob = Blob(b"abc")
    (chunk,) = blob.capture(None).chunks
    name = ChunkReference(b"d" * 32, 10)
    assert blob.capture(ChunkTable({chunk.token: name}, {}, {name.digest: name})).chunks == [chunk]


def test_a_blob_of_another_length_than_its_part_is_refused() -> None:
    part = StatePart(PART_BLOB, b"", 3, 0, [3], digest_of(b"abc"))
    assert Blob.restore(part, b"abc") == Blob(b"abc")
    with pytest.raises(DamagedDataError):
        Blob.restore(part, b"ab")


def test_blocks_of_tokens_do_not_overlap() -> None:
    tokens = [fresh_token() for _ in range(100)]
    assert 0 not in tokens and all(b - a >= BLOCK_TOKENS for a, b in itertools.pairwise(tokens))

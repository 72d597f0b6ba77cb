"""States as images and back: what goes in comes out, nothing changes an image after the pause, old records still decode.

`Shelf` stands for store and worker. The oracle for arrays is NumPy's own comparison of dtype, shape and bytes.
"""

import contextlib
import pickle
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as array_st
from tests.storage.capture.shelf import Memory, Shelf, Turn, roundtrip, same

from snapline.agent_runtime.message_encoding import encode_body, message_decoder, state_decoder
from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture import encoder as encoder_module
from snapline.storage.capture import tracked_arrays
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.decoder import decode_state
from snapline.storage.capture.encoder import ARRAY_PART_BYTES_MIN, CHUNK_BYTES, StateEncoder, chunk_bytes_for
from snapline.storage.capture.history import History
from snapline.storage.capture.image import (
    ARENA_IMAGES_MAX,
    PART_ARRAY,
    PART_BLOB,
    PART_HISTORY,
    ArenaBusyError,
    ArenaPool,
    ChunkTable,
)
from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.values import Blob
from snapline.storage.packs.checkpoint import StatePart

KIB, MIB = 1024, 1024 * 1024


# ---- arrays ---------------------------------------------------------------------------------------------------------

dtypes = st.sampled_from(["?", "u1", "<i2", ">i4", "<f2", "<f4", ">f8", "<c16", "<M8[ns]", "S3", "<U5", "V7"])
shapes = st.one_of(
    array_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    st.sampled_from([(16383,), (16384,), (128, 129), (70, 3, 100), (CHUNK_BYTES + 1,), (5, CHUNK_BYTES)]),
)
layouts = st.sampled_from(["C", "F", "reversed", "strided", "transposed", "read-only", "broadcast"])


def laid_out(array: Any, layout: str) -> Any:
    match layout:
        case "F":
            return np.asfortranarray(array)
        case "reversed":
            return array[::-1] if array.ndim else array
        case "strided":
            return array[::2] if array.ndim else array
        case "transposed":
            return array.T
        case "read-only":
            array.flags.writeable = False
            return array
        case "broadcast":
            return np.broadcast_to(array, (2, *array.shape))
    return array


@settings(deadline=None, max_examples=150)
@given(dtype=dtypes, shape=shapes, layout=layouts, seed=st.integers(0, 255))
def test_arrays_of_every_kind_come_back_whole(dtype: str, shape: tuple[int, ...], layout: str, seed: int) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    content = (np.arange(size, dtype=np.uint32) * 31 + seed).astype(np.uint8) % (2 if dtype == "?" else 100)
    array = laid_out(np.frombuffer(bytearray(content.tobytes()), dtype).reshape(shape), layout)
    back = roundtrip(Memory(arrays={"a": array})).state.arrays["a"]
    assert same(back, array) and back.flags.writeable
    if array.nbytes >= ARRAY_PART_BYTES_MIN and array.flags.f_contiguous:
        assert back.flags.f_contiguous, "to turn it around would take twelve times as long"
    if back.size:
        back.flat[0] = back.flat[-1]


def test_large_arrays_are_parts_and_small_ones_are_not() -> None:
    arrays = {"small": np.zeros(ARRAY_PART_BYTES_MIN - 1, "u1"), "large": np.arange(ARRAY_PART_BYTES_MIN, dtype="u1")}
    image = StateEncoder(ArenaPool()).encode(arrays)
    assert [(part.kind, part.size_bytes) for part in image.parts] == [(PART_ARRAY, ARRAY_PART_BYTES_MIN)]
    assert len(image.skeleton) < ARRAY_PART_BYTES_MIN + 200


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 10 * CHUNK_BYTES + 7])
def test_chunks_are_of_one_size_but_the_last(size: int) -> None:
    array = np.arange(size, dtype=np.uint32).astype("u1")
    (part,) = StateEncoder(ArenaPool()).encode([array]).parts
    assert {chunk.size_bytes for chunk in part.chunks[:-1]} <= {part.chunk_bytes} == {CHUNK_BYTES}
    assert b"".join([bytes(chunk.data or b"") for chunk in part.chunks]) == array.tobytes()
    assert all(chunk.token == 0 and chunk.size_bytes == len(chunk.data or b"") for chunk in part.chunks)


def test_a_gibibyte_has_larger_chunks() -> None:
    assert chunk_bytes_for((1 << 30) - 1) == 64 * KIB and chunk_bytes_for(1 << 30) == 256 * KIB


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from([16 * KIB, 17 * KIB, 60 * KIB, 70 * KIB, 900 * KIB, 2 * MIB]), min_size=1, max_size=8))
def test_an_image_does_not_change_with_the_state(sizes: list[int]) -> None:
    """The agent runs on while the image is written. Arrays of one image must not overwrite each other either."""
    state = Memory("then", {str(i): np.full(size, i + 1, "u1") for i, size in enumerate(sizes)})
    before = {key: array.copy() for key, array in state.arrays.items()}
    image = StateEncoder(ArenaPool()).encode(state)
    for array in state.arrays.values():
        array[:] = 99
    state.name = "later"
    object_stream, skeleton = Shelf(), image.skeleton
    parts, _ = object_stream.store(image)
    back = decode_state(Memory, skeleton, parts, object_stream.contents(parts)).state
    assert back.name == "then" and all(same(back.arrays[key], array) for key, array in before.items())


def test_a_restored_array_lies_over_the_buffer_that_was_read() -> None:
    """A gibibyte is not copied once more."""
    image, object_stream = StateEncoder(ArenaPool()).encode(Memory(arrays={"a": np.zeros(5 * MIB, "u1")})), Shelf()
    skeleton = image.skeleton
    parts, _ = object_stream.store(image)
    contents = object_stream.contents(parts)
    back = decode_state(Memory, skeleton, parts, contents).state.arrays["a"]
    assert np.shares_memory(back, np.frombuffer(contents[0], "u1"))


def test_a_read_only_buffer_is_copied() -> None:
    image, object_stream = StateEncoder(ArenaPool()).encode([np.zeros(MIB, "u1")]), Shelf()
    skeleton = image.skeleton
    parts, _ = object_stream.store(image)
    (back,) = decode_state(list[np.ndarray], skeleton, parts, [bytes(MIB)]).state
    back += 1
    assert back.sum() == MIB


def test_the_next_capture_of_a_restored_state_stores_nothing_anew() -> None:
    talk = History([Turn(str(number)) for number in range(50)])
    made = Memory(
        arrays={"a": np.arange(300 * KIB, dtype="u1")}, talk=talk, paper=Blob(random.Random(1).randbytes(MIB))
    )
    image = StateEncoder(ArenaPool()).encode(made)
    skeleton, chunked = image.skeleton, chunk_image(image, None)
    data = {new.digest: bytes(new.data) for new in chunked.new}
    contents = [bytearray(b"".join([data[chunk.digest] for chunk in part.chunks()])) for part in chunked.parts]
    restored = decode_state(Memory, skeleton, chunked.parts, contents)
    restored.state.arrays["a"][0] += 1
    image = StateEncoder(ArenaPool()).encode(restored.state, restored.table)
    assert all(chunk.data is None for part in image.parts[1:] for chunk in part.chunks), "known by their tokens"
    again = chunk_image(image, restored.table)
    assert [len(new.data) for new in again.new] == [CHUNK_BYTES], "the chunk that was written to, and no other"


def test_only_what_changed_in_a_tracked_array_is_copied() -> None:
    array = tracked_arrays.tracked_array(4 * MIB, "u1")
    state, object_stream, pool = Memory(arrays={"a": array}), Shelf(), ArenaPool()
    encoder = StateEncoder(pool)
    _, base = object_stream.store(encoder.encode(state))
    array[5] = 7
    image = encoder.encode(state, base)
    skeleton = image.skeleton
    if tracked_arrays.tracker_of(array) is not None:  # a kernel that can
        assert sum(len(chunk.data or b"") for chunk in image.parts[0].chunks) <= 64 * CHUNK_BYTES // 2
        assert 0 < pool.taken_bytes <= 4 * MIB
    parts, _ = object_stream.store(image)
    assert pool.taken_bytes == 0
    restored = decode_state(Memory, skeleton, parts, object_stream.contents(parts))
    back = restored.state.arrays["a"]
    assert same(back, array) and tracked_arrays.is_tracked(back) == tracked_arrays.is_tracked(array)


# ---- buffers --------------------------------------------------------------------------------------------------------


def test_what_fails_gives_all_buffers_back() -> None:
    pool, arrays = ArenaPool(), {str(number): np.zeros(MIB, "u1") for number in range(3)}
    with pytest.raises(EncodingError, match=r"^state\.anything is the function"):
        StateEncoder(pool).encode(Memory(arrays=arrays, anything=lambda: 1))
    assert pool.taken_bytes == 0 and pool.idle_bytes > 0


def test_a_loop_does_not_copy_its_arrays_again_and_again() -> None:
    pool, loop = ArenaPool(bytes_max=8 * MIB), {"a": np.zeros(MIB, "u1")}
    loop["self"] = loop  # type: ignore[assignment]  # that is the mistake
    with pytest.raises(EncodingError, match=r"state\.anything\['self'\] contains itself"):
        StateEncoder(pool).encode(Memory(anything=loop))
    assert pool.taken_bytes == 0


def test_images_of_an_agent_wait_for_the_store() -> None:
    encoder, state = StateEncoder(ArenaPool()), Memory(arrays={"a": np.zeros(MIB, "u1")})
    images = [encoder.encode(state) for _ in range(ARENA_IMAGES_MAX)]
    with pytest.raises(ArenaBusyError, match="store is slower"):
        encoder.encode(state)
    assert not encoder.encode(Memory("without arrays")).on_release
    images[0].release()
    images[0].release()
    encoder.encode(state)
    with pytest.raises(ArenaBusyError):
        encoder.encode(state)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(ARRAY_PART_BYTES_MIN, 3 * MIB), max_size=12))
def test_the_buffers_of_a_capture_are_known_in_advance(sizes: list[int]) -> None:
    taken: list[int] = []

    class Spy(ArenaPool):
        def take(self, size_bytes: int) -> Any:
            taken.append(size_bytes)
            return super().take(size_bytes)

    state = Memory(arrays={str(i): np.empty(size, "u1") for i, size in enumerate(sizes)}, talk=History([Turn("a")]))
    encoder = StateEncoder(Spy())
    expected = encoder.buffer_sizes(state)
    assert not taken
    encoder.encode(state).release()
    assert taken == expected and sum(taken) <= 2 * sum(sizes) + encoder_module.SLAB_BYTES_MAX


# ---- histories and blobs --------------------------------------------------------------------------------------------

turns = st.builds(Turn, st.text(max_size=8), st.lists(st.text(max_size=3), max_size=3).map(tuple))


@settings(deadline=None, max_examples=40)
@given(st.lists(turns, max_size=8), st.binary(max_size=100))
def test_histories_and_blobs_come_back_in_parts_and_inline(records: list[Turn], data: bytes) -> None:
    made = Memory("x", talk=History(records), paper=Blob(data))
    image = StateEncoder(ArenaPool()).encode(made)
    assert [part.kind for part in image.parts] == [PART_HISTORY, PART_BLOB]
    assert not image.on_release, "they are immutable: nothing is copied"
    encoder = StateEncoder(ArenaPool())
    inline = encoder.encode_inline(made)
    assert inline == encode_body(made)
    backs = [roundtrip(made).state, state_decoder(Memory).decode(inline), message_decoder(Memory).decode(inline)]
    for back in backs:
        assert back == made and type(back.talk) is History and type(back.paper) is Blob
        assert all(type(record) is Turn for record in back.talk)


def test_a_history_without_a_declared_type_has_plain_records() -> None:
    made = {"h": History([Turn("a")]), "b": Blob(b"b"), "n": [np.arange(20_000)]}
    for back in (roundtrip(made, declared=Any).state, roundtrip(Memory(anything=made)).state.anything):
        assert type(back["h"]) is History and list(back["h"]) == [{"who": "a", "words": ()}]
        assert back["b"] == Blob(b"b") and same(back["n"][0], np.arange(20_000))
    mixed = Memory(talk=History([Turn("typed")]), anything=made, arrays={"a": np.zeros(MIB)})
    restored = roundtrip(mixed)
    assert restored.state.talk == History([Turn("typed")]) and len(restored.state.anything["h"]) == 1
    inline = state_decoder(Any).decode(encode_body(made))
    assert type(inline["h"]) is History and inline["b"] == Blob(b"b")


def test_an_incremental_capture_of_a_history_has_the_new_records_only() -> None:
    state, object_stream, encoder = Memory(talk=History([Turn("x" * 100)] * 500)), Shelf(), StateEncoder(ArenaPool())
    _, base = object_stream.store(encoder.encode(state))
    state.talk.append(Turn("new"))
    image = encoder.encode(state, base)
    assert sum(len(chunk.data or b"") for chunk in image.parts[0].chunks) < 200
    skeleton = image.skeleton
    parts, _ = object_stream.store(image)
    assert decode_state(Memory, skeleton, parts, object_stream.contents(parts)).state == state


# ---- records of earlier releases, and damaged ones ------------------------------------------------------------------


class Old(msgspec.Struct):
    count: int
    array: np.ndarray


def test_records_of_the_first_release_decode() -> None:
    """Written by hand from the page on the format: map of 2, extension 1 = head length, [dtype, shape], bytes."""
    array = b"\x07\x92\xa3<i2\x91\x02" + b"\x01\x00\x02\x00"
    record = b"\x82\xa5count\x05\xa5array\xc7" + bytes((len(array), 1)) + array
    restored = decode_state(Old, record, [], [])
    assert restored.state.count == 5 and restored.state.array.tolist() == [1, 2]
    assert restored.table == ChunkTable() and restored.state.array.flags.writeable
    assert StateEncoder(ArenaPool()).encode(restored.state).skeleton == record
    assert StateEncoder(ArenaPool()).encode_inline(restored.state) == record


def part_of(kind: int, head: Any, size: int) -> StatePart:
    return StatePart(kind, msgspec.msgpack.encode(head), size, size or 1, [], bytes(32) if size else b"")


@pytest.mark.parametrize(
    ("places", "part", "size"),
    [
        ([0], part_of(PART_ARRAY, ["<f8", [3]], 8), 8),
        ([0], part_of(PART_ARRAY, ["<f8", [1]], 8), 7),
        ([0], part_of(PART_ARRAY, ["O", [1]], 8), 8),
        ([0], part_of(PART_ARRAY, ["nonsense", [1]], 8), 8),
        ([0], part_of(PART_ARRAY, ["<f8", [-1, -1]], 8), 8),
        ([0], part_of(PART_ARRAY, ["<f8", [2**62, 2**62]], 8), 8),
        ([0], part_of(PART_ARRAY, 7, 8), 8),
        ([0], part_of(99, ["<f8", [1]], 8), 8),
        ([1], part_of(PART_ARRAY, ["<f8", [1]], 8), 8),
        ([-1], part_of(PART_ARRAY, ["<f8", [1]], 8), 8),
        (["a"], part_of(PART_ARRAY, ["<f8", [1]], 8), 8),
        ([0, 0], part_of(PART_ARRAY, ["<f8", [1]], 8), 8),
    ],
)
def test_parts_that_contradict_themselves_do_not_decode(places: list[Any], part: StatePart, size: int) -> None:
    extensions = [msgspec.msgpack.Ext(2, msgspec.msgpack.encode(place)) for place in places]
    with pytest.raises(EncodingError, match="were read" if size == 7 else "."):
        decode_state(list[np.ndarray], msgspec.msgpack.encode(extensions), [part], [bytearray(size)])


def test_a_part_where_something_else_is_declared_names_the_field() -> None:
    image, object_stream = StateEncoder(ArenaPool()).encode(Memory(arrays={"a": np.zeros(MIB)})), Shelf()
    skeleton = image.skeleton.replace(b"\xa6arrays", b"\xa4talk", 1)
    parts, _ = object_stream.store(image)
    with pytest.raises(EncodingError, match="does not decode as declared"):
        decode_state(Memory, skeleton, parts, object_stream.contents(parts))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_damaged_records_are_refused_and_nothing_else(place: int, value: int, length: int) -> None:
    """Digests are checked before. This is for bugs: whatever stands there, the error is ours."""
    made = Memory(
        "x",
        {"s": np.arange(3), "l": np.arange(20_000)},
        History([Turn("a")]),
        Blob(b"b"),
        random.Random(1),
        np.random.default_rng(1),
        [1, {"a": b"c"}],
    )
    image, object_stream = StateEncoder(ArenaPool()).encode(made), Shelf()
    skeleton = bytearray(image.skeleton)
    parts, _ = object_stream.store(image)
    skeleton[place % len(skeleton)] = value
    cut = bytes(skeleton[: len(skeleton) - (length % len(skeleton) if length % 3 == 0 else 0)])
    with contextlib.suppress(EncodingError, DamagedDataError):
        decode_state(Memory, cut, parts, object_stream.contents(parts))


def test_a_damaged_dtype_of_digits_is_refused() -> None:
    """NumPy evaluates them, and raises a SyntaxError."""
    body = encode_body({"s": np.arange(3)})
    assert body.count(b"<i8") == 1
    with pytest.raises(ValueError, match="there is no dtype '008'"):
        state_decoder(Any).decode(body.replace(b"<i8", b"008"))


def test_plain_shows_what_stands_beside_the_record() -> None:
    made = Memory("x", {"l": np.zeros(MIB)}, History([Turn("a")]), Blob(b"b"))
    image, object_stream = StateEncoder(ArenaPool()).encode(made), Shelf()
    skeleton, (parts, _) = image.skeleton, object_stream.store(image)
    shown: Any = plain(skeleton, parts)
    assert shown["arrays"] == {"l": {"dtype": "<f8", "shape": [MIB], "bytes": 8 * MIB}}
    assert shown["talk"]["records"] == 1 and "first" not in shown["talk"]
    shown = plain(skeleton, parts, lambda part: object_stream.contents([part])[0])
    assert shown["arrays"]["l"] == {"dtype": "<f8", "shape": [MIB], "values": [*[0.0] * 8, "…"]}
    assert shown["talk"]["first"] == [{"who": "a", "words": []}]
    shown = plain(encode_body(Memory("x", talk=made.talk, paper=made.paper)))
    assert shown["talk"] == [{"who": "a", "words": []}] and shown["paper"] == b"b"


def test_blobs_and_histories_are_pickled_without_their_tokens() -> None:
    """A copy must not share a token with what goes on changing."""
    talk = History([Turn("a")])
    StateEncoder(ArenaPool()).encode(Memory(talk=talk))
    assert pickle.loads(pickle.dumps(talk)) == talk


@pytest.mark.parametrize("shape", [(1, 40_000), (2, 20_001), (7, 5000), (40_001,), (3, 4, 5000)])
def test_two_threads_copy_what_one_would(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.storage.capture.encoder.PARALLEL_COPY_BYTES_MIN", 1)
    array = np.random.default_rng(0).random(shape)
    image = StateEncoder(ArenaPool()).encode({"array": array})
    (part,) = image.parts
    assert b"".join(bytes(chunk.data or b"") for chunk in part.chunks) == array.tobytes()
    image.release()

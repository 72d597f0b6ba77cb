"""States as images and back: what goes in comes out, nothing changes an image after the pause, old records still decode.

`Shelf` stands for store and worker: it keeps chunks by token and by content, and knows nothing of how they were cut. The
oracle for arrays is NumPy's own comparison of dtype, shape and bytes; for generators, the numbers they draw next.
"""

import contextlib
import dataclasses
import hashlib
import pickle
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as array_st

from snapline.agent_runtime.encoding import encode_body, message_decoder, plain, state_decoder
from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture import encoder as encoder_module
from snapline.storage.capture import tracked
from snapline.storage.capture.arena import ARENA_IMAGES_MAX, ArenaBusyError, ArenaPool
from snapline.storage.capture.blob_value import Blob
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.decoder import Restored, buffer_for, decode_state
from snapline.storage.capture.encoder import ARRAY_PART_BYTES_MIN, CHUNK_BYTES, StateEncoder, chunk_bytes_for
from snapline.storage.capture.history import History
from snapline.storage.capture.image import PART_ARRAY, PART_BLOB, PART_HISTORY, Buffer, ChunkTable, Image
from snapline.storage.capture.values import Pickled
from snapline.storage.checkpoint import ChunkReference, StatePart

KIB, MIB = 1024, 1024 * 1024


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


@dataclasses.dataclass
class Secret:
    """Only pickle can save one in a field without a type."""

    word: str


class Keeper(msgspec.Struct):
    held: Pickled[Secret]
    more: dict[str, Pickled[Any]] = {}


class Shelf:
    """What has been stored: token -> bytes, and digest -> bytes. Never told what changed."""

    def __init__(self) -> None:
        self.by_token: dict[int, bytes] = {}
        self.by_digest: dict[bytes, bytes] = {}

    def store(self, image: Image) -> tuple[list[StatePart], ChunkTable]:
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


def roundtrip(state: Any, *, declared: Any = None, allow_pickle: bool = False) -> Restored:
    pool, shelf = ArenaPool(), Shelf()
    image = StateEncoder(pool, allow_pickle=allow_pickle).encode(state)
    skeleton = image.skeleton
    parts, _ = shelf.store(image)
    assert pool.taken_bytes == 0
    contents = shelf.contents(parts)
    return decode_state(declared or type(state), skeleton, parts, contents, allow_pickle=allow_pickle)


def same(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


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
    shelf, skeleton = Shelf(), image.skeleton
    parts, _ = shelf.store(image)
    back = decode_state(Memory, skeleton, parts, shelf.contents(parts)).state
    assert back.name == "then" and all(same(back.arrays[key], array) for key, array in before.items())


def test_a_restored_array_lies_over_the_buffer_that_was_read() -> None:
    """A gibibyte is not copied once more."""
    image, shelf = StateEncoder(ArenaPool()).encode(Memory(arrays={"a": np.zeros(5 * MIB, "u1")})), Shelf()
    skeleton = image.skeleton
    parts, _ = shelf.store(image)
    contents = shelf.contents(parts)
    back = decode_state(Memory, skeleton, parts, contents).state.arrays["a"]
    assert np.shares_memory(back, np.frombuffer(contents[0], "u1"))


def test_a_read_only_buffer_is_copied() -> None:
    image, shelf = StateEncoder(ArenaPool()).encode([np.zeros(MIB, "u1")]), Shelf()
    skeleton = image.skeleton
    parts, _ = shelf.store(image)
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
    array = tracked.adopt(np.zeros(4 * MIB, "u1"))
    state, shelf, pool = Memory(arrays={"a": array}), Shelf(), ArenaPool()
    encoder = StateEncoder(pool)
    _, base = shelf.store(encoder.encode(state))
    array[5] = 7
    image = encoder.encode(state, base)
    skeleton = image.skeleton
    if tracked.tracker_of(array) is not None:  # a kernel that can
        assert sum(len(chunk.data or b"") for chunk in image.parts[0].chunks) <= 64 * CHUNK_BYTES // 2
        assert 0 < pool.taken_bytes <= 4 * MIB
    parts, _ = shelf.store(image)
    assert pool.taken_bytes == 0
    restored = decode_state(Memory, skeleton, parts, shelf.contents(parts))
    back = restored.state.arrays["a"]
    assert same(back, array) and tracked.is_tracked(back) == tracked.is_tracked(array)


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
    state, shelf, encoder = Memory(talk=History([Turn("x" * 100)] * 500)), Shelf(), StateEncoder(ArenaPool())
    _, base = shelf.store(encoder.encode(state))
    state.talk.append(Turn("new"))
    image = encoder.encode(state, base)
    assert sum(len(chunk.data or b"") for chunk in image.parts[0].chunks) < 200
    skeleton = image.skeleton
    parts, _ = shelf.store(image)
    assert decode_state(Memory, skeleton, parts, shelf.contents(parts)).state == state


# ---- generators -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64), st.integers(0, 700), st.booleans())
@settings(deadline=None, max_examples=40)
def test_random_goes_on_where_it_was(seed: int, drawn: int, gauss: bool) -> None:
    dice = random.Random(seed)
    for _ in range(drawn):
        dice.random()
    if gauss:
        dice.gauss(0, 1)  # holds a second value back
    back = roundtrip(Memory(dice=dice)).state.dice
    assert [back.gauss(0, 1) for _ in range(5)] == [dice.gauss(0, 1) for _ in range(5)]
    assert back.getstate() == dice.getstate()


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
@pytest.mark.parametrize("entropy", [None, 5, 2**100, [1, 2, 2**40]])
def test_numpy_generators_go_on_where_they_were(name: str, entropy: Any) -> None:
    made = np.random.Generator(getattr(np.random, name)(np.random.SeedSequence(entropy)))
    made.integers(0, 100, size=3, dtype=np.int32)  # an odd number: half a word is held back
    made.spawn(2)
    back = roundtrip(Memory(draws=made)).state.draws
    for one, other in ((back, made), (back, made)):
        assert (one.integers(0, 1000, 7, np.int32) == other.integers(0, 1000, 7, np.int32)).all()
        assert (one.standard_normal(9) == other.standard_normal(9)).all()
    assert back.spawn(1)[0].random() == made.spawn(1)[0].random()
    assert type(back.bit_generator).__name__ == name


@pytest.mark.parametrize(
    "value", [random.SystemRandom(), type("Mine", (random.Random,), {})(), np.random.RandomState(1)]
)
def test_other_generators_are_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match=r"^state\.anything cannot be saved"):
        StateEncoder(ArenaPool()).encode(Memory(anything=value))


# ---- pickles --------------------------------------------------------------------------------------------------------

ran: list[str] = []


class Bomb:
    """Loading it would be seen."""

    def __reduce__(self) -> Any:
        return _explode, ("boom",)


def _explode(word: str) -> str:
    ran.append(word)
    return word


@pytest.mark.parametrize("size", [3, 200 * KIB])
def test_pickled_values_come_back_where_both_marks_are_set(size: int) -> None:
    made = Keeper(Pickled(Secret("x" * size)), {"a": Pickled([1, {2}])})
    assert roundtrip(made, allow_pickle=True).state == made
    encoder = StateEncoder(ArenaPool(), allow_pickle=True)
    assert [part.kind for part in encoder.encode(made).parts] == ([PART_BLOB] if size > KIB else [])
    assert state_decoder(Keeper, allow_pickle=True).decode(encoder.encode_inline(made)) == made


def test_pickles_are_refused_without_the_mark_on_the_class() -> None:
    made = Keeper(Pickled(Secret("x")))
    for encode in (StateEncoder(ArenaPool()).encode, StateEncoder(ArenaPool()).encode_inline):
        with pytest.raises(EncodingError, match=r"^state\.held cannot be saved: .*set allow_pickle = True"):
            encode(made)


def test_a_pickle_is_not_loaded_unless_class_and_field_allow_it() -> None:
    ran.clear()
    encoder = StateEncoder(ArenaPool(), allow_pickle=True)
    undeclared = encoder.encode_inline(Memory(anything=Pickled(Bomb())))
    declared = encoder.encode(Keeper(Pickled(Secret("x")), {"b": Pickled(Bomb())})).skeleton
    with pytest.raises(EncodingError, match="not declared as Pickled"):
        decode_state(Memory, undeclared, [], [], allow_pickle=True)
    with pytest.raises(EncodingError, match="set allow_pickle = True"):
        decode_state(Keeper, declared, [], [])
    with pytest.raises(EncodingError, match="set allow_pickle = True"):
        message_decoder(Keeper).decode(declared)
    with pytest.raises(EncodingError):
        state_decoder(Memory).decode(undeclared)
    assert ran == []
    decode_state(Keeper, declared, [], [], allow_pickle=True)
    assert ran == ["boom"], "the test can fail"


def test_what_cannot_be_pickled_or_loaded_says_so() -> None:
    encoder = StateEncoder(ArenaPool(), allow_pickle=True)
    with pytest.raises(EncodingError, match=r"state\.held cannot be saved: a function that cannot be pickled"):
        encoder.encode(Keeper(Pickled(lambda: 1)))  # type: ignore[arg-type]  # that is the mistake
    skeleton = encoder.encode(Keeper(Pickled(Secret("x")))).skeleton.replace(b"Secret", b"Sacred")
    with pytest.raises(EncodingError, match="cannot be loaded"):
        decode_state(Keeper, skeleton, [], [], allow_pickle=True)


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
    with pytest.raises(EncodingError, match="were read" if size == 7 else ""):
        decode_state(list[np.ndarray], msgspec.msgpack.encode(extensions), [part], [bytearray(size)])


def test_a_part_where_something_else_is_declared_names_the_field() -> None:
    image, shelf = StateEncoder(ArenaPool()).encode(Memory(arrays={"a": np.zeros(MIB)})), Shelf()
    skeleton = image.skeleton.replace(b"\xa6arrays", b"\xa4talk", 1)
    parts, _ = shelf.store(image)
    with pytest.raises(EncodingError, match="does not decode as declared"):
        decode_state(Memory, skeleton, parts, shelf.contents(parts))


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
    image, shelf = StateEncoder(ArenaPool()).encode(made), Shelf()
    skeleton = bytearray(image.skeleton)
    parts, _ = shelf.store(image)
    skeleton[place % len(skeleton)] = value
    cut = bytes(skeleton[: len(skeleton) - (length % len(skeleton) if length % 3 == 0 else 0)])
    with contextlib.suppress(EncodingError, DamagedDataError):
        decode_state(Memory, cut, parts, shelf.contents(parts))


def test_plain_shows_what_stands_beside_the_record() -> None:
    made = Memory("x", {"l": np.zeros(MIB)}, History([Turn("a")]), Blob(b"b"))
    shown: Any = plain(StateEncoder(ArenaPool()).encode(made).skeleton)
    assert shown["arrays"] == {"l": "<part 0>"} and shown["talk"] == "<part 1>"
    shown = plain(encode_body(Memory("x", talk=made.talk, paper=made.paper)))
    assert shown["talk"] == [{"who": "a", "words": []}] and shown["paper"] == b"b"


# ---- torch ----------------------------------------------------------------------------------------------------------


def test_tensors_come_back() -> None:
    torch: Any = pytest.importorskip("torch")
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8]
    for kind in [*kinds, torch.float8_e4m3fn, torch.int8]:
        for shape in [(), (0, 3), (7,), (40, 1000), (3, 5, 7)]:
            made = (torch.arange(int(np.prod(shape)), dtype=torch.float32) % 100).reshape(shape).to(kind)
            for tensor in [made, made.T if made.ndim == 2 else made, made[::2] if made.ndim else made]:
                for back in (
                    roundtrip([tensor], declared=Any).state[0],
                    state_decoder(Any).decode(encode_body([tensor]))[0],
                ):
                    assert back.dtype == kind and back.shape == tensor.shape and not back.requires_grad
                    assert bool((back.to(torch.complex64) == tensor.to(torch.complex64)).all())
    typed = msgspec.defstruct("Typed", [("weight", torch.Tensor)])
    grown = torch.ones(10_000, requires_grad=True)
    back = roundtrip(typed(grown), declared=typed).state.weight
    back += 1
    assert back.sum().item() == 20_000 and grown.sum().item() == 10_000
    conjugated = torch.ones(20_000, dtype=torch.complex64).mul(1j).conj()
    assert roundtrip([conjugated], declared=Any).state[0][0] == -1j


def test_tensors_that_would_come_back_as_something_else_are_refused() -> None:
    torch: Any = pytest.importorskip("torch")
    for value in [torch.nn.Parameter(torch.ones(3)), torch.ones(3).to_sparse(), torch.ones(3, device="meta")]:
        with pytest.raises(EncodingError, match=r"state\.anything cannot be saved: .*torch tensors"):
            StateEncoder(ArenaPool()).encode(Memory(anything=value))


def test_blobs_and_histories_are_pickled_without_their_tokens() -> None:
    """A copy must not share a token with what goes on changing."""
    talk = History([Turn("a")])
    StateEncoder(ArenaPool()).encode(Memory(talk=talk))
    assert pickle.loads(pickle.dumps(talk)) == talk

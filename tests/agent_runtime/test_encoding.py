"""Messages and states as bytes: what goes in comes out, or is refused in a sentence that names it.

The oracle for arrays is NumPy's own comparison of dtype, shape and bytes; that for structs is their equality.
"""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as array_st

from snapline.agent_runtime.message_encoding import encode_body, encode_message, message_decoder
from snapline.agent_runtime.message_encoding import state_decoder as decoder_of
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError
from snapline.messages.payloads import split_message
from snapline.storage.capture.saved_value_formats import plain


class Holder(msgspec.Struct):
    array: np.ndarray


class Anything(msgspec.Struct):
    count: int = 0
    value: Any = None


class Leaf(msgspec.Struct, frozen=True):
    name: str
    weight: float
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass
class Branch:
    leaves: list[Leaf]
    by_name: dict[str, Leaf]
    pair: tuple[int, str | None]
    raw: bytes
    places: dict[tuple[int, int], int]


def through_state(array: Any) -> Any:
    return decoder_of(Holder).decode(encode_body(Holder(array))).array


def through_message(array: Any) -> Any:
    name, body = split_message(encode_message(Holder(array)))
    assert name == "Holder"
    return message_decoder(Holder).decode(body).array


def same(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


# ---- arrays ---------------------------------------------------------------------------------------------------------

dtypes = st.one_of(
    array_st.boolean_dtypes(),
    array_st.integer_dtypes(endianness="?"),
    array_st.unsigned_integer_dtypes(endianness="?"),
    array_st.floating_dtypes(endianness="?"),
    array_st.complex_number_dtypes(endianness="?"),
    array_st.datetime64_dtypes(endianness="?"),
    array_st.byte_string_dtypes(endianness="?"),
    array_st.unicode_string_dtypes(endianness="?"),
)
shapes = array_st.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@settings(deadline=None, max_examples=50)
@given(array=array_st.arrays(dtypes, shapes), flip=st.booleans())
def test_arrays_of_every_number_type_come_back_whole(array: Any, flip: bool) -> None:
    if flip and array.ndim:
        array = array.T[::2]  # not contiguous
    for back in (through_state(array), through_message(array)):
        assert same(back, np.ascontiguousarray(array).reshape(array.shape))


@pytest.mark.parametrize(
    "array",
    [
        np.array(7),
        np.zeros(0),
        np.zeros((0, 3)),
        np.zeros((3, 0, 2), dtype="<U4"),
        np.arange(6).reshape(2, 3).T,
        np.arange(10)[::-3],
        np.broadcast_to(np.float32(1.5), (4, 4)),
        np.arange(3, dtype=">f8"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((1,) * 32),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}"[:30],
)
def test_odd_arrays_come_back_whole(array: Any) -> None:
    assert same(through_state(array), array)
    assert same(through_message(array), array)


def test_state_arrays_may_be_written_and_message_arrays_may_not() -> None:
    state, message = through_state(np.zeros(3)), through_message(np.zeros(3))
    state += 1
    assert state.sum() == 3
    with pytest.raises(ValueError, match="read-only"):
        message += 1


def test_arrays_of_one_state_share_no_memory() -> None:
    one = through_state(np.zeros(3))
    payload = encode_body(Holder(one))
    first, second = (decoder_of(Holder).decode(payload).array for _ in range(2))
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize("memory_order", ["C", "F"])
def test_arrays_inside_containers_come_back(memory_order: Any) -> None:
    class Nested(msgspec.Struct):
        layers: dict[str, list[np.ndarray]]
        last: np.ndarray | None

    made = Nested({"a": [np.ones((2, 3), order=memory_order)], "b": []}, None)
    back = decoder_of(Nested).decode(encode_body(made))
    assert back.last is None and back.layers["b"] == [] and same(back.layers["a"][0], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([None, 1]), "Python objects"),
        (np.array([{}, {}]), "Python objects"),
        (np.zeros(2, dtype=[("x", "f8"), ("y", "i4")]), "named fields"),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), "MaskedArray"),
        (np.zeros(2).view(np.rec.recarray), "recarray"),
    ],
    ids=["objects", "dicts", "structured", "masked", "records"],
)
def test_arrays_that_would_come_back_changed_are_refused(array: Any, why: str) -> None:
    """Bytes and a dtype's short name hold neither objects, nor field names, nor masks."""
    with pytest.raises(EncodingError, match=f"message Holder .*'array'.*{why}"):
        encode_message(Holder(array))


def test_a_mapped_file_is_an_array_like_any_other(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "values", dtype="<i4", mode="w+", shape=(4,))
    mapped[:] = [1, 2, 3, 4]
    assert same(through_state(mapped), np.array([1, 2, 3, 4], dtype="<i4"))


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(0.5), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)])
def test_numpy_numbers_travel_as_numbers(value: Any) -> None:
    back = decoder_of(Anything).decode(encode_body(Anything(value=value))).value
    assert back == value and type(back) in (bool, int, float)


@pytest.mark.parametrize("value", [np.float64(1.5), np.int8(-3), np.bool_(True)])
def test_a_field_declared_as_a_numpy_number_comes_back_as_one(value: Any) -> None:
    """It could be saved, and then not be restored."""
    made = msgspec.defstruct("Numbers", [("value", type(value))])
    back = decoder_of(made).decode(encode_body(made(value))).value
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "value", [np.longdouble(1) / 3, np.complex128(1j), np.datetime64("2020-01-01", "ns"), np.timedelta64(1, "s")]
)
def test_numpy_scalars_that_are_no_plain_number_are_refused(value: Any) -> None:
    """A longdouble would lose digits, a time its unit."""
    with pytest.raises(EncodingError, match=f"'value' holds .*{type(value).__name__}"):
        encode_message(Anything(value=value))


@pytest.mark.parametrize("head", [["O", [1]], ["nonsense", [1]], ["<f8", [5]], ["<f8", [-1, -1]]])
def test_a_damaged_array_does_not_decode(head: Any) -> None:
    packed = msgspec.msgpack.encode(head)
    payload = msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(1, bytes((len(packed),)) + packed + bytes(8))})
    with pytest.raises((ValueError, TypeError)):
        message_decoder(Holder).decode(payload)


# ---- structs, dataclasses, containers -------------------------------------------------------------------------------

numbers = st.integers(-(2**63), 2**63 - 1)
leaves = st.builds(Leaf, st.text(), st.floats(allow_nan=False), st.frozensets(st.text(max_size=3)))
branches = st.builds(
    Branch,
    st.lists(leaves, max_size=4),
    st.dictionaries(st.text(), leaves, max_size=4),
    st.tuples(numbers, st.none() | st.text()),
    st.binary(),
    st.dictionaries(st.tuples(numbers, numbers), numbers, max_size=4),
)


@settings(deadline=None)
@given(branches)
def test_dataclasses_and_structs_come_back_equal(made: Branch) -> None:
    assert decoder_of(Branch).decode(encode_body(made)) == made
    name, body = split_message(encode_message(made))
    assert name == "Branch" and message_decoder(Branch).decode(body) == made


@settings(deadline=None)
@given(branches)
def test_encoding_copies(made: Branch) -> None:
    """`ctx.send` encodes at once: the sender may go on changing its objects."""
    payload = encode_message(made)
    before = dataclasses.replace(made, leaves=list(made.leaves))
    made.leaves.append(Leaf("later", 0.0))
    assert message_decoder(Branch).decode(split_message(payload)[1]) == before


def test_a_state_of_a_plain_container_comes_back() -> None:
    assert decoder_of(dict[str, int]).decode(encode_body({"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**70, "ints"),
        (lambda: 1, "builtins.function"),
        (1j, "builtins.complex"),
        (object, "builtins.type"),
        ("\ud800", "surrogates"),
        ([object()], "builtins.object"),
        ({"k": iter(())}, "tuple_iterator"),
    ],
)
def test_what_cannot_be_encoded_is_named_by_type_and_field(value: object, why: str) -> None:
    with pytest.raises(EncodingError, match=f"^message Anything cannot be encoded: field 'value' holds .*{why}"):
        encode_message(Anything(value=value))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(EncodingError, match="'value' holds a structure that contains itself"):
        encode_message(Anything(value=loop))


def test_the_field_of_a_dataclass_is_named_too() -> None:
    made = Branch([], {}, (1, None), b"", {(1, 2): 2**70})
    with pytest.raises(EncodingError, match=r"message Branch .*field 'places'"):
        encode_message(made)


def test_messages_end_at_16_mib() -> None:
    head = len(encode_message(Anything(value=b"\0" * 2**20))) - 2**20
    fits = MESSAGE_BYTES_MAX - head
    assert len(encode_message(Anything(value=b"\0" * fits))) == MESSAGE_BYTES_MAX
    with pytest.raises(MessageTooLargeError, match=r"message Anything takes 16,777,217 bytes.*shared storage"):
        encode_message(Anything(value=b"\0" * (fits + 1)))


def test_the_name_of_a_message_type_ends_at_255_bytes() -> None:
    fits, above = (msgspec.defstruct("M" * length, []) for length in (255, 256))
    assert split_message(encode_message(fits()))[0] == "M" * 255
    with pytest.raises(EncodingError, match="at most 255 bytes"):
        encode_message(above())


def test_an_unknown_extension_is_from_a_newer_release() -> None:
    payload = msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(9, b"?")})
    for decoder in (message_decoder(Holder), decoder_of(Holder)):
        with pytest.raises((EncodingError, msgspec.ValidationError), match="extension 9 is not known"):
            decoder.decode(payload)


def test_something_else_where_an_array_is_declared_does_not_decode() -> None:
    with pytest.raises((NotImplementedError, msgspec.ValidationError)):
        message_decoder(Holder).decode(msgspec.msgpack.encode({"array": 5}))


# ---- for people -----------------------------------------------------------------------------------------------------


def test_plain_shows_structs_as_dicts_and_arrays_as_a_short_description() -> None:
    shown = plain(encode_body(Anything(3, {"a": np.arange(4, dtype="i2"), "b": [Leaf("x", 1.0)]})))
    assert shown == {
        "count": 3,
        "value": {
            "a": {"dtype": "<i2", "shape": [4], "values": [0, 1, 2, 3]},
            "b": [{"name": "x", "weight": 1.0, "tags": []}],
        },
    }


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.arange(100), [*range(8), "…"]),
        (np.array(2.5, dtype="<f4"), [2.5]),
        (np.zeros((0, 2)), []),
        (np.array([255], dtype="u1"), [255]),
        (np.arange(3, dtype=">i4"), [0, 1, 2]),
        (np.array([True, False]), [True, False]),
        (np.array([1.5], dtype="f2"), [1.5]),
        (np.array(["ab", "c"]), ["ab", "c"]),
        (np.array(["ü"], dtype=">U3"), ["ü"]),
        (np.array([b"ab"]), [b"ab"]),
        (np.array([1 + 2j]), ["(1+2j)"]),
        (np.array(["2025-01-01"], dtype="M8[D]"), "<8 bytes>"),
    ],
)
def test_plain_shows_the_first_values_of_an_array(array: Any, values: object) -> None:
    shown = plain(encode_body(array))
    assert shown == {"dtype": array.dtype.str, "shape": list(array.shape), "values": values}


def test_plain_describes_what_it_does_not_know() -> None:
    assert plain(msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"abc"))) == "<extension 9, 3 bytes>"


@settings(deadline=None)
@given(branches)
def test_plain_reads_every_state_without_its_classes(made: Branch) -> None:
    shown = plain(encode_body(made))
    assert isinstance(shown, dict) and list(shown) == ["leaves", "by_name", "pair", "raw", "places"]

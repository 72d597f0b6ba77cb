"""Records as keys of dicts, read without their class."""

import contextlib
import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.saved_values import FAILURES, decode_any_keys

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=300),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=40)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.dictionaries(st.one_of(st.text(max_size=40), st.integers(-9, 300)), inner, max_size=20),
    ),
    max_leaves=30,
)


def as_it_is(code: int, data: memoryview) -> object:
    return msgspec.msgpack.Ext(code, bytes(data))


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_where_msgspec_can_decode_the_same_comes_out(value: object) -> None:
    data = msgspec.msgpack.encode(value)
    assert decode_any_keys(data, as_it_is) == msgspec.msgpack.decode(data, ext_hook=as_it_is)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_every_length_of_containers_is_read(count: int) -> None:
    for value in (list(range(count)), {number: "x" for number in range(count)}, "x" * count, b"x" * count):
        assert decode_any_keys(msgspec.msgpack.encode(value), as_it_is) == value


class Point(msgspec.Struct, frozen=True):
    x: int
    tags: tuple[str, ...] = ()


def test_a_record_as_a_key_becomes_its_pairs() -> None:
    data = msgspec.msgpack.encode({"table": {Point(1, ("a",)): [{Point(2): 3}]}})
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(data)
    assert plain(data) == {"table": {(("x", 1), ("tags", ("a",))): [{(("x", 2), ("tags", ())): 3}]}}


@settings(max_examples=50, deadline=None)
@given(VALUES, st.integers(0, 400), st.integers(0, 255))
def test_broken_bytes_end_in_an_error_or_a_value(value: object, place: int, byte: int) -> None:
    data: Any = bytearray(msgspec.msgpack.encode({Point(1): value}))
    data[place % len(data)] = byte
    with contextlib.suppress(*FAILURES):
        decode_any_keys(bytes(data), as_it_is)


@settings(max_examples=20, deadline=None)
@given(VALUES, st.integers(1, 400))
def test_what_is_cut_off_is_no_value(value: object, cut: int) -> None:
    data = msgspec.msgpack.encode({Point(1): value})
    with pytest.raises(FAILURES):
        decode_any_keys(data[: -min(cut, len(data))], as_it_is)
    with pytest.raises(FAILURES):
        decode_any_keys(data + b"x", as_it_is)

"""States as JSON: arrays as NumPy lists them, everything else as msgspec writes what stands for it."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.capture.test_first_values import arrays, saved

from snapline.errors import UsageError
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ArenaPool
from snapline.storage.capture.saved_value_formats import json_of
from snapline.storage.capture.saved_values import read_record
from snapline.storage.capture.values import Blob, Pickled

LIMIT = 2**20


def told(value: Any) -> Any:
    """What JSON makes of what NumPy lists."""
    if isinstance(value, list):
        return [told(item) for item in value]
    return str(value) if isinstance(value, complex) else value


def through_json(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


@settings(max_examples=200, deadline=None)
@given(arrays(), st.sampled_from("CF"), st.sampled_from([0, 8, 48, 1000]))
def test_an_array_is_listed_as_numpy_lists_it(array: Any, order: str, chunk_bytes: int) -> None:
    found, _ = saved(array, order, chunk_bytes)
    assert msgspec.json.decode(json_of(found, LIMIT)) == through_json(told(array.tolist()))


class Mind(msgspec.Struct):
    notes: Any
    photo: Any
    rest: Any


def test_records_histories_blobs_and_odd_keys() -> None:
    state = Mind(
        History([("a", 1), ("b", 2)]),
        Blob(b"\x00\xff"),
        {1: (b"xy", {2}), "pi": math.inf, "not": math.nan, "large": np.arange(3), "pickle": Pickled({"a": 1})},
    )
    record = StateEncoder(ArenaPool(), allow_pickle=True).encode_inline(state)
    found = msgspec.json.decode(json_of(read_record(record), LIMIT))
    assert found["notes"] == [["a", 1], ["b", 2]]
    assert found["photo"] == "AP8=" and found["rest"]["1"] == ["eHk=", [2]]
    assert found["rest"]["pi"] is None and found["rest"]["not"] is None and found["rest"]["large"] == [0, 1, 2]
    assert str(found["rest"]["pickle"]).startswith("<pickle of ")


@pytest.mark.parametrize("state", [b"x" * 1000, "x" * 1000, np.zeros(5000), ["x" * 10] * 100])
def test_what_is_too_large_is_an_error_and_not_half_told(state: Any) -> None:
    record = StateEncoder(ArenaPool()).encode_inline({"field": state})
    with pytest.raises(
        UsageError, match="900 of JSON are told: ask for a field of it, or read the store with snapline"
    ):
        json_of(read_record(record), 900)

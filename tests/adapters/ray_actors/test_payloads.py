"""Arguments, answers and states as bytes: they come back as they were, and equal arguments are equal bytes whatever process made them."""

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integration.processes import ROOT

from snapline.adapters.ray.fleet_refs import ACTOR, ActorNames, is_tree, packed, packed_state, unpacked
from snapline.errors import EncodingError

pytest.importorskip("ray", reason="Ray is not installed: pip install 'snapline[ray]'")

NOBODY = ActorNames([])

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.just(ACTOR) | st.integers(), inner)
        | st.frozensets(st.text() | st.integers())
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """With its types: 1 and 1.0 and True are equal."""
    if isinstance(value, list | tuple):
        return type(value), [typed(each) for each in value]
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(each)) for key, each in value.items()]
    if isinstance(value, frozenset):
        return type(value), value
    return type(value), repr(value)


@given(VALUES, st.booleans())
def test_values_come_back_as_they_were(value: Any, is_compared: bool) -> None:
    assert typed(unpacked(packed(value, NOBODY, is_compared=is_compared), NOBODY)) == typed(value)


def test_one_list_in_two_places_is_still_one() -> None:
    inner: list[int] = []
    assert not is_tree({"a": inner, "b": inner}, set())
    back = unpacked(packed({"a": inner, "b": inner}, NOBODY), NOBODY)
    assert back["a"] is back["b"]


def test_what_holds_itself_can_be_an_argument() -> None:
    inner: list[Any] = []
    inner.append(inner)
    back = unpacked(packed(inner, NOBODY, is_compared=True), NOBODY)
    assert back[0] is back


PROGRAM = """
import sys
from snapline.adapters.ray.fleet_refs import ActorNames
from snapline.adapters.ray.fleet_refs import packed
word = sys.argv[1] if sys.argv[2] == "one" else "".join(sys.argv[1])
again = word if sys.argv[2] == "one" else "".join(list(word))
value = ({"apple", "pear", "plum", word}, frozenset([(word, again)]), word, again)
print(packed(value, ActorNames([]), is_compared=True).hex())
"""


def test_equal_arguments_are_equal_bytes_in_each_process() -> None:
    """A method that is run again is known by them: sets have another order there, and other strings are one object."""
    said = set()
    for seed, objects in (("1", "one"), ("2", "two"), ("3", "one")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "cherry", objects],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        )
        said.add(done.stdout)
    assert len(said) == 1


def test_an_attribute_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(EncodingError, match=r"attribute 'door' of actor 'a' cannot be kept.*__setstate__"):
        packed_state({"fine": 1, "door": threading.Lock()}, NOBODY, "a")

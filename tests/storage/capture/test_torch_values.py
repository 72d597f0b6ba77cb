"""What stands in a model's, an optimizer's or a scheduler's dictionaries comes back as what it was, or is refused (G3)."""

import collections
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import EncodingError
from snapline.storage.capture.encoder import StateEncoder, check
from snapline.storage.capture.image import ArenaPool
from snapline.storage.capture.torch_state import TensorPlaces, TorchState, Unfolder, fold

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'snapline[torch]'")

from tests.storage.capture.torch_play import Trainer, bits, holder, network, through, tied

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(lambda n: torch.arange(n), st.integers(0, 5)),
    st.builds(np.float32, st.integers(0, 5)),
    st.builds(np.float64, st.integers(0, 5)),
    st.builds(lambda n: np.arange(n), st.integers(0, 5)),
    st.builds(random.Random, st.integers(0, 9)),
)
scalars = st.one_of(st.text(max_size=2), st.integers(-3, 3), st.booleans(), st.none())
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(scalars, inner, max_size=3),
        st.dictionaries(st.tuples(scalars, scalars), inner, max_size=2),
        st.builds(collections.Counter, st.dictionaries(scalars, st.integers(0, 5), max_size=3)),
        st.sets(scalars, max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(nested)
def test_nested_values_come_back_as_what_they_were(value: Any) -> None:
    made = Trainer(TorchState.of(holder(), rng=False, extra={"value": value, "": 1}))
    back = through(made).training.extra
    assert bits(back) == bits({"value": value, "": 1})


def test_one_tensor_in_two_places_of_a_section_stays_one() -> None:
    shared = torch.arange(3)
    places = TensorPlaces()
    plain = fold({"a": {1: shared}, "b": [shared, shared.clone(), shared[:2]]}, ("s",), places)
    assert len(places.distinct) == 3
    back = Unfolder().unfold(plain, ("s",))
    assert back["b"][0] is back["a"][1] and len({id(x) for x in back["b"]}) == 3
    del plain["a"]
    with pytest.raises(
        EncodingError, match=r"saved s\['b'\]\[0\] is to be the tensor at s\['a'\]\[1\], which is not there"
    ):
        Unfolder().unfold(plain, ("s",))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"f": lambda: 1}, "a builtins.function in extra f"),
        ({"a": {"b": [object()]}}, r"a builtins.object in extra a\['b'\]\[0\]"),
        ({"p": torch.nn.Parameter(torch.zeros(2))}, "of type Parameter"),
        ({"s": torch.eye(3).to_sparse()}, "sparse"),
        ({"o": np.array([object()])}, "Python objects"),
        ({"d": collections.defaultdict(list)}, "defaultdict in extra d"),
        ({"e": torch.Size([1])}, "torch.Size in extra e"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(extra: dict[str, Any], message: str) -> None:
    encoder = StateEncoder(ArenaPool())
    with pytest.raises(EncodingError, match=rf"state\.training.* cannot be saved: .*{message}"):
        encoder.encode(Trainer(TorchState.of(network(), extra=extra)))


def test_a_tensor_in_two_sections_is_refused() -> None:
    model = network()
    extra = {"weights": model.state_dict()["0.weight"]}
    with pytest.raises(EncodingError, match=r"both in model\['0.weight'\] and in extra weights, and would come back"):
        StateEncoder(ArenaPool()).encode(Trainer(TorchState.of(model, extra=extra)))


def test_tensors_of_the_model_elsewhere_in_the_state_are_found() -> None:
    model = tied()
    training = TorchState.of(model)
    check(Trainer(training, notes={"own": torch.zeros(3)}))
    with pytest.raises(EncodingError, match=r"share memory|one and the same"):
        check(Trainer(training, notes={"first row": model[0].weight.detach()[0]}))
    with pytest.raises(EncodingError, match="one and the same TorchState"):
        check(Trainer(training, notes={"again": training}))

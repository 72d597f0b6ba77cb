"""Single values that MessagePack has no word for: generators, pickles, tensors.

The oracle for generators: the numbers they draw next.
"""

import dataclasses
import importlib.machinery
import random
import sys
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.capture.shelf import Memory, roundtrip

from snapline.agent_runtime.message_encoding import encode_body, message_decoder, state_decoder
from snapline.errors import EncodingError
from snapline.storage.capture.decoder import decode_state
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.image import PART_BLOB, ArenaPool
from snapline.storage.capture.values import Blob, Pickled

KIB = 1024


@dataclasses.dataclass
class Secret:
    """Only pickle can save one in a field without a type."""

    word: str


class Keeper(msgspec.Struct):
    held: Pickled[Secret]
    more: dict[str, Pickled[Any]] = {}


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


# ---- NumPy that is being loaded -------------------------------------------------------------------------------------


def test_a_state_is_imaged_while_another_thread_loads_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that cuts the first blob does: the module is there then, and what is in it is not."""
    half = ModuleType("numpy")
    half.__spec__ = importlib.machinery.ModuleSpec("numpy", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]  # so importlib marks it
    monkeypatch.setitem(sys.modules, "numpy", half)
    state = {"blob": Blob(b"x" * KIB)}
    assert encode_body(state)
    assert [part.kind for part in StateEncoder(ArenaPool()).encode(state).parts] == [PART_BLOB]

"""A torch model in a state: training goes on bit for bit, what was not trained is not stored again, the rest is refused.

The oracle is a second training that is never interrupted. Bytes are compared, not values within a tolerance: NaN included.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.message_encoding import encode_body, state_decoder
from snapline.agent_runtime.migrations import load_state, plan_migration
from snapline.errors import EncodingError, UsageError
from snapline.storage.capture import torch_state
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.decoder import decode_state
from snapline.storage.capture.encoder import CHUNK_BYTES, StateEncoder
from snapline.storage.capture.image import ArenaPool
from snapline.storage.capture.torch_state import TorchState
from snapline.storage.packs.checkpoint import AgentCheckpoint

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'snapline[torch]'")

from tests.storage.capture.torch_play import Shelf, Trainer, bits, holder, network, through, tied

KIB = 1024


# ---- training goes on -----------------------------------------------------------------------------------------------


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
    "groups": lambda p: torch.optim.RMSprop(
        [{"params": [x], "lr": 0.01 / (i + 1)} for i, x in enumerate(p)], momentum=0.5
    ),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=3, history_size=4),
    "plain": lambda p: torch.optim.SGD(p, lr=0.05),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "steps": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 4, 9, 12]),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}


def build(name: str, schedule: str) -> tuple[Any, Any, Any]:
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    return model, optimizer, SCHEDULERS[schedule](optimizer)


def train(model: Any, optimizer: Any, scheduler: Any, steps: range) -> list[bytes]:
    """The data of a step depends on its number only; dropout draws from torch's generator."""
    losses = []
    for step in steps:
        draw = np.random.default_rng(step)
        x, y = (torch.from_numpy(draw.standard_normal((32, n), np.float32)) for n in (16, 4))

        def loss_of(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(loss_of).detach().numpy().tobytes())
        scheduler.step()
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_training_goes_on_bit_for_bit(name: str, schedule: str) -> None:
    torch.manual_seed(1)
    model, optimizer, scheduler = build(name, schedule)
    train(model, optimizer, scheduler, range(6))
    object_stream = Shelf()
    object_stream.keep(Trainer(TorchState.of(model, optimizer, extra={"schedule": scheduler, "best": 0.25}), steps=6))
    expected = train(model, optimizer, scheduler, range(6, 14))

    torch.manual_seed(99)
    again = build(name, schedule)
    train(*again, range(50, 53))  # it had a life of its own
    training = object_stream.back().state.training
    training.load_into(again[0], again[1], extra={"schedule": again[2]})
    assert training.is_live and training.extra["best"] == 0.25 and training.extra["schedule"] is again[2]
    assert train(*again, range(6, 14)) == expected
    assert bits(again[0].state_dict()) == bits(model.state_dict())
    assert bits(again[1].state_dict()) == bits(optimizer.state_dict())
    assert bits(again[2].state_dict()) == bits(scheduler.state_dict())
    object_stream.keep(Trainer(training))
    third = build(name, schedule)
    object_stream.back().state.training.load_into(third[0], third[1], extra={"schedule": third[2]})
    assert bits(third[0].state_dict()) == bits(model.state_dict()), "what was restored can be lost and restored again"
    draws = torch.get_rng_state()
    expected = train(model, optimizer, scheduler, range(14, 17))
    torch.set_rng_state(draws)
    assert train(*third, range(14, 17)) == expected


def narrow_training() -> tuple[Any, Any]:
    model = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def check_moments_keep_their_type() -> None:
    """An optimizer that keeps float32 moments for bfloat16 weights: torch itself would round them when it loads."""
    model, optimizer = narrow_training()
    for number, parameter in enumerate(model.parameters()):
        moments = torch.linspace(0.1, 0.7 + number, parameter.numel()).reshape(parameter.shape)
        optimizer.state[parameter] = {
            "momentum_buffer": moments,
            "nested": {"a": [moments + 1, (moments * 2,)]},
            "n": 3,
        }
    held = through(Trainer(TorchState.of(model, optimizer))).training
    again = narrow_training()
    held.load_into(*again)
    assert bits(again[1].state_dict()) == bits(optimizer.state_dict())


def test_moments_keep_their_type() -> None:
    check_moments_keep_their_type()


def test_moments_would_be_rounded_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the test before can fail."""
    monkeypatch.setattr(torch_state, "_put_exactly", lambda saved, optimizer: None)
    with pytest.raises(AssertionError):
        check_moments_keep_their_type()


def test_a_capture_is_of_its_moment() -> None:
    """Nothing is copied until then, and nothing that happens later gets into it."""
    model, optimizer, scheduler = build("adamw", "cosine")
    state, object_stream = Trainer(TorchState.of(model, optimizer)), Shelf()
    train(model, optimizer, scheduler, range(2))
    at_capture = bits(model.state_dict()), bits(optimizer.state_dict())
    image = object_stream.encoder.encode(state)
    train(model, optimizer, scheduler, range(2, 4))
    assert bits(model.state_dict()) != at_capture[0]
    object_stream.skeleton, object_stream.last = image.skeleton, chunk_image(image, None)
    object_stream.chunks = {new.digest: bytes(new.data) for new in object_stream.last.new}
    back = object_stream.back().state.training
    assert bits(back.state_dict()) == at_capture[0]
    again = build("adamw", "cosine")
    back.load_into(*again[:2])
    assert (bits(again[0].state_dict()), bits(again[1].state_dict())) == at_capture


def test_buffers_are_known_in_advance() -> None:
    taken: list[int] = []

    class Spy(ArenaPool):
        def take(self, size_bytes: int) -> Any:
            taken.append(size_bytes)
            return super().take(size_bytes)

    model, optimizer, scheduler = build("adamw", "cosine")
    train(model, optimizer, scheduler, range(1))
    state, encoder = Trainer(TorchState.of(model, optimizer)), StateEncoder(Spy())
    expected = encoder.buffer_sizes(state)
    assert not taken
    encoder.encode(state).release()
    assert taken == expected != []


def test_a_held_state_is_captured_as_it_is() -> None:
    """Between recovery and the agent's next turn an epoch may come: nothing is lost, and nothing is stored anew."""
    model, optimizer, scheduler = build("adamw", "steps")
    train(model, optimizer, scheduler, range(3))
    made = Trainer(TorchState.of(model, optimizer, extra={"schedule": scheduler, "x": (1, {2: None})}))
    object_stream = Shelf()
    assert object_stream.keep(made) > 0
    first, restored = object_stream.skeleton, object_stream.back()
    assert object_stream.keep(restored.state, restored.table) == 0
    assert object_stream.skeleton == first and not restored.state.training.is_live
    restored.state.training.load_into(model, optimizer, extra={"schedule": scheduler})
    assert object_stream.keep(restored.state, restored.table) == 0 and object_stream.skeleton == first


def test_a_state_goes_through_a_record_without_parts() -> None:
    """As before a turn that may be undone, and as a message."""
    model, optimizer, scheduler = build("momentum", "steps")
    train(model, optimizer, scheduler, range(2))
    made = Trainer(TorchState.of(model, optimizer, rng=False))
    held = state_decoder(Trainer).decode(encode_body(made)).training
    before, again = torch.get_rng_state(), build("plain", "steps")[0]
    held.load_into(again, OPTIMIZERS["momentum"](again.parameters()))
    assert torch.equal(torch.get_rng_state(), before), "rng=False leaves the process's generator alone"
    assert bits(held.optimizer.state_dict()) == bits(optimizer.state_dict())
    assert bits(held.model.state_dict()) == bits(model.state_dict())


# ---- what is not trained --------------------------------------------------------------------------------------------


def test_a_frozen_layer_is_not_stored_again() -> None:
    embedding, head = torch.nn.Embedding(5000, 64), torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(embedding, head)
    embedding.weight.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    state, object_stream = Trainer(TorchState.of(model, optimizer)), Shelf()
    assert object_stream.keep(state) >= 5000 * 64 * 4
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(40)).square().sum().backward()
        optimizer.step()
        new = object_stream.keep(state, object_stream.table)
        assert 3 * 16 * KIB <= new <= 3 * CHUNK_BYTES, (
            "weight and two moments, though the moments are new parts at first"
        )
    base = object_stream.table
    assert object_stream.keep(state, base) == 0
    with torch.no_grad():
        embedding.weight[3, 3] += 1
    assert object_stream.keep(state, base) == CHUNK_BYTES, "one chunk of the embedding"
    assert bits(object_stream.back().state.training.state_dict()) == bits(model.state_dict())


# ---- weights of all kinds -------------------------------------------------------------------------------------------


DTYPES = ["bfloat16", "float16", "float32", "float64", "int8", "uint8", "int64", "bool", "complex64", "complex128"]
DTYPES += [name for name in ("float8_e4m3fn", "uint16") if hasattr(torch, name)]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 70), max_size=3),
    st.sampled_from(["plain", "transposed", "strided", "expanded"]),
    st.integers(0, 2**32 - 1),
)
@example("bfloat16", [0], "strided", 0)  # strides of tensors without elements, or with one, may be anything
@example("float64", [2], "strided", 0)
def test_weights_of_every_kind_come_back(name: str, shape: list[int], layout: str, seed: int) -> None:
    kind = getattr(torch, name)
    size = int(np.prod(shape, dtype=int)) * kind.itemsize
    content = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, size, np.uint8)
    made = torch.from_numpy(content).view(kind).reshape(shape) if size else torch.empty(shape, dtype=kind)
    match layout:
        case "transposed":
            made = made.permute(tuple(reversed(range(made.dim()))))
        case "strided":
            made = made[::2] if made.dim() else made
        case "expanded":
            made = made.expand(3, *made.shape)
    model = holder(w=made, scalar=torch.tensor(1.5, dtype=torch.bfloat16))
    held = through(Trainer(TorchState.of(model))).training
    again = holder(w=torch.zeros(made.shape, dtype=kind), scalar=torch.tensor(0, dtype=torch.bfloat16))
    held.load_into(again)
    assert bits(again.state_dict()) == bits(model.state_dict())


def test_tied_weights_are_stored_once_and_come_back_tied() -> None:
    model, object_stream = tied(), Shelf()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert object_stream.keep(Trainer(TorchState.of(model, optimizer))) == 700 * 32 * 4
    again = tied()
    held = object_stream.back().state.training
    held.load_into(again, torch.optim.SGD(again.parameters(), lr=0.1))
    assert again[0].weight is again[1].weight and bits(again.state_dict()) == bits(model.state_dict())


@pytest.mark.parametrize("saved", [True, False])
def test_weights_tied_in_one_model_only_are_refused(saved: bool) -> None:
    held = through(Trainer(TorchState.of(tied(is_tied=saved)))).training
    with pytest.raises(UsageError, match=r"1 entries are tied in one of both only \('1.weight' with '0.weight'\)"):
        held.load_into(tied(is_tied=not saved))


def test_views_of_one_memory_are_no_ties() -> None:
    memory = torch.arange(12.0)
    model = holder(a=memory[:8], b=memory[4:], c=memory.reshape(3, 4), none=torch.empty(0), nothing=torch.empty(0))
    held = through(Trainer(TorchState.of(model))).training
    again = holder(**{name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    held.load_into(again)
    assert bits(again.state_dict()) == bits(model.state_dict())


# ---- random numbers -------------------------------------------------------------------------------------------------


def test_each_agent_of_a_process_has_its_own_random_numbers() -> None:
    def draws(training: TorchState, count: int) -> list[float]:
        found = []
        for _ in range(count):
            with training.randomness():
                found.append(float(torch.rand(())))
        return found

    alone = draws(TorchState.of(network(), seed=3), 6)
    assert len(set(alone)) == 6 and alone != draws(TorchState.of(network(), seed=4), 6)
    outer, one, other = torch.get_rng_state(), TorchState.of(network(), seed=3), TorchState.of(network(), seed=4)
    first = draws(one, 2) + draws(other, 1)[:0] + draws(one, 1)
    held = through(Trainer(one)).training
    held.load_into(network())
    draws(other, 2)
    assert first + draws(held, 3) == alone
    assert torch.equal(torch.get_rng_state(), outer), "the process's generator is left alone"
    torch.manual_seed(3)
    assert float(torch.rand(())) == alone[0]


def test_blocks_of_randomness_are_used_rightly() -> None:
    training = TorchState.of(network(), seed=3)
    with training.randomness():
        with pytest.raises(UsageError, match="draw the same numbers"), training.randomness():
            pass
        with pytest.raises(EncodingError, match="end the block before the turn ends"):
            StateEncoder(ArenaPool()).encode(Trainer(training))
    with pytest.raises(UsageError, match="seed="), TorchState.of(network()).randomness():
        pass
    with pytest.raises(ZeroDivisionError), training.randomness():
        raise ZeroDivisionError
    with training.randomness():
        assert torch.rand(3).shape == (3,)


# ---- loading what does not fit --------------------------------------------------------------------------------------


def longer() -> Any:
    """One more layer."""
    return torch.nn.Sequential(*network(), torch.nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("model", "optimizer", "extra", "message"),
    [
        (longer, "momentum", {}, r"2 entries were not saved \(4.weight, 4.bias\)"),
        (lambda: network()[:3], "momentum", {}, "entries are not in the model"),
        (
            lambda: network(width=301),
            "momentum",
            {},
            r"differ \(0.weight: \(300, 16\) torch.float32 became \(301, 16\)",
        ),
        (lambda: network(dtype=torch.float64), "momentum", {}, "torch.float32 became"),
        (network, "groups", {}, r"groups of \[1, 1, 1, 1, 1, 1\] parameters, saved were \[6\]"),
        (network, None, {}, "an optimizer was saved"),
        (network, "momentum", {"x": network()}, r"extra must have nothing, as when it was saved, not \['x'\]"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_touched(model: Any, optimizer: Any, extra: Any, message: str) -> None:
    made = build("momentum", "steps")
    train(*made, range(2))
    held = through(Trainer(TorchState.of(*made[:2]))).training
    target = model()
    found = OPTIMIZERS[optimizer](target.parameters()) if optimizer else None
    before = bits(target.state_dict()), torch.get_rng_state()
    with pytest.raises(UsageError, match=message):
        held.load_into(target, found, extra=extra)
    assert (bits(target.state_dict()), found is None or not found.state) == (before[0], True)
    assert torch.equal(torch.get_rng_state(), before[1]) and not held.is_live
    again = build("momentum", "steps")
    held.load_into(*again[:2])
    assert bits(again[0].state_dict()) == bits(made[0].state_dict()), "it can still be loaded rightly"


def test_misuse_is_named() -> None:
    with pytest.raises(UsageError, match="a OrderedDict is not a model"):
        TorchState.of(network().state_dict())
    with pytest.raises(UsageError, match="is not a model"):
        TorchState.of(torch.nn.Linear)
    with pytest.raises(UsageError, match="a Sequential is not an optimizer"):
        TorchState.of(network(), network())
    training = TorchState.of(network())
    with pytest.raises(UsageError, match="live already"):
        training.load_into(network())
    held = through(Trainer(training)).training
    with pytest.raises(UsageError, match="has no model yet"):
        _ = held.optimizer
    assert repr(training) == "<TorchState, live>" and repr(held) == "<TorchState, held>"


@pytest.mark.parametrize("record", [None, [], {}, {"version": 2}, {"version": 1, "model": 5}, {"version": 1}])
def test_other_records_are_refused(record: Any) -> None:
    with pytest.raises(EncodingError):
        decode_state(Trainer, msgspec.msgpack.encode({"training": record}), [], [])


class Student(snapline.Agent):
    """Its layer had another name once."""

    state_version = 1
    on_error = "keep"
    state: Trainer


@snapline.migrates(Student, from_version=0)
def rename_layer(plain: dict[str, Any]) -> dict[str, Any]:
    model = plain["training"]["model"]
    plain["training"]["model"] = {name.replace("old", "new"): value for name, value in model.items()}
    return plain


def test_layers_can_be_renamed_by_a_migration() -> None:
    before = torch.nn.ModuleDict({"old": torch.nn.Linear(80, 80), "head": torch.nn.Linear(80, 2)})
    optimizer, object_stream = torch.optim.SGD(before.parameters(), lr=0.1), Shelf()
    object_stream.keep(Trainer(TorchState.of(before, optimizer, extra={"shape": (1, 2)})))
    assert object_stream.last is not None and object_stream.last.parts
    fields = agent_type(Student).state_fields
    saved = AgentCheckpoint(
        agent="s",
        kind="k",
        epoch=1,
        state=object_stream.skeleton,
        state_version=0,
        state_fields=fields,
        parts=object_stream.last.parts,
    )
    held = load_state(plan_migration(Student, saved), saved, object_stream.contents()).state.training
    after = torch.nn.ModuleDict({"new": torch.nn.Linear(80, 80), "head": torch.nn.Linear(80, 2)})
    held.load_into(after, torch.optim.SGD(after.parameters(), lr=0.3))
    assert bits(after["new"].state_dict()) == bits(before["old"].state_dict())
    assert held.optimizer.param_groups[0]["lr"] == 0.1 and held.extra == {"shape": (1, 2)}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_changed_records_are_refused_or_read(data: st.DataObject) -> None:
    """No other error than ours gets out, whatever stands in the record."""
    model, optimizer, scheduler = build("plain", "steps")
    record = TorchState.of(model, optimizer, rng=False, extra={"schedule": scheduler, "t": (1, {2})}).record()
    record["model"] = {}
    part: Any = record
    for _ in range(data.draw(st.integers(0, 4))):
        inner = list(part.values()) if isinstance(part, dict) else list(part) if isinstance(part, list) else []
        deeper = [item for item in inner if isinstance(item, dict | list)]
        part = data.draw(st.sampled_from(deeper)) if deeper else part
    keys = sorted(part, key=str) if isinstance(part, dict) else [*range(len(part))]
    key = data.draw(st.sampled_from(keys or [0]))
    with_other: Any = data.draw(
        st.sampled_from([None, [], {}, 5, "x", {"": 1}, {"": ["same", [1]]}, {"": ["dict", [[[], 1]]]}])
    )
    try:
        part[key] = with_other
    except IndexError:
        part.append(with_other)
    try:
        decode_state(Trainer, encode_body({"training": record}), [], [])
    except EncodingError:
        return


def test_the_module_does_not_load_torch() -> None:
    code = "import sys, snapline.storage.capture.torch_state; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]

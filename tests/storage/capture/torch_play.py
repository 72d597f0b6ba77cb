"""What the tests of torch states share: an agent's state, a shelf to keep it on, small models, and an oracle for equality."""

import collections
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from snapline.storage.capture.chunking import ChunkedState, chunk_image
from snapline.storage.capture.decoder import decode_state
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.image import ArenaPool, ChunkTable
from snapline.storage.capture.torch_state import TorchState

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'snapline[torch]'")


class Trainer(msgspec.Struct):
    """An agent's state."""

    training: TorchState
    steps: int = 0
    notes: dict[str, Any] = {}


class Shelf:
    """What has been stored, by digest."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.skeleton = b""
        self.last: ChunkedState | None = None
        self.encoder = StateEncoder(ArenaPool())

    def keep(self, state: Any, base: ChunkTable | None = None) -> int:
        """Capture and store; returns how many new bytes there were in chunks."""
        image = self.encoder.encode(state, base)
        self.skeleton, self.last = image.skeleton, chunk_image(image, base)
        self.chunks |= {new.digest: bytes(new.data) for new in self.last.new}
        image.release()
        return sum(len(new.data) for new in self.last.new)

    @property
    def table(self) -> ChunkTable:
        assert self.last is not None
        return self.last.table

    def contents(self) -> list[bytearray]:
        """The bytes of the parts that were kept last."""
        assert self.last is not None
        return [bytearray(b"".join([self.chunks[x.digest] for x in part.chunks()])) for part in self.last.parts]

    def back(self, declared: Any = Trainer) -> Any:
        """Decode what was kept last, with the table that a host would go on from."""
        assert self.last is not None
        return decode_state(declared, self.skeleton, self.last.parts, self.contents())


def through(state: Any, declared: Any = Trainer) -> Any:
    object_stream = Shelf()
    object_stream.keep(state)
    return object_stream.back(declared).state


def bits(value: Any) -> Any:
    """Types and bytes of a nested value, for comparison."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        return "tensor", str(value.dtype), tuple(value.shape), plain.numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__name__, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, random.Random):
        return "random", value.getstate()
    if isinstance(value, dict):
        is_counter = isinstance(value, collections.Counter)
        return "counter" if is_counter else "dict", [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    if isinstance(value, set):
        return "set", sorted(map(repr, map(bits, value)))
    return type(value).__name__, repr(value)


def network(*, width: int = 300, dtype: Any = None) -> Any:
    """The same weights each time: whoever loads must not depend on them, so half of the tests change them first."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = (
            torch.nn.Linear(16, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(width, 4),
        )
        return torch.nn.Sequential(*layers).to(dtype)


def tied(*, is_tied: bool = True) -> Any:
    model = torch.nn.Sequential(torch.nn.Embedding(700, 32), torch.nn.Linear(32, 700, bias=False))
    if is_tied:
        model[1].weight = model[0].weight
    return model


def holder(**buffers: Any) -> Any:
    """A module with buffers of any kind."""
    made = torch.nn.Module()
    for name, value in buffers.items():
        made.register_buffer(name, value)
    return made

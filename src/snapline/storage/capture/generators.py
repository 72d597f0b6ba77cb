"""The states of random generators: `random.Random` and `numpy.random.Generator`.

A restored agent must draw the same numbers as the lost one would have drawn (G3). So all of a generator's state is saved: the
bits, the value that `gauss` keeps for its next call, and the seed sequence from which NumPy's generators spawn others.

    random.Random     MessagePack [version, 625 words as little-endian u32, gauss or nil]
    numpy Generator   MessagePack [name of the bit generator, its state, seed sequence or nil]

Integers above 64 bits, which MessagePack lacks, are written as `{"": hexadecimal}`, arrays as `{"": [dtype, shape, bytes]}`.
"""

import random
import struct
import sys
from typing import Any

import msgspec

from snapline.errors import EncodingError

BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""Names of NumPy's bit generators. Names in records are only looked up here."""

_WORDS = struct.Struct("<625I")


def encode_random(generator: random.Random) -> bytes:
    """Return the state of a `random.Random`."""
    version, words, gauss = generator.getstate()
    return msgspec.msgpack.encode((version, _WORDS.pack(*words), gauss))


def decode_random(data: memoryview) -> random.Random:
    """Return a generator that continues where the saved one stopped.

    Raises:
        EncodingError, msgspec.DecodeError: the bytes are not such a state.
    """
    version, words, gauss = msgspec.msgpack.decode(data, type=tuple[int, bytes, float | None])
    made = random.Random(0)
    try:
        made.setstate((version, _WORDS.unpack(words), gauss))
    except (struct.error, TypeError, ValueError) as error:
        raise EncodingError(f"the saved state of a random.Random cannot be used: {error}") from error
    return made


def is_generator(value: object) -> bool:
    """Return whether `value` is a `numpy.random.Generator`."""
    numpy_random = sys.modules.get("numpy.random")
    kind = getattr(numpy_random, "Generator", None)  # None while NumPy is being imported
    return kind is not None and type(value) is kind


def is_bit_generator(value: object) -> bool:
    """Return whether `value` is a NumPy bit generator."""
    kind = getattr(sys.modules.get("numpy.random"), "BitGenerator", None)
    return kind is not None and isinstance(value, kind)


def encode_generator(generator: Any) -> bytes:
    """Return the state of a `numpy.random.Generator`.

    Raises:
        NotImplementedError: its bit generator is not one of NumPy's own.
    """
    bits = generator.bit_generator
    name = type(bits).__name__
    if name not in BIT_GENERATORS or type(bits) is not getattr(sys.modules["numpy.random"], name):
        raise NotImplementedError(
            f"NumPy generators over a {type(bits).__qualname__}: use one of {', '.join(BIT_GENERATORS)}"
        )
    return msgspec.msgpack.encode((name, _plain(bits.state), _plain(_seeds_of(bits))))


def decode_generator(data: memoryview) -> Any:
    """Return a generator that continues where the saved one stopped.

    Raises:
        EncodingError, msgspec.DecodeError: the bytes are not such a state.
    """
    name, state, seeds = msgspec.msgpack.decode(data, type=tuple[str, Any, Any])
    if name not in BIT_GENERATORS:
        raise EncodingError(
            f"the saved NumPy generator runs on {name[:40]!r}, which is not known: use a newer snapline"
        )
    from numpy import random as numpy_random

    try:
        seed = 0 if seeds is None else numpy_random.SeedSequence(**_from_plain(seeds))
        bits = getattr(numpy_random, name)(seed)
        bits.state = _from_plain(state)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise EncodingError(f"the saved state of a NumPy generator cannot be used: {error!r}") from error
    return numpy_random.Generator(bits)


def _seeds_of(bits: Any) -> dict[str, Any] | None:
    """Return the seeds from which `spawn` continues; None for legacy seeding, which cannot spawn."""
    seeds: Any = getattr(bits, "seed_seq", None)
    if type(seeds) is not sys.modules["numpy.random"].SeedSequence:
        return None
    return {
        "entropy": seeds.entropy,
        "spawn_key": tuple(seeds.spawn_key),
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _plain(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, numpy.ndarray):
        return {"": [value.dtype.str, value.shape, value.tobytes()]}
    if isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {"": f"{value:x}"}
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "" not in value:
        return {key: _from_plain(item) for key, item in value.items()}
    special = value[""]
    if isinstance(special, str):
        return int(special, 16)
    import numpy

    dtype, shape, content = special
    return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()

"""Choices of a simulated run: the only source of nondeterminism, so that a run can be repeated and shrunk.

`pick(stream, key, n)` returns 0 … n - 1, and 0 is always the benign choice: the smallest delay, no fault, program order.
The key identifies the situation, for example by a channel and a message number. The key is never a counter of picks, so
that omitting one choice does not change the others. If a situation occurs again, as for a resent frame, each occurrence is
a separate choice. A record stores the first occurrence by the key, and each later one by the key and the number of earlier
occurrences.

Choices come from a seed (`RandomChoices`), from the record of an earlier run (`RecordedChoices`; missing choices are 0), or
from a test's own source.

Streams of a seed are independent: BLAKE2b(seed, stream) seeds one generator for each stream. Only `Random.random()` is
used, since Python guarantees its sequence.
"""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from random import Random
from typing import Protocol, Self

BITS = 32
"""Maximum number of bits of one choice, well within the exact range of a `float`."""

Key = tuple[Hashable, ...]

Record = dict[tuple[str, Key], int]
"""Chosen values by (stream, key), without zeros."""

AGAIN = "again"
"""Suffix of a record's key for a situation that occurs again."""


class Choices(Protocol):
    """Source of a run's choices."""

    def pick(self, stream: str, key: Key, n: int) -> int:
        """Return a number from 0 to n - 1; 0 is the benign choice."""


class Occurrences:
    """Counter of the occurrences of each situation so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Key], int] = {}

    def name_of(self, stream: str, key: Key) -> tuple[str, Key]:
        """Count an occurrence of a situation, and return its name in a record."""
        before = self._seen[stream, key] = self._seen.get((stream, key), -1) + 1
        return (stream, (*key, AGAIN, before)) if before else (stream, key)


class RandomChoices:
    """Choices drawn from a seed.

    Attributes:
        record: choices made so far, without zeros; None unless `is_recording`, since recording costs time.
    """

    def __init__(self, seed: int, *, is_recording: bool = False) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}
        self.record: Record | None = {} if is_recording else None
        self._times = Occurrences()

    def pick(self, stream: str, key: Key, n: int) -> int:
        random = self._streams.get(stream)
        if random is None:
            random = self._streams[stream] = stream_of(self._seed, stream)
        chosen = int(random.random() * n)
        if self.record is not None:
            name = self._times.name_of(stream, key)
            if chosen:
                self.record[name] = chosen
        return chosen


class RecordedChoices:
    """Choices recorded in an earlier run. Choices that the record lacks are 0.

    Attributes:
        used: recorded choices that this run has used.
    """

    def __init__(self, record: Mapping[tuple[str, Key], int]) -> None:
        self._record = record
        self._times = Occurrences()
        self.used: Record = {}

    def pick(self, stream: str, key: Key, n: int) -> int:
        name = self._times.name_of(stream, key)
        chosen = min(self._record.get(name, 0), n - 1)
        if chosen:
            self.used[name] = chosen
        return chosen


def stream_of(seed: int, stream: str) -> Random:
    """Return the generator of one stream of a seed."""
    return Random(start_of(seed, stream))


def start_of(seed: int, stream: str) -> int:
    """Return the 128-bit start value of one stream of a seed."""
    return int.from_bytes(blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest(), "big")


class RandomStreams:
    """Many streams of a seed, such as one for each agent. Each stream is one number, while a `Random` takes 2.5 kB.

    Each stream is a linear congruential generator modulo 2^64 with Knuth's factor (TAOCP 2, 3.3.4), of which the upper 53
    bits are used. The quality is sufficient for varied agents, but not for statistics.
    """

    def __init__(self, seed: int, kind: str) -> None:
        self._seed = seed
        self._kind = kind
        self._states: dict[str, int] = {}

    def random(self, name: str) -> float:
        """Return the next number of this stream, at least 0 and below 1."""
        state = self._states.get(name)
        if state is None:
            state = start_of(self._seed, f"{self._kind}/{name}")
        state = self._states[name] = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return (state >> 11) * 2**-53


class DrawnRandom(Random):
    """A `random.Random` for a user's function. Each number is a choice of the run, so that numbers are reproducible and shrink to 0."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __init__(self, choices: Choices, stream: str) -> None:
        self._choices = choices
        self._stream = stream
        self._count = 0
        super().__init__(0)

    def random(self) -> float:
        """Return a number that is at least 0 and below 1."""
        return self.getrandbits(53) * 2.0**-53

    def getrandbits(self, k: int, /) -> int:
        """Return a number with `k` random bits."""
        bits = 0
        for at in range(0, k, BITS):
            self._count += 1
            bits |= self._choices.pick(self._stream, (self._count,), 1 << min(BITS, k - at)) << at
        return bits

    def seed(self, *_: object, **__: object) -> None:
        """Do nothing, because the seed of the run is used."""

"""The random choices of a simulated run. These choices are the run's only source of nondeterminism, so a run can be repeated and shrunk.

`pick(stream, key, n)` returns a number from 0 to n - 1. Zero always means the most benign choice, such as the smallest delay, no fault or
program order. The key identifies the situation in which a choice is made, for example by a channel and a sequence number. The key is never
a count of earlier choices, so removing one choice does not change any other. If a situation recurs, for example because a frame is resent,
each occurrence is a separate choice. In a record of choices, the key identifies the first occurrence. Each later occurrence is identified
by the key and the number of earlier occurrences.

Choices come from a seed (`RandomChoices`), from the record of an earlier run (`RecordedChoices`, where missing choices are 0), or from a
test's own implementation of `Choices`.

A seed has several independent random streams. Each stream has its own generator, seeded with BLAKE2b(seed, stream). Only `Random.random()`
is used, because Python guarantees that its sequence of values is the same in every version.
"""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from random import Random
from typing import Protocol, Self

BITS = 32
"""Maximum number of random bits per choice; a `float` represents every such number exactly."""

Key = tuple[Hashable, ...]

Record = dict[tuple[str, Key], int]
"""Chosen values by (stream, key). Zeros are omitted."""

AGAIN = "again"
"""Suffix of a record's key for a recurring situation."""


class Choices(Protocol):
    """Source of a run's choices."""

    def pick(self, stream: str, key: Key, n: int) -> int:
        """Return a number from 0 to n - 1. Zero means the most benign choice."""


class Occurrences:
    """Counts how often each situation has occurred so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Key], int] = {}

    def name_of(self, stream: str, key: Key) -> tuple[str, Key]:
        """Count an occurrence of a situation, and return the name of this occurrence in a record."""
        before = self._seen[stream, key] = self._seen.get((stream, key), -1) + 1
        return (stream, (*key, AGAIN, before)) if before else (stream, key)


class RandomChoices:
    """Pseudorandom choices that a seed determines.

    Attributes:
        record: all nonzero choices so far, or None unless `is_recording`, because recording costs time.
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
    """Choices recorded in an earlier run. A choice missing from the record is 0.

    Attributes:
        used: the recorded choices that this run has used.
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
    """Return the random generator for one stream of a seed."""
    return Random(start_of(seed, stream))


def start_of(seed: int, stream: str) -> int:
    """Return the 128-bit seed of one stream's random generator."""
    return int.from_bytes(blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest(), "big")


class RandomStreams:
    """Provides many random streams of one seed, for example one stream per agent. A stream's state is a single number, whereas a `Random`
    occupies 2.5 kB.

    Each stream is a linear congruential generator modulo 2^64 with Knuth's multiplier (TAOCP 2, 3.3.4). Each random number consists of the
    upper 53 bits of the generator's state. The quality of the numbers is sufficient to vary the behaviour of agents, but not for
    statistics.
    """

    def __init__(self, seed: int, kind: str) -> None:
        self._seed = seed
        self._kind = kind
        self._states: dict[str, int] = {}

    def random(self, name: str) -> float:
        """Return the next random number of the named stream, at least 0 and less than 1."""
        state = self._states.get(name)
        if state is None:
            state = start_of(self._seed, f"{self._kind}/{name}")
        state = self._states[name] = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return (state >> 11) * 2**-53


class DrawnRandom(Random):
    """A `random.Random` that is passed to a user's function. Each random number is one of the run's choices, so the numbers are
    reproducible and shrink towards 0."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __init__(self, choices: Choices, stream: str) -> None:
        self._choices = choices
        self._stream = stream
        self._count = 0
        super().__init__(0)

    def random(self) -> float:
        """Return a random number that is at least 0 and less than 1."""
        return self.getrandbits(53) * 2.0**-53

    def getrandbits(self, k: int, /) -> int:
        """Return a random integer with `k` bits."""
        bits = 0
        for at in range(0, k, BITS):
            self._count += 1
            bits |= self._choices.pick(self._stream, (self._count,), 1 << min(BITS, k - at)) << at
        return bits

    def seed(self, *_: object, **__: object) -> None:
        """Do nothing, because the run's own seed determines the numbers."""

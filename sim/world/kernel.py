"""Virtual time: one heap of calls. The order of calls, and nothing else, is the order of a run.

A call is `(t_ns, number, function, argument)`. The number breaks ties: what was asked for first comes first, and neither
functions nor arguments are ever compared.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

import msgspec

from snapline.errors import UsageError

Call = Callable[[Any], object]

PIECE = 1_000
"""Entries of the journal that are hashed together; the hash after each is a way-point."""


class SimulatedCrash(BaseException):
    """The process of a node dies here. Nothing may catch it and go on."""


class NotSimulatedError(UsageError):
    """The user's code does what only real processes can do."""


class Kernel:
    """The heap.

    Attributes:
        now_ns: virtual time.
        events: calls made so far.
        is_over: set by whoever finds that the run has ended.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.is_over = False
        self._heap: list[tuple[int, int, Call, object]] = []
        self._number = 0

    def at(self, t_ns: int, function: Call, argument: object = None) -> None:
        """Call `function(argument)` at `t_ns`, or now if that has passed."""
        self._number += 1
        heappush(self._heap, (t_ns, self._number, function, argument))

    def run(self, events_max: int) -> bool:
        """Make calls until it is over, nothing is left, or there were too many; returns whether it ended by itself."""
        heap, pop = self._heap, heappop
        left = events_max
        while heap and not self.is_over:
            if not left:
                return False
            left -= 1
            t_ns, _, function, argument = pop(heap)
            if t_ns > self.now_ns:
                self.now_ns = t_ns
            function(argument)
        self.events += events_max - left
        return True


class Journal:
    """Everything that happened, hashed: equal hashes mean equal runs.

    Attributes:
        waypoints: the hash after each piece.
        window: entries of one piece, kept as text for comparing two runs; empty unless `window_at` says which.
        entries: those that are not hashed yet.
    """

    def __init__(self, window_at: int | None = None) -> None:
        self.waypoints: list[str] = []
        self.window: list[str] = []
        self._window_at = window_at
        self._digest = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode
        self.entries: list[tuple[object, ...]] = []
        self.add = self.entries.append
        """Takes one entry: a tuple of whole numbers, text and bytes."""

    def turn_page(self) -> None:
        """Hash what is full; to be called now and then."""
        while len(self.entries) >= PIECE:
            self._hash(self.entries[:PIECE])
            del self.entries[:PIECE]

    def close(self) -> str:
        """The hash of everything."""
        self.turn_page()
        if self.entries:
            self._hash(self.entries)
            self.entries.clear()
        return self._digest.hexdigest()

    def _hash(self, entries: list[tuple[object, ...]]) -> None:
        if len(self.waypoints) == self._window_at:
            self.window = [repr(entry) for entry in entries]
        self._digest.update(self._encode(entries))
        self.waypoints.append(self._digest.copy().hexdigest()[:16])

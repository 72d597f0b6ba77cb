"""Virtual time: one heap of calls, whose order alone determines a run.

A call is `(t_ns, number, function, argument)`. The number breaks ties in the order of scheduling, so that functions and
arguments are never compared.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

import msgspec

from snapline.errors import UsageError

Call = Callable[[Any], object]

PIECE = 1_000
"""Number of journal entries that are hashed together; the hash after each piece is a waypoint."""


class SimulatedCrash(BaseException):
    """The process of a node dies here. No code may catch this and continue."""


class NotSimulatedError(UsageError):
    """Error for user code that needs real processes."""


class Kernel:
    """Scheduler of a run.

    Attributes:
        now_ns: virtual time.
        events: calls made so far.
        is_over: set to end the run.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.is_over = False
        self._heap: list[tuple[int, int, Call, object]] = []
        self._number = 0

    def at(self, t_ns: int, function: Call, argument: object = None) -> None:
        """Call `function(argument)` at `t_ns`, or now if that time has passed."""
        self._number += 1
        heappush(self._heap, (t_ns, self._number, function, argument))

    def run(self, events_max: int) -> bool:
        """Make calls until the run is over or no call is left, at most `events_max`; return whether it ended by itself."""
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
    """Hash of all events of a run: equal hashes mean equal runs.

    Attributes:
        waypoints: hash after each piece.
        window: entries of piece `window_at` as text, for comparing two runs; empty without `window_at`.
        entries: entries that are not hashed yet.
    """

    def __init__(self, window_at: int | None = None) -> None:
        self.waypoints: list[str] = []
        self.window: list[str] = []
        self._window_at = window_at
        self._digest = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode
        self.entries: list[tuple[object, ...]] = []
        self.add = self.entries.append
        """Add one entry: a tuple of integers, strings and bytes."""

    def hash_full_pieces(self) -> None:
        """Hash all full pieces; to be called periodically."""
        while len(self.entries) >= PIECE:
            self._hash(self.entries[:PIECE])
            del self.entries[:PIECE]

    def close(self) -> str:
        """Return the hash of all entries."""
        self.hash_full_pieces()
        if self.entries:
            self._hash(self.entries)
            self.entries.clear()
        return self._digest.hexdigest()

    def _hash(self, entries: list[tuple[object, ...]]) -> None:
        if len(self.waypoints) == self._window_at:
            self.window = [repr(entry) for entry in entries]
        self._digest.update(self._encode(entries))
        self.waypoints.append(self._digest.copy().hexdigest()[:16])

"""Virtual time: a heap of calls, whose order alone determines a run, and the nodes' wall clocks.

A call is `(t_ns, number, function, argument)`. The number breaks ties in the order of scheduling, so that functions and
arguments are never compared.

A node's wall clock (`Clocks`) may be wrong.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

import msgspec

from snapline.errors import UsageError

MS = 1_000_000
SECOND_NS = 1_000 * MS
"""One millisecond and one second, in nanoseconds."""

PIECE = 1_000
"""Number of journal entries that are hashed together; the hash after each such piece is a waypoint."""


class SimulatedCrash(BaseException):
    """The process of a node crashes at this point. No code may catch this exception and continue."""


class NotSimulatedError(UsageError):
    """User code needs real processes and cannot be simulated."""


class Kernel:
    """Scheduler of a run.

    Attributes:
        now_ns: current virtual time.
        events: calls made so far.
        is_over: flag that ends the run when it is set.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.is_over = False
        self._heap: list[tuple[int, int, Callable[[Any], object], object]] = []
        self._number = 0

    def at(self, t_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule `function(argument)` at `t_ns`, or now if that time has passed."""
        self._number += 1
        heappush(self._heap, (t_ns, self._number, function, argument))

    def run(self, events_max: int) -> bool:
        """Make at most `events_max` calls, until the run is over or no call is left. Return whether the run ended by itself."""
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
    """Hash of all events of a run. Equal hashes mean that two runs were equal.

    Attributes:
        waypoints: hash after each piece.
        window: entries of piece `window_at` as text, for comparing two runs; empty if `window_at` is not set.
        entries: entries that have not been hashed yet.
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
        """Hash all full pieces. The caller must call this method periodically."""
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


# -- wall clocks ----------------------------------------------------------------------------------------------------------

START_OF_TIME_NS = 1_700_000_000_000_000_000
"""Initial time of all wall clocks, in nanoseconds since the epoch of Unix time."""


class Clocks:
    """Wall clocks of all nodes. Each clock is right until `set` is called."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._wrong: dict[str, tuple[int, int, int]] = {}  # node → skew, drift, and start time

    def set(self, node: str, *, skew_ns: int, drift_ppm: int) -> None:
        """Skew a node's clock from now on, with a constant drift."""
        self._wrong[node] = (skew_ns, drift_ppm, self._kernel.now_ns)

    def wall_ns(self, node: str) -> int:
        """Return the node's wall-clock time."""
        now_ns = self._kernel.now_ns
        if node not in self._wrong:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._wrong[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

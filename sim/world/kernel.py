"""Virtual time: a heap of scheduled calls, and the nodes' wall clocks. The order of the calls alone determines a run.

A call is `(t_ns, number, function, argument)`. Calls for the same time are ordered by their numbers, which count up as
calls are scheduled. So functions and arguments are never compared.

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
"""A millisecond and a second, in nanoseconds."""

PIECE = 1_000
"""Number of journal entries in a piece. A piece is hashed at once, and the hash after each piece is a waypoint."""


class SimulatedCrash(BaseException):
    """Raised where a node's process crashes. No code may catch this exception and continue."""


class NotSimulatedError(UsageError):
    """Raised if user code needs real processes and so cannot be simulated."""


class Kernel:
    """Scheduler of a run.

    Attributes:
        now_ns: current virtual time.
        events: number of calls made so far.
        is_over: flag that ends the run when it is set.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.is_over = False
        self._heap: list[tuple[int, int, Callable[[Any], object], object]] = []
        self._number = 0

    def at(self, t_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule `function(argument)` at `t_ns`, or at the current time if `t_ns` has passed."""
        self._number += 1
        heappush(self._heap, (t_ns, self._number, function, argument))

    def run(self, events_max: int) -> bool:
        """Make scheduled calls until the run is over or no call is left, but at most `events_max` calls. Return False
        if this limit ended the run."""
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
    """Hash of all events in a run. Two runs with equal hashes were identical.

    Attributes:
        waypoints: hash after each piece of `PIECE` entries.
        window: entries of piece `window_at` as text, for comparing two runs. Empty if `window_at` is None.
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
        """Add an entry, which is a tuple of integers, strings and bytes."""

    def hash_full_pieces(self) -> None:
        """Hash all complete pieces, to free their memory. Call this method periodically."""
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
"""Initial time of all wall clocks, in nanoseconds since the Unix epoch."""


class Clocks:
    """Wall clocks of all nodes. A node's clock is correct until `set` is called for the node."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # For each node, the skew, the drift, and the time from which they apply.
        self._wrong: dict[str, tuple[int, int, int]] = {}

    def set(self, node: str, *, skew_ns: int, drift_ppm: int) -> None:
        """Skew a node's clock and make it drift at a constant rate, from now on."""
        self._wrong[node] = (skew_ns, drift_ppm, self._kernel.now_ns)

    def wall_ns(self, node: str) -> int:
        """Return the node's wall-clock time."""
        now_ns = self._kernel.now_ns
        if node not in self._wrong:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._wrong[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

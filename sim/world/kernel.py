"""Virtual time: a heap of scheduled calls, and the wall clocks of the nodes. A run is determined only by the order of its calls.

A scheduled call is the tuple `(t_ns, number, function, argument)`. Calls for the same time are ordered by number, and numbers increase in
the order of scheduling. So functions and arguments never have to be compared.

The wall clock of a node (`Clocks`) may be wrong.
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
    """Raised at the point in the code where a node's process crashes. No code may catch this exception and continue."""


class NotSimulatedError(UsageError):
    """Raised if user code cannot be simulated because it requires real processes."""


class Kernel:
    """Scheduler of a run.

    Attributes:
        events: number of calls executed so far.
        is_over: setting this flag ends the run.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.is_over = False
        self._heap: list[tuple[int, int, Callable[[Any], object], object]] = []
        self._number = 0

    def at(self, t_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule `function(argument)` for the time `t_ns`, or for the current time if `t_ns` is in the past."""
        self._number += 1
        heappush(self._heap, (t_ns, self._number, function, argument))

    def run(self, events_max: int) -> bool:
        """Execute scheduled calls until the run is over or no calls are left, but at most `events_max` calls. Return False if the limit
        `events_max` was reached."""
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
    """Hash of all events in a run. Two runs with equal hashes are identical.

    Attributes:
        waypoints: the hash after each `PIECE` journal entries.
        window: entries of the piece with index `window_at` as text, for the comparison of two runs. The list is empty if `window_at` is
            None.
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
        """Hash all complete pieces in order to free their memory. Call this method periodically."""
        while len(self.entries) >= PIECE:
            self._hash(self.entries[:PIECE])
            del self.entries[:PIECE]

    def close(self) -> str:
        """Return the hash of all entries so far."""
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
    """Wall clocks of all simulated nodes. A node's clock is correct until `set` is called for the node."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # For each node, the skew, the drift, and the time from which they apply.
        self._wrong: dict[str, tuple[int, int, int]] = {}

    def set(self, node: str, *, skew_ns: int, drift_ppm: int) -> None:
        """Let a node's clock differ from the correct time and drift at a constant rate from now on."""
        self._wrong[node] = (skew_ns, drift_ppm, self._kernel.now_ns)

    def wall_ns(self, node: str) -> int:
        """Return the wall-clock time of a node."""
        now_ns = self._kernel.now_ns
        if node not in self._wrong:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._wrong[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

"""Virtual time: a heap of calls, whose order alone determines a run; the nodes' wall clocks; and waits of handlers.

A call is `(t_ns, number, function, argument)`. The number breaks ties in the order of scheduling, so that functions and
arguments are never compared.

A node's wall clock (`Clocks`) may be wrong. Handlers and stubs that wait (`Wait`) resume when a scheduled call ends their wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NoReturn

import msgspec

from snapline.errors import SnaplineError, StoreError, UsageError

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


# -- waits ----------------------------------------------------------------------------------------------------------------


class Wait:
    """Wait that a handler yields to its driver. The handler resumes after `delay_ns`, or, if that is None, when `end` is called.

    Attributes:
        is_late: whether the time limit has ended the wait.
    """

    __slots__ = ("_is_over", "_then", "delay_ns", "is_late")

    def __init__(self, delay_ns: int | None = None) -> None:
        self.delay_ns = delay_ns
        self.is_late = False
        self._is_over = False
        self._then: Callable[[], object] | None = None

    def __await__(self) -> "Generator[Wait, None, None]":
        if not self._is_over:
            yield self

    def begin(self, then: Callable[[], object]) -> None:
        """Start the wait. `then` is called once, when the wait ends."""
        self._then = then

    def end(self) -> None:
        """End the wait. Has no effect if the wait has ended."""
        if not self._is_over:
            self._is_over = True
            if self._then is not None:
                self._then()

    def expire(self, _: object = None) -> None:
        """End the wait because its time limit has passed. Has no effect if the wait has ended."""
        self.is_late = self.is_late or not self._is_over
        self.end()


class Call:
    """Scheduled call of a function, which may be cancelled."""

    __slots__ = ("_function", "_is_cancelled")

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def make(self, _: object) -> None:
        if not self._is_cancelled:
            self._function()


Future = asyncio.Future[Any]
"""Future of a `VirtualLoop`."""


def settle(future: Future, function: Callable[[], Any]) -> None:
    """Complete a future with a function's result or `SnaplineError`. An OSError, for example from a failpoint, becomes a StoreError."""
    try:
        result = function()
    except SnaplineError as error:
        future.set_exception(error)
    except OSError as error:
        future.set_exception(StoreError(f"the store cannot be read: {error}"))
    else:
        future.set_result(result)


def sleep(seconds: float) -> Awaitable[None]:
    """Return an awaitable with which a stub sleeps."""
    return asyncio.sleep(seconds)


class VirtualLoop:
    """Minimal event loop in virtual time that supports `asyncio.sleep`, futures and locks."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def time(self) -> float:
        return self._kernel.now_ns / SECOND_NS

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":  # the result may have any type
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # futures ask no more of it than there is

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        return self.call_later(0, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        call = Call(partial((context or copy_context()).run, callback, *args))
        self._kernel.at(self._kernel.now_ns + max(0, round(delay * SECOND_NS)), call.make)
        return call

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: object) -> NoReturn:
        coro.close()
        raise NotSimulatedError("a stub starts a task: it may await asyncio.sleep, futures and locks, and nothing else")


def drive(loop: VirtualLoop, coroutine: Coroutine[Any, None, Any], ended: Callable[[Callable[[], Any]], None]) -> None:
    """Run a coroutine to its end on this loop. `ended` gets a function that returns the coroutine's result or raises its error."""
    asyncio.events._set_running_loop(loop)  # type: ignore[arg-type]  # it has what `asyncio.sleep` looks for
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        value = stop.value
        ended(lambda: value)
        return
    except Exception as error:
        ended(_raiser(error))
        return
    finally:
        asyncio.events._set_running_loop(None)
    if waits_for is None:
        loop.call_soon(drive, loop, coroutine, ended)
    elif isinstance(waits_for, asyncio.Future) and waits_for.get_loop() is loop:  # type: ignore[comparison-overlap]  # as made above
        waits_for._asyncio_future_blocking = False
        waits_for.add_done_callback(lambda _: drive(loop, coroutine, ended))
    else:
        coroutine.close()
        ended(_raiser(NotSimulatedError(f"a stub awaits a {type(waits_for).__qualname__}: it may await asyncio.sleep")))


def _raiser(error: Exception) -> Callable[[], Any]:
    def again() -> Any:
        raise error

    return again

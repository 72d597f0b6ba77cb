"""Work of a simulated host outside its event loop."""

from collections import deque
from collections.abc import Callable

from snapline.sim.faults.executor import HangingCall
from snapline.sim.world.host_streams import HostRun
from snapline.storage.store.store import Store


class Workers:
    """Work of one run outside its event loop: sequential store calls, and `stop_when`."""

    def __init__(self, host: HostRun, hangs: Callable[[HangingCall], bool]) -> None:
        """`hangs` returns whether calls of this kind hang."""
        self._host = host
        self._stores = host.shared.stores
        self._hangs = hangs
        self._busy_until_ns = 0
        self._count = 0
        self._stuck: dict[HangingCall, deque[Callable[[], None]]] = {"store": deque(), "stop": deque(), "loop": deque()}
        self._store: Store | None = None

    def open_store(self) -> Store:
        """Return the run's own store."""
        if self._store is None:
            self._store = self._stores.of(self._host.name)
        return self._store

    def store(self, work: Callable[[], None]) -> None:
        """Run a store call after the earlier ones, at the end of its duration."""
        begin_ns = max(self._host.shared.kernel.now_ns, self._busy_until_ns)
        self._busy_until_ns = begin_ns + self._cost_ns()
        self._host.later(self._busy_until_ns, self._work, ("store", work))

    def evaluate(self, work: Callable[[], None]) -> None:
        """Run `stop_when` at the end of its duration."""
        self._host.later(self._host.shared.kernel.now_ns + self._cost_ns(), self._work, ("stop", work))

    def log(self, work: Callable[[], None]) -> None:
        """Run a log call at the end of its duration; it hangs like a store call, since the disk is the same."""
        self._host.later(self._host.shared.kernel.now_ns + self._cost_ns(), self._work, ("store", work))

    def _cost_ns(self) -> int:
        self._count += 1
        return self._stores.cost_ns(self._host.name, (self._host.instance, self._count))

    def _work(self, due: tuple[HangingCall, Callable[[], None]]) -> None:
        kind, work = due
        self._stuck[kind].append(work)
        self.carry_on(kind)

    def carry_on(self, what: HangingCall) -> None:
        """Run the calls that are due, unless they hang."""
        while self._stuck[what] and not self._hangs(what):
            self._stuck[what].popleft()()

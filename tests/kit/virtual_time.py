"""Virtual time for cores under test: a heap of what is to happen. What is due at one moment happens in the order of asking."""

import heapq
from collections.abc import Callable


class Later:
    """A call that was asked for, and may be cancelled."""

    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualTime:
    """A world's time. `asked` counts calls of `at`: a number that no other moment of the world has."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self.asked = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, t_ns: int, call: Callable[[], None]) -> None:
        assert t_ns >= self.now_ns, "nothing can be done in the past"
        self.asked += 1
        heapq.heappush(self._due, (t_ns, self.asked, call))

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Later:
        """As an event loop does."""
        later = Later()
        self.after(round(delay_s * 1e9), lambda: None if later.is_cancelled else call())
        return later

    def run_until(self, until_ns: int | None = None, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Do all that is due until then, or what is left at all; or until `is_over`, which is returned."""
        while self._due and (until_ns is None or self._due[0][0] <= until_ns):
            self.now_ns, _, call = heapq.heappop(self._due)
            call()
            if is_over():
                return True
        if until_ns is not None:
            self.now_ns = until_ns
        return is_over()

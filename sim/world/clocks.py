"""Wall clocks of nodes, which may be wrong."""

from snapline.sim.world.kernel import Kernel

START_OF_TIME_NS = 1_700_000_000_000_000_000
"""What wall clocks show at first."""


class Clocks:
    """One for each node; right until set."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._wrong: dict[str, tuple[int, int, int]] = {}  # node → skew, drift, and since when

    def set(self, node: str, *, skew_ns: int, drift_ppm: int) -> None:
        """From now on that node's clock is wrong by so much, and goes wrong."""
        self._wrong[node] = (skew_ns, drift_ppm, self._kernel.now_ns)

    def wall_ns(self, node: str) -> int:
        """What that node's clock shows."""
        now_ns = self._kernel.now_ns
        if node not in self._wrong:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._wrong[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

"""Wall clocks of nodes, which may be wrong."""

from snapline.sim.world.kernel import Kernel

START_OF_TIME_NS = 1_700_000_000_000_000_000
"""Initial value of wall clocks."""


class Clocks:
    """Wall clocks of all nodes; each is right until set."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._wrong: dict[str, tuple[int, int, int]] = {}  # node → skew, drift, and begin

    def set(self, node: str, *, skew_ns: int, drift_ppm: int) -> None:
        """Skew a node's clock from now on, and let it drift."""
        self._wrong[node] = (skew_ns, drift_ppm, self._kernel.now_ns)

    def wall_ns(self, node: str) -> int:
        """Return the node's wall-clock time."""
        now_ns = self._kernel.now_ns
        if node not in self._wrong:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._wrong[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

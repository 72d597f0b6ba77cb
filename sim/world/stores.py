"""The one store of a simulated fleet: every node's way to it, how long its calls take, and a reader that no fault touches."""

from collections.abc import Callable, Hashable

from snapline.sim.choices import Choices, stream_of
from snapline.sim.scenario import DelayPart
from snapline.sim.world.disk import VirtualDisk
from snapline.sim.world.network import DELAY_STEPS
from snapline.storage.store.opened_disk import OpenedDisk
from snapline.storage.store.store import Store

SLOW_FACTOR = 100
"""Slowdown of a slow disk."""


class Stores:
    """The store, as nodes and the judge see it.

    Attributes:
        disk: on which it lies. id: the store's. reader: reads it past all faults of nodes.
    """

    def __init__(self, seed: int, choices: Choices, delay: DelayPart, now: Callable[[], int]) -> None:
        self.disk = VirtualDisk(now)
        self._choices = choices
        self._delay = (delay.least_ns, delay.jitter_ns)
        self._bytes = stream_of(seed, "ids")
        self.id = Store.create("", disk=self.disk.reader(), random_bytes=self._random_bytes).store_id
        self.reader = Store(self.disk.reader(), self.id, random_bytes=self._random_bytes)

    def _random_bytes(self, count: int) -> bytes:
        """Return random bytes for names of files: any, as long as they differ."""
        return int(self._bytes.random() * (1 << 53)).to_bytes(7, "big").rjust(count, b"\0")

    def of(self, node: str) -> Store:
        """The store, opened by that node."""
        return Store(OpenedDisk(self.disk.of(node), self.id), self.id, random_bytes=self._random_bytes)

    def cost_ns(self, node: str, key: Hashable) -> int:
        """Return the duration of one call for that node."""
        least_ns, jitter_ns = self._delay
        cost_ns = least_ns + jitter_ns * self._choices.pick("storage", (key,), DELAY_STEPS) // DELAY_STEPS
        return cost_ns * SLOW_FACTOR if self.disk.is_slow(node) else cost_ns

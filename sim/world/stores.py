"""The store of a simulated fleet: a view for each node, the duration of calls, and a reader without faults."""

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
    """The store, for nodes and the judge.

    Attributes:
        disk: disk of the store. id: id of the store. reader: store view that no fault of a node affects.
    """

    def __init__(self, seed: int, choices: Choices, delay: DelayPart, now: Callable[[], int]) -> None:
        self.disk = VirtualDisk(now)
        self._choices = choices
        self._delay = (delay.least_ns, delay.jitter_ns)
        self._bytes = stream_of(seed, "ids")
        self.id = Store.create("", disk=self.disk.reader(), random_bytes=self._random_bytes).store_id
        self.reader = Store(self.disk.reader(), self.id, random_bytes=self._random_bytes)

    def _random_bytes(self, count: int) -> bytes:
        """Return random bytes for file names; they only have to differ."""
        return int(self._bytes.random() * (1 << 53)).to_bytes(7, "big").rjust(count, b"\0")

    def of(self, node: str) -> Store:
        """Return the store as opened by this node."""
        return Store(OpenedDisk(self.disk.of(node), self.id), self.id, random_bytes=self._random_bytes)

    def cost_ns(self, node: str, key: Hashable) -> int:
        """Return the duration of one call for this node."""
        least_ns, jitter_ns = self._delay
        cost_ns = least_ns + jitter_ns * self._choices.pick("storage", (key,), DELAY_STEPS) // DELAY_STEPS
        return cost_ns * SLOW_FACTOR if self.disk.is_slow(node) else cost_ns

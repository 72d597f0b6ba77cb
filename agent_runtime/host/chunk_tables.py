"""Chunks already in the store, to which an agent's next checkpoint may refer instead of writing them again.

For each epoch that this host has written, and that may still become complete, each agent has a table. The newest complete epoch is the *base*. Only
its chunks are reused, since only these are certain to stay until the new epoch is decided (`storage/packs/checkpoint_packs.py`). A plan drops all tables;
the epoch that its line was loaded from becomes the base.

Only coordinated epochs have a base. Other checkpoints are in packs that are created and deleted with the recovery line, so each pack holds all its
chunks.
"""

from collections.abc import Mapping

from snapline.storage.capture.image import ChunkTable

Tables = Mapping[str, ChunkTable]
"""Chunk tables by agent."""

TABLES_MAX = 16
"""Largest number of epochs whose tables are kept: more than may be open at once. Tables of an epoch whose end was never received are dropped for
later ones."""


class ChunkTables:
    """The tables of one host.

    Attributes:
        base_epoch: newest complete epoch, or 0 if none is known.
    """

    def __init__(self) -> None:
        self.base_epoch = 0
        self._base: Tables = {}
        self._open: dict[int, Tables] = {}

    def base_of(self, agent: str) -> ChunkTable | None:
        """Return the chunks that a new checkpoint of `agent` may refer to; None: there are none."""
        return self._base.get(agent)

    def written(self, epoch: int, tables: Tables) -> None:
        """Keep the tables of `epoch`: this host's part of it is durable."""
        self._open[epoch] = tables
        while len(self._open) > TABLES_MAX:
            del self._open[min(self._open)]

    def ended(self, epoch: int, *, is_complete: bool) -> None:
        """End a decided epoch. Without its tables nothing is reused: the base before it may be forgotten from now on."""
        tables = self._open.pop(epoch, {})
        if is_complete and epoch > self.base_epoch:
            self.base_epoch, self._base = epoch, tables

    def begun(self, newest: int) -> None:
        """Drop, as an epoch begins, a base above `newest`, the newest complete one: it was found damaged since."""
        if self.base_epoch > newest:
            self.base_epoch, self._base = 0, {}

    def loaded(self, epoch: int, tables: Tables) -> None:
        """Begin a plan from the line `epoch`; 0: from the fleet's definition."""
        self.base_epoch, self._base = epoch, tables
        self._open.clear()

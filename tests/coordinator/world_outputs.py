"""The store's side of releases in a world: who releases what, and whether that is its turn. Draws from a stream of its own."""

import random

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state.fleet_records import COMPLETE, FleetImage

MS = 1_000_000

SILENT = 0.3
"""So many epochs hold no outputs, and half of those that publish one know it."""


class WorldOutputs:
    """See the module.

    Attributes:
        outcomes: epoch → the plan that it was begun under; 0: aborted.
        lines: plan → the epoch that it starts from.
        released: epoch → the one that its release comes after.
    """

    def __init__(self, seed: int, chaos: float) -> None:
        self.random = random.Random(f"outputs-{seed}")
        self.chaos = chaos
        self.outcomes: dict[int, int] = {}
        self.lines: dict[int, int] = {}
        self.released: dict[int, int] = {}
        self.silent: dict[int, bool] = {}

    def delay_ns(self) -> int:
        return self.random.randrange(1, 40 * MS)

    def is_silent(self, epoch: int) -> bool:
        return self.silent.setdefault(epoch, self.random.random() < SILENT)

    def known(self, epoch: int) -> dict[str, int] | None:
        return {} if self.is_silent(epoch) and self.random.random() < 0.5 else None

    def release(self, command: ev.ReleaseEpoch, image: FleetImage) -> ev.EpochReleased:
        epoch = command.epoch
        after = command.ancestors[0].epoch if command.ancestors else 0
        assert after == self._before(epoch), f"epoch {epoch} comes after {self._before(epoch)}, not {after}"
        missing = [x for x in range(1, epoch) if x not in self.outcomes]
        assert not missing, f"epoch {epoch} is released, and {missing} have no outcome"
        lower = [x for x, record in image.epochs.items() if x < epoch and record.status == COMPLETE]
        owed = [
            x for x in lower if x not in self.released and not self.is_silent(x) and x > min(self.released, default=0)
        ]
        assert not owed, f"epoch {epoch} is released, and {owed} are not"
        if self.random.random() < self.chaos * 0.1:
            return ev.EpochReleased(epoch, "disk full")
        assert self.released.setdefault(epoch, after) == after
        return ev.EpochReleased(epoch, outputs={} if self.is_silent(epoch) else {"a0": epoch})

    def _before(self, epoch: int) -> int:
        plan = self.outcomes[epoch]
        return max([x for x, begun in self.outcomes.items() if begun == plan and x < epoch], default=self.lines[plan])

    def owed(self, epochs: list[int], image: FleetImage) -> list[int]:
        """Those of them that are complete still, and were never released."""
        complete = [x for x in epochs if x in image.epochs and image.epochs[x].status == COMPLETE]
        return [x for x in complete if x not in self.released and not self.is_silent(x)]

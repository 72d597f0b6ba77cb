"""Bounds of an explored fleet."""

import msgspec

from snapline.errors import UsageError

AGENTS_MAX = 6
"""Largest number of agents; beyond it not even the states of one send each fit into a machine."""


class Bounds(msgspec.Struct, frozen=True):
    """Limits of a fleet in one run.

    Attributes:
        agents: at least two.
        sends: messages of each agent, to anyone. Sends undone by a recovery do not count.
        crashes: in one run, each followed by its recovery.
        epochs: of coordinated protocols, epochs or rounds begun in one run.
        checkpoints: of autonomous protocols, basic checkpoints of each agent; forced ones come on top.
        states_max: where the search stops.
    """

    agents: int = 3
    sends: int = 1
    crashes: int = 1
    epochs: int = 1
    checkpoints: int = 1
    states_max: int = 5_000_000

    def __post_init__(self) -> None:
        if not 2 <= self.agents <= AGENTS_MAX:
            raise UsageError(f"agents is {self.agents}: explore a fleet of 2 to {AGENTS_MAX} agents")
        for name in ("sends", "crashes", "epochs", "checkpoints"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: give 0 or more")
        if self.states_max < 1:
            raise UsageError(f"states_max is {self.states_max}: give at least 1")

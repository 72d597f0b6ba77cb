"""Bounds of an explored fleet."""

import msgspec

from snapline.errors import UsageError

AGENTS_MAX = 6
"""Largest number of agents. Beyond it, not even the states of one send per agent fit into a machine's memory."""


class Bounds(msgspec.Struct, frozen=True):
    """Limits of a fleet in one run.

    Attributes:
        agents: number of agents, at least two.
        sends: number of messages per agent, to any receiver. Sends undone by a recovery do not count.
        crashes: number of crashes in one run, each followed by its recovery.
        epochs: number of epochs or rounds begun in one run (coordinated protocols).
        checkpoints: number of basic checkpoints per agent, without forced ones (autonomous protocols).
        states_max: number of states at which the search stops.
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

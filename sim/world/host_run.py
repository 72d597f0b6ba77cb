"""One run of a host, as its links, its session and its turns see it."""

from collections.abc import Callable
from typing import Any, Protocol

from snapline.agent_runtime.host.driver import HostDriver
from snapline.sim.world.notes import WorldNotes
from snapline.sim.world.world_state import WorldState


class HostRun(Protocol):
    """Interface of `host.SimHost` to its parts, and to the coordinator's."""

    @property
    def name(self) -> str: ...
    @property
    def instance(self) -> str:
        """The name of this run: no other run has it."""
        ...

    @property
    def shared(self) -> WorldState: ...
    @property
    def notes(self) -> WorldNotes: ...
    @property
    def driver(self) -> HostDriver: ...
    def wall_ns(self) -> int:
        """Return its wall-clock time."""
        ...

    def later(self, at_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Call it then, if this run still lives; held while it is paused."""
        ...

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Call it now."""
        ...

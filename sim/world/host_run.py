"""Interface of one run of a host to its links, its session and its turns."""

from collections.abc import Callable
from typing import Any, Protocol

from snapline.agent_runtime.host.driver import HostDriver
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState


class HostRun(Protocol):
    """Interface of `host.SimHost` to its parts and to the coordinator's parts."""

    @property
    def name(self) -> str: ...
    @property
    def instance(self) -> str:
        """Return the unique name of this run."""
        ...

    @property
    def shared(self) -> WorldState: ...
    @property
    def notes(self) -> WorldObserver: ...
    @property
    def driver(self) -> HostDriver: ...
    def wall_ns(self) -> int:
        """Return the host's wall-clock time."""
        ...

    def later(self, at_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule a call, which is dropped if this run has ended and held while it is paused."""
        ...

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Make the call now, or hold it while this run is paused."""
        ...

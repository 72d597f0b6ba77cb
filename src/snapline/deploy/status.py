"""Status fields of a fleet that a launcher reads from `CoordinatorClient`."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from snapline.messages.concerns import Concern
from snapline.messages.turn_deaths import TurnDeath


class HostReading(Protocol):
    """Fields of one host's status that the launcher reads."""

    @property
    def host(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def turns(self) -> int: ...
    @property
    def dead_letters(self) -> int: ...


class StoreReading(Protocol):
    """Fields of the store's status that the launcher reads."""

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...


class FleetReading(Protocol):
    """Fields of the coordinator's status that the launcher reads."""

    @property
    def phase(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def last_complete_epoch(self) -> int: ...
    @property
    def epochs_completed(self) -> int: ...
    @property
    def hosts(self) -> Sequence[HostReading]: ...
    @property
    def leader(self) -> str: ...
    @property
    def store(self) -> StoreReading: ...
    @property
    def concerns(self) -> Sequence[Concern]: ...


class CoordinatorReader(Protocol):
    """The part of `CoordinatorClient` that the launcher uses."""

    def status(self, *, unconfirmed: bool = False) -> Awaitable[FleetReading]: ...
    def report_host_exit(
        self, host: str, instance: str, reason: str, *, died_in: Sequence[TurnDeath] = ()
    ) -> Awaitable[object]: ...
    def close(self) -> Awaitable[None]: ...

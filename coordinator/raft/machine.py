"""State machine of a replicated log, and the result where applying an entry raised."""

from typing import Protocol


class Machine(Protocol):
    """The replicated state. Called on the tick thread only."""

    def apply(self, entry: bytes) -> object:
        """Apply a committed entry; deterministic, never raises. LogError says: not understood, end the process."""

    def freeze(self) -> bytes:
        """The whole state as bytes."""

    def restore(self, image: bytes) -> None:
        """Take the state that `freeze` gave."""


class ApplyFailed:
    """Result of an entry whose `apply` raised: the same on every replica, if the machine is deterministic."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"ApplyFailed({self.error!r})"

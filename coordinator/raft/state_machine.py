"""Interface of the replicated state machine, and the result of an entry whose `apply` raised."""

from typing import Protocol


class Machine(Protocol):
    """The replicated state. Called on the tick thread only."""

    def apply(self, entry: bytes) -> object:
        """Apply a committed entry; deterministic, must not raise. LogError: the entry is not understood, and the process must end."""

    def freeze(self) -> bytes:
        """Return the whole state as bytes."""

    def restore(self, image: bytes) -> None:
        """Replace the state by one from `freeze`."""


class ApplyFailed:
    """Result of an entry whose `apply` raised; equal on every replica if the machine is deterministic."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"ApplyFailed({self.error!r})"

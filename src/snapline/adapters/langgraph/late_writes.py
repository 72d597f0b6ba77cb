"""Writes of runs whose checkpoints were deleted meanwhile: they change nothing.

A run that was cancelled, or goes on in a thread, may save a checkpoint after its thread was deleted, or pruned. Such a checkpoint names a parent that was
deleted, or one that was ignored itself. A first checkpoint, without a parent, begins a new run, or a thread that somebody puts back: it is saved.
Only this process can have such runs: a shelf is open in one process at a time. So all of this is in memory.
"""

from collections.abc import Collection, Container
from typing import Any

Path = tuple[str, ...]

REMEMBERED_MAX = 4096
"""Largest number of deleted threads, runs and ignored checkpoints each: late writes come within seconds, and memory stays below a megabyte."""


class LateWrites:
    """Tells the writes that come too late from others. Threads may share it."""

    def __init__(self) -> None:
        self._deleted: dict[str, str] = {}
        self._pruned: dict[Path, str] = {}
        self._runs: dict[str, None] = {}
        self._ignored: dict[str, None] = {}

    def on_thread_deleted(self, thread: str, newest: str) -> None:
        """Note that all checkpoints of a thread are deleted; `newest`: the newest of them."""
        _remember(self._deleted, thread, max(newest, self._deleted.get(thread, "")))

    def on_pruned(self, path: Path, kept: str) -> None:
        """All checkpoints of a namespace that are older than `kept` are deleted, unless it is made of them."""
        _remember(self._pruned, path, max(kept, self._pruned.get(path, "")))

    def on_runs_deleted(self, runs: Collection[str]) -> None:
        """Note that all checkpoints of these runs are deleted."""
        for run in runs:
            _remember(self._runs, run, None)

    def on_overtaken(self, checkpoint: str) -> None:
        """A checkpoint was not saved: so many newer ones are there."""
        _remember(self._ignored, checkpoint, None)

    def is_late(
        self, path: Path, known: Container[str], checkpoint: str, *, parent: str | None, run: Any = None
    ) -> bool:
        """Return whether a checkpoint comes from a run with deleted checkpoints: its parent is not among the `known` ones any more."""
        if str(run) in self._runs:
            return True
        if parent is None or parent in known or checkpoint in known:
            return False
        is_pruned = max(parent, checkpoint) < self._pruned.get(path, "")
        if is_pruned or parent <= self._deleted.get(path[0], "") or parent in self._ignored:
            _remember(self._ignored, checkpoint, None)
            return True
        return False

    def are_late(self, path: Path, known: Container[str], checkpoint: str) -> bool:
        """Return whether writes for this checkpoint come after its deletion."""
        if checkpoint in known:
            return False
        deleted = max(self._deleted.get(path[0], ""), self._pruned.get(path, ""))
        return checkpoint <= deleted or checkpoint in self._ignored


def _remember(found: dict[Any, Any], key: Any, value: Any) -> None:
    found.pop(key, None)
    found[key] = value
    while len(found) > REMEMBERED_MAX:
        found.pop(next(iter(found)), None)

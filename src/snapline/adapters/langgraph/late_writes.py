"""Detection of late writes, by runs whose checkpoints were deleted in the meantime: such writes are ignored.

A run that was cancelled, or still runs in a thread, may save a checkpoint after its thread was deleted or pruned. The parent of such a checkpoint was
deleted, or was ignored itself. A checkpoint without a parent begins a new run, or belongs to a thread that is being restored: it is saved.
Only this process can have such runs, since one process at a time has the stream open. So everything here is in memory.
"""

from collections.abc import Collection, Container
from typing import Any

Path = tuple[str, ...]

REMEMBERED_MAX = 4096
"""Largest number each of deleted threads, runs and ignored checkpoints: late writes come within seconds, and memory stays below 1 MB."""


class LateWrites:
    """Distinguishes late writes from others. Threads may share it."""

    def __init__(self) -> None:
        self._deleted: dict[str, str] = {}
        self._pruned: dict[Path, str] = {}
        self._runs: dict[str, None] = {}
        self._ignored: dict[str, None] = {}

    def on_thread_deleted(self, thread: str, newest: str) -> None:
        """Note that all checkpoints of a thread were deleted; `newest`: the newest of them."""
        _remember(self._deleted, thread, max(newest, self._deleted.get(thread, "")))

    def on_pruned(self, path: Path, kept: str) -> None:
        """Note that checkpoints of a namespace older than `kept` were deleted, except those from which it is built."""
        _remember(self._pruned, path, max(kept, self._pruned.get(path, "")))

    def on_runs_deleted(self, runs: Collection[str]) -> None:
        """Note that all checkpoints of these runs are deleted."""
        for run in runs:
            _remember(self._runs, run, None)

    def on_not_saved(self, checkpoint: str) -> None:
        """Note that a checkpoint was not saved, since enough newer ones exist."""
        _remember(self._ignored, checkpoint, None)

    def is_late(
        self, path: Path, known: Container[str], checkpoint: str, *, parent: str | None, run: Any = None
    ) -> bool:
        """Return whether a checkpoint comes from a run with deleted checkpoints: its parent is not in `known`."""
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

"""Epochs that are aborted one after the other, though the store is well: the fleet works, and nothing of it is saved. Nothing is decided from it."""

from snapline.conversation.concerns import Concern
from snapline.coordinator.leader.desk import Desk
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.state.fleet_records import RUNNING

ABORTED_MIN = 3
"""One or two are aborted by a recovery, or by a turn that lasts."""


class Aborts:
    """Reads how epochs ended."""

    def __init__(self, desk: Desk, store: StoreWatch) -> None:
        self._desk = desk
        self._store = store

    def concerns(self) -> list[Concern]:
        """That none has completed for a while."""
        state = self._desk.state
        if state.phase != RUNNING or self._store.is_degraded:
            return []
        count = 0
        for end in reversed(state.image.ends):
            if end.is_complete:
                break
            count += 1
        if count < ABORTED_MIN:
            return []
        text = f"the last {count} epochs were aborted, and nothing is saved of what agents do; the last one: {state.image.ends[-1].reason}"
        return [Concern("epochs", (), 0, text)]

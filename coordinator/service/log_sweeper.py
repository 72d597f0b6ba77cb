"""Deletes batches of host logs that no epoch needs any more (`storage/log/garbage.py` says which)."""

import logging

from snapline.coordinator.leader.events import SweepLogs
from snapline.errors import NotFoundError, SnaplineError
from snapline.storage.log.garbage import BatchNumbers, Settled, find_garbage, numbers_of
from snapline.storage.log.names import LogName
from snapline.storage.store.manifest import Metadata
from snapline.storage.store.store import Store

_log = logging.getLogger("snapline.coordinator")


class LogSweeper:
    """Log sweeper of one coordinator. Every batch and manifest is read once: they do not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batches: dict[tuple[LogName, int], BatchNumbers] = {}
        self._numbers: dict[int, Metadata] = {}

    def sweep(self, command: SweepLogs) -> None:
        """Carry it out. What fails is found by the next sweep, and an epoch that cannot be read keeps all."""
        try:
            batches = self._read_batches()
            numbers = self._read_numbers(command.epochs) if batches else {}
            inputs = {epoch: told.inputs for epoch, told in numbers.items()}
            turns = {epoch: told.durable_turns for epoch, told in numbers.items()}
            settled = Settled(command.plan, command.settled_epoch)
            garbage = find_garbage(batches, inputs, command.left, turns, settled)
            if garbage:
                self._store.delete_batches(garbage, plans_below=command.plan)
        except (SnaplineError, OSError) as error:
            _log.warning("batches of host logs that no epoch needs remain in the store: %s", error)

    def _read_batches(self) -> list[BatchNumbers]:
        """Return all but the highest entry of each log: that one stays anyway."""
        found: dict[tuple[LogName, int], BatchNumbers] = {}
        for log, numbers in self._store.read_logs().items():
            for number in numbers[:-1]:
                place = log, number
                known = self._batches.get(place) or self._read_batch(log, number)
                if known is not None:
                    found[place] = known
        self._batches = found
        return list(found.values())

    def _read_batch(self, log: LogName, number: int) -> BatchNumbers | None:
        try:
            batch = self._store.read_batch(log, number)
        except NotFoundError:  # Another leader was faster.
            return None
        return None if batch is None else numbers_of(log, number, batch)

    def _read_numbers(self, epochs: dict[int, str]) -> dict[int, Metadata]:
        self._numbers = {
            epoch: self._numbers.get(epoch) or self._store.read_manifest(root, epoch=epoch).metadata
            for epoch, root in epochs.items()
        }
        return self._numbers

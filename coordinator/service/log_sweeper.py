"""Deletion of host-log batches that no epoch needs any more; `storage/log/log_deletions.py` decides which."""

import logging

from snapline.coordinator.leader.events import SweepLogs
from snapline.errors import NotFoundError, SnaplineError
from snapline.storage.log.log_deletions import BatchNumbers, SettledEpoch, batch_numbers, find_garbage
from snapline.storage.log.log_record import LogName
from snapline.storage.packs.manifest import Metadata
from snapline.storage.store.store import Store

_log = logging.getLogger("snapline.coordinator")


class LogSweeper:
    """Log sweeper of one coordinator. Batches and manifests are immutable, so each is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batches: dict[tuple[LogName, int], BatchNumbers] = {}
        self._numbers: dict[int, Metadata] = {}

    def sweep(self, command: SweepLogs) -> None:
        """Delete unneeded batches. The next sweep repeats what failed; if an epoch cannot be read, nothing is deleted."""
        try:
            batches = self._read_batches()
            numbers = self._read_numbers(command.epochs) if batches else {}
            inputs = {epoch: metadata.inputs for epoch, metadata in numbers.items()}
            turns = {epoch: metadata.durable_turns for epoch, metadata in numbers.items()}
            settled = SettledEpoch(command.plan, command.settled_epoch)
            garbage = find_garbage(batches, inputs, command.left, turns, settled)
            if garbage:
                self._store.delete_batches(garbage, plans_below=command.plan)
        except (SnaplineError, OSError) as error:
            _log.warning("batches of host logs that no epoch needs remain in the store: %s", error)

    def _read_batches(self) -> list[BatchNumbers]:
        """Return all but the highest batch of each log, which is always kept."""
        batches: dict[tuple[LogName, int], BatchNumbers] = {}
        for log, numbers in self._store.read_logs().items():
            for number in numbers[:-1]:
                key = log, number
                batch = self._batches.get(key) or self._read_batch(log, number)
                if batch is not None:
                    batches[key] = batch
        self._batches = batches
        return list(batches.values())

    def _read_batch(self, log: LogName, number: int) -> BatchNumbers | None:
        try:
            batch = self._store.read_batch(log, number)
        except NotFoundError:  # another leader has deleted it
            return None
        return None if batch is None else batch_numbers(log, number, batch)

    def _read_numbers(self, epochs: dict[int, str]) -> dict[int, Metadata]:
        self._numbers = {
            epoch: self._numbers.get(epoch) or self._store.read_manifest(root, epoch=epoch).metadata
            for epoch, root in epochs.items()
        }
        return self._numbers

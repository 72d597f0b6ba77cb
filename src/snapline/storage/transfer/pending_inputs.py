"""External inputs that a snapshot has not consumed, read from the host logs of a fleet that may be running."""

from collections.abc import Mapping

from snapline.errors import NotFoundError, StoreError
from snapline.storage.log.log_record import LoggedInput, LogName
from snapline.storage.store.store import Store

READINGS = 3
"""Number of readings that must miss the same batch: a host that appends may hide one from one listing, but hardly from three."""


def pending_inputs(store: Store, consumed: Mapping[str, int]) -> list[LoggedInput]:
    """Return the inputs of these agents after the given numbers, sorted by agent and number. Seals nothing.

    Inputs that hosts accept meanwhile may be missing. There are gaps where no kept epoch of the fleet needs an input.

    Raises:
        DamagedDataError: the bytes of a batch differ from those written.
        StoreError: the store cannot be read, or somebody without a key has written or removed a batch.
    """
    missing: dict[LogName, int] = {}
    for _ in range(READINGS):
        inputs: dict[tuple[str, int], LoggedInput] = {}
        batches: dict[LogName, list[int]] = {}
        for log, numbers in store.exclude_deleted(store.read_logs()).items():
            for number in numbers:
                try:
                    batch = store.read_batch(log, number)
                except NotFoundError:  # Deleted since the listing.
                    continue
                if batch is None:
                    continue
                batches.setdefault(log, []).append(number)
                for logged in batch.inputs:
                    if logged.number > consumed.get(logged.agent, logged.number):
                        inputs[logged.agent, logged.number] = logged
        missing = store.missing_batches(batches, {})
        if not missing:
            return [inputs[place] for place in sorted(inputs)]
    log, number = next(iter(missing.items()))
    raise StoreError(f"batch {number} of {log} was taken out of the store ({log.directory}), and not by snapline")


def first_gap(inputs: list[LoggedInput], consumed: Mapping[str, int]) -> tuple[str, int] | None:
    """Return agent and number of the first input that is missing below an existing one; None if there is none."""
    last = dict(consumed)
    for logged in inputs:
        if logged.number != last[logged.agent] + 1:
            return logged.agent, last[logged.agent] + 1
        last[logged.agent] = logged.number
    return None

"""Inputs from outside that are not consumed in a snapshot, read from the host logs of a fleet that may run on."""

from collections.abc import Mapping

from snapline.errors import NotFoundError, StoreError
from snapline.storage.log.names import LogName
from snapline.storage.log.record import LoggedInput
from snapline.storage.store.store import Store

READINGS = 3
"""Number of readings that lack the same batch: a host that appends may hide one from a listing, hardly from three."""


def pending_inputs(store: Store, consumed: Mapping[str, int]) -> list[LoggedInput]:
    """Return the inputs of these agents beyond the numbers given, in the order of agents and numbers. Nothing is sealed.

    What a host takes meanwhile may be there or not. There are gaps where no epoch that the fleet keeps needs an input any more.

    Raises:
        DamagedDataError: a batch is not what was written.
        StoreError: the store cannot be read, or somebody without a key has written or taken away a batch.
    """
    missing: dict[LogName, int] = {}
    for _ in range(READINGS):
        found: dict[tuple[str, int], LoggedInput] = {}
        batches: dict[LogName, list[int]] = {}
        for log, numbers in store.without_deleted(store.read_logs()).items():
            for number in numbers:
                try:
                    batch = store.read_batch(log, number)
                except NotFoundError:  # Deleted since the listing.
                    continue
                if batch is None:
                    continue
                batches.setdefault(log, []).append(number)
                for each in batch.inputs:
                    if each.number > consumed.get(each.agent, each.number):
                        found[each.agent, each.number] = each
        missing = store.missing_batches(batches, {})
        if not missing:
            return [found[place] for place in sorted(found)]
    log, number = next(iter(missing.items()))
    raise StoreError(f"batch {number} of {log} was taken out of the store ({log.directory}), and not by snapline")


def first_gap(inputs: list[LoggedInput], consumed: Mapping[str, int]) -> tuple[str, int] | None:
    """Return agent and number of the first input that is missing below one that is there; None: none is."""
    last = dict(consumed)
    for each in inputs:
        if each.number != last[each.agent] + 1:
            return each.agent, last[each.agent] + 1
        last[each.agent] = each.number
    return None

"""What was taken from outside and is not consumed in a snapshot, read from the host logs of a fleet that may run on."""

from collections.abc import Mapping

from snapline.errors import NotFoundError
from snapline.storage.log.records import LoggedInput
from snapline.storage.store.store import Store


def pending_inputs(store: Store, consumed: Mapping[str, int]) -> list[LoggedInput]:
    """Return the inputs of these agents beyond the numbers given, in the order of agents and numbers. Nothing is sealed.

    What a host takes meanwhile may be there or not. There are gaps where no epoch that the fleet keeps needs an input any more.

    Raises:
        DamagedDataError: a batch is not what was written.
        StoreError: the store cannot be read.
    """
    found: dict[tuple[str, int], LoggedInput] = {}
    for log, numbers in store.read_logs().items():
        for number in numbers:
            try:
                batch = store.read_batch(log, number)
            except NotFoundError:  # Deleted since the listing.
                continue
            for each in batch.inputs if batch is not None else ():
                if each.number > consumed.get(each.agent, each.number):
                    found[each.agent, each.number] = each
    return [found[place] for place in sorted(found)]


def first_gap(inputs: list[LoggedInput], consumed: Mapping[str, int]) -> tuple[str, int] | None:
    """Return agent and number of the first input that is missing below one that is there; None: none is."""
    last = dict(consumed)
    for each in inputs:
        if each.number != last[each.agent] + 1:
            return each.agent, last[each.agent] + 1
        last[each.agent] = each.number
    return None

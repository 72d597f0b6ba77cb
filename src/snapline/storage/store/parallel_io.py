"""Calls to a disk side by side: an object store answers each request after a while, and many at once hide that.

A pack is one object, and is put by one request that may create only; so it is there whole or not at all, and what went wrong is tried again
by the pack (`Store.write_pack`). No object is sent in parts: radosgw ignores the condition where the parts are put together, and an upload that
broke off would stay until somebody looks for such. Much is many packs, and these are sent side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from snapline.storage.store.disk import Disk

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_AHEAD = 4
"""Calls for each thread that are begun before anybody has taken a result: who takes only the first ones waits for few others."""


def requests_at_once(disk: Disk) -> int:
    """Return how many requests the disk answers sooner in parallel than one after the other; 1: none."""
    return int(getattr(disk, "requests_at_once", 1))


def side_by_side(call: Callable[[ItemT], ResultT], items: Sequence[ItemT], count: int) -> Iterator[ResultT]:
    """Yield what `call` returns for each item, in order; up to `count` calls run at once, in threads.

    The first that raises ends it; calls that have begun are waited for.
    """
    if min(count, len(items)) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(min(count, len(items)), thread_name_prefix="snapline-store") as threads:
        for start in range(0, len(items), _AHEAD * count):
            yield from threads.map(call, items[start : start + _AHEAD * count])

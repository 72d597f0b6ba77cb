"""Parallel calls to a disk: an object store has a high latency per request, and parallel requests hide it.

A pack is one object, sent by one conditional request. So it exists whole or not at all, and a failure is retried
for the whole pack (`Store.write_pack`). Multipart uploads are not used: radosgw ignores the condition when it joins the parts, and an interrupted
upload would stay until somebody looks for it. Large amounts of data are many packs, and these are sent in parallel.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from snapline.storage.store.disk import Disk

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_AHEAD = 4
"""Calls per thread that begin before a result is taken: a caller that takes only the first results waits for few others."""


def requests_at_once(disk: Disk) -> int:
    """Return the number of requests worth sending to the disk in parallel; 1 means sequentially."""
    return int(getattr(disk, "requests_at_once", 1))


def parallel_map(call: Callable[[ItemT], ResultT], items: Sequence[ItemT], count: int) -> Iterator[ResultT]:
    """Yield the result of `call` for each item, in order; up to `count` calls run at once, in threads.

    The first exception ends the iteration, after the calls that have begun.
    """
    if min(count, len(items)) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(min(count, len(items)), thread_name_prefix="snapline-store") as threads:
        for start in range(0, len(items), _AHEAD * count):
            yield from threads.map(call, items[start : start + _AHEAD * count])

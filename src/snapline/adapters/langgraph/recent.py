"""Most recently used values."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_Found = TypeVar("_Found")


class RecentValues(Generic[_Found]):
    """Cache of the `size_max` most recently used values, by digest. Threads may share it."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[bytes, _Found] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> _Found | None:
        """Return the value and mark it as used."""
        with self._lock:
            if digest not in self._values:
                return None
            self._values.move_to_end(digest)
            return self._values[digest]

    def put(self, digest: bytes, value: _Found) -> None:
        """Add a value; evict the least recently used one."""
        with self._lock:
            self._values[digest] = value
            self._values.move_to_end(digest)
            if len(self._values) > self._size_max:
                self._values.popitem(last=False)

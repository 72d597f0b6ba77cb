"""Items that the event loop hands to the tick thread, and the pipe that wakes it.

The library's poller waits on the pipe. A producer appends its item and then, unless the inbox is marked as woken, sets the mark and writes a
byte. The tick thread (1) empties the pipe, (2) clears the mark, (3) takes the items. So a producer that finds the mark set has appended its
item before the taking. If the mark were cleared after taking, or the pipe emptied after clearing, a wake-up could be lost.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

Item = Callable[[], None]
"""A call to make on the tick thread."""


class Inbox:
    """Calls for the tick thread, in order. Any thread may put, the tick thread takes. Producers bound the size."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._is_woken = False
        self._is_closed = False
        self._closing = threading.Lock()
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)

    def put(self, item: Item) -> None:
        """Queue `item` for the tick thread; it is dropped if the inbox is closed."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the tick thread."""
        if self._is_woken:
            return
        self._is_woken = True
        # The lock prevents writing to a descriptor that was closed and reused in between.
        with self._closing:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake
                    os.write(self._write_end, b"w")

    def take(self) -> list[Item]:
        """Take all items; called on the tick thread."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        self._is_woken = False
        items: list[Item] = []
        # Only the items present now: an endless producer must not delay the ticks.
        for _ in range(len(self._items)):
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Drop all items, including later ones. May be called again."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)
                os.close(self._write_end)
        self._items.clear()

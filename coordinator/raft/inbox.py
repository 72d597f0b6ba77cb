"""Items that the event loop hands to the tick thread, and the pipe that wakes it.

The library's poller waits on the pipe. A producer first appends its item and then, unless the pipe is `woken`
already, marks it woken and writes a byte. The tick thread (1) empties the pipe, (2) clears the mark, (3) takes what is
there. So a producer that finds the mark set appended before it is cleared, hence before anything is taken; with the mark cleared
after taking, or the pipe emptied after clearing, a wake-up was lost for ever.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

Item = Callable[[], None]
"""Something to be done on the tick thread."""


class Inbox:
    """Things to do on the tick thread, in order; anybody may put, the tick thread takes. Bounded by those who put."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._is_woken = False
        self._is_closed = False
        self._closing = threading.Lock()
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)

    def put(self, item: Item) -> None:
        """Have `item` called on the tick thread; dropped if the inbox is closed."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Have the tick thread not wait."""
        if self._is_woken:
            return
        self._is_woken = True
        # The lock keeps the byte out of a descriptor that was closed, and opened as something else, in between.
        with self._closing:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # full of bytes: it will wake
                    os.write(self._write_end, b"w")

    def take(self) -> list[Item]:
        """Everything that was put, on the tick thread."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        self._is_woken = False
        items: list[Item] = []
        # Those present now: who puts without end must not keep the ticks waiting.
        for _ in range(len(self._items)):
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Drop everything, also what comes later. May be called again."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)
                os.close(self._write_end)
        self._items.clear()

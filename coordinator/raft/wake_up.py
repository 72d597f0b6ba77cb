"""The pipe with which the library is woken for proposals: one byte for many, and closed at the end."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class WakeUp:
    """The library's notifier, with one byte for all proposals until commands are taken; it writes one for each.

    Each is a system call, in which the proposer lets go of the interpreter: the tick would take what there is so far, and sync that alone.

    Attributes:
        later: has a call made once the proposer's thread has done what it is doing; None: the byte is written at once, as on the thread that
            made this, which ticks.
    """

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_woken = False
        self.later: Callable[[Callable[[], None]], object] | None = None
        self._ticking = threading.get_ident()
        self._closing = threading.Lock()
        self._is_closed = False

    def notify(self) -> None:
        """Have the tick not wait. From the thread that ticks or that of `later`, after queueing: who finds it woken is before the taking."""
        if self.is_woken:
            return
        self.is_woken = True
        if self.later is None or threading.get_ident() == self._ticking:
            self._write()
        else:
            self.later(self._write)

    def _write(self) -> None:
        with self._closing:  # a closed pipe's number may be somebody else's by now
            if not self._is_closed:
                with suppress(BlockingIOError):  # full of wake-ups already
                    self.pipe.notify()

    def close(self, poller: Any) -> None:
        """Close the pipe that the library leaves open: two file numbers for every replica that ended."""
        with self._closing:
            self._is_closed = True
            poller.unsubscribe(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeW)

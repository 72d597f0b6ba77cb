"""The pipe with which the library is woken for proposals: one byte for many, and closed at the end."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class WakeUp:
    """The library's notifier, with one byte for all proposals until commands are taken; the original writes one per proposal.

    Each write is a system call that releases the interpreter lock: the tick would take the proposals so far, and sync these alone.

    Attributes:
        later: schedules a call after the proposer's present work. None, or on the tick thread: the byte is written at once.
    """

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_woken = False
        self.later: Callable[[Callable[[], None]], object] | None = None
        self._ticking = threading.get_ident()
        self._closing = threading.Lock()
        self._is_closed = False

    def notify(self) -> None:
        """Wake the tick. Call it after queueing, from the tick thread or the thread of `later`: if `is_woken` is set, the taking is still to come."""
        if self.is_woken:
            return
        self.is_woken = True
        if self.later is None or threading.get_ident() == self._ticking:
            self._write()
        else:
            self.later(self._write)

    def _write(self) -> None:
        with self._closing:  # a closed descriptor's number may be reused
            if not self._is_closed:
                with suppress(BlockingIOError):  # the pipe is full: the tick will wake
                    self.pipe.notify()

    def close(self, poller: Any) -> None:
        """Close the pipe, which the library would leak: two file descriptors per ended replica."""
        with self._closing:
            self._is_closed = True
            poller.unsubscribe(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeR)
            os.close(self.pipe._PipeNotifier__pipeW)

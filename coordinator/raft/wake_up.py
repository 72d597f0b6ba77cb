"""The pipe with which the library is woken for proposals: one byte for many, and closed at the end."""

import os
from contextlib import suppress
from typing import Any


class WakeUp:
    """The library's notifier, with one byte for all proposals until commands are taken; it writes one for each.

    Each is a system call, after which the proposer waits for the interpreter while a tick runs.
    """

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_woken = False

    def notify(self) -> None:
        """Have the tick not wait. From any thread, after queueing: who finds it woken is before the taking."""
        if not self.is_woken:
            self.is_woken = True
            with suppress(BlockingIOError):  # full of wake-ups already
                self.pipe.notify()


def close_all(poller: Any, notifier: Any) -> None:
    """Close the pipe that the library leaves open: two file numbers for every replica that ended."""
    poller.unsubscribe(notifier._PipeNotifier__pipeR)
    os.close(notifier._PipeNotifier__pipeR)
    os.close(notifier._PipeNotifier__pipeW)

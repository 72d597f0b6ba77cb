"""Ending the process when the replica's memory and its disk may differ (section H3 of the Raft design; G8, G11).

A replica that goes on after a failed write may acknowledge, or vote for, what its disk does not hold. There is nothing to
repair it with: a commit that failed must not be tried again (the kernel may have dropped the dirty pages and call the next
sync a success), and on "disk full" SQLite drops the whole transaction, so that memory is ahead of the file. A restart reads
what is really there; that is the only way back.

The process ends by `os._exit`: no handler, no `finally` and no other thread may still send what was not made durable.
"""

import logging
import os
from collections.abc import Callable
from typing import NoReturn

FAIL_STOP_EXIT_CODE = 12
"""Exit code of the process, so that a supervisor and the tests can tell this end from any other."""

_log = logging.getLogger(__name__)
_hook: Callable[[str], NoReturn] | None = None


def fail_stop(reason: str) -> NoReturn:
    """Log `reason`, one sentence that names the thing and the next step, and end the process at once."""
    if _hook is not None:
        _hook(reason)
    try:
        _log.critical("the coordinator ends itself: %s", reason)
    finally:
        os._exit(FAIL_STOP_EXIT_CODE)


def install(hook: Callable[[str], NoReturn] | None) -> None:
    """Have `hook` called instead; it must raise. `None` removes it. For tests and simulations only."""
    global _hook
    _hook = hook

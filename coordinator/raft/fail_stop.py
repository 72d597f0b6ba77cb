"""Ending the process when the replica's memory and its disk may differ (section H3 of the Raft design; G8, G11).

After a failed write, a running replica may acknowledge entries or votes that its disk does not hold. It cannot be repaired. A failed commit
must not be retried, since the kernel may have dropped the dirty pages and report success for the next sync. On "disk full" SQLite drops the
whole transaction, so memory is ahead of the file. Only a restart reads what the disk holds.

The process ends by `os._exit`: no handler, `finally` or other thread may send anything that is not durable.
"""

import logging
import os
from collections.abc import Callable
from typing import NoReturn

FAIL_STOP_EXIT_CODE = 12
"""Exit code of a fail-stop, so that supervisors and tests can recognise it."""

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
    """Install a hook that is called instead and must raise; `None` removes it. For tests and simulations only."""
    global _hook
    _hook = hook

"""Notices that an installer replaced the package while a process imported it. Such a process could hold modules of two releases.

`__main__.py` and the fork server import this module first. It reads the stamp of the package's first file, which every installer writes
anew.
"""

import os

from snapline.errors import ExternalFailureError

REPLACED = "the installed package was replaced while this process ran: start it again"
"""Sentence for users."""

_FIRST_FILE = os.path.join(os.path.dirname(__file__), "__init__.py")


def _read_stamp() -> tuple[int, int] | None:
    try:
        found = os.stat(_FIRST_FILE)
    except OSError:  # the installer has removed it, or the package is in an archive
        return None
    return found.st_ino, found.st_mtime_ns


_AT_START = _read_stamp()


def was_replaced() -> bool:
    """Return whether the package was replaced since this process started, or is being replaced."""
    return _read_stamp() != _AT_START


def check_unmixed() -> None:
    """Raise ExternalFailureError if the package was replaced since this process started. Call it when everything is imported."""
    if was_replaced():
        raise ExternalFailureError(REPLACED)

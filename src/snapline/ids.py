"""Names of things, and the one rule for writing them."""

import re
from typing import NewType

from snapline.errors import MisuseError

AgentId = NewType("AgentId", str)
HostId = NewType("HostId", str)

HOST_PREFIX = "host:"
"""Wherever agents may stand, `host:h1` means every agent of that host."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_id(text: str, what: str = "agent") -> str:
    """Return `text` if it is a valid id.

    Raises:
        MisuseError: it is not; names `what` kind of id it was to be.
    """
    if _ID.fullmatch(text) is None:
        raise MisuseError(
            f"{text!r} is no valid {what} id: use 1 to 128 characters out of letters, digits, '_', '.' and '-'"
        )
    return text

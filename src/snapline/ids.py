"""Names of things, and the one rule for writing them."""

import re
from collections.abc import Iterable
from typing import NewType, TypeGuard

from snapline.errors import UsageError

AgentId = NewType("AgentId", str)
HostId = NewType("HostId", str)

HOST_PREFIX = "host:"
"""Prefix of a host. Wherever agents may be named, `host:h1` means every agent of that host."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_id(text: str, what: str = "agent") -> str:
    """Return `text` if it is a valid id.

    Raises:
        UsageError: it is not; names `what` kind of id it was to be.
    """
    if _ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} is no valid {what} id: use 1 to 128 characters out of letters, digits, '_', '.' and '-'"
        )
    return text


def is_plain(text: object) -> TypeGuard[str]:
    """Return whether it is text that UTF-8 can encode. Others can be in no file and in no message."""
    try:
        str.encode(text)  # type: ignore[arg-type]  # it says what it is
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def check_receiver(agent: object) -> None:
    """Check that a message to an agent of this id can be kept, be there such an agent or not.

    Raises:
        UsageError: it cannot.
    """
    if not is_plain(agent):
        raise UsageError(f"an agent id is text that UTF-8 can say, this one is {agent!r:.100}")


def check_failed(names: Iterable[str]) -> list[str]:
    """Return `names` if each is an agent, or `host:h1`.

    Raises:
        UsageError: one of them is no id, or it is one text in place of several.
    """
    if isinstance(names, str):
        raise UsageError(f"{names!r} is one text: give a list, [{names!r}]")
    found = list(names)
    for name in found:
        if name.startswith(HOST_PREFIX):
            check_id(name.removeprefix(HOST_PREFIX), "host")
        else:
            check_id(name)
    return found

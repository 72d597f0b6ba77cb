"""Syntax and sort order of the ids of agents and hosts."""

import re
from collections.abc import Iterable
from typing import NewType, TypeGuard

from snapline.errors import UsageError

AgentId = NewType("AgentId", str)
HostId = NewType("HostId", str)

HOST_PREFIX = "host:"
"""Prefix of a host in a list of agents. For example, `host:h1` means every agent on host h1."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_DIGITS = re.compile(r"(\d+)")


def check_id(text: str, what: str = "agent") -> str:
    """Return `text` if it is a valid id.

    Raises:
        UsageError: If the id is invalid. The error message uses `what` as the kind of id.
    """
    if _ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} is no valid {what} id: use 1 to 128 characters out of letters, digits, '_', '.' and '-'"
        )
    return text


def natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a key for natural sorting, in which `a-2` comes before `a-10`."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name)]


def is_plain(text: object) -> TypeGuard[str]:
    """Return whether `text` is a string that can be encoded in UTF-8. Other strings cannot be written to files or messages."""
    try:
        str.encode(text)  # type: ignore[arg-type]  # raises TypeError if `text` is not a string
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def check_receiver(agent: object) -> None:
    """Check that messages to an agent with this id can be stored, whether or not the agent exists.

    Raises:
        UsageError: If messages to `agent` cannot be stored.
    """
    if not isinstance(agent, str):
        raise UsageError(f"the receiver of a message is an agent id, which is text, not {agent!r:.100}")
    if not is_plain(agent):
        raise UsageError(f"an agent id has no lone surrogates, unlike {agent!r:.100}")


def check_failed(names: Iterable[str]) -> list[str]:
    """Return `names` if each name is an agent id or has the form `host:h1`.

    Raises:
        UsageError: If a name is not a valid id, or `names` is a single string.
    """
    if isinstance(names, str):
        raise UsageError(f"{names!r} is one text: give a list, [{names!r}]")
    checked = list(names)
    for name in checked:
        if name.startswith(HOST_PREFIX):
            check_id(name.removeprefix(HOST_PREFIX), "host")
        else:
            check_id(name)
    return checked

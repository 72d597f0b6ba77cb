"""Ids of AutoGen's agents as ids of ours, and back. Standard library only: both sides of the pipe use it.

AutoGen's id is a type and a key, `teller/north`; ours is one word of letters, digits, `_`, `-` and dots. So it is `teller..north`: what
no word of ours may hold, and the dot, is written as a dot and two digits for each of its bytes.
"""

import re

BETWEEN = ".."

_KEPT = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"\.([0-9a-f]{2})")


def agent_name(autogen_id: str) -> str:
    """Our id of the agent that AutoGen calls `type/key`.

    Raises:
        ValueError: it is no such id.
    """
    kind, slash, key = autogen_id.partition("/")
    if not slash or not kind or not key:
        raise ValueError(f"{autogen_id!r} is no id of an AutoGen agent: write type/key")
    return _escaped(kind) + BETWEEN + _escaped(key)


def autogen_id(agent: str) -> str:
    """AutoGen's id, `type/key`, of an agent of ours; "" if it is no agent of AutoGen's."""
    kind, between, key = agent.partition(BETWEEN)
    if not between or not kind or not key:
        return ""
    return f"{_plain(kind)}/{_plain(key)}"


def _escaped(part: str) -> str:
    return "".join(chr(byte) if _KEPT.match(bytes([byte])) else f".{byte:02x}" for byte in part.encode())


def _plain(part: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part).encode("latin-1").decode()

"""Conversion between AutoGen ids and snapline ids. Uses the standard library only, since both sides of the pipe import it.

An AutoGen id is a type and a key, `teller/north`; a snapline id is one word of letters, digits, `_`, `-` and dots. It becomes `teller..north`.
Dots, and characters that a snapline id must not contain, are written as a dot and two hexadecimal digits for each of their bytes.
"""

import re

BETWEEN = ".."

_KEPT = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"\.([0-9a-f]{2})")


def agent_name(autogen_id: str) -> str:
    """Return the snapline id of the agent that AutoGen calls `type/key`.

    Raises:
        ValueError: it is not a valid AutoGen id.
    """
    kind, slash, key = autogen_id.partition("/")
    if not slash or not kind or not key:
        raise ValueError(f"{autogen_id!r} is no id of an AutoGen agent: write type/key")
    return _escaped(kind) + BETWEEN + _escaped(key)


def autogen_id(agent: str) -> str:
    """Return the AutoGen id, `type/key`, of a snapline agent; "" if it is no AutoGen agent."""
    kind, between, key = agent.partition(BETWEEN)
    if not between or not kind or not key:
        return ""
    return f"{_plain(kind)}/{_plain(key)}"


def _escaped(part: str) -> str:
    return "".join(chr(byte) if _KEPT.match(bytes([byte])) else f".{byte:02x}" for byte in part.encode())


def _plain(part: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part).encode("latin-1").decode()

"""Layout of a message's payload, and display of a payload whose type this process does not know. No I/O.

    message     length of the type's name (1 byte), the name, and the fields in MessagePack
    call        `CALL`, the call's id, a message; the call expects a reply
    reply       `REPLY`, the call's id, a message; nothing follows if the reply has no content
    creation    `CREATE`, length of the kind (2 bytes), the kind, the first state

A message or creation of a sampled trace has a trace suffix after the name of its type, or after its kind
(`agent_runtime/message_encoding.py`).
"""

from collections.abc import Callable

from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.saved_values import FAILURES

CREATE = b"\x00"
"""First byte of the payload that creates an agent: no message type has an empty name."""

CALL, REPLY = b"\x05@call", b"\x06@reply"
"""Prefixes of a call and a reply, before the call's id and the message. No type has such a name."""

CALL_ID_BYTES = 8

TAIL_BYTES = 58
MARK = b"@00-"
"""Prefix of a trace suffix. A qualified name in Python contains no `@`."""


def split_message(payload: bytes) -> tuple[str, memoryview]:
    """Split a message into the name of its type, without the trace suffix, and the body."""
    end = 1 + payload[0]
    if end > TAIL_BYTES and payload.startswith(MARK, end - TAIL_BYTES):
        return payload[1 : end - TAIL_BYTES].decode(), memoryview(payload)[end:]
    return payload[1:end].decode(), memoryview(payload)[end:]


def unwrapped(payload: bytes) -> bytes:
    """Return the message in a call or a reply. Any other message, or a reply without content, is returned unchanged."""
    for prefix in (CALL, REPLY):
        if payload.startswith(prefix):
            return payload[len(prefix) + CALL_ID_BYTES :] or payload
    return payload


def plain_name(name: str) -> str:
    """Return the name of a type, or a kind, without its trace suffix."""
    return name[:-TAIL_BYTES] if name.startswith(MARK.decode(), len(name) - TAIL_BYTES) else name


def read_creation(payload: bytes) -> tuple[str, bytes]:
    """Split a creation into kind and first state."""
    end = 3 + int.from_bytes(payload[1:3], "big")
    return plain_name(payload[3:end].decode()), payload[end:]


def describe_payload(payload: bytes, show: Callable[[bytes], object] = plain) -> object:
    """Return a readable message: the name of its type, and its fields as rendered by `show`; for a creation, the kind and the state."""
    try:
        if payload[:1] == CREATE:
            kind, state = read_creation(payload)
            return {"creates": kind, "state": show(state)}
        name, body = split_message(unwrapped(payload))
    except (*FAILURES, UnicodeDecodeError, IndexError):
        return f"<{len(payload)} bytes>"
    try:
        return {"type": name, "fields": show(bytes(body))}
    except FAILURES:
        return {"type": name, "fields": f"<{len(body)} bytes>"}

"""Layout of message payloads, and readable text for payloads whose type is unknown to this process. This module does no I/O.

    message     length of the type's name (1 byte), the name, and the fields in MessagePack
    call        `CALL`, the call's id, a message; the call expects a reply
    reply       `REPLY`, the call's id, a message; nothing follows if the reply has no content
    creation    `CREATE`, length of the kind (2 bytes), the kind, the first state

If a message or creation is part of a sampled trace, the name of its type or kind has a trace suffix (`agent_runtime/message_encoding.py`).
"""

from collections.abc import Callable

from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.saved_values import FAILURES

CREATE = b"\x00"
"""First byte of a payload that creates an agent. No message begins with this byte, since no message type has an empty name."""

CALL, REPLY = b"\x05@call", b"\x06@reply"
"""Prefixes of a call and of a reply. The call's id and the message follow the prefix. No message type has such a name."""

CALL_ID_BYTES = 8

TAIL_BYTES = 58
MARK = b"@00-"
"""Prefix of a trace suffix. A qualified name in Python contains no `@`."""


def split_message(payload: bytes) -> tuple[str, memoryview]:
    """Return the name of the message's type without the trace suffix, and the message's body."""
    end = 1 + payload[0]
    if end > TAIL_BYTES and payload.startswith(MARK, end - TAIL_BYTES):
        return payload[1 : end - TAIL_BYTES].decode(), memoryview(payload)[end:]
    return payload[1:end].decode(), memoryview(payload)[end:]


def unwrapped(payload: bytes) -> bytes:
    """Return the message inside a call or reply. Return any other message, or a reply without content, unchanged."""
    for prefix in (CALL, REPLY):
        if payload.startswith(prefix):
            return payload[len(prefix) + CALL_ID_BYTES :] or payload
    return payload


def plain_name(name: str) -> str:
    """Remove the trace suffix from the name of a message type or an agent's kind."""
    return name[:-TAIL_BYTES] if name.startswith(MARK.decode(), len(name) - TAIL_BYTES) else name


def read_creation(payload: bytes) -> tuple[str, bytes]:
    """Return the kind and the initial state of the agent that the payload creates."""
    end = 3 + int.from_bytes(payload[1:3], "big")
    return plain_name(payload[3:end].decode()), payload[end:]


def describe_payload(payload: bytes, show: Callable[[bytes], object] = plain) -> object:
    """Describe a payload in readable text. For a message, the text contains the name of its type and its fields, formatted by `show`. For a
    creation, the text contains the agent's kind and state."""
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

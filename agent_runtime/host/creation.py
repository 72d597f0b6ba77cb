"""The message that creates an agent: its kind and its initial state, on the channel from its parent."""

from snapline.messages.payloads import CREATE


def creation_payload(kind: str, state: bytes) -> bytes:
    """Return the message that creates an agent: a zero byte, the kind's length (2 bytes), the kind, the state."""
    name = kind.encode()
    return b"".join((CREATE, len(name).to_bytes(2, "big"), name, state))

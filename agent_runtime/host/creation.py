"""The message that creates an agent: its kind and its initial state, on the channel from its parent."""

from snapline.agent_runtime.traceparents import plain_name

CREATE = b"\x00"
"""First byte of the payload that creates an agent: no message type has an empty name."""


def creation_payload(kind: str, state: bytes) -> bytes:
    """The message that creates an agent: a zero byte, the kind's length (2 bytes), the kind, the state."""
    name = kind.encode()
    return b"".join((CREATE, len(name).to_bytes(2, "big"), name, state))


def read_creation(payload: bytes) -> tuple[str, bytes]:
    """Take a creation payload apart into kind and state."""
    end = 3 + int.from_bytes(payload[1:3], "big")
    return plain_name(payload[3:end].decode()), payload[end:]

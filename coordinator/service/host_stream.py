"""Messages of one host, read from the bytes of its stream: counted before they are parsed, put together where they came in parts."""

from snapline.channels.counts import check_counts
from snapline.coordinator.state.fleet_records import AGENTS_MAX
from snapline.errors import ProtocolError
from snapline.messages.host_messages import HostMessage, MessagePart
from snapline.messages.wire import decode_host_message, host_messages

UNCOUNTED_BYTES_MAX = 64 * 1024
"""A message up to this is parsed uncounted: its shortest entries become a few MiB."""

MESSAGE_BYTES_MAX, PARTS_MAX = 16 * 1024 * 1024, 64
"""Limits of a message in parts; hosts make parts of a MiB."""

ENTRIES_MAX, NUMBERS_MAX = 4 * AGENTS_MAX, 4 * 1024 * 1024
"""Limits of a larger one: a definition has an entry and two fields for each agent that a fleet may have, a report its name, and those of twice as
many that are gone; numbers in the columns of 40 channels for each of them."""


def read_host_message(data: bytes) -> HostMessage:
    """Return what a host said, in bytes.

    Raises:
        ProtocolError: it is no message, or more than any host has to say.
    """
    if len(data) > UNCOUNTED_BYTES_MAX:
        check_counts(data, host_messages.descriptor, entries_max=ENTRIES_MAX, numbers_max=NUMBERS_MAX)
    return decode_host_message(data)


class HostStream:
    """Messages of one host, put together from the parts on its stream."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def take(self, data: bytes) -> HostMessage | None:
        """The next message; None if this was a part of one that goes on.

        Raises:
            ProtocolError: as `read_host_message`, or it is larger than any message may be.
        """
        message = read_host_message(data)
        if not isinstance(message, MessagePart):
            if self._parts:
                raise ProtocolError("a message between the parts of another")
            return message
        self._parts.append(message.data)
        self._size_bytes += len(message.data)
        if self._size_bytes > MESSAGE_BYTES_MAX or len(self._parts) > PARTS_MAX:
            raise ProtocolError(f"a message of more than {MESSAGE_BYTES_MAX} bytes or {PARTS_MAX} parts")
        if not message.is_last:
            return None
        whole, self._parts, self._size_bytes = b"".join(self._parts), [], 0
        return read_host_message(whole)

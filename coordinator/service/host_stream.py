"""Reader of one host's messages: counts entries before parsing, and joins messages that arrive in parts."""

from snapline.channels.frame import check_counts
from snapline.coordinator.state.fleet_records import AGENTS_MAX
from snapline.errors import ProtocolError
from snapline.messages.host_messages import HostMessage, MessagePart
from snapline.messages.wire import decode_host_message, host_messages

UNCOUNTED_BYTES_MAX = 64 * 1024
"""Largest message that is parsed without counting: even with the shortest entries it takes a few MiB of memory."""

HOST_MESSAGE_BYTES_MAX, PARTS_MAX = 16 * 1024 * 1024, 64
"""Limits of a message in parts; hosts send parts of 1 MiB."""

ENTRIES_MAX, NUMBERS_MAX = 4 * AGENTS_MAX, 4 * 1024 * 1024
"""Limits of a larger message. A definition has an entry and two fields for each possible agent. A report has the names of all agents, of twice as
many departed ones, and numbers in the columns of 40 channels for each agent."""


def read_host_message(data: bytes) -> HostMessage:
    """Decode a host's message.

    Raises:
        ProtocolError: it is no message, or exceeds the limits.
    """
    if len(data) > UNCOUNTED_BYTES_MAX:
        check_counts(data, host_messages.descriptor, entries_max=ENTRIES_MAX, numbers_max=NUMBERS_MAX)
    return decode_host_message(data)


class HostStream:
    """Joins the parts of one host's messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def take(self, data: bytes) -> HostMessage | None:
        """Return the next message; None: more parts of it follow.

        Raises:
            ProtocolError: as `read_host_message`, or the message is too large.
        """
        message = read_host_message(data)
        if not isinstance(message, MessagePart):
            if self._parts:
                raise ProtocolError("a message between the parts of another")
            return message
        self._parts.append(message.data)
        self._size_bytes += len(message.data)
        if self._size_bytes > HOST_MESSAGE_BYTES_MAX or len(self._parts) > PARTS_MAX:
            raise ProtocolError(f"a message of more than {HOST_MESSAGE_BYTES_MAX} bytes or {PARTS_MAX} parts")
        if not message.is_last:
            return None
        whole, self._parts, self._size_bytes = b"".join(self._parts), [], 0
        return read_host_message(whole)

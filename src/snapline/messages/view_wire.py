"""Questions to a host about one agent, and its answers, as bytes: a JSON document is split into parts of 1 MiB."""

from collections.abc import Iterator

import msgspec

from snapline.errors import ProtocolError
from snapline.messages.codec import parsed
from snapline.messages.inputs import PART_BYTES
from snapline.messages.views import (
    DESCRIPTION,
    EFFECTS,
    LIVE,
    STATE,
    TRACE,
    VIEW_BYTES_MAX,
    WAITING,
    NotHereError,
    Question,
    TraceWanted,
)
from snapline.protos.v1 import agents_pb2

_SERVICE = agents_pb2.DESCRIPTOR.services_by_name["Agents"]
SERVICE: str = _SERVICE.full_name
SHOW = "Show"
SHOW_PATH = f"/{SERVICE}/{SHOW}"

_KNOWN = (STATE, LIVE, DESCRIPTION, EFFECTS, WAITING, TRACE)

_PARTS_MAX = VIEW_BYTES_MAX // PART_BYTES + 1


def encode_question(question: Question) -> bytes:
    """Encode a question."""
    return agents_pb2.ShowRequest(agent=question.agent, what=question.what, field=question.field).SerializeToString()


def decode_question(data: bytes) -> Question:
    """Decode a question.

    Raises:
        ProtocolError: the bytes are no question.
    """
    request = parsed(agents_pb2.ShowRequest, data)
    assert isinstance(request, agents_pb2.ShowRequest)
    if request.what not in _KNOWN:
        raise ProtocolError(f"{request.what!r} is not a question that this version supports: {', '.join(_KNOWN)} can")
    return Question(request.agent, request.what, request.field)


def trace_question(wanted: TraceWanted) -> Question:
    """Return the question for a part of a host's trace."""
    return Question("", TRACE, msgspec.json.encode(wanted).decode())


def trace_wanted(question: Question) -> TraceWanted:
    """Return the part of the trace that is requested.

    Raises:
        ProtocolError: the question names no part of a trace.
    """
    try:
        return msgspec.json.decode(question.field or "{}", type=TraceWanted)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"this says no part of a trace: {error}") from error


def retry_message(reason: str) -> bytes:
    """Encode the answer of a host that cannot answer now."""
    return agents_pb2.ShowReply(retry=reason).SerializeToString()


def view_messages(json: bytes) -> Iterator[bytes]:
    """Yield the messages of one answer."""
    for start in range(0, max(1, len(json)), PART_BYTES):
        end = start + PART_BYTES
        yield agents_pb2.ShowReply(json=json[start:end], more=end < len(json)).SerializeToString()


class ViewReader:
    """Answer put together from the messages of its stream."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, data: bytes) -> bytes | None:
        """Add a message; return the document with the last one.

        Raises:
            ProtocolError: the message is invalid, or the document exceeds the size limit.
            NotHereError: the host cannot answer now.
        """
        message = parsed(agents_pb2.ShowReply, data)
        assert isinstance(message, agents_pb2.ShowReply)
        if message.retry:
            raise NotHereError(message.retry)
        self._parts.append(message.json)
        if len(self._parts) > _PARTS_MAX:
            raise ProtocolError(f"an answer of more than {VIEW_BYTES_MAX} bytes")
        return None if message.more else b"".join(self._parts)

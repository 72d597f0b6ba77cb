"""Wire format of the inputs and questions that clients send to a host, and of the host's answers.

A request with inputs is a stream of messages of about 1 MiB each. Larger inputs are split into parts. A reader counts the entries of a
large message before parsing it. The cost is bounded: a request contains at most `INPUTS_MAX` inputs, and their total payload is at most the
maximum size of a message between agents.

The answer to a question is a JSON document, which is split into parts of 1 MiB.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.channels.frame import check_counts
from snapline.errors import ProtocolError
from snapline.messages.client_requests import (
    APPROVALS,
    DESCRIPTION,
    EFFECTS,
    INPUTS_MAX,
    LIVE,
    PART_BYTES,
    STATE,
    TRACE,
    VIEW_BYTES_MAX,
    WAITING,
    AskOutcome,
    GivenInput,
    InputOutcome,
    NotHereError,
    Question,
    TraceWanted,
)
from snapline.messages.wire import parsed, reader_of, writer_of
from snapline.protos.v1 import agents_pb2, inputs_pb2

_INPUTS = inputs_pb2.DESCRIPTOR.services_by_name["Inputs"]
INPUTS_SERVICE: str = _INPUTS.full_name
OFFER = "Offer"
OFFER_PATH = f"/{INPUTS_SERVICE}/{OFFER}"
SETTLE = "Settle"
SETTLE_PATH = f"/{INPUTS_SERVICE}/{SETTLE}"
ASK = "Ask"
ASK_PATH = f"/{INPUTS_SERVICE}/{ASK}"

STREAM_MESSAGES_MAX = 64
"""Largest number of messages in one request: enough for 16 MiB in parts of 1 MiB, plus some messages that are not full."""

UNCOUNTED_BYTES_MAX = 64 * 1024
"""Messages up to this size in bytes are parsed without counting their entries first. Even if all entries are as short as possible, the
parsed message takes only a few MiB."""

_ENTRIES_MAX = 2 + INPUTS_MAX * (1 + len(inputs_pb2.GivenInput.DESCRIPTOR.fields))

_write_outcome = writer_of(InputOutcome, inputs_pb2.InputOutcome)
_read_outcome = reader_of(InputOutcome)


def offer_messages(client: str, inputs: Sequence[GivenInput]) -> Iterator[bytes]:
    """Encode a request that contains these inputs, and yield its messages."""
    entries: list[inputs_pb2.GivenInput] = []
    size = 0
    sender = client
    for item in inputs:
        for entry in _entries_of(item):
            if size and size + len(entry.payload) > PART_BYTES:
                yield inputs_pb2.OfferRequest(client=sender, inputs=entries, more=True).SerializeToString()
                entries, size, sender = [], 0, ""
            entries.append(entry)
            size += len(entry.payload)
    yield inputs_pb2.OfferRequest(client=sender, inputs=entries).SerializeToString()


def _entries_of(given: GivenInput) -> Iterator[inputs_pb2.GivenInput]:
    """Yield one entry for the input, or several entries if the input is too large for one."""
    size = len(given.payload)
    yield inputs_pb2.GivenInput(
        agent=given.agent,
        key=given.key,
        type=given.type,
        payload=given.payload[:PART_BYTES],
        more=size > PART_BYTES,
        public_only=given.public_only,
    )
    for start in range(PART_BYTES, size, PART_BYTES):
        end = start + PART_BYTES
        yield inputs_pb2.GivenInput(payload=given.payload[start:end], more=size > end)


class OfferReader:
    """Reader that reassembles a request from a stream of messages.

    Attributes:
        client: the name that the sender gives, which is not verified.
        inputs: the inputs that have been received completely.
        size_bytes: total size of the payloads that have been received.
    """

    def __init__(self) -> None:
        self.client = ""
        self.inputs: list[GivenInput] = []
        self.size_bytes = 0
        self._messages = 0
        self._begun: inputs_pb2.GivenInput | None = None
        self._parts: list[bytes] = []

    def take(self, data: bytes) -> bool:
        """Process the next message of the stream. Return whether more messages must follow.

        Raises:
            ProtocolError: the message is invalid or the request exceeds a limit.
        """
        if len(data) > UNCOUNTED_BYTES_MAX:
            check_counts(data, inputs_pb2.OfferRequest.DESCRIPTOR, entries_max=_ENTRIES_MAX, numbers_max=0)
        message = parsed(inputs_pb2.OfferRequest, data)
        assert isinstance(message, inputs_pb2.OfferRequest)
        self._messages += 1
        self.client = self.client or message.client
        for entry in message.inputs:
            self._take_entry(entry)
        if self._messages > STREAM_MESSAGES_MAX or len(self.inputs) > INPUTS_MAX or self.size_bytes > MESSAGE_BYTES_MAX:
            raise ProtocolError(
                f"a request with more than {INPUTS_MAX} inputs, {MESSAGE_BYTES_MAX} bytes or {STREAM_MESSAGES_MAX} messages"
            )
        if not message.more and self._begun is not None:
            raise ProtocolError("a request that ends within an input")
        return message.more

    def _take_entry(self, entry: inputs_pb2.GivenInput) -> None:
        self.size_bytes += len(entry.payload)
        if self._begun is None and not entry.more:
            self.inputs.append(_given(entry, entry.payload))
            return
        begun = self._begun or entry
        self._begun = begun
        self._parts.append(entry.payload)
        if not entry.more:
            self.inputs.append(_given(begun, b"".join(self._parts)))
            self._begun, self._parts = None, []


def _given(first: inputs_pb2.GivenInput, payload: bytes) -> GivenInput:
    """Return the input whose first (or only) entry is `first`."""
    return GivenInput(first.agent, first.key, payload, first.type, first.public_only)


def encode_outcomes(outcomes: Iterable[InputOutcome]) -> bytes:
    """Encode the answer to a request that contained inputs."""
    return inputs_pb2.OfferReply(outcomes=[_write_outcome(outcome) for outcome in outcomes]).SerializeToString()  # type: ignore[misc]  # each is one


def decode_outcomes(data: bytes) -> tuple[InputOutcome, ...]:
    """Decode a host's answer to a request that contained inputs.

    Raises:
        ProtocolError: the bytes are not a valid answer.
    """
    reply = parsed(inputs_pb2.OfferReply, data)
    assert isinstance(reply, inputs_pb2.OfferReply)
    return tuple([_read_outcome(outcome) for outcome in reply.outcomes])


# ---- answers ----------------------------------------------------------------------------------------------------------


def encode_ask(agent: str, key: str, *, is_early: bool) -> bytes:
    """Encode a request for the answer to an input."""
    return inputs_pb2.AskRequest(agent=agent, key=key, early=is_early).SerializeToString()


def decode_ask(data: bytes) -> tuple[str, str, bool]:
    """Decode a request for the answer to an input. Return the agent, the key, and whether an early answer is acceptable.

    Raises:
        ProtocolError: the bytes are not a valid request for an answer.
    """
    request = parsed(inputs_pb2.AskRequest, data)
    assert isinstance(request, inputs_pb2.AskRequest)
    return request.agent, request.key, request.early


def answer_messages(answer: AskOutcome) -> Iterator[bytes]:
    """Encode one answer, and yield its messages."""
    size = len(answer.body)
    yield inputs_pb2.AskReply(
        status=answer.status,
        number=answer.number,
        type=answer.type,
        body=answer.body[:PART_BYTES],
        reason=answer.reason,
        host=answer.host,
        address=answer.address,
        more=size > PART_BYTES,
    ).SerializeToString()
    for start in range(PART_BYTES, size, PART_BYTES):
        end = start + PART_BYTES
        yield inputs_pb2.AskReply(body=answer.body[start:end], more=size > end).SerializeToString()


class AnswerReader:
    """Reader that reassembles an answer from a stream of messages."""

    def __init__(self) -> None:
        self._first: inputs_pb2.AskReply | None = None
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def take(self, data: bytes) -> AskOutcome | None:
        """Process the next message of the stream. Return the answer if the message is the last one, otherwise None.

        Raises:
            ProtocolError: the message is invalid, or the answer exceeds the maximum size of a message between agents.
        """
        message = parsed(inputs_pb2.AskReply, data)
        assert isinstance(message, inputs_pb2.AskReply)
        self._first = first = self._first or message
        self._parts.append(message.body)
        self._size_bytes += len(message.body)
        if self._size_bytes > MESSAGE_BYTES_MAX or len(self._parts) > STREAM_MESSAGES_MAX:
            raise ProtocolError(f"an answer of more than {MESSAGE_BYTES_MAX} bytes or {STREAM_MESSAGES_MAX} messages")
        if message.more:
            return None
        body = b"".join(self._parts)
        return AskOutcome(first.status, first.number, first.type, body, first.reason, first.host, first.address)


_AGENTS = agents_pb2.DESCRIPTOR.services_by_name["Agents"]
AGENTS_SERVICE: str = _AGENTS.full_name
SHOW = "Show"
SHOW_PATH = f"/{AGENTS_SERVICE}/{SHOW}"

_KNOWN = (STATE, LIVE, DESCRIPTION, EFFECTS, APPROVALS, WAITING, TRACE)

_PARTS_MAX = VIEW_BYTES_MAX // PART_BYTES + 1


def encode_question(question: Question) -> bytes:
    """Encode a question about an agent or a host."""
    return agents_pb2.ShowRequest(agent=question.agent, what=question.what, field=question.field).SerializeToString()


def decode_question(data: bytes) -> Question:
    """Decode a question about an agent or a host.

    Raises:
        ProtocolError: the bytes are not a valid question.
    """
    request = parsed(agents_pb2.ShowRequest, data)
    assert isinstance(request, agents_pb2.ShowRequest)
    if request.what not in _KNOWN:
        raise ProtocolError(f"{request.what!r} is not a question that this version supports: {', '.join(_KNOWN)} can")
    return Question(request.agent, request.what, request.field)


def trace_question(wanted: TraceWanted) -> Question:
    """Return a question that requests part of a host's trace."""
    return Question("", TRACE, msgspec.json.encode(wanted).decode())


def trace_wanted(question: Question) -> TraceWanted:
    """Return which part of the trace the question requests.

    Raises:
        ProtocolError: the question does not specify which part of the trace is requested.
    """
    try:
        return msgspec.json.decode(question.field or "{}", type=TraceWanted)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"this says no part of a trace: {error}") from error


def retry_message(reason: str) -> bytes:
    """Encode the answer of a host that is currently unable to answer."""
    return agents_pb2.ShowReply(retry=reason).SerializeToString()


def view_messages(json: bytes) -> Iterator[bytes]:
    """Encode one document, and yield its messages."""
    for start in range(0, max(1, len(json)), PART_BYTES):
        end = start + PART_BYTES
        yield agents_pb2.ShowReply(json=json[start:end], more=end < len(json)).SerializeToString()


class ViewReader:
    """Reader that reassembles a document from a stream of messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, data: bytes) -> bytes | None:
        """Process the next message of the stream. Return the document if the message is the last one, otherwise None.

        Raises:
            ProtocolError: the message is invalid or the document exceeds the size limit.
            NotHereError: the host is currently unable to answer.
        """
        message = parsed(agents_pb2.ShowReply, data)
        assert isinstance(message, agents_pb2.ShowReply)
        if message.retry:
            raise NotHereError(message.retry)
        self._parts.append(message.json)
        if len(self._parts) > _PARTS_MAX:
            raise ProtocolError(f"an answer of more than {VIEW_BYTES_MAX} bytes")
        return None if message.more else b"".join(self._parts)

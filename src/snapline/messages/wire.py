"""Wire format of messages between hosts, tools and the coordinator. Structs are converted to protobuf messages and back by matching field
names.

The cores use msgspec structs. Protobuf is used only on the wire and in the log. A struct and the corresponding protobuf message have the
same field names. A tuple becomes a repeated field, a dict becomes a map that is decoded in sorted order, and a struct becomes a nested
message. A scalar is copied, and None becomes an absent field. A conversion function is compiled for each class when the class is first
used.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError, Message

from snapline.errors import ProtocolError
from snapline.messages.answers import (
    BackupReply,
    CheckTokenReply,
    Document,
    EndHostReply,
    EndReplicaReply,
    ForgetConsumerReply,
    ForgetHostReply,
    LeaderTransferred,
    LocateReply,
    MakeTokenReply,
    MoveAgentsReply,
    MoveConsumerReply,
    ReadAuditReply,
    ReadConsumersReply,
    ReadOutputsReply,
    ReadTokensReply,
    RecordCallReply,
    RecoveryHistoryReply,
    RecoveryLineReply,
    ReportHostBusyReply,
    ReportHostExitReply,
    RestorePreview,
    RestoreReply,
    RevokeTokenReply,
    SnapshotsReply,
)
from snapline.messages.host_messages import Directive, HostMessage, MessagePart
from snapline.messages.status import FleetStatus, SnapshotOutcome
from snapline.protos.v1 import coordinator_pb2

StructT = TypeVar("StructT", bound=msgspec.Struct)


@cache
def writer_of(struct_class: type[StructT], message_class: Callable[..., Message]) -> Callable[[StructT], Message]:
    """Return the function that converts instances of `struct_class` to `message_class` messages."""
    scope: dict[str, Any] = {"message": message_class}
    fields = [f"{field.name}={_written(field, message_class, scope)}" for field in msgspec.structs.fields(struct_class)]
    return _compiled(f"lambda value: message({', '.join(fields)})", scope)


@cache
def reader_of(struct_class: type[StructT]) -> Callable[[Message], StructT]:
    """Return the function that converts protobuf messages to instances of `struct_class`. Absent fields get the default values of
    protobuf."""
    scope: dict[str, Any] = {"struct": struct_class}
    fields = [_read(field, scope) for field in msgspec.structs.fields(struct_class)]
    return _compiled(f"lambda message: struct({', '.join(fields)})", scope)


def _written(field: msgspec.structs.FieldInfo, message_class: Any, scope: dict[str, Any]) -> str:
    """Return the source code of the expression that converts a struct field to a message field. If the value is None, the field is
    absent."""
    value, struct_class = f"value.{field.name}", _struct_in(field.type)
    if struct_class is None:
        return value
    write = f"write_{field.name}"
    scope[write] = writer_of(
        struct_class, message_class.DESCRIPTOR.fields_by_name[field.name].message_type._concrete_class
    )
    if _is_repeated(field.type):
        return f"[{write}(each) for each in {value}]"
    return f"None if {value} is None else {write}({value})" if _is_optional(field.type) else f"{write}({value})"


def _read(field: msgspec.structs.FieldInfo, scope: dict[str, Any]) -> str:
    """Return the source code of the expression that converts a message field to a struct field."""
    expression, struct_class = f"message.{field.name}", _struct_in(field.type)
    if struct_class is not None:
        read = f"read_{field.name}"
        scope[read] = reader_of(struct_class)
        expression = (
            f"tuple([{read}(each) for each in {expression}])" if _is_repeated(field.type) else f"{read}({expression})"
        )
    elif _is_repeated(field.type):
        expression = f"tuple({expression})"
    elif get_origin(field.type) is dict:
        expression = f"dict(sorted({expression}.items()))"
    return f"{expression} if message.HasField({field.name!r}) else None" if _is_optional(field.type) else expression


def _is_repeated(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the class of the structs that a field of this type contains, or None if it contains no structs."""
    of = get_args(kind)[0] if _is_repeated(kind) or _is_optional(kind) else kind
    return of if isinstance(of, type) and issubclass(of, msgspec.Struct) else None


def _compiled(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = eval(source, scope)  # the source is built only from field names
    return made


def structs_of(envelope_class: Callable[..., Message], base: type[StructT]) -> dict[str, type[StructT]]:
    """Map envelope fields to subclasses of `base`. Each subclass has the same name as the message type of its field."""
    described: Any = envelope_class
    fields = {field.message_type.name: field.name for field in described.DESCRIPTOR.oneofs_by_name["kind"].fields}
    return {fields.pop(struct.__name__): struct for struct in base.__subclasses__()}


def parsed(message_class: Callable[..., Message], data: bytes) -> Message:
    """Parse `data` as a `message_class` message. Raises ProtocolError if `data` is invalid."""
    message = message_class()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes that are no {type(message).__name__}: {error}") from error
    return message


class OneofCodec(Generic[StructT]):
    """Codec for structs that share a protobuf envelope. The envelope's `oneof kind` contains exactly one of the structs.

    Attributes:
        descriptor: protobuf descriptor of the envelope.
    """

    def __init__(self, envelope_class: Callable[..., Message], structs: Mapping[str, type[StructT]]) -> None:
        """Create a codec. `structs` maps the name of each field in the oneof to the struct class of the field."""
        # Generated classes have a descriptor, but the type stubs declare it only for the concrete class.
        described: Any = envelope_class
        self.descriptor: Any = described.DESCRIPTOR
        self._envelope_class = envelope_class
        self._structs = dict(structs)
        self._names = {struct: name for name, struct in structs.items()}
        self._messages = {name: self.descriptor.fields_by_name[name].message_type._concrete_class for name in structs}

    def wrap(self, value: StructT, **fields: object) -> Message:
        """Return an envelope whose oneof contains `value`. `fields` contains the values of the envelope's other fields."""
        name = self._names[type(value)]
        return self._envelope_class(**{name: self._message_of(name, value)}, **fields)

    def unwrap(self, envelope: Message) -> StructT:
        """Return the struct in the envelope's oneof.

        Raises:
            ProtocolError: the oneof is empty or contains a kind that is unknown to this version.
        """
        name = envelope.WhichOneof("kind")
        if name is None or name not in self._structs:
            raise ProtocolError(f"a {type(envelope).__name__} without a kind that this version knows")
        value: StructT = reader_of(self._structs[name])(getattr(envelope, name))
        return value

    def encode(self, value: StructT) -> bytes:
        """Encode an envelope that contains `value`."""
        return self.wrap(value).SerializeToString()

    def decode(self, data: bytes) -> StructT:
        """Decode an envelope, and return the struct that it contains.

        Raises:
            ProtocolError: the bytes are not an envelope, or it contains no kind that this version knows.
        """
        return self.unwrap(self.parse(data))

    def kind_bytes(self, value: StructT) -> bytes:
        """Return the canonical encoding of `value`, without an envelope. Equal values have equal encodings."""
        name = self._names[type(value)]
        return name.encode() + b"\0" + self._message_of(name, value).SerializeToString(deterministic=True)

    def parse(self, data: bytes) -> Message:
        """Parse `data` as an envelope message. Raises ProtocolError if `data` is invalid."""
        return parsed(self._envelope_class, data)

    def _message_of(self, name: str, value: StructT) -> Message:
        return writer_of(type(value), self._messages[name])(value)


_services: Any = coordinator_pb2.DESCRIPTOR.services_by_name
_CALLS: dict[str, Any] = {call.name: call for name in ("Coordinator", "People") for call in _services[name].methods}
ATTEND = f"/{_services['Coordinator'].full_name}/Attend"
"""Full name of the gRPC call that opens a host's stream."""

PART_BYTES = 1024 * 1024
"""Size in bytes of the parts into which larger messages are split, such as a report about many thousand agents. A server accepts at most 2
MiB per message."""

host_messages: OneofCodec[HostMessage] = OneofCodec(
    coordinator_pb2.HostMessage, structs_of(coordinator_pb2.HostMessage, HostMessage)
)
directives: OneofCodec[Directive] = OneofCodec(
    coordinator_pb2.Directive, structs_of(coordinator_pb2.Directive, Directive)
)

snapshots_replies: OneofCodec[SnapshotsReply] = OneofCodec(
    coordinator_pb2.SnapshotsReply, structs_of(coordinator_pb2.SnapshotsReply, SnapshotsReply)
)
recovery_line_replies: OneofCodec[RecoveryLineReply] = OneofCodec(
    coordinator_pb2.RecoveryLineReply, structs_of(coordinator_pb2.RecoveryLineReply, RecoveryLineReply)
)

_envelopes: dict[str, OneofCodec[Any]] = {
    "SnapshotsReply": snapshots_replies,
    "RecoveryLineReply": recovery_line_replies,
}
_replies: dict[str, type[msgspec.Struct]] = {
    struct.__name__: struct
    for struct in (
        *(
            BackupReply,
            Document,
            EndHostReply,
            EndReplicaReply,
            FleetStatus,
            ForgetHostReply,
            LeaderTransferred,
            LocateReply,
        ),
        *(
            RecoveryHistoryReply,
            ReportHostExitReply,
            ReportHostBusyReply,
            RestorePreview,
            RestoreReply,
            SnapshotOutcome,
        ),
        *(ForgetConsumerReply, MoveAgentsReply, MoveConsumerReply, ReadConsumersReply, ReadOutputsReply),
        *(MakeTokenReply, RevokeTokenReply, ReadTokensReply, CheckTokenReply, RecordCallReply, ReadAuditReply),
    )
}

encode_host_message: Callable[[HostMessage], bytes] = host_messages.encode
decode_host_message: Callable[[bytes], HostMessage] = host_messages.decode
encode_directive: Callable[[Directive], bytes] = directives.encode
decode_directive: Callable[[bytes], Directive] = directives.decode


def path_of(call: str) -> str:
    """Return the full gRPC method name of a tool's call."""
    return f"/{_CALLS[call].containing_service.full_name}/{call}"


def encode_request(call: str, /, **fields: object) -> bytes:
    """Encode a tool's request for this call."""
    request: Message = _CALLS[call].input_type._concrete_class(**fields)
    return request.SerializeToString()


def decode_reply(call: str, data: bytes) -> Any:  # each call has its own type of answer
    """Decode the coordinator's reply to this call.

    Raises:
        ProtocolError: the bytes are not a reply to this call, or were written by a later version.
    """
    kind = _CALLS[call].output_type
    if kind.name in _envelopes:
        return _envelopes[kind.name].decode(data)
    return reader_of(_replies[kind.name])(parsed(kind._concrete_class, data))


def in_parts(data: bytes) -> Iterator[bytes]:
    """Yield a host's encoded message for sending. If the message is larger than `PART_BYTES`, split it into several `MessagePart`
    messages."""
    if len(data) <= PART_BYTES:
        yield data
        return
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield encode_host_message(MessagePart(data[start:end], end >= len(data)))

"""Wire format of messages between hosts, tools and the coordinator."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from google.protobuf.message import Message

from snapline.messages import planned_ends  # noqa: F401  # its structs are kinds of the envelopes below
from snapline.messages.answers import (
    BackupReply,
    Document,
    EndHostReply,
    EndReplicaReply,
    ForgetHostReply,
    LeaderTransferred,
    LocateReply,
    MoveAgentsReply,
    RecoveryHistoryReply,
    RecoveryLineReply,
    ReportHostBusyReply,
    ReportHostExitReply,
    RestorePreview,
    RestoreReply,
    SnapshotsReply,
)
from snapline.messages.codec import OneofCodec, parsed, reader_of, structs_of
from snapline.messages.host_messages import Directive, HostMessage, MessagePart
from snapline.messages.outputs import (
    ForgetConsumerReply,
    MoveConsumerReply,
    ReadConsumersReply,
    ReadOutputsReply,
)
from snapline.messages.status import FleetStatus, SnapshotOutcome
from snapline.messages.users import (
    CheckTokenReply,
    MakeTokenReply,
    ReadAuditReply,
    ReadTokensReply,
    RecordCallReply,
    RevokeTokenReply,
)
from snapline.protos.v1 import coordinator_pb2

_services: Any = coordinator_pb2.DESCRIPTOR.services_by_name
_CALLS: dict[str, Any] = {call.name: call for name in ("Coordinator", "People") for call in _services[name].methods}
ATTEND = f"/{_services['Coordinator'].full_name}/Attend"
"""Full name of the call that opens a host's stream."""

PART_BYTES = 1024 * 1024
"""Larger messages, such as reports of many thousand agents, are split into parts of this size: a server accepts at most 2 MiB at once."""

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
    """Return the full name of a tool's call."""
    return f"/{_CALLS[call].containing_service.full_name}/{call}"


def encode_request(call: str, /, **fields: object) -> bytes:
    """Encode a tool's request for this call."""
    request: Message = _CALLS[call].input_type._concrete_class(**fields)
    return request.SerializeToString()


def decode_reply(call: str, data: bytes) -> Any:  # each call has an answer of its own
    """Decode the coordinator's reply to this call.

    Raises:
        ProtocolError: the bytes are no reply to this call, or one of a later version.
    """
    kind = _CALLS[call].output_type
    if kind.name in _envelopes:
        return _envelopes[kind.name].decode(data)
    return reader_of(_replies[kind.name])(parsed(kind._concrete_class, data))


def in_parts(data: bytes) -> Iterator[bytes]:
    """Split a host's message into the messages that go on the wire."""
    if len(data) <= PART_BYTES:
        yield data
        return
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield encode_host_message(MessagePart(data[start:end], end >= len(data)))

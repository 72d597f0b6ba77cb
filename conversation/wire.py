"""What hosts, tools and the coordinator say to each other, on the wire."""

from collections.abc import Callable, Iterator

from snapline.conversation.answers import RecoveryLineReply, SnapshotsReply
from snapline.conversation.codec import OneofCodec, structs_of
from snapline.conversation.messages import Directive, HostMessage, MessagePart
from snapline.protos.v1 import coordinator_pb2

ATTEND = "/snapline.protos.v1.Coordinator/Attend"
"""The call of a host's stream."""

PART_BYTES = 1024 * 1024
"""Larger messages, reports of many thousand agents, go in parts of this size: a server takes no more than 2 MiB at once."""

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

encode_host_message: Callable[[HostMessage], bytes] = host_messages.encode
decode_host_message: Callable[[bytes], HostMessage] = host_messages.decode
encode_directive: Callable[[Directive], bytes] = directives.encode
decode_directive: Callable[[bytes], Directive] = directives.decode


def in_parts(data: bytes) -> Iterator[bytes]:
    """A host's message, as the messages that go on the wire."""
    if len(data) <= PART_BYTES:
        yield data
        return
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield encode_host_message(MessagePart(data[start:end], end >= len(data)))

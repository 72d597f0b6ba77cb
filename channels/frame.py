"""Defines the frames of a link and encodes them. Of all modules for links, only this one uses protobuf.

A frame is a batch of items in parallel columns, which protobuf fills and reads in C, so each additional message in a frame costs only about
0.1 µs. Before a peer's frame is used, this module checks the frame's columns and sizes, and the stated size of lz4 bodies.
`snapline.channels.link` checks the numbers. Every violation raises `ProtocolError` (G11).

Before a message is parsed, `check_counts` estimates its parsed size from its bytes. An empty string takes two bytes on the wire, but about
a hundred bytes as a Python object. A number takes one byte on the wire, but about forty bytes as a Python object. So a message of 16 MiB
that respects every size limit could still take gigabytes of memory once it is parsed. Counting allocates no objects. `check_counts`
descends into nested messages, counts packed numbers in C, and stops as soon as a limit is exceeded.
"""

import struct
from functools import cache
from typing import Any

import lz4.block
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from msgspec import Struct

from snapline.channels.channel import PART_BYTES
from snapline.errors import ProtocolError
from snapline.protos.v1 import link_pb2

_CONTINUED = bytes(range(0x80, 0x100))
"""All byte values that can occur in a varint before its last byte."""

_NUMBER_BYTES_MAX = 10

_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5

_Shape = dict[int, "_Shape | None"]
"""Field number → the shape of a nested message, or None for a field of numbers. String and bytes fields are omitted."""


def check_counts(data: bytes, kind: Any, *, entries_max: int, numbers_max: int) -> None:
    """Reject a message that contains too many fields, including the fields of nested messages, or too many packed numbers.

    `kind` is the DESCRIPTOR of the message's class.

    Raises:
        ProtocolError: If the message exceeds a limit, or its last field extends beyond the end of the message.
    """
    entries = numbers = 0
    waiting = [(_shape_of(kind), 0, len(data))]
    while waiting:
        shape, at, end = waiting.pop()
        while at < end:
            entries += 1
            key, at = _read_varint(data, at, end)
            start, at = _skip(data, key & 7, at, end)
            field = key >> 3
            if key & 7 == _SIZED and field in shape:
                nested = shape[field]
                if nested is not None:
                    waiting.append((nested, start, at))
                elif at - start > numbers_max * _NUMBER_BYTES_MAX:
                    numbers = numbers_max + 1
                else:
                    numbers += len(data[start:at].translate(None, _CONTINUED))
            if entries > entries_max or numbers > numbers_max:
                raise ProtocolError(
                    f"a {kind.name} of {len(data)} bytes with more than "
                    f"{entries_max} entries or {numbers_max} numbers: nothing of it is read"
                )


def _skip(data: bytes, wire: int, at: int, end: int) -> tuple[int, int]:
    """Return the offsets at which a field's value starts and ends."""
    if wire == _VARINT:
        return at, _read_varint(data, at, end)[1]
    size, start = (8 if wire == _FIXED_64 else 4, at) if wire in (_FIXED_64, _FIXED_32) else (0, at)
    if wire == _SIZED:
        size, start = _read_varint(data, at, end)
    elif not size:
        raise ProtocolError(f"{len(data)} bytes with a field of the unknown wire type {wire}")
    if size > end - start:
        raise ProtocolError(f"{len(data)} bytes with a field of {size} where {end - start} are left")
    return start, start + size


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 7 * _NUMBER_BYTES_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtocolError(f"{len(data)} bytes with a number that does not end")


@cache
def _shape_of(kind: Any) -> _Shape:
    shape: _Shape = {}
    for field in kind.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            shape[field.number] = _shape_of(field.message_type)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            shape[field.number] = None
    return shape


FRAME_ITEMS_MAX = 512
"""Largest number of items per frame. The limit keeps the time short for which a marker may have to wait behind a frame. Throughput is 272 k
items/s, compared with 349 k items/s for a limit of 2,048 items."""

FRAME_BYTES_MAX = 256 * 1024
"""Largest number of payload bytes per frame. Only a frame with a single, larger payload exceeds this size."""

LARGE_BYTES = 64 * 1024
"""A payload of at least this size in bytes gets a frame of its own, since batching it would gain nothing and would delay other items."""

LARGE_ITEMS = FRAME_ITEMS_MAX // 2
"""A frame with at least this number of items counts as large, whatever the size of the items."""

CREDITS_MAX = 4096
"""Largest number of channel credits per frame, which take about 40 KB. Further credits wait for the next frame."""

LZ4_BYTES_MIN = 4096
"""Smallest size in bytes of a body that is worth compressing."""

LZ4_GAIN = 0.9
"""A compressed body is used only if it is smaller than this fraction of the original."""

BODY_BYTES_MAX = 2 * 1024 * 1024
"""Largest size in bytes of a decompressed item body. It leaves room for a part of 1 MiB or for 256 KiB of payloads, plus columns and
piggybacks."""

UNCOUNTED_BYTES_MAX = 512 * 1024
"""Largest size in bytes of a frame that is parsed without counting its entries. Even if such a frame consists of the shortest possible
entries, the parsed frame takes only 4 MiB. Larger frames are rare."""

ENTRIES_MAX = 4 * FRAME_ITEMS_MAX
NUMBERS_MAX = 2 * CREDITS_MAX + 3 * FRAME_ITEMS_MAX
"""Largest number of entries in a frame (such as payloads and piggybacks), and largest number of integers in its columns."""

MARKER_CHANNELS_MAX = 32_768
"""Largest number of channels per marker item. It keeps the item smaller than half of `PART_BYTES`. A larger marker is sent as several
items."""

_LZ4_RATIO_MAX = 255
"""Largest possible expansion of an lz4 block. If the stated size is larger, it is false."""

_ITEMS_TAG = bytes([link_pb2.Frame.ITEMS_FIELD_NUMBER << 3 | 2])
_PAYLOAD_TAG = bytes([link_pb2.Items.PAYLOAD_FIELD_NUMBER << 3 | 2])

_SIZE = struct.Struct("<I")


class Items(Struct, gc=False):
    """The items of a frame in parallel columns, with one entry per item. `epoch` has either a single entry for all items or one entry per
    item. `piggyback` and `more` may be empty."""

    channel: list[int]
    payload: list[bytes]
    epoch: list[int]
    piggyback: list[bytes] = []
    more: list[int] = []


def is_small(items: Items) -> bool:
    """Return whether a frame with these items counts as small, so that its overhead is large compared with its contents. Sender and
    receiver use the same rule to count small frames."""
    return len(items.channel) < LARGE_ITEMS and sum(map(len, items.payload)) < LARGE_BYTES


class LinkHello(Struct, frozen=True, gc=False):
    """The first message that a host sends on a stream. The message contains the host's identity, start number, attempt number and plan, and
    the highest link number received. `floor` is the newest epoch that had begun before the link was established."""

    cluster: str
    host: str
    host_start: int
    peer_start: int
    attempt: int
    plan: int
    received: int
    version: int
    floor: int = 0


class Refused(Struct, frozen=True, gc=False):
    """The peer's refusal of a stream. If the refusal is not final, the refused host may try again later."""

    reason: str
    is_final: bool


class Bye(Struct, frozen=True, gc=False):
    """Marks the clean end of a link. The sender of the Bye sends no more items, and the peer has acked all its items."""


class Frame(Struct, gc=False):
    """One gRPC message on a link. Item i of the body has link number `first_number + i`. Acks, grants and credits are absolute values."""

    first_number: int = 0
    ack: int = 0
    grant_items: int = 0
    grant_bytes: int = 0
    credit_channel: list[int] = []
    credit_number: list[int] = []
    body: Items | LinkHello | Refused | Bye | None = None


class OpenChannel(Struct, frozen=True, gc=False):
    """A control item that binds a channel number to two agents and their incarnations."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class Marker(Struct, frozen=True, gc=False):
    """A control item stating that, on each `channels[i]`, the messages up to `last_numbers[i]` were sent before the sender recorded its
    state for `epoch`."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]
    is_last: bool = True


class CloseChannel(Struct, frozen=True, gc=False):
    """A control item stating that a channel's sender has left permanently. If `by_receiver` is set, it states that the receiver of a
    channel opened by the peer has left permanently."""

    channel: int
    by_receiver: bool


def encode_frame(frame: Frame, *, compress: bool = False) -> bytes:
    """Encode a frame. If `compress` is set, the item body is compressed with lz4, provided that this makes it small enough. Compression
    costs CPU time, so it is used only between different machines."""
    message = link_pb2.Frame(
        first_number=frame.first_number, ack=frame.ack, grant_items=frame.grant_items, grant_bytes=frame.grant_bytes
    )
    if frame.credit_channel:
        message.credit_channel.extend(frame.credit_channel)
        message.credit_number.extend(frame.credit_number)
    body = frame.body
    if body is None:
        pass
    elif type(body) is Items:
        if compress:
            _put_compressed(message, body)
        elif (size := sum(map(len, body.payload))) >= LARGE_BYTES:
            return _join_payloads(message, body, size)
        else:
            _fill_items(message.items, body)
    elif type(body) is LinkHello:
        _fill_hello(message.hello, body)
    elif type(body) is Refused:
        message.refused.reason = body.reason
        message.refused.is_final = body.is_final
    else:
        message.bye.SetInParent()
    return message.SerializeToString()


def _join_payloads(message: link_pb2.Frame, items: Items, size_bytes: int) -> bytes:
    """Encode a frame that has large payloads, and append the payloads without protobuf. Each payload is then copied only once, while
    protobuf copies it three times.

    The encoded frame contains its `items` field twice, first with the columns and then with the payloads. Every protobuf parser merges the
    two occurrences.
    """
    _fill_items(message.items, Items(items.channel, [], items.epoch, items.piggyback, items.more))
    heads = list(map(_payload_heads.__getitem__, map(len, items.payload)))
    pieces = [b""] * (2 * len(heads) + 2)
    pieces[2::2] = heads
    pieces[3::2] = items.payload
    pieces[0] = message.SerializeToString()
    pieces[1] = _ITEMS_TAG + _varint(size_bytes + sum(map(len, heads)))
    return b"".join(pieces)


class _PayloadHeads(dict[int, bytes]):
    """Caches the bytes that precede a payload (tag and length), by payload size. The cache holds at most `_HEADS_MAX` entries."""

    def __missing__(self, size: int) -> bytes:
        head = _PAYLOAD_TAG + _varint(size)
        if len(self) < _HEADS_MAX:
            self[size] = head
        return head


_HEADS_MAX = 4096
"""Largest number of cached sizes, which take about 400 KB. Real messages have few different sizes, and an uncached size costs only 1 µs."""

_payload_heads = _PayloadHeads()


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fill_items(message: link_pb2.Items, items: Items) -> None:
    message.channel.extend(items.channel)
    message.payload.extend(items.payload)
    message.epoch.extend(items.epoch)
    if items.piggyback:
        message.piggyback.extend(items.piggyback)
    if items.more:
        message.more.extend(items.more)


def _fill_hello(message: link_pb2.Hello, hello: LinkHello) -> None:
    message.cluster = hello.cluster
    message.host = hello.host
    message.host_start = hello.host_start
    message.peer_start = hello.peer_start
    message.attempt = hello.attempt
    message.plan = hello.plan
    message.received = hello.received
    message.version = hello.version
    message.floor = hello.floor


def _put_compressed(message: link_pb2.Frame, items: Items) -> None:
    body = link_pb2.Items()
    _fill_items(body, items)
    data = body.SerializeToString()
    if len(data) >= LZ4_BYTES_MIN:
        packed = lz4.block.compress(data, store_size=True)
        if len(packed) < LZ4_GAIN * len(data):
            message.items_lz4 = packed
            return
    message.items.CopyFrom(body)


def decode_frame(data: bytes) -> Frame:
    """Decode and check a peer's frame.

    Raises:
        ProtocolError: If the data is not a frame, the columns differ in length, the body is too large, or the body's stated size is false.
    """
    if len(data) > UNCOUNTED_BYTES_MAX:
        check_counts(data, link_pb2.Frame.DESCRIPTOR, entries_max=ENTRIES_MAX, numbers_max=NUMBERS_MAX)
    try:
        message = link_pb2.Frame.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(data)} bytes cannot be decoded: {error}") from error
    frame = Frame(message.first_number, message.ack, message.grant_items, message.grant_bytes)
    if message.credit_channel or message.credit_number:
        if max(len(message.credit_channel), len(message.credit_number)) > CREDITS_MAX:
            raise ProtocolError(f"a frame with {len(message.credit_channel)} credits; {CREDITS_MAX} are allowed")
        frame.credit_channel = message.credit_channel[:]
        frame.credit_number = message.credit_number[:]
        if len(frame.credit_channel) != len(frame.credit_number):
            raise ProtocolError(
                f"{len(frame.credit_channel)} credit channels with {len(frame.credit_number)} credit numbers"
            )
    kind = message.WhichOneof("body")
    if kind == "items":
        frame.body = _read_items(message.items)
    elif kind == "items_lz4":
        frame.body = _read_items(_unpack(message.items_lz4))
    elif kind is not None:
        frame.body = _read_body(message, kind)
    if type(frame.body) is Items and not frame.first_number:
        raise ProtocolError("items without a link number")
    return frame


def _read_body(message: link_pb2.Frame, kind: str) -> LinkHello | Refused | Bye:
    if kind == "hello":
        hello = message.hello
        return LinkHello(
            cluster=hello.cluster,
            host=hello.host,
            host_start=hello.host_start,
            peer_start=hello.peer_start,
            attempt=hello.attempt,
            plan=hello.plan,
            received=hello.received,
            version=hello.version,
            floor=hello.floor,
        )
    if kind == "refused":
        return Refused(message.refused.reason, message.refused.is_final)
    return Bye()


def _read_items(message: link_pb2.Items) -> Items:
    _check_columns(message)
    items = Items(message.channel[:], message.payload[:], message.epoch[:])
    if message.piggyback:
        items.piggyback = message.piggyback[:]
    if message.more:
        items.more = message.more[:]
    if max(map(len, items.payload)) > PART_BYTES:
        raise ProtocolError(f"an item of {max(map(len, items.payload))} bytes; parts end at {PART_BYTES}")
    return items


def _check_columns(items: link_pb2.Items) -> None:
    """Check the number of items and the lengths of the columns before the columns are read. Raise ProtocolError if any of them is
    invalid."""
    count = len(items.channel)
    if not 1 <= count <= FRAME_ITEMS_MAX:
        raise ProtocolError(f"a frame with {count} items; 1 to {FRAME_ITEMS_MAX} are allowed")
    lengths = (len(items.payload), len(items.epoch), len(items.piggyback), len(items.more))
    if (
        lengths[0] != count
        or lengths[1] not in (1, count)
        or lengths[2] not in (0, count)
        or lengths[3] not in (0, count)
    ):
        raise ProtocolError(
            f"columns of {count} items differ: payload {lengths[0]}, epoch {lengths[1]}, "
            f"piggyback {lengths[2]}, more {lengths[3]}"
        )


def _unpack(packed: bytes) -> link_pb2.Items:
    if len(packed) < _SIZE.size:
        raise ProtocolError("an lz4 body without a size")
    (size,) = _SIZE.unpack_from(packed)
    if size > BODY_BYTES_MAX or size > _LZ4_RATIO_MAX * len(packed):
        raise ProtocolError(f"an lz4 body of {len(packed)} bytes states {size} bytes; {BODY_BYTES_MAX} are allowed")
    try:
        data = lz4.block.decompress(packed)
        if len(data) > UNCOUNTED_BYTES_MAX:
            check_counts(data, link_pb2.Items.DESCRIPTOR, entries_max=ENTRIES_MAX, numbers_max=NUMBERS_MAX)
        return link_pb2.Items.FromString(data)
    except (lz4.block.LZ4BlockError, DecodeError) as error:
        raise ProtocolError(f"an lz4 body of {len(packed)} bytes cannot be unpacked: {error}") from error


def encode_open(opened: OpenChannel) -> bytes:
    """Return the payload of a control item that opens a channel."""
    control = link_pb2.Control()
    message = control.open
    message.id = opened.channel
    setattr(message, "from", opened.sender)  # `from` is a Python keyword
    message.to = opened.receiver
    message.from_incarnation = opened.sender_incarnation
    message.to_incarnation = opened.receiver_incarnation
    message.first_number = opened.first_number
    return control.SerializeToString()


def encode_marker(marker: Marker) -> bytes:
    """Return the payload of a control item that is a marker."""
    control = link_pb2.Control()
    control.marker.epoch = marker.epoch
    control.marker.channel.extend(marker.channels)
    control.marker.last_number.extend(marker.last_numbers)
    control.marker.more = not marker.is_last
    return control.SerializeToString()


def encode_close(closed: CloseChannel) -> bytes:
    """Return the payload of a control item that closes a channel."""
    control = link_pb2.Control()
    control.close.id = closed.channel
    control.close.by_receiver = closed.by_receiver
    return control.SerializeToString()


def decode_control(payload: bytes) -> OpenChannel | Marker | CloseChannel:
    """Decode a control item.

    Raises:
        ProtocolError: If the payload is not a control item, or its columns differ in length.
    """
    try:
        control = link_pb2.Control.FromString(payload)
    except DecodeError as error:
        raise ProtocolError(f"a control item of {len(payload)} bytes cannot be decoded: {error}") from error
    match control.WhichOneof("kind"):
        case "open":
            return _read_open(control.open)
        case "marker":
            return _read_marker(control.marker)
        case "close":
            return CloseChannel(control.close.id, control.close.by_receiver)
        case _:
            raise ProtocolError("a control item of no known kind")


def _read_marker(message: link_pb2.Marker) -> Marker:
    lengths = (len(message.channel), len(message.last_number))
    if lengths[0] != lengths[1]:
        raise ProtocolError(f"a marker of {lengths[0]} channels with {lengths[1]} numbers")
    if lengths[0] > MARKER_CHANNELS_MAX:
        raise ProtocolError(f"a marker of {lengths[0]} channels; {MARKER_CHANNELS_MAX} are allowed")
    return Marker(message.epoch, message.channel[:], message.last_number[:], not message.more)


def _read_open(message: link_pb2.OpenChannel) -> OpenChannel:
    opened = OpenChannel(
        channel=message.id,
        sender=getattr(message, "from"),
        receiver=message.to,
        sender_incarnation=message.from_incarnation,
        receiver_incarnation=message.to_incarnation,
        first_number=message.first_number,
    )
    if opened.channel < 1 or opened.first_number < 1 or not opened.sender or not opened.receiver:
        raise ProtocolError(f"an impossible channel is opened: {opened}")
    return opened

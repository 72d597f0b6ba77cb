"""Counting a message in its bytes: what is counted is what parsing would make, and bombs are refused before it."""

import contextlib
import random
import tracemalloc

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from snapline.channels import frame
from snapline.channels.frame import (
    CREDITS_MAX,
    FRAME_ITEMS_MAX,
    Frame,
    Items,
    check_counts,
    decode_control,
    decode_frame,
    encode_frame,
)
from snapline.coordinator.service.servicer import read_host_message
from snapline.errors import ProtocolError
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import link_pb2

MIB = 1024 * 1024


def sized(tag: int, content: bytes) -> bytes:
    """A field of length-delimited content."""
    size, encoded = len(content), bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([tag << 3 | 2]) + bytes(encoded) + bytes([size]) + content


def is_within(message: Message, entries: int, numbers: int) -> bool:
    try:
        check_counts(message.SerializeToString(), message.DESCRIPTOR, entries_max=entries, numbers_max=numbers)
    except ProtocolError:
        return False
    return True


@given(st.lists(st.text(max_size=9), max_size=20), st.lists(st.integers(0, 2**64 - 1), max_size=50), st.booleans())
def test_what_is_counted_is_what_there_is(names: list[str], numbers: list[int], has_pack: bool) -> None:
    pack = pb.ReportedPack(path="p", size_bytes=1) if has_pack else None
    report = pb.EpochReport(epoch=1, names=names, sent_number=numbers, unborn=[True] * len(names), pack=pack)
    entries = 1 + 1 + len(names) + bool(numbers) + bool(names) + 3 * has_pack
    counts = (entries, len(numbers) + len(names))
    message = pb.HostMessage(epoch_report=report)
    assert is_within(message, *counts)
    assert not is_within(message, counts[0] - 1, counts[1])
    assert not counts[1] or not is_within(message, counts[0], counts[1] - 1)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        check_counts(data, link_pb2.Frame.DESCRIPTOR, entries_max=1000, numbers_max=1000)


def test_fields_of_groups_are_refused() -> None:
    with pytest.raises(ProtocolError, match="wire type 3"):
        check_counts(b"\x0b\x0c", link_pb2.Frame.DESCRIPTOR, entries_max=10, numbers_max=10)


EMPTY_PAYLOADS = sized(7, b"\x12\x00" * MIB)
CREDITS = sized(5, b"\x01" * MIB)
BOMBS = {
    "empty payloads": b"\x08\x01" + EMPTY_PAYLOADS,
    "many credits": CREDITS,
    "channels of items": b"\x08\x01" + sized(7, sized(1, b"\x01" * MIB)),
    "items in a thousand pieces": b"\x08\x01" + sized(7, b"\x12\x00" * 500) * 1000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_frame_with_millions_of_counts_costs_nothing(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="nothing of it is read"):
            decode_frame(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB + 65_536  # one copy of a column, to count it
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x01" + sized(7, b"\x12\x00" * 100_000),
        sized(5, b"\x01" * (CREDITS_MAX + 1)) + sized(6, b"\x01" * (CREDITS_MAX + 1)),
        sized(6, b"\x01" * 100_000),
    ],
    ids=["payloads", "credits", "numbers of no credits"],
)
def test_what_is_parsed_uncounted_is_refused_before_it_becomes_objects(data: bytes) -> None:
    assert len(data) <= frame.UNCOUNTED_BYTES_MAX
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_frame(data)
        assert tracemalloc.get_traced_memory()[1] < 65_536
    finally:
        tracemalloc.stop()


def test_a_marker_of_too_many_channels_is_refused() -> None:
    columns = [1] * (frame.MARKER_CHANNELS_MAX + 1)
    control = link_pb2.Control(marker=link_pb2.Marker(epoch=1, channel=columns, last_number=columns))
    with pytest.raises(ProtocolError, match="channels"):
        decode_control(control.SerializeToString())


def test_the_largest_frames_pass() -> None:
    draw = random.Random(1)
    count = FRAME_ITEMS_MAX
    column = [draw.randbytes(700) + bytes(700) for _ in range(count)]
    body = Items([2**32 - 1] * count, column, [2**64 - 1] * count, column)
    body.more = [1] * count
    full = Frame(1, 2, 3, 4, list(range(CREDITS_MAX)), [2**64 - 1] * CREDITS_MAX, body)
    for is_compressed in (False, True):
        data = encode_frame(full, compress=is_compressed)
        assert len(data) > frame.UNCOUNTED_BYTES_MAX and decode_frame(data) == full


def test_a_host_cannot_say_millions_of_names() -> None:
    with pytest.raises(ProtocolError, match="nothing of it is read"):
        read_host_message(sized(5, b"\x22\x00" * MIB))


def test_the_report_of_a_host_with_all_agents_passes() -> None:
    names = [f"agent-{number:06}" for number in range(20_000)]
    columns = [number % 20_000 for number in range(200_000)]
    report = pb.EpochReport(
        epoch=1,
        names=names,
        agents=range(20_000),
        unborn=[False] * 20_000,
        **dict.fromkeys(("sent_from", "sent_to", "received_from", "received_to"), columns),  # type: ignore[arg-type]
        sent_number=columns,
        received_number=columns,
        recorded_count=columns,
    )
    found = read_host_message(pb.HostMessage(epoch_report=report).SerializeToString())
    assert found.names == tuple(names)  # type: ignore[attr-defined]  # an EpochReport

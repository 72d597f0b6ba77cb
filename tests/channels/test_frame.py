"""Frames: what is encoded comes back; what is damaged, lying or misshapen is a ProtocolError and nothing else (G11)."""

import contextlib
import random
import struct

import lz4.block
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.channels.channel import PART_BYTES
from snapline.channels.frame import (
    BODY_BYTES_MAX,
    FRAME_ITEMS_MAX,
    Bye,
    Frame,
    Items,
    LinkHello,
    Marker,
    OpenChannel,
    Refused,
    decode_control,
    decode_frame,
    encode_frame,
    encode_marker,
    encode_open,
)
from snapline.errors import ProtocolError
from snapline.protos.v1 import link_pb2

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)


@st.composite
def items(draw: st.DrawFn) -> Items:
    count = draw(st.integers(1, 20))
    column = st.lists(uint64, min_size=count, max_size=count)
    payloads = st.lists(st.binary(max_size=600), min_size=count, max_size=count)
    return Items(
        channel=draw(st.lists(uint32, min_size=count, max_size=count)),
        payload=draw(payloads),
        epoch=draw(st.one_of(st.lists(uint64, min_size=1, max_size=1), column)),
        piggyback=draw(st.one_of(st.just([]), payloads)),
        more=draw(st.one_of(st.just([]), st.lists(st.integers(0, 1), min_size=count, max_size=count))),
    )


hellos = st.builds(
    LinkHello,
    cluster=st.text(max_size=20),
    host=st.text(max_size=20),
    host_start=uint64,
    peer_start=uint64,
    attempt=uint64,
    plan=uint64,
    received=uint64,
    version=uint32,
)
bodies = st.one_of(st.none(), items(), hellos, st.builds(Refused, st.text(), st.booleans()), st.just(Bye()))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    credits = draw(st.dictionaries(uint32, uint64, max_size=10))
    return Frame(
        first_number=draw(st.integers(1, 2**64 - 1)),
        ack=draw(uint64),
        grant_items=draw(uint64),
        grant_bytes=draw(uint64),
        credit_channel=list(credits),
        credit_number=list(credits.values()),
        body=draw(bodies),
    )


@given(frames(), st.booleans())
def test_a_frame_comes_back_as_it_was(frame: Frame, compress: bool) -> None:
    assert decode_frame(encode_frame(frame, compress=compress)) == frame


def test_large_payloads_come_back_as_they_were() -> None:
    for size in (65_535, 65_536, PART_BYTES):
        frame = Frame(7, 1, 2, 3, [4], [5], Items([1], [random.Random(size).randbytes(size)], [9], [b"p"], [1]))
        assert decode_frame(encode_frame(frame)) == frame


@given(
    st.lists(st.sampled_from((0, 1, 127, 128, 1000, 16_383, 16_384, 65_535)), min_size=5, max_size=60), st.booleans()
)
def test_frames_joined_by_hand_come_back_as_they_were(sizes: list[int], with_columns: bool) -> None:
    payloads = [bytes([index]) * size for index, size in enumerate(sizes)]
    body = Items(list(range(len(sizes))), payloads, [3])
    if with_columns:
        body = Items(body.channel, payloads, body.channel, payloads, [1] * len(sizes))
    frame = Frame(7, 1, 2, 3, [4], [5], body)
    assert decode_frame(encode_frame(frame)) == frame


def test_compression_is_used_only_where_asked_and_worth_it() -> None:
    dull = Frame(1, body=Items([1] * 100, [bytes(100)] * 100, [1]))
    noise = Frame(1, body=Items([1], [random.Random(1).randbytes(8000)], [1]))
    small = Frame(1, body=Items([1], [bytes(1000)], [1]))
    assert len(encode_frame(dull, compress=True)) < 1000 < len(encode_frame(dull))
    assert len(encode_frame(noise, compress=True)) == len(encode_frame(noise))
    assert len(encode_frame(small, compress=True)) == len(encode_frame(small))


def lz4_frame(stated: int, packed: bytes) -> bytes:
    return link_pb2.Frame(first_number=1, items_lz4=struct.pack("<I", stated) + packed).SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        lz4_frame(BODY_BYTES_MAX + 1, bytes(100_000)),
        lz4_frame(2**32 - 1, bytes(100)),
        lz4_frame(2_000_000, lz4.block.compress(bytes(1000), store_size=False)),
        lz4_frame(10, lz4.block.compress(bytes(1000), store_size=False)),
        lz4_frame(1000, b"\xff" * 50),
        lz4_frame(4, lz4.block.compress(b"\xff" * 4, store_size=False)),
        link_pb2.Frame(first_number=1, items_lz4=b"abc").SerializeToString(),
    ],
    ids=["above the limit", "4 GiB", "impossible ratio", "larger than stated", "no lz4", "no items", "no size"],
)
def test_lz4_bombs_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(data)


@pytest.mark.parametrize(
    "body",
    [
        link_pb2.Items(),
        link_pb2.Items(channel=[1], payload=[], epoch=[1]),
        link_pb2.Items(channel=[1], payload=[b"", b""], epoch=[1]),
        link_pb2.Items(channel=[1, 2, 3], payload=[b""] * 3, epoch=[1, 2]),
        link_pb2.Items(channel=[1], payload=[b""], epoch=[]),
        link_pb2.Items(channel=[1, 2], payload=[b""] * 2, epoch=[1], piggyback=[b""]),
        link_pb2.Items(channel=[1, 2], payload=[b""] * 2, epoch=[1], more=[1]),
        link_pb2.Items(channel=[1], payload=[bytes(PART_BYTES + 1)], epoch=[1]),
        link_pb2.Items(channel=[1] * (FRAME_ITEMS_MAX + 1), payload=[b""] * (FRAME_ITEMS_MAX + 1), epoch=[1]),
    ],
)
def test_bad_columns_are_refused(body: link_pb2.Items) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(link_pb2.Frame(first_number=1, items=body).SerializeToString())


def test_items_without_a_number_and_unpaired_credits_are_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_frame(link_pb2.Frame(items=link_pb2.Items(channel=[1], payload=[b""], epoch=[1])).SerializeToString())
    with pytest.raises(ProtocolError):
        decode_frame(link_pb2.Frame(credit_channel=[1]).SerializeToString())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    for decode in (decode_frame, decode_control):
        with contextlib.suppress(ProtocolError):
            decode(data)


@settings(max_examples=200)
@given(frames(), st.data())
def test_damaged_frames_are_frames_or_protocol_errors(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(encode_frame(frame, compress=True))
    for _ in range(3):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode_frame(bytes(encoded))


def test_control_items_come_back_as_they_were() -> None:
    opened = OpenChannel(3, "a", "b", 1, 2, 17)
    marker = Marker(9, [1, 2], [100, 2**60])
    assert decode_control(encode_open(opened)) == opened
    assert decode_control(encode_marker(marker)) == marker


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        encode_open(OpenChannel(0, "a", "b", 1, 1, 1)),
        encode_open(OpenChannel(1, "a", "b", 1, 1, 0)),
        encode_open(OpenChannel(1, "", "b", 1, 1, 1)),
        encode_marker(Marker(1, [1, 2], [1])),
    ],
)
def test_impossible_control_items_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_control(payload)

"""A message that nobody follows has the bytes that it always had; one that is followed says so, and is the same message all the same.

The layout is written here once more, byte by byte, as docs/snapshot-format.md has it.
"""

import msgspec
import pytest

from snapline.agent_runtime.durable import call_payload, reply_payload
from snapline.agent_runtime.host.input_service import check_message
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.message_encoding import (
    HOPS_MAX,
    Traceparent,
    encode_message,
    is_of_type,
    read_header,
    read_tail,
    tail_of,
    with_tail,
    without_tail,
)
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.messages.payloads import TAIL_BYTES, plain_name, read_creation, split_message


class Order(msgspec.Struct):
    number: int


FOLLOWED = Traceparent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 7)
TAIL = b"@00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0107"
BODY = msgspec.msgpack.encode(Order(3))
PLAIN = b"\x05Order" + BODY


def test_a_message_that_nobody_follows_has_the_bytes_it_always_had() -> None:
    assert encode_message(Order(3)) == PLAIN
    assert with_tail(PLAIN, b"") == PLAIN and without_tail(PLAIN) is PLAIN and tail_of(PLAIN) == b""
    assert creation_payload("m:Order", b"s") == b"\x00\x00\x07m:Orders"


def test_a_tail_stands_behind_the_name_and_is_counted_in_its_length() -> None:
    assert FOLLOWED.tail() == TAIL and len(TAIL) == TAIL_BYTES
    assert with_tail(PLAIN, TAIL) == bytes((5 + 58,)) + b"Order" + TAIL + BODY


def test_a_followed_message_is_read_as_any_other() -> None:
    payload = with_tail(PLAIN, TAIL)
    name, body = split_message(payload)
    assert (name, bytes(body)) == ("Order", BODY)
    assert read_tail(tail_of(payload)) == FOLLOWED and without_tail(payload) == PLAIN
    assert is_of_type(payload, "Order") and is_of_type(PLAIN, "Order")
    assert not is_of_type(payload, "Orde") and not is_of_type(payload, "Orders") and not is_of_type(PLAIN, "Ord")


def test_a_call_has_its_tail_in_the_message_that_it_wraps() -> None:
    call = call_payload(b"12345678", PLAIN)
    followed = with_tail(call, TAIL)
    assert followed == call_payload(b"12345678", with_tail(PLAIN, TAIL))
    assert tail_of(followed) == TAIL and without_tail(followed) == call


def test_a_reply_has_none() -> None:
    reply = reply_payload(b"12345678", PLAIN)
    assert with_tail(reply, TAIL) == reply and with_tail(b"", TAIL) == b""


def test_a_creation_has_it_behind_its_kind() -> None:
    followed = creation_payload("m:Order" + TAIL.decode(), b"state")
    assert followed == with_tail(creation_payload("m:Order", b"state"), TAIL)
    assert read_creation(followed) == ("m:Order", b"state") and tail_of(followed) == TAIL
    assert plain_name("m:Order" + TAIL.decode()) == "m:Order" == plain_name("m:Order")


def test_a_message_has_one_tail_at_most() -> None:
    once = with_tail(PLAIN, TAIL)
    assert with_tail(once, Traceparent(1, 2).tail()) == once


@pytest.mark.parametrize("length", [197, 198])
def test_a_trace_ends_where_a_name_leaves_no_room(length: int) -> None:
    payload = bytes((length,)) + b"N" * length + BODY
    assert tail_of(with_tail(payload, TAIL)) == (TAIL if length == 197 else b"")


def test_a_trace_ends_at_a_message_of_the_largest_size() -> None:
    largest = PLAIN + bytes(MESSAGE_BYTES_MAX - len(PLAIN))
    assert with_tail(largest, TAIL) is largest


def test_a_trace_ends_after_so_many_turns() -> None:
    assert FOLLOWED._replace(hops=0).tail() == b""
    found = read_tail(Traceparent(1, 2).tail())
    assert found is not None and found.hops == HOPS_MAX == 255


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        TAIL[:-1],
        TAIL[:-2] + b"XX",
        TAIL.replace(b"4bf9", b"4BF9"),
        TAIL[:4] + b"0" * 32 + TAIL[36:],
        TAIL[:-4] + b"0007",
    ],
)
def test_what_is_no_tail_is_followed_by_nobody(tail: bytes) -> None:
    assert read_tail(tail) is None


HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"


@pytest.mark.parametrize(
    ("header", "is_followed"),
    [
        (HEADER + "01", True),
        (HEADER + "03", True),
        (HEADER + "00", False),
        ("cc" + HEADER[2:] + "01-more", True),
        ("ff" + HEADER[2:] + "01", False),
        (HEADER.replace("00f067aa0ba902b7", "0" * 16) + "01", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_a_header_is_taken_as_the_w3c_says(header: str, is_followed: bool) -> None:
    found = read_header(header)
    assert (found is not None) is is_followed
    assert found is None or found == FOLLOWED._replace(hops=HOPS_MAX)


def test_a_client_may_say_what_it_likes_behind_a_name() -> None:
    """What looks like a tail and is none does no harm: the message is taken, and followed by nobody."""
    import snapline

    class Desk(snapline.Agent):
        state: Order

        @snapline.handler
        async def on_order(self, message: Order, ctx: snapline.Context) -> None: ...

    from snapline.agent_runtime.agent import agent_type

    odd = bytes((5 + 58,)) + b"Order@00-" + b"z" * 54 + BODY
    check_message("desk", agent_type(Desk), odd)
    assert read_tail(tail_of(odd)) is None

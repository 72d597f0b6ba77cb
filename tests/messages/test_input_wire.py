"""Requests of clients come back as they were, in messages that a server takes; what would cost too much is not built."""

import pytest

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.channels.servers import RECEIVE_BYTES_MAX
from snapline.errors import ProtocolError
from snapline.messages import client_wire
from snapline.messages.client_requests import INPUTS_MAX, PART_BYTES, GivenInput, InputOutcome
from snapline.messages.client_wire import (
    STREAM_MESSAGES_MAX,
    OfferReader,
    decode_outcomes,
    encode_outcomes,
    offer_messages,
)
from snapline.protos.v1 import inputs_pb2 as pb

WORST = "x" * 128


def read(messages: list[bytes]) -> OfferReader:
    reading = OfferReader()
    goes_on = [reading.take(message) for message in messages]
    assert goes_on == [True] * (len(messages) - 1) + [False]
    return reading


def given(size: int, number: int = 0, kind: str = "") -> GivenInput:
    return GivenInput(f"a{number}", f"k{number}", bytes([number % 256]) * size, kind)


@pytest.mark.parametrize(
    ("inputs", "messages"),
    [
        ([], 1),
        ([given(0)], 1),
        ([given(PART_BYTES)], 1),
        ([given(PART_BYTES + 1)], 2),
        ([given(3 * PART_BYTES, 1, "Paid"), given(5, 2)], 4),
        ([given(5, 1), given(2 * PART_BYTES, 2), given(5, 3)], 4),
        ([given(MESSAGE_BYTES_MAX)], 16),
        ([given(PART_BYTES // 2 + 1, number) for number in range(20)], 20),
        ([given(700, number) for number in range(INPUTS_MAX)], 1),
    ],
)
def test_a_request_comes_back_from_messages_that_a_server_takes(inputs: list[GivenInput], messages: int) -> None:
    said = list(offer_messages("shop", inputs))
    assert len(said) == messages and max(map(len, said)) < RECEIVE_BYTES_MAX
    reading = read(said)
    assert (reading.client, reading.inputs) == ("shop", inputs)
    assert reading.size_bytes == sum(len(each.payload) for each in inputs)


def test_the_largest_request_with_the_longest_names_fits() -> None:
    inputs = [GivenInput(WORST, WORST, bytes(PART_BYTES // INPUTS_MAX), WORST) for _ in range(INPUTS_MAX)]
    said = list(offer_messages(WORST, inputs))
    assert max(map(len, said)) < RECEIVE_BYTES_MAX and read(said).inputs == inputs


def too_many() -> list[bytes]:
    return list(offer_messages("c", [given(0)] * (INPUTS_MAX + 1)))


def too_large() -> list[bytes]:
    return list(offer_messages("c", [given(MESSAGE_BYTES_MAX), given(1)]))


def for_ever() -> list[bytes]:
    return [pb.OfferRequest(more=True).SerializeToString()] * (STREAM_MESSAGES_MAX + 1)


def within_an_input() -> list[bytes]:
    return [pb.OfferRequest(inputs=[pb.GivenInput(more=True)]).SerializeToString()]


def a_bomb(inputs: int = PART_BYTES // 2) -> list[bytes]:
    return [b"\x12\x00" * inputs]


def a_bomb_of_numbers() -> list[bytes]:
    return [b"\x1a\x80\x80\x40" + bytes(PART_BYTES)]


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (too_many, f"more than {INPUTS_MAX} inputs"),
        (too_large, f"{MESSAGE_BYTES_MAX} bytes"),
        (for_ever, f"{STREAM_MESSAGES_MAX} messages"),
        (within_an_input, "ends within an input"),
        (a_bomb, "nothing of it is read"),
        (a_bomb_of_numbers, "nothing of it is read"),
        (lambda: [b"\x0a\x05abc"], "no OfferRequest"),
        (lambda: [b"\x0a\x01\xff"], "no OfferRequest"),
    ],
    ids=["too many", "too large", "for ever", "within an input", "bomb", "numbers", "garbage", "no text"],
)
def test_what_no_client_has_to_say_is_refused(request_of: object, words: str) -> None:
    assert callable(request_of)
    with pytest.raises(ProtocolError, match=words):
        read(request_of())


def test_the_test_of_the_bomb_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_wire, "check_counts", lambda *_, **__: None)
    with pytest.raises(ProtocolError) as caught:
        read(a_bomb(2 * INPUTS_MAX))
    assert "nothing of it is read" not in str(caught.value)


def test_outcomes_come_back() -> None:
    outcomes = (
        InputOutcome("accepted", 7),
        InputOutcome("retry", 0, "it lives elsewhere", "h2", "127.0.0.1:1"),
        InputOutcome("refused", 0, "no such type"),
    )
    assert decode_outcomes(encode_outcomes(outcomes)) == outcomes
    with pytest.raises(ProtocolError):
        decode_outcomes(b"\x0a\x05abc")

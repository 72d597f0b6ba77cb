"""The outgoing order: batches keep every item and stamp, and the rules of size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.channels.channel import CHANNEL_CREDIT, PART_BYTES, Inlet, Outlet, check_message_size, window_bytes
from snapline.channels.frame import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, LARGE_BYTES, Items
from snapline.channels.order import OutgoingOrder, batch_length, data_bytes
from snapline.errors import MessageTooLargeError

KIB = 1024
ENDLESS = 1 << 60
SIZES = (0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 4 * PART_BYTES + 1)


def drain(order: OutgoingOrder) -> list[Items]:
    batches = []
    while (batch := order.take(ENDLESS)) is not None:
        order.validate()
        batches.append(batch.items)
        order.acknowledge(
            batch.last_number - 1
        )  # the peer reads on; the last item of each frame is acked with the next
    return batches


def flatten(batches: list[Items]) -> list[tuple[int, bytes, int, bytes]]:
    """Whole messages out of batches, parts put together."""
    messages: list[tuple[int, bytes, int, bytes]] = []
    parts = b""
    for items in batches:
        count = len(items.channel)
        epochs = items.epoch * count if len(items.epoch) == 1 else items.epoch
        for channel, payload, epoch, piggyback, more in zip(
            items.channel,
            items.payload,
            epochs,
            items.piggyback or [b""] * count,
            items.more or [0] * count,
            strict=True,
        ):
            parts += payload
            if not more:
                messages.append((channel, parts, epoch, piggyback))
                parts = b""
    assert parts == b""
    return messages


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 5), st.sampled_from((0, 1, 100, 5000, LARGE_BYTES)), st.integers(1, 3)),
            min_size=1,
            max_size=6,
        ),
        max_size=8,
    ),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.booleans(),
)
def test_whatever_goes_in_comes_out_in_order(
    groups: list[list[tuple[int, int, int]]], pauses: list[bool], with_piggybacks: bool
) -> None:
    order = OutgoingOrder()
    sent: list[tuple[int, bytes, int, bytes]] = []
    batches: list[Items] = []
    for group, pause in zip(groups, pauses, strict=False):
        messages = [(channel, bytes([channel]) * size, epoch, b"") for channel, size, epoch in group]
        if with_piggybacks:
            messages = [(channel, payload, epoch, b"%d" % epoch) for channel, payload, epoch, _ in messages]
        sent += messages
        channels, payloads, epochs, _ = map(list, zip(*messages, strict=True))
        items = Items(channels, payloads, epochs)
        if with_piggybacks:
            items.piggyback = [message[3] for message in messages]
        if len(set(items.epoch)) == 1:
            items.epoch = items.epoch[:1]
        order.append(items, data_bytes(items))
        order.validate()
        if pause:
            batches += drain(order)
    batches += drain(order)
    assert flatten(batches) == sent


@given(
    st.lists(
        st.sampled_from((0, 64, 1000, 30_000, LARGE_BYTES - 1, LARGE_BYTES, PART_BYTES)), min_size=1, max_size=700
    ),
    st.sampled_from((0, 1, 2)),
)
def test_a_batch_has_512_items_or_256_kib_or_one_large_payload(sizes: list[int], added: int) -> None:
    """`added`: half of it, or all but nothing, is what the protocol adds."""
    payloads = [bytes(size // 2 if added == 1 else 0 if added else size) for size in sizes]
    piggybacks = [bytes(size - len(payload)) for size, payload in zip(sizes, payloads, strict=True)] if added else []
    count = batch_length(payloads, piggybacks)
    head = sizes[:count]
    assert 1 <= count <= FRAME_ITEMS_MAX
    assert sum(head) <= FRAME_BYTES_MAX or count == 1
    assert max(head) < LARGE_BYTES or count == 1
    if count < len(sizes) and count < FRAME_ITEMS_MAX and max(head) < LARGE_BYTES:
        assert sum(sizes[: count + 1]) > FRAME_BYTES_MAX or sizes[count] >= LARGE_BYTES, "the batch could be longer"


@pytest.mark.parametrize("size", [*SIZES, 16 * PART_BYTES])
def test_messages_of_every_size_are_cut_into_full_parts(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    order = OutgoingOrder()
    order.append(Items([1, 2, 1], [b"x", payload, b"y"], [1, 2, 3], [b"p", b"q", b"r"]), size + 2)
    order.validate()
    batches = drain(order)
    assert flatten(batches) == [(1, b"x", 1, b"p"), (2, payload, 2, b"q"), (1, b"y", 3, b"r")]
    assert all(len(part) <= PART_BYTES for items in batches for part in items.payload)
    last = max(
        len(part)
        for items in batches
        for part, more in zip(items.payload, items.more or [0] * 9, strict=False)
        if not more
    )
    assert last == window_bytes([payload]) or size <= 1


def test_above_16_mib_is_refused() -> None:
    check_message_size(16 * PART_BYTES)
    with pytest.raises(MessageTooLargeError, match="store"):
        check_message_size(16 * PART_BYTES + 1)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=15), st.data())
def test_a_rewind_resends_exactly_what_was_not_received(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    order = OutgoingOrder()
    number = 0
    for count, _ in steps:
        payloads = [b"%d" % (number + i) for i in range(1, count + 1)]
        number += count
        order.append(Items([1] * count, payloads, [number % 3]), sum(map(len, payloads)))
        for _ in range(data.draw(st.integers(0, 2))):
            order.take(ENDLESS)
        order.acknowledge(data.draw(st.integers(order.acked, order.written)))
        order.validate()
        if data.draw(st.booleans()):
            received = data.draw(st.integers(order.acked, order.written))
            order.rewind(received)
            order.validate()
            assert order.written == received
    received = data.draw(st.integers(order.acked, order.written))
    order.rewind(received)
    sent = [payload for items in drain(order) for payload in items.payload]
    assert sent == [b"%d" % n for n in range(received + 1, number + 1)]


def test_one_stamp_stays_one_stamp() -> None:
    order = OutgoingOrder()
    for _ in range(10):
        order.append(Items([1], [b"x"], [7]), 1)
        order.append_control(b"c")
    (items,) = drain(order)
    assert items.epoch == [7] and items.more == [] and items.piggyback == []


def test_credit_is_told_once_half_of_it_is_used() -> None:
    outlet = Outlet(channel=1, sender="a", receiver="b")
    inlet = Inlet(channel=1, sender="a", receiver="b")
    outlet.parked.extend(bytes([i % 256]) for i in range(1000))
    received = 0
    told = 0
    while outlet.parked or received < 1000:
        count = max(0, min(50, outlet.credit - outlet.number, len(outlet.parked)))
        taken = [outlet.parked.popleft() for _ in range(count)]
        outlet.number += count
        inlet.arrived += len(taken)
        assert inlet.arrived - inlet.consumed <= CHANNEL_CREDIT
        if not taken:
            received += inlet.arrived - inlet.consumed
            credit = inlet.consume(inlet.arrived - inlet.consumed)
            told += 1
            outlet.raise_credit(credit)
        inlet.validate()
        outlet.validate()
    assert received == 1000 and told <= 2 * 1000 // CHANNEL_CREDIT


def test_old_words_of_credit_change_nothing() -> None:
    outlet = Outlet(channel=1, sender="a", receiver="b", number=10)
    assert outlet.credit == 266
    assert not outlet.raise_credit(100) and outlet.credit == 266

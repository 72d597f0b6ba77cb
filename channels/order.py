"""The outgoing order of one link holds the items that have a link number and have not been acked yet.

Items wait in columns until the writer is free (`take`). Written items are kept in batches until the peer acks them. When a new stream
begins, the items that the peer lacks are moved back to the front of the waiting columns (`rewind`). The items keep their numbers but are
written in new batches.

Invariants: items `acked + 1 … written` are in batches, and items `written + 1 … last` are in the waiting columns, without gaps. The peer's
window limits the total number of items, because an item gets its number only if the window has room.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, chain
from operator import add

from msgspec import Struct

from snapline.channels.channel import PART_BYTES
from snapline.channels.frame import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, LARGE_BYTES, LARGE_ITEMS, Items, is_small

FRAMES_UNACKED_MAX = 2
"""Largest number of small frames that may be unacked. A frame costs each side as much CPU time as a hundred items. Without this bound, two
busy hosts exchange thousands of frames with a few items each, which takes four times the CPU time per message. With a bound of 1, replies
took twice as long (`benchmarks/latency.py`)."""


class Batch(Struct, frozen=True, gc=False):
    """Items that were written in one frame. `size_bytes` does not count control items, because they do not use the window. If the peer has
    not acked a number of small batches, further batches are delayed (`FRAMES_UNACKED_MAX`)."""

    first_number: int
    last_number: int
    size_bytes: int
    items: Items
    is_small: bool


def data_bytes(items: Items) -> int:
    """Return the number of payload bytes that count against the window. Control items do not count."""
    total = sum(map(len, items.payload))
    if 0 in items.channel:
        total -= sum(len(payload) for channel, payload in zip(items.channel, items.payload, strict=True) if not channel)
    return total


def append_items(queue: Items, items: Items) -> None:
    """Append the columns of `items` to those of `queue`, using C loops. While all items have the same stamp, the column `epoch` contains a
    single entry. The caller must not use `items` afterwards."""
    count, added = len(queue.channel), len(items.channel)
    if not count:
        queue.channel, queue.payload, queue.epoch = items.channel, items.payload, items.epoch
        queue.piggyback, queue.more = items.piggyback, items.more
        return
    if queue.epoch != items.epoch or len(queue.epoch) > 1:
        queue.epoch = _expanded(queue.epoch, count) + _expanded(items.epoch, added)
    if queue.piggyback or items.piggyback:
        queue.piggyback = (queue.piggyback or [b""] * count) + (items.piggyback or [b""] * added)
    if queue.more or items.more:
        queue.more = (queue.more or [0] * count) + (items.more or [0] * added)
    queue.channel += items.channel
    queue.payload += items.payload


def _expanded(epochs: list[int], count: int) -> list[int]:
    return epochs if len(epochs) == count else epochs * count


def split_items(queue: Items, count: int) -> Items:
    """Remove and return the first `count` items. In the result, columns that contain only default values are empty."""
    total = len(queue.channel)
    if count == total:
        head = Items(queue.channel, queue.payload, queue.epoch, queue.piggyback, queue.more)
        queue.channel, queue.payload, queue.epoch, queue.piggyback, queue.more = [], [], [], [], []
    else:
        epochs = queue.epoch if len(queue.epoch) == 1 else queue.epoch[:count]
        head = Items(queue.channel[:count], queue.payload[:count], epochs, queue.piggyback[:count], queue.more[:count])
        del queue.channel[:count], queue.payload[:count], queue.piggyback[:count], queue.more[:count]
        if len(queue.epoch) > 1:
            del queue.epoch[:count]
    if len(head.epoch) > 1 and head.epoch.count(head.epoch[0]) == len(head.epoch):
        head.epoch = head.epoch[:1]
    if head.piggyback and not any(head.piggyback):
        head.piggyback = []
    if head.more and not any(head.more):
        head.more = []
    return head


def batch_length(payloads: list[bytes], piggybacks: list[bytes]) -> int:
    """Return how many of the waiting items fit into the next frame. A frame holds at most 512 items and 256 KiB, or one large payload.

    Piggybacks of the checkpointing protocol count as well, since vectors with thousands of agents are larger than small payloads.
    """
    head = payloads if len(payloads) <= FRAME_ITEMS_MAX else payloads[:FRAME_ITEMS_MAX]
    sizes = list(map(len, head))
    if piggybacks:
        sizes = list(map(add, sizes, map(len, piggybacks)))
    if sum(sizes) < LARGE_BYTES:
        return len(sizes)
    if max(sizes) >= LARGE_BYTES:
        first_large = next(index for index, size in enumerate(sizes) if size >= LARGE_BYTES)
        if first_large == 0:
            return 1
        del sizes[first_large:]
    return bisect_right(list(accumulate(sizes)), FRAME_BYTES_MAX)


def cut_into_parts(items: Items) -> Items:
    """Split every payload larger than `PART_BYTES` into parts. All parts except the first have this full size.

    So a message in parts occupies exactly `PART_BYTES` of the window until it is consumed, regardless of its size.
    """
    counts = [max(1, -(-len(payload) // PART_BYTES)) for payload in items.payload]

    def repeated(column: list[int]) -> list[int]:
        return list(chain.from_iterable([value] * count for value, count in zip(column, counts, strict=True)))

    piggybacks = chain.from_iterable(
        [b""] * (count - 1) + [value] for value, count in zip(items.piggyback, counts, strict=False)
    )
    return Items(
        channel=repeated(items.channel),
        payload=list(chain.from_iterable(map(_parts, items.payload))),
        epoch=items.epoch if len(items.epoch) == 1 else repeated(items.epoch),
        piggyback=list(piggybacks),
        more=list(chain.from_iterable([1] * (count - 1) + [0] for count in counts)),
    )


def _parts(payload: bytes) -> Iterator[bytes]:
    if len(payload) <= PART_BYTES:
        yield payload
        return
    first = len(payload) % PART_BYTES or PART_BYTES
    yield payload[:first]
    for start in range(first, len(payload), PART_BYTES):
        yield payload[start : start + PART_BYTES]


class OutgoingOrder:
    """The outgoing order of one link, as described in the module docstring.

    Attributes:
        last: link number of the last item in the order.
        size_bytes: total data size of the items 1 … `last`.
        written: link number of the last item passed to the current stream.
        acked: link number up to which the peer has received all items.
    """

    def __init__(self) -> None:
        self.last = 0
        self.size_bytes = 0
        self.written = 0
        self.acked = 0
        self._written_bytes = 0
        self._waiting = Items([], [], [])
        self._batches: deque[Batch] = deque()
        self._small = 0  # number of small batches in `_batches`

    def append(self, items: Items, size_bytes: int) -> None:
        """Append these items to the order, and thereby assign their numbers. `size_bytes` is their total data size."""
        count = len(items.channel)
        if size_bytes > PART_BYTES and max(map(len, items.payload)) > PART_BYTES:
            items = cut_into_parts(items)
            count = len(items.channel)
        append_items(self._waiting, items)
        self.last += count
        self.size_bytes += size_bytes

    def append_control(self, payload: bytes) -> None:
        """Append a control item to the order. The control item gets the same stamp as the previous item, so that a single stamp may still
        apply to all items."""
        waiting = self._waiting
        append_items(waiting, Items([0], [payload], waiting.epoch[-1:] or [0]))
        self.last += 1

    @property
    def is_waiting(self) -> bool:
        """Return whether there are items waiting to be written."""
        return self.written < self.last

    def may_write(self, granted_bytes: int) -> bool:
        """Return whether `take` would return a batch.

        If a peer has not acked the last `FRAMES_UNACKED_MAX` small frames, the peer has not read them yet. More small frames would only
        slow the peer down. Items that arrive in the meantime are collected into one larger frame, as in Nagle's algorithm (RFC 896). After
        `FRAMES_UNACKED_MAX` small frames, the peer sends an ack immediately, so no item waits for a timer. Large frames never delay further
        frames.

        If a message is larger than the window, its later parts wait until earlier parts have been counted as consumed. Control items at the
        front of the queue never wait for the window.
        """
        if self.written == self.last or (self._written_bytes >= granted_bytes and self._waiting.channel[0]):
            return False
        return self._small < FRAMES_UNACKED_MAX or self._has_urgent_items()

    def _has_urgent_items(self) -> bool:
        """Return whether to write a frame although small frames are unacked, because many items or bytes or a control item such as a marker
        are waiting."""
        waiting = self._waiting.channel
        return len(waiting) >= LARGE_ITEMS or self.size_bytes - self._written_bytes >= LARGE_BYTES or 0 in waiting

    def take(self, granted_bytes: int) -> Batch | None:
        """Return the next batch to write, or None if no batch may be written now."""
        if not self.may_write(granted_bytes):
            return None
        waiting = self._waiting
        count = batch_length(waiting.payload, waiting.piggyback)
        if self._written_bytes >= granted_bytes:
            count = min(count, next((i for i, channel in enumerate(waiting.channel) if channel), count))
        items = split_items(waiting, count)
        batch = Batch(self.written + 1, self.written + count, data_bytes(items), items, is_small(items))
        self._small += batch.is_small
        self.written = batch.last_number
        self._written_bytes += batch.size_bytes
        self._batches.append(batch)
        return batch

    def acknowledge(self, number: int) -> None:
        """Record that the peer has received all items up to `number`. An older ack has no effect. The caller must check that `number <=
        written`."""
        if number > self.acked:
            self.acked = number
            batches = self._batches
            while batches and batches[0].last_number <= number:
                self._small -= batches.popleft().is_small

    def rewind(self, received: int) -> None:
        """Queue all items after `received` again, so that they are resent on a new stream. The caller must check that `acked <=
        received`."""
        self.acknowledge(received)
        merged = Items([], [], [])
        for batch in self._batches:
            # An older stream may still be writing the batch, so never change its lists.
            items = batch.items
            append_items(
                merged, Items(items.channel[:], items.payload[:], items.epoch[:], items.piggyback[:], items.more[:])
            )
        if self._batches and self._batches[0].first_number <= received:
            split_items(merged, received + 1 - self._batches[0].first_number)
        self._batches.clear()
        self._small = 0
        self._written_bytes -= data_bytes(merged)
        self.written = received
        append_items(merged, self._waiting)
        self._waiting = merged

    def validate(self) -> None:
        """Raise AssertionError if numbers, batches and waiting columns contradict each other."""
        assert 0 <= self.acked <= self.written <= self.last, f"{self.acked} {self.written} {self.last}"
        waiting = self._waiting
        count = len(waiting.channel)
        assert count == self.last - self.written == len(waiting.payload), "waiting items and numbers differ"
        assert len(waiting.epoch) in (1, count) or not count
        assert len(waiting.piggyback) in (0, count) and len(waiting.more) in (0, count)
        assert self._small == sum(batch.is_small for batch in self._batches), "small batches are miscounted"
        number = self.written
        for batch in reversed(self._batches):
            assert batch.last_number == number, f"batch ends at {batch.last_number}, expected {number}"
            assert len(batch.items.channel) == batch.last_number - batch.first_number + 1, "a batch changed length"
            number = batch.first_number - 1
        assert number <= self.acked, f"batches begin after {number}, acked {self.acked}"
        assert self._written_bytes + data_bytes(waiting) == self.size_bytes, "byte counts differ"

    def freeze(self) -> tuple[object, ...]:
        """Return the order's state as a hashable value."""
        waiting = self._waiting
        batches = tuple((batch.first_number, tuple(batch.items.payload)) for batch in self._batches)
        return (self.last, self.size_bytes, self.written, self.acked, tuple(waiting.payload), batches)

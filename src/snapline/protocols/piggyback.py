"""Piggybacks on messages. This module encodes numbers as bytes, and chooses the vector entries that a message must carry.

Theory of operation
-------------------
A piggyback is a sequence of numbers, each encoded as a varint: seven bits per byte, lowest bits first, with the high bit set on all bytes
except the last. A vector has one entry per agent. A message carries only the entries that have changed since the last message to the same
receiver (M. Singhal and A. Kshemkalyani, "An Efficient Implementation of Vector Clocks", Information Processing Letters 43, 1992). The
receiver needs no additional state. On a FIFO channel without loss, it has already merged the channel's earlier messages, and every merge is
monotone and idempotent. So merging an unchanged entry again would change nothing, and could not force a checkpoint. Each rule explains why
this holds for its own fields.

The sender stores when each entry last changed, and when it last sent a message to each receiver. This takes O(agents) + O(destinations)
memory. `EntryChanges` keeps the entries in the order of their last change, so a send examines only the entries that it carries and one
more.

Rollbacks. The bookkeeping is part of the rule's image, and therefore of every checkpoint. On a consistent cut, the receiver's state has
merged the channel's messages up to its received number r, and the sender's bookkeeping corresponds to its sent number s >= r. The messages
r + 1 … s are delivered again, in order and with their original piggybacks. So when the next message, s + 1, arrives, the receiver has
merged 1 … s, just as without the rollback. This holds if one side, both sides or neither side was rolled back. It does not hold if an
undone send still counts as sent, so the complete image must be restored.

Masks cost some CPU time but save bytes. With 100 agents, a send and its merge under `hmnr` take 8.6 µs and 7.3 bytes, compared with 7.4 µs
and 25.4 bytes without masks (`benchmarks/piggyback.py`).

Channels that are not FIFO need absolute piggybacks, which contain every known entry. Sending them does not change the bookkeeping.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import itemgetter

from snapline.errors import DamagedDataError, ProtocolError

ORDINALS_MAX = 65_536
"""Upper bound of agents' ordinals. The coordinator admits 20,000 agents at a time. Ordinals are never reused, so a fleet that spawns and
stops agents uses more. The bound prevents a damaged number from being read as the length of a vector."""

_SPARSE, _DENSE, _GROUPED = 0, 1, 2
"""First number of packed entries, which selects their form. The sparse form contains pairs (ordinal, value). The dense form contains the
values of the ordinals 0, 1, 2 …. The grouped form contains pairs of a value and a mask of the agents with that value, where bit k stands
for ordinal k. Grouping is effective because agents that take checkpoints at about the same rate have few different values."""

_MASK_MAX = (1 << ORDINALS_MAX) - 1

SPARSE_BITS = 16
"""If a mask has more bits than this per set bit, finding the set bits by arithmetic is faster than testing every bit."""

_TRUTHS = bytes.maketrans(b"01", b"\x00\x01")

Entries = dict[int, int]
"""Entries of a vector: ordinal → value greater than 0. A missing entry means 0, which means that the agent is unknown."""


def encode(numbers: Sequence[int]) -> bytes:
    """Return the numbers encoded as varints. No number may be negative."""
    if max(numbers, default=0) < 0x80:
        return bytes(numbers)
    encoded = bytearray()
    for number in numbers:
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
    return bytes(encoded)


def decode(data: bytes) -> list[int]:
    """Return the numbers that were passed to `encode`.

    Raises:
        ProtocolError: the last number is incomplete.
    """
    if data.isascii():
        return list(data)
    numbers = []
    number = shift = 0
    for byte in data:
        if byte < 0x80:
            numbers.append(number | byte << shift)
            number = shift = 0
        else:
            number |= (byte & 0x7F) << shift
            shift += 7
    if shift:
        raise ProtocolError(f"a piggyback of {len(data)} bytes ends within a number; it was cut off")
    return numbers


def pack_entries(entries: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Pack (ordinal, value) pairs as a list of numbers, in the shortest form. If there are no pairs, the list is empty.

    Args:
        entries: the pairs, in any order. The receiver must not need the values of entries that are omitted.
        size: a number greater than every ordinal in `entries`.
    """
    if not entries:
        return []
    masks = _masks(entries, size)
    if masks:
        return [_GROUPED, *chain.from_iterable(masks.items())]
    if len(entries) * 2 <= size:
        numbers = [_SPARSE]
        for pair in entries:
            numbers += pair
        return numbers
    dense = [0] * size
    for ordinal, value in entries:
        dense[ordinal] = value
    return [_DENSE, *dense]


def _masks(entries: Sequence[tuple[int, int]], size: int) -> dict[int, int]:
    """Return value → mask of the agents with that value. The result is empty if there are so many values that a different form is
    shorter."""
    values = dict.fromkeys(value for _, value in entries)
    if len(values) * (size // 7 + 2) >= min(2 * len(entries), size):
        return {}
    digits = {value: bytearray(b"0" * size) for value in values}
    for ordinal, value in entries:
        digits[value][-1 - ordinal] = ord("1")
    return {value: int(of_value, 2) for value, of_value in digits.items()}


def unpack_entries(numbers: Sequence[int], *, least: int = 1) -> Entries:
    """Return the entries packed by `pack_entries`. Zeros in the dense form are omitted.

    Args:
        numbers: the packed entries.
        least: smallest valid value of an entry.

    Raises:
        ProtocolError: the form is unknown, a pair is incomplete, an agent is in several masks, or an ordinal or value is out of range.
    """
    if not numbers:
        return {}
    form, rest = numbers[0], numbers[1:]
    pairs = [] if form == _DENSE else list(zip(rest[::2], rest[1::2], strict=False))
    if form == _DENSE:
        entries = {ordinal: value for ordinal, value in enumerate(rest) if value}
    elif form == _SPARSE:
        entries = dict(pairs)
    else:
        entries = {}
        for value, mask in pairs:
            entries |= dict.fromkeys(bits(mask & _MASK_MAX), value)
    is_whole = form == _DENSE or (len(rest) % 2 == 0 and (form == _SPARSE or _are_disjoint(pairs)))
    if form > _GROUPED or not is_whole or max(entries, default=0) >= ORDINALS_MAX:
        shown = f"form {form}" if form <= _GROUPED else "an unknown form"
        raise ProtocolError(f"a piggyback of {len(numbers)} numbers in {shown} is no vector")
    if min(entries.values(), default=least) < least:
        raise ProtocolError(f"a piggyback has an entry below {least}, which no agent can have")
    return entries


def _are_disjoint(groups: Iterable[tuple[int, int]]) -> bool:
    """Return whether no agent is in two masks and no mask contains an ordinal of `ORDINALS_MAX` or more."""
    union = 0
    for _, mask in groups:
        if mask & union or mask > _MASK_MAX:
            return False
        union |= mask
    return True


class EntryChanges:
    """Tracks, for each receiver, which entries of a vector have changed since the last message to that receiver.

    Attributes:
        size: the largest ordinal of an entry that has ever changed, plus one.
        _now: number of messages recorded so far.
        _changed: ordinal → value of `_now` when its entry last changed. The latest change comes last.
        _sent: receiver → value of `_now` before the last message to that receiver. The latest message comes last.
    """

    __slots__ = ("_changed", "_now", "_sent", "size")

    def __init__(self) -> None:
        self.size = 0
        self._now = 0
        self._changed: dict[int, int] = {}
        self._sent: dict[int, int] = {}

    def note(self, ordinal: int) -> None:
        """Record that the entry of `ordinal` has changed."""
        if self._changed.get(ordinal) == self._now:
            return
        self._changed.pop(ordinal, None)
        self._changed[ordinal] = self._now
        if ordinal >= self.size:
            self.size = ordinal + 1

    def send(self, to: int) -> list[int]:
        """Record that the next message to `to` is sent. Return the ordinals of the entries that the message must carry, latest change
        first."""
        last = self._sent.pop(to, -1)
        self._sent[to] = self._now
        self._now += 1
        news = []
        for ordinal in reversed(self._changed):
            if self._changed[ordinal] <= last:
                break
            news.append(ordinal)
        return news

    def ordinals(self) -> Iterator[int]:
        """Iterate over the ordinals of all entries that have ever changed, latest change last."""
        return iter(self._changed)

    def freeze(self) -> list[int]:
        """Return the complete state, which is the order of changes and messages. Even numbers represent changed entries, and odd numbers
        represent receivers of messages."""
        order = [(stamp, 2 * ordinal) for ordinal, stamp in self._changed.items()]
        order += [(stamp, 2 * receiver + 1) for receiver, stamp in self._sent.items()]
        order.sort(key=itemgetter(0))  # the sort is stable, so a change before a message remains before it
        return [token for _, token in order]

    @classmethod
    def restore(cls, tokens: Iterable[int]) -> "EntryChanges":
        """Return an object in the state that `freeze` returned."""
        changes = cls()
        for token in tokens:
            if token % 2 == 0:
                changes.note(token // 2)
            else:
                changes.send(token // 2)
        return changes


class ImageReader:
    """Reads the numbers of a rule's image in order. If a number is missing, the image is damaged, and DamagedDataError is raised."""

    __slots__ = ("_numbers", "_position")

    def __init__(self, image: bytes) -> None:
        try:
            self._numbers = decode(image)
        except ProtocolError as error:
            raise DamagedDataError("a rule's image ends within a number; take an older checkpoint") from error
        self._position = 0

    def take(self) -> int:
        """Return the next number."""
        return self.take_many(1)[0]

    def take_many(self, count: int) -> list[int]:
        """Return the next `count` numbers."""
        values = self._numbers[self._position : self._position + count]
        self._position += count
        if len(values) < count:
            raise DamagedDataError(f"a rule's image has {len(self._numbers)} numbers, fewer than it says")
        return values

    def take_changes(self, agent: int) -> "EntryChanges":
        """Read a result of `EntryChanges.freeze`, preceded by its length. It must contain the entry of `agent` itself."""
        tokens = self.take_many(self.take())
        if 2 * agent not in tokens or max(tokens) >= 2 * ORDINALS_MAX:
            raise DamagedDataError(f"a rule's image is not one of agent {agent}; take an older checkpoint")
        return EntryChanges.restore(tokens)

    def end(self) -> None:
        """Check that all numbers have been read.

        Raises:
            DamagedDataError: some numbers have not been read.
        """
        if self._position < len(self._numbers):
            raise DamagedDataError("a rule's image is longer than it says; was it written by another protocol?")


def bits(mask: int) -> Iterator[int]:
    """Return the ordinals of the bits that are set in `mask`, in ascending order."""
    if mask.bit_length() > SPARSE_BITS * mask.bit_count():
        return _few_bits(mask)
    digits = bin(mask)[:1:-1].encode().translate(_TRUTHS)
    return compress(range(len(digits)), digits)


def _few_bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest

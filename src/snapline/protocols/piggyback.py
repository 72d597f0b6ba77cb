"""Piggybacks on messages. This module encodes numbers as bytes, and chooses the vector entries that a message must carry.

Theory of operation
-------------------
A piggyback is protocol data attached to a message: a sequence of numbers, each encoded as a varint. A varint stores seven bits per byte,
lowest bits first, and sets the high bit on all bytes except the last. A protocol's vector has one entry per agent. A message carries only
the entries that have changed since the last message to the same receiver (M. Singhal and A. Kshemkalyani, "An Efficient Implementation of
Vector Clocks", Information Processing Letters 43, 1992). The receiver needs no additional state to merge the entries. On a FIFO channel
without loss, the receiver has already merged the channel's earlier messages. Every merge is monotone and idempotent. So merging an
unchanged entry again would have no effect and could not force a checkpoint. Each protocol's module explains why this argument holds for the
protocol's own fields.

For each entry, the sender stores when it last changed, and for each receiver, when it last sent a message to that receiver. The bookkeeping
takes O(agents) + O(destinations) memory. `EntryChanges` keeps the entries in the order of their last change, so sending a message examines
at most one entry that the message does not carry.

Rollbacks. The bookkeeping is part of the protocol state that every checkpoint contains. On a consistent cut, the receiver has merged the
channel's messages 1 … r, and the sender's bookkeeping covers the messages 1 … s, where s >= r. After a rollback, the messages r + 1 … s are
delivered again, in order and with their original piggybacks. So when message s + 1 arrives, the receiver has merged the messages 1 … s, as
it would have without the rollback. The argument holds whether the sender, the receiver, both or neither was rolled back. The argument fails
if an undone send still counts as sent, so a rollback must restore the complete bookkeeping.

Grouping agents with equal values into bit masks costs CPU time but saves bytes. With 100 agents under the HMNR protocol, sending and
merging a piggyback takes 8.6 µs and 7.3 bytes, compared with 7.4 µs and 25.4 bytes without masks (`benchmarks/piggyback.py`).

Channels that are not FIFO need piggybacks that contain every known entry. Creating a piggyback with every entry does not change the
bookkeeping.
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
    """Return the numbers encoded as varints. The numbers must not be negative."""
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
    """Pack (ordinal, value) pairs into a list of numbers, in the shortest of three forms. If there are no pairs, return an empty list.

    Args:
        entries: the pairs, in any order. The receiver must not depend on entries that are omitted.
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
    """Return, for each value, a bit mask of the agents that have this value. Return an empty mapping if there are so many values that a
    different form is shorter."""
    values = dict.fromkeys(value for _, value in entries)
    if len(values) * (size // 7 + 2) >= min(2 * len(entries), size):
        return {}
    digits = {value: bytearray(b"0" * size) for value in values}
    for ordinal, value in entries:
        digits[value][-1 - ordinal] = ord("1")
    return {value: int(of_value, 2) for value, of_value in digits.items()}


def unpack_entries(numbers: Sequence[int], *, least: int = 1) -> Entries:
    """Return the entries packed by `pack_entries`. If the entries are packed in the dense form, omit those with the value 0.

    Args:
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
        size: one more than the largest ordinal of an entry that has ever changed.
        _now: number of sent messages recorded so far, which serves as the current time.
        _changed: for each ordinal, the value of `_now` when the ordinal's entry last changed. The entry that changed last is at the end.
        _sent: for each receiver, the value of `_now` before the last message to that receiver. The receiver of the latest message is at the
            end.
    """

    __slots__ = ("_changed", "_now", "_sent", "size")

    def __init__(self) -> None:
        self.size = 0
        self._now = 0
        self._changed: dict[int, int] = {}
        self._sent: dict[int, int] = {}

    def note(self, ordinal: int) -> None:
        """Record that the entry with the given ordinal has changed."""
        if self._changed.get(ordinal) == self._now:
            return
        self._changed.pop(ordinal, None)
        self._changed[ordinal] = self._now
        if ordinal >= self.size:
            self.size = ordinal + 1

    def send(self, to: int) -> list[int]:
        """Record that a message to the receiver `to` is sent. Return the ordinals of the entries that the message must carry, in order of
        their last change, latest first."""
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
        """Iterate over the ordinals of all entries that have ever changed, in order of their last change, latest last."""
        return iter(self._changed)

    def freeze(self) -> list[int]:
        """Return the complete state, which consists of the changed entries and the receivers of messages in chronological order. An even
        number 2k represents a change of entry k, and an odd number 2k + 1 represents a message to receiver k."""
        order = [(stamp, 2 * ordinal) for ordinal, stamp in self._changed.items()]
        order += [(stamp, 2 * receiver + 1) for receiver, stamp in self._sent.items()]
        order.sort(key=itemgetter(0))  # the sort is stable, so a change before a message remains before it
        return [token for _, token in order]

    @classmethod
    def restore(cls, tokens: Iterable[int]) -> "EntryChanges":
        """Return an object in the state that `freeze` has encoded as these numbers."""
        changes = cls()
        for token in tokens:
            if token % 2 == 0:
                changes.note(token // 2)
            else:
                changes.send(token // 2)
        return changes


class ImageReader:
    """Reads, in order, the numbers that encode a protocol's state in a checkpoint. Raises DamagedDataError if a number is missing."""

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
        """Read and return the next `count` numbers."""
        values = self._numbers[self._position : self._position + count]
        self._position += count
        if len(values) < count:
            raise DamagedDataError(f"a rule's image has {len(self._numbers)} numbers, fewer than it says")
        return values

    def take_changes(self, agent: int) -> "EntryChanges":
        """Read the numbers that `EntryChanges.freeze` returned, which are preceded by their count. The numbers must include the entry of
        `agent` itself."""
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

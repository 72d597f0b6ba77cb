"""Piggybacks on messages: encoding of numbers as bytes, and the choice of vector entries that a message must carry.

Theory of operation
-------------------
A piggyback is a sequence of numbers, each a varint: seven bits a byte, the lowest first, with the high bit set on all bytes
but the last. A vector has an entry per agent; a message carries only the entries that changed since the last message
to the same receiver (M. Singhal and A. Kshemkalyani, "An Efficient Implementation of Vector Clocks", Information
Processing Letters 43, 1992). The receiver needs no state for it. On a FIFO channel without loss it has merged the
channel's earlier messages, and every merge here is monotone and idempotent: merging an unchanged entry again would
change nothing, and cannot force a checkpoint (each rule explains why for its own fields).

The sender stores when each entry changed last and when it last sent to each receiver: O(agents) + O(destinations). `EntryChanges`
keeps the entries in the order of their last change, so a send looks at the entries it carries and one more.

Rollbacks. The bookkeeping is part of the rule's image, hence of every checkpoint. On a consistent cut the receiver's state has merged the
channel's messages up to its received number r, the sender's bookkeeping is at its sent number s >= r, and the messages r + 1 … s are
delivered again, in order, with the piggybacks they had. So the next message, s + 1, finds a receiver that has merged 1 … s, as without the
rollback. This holds if either side, both or neither rolled back. It does not hold if an undone send counts as sent, so restore the complete
image.

Masks take some CPU time and save bytes: with 100 agents a send and its merge by `hmnr` take 8.6 µs and 7.3 bytes, against 7.4 µs and 25.4
bytes with pairs and dense values alone (`benchmarks/piggyback.py`).

Channels that are not FIFO need absolute piggybacks with every known entry. These do not change the bookkeeping.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import itemgetter

from snapline.errors import DamagedDataError, ProtocolError

ORDINALS_MAX = 65_536
"""Upper bound of agents' ordinals. The coordinator admits 20,000 agents at a time; ordinals are never reused, so a fleet that spawns and
stops agents uses more. The bound keeps a damaged number from being read as the length of a vector."""

_SPARSE, _DENSE, _GROUPED = 0, 1, 2
"""First number of packed entries, which selects the form: pairs of ordinal and value; the values of the ordinals 0, 1, 2 …; or pairs of
a value and a mask of its agents (bit k: ordinal k). Agents that checkpoint at about the same pace have few different values."""

_MASK_MAX = (1 << ORDINALS_MAX) - 1

SPARSE_BITS = 16
"""Number of bits above which finding the set bits by arithmetic is faster than testing every bit."""

_TRUTHS = bytes.maketrans(b"01", b"\x00\x01")

Entries = dict[int, int]
"""Entries of a vector: by ordinal, a value above 0. No entry means 0: the agent is unknown."""


def encode(numbers: Sequence[int]) -> bytes:
    """Return the numbers, none below 0, encoded as varints."""
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
    """Pack (ordinal, value) pairs as numbers, in the shortest form. No pairs give no numbers.

    Args:
        entries: the pairs, in any order; the values of entries that are left out must not matter.
        size: greater than every ordinal in them.
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
    """Return the mask of agents by value; empty if there are so many values that the other forms are shorter."""
    values = dict.fromkeys(value for _, value in entries)
    if len(values) * (size // 7 + 2) >= min(2 * len(entries), size):
        return {}
    digits = {value: bytearray(b"0" * size) for value in values}
    for ordinal, value in entries:
        digits[value][-1 - ordinal] = ord("1")
    return {value: int(of_value, 2) for value, of_value in digits.items()}


def unpack_entries(numbers: Sequence[int], *, least: int = 1) -> Entries:
    """Return the entries packed by `pack_entries`, without zeros of the dense form.

    Args:
        numbers: as packed.
        least: no entry can have a value below this.

    Raises:
        ProtocolError: an unknown form, a pair without its value, an ordinal or value out of range.
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
    """Return whether no agent is in two masks or beyond the last ordinal."""
    union = 0
    for _, mask in groups:
        if mask & union or mask > _MASK_MAX:
            return False
        union |= mask
    return True


class EntryChanges:
    """Entries of a vector that changed since the last message to each receiver.

    Attributes:
        size: greater than the ordinal of every entry that ever changed.
        _now: the number of messages noted so far.
        _changed: by ordinal, `_now` at the last change of its entry; the latest change comes last.
        _sent: by receiver, `_now` before the last message to that receiver; the latest comes last.
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
        """Return the entries that the next message to `to` must carry, the latest change first, and record the message."""
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
        """Iterate over every entry that ever changed, the latest change last."""
        return iter(self._changed)

    def freeze(self) -> list[int]:
        """Return changes and messages in their order, which is the whole state: even numbers for entries, odd ones for receivers."""
        order = [(stamp, 2 * ordinal) for ordinal, stamp in self._changed.items()]
        order += [(stamp, 2 * receiver + 1) for receiver, stamp in self._sent.items()]
        order.sort(key=itemgetter(0))  # stable: a change before a message stays before it
        return [token for _, token in order]

    @classmethod
    def restore(cls, tokens: Iterable[int]) -> "EntryChanges":
        """Restore the state that `freeze` returned."""
        changes = cls()
        for token in tokens:
            if token % 2 == 0:
                changes.note(token // 2)
            else:
                changes.send(token // 2)
        return changes


class ImageReader:
    """Reads the numbers of a rule's image in order. A missing number means that the image is damaged."""

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
        """Read the result of `EntryChanges.freeze`, preceded by its length; it must contain the entry of `agent` itself."""
        tokens = self.take_many(self.take())
        if 2 * agent not in tokens or max(tokens) >= 2 * ORDINALS_MAX:
            raise DamagedDataError(f"a rule's image is not one of agent {agent}; take an older checkpoint")
        return EntryChanges.restore(tokens)

    def end(self) -> None:
        """Check that all numbers have been read.

        Raises:
            DamagedDataError: some numbers are left.
        """
        if self._position < len(self._numbers):
            raise DamagedDataError("a rule's image is longer than it says; was it written by another protocol?")


def bits(mask: int) -> Iterator[int]:
    """Return the ordinals of the bits set in `mask`, ascending."""
    if mask.bit_length() > SPARSE_BITS * mask.bit_count():
        return _few_bits(mask)
    digits = bin(mask)[:1:-1].encode().translate(_TRUTHS)
    return compress(range(len(digits)), digits)


def _few_bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest

"""The index-based communication-induced checkpointing protocols BCS and HMNR. Every checkpoint has an index, and clocks increase along
every Z-path.

HMNR
----
HMNR, also called FI, forces a checkpoint only if some checkpoint could otherwise become useless.

A checkpoint is useless (part of no consistent cut) if and only if it lies on a Z-cycle. BCS prevents every Z-path along which a clock could
decrease. HMNR uses more information about the causal past and forces fewer checkpoints. Each agent keeps a Lamport clock that advances at
checkpoints. For each other agent k, it also keeps the following values.

- `count[k]` is the number of k's checkpoints that this agent knows of.
- `taken[k]` says whether a causal path from the last of these checkpoints to this agent contains a further checkpoint.
- `greater[k]` says whether this agent's clock is greater than k's clock, as far as this agent knows.
- `sent_to[k]` says whether this agent has sent a message to k since its last checkpoint.

A message forces a checkpoint if it meets condition C1 or C2.

- C1: The message advances the receiver's clock. Moreover, since its last checkpoint, the receiver has sent a message to an agent whose
  clock, as far as the sender knows, is less than the new clock. Without a forced checkpoint, a Z-path would lead from a higher clock to a
  lower one.
- C2: The message closes a causal path that starts and ends in the receiver's current interval and contains a checkpoint. Without a forced
  checkpoint, the checkpoint on the path would lie on a Z-cycle.

As a result, clocks increase along every Z-path, so there is no Z-cycle (G6). RDT does not hold.

Source: J.-M. Helary, A. Mostefaoui, R. Netzer and M. Raynal, "Communication-Based Prevention of Useless Checkpoints in Distributed
Computations", Distributed Computing 13(1), 2000. Departures from the paper: messages carry only the piggyback entries that have changed. If
messages carry all entries, channels need not be FIFO. The set of agents may change at any time: for an unknown agent, `count` is 0, and
`taken` and `greater` are true.

Encoding: the negations `not_taken` and `not_greater` are stored and sent instead, so that an unknown agent has no bit set. A piggyback
begins with the sender's clock. Entry k is one number: `count[k]`, shifted left by two, with the bits `not_taken[k]` and `not_greater[k]` as
the lowest two bits.

Sending only changed entries is correct for the following reasons. The module `piggyback` contains the general argument. A message to
receiver i omits entry k if, since the previous message to i, `count[k]` and `taken[k]` have not changed and k has not been added to
`not_greater`.

- While `count[k]` stays the same, `taken[k]` can only become true. Merging two entries keeps the higher count. If the counts are equal,
  `taken[k]` is true if it is true in either entry. Merging is monotone, so merging the same entry again changes nothing.
- Condition C2 depends only on the entry of the receiver i. If a message omits entry i, the entry equals entry i of an earlier message to i.
  If that earlier message met C2, it forced a checkpoint, so i's own checkpoint count is now higher than the count in the entry. If that
  earlier message did not meet C2, the omitted entry does not meet C2 either, since i's own checkpoint count only increases.
- The bits in `not_greater` refer to the current clock value. While the clock stays the same, bits are only added. If the clocks of sender
  and receiver are equal, it is enough to send the added bits. If the message's clock is higher than the receiver's, no earlier message on
  the channel had this clock value, because otherwise the receiver would have adopted it. Every bit in `not_greater`, including the sender's
  own bit, was recorded as a change when it was set at this clock value, so the message carries all of them.
- If no change was recorded, the clock has not changed either, because a new clock value sets the agent's own bit again. If nothing has
  changed, the piggyback is empty.

BCS
---
Under BCS, each agent has one checkpoint index, and forced checkpoints keep the indices of all agents close together.

The index of a basic checkpoint is the agent's previous index plus one. The index of a forced checkpoint equals the index in the message
that forces it. Messages carry the sender's index. A message whose index is higher than the receiver's forces a checkpoint before the turn
that handles the message. So no message sent after a checkpoint with index k is received before a checkpoint with index k. For every k, take
the first checkpoint of each agent whose index is >= k, or the agent's live state if it has no such checkpoint. These checkpoints and live
states together form a consistent cut, so no checkpoint is useless (G6). By contrast, each agent's last checkpoint with an index <= k would
not form a consistent cut.

The protocol needs neither FIFO channels nor a fixed set of agents. The protocol does not track Z-paths with vectors, so it does not ensure
rollback-dependency trackability (RDT). No protocol with a scalar clock can ensure RDT.

Source: D. Briatico, A. Ciuffoletti and L. Simoncini, "A Distributed Domino-Effect Free Recovery Algorithm", IEEE
Symposium on Reliability in Distributed Software and Database Systems, 1984. Departures: none.

The piggyback is the sender's index. The index takes at most three bytes for the first two million checkpoints, so sending only changes
would not justify the bookkeeping.
"""

from typing import ClassVar

from snapline.errors import ProtocolError
from snapline.protocols.piggyback import (
    Entries,
    EntryChanges,
    ImageReader,
    bits,
    decode,
    encode,
    pack_entries,
    unpack_entries,
)
from snapline.protocols.rule import CheckpointRule

_NOT_GREATER, _NOT_TAKEN, _COUNT_SHIFT = 1, 2, 2
"""An entry's value: count, not_taken, not_greater, from the highest bit to the lowest."""


class HmnrRule(CheckpointRule):
    """The HMNR protocol's state for one agent. In every bit mask, bit k represents agent k.

    Attributes:
        _clock: the agent's Lamport clock, which is 1 after the initial checkpoint and never decreases while the agent runs.
        _count: for each known agent, the number of its checkpoints known to this agent, including the initial checkpoint. No entry: 0.
        _not_taken: mask of the agents k for which `taken[k]` is false. The mask always contains this agent.
        _not_greater: mask of the agents k for which `greater[k]` is false. The mask always contains this agent.
        _sent_to: mask of the agents to which this agent has sent messages since its last checkpoint.
        _changes: entries that the next message to each receiver must carry.
    """

    __slots__ = ("_changes", "_clock", "_count", "_not_greater", "_not_taken", "_own", "_sent_to")

    name: ClassVar[str] = "hmnr"

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._own = 1 << agent
        self._clock = 0
        self._count: Entries = {agent: 0}
        self._not_taken = self._not_greater = self._own
        self._sent_to = 0
        self._changes = EntryChanges()
        self.checkpoint()

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._sent_to = 0
        for ordinal in bits(self._not_taken):
            self._changes.note(ordinal)
        self._not_taken = self._not_greater = self._own
        self._clock += 1
        self._count[self.agent] += 1

    def send(self, to: int) -> bytes:
        self._sent_to |= 1 << to
        return self._encode(self._changes.send(to))

    def send_full(self, to: int) -> bytes:
        self._sent_to |= 1 << to
        return self._encode(list(self._changes.ordinals()))

    def forces(self, sender: int, piggyback: bytes) -> bool:
        clock, entries = self._read(piggyback)
        return self._lets_a_clock_fall(clock, entries) or self._closes_a_cycle(entries)

    def _lets_a_clock_fall(self, clock: int, entries: Entries) -> bool:
        """Return whether the message meets condition C1 (see the module docstring)."""
        return clock > self._clock and self._sent_to & ~_not_greater_in(entries) != 0

    def _closes_a_cycle(self, entries: Entries) -> bool:
        """Return whether the message meets condition C2 (see the module docstring)."""
        own = entries.get(self.agent, 0)
        return own >> _COUNT_SHIFT == self._count[self.agent] and not own & _NOT_TAKEN

    def receive(self, sender: int, piggyback: bytes) -> None:
        clock, entries = self._read(piggyback)
        if clock >= self._clock:
            self._merge_clock(clock, _not_greater_in(entries))
        for ordinal, value in entries.items():
            if ordinal != self.agent:
                self._merge_count(ordinal, value >> _COUNT_SHIFT, is_taken=not value & _NOT_TAKEN)

    def _merge_clock(self, clock: int, not_greater: int) -> None:
        if clock > self._clock:
            self._clock = clock
            self._not_greater = 0
            not_greater |= self._own
        for ordinal in bits(not_greater & ~self._not_greater):
            self._changes.note(ordinal)
        self._not_greater |= not_greater

    def _merge_count(self, ordinal: int, count: int, *, is_taken: bool) -> None:
        known = self._count.get(ordinal, 0)
        bit = 1 << ordinal
        if count > known:
            self._count[ordinal] = count
            self._not_taken = self._not_taken & ~bit if is_taken else self._not_taken | bit
            self._changes.note(ordinal)
        elif count == known and is_taken and self._not_taken & bit:
            self._not_taken ^= bit
            self._changes.note(ordinal)

    def _encode(self, ordinals: list[int]) -> bytes:
        if not ordinals:
            return b""
        entries = [(ordinal, self._value(ordinal)) for ordinal in ordinals]
        return encode([self._clock, *pack_entries(entries, self._changes.size)])

    def _value(self, ordinal: int) -> int:
        not_taken = self._not_taken >> ordinal & 1
        return self._count[ordinal] << _COUNT_SHIFT | not_taken << 1 | self._not_greater >> ordinal & 1

    def _read(self, piggyback: bytes) -> tuple[int, Entries]:
        numbers = decode(piggyback)
        if not numbers:
            return 0, {}
        entries = unpack_entries(numbers[1:], least=1 << _COUNT_SHIFT)
        if entries.get(self.agent, 0) >> _COUNT_SHIFT > self._count[self.agent]:
            raise ProtocolError(f"a message knows of a checkpoint of agent {self.agent} that it has not taken")
        return numbers[0], entries

    def freeze(self) -> bytes:
        tokens = self._changes.freeze()
        values = map(self._value, self._changes.ordinals())
        return encode([self._clock, self._sent_to, len(tokens), *tokens, *values])

    def _thaw(self, image: ImageReader) -> None:
        self._clock = image.take()
        self._sent_to = image.take()
        self._changes = image.take_changes(self.agent)
        entries = {ordinal: image.take() for ordinal in self._changes.ordinals()}
        image.end()
        self._count = {ordinal: value >> _COUNT_SHIFT for ordinal, value in entries.items()}
        self._not_taken = sum(1 << ordinal for ordinal, value in entries.items() if value & _NOT_TAKEN)
        self._not_greater = _not_greater_in(entries)


def _not_greater_in(entries: Entries) -> int:
    mask = 0
    for ordinal, value in entries.items():
        if value & _NOT_GREATER:
            mask |= 1 << ordinal
    return mask


class BcsRule(CheckpointRule):
    """The BCS protocol's state for one agent.

    Attributes:
        index: index of the agent's last checkpoint, or 0 if that is the initial checkpoint. The index never decreases while the agent runs.
    """

    __slots__ = ("_piggyback", "index")

    name: ClassVar[str] = "bcs"

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._set_index(0)

    def checkpoint(self, cause: bytes | None = None) -> None:
        forced = -1 if cause is None else self._read(cause)
        self._set_index(forced if forced > self.index else self.index + 1)

    def send(self, to: int) -> bytes:
        return self._piggyback

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return self._read(piggyback) > self.index

    def receive(self, sender: int, piggyback: bytes) -> None:
        index = self._read(piggyback)
        if index > self.index:  # only if the caller did not take the forced checkpoint
            self._set_index(index)

    def freeze(self) -> bytes:
        return self._piggyback

    def _thaw(self, image: ImageReader) -> None:
        self._set_index(image.take())
        image.end()

    def _set_index(self, index: int) -> None:
        self.index = index
        self._piggyback = encode((index,))

    def _read(self, piggyback: bytes) -> int:
        if piggyback == self._piggyback:  # the usual case: all indices are equal
            return self.index
        numbers = decode(piggyback)
        if len(numbers) != 1:
            raise ProtocolError(f"a piggyback of bcs holds one index, this one {len(numbers)} numbers")
        return numbers[0]

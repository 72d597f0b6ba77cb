"""Index-based communication-induced protocols, BCS and HMNR: every checkpoint has an index, and clocks rise along every Z-path.

HMNR
----
HMNR, also called FI, forces a checkpoint only where some checkpoint could otherwise become useless.

A checkpoint is useless iff it lies on a Z-cycle. BCS prevents every Z-path along which a clock could fall; HMNR sees more of
the causal past and forces fewer checkpoints. Each agent keeps a Lamport clock over its checkpoints, and

- count[k]: the number of k's checkpoints that this agent knows of;
- taken[k]: a causal path from the last of these to this agent contains a checkpoint;
- greater[k]: this agent's clock exceeds k's clock, as far as this agent knows;
- sent_to[k]: the agent sent to k since its last checkpoint.

A message forces a checkpoint if

- C1: it raises the clock, and since the last checkpoint the agent sent to some k that the sender believes behind the new
  clock: a Z-path would lead from the higher clock to the lower; or
- C2: it closes a causal path from the own current interval to itself that contains a checkpoint: this checkpoint would be on
  a Z-cycle.

Then clocks rise along every Z-path, so there is no Z-cycle (G6). RDT does not hold.

Source: J.-M. Helary, A. Mostefaoui, R. Netzer and M. Raynal, "Communication-Based Prevention of Useless Checkpoints in
Distributed Computations", Distributed Computing 13(1), 2000. Departures: the deltas below. Neither FIFO (with absolute
piggybacks) nor a fixed fleet is needed: of an unknown agent, count is 0, taken and greater are true.

Form: the complements are kept and sent, `not_taken` and `not_greater`, so that an unknown agent has no bit at all. Entry
k of a piggyback is count[k] with both bits below it. The clock comes first.

Why deltas are right (`piggyback` has the frame). Entry k is left out if count[k] and taken[k] have not changed since the
last message to this receiver i, and k has not become not-greater since.

- count and taken: at a given count, taken only becomes true. The merge takes the higher count and, for equal ones, the
  disjunction: monotone, so merging the same again changes nothing.
- C2 looks at entry i. If omitted, it equals that of an earlier message: if it met C2 then, a checkpoint was forced
  and count[i] has grown beyond it; if it did not, it still does not, as count[i] only grows.
- not_greater belongs to a clock; at a given clock its bits are only added. If the clocks are equal, adding the new ones
  is enough. If the message's clock is higher than the receiver's, no message of this clock went this way before (the
  receiver would have it), and all bits set at this clock, own bit included, are noted as changes when they are: so the
  message has them all.
- If nothing was noted, neither has the clock changed (a new clock sets the own bit again), and the piggyback is empty.

BCS
---
Each agent has one checkpoint index, and forced checkpoints keep the indexes of all agents in step.

Every checkpoint has an index: a basic checkpoint has the agent's last index plus one, a forced checkpoint the index of the
message that forces it. Messages carry the sender's index. A message with a higher index than the receiver's forces a
checkpoint before its turn. So no message goes from behind index k to before index k, and for every k the first checkpoints
with an index >= k, one per agent (the live state where there is none), are a consistent cut: no checkpoint is useless (G6).
The last checkpoints with index <= k are not a consistent cut.

The index is Lamport's clock over checkpoints. The protocol needs neither FIFO nor a fixed fleet. Z-paths are not tracked by
vectors (RDT does not hold; no scalar clock can ensure it).

Source: D. Briatico, A. Ciuffoletti and L. Simoncini, "A Distributed Domino-Effect Free Recovery Algorithm", IEEE
Symposium on Reliability in Distributed Software and Database Systems, 1984. Departures: none.

Piggyback: the index, one number. It takes one to three bytes for the first two million checkpoints, so deltas are not
worth their bookkeeping.
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
    """HMNR rule of one agent. Masks have bit k for agent k.

    Attributes:
        _clock: 1 after the initial checkpoint; never falls while the agent runs.
        _count: by agent, the number of its checkpoints known here, including the initial one. No entry: 0.
        _not_taken: a subset of the agents in `_count`, always with the own bit.
        _not_greater: a subset of the agents in `_count`, always with the own bit.
        _sent_to: agents that received messages since the last checkpoint.
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
        """Return whether the message meets condition C1."""
        return clock > self._clock and self._sent_to & ~_not_greater_in(entries) != 0

    def _closes_a_cycle(self, entries: Entries) -> bool:
        """Return whether the message meets condition C2."""
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
    """The BCS rule of one agent.

    Attributes:
        index: index of the last checkpoint, which is 0 for the initial checkpoint. It never decreases while the agent runs.
        _piggyback: the encoded index.
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

"""Protocols of the RDT family. FDAS, FDI and BHMR use dependency vectors, while NRAS, CBR and CAS need no piggyback.

Theory of operation
-------------------
RDT (rollback-dependency trackability) means that dependency vectors show every Z-path between checkpoints, just as they show every causal
path. Then no checkpoint is useless (G6), and the vectors alone determine the earliest and the latest consistent cut that contains a given
checkpoint. A Z-path is not causal if it leaves some agent by a message that was sent *before* the path's previous message was received in
the same interval. So each protocol takes a checkpoint between certain sends and receives:

- CAS, checkpoint after send: immediately after sends. Departure: one checkpoint follows all sends of a turn, since no receive can come
  between them. In a trace, where turns are not known, a checkpoint follows each send.
- CBR, checkpoint before receive: before every receive.
- NRAS, no receive after send: before a receive, if there was a send in the interval.
- FDI, fixed dependency interval: before a receive that changes the vector, if there was a send or a receive in the interval.
- FDAS, fixed dependency after send: before a receive that changes the vector, if there was a send in the interval.

In the same state, FDI and NRAS force a checkpoint whenever FDAS does, and CBR forces one whenever any of these three does. CAS, CBR and
NRAS are baselines. Their vectors would only serve to find consistent cuts, so a live fleet does not send them.

Sources: D. L. Russell, "State Restoration in Systems of Communicating Processes", IEEE TSE 6(2), 1980 (NRAS); Y.-M. Wang, "Consistent
Global Checkpoints that Contain a Given Set of Local Checkpoints", IEEE Transactions on Computers 46(4), 1997 (FDAS and the family).

Encoding: entry k of the vector is the number of k's checkpoints in the causal past, including the initial checkpoint. It equals the index
of k's current interval plus one, and 0 means that k is unknown. Comparisons have the same results as with the indices.

Why deltas are correct (`piggyback` has the general argument): merging takes the entrywise maximum. An omitted entry was contained in an
earlier message of the channel, so it is not higher than the receiver's entry. Therefore it would neither force a checkpoint nor change the
vector.

BHMR
----
BHMR ensures RDT with fewer forced checkpoints than FDAS, but adds a bit matrix to every message.

FDAS forces a checkpoint when a message that reports a newer interval arrives after a send. The resulting Z-path may be harmless. If a
causal path connects the same two intervals, the vectors already show the dependency, and no checkpoint is needed. To detect this, each
agent keeps, in addition to the dependency vector,

- simple[k]: whether no causal path from k's last known checkpoint to this agent contains a further checkpoint;
- causal[k][l]: whether, as far as this agent knows, there is a causal path from k's last known interval to agent l;
- sent_to[l]: whether this agent has sent a message to l since its last checkpoint.

A message forces a checkpoint if

- it reports a newer interval of some agent k, and since its last checkpoint the receiver has sent a message to some agent l to which the
  message's sender knows no causal path from that interval; or
- it closes a causal path that starts and ends in the receiver's current interval and is not simple, which means that a checkpoint lies on
  the path.

Then for every Z-path there is a causal path between the same intervals. So RDT holds, and therefore G6.

Source: R. Baldoni, J.-M. Helary, A. Mostefaoui and M. Raynal, "A Communication-Induced Checkpointing Protocol that Ensures
Rollback-Dependency Trackability", 27th International Symposium on Fault-Tolerant Computing (FTCS), 1997. Departures: piggybacks are deltas,
as described below. With absolute piggybacks, FIFO channels are not needed. A fixed set of agents is never needed.

Encoding: vector entries are the interval's index plus one, as above. Entry k of a piggyback consists of three numbers: k,
vector[k] with simple[k] as the lowest bit, and row k of `causal` as a mask.

Why deltas are correct (`piggyback` has the general argument). Entry k is omitted if vector[k], simple[k] and row k have not changed since
the last message to this receiver i. While vector[k] stays the same, simple[k] can only become false, and row k can only gain bits. Merging
preserves this order, so merging the same entry again changes nothing. The first test concerns entries that are higher than the receiver's,
and omitted entries are not higher. The second test concerns entry i. If entry i is omitted, it equals entry i of an earlier message. If the
earlier message met the test, it forced a checkpoint, and vector[i] is now higher than the entry. If it did not, the entry still does not
meet the test.
"""

from typing import ClassVar

from snapline.errors import ProtocolError
from snapline.protocols.piggyback import (
    ORDINALS_MAX,
    Entries,
    EntryChanges,
    ImageReader,
    bits,
    decode,
    encode,
    pack_entries,
    unpack_entries,
)
from snapline.protocols.rule import CheckpointRule, SilentRule


class _VectorRule(CheckpointRule):
    """Base class of protocols in which, after a certain event, the dependency vector must not change until the next checkpoint.

    Attributes:
        _vector: agent → number of its checkpoints in the causal past. A missing entry means 0.
        _is_fixed: whether the vector must not increase before the next checkpoint. Checkpoints reset it.
        _changes: tracks which entries the next message to each receiver must carry.
    """

    __slots__ = ("_changes", "_is_fixed", "_vector")

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._vector: Entries = {agent: 0}
        self._is_fixed = False
        self._changes = EntryChanges()
        self.checkpoint()

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._is_fixed = False
        self._vector[self.agent] += 1
        self._changes.note(self.agent)

    def send(self, to: int) -> bytes:
        self._is_fixed = True
        return self._encode(self._changes.send(to))

    def send_full(self, to: int) -> bytes:
        self._is_fixed = True
        return self._encode(list(self._vector))

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return self._is_fixed and self._raises_the_vector(sender, self._read(piggyback))

    def _raises_the_vector(self, sender: int, entries: Entries) -> bool:
        """Return whether a message with these entries would increase the vector. Under FDAS, checking only the sender's entry would give
        the same result, but deltas are short enough to check all entries."""
        vector = self._vector
        return any(value > vector.get(ordinal, 0) for ordinal, value in entries.items())

    def receive(self, sender: int, piggyback: bytes) -> None:
        vector = self._vector
        for ordinal, value in self._read(piggyback).items():
            if value > vector.get(ordinal, 0):
                vector[ordinal] = value
                self._changes.note(ordinal)

    def _encode(self, ordinals: list[int]) -> bytes:
        return encode(pack_entries([(ordinal, self._vector[ordinal]) for ordinal in ordinals], self._changes.size))

    def _read(self, piggyback: bytes) -> Entries:
        entries = unpack_entries(decode(piggyback))
        if entries.get(self.agent, 0) > self._vector[self.agent]:
            raise ProtocolError(f"a message knows of a checkpoint of agent {self.agent} that it has not taken")
        return entries

    def freeze(self) -> bytes:
        tokens = self._changes.freeze()
        values = [self._vector[ordinal] for ordinal in self._changes.ordinals()]
        return encode([int(self._is_fixed), len(tokens), *tokens, *values])

    def _thaw(self, image: ImageReader) -> None:
        self._is_fixed = image.take() != 0
        self._changes = image.take_changes(self.agent)
        self._vector = {ordinal: image.take() for ordinal in self._changes.ordinals()}
        image.end()


class FdasRule(_VectorRule):
    """FDAS (fixed dependency after send): the first send in an interval fixes the vector."""

    __slots__ = ()

    name: ClassVar[str] = "fdas"


class FdiRule(_VectorRule):
    """FDI (fixed dependency interval): the first send or receive in an interval fixes the vector."""

    __slots__ = ()

    name: ClassVar[str] = "fdi"

    def receive(self, sender: int, piggyback: bytes) -> None:
        super().receive(sender, piggyback)
        self._is_fixed = True


class NrasRule(SilentRule):
    """NRAS (no receive after send): forces a checkpoint before every receive that follows a send in the same interval."""

    __slots__ = ("_has_sent",)

    name: ClassVar[str] = "nras"

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._has_sent = False

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._has_sent = False

    def send(self, to: int) -> bytes:
        self._has_sent = True
        return b""

    def forces(self, sender: int, piggyback: bytes) -> bool:
        self._check_silence(sender, piggyback)
        return self._has_sent

    def freeze(self) -> bytes:
        return encode((int(self._has_sent),))

    def _thaw(self, image: ImageReader) -> None:
        self._has_sent = image.take() != 0
        image.end()


class CbrRule(SilentRule):
    """CBR (checkpoint before receive): forces a checkpoint before every receive."""

    __slots__ = ()

    name: ClassVar[str] = "cbr"

    def forces(self, sender: int, piggyback: bytes) -> bool:
        self._check_silence(sender, piggyback)
        return True


class CasRule(SilentRule):
    """CAS (checkpoint after send): never forces a checkpoint before a receive. The caller takes a checkpoint after the sends of a turn
    instead."""

    __slots__ = ()

    name: ClassVar[str] = "cas"
    checkpoints_after_sends: ClassVar[bool] = True


_Received = dict[int, tuple[int, bool, int]]
"""Received entries: agent → (entry of the vector, simple, row of causal)."""


class BhmrRule(CheckpointRule):
    """The BHMR rule of one agent. In masks, bit k stands for agent k.

    Attributes:
        _vector: agent → number of its checkpoints in the causal past. A missing entry means 0.
        _simple: mask of a subset of the agents in `_vector`. The agent's own bit is always set.
        _causal: agent in `_vector` → its row of `causal`. In row k, bit k and the agent's own bit are always set.
        _sent_to: mask of the agents to which messages were sent since the last checkpoint.
        _changes: tracks which entries the next message to each receiver must carry.
    """

    __slots__ = ("_causal", "_changes", "_own", "_sent_to", "_simple", "_vector")

    name: ClassVar[str] = "bhmr"

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._own = 1 << agent
        self._vector: Entries = {agent: 0}
        self._simple = self._own
        self._causal: Entries = {agent: self._own}
        self._sent_to = 0
        self._changes = EntryChanges()
        self.checkpoint()

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._vector[self.agent] += 1
        self._sent_to = 0
        for ordinal in bits(self._simple):
            self._changes.note(ordinal)
        self._simple = self._own
        self._causal[self.agent] = self._own

    def send(self, to: int) -> bytes:
        self._sent_to |= 1 << to
        return encode(self._flatten(self._changes.send(to)))

    def send_full(self, to: int) -> bytes:
        self._sent_to |= 1 << to
        return encode(self._flatten(list(self._vector)))

    def forces(self, sender: int, piggyback: bytes) -> bool:
        received = self._read(piggyback)
        return self._leaves_a_path_untracked(received) or self._closes_a_cycle(received)

    def _leaves_a_path_untracked(self, received: _Received) -> bool:
        if not self._sent_to:
            return False
        return any(
            entry > self._vector.get(ordinal, 0) and self._sent_to & ~row
            for ordinal, (entry, _, row) in received.items()
        )

    def _closes_a_cycle(self, received: _Received) -> bool:
        entry, is_simple, _ = received.get(self.agent, (0, True, 0))
        return entry == self._vector[self.agent] and not is_simple

    def receive(self, sender: int, piggyback: bytes) -> None:
        for ordinal, (entry, is_simple, row) in self._read(piggyback).items():
            self._merge(ordinal, entry, is_simple, row | self._own)
        self._simple |= self._own

    def _merge(self, ordinal: int, entry: int, is_simple: bool, row: int) -> None:
        known = self._vector.get(ordinal, 0)
        bit = 1 << ordinal
        if entry > known:
            self._vector[ordinal] = entry
            self._simple = self._simple | bit if is_simple else self._simple & ~bit
            self._causal[ordinal] = row
            self._changes.note(ordinal)
        elif entry == known:
            is_less_simple = not is_simple and self._simple & bit and ordinal != self.agent
            if is_less_simple or row & ~self._causal[ordinal]:
                self._changes.note(ordinal)
            if not is_simple:
                self._simple &= ~bit
            self._causal[ordinal] |= row

    def _flatten(self, ordinals: list[int]) -> list[int]:
        numbers: list[int] = []
        for ordinal in ordinals:
            numbers += (ordinal, self._vector[ordinal] << 1 | self._simple >> ordinal & 1, self._causal[ordinal])
        return numbers

    def _read(self, piggyback: bytes) -> _Received:
        numbers = decode(piggyback)
        received = {
            ordinal: (value >> 1, bool(value & 1), row)
            for ordinal, value, row in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False)
        }
        widest = max(numbers[2::3], default=0)
        is_cut_off = len(numbers) % 3 != 0
        if is_cut_off or max(received, default=0) >= ORDINALS_MAX or widest.bit_length() > ORDINALS_MAX:
            raise ProtocolError(f"a piggyback of bhmr with {len(numbers)} numbers holds no triples of agents")
        if min(numbers[1::3], default=2) < 2:
            raise ProtocolError("a piggyback of bhmr has an entry of an agent without checkpoints, which no agent is")
        if self.agent in received and received[self.agent][0] > self._vector[self.agent]:
            raise ProtocolError(f"a message knows of a checkpoint of agent {self.agent} that it has not taken")
        return received

    def freeze(self) -> bytes:
        tokens = self._changes.freeze()
        return encode([self._sent_to, len(tokens), *tokens, *self._flatten(list(self._changes.ordinals()))])

    def _thaw(self, image: ImageReader) -> None:
        self._sent_to = image.take()
        self._changes = image.take_changes(self.agent)
        self._vector, self._causal, self._simple = {}, {}, 0
        for _ in self._changes.ordinals():
            ordinal, value, row = image.take_many(3)
            self._vector[ordinal] = value >> 1
            self._simple |= (value & 1) << ordinal
            self._causal[ordinal] = row
        image.end()

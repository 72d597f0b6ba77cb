"""Checkpointing protocols of the RDT family. FDAS, FDI and BHMR use dependency vectors. NRAS, CBR and CAS add no data to messages.

Theory of operation
-------------------
RDT (rollback-dependency trackability) means that dependency vectors show every Z-path between checkpoints, not only causal paths. RDT
implies that no checkpoint is useless (G6). The vectors alone determine the earliest and the latest consistent cut that contains a given
checkpoint. A Z-path is not causal if some agent sends a message of the path *before* it receives the previous message of the path in the
same interval. So each protocol forces a checkpoint between certain sends and receives:

- CAS (checkpoint after send) takes a checkpoint immediately after sends. Departure: a single checkpoint follows all sends of a turn,
  because no receive can occur between them. In a trace, where turns are unknown, a checkpoint follows each send.
- CBR (checkpoint before receive) takes a checkpoint before every receive.
- NRAS (no receive after send) takes a checkpoint before a receive if the interval contains a send.
- FDI (fixed dependency interval) takes a checkpoint before a receive that changes the vector if the interval contains a send or a receive.
- FDAS (fixed dependency after send) takes a checkpoint before a receive that changes the vector if the interval contains a send.

In the same state, FDI and NRAS force a checkpoint whenever FDAS does. CBR forces a checkpoint whenever any of these three protocols does.
CAS, CBR and NRAS are included only for comparison. A live fleet does not send their vectors, which would serve only for finding consistent
cuts.

Sources: Russell, "State Restoration in Systems of Communicating Processes", IEEE TSE 6(2), 1980 (NRAS); Wang, "Consistent Global
Checkpoints that Contain a Given Set of Local Checkpoints", IEEE Transactions on Computers 46(4), 1997 (FDAS and the family).

Encoding: entry k of the vector is the number of checkpoints of agent k in the causal past, including the initial checkpoint. The entry
equals the index of k's current interval plus one. An entry of 0 means that agent k is unknown. Comparing these numbers gives the same
results as comparing the indices.

Why deltas are correct (`piggyback` contains the general argument): vectors are merged by taking the maximum of each entry. An omitted entry
was contained in an earlier message on the same channel, so it is not higher than the receiver's entry. So the omitted entry would neither
force a checkpoint nor change the vector.

BHMR
----
BHMR guarantees RDT with fewer forced checkpoints than FDAS, but adds a bit matrix to each message.

FDAS forces a checkpoint if a message that reports a newer interval arrives after a send. The resulting Z-path may be harmless. If a causal
path connects the same two intervals, the vectors already show the dependency, so no checkpoint is needed. To detect harmless Z-paths, each
agent keeps the following data in addition to the dependency vector:

- simple[k]: whether all causal paths from the last known checkpoint of agent k to this agent contain no other checkpoint.
- causal[k][l]: whether this agent knows of a causal path from the last known interval of agent k to agent l.
- sent_to[l]: whether this agent has sent a message to agent l since its last checkpoint.

A message forces a checkpoint in either of two cases:

- The message reports a newer interval of some agent k. In addition, since its last checkpoint, the receiver has sent a message to an agent
  l to which the sender knows no causal path from k's interval.
- The message closes a causal path that starts and ends in the receiver's current interval and contains a checkpoint, so it is not simple.

These forced checkpoints ensure that for every Z-path, a causal path connects the same intervals. So RDT holds, which implies G6.

Source: Baldoni, Helary, Mostefaoui and Raynal, "A Communication-Induced Checkpointing Protocol that Ensures Rollback-Dependency
Trackability", 27th International Symposium on Fault-Tolerant Computing (FTCS), 1997. Departures: messages carry only deltas, as described
below. If messages carried absolute values, FIFO channels would not be needed. The set of agents need not be fixed in either case.

Encoding: as above, vector entries are interval indices plus one. Entry k of a message's protocol data consists of three numbers: k,
vector[k] with simple[k] as the lowest bit, and row k of `causal` as a bit mask.

The following shows why deltas are correct (`piggyback` contains the general argument). Entry k is omitted if vector[k], simple[k] and row k
have not changed since the previous message to this receiver i. While vector[k] stays the same, simple[k] can only become false, and row k
can only gain bits. Merging respects this order, so merging the same entry again has no effect. In the first case, the message contains an
entry that is higher than the receiver's entry. An omitted entry is never higher. The second case depends on entry i. If entry i is omitted,
it equals entry i of an earlier message. If the second case applied to the earlier message, a checkpoint was forced. So the receiver's
vector[i] is now higher than the entry. If the second case did not apply then, it does not apply now.
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
    """Base class of protocols under which the dependency vector must not change between a certain event and the next checkpoint.

    Attributes:
        _vector: maps each agent to the number of its checkpoints in the causal past. A missing entry means 0.
        _is_fixed: whether the vector must not increase before the next checkpoint. Each checkpoint resets this flag.
        _changes: the entries that the next message to each receiver must carry.
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
        the same result. All entries are checked, because deltas are short enough."""
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
    """FDAS (fixed dependency after send): after the first send in an interval, the vector must not change."""

    __slots__ = ()

    name: ClassVar[str] = "fdas"


class FdiRule(_VectorRule):
    """FDI (fixed dependency interval): after the first send or receive in an interval, the vector must not change."""

    __slots__ = ()

    name: ClassVar[str] = "fdi"

    def receive(self, sender: int, piggyback: bytes) -> None:
        super().receive(sender, piggyback)
        self._is_fixed = True


class NrasRule(SilentRule):
    """NRAS (no receive after send): force a checkpoint before each receive that follows a send in the same interval."""

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
    """CBR (checkpoint before receive): force a checkpoint before every receive."""

    __slots__ = ()

    name: ClassVar[str] = "cbr"

    def forces(self, sender: int, piggyback: bytes) -> bool:
        self._check_silence(sender, piggyback)
        return True


class CasRule(SilentRule):
    """CAS (checkpoint after send): never force a checkpoint before a receive. Instead, the caller takes a checkpoint after the sends of a
    turn."""

    __slots__ = ()

    name: ClassVar[str] = "cas"
    checkpoints_after_sends: ClassVar[bool] = True


_Received = dict[int, tuple[int, bool, int]]
"""Received entries: agent → (entry of the vector, simple, row of causal)."""


class BhmrRule(CheckpointRule):
    """The BHMR rule of one agent. In bit masks, bit k represents agent k.

    Attributes:
        _vector: maps each agent to the number of its checkpoints in the causal past. A missing entry means 0.
        _simple: bit mask of those agents in `_vector` whose `simple` flag is true. The bit of this agent is always set.
        _causal: maps each agent in `_vector` to its row of `causal`. In row k, the bits of agent k and of this agent are always set.
        _sent_to: bit mask of the agents to which this agent has sent messages since its last checkpoint.
        _changes: the entries that the next message to each receiver must carry.
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

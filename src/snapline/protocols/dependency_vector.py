"""Protocols of the RDT family. FDAS and FDI use dependency vectors, while NRAS, CBR and CAS need no piggyback.

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

Sources: D. L. Russell, "State Restoration in Systems of Communicating Processes", IEEE TSE 6(2), 1980 (NRAS); Y.-M.
Wang, "Consistent Global Checkpoints that Contain a Given Set of Local Checkpoints", IEEE Transactions on Computers
46(4), 1997 (FDAS and the family).

Encoding: entry k of the vector is the number of k's checkpoints in the causal past, including the initial checkpoint. It equals the index
of k's current interval plus one, and 0 means that k is unknown. Comparisons have the same results as with the indices.

Why deltas are correct (`piggyback` has the general argument): merging takes the entrywise maximum. An omitted entry was contained in an
earlier message of the channel, so it is not higher than the receiver's entry. Therefore it would neither force a checkpoint nor change the
vector.
"""

from typing import ClassVar

from snapline.errors import ProtocolError
from snapline.protocols.piggyback import (
    Entries,
    EntryChanges,
    ImageReader,
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

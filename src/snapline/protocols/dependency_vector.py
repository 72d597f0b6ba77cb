"""Protocols of the RDT family: FDAS and FDI, which use dependency vectors, and NRAS, CBR and CAS, which need no piggyback.

Theory of operation
-------------------
RDT, rollback-dependency trackability: every Z-path between checkpoints is shown by dependency vectors, as every causal
path is. Then no checkpoint is useless (G6), and vectors alone give the earliest and the latest consistent cut with a
given checkpoint. A Z-path that is not causal leaves an agent by a message sent *before* a receive in the same interval.
So each protocol takes a checkpoint between certain sends and receives:

- CAS, checkpoint after send: right after the sends of a turn. Departure: one checkpoint follows all sends of a turn, as
  no receive can come between them; in a trace, where turns are not known, one follows each send.
- CBR, checkpoint before receive: always before a receive.
- NRAS, no receive after send: before a receive, if the interval has sent.
- FDI, fixed dependency interval: before a receive that changes the vector, if the interval has sent or received.
- FDAS, fixed dependency after send: before a receive that changes the vector, if the interval has sent.

In the same state, FDI and NRAS force whenever FDAS does, and CBR whenever one of these does. CAS, CBR and NRAS are
baselines: their vector would only serve to find cuts, so a live fleet does not send it.

Sources: D. L. Russell, "State Restoration in Systems of Communicating Processes", IEEE TSE 6(2), 1980 (NRAS); Y.-M.
Wang, "Consistent Global Checkpoints that Contain a Given Set of Local Checkpoints", IEEE Transactions on Computers
46(4), 1997 (FDAS and the family).

Form: entry k of the vector is the number of k's checkpoints in the causal past, the initial one counted. That is one more
than the index of k's current interval, and 0 means that k is unknown. Comparisons have the same result.

Why deltas are right (`piggyback` has the frame): the merge is the entrywise maximum. An omitted entry was in an earlier
message of the channel, so it is not above the receiver's and neither forces nor changes anything.
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
    """Base class of protocols that fix the dependency vector of an interval from some event on.

    Attributes:
        _vector: by agent, the number of its checkpoints in the causal past. No entry: 0.
        _is_fixed: the vector may not rise in the rest of the interval. Cleared by checkpoints.
        _changes: entries that the next message to each receiver must carry.
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
        """Return whether a message raises the vector. For FDAS the sender's entry alone would give the same result, but deltas are
        short enough to check all entries."""
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
    """Fixed dependency after send: the first send of an interval fixes its vector."""

    __slots__ = ()

    name: ClassVar[str] = "fdas"


class FdiRule(_VectorRule):
    """Fixed dependency interval: the first send or receive of an interval fixes its vector."""

    __slots__ = ()

    name: ClassVar[str] = "fdi"

    def receive(self, sender: int, piggyback: bytes) -> None:
        super().receive(sender, piggyback)
        self._is_fixed = True


class NrasRule(SilentRule):
    """No receive after send: forces before every receive of an interval that has sent."""

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
    """Checkpoint before receive: forces before every receive."""

    __slots__ = ()

    name: ClassVar[str] = "cbr"

    def forces(self, sender: int, piggyback: bytes) -> bool:
        self._check_silence(sender, piggyback)
        return True


class CasRule(SilentRule):
    """Checkpoint after send: forces nothing before a receive; the caller checkpoints after the sends of a turn."""

    __slots__ = ()

    name: ClassVar[str] = "cas"
    checkpoints_after_sends: ClassVar[bool] = True

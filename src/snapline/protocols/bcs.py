"""BCS protocol: each agent has one checkpoint index, and forced checkpoints keep the indexes of all agents in step.

Theory of operation
-------------------
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
from snapline.protocols.piggyback import ImageReader, decode, encode
from snapline.protocols.rule import CheckpointRule


class BcsRule(CheckpointRule):
    """BCS rule of one agent.

    Attributes:
        index: index of the last checkpoint, 0 for the initial one. Never falls while the agent runs.
        _piggyback: the index, encoded.
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

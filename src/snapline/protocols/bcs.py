"""BCS protocol. Each agent has one checkpoint index, and forced checkpoints keep the indices of all agents close together.

Theory of operation
-------------------
Every checkpoint has an index. The index of a basic checkpoint is the agent's previous index plus one. The index of a forced checkpoint
equals the index in the message that forces it. Messages carry the sender's index. A message whose index is higher than the receiver's
forces a checkpoint before the turn that handles the message. So no message that is sent after a checkpoint with index k is received before
one with index k. For every k, take the first checkpoint of each agent whose index is >= k, or the agent's live state if it has no such
checkpoint. Together they form a consistent cut, so no checkpoint is useless (G6). The last checkpoints with an index <= k, in contrast, do
not form a consistent cut.

The index is a Lamport clock whose events are checkpoints. The protocol needs neither FIFO channels nor a fixed set of agents. It does not
track Z-paths with vectors, so RDT does not hold. No scalar clock can ensure RDT.

Source: D. Briatico, A. Ciuffoletti and L. Simoncini, "A Distributed Domino-Effect Free Recovery Algorithm", IEEE
Symposium on Reliability in Distributed Software and Database Systems, 1984. Departures: none.

Piggyback: the index, which is one number. It takes one to three bytes for the first two million checkpoints, so sending deltas would not
justify the bookkeeping.
"""

from typing import ClassVar

from snapline.errors import ProtocolError
from snapline.protocols.piggyback import ImageReader, decode, encode
from snapline.protocols.rule import CheckpointRule


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
        if index > self.index:  # true only if the caller did not take the forced checkpoint
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
        if piggyback == self._piggyback:  # the usual case, since agents mostly have equal indices
            return self.index
        numbers = decode(piggyback)
        if len(numbers) != 1:
            raise ProtocolError(f"a piggyback of bcs holds one index, this one {len(numbers)} numbers")
        return numbers[0]

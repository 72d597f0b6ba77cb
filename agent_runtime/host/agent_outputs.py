"""One agent's outputs in a host core: the number of the last one, and those that are not known to be released."""

from collections import deque

from snapline.agent_runtime.host.host_events import Emission
from snapline.storage.packs.checkpoint import NO_OUTPUTS, SavedOutput, SavedOutputs


class AgentOutputs:
    """One agent's outputs.

    Attributes:
        number: number of the last output.
        pending: outputs not known to be released, ascending without gaps up to `number`.
        size_bytes: size of the pending payloads.
    """

    __slots__ = ("number", "pending", "size_bytes")

    def __init__(self, saved: SavedOutputs = NO_OUTPUTS) -> None:
        self.number = saved.number
        self.pending = deque(saved.pending)
        self.size_bytes = sum([len(output.payload) for output in saved.pending])

    def saved(self) -> SavedOutputs:
        """Return the outputs as a checkpoint holds them."""
        return SavedOutputs(self.number, list(self.pending))

    def add(self, emission: Emission) -> None:
        """Add the next output."""
        topic, payload, emitted_ns = emission
        self.number += 1
        self.pending.append(SavedOutput(self.number, topic, payload, emitted_ns))
        self.size_bytes += len(payload)

    def release(self, number: int) -> None:
        """Drop the outputs up to this number, which an epoch has released."""
        while self.pending and self.pending[0].number <= number:
            self.size_bytes -= len(self.pending.popleft().payload)

    def holds(self, number: int) -> bool:
        """Return whether this output is not known to be released."""
        return bool(self.pending) and self.pending[0].number <= number <= self.number

    def validate(self) -> None:
        first = self.number - len(self.pending) + 1
        assert [output.number for output in self.pending] == list(range(first, self.number + 1))
        assert self.size_bytes == sum([len(output.payload) for output in self.pending])

"""Messages about outputs that agents have released, and about their consumers; names are those of `coordinator.proto`."""

import msgspec


class ReleasedOutput(msgspec.Struct, frozen=True, gc=False):
    """Released output; `payload`: as `encode_message` gives it; `cursor`: position to read on after it; `emitted_ns`: wall-clock time."""

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int
    cursor: str


class UndoneOutputs(msgspec.Struct, frozen=True, gc=False):
    """Outputs of epochs above `after` are reverted; `epochs`: those epochs, as far as their files still exist."""

    after: int
    epochs: tuple[int, ...]
    cursor: str


class ReleasedOutputs(msgspec.Struct, frozen=True, gc=False):
    """Outputs of one epoch, or of a part of it. Reverted outputs come before them."""

    epoch: int
    undone: UndoneOutputs | None
    outputs: tuple[ReleasedOutput, ...]


class ReadOutputsReply(msgspec.Struct, frozen=True, gc=False):
    """Outputs after a cursor.

    Attributes:
        releases: released outputs in order; empty: nothing was released in time.
        cursor: position to read on after; beyond the last output if those that follow have other topics.
        is_over: the fleet has ended, and no output follows.
    """

    releases: tuple[ReleasedOutputs, ...]
    cursor: str
    is_over: bool = False


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """Position of a named consumer (empty: nothing consumed), and the wall-clock time of its last acknowledgement."""

    name: str
    cursor: str
    acknowledged_ns: int


class ReadConsumersReply(msgspec.Struct, frozen=True, gc=False):
    """All named consumers, sorted by name."""

    consumers: tuple[Consumer, ...]


class MoveConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """New position of the consumer."""

    cursor: str


class ForgetConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the consumer is forgotten."""

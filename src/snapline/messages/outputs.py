"""Messages about outputs that agents have released, and about their consumers; names are those of `coordinator.proto`."""

import msgspec


class ReleasedOutput(msgspec.Struct, frozen=True, gc=False):
    """Released output; `payload` as `encode_message` gives it, `cursor`: to read on after it, `emitted_ns`: wall clock."""

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int
    cursor: str


class UndoneOutputs(msgspec.Struct, frozen=True, gc=False):
    """Outputs of epochs above `after` are taken back; `epochs`: those, as far as their files are left."""

    after: int
    epochs: tuple[int, ...]
    cursor: str


class ReleasedOutputs(msgspec.Struct, frozen=True, gc=False):
    """Outputs of one epoch, or of a part of it. Reverted ones come before them."""

    epoch: int
    undone: UndoneOutputs | None
    outputs: tuple[ReleasedOutput, ...]


class ReadOutputsReply(msgspec.Struct, frozen=True, gc=False):
    """Outputs after a cursor.

    Attributes:
        releases: in order; empty: nothing was released in time.
        cursor: position to read on after; beyond the last output if those that follow have other topics.
        is_over: the fleet has ended, and nothing comes after it.
    """

    releases: tuple[ReleasedOutputs, ...]
    cursor: str
    is_over: bool = False


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """Position of a named consumer (empty: it has had nothing), and when it acknowledged it (wall clock)."""

    name: str
    cursor: str
    acknowledged_ns: int


class ReadConsumersReply(msgspec.Struct, frozen=True, gc=False):
    """All named consumers, by name."""

    consumers: tuple[Consumer, ...]


class MoveConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """New position of the consumer."""

    cursor: str


class ForgetConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the consumer is forgotten."""

"""What is said about outputs: what agents have given to the outside, and who has read it; names are those of `coordinator.proto`."""

import msgspec


class ReleasedOutput(msgspec.Struct, frozen=True, gc=False):
    """One output; `payload` as `encode_message` gives it, `cursor`: to read on after it, `emitted_ns`: wall clock."""

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
    """Of one epoch, or of a part of it. What is undone comes before the outputs."""

    epoch: int
    undone: UndoneOutputs | None
    outputs: tuple[ReleasedOutput, ...]


class ReadOutputsReply(msgspec.Struct, frozen=True, gc=False):
    """What comes after a cursor.

    Attributes:
        releases: in order; empty: nothing was released in time.
        cursor: to read on after it; beyond the last output if those that follow have other topics.
        is_over: the fleet has ended, and nothing comes after it.
    """

    releases: tuple[ReleasedOutputs, ...]
    cursor: str
    is_over: bool = False


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """How far a named consumer is: empty: it has had nothing; and when it said so (wall clock)."""

    name: str
    cursor: str
    acknowledged_ns: int


class ReadConsumersReply(msgspec.Struct, frozen=True, gc=False):
    """All named consumers, by name."""

    consumers: tuple[Consumer, ...]


class MoveConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Where the consumer is now."""

    cursor: str


class ForgetConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """It is done."""

"""Messages of agents, for programs outside: as plain values, or of a class that the program gives. And outputs, as they are read."""

from collections.abc import Iterator
from typing import Any

import msgspec

from snapline.agent_runtime.encoding import message_decoder, message_name
from snapline.errors import EncodingError, UsageError
from snapline.messages.payloads import split_message
from snapline.storage.disk.record import Buffer
from snapline.storage.outputs import reader as reading
from snapline.storage.outputs.reader import OutputBatch
from snapline.storage.outputs.record import matches_topic


class MessageReader:
    """Decoder of messages for client programs.

    `kind`: class of the messages; None: `{"type": its name, "fields": plain values}`; msgspec.Raw: the same with MessagePack as fields.
    Errors call the class `option` and a message `what`, the caller's names for them.
    """

    def __init__(self, kind: Any, option: str, what: str) -> None:
        try:
            self._decoder = message_decoder(Any if kind is None else kind)
        except (TypeError, NameError) as error:
            raise UsageError(f"{option} {kind!r} is none that a message can have: {error}") from error
        self._name = message_name(kind) if isinstance(kind, type) and kind is not msgspec.Raw else ""
        self._option, self._what = option, what

    def read(self, name: str, body: Buffer) -> object:
        """Return the message of the type `name`.

        Raises:
            EncodingError: the message is of another type.
        """
        if self._name and name != self._name:
            raise EncodingError(f"{self._what} is a {name}, and {self._option} says {self._name}")
        try:
            message: object = self._decoder.decode(body)
        except Exception as error:  # the message's own classes may raise anything
            raise EncodingError(f"{self._what}, a {name}, cannot be read: {error}") from error
        return message if self._name else {"type": name, "fields": message}


class Output(msgspec.Struct, frozen=True):
    """An output that an agent has sent to the outside (`ctx.emit`). A complete snapshot holds its turn, so no failure reverts it.

    Attributes:
        number: number among the outputs of its agent, from 1.
        topic: topic given by the agent.
        message: `{"type": its type's name, "fields": plain values}`, or an object of the caller's class.
        cursor: position to resume reading after this output.
        epoch: number of the snapshot with which the output was released.
        emitted_ns: wall-clock time since 1970.
    """

    agent: str
    number: int
    topic: str
    message: Any
    cursor: str
    epoch: int
    emitted_ns: int = 0


class OutputsReverted(msgspec.Struct, frozen=True):
    """A return of the fleet to an earlier snapshot, on purpose or because later ones were lost. Outputs released after that snapshot are void.

    Attributes:
        after: every output of a later epoch than this is reverted.
        epochs: the reverted epochs, ascending, as far as their outputs are still kept.
        cursor: position to resume reading, with the outputs that replace the reverted ones.
    """

    after: int
    epochs: tuple[int, ...]
    cursor: str


def read_batch(batch: OutputBatch, topic: str, reader: MessageReader) -> Iterator[Output | OutputsReverted]:
    """Yield a batch's contents for a program: undone epochs, then the outputs of `topic`, or of all if it is empty. EncodingError."""
    if batch.undone is not None:
        yield undone_of(batch.undone, str(batch.cursor(0)))
    for index, output in enumerate(batch.outputs):
        if matches_topic(output.topic, topic):
            name, body = split_message(output.payload)
            message, cursor = reader.read(name, body), str(batch.cursor(index + 1))
            yield Output(output.agent, output.number, output.topic, message, cursor, batch.epoch, output.emitted_ns)


def undone_of(undone: reading.RevertedEpochs, cursor: str) -> OutputsReverted:
    """Return the same for programs."""
    return OutputsReverted(undone.after, undone.epochs, cursor)

"""Messages of agents, for programs outside: as plain values, or of a class that the program gives. And outputs, as they are read."""

from collections.abc import Iterator
from typing import Any

import msgspec

from snapline.agent_runtime.encoding import message_decoder, message_name
from snapline.errors import EncodingError, UsageError
from snapline.messages.payloads import split_message
from snapline.storage.outputs import reader as reading
from snapline.storage.outputs.reader import OutputBatch
from snapline.storage.outputs.record import is_wanted
from snapline.storage.store.record import Buffer


class MessageReader:
    """Maker of the messages that a program gets.

    `kind`: the class that they are to be of; None: `{"type": its name, "fields": plain values}`; msgspec.Raw: the same with MessagePack as fields.
    `option` is the caller's name for it, `what` the caller's name for a message.
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
            EncodingError: it is of another type.
        """
        if self._name and name != self._name:
            raise EncodingError(f"{self._what} is a {name}, and {self._option} says {self._name}")
        try:
            found: object = self._decoder.decode(body)
        except Exception as error:  # what the message's own classes raise
            raise EncodingError(f"{self._what}, a {name}, cannot be read: {error}") from error
        return found if self._name else {"type": name, "fields": found}


class Output(msgspec.Struct, frozen=True):
    """An output that an agent has given to the outside (`ctx.emit`). A complete snapshot holds its turn: it is never taken back by a failure.

    Attributes:
        number: 1, 2, 3 … among those of its agent, in its history.
        topic: as the agent has named it.
        message: `{"type": its type's name, "fields": plain values}`, or of the class that the caller gave.
        cursor: read on after it to get the outputs after this one.
        epoch: number of the snapshot that it was released with.
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
    """A return of the fleet to an earlier snapshot, on purpose or since later ones were lost: outputs released after it do not count.

    Attributes:
        after: every output that the reader has of a later epoch than this is undone.
        epochs: those, ascending, as far as their outputs are still kept.
        cursor: read on after it to get the outputs that come instead.
    """

    after: int
    epochs: tuple[int, ...]
    cursor: str


def read_batch(batch: OutputBatch, topic: str, reader: MessageReader) -> Iterator[Output | OutputsReverted]:
    """Yield a batch's contents for a program: undone epochs, then the outputs of `topic`, or of all if it is empty. EncodingError."""
    if batch.undone is not None:
        yield undone_of(batch.undone, str(batch.cursor(0)))
    for index, each in enumerate(batch.outputs):
        if is_wanted(each.topic, topic):
            name, body = split_message(each.payload)
            message, cursor = reader.read(name, body), str(batch.cursor(index + 1))
            yield Output(each.agent, each.number, each.topic, message, cursor, batch.epoch, each.emitted_ns)


def undone_of(undone: reading.UndoneEpochs, cursor: str) -> OutputsReverted:
    """Return the same for programs."""
    return OutputsReverted(undone.after, undone.epochs, cursor)

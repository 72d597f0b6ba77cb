"""Structs to protobuf messages and back, by field name.

Cores speak msgspec structs; protobuf stays on the wire and in the log. A struct and its message have the same field names,
so one pair of functions serves all of them: a scalar is copied, a tuple becomes a repeated field, a struct a nested message.
Which struct stands for which message is a table next to the structs.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError, Message

from snapline.errors import ProtocolError

StructT = TypeVar("StructT", bound=msgspec.Struct)


def to_message(value: msgspec.Struct, message_class: Callable[..., Message]) -> Message:
    """Return `value` as a message of `message_class`."""
    module = sys.modules[message_class.__module__]
    fields: dict[str, object] = {}
    for name, nested, is_repeated in _layout_of(type(value)):
        found = getattr(value, name)
        if nested is not None:
            nested_class = getattr(module, nested.__name__)
            found = [to_message(x, nested_class) for x in found] if is_repeated else to_message(found, nested_class)
        fields[name] = found
    return message_class(**fields)


def from_message(message: Message, struct_class: type[StructT]) -> StructT:
    """Return `message` as a `struct_class`; absent fields have protobuf's defaults."""
    fields: dict[str, object] = {}
    for name, nested, is_repeated in _layout_of(struct_class):
        found = getattr(message, name)
        if is_repeated:
            found = tuple(found) if nested is None else tuple([from_message(x, nested) for x in found])
        elif nested is not None:
            found = from_message(found, nested)
        fields[name] = found
    return struct_class(**fields)


@cache
def _layout_of(struct_class: type[msgspec.Struct]) -> tuple[tuple[str, type[msgspec.Struct] | None, bool], ...]:
    """(field, struct class of its values if they are structs, is it repeated) of each field."""
    layout = []
    for field in msgspec.structs.fields(struct_class):
        is_repeated = get_origin(field.type) is tuple
        of = get_args(field.type)[0] if is_repeated else field.type
        layout.append(
            (field.name, of if isinstance(of, type) and issubclass(of, msgspec.Struct) else None, is_repeated)
        )
    return tuple(layout)


class OneofCodec(Generic[StructT]):
    """Structs that share one envelope message with a `oneof kind`."""

    def __init__(self, envelope_class: Callable[..., Message], structs: Mapping[str, type[StructT]]) -> None:
        """`structs`: name of the field in the oneof → the struct that stands for it."""
        # Generated classes carry their descriptor; the stubs say so only for the concrete class.
        described: Any = envelope_class
        self._envelope_class = envelope_class
        self._structs = dict(structs)
        self._names = {struct: name for name, struct in structs.items()}
        self._messages = {
            name: described.DESCRIPTOR.fields_by_name[name].message_type._concrete_class for name in structs
        }

    def wrap(self, value: StructT, **fields: object) -> Message:
        """Return the envelope with `value` in its oneof, and its other `fields`."""
        name = self._names[type(value)]
        return self._envelope_class(**{name: to_message(value, self._messages[name])}, **fields)

    def unwrap(self, envelope: Message) -> StructT:
        """Return what the envelope's oneof holds.

        Raises:
            ProtocolError: it is empty, or of a later version.
        """
        name = envelope.WhichOneof("kind")
        if name is None or name not in self._structs:
            raise ProtocolError(f"a {type(envelope).__name__} without a kind that this version knows")
        return from_message(getattr(envelope, name), self._structs[name])

    def kind_bytes(self, value: StructT) -> bytes:
        """Return `value` alone as canonical bytes: the same for the same value."""
        name = self._names[type(value)]
        return name.encode() + b"\0" + to_message(value, self._messages[name]).SerializeToString(deterministic=True)

    def parse(self, data: bytes) -> Message:
        """Return the envelope in `data`; ProtocolError if it is none."""
        envelope = self._envelope_class()
        try:
            envelope.ParseFromString(data)
        except DecodeError as error:
            raise ProtocolError(f"{len(data)} bytes that are no {type(envelope).__name__}: {error}") from error
        return envelope

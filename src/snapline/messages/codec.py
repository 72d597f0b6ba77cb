"""Structs to protobuf messages and back, by field name.

Cores speak msgspec structs; protobuf stays on the wire and in the log. A struct and its message have the same field names: a
scalar is copied, a tuple becomes a repeated field, a dict a map (which comes back sorted), a struct a nested message, and None
an absent field. For each class one expression is compiled at its first use, as one would write it by hand.
"""

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError, Message

from snapline.errors import ProtocolError

StructT = TypeVar("StructT", bound=msgspec.Struct)


@cache
def writer_of(struct_class: type[StructT], message_class: Callable[..., Message]) -> Callable[[StructT], Message]:
    """Return the function that makes a `message_class` of a `struct_class`."""
    scope: dict[str, Any] = {"message": message_class}
    fields = [f"{each.name}={_written(each, message_class, scope)}" for each in msgspec.structs.fields(struct_class)]
    return _compiled(f"lambda value: message({', '.join(fields)})", scope)


@cache
def reader_of(struct_class: type[StructT]) -> Callable[[Message], StructT]:
    """Return the function that makes a `struct_class` of its message; absent fields have protobuf's defaults."""
    scope: dict[str, Any] = {"struct": struct_class}
    fields = [_read(each, scope) for each in msgspec.structs.fields(struct_class)]
    return _compiled(f"lambda message: struct({', '.join(fields)})", scope)


def _written(field: msgspec.structs.FieldInfo, message_class: Any, scope: dict[str, Any]) -> str:
    """The expression for one field of a message; None leaves it out."""
    found, of = f"value.{field.name}", _struct_in(field.type)
    if of is None:
        return found
    write = f"write_{field.name}"
    scope[write] = writer_of(of, message_class.DESCRIPTOR.fields_by_name[field.name].message_type._concrete_class)
    if _is_repeated(field.type):
        return f"[{write}(each) for each in {found}]"
    return f"None if {found} is None else {write}({found})" if _is_optional(field.type) else f"{write}({found})"


def _read(field: msgspec.structs.FieldInfo, scope: dict[str, Any]) -> str:
    """The expression for one field of a struct."""
    found, of = f"message.{field.name}", _struct_in(field.type)
    if of is not None:
        read = f"read_{field.name}"
        scope[read] = reader_of(of)
        found = f"tuple([{read}(each) for each in {found}])" if _is_repeated(field.type) else f"{read}({found})"
    elif _is_repeated(field.type):
        found = f"tuple({found})"
    elif get_origin(field.type) is dict:
        found = f"dict(sorted({found}.items()))"
    return f"{found} if message.HasField({field.name!r}) else None" if _is_optional(field.type) else found


def _is_repeated(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The class of the structs in a field of this type, if that is what it holds."""
    of = get_args(kind)[0] if _is_repeated(kind) or _is_optional(kind) else kind
    return of if isinstance(of, type) and issubclass(of, msgspec.Struct) else None


def _compiled(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = eval(source, scope)  # made of names of fields alone
    return made


def structs_of(envelope_class: Callable[..., Message], base: type[StructT]) -> dict[str, type[StructT]]:
    """Return the structs of an envelope whose messages bear the names of the subclasses of `base`."""
    described: Any = envelope_class
    fields = {field.message_type.name: field.name for field in described.DESCRIPTOR.oneofs_by_name["kind"].fields}
    return {fields.pop(struct.__name__): struct for struct in base.__subclasses__()}


def parsed(message_class: Callable[..., Message], data: bytes) -> Message:
    """Return the message in `data`; ProtocolError if it is none."""
    message = message_class()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes that are no {type(message).__name__}: {error}") from error
    return message


class OneofCodec(Generic[StructT]):
    """Structs that share one envelope message with a `oneof kind`.

    Attributes:
        descriptor: of the envelope.
    """

    def __init__(self, envelope_class: Callable[..., Message], structs: Mapping[str, type[StructT]]) -> None:
        """`structs`: name of the field in the oneof → the struct that stands for its message."""
        # Generated classes carry their descriptor; the stubs say so only for the concrete class.
        described: Any = envelope_class
        self.descriptor: Any = described.DESCRIPTOR
        self._envelope_class = envelope_class
        self._structs = dict(structs)
        self._names = {struct: name for name, struct in structs.items()}
        self._messages = {name: self.descriptor.fields_by_name[name].message_type._concrete_class for name in structs}

    def wrap(self, value: StructT, **fields: object) -> Message:
        """Return the envelope with `value` in its oneof, and its other `fields`."""
        name = self._names[type(value)]
        return self._envelope_class(**{name: self._message_of(name, value)}, **fields)

    def unwrap(self, envelope: Message) -> StructT:
        """Return what the envelope's oneof holds.

        Raises:
            ProtocolError: it is empty, or of a later version.
        """
        name = envelope.WhichOneof("kind")
        if name is None or name not in self._structs:
            raise ProtocolError(f"a {type(envelope).__name__} without a kind that this version knows")
        found: StructT = reader_of(self._structs[name])(getattr(envelope, name))
        return found

    def encode(self, value: StructT) -> bytes:
        """Return `value` in its envelope, as bytes."""
        return self.wrap(value).SerializeToString()

    def decode(self, data: bytes) -> StructT:
        """Return what an envelope of these bytes holds.

        Raises:
            ProtocolError: they are no envelope, or it holds nothing that this version knows.
        """
        return self.unwrap(self.parse(data))

    def kind_bytes(self, value: StructT) -> bytes:
        """Return `value` alone as canonical bytes: the same for the same value."""
        name = self._names[type(value)]
        return name.encode() + b"\0" + self._message_of(name, value).SerializeToString(deterministic=True)

    def parse(self, data: bytes) -> Message:
        """Return the envelope in `data`; ProtocolError if it is none."""
        return parsed(self._envelope_class, data)

    def _message_of(self, name: str, value: StructT) -> Message:
        return writer_of(type(value), self._messages[name])(value)

"""Checks that records of a history cannot change after they were appended.

A history encodes a record once. If a record contained a list that grows later, checkpoints would silently keep the old
contents. So mutable records are refused when they are appended.

Inspecting each record would cost more than appending it. So the declared types of the fields of a frozen struct or dataclass
are inspected once. If they exclude mutable values, further records of that type are accepted unchecked.
"""

import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded

TRUSTED_TYPES_MAX = 256
"""Number of types that a history remembers. A program has few; types created dynamically are only checked again."""

_ATOMS = (
    *(str, bytes, int, float, bool, types.NoneType, decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, msgspec.UnsetType),
)
_ATOM_TYPES = frozenset(_ATOMS)


def check_record(record: Any, trusted: set[type]) -> None:
    """Refuse a record that is mutable. Adds its type to `trusted` if no record of that type can change.

    Raises:
        EncodingError: names the type and its place in the record.
    """
    kind: Any = type(record)
    try:
        reason = _mutable_part(record, kind.__qualname__)
    except RecursionError:
        reason = f"a {kind.__qualname__} is nested too deeply"
    if reason:
        raise EncodingError(
            f"a History takes records that cannot change, and {reason}: use a frozen msgspec.Struct, a frozen dataclass, "
            "a tuple, or plain values"
        )
    if is_immutable_type(kind):
        if len(trusted) >= TRUSTED_TYPES_MAX:
            trusted.clear()
        trusted.add(kind)


def _mutable_part(value: object, where: str) -> str:
    """Return a description of the mutable part of `value`; empty if there is none."""
    kind = type(value)
    if _is_atom(kind):
        return ""
    if isinstance(value, tuple | frozenset):
        inner = [
            (f"{where}[{i}]" if isinstance(value, tuple) else f"an element of {where}", x) for i, x in enumerate(value)
        ]
    elif is_frozen(kind):
        inner = [(f"{where}.{name}", getattr(value, name, None)) for name in _fields(kind)]
    else:
        return f"{where} is a {kind.__qualname__}" if kind.__qualname__ != where else f"{where} can"
    return next(filter(None, (_mutable_part(x, place) for place, x in inner)), "")


def is_frozen(kind: type) -> bool:
    """Return whether `kind` is a frozen struct or a frozen dataclass."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # typeshed lacks it


def _is_atom(kind: type) -> bool:
    if kind in _ATOM_TYPES or issubclass(kind, enum.Enum):
        return True
    numpy = numpy_if_loaded()
    return numpy is not None and issubclass(kind, numpy.bool_ | numpy.integer | numpy.floating)


def _fields(kind: type) -> tuple[str, ...]:
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", ())
    return tuple(names)


@functools.lru_cache(maxsize=1024)  # types of records and of their fields: far more than a program has
def is_immutable_type(kind: type[Any]) -> bool:
    """Return whether no value of exactly this type can change, judged by the declared types of its fields."""
    if _is_atom(kind):
        return True
    if not is_frozen(kind):
        return False
    try:
        return _has_immutable_fields(kind, (kind,))
    except Exception:  # for unresolvable names, each record is inspected
        return False


def _has_immutable_fields(kind: type, outer: tuple[type, ...]) -> bool:
    hints = typing.get_type_hints(kind)
    return all(_is_immutable_hint(hints.get(name, Any), outer) for name in _fields(kind))


def _is_immutable_hint(hint: Any, outer: tuple[type, ...]) -> bool:
    """Return whether no value of this type can change. `outer`: the containing types; recursion adds nothing."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_immutable_hint(inner[0], outer)
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return bool(inner) and all(part is ... or _is_immutable_hint(part, outer) for part in inner)
    if not isinstance(hint, type) or origin is not None:
        return False
    if is_frozen(hint) and hint not in outer and not hint.__subclasses__():
        return _has_immutable_fields(hint, (*outer, hint))
    return _is_atom(hint) or hint in outer

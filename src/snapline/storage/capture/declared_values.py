"""Checks a value against its declared type before the value is saved. A value is refused if it would be restored as a different value (G3).

MessagePack stores no classes. Without these checks, an instance of a subclass would be restored as the declared base class and lose the
subclass's fields. A `defaultdict` would be restored as a `dict`, and a datetime in any time zone would be restored in UTC. The encoder does
not detect such changes. So each value is first traversed together with its annotation:

- A *node* represents one declared type. A node maps the exact class of a value to a *rule*, or to None if every value of this class is
  acceptable.
- A rule inspects the contents of a value: the items of a list, the fields of a struct, or the time zone of a datetime.
- Classes with a `__post_init__` may change their arguments. So values of such classes are encoded, decoded and encoded again.

Two kinds of values are accepted although their class differs from the declared class, because the restored values are equal and behave in
the same way. An `int` may be stored where a `float` is declared, if no digits are lost. NumPy numbers may be stored where plain numbers are
declared. Whichever number was stored, the restored value has the declared type. `cached_property` values are not saved, because they are
computed again.

Nodes are compiled once per declared type. The traversal is fast because it checks the classes of all items or fields at once in C, and
inspects individual values only if a rule requires it. The traversal runs before the encoded bytes are used, and on the thread that encodes
the state. For a `History`, only those records are checked that no capture has encoded yet.
"""

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import itertools
import operator
import types
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.capture.values import (
    BLOB_MODULE,
    HISTORY_MODULE,
    TORCH_STATE_MODULE,
    Pickled,
    decode_declared,
    decode_own_value,
    encode_value,
)

KNOWN_CLASSES_MAX = 256
"""Number of classes, or combinations of field classes, that a node or rule caches. Further classes are looked up each time."""

NODES_MAX = 1024
"""Number of declared types that are cached, which is more than any program has."""

_Step = str
_Part = tuple[_Step, Any, "_Node"]  # The next step of the path, a member, and the node of the member's declared type.


class _Rule:
    """Rule that checks the values of one class. This base class refuses all values. `advice` is the recommendation in the error message."""

    advice = "keep a value of exactly that type there, or declare the type that is there"
    problem = "would not come back as it is"

    def holds(self, value: Any) -> bool:
        """Return whether the restored value would be equal to `value`."""
        return False

    def hold_all(self, values: Collection[Any]) -> bool:
        """Return whether each of these values would be restored as an equal value. One call of this method is cheaper than a call of
        `holds` for each value."""
        return all(map(self.holds, values))

    def parts(self, value: Any) -> Iterable[_Part]:
        """Return those members of `value` that have their own declared types."""
        return ()

    def holds_itself(self, value: Any) -> bool:
        """Check the value like `holds`, but do not check its members."""
        return self.holds(value)


_REFUSED = _Rule()


class _Node(dict[type, _Rule | None]):
    """One declared type: a map from the class of a value to its rule, or to None if every value of that class would be restored as an equal
    value."""

    def __init__(self, declared: Any) -> None:
        super().__init__()
        self.declared = declared
        self.others: list[
            Callable[[type], _Rule | None]
        ] = []  # Rules for other classes. They return `_REFUSED` if inapplicable.

    def __missing__(self, kind: type) -> _Rule | None:
        rule: _Rule | None = _REFUSED
        for other in self.others:
            rule = other(kind)
            if rule is not _REFUSED:
                break
        if len(self) < KNOWN_CLASSES_MAX:
            self[kind] = rule
        return rule


def _all_hold(node: _Node, values: Collection[Any]) -> bool:
    kinds = set(map(type, values))
    for kind in kinds:
        rule = node[kind]
        if rule is not None:
            alike = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
            if not rule.hold_all(alike):
                return False
    return True


class _Items(_Rule):
    """Rule for a list, set, frozenset or tuple with any number of items. If `is_hashed` is set, the items are hashable, so tuples among
    them are restored as tuples even if no type is declared."""

    def __init__(self, item: Any, *, is_hashed: bool = False) -> None:
        self._item = item
        self._is_hashed = is_hashed

    @functools.cached_property
    def _node(self) -> _Node:
        return _MEMBER if self._is_hashed and _is_any(self._item) else _node_of(self._item)

    def holds(self, value: Any) -> bool:
        return _all_hold(self._node, value)

    def hold_all(self, values: Collection[Any]) -> bool:
        return _all_hold(self._node, list(itertools.chain.from_iterable(values)))

    def holds_itself(self, value: Any) -> bool:
        return True

    def parts(self, value: Any) -> Iterable[_Part]:
        if isinstance(value, set | frozenset):
            return ((f"[{_shown(member)}]", member, self._node) for member in value)
        return ((f"[{index}]", member, self._node) for index, member in enumerate(value))


class _Entries(_Rule):
    def __init__(self, key: Any, value: Any) -> None:
        self._declared = key, value

    @functools.cached_property
    def _nodes(self) -> tuple[_Node, _Node]:
        key, value = self._declared
        return (_KEY if _is_any(key) else _node_of(key)), _node_of(value)

    def holds(self, value: Any) -> bool:
        keys, values = self._nodes
        return _all_hold(keys, value) and _all_hold(values, value.values())

    def hold_all(self, values: Collection[Any]) -> bool:
        if not _all_hold(self._nodes[0], list(itertools.chain.from_iterable(values))):
            return False
        return _all_hold(self._nodes[1], [member for value in values for member in value.values()])

    def holds_itself(self, value: Any) -> bool:
        return True

    def parts(self, value: Any) -> Iterable[_Part]:
        keys, values = self._nodes
        for key, member in value.items():
            yield f"[the key {_shown(key)}]", key, keys
            yield f"[{_shown(key)}]", member, values


class _TypedEntries(_Rule):
    """Rule for a TypedDict. Undeclared keys of a TypedDict are refused, because they would not be restored."""

    advice = "keep only the keys that it declares"

    def __init__(self, kind: Any, hints: dict[str, Any]) -> None:
        self._hints = hints
        self._required = kind.__required_keys__

    def holds(self, value: Any) -> bool:
        return self.holds_itself(value) and all(node.holds(member) for _, member, node in _rules(self.parts(value)))

    def holds_itself(self, value: Any) -> bool:
        return bool(self._required <= value.keys() <= self._hints.keys())

    def parts(self, value: Any) -> Iterable[_Part]:
        return [
            (f"[{_shown(key)}]", member, _node_of(self._hints[key]))
            for key, member in value.items()
            if key in self._hints
        ]


class _Row(_Rule):
    """Rule for a named tuple, or for a tuple with a declared type for each item."""

    def __init__(self, declared: tuple[Any, ...]) -> None:
        self._declared = declared

    @functools.cached_property
    def _nodes(self) -> list[_Node]:
        return [_node_of(member) for member in self._declared]

    def holds(self, value: Any) -> bool:
        return self.holds_itself(value) and all(rule.holds(member) for _, member, rule in _rules(self.parts(value)))

    def holds_itself(self, value: Any) -> bool:
        return len(value) == len(self._declared)

    def parts(self, value: Any) -> Iterable[_Part]:
        return [(f"[{i}]", member, node) for i, (member, node) in enumerate(zip(value, self._nodes, strict=False))]


def _rules(parts: Iterable[_Part]) -> Iterator[tuple[_Step, Any, _Rule]]:
    for step, member, node in parts:
        rule = node[type(member)]
        if rule is not None:
            yield step, member, rule


class _Fields(_Rule):
    """Rule for a struct, dataclass or attrs class. The rule caches combinations of the classes of all fields, for speed."""

    advice = "keep what belongs to it in declared fields, and let `__post_init__` leave a saved value as it is"
    problem = "has attributes that are no fields, or private ones of attrs, or is changed by its `__post_init__` when it is read"

    def __init__(self, declared: Any) -> None:
        kind = typing.get_origin(declared) or declared
        self._kind = kind
        self._declared = declared
        self._names = _names_of(kind)
        self._get = operator.attrgetter(*self._names) if len(self._names) > 1 else self._few
        self._by_row: dict[tuple[type, ...], tuple[tuple[int, _Rule], ...]] = {}
        is_struct = issubclass(kind, msgspec.Struct)
        is_attrs = hasattr(kind, "__attrs_attrs__")
        self._has_extras = kind.__dictoffset__ != 0
        self._own = frozenset(() if is_struct else self._names)
        self._unsaved = [name for name in self._names if is_attrs and name.startswith("_")]  # msgspec omits them
        self._changes_itself = hasattr(kind, "__post_init__") or is_attrs
        self._is_bare = not self._has_extras and not self._changes_itself

    def _few(self, value: Any) -> tuple[Any, ...]:
        return tuple([getattr(value, name) for name in self._names])

    def holds(self, value: Any) -> bool:
        members = self._get(value)
        row = tuple(map(type, members))
        rules = self._by_row.get(row)
        if rules is None:
            rules = self._rules_for(row)
        for index, rule in rules:
            if not rule.holds(members[index]):
                return False
        return self._is_bare or self.holds_itself(value)

    def hold_all(self, values: Collection[Any]) -> bool:
        """Check the structs field by field, so that even for a thousand structs only one set of classes per field is computed."""
        for name, node in zip(self._names, self._nodes, strict=True):
            get = operator.attrgetter(name)
            kinds = set(map(type, map(get, values)))
            if any(node[kind] is not None for kind in kinds) and not _all_hold(node, list(map(get, values))):
                return False
        return self._is_bare or all(map(self.holds_itself, values))

    def holds_itself(self, value: Any) -> bool:
        extras = {} if not self._has_extras or value.__dict__.keys() <= self._own else self._extras(value)
        if not self._changes_itself:
            return not extras
        return _survives_encoding(
            self._declared, value, extras | {name: getattr(value, name) for name in self._unsaved}
        )

    def parts(self, value: Any) -> Iterable[_Part]:
        return [
            (f".{name}", getattr(value, name, None), node) for name, node in zip(self._names, self._nodes, strict=True)
        ]

    @functools.cached_property
    def _nodes(self) -> list[_Node]:
        hints, unset = _hints_of(self._declared), _may_be_unset(self._kind)
        nodes = []
        for name in self._names:
            declared = hints.get(name, _UNKNOWN)
            node = _node_of(declared)
            if name in unset:
                node = _copy_of(node)
                node[msgspec.UnsetType] = None
            nodes.append(node)
        return nodes

    def _rules_for(self, row: tuple[type, ...]) -> tuple[tuple[int, _Rule], ...]:
        indexed_rules = [(index, node[kind]) for index, (node, kind) in enumerate(zip(self._nodes, row, strict=True))]
        rules = tuple([(index, rule) for index, rule in indexed_rules if rule is not None])
        if len(self._by_row) < KNOWN_CLASSES_MAX:
            self._by_row[row] = rules
        return rules

    def _extras(self, value: Any) -> dict[str, Any]:
        extras = {name: found for name, found in value.__dict__.items() if name not in self._own}
        return {
            name: found
            for name, found in extras.items()
            if not isinstance(getattr(self._kind, name, None), functools.cached_property)
        }


class _Test(_Rule):
    """Rule that calls a function with the value."""

    def __init__(self, holds: Callable[[Any], bool], advice: str) -> None:
        self._holds = holds
        self.advice = advice

    def holds(self, value: Any) -> bool:
        return self._holds(value)


class _Constrained(_Rule):
    """Rule for `Annotated[…, Meta(…)]`. Values are refused if they could be saved but would violate the constraints when they are
    decoded."""

    advice = "keep to what its Meta says"

    def __init__(self, kind: type, metas: tuple[Any, ...], inner: _Rule | None) -> None:
        self._type: Any = typing.Annotated[(kind, *metas)]
        self._inner = inner

    def holds(self, value: Any) -> bool:
        return self.holds_itself(value) and (self._inner is None or self._inner.holds(value))

    def holds_itself(self, value: Any) -> bool:
        try:
            msgspec.convert(value, self._type)
        except msgspec.ValidationError:
            return False
        return self._inner is None or self._inner.holds_itself(value)

    def parts(self, value: Any) -> Iterable[_Part]:
        return () if self._inner is None else self._inner.parts(value)


class _Records(_Rule):
    """Rule for a History. Only those records of a history are checked that no capture has encoded yet."""

    def __init__(self, record: Any) -> None:
        self._items = _Items(record)

    def holds(self, value: Any) -> bool:
        for records in value.records_to_check(self):
            if not self._items.holds(records):
                return False
        value.note_checked(self)
        return True

    def holds_itself(self, value: Any) -> bool:
        return True

    def parts(self, value: Any) -> Iterable[_Part]:
        return self._items.parts(value)


# ---- times, numbers, enums ------------------------------------------------------------------------------------------


def _is_plain_datetime(value: Any) -> bool:
    zone = value.tzinfo
    if zone is None:
        return value.fold == 0  # type: ignore[no-any-return]  # of a datetime
    return zone is datetime.UTC or (type(zone) is datetime.timezone and zone == datetime.UTC)


def _is_utc(value: Any) -> bool:
    return value.tzinfo is not None and _is_plain_datetime(value)


def _is_plain_time(value: Any) -> bool:
    zone = value.tzinfo
    if zone is None:
        return value.fold == 0  # type: ignore[no-any-return]  # of a time
    return type(zone) is datetime.timezone and value.utcoffset() % datetime.timedelta(minutes=1) == datetime.timedelta()


def _is_exact_float(value: Any) -> bool:
    try:
        return bool(float(value) == value)
    except OverflowError:
        return False


_ADVICE_TIME = "keep it in UTC (`.astimezone(datetime.UTC)`), or without a zone and with fold=0, and store the name of the zone in another field"
_DATETIME = _Test(_is_plain_datetime, _ADVICE_TIME)
_DATETIME_OF_ANY = _Test(_is_utc, "declare the type datetime, or keep the time in UTC (`.astimezone(datetime.UTC)`)")
_TIME = _Test(_is_plain_time, "keep it without a zone and with fold=0, or with a fixed offset of whole minutes")
_INT_AS_FLOAT = _Test(_is_exact_float, "declare int: a float has no room for that number")


def _is_literal(values: tuple[Any, ...], value: Any) -> bool:
    return any(type(literal) is type(value) and bool(literal == value) for literal in values)


def _is_member(kind: Any, value: Any) -> bool:
    """Return whether this enum member can be restored from its value. The function handles flags, and enums whose values are neither text
    nor integers."""
    try:
        return bool(msgspec.convert(value.value, kind) is value)
    except (msgspec.ValidationError, TypeError):
        return False


# ---- values of classes that change their arguments ----------------------------------------------------------------------

_SAME = 0  # Extension that refers to an object of the value by its index.


def _survives_encoding(declared: Any, value: Any, extras: dict[str, Any]) -> bool:
    """Return whether a value is equal after it was encoded and decoded. Arrays are not copied."""
    lent: dict[int, int] = {}  # Map from the id of an object to its number.
    objects: list[Any] = []

    def lend(member: Any) -> object:
        numpy = numpy_if_loaded()
        is_array = numpy is not None and isinstance(member, numpy.ndarray)
        if not is_array and type(member) is not Pickled:
            return encode_value(member)
        if id(member) not in lent:
            shown = member
            if is_array:
                shown = member.view()
                shown.flags.writeable = False
            lent[id(member)] = lent[id(shown)] = len(objects)
            objects.append((member, shown))
        return msgspec.msgpack.Ext(_SAME, msgspec.msgpack.encode(lent[id(member)]))

    def back(code: int, data: memoryview) -> object:
        return objects[msgspec.msgpack.decode(data)][1] if code == _SAME else decode_own_value(code, data)

    try:
        encoder = msgspec.msgpack.Encoder(enc_hook=lend, order="deterministic")
        first = encoder.encode(value)
        decoded = msgspec.msgpack.decode(first, type=declared, ext_hook=back, dec_hook=decode_declared)
        second = encoder.encode(decoded)
        if type(decoded) is not type(value):
            return False
        if second != first and msgspec.msgpack.decode(second) != msgspec.msgpack.decode(first):
            return False  # Values with different bytes may be equal: a float field that holds 30 is decoded as 30.0.
        kept = {name: getattr(decoded, name) for name in extras}
        return all(type(kept[name]) is type(x) and bool(kept[name] == x) for name, x in extras.items())
    except Exception:  # The value's class may raise any error. In that case the value cannot be decoded.
        return False


# ---- from a declared type to its node --------------------------------------------------------------------------------

_UNKNOWN = typing.TypeVar("_UNKNOWN")  # It replaces annotations that cannot be evaluated. Then nothing is refused.

_SCALARS = frozenset(
    (bool, int, str, bytes, bytearray, memoryview, decimal.Decimal, uuid.UUID, datetime.date, datetime.timedelta)
)
_ITEMS: dict[Any, type] = {
    **dict.fromkeys(
        (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection), list
    ),
    **dict.fromkeys((set, collections.abc.Set, collections.abc.MutableSet), set),
    frozenset: frozenset,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _node_of(declared: Any) -> _Node:
    try:
        return _compiled(declared)
    except TypeError:  # an annotation that cannot be hashed
        return _compile(declared)


def _compile(declared: Any) -> _Node:
    node = _Node(declared)
    _admit(node, declared)
    return node


_compiled = functools.lru_cache(maxsize=NODES_MAX)(_compile)


def _copy_of(node: _Node) -> _Node:
    copy = _Node(node.declared)
    copy.update(node)
    copy.others = list(node.others)
    return copy


def _is_any(declared: Any) -> bool:
    return declared is Any or declared is object or isinstance(declared, typing.TypeVar)


def _admit(node: _Node, declared: Any) -> None:
    """Make the node also accept values of the given type. For a union, this function is called once for each member type."""
    origin, inner = typing.get_origin(declared) or declared, typing.get_args(declared)
    if declared is _UNKNOWN:
        node.others.append(lambda _: None)
    elif isinstance(declared, typing.TypeVar) and declared.__bound__ is not None:
        _admit(node, declared.__bound__)
    elif _is_any(declared):
        _admit_any(node)
    elif isinstance(declared, typing.NewType):
        _admit(node, declared.__supertype__)
    elif hasattr(declared, "__value__"):  # a `type` statement
        _admit(node, declared.__value__)
    elif origin is typing.Annotated:
        _admit_constrained(node, inner)
    elif origin in (typing.Union, types.UnionType):
        for argument in inner:
            _admit(node, argument)
    elif origin in (typing.Final, typing.Required, typing.NotRequired):
        _admit(node, inner[0])
    elif origin is typing.Literal:
        for argument in inner:
            node[type(argument)] = _Test(
                functools.partial(_is_literal, inner), f"keep one of {', '.join(map(repr, inner))}"
            )
    elif declared is None or declared is types.NoneType:
        node[types.NoneType] = None
    else:
        _admit_class(node, declared, origin, inner)


def _admit_constrained(node: _Node, inner: tuple[Any, ...]) -> None:
    metas = tuple([each for each in inner[1:] if isinstance(each, msgspec.Meta)])
    plain = _node_of(inner[0])
    for kind, rule in list(plain.items()):
        if rule is _REFUSED:
            continue
        is_constrained = metas and kind in _CONSTRAINABLE
        node[kind] = _Constrained(float if rule is _INT_AS_FLOAT else kind, metas, rule) if is_constrained else rule
    node.others += plain.others


_CONSTRAINABLE = frozenset(
    (int, float, str, bytes, list, dict, set, frozenset, tuple, datetime.datetime, datetime.time)
)


def _admit_any(node: _Node) -> None:
    """Make the node accept all values that can be decoded without a declared type, which are plain values and self-describing values."""
    for kind in (types.NoneType, bool, int, float, str, bytes):
        node[kind] = None
    node[list] = _Items(Any)
    node[dict] = _Entries(Any, Any)
    node[datetime.datetime] = _DATETIME_OF_ANY
    node.others.append(_rule_of_extension)


def _rule_of_extension(kind: type) -> _Rule | None:
    if kind.__module__ == HISTORY_MODULE:
        return _Records(Any)
    name = f"{kind.__module__}.{kind.__qualname__}"
    numpy = numpy_if_loaded()
    is_known = (
        name in _EXTENSIONS
        or kind is Pickled
        or (numpy is not None and issubclass(kind, numpy.ndarray | numpy.number | numpy.bool_ | numpy.random.Generator))
        or numpy_and_torch.is_tensor_class(kind)
    )
    return None if is_known else _REFUSED


_EXTENSIONS = ("random.Random", f"{BLOB_MODULE}.Blob")


def _admit_class(node: _Node, declared: Any, origin: Any, inner: tuple[Any, ...]) -> None:
    if origin in _SCALARS:
        node[origin] = None
        _admit_numbers(node, origin)
    elif origin is float:
        node[float] = None
        node.setdefault(int, _INT_AS_FLOAT)
        _admit_numbers(node, float)
    elif origin is datetime.datetime:
        node[origin] = _DATETIME
    elif origin is datetime.time:
        node[origin] = _TIME
    elif origin in _ITEMS:
        kind = _ITEMS[origin]
        node[kind] = _Items(inner[0] if inner else Any, is_hashed=kind in (set, frozenset))
    elif origin in _MAPPINGS:
        node[dict] = _Entries(*(inner or (Any, Any)))
    elif origin is tuple:
        is_open = not inner and declared in (tuple, typing.Tuple)  # noqa: UP006  # `tuple[()]` is a different type.
        is_long = len(inner) == 2 and inner[1] is ...
        node[tuple] = _Items(inner[0] if is_long else Any) if is_open or is_long else _Row(inner)
    elif not isinstance(origin, type):
        node.others.append(lambda _: None)  # The decoder reports unknown types.
    else:
        _admit_own_class(node, declared, origin, inner)


def _admit_own_class(node: _Node, declared: Any, kind: Any, inner: tuple[Any, ...]) -> None:
    if typing.is_typeddict(kind):
        node[dict] = _TypedEntries(kind, _hints_of(declared))
    elif issubclass(kind, enum.Enum):
        is_plain = all(type(member.value) in (int, str) for member in kind) and not issubclass(kind, enum.Flag)
        node[kind] = None if is_plain else _Test(functools.partial(_is_member, kind), _ADVICE_FLAG)
    elif issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__"):
        node[kind] = _Fields(declared)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = _hints_of(declared)
        node[kind] = _Row(tuple([hints.get(name, Any) for name in kind._fields]))
    elif kind.__module__ == HISTORY_MODULE:
        node[kind] = _Records(inner[0] if inner else Any)
    else:
        numpy = numpy_if_loaded()
        if numpy is not None and issubclass(kind, numpy.generic):
            for number in (bool, int, float):
                node.setdefault(
                    number,
                    _Test(lambda value: bool(kind(value).item() == value), "declare a type that has room for it"),
                )
        node.others.append(functools.partial(_rule_of_custom, kind))


def _rule_of_custom(declared: type, found: type) -> _Rule | None:
    """Return the rule for a class that MessagePack does not support, such as an array class or an abstract class. Values of such a class
    are decoded as if no type were declared."""
    try:
        is_one = issubclass(found, declared)
    except TypeError:  # a Protocol without runtime checks
        return _REFUSED
    if not is_one or found.__module__ == TORCH_STATE_MODULE:
        return None if is_one else _REFUSED
    return _node_of(Any)[found]


_ADVICE_FLAG = "members whose values are neither text nor integers are not read back: keep the value"


def _admit_numbers(node: _Node, kind: type) -> None:
    def rule(found: type) -> _Rule | None:
        numpy = numpy_if_loaded()
        if numpy is None or not issubclass(found, numpy.generic):
            return _REFUSED
        fits = {bool: numpy.bool_, int: numpy.integer, float: numpy.floating | numpy.integer}[kind]
        return None if issubclass(found, fits) else _REFUSED

    if kind in (bool, int, float):
        node.others.append(rule)


# ---- fields and their annotations ------------------------------------------------------------------------------------


def _names_of(kind: Any) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple([attribute.name for attribute in kind.__attrs_attrs__])
    return tuple([attribute.name for attribute in dataclasses.fields(kind)])


def _may_be_unset(kind: Any) -> frozenset[str]:
    """Return the names of the fields whose default value is UNSET. If a field is unset, it is not saved, and is restored as UNSET."""
    if issubclass(kind, msgspec.Struct):
        defaults = kind.__struct_defaults__
        names = kind.__struct_fields__[len(kind.__struct_fields__) - len(defaults) :]
        return frozenset([name for name, default in zip(names, defaults, strict=True) if default is msgspec.UNSET])
    if dataclasses.is_dataclass(kind):
        return frozenset(
            [field_info.name for field_info in dataclasses.fields(kind) if field_info.default is msgspec.UNSET]
        )
    return frozenset()


def _hints_of(declared: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields, with type variables replaced by their actual types. An annotation that cannot be
    evaluated is returned as `_UNKNOWN`."""
    kind = typing.get_origin(declared) or declared
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # Evaluating an annotation may raise any error.
        return (
            dict.fromkeys(_names_of(kind), _UNKNOWN)
            if not hasattr(kind, "_fields")
            else dict.fromkeys(kind._fields, _UNKNOWN)
        )
    meant = _variables_of(declared)
    return {name: _with(hint, meant) for name, hint in hints.items()} if meant else hints


def _variables_of(declared: Any) -> dict[Any, Any]:
    kind = typing.get_origin(declared) or declared
    meant = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(declared), strict=False))
    for base in getattr(kind, "__orig_bases__", ()):
        of_base = _variables_of(base) if typing.get_origin(base) not in (None, typing.Generic) else {}
        meant |= {variable: _with(found, meant) for variable, found in of_base.items() if variable not in meant}
    return meant


def _with(hint: Any, meant: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return meant.get(hint, hint)
    inside = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint  # This is a generic class without arguments.
    return hint[tuple([meant.get(variable, variable) for variable in inside])] if inside else hint


# ---- entry points -----------------------------------------------------------------------------------------------------

_KEY = _compile(bool | int | float | str | bytes | None)
_KEY[datetime.datetime] = _DATETIME_OF_ANY


class _KeyRow(_Rule):
    """Rule for a tuple that is a dict key or a set member. A tuple in such a place is restored as a tuple even if no type is declared."""

    def holds(self, value: Any) -> bool:
        return _all_hold(_KEY, value)


_KEY[tuple] = _KeyRow()
_MEMBER = _copy_of(_compile(Any))
_MEMBER[tuple] = _KeyRow()


def survives_round_trip(value: object, declared: Any) -> bool:
    """Return whether `value` would be restored as an equal value with the same classes, if it were saved as MessagePack and decoded as
    `declared`."""
    try:
        rule = _compiled(declared)[type(value)]
    except TypeError:  # an annotation that cannot be hashed
        rule = _compile(declared)[type(value)]
    try:
        return rule is None or rule.holds(value)
    except RecursionError:  # The value is nested too deeply for recursion, so check it level by level.
        return not difference(value, declared, "")
    except AttributeError:  # A field was deleted.
        return False


def difference(value: object, declared: Any, name: str) -> str:
    """Describe the first member of `value` that would be restored differently. Return "" if all members would be restored as they are.

    The description contains the member's path, its declared type and its actual value.
    """
    waiting: list[tuple[tuple[Any, ...], Any, _Node, _Rule | None]] = [((name,), value, _node_of(declared), None)]
    for _ in range(WALK_PARTS_MAX):
        if not waiting:
            break
        path, actual, node, unchecked = waiting.pop()
        rule = unchecked or node[type(actual)]
        if rule is None:
            continue
        if rule is _REFUSED or (unchecked is not None and not rule.holds_itself(actual)):
            return _sentence(_text(path), actual, node.declared, rule)
        if unchecked is None:  # The members come first, since their errors are more specific.
            waiting.append((path, actual, node, rule))
            waiting += [((path, step), member, inner, None) for step, member, inner in rule.parts(actual)][::-1]
    return ""


WALK_PARTS_MAX = 10_000_000
"""Number of values that `difference` visits. So many visits may take seconds, but happen only for a refused value."""


def check_declared(value: object, declared: Any, name: str) -> None:
    """Check that the value would be restored as an equal value.

    Raises:
        EncodingError: If the value would be restored differently. The message contains the path, the declared type and the actual value.
    """
    if not survives_round_trip(value, declared):
        reason = difference(value, declared, name)
        if reason:
            raise EncodingError(reason)


def _text(path: tuple[Any, ...]) -> str:
    steps: list[str] = []
    while len(path) == 2:
        path, step = path
        steps.append(step)
    return "".join([*path, *reversed(steps)])


def _sentence(path: str, found: object, declared: Any, rule: _Rule) -> str:
    advice = _ADVICE_OF.get(type(found).__qualname__, rule.advice) if rule is _REFUSED else rule.advice
    shown = f" ({_shown(found)})" if isinstance(found, _SHOWN) else ""
    return f"{path} is declared as {_name(declared)} and holds {_a(type(found))}{shown}, which {rule.problem}: {advice}"


_SHOWN = (str, bytes, int, float, enum.Enum, datetime.datetime, datetime.time)
_SHOWN_CHARACTERS_MAX = 60

_ADVICE_OF = {
    "defaultdict": "make a dict of it, with `dict(…)`, and use `setdefault`",
    "OrderedDict": "make a dict of it, with `dict(…)`: dicts keep their order",
    "Counter": "make a dict of it, with `dict(…)`",
    "deque": "make a list of it, with `list(…)`",
    "tuple": "declare the type of the tuple, or make a list of it",
    "set": "declare the type of the set, or make a list of it",
    "frozenset": "declare the type of the frozenset, or make a list of it",
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _a(kind: type) -> str:
    name = kind.__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _name(declared: Any) -> str:
    if isinstance(declared, type) and not typing.get_args(declared):
        return declared.__qualname__
    return "Any" if isinstance(declared, typing.TypeVar) else str(declared).replace("typing.", "")

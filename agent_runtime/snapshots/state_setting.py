"""Changes to fields of a saved state whose declared types are known.

The state's record is plain MessagePack, apart from large parts (`storage/capture/encoder.py`). It is decoded without types, one value is replaced,
and the record is encoded again. So arrays and histories next to the field are not read, and their bytes stay the same. The declared types are
followed along the path, and the new value is decoded from JSON as the declared type of the field. Finally the whole record is decoded as declared, as
a host will do.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from snapline.agent_runtime.agent import agent_type, state_version_of
from snapline.agent_runtime.fleet import check_skeleton
from snapline.agent_runtime.message_encoding import encode_body, field_names
from snapline.agent_runtime.migrations import MigrationPlan, load_state
from snapline.errors import EncodingError, UsageError
from snapline.storage.capture.declared_values import check_declared
from snapline.storage.capture.plain_values import NAMES_SHOWN, steps_of
from snapline.storage.capture.values import decode_declared
from snapline.storage.packs.checkpoint import AgentCheckpoint


class FieldSetting(msgspec.Struct, frozen=True):
    """One field of one agent, and its new value, as JSON."""

    agent: str
    path: str
    value: bytes

    @property
    def place(self) -> str:
        """Return the field's place as it is written."""
        return f"{self.agent}{'' if self.path.startswith('[') else '.'}{self.path}"


class SettingError(UsageError):
    """A field cannot be set so. Nothing was written."""


def find_agent(place: str, agents: Mapping[str, object]) -> tuple[str, str]:
    """Return agent and path of `AGENT.PATH`. Ids may contain dots: the longest known id is used.

    Raises:
        SettingError: the place names no known agent, or no field.
    """
    ends = [i for i, character in enumerate(place) if character in ".["]
    for end in reversed(ends):
        if place[:end] in agents:
            path = place[end:].removeprefix(".")
            if path:
                return place[:end], path
    raise SettingError(f"{place!r} names no field of an agent in the snapshot: write AGENT.FIELD=JSON")


def with_settings(
    plan: MigrationPlan | None, checkpoint: AgentCheckpoint, settings: list[FieldSetting]
) -> AgentCheckpoint:
    """Return the checkpoint with these fields set, in order; its state has the class's current version.

    `plan`: migration of the state; None: the agent does not exist yet.

    Raises:
        SettingError: there is no such field, the value is not of its type, or this state cannot be changed.
        MigrationError: the state cannot be migrated to the class's version.
    """
    first = settings[0].place
    if plan is None:
        raise SettingError(f"{first} cannot be set: the agent is not made yet in the snapshot")
    if checkpoint.turn is not None:
        raise SettingError(
            f"{first} cannot be set: the agent is in the middle of a durable turn, which would go on from another state than it "
            "began with; take a snapshot between two turns"
        )
    checkpoint = _migrated(plan, checkpoint, first)
    known = agent_type(plan.agent_class)
    record = _decoded_record(checkpoint, first)
    for setting in settings:
        record = _set(record, known.state_type, setting)
    state = msgspec.msgpack.encode(record)
    if not checkpoint.parts:
        try:
            check_skeleton(checkpoint.agent, known, state)
        except EncodingError as error:
            raise SettingError(str(error)) from error
    return msgspec.structs.replace(checkpoint, state=state)


def _decoded_record(checkpoint: AgentCheckpoint, first: str) -> object:
    try:
        return msgspec.msgpack.decode(checkpoint.state)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise SettingError(f"{first} cannot be set: the state cannot be read without its types ({error})") from error


def _migrated(plan: MigrationPlan, checkpoint: AgentCheckpoint, first: str) -> AgentCheckpoint:
    if not plan.steps:
        return checkpoint
    if checkpoint.parts:
        raise SettingError(
            f"{first} cannot be set: the state is of an older version and holds arrays or histories; fork without it, run the fork for one "
            "snapshot, and fork that"
        )
    known = agent_type(plan.agent_class)
    state = load_state(plan, checkpoint).state
    check_declared(state, known.state_type, "the migrated state")
    return msgspec.structs.replace(
        checkpoint,
        state=encode_body(state),
        state_type=known.state_name,
        state_version=state_version_of(plan.agent_class),
        state_fields=known.state_fields,
    )


def _set(record: object, declared: Any, setting: FieldSetting) -> object:
    """Return the record with one value replaced; containers on the way are changed in place."""
    steps = [key for key, _ in steps_of(setting.path)]
    holder = [record]
    value: Any = holder
    place: Any = 0
    for index, key in enumerate(steps):
        inner, where = value[place], ".".join(map(str, steps[:index]))
        value, place = inner, None
        place, declared = _step(inner, declared, key, where, setting, is_last=index == len(steps) - 1)
    if isinstance(value, list | dict) and _holds_large(value, place):
        raise SettingError(f"{setting.place} is an array, a history or the like: only plain values can be set")
    value[place] = _encoded(declared, setting)
    return holder[0]


def _holds_large(value: Any, place: Any) -> bool:
    field_value = value.get(place) if isinstance(value, dict) else value[place]
    return isinstance(field_value, msgspec.msgpack.Ext)


def _encoded(declared: Any, setting: FieldSetting) -> object:
    try:
        value = msgspec.json.decode(setting.value, type=declared, dec_hook=decode_declared)
        check_declared(value, declared, setting.place)
        return msgspec.msgpack.decode(encode_body(value))
    except (msgspec.DecodeError, TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        shown = setting.value[:100].decode(errors="replace")
        raise SettingError(
            f"{setting.place} cannot be {shown}: it is declared as {_name(declared)} ({error})"
        ) from error


def _name(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) and not typing.get_args(declared) else str(declared)


# ---- one step along the declared types ------------------------------------------------------------------------------


def _step(
    inner: object, declared: Any, key: object, where: str, setting: FieldSetting, *, is_last: bool
) -> tuple[object, Any]:
    """Return the step's target in `inner` (a key or an index), and the type declared there."""
    declared = _bare(declared)
    origin = typing.get_origin(declared) or declared
    if isinstance(inner, dict) and origin in (dict, Mapping):
        return _step_in_dict(inner, typing.get_args(declared), key, setting, is_last=is_last)
    if isinstance(inner, list) and origin is list and isinstance(key, int) and -len(inner) <= key < len(inner):
        return key, (typing.get_args(declared) or (Any,))[0]
    if isinstance(inner, dict | list) and isinstance(origin, type) and field_names(origin):
        return _step_in_record(inner, declared, key, setting)
    what = f"{where!r} in the state of {setting.agent}" if where else f"the state of {setting.agent}"
    raise SettingError(f"{setting.place} cannot be set: {what} is {_name(declared)}, which has no {key!r}")


def _bare(declared: Any) -> Any:
    """Strip annotations from a type, and None where one other type is left."""
    if typing.get_origin(declared) is typing.Annotated:
        return _bare(typing.get_args(declared)[0])
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        others = [argument for argument in typing.get_args(declared) if argument is not types.NoneType]
        return _bare(others[0]) if len(others) == 1 else declared
    return declared


def _step_in_dict(
    inner: dict[Any, Any], of: tuple[Any, ...], key: object, setting: FieldSetting, *, is_last: bool
) -> tuple[object, Any]:
    key_type, value_type = of if len(of) == 2 else (Any, Any)
    try:
        encoded_key = msgspec.msgpack.decode(encode_body(msgspec.convert(key, key_type, strict=False)))
    except (msgspec.ValidationError, TypeError) as error:
        raise SettingError(f"{setting.place} cannot be set: {key!r} is no key there ({error})") from error
    if not is_last and encoded_key not in inner:
        raise SettingError(f"{setting.place} cannot be set: there is no {key!r} in {_shown(inner)}")
    return encoded_key, value_type


def _step_in_record(inner: Any, declared: Any, key: object, setting: FieldSetting) -> tuple[object, Any]:
    fields = _fields(declared)
    if key not in fields:
        raise SettingError(f"{setting.place} cannot be set: {_name(declared)} has no {key!r}, but {_shown(fields)}")
    place, kind = fields[key]
    if isinstance(inner, dict):
        return place, kind
    offset = len(inner) - len(fields)  # the first item is the tag
    return list(fields).index(key) + offset, kind


def _fields(declared: Any) -> dict[Any, tuple[str, Any]]:
    """Return field name → its name in a record, and its type."""
    origin = typing.get_origin(declared) or declared
    if issubclass(origin, msgspec.Struct):
        return {x.name: (x.encode_name, x.type) for x in msgspec.structs.fields(declared)}
    hints = typing.get_type_hints(origin, include_extras=True)
    names = [x.name for x in dataclasses.fields(origin)] if dataclasses.is_dataclass(origin) else field_names(origin)
    return {name: (name, hints[name]) for name in names}


def _shown(names: Mapping[Any, object]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join([str(name) for name in list(names)[:NAMES_SHOWN]]) or "nothing") + more

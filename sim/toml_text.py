"""Writer of TOML, and readable errors for TOML files.

The standard library reads TOML but does not write it. The writer supports only the values in scenarios: strings, numbers,
booleans, lists and tables. Errors keep the path of msgspec's message, and add the value and the allowed values.
"""

import json
import re
from collections.abc import Mapping
from typing import Literal, TypeGuard, get_args, get_origin

import msgspec


def format_toml(document: Mapping[str, object]) -> str:
    """Return TOML: plain values first, then a section for each table and each table in a list. Nested tables are inline; `None` is left out."""
    lines: list[str] = []
    sections: list[str] = []
    for key, value in document.items():
        match value:
            case None:
                pass
            case dict():
                sections += ["", f"[{key}]", *_table(value)]
            case [dict(), *_] if len(tables := [table for table in value if isinstance(table, dict)]) == len(value):
                for table in tables:
                    sections += ["", f"[[{key}]]", *_table(table)]
            case _:
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *sections]) + "\n"


def _table(table: Mapping[str, object]) -> list[str]:
    return [f"{_toml_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            items = ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
        case _:
            return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def readable(message: str, raw: object, root: type[msgspec.Struct]) -> str:
    """Return msgspec's message in readable form, with the key, its value in `raw`, and the values that `root` allows there."""
    reason, _, tail = message.partition(" - at `$")
    path = tail.rstrip("`").lstrip(".")
    value, kind = _look_up(path, raw, root)
    if unknown := re.search(r"unknown field `(.*)`", reason):
        keys = [field.encode_name for field in msgspec.structs.fields(kind)] if _is_struct(kind) else []
        return f"{path or 'the file'} has no key {shown(unknown[1])}: use {', '.join(keys)}"
    return f"{path} is {shown(value)}: {_allowed(reason, kind)}"


def _allowed(what: str, kind: object) -> str:
    if get_origin(kind) is Literal:
        return "use " + ", ".join(shown(choice) if choice == "" else str(choice) for choice in get_args(kind))
    if "matching regex" in what:
        return "use a duration such as 250us, 1ms, 1.5s or 3m"
    wanted = what.removeprefix("Expected ").partition(", got")[0]
    for name, word in _TYPE_WORDS.items():
        wanted = wanted.replace(f"`{name}`", word).replace(f"`{name} | null`", word)
    return f"use {wanted}"


_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def shown(value: object) -> str:
    """Return a value as it would be written in a file."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _look_up(path: str, raw: object, kind: object) -> tuple[object, object]:
    """Return the value at a path such as `fault[2].crash.host`, and its declared type."""
    for key, index in re.findall(r"([\w-]+)|\[(\d+|\.\.\.)\]", path):
        kind = _declared(kind, key)
        match raw:
            case dict():
                raw = raw.get(key)
            case list() if index.isdigit():
                raw = raw[int(index)]
            case _:
                return raw, kind
    return raw, kind


def _declared(kind: object, key: str) -> object:
    """Return the type of a struct's field, or of a list's or dict's items, without `Annotated` and `None`."""
    if _is_struct(kind):
        inner = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}.get(key)
    else:
        inner = get_args(kind)[-1] if get_args(kind) else None
    while get_origin(inner) not in (None, Literal, list, dict):
        inner = next(part for part in get_args(inner) if part is not type(None))
    return inner

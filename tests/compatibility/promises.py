"""Lists of what users rely on: the API, the command line, JSON output, the gateway and metrics (docs/compatibility.md).

`promises()` describes the present code, and `broken()` compares it with the list that a release has stored. A list has sections, and a section has
entries by name. An entry has *facts*, each something that users may rely on, such as "key epoch" of a JSON document. A later release may add facts,
entries and sections, and may take none away. An entry may also have *parameters*, each with facts of its own. A parameter that a later release
adds must be optional.

Names come from the walks that make docs/api.md, docs/cli.md and docs/metrics.md.
"""

import ast
import functools
import importlib
import inspect
import itertools
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer.main
from docs import make_api, make_cli
from tests.house.metrics_page import TABLES

import snapline
from snapline import errors
from snapline.chaos.crash_kit import CrashKit
from snapline.cli.command import EXIT_CODES
from snapline.cli.main import app
from snapline.cli.settings import DEFAULTS
from snapline.gateway.app import openapi_of
from snapline.sim.pytest_plugin import Simulation

OPTIONAL = "optional"
"""Fact of a parameter that callers may leave out."""

HIDDEN = "hidden"
"""Fact of a command or option that only an earlier release has promised: it is not stored again."""

FIXTURES = {"snapline_sim": Simulation, "snapline_crash_kit": CrashKit}
"""Fixtures for pytest, whose methods are public."""


class Entry(msgspec.Struct, omit_defaults=True):
    """Facts about one public thing, and about each of its parameters."""

    facts: list[str] = []
    parameters: dict[str, list[str]] = {}


Promises = dict[str, dict[str, Entry]]
"""Section → name → entry."""


def api() -> Iterator[tuple[str, Entry]]:
    """Return the public names, and the methods and attributes of public classes."""
    for name in snapline.__all__:
        if isinstance(kind := getattr(snapline, name), type) and issubclass(kind, errors.SnaplineError):
            bases = [f"base {base.__name__}" for base in kind.__mro__[1:] if base.__name__ in snapline.__all__]
            yield name, Entry([*bases, f"exit code {kind.exit_code}"])
            continue
        _, definition = make_api.find(snapline._HOMES[name], name)
        if isinstance(definition, ast.ClassDef):
            yield name, Entry() if name in make_api.MADE_FOR_YOU else _callable(kind)
            yield from _members(name, kind, definition)
        else:
            yield name, _callable(kind)
    for name, kind in FIXTURES.items():
        _, definition = make_api.find(kind.__module__, kind.__name__)
        assert isinstance(definition, ast.ClassDef)
        yield name, Entry()
        yield from _members(name, kind, definition)


def _members(name: str, kind: type, definition: ast.ClassDef) -> Iterator[tuple[str, Entry]]:
    """Return methods and attributes of a class, which the page of the API calls `name`."""
    yield from ((f"{name}.{attribute}", Entry(["attribute"])) for attribute in make_api.attributes(definition))
    for method in make_api.public_methods(definition):
        value = inspect.getattr_static(kind, method.name)
        is_property = isinstance(value, property | functools.cached_property)
        yield f"{name}.{method.name}", Entry(["attribute"]) if is_property else _callable(getattr(kind, method.name))


def _callable(function: Any) -> Entry:
    facts = ["async"] if inspect.iscoroutinefunction(function) else []
    given = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    return Entry(facts, {each.name: _argument(number, each) for number, each in enumerate(given, 1)})


def _argument(position: int, parameter: inspect.Parameter) -> list[str]:
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            return ["any number by position", OPTIONAL]
        case parameter.VAR_KEYWORD:
            return ["any number by name", OPTIONAL]
    facts = [] if parameter.kind is parameter.POSITIONAL_ONLY else ["by name"]
    facts += [] if parameter.kind is parameter.KEYWORD_ONLY else [f"position {position}"]
    return facts if parameter.default is parameter.empty else [*facts, OPTIONAL]


def commands() -> Iterator[tuple[str, Entry]]:
    """Return the commands with their options. An argument is known by its position: users never write its name."""
    root = typer.main.get_command(app)
    visible = {each.words for each in make_cli.walk(root)}
    for each in make_cli.walk(root, with_hidden=True):
        parameters: dict[str, list[str]] = {}
        arguments = itertools.count(1)
        for one in () if each.is_group else each.command.params:
            is_argument = one.param_type_name == "argument"
            names = [f"argument {next(arguments)}"] if is_argument else [*one.opts, *one.secondary_opts]
            parameters |= {name: list(_option(one)) for name in names}
        yield each.words, Entry([] if each.words in visible else [HIDDEN], parameters)


def _option(one: Any) -> Iterator[str]:
    yield "flag" if getattr(one, "is_flag", False) else "value"
    if getattr(one, "multiple", False) or one.nargs == -1:
        yield "repeatable"
    yield from (f"choice {getattr(choice, 'value', choice)}" for choice in getattr(one.type, "choices", ()))
    if one.envvar:
        yield f"variable {one.envvar}"
    if not one.required:
        yield OPTIONAL
    if getattr(one, "hidden", False):
        yield HIDDEN


def documents() -> Iterator[tuple[str, Entry]]:
    """Return the kinds of JSON documents, with the keys that are named where one is made."""
    found: dict[str, dict[str, None]] = {}
    for module in pkgutil.walk_packages(snapline.__path__, "snapline."):
        spec = importlib.util.find_spec(module.name)
        if spec is None or spec.origin is None or "document(" not in Path(spec.origin).read_text():
            continue
        for call in ast.walk(make_api.parse_module(module.name)[1]):
            match call:
                case ast.Call(ast.Name("document"), [ast.Constant(str(kind))], keywords):
                    found.setdefault(kind, {}).update({f"key {each.arg}": None for each in keywords if each.arg})
    yield from ((kind, Entry(list(keys))) for kind, keys in found.items())


def fields() -> Iterator[tuple[str, Entry]]:
    """Return the fields of the structs that docs/cli.md describes as results, and of those inside them."""
    named = {(module, name) for details in make_cli.DETAILS.values() for _, module, name in details if name}
    kinds = [getattr(importlib.import_module(module), name) for module, name in sorted(named)]
    _, structs = msgspec.json.schema_components([kind for kind in kinds if issubclass(kind, msgspec.Struct)])
    for name, schema in structs.items():
        yield name, Entry([f"{field}: {_type(inner)}" for field, inner in schema.get("properties", {}).items()])


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case {"anyOf": list(choices)}:
            return " or ".join(sorted(map(_type, choices)))
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type(items)}"
        case {"type": str(name)}:
            return name
    return "string" if "enum" in schema else "anything"


def gateway() -> Iterator[tuple[str, Entry]]:
    """Return the calls of the gateway."""
    for path, calls in openapi_of(None, has_approvals=True)["paths"].items():
        for verb, call in calls.items():
            parameters = {
                each["name"]: [f"in {each['in']}", *([] if each.get("required") else [OPTIONAL])]
                for each in call["parameters"]
            }
            yield f"{verb} {path}", Entry([f"status {code}" for code in call["responses"]], parameters)


def metrics() -> Iterator[tuple[str, Entry]]:
    """Return the metrics."""
    for family in itertools.chain(*TABLES.values()):
        yield family.name, Entry([family.kind, *(f"label {label}" for label in family.labels)])


class Section(NamedTuple):
    """A part of the list. `demand` is its promise in docs/compatibility.md."""

    entries: Callable[[], Iterable[tuple[str, Entry]]]
    demand: str


SECTIONS = {
    "API": Section(api, "the API keeps all that has not warned with DeprecationWarning for one minor release"),
    "command": Section(commands, "commands and options stay, old names as hidden aliases"),
    "exit code": Section(lambda: ((str(code), Entry()) for code in EXIT_CODES), "exit codes stay"),
    "setting": Section(lambda: ((name, Entry()) for name in DEFAULTS), "settings of snapline.toml stay"),
    "JSON document": Section(documents, "a key of JSON output keeps its name and meaning"),
    "JSON struct": Section(fields, "a key of JSON output keeps its name, type and meaning"),
    "gateway": Section(gateway, "the HTTP gateway only adds"),
    "metric": Section(metrics, "a metric keeps its name and meaning"),
}


def promises() -> Promises:
    """Describe the present code."""
    return {name: dict(section.entries()) for name, section in SECTIONS.items()}


def broken(old: Promises, new: Promises) -> list[str]:
    """Return a sentence for each promise of an earlier release that the present code breaks."""
    return [
        f"{section} {name}: {change}, but {SECTIONS[section].demand} until the next major release (docs/compatibility.md)"
        for section, entries in old.items()
        for name, entry in entries.items()
        for change in _changes(entry, new[section].get(name))
    ]


def _changes(old: Entry, new: Entry | None) -> Iterator[str]:
    if new is None:
        yield "it is gone"
        return
    yield from (f"it has lost “{fact}”" for fact in old.facts if fact not in new.facts)
    for name, facts in old.parameters.items():
        if (now := new.parameters.get(name)) is None:
            yield f"it has lost {name}"
        else:
            yield from (f"{name} has lost “{fact}”" for fact in facts if fact not in now)
    for name, facts in new.parameters.items():
        if name not in old.parameters and OPTIONAL not in facts:
            yield f"it demands {name}, which is new"


def read(path: Path) -> Promises:
    """Return the list of a release."""
    return msgspec.json.decode(path.read_bytes(), type=Promises)


def write(path: Path) -> None:
    """Store the list of the present release, with one entry in a line."""
    sections = []
    for section, entries in promises().items():
        shown = {name: entry for name, entry in entries.items() if HIDDEN not in entry.facts}
        for entry in shown.values():
            entry.parameters = {name: facts for name, facts in entry.parameters.items() if HIDDEN not in facts}
        lines = [f"  {json.dumps(name)}: {msgspec.json.encode(entry).decode()}" for name, entry in shown.items()]
        sections.append(f" {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(sections) + "\n}\n")

"""Makes docs/api.md out of the docstrings: `python docs/make_api.py`, or `make docs`.

The source is read, not imported: so the page is the same with every release of Python, and neither NumPy nor torch is needed. A
test compares the page with what this makes, and every public name with the page.
"""

import ast
import functools
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import snapline
from snapline import errors

PAGE = Path(__file__).with_name("api.md")

TOPICS = {
    "Agents and messages": (
        "Agent",
        "Message",
        "handler",
        "TurnOutput",
        "Context",
        "Approval",
        "AbandonedTurn",
        "PastRollback",
        "heartbeat",
        "CircuitBreaker",
    ),
    "Fleets": ("Fleet", "Every", "EveryMessages", "Adaptive", "Manual"),
    "What `stop_when` and invariants see": (
        "Cut",
        "TransitMessage",
        "DeadLetter",
        "PendingTimer",
        "PendingTurn",
        "PendingSpawn",
    ),
    "What a state may hold": ("History", "Blob", "TorchState", "Pickled", "tracked_array", "mark_dirty", "migrates"),
    "From outside": (
        "Client",
        "SyncClient",
        "Receipt",
        "Reply",
        "Output",
        "OutputsReverted",
        "Effect",
        "OpenApproval",
        "FleetStatus",
        "LocatedAgent",
        "AgentState",
        "DeadLetterResult",
        "Certificates",
    ),
    "What a failure costs": ("open_trace", "Trace", "DominoReport", "RecoveryLine"),
    "Reading snapshots": ("open_store", "SnapshotStore", "Snapshot", "SavedAgent", "Fork"),
}
"""Public names that are no errors, in the order of the page. A name that is in none of them is refused."""

RUNTIME = {
    "Blob": ("capture", "restore", "table_entries"),
    "Client": ("start",),
    "Context": (
        *("begin", "check_output", "close", "guard_with", "is_final", "journal", "outcome", "resume", "send_encoded"),
        *("suspend", "take_segment", "undo_effect"),
    ),
    "Fleet": ("policy", "period_ns", "make", "kind_of", "definition_digest", "definition_parts"),
    "History": (
        *("records_for_inline", "records_to_check", "note_checked", "capture", "restore", "of_decoded"),
        *("table_entries", "mark", "rollback"),
    ),
    "TorchState": ("is_live", "record", "distinct_tensors", "from_record"),
}
"""Methods without an underscore that are for the runtime alone."""

MADE_FOR_YOU = {
    "Client",
    "SyncClient",
    "Context",
    "Cut",
    "SnapshotStore",
    "Snapshot",
    "SavedAgent",
    "Fork",
    "TorchState",
    "Trace",
    "DominoReport",
    "RecoveryLine",
}
"""Classes that nobody makes by calling them."""

HEAD = """# The API

What `import snapline` offers. Made from the docstrings by `make docs`; do not edit it. The
[README](../README.md), [state.md](state.md) and [testing.md](testing.md) show how the parts work together.
"""

_SECTION = re.compile(r"(Args|Attributes|Kinds|Raises):$")
_ENTRY = re.compile(r"(\S[^:]*): (.*)")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def make_page() -> str:
    """Return the page.

    Raises:
        SystemExit: a public name has no topic.
    """
    tree = _error_names()
    missing = set(snapline.__all__) - {name for names in TOPICS.values() for name in names} - set(tree)
    if missing:
        raise SystemExit(f"{', '.join(sorted(missing))}: give them a topic in {Path(__file__).name}")
    parts = [HEAD]
    for topic, names in TOPICS.items():
        parts.append(f"## {topic}\n")
        parts += ["\n".join(_about(name)) for name in names]
    parts += ["\n".join(_about_errors(tree)), "\n".join(_about_pytest())]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def _about(name: str) -> Iterator[str]:
    """One public name: how it is called, its docstring, its methods."""
    module = snapline._HOMES[name]
    source, definition = find(module, name)
    yield f"### `{name}`\n"
    if isinstance(definition, ast.ClassDef):
        yield from _about_class(source, definition)
    else:
        yield from _code(_signature(source, definition))
        yield from render(definition)


def _about_class(source: str, definition: ast.ClassDef, owner: str = "") -> Iterator[str]:
    name = owner or definition.name
    if not owner and name not in MADE_FOR_YOU:
        yield from _code("\n".join([f"class {_maker(source, definition)}", *_settings(source, definition)]))
    yield from render(definition)
    for method in public_methods(definition):
        yield from _about_method(source, method, name)


def _methods(definition: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in definition.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def public_methods(definition: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the methods and properties that have a section of the page. Those without a docstring of their own are among the class's attributes."""
    for method in _methods(definition):
        is_public = not method.name.startswith("_") and method.name not in RUNTIME.get(definition.name, ())
        is_overload = any("overload" in ast.unparse(mark) for mark in method.decorator_list)
        if is_public and not is_overload and ast.get_docstring(method):
            yield method


def _maker(source: str, definition: ast.ClassDef) -> str:
    """How an object is made."""
    for method in _methods(definition):
        if method.name == "__init__":
            return _signature(source, method, name=definition.name).removesuffix(" -> None")
    fields = _fields(source, definition)
    return f"{definition.name}({', '.join(fields)})" if fields else definition.name


def _settings(source: str, definition: ast.ClassDef) -> list[str]:
    """What a subclass may set."""
    return [
        f"    {_source(source, node.target)}: {_source(source, node.annotation)}{_default(source, node.value)}"
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and "ClassVar" in ast.unparse(node.annotation)
    ]


def _about_method(source: str, method: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Iterator[str]:
    marks = {ast.unparse(mark) for mark in method.decorator_list}
    called = f"{owner}.{method.name}"
    if marks & {"property", "functools.cached_property", "cached_property"}:
        returned = f" -> {_source(source, method.returns)}" if method.returns else ""
        yield f"#### `{called}{returned}`\n"
    else:
        yield f"#### `{called}`\n"
        yield from _code(_signature(source, method, name=called))
    yield from render(method)


def _about_errors(names: list[str]) -> Iterator[str]:
    """The tree as its module draws it, and what each error means."""
    yield "## Errors\n"
    drawing = re.findall(r"^    (\S.*|    .*|[│├└ ].*)$", errors.__doc__ or "", re.MULTILINE)
    yield "```\n" + "\n".join(drawing) + "\n```\n"
    yield "A message names the thing and the next step. `exit_code` is what the command line ends with.\n"
    yield "| error | meaning | `exit_code` |\n| --- | --- | --- |"
    for name in names:
        kind = getattr(errors, name)
        meaning = " ".join((kind.__doc__ or "").split())
        yield f"| `{name}` | {meaning} | {kind.exit_code} |"
    yield ""


def _about_pytest() -> Iterator[str]:
    yield "## In pytest\n"
    yield "The plugin comes with snapline; the fixture `snapline_sim` has two methods ([testing.md](testing.md)).\n"
    source, definition = find("snapline.sim.pytest_plugin", "Simulation")
    assert isinstance(definition, ast.ClassDef)
    yield from list(_about_class(source, definition, owner="snapline_sim"))[1:]
    _, options = find("snapline.sim.checking", "Options")
    yield "#### `**options`\n"
    yield from render(options)
    yield "The fixture `snapline_crash_kit` is for programs of any kind ([crash-kit.md](crash-kit.md)).\n"
    source, definition = find("snapline.chaos.crash_kit", "CrashKit")
    assert isinstance(definition, ast.ClassDef)
    yield from list(_about_class(source, definition, owner="snapline_crash_kit"))[1:]


def _error_names() -> list[str]:
    """In the order of the module, which is that of the tree."""
    return [node.name for node in parse_module("snapline.errors")[1].body if isinstance(node, ast.ClassDef)]


# -- docstrings -------------------------------------------------------------------------------------------------------


def render(definition: Definition | ast.Module) -> Iterator[str]:
    """A docstring as Markdown: sections become lists, indented paragraphs code."""
    lines = (ast.get_docstring(definition) or "").splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line == "Returns:":
            end = next((i for i in range(at + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
            yield f"Returns: {' '.join(each.strip() for each in lines[at + 1 : end])}\n"
            at = end
        elif _SECTION.match(line):
            end = next((i for i in range(at + 1, len(lines)) if lines[i] and lines[i][0] != " "), len(lines))
            yield f"{line[:-1]}:\n"
            yield from _entries(lines[at + 1 : end])
            at = end
        elif line.startswith("    "):
            end = next((i for i in range(at, len(lines)) if lines[i] and lines[i][0] != " "), len(lines))
            yield from _code("\n".join(each[4:] for each in lines[at:end]).strip())
            at = end
        else:
            yield line
            at += 1
    if lines:
        yield ""


def attributes(definition: ast.ClassDef) -> list[str]:
    """Return the names under "Attributes:" in the docstring of a class."""
    _, _, section = (ast.get_docstring(definition) or "").partition("\nAttributes:\n")
    lines = itertools.takewhile(lambda line: not line or line[0] == " ", section.splitlines())
    entries = [_ENTRY.match(line[4:]) for line in lines if not line.startswith("     ")]
    return [name for entry in entries if entry is not None for name in entry[1].split(", ")]


def _entries(lines: list[str]) -> Iterator[str]:
    """`name: text` with lines that go on."""
    for line in lines:
        found = _ENTRY.match(line[4:])
        if found is not None and not line.startswith("     "):
            yield f"- {', '.join(f'`{name}`' for name in found[1].split(', '))}: {found[2]}"
        elif line:
            yield f"  {line.strip()}" if line.startswith("     ") else f"- {line.strip()}"
    yield ""


# -- source -----------------------------------------------------------------------------------------------------------


@functools.cache
def parse_module(name: str) -> tuple[str, ast.Module]:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    source = Path(spec.origin).read_text()
    return source, ast.parse(source)


def find(module: str, name: str) -> tuple[str, Definition]:
    """The definition; of overloads the last one, which has the docstring."""
    source, tree = parse_module(module)
    for node in reversed(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return source, node
    raise SystemExit(f"{module} defines no {name}")


def _fields(source: str, definition: ast.ClassDef) -> list[str]:
    """Of a struct or dataclass, as it is made."""
    return [
        f"{_source(source, node.target)}: {_source(source, node.annotation)}{_default(source, node.value)}"
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    ]


def _signature(source: str, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    shown = [_argument(source, each, default) for each, default in zip(positional, defaults, strict=True)]
    shown = [each for each in shown if each not in ("self", "cls")]
    if given.vararg is not None:
        shown.append(f"*{_argument(source, given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(source, *each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        shown.append(f"**{given.kwarg.arg}")
    word = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    returned = f" -> {_source(source, function.returns)}" if function.returns is not None else ""
    line = f"{word}{name or function.name}({', '.join(shown)}){returned}"
    if len(line) <= 100:
        return line
    arguments = "".join(f"    {each},\n" for each in shown)
    return f"{word}{name or function.name}(\n{arguments}){returned}"


def _argument(source: str, argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_source(source, argument.annotation)}" if argument.annotation is not None else ""
    return f"{argument.arg}{kind}{_default(source, default)}"


def _default(source: str, value: ast.expr | None) -> str:
    """A constant by its value, also where the module imports it."""
    if value is None:
        return ""
    text = _source(source, value)
    return f" = {_value_of(source, text) if text.isidentifier() and text.isupper() else text}"


def _value_of(source: str, name: str) -> str:
    found = re.search(rf"^{name} = (.*)$", source, re.MULTILINE)
    if found is not None:
        return found[1]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _value_of(parse_module(node.module)[0], alias.name)
    return name


@functools.cache
def _lines(source: str) -> list[bytes]:
    """For `_source`: `ast.get_source_segment` would split the file for every node."""
    return source.encode().split(b"\n")


def _source(source: str, node: ast.expr) -> str:
    """As it is written, without the quotes of what is defined later."""
    lines = _lines(source)[node.lineno - 1 : node.end_lineno]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    text = " ".join(b" ".join(lines).decode().split())
    return re.sub(r'"([A-Z]\w*(?:\[[^"]*\])?[^"]*)"', r"\1", text) if "Literal" not in text else text


def _code(text: str) -> list[str]:
    return [f"```python\n{text}\n```\n"]


if __name__ == "__main__":
    made = make_page()
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if PAGE.read_text() == made else f"{PAGE.name} is not current: run `make docs`")
    PAGE.write_text(made)

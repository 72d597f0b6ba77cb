"""The product's files as syntax trees, for house rules on its structure: classes, their bases, who imports whom.

Only what the text shows is known here; nothing of the product is imported. A class is named by its file and its own
name, `agent_runtime/host/core.py:HostCore`.
"""

import ast
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

NOT_PRODUCT = ("tests", "benchmarks", "docs", "release")
PACKAGE = "src/snapline/"
GENERATED = PACKAGE + "protos/"
BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
"""Where a statement has others, in the order of their fields."""

RECORDS = {"Struct", "NamedTuple", "StrEnum", "Enum", "IntEnum"}


@dataclass(frozen=True)
class Class:
    """A class at the top of a product file.

    Attributes:
        bases: what its product bases are called, `file:name`.
        others: its other bases' last names: of the standard library or a dependency.
    """

    file: str
    node: ast.ClassDef
    bases: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.file}:{self.node.name}"


@dataclass(frozen=True)
class Product:
    """Files by their path in the package, and the classes in them by `file:name`."""

    trees: dict[str, ast.Module]
    lines: dict[str, int]
    classes: dict[str, Class]

    def ancestors(self, name: str) -> list[Class]:
        """The product classes above a class, nearest first."""
        above = [self.classes[base] for base in self.classes[name].bases]
        return above + [further for base in above for further in self.ancestors(base.name)]

    def is_protocol(self, name: str) -> bool:
        """Only a shape for the type checker (of typing, not one of `protocols/`)."""
        return "Protocol" in self.classes[name].others

    def is_record(self, name: str) -> bool:
        """Values under names, without an `__init__` of its own: a struct, a named tuple, a frozen dataclass."""
        family = [self.classes[name], *self.ancestors(name)]
        return any(RECORDS & set(each.others) or is_frozen(each.node) for each in family) and not any(
            set_in_init(each.node) for each in family
        )

    def is_error(self, name: str) -> bool:
        """One of an exception tree."""
        return any("Exception" in each.others for each in [self.classes[name], *self.ancestors(name)])


def parsed_once(path: Path) -> ast.Module:
    """A file that one rule looks at."""
    return ast.parse(path.read_text(), filename=str(path))


parsed = functools.cache(parsed_once)
"""A file of the product, for all rules that look at it: it takes seconds to parse them all."""


def is_product(name: str) -> bool:
    """Is this file, named by its place in the repository, one of ours that is packed?"""
    return name.partition("/")[0] not in NOT_PRODUCT and not name.startswith(GENERATED)


def in_package(root: Path, path: Path) -> str:
    """Return a file's path in the package; of other files, that in the repository."""
    return path.relative_to(root).as_posix().removeprefix(PACKAGE)


def read(root: Path, files: list[Path]) -> Product:
    """The product of a checkout."""
    python = [path for path in files if path.suffix == ".py" and not path.is_symlink()]
    names = {
        name.removeprefix(PACKAGE): path for path in python if is_product(name := path.relative_to(root).as_posix())
    }
    lines = {name: len(path.read_text().splitlines()) for name, path in names.items()}
    return _product({name: parsed(path) for name, path in names.items()}, lines)


def product(texts: dict[str, str]) -> Product:
    """A product of these files."""
    trees = {name: ast.parse(text, filename=name) for name, text in texts.items()}
    return _product(trees, {name: len(text.splitlines()) for name, text in texts.items()})


def _product(trees: dict[str, ast.Module], lines: dict[str, int]) -> Product:
    known = {f"{file}:{node.name}" for file, tree in trees.items() for node in top_classes(tree)}
    classes = {}
    for file, tree in trees.items():
        homes = imported_names(tree, trees)
        for node in top_classes(tree):
            bases, others = [], []
            for base in node.bases:
                home = home_of(base, file, homes, known)
                bases.append(home) if home is not None else others.append(last_name(base))
            classes[f"{file}:{node.name}"] = Class(file, node, tuple(bases), tuple(others))
    return Product(trees, lines, classes)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All its statements, in the order of `ast.walk`, which looks into their expressions too: ten times as many nodes."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for name in BODIES:
            waiting.extend(getattr(node, name, ()))


def top_classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def last_name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return last_name(value)
    return ast.unparse(expression)


def is_frozen(node: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator).startswith("dataclass(frozen=True") for decorator in node.decorator_list)


def home_of(base: ast.expr, file: str, homes: dict[str, str], known: set[str]) -> str | None:
    """The product class that a base names, as `file:name`."""
    match base:
        case ast.Subscript(value=value):
            return home_of(value, file, homes, known)
        case ast.Name(id=name):
            found = homes.get(name, f"{file}:{name}")
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            found = f"{homes.get(module, '')}:{name}"
        case _:
            return None
    return found if found in known else None


def imported_names(tree: ast.Module, trees: dict[str, ast.Module]) -> dict[str, str]:
    """What the imports of a file bind: a name → `file:name` of a class, or a module's file."""
    homes = {}
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                module = file_of(f"{node.module}.{alias.name}", trees)
                home = file_of(node.module, trees)
                homes[alias.asname or alias.name] = module or f"{home}:{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and (module := file_of(alias.name, trees)):
                    homes[alias.asname] = module
    return homes


def file_of(module: str, trees: dict[str, ast.Module]) -> str | None:
    """The product file of a module, if it is one."""
    inside = module.removeprefix("snapline.").replace(".", "/")
    candidates = (f"{inside}.py", f"{inside}/__init__.py")
    return next((name for name in candidates if module.startswith("snapline.") and name in trees), None)


def imported_files(tree: ast.Module, trees: dict[str, ast.Module]) -> set[str]:
    """The product files that a file imports, wherever the import stands: also in a function or for the type checker."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name, trees) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                found.add(file_of(f"{node.module}.{alias.name}", trees) or file_of(node.module, trees))
    return {name for name in found if name is not None}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of names that reach each other, each sorted."""
    reached = {start: reachable(start, edges) for start in edges}
    groups = {
        tuple(sorted(other for other in reached[start] if start in reached.get(other, ())))
        for start in edges
        if start in reached[start]
    }
    return sorted(list(group) for group in groups)


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    """What a walk of one step or more meets."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in edges.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def set_in_init(node: ast.ClassDef) -> set[str]:
    """The attributes `self.x` that its `__init__` sets."""
    return {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def reaching_assignments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every `self.x.y = …`: an attribute of another object's part is set, not asked for.

    `x = self.a.x` and then `x.y = …` is the same.
    """
    for function in statements(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            body = list(statements_of(function))
            known = {name: part for node in body for name, part in names_of_parts(node)}
            for node in body:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    owner = ast.unparse(node.value)
                    owner = known.get(owner, owner)
                    if owner.startswith("self."):
                        yield node.lineno, f"{owner}.{node.attr}"


def statements_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from statements_of(node)


def names_of_parts(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What an assignment calls a part: `x = self.a.b` gives x, "self.a.b"."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for name, value in pairs_of(target, node.value):
                text = ast.unparse(value)
                if isinstance(name, ast.Name) and isinstance(value, ast.Attribute) and text.startswith("self."):
                    yield name.id, text


def pairs_of(target: ast.expr, value: ast.expr) -> Iterable[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return zip(target.elts, value.elts, strict=False)
    return [(target, value)]


def polls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of loops that sleep and look at a core until it has what they wait for.

    A core is what is called `core`, and a state machine's `image`. How long to sleep may be read from a core: that is
    its timer.
    """
    for loop in statements(tree):
        if not isinstance(loop, ast.While):
            continue
        sleeps = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and last_name(node.func) == "sleep"]
        within = {id(inner) for sleep in sleeps for inner in ast.walk(sleep)}
        for node in ast.walk(loop):
            if sleeps and id(node) not in within and is_core(node):
                yield loop.lineno, ast.unparse(loop.test)
                break


def is_core(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and last_name(node).strip("_") in ("core", "image")


def stubs(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of functions that do nothing but raise NotImplementedError."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            match body:
                case [ast.Raise(exc=ast.expr() as raised)] if "NotImplementedError" in ast.unparse(raised):
                    yield node.lineno, node.name

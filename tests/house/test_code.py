"""House rules on code: who imports whom, what cores keep away from, how long functions are."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.product import in_package, is_product, parsed, parsed_once, statements

pytestmark = pytest.mark.usefixtures("without_collections")

GROUND_FLOOR = ("protocols", "recovery")
GROUND_FLOOR_MAY = ("msgspec", "snapline.protocols", "snapline.recovery", "snapline.errors", "snapline.ids")

CORES_MAY_NOT = {
    *("asyncio", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random", "secrets"),
    *("selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "grpc"),
}
"""Clocks, chance, waiting, talking: for a core these are events and commands."""

CORES = (
    "protocols/epoch_stamped.py",
    "channels/link.py",
    "sim/explorer/chandy_lamport.py",
    "coordinator/state/fleet_state.py",
)
"""Some of them, so that the search for `handle(self, now_ns, …)` is seen to find them."""

FUNCTION_LINES_MAX = 70

ORDER_DOES_NOT_MATTER = {"sorted", "set", "frozenset", "len", "min", "max", "sum", "any", "all"}
ORDER_MATTERS = {"list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "reversed"}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import, inside functions too; not those for the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0, "no relative imports"
            yield (node.lineno, node.module)
        yield from imports(node)


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def test_the_ground_floor_stands_on_the_standard_library_and_msgspec(root: Path, handwritten: list[Path]) -> None:
    offences = []
    for path in handwritten:
        name = in_package(root, path)
        if name.partition("/")[0] not in GROUND_FLOOR:
            continue
        for line, module in imports(parsed(path)):
            if module.partition(".")[0] not in sys.stdlib_module_names and not is_within(module, GROUND_FLOOR_MAY):
                offences.append(f"{name}:{line} imports {module}")
    assert not offences, "\n".join(offences)


# -- cores ------------------------------------------------------------------------------------------------------------


def is_core(tree: ast.AST) -> bool:
    """A core's only door is `handle(self, now_ns, event)`."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "handle"
        and [a.arg for a in node.args.args[:2]] == ["self", "now_ns"]
        for node in statements(tree)
    )


@pytest.fixture(scope="module")
def cores(root: Path, handwritten: list[Path]) -> dict[str, ast.AST]:
    """All cores, with what they import from their own room: name → code."""
    trees = {
        in_package(root, path): parsed(path)
        for path in handwritten
        if path.relative_to(root).parts[0] not in ("tests", "benchmarks", "docs")
    }
    waiting = [name for name, tree in trees.items() if is_core(tree)]
    found: dict[str, ast.AST] = {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = trees[name]
        room = name.partition("/")[0]
        for _, module in imports(trees[name]):
            other = module.removeprefix("snapline.").replace(".", "/") + ".py"
            if module.startswith(f"snapline.{room}.") and other in trees:
                waiting.append(other)
    return found


def test_the_search_finds_the_cores(cores: dict[str, ast.AST]) -> None:
    assert set(CORES) <= set(cores)


def test_cores_read_no_clock_draw_no_chance_and_do_no_io(cores: dict[str, ast.AST]) -> None:
    offences = [
        f"{name}:{line} imports {module}"
        for name, tree in sorted(cores.items())
        for line, module in imports(tree)
        if module.partition(".")[0] in CORES_MAY_NOT
    ]
    assert not offences, "\n".join(offences)


def test_cores_never_iterate_a_set(cores: dict[str, ast.AST]) -> None:
    """The order of a set of strings differs from process to process: traces would."""
    offences = [f"{name}:{line}" for name, tree in sorted(cores.items()) for line in set_iterations(tree)]
    assert not offences, "these iterate a set; sort it, or use a dict:\n" + "\n".join(offences)


def set_iterations(tree: ast.AST) -> list[int]:
    """Lines where the order of a set becomes visible, as far as one file shows that it is a set."""
    attributes = {name for node in ast.walk(tree) for name in declared_sets(node, of_self=True)}
    lines: list[int] = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            body = list(own_nodes(scope))
            names = {name for node in body for name in declared_sets(node, of_self=False)}
            names |= {arg.arg for arg in arguments_of(scope) if is_set_type(arg.annotation)}
            lines += [getattr(node, "lineno", 0) for node in body if shows_order(node, names, attributes)]
    return sorted(lines)


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it; parents are noted as `parent`."""
    for node in ast.iter_child_nodes(scope):
        node.__dict__["parent"] = scope
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from own_nodes(node)


def arguments_of(scope: ast.AST) -> list[ast.arg]:
    arguments = getattr(scope, "args", None)
    return (
        [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs] if isinstance(arguments, ast.arguments) else []
    )


def is_set_type(annotation: ast.expr | None) -> bool:
    named = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(named, ast.Name) and named.id in ("set", "frozenset", "AbstractSet")


def declared_sets(node: ast.AST, *, of_self: bool) -> Iterator[str]:
    """Names (or attributes of self) that this assignment makes sets."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.AnnAssign) and (is_set_type(node.annotation) or is_set(node.value, set(), set())):
        targets = [node.target]
    elif isinstance(node, ast.Assign) and is_set(node.value, set(), set()):
        targets = node.targets
    for target in targets:
        if of_self and isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
            yield target.attr
        elif not of_self and isinstance(target, ast.Name):
            yield target.id


def is_set(node: ast.expr | None, names: set[str], attributes: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return is_set(left, names, attributes) or is_set(right, names, attributes)
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in attributes
    return False


def shows_order(node: ast.AST, names: set[str], attributes: set[str]) -> bool:
    def of(expression: ast.expr) -> bool:
        return is_set(expression, names, attributes)

    match node:
        case ast.For(iter=iterated):
            return of(iterated)
        case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
            return any(of(generator.iter) for generator in generators)
        case ast.GeneratorExp(generators=generators):
            parent = node.__dict__["parent"]
            is_harmless = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in ORDER_DOES_NOT_MATTER
            return not is_harmless and any(of(generator.iter) for generator in generators)
        case ast.Call(func=ast.Name(id=function), args=arguments) if function in ORDER_MATTERS:
            return any(of(argument) for argument in arguments)
        case ast.Call(func=ast.Attribute(attr="join" | "fromkeys" | "extend"), args=arguments):
            return any(of(argument) for argument in arguments)
        case ast.Call(func=ast.Attribute(value=popped, attr="pop"), args=[]):
            return of(popped)
        case ast.Starred(value=unpacked):
            return of(unpacked) and not isinstance(node.__dict__["parent"], ast.Set)
    return False


@pytest.mark.parametrize(
    "code",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "a = set()\nfor x in a: pass",
        "a: frozenset[str] = b\n[x for x in a]",
        "def f(a: set[str]):\n    return list(a)",
        "def f(self):\n    self.a = set()\ndef g(self):\n    return tuple(self.a)",
        "a = {1}\n', '.join(str(x) for x in a)",
        "a = {1} | b\nfor x in a - c: pass",
        "a = {1}\na.pop()",
        "a = {1}\nb = [*a]",
        "{x: 1 for x in {1}}",
    ],
)
def test_the_search_for_iterated_sets_finds_them(code: str) -> None:
    assert set_iterations(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "for x in sorted({1, 2}): pass",
        "a = {1: 2}\nfor x in a: pass",
        "a = set()\nany(x for x in a)",
        "a = set()\n{x for x in a}",
        "def f():\n    a = set()\ndef g(a: list[int]):\n    return list(a)",
        "a = {1}\nb = {*a}\nlen(a)",
    ],
)
def test_the_search_for_iterated_sets_finds_nothing_else(code: str) -> None:
    assert not set_iterations(ast.parse(code))


# -- size -------------------------------------------------------------------------------------------------------------


def test_no_function_is_longer_than_a_screen(root: Path, handwritten: list[Path]) -> None:
    offences = [
        f"{path.relative_to(root)}:{node.lineno} {node.name} has {length} lines"
        for path in handwritten
        for node in statements(parsed(path) if is_product(path.relative_to(root).as_posix()) else parsed_once(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not offences, "\n".join(offences)


FOLDERS_OF_OTHERS = (
    "sim/",
    "chaos/",
    "deploy/conformance/",
    "telemetry/metrics_server.py",
    "storage/disk/local_disk.py",
)
"""Reports, trials, what prometheus reads, and what is inside the root of a store."""


def test_folders_are_made_for_their_owner_alone(root: Path, handwritten: list[Path]) -> None:
    """Whatever the umask is: keys, tokens, states and logs lie in them."""
    offences = []
    for path in handwritten:
        name = path.relative_to(root).as_posix()
        if not is_product(name) or in_package(root, path).startswith(FOLDERS_OF_OTHERS):
            continue
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") not in ("mkdir", "makedirs"):
                continue
            if "mode=448" not in (said := ast.unparse(node)) or "parents" in said:
                offences.append(f"{name}:{node.lineno}: {said}")
    assert not offences

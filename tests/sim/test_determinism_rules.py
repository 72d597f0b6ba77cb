"""Rules that make a simulated run repeat: read off the syntax trees of the cores and of all that takes part in a run.

Each rule is a search that yields the lines that break it. It is shown to find what it should and nothing else, then it
is run over the code. A search looks at one file at a time: it knows of a name what that file shows.

1. Time is integer nanoseconds: no true division into a `_ns` name, no float added to one.
2. No clock, chance, environment, thread, loop, log or socket: these are events, commands and choices.
3. No order of a set becomes visible; no `id`, `hash`, `__del__` or weak references: they differ between processes. A
   value may have a `__hash__`, since dictionaries keep the order in which they were filled.
4. No global state: no `global`, nothing that a module holds is changed by a function.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.house.product import parsed

ROOT = Path(__file__).resolve().parents[2] / "src" / "snapline"

Search = Callable[[ast.Module], Iterator[int]]

OUTSIDE = (
    *("sim/run.py", "sim/search/sweep.py", "sim/search/replay.py", "sim/search/pool.py", "sim/search/worker.py"),
    *("sim/search/shrink.py", "sim/search/compare", "sim/search/ray_sweep", "sim/report/", "sim/pytest_plugin"),
    *("sim/script/script_runner.py", "sim/script/__main__.py"),
)
"""Beginnings of the names of what stands around a run: starts, repeats, compares, reports. All else takes part."""

CHOICES = "sim/choices.py"
"""The one place of chance."""

TIMING = ("sim/explorer/",)
"""May measure how long they take, by `TIMERS` alone: it decides nothing."""

FORBIDDEN = (
    *("asyncio", "datetime", "logging", "multiprocessing", "os", "random", "secrets", "socket", "subprocess"),
    *("threading", "time", "uuid", "weakref"),
)

FORBIDDEN_IN_CORES = (*FORBIDDEN, "grpc", "io", "pathlib", "queue", "select", "selectors", "signal", "tempfile")

HARMLESS = {("os", "strerror"), ("random", "Random")}
"""What of those depends on nothing. `Random` is a type: making one is not harmless."""

FUTURES = {("asyncio", "Future"), ("asyncio", "events"), ("asyncio", "sleep")}
"""What stubs await: futures, and a loop of their own for `asyncio.sleep`, in virtual time."""

WAITING = ["sim/world/steps.py", "sim/workloads/booking.py"]
"""The place of that loop, and stubs that sleep in it."""

TIMERS = {("time", "process_time"), ("time", "perf_counter")}

ORDER_DOES_NOT_MATTER = ("sorted", "set", "frozenset", "len", "min", "max", "sum", "any", "all")
ORDER_MATTERS = ("list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "reversed", "deque", "dict")
ORDER_MATTERS_METHODS = ("join", "fromkeys", "extend")
GIVES_A_SET = ("union", "intersection", "difference", "symmetric_difference", "copy")
SET_TYPES = ("set", "frozenset", "AbstractSet", "MutableSet")

CHANGES = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("reverse", "setdefault", "sort", "update"),
)


# -- the files --------------------------------------------------------------------------------------------------------


def parse(name: str) -> ast.Module:
    return parsed((ROOT / name).resolve())


def modules(room: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / room).rglob("*.py"))


def is_core(tree: ast.AST) -> bool:
    """A core's only door is `handle(self, now_ns, event)`."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "handle"
        and [argument.arg for argument in node.args.args[:2]] == ["self", "now_ns"]
        for node in ast.walk(tree)
    )


@cache
def cores() -> list[str]:
    """Every module with a core, what it imports from its own room, and the ground floor as a whole."""
    found: dict[str, None] = dict.fromkeys(modules("protocols"))
    for room in sorted(folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name != "sim"):
        names = modules(room)
        waiting = [name for name in names if is_core(parse(name))]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                waiting += [other for other in imported_files(name) if other in names]
    return list(found)


def imported_files(name: str) -> list[str]:
    return [
        node.module.removeprefix("snapline.").replace(".", "/") + ".py"
        for node in ast.walk(parse(name))
        if isinstance(node, ast.ImportFrom) and node.module
    ]


def simulated() -> list[str]:
    return [name for name in modules("sim") if not name.startswith(OUTSIDE)]


@cache
def parts() -> list[str]:
    """Cores and the simulator's files."""
    return cores() + simulated()


# -- 1: time ----------------------------------------------------------------------------------------------------------


def is_time(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith("_ns")


def holds_time(node: ast.AST) -> bool:
    return any(is_time(inner) for inner in ast.walk(node))


def is_float_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def divides(node: ast.AST) -> bool:
    """Somewhere in it a time is divided, or a float meets a time. What a call makes of its arguments is its own."""
    match node:
        case ast.Call(func=ast.Name(id="int" | "round" | "min" | "max"), args=arguments):
            return any(divides(argument) for argument in arguments)
        case ast.Call():
            return False
        case ast.BinOp(left=left, op=ast.Div(), right=right) if holds_time(left) or holds_time(right):
            return True
        case ast.BinOp(left=left, right=right) if is_time(left) and is_float_constant(right):
            return True
        case ast.BinOp(left=left, right=right) if is_float_constant(left) and is_time(right):
            return True
    return any(divides(inner) for inner in ast.iter_child_nodes(node))


def float_times(tree: ast.Module) -> Iterator[int]:
    """Where a time is divided, or mixed with a float, and the result is a time again."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value) if any(map(is_time, targets)) and divides(value):
                yield node.lineno
            case ast.AnnAssign(target=target, value=ast.expr() as value) if is_time(target) and divides(value):
                yield node.lineno
            case ast.AugAssign(target=target, op=op, value=value) if is_time(target):
                if isinstance(op, ast.Div) or is_float_constant(value) or divides(value):
                    yield node.lineno
            case ast.keyword(arg=str(name), value=value) if name.endswith("_ns") and divides(value):
                yield value.lineno
            case ast.Call(func=ast.Name(id="int" | "round")) if divides(node):
                yield node.lineno
            case ast.Compare() if divides(node):
                yield node.lineno
            case ast.FunctionDef(name=name) if name.endswith("_ns"):
                returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
                yield from (value.lineno for value in returned if divides(value))


# -- 2: clock, chance, world ------------------------------------------------------------------------------------------


def foreign(
    tree: ast.Module, harmless: set[tuple[str, str]] = HARMLESS, forbidden: tuple[str, ...] = FORBIDDEN
) -> Iterator[int]:
    """Imports of forbidden modules, unless only what is harmless of them is used. The type checker's do not count."""
    for node in run_time_nodes(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    module = alias.name.partition(".")[0]
                    used = [(module, attribute) for attribute in attributes_of(tree, alias.asname or module)]
                    if module in forbidden and not (used and harmless.issuperset(used)):
                        yield node.lineno
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in forbidden:
                if not harmless.issuperset((module, alias.name) for alias in names):
                    yield node.lineno
            case ast.Call(func=ast.Name(id="Random")) | ast.Call(func=ast.Attribute(attr="Random")):
                yield node.lineno


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for inner in ast.iter_child_nodes(node):
        if not (isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.dump(inner.test)):
            yield from run_time_nodes(inner)


def attributes_of(tree: ast.Module, name: str) -> list[str]:
    return [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    ]


# -- 3: orders and addresses ------------------------------------------------------------------------------------------


def addresses(tree: ast.Module) -> Iterator[int]:
    """`id()` and `hash()`, but for the `__hash__` of a value; `__del__`, whose moment the collector chooses."""
    hashing = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__hash__"]
    of_values = [inner for node in hashing for inner in ast.walk(node)]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="id")):
                yield node.lineno
            case ast.Call(func=ast.Name(id="hash")) if node not in of_values:
                yield node.lineno
            case ast.FunctionDef(name="__del__"):
                yield node.lineno


class Sets:
    """Which expressions of a function are sets, by names and attributes of `self` that the file declares or assigns."""

    def __init__(self, scope: ast.AST, nodes: list[ast.AST], attributes: set[str]) -> None:
        self._attributes = attributes
        self._names = {name for node in nodes for name in declared_sets(node, of_self=False)}
        self._names |= {argument.arg for argument in arguments_of(scope) if is_set_type(argument.annotation)}

    def holds(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return name in self._attributes
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in GIVES_A_SET:
                return self.holds(owner)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return any(self.holds(side) or is_key_view(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self.holds(body) or self.holds(orelse)
        return is_plain_set(node)


def declared_sets(node: ast.AST, *, of_self: bool) -> Iterator[str]:
    """Names, or attributes of `self`, that this assignment makes sets."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.AnnAssign) and (
        is_set_type(node.annotation) or (node.value is not None and is_plain_set(node.value))
    ):
        targets = [node.target]
    elif isinstance(node, ast.Assign) and is_plain_set(node.value):
        targets = node.targets
    for target in targets:
        if of_self and isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
            yield target.attr
        elif isinstance(target, ast.Name) and not of_self:
            yield target.id


def is_set_type(annotation: ast.expr | None) -> bool:
    named = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(named, ast.Name) and named.id in SET_TYPES


def is_plain_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return any(is_plain_set(side) or is_key_view(side) for side in (left, right))
    return False


def is_key_view(node: ast.expr) -> bool:
    """`a.keys() & b` is a set, though `a.keys()` has an order."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from own_nodes(node)


def arguments_of(scope: ast.AST) -> list[ast.arg]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]


def set_orders(tree: ast.Module) -> Iterator[int]:
    """Where the order of a set becomes visible."""
    attributes = {name for node in ast.walk(tree) for name in declared_sets(node, of_self=True)}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            nodes = list(own_nodes(scope))
            sets = Sets(scope, nodes, attributes)
            harmless = [inner for node in nodes for inner in harmless_generators(node)]
            for node in nodes:
                if any(map(sets.holds, iterated_by(node))) and node not in harmless:
                    yield getattr(node, "lineno", 0)


def harmless_generators(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.GeneratorExp() as generator]) if name in ORDER_DOES_NOT_MATTER:
            return [generator]
        case ast.Set(elts=elements):
            return [element for element in elements if isinstance(element, ast.Starred)]
    return []


def iterated_by(node: ast.AST) -> list[ast.expr]:
    """The expressions whose order this node shows."""
    match node:
        case ast.For(iter=iterated) | ast.YieldFrom(value=iterated) | ast.Starred(value=iterated):
            return [iterated]
        case ast.ListComp(generators=all_) | ast.DictComp(generators=all_) | ast.GeneratorExp(generators=all_):
            return [generator.iter for generator in all_]
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in ORDER_MATTERS:
            return arguments
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in ORDER_MATTERS_METHODS:
            return arguments
        case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
            return [owner]
    return []


# -- 4: global state --------------------------------------------------------------------------------------------------


def global_changes(tree: ast.Module) -> Iterator[int]:
    """Where a function changes what the module, or a class in it, holds."""
    held = {name for node in tree.body for name in assigned_names(node)}
    held |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            local = {argument.arg for argument in arguments_of(scope)}
            local |= {name for node in own_nodes(scope) for name in assigned_names(node)}
            changed = held - local
            yield from (getattr(node, "lineno", 0) for node in own_nodes(scope) if changes_one_of(node, changed))


def assigned_names(node: ast.AST) -> list[str]:
    """Plain names that this node binds. An augmented assignment binds nothing new."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign() | ast.For() | ast.NamedExpr() | ast.comprehension():
            targets = [node.target]
    bound = [inner for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
    return [name.id for name in bound if isinstance(name.ctx, ast.Store)]


def changes_one_of(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Global():
            return True
        case ast.AugAssign(target=target):
            return held_name(target) in names
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(held_name(target) in names for target in targets if not isinstance(target, ast.Name))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            return name in names and method in CHANGES
    return False


def held_name(target: ast.expr) -> str:
    """The name at the root of `name`, `name[…]`, `name.attribute`."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


# -- the code ---------------------------------------------------------------------------------------------------------


def offences(search: Search, names: list[str]) -> list[str]:
    return [f"{name}:{line}" for name in names for line in sorted(set(search(parse(name))))]


def test_the_search_finds_the_cores_and_the_parts_of_a_run() -> None:
    some = {"protocols/epoch_stamped.py", "channels/link.py", "agent_runtime/host/core.py", "client/core.py"}
    assert some | {
        "coordinator/state/fleet_state.py",
        "sim/world/kernel.py",
        CHOICES,
        "sim/script/scripted_fleet.py",
    } <= set(parts())
    assert not any(name.startswith(OUTSIDE) for name in parts())


def test_time_is_integer_nanoseconds() -> None:
    assert not offences(float_times, parts())


def test_cores_and_runs_know_no_clock_no_chance_and_no_world() -> None:
    timing = [name for name in parts() if name.startswith(TIMING)]
    others = [name for name in parts() if name not in timing and name not in (CHOICES, *WAITING)]
    assert not offences(foreign, others)
    assert not offences(lambda tree: foreign(tree, forbidden=FORBIDDEN_IN_CORES), cores())
    assert not offences(lambda tree: foreign(tree, HARMLESS | TIMERS), timing)
    assert not offences(lambda tree: foreign(tree, HARMLESS | FUTURES), WAITING)


def test_no_address_and_no_hash_takes_part() -> None:
    assert not offences(addresses, parts())


def test_no_order_of_a_set_becomes_visible() -> None:
    assert not offences(set_orders, parts())


def test_nothing_global_is_changed() -> None:
    assert not offences(global_changes, parts())


# -- the searches -----------------------------------------------------------------------------------------------------

BROKEN: list[tuple[Search, str]] = [
    (float_times, "due_ns = now_ns / 2"),
    (float_times, "self.due_ns = int(now_ns / 2) + 1"),
    (float_times, "due_ns: int = start_ns + end_ns * 0.5"),
    (float_times, "due_ns /= 2"),
    (float_times, "due_ns += 0.5"),
    (float_times, "SetTimer(due_ns=now_ns + delay_ns / 3)"),
    (float_times, "step = int(delay_ns / 3)"),
    (float_times, "if now_ns / 2 > x: pass"),
    (float_times, "def half_ns(a_ns):\n    return a_ns / 2"),
    (foreign, "import time"),
    (foreign, "import os.path"),
    (foreign, "import os\nos.environ['a']\nos.strerror(5)"),
    (foreign, "from random import random"),
    (foreign, "from random import Random\nx = Random(1)"),
    (foreign, "import random\nx = random.Random(1)"),
    (foreign, "def f():\n    from secrets import token_bytes"),
    (foreign, "import asyncio, logging"),
    (foreign, "import weakref"),
    (addresses, "id(x)"),
    (addresses, "seed = hash(name) % 5"),
    (addresses, "class A:\n    def __del__(self): pass"),
    (set_orders, "for x in {1, 2}: pass"),
    (set_orders, "for x in set(y): pass"),
    (set_orders, "a = set()\nfor x in a: pass"),
    (set_orders, "a: frozenset[str] = b\n[x for x in a]"),
    (set_orders, "def f(a: set[str]):\n    return list(a)"),
    (set_orders, "def f(self):\n    self.a = set()\ndef g(self):\n    return tuple(self.a)"),
    (set_orders, "a = {1}\n', '.join(str(x) for x in a)"),
    (set_orders, "a = {1} | b\nfor x in a - c: pass"),
    (set_orders, "for x in a.keys() & b.keys(): pass"),
    (set_orders, "a = b.keys() - c\nnext(iter(a))"),
    (set_orders, "a = {1}\na.pop()"),
    (set_orders, "{x: 1 for x in {1}}"),
    (set_orders, "a: Any = set()\nfor x in a: pass"),
    (set_orders, "a = {1}\nb = [*a]"),
    (set_orders, "a = {1}\nd = dict.fromkeys(a.union(b))"),
    (set_orders, "def f(a: set[str]):\n    yield from a"),
    (global_changes, "x = 0\ndef f():\n    global x\n    x = 1"),
    (global_changes, "SEEN = []\ndef f():\n    SEEN.append(1)"),
    (global_changes, "SEEN = {}\ndef f(a):\n    SEEN[a] = 1"),
    (global_changes, "SEEN = {}\ndef f(a):\n    del SEEN[a]"),
    (global_changes, "SEEN: dict[str, list[int]] = {}\ndef f(a):\n    SEEN[a][0] += 1"),
    (global_changes, "class A:\n    count = 0\ndef f():\n    A.count += 1"),
]

FINE: list[tuple[Search, str]] = [
    (float_times, "due_ns = now_ns // 2"),
    (float_times, "seconds = (now_ns - start_ns) / 1e9"),
    (float_times, "count('recovery_s', (now_ns - start_ns) / 1e9)"),
    (float_times, "due_ns = now_ns + int(delay_s * 1e9)"),
    (float_times, "due_ns = now_ns + choices.pick('a', ratio / 2, 5)"),
    (foreign, "import os\nos.strerror(5)"),
    (foreign, "from random import Random\nx: Random = stream_of(1, 'a')"),
    (foreign, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio"),
    (foreign, "from snapline.sim.choices import Choices"),
    (foreign, "timeout = 5"),
    (addresses, "agent.id"),
    (addresses, "id_ = 5\nhash_of(a)"),
    (addresses, "class A:\n    def __hash__(self):\n        return hash(self.key)"),
    (set_orders, "for x in sorted({1, 2}): pass"),
    (set_orders, "a = {1: 2}\nfor x in a: pass"),
    (set_orders, "for x in a.keys(): pass"),
    (set_orders, "a = set()\nany(x for x in a)"),
    (set_orders, "a = set()\n{x for x in a}"),
    (set_orders, "def f():\n    a = set()\ndef g(a: list[int]):\n    return list(a)"),
    (set_orders, "a = {1}\nb = {*a}\nlen(a)"),
    (set_orders, "x = a - b\nfor y in range(x - 1): pass"),
    (global_changes, "SEEN = {}\ndef f(a):\n    return SEEN[a]"),
    (global_changes, "SEEN = []\ndef f():\n    SEEN = []\n    SEEN.append(1)"),
    (global_changes, "SEEN = []\ndef f(SEEN):\n    SEEN.append(1)"),
    (global_changes, "TABLE = {}\nTABLE['a'] = 1"),
    (global_changes, "class A:\n    def f(self):\n        self.x += 1"),
]


@pytest.mark.parametrize(("search", "code"), BROKEN)
def test_the_searches_find_what_is_forbidden(search: Search, code: str) -> None:
    assert list(search(ast.parse(code)))


@pytest.mark.parametrize(("search", "code"), FINE)
def test_the_searches_find_nothing_else(search: Search, code: str) -> None:
    assert not list(search(ast.parse(code)))


def test_a_timer_is_harmless_only_where_it_decides_nothing() -> None:
    tree = ast.parse("import time\nspent = time.process_time()")
    assert list(foreign(tree)) and not list(foreign(tree, HARMLESS | TIMERS))
    assert list(foreign(ast.parse("import time\ntime.sleep(1)"), HARMLESS | TIMERS))

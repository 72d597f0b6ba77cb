"""House rules on code: what the ground floor imports, how long functions are. What cores keep away from: `tests/sim/test_determinism_rules.py`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.product import in_package, is_product, parsed, parsed_once, statements

pytestmark = pytest.mark.usefixtures("without_collections")

GROUND_FLOOR = ("protocols", "recovery")
GROUND_FLOOR_MAY = ("msgspec", "snapline.protocols", "snapline.recovery", "snapline.errors", "snapline.ids")


FUNCTION_LINES_MAX = 70


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


# -- texts ------------------------------------------------------------------------------------------------------------


OF_THE_REPOSITORY = re.compile(r"\bdocs/|`make ")
"""Parts of texts that help nobody who has installed a wheel."""

FOR_TESTS = "src/snapline/deploy/conformance/"
"""Folder whose texts only tests of the repository show."""


def texts_for_users(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts in the code, and docstrings of commands, which are their help; no other docstrings."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    shown = {node.body[0] for node in functions if "command" in map(ast.unparse, node.decorator_list)}
    hidden = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and node not in shown}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in hidden:
            yield node


def test_texts_for_users_name_no_file_of_the_repository(root: Path, handwritten: list[Path]) -> None:
    names = {path: path.relative_to(root).as_posix() for path in handwritten}
    offences = [
        f"{name}:{text.lineno}: {text.value!r}"
        for path, name in names.items()
        if is_product(name) and not name.startswith(FOR_TESTS)
        for text in texts_for_users(parsed(path))
        if OF_THE_REPOSITORY.search(str(text.value))
    ]
    assert not offences, "\n".join(offences)


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

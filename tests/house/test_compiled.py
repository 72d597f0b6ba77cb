"""What becomes machine code may: mypyc would change the meaning of some classes without a word."""

import ast
import importlib
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.kit.compiled import is_bound
from tests.sim.mutants.registry import check_replaceable

from snapline.channels import channel, link
from snapline.compiled import SAMPLE_MODULE, is_compiled, version_text

PLAIN_BASES = {"ABC", "Inlet", "Outlet", "Protocol"}
"""Whose subclasses keep their meaning: all of them are compiled with it, or have no state."""


def changed(text: str) -> list[str]:
    """Classes of a module that mypyc would make otherwise: it drops keywords behind bases, so a struct would not be frozen."""
    return [
        found.name
        for found in ast.walk(ast.parse(text))
        if isinstance(found, ast.ClassDef)
        and (found.keywords or found.decorator_list or not {ast.unparse(base) for base in found.bases} <= PLAIN_BASES)
    ]


def modules(root: Path) -> dict[str, Path]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return {name: root / "src" / f"{name.replace('.', '/')}.py" for name in settings["tool"]["snapline"]["compiled"]}


def test_no_module_that_is_compiled_has_a_class_that_would_change(root: Path) -> None:
    found = {name: classes for name, path in modules(root).items() if (classes := changed(path.read_text()))}
    assert not found, f"take them off [tool.snapline], or their structs elsewhere: {found}"


@pytest.mark.parametrize(
    "line", ["class A(Struct, frozen=True): pass", "class A(msgspec.Struct): pass", "@dataclass\nclass A: pass"]
)
def test_the_search_finds_structs(line: str) -> None:
    assert changed(line) == ["A"]
    assert changed("class A:\n    def f(self): pass\nclass B(Protocol): pass") == []


def tuples_by_identity(text: str, names: Mapping[str, object]) -> list[str]:
    """`x is NAME` of a tuple: compiled code keeps tuples of a declared length as values, so there it never is."""
    return [
        ast.unparse(found)
        for found in ast.walk(ast.parse(text))
        if isinstance(found, ast.Compare)
        for operator, other in zip(found.ops, found.comparators, strict=True)
        if isinstance(operator, ast.Is | ast.IsNot)
        and isinstance(other, ast.Name)
        and isinstance(names.get(other.id), tuple)
    ]


def test_no_module_that_is_compiled_asks_which_tuple_it_is(root: Path) -> None:
    """Durable turns went wrong so: `entry is SEGMENT`."""
    for name, path in modules(root).items():
        assert not tuples_by_identity(path.read_text(), vars(importlib.import_module(name))), name


def test_the_search_finds_tuples_by_identity() -> None:
    names = {"PAIR": (1, 2), "PHASE": "idle"}
    assert tuples_by_identity("a is PAIR or a is not PAIR", names) == ["a is PAIR", "a is not PAIR"]
    assert tuples_by_identity("a == PAIR or a is PHASE or a is None or a is b", names) == []


def test_the_list_is_in_order_and_has_its_witness(root: Path) -> None:
    names = list(modules(root))
    assert names == sorted(set(names)) and SAMPLE_MODULE in names


def test_sources_are_no_compiled_build() -> None:
    """An environment of `make test` has none. Where one has, `make test-compiled` runs its tests."""
    assert not is_compiled() and version_text() == "0.1.0"
    check_replaceable()


def test_tests_that_replace_what_is_compiled_are_found() -> None:
    known = {link.__name__: link}
    assert is_bound(link.LinkCore, "handle", known) and is_bound(link, "encode_open", known)
    assert not is_bound(link, "HEARTBEAT_NS", known), "constants are looked up"
    assert not is_bound(channel.Inlet, "consume", known)

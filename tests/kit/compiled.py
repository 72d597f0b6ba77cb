"""For `make test-compiled`: a plugin of pytest that sees to it that the modules of [tool.snapline] are machine code, and skips tests that need them as sources.

Compiled code looks up neither its own functions nor its classes' methods: a test that replaces one would show nothing. It is skipped at that
moment, and says what it was about to replace; constants are looked up, and may be replaced. An interpreted class cannot inherit from a
compiled one; tests that need one are named in `SUBCLASSING`.
"""

import importlib
import pkgutil
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUBCLASSING = ("tests/channels/test_hostile_words.py",)


def compiled_modules() -> dict[str, ModuleType]:
    """Name → module, of those that are to be compiled."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {name: importlib.import_module(name) for name in settings["tool"]["snapline"]["compiled"]}


def is_extension(module: ModuleType) -> bool:
    return (module.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES))


def is_bound(owner: object, name: str, known: dict[str, ModuleType]) -> bool:
    """Would compiled code not see this attribute's replacement?"""
    if isinstance(owner, ModuleType):
        return owner.__name__ in known and callable(getattr(owner, name, None))
    kind = owner if isinstance(owner, type) else type(owner)
    return any(base.__module__ in known for base in kind.__mro__)


def pytest_configure(config: pytest.Config) -> None:
    """Raises UsageError if one is not compiled."""
    known = compiled_modules()
    plain = [name for name, module in known.items() if not is_extension(module)]
    if plain:
        raise pytest.UsageError(f"not compiled: {', '.join(plain)}")
    set_one = pytest.MonkeyPatch.setattr

    def setattr_(self: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **more: Any) -> None:
        owner, attribute = target, name
        if isinstance(target, str):
            path, _, attribute = target.rpartition(".")
            owner = pkgutil.resolve_name(path)
        skip_if_bound(owner, attribute)
        set_one(self, target, name, *value, **more)

    def skip_if_bound(owner: object, name: str) -> None:
        if is_bound(owner, name, known):
            pytest.skip(f"replaces {getattr(owner, '__name__', type(owner).__name__)}.{name}, which is compiled")

    pytest.MonkeyPatch.setattr = setattr_  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SUBCLASSING):
            item.add_marker(pytest.mark.skip("subclasses what is compiled"))

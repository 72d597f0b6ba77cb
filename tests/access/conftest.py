"""What is served, twice: with certificates and tokens, and without both. One process each for the tests of this folder, which end with the last of them: an idle one costs 4 to 8 % of a processor."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.access.world import World, served

HERE = Path(__file__).parent

_running = contextlib.ExitStack()
_worlds: list[tuple[World, World]] = []


@pytest.fixture
def worlds(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    if not _worlds:
        both = _running.enter_context(served(tmp_path_factory.mktemp("access")))
        _running.callback(_worlds.clear)
        asyncio.run(both[0].make_callers())
        _worlds.append(both)
    return _worlds[0]


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """A fixture for a folder without `__init__.py` would live as long as the session."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        _running.close()


@pytest.fixture
def secured(worlds: tuple[World, World]) -> World:
    return worlds[0]


@pytest.fixture
def plain(worlds: tuple[World, World]) -> World:
    return worlds[1]

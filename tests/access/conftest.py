"""What is served, twice: with certificates and tokens, and without both. One process each for all tests of this folder, and no longer: an idle one costs 4 to 8 % of a processor."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.access.world import World, served


@pytest.fixture(scope="package")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    with served(tmp_path_factory.mktemp("access")) as both:
        asyncio.run(both[0].make_callers())
        yield both


@pytest.fixture
def secured(worlds: tuple[World, World]) -> World:
    return worlds[0]


@pytest.fixture
def plain(worlds: tuple[World, World]) -> World:
    return worlds[1]

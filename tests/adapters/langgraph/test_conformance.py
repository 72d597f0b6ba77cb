"""LangGraph's conformance suite, every capability by name: ours, and in the same run what others' savers make of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.langgraph import playing  # skips where LangGraph is not there

assert playing.REASON

from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from snapline.adapters.langgraph import SnaplineSaver
from snapline.storage.keys.key_files import Keys, make_wrapping_key

pytestmark = pytest.mark.langgraph

BASE = {"put": 17, "put_writes": 10, "get_tuple": 10, "list": 16, "delete_thread": 5}
EXTENDED = {"delete_for_runs": 7, "copy_thread": 8, "prune": 8}
"""Capability → how many tests version 0.0.2 has for it: 81 in all."""


class SyncSaver:
    """Makes the suite, which calls async methods only, test the sync ones."""

    @staticmethod
    def of(saver: SnaplineSaver) -> Any:
        names = ("put", "put_writes", "get_tuple", "delete_thread", "delete_for_runs", "copy_thread", "prune")

        def twin(name: str) -> Any:
            async def call(self: Any, *given: Any, **named: Any) -> Any:
                return getattr(saver, name)(*given, **named)

            return call

        async def alist(self: Any, *given: Any, **named: Any) -> AsyncIterator[Any]:
            for each in saver.list(*given, **named):
                yield each

        return type("Twins", (), {"alist": alist} | {f"a{name}": twin(name) for name in names})()


async def passed(make: Any) -> dict[str, tuple[int, list[str]]]:
    """Capability → how many tests passed, and which failed; those that a saver does not have are left out."""
    registered = checkpointer_test(name="saver")(make)
    results = (await validate(registered)).to_dict()["results"]
    assert set(results) == BASE.keys() | EXTENDED.keys()
    return {name: (each["tests_passed"], each["failures"]) for name, each in results.items() if each["detected"]}


def whole(capabilities: dict[str, int]) -> dict[str, tuple[int, list[str]]]:
    return {name: (count, []) for name, count in capabilities.items()}


async def test_all_81_tests_of_all_eight_capabilities_pass(tmp_path: Path) -> None:
    folders = iter(range(100))

    async def make() -> AsyncIterator[Any]:
        async with SnaplineSaver.open(tmp_path / str(next(folders))) as saver:
            yield saver

    assert await passed(make) == whole(BASE | EXTENDED)


async def test_the_sync_methods_pass_them_too(tmp_path: Path) -> None:
    folders = iter(range(100))

    async def make() -> AsyncIterator[Any]:
        with SnaplineSaver.from_conn_string(str(tmp_path / str(next(folders)))) as saver:
            yield SyncSaver.of(saver)

    assert await passed(make) == whole(BASE | EXTENDED)


async def test_so_does_an_encrypted_store(tmp_path: Path) -> None:
    folders, keys = iter(range(100)), Keys((make_wrapping_key(b"k" * 32),))

    async def make() -> AsyncIterator[Any]:
        async with SnaplineSaver.open(tmp_path / str(next(folders)), keys=keys) as saver:
            yield saver

    assert await passed(make) == whole(BASE | EXTENDED)


async def test_the_sqlite_saver_has_the_five_base_capabilities(tmp_path: Path) -> None:
    folders = iter(range(100))

    async def make() -> AsyncIterator[Any]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / f"{next(folders)}.db")) as saver:
            yield saver

    assert await passed(make) == whole(BASE)


async def test_so_has_the_saver_in_memory() -> None:
    async def make() -> AsyncIterator[Any]:
        yield InMemorySaver()

    assert await passed(make) == whole(BASE)

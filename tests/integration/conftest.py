"""Every test of this folder starts real processes, and none of them may outlive it."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.processes import nothing_left_running


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """The mark of this test's processes."""
    with nothing_left_running() as mark:
        yield mark


@pytest.fixture(scope="module")
def module_mark() -> Iterator[str]:
    """The mark of a module's processes, where its tests share a fleet: such a module has it in place of `mark`."""
    with nothing_left_running() as mark:
        yield mark


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Folder of a local fleet."""
    return tmp_path / "data"


@pytest.fixture(scope="module")
def first_seed() -> int:
    """Of tests that run many times over; SNAPLINE_SEED=… repeats the first run."""
    return int(os.environ.get("SNAPLINE_SEED") or random.randrange(10**9))


@pytest.fixture(scope="module")
def figures() -> Iterator[list[str]]:
    """What the runs measured, printed at the end (`-s` shows it)."""
    found: list[str] = []
    yield found
    print("\n" + "\n".join(found))

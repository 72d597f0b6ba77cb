"""Every test of this folder starts real processes, and none of them may outlive it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.processes import nothing_left_running


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """The mark of this test's processes."""
    with nothing_left_running() as mark:
        yield mark


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Folder of a local fleet."""
    return tmp_path / "data"

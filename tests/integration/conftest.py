"""Every test of this folder starts real processes, and none of them may outlive it."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.processes import MARK, ROOT, wait_until_gone

FAREWELL_S = 5.0
"""A killed launcher's children are killed by the kernel; all that is left for them is to be reaped."""


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of this test's processes; afterwards none may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield mark
    left = wait_until_gone(mark, FAREWELL_S)
    assert not left, f"still running: {left}"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Folder of a local fleet."""
    return tmp_path / "data"

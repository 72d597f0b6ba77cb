"""docs/torch.md runs as it is shown."""

from pathlib import Path

import pytest
from tests.house.test_texts import run_as_shown

pytest.importorskip("torch", reason="needs torch: make test-torch")


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    assert run_as_shown(Path(__file__).parents[3] / "docs" / "torch.md", tmp_path) == 4

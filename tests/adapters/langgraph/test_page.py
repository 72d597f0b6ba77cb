"""docs/langgraph.md runs as it is shown."""

from pathlib import Path

import pytest
from tests.adapters.langgraph import playing
from tests.house.test_texts import run_as_shown

assert playing.REASON
pytestmark = pytest.mark.langgraph


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    assert run_as_shown(Path(__file__).parents[3] / "docs" / "langgraph.md", tmp_path) == 7

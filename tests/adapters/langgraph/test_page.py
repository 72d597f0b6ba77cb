"""docs/langgraph.md runs as it is shown."""

from pathlib import Path

import pytest
from tests.adapters.langgraph import playing
from tests.kit.shown_page import shown

assert playing.REASON
pytestmark = pytest.mark.langgraph


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    with shown("docs/langgraph.md", tmp_path) as page:
        assert page.run_all() == 7

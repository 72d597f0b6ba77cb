"""docs/autogen.md runs as it is shown."""

from pathlib import Path

from tests.adapters.autogen.environment import needed
from tests.house.test_texts import run_as_shown

pytestmark = needed


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    assert run_as_shown(Path(__file__).parents[3] / "docs" / "autogen.md", tmp_path) == 2

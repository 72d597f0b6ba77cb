"""docs/autogen.md runs as it is shown."""

from pathlib import Path

from tests.adapters.autogen.environment import needed
from tests.kit.shown_page import shown

pytestmark = needed


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    with shown("docs/autogen.md", tmp_path) as page:
        page.take("pip install")
        page.take("SnaplineRuntime")
        assert page.run_all() == 2

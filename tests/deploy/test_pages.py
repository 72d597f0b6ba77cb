"""`docs/deploy.md` runs as it is shown; the pages of other launchers run with the launchers' own tests."""

from pathlib import Path

import pytest
from tests.integration.processes import nothing_left_running
from tests.kit.shown_page import shown


@pytest.mark.timeout(300)
def test_the_commands_run_and_lose_nothing(tmp_path: Path) -> None:
    with (
        nothing_left_running(),
        shown("docs/deploy.md", tmp_path, files_from="docs/first-fleet.md", limit_s=110) as page,
    ):
        page.run_all()

"""`docs/deploy.md` runs as it is shown; the pages of other launchers run with the launchers' own tests."""

from pathlib import Path

import pytest
from tests.deploy.pages import check_blocks, run_page
from tests.integration.processes import nothing_left_running

pytestmark = pytest.mark.timeout(300)


def test_the_commands_run_and_lose_nothing(tmp_path: Path) -> None:
    with nothing_left_running():
        run_page("deploy.md", tmp_path, {})


def test_a_block_that_nothing_runs_is_found() -> None:
    check_blocks("```console\n$ true\n```\n\n```toml\n# snapline.toml\n[up]\n```\n")
    for block in ("```\nsnapline up\n```\n", "- so\n\n  ```yaml\n  a: 1\n  ```\n"):
        with pytest.raises(AssertionError, match="nothing runs this block"):
            check_blocks(block)

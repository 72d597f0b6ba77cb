"""docs/torch.md runs as it is shown."""

from pathlib import Path

import pytest
from tests.kit.shown_page import shown

pytest.importorskip("torch", reason="needs torch: make test-torch")


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    with shown("docs/torch.md", tmp_path) as page:
        assert page.run_all() == 4

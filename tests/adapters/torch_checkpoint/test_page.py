"""docs/torch.md runs as it is shown, as far as it is about jobs."""

from pathlib import Path

import pytest
from tests.house.test_texts import commands_of, files_of, matches, run_on_terminal

pytest.importorskip("torch", reason="needs torch: make test-torch")


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "torch.md").read_text()
    for file, text in files_of(page).items():
        (tmp_path / file).write_text(text)
    commands = list(commands_of(page))
    assert len(commands) == 2
    for command in commands:
        code, out, err = run_on_terminal(command.text, tmp_path)
        assert code == 0, err
        assert matches(command.output, out), out

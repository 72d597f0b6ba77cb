"""docs/state.md: its example runs, and what it claims of the store is what a snapshot shows."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.house.pages import files_of
from tests.kit.command_line import invoke

from snapline.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


@pytest.mark.timeout(60)
def test_the_example_runs_and_its_history_is_a_part(tmp_path: Path) -> None:
    for name, code in files_of(PAGE.read_text()).items():
        (tmp_path / name).write_text(code)
    run = [sys.executable, "-m", "snapline", "run", "chat:fleet", "--hosts", "1", "--data-dir", "run", "-q"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=50)
    (agent,) = invoke(app, "snapshot", "show", "--store", tmp_path / "run" / "store").json["agents"]
    assert agent["state"]["lines"]["records"] == 1

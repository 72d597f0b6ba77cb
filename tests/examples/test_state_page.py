"""docs/state.md: its example runs, and what it claims of the store is what a snapshot shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.house.test_texts import files_of

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


@pytest.mark.timeout(60)
def test_the_example_runs_and_its_history_is_a_part(tmp_path: Path) -> None:
    for name, code in files_of(PAGE.read_text()).items():
        (tmp_path / name).write_text(code)
    snapline = [sys.executable, "-m", "snapline"]
    run = [*snapline, "run", "chat:fleet", "--hosts", "1", "--data-dir", "run", "-q"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=50)
    shown = subprocess.run(
        [*snapline, "snapshot", "show", "--store", "run/store", "-o", "json"],
        cwd=tmp_path, check=True, capture_output=True, timeout=50,
    )  # fmt: skip
    (agent,) = json.loads(shown.stdout)["agents"]
    assert agent["state"]["lines"]["records"] == 1

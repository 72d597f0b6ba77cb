"""Scenario scripts of the whole leader hold: what comes in leads to these commands, in this order.

After a change that is meant: `python -m tests.coordinator.leader_script --rewrite tests/scenarios/leader/*.txt`.
"""

from pathlib import Path

import pytest
from tests.coordinator.leader_script import renew
from tests.kit.golden import check_script, main

SCENARIOS = sorted((Path(__file__).resolve().parents[1] / "scenarios" / "leader").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_leader_does_what_the_script_says(path: Path) -> None:
    assert check_script(path, renew) == ""


def test_a_changed_trace_is_found_and_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = next(path for path in SCENARIOS if path.stem == "join-to-running").read_text()
    path = tmp_path / "changed.txt"
    path.write_text(written.replace("AdmitHost(host=h1", "AdmitHost(host=h9", 1))
    assert path.read_text() != written
    assert main([str(path)], renew) == 1 and "+propose 1 of leader: AdmitHost(host=h1" in capsys.readouterr().out
    assert main(["--rewrite", str(path)], renew) == 0
    assert path.read_text() == written and main([str(path)], renew) == 0

"""The guard of hot paths compares what it says: this checkout with a commit, in one interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import guard

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that take no time. The first one fails in the older checkout alone."""
    missing = "import sys, pathlib; sys.exit('no such probe' if 'before' in str(pathlib.Path.cwd()) else 0)"
    monkeypatch.setattr(guard, "PROBES", {"new": ("-c", missing), "same": ("-c", "sum(range(10**6))")})


def test_a_probe_that_was_not_there_before_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    assert guard.compare(before, ["new"], 6)
    assert capsys.readouterr().out == f"{'new':<12} left out: no such probe\n"


def test_what_takes_twice_as_long_is_slower(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {guard.ROOT: 2.0, tmp_path: 1.0}
    monkeypatch.setattr(guard, "cpu_s", lambda checkout, probe: times[checkout])
    assert not guard.compare(tmp_path, ["same"], 6)
    assert "ratio 2.000 [2.000, 2.000] SLOWER" in capsys.readouterr().out
    times[guard.ROOT] = 0.5
    assert guard.compare(tmp_path, ["same"], 6)
    assert "faster" in capsys.readouterr().out


def test_a_commit_that_is_not_there_is_said() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard", "no-such-commit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "no-such-commit cannot be checked out" in done.stderr

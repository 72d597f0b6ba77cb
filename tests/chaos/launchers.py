"""One file of faults for all launchers: what `test_…_launcher.py` of each has carried out at its place, judged by the store."""

import json
import subprocess
import sys
from pathlib import Path

FAULTS = """
name = "elsewhere"
[fleet]
agents = 6
hosts = 3
coordinators = 3
pattern = { name = "bank", messages = 600, rate_per_s = 60.0 }
trigger = { kind = "period", every = "500ms" }
[run]
until = "25s"
[[fault]]
crash = { host = "h2", at = "1s", restart_after = "500ms" }
[[fault]]
pause = { host = "h1", at = "4s", for = "4s" }
[[fault]]
coordinator = { kind = "kill-leader", at = "9s" }
[[fault]]
membership = { kind = "leave", host = "h3", at = "12s", back_after = "1s" }
[[fault]]
coordinator = { kind = "depose", at = "15s" }
"""

SLOW = """
[[fault]]
slow = { host = "h2", at = "2s", for = "3s", percent = 30 }
"""

CUT = """
[[fault]]
partition = { shape = "one", at = "1s", for = "1s" }
"""


def chaos(faults: str, folder: Path, *place: str) -> subprocess.CompletedProcess[str]:
    """`snapline chaos run FILE --on …`, as a user does."""
    folder.mkdir(exist_ok=True)
    (folder / "faults.toml").write_text(faults)
    words = ("chaos", "run", str(folder / "faults.toml"), "--seed", "3", "--folder", str(folder / "runs"), *place)
    command = [sys.executable, "-m", "snapline", *words, "-o", "json"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


def check_passed(done: subprocess.CompletedProcess[str], kinds: set[str]) -> None:
    """It passed, and these faults were carried out, and epochs were judged."""
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    told = json.loads(done.stdout)
    assert told["last"]["verdict"] == "pass"
    assert set(told["faults"]) == kinds
    assert told["last"]["metrics"]["epochs_judged"] >= 5


def check_refused(done: subprocess.CompletedProcess[str], on: str) -> None:
    """Before anything was started, in one sentence."""
    assert done.returncode == 2, done.stderr
    assert f"partition cannot be carried out on real processes on {on}: gates stand before" in done.stderr
    assert f"`snapline chaos doctor --on {on}` says what can be" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("snapline: ") == 1

"""A fleet is stopped, its code or its packages change, and it goes on: what the snapshot says, what restores, forks and restarts make of it.

The fleet's own module and a package of its own are the dependencies, so each test changes what really changes on a deploy.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_fleet_check import environment, snapline

pytestmark = pytest.mark.timeout(240)

CODE = """
import msgspec
import snapline

class Tick(snapline.Message):
    pass

class Count(msgspec.Struct):
    count: int = 0

class Counter(snapline.Agent):
    state: Count

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("tick", 0.01, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        self.state.count += 1
        ctx.set_timer("tick", 0.01, Tick())

fleet = snapline.Fleet(
    "counters",
    agents={"counter": Counter(Count())},
    triggers=[snapline.Every(seconds=300)],
    dependencies=["counted"],
    describes={"model": "small"},
    on_change={"description": "refuse"},
)
"""

PACKAGE = "Metadata-Version: 2.1\nName: counted\nVersion: {}\n"

RUN = [sys.executable, "-m", "snapline", "run", "counters:fleet", "--hosts", "1"]
STORE = ("--data-dir", "run", "-o", "json")


def install(folder: Path, version: str) -> None:
    """A package in the folder from which the fleet runs."""
    metadata = folder / "counted-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(PACKAGE.format(version))


def ran(folder: Path, *, until: str = "snapshot", data_dir: str = "run") -> str:
    """Run the fleet until it has a new snapshot, or until it ends, stop it as people do, and return what it has said."""
    said = folder / "said"
    with said.open("wb") as out:
        command = [*RUN, "--data-dir", data_dir]
        fleet = subprocess.Popen(
            command, cwd=folder, env={**environment(), "PYTHONPATH": str(folder)}, stdout=out, stderr=out
        )
    try:
        if until == "snapshot":
            while snapline(folder, "snapshot", "create", "--data-dir", data_dir).returncode and fleet.poll() is None:
                pass
            fleet.send_signal(signal.SIGINT)
        fleet.wait(60)
    finally:
        fleet.kill()
    logs = [path.read_text() for path in sorted((folder / data_dir / "logs").glob("*"))]
    return "\n".join([said.read_text(), *logs])


def shown(folder: Path, *command: str, data_dir: str = "run") -> dict[str, object]:
    done = snapline(folder, *command, "--store", f"{data_dir}/store", "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def pid_of(argument: str) -> int:
    """The process that was started with this argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in path.read_bytes():
                return int(path.parent.name)
    raise AssertionError(f"no process has {argument}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "counters.py").write_text(CODE)
    install(tmp_path, "1.0")
    ran(tmp_path)
    return tmp_path


def test_changes_are_recorded_warned_of_and_refused(folder: Path) -> None:
    first = shown(folder, "snapshot", "show")["dependencies"]
    assert isinstance(first, dict) and (first["counted"], first["describes:model"]) == ("1.0", "small")
    assert {"python", "snapline", "source:counters"} <= first.keys()

    install(folder, "2.0")
    (folder / "counters.py").write_text(CODE + "# another text\n")
    checked = snapline(folder, "fleet", "check", "counters:fleet", *STORE)
    assert checked.returncode == 0 and [x["name"] for x in json.loads(checked.stdout)["snapshot"]["dependencies"]] == [
        "counted", "source:counters",
    ]  # fmt: skip
    assert "counted 2.0 instead of 1.0, another source of counters" in ran(folder)
    second = shown(folder, "snapshot", "show")["dependencies"]
    assert (
        isinstance(second, dict)
        and second["counted"] == "2.0"
        and second["source:counters"] != first["source:counters"]
    )

    (folder / "counters.py").write_text(CODE.replace("small", "large"))
    assert snapline(folder, "fleet", "check", "counters:fleet", *STORE).returncode == 2
    refused = ran(folder, until="end")
    assert "model large instead of small" in refused and "change on_change" in refused

    fork = (
        "snapshot",
        "fork",
        "latest",
        "--data-dir",
        "run",
        "--fleet",
        "counters:fleet",
        "--name",
        "f",
        "--to",
        "fork",
    )
    denied = snapline(folder, *fork)
    assert denied.returncode == 2 and "--accept-changes" in denied.stderr and not (folder / "fork" / "store").exists()
    made = snapline(folder, *fork, "--accept-changes", "-o", "table")
    assert made.returncode == 0, made.stderr
    assert (
        "other dependencies than in the snapshot: model large instead of small, another source of counters"
        in made.stdout
    )
    assert "model large instead of small" not in ran(folder, data_dir="fork"), "it has been accepted"
    forked = shown(folder, "snapshot", "show", data_dir="fork")["dependencies"]
    assert isinstance(forked, dict) and forked["describes:model"] == "large"


def test_a_host_that_died_comes_back_whatever_has_changed(folder: Path) -> None:
    command = [*RUN, "--data-dir", "run"]
    with (folder / "said").open("wb") as out:
        fleet = subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=out)
    try:
        while snapline(folder, "snapshot", "create", "--data-dir", "run").returncode:
            assert fleet.poll() is None, (folder / "said").read_text()
        (folder / "counters.py").write_text(CODE.replace("small", "large"))
        os.kill(pid_of(f"{folder}/run/marks/h1.marks"), signal.SIGKILL)
        while "large" not in str(shown(folder, "snapshot", "show")["dependencies"]):
            assert fleet.poll() is None, (folder / "said").read_text()
            snapline(folder, "snapshot", "create", "--data-dir", "run")
        restore = ("recovery", "restore", "1", "--data-dir", "run", "--yes")
        refused = snapline(folder, *restore)
        assert refused.returncode == 2 and "--accept-changes" in refused.stderr
        assert "model large instead of small" in snapline(folder, *restore, "--dry-run", "-o", "table").stdout
        assert snapline(folder, *restore, "--accept-changes").returncode == 0
        fleet.send_signal(signal.SIGINT)
        fleet.wait(60)
    finally:
        fleet.kill()

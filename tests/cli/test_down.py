"""`down` takes down the fleet of its folder, and no other."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.kit.command_line import Run

from snapline.cli import fleet_locations
from snapline.cli.settings import UserSettings
from snapline.cli.up import recorded_plan
from snapline.deploy.detached_fleet import DetachedPlan, write_plan
from snapline.deploy.plan import FleetPlan
from snapline.errors import NotFoundError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus, HostStatus


@pytest.fixture
def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in the background that keeps the fleet in `a`."""
    popen = subprocess.Popen
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", lambda command, **more: popen(["sleep", "60"], **more))
        started = fleet_locations.start_in_background([], folder / "a", 0)
    yield started
    started.kill()
    started.wait()


def test_only_a_fleet_that_up_has_kept_is_continued_by_up(run: Run, folder: Path) -> None:
    """Of one that `snapline run` or a unit keeps, a coordinator that does not answer may be back in a second."""
    for name in ("kept", "run"):
        (folder / name).mkdir()
        (folder / name / "coordinator.json").write_text('{"address": "127.0.0.1:1"}')
    (folder / "kept" / fleet_locations.BACKGROUND_LOG).touch()
    said = {name: run("status", "--data-dir", name, "--timeout", "1").err for name in ("kept", "run")}
    assert "`snapline up MODULE:FLEET --data-dir kept` continues it" in said["kept"]
    assert "snapline up" not in said["run"] and "no coordinator answers at 127.0.0.1:1" in said["run"]


def test_a_fleet_that_has_failed_says_why(run: Run, folder: Path) -> None:
    earlier, later = (
        "snapline: the fleet has failed: early\n",
        "failed, epoch 1\nsnapline: the fleet has failed: stop_when raised\n",
    )
    for name, log_start, log in (
        ("failed", len(earlier), earlier + later),
        ("killed", len(earlier), earlier + "running\n"),
    ):
        (folder / name).mkdir()
        (folder / name / "coordinator.json").write_text('{"address": "127.0.0.1:1"}')
        (folder / name / fleet_locations.BACKGROUND_LOG).write_text(log)
        (folder / name / fleet_locations.BACKGROUND_FILE).write_text(
            f'{{"pid": 0, "started": 1, "log_start": {log_start}}}'
        )
    said = {name: run("status", "--data-dir", name, "--timeout", "1").err for name in ("failed", "killed")}
    hint = "when that is mended, `snapline up MODULE:FLEET --data-dir failed` continues it"
    assert said["failed"] == f"snapline: the fleet has failed: stop_when raised; {hint}\n"
    assert "failed" not in said["killed"] and "no `snapline up` keeps the fleet in killed" in said["killed"]


@pytest.mark.parametrize("phase", ["forming", "recovering"])
async def test_a_fleet_is_up_when_it_runs(folder: Path, phase: str) -> None:
    """Its agents are made and loaded before, and may fail."""
    (folder / "coordinator.json").write_text('{"address": "127.0.0.1:1"}')
    statuses = [FleetStatus(phase=each, hosts=(HostStatus("h1", state="alive"),)) for each in (phase, phase, "running")]

    class Client:
        async def status(self) -> FleetStatus:
            return statuses.pop(0)

        async def close(self) -> None:
            pass

    started = cast("subprocess.Popen[bytes]", SimpleNamespace(poll=lambda: None, returncode=None))
    connect = cast("Callable[[str], CoordinatorClient]", lambda _: Client())
    await fleet_locations.until_up(started, folder, hosts=1, timeout_s=30, connect=connect)
    assert not statuses


def test_a_copy_of_the_folder_of_a_fleet_that_is_up_is_of_no_fleet(
    run: Run, folder: Path, kept: "subprocess.Popen[bytes]"
) -> None:
    shutil.copytree(folder / "a", folder / "copy")
    for other in ("copy", "nothing"):
        done = run("down", "--data-dir", other)
        assert done.code == 4 and f"no fleet is up in {other}" in done.err
        assert ("there is no such folder" in done.err) == (other == "nothing")
    assert kept.poll() is None


@pytest.mark.parametrize("path", ["a", "./a/../a", "link"])
def test_the_folder_may_be_named_otherwise(run: Run, folder: Path, kept: "subprocess.Popen[bytes]", path: str) -> None:
    (folder / "link").symlink_to("a")
    done = run("down", "--data-dir", path, "--dry-run", "-o", "table")
    assert done.code == 0 and done.out == f"the fleet in {Path(path)} would be taken down\n"


def test_a_process_that_has_the_number_of_a_keeper_that_died_is_left_alone(
    run: Run, folder: Path, kept: "subprocess.Popen[bytes]"
) -> None:
    note = folder / "a" / "launcher.json"
    started = fleet_locations._start_time_of(kept.pid)
    note.write_text(note.read_text().replace(str(started), str(started - 1)))
    assert run("down", "--data-dir", "a").code == 4 and kept.poll() is None


def test_a_fleet_elsewhere_of_the_same_name_in_another_folder_is_left_alone(folder: Path) -> None:
    """What `--on ssh` keeps lies in runs/NAME, whatever the folder on the machines is."""
    keeper = folder / "runs" / "fleet"
    write_plan(keeper, DetachedPlan("ssh", FleetPlan("fleet", "m:f", "/data/a", 1, node={}), machines=("m1",)))
    settings = UserSettings()
    for named in ("/data/a", None):
        assert recorded_plan(settings, "fleet", "ssh", None, named, keeper).what.data_dir == "/data/a"
    with pytest.raises(NotFoundError, match="has the folder /data/a, not /data/b: give its --data-dir"):
        recorded_plan(settings, "fleet", "ssh", None, "/data/b", keeper)

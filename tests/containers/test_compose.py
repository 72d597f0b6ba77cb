"""src/snapline/deploy/compose.yaml with podman-compose, on a network of its own: names, certificates, health, and what a second `up` finds."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.containers.engine import NETAVARK, podman
from tests.integration.processes import LIMIT_S
from tests.kit.shown_page import shown

from snapline.deploy.conformance.launcher_checks import judge

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("image"),
    pytest.mark.skipif(not NETAVARK.exists(), reason="netavark is not installed: make test-podman"),
    pytest.mark.skipif(
        importlib.util.find_spec("podman_compose") is None, reason="podman-compose is not installed: make test-podman"
    ),
]

PROCESSES = ("c1", "c2", "c3", "h1", "h2", "h3")

UNASKED = "services: {" + ", ".join(f"{name}: {{healthcheck: {{disable: true}}}}" for name in PROCESSES) + "}"
"""podman lets systemd ask for health; where that is not there it does not start a container again that has health checks."""


class Project:
    """The file in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        shutil.copy(Path(__file__).resolve().parents[2] / "src" / "snapline" / "deploy" / "compose.yaml", folder)
        (folder / "unasked.yaml").write_text(UNASKED)
        (folder / ".env").write_text("SNAPLINE_FLEET=snapline.deploy.conformance.token_fleet:fleet\n")

    def compose(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "podman_compose", "--in-pod", "0", *arguments],
            check=False,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def operator(self, *words: str) -> dict[str, object]:
        """Ask the fleet, as a user of it does."""
        said = self.compose("--profile", "tools", "run", "--rm", "-T", "operator", *words, "-o", "json")
        return msgspec.convert(json.loads(said), dict[str, object])

    def container(self, name: str) -> str:
        return f"{self.folder.name}_{name}_1"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "shop")
    try:
        yield made
    finally:
        made.compose("down", "--volumes")
        assert not [name for name in podman("ps", "--all", "--format", "{{.Names}}").split() if name.startswith("shop")]
        assert not [name for name in podman("volume", "ls", "--quiet").split() if name.startswith("shop")]


def until(words: str, is_there: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_there():
        assert time.monotonic() < deadline_s, f"{words}: not within {LIMIT_S:g} s"
        time.sleep(0.2)


def succeeds(*words: str) -> bool:
    return subprocess.run(["podman", *words], check=False, capture_output=True, timeout=LIMIT_S).returncode == 0


def test_a_fleet_is_healthy_takes_a_snapshot_and_goes_on_after_down_and_a_killed_host(project: Project) -> None:
    project.compose("up", "--detach")
    containers = [project.container(name) for name in PROCESSES]
    until("health", lambda: all(succeeds("healthcheck", "run", container) for container in containers))
    earlier = epoch_of(project.operator("snapshot", "create"))
    project.compose("down")
    project.compose("-f", "compose.yaml", "-f", "unasked.yaml", "up", "--detach")
    until("the fleet again", lambda: project.operator("status")["phase"] == "running")
    pid = podman("container", "inspect", project.container("h2"), "--format", "{{.State.Pid}}")
    os.kill(int(pid), signal.SIGKILL)  # by podman's own word it would stay down
    until("a recovery", lambda: len(rows(project.operator("recovery", "history"), "recoveries")) >= 2)
    until("h2 again", lambda: [row["state"] for row in rows(project.operator("status"), "hosts")] == ["alive"] * 3)
    later = epoch_of(project.operator("snapshot", "create"))
    project.compose("down")
    store = podman("volume", "inspect", "shop_store", "--format", "{{.Mountpoint}}").strip()
    assert earlier < later <= max(judged.epoch for judged in judge(store))


def test_the_page_runs_as_it_is_shown(project: Project) -> None:
    """Docker's words are podman-compose's, but for `-T`: what it runs shall not want a terminal to read from."""
    compose = f"{sys.executable} -m podman_compose --in-pod 0"
    swapped = {
        "in place of `docker compose`": "",
        "docker compose": compose,
        "run --rm operator": "run --rm -T operator",
    }
    page, files = "docs/deploy-containers.md", "docs/first-fleet.md"
    with shown(page, project.folder, swapped, section="Compose", files_from=files, limit_s=3 * LIMIT_S) as run:
        run.run_all()


def epoch_of(taken: dict[str, object]) -> int:
    return msgspec.convert(taken["epoch"], int)


def rows(result: dict[str, object], name: str) -> list[dict[str, object]]:
    return msgspec.convert(result[name], list[dict[str, object]])

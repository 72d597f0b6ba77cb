"""The launcher on podman: real containers on this machine."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from tests.chaos.launchers import CUT, FAULTS, chaos, check_passed, check_refused
from tests.containers.engine import PodmanBench, podman
from tests.integration.processes import snapline
from tests.kit.shown_page import shown

from snapline.deploy import conformance
from snapline.deploy.conformance.launcher_checks import judge
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("image")]

FLEET = "snapline.deploy.conformance.token_fleet:fleet"

LIMIT_S = 180.0
"""A fleet of containers is there in ten seconds, on a busy machine later."""

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.mark.parametrize("name", CHECKS)
async def test_containers_conform(name: str, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], PodmanBench(tmp_path))


def test_faults_of_a_file_are_carried_out_on_its_containers_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ("--on", "podman")
    check_passed(chaos(FAULTS, tmp_path, *place), {"crash", "pause", "coordinator", "membership"})
    assert "chaos-" not in podman("ps", "--all", "--format", "{{.Names}}")
    check_refused(chaos(FAULTS + CUT, tmp_path, *place), "podman")


def test_the_page_runs_as_it_is_shown(tmp_path: Path) -> None:
    with shown(
        "docs/deploy-containers.md", tmp_path, section="Podman", files_from="docs/first-fleet.md", limit_s=110
    ) as page:
        page.run_all()
    assert PodmanBench(tmp_path).remains() == [] and not pids("fleet")


def pids(fleet: str) -> dict[str, int]:
    """Process of each container."""
    listed = podman("ps", "--filter", f"label=snapline.fleet={fleet}", "--format", "{{.Names}} {{.Pid}}").splitlines()
    return {name.removeprefix(f"{fleet}-"): int(pid) for name, pid in (line.split() for line in listed)}


async def until_recovered(client: CoordinatorClient) -> dict[str, object]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                found = (await client.recovery_history())["recoveries"]
                if isinstance(found, list) and found and found[-1]["done"] is not None:
                    return dict(found[-1])
            await asyncio.sleep(0.1)


async def test_a_fleet_with_certificates_outlives_its_keeper_and_a_container_and_down_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = await snapline("auth", "init", "certificates", "--hosts", "h1,h2,h3", "--replicas", "c1,c2,c3")
    assert made.code == 0, made.err
    what = ("--on", "podman", "--name", "tills", "--data-dir", "data")
    up = ("up", FLEET, *what, "--store", "snapshots", "--coordinators", "3", "--tls", "certificates", "-o", "json")
    taken = await snapline(*up, limit_s=LIMIT_S)
    assert taken.code == 0, taken.err
    began = pids("tills")
    assert sorted(began) == ["c1", "c2", "c3", "h1", "h2", "h3"]
    assert b"PRIVATE KEY" not in (tmp_path / "data" / "keeper" / "plan.json").read_bytes()
    keeper = json.loads((tmp_path / "data" / "keeper" / "launcher.json").read_bytes())["pid"]
    os.kill(keeper, signal.SIGKILL)
    await until_gone(keeper)
    taken = await snapline(*up, limit_s=LIMIT_S)
    assert taken.code == 0, taken.err
    assert pids("tills") == began, "the second keeper has taken over what the first has left"
    security = Security.tls(
        authority=tmp_path / "certificates" / "ca.crt",
        certificate=tmp_path / "certificates" / "operator-operator.crt",
        key=tmp_path / "certificates" / "operator-operator.key",
    )
    client = CoordinatorClient(str(taken.json["coordinator"]), security)
    podman("rm", "--force", "--time", "0", "tills-h2")
    assert (await until_recovered(client))["lost_hosts"] == ["h2"]
    outcome = await client.create_snapshot(LIMIT_S)
    assert outcome.epoch in [judged.epoch for judged in judge(str(tmp_path / "snapshots"))]
    await client.close()
    other = await snapline("up", FLEET, *what[:4], "--data-dir", "elsewhere")
    assert other.code == 2 and "give another --name" in other.err
    down = await snapline("down", *what, limit_s=LIMIT_S)
    assert down.code == 0, down.err
    assert (await snapline("down", *what)).code == 4
    assert PodmanBench(tmp_path).remains() == [] and not pids("tills")
    assert not [name for name in podman("secret", "ls", "--format", "{{.Name}}").split() if name.startswith("tills")]


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (
            Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        ):
            await asyncio.sleep(0.05)

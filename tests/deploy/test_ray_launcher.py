"""The launcher on Ray, on real raylets of this machine. Skipped where Ray is not installed."""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.channels.security import Security
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.deploy import conformance
from snapline.deploy.conformance.judge import judge
from snapline.deploy.conformance.raylets import RayBench, Raylets, raylets
from snapline.errors import SnaplineError
from snapline.storage.store.store import Store

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'snapline[ray]'"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

FLEET = "snapline.deploy.conformance.tellers:fleet"

LIMIT_S = 180.0
"""Ray starts a process for each actor, and each starts Python once more: a minute on a busy machine."""

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    with raylets(4, [str(Path(__file__).resolve().parents[2])]) as made:
        yield made


@pytest.mark.parametrize("name", CHECKS)
async def test_a_cluster_conforms(name: str, cluster: Raylets, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], RayBench(tmp_path, cluster.address))


def snapline(*arguments: str | Path, cluster: Raylets, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `snapline …` as a user does, on a machine of this cluster."""
    return subprocess.run(
        [sys.executable, "-m", "snapline", *map(str, arguments)],
        check=False,
        cwd=cwd,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


async def until_recovered(client: CoordinatorClient) -> dict[str, object]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                found = (await client.recovery_history())["recoveries"]
                if isinstance(found, list) and found and found[-1]["done"] is not None:
                    return dict(found[-1])
            await asyncio.sleep(0.1)


async def test_a_fleet_with_certificates_outlives_its_command_and_a_node_and_down_leaves_nothing(
    cluster: Raylets, tmp_path: Path
) -> None:
    certificates = tmp_path / "certificates"
    made = snapline(
        *("auth", "init", certificates, "--hosts", "h1,h2,h3", "--replicas", "c1,c2,c3"), cluster=cluster, cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    place = ("--on", "ray", "--name", "bank")
    what = ("--hosts", "3", "--coordinators", "3", "--data-dir", tmp_path / "data", "--tls", certificates)
    up = snapline("up", FLEET, *place, *what, "-o", "json", cluster=cluster, cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    taken = json.loads(up.stdout)
    nodes = taken["nodes"]
    assert len({nodes[host] for host in ("h1", "h2", "h3")}) == 3 and len({nodes[c] for c in ("c1", "c2", "c3")}) == 3
    again = snapline("up", FLEET, *place, *what, cluster=cluster, cwd=tmp_path)
    assert again.returncode == 2 and "a fleet named bank is on this cluster" in again.stderr
    security = Security.tls(
        authority=certificates / "ca.crt",
        certificate=certificates / "operator-operator.crt",
        key=certificates / "operator-operator.key",
    )
    client = CoordinatorClient(taken["coordinator"], security)
    cluster.kill(nodes["h2"])
    recovery = await until_recovered(client)
    assert recovery["lost_hosts"] == ["h2"]
    outcome = await client.create_snapshot(LIMIT_S)
    assert outcome.epoch in [judged.epoch for judged in judge(str(tmp_path / "data" / "store"))]
    await client.close()
    down = snapline("down", *place, cluster=cluster, cwd=tmp_path)
    assert down.returncode == 0, down.stderr
    assert snapline("down", *place, cluster=cluster, cwd=tmp_path).returncode == 4
    judge(str(tmp_path / "data" / "store"))
    bench = RayBench(tmp_path, cluster.address)
    left = [each for each in bench.remains() if "snapline-seat-" not in each]
    assert left == [], "but for the keys of the node that was killed"
    cluster.add()


def test_one_line_of_the_readme_changes(cluster: Raylets, tmp_path: Path) -> None:
    """From a fleet on this machine to the same on Ray."""
    page = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    here, there = re.findall(r"^snapline (up .*)$", page, re.MULTILINE)
    assert there == f"{here} --on ray"
    code = page.partition("```python")[2].partition("```")[0]
    for number, line in enumerate((here, there)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "ping.py").write_text(code)
        up = snapline(*line.split(), "-o", "json", cluster=cluster, cwd=folder)
        assert up.returncode == 0, up.stderr
        await_end(folder, cluster, line)
        assert Store.open(str(folder / "run" / "store")).verify().findings == []


def await_end(folder: Path, cluster: Raylets, line: str) -> None:
    """The fleet ends by itself; on Ray its word remains until `down`."""
    if "--on ray" in line:
        down = snapline("down", "--on", "ray", cluster=cluster, cwd=folder)
        assert down.returncode == 0, down.stderr
    else:
        assert snapline("down", "--data-dir", "run", cluster=cluster, cwd=folder).returncode in (0, 4)

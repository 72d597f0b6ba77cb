"""The launcher on Ray, on real raylets of this machine. Skipped where Ray is not installed."""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.launchers import CUT, FAULTS, SLOW, chaos, check_passed, check_refused
from tests.deploy.served import addresses, until_renewed
from tests.kit.shown_page import shown

from snapline.deploy import conformance
from snapline.deploy.conformance.bench import processes_naming, until
from snapline.deploy.conformance.launcher_checks import judge
from snapline.deploy.conformance.local_ray import QUICK, RayBench, Raylets, raylets
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.tokens import digest_of, new_token
from snapline.security.transport import Security
from snapline.storage.store.store import Store

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'snapline[ray]'"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

FLEET = "snapline.deploy.conformance.token_fleet:fleet"

LIMIT_S = 180.0
"""Ray starts a process for each actor, and each starts Python once more: a minute on a busy machine."""

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    before = dict(QUICK)
    with raylets(4, [str(Path(__file__).resolve().parents[2])]) as made:
        yield made
    assert before == QUICK, "Ray has written into it: the next cluster would use the folder of this one"


@pytest.mark.parametrize("name", CHECKS)
async def test_a_cluster_conforms(name: str, cluster: Raylets, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], RayBench(tmp_path, cluster.address))


async def test_faults_of_a_file_are_carried_out_on_its_processes_and_judged(
    cluster: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ("--on", "ray", "--address", cluster.address, "--cpus", "1")
    check_passed(chaos(FAULTS + SLOW, tmp_path, *place), {"crash", "pause", "coordinator", "membership", "slow"})
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])
    check_refused(chaos(FAULTS + CUT, tmp_path, *place), "ray")


async def test_the_page_runs_as_it_is_shown(cluster: Raylets, tmp_path: Path) -> None:
    there = {"10.0.0.7:6379": cluster.address}
    with shown("docs/deploy-ray.md", tmp_path, there, files_from="docs/first-fleet.md", limit_s=LIMIT_S) as page:
        page.run_all()
    assert RayBench(tmp_path, cluster.address).remains() == []


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


def trusting(folder: Path, role: str, token: str = "") -> Security:
    """As somebody of this role."""
    own = folder / f"{role}-{role}"
    return Security.tls(
        authority=folder / "ca.crt", certificate=f"{own}.crt", key=f"{own}.key", domain="bank", token=token
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
        *("auth", "init", certificates, "--hosts", "h1,h2,h3", "--replicas", "c1,c2,c3", "--tls-domain", "bank"),
        cluster=cluster,
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    place = ("--on", "ray", "--name", "bank")
    what = ("--hosts", "3", "--coordinators", "3", "--data-dir", tmp_path / "data", "--tls", certificates)
    domain = ("--tls-domain", "bank")
    up = snapline("up", FLEET, *place, *what, *domain, "-o", "json", cluster=cluster, cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    taken = json.loads(up.stdout)
    nodes = taken["nodes"]
    assert len({nodes[host] for host in ("h1", "h2", "h3")}) == 3 and len({nodes[c] for c in ("c1", "c2", "c3")}) == 3
    again = snapline("up", FLEET, *place, *what, *domain, cluster=cluster, cwd=tmp_path)
    assert again.returncode == 2 and "a fleet named bank is on this cluster" in again.stderr
    client = CoordinatorClient(taken["coordinator"], trusting(certificates, "admin"))
    token = new_token()
    await client.make_token("ada", "operator", digest_of(token), 3600)
    await certificates_are_renewed(certificates, client, taken, cluster, tmp_path)
    cluster.kill(nodes["h2"])
    recovery = await until_recovered(client)
    assert recovery["lost_hosts"] == ["h2"]
    ada = CoordinatorClient(taken["coordinator"], trusting(certificates, "bearer", token))
    outcome = await ada.create_snapshot(LIMIT_S)
    assert outcome.epoch in [judged.epoch for judged in judge(str(tmp_path / "data" / "store"))]
    written = [(each.name, each.call) for each in (await client.read_audit(9)).calls]
    assert list(dict.fromkeys(written)) == [("admin", "MakeToken"), ("ada", "CreateSnapshot")], (
        "also where a replica was lost meanwhile"
    )
    for each in (ada, client):
        await each.close()
    down = snapline("down", *place, cluster=cluster, cwd=tmp_path)
    assert down.returncode == 0, down.stderr
    assert snapline("down", *place, cluster=cluster, cwd=tmp_path).returncode == 4
    judge(str(tmp_path / "data" / "store"))
    assert RayBench(tmp_path, cluster.address).remains() == []
    cluster.add()


async def certificates_are_renewed(
    folder: Path, client: CoordinatorClient, taken: dict[str, Any], cluster: Raylets, cwd: Path
) -> None:
    """Nothing is started again for it: all processes serve the new ones in the end, and are those of before."""
    before = await client.status()
    served = addresses(taken["coordinator"], before)
    assert snapline("auth", "renew", folder, "--days", "1", cluster=cluster, cwd=cwd).returncode == 0
    given = snapline("auth", "deliver", folder, "--name", "bank", "-o", "json", cluster=cluster, cwd=cwd)
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["processes"] == ["c1", "c2", "c3", "h1", "h2", "h3"]
    await until_renewed(folder, served, "operator-operator")
    after = await client.status()
    assert [(each.host, each.host_start, each.state) for each in after.hosts] == [
        (each.host, each.host_start, "alive") for each in before.hosts
    ]
    assert (await client.recovery_history())["recoveries"] == []


def test_nothing_stays_of_a_cluster_whose_maker_is_killed(tmp_path: Path) -> None:
    """Neither processes, nor Ray's files, nor what an actor has started."""
    made = """
import sys, ray
from snapline.deploy.conformance.local_ray import raylets

class Busy:
    def __init__(self):
        import subprocess
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[0]])

with raylets(1) as cluster:
    ray.init(address=cluster.address, log_to_driver=False)
    actor = ray.remote(Busy).options(lifetime="detached", name="busy", namespace="here").remote()
    ray.get(actor.__ray_ready__.remote())
    import os
    print(os.environ["RAY_TMPDIR"], flush=True)
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", made], stdin=pipe, stdout=pipe, cwd=tmp_path, text=True) as maker:
        assert maker.stdout is not None
        folder = Path(maker.stdout.readline().strip())
        assert folder.name.startswith("ray-") and processes_naming(str(folder))
        maker.kill()
    deadline_s = time.monotonic() + LIMIT_S
    while folder.exists() or processes_naming(str(folder)):
        assert time.monotonic() < deadline_s, processes_naming(str(folder))
        time.sleep(0.1)


def test_one_line_of_the_readme_changes(cluster: Raylets, tmp_path: Path) -> None:
    """From a fleet on this machine to the same on Ray."""
    page = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    here, there = re.findall(r"^snapline (up .*)$", page, re.MULTILINE)
    assert there == f"{here} --on ray"
    code = page.partition("```python")[2].partition("```")[0]
    data_dir = re.search(r"--data-dir (\S+)", here)
    assert data_dir is not None
    for number, line in enumerate((here, there)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "ping.py").write_text(code)
        up = snapline(*line.split(), "-o", "json", cluster=cluster, cwd=folder)
        assert up.returncode == 0, up.stderr
        await_end(folder, cluster, line, data_dir[1])
        assert Store.open(str(folder / data_dir[1] / "store")).verify().findings == []


def await_end(folder: Path, cluster: Raylets, line: str, data_dir: str) -> None:
    """The fleet ends by itself; on Ray its word remains until `down`."""
    if "--on ray" in line:
        down = snapline("down", "--on", "ray", cluster=cluster, cwd=folder)
        assert down.returncode == 0, down.stderr
    else:
        assert snapline("down", "--data-dir", data_dir, cluster=cluster, cwd=folder).returncode in (0, 4)

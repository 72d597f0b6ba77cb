"""The launcher on Slurm, on a cluster of our own with real daemons. Skipped where they are not installed: `make test-slurm` does that."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.chaos.launchers import CUT, FAULTS, SLOW, chaos, check_passed, check_refused
from tests.kit.shown_page import shown

from snapline.deploy import conformance
from snapline.deploy.conformance.bench import processes_naming, until
from snapline.deploy.conformance.launcher_checks import judge
from snapline.deploy.conformance.local_slurm import OPTIONS, SlurmBench, Slurmds, missing, own_cluster
from snapline.deploy.launching import Handle
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.slurm_launcher import Slurm
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.storage.store.store import Store

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(1200),
]

FLEET = "snapline.deploy.conformance.token_fleet:fleet"

LIMIT_S = 400.0
"""Slurm misses a node after half a minute, requeues after some seconds, and counts limits in minutes: a fleet has two and a half of them to
come up, again too, before its hosts are warned."""

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurmds]:
    with own_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made
    assert not made.remaining()


@pytest.mark.parametrize("name", CHECKS)
async def test_a_cluster_conforms(name: str, cluster: Slurmds, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], SlurmBench(tmp_path))


async def test_faults_of_a_file_are_carried_out_on_its_processes_and_judged(cluster: Slurmds, tmp_path: Path) -> None:
    place = ("--on", "slurm", *(f"--sbatch-option={option}" for option in OPTIONS))
    check_passed(chaos(FAULTS + SLOW, tmp_path, *place), {"crash", "pause", "coordinator", "membership", "slow"})
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])
    check_refused(chaos(FAULTS + CUT, tmp_path, *place), "slurm")


def test_the_run_of_the_page_about_chaos_passes(cluster: Slurmds, tmp_path: Path) -> None:
    run = {
        "--sbatch-option=--partition=short": " ".join(f"--sbatch-option={option}" for option in OPTIONS),
        "/shared/ann": str(tmp_path),
    }
    with shown("docs/chaos.md", tmp_path, run) as page:
        (command,) = [each for each in page.commands("--on ssh") if "run crash.toml --on slurm" in each.text]
        page.left.clear()  # `tests/chaos/test_chaos_page.py` runs the others
        code, out, err = page.shell(command.text)
    assert code == 0 and out[0].startswith("PASS  crash"), err


async def test_a_dead_node_loses_its_host_alone_and_the_requeued_one_comes_back_empty(
    cluster: Slurmds, tmp_path: Path
) -> None:
    """Its machine dies while agents talk; Slurm misses it, requeues the element, and another node takes it."""
    async with running_fleet(tmp_path) as (fleet, client):
        await until_whole(client)
        before = await client.create_snapshot(LIMIT_S)
        node = node_of(fleet.handle("h2"))
        cluster.kill(node, with_all=True)
        try:
            recovery = await until_recovered(client)
            assert recovery["lost_hosts"] == ["h2"] and epoch_of(recovery) >= before.epoch
            await until_whole(client)
            again = fleet.handle("h2")
            assert again is not None and node_of(again) != node and ", run 1 on " in again.where, (
                "requeued, not submitted anew"
            )
            after = await client.create_snapshot(LIMIT_S)
        finally:
            cluster.start(node)
            cluster.await_nodes(1)
        assert [each for each in judge(str(tmp_path / "store")) if each.epoch == after.epoch]
        assert len(await history(client)) == 1, "its return has undone nothing"
    await until("nothing left", lambda: SlurmBench(tmp_path).remains() == [])


async def test_what_lives_on_on_a_node_that_slurm_has_given_up_is_refused(cluster: Slurmds, tmp_path: Path) -> None:
    """Only the slurmd is killed: Slurm requeues the element, and the old host runs on, and talks (G9)."""
    async with running_fleet(tmp_path) as (fleet, client):
        await until_whole(client)
        zombie = fleet.handle("h3")
        assert zombie is not None
        node = node_of(zombie)
        cluster.kill(node, with_all=False)
        try:
            recovery = await until_recovered(client)
            assert recovery["lost_hosts"] == ["h3"]
            await until("another h3", lambda: (fleet.handle("h3") or zombie).pid != zombie.pid)
            await until("the zombie refused", lambda: not is_alive(zombie.pid))
            await until_whole(client)
            plan = (await client.status()).plan
            last = await client.create_snapshot(LIMIT_S)
        finally:
            cluster.start(node)
            cluster.await_nodes(1)
        judged = {each.epoch: each for each in judge(str(tmp_path / "store"))}
        assert judged[last.epoch].plan >= plan
    await until("nothing left", lambda: SlurmBench(tmp_path).remains() == [])


async def test_before_its_time_limit_a_fleet_takes_a_last_snapshot_and_goes_on_from_it(
    cluster: Slurmds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line, with certificates. There are no other snapshots than those that are asked for: the period is a day."""
    monkeypatch.chdir(tmp_path)
    made = snapline("auth", "init", "certificates", "--hosts", "h1,h2,h3", "--replicas", "c1")
    assert made.returncode == 0, made.stderr
    (tmp_path / "snapline.toml").write_text(
        f'[up]\non = "slurm"\nname = "limited"\ndata_dir = "{tmp_path}/data"\ntls = "certificates"\n'
        'sbatch = "--exclusive --time=4 --signal=B:USR1@60"\n'
    )
    up = snapline("up", FLEET, "--arg", "period=86400", "-o", "json")
    assert up.returncode == 0, up.stderr
    taken = json.loads(up.stdout)
    assert (taken["on"], taken["hosts"]) == ("slurm", 3)
    store = Store.open(str(tmp_path / "data" / "store"))
    first = store.epochs()
    own = {"certificate": "certificates/operator-operator.crt", "key": "certificates/operator-operator.key"}
    client = CoordinatorClient(taken["coordinator"], Security.tls(authority="certificates/ca.crt", **own))
    recovery = await until_recovered(client)
    assert epoch_of(recovery) > max(first, default=0), "it goes on from the last snapshot"
    slurm = Slurm("limited")
    async with asyncio.timeout(LIMIT_S):
        while not all(runs > 0 for runs in (await restarts(slurm)).values()):
            await asyncio.sleep(0.5)
    await until_whole(client)
    await client.close()
    assert snapline("down").returncode == 0
    gone = snapline("down")
    assert gone.returncode == 4 and "no fleet named limited is in Slurm's queue" in gone.stderr
    assert await slurm.elements() == {}
    assert len(judge(str(tmp_path / "data" / "store"))) > len(first)
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])


async def test_what_slurm_refuses_is_said_in_one_sentence(
    cluster: Slurmds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = snapline("up", FLEET, "--on", "slurm", "--sbatch-option=--partition=nowhere")
    assert refused.returncode == 2 and "sbatch: " in refused.stderr and "nvalid partition" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_the_page_runs_as_it_is_shown(cluster: Slurmds, tmp_path: Path) -> None:
    with shown("docs/deploy-slurm.md", tmp_path, files_from="docs/first-fleet.md", limit_s=LIMIT_S) as page:
        page.run_all()
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])


@contextlib.asynccontextmanager
async def running_fleet(folder: Path) -> AsyncIterator[tuple[LaunchedFleet, CoordinatorClient]]:
    bench = SlurmBench(folder)
    commands = bench.commands(FLEET, 3)
    async with LaunchedFleet(bench.launcher(), commands, hosts=3, coordinators=1, connect=bench.connect) as fleet:
        client = CoordinatorClient(fleet.address)
        try:
            yield fleet, client
        finally:
            await client.close()


async def until_whole(client: CoordinatorClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                now = await client.status()
                if now.phase == "running" and [host.state for host in now.hosts] == ["alive"] * 3:
                    return
            await asyncio.sleep(0.1)


async def until_recovered(client: CoordinatorClient) -> dict[str, object]:
    """The first recovery that is done: one that another overtakes, as when all hosts leave at once, never is."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(SnaplineError):
                done = [each for each in await history(client) if each["done"] is not None]
                if done:
                    return done[0]
            await asyncio.sleep(0.1)


async def history(client: CoordinatorClient) -> list[dict[str, object]]:
    found = (await client.recovery_history())["recoveries"]
    assert isinstance(found, list)
    return found


def epoch_of(recovery: dict[str, object]) -> int:
    assert isinstance(recovery["line_epoch"], int)
    return recovery["line_epoch"]


async def restarts(slurm: Slurm) -> dict[str, int]:
    """Of hosts: how often each was requeued."""
    found = {name: element.restarts for name, element in (await slurm.elements()).items() if element.stem == "h"}
    return found or {"h1": 0}


def node_of(handle: Handle | None) -> str:
    assert handle is not None
    return handle.where.rpartition(" ")[2]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def snapline(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `snapline …` as a user does."""
    command = [sys.executable, "-m", "snapline", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)

"""The coordinator's disks are lost: its replicas are made anew from a backup and the store, and the fleet goes on, exactly."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.cuts import check_paced_bank, store_of
from tests.integration.fleets import paced_bank
from tests.integration.killing import HOSTS, TOKENS
from tests.integration.processes import snapline
from tests.integration.running import Running

from snapline.coordinator.service.backup import NUMBERS_STEP, write_backup
from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient

pytestmark = pytest.mark.timeout(120)


class Bank:
    """The paced bank with so many coordinators, started again and again in one folder."""

    def __init__(self, data_dir: Path, coordinators: int) -> None:
        self.data_dir = data_dir
        self.coordinators = coordinators
        self.stop = data_dir.with_name("stop")
        self.arguments = {"stop": str(self.stop), "period": "0.2"}
        self.file = data_dir.with_name("backup")

    def local(self) -> LocalFleet:
        return LocalFleet(
            data_dir=self.data_dir,
            fleet="tests.integration.fleets.paced_bank:fleet",
            hosts=HOSTS,
            coordinators=self.coordinators,
            arguments=self.arguments,
        )

    async def back_up(self, client: CoordinatorClient) -> None:
        image, cluster = await client.backup()
        write_backup(self.file, image, cluster)

    async def restore(self, names: Sequence[str]) -> None:
        """Make new folders for all replicas, with the command."""
        folder = self.data_dir / "coordinator"
        shutil.rmtree(folder)
        digests = []
        for name in names if self.coordinators > 1 else [""]:
            where = ("--data-dir", folder / name, "--store", self.data_dir / "store", *(("--id", name) if name else ()))
            done = await snapline("coordinator", "restore-backup", self.file, *where)
            assert done.code == 0, done.err
            digests.append(done.json["digest"])
        assert len(set(digests)) == 1

    async def end(self, bank: Running) -> None:
        self.stop.touch()
        await bank.end()

    def check(self) -> None:
        check_paced_bank(self.data_dir, paced_bank.fleet(**self.arguments), tokens=TOKENS)


@pytest.mark.parametrize("coordinators", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_fleet_goes_on_from_a_backup_that_is_older_than_its_oldest_snapshot(
    data_dir: Path, coordinators: int
) -> None:
    """Ten snapshots are kept: those of the backup's time are gone, and the newest one is the line."""
    bank = Bank(data_dir, coordinators)
    async with bank.local() as local:
        client = CoordinatorClient(local.address)
        running = Running(local, client, [])
        before = await running.until_epochs(1)
        await bank.back_up(client)
        await running.until(lambda now: now.epochs_completed > before.epochs_completed + 17)
        await client.close()
    line = store_of(data_dir).epochs()[-1]
    assert store_of(data_dir).epochs()[0] > before.last_complete_epoch
    await bank.restore(local.coordinators)

    async with bank.local() as local:
        client = CoordinatorClient(local.address)
        running = Running(local, client, [])
        after = await running.until(lambda now: now.phase == "running" and now.last_complete_epoch > NUMBERS_STEP)
        assert after.plan > NUMBERS_STEP and after.epochs_begun > line + NUMBERS_STEP
        assert (await running.recoveries())[-1]["line_epoch"] == line
        await bank.end(running)
        await client.close()
    bank.check()


async def test_hosts_that_outlived_the_coordinator_go_on_under_the_restored_one(data_dir: Path) -> None:
    """They were not told to end: what they did since the line is void, and their numbers are of the past."""
    bank = Bank(data_dir, 1)
    async with bank.local() as local:
        client = CoordinatorClient(local.address)
        running = Running(local, client, [])
        await running.until_epochs(2)
        await bank.back_up(client)
        await running.until_more_epochs(2)
        pids = [running.pid(host) for host in local.hosts]
        local.kill("coordinator", is_kept_down=True)
        while local.pid("coordinator") is not None:
            await asyncio.sleep(0.02)
        line = store_of(data_dir).epochs()[-1]
        await bank.restore(local.coordinators)
        local.restart("coordinator")
        after = await running.until(lambda now: now.phase == "running" and now.last_complete_epoch > NUMBERS_STEP)
        assert [running.pid(host) for host in local.hosts] == pids
        assert after.line_epoch >= line
        assert sum(host.agents for host in after.hosts) == 9
        await bank.end(running)
        await client.close()
    bank.check()

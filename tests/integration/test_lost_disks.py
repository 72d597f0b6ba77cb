"""Replicas of the coordinator lose their disks: a minority comes back and counts again, a majority is told of (G4, G8, G10)."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.killing import bank_to_be_hurt
from tests.integration.processes import LIMIT_S, Process, ended, start
from tests.integration.running import Running

from snapline.deploy.data_directory import choose_addresses
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(180)


async def empty(bank: Running, data_dir: Path, name: str) -> None:
    """Kill a replica, take its disk away, and start it again."""
    bank.local.kill(name, is_kept_down=True)
    while bank.local.pid(name) is not None:
        await asyncio.sleep(0.02)
    shutil.rmtree(data_dir / "coordinator" / name)
    bank.local.restart(name)


async def until_voters(data_dir: Path, name: str, logs: int) -> None:
    """Wait until so many logs of this replica have voted."""
    store = Store.open(data_dir / "store")
    async with asyncio.timeout(LIMIT_S):
        while [mark.is_voter for mark in store.log_marks()[name]].count(True) < logs:
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_replicas_that_lost_their_disks_come_back_one_after_the_other(data_dir: Path) -> None:
    """The leader first. Each counts again: with another one down, the fleet goes on with it."""
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        await bank.until_epochs(1)
        first = await bank.until_led()
        second, third = (name for name in bank.local.coordinators if name != first)
        await empty(bank, data_dir, first)
        await until_voters(data_dir, first, 2)
        bank.local.kill(second, is_kept_down=True)
        await bank.until_led(not_by=second)
        await bank.until_more_epochs()
        bank.local.restart(second)
        await bank.until_more_epochs()
        await empty(bank, data_dir, third)
        await until_voters(data_dir, third, 2)
        await bank.until_more_epochs()


# ---- without a fleet --------------------------------------------------------------------------------------------------


class Coordinators:
    """Processes of replicas that wait for hosts."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.store = folder / "store"
        names = [f"c{number}" for number in range(1, count + 1)]
        self.members = dict(zip(names, choose_addresses(folder, count), strict=True))
        self.processes: dict[str, Process] = {}

    async def start(self, *names: str) -> None:
        peers = ",".join(f"{name}={address}" for name, address in self.members.items())
        for name in names:
            options: list[str | Path] = [
                "--data-dir",
                self.folder / name,
                "--store",
                self.store,
                "--hosts",
                "1",
                "--id",
                name,
            ]
            listen = ["--listen", self.members[name], *(["--peers", peers] if len(self.members) > 1 else [])]
            self.processes[name] = await start("coordinator", "run", *options, *listen)

    async def until_marked(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(Exception):
                    if Store.open(self.store).log_marks().keys() == self.members.keys():
                        return
                await asyncio.sleep(0.1)

    async def lose(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
            await self.processes[name].communicate()
            shutil.rmtree(self.folder / name)


@pytest.fixture
async def coordinators(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinators]:
    made = Coordinators(tmp_path, request.param)
    await made.start(*made.members)
    await made.until_marked()
    yield made
    for process in made.processes.values():
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("coordinators", [1, pytest.param(3, marks=pytest.mark.slow)], indirect=True)
async def test_who_lost_too_many_logs_stops_and_says_what_to_do(coordinators: Coordinators) -> None:
    """No fresh start on what is left, not even where no epoch is in the store yet."""
    lost = list(coordinators.members)[: len(coordinators.members) // 2 + 1]
    await coordinators.lose(*lost)
    await coordinators.start(*lost)
    outcomes = await asyncio.gather(*[ended(coordinators.processes[name]) for name in lost])
    for outcome in outcomes:
        assert outcome.code not in (0, None) and f"the logs of {', '.join(lost)} are lost" in outcome.err
        assert "snapline coordinator restore-backup" in outcome.err and "Traceback" not in outcome.err

"""Three replicas of the coordinator, and SIGKILL: whoever leads, the fleet goes on, exactly (G4, G8, G10).

Each test ends in `bank_to_be_hurt`: the fleet ends by itself, and every cut in the store holds every token.
"""

import asyncio
from pathlib import Path

import pytest
from tests.integration.killing import bank_to_be_hurt

pytestmark = pytest.mark.timeout(180)


async def test_the_leader_is_killed_while_an_epoch_is_open(data_dir: Path) -> None:
    """Hosts work on. The epoch gets one outcome, and nobody is taken for lost."""
    async with bank_to_be_hurt(data_dir, nap_s=0.5, period_s=0.3, coordinators=3) as bank:
        await bank.until_epochs(1)
        leader = await bank.until_led()
        opened = await bank.until(lambda now: now.epochs_open > 0)
        bank.local.kill(leader)
        assert await bank.until_led(not_by=leader) != leader
        after = await bank.until(lambda now: now.epochs_begun > opened.epochs_begun and now.epochs_open == 0)
        assert after.epochs_completed + after.epochs_aborted == after.epochs_begun
        assert await bank.recoveries() == [], "hosts that lived all the time are not rolled back"


async def test_the_leader_and_a_host_are_killed_together(data_dir: Path) -> None:
    """A recovery plan survives its leader: there is one plan, and it is finished."""
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        await bank.until_epochs(1)
        leader = await bank.until_led()
        bank.local.kill("h2")
        await asyncio.sleep(0.1)
        bank.local.kill(leader)
        recovery = await bank.until_recovered()
        assert recovery["lost_hosts"] == ["h2"]
        await bank.until_more_epochs()


async def test_all_replicas_and_all_hosts_are_killed_at_once(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        before = await bank.until_epochs(1)
        for name in (*bank.local.coordinators, *bank.local.hosts):
            bank.local.kill(name)
        recovery = await bank.until_recovered()
        assert isinstance(recovery["line_epoch"], int) and recovery["line_epoch"] >= before.last_complete_epoch
        await bank.until_more_epochs()


async def test_a_minority_stays_away_and_comes_back(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        await bank.until_epochs(1)
        leader = await bank.until_led()
        bank.local.kill(leader, is_kept_down=True)
        await bank.until_led(not_by=leader)
        await bank.until_more_epochs(3)
        bank.local.restart(leader)
        await bank.until_more_epochs(2)


async def test_the_lead_is_handed_over(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir, coordinators=3) as bank:
        await bank.until_epochs(1)
        leader = await bank.until_led()
        to = next(name for name in bank.local.coordinators if name != leader)
        moved = await bank.client.transfer_leader(to)
        assert moved["leader"] == to
        assert await bank.until_led(not_by=leader) == to
        await bank.until_more_epochs()
        assert await bank.recoveries() == []

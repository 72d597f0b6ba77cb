"""SIGKILL of hosts, of the coordinator and of both: the fleet goes on from its last complete epoch, exactly (G3, G10).

Each test ends in `bank_to_be_hurt`: the fleet ends by itself, and every cut in the store holds every token.
"""

from pathlib import Path

import pytest
from tests.integration.killing import HOSTS, bank_to_be_hurt

pytestmark = pytest.mark.timeout(120)


async def test_a_killed_host_is_started_again_and_gets_its_agents_back(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir) as bank:
        before = await bank.until_epochs(2)
        bank.local.kill("h2")
        recovery = await bank.until_recovered()
        assert recovery["lost_hosts"] == ["h2"]
        assert recovery["hosts"] == ["h1", "h2", "h3"]
        assert isinstance(recovery["line_epoch"], int) and recovery["line_epoch"] >= before.last_complete_epoch
        after = await bank.until_more_epochs()
        assert [host.agents for host in after.hosts] == [3, 3, 3]


async def test_the_agents_of_a_killed_host_move_to_the_others(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir, on_failure="move") as bank:
        await bank.until_epochs(2)
        bank.local.kill("h2")
        recovery = await bank.until_recovered()
        assert (recovery["lost_hosts"], recovery["hosts"]) == (["h2"], ["h1", "h3"])
        after = await bank.until_more_epochs()
        agents = {host.host: host.agents for host in after.hosts if host.state == "alive"}
        assert sorted(agents) == ["h1", "h3"] and sorted(agents.values()) == [4, 5]


async def test_all_hosts_are_killed_at_once(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir) as bank:
        await bank.until_epochs(2)
        for host in bank.local.hosts:
            bank.local.kill(host)
        recovery = await bank.until_recovered()
        assert recovery["agents"] == 9
        after = await bank.until_more_epochs()
        assert sum(host.agents for host in after.hosts) == 9


async def test_the_coordinator_is_killed_while_an_epoch_is_open(data_dir: Path) -> None:
    """The hosts work on meanwhile. The epoch gets one outcome (G4), and no host is taken for lost."""
    async with bank_to_be_hurt(data_dir, nap_s=0.5, period_s=0.3) as bank:
        await bank.until_epochs(1)
        opened = await bank.until(lambda now: now.epochs_open > 0)
        bank.local.kill("coordinator")
        after = await bank.until(lambda now: now.epochs_begun > opened.epochs_begun and now.epochs_open == 0)
        assert after.epochs_completed + after.epochs_aborted == after.epochs_begun
        assert await bank.recoveries() == [], "hosts that lived all the time are not rolled back"


async def test_a_host_and_the_coordinator_are_killed_together(data_dir: Path) -> None:
    async with bank_to_be_hurt(data_dir) as bank:
        await bank.until_epochs(2)
        bank.local.kill("h1")
        bank.local.kill("coordinator")
        recovery = await bank.until_recovered()
        assert recovery["lost_hosts"] == ["h1"]
        await bank.until_more_epochs()


@pytest.mark.slow
async def test_everything_is_killed_and_killed_again_while_it_recovers(data_dir: Path) -> None:
    """A recovery can be killed at any point: the next one starts from the same line."""
    async with bank_to_be_hurt(data_dir) as bank:
        await bank.until_epochs(2)
        for _ in range(2):
            for name in ("coordinator", *bank.local.hosts):
                bank.local.kill(name)
            await bank.until(lambda now: len([host for host in now.hosts if host.state == "alive"]) == HOSTS)
        await bank.until_recovered()
        await bank.until_more_epochs()

"""SIGKILL of hosts, of the coordinator and of both: the fleet goes on from its last complete epoch, exactly (G3, G10).

One fleet goes through all of it, and runs again after each test. In the end it ends by itself, and every cut in the store holds
every token (`bank_to_be_hurt`); a test that fails may leave it broken for those after it.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.integration.killing import HOSTS, bank_to_be_hurt
from tests.integration.running import Running

AGENTS = 10
"""Nine tellers, and the one who holds every epoch open."""

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(autouse=True)
def mark(module_mark: str) -> str:
    return module_mark


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory, module_mark: str) -> AsyncIterator[Running]:
    """It works, and each epoch stays open for a while."""
    async with bank_to_be_hurt(tmp_path_factory.mktemp("kills") / "data", nap_s=0.3, period_s=0.2) as bank:
        await bank.until_epochs(2)
        yield bank


async def test_a_killed_host_is_started_again_and_gets_its_agents_back(bank: Running) -> None:
    before = await bank.until_epochs(2)
    recovery = await bank.recovered_from("h2")
    assert recovery["lost_hosts"] == ["h2"]
    assert recovery["hosts"] == ["h1", "h2", "h3"]
    assert isinstance(recovery["line_epoch"], int) and recovery["line_epoch"] >= before.last_complete_epoch
    after = await bank.until_more_epochs()
    assert [host.agents for host in after.hosts] == [4, 3, 3]


async def test_all_hosts_are_killed_at_once(bank: Running) -> None:
    recovery = await bank.recovered_from(*bank.local.hosts)
    assert recovery["agents"] == AGENTS
    after = await bank.until_more_epochs()
    assert sum(host.agents for host in after.hosts) == AGENTS


async def test_the_coordinator_is_killed_while_an_epoch_is_open(bank: Running) -> None:
    """The hosts work on meanwhile. The epoch gets one outcome (G4), and no host is taken for lost."""
    recoveries = await bank.recoveries()
    opened = await bank.until(lambda now: now.epochs_open > 0)
    bank.local.kill("coordinator")
    after = await bank.until(lambda now: now.epochs_begun > opened.epochs_begun and now.epochs_open == 0)
    assert after.epochs_completed + after.epochs_aborted == after.epochs_begun
    assert await bank.recoveries() == recoveries, "hosts that lived all the time are not rolled back"


async def test_a_host_and_the_coordinator_are_killed_together(bank: Running) -> None:
    recovery = await bank.recovered_from("h1", "coordinator")
    assert recovery["lost_hosts"] == ["h1"]
    await bank.until_more_epochs()


@pytest.mark.slow
async def test_everything_is_killed_and_killed_again_while_it_recovers(bank: Running) -> None:
    """A recovery can be killed at any point: the next one starts from the same line."""
    earlier = len(await bank.recoveries())
    for _ in range(2):
        for name in ("coordinator", *bank.local.hosts):
            bank.local.kill(name)
        await bank.until(lambda now: len([host for host in now.hosts if host.state == "alive"]) == HOSTS)
    await bank.until_recovered(earlier)
    await bank.until_more_epochs()

"""Three replicas of the coordinator, and SIGKILL: whoever leads, the fleet goes on, exactly (G4, G8, G10).

One fleet goes through all of it, and runs again after each test. In the end it ends by itself, and every cut in the store holds
every token (`bank_to_be_hurt`); a test that fails may leave it broken for those after it.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from tests.integration.killing import bank_to_be_hurt
from tests.integration.running import Running

from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(autouse=True)
def mark(module_mark: str) -> str:
    return module_mark


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory, module_mark: str) -> AsyncIterator[Running]:
    """It works, and each epoch stays open for a while."""
    folder = tmp_path_factory.mktemp("replicas")
    async with bank_to_be_hurt(folder / "data", nap_s=0.3, period_s=0.2, coordinators=3) as bank:
        await bank.until_epochs(1)
        yield bank


async def test_the_lead_is_handed_over(bank: Running) -> None:
    recoveries = await bank.recoveries()
    leader = await bank.until_led()
    to = next(name for name in bank.local.coordinators if name != leader)
    assert (await bank.client.transfer_leader(only_from=to))["leader"] != to, (
        "it did not lead, and has nothing to hand on"
    )
    moved = await bank.client.transfer_leader(to)  # on a busy machine the third one may win: then that one is asked
    assert moved["leader"] == to
    await bank.until_more_epochs()  # whoever leads by then: on a busy machine there may be another election
    assert await bank.recoveries() == recoveries


async def test_an_unconfirmed_status_comes_from_a_leader_and_leaves_the_log_alone(bank: Running) -> None:
    """As the view and the launcher ask all the time."""
    before = await _reads(bank)
    for address in bank.local.address.split(","):
        client = CoordinatorClient(address, Security.loopback())
        try:
            async with asyncio.timeout(30):
                while not any(host.turns for host in (await client.status(unconfirmed=True)).hosts):
                    await asyncio.sleep(0.1)  # only who leads knows them, once hosts have told
            for _ in range(20):
                await client.status(unconfirmed=True)
        finally:
            await client.close()
    assert await _reads(bank) - before < 20


async def _reads(bank: Running) -> float:
    """Linearizable ones so far, of all replicas."""
    count = 0.0
    for address in bank.local.address.split(","):
        client = CoordinatorClient(address, Security.loopback())
        metrics = await client.read_replica("metrics")
        await client.close()
        count += msgspec.convert(metrics["metrics"], dict[str, float])["raft_reads_total"]
    return count


async def test_the_leader_is_killed_while_an_epoch_is_open(bank: Running) -> None:
    """Hosts work on. The epoch gets one outcome, and nobody is taken for lost."""
    recoveries = await bank.recoveries()
    opened = await bank.until(lambda now: now.leader and now.epochs_open > 0)
    bank.local.kill(opened.leader)
    await bank.until_led(after=opened.term)
    after = await bank.until(lambda now: now.epochs_begun > opened.epochs_begun and now.epochs_open == 0)
    assert after.epochs_completed + after.epochs_aborted == after.epochs_begun
    assert await bank.recoveries() == recoveries, "hosts that lived all the time are not rolled back"


async def test_a_minority_stays_away_and_comes_back(bank: Running) -> None:
    await bank.until_more_epochs()
    leader = await bank.until_led()
    bank.local.kill(leader, is_kept_down=True)
    await bank.until_led(not_by=leader)
    await bank.until_more_epochs(3)
    bank.local.restart(leader)
    await bank.until_more_epochs(2)


@pytest.mark.promise
async def test_the_leader_and_a_host_are_killed_together(bank: Running) -> None:
    """A recovery plan survives its leader: there is one plan, and it is finished."""
    earlier = len(await bank.recoveries())
    leader = await bank.until_led()
    bank.local.kill("h2")
    await asyncio.sleep(0.1)
    bank.local.kill(leader)
    recovery = await bank.until_recovered(earlier)
    assert recovery["lost_hosts"] == ["h2"]
    await bank.until_more_epochs()


async def test_all_replicas_and_all_hosts_are_killed_at_once(bank: Running) -> None:
    before = await bank.until_epochs(1)
    recovery = await bank.recovered_from(*bank.local.coordinators, *bank.local.hosts)
    assert isinstance(recovery["line_epoch"], int) and recovery["line_epoch"] >= before.last_complete_epoch
    await bank.until_more_epochs()

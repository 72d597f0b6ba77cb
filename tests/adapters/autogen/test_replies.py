"""Handlers that wait for replies, while hosts are killed: every payment is made once, and every receipt is got once."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.autogen import bank_fleet
from tests.adapters.autogen.environment import PYTHON, needed
from tests.integration.processes import nothing_left_running
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.storage.store.store import Store

pytestmark = needed

PAYMENTS, KILLS = 60, 3


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """None of this test's processes may outlive it."""
    with nothing_left_running() as mark:
        yield mark


async def test_every_payment_is_made_once_whatever_is_killed(tmp_path: Path) -> None:
    """Turns go on in their middle in another process; their chance draws the same again."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    arguments = {"payments": str(PAYMENTS)}
    environment = {**os.environ, "SNAPLINE_AUTOGEN_PYTHON": PYTHON}
    path = "tests.adapters.autogen.bank_fleet:fleet"
    async with running(tmp_path / "data", path, arguments, hosts=2, environment=environment) as fleet:
        for _ in range(KILLS):
            await fleet.until_more_epochs(2)
            await asyncio.sleep(chosen.uniform(0.0, 0.3))
            hosts = list(fleet.local.hosts)
            await fleet.recovered_from(*chosen.sample(hosts, chosen.randint(1, len(hosts))))
        await fleet.end(limit_s=200)
    store = Store.open(tmp_path / "data" / "store")
    last = load_cut(store, store.epochs()[-1], bank_fleet.fleet(**arguments))
    clerks, tills = bank_fleet.kept(last, "clerk"), bank_fleet.kept(last, "till")
    assert not last.dead_letters
    assert sum(till["payments"] for till in tills) == bank_fleet.CLERKS * PAYMENTS
    assert sum(till["total"] for till in tills) == sum(clerk["paid"] for clerk in clerks)
    given = sorted(number for till in tills for number in range(1, till["payments"] + 1))
    assert sorted(number for clerk in clerks for number in clerk["receipts"]) == given

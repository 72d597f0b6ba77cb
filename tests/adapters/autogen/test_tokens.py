"""The token experiment: unchanged agents of AutoGen, saved while they work. AutoGen's own save loses what is under way; ours holds it, whatever host is killed."""

import asyncio
import os
import random
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.adapters.autogen import token_fleet
from tests.adapters.autogen.environment import PYTHON, needed
from tests.integration.processes import nothing_left_running
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.messages.status import FleetStatus
from snapline.storage.store.store import Store

pytestmark = needed

SNAPSHOTS = int(os.environ.get("SNAPLINE_AUTOGEN_SNAPSHOTS", "50"))
KILLS = 5

FLEET = "tests.adapters.autogen.token_fleet:fleet"


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """None of this test's processes may outlive it: AutoGen's end with their hosts."""
    with nothing_left_running() as mark:
        yield mark


def test_autogens_own_save_conserves_no_total() -> None:
    """The same agents on AutoGen's runtime. Restored, they are short of what was under way."""
    command = [PYTHON, "-m", "tests.adapters.autogen.token_program", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0/50 conserved\n"


async def test_every_snapshot_of_ours_conserves_it_under_sigkill(tmp_path: Path) -> None:
    """Asked for at random moments while they work, read from the store; in between one or more hosts are killed at once."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    environment = {**os.environ, "SNAPLINE_AUTOGEN_PYTHON": PYTHON}
    cuts: list[Cut] = []
    async with running(tmp_path / "data", FLEET, hosts=3, environment=environment) as fleet:
        await fleet.until_epochs(1)
        while len(cuts) < SNAPSHOTS:
            turns = turns_of(await fleet.until(lambda now: now.phase == "running"))
            await fleet.until(partial(has_turned, turns + 5))
            await asyncio.sleep(chosen.uniform(0.0, 0.1))
            created = await fleet.client.create_snapshot()
            if created.is_complete:
                cuts.append(load_cut(Store.open(tmp_path / "data" / "store"), created.epoch, token_fleet.fleet()))
            if len(cuts) % (SNAPSHOTS // KILLS) == SNAPSHOTS // KILLS // 2:
                hosts = list(fleet.local.hosts)
                await fleet.recovered_from(*chosen.sample(hosts, chosen.randint(1, len(hosts))))
        recoveries = len(await fleet.recoveries())
    assert Store.open(tmp_path / "data" / "store").verify().findings == []
    whole = token_fleet.AGENTS * token_fleet.TOKENS
    totals = [token_fleet.total(cut) for cut in cuts]
    moved = sum(token_fleet.has_moved(before, after) for before, after in pairwise(cuts))
    print(f"{sum(each == whole for each in totals)}/{len(totals)} conserved, {recoveries} recoveries, {moved} moves")
    assert set(totals) == {whole} and recoveries >= KILLS
    assert not any(cut.dead_letters for cut in cuts)
    assert moved > SNAPSHOTS * 3 // 4, "nothing goes on between the snapshots: they show nothing"


def turns_of(now: FleetStatus) -> int:
    return sum(host.turns for host in now.hosts)


def has_turned(turns: int, now: FleetStatus) -> bool:
    return turns_of(now) > turns

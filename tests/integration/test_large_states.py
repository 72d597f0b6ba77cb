"""States of megabytes in a real fleet under SIGKILL: what comes back is exact, and epochs store what changed."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from tests.integration.fleets import thinkers
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.storage.store.store import Store

AGENTS, LAST = 4, 1000


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    "protocol",
    ["chandy-lamport", pytest.param("bcs", marks=pytest.mark.slow)],  # the simulator's memory pattern has bcs always
)
async def test_large_states_come_back_exactly_and_are_stored_by_what_changed(data_dir: Path, protocol: str) -> None:
    arguments = {"agents": str(AGENTS), "last": str(LAST), "protocol": protocol}
    async with running(data_dir, "thinkers:fleet", arguments) as fleet:
        await fleet.until_epochs(1)
        fleet.local.kill("h1")
        await fleet.until_recovered()
        await fleet.until_more_epochs(1)
        ending = await fleet.end()
    store = Store.open(data_dir / "store")
    states = load_cut(store, ending.epoch, thinkers.fleet(**arguments)).states
    for agent, state in thinkers.expected(AGENTS, LAST).items():
        found = states[agent]
        assert isinstance(found, thinkers.Memory)
        assert np.array_equal(found.weights, state.weights)
        assert list(found.chat) == list(state.chat)
        assert found.document == state.document
    assert store.verify().is_whole
    if protocol == "chandy-lamport":
        once = AGENTS * (thinkers.LENGTH * 8 + 500_000)
        assert len(store.epochs()) >= 3
        written = thinkers.store_bytes(data_dir / "store")  # also of epochs that were forgotten a moment ago
        assert written < (1 + 0.3 * ending.epoch) * once


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "bcs"])
async def test_large_states_survive_many_kills(data_dir: Path, protocol: str) -> None:
    """Of hosts and of the coordinator, at moments drawn from a seed."""
    drawn = random.Random(protocol)
    stop = data_dir.with_name("stop")
    arguments = {"agents": str(AGENTS), "last": "12000", "nap": "0.001", "period": "0.15", "protocol": protocol}
    arguments["stop"] = str(stop)
    kills = 0
    async with running(data_dir, "thinkers:fleet", arguments) as fleet:
        await fleet.until_epochs(1)
        ending = asyncio.create_task(fleet.end(300))
        while kills < 25:
            await asyncio.sleep(drawn.uniform(0.3, 2.0))
            name = drawn.choice([*fleet.local.hosts, "coordinator"])
            if fleet.local.pid(name) is not None:
                fleet.local.kill(name)
                kills += 1
        stop.touch()
        ended = await ending
    store = Store.open(data_dir / "store")
    states = load_cut(store, ended.epoch, thinkers.fleet(**arguments)).states
    for agent, state in thinkers.expected(AGENTS, 12000).items():
        found = states[agent]
        assert isinstance(found, thinkers.Memory)
        assert np.array_equal(found.weights, state.weights) and list(found.chat) == list(state.chat)
        assert found.document == state.document
    assert store.verify().is_whole

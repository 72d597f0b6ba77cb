"""States of megabytes in a real fleet under SIGKILL: what comes back is exact, and epochs store what changed."""

from pathlib import Path

import numpy as np
import pytest
from tests.integration.fleets import thinkers
from tests.integration.running import running

from snapline.agent_runtime.cut import load_cut
from snapline.storage.store import Store

AGENTS, LAST = 4, 1500


@pytest.mark.timeout(110)
@pytest.mark.parametrize("protocol", ["chandy-lamport", "bcs"])
async def test_large_states_come_back_exactly_and_are_stored_by_what_changed(data_dir: Path, protocol: str) -> None:
    arguments = {"agents": str(AGENTS), "last": str(LAST), "protocol": protocol}
    async with running(data_dir, "thinkers:fleet", arguments) as fleet:
        await fleet.until_epochs(2)
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
        assert thinkers.store_bytes(data_dir / "store") < (1 + 0.3 * len(store.epochs())) * once

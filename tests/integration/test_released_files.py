"""A fleet of real processes speaks to the outside while its hosts are killed: each output is released once, in order, and none is missing (R2).

The files are read when all is over, and compared with the states of the last snapshot, which know nothing of outputs.
"""

from pathlib import Path

import pytest
from tests.integration.fleets import speakers
from tests.integration.fleets.speakers import Speech
from tests.integration.running import running

from snapline.agent_runtime.message_encoding import Output
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("protocol", [pytest.param("chandy-lamport", marks=pytest.mark.slow), "hmnr"])
async def test_outputs_are_released_once_and_in_order_while_hosts_are_killed(data_dir: Path, protocol: str) -> None:
    stop = data_dir.with_name("stop")
    async with running(data_dir, "speakers:fleet", {"stop": str(stop), "protocol": protocol}, hosts=3) as fleet:
        await fleet.until_epochs(2)
        for host in ("h2", "h1"):
            await fleet.recovered_from(host)
            await fleet.until_more_epochs(2)
        stop.touch()
        await fleet.end()
    store = Store.open(data_dir / "store")
    released: dict[str, list[int]] = {}
    for batch in store.read_outputs():
        assert batch.undone is None
        for output in batch.outputs:
            assert output.topic == "heard"
            released.setdefault(output.agent, []).append(output.number)
    last = open_store(data_dir / "store", fleet=speakers.fleet("")).snapshot("latest")
    said: dict[str, list[tuple[int, int]]] = {agent: [] for agent in released}
    for found in open_store(data_dir / "store").outputs("heard", message_type=speakers.Heard):
        assert isinstance(found, Output)
        said[found.agent].append((found.message.count, found.message.token))
    for agent, member in last.agents.items():
        state = member.state
        assert isinstance(state, Speech) and len(state.tokens) > 10
        assert released[agent] == list(range(1, len(state.tokens) + 1))
        assert said[agent] == list(enumerate(state.tokens, 1))

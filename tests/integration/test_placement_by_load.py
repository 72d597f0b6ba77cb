"""Agents that must move go where least is done: real processes, whose heartbeats say what that is."""

from pathlib import Path

import pytest
from tests.integration.fleets.uneven import AGENTS
from tests.integration.running import running

pytestmark = pytest.mark.timeout(120)


async def test_the_agents_of_a_drained_host_go_to_the_one_that_does_least(data_dir: Path) -> None:
    """By numbers both others would get their part; h1, where all work is done, gets nobody."""
    async with running(data_dir, "uneven:fleet", hosts=3) as fleet:
        await fleet.until_epochs(12)
        before = {found.agent: found.host for found in (await fleet.client.locate_all()).agents}
        assert before == {agent: f"h{1 + number % 3}" for number, agent in enumerate(AGENTS)}, (
            "nobody has moved for load"
        )
        await fleet.client.move_agents(["h3"])
        await fleet.until(lambda now: now.phase == "running" and now.plan == 2)
        after = {found.agent: found.host for found in (await fleet.client.locate_all()).agents}
        assert after == {agent: "h1" if host == "h1" else "h2" for agent, host in before.items()}

"""Tools of an MCP server in durable turns of Pydantic AI's agents."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.turns import Turn
from tests.integration.cuts import store_of
from tests.integration.running import running

REASON = "Pydantic AI is not installed with MCP: make test-pydantic-ai"
pytest.importorskip("pydantic_ai.mcp", reason=REASON, exc_type=ImportError)

from tests.adapters.pydantic_agents import shop

from snapline.adapters.pydantic_ai import run
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]

KILLS = 4

LINES = sorted(["order bread", *(f"stock {item}" for item in shop.ITEMS)])


def turn_of(agent: Any, journal: Any = None) -> Turn:
    return Turn(lambda ctx: run(ctx, agent, "hello"), journal)


def test_a_rerun_from_anywhere_calls_each_tool_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    agent = shop.buyer_of(str(notes))
    whole = turn_of(agent)
    assert whole.end().output == shop.EXPECTED and sorted(notes.read_text().splitlines()) == LINES
    assert [len(requests) for requests in whole.asked if "call_tool" in requests[0]] == [3, 1], whole.asked
    for length in range(1, len(whole.journal)):
        notes.write_text("")
        begun = turn_of(agent)
        assert begun.end(length - 1) is None
        rerun = turn_of(shop.buyer_of(str(notes)), begun.journal)  # another process knows nothing of the server's tools
        assert rerun.end().output == shop.EXPECTED
        assert begun.asked + rerun.asked == whole.asked and sorted(notes.read_text().splitlines()) == LINES


async def test_a_fleet_whose_host_is_killed_hears_the_same_of_its_server(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    name, arguments = "tests.adapters.pydantic_agents.shop:fleet", {"notes": str(notes)}
    async with running(tmp_path / "data", name, arguments, hosts=1) as fleet:
        await fleet.end_killed(KILLS, random.Random(3), 1.0)
    store = store_of(tmp_path / "data")
    state = load_cut(store, store.epochs()[-1], shop.fleet(**arguments)).states["buyer"]
    assert isinstance(state, shop.Memory) and state.answers == [shop.EXPECTED]
    assert set(notes.read_text().splitlines()) == set(LINES)

"""Tools of an MCP server in durable turns of OpenAI's agents."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.turns import Turn
from tests.integration.cuts import store_of
from tests.integration.running import running

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: make test-adapters")

from agents import Agent
from agents.mcp import MCPServer
from mcp.types import CallToolResult
from tests.adapters.openai_runs import buyer
from tests.adapters.openai_runs.desk import CONFIG

from snapline.adapters.openai_agent_runs import run
from snapline.adapters.openai_mcp_servers import StepServer
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import UsageError

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(240)]

KILLS = 4

LINES = sorted(["order bread outside", *(f"stock {item}" for item in buyer.ITEMS)])


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def buyer_of(notes: Path) -> Agent[Any]:
    return buyer.buyer_of(str(notes), str(notes.with_name("models")))


def turn_of(agent: Agent[Any], journal: Any = None, effects: tuple[str, ...] = ("order",)) -> Turn:
    return Turn(lambda ctx: run(ctx, agent, "bread", run_config=CONFIG, effects=effects), journal)


CUTS = (3, 6)
"""Entries of the journal that a killed process leaves: within the group, and after the effect."""


def test_a_rerun_calls_each_tool_once(notes: Path) -> None:
    whole = turn_of(buyer_of(notes))
    assert whole.end().final_output == buyer.EXPECTED
    assert whole.asked == [
        ["step buyer/shop.list_tools"],
        ["step buyer/model"],
        ["step buyer/shop.stock"] * 3,
        ["step buyer/model"],
        ["effect buyer/shop.order"],
        ["step buyer/model"],
    ], "these names are in journals: whoever changes them breaks turns that are under way"
    assert sorted(notes.read_text().splitlines()) == LINES
    for length in CUTS:
        notes.write_text("")
        begun = turn_of(buyer_of(notes))
        assert begun.end(length - 1) is None
        rerun = turn_of(buyer_of(notes), begun.journal)  # another process knows nothing of the server's tools
        assert rerun.end().final_output == buyer.EXPECTED
        assert begun.asked + rerun.asked == whole.asked and sorted(notes.read_text().splitlines()) == LINES


class Counting(MCPServer):
    """A server that counts its connections, and fails calls of "broken"."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    name = "counting"

    async def connect(self) -> None:
        self.log.append("connect")

    async def cleanup(self) -> None:
        self.log.append("cleanup")

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any: ...

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        await asyncio.sleep(0.05)
        self.log.append(tool_name)
        if tool_name == "broken":
            raise ConnectionResetError
        return CallToolResult(content=[])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


async def test_steps_that_overlap_share_a_connection_and_the_last_one_closes_it() -> None:
    inner = Counting()
    server = StepServer(inner, "buyer", effects=(), options={})
    await asyncio.gather(*(server.call_tool("look", {}) for _ in range(3)))
    assert inner.log == ["connect", "look", "look", "look", "cleanup"]
    await server.call_tool("look", {})
    assert inner.log[5:] == ["connect", "look", "cleanup"]


async def test_after_an_error_steps_wait_for_a_new_connection() -> None:
    inner = Counting()
    server = StepServer(inner, "buyer", effects=(), options={})

    async def after_error() -> None:
        with contextlib.suppress(ConnectionResetError):
            await server.call_tool("broken", {})
        await server.call_tool("look", {})

    async def long() -> None:
        await server.call_tool("look", {})

    await asyncio.gather(after_error(), after_error(), long())
    assert inner.log == ["connect", "broken", "broken", "look", "cleanup", "connect", "look", "look", "cleanup"]


def test_an_unknown_effect_is_refused_when_the_tools_are_known(notes: Path) -> None:
    with pytest.raises(UsageError, match="agent 'buyer' has no tool 'ordr'; its tools: order, stock"):
        turn_of(buyer_of(notes), effects=("ordr",)).end()


def test_a_server_that_cannot_be_reached_fails_the_step_and_keeps_no_connection(notes: Path) -> None:
    agent = buyer_of(notes)
    agent.mcp_servers[0].params.command = "/nowhere"
    for _ in range(2):
        with pytest.raises(Exception, match=r"step 'buyer/shop\.list_tools' failed: FileNotFoundError"):
            turn_of(agent).end()


async def test_a_fleet_whose_host_is_killed_buys_once(tmp_path: Path, notes: Path) -> None:
    name, arguments = "tests.adapters.openai_runs.buyer:fleet", {"notes": str(notes), "models": str(tmp_path / "m")}
    async with running(tmp_path / "data", name, arguments, hosts=1) as fleet:
        await fleet.end_killed(KILLS, random.Random(3), 1.0)
    store = store_of(tmp_path / "data")
    state = load_cut(store, store.epochs()[-1], buyer.fleet(**arguments)).states["buyer"]
    assert isinstance(state, buyer.Memory) and state.answers == [buyer.EXPECTED]
    lines = set(notes.read_text().splitlines())
    assert {line.rpartition(" ")[0] if "order" in line else line for line in lines} == {
        "order bread",
        *(f"stock {item}" for item in buyer.ITEMS),
    }
    assert sum("order" in line for line in lines) == 1, "the shop sees one key, however often it is asked"

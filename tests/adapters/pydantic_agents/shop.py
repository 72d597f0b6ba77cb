"""A buyer, an agent of Pydantic AI, that uses the tools of a shop, an MCP server."""

import sys
from pathlib import Path

import msgspec
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import snapline
from snapline.adapters.pydantic_ai import SnaplineDurability, run

ROOT = Path(__file__).parents[3]
ITEMS = ("tea", "milk", "bread")
EXPECTED = "3, 4, 5; ordered bread"


class Memory(msgspec.Struct):
    notes: str
    answers: list[str] = []


class Need(snapline.Message):
    text: str


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that asks for all items at once, orders the last one, and then says what it has heard."""
    assert [tool.name for tool in info.function_tools] == ["stock", "order"]
    match len(messages):
        case 1:
            return ModelResponse([ToolCallPart("stock", {"item": item}, item) for item in ITEMS])
        case 3:
            return ModelResponse([ToolCallPart("order", {"item": ITEMS[-1]}, "order")])
        case _:
            heard = [", ".join(str(getattr(part, "content", "")) for part in messages[n].parts) for n in (2, 4)]
            return ModelResponse([TextPart("; ".join(heard))])


def buyer_of(notes: str) -> Agent[None, str]:
    server = StdioTransport(sys.executable, ["-m", "tests.adapters.mcp_shop", notes], cwd=str(ROOT))
    shop: MCPToolset[None] = MCPToolset(server, id="shop")
    return Agent(FunctionModel(answer), name="buyer", toolsets=[shop], capabilities=[SnaplineDurability()])


class Buyer(snapline.Agent):
    state: Memory

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Need("bread"))

    @snapline.handler(durable=True)
    async def on_need(self, message: Need, ctx: snapline.Context) -> None:
        result = await run(ctx, buyer_of(self.state.notes), message.text)
        self.state.answers.append(result.output)


def has_bought(cut: snapline.Cut) -> bool:
    state = cut.states["buyer"]
    assert isinstance(state, Memory)
    return bool(state.answers)


def fleet(notes: str) -> snapline.Fleet:
    agents = {"buyer": lambda: Buyer(Memory(notes))}
    return snapline.Fleet("shop", agents=agents, triggers=[snapline.Every(seconds=0.2)], stop_when=has_bought)

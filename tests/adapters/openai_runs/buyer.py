"""A buyer, an agent of the OpenAI Agents SDK, that uses the tools of a shop, an MCP server."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from agents import Agent
from agents.mcp import MCPServerStdio
from agents.testing import assistant_message, function_call
from tests.adapters.openai_runs.desk import CONFIG, Answering

import snapline
from snapline.adapters.openai_agent_runs import run

ROOT = Path(__file__).parents[3]
ITEMS = ("tea", "milk", "bread")
EXPECTED = "3, 4, 5, ordered bread"


class Memory(msgspec.Struct):
    notes: str
    models: str
    answers: list[str] = []


class Need(snapline.Message):
    text: str


def said(outputs: list[Any]) -> Any:
    texts = [output if isinstance(output, str) else output[0]["text"] for output in outputs]
    return assistant_message(", ".join(texts))


def buyer_of(notes: str, models: str) -> Agent[Any]:
    """An agent that asks for the stock of all items at once, orders the last one, and then says what it has heard."""
    command = {"command": sys.executable, "args": ["-m", "tests.adapters.mcp_shop", notes], "cwd": str(ROOT)}
    shop = MCPServerStdio(command, name="shop", client_session_timeout_seconds=60)
    answers = {
        0: [function_call("stock", json.dumps({"item": item}), call_id=item) for item in ITEMS],
        3: [function_call("order", json.dumps({"item": ITEMS[-1]}), call_id="order")],
        4: [said],
    }
    return Agent("buyer", model=Answering(models, "buyer", answers), mcp_servers=[shop])


class Buyer(snapline.Agent):
    state: Memory

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Need("bread"))

    @snapline.handler(durable=True)
    async def on_need(self, message: Need, ctx: snapline.Context) -> None:
        buyer = buyer_of(self.state.notes, self.state.models)
        result = await run(ctx, buyer, message.text, run_config=CONFIG, effects=("order",))
        self.state.answers.append(result.final_output)


def has_bought(cut: snapline.Cut) -> bool:
    state = cut.states["buyer"]
    assert isinstance(state, Memory)
    return bool(state.answers)


def fleet(notes: str, models: str) -> snapline.Fleet:
    agents = {"buyer": lambda: Buyer(Memory(notes, models))}
    return snapline.Fleet("shop", agents=agents, triggers=[snapline.Every(seconds=0.2)], stop_when=has_bought)

"""One fleet of two graphs of LangGraph, three agents of AutoGen, two gRPC services and four agents of ours, which pass tokens on in a cycle."""

import operator
import os
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from tests.adapters.grpc_services.bank_fleets import BankAgent, Coins
from tests.adapters.one_cut.cycle import CYCLE
from tests.adapters.one_cut.native_cycle import NATIVES, Passing, PassingAgent, amount_of, next_agent, tokens_for

import snapline
from snapline.adapters.autogen import AutogenAgent, AutogenMessage
from snapline.adapters.langgraph import SnaplineGraphAgent, durable, graph_turn

BANKS = ("bank..a", "bank..b")
HOSTS = {
    "h1": ("native..1", "graph..1", "purse..1", "autogen"),
    "h2": ("native..2", "graph..2", "purse..2"),
    "h3": ("native..3", "purse..3", "native..4"),
}
"""Each bank is a process of its own, and a host of its own."""


class Held(TypedDict):
    held: Annotated[int, operator.add]


def pass_on(state: Held) -> dict[str, Any]:
    ctx = graph_turn().ctx
    amount = 1 + int(ctx.random() * min(4, state["held"]))
    ctx.send(next_agent(ctx.agent), tokens_for(next_agent(ctx.agent), amount))
    return {"held": -amount}


def think(state: Held) -> dict[str, Any]:
    """As if a model was asked how many to pass on, and thought about it."""
    turn = graph_turn()
    amount = durable("think", min, 3, state["held"])
    turn.wait(turn.ctx.sleep(0.005))
    to = next_agent(turn.ctx.agent)
    turn.ctx.send(to, tokens_for(to, amount))
    return {"held": -amount}


class QuickGraph(SnaplineGraphAgent):
    """In plain turns."""

    graph = StateGraph(Held).add_node("pass_on", pass_on).add_edge(START, "pass_on")

    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        self.invoke({"held": message.amount}, ctx, thread_id=ctx.agent)


class ThinkingGraph(SnaplineGraphAgent):
    """In durable ones."""

    graph = StateGraph(Held).add_node("think", think).add_edge(START, "think")

    @snapline.handler(durable=True)
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        await self.ainvoke({"held": message.amount}, ctx, thread_id=ctx.agent)


class PassingPurses(AutogenAgent):
    """Named are those too that AutoGen's agents send to and that are none of AutoGen's: the fleet puts its own in their places."""

    program = "tests.adapters.one_cut.passing_program:register"
    ids = tuple(each for each in CYCLE if not each.startswith("graph/"))


class PassingBank(BankAgent):
    """Takes tokens from AutoGen's agents too."""

    @snapline.handler
    async def on_tokens(self, message: AutogenMessage, ctx: snapline.Context) -> None:
        self.service.kept.tokens += amount_of(message)


def fleet() -> snapline.Fleet:
    stop = os.environ.get("SNAPLINE_ONE_CUT_STOP", "")
    natives = {agent: PassingAgent(Passing(to=next_agent(agent), stop=stop)) for agent in NATIVES}
    graphs = {"graph..1": QuickGraph(), "graph..2": ThinkingGraph()}
    banks = {bank: PassingBank() for bank in BANKS}
    return snapline.Fleet(
        "one-cut",
        agents={**PassingPurses.agents(), **natives, **graphs, **banks},
        place={**{agent: host for host, agents in HOSTS.items() for agent in agents}, **{bank: bank for bank in BANKS}},
        triggers=[snapline.Every(seconds=0.2)],
    )

"""A graph with a megabyte in its state that no step touches, in plain turns or in durable ones, one after the other without end."""

import random
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph

import snapline
from snapline.adapters.langgraph import SnaplineGraphAgent, graph_turn

LARGE_BYTES = 1_000_000


class Papers(TypedDict):
    papers: bytes
    count: int


def papers() -> bytes:
    """The same, whenever it is asked."""
    return random.Random(1).randbytes(LARGE_BYTES)


class Tick(snapline.Message):
    pass


def count(state: Papers) -> dict[str, Any]:
    return {"count": state["count"] + 1}


def sleep(state: Papers) -> dict[str, Any]:
    turn = graph_turn()
    turn.wait(turn.ctx.sleep(0.02))
    return {"count": state["count"] + 1}


def graph_of(node: Any) -> Any:
    graph: Any = StateGraph(Papers)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


class CountingGraph(SnaplineGraphAgent):
    graph = graph_of(count)

    async def on_start(self, ctx: snapline.Context) -> None:
        self.invoke({"papers": papers(), "count": 0}, ctx)
        ctx.send(ctx.agent, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        self.invoke({"count": self.values()["count"]}, ctx)
        ctx.set_timer("tick", 0.02, message)


class SleepingGraph(SnaplineGraphAgent):
    graph = graph_of(sleep)

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Tick())

    @snapline.handler(durable=True)
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        given = self.values() or {"papers": papers(), "count": 0}
        await self.ainvoke(given if given["count"] == 0 else {"count": given["count"]}, ctx)
        ctx.send(ctx.agent, Tick())


def fleet(durable: str = "", protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents = {"graph": SleepingGraph() if durable else CountingGraph()}
    return snapline.Fleet("large-graph", agents=agents, protocol=protocol)

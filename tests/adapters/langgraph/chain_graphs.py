"""A graph that talks with a model turn after turn, in a fleet that takes snapshots by hand only: its calls are in the host log and nowhere else."""

import operator
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from tests.adapters.langgraph.plan_graphs import model

import snapline
from snapline.adapters.langgraph import GraphMemory, SnaplineGraphAgent, durable

TURNS = 12


class Chat(MessagesState):
    calls: str
    asked: Annotated[int, operator.add]


def talk(state: Chat) -> dict[str, Any]:
    """The first message has an id from LangGraph, by chance unless the turn gives it; the answer one from the model's library."""
    return {"messages": [durable("model", answer, state["calls"], state["asked"])], "asked": 1}


def answer(calls: str, number: int) -> AIMessage:
    return AIMessage(model(calls, f"chain.{number}"))


def _graph() -> Any:
    graph: Any = StateGraph(Chat)
    graph.add_node("talk", talk)
    graph.add_edge(START, "talk")
    return graph


class Next(snapline.Message):
    number: int


class ChainMemory(GraphMemory):
    calls: str = ""


class ChainingGraph(SnaplineGraphAgent):
    """Each turn is the next one's beginning."""

    graph = _graph()
    state: ChainMemory

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Next(0))

    @snapline.handler(durable=True)
    async def on_next(self, message: Next, ctx: snapline.Context) -> None:
        given = {"messages": [("user", f"question {message.number}")], "calls": self.state.calls}
        await self.ainvoke(given, ctx)
        if message.number + 1 < TURNS:
            ctx.send(ctx.agent, Next(message.number + 1))


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["chain"]
    assert isinstance(state, GraphMemory)
    return state.values().get("asked") == TURNS


def fleet(calls: str) -> snapline.Fleet:
    return snapline.Fleet("chain", agents={"chain": ChainingGraph(ChainMemory(calls=calls))}, stop_when=is_over)

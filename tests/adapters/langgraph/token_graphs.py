"""A fleet of graphs and native agents that pass tokens to each other: none is ever made or lost. Its total is in every cut."""

import operator
from typing import Annotated, Any, TypedDict

import msgspec
from langgraph.graph import END, START, StateGraph

import snapline
from snapline.adapters.langgraph import GraphMemory, SnaplineGraphAgent, durable, graph_turn

TOKENS = 20
"""Each agent's, in the beginning."""


class Tokens(snapline.Message):
    """`hops`: so often they are still passed on."""

    count: int
    hops: int


class Purse(TypedDict):
    held: Annotated[int, operator.add]
    taken: Annotated[list[int], operator.add]
    hops: int


def take(state: Purse) -> dict[str, Any]:
    """Say what has come; `hops` are those of the message."""
    return {"taken": [state["hops"]]}


def give(state: Purse) -> dict[str, Any]:
    """Pass some of them on, to whom chance says."""
    ctx = graph_turn().ctx
    count = 1 + int(ctx.random() * min(3, state["held"]))
    ctx.send(_other(ctx), Tokens(count, state["hops"] - 1))
    return {"held": -count}


def think(state: Purse) -> dict[str, Any]:
    """As if a model was asked how many to pass on, and a colleague whether that is fine."""
    turn = graph_turn()
    count = durable("think", min, 2, state["held"])
    turn.wait(turn.ctx.sleep(0.01))
    turn.ctx.send(_other(turn.ctx), Tokens(count, state["hops"] - 1))
    return {"held": -count}


def _other(ctx: snapline.Context) -> str:
    others = [name for name in NAMES if name != ctx.agent]
    return others[int(ctx.random() * len(others))]


def _graph(node: Any) -> Any:
    graph: Any = StateGraph(Purse)
    graph.add_node("take", take)
    graph.add_node("give", node)
    graph.add_edge(START, "take")
    graph.add_conditional_edges("take", lambda state: "give" if state["hops"] and state["held"] else END, ["give", END])
    return graph


class _Starting(SnaplineGraphAgent):
    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Tokens(TOKENS, HOPS))


class PlainPurse(_Starting):
    """A graph in plain turns."""

    graph = _graph(give)

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.invoke({"held": message.count, "hops": message.hops}, ctx)


class ThoughtfulPurse(_Starting):
    """One in durable turns."""

    graph = _graph(think)

    @snapline.handler(durable=True)
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        await self.ainvoke({"held": message.count, "hops": message.hops}, ctx)


class Coins(msgspec.Struct):
    held: int = 0


class NativePurse(snapline.Agent):
    state: Coins

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Tokens(TOKENS, HOPS))

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.state.held += message.count
        if message.hops and self.state.held:
            self.state.held -= 1
            ctx.send(_other(ctx), Tokens(1, message.hops - 1))


NAMES = ("plain", "thoughtful", "native-0", "native-1")
HOPS = 100


def held(state: Any) -> int:
    """What an agent has, by its state."""
    return state.held if isinstance(state, Coins) else state.values().get("held", 0)


def total(cut: snapline.Cut) -> int:
    """All tokens in a cut: held, and on their way."""
    moving = [sent.message.count for sent in cut.in_transit if isinstance(sent.message, Tokens)]
    waiting = [turn.message.count for turn in cut.pending_turns if isinstance(turn.message, Tokens)]
    return sum(held(state) for state in cut.states.values()) + sum(moving) + sum(waiting)


def is_over(cut: snapline.Cut) -> bool:
    return cut.is_quiet and total(cut) == TOKENS * len(NAMES)


def fleet(protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents: dict[str, snapline.Agent] = {
        "plain": PlainPurse(),
        "thoughtful": ThoughtfulPurse(),
        "native-0": NativePurse(Coins()),
        "native-1": NativePurse(Coins()),
    }
    return snapline.Fleet(
        "tokens", agents=agents, protocol=protocol, triggers=[snapline.Every(seconds=0.2)], stop_when=is_over
    )

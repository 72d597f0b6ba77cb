"""A fleet of graphs and native agents that pass tokens to each other: none is ever made or lost. Its total is in every cut."""

import operator
from typing import Annotated, Any, TypedDict

import msgspec
from langgraph.checkpoint.memory import InMemorySaver
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
    turns: Annotated[int, operator.add]
    hops: int


def count(state: Purse) -> dict[str, Any]:
    return {"turns": 1}


def give(state: Purse) -> dict[str, Any]:
    """Pass some of them on, to whom chance says."""
    ctx = graph_turn().ctx
    given = 1 + int(ctx.random() * min(3, state["held"]))
    ctx.send(other(ctx), Tokens(given, state["hops"] - 1))
    return {"held": -given}


def think(state: Purse) -> dict[str, Any]:
    """As if a model was asked how many to pass on, and thought about it."""
    turn = graph_turn()
    given = durable("think", min, 2, state["held"])
    turn.wait(turn.ctx.sleep(0.005))
    turn.ctx.send(other(turn.ctx), Tokens(given, state["hops"] - 1))
    return {"held": -given}


def other(ctx: snapline.Context) -> str:
    others = [name for name in NAMES if name != ctx.agent]
    return others[int(ctx.random() * len(others))]


def graph_with(node: Any) -> Any:
    graph: Any = StateGraph(Purse)
    graph.add_node("count", count)
    graph.add_node("give", node)
    graph.add_edge(START, "count")
    graph.add_conditional_edges(
        "count", lambda state: "give" if state["hops"] and state["held"] else END, ["give", END]
    )
    return graph


class Pocket(GraphMemory):
    """`pocket`: what the graph has not been given yet."""

    pocket: int = TOKENS
    hops: int = 0


class StartingPurse(SnaplineGraphAgent):
    """Gives itself what it has."""

    graph = graph_with(give)
    state: Pocket

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Tokens(self.state.pocket, self.state.hops))
        self.state.pocket = 0


class PlainPurse(StartingPurse):
    """A graph in plain turns."""

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.invoke({"held": message.count, "hops": message.hops}, ctx)


class ThoughtfulPurse(StartingPurse):
    """One in durable turns."""

    graph = graph_with(think)

    @snapline.handler(durable=True)
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        await self.ainvoke({"held": message.count, "hops": message.hops}, ctx)


class LeakyPurse(StartingPurse):
    """The bug that tests have to find: what the graph has is not in the agent's state, which only says what it was."""

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        given = min(1, message.hops)
        beside.checkpointer = beside.checkpointer or InMemorySaver()
        found = beside.invoke({"held": message.count - given, "hops": 0}, {"configurable": {"thread_id": ctx.agent}})
        self.state.pocket = found["held"]
        if given:
            ctx.send(other(ctx), Tokens(given, message.hops - 1))


beside: Any = graph_with(give).compile()


class Coins(msgspec.Struct):
    held: int = TOKENS
    hops: int = 0


class NativePurse(snapline.Agent):
    state: Coins

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Tokens(0, self.state.hops))

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.state.held += message.count
        if message.hops and self.state.held:
            self.state.held -= 1
            ctx.send(other(ctx), Tokens(1, message.hops - 1))


NAMES = ("plain", "thoughtful", "native-0", "native-1")

TOTAL = TOKENS * len(NAMES)


def held(state: Any) -> int:
    """What an agent has, by its state."""
    found: int = state.held if isinstance(state, Coins) else state.pocket + state.values().get("held", 0)
    return found


def total(cut: snapline.Cut) -> int:
    """All tokens in a cut: held, and on their way."""
    moving = [sent.message.count for sent in cut.in_transit if isinstance(sent.message, Tokens)]
    waiting = [turn.message.count for turn in cut.pending_turns if isinstance(turn.message, Tokens)]
    return sum(held(state) for state in cut.states.values()) + sum(moving) + sum(waiting)


def conserves(cut: snapline.Cut) -> None:
    """The invariant, in every cut."""
    assert total(cut) == TOTAL, f"{total(cut)} tokens of {TOTAL}"
    assert not cut.dead_letters, cut.dead_letters[0].error


def is_over(cut: snapline.Cut) -> bool:
    return cut.is_quiet and len(cut.states) == len(NAMES)


def fleet(hops: str = "40", plain: str = "", protocol: str = "chandy-lamport") -> snapline.Fleet:
    """`plain`: "leaky" for the planted bug."""
    beside.checkpointer = None
    agents: dict[str, snapline.Agent] = {
        "plain": (LeakyPurse if plain else PlainPurse)(Pocket(hops=int(hops))),
        "thoughtful": ThoughtfulPurse(Pocket(hops=int(hops))),
        "native-0": NativePurse(Coins(hops=int(hops))),
        "native-1": NativePurse(Coins(hops=int(hops))),
    }
    return snapline.Fleet(
        "tokens", agents=agents, protocol=protocol, triggers=[snapline.Every(seconds=0.2)], stop_when=is_over
    )


def leaky_fleet() -> snapline.Fleet:
    return fleet(plain="leaky")

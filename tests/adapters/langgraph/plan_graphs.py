"""A graph with a plan of twenty calls of a model, and one that reviews what it found: until all plans are done. Each call leaves its traces in a file."""

import operator
import os
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import snapline
from snapline.adapters.langgraph import (
    GraphInput,
    GraphMemory,
    GraphResult,
    SnaplineGraphAgent,
    durable,
    graph_turn,
)

STEPS = 20
REVIEW_EVERY = 5
PAUSE_S = 0.02

BEGUN, DONE = "begun", "done"


class Plan(TypedDict):
    """`papers`: a large value that no step touches."""

    notes: Annotated[list[str], operator.add]
    number: int
    calls: str
    papers: str


class Review(TypedDict):
    notes: Annotated[list[str], operator.add]
    verdict: str


def model(calls: str, question: str) -> str:
    """Stands in for a model: it notes that it was asked, and that it has answered."""
    _note(calls, BEGUN, question)
    answer = f"answer to {question}"
    _note(calls, DONE, question)
    return answer


def _note(calls: str, what: str, question: str) -> None:
    """One write of so few bytes is whole, or is not there."""
    file = os.open(calls, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{what} {question}\n".encode())
    finally:
        os.close(file)


def ask(state: Plan) -> dict[str, Any]:
    turn, number = graph_turn(), state["number"]
    answer = durable(f"model {number}", model, state["calls"], f"{turn.ctx.agent}.{number}")
    turn.wait(turn.ctx.sleep(PAUSE_S))
    return {"notes": [answer], "number": number + 1}


def review(state: Plan) -> dict[str, Any]:
    turn = graph_turn()
    asked = GraphInput({"notes": state["notes"][-REVIEW_EVERY:]}, turn.ctx.agent)
    found = turn.call("reviewer", asked, GraphResult)
    return {"notes": [found.values["verdict"]]}


def judge(state: Review) -> dict[str, Any]:
    return {"verdict": f"{len(state['notes'])} read"}


def _way(state: Plan) -> str:
    number = state["number"]
    last = state["notes"][-1]
    if number % REVIEW_EVERY == 0 and last.startswith("answer"):
        return "review"
    return END if number == STEPS else "ask"


def _planning() -> Any:
    graph: Any = StateGraph(Plan)
    graph.add_node("ask", ask)
    graph.add_node("review", review)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", _way, ["ask", "review", END])
    graph.add_conditional_edges("review", _way, ["ask", END])
    return graph


def _reviewing() -> Any:
    graph: Any = StateGraph(Review)
    graph.add_node("judge", judge)
    graph.add_edge(START, "judge")
    return graph


class PlanMemory(GraphMemory):
    """`calls`: the file."""

    calls: str = ""


class Go(snapline.Message):
    pass


class PlanningGraph(SnaplineGraphAgent):
    graph = _planning()
    state: PlanMemory

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        await self.ainvoke({"notes": [], "number": 0, "calls": self.state.calls, "papers": "x" * 100_000}, ctx)


class ReviewingGraph(SnaplineGraphAgent):
    graph = _reviewing()


PLANNERS = ("planner-0", "planner-1")


def notes_of(state: object) -> list[str]:
    assert isinstance(state, GraphMemory)
    found: list[str] = state.values().get("notes", [])
    return found


def expected(agent: str) -> list[str]:
    """What a plan comes to."""
    notes = []
    for number in range(STEPS):
        notes.append(f"answer to {agent}.{number}")
        if (number + 1) % REVIEW_EVERY == 0:
            notes.append(f"{number + 1} read")
    return notes


def is_over(cut: snapline.Cut) -> bool:
    return cut.is_quiet and all(notes_of(cut.states[planner]) for planner in PLANNERS)


def fleet(calls: str) -> snapline.Fleet:
    agents: dict[str, snapline.Agent] = {planner: PlanningGraph(PlanMemory(calls=calls)) for planner in PLANNERS}
    agents["reviewer"] = ReviewingGraph()
    return snapline.Fleet("graph-plans", agents=agents, triggers=[snapline.Every(seconds=0.2)], stop_when=is_over)

"""Whole graphs give the same on our saver as on LangGraph's saver in memory: interrupts, subgraphs, time travel, delta channels, each durability."""

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from tests.adapters.langgraph import playing  # skips where LangGraph is not there

assert playing.REASON

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from tests.adapters.langgraph.playing import thread

from snapline.adapters.langgraph import SnaplineSaver

pytestmark = pytest.mark.langgraph


def folded(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(item for write in writes for item in write)]


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]
    notes: Annotated[list[str], DeltaChannel(folded, snapshot_frequency=4)]
    answer: str


def talk(saver: Any) -> Any:
    """Three parallel tasks, a subgraph that asks a person in its middle, and a loop."""

    def split(state: Talk) -> list[Send]:
        return [Send("task", {"said": [f"{len(state['said'])}.{at}"]}) for at in range(3)]

    def task(state: Talk) -> dict[str, Any]:
        name = state["said"][0]
        return {"said": [f"done {name} " * 30], "notes": [f"note {name}"]}

    def ask(state: Talk) -> dict[str, Any]:
        return {"answer": interrupt("what now?"), "notes": ["asked"]}

    inner = StateGraph(Talk)
    inner.add_node("before", lambda state: {"notes": ["inner"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    graph: Any = StateGraph(Talk)
    graph.add_node("task", task)
    graph.add_node("inner", inner.compile())
    graph.add_conditional_edges(START, split, ["task"])
    graph.add_edge("task", "inner")
    graph.add_conditional_edges(
        "inner", lambda state: END if state["answer"] == "stop" else split(state), ["task", END]
    )
    return graph.compile(checkpointer=saver)


def story(saver: Any, *, durability: str) -> list[Any]:
    """Everything that can be seen of a run with two questions, and of a way back to its first."""
    graph, config = talk(saver), thread("talk")
    seen: list[Any] = [without_ids(graph.invoke({"said": ["hello"]}, config, durability=durability))]
    seen.append(looks(graph, config))
    seen.append(without_ids(graph.invoke(Command(resume="more"), config, durability=durability)))
    asked = [state for state in graph.get_state_history(config) if state.next == ("inner",)]
    seen.append(without_ids(graph.invoke(Command(resume="stop"), config, durability=durability)))
    seen.append(looks(graph, config))
    if durability == "sync":
        graph.update_state(asked[-1].config, {"said": ["changed"]})
        seen.append(looks(graph, config))
        seen.append(without_ids(graph.invoke(None, config, durability=durability)))
    seen += [look(state) for state in graph.get_state_history(config)]
    return seen


def looks(graph: Any, config: Any) -> list[Any]:
    state = graph.get_state(config, subgraphs=True)
    return [look(state), *(look(task.state) for task in state.tasks if hasattr(task.state, "values"))]


def look(state: Any) -> Any:
    tasks = [(task.name, [each.value for each in task.interrupts], task.error) for task in state.tasks]
    return state.values, state.next, state.metadata.get("step"), state.metadata.get("source"), tasks


def without_ids(result: Any) -> Any:
    return {name: value for name, value in result.items() if name != "__interrupt__"}


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Any]:
    with SnaplineSaver.open(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_gives_the_same_as_in_memory(saver: Any, durability: str) -> None:
    found, expected = story(saver, durability=durability), story(InMemorySaver(), durability=durability)
    assert len(found) == len(expected) > 5
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


def test_so_it_does_after_it_was_opened_again_and_pruned(tmp_path: Path) -> None:
    memory, seen = InMemorySaver(), []
    talk(memory).invoke({"said": ["hello"]}, thread("talk"))
    with SnaplineSaver.open(tmp_path / "store") as first:
        talk(first).invoke({"said": ["hello"]}, thread("talk"))
        first.prune(["talk"])
    with SnaplineSaver.open(tmp_path / "store") as second:
        for saver in (second, memory):
            seen.append([looks(talk(saver), thread("talk"))])
            seen[-1].append(without_ids(talk(saver).invoke(Command(resume="stop"), thread("talk"))))
            seen[-1].append(looks(talk(saver), thread("talk")))
    assert seen[0] == seen[1]

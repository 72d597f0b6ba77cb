"""A graph of twelve steps on several savers, as a program for the crash kit. `durability="sync"`: LangGraph promises that a step is kept before the next begins."""

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot

from snapline.adapters.langgraph import SnaplineSaver
from snapline.chaos.crash_child import CrashNote

STEPS = 12
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Story(TypedDict):
    steps: Annotated[list[str], operator.add]


def _graph(note: CrashNote) -> Any:
    def step(number: int) -> Callable[[Story], dict[str, list[str]]]:
        def node(state: Story) -> dict[str, list[str]]:
            if number:
                note.kept(f"step-{number - 1}")
            note.began(f"step-{number}")
            return {"steps": [f"step-{number}"]}

        return node

    graph = StateGraph(Story)
    for number in range(STEPS):
        graph.add_node(f"n{number}", step(number))
        graph.add_edge(START if number == 0 else f"n{number - 1}", f"n{number}")
    return graph


def _given(known: StateSnapshot) -> Any:
    """None: go on. Whether there is anything to do cannot be read from `known.next`: it leaves out a step that has ended and is not in a checkpoint yet."""
    return None if known.values else {"steps": []}


def _play(saver: Any, note: CrashNote) -> list[str]:
    graph = _graph(note).compile(checkpointer=saver)
    known = graph.get_state(CONFIG)
    note.found(*known.values.get("steps", ()))
    graph.invoke(_given(known), CONFIG, durability="sync")
    note.kept(f"step-{STEPS - 1}")
    found: list[str] = graph.get_state(CONFIG).values["steps"]
    return found


def _with(made: AbstractContextManager[Any], note: CrashNote) -> list[str]:
    with made as saver:
        return _play(saver, note)


def snapline(folder: Path, note: CrashNote) -> list[str]:
    return _with(SnaplineSaver.open(folder / "store"), note)


def sqlite(folder: Path, note: CrashNote) -> list[str]:
    return _with(SqliteSaver.from_conn_string(str(folder / "db")), note)


async def sqlite_async(folder: Path, note: CrashNote) -> list[str]:
    async with AsyncSqliteSaver.from_conn_string(str(folder / "db")) as saver:
        graph = _graph(note).compile(checkpointer=saver)
        known = await graph.aget_state(CONFIG)
        note.found(*known.values.get("steps", ()))
        await graph.ainvoke(_given(known), CONFIG, durability="sync")
        note.kept(f"step-{STEPS - 1}")
        found: list[str] = (await graph.aget_state(CONFIG)).values["steps"]
        return found


def memory(folder: Path, note: CrashNote) -> list[str]:
    """What nobody should use for this."""
    (folder / "started").touch()
    return _with(nullcontext(InMemorySaver()), note)

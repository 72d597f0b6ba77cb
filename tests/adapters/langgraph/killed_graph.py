"""A graph on our saver in one process after the other: each is killed at a random moment, and the next one goes on.

`python -m tests.adapters.langgraph.killed_graph FOLDER KILLS SEED`. Processes are forked from one that has imported everything, since importing LangGraph
takes longer than most of them live. What they do stands in FOLDER/notes:

    found N    the saver was opened, and has N steps
    began N    step N runs: LangGraph promises (`durability="sync"`) that those before it are durable
    done N     the graph has ended, with N steps
"""

import operator
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from snapline.adapters.langgraph import SnaplineSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 10**9}

LIFE_S = 0.12
"""The longest: to open the saver, and for some steps."""

LAST_STEPS = 20
"""What the last process does, which nobody kills."""


class Steps(TypedDict):
    steps: Annotated[list[int], operator.add]


def note(folder: Path, text: str) -> None:
    file = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def play(folder: Path, more: int | None) -> None:
    """Go on with the graph; `more`: for so many steps."""
    end = float("inf")

    def step(state: Steps) -> dict[str, list[int]]:
        note(folder, f"began {len(state['steps'])}")
        return {"steps": [len(state["steps"])]}

    graph: Any = StateGraph(Steps)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if len(state["steps"]) >= end else "step", ["step", END])
    with SnaplineSaver.open(folder / "store", keep_last=2) as saver:
        app = graph.compile(checkpointer=saver)
        values = app.get_state(CONFIG).values  # with what a step has written since the newest checkpoint
        found = len(values.get("steps", ()))
        note(folder, f"found {found}")
        end = end if more is None else found + more
        app.invoke(None if values else {"steps": []}, CONFIG, durability="sync")
        done = app.get_state(CONFIG).values["steps"]
        assert done == list(range(len(done)))
        note(folder, f"done {len(done)}")


def main(folder: Path, kills: int, chosen: random.Random) -> None:
    for _ in range(kills):
        child = os.fork()
        if not child:
            _run_and_exit(folder, None)
        time.sleep(chosen.uniform(0.0, LIFE_S))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"it has ended by itself: {status}"
    child = os.fork()
    if not child:
        _run_and_exit(folder, LAST_STEPS)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def _run_and_exit(folder: Path, more: int | None) -> None:
    try:
        play(folder, more)
    except BaseException as error:
        note(folder, f"failed {type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3])))

"""What saving costs a step of a LangGraph graph: snapline's saver beside others', in one run.

    make bench-langgraph, or .venv/bin/python benchmarks/adapters.py [--steps 200] [--rounds 5]

A graph of one node that calls itself `--steps` times in one `invoke`, with LangGraph's durability `sync`: a step ends when it is saved.
Each figure is the median over the rounds, each with a fresh graph and folder, with its lowest and highest value; ratios are those of the medians.

    tiny         one counter
    untouched    a counter, and 1 MB of random bytes that no step touches
    rewritten    1 MB of random bytes that each step makes anew
    list         each step appends 4 KB of random text to a list; payload: the items, once

    at once      several graphs of the tiny case at the same time on one saver, each in a thread of its own

    CPU          time of the process per step: user and system, all threads
    wall         time per step
    disk         what the folder takes (blocks, not lengths), without what it takes empty, per step or as a multiple of the payload
    read         `get_state` of the end, by a saver that was opened anew
"""

import argparse
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from snapline.adapters.langgraph import SnaplineSaver

MEGABYTE = 2**20
ITEM_BYTES = 4096

Saver = Any
"""A `BaseCheckpointSaver`, or None."""
Opened = Callable[[Path], AbstractContextManager[Saver]]


class Work(TypedDict):
    count: int
    load: bytes
    items: Annotated[list[str], operator.add]


class Figures:
    """Figures of one round."""

    def __init__(self, cpu_s: float, wall_s: float, disk_bytes: int, read_s: float) -> None:
        self.cpu_s = cpu_s
        self.wall_s = wall_s
        self.disk_bytes = disk_bytes
        self.read_s = read_s


def tiny(state: Work) -> dict[str, object]:
    return {"count": state["count"] + 1}


def rewritten(state: Work) -> dict[str, object]:
    return {"count": state["count"] + 1, "load": os.urandom(MEGABYTE)}


def appending(state: Work) -> dict[str, object]:
    return {"count": state["count"] + 1, "items": [os.urandom(ITEM_BYTES // 2).hex()]}


CASES: dict[str, tuple[Callable[[Work], dict[str, object]], int]] = {
    "tiny": (tiny, 0),
    "untouched": (tiny, MEGABYTE),
    "rewritten": (rewritten, MEGABYTE),
    "list": (appending, 0),
}
"""The node, and how large the load is."""


@contextmanager
def nothing(folder: Path) -> Iterator[Saver]:
    yield None


@contextmanager
def in_memory(folder: Path) -> Iterator[Saver]:
    yield InMemorySaver()


@contextmanager
def sqlite(folder: Path) -> Iterator[Saver]:
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        yield saver


@contextmanager
def snapline(folder: Path) -> Iterator[Saver]:
    with SnaplineSaver.open(folder / "store") as saver:
        yield saver


SAVERS: dict[str, Opened] = {"none": nothing, "memory": in_memory, "sqlite": sqlite, "snapline": snapline}


def run_round(case: str, opened: Opened, steps: int) -> Figures:
    node, load_bytes = CASES[case]
    builder = StateGraph(Work)
    builder.add_node("work", node)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["count"] >= steps else "work")
    config: Any = {"configurable": {"thread_id": "one"}, "recursion_limit": steps + 10}
    start: Any = {"count": 0, "load": os.urandom(load_bytes), "items": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with opened(folder) as saver:
            graph = builder.compile(checkpointer=saver)
            empty = disk_bytes(folder)
            cpu, wall = time.process_time(), time.perf_counter()
            graph.invoke(start, config, **({"durability": "sync"} if saver is not None else {}))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        used = disk_bytes(folder) - empty
        read = 0.0
        with opened(folder) as saver:
            if saver is not None:
                began = time.perf_counter()
                builder.compile(checkpointer=saver).get_state(config)
                read = time.perf_counter() - began
    return Figures(cpu / steps, wall / steps, used, read)


def run_at_once(opened: Opened, steps: int, threads: int) -> float:
    """Return the steps per second of all threads together."""
    builder: Any = StateGraph(Work)
    builder.add_node("work", tiny)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["count"] >= steps else "work")
    with tempfile.TemporaryDirectory() as name, opened(Path(name)) as saver, ThreadPoolExecutor(threads) as pool:
        graph = builder.compile(checkpointer=saver)

        def run(number: int) -> None:
            config: Any = {"configurable": {"thread_id": f"{number}"}, "recursion_limit": steps + 10}
            more: Any = {"durability": "sync"} if saver is not None else {}
            graph.invoke({"count": 0, "load": b"", "items": []}, config, **more)

        began = time.perf_counter()
        list(pool.map(run, range(threads)))
        return steps * threads / (time.perf_counter() - began)


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def spread(values: list[float], scale: float = 1.0) -> str:
    scaled = [value * scale for value in values]
    return f"{statistics.median(scaled):7,.0f} ({min(scaled):,.0f}-{max(scaled):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16)
    flags = parser.parse_args()
    for case in CASES:
        bare = 0.0
        for name, opened in SAVERS.items():
            found = [run_round(case, opened, flags.steps) for _ in range(flags.rounds)]
            cpu = statistics.median(each.cpu_s for each in found)
            bare = bare or cpu
            used = statistics.median(each.disk_bytes for each in found)
            disk = f"disk {used / flags.steps / 1024:8,.1f} KiB/step"
            if case == "list":
                disk += f" = {used / flags.steps / ITEM_BYTES:6.2f} x payload"
            print(
                f"{case:10} {name:9} CPU {spread([each.cpu_s for each in found], 1e6):24} us = {cpu / bare:5.2f} x none"
                f"   wall {spread([each.wall_s for each in found], 1e6):24} us   {disk}"
                f"   read {spread([each.read_s for each in found], 1e6)} us",
                flush=True,
            )
    for name, opened in SAVERS.items():
        rates = [run_at_once(opened, flags.steps // 4, flags.threads) for _ in range(flags.rounds)]
        print(f"at once    {name:9} {spread(rates)} steps/s of {flags.threads} threads together", flush=True)


if __name__ == "__main__":
    main()

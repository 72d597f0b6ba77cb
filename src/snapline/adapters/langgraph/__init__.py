"""Runs LangGraph on snapline (docs/langgraph.md).

`SnaplineSaver` saves the checkpoints of graphs. `SnaplineGraphAgent` runs graphs as agents of a fleet."""

from importlib import import_module
from typing import TYPE_CHECKING

try:
    import langgraph.checkpoint.base  # noqa: F401  looked for, not used
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.langgraph needs LangGraph: install snapline[langgraph]", name=error.name
    ) from error

from snapline.adapters.langgraph.saver import SnaplineSaver

if TYPE_CHECKING:
    from snapline.adapters.langgraph.graph_agent import GraphInput, GraphResult, GraphResume, SnaplineGraphAgent
    from snapline.adapters.langgraph.graph_memory import GraphMemory
    from snapline.adapters.langgraph.graph_turns import GraphTurn, adurable, durable, graph_turn

__all__ = [
    "GraphInput",
    "GraphMemory",
    "GraphResult",
    "GraphResume",
    "GraphTurn",
    "SnaplineGraphAgent",
    "SnaplineSaver",
    "adurable",
    "durable",
    "graph_turn",
]

_LATER = {
    "GraphInput": "graph_agent",
    "GraphMemory": "graph_memory",
    "GraphResult": "graph_agent",
    "GraphResume": "graph_agent",
    "GraphTurn": "graph_turns",
    "SnaplineGraphAgent": "graph_agent",
    "adurable": "graph_turns",
    "durable": "graph_turns",
    "graph_turn": "graph_turns",
}
"""Name → module that defines it. These names are imported on demand, because they need LangGraph itself to run graphs, while the saver
needs only LangGraph's checkpointer package."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    except ImportError as error:
        raise ImportError(f"{name} runs graphs of LangGraph 1.2: install 'langgraph>=1.2,<1.3' ({error})") from error

"""LangGraph on snapline's store: `SnaplineSaver` saves the checkpoints of graphs (docs/langgraph.md)."""

try:
    import langgraph.checkpoint.base  # noqa: F401  looked for, not used
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.langgraph needs LangGraph: install snapline[langgraph]", name=error.name
    ) from error

from snapline.adapters.langgraph.saver import SnaplineSaver

__all__ = ["SnaplineSaver"]

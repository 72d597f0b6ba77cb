"""Deterministic replacement of LangGraph's clock and random ids within a turn, so that a rerun turn has the same result.

LangGraph derives the ids of checkpoints, and of messages without an id, from the clock and random numbers. A durable turn rerun by a recovery would
end in a different state. The agent's next turn would then begin with a different state and make its calls again. A saver cannot choose the
ids of checkpoints, since LangGraph derives the ids of tasks and interrupts from them before it saves.

So this module patches the two sources once. Within a turn the patched sources use the turn's ids; outside of turns they work as before.
"""

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from langgraph.graph import message
from langgraph.pregel import _checkpoint

Source = Callable[[], UUID]

drawing: ContextVar[tuple[Source, Source] | None] = ContextVar("snapline-graph-draws", default=None)
"""Sources of the current turn: ids of checkpoints, which increase, and of messages."""


def replace_sources() -> None:
    """Patch the sources, if not yet done.

    Raises:
        ImportError: this version of LangGraph uses other sources.
    """
    if getattr(_checkpoint, "_snapline", False):
        return
    try:
        uuid6: Callable[..., UUID] = _checkpoint.uuid6
        uuid4: Callable[[], UUID] = message.uuid.uuid4
    except AttributeError as error:
        raise ImportError(f"it draws its ids elsewhere: {error}") from error
    places: list[tuple[Any, str, Any]] = [
        (_checkpoint, "uuid6", lambda *args, **kwargs: _drawn(0) or uuid6(*args, **kwargs)),
        (message, "uuid", SimpleNamespace(uuid4=lambda: _drawn(1) or uuid4())),
        (_checkpoint, "_snapline", True),
    ]
    for place, name, value in places:
        setattr(place, name, value)


def _drawn(which: int) -> UUID | None:
    sources = drawing.get()
    return None if sources is None else sources[which]()

"""Clock and chance of LangGraph, drawn from the turn instead, so that a turn that runs again ends as it did.

LangGraph names checkpoints, and messages without an id, by the clock and by chance. A durable turn that a recovery runs again would end in another
state; the agent's next turn would then begin with another state, be another turn, and make its calls again. And no saver can name checkpoints
otherwise: LangGraph computes the ids of tasks and interrupts from them before it saves any.

So these two sources are replaced, once, by ones that ask the turn in whose name they are called, and outside of turns do what they did.
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
"""Sources of the turn that runs: ids of checkpoints, which grow, and of messages."""


def replace_sources() -> None:
    """Replace them, if they are not.

    Raises:
        ImportError: this LangGraph draws elsewhere.
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

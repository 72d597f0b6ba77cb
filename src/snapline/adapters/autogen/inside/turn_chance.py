"""Chance within a turn follows from the turn: a handler that is run again draws the same.

A handler that has awaited a reply is run again after a failure, up to where it stood, and must ask for the same again. What it draws from `random` and `uuid.uuid4`
comes from the turn then, whatever other turns draw meanwhile. Outside of turns, and of `numpy`, `secrets` and clocks, nothing is changed.
"""

import random
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

drawing: ContextVar[random.Random | None] = ContextVar("snapline-turn-chance", default=None)
"""Random source of the present turn."""

_replaced: list[bool] = []


def replace_sources() -> None:
    """Before a program is imported: it may take these functions by name."""
    if _replaced:
        return
    _replaced.append(True)
    for name in random.__all__:
        found = getattr(random, name)
        if isinstance(getattr(found, "__self__", None), random.Random):
            setattr(random, name, _of_turn(name, found))
    drawn_by_chance = uuid.uuid4

    def uuid4() -> uuid.UUID:
        source = drawing.get()
        return drawn_by_chance() if source is None else uuid.UUID(bytes=source.randbytes(16), version=4)

    uuid.uuid4 = uuid4


def _of_turn(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        source = drawing.get()
        return (original if source is None else getattr(source, name))(*args, **kwargs)

    draw.__name__, draw.__doc__ = name, original.__doc__
    return draw

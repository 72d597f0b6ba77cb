"""Deterministic random numbers within a turn: a rerun handler draws the same values.

A handler that has awaited a reply is rerun after a failure, up to where it was waiting, and must make the same calls again. So `random` and
`uuid.uuid4` use a generator of the turn, independent of other turns. Outside of turns they are unchanged; `numpy`, `secrets` and clocks are
never changed.
"""

import random
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

drawing: ContextVar[random.Random | None] = ContextVar("snapline-turn-chance", default=None)
"""Random generator of the current turn."""

_replaced: list[bool] = []


def replace_sources() -> None:
    """Patch the functions. Call it before the program is imported, since that may import them by name."""
    if _replaced:
        return
    _replaced.append(True)
    for name in random.__all__:
        function = getattr(random, name)
        if isinstance(getattr(function, "__self__", None), random.Random):
            setattr(random, name, _of_turn(name, function))
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

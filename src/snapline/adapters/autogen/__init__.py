"""Runs unmodified AutoGen Core agents in a fleet (docs/autogen.md).

The module that defines a fleet imports `AutogenAgent` in snapline's Python environment. AutoGen runs in a separate Python environment, in
which only `inside/` and `pipe_protocol.py` can be imported. A program in AutoGen's environment imports `SnaplineRuntime`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapline.adapters.autogen.agents import AutogenAgent, AutogenHandlerError, AutogenState
    from snapline.adapters.autogen.inside.runtime import SnaplineRuntime
    from snapline.adapters.autogen.pipe_protocol import agent_name, autogen_id
    from snapline.adapters.autogen.worker import AutogenAnswer, AutogenMessage, KeptValue

__all__ = [
    "AutogenAgent",
    "AutogenAnswer",
    "AutogenHandlerError",
    "AutogenMessage",
    "AutogenState",
    "KeptValue",
    "SnaplineRuntime",
    "agent_name",
    "autogen_id",
]

_LATER = {
    "AutogenAgent": "agents",
    "AutogenAnswer": "worker",
    "AutogenHandlerError": "agents",
    "AutogenMessage": "worker",
    "AutogenState": "agents",
    "KeptValue": "worker",
    "SnaplineRuntime": "inside.runtime",
    "agent_name": "pipe_protocol",
    "autogen_id": "pipe_protocol",
}
"""Name → module that defines it. Modules are imported on demand, because AutoGen's environment does not contain snapline's dependencies."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

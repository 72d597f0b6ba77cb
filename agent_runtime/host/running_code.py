"""Description of the code that a host's event loop is running, from its stack; called from another thread."""

import inspect
from collections.abc import Callable, Collection
from types import CodeType

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host.host_events import RunStep, StartTurn
from snapline.agent_runtime.host.turns import Turns


def describe_running(
    at: StartTurn | RunStep | None,
    codes: Collection[CodeType],
    type_of: Callable[[str], AgentType | None],
    *,
    in_task: str,
    imaged: str,
) -> str:
    """Return the agent and handler or step that runs; "" if no agent's code runs.

    Args:
        at: last started turn or step that has not returned.
        type_of: type of an agent on this host.
        in_task: agent of the running task.
        imaged: agent whose image was taken last.
    """
    if Turns.capture.__code__ in codes:
        return f"agent {imaged}, the image of its state"
    match at:
        case RunStep():
            return f"agent {at.agent}, step {at.name}"
        case StartTurn():
            agent = at.agent
        case None:
            agent = in_task
    return f"agent {agent}, {_handler_in(type_of(agent), codes) or 'its turn'}" if agent else ""


def _handler_in(known: AgentType | None, codes: Collection[CodeType]) -> str:
    if known is None:
        return ""
    if getattr(known.agent_class.on_start, "__code__", None) in codes:
        return "on_start"
    names = [x.name for x in known.handlers.values() if inspect.unwrap(x.function).__code__ in codes]
    return f"handler {names[0]}" if names else ""

"""From a recorded kind back to its class, and whether its state still means the same."""

import importlib
from functools import reduce

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import EncodingError
from snapline.storage.checkpoint import AgentCheckpoint


def find_class(fleet: Fleet, kind: str) -> type[Agent]:
    """The agent class recorded as `module:Class`.

    Only subclasses of Agent are returned: a name from a checkpoint or a peer runs nothing else.

    Raises:
        EncodingError: there is no such class any more.
    """
    known = fleet.classes.get(kind)
    if known is None:
        known = fleet.classes[kind] = _look_for(fleet, kind)
    return known


def _look_for(fleet: Fleet, kind: str) -> type[Agent]:
    for source in fleet.agents.values():
        if isinstance(source, Agent) and agent_type(type(source)).kind == kind:
            return type(source)
    module, _, name = kind.partition(":")
    try:
        found = reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise EncodingError(
            f"there is no agent class {kind!r} any more: run the code that wrote the checkpoint"
        ) from error
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise EncodingError(f"{kind!r} is no agent class: run the code that wrote the checkpoint")
    return found


def check_same_state(checkpoint: AgentCheckpoint, agent_class: type[Agent]) -> None:
    """Refuse a state whose type has changed since it was saved.

    Raises:
        EncodingError: names the agent, the fields that differ, and what to do.
    """
    known = agent_type(agent_class)
    where = f"agent {checkpoint.agent!r} ({agent_class.__qualname__})"
    if checkpoint.state_version != agent_class.state_version:
        raise EncodingError(
            f"{where} was saved with state version {checkpoint.state_version}, the class has "
            f"{agent_class.state_version} and there is no migration between them: run the code that wrote it"
        )
    saved, declared = checkpoint.state_fields, known.state_fields
    if saved == declared:
        return
    changes = [f"{name}: {saved[name]} is gone" for name in saved if name not in declared]
    changes += [f"{name}: {declared[name]} is new" for name in declared if name not in saved]
    changes += [
        f"{name}: {saved[name]} became {declared[name]}"
        for name in saved
        if name in declared and saved[name] != declared[name]
    ]
    raise EncodingError(
        f"the state type of {where} has changed since the checkpoint was taken ({'; '.join(changes) or 'order of fields'}) "
        "and there is no migration: run the code that wrote it, or start with a fresh --data-dir"
    )

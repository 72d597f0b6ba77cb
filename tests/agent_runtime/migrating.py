"""Classes of agents, and checkpoints of theirs, for tests of migrations."""

from typing import Any

import msgspec

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.message_encoding import encode_body
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

Plain = dict[str, Any]


class State(msgspec.Struct):
    """What the classes below have as their state, at every version."""

    value: int = 0
    log: list[int] = []


def worker(state_version: int, base: type[Agent] = Agent, declared: Any = State, name: str = "Worker") -> type[Agent]:
    """A new class of agents."""
    members = {"state_version": state_version, "__annotations__": {"state": declared}, "__module__": __name__}
    return type(name, (base,), members)


def saved(agent_class: type[Agent], state: object, agent: str = "a", **changed: Any) -> AgentCheckpoint:
    """A checkpoint of an agent with this state, through its bytes; `changed`: what it was when it was written."""
    known = agent_type(agent_class)
    checkpoint = AgentCheckpoint(
        agent=agent,
        kind=known.kind,
        epoch=1,
        state=encode_body(state),
        state_type=known.state_name,
        state_version=agent_class.state_version,
        state_fields=known.state_fields,
    )
    return decode_checkpoint(encode_checkpoint(msgspec.structs.replace(checkpoint, **changed)))


def same(state: Any) -> Any:
    """A step that changes nothing."""
    return state

"""Restoring of agents from checkpoints."""

from collections.abc import Sequence

from snapline.agent_runtime.agent import Agent
from snapline.agent_runtime.agent_classes import find_class
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.migrations import MigrationPlan, load_state, plan_migration
from snapline.storage.capture.image import Buffer, ChunkTable
from snapline.storage.packs.checkpoint import AgentCheckpoint


def restored(fleet: Fleet, checkpoint: AgentCheckpoint, contents: Sequence[Buffer] = ()) -> Agent:
    """Return the agent of a checkpoint; `contents` are the bytes of its state's parts.

    Raises:
        EncodingError: the class is missing, the state's type has changed without a migration, or the state does not decode.
    """
    return revive(plan_migration(find_class(fleet, checkpoint.kind), checkpoint), checkpoint, contents)[0]


def revive(plan: MigrationPlan, checkpoint: AgentCheckpoint, contents: Sequence[Buffer]) -> tuple[Agent, ChunkTable]:
    """Return the agent of a checkpoint, and the chunks of its state's parts (none after a migration).

    Raises:
        EncodingError: the state does not decode, or a migration failed.
    """
    agent = plan.agent_class.__new__(plan.agent_class)
    state = load_state(plan, checkpoint, contents)
    agent.state = state.state
    return agent, state.table

"""Classes of recorded kinds: their lookup, whether their states still mean the same, and the restoring of agents from checkpoints."""

import importlib
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NoReturn

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.migrations import MigrationError, MigrationPlan, load_state, plan_migration
from snapline.errors import EncodingError
from snapline.storage.capture.image import Buffer, ChunkTable
from snapline.storage.packs.checkpoint import AgentCheckpoint

REFUSALS_NAMED_MAX = 3
"""Largest number of classes named when a line is refused: the coordinator accepts reasons of 2,000 characters, and each class takes up to 500."""


def find_class(fleet: Fleet, kind: str) -> type[Agent]:
    """Return the agent class recorded as `module:Class`.

    Only subclasses of Agent are returned: a name from a checkpoint or a peer cannot run other code.

    Raises:
        EncodingError: there is no such class.
    """
    known = fleet.classes.get(kind)
    if known is None:
        known = fleet.classes[kind] = _look_for(fleet, kind)
    return known


def class_of(fleet: Fleet, kind: str) -> type[Agent] | None:
    """Return the class recorded as `kind`; None if the class is missing: its records can still be read."""
    try:
        return find_class(fleet, kind)
    except EncodingError:
        return None


def _look_for(fleet: Fleet, kind: str) -> type[Agent]:
    for source in fleet.agents.values():
        if isinstance(source, Agent) and agent_type(type(source)).kind == kind:
            return type(source)
    module, _, name = kind.partition(":")
    try:
        candidate = reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise EncodingError(
            f"there is no agent class {kind!r} in this code: run the code that wrote the checkpoint"
        ) from error
    if not isinstance(candidate, type) or not issubclass(candidate, Agent):
        raise EncodingError(f"{kind!r} is no agent class: run the code that wrote the checkpoint")
    return candidate


def plan_line(fleet: Fleet, checkpoints: Iterable[AgentCheckpoint]) -> dict[str, MigrationPlan]:
    """Return agent → migration plan, for all checkpoints of a recovery line at once; unborn agents have none.

    No migration runs and no state is decoded. Either the whole fleet is refused, or all versions can be loaded.

    Raises:
        MigrationError: a class is missing, or a state cannot be migrated to its class's version. The message names one agent of each class and
            version, and the migration to write.
    """
    plans: dict[str, MigrationPlan] = {}
    refused: dict[tuple[str, int], EncodingError] = {}
    for checkpoint in checkpoints:
        if checkpoint.is_unborn:
            continue
        try:
            plans[checkpoint.agent] = plan_migration(find_class(fleet, checkpoint.kind), checkpoint)
        except EncodingError as error:
            refused.setdefault((checkpoint.kind, checkpoint.state_version), error)
    if refused:
        _refuse(list(refused.values()))
    return plans


def _refuse(errors: list[EncodingError]) -> NoReturn:
    reasons = "; ".join([str(error) for error in errors[:REFUSALS_NAMED_MAX]])
    more = len(errors) - REFUSALS_NAMED_MAX
    raise MigrationError(f"{reasons}; and {more} more classes or versions" if more > 0 else reasons) from errors[0]


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

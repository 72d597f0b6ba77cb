"""Checks whether a fleet's code can go on from a snapshot, before the code is deployed.

All states, messages and timers are decoded with the fleet's classes, and every open durable turn runs again by its journal until it waits.
No step, effect or other request of a turn is carried out. But handlers run, so whatever they do outside by themselves happens.

What the check cannot see: turns that begin after the snapshot, results that the hosts have logged since then, plain handlers, and in fleets
with independent checkpoints the messages that senders keep.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, cast

import msgspec

from snapline.agent_runtime.agent import Agent, AgentType, agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.dependency_report import dependency_report
from snapline.agent_runtime.durable import SegmentEnd, TurnJournal, read_call
from snapline.agent_runtime.fleet import Fleet, encode_state, find_class, own_modules, restore_agent, revive
from snapline.agent_runtime.guarded_handlers import guarded
from snapline.agent_runtime.migrations import plan_migration
from snapline.agent_runtime.rollback_errors import FAILURES, RestartRequestedError, RollbackRequestedError
from snapline.agent_runtime.sagas import undo_error
from snapline.agent_runtime.snapshots.snapshot_cut import (
    deferred_messages,
    messages_parked,
    messages_to,
    pending_timers,
)
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages.dependencies import DependencyChange, changes_between, reports_in
from snapline.messages.payloads import CREATE, read_creation, split_message
from snapline.storage.capture.chunking import whole_turn
from snapline.storage.capture.saved_values import ReadParts
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store


class Incompatibility(msgspec.Struct, frozen=True):
    """Something in a snapshot that the fleet's code does not fit.

    Attributes:
        agent: the agent that would fail.
        part: what does not fit: "state", "message", "timer", "turn" or "compensation".
    """

    agent: str
    part: str
    reason: str


class SnapshotCheck(msgspec.Struct):
    """Result of a check. `messages` includes timers, and `turns` is the number of open durable turns that ran again. `dependencies` says how
    the dependencies of this process differ from those of the snapshot."""

    epoch: int
    agents: int = 0
    messages: int = 0
    turns: int = 0
    incompatibilities: list[Incompatibility] = []
    dependencies: tuple[DependencyChange, ...] = ()


def check_snapshot(store: Store, epoch: int, fleet: Fleet) -> SnapshotCheck:
    """Check whether the fleet's code can go on from a snapshot.

    Raises:
        NotFoundError: If the store does not contain this epoch.
        DamagedDataError: If the snapshot is damaged.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    found = check_checkpoints(epoch, store.read_checkpoints(manifest), fleet, store.part_reader(manifest).read)
    report = dependency_report(fleet.agents, fleet.declared, lambda: store)
    found.dependencies = changes_between(reports_in(manifest.metadata.dependencies), [report])
    return found


def check_checkpoints(
    epoch: int, checkpoints: Iterable[AgentCheckpoint], fleet: Fleet, read_parts: ReadParts
) -> SnapshotCheck:
    """Check whether the fleet's code can go on from the checkpoints of an epoch. `read_parts` reads what is stored outside of them."""
    found = SnapshotCheck(epoch)
    classes: dict[str, AgentType] = {}
    born = [checkpoint for checkpoint in checkpoints if not checkpoint.is_unborn]
    for checkpoint in born:
        found.agents += 1
        contents = read_parts(checkpoint.agent, checkpoint.parts) if checkpoint.parts else []
        try:
            plan = plan_migration(find_class(fleet, checkpoint.kind), checkpoint)
            agent = revive(plan, checkpoint, contents)[0]
        except Exception as error:  # the user's classes and migrations may raise anything
            found.incompatibilities.append(Incompatibility(checkpoint.agent, "state", _text(error)))
            continue
        known = classes[checkpoint.agent] = agent_type(type(agent))
        journal = checkpoint.journal_part
        whole = checkpoint if journal is None else whole_turn(checkpoint, read_parts(checkpoint.agent, [journal])[0])
        _check_turn(found, fleet, whole, agent, known)
    for checkpoint in born:
        for part, receiver, payload in _payloads_of(checkpoint):
            if receiver in classes or payload[:1] == CREATE:
                found.messages += 1
                reason = _message_error(fleet, classes.get(receiver), payload)
                found.incompatibilities += [Incompatibility(receiver, part, reason)] if reason else []
    return found


# -- messages ---------------------------------------------------------------------------------------------------------


def _payloads_of(checkpoint: AgentCheckpoint) -> Iterator[tuple[str, str, bytes]]:
    """Yield all messages that the checkpoint contains, as (part, receiver, payload)."""
    for found in (messages_to, messages_parked, deferred_messages):
        yield from (("message", each.receiver, cast(bytes, each.message)) for each in found(checkpoint, _undecoded))
    yield from (("timer", each.agent, cast(bytes, each.message)) for each in pending_timers(checkpoint, _undecoded))


def _undecoded(receiver: str, payload: bytes) -> tuple[str, object]:
    return "", payload


def _message_error(fleet: Fleet, known: AgentType | None, payload: bytes) -> str:
    """Return why the receiver could not handle a message, or "". The runtime's own messages are not examined."""
    try:
        if payload[:1] == CREATE:
            kind, state = read_creation(payload)
            restore_agent(find_class(fleet, kind), state)
            return ""
        if known is None:
            return ""
        name, body = split_message(read_call(payload)[1])
        if name.startswith("@"):
            return ""
        handler = known.handlers.get(name)
        if handler is None:
            return "" if _receives(known) else _unhandled(known, name)
        handler.decoder.decode(body)
    except Exception as error:  # the user's classes and migrations may raise anything
        return f"a message does not decode: {_text(error)}"
    return ""


def _receives(known: AgentType) -> bool:
    """Return whether a durable turn of the class may wait for messages that have no handler (`ctx.receive`)."""
    functions = [
        each for base in known.agent_class.__mro__ if base not in Agent.__mro__ for each in vars(base).values()
    ]
    return any("receive" in each.__code__.co_names for each in functions if isinstance(each, FunctionType))


def _unhandled(known: AgentType, name: str) -> str:
    return f"{known.agent_class.__qualname__} has no handler for messages of type {name!r}"


# -- turns ------------------------------------------------------------------------------------------------------------


def _check_turn(
    found: SnapshotCheck, fleet: Fleet, checkpoint: AgentCheckpoint, agent: Agent, known: AgentType
) -> None:
    turn, effects = checkpoint.turn, checkpoint.effects
    if turn is None:
        return
    modules = own_modules(known.agent_class, fleet.compensation_modules)
    for made in effects.made if effects is not None else ():
        reason = undo_error(made.name, made.undo, made.undo_arguments, modules) if made.undo else ""
        found.incompatibilities += [Incompatibility(checkpoint.agent, "compensation", reason)] if reason else []
    call, payload = read_call(turn.payload)
    name, body = split_message(payload)
    if name.startswith("@"):  # the runtime undoes effects
        return
    found.turns += 1
    handler = known.handlers.get(name)
    if handler is None or not handler.is_durable:
        reason = _unhandled(known, name) if handler is None else f"{handler.name} is not durable any more"
        found.incompatibilities.append(Incompatibility(checkpoint.agent, "turn", f"a turn is open, and {reason}"))
        return
    journal = TurnJournal(b"", turn, own_modules=modules)
    ctx = Context(checkpoint.agent, checkpoint.incarnation, turn.sender, TurnEnvironment())
    ctx.begin(call=call, journal=journal)
    try:
        message = handler.decoder.decode(body)
        image_of = functools.partial(encode_state, checkpoint.agent, agent, known)
        coroutine: Any = guarded(handler, agent, known, ctx, image_of)(agent, message, ctx)
        reason = contextvars.copy_context().run(_divergence, coroutine, journal)
    except Exception as error:  # the user's classes and migrations may raise anything
        reason = _text(error)
    if reason:
        found.incompatibilities.append(Incompatibility(checkpoint.agent, "turn", f"{handler.name} {reason}"))


def _divergence(coroutine: Any, journal: TurnJournal) -> str:
    """Run a turn by its journal until it waits or ends. Return how it diverges from its journal, or "". What the handler does behind its
    journal is new, so it may also fail there."""
    reason = ""
    try:
        request = coroutine.send(None)
        if not isinstance(request, SegmentEnd):
            reason = f"awaits a {type(request).__qualname__}, which is nothing of its context"
    except StopIteration:
        journal.end()
    except (RestartRequestedError, RollbackRequestedError):
        pass
    except FAILURES as error:
        if not journal.is_complete:
            reason = f"raises {_text(error)}"
    finally:
        with contextlib.suppress(Exception):  # a handler that refuses to close stays suspended
            coroutine.close()
    return f"diverges from its journal: {journal.divergence}" if journal.divergence is not None else reason


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

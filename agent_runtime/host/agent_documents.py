"""Documents about one agent: its state as JSON, and its description. Off the event loop, but for `description`."""

from collections.abc import Callable

import msgspec

from snapline.agent_runtime.host.failures import last_line
from snapline.agent_runtime.host.host_events import AgentView, TurnView
from snapline.agent_runtime.host.host_operator_commands import identity_of
from snapline.errors import AgentMissingError, NotFoundError, SnaplineError
from snapline.messages.documents import Rows, document
from snapline.messages.payloads import describe_payload
from snapline.messages.views import VIEW_BYTES_MAX, AgentState, WaitingAgent
from snapline.storage.capture.json_values import json_of, too_large
from snapline.storage.capture.plain_values import find_field
from snapline.storage.capture.saved_values import read_state
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, OpenEffect
from snapline.storage.store.manifest import AgentLine, Manifest
from snapline.storage.store.store import Store

LATEST = "latest"


def bounded(told: AgentState) -> bytes:
    """Encode the state as JSON.

    Raises:
        UsageError: the JSON is larger than a document may be.
    """
    text = msgspec.json.encode(told)
    if len(text) > VIEW_BYTES_MAX:
        raise too_large(len(text), VIEW_BYTES_MAX)
    return text


def saved_state(open_store: Callable[[], Store], agent: str, field: str) -> bytes:
    """Return an agent's state in the newest snapshot, or one field of it.

    Raises:
        NotFoundError: there is no snapshot, no such agent in it, or no such field.
        UsageError: the state is too large, or the path is not that of a field.
        StoreError: the store cannot be read, or its data is damaged.
    """
    store = open_store()
    manifest, line = _newest(store, agent)
    metadata = manifest.metadata
    if line is None:
        raise AgentMissingError(
            f"agent {agent!r} is not in epoch {metadata.epoch}, the newest snapshot: it was created since, or has stopped"
        )
    checkpoint = store.read_checkpoint(manifest, agent)
    tree = read_state(checkpoint, store.part_reader(manifest).read)
    if field:
        tree = find_field(tree, field)
    state = msgspec.Raw(json_of(tree, VIEW_BYTES_MAX))
    return bounded(
        AgentState(
            agent=agent,
            kind=checkpoint.kind,
            host=line.host,
            incarnation=checkpoint.incarnation,
            epoch=metadata.epoch,
            time=metadata.created,
            is_live=False,
            is_unborn=checkpoint.is_unborn,
            field=field,
            state=state,
        )
    )


def newest_in(open_store: Callable[[], Store], agent: str) -> Rows | None:
    """Return the agent's checkpoint in the newest snapshot; None if there is none. An unreadable store raises nothing."""
    try:
        store = open_store()
        manifest, line = _newest(store, agent)
        saved = None if line is None else store.read_checkpoint(manifest, agent)
    except NotFoundError:
        return None
    except (SnaplineError, OSError) as error:
        return {"problem": str(error)}
    return None if saved is None else _saved(manifest, saved)


def _newest(store: Store, agent: str) -> tuple[Manifest, AgentLine | None]:
    epoch = store.resolve(LATEST)
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    return manifest, next((line for line in manifest.agents if line.agent == agent), None)


def _saved(manifest: Manifest, checkpoint: AgentCheckpoint) -> Rows:
    metadata = manifest.metadata
    return {"epoch": metadata.epoch, "time": metadata.created, "checkpoint": checkpoint.number}


def description(view: AgentView, kind: str, host: str, newest: Rows | None) -> Rows:
    """Describe an agent for display, with times in seconds."""
    turn = {"what": view.turn, "sender": view.sender} if view.turn else None
    return document(
        "AgentDescription",
        agent=view.agent,
        agent_kind=kind,
        host=host,
        incarnation=view.incarnation,
        life=view.life,
        turn=turn,
        durable_turn=None if view.durable is None else _durable(view.durable),
        attempts=view.attempts,
        retry_s=None if view.retry_ns is None else view.retry_ns / 1e9,
        messages_waiting=view.messages,
        inputs_waiting=view.inputs,
        inputs_consumed=view.inputs_consumed,
        keys=view.keys,
        outbox=view.outbox,
        spawns=list(view.spawns),
        timers=[{"name": name, "remaining_s": remaining_ns / 1e9} for name, remaining_ns in view.timers],
        checkpoint=view.checkpoint,
        snapshot=newest,
        dead_letter_count=view.dead_letter_count,
        dead_letters=[
            {
                "number": number,
                "sender": letter.sender,
                "message": describe_payload(letter.payload),
                "error": last_line(letter.error),
                "attempts": letter.attempts,
                "identity": identity_of(letter).hex(),
            }
            for number, letter in zip(view.dead_letter_numbers, view.dead_letters, strict=True)
        ],
    )


def _durable(turn: TurnView) -> Rows:
    """A durable turn in its middle, and the newest entries of its journal."""
    first = turn.entries - len(turn.newest) + 1
    return {
        "what": turn.what,
        "sender": turn.sender,
        "message": describe_payload(turn.payload),
        "waits_for": None if turn.waits is None else _asked(turn.waits),
        "waits_s": None if turn.waits is None else turn.waits_ns / 1e9,
        "problem": turn.problem,
        "put_off": turn.put_off,
        "effect": None if turn.effect is None else _effect(turn.effect, turn.effect_stands),
        "entries": turn.entries,
        "journal": [
            {"number": number, "asked": _asked(entry), "outcome": entry.outcome}
            for number, entry in enumerate(turn.newest, first)
        ],
    }


def waiting_agent(view: AgentView, host: str) -> WaitingAgent:
    """Return the waiting work of an agent."""
    document = WaitingAgent(view.agent, host, inputs=view.inputs, dead_letters=view.dead_letter_count)
    turn = view.durable
    if turn is None:
        return document
    waits_for = "" if turn.waits is None else _asked(turn.waits)
    if turn.effect is not None:
        waits_for = f"effect {turn.effect.name}, key {turn.effect.key}: {turn.effect_stands}"
    return msgspec.structs.replace(
        document,
        turn=turn.what,
        sender=turn.sender,
        steps=turn.entries,
        waits_for=waits_for,
        waits_s=turn.waits_ns / 1e9,
        problem=turn.problem,
        put_off=turn.put_off,
    )


def _effect(opened: OpenEffect, stands: str) -> Rows:
    """The effect at which a turn waits. `number` tells this doubt from later ones."""
    return {
        "key": opened.key,
        "generation": opened.generation,
        "number": opened.number,
        "name": opened.name,
        "arguments": opened.arguments,
        "stands": stands,
    }


def _asked(entry: JournalEntry) -> str:
    return f"{entry.kind} {entry.name}".rstrip()

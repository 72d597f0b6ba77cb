"""Contents of a checkpoint besides its state, for display: messages in transit, timers, spawns, dead letters.

`Cut` and the snapshot reader show the same contents but decode messages differently. So each passes a decoder: (receiving agent, payload) → (type
name, message).
"""

from collections.abc import Callable, Iterator

import msgspec

from snapline.agent_runtime.sagas import UNDO
from snapline.messages.payloads import CREATE, plain_name, split_message, unwrapped
from snapline.storage.capture.plain_values import plain_value
from snapline.storage.capture.saved_values import FAILURES, read_record
from snapline.storage.packs.checkpoint import AgentCheckpoint

Decode = Callable[[str, bytes], tuple[str, object]]

NS = 10**9


class TransitMessage(msgspec.Struct, frozen=True):
    """A message sent inside the cut and not consumed inside it.

    Attributes:
        sender, receiver: agents.
        number: number of the message on its channel; None while it waits in the sender's outbox.
        message: the message; a dict of its fields if its class is not available; None for the message that creates an agent.
        type: type name of the message; "" for the message that creates an agent.
    """

    sender: str
    receiver: str
    number: int | None
    message: object
    type: str = ""


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that its agent could not handle.

    Attributes:
        agent: agent that has the dead letter.
        sender: sender of the message; the agent itself for a timer's message, or for one that can never arrive.
        message, type: see `TransitMessage`; None and "" if `on_start` failed.
        error: error of the last attempt.
        attempts: number of attempts.
        time_s: time of the last attempt, in seconds since 1970; 0 if unknown.
        number: number among the agent's dead letters, over all its incarnations.
    """

    agent: str
    sender: str
    message: object
    type: str
    error: str
    attempts: int
    time_s: float
    number: int = 0


class PendingTimer(msgspec.Struct, frozen=True):
    """A timer that had not fired; `remaining_s` counts from the agent's checkpoint."""

    agent: str
    name: str
    remaining_s: float
    message: object
    type: str


class PendingTurn(msgspec.Struct, frozen=True):
    """An unfinished durable turn: its message and sender, the number of journal `entries`, and what it `waits` for ("" if that has arrived)."""

    agent: str
    sender: str
    message: object
    type: str
    entries: int
    waits: str


class PendingSpawn(msgspec.Struct, frozen=True):
    """An agent that `parent` requested and that had not been granted yet. Its class is `kind`, "module:Class"."""

    parent: str
    agent: str
    kind: str


def messages_to(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages in the channels into an agent, channel by channel in order."""
    for sender, messages in checkpoint.in_transit.items():
        for message in messages:
            kind, decoded = decode(checkpoint.agent, message.payload)
            yield TransitMessage(sender, checkpoint.agent, message.number, decoded, kind)


def messages_parked(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages in an agent's outbox, in order."""
    for parked in checkpoint.outbox:
        kind, decoded = decode(parked.receiver, parked.payload)
        yield TransitMessage(checkpoint.agent, parked.receiver, None, decoded, kind)


def dead_letters(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[DeadLetter]:
    """Yield the newest dead letters of an agent, oldest first."""
    for number, letter in zip(checkpoint.dead_letter_numbers.numbers, checkpoint.dead_letters, strict=True):
        kind, decoded = decode(checkpoint.agent, letter.payload)
        time_s = letter.time_ns / NS
        yield DeadLetter(checkpoint.agent, letter.sender, decoded, kind, letter.error, letter.attempts, time_s, number)


def pending_timers(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[PendingTimer]:
    """Yield the timers of an agent that had not fired."""
    for timer in checkpoint.own_timers:
        kind, decoded = decode(checkpoint.agent, timer.payload)
        yield PendingTimer(checkpoint.agent, timer.name, timer.remaining_ns / NS, decoded, kind)


def pending_turns(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[PendingTurn]:
    """Yield the durable turn of an agent that had not ended."""
    turn = checkpoint.turn
    if turn is not None:
        kind, decoded = decode(checkpoint.agent, turn.payload)
        waits = "" if turn.waits is None else f"{turn.waits.kind} {turn.waits.name}".rstrip()
        yield PendingTurn(checkpoint.agent, turn.sender, decoded, kind, checkpoint.journal_entries, waits)


def open_effects(checkpoint: AgentCheckpoint) -> Iterator[str]:
    """Yield the effects that an agent was to do, or to undo, and had not."""
    effects = checkpoint.effects
    if effects is not None and effects.open is not None:
        yield f"{checkpoint.agent}: {effects.open.name}"
    undone = [stashed for stashed in checkpoint.stash if stashed.payload.startswith(UNDO)]
    if undone or (checkpoint.turn is not None and checkpoint.turn.payload.startswith(UNDO)):
        yield f"{checkpoint.agent}: undoing"


def turns_with_effects(checkpoint: AgentCheckpoint) -> Iterator[str]:
    """Yield the unfinished durable turn of an agent, if it has done something outside."""
    effects = checkpoint.effects
    if checkpoint.turn is not None and effects is not None and effects.made:
        yield f"{checkpoint.agent}: a turn that has done {', '.join(effect.name for effect in effects.made)}"


def deferred_messages(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages that a durable turn has deferred: received, and not handled."""
    for stashed in checkpoint.stash:
        kind, decoded = decode(checkpoint.agent, stashed.payload)
        yield TransitMessage(stashed.sender, checkpoint.agent, None, decoded, kind)


def pending_spawns(checkpoint: AgentCheckpoint) -> Iterator[PendingSpawn]:
    """Yield the agents that an agent has requested."""
    for spawn in checkpoint.spawns:
        yield PendingSpawn(checkpoint.agent, spawn.agent, plain_name(spawn.kind))


def decode_plainly(receiver: str, payload: bytes) -> tuple[str, object]:
    """Decode a message without its class into a dict of its fields, as far as possible, since it may be a dead letter."""
    if payload[:1] in (CREATE, b""):
        return "", None
    name, body = "", memoryview(payload)
    try:
        name, body = split_message(unwrapped(payload))
        return name, plain_value(read_record(body))
    except FAILURES:
        return name, f"<{len(body)} bytes>"

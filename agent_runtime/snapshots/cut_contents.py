"""Contents of a checkpoint besides its state, as people read them: messages in transit, timers, spawns, dead letters.

A `Cut` and a reader of snapshots show the same things; they differ in how they decode a message. So both pass a function that does: (the agent that
takes it, payload) → (name of the message's type, message).
"""

from collections.abc import Callable, Iterator

import msgspec

from snapline.agent_runtime.undoing import UNDO
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
        number: its number on the channel; None if it was still waiting in its sender's outbox.
        message: the message; a dict of its fields where its class is not at hand; None for the message that creates an agent.
        type: name of its type; "" for the message that creates an agent.
    """

    sender: str
    receiver: str
    number: int | None
    message: object
    type: str = ""


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that its agent could not handle.

    Attributes:
        agent: the one that has the dead letter.
        sender: of the message; the agent itself, if it was a timer's, or a message of its own that can never arrive.
        message, type: as of a `TransitMessage`; None and "" if it is `on_start` that failed.
        error: the last attempt's error.
        attempts: number of attempts.
        time_s: of the last attempt, in seconds since 1970; 0 if unknown.
        number: among the dead letters of its agent, over all its lives.
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
    """A durable turn in its middle: its message and sender, the number of `entries` of its journal, and what it `waits` for; "" if that has come."""

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
    undone = [each for each in checkpoint.stash if each.payload.startswith(UNDO)]
    if undone or (checkpoint.turn is not None and checkpoint.turn.payload.startswith(UNDO)):
        yield f"{checkpoint.agent}: undoing"


def turns_with_effects(checkpoint: AgentCheckpoint) -> Iterator[str]:
    """Yield the unfinished durable turn of an agent, if it has done something outside."""
    effects = checkpoint.effects
    if checkpoint.turn is not None and effects is not None and effects.made:
        yield f"{checkpoint.agent}: a turn that has done {', '.join(made.name for made in effects.made)}"


def messages_put_off(checkpoint: AgentCheckpoint, decode: Decode) -> Iterator[TransitMessage]:
    """Yield the messages that a durable turn has deferred: received, and not handled."""
    for stashed in checkpoint.stash:
        kind, decoded = decode(checkpoint.agent, stashed.payload)
        yield TransitMessage(stashed.sender, checkpoint.agent, None, decoded, kind)


def pending_spawns(checkpoint: AgentCheckpoint) -> Iterator[PendingSpawn]:
    """Yield the agents that an agent has requested."""
    for spawn in checkpoint.spawns:
        yield PendingSpawn(checkpoint.agent, spawn.agent, plain_name(spawn.kind))


def decode_plainly(receiver: str, payload: bytes) -> tuple[str, object]:
    """Decode a message without its class: a dict of its fields; as far as it can be read, since it may be a dead letter."""
    if payload[:1] in (CREATE, b""):
        return "", None
    name, body = "", memoryview(payload)
    try:
        name, body = split_message(unwrapped(payload))
        return name, plain_value(read_record(body))
    except FAILURES:
        return name, f"<{len(body)} bytes>"

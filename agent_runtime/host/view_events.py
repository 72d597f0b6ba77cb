"""Requests of users to a host core about agents, and its answers."""

import msgspec

from snapline.agent_runtime.host.events import Command, Event
from snapline.messages.effect_records import UnfinishedEffect
from snapline.storage.packs.checkpoint import DeadLetterRecord, JournalEntry
from snapline.storage.packs.saved_effects import OpenEffect


class ViewRequested(Event, frozen=True, gc=False):
    """A request to see an agent. The answer is one AnswerView of this number; `is_settled`: not before it is between two turns."""

    request: int
    agent: str
    is_settled: bool


class EffectsRequested(Event, frozen=True, gc=False):
    """A request for the effects at which the agents here wait. The answer is one AnswerEffects of this number."""

    request: int


class AnswerEffects(Command, frozen=True, gc=False):
    """An answer to EffectsRequested."""

    request: int
    effects: tuple[UnfinishedEffect, ...]


class WaitingAgentsRequested(Event, frozen=True, gc=False):
    """A request for the agents here with which something waits. The answer is one AnswerWaiting of this number."""

    request: int


class TracingRequested(Event, frozen=True, gc=False):
    """A change of tracing for viewers: of each channel, every N-th message is traced from now on; 0 = none."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """State of a durable turn that has not ended.

    Attributes:
        what, sender, payload: kind, sender and payload of the message that began the turn.
        entries, newest: number of journal entries, and the last ones.
        waits, waits_ns: entry that the turn waits for, and duration of the wait; None: the entry has arrived.
        put_off: number of deferred messages.
        problem: reason why the turn cannot continue, or "".
        effect, effect_stands: effect that the turn waits for, and its state as text.
    """

    what: str
    sender: str
    payload: bytes
    entries: int
    newest: tuple[JournalEntry, ...]
    waits: JournalEntry | None
    waits_ns: int
    put_off: int
    problem: str
    effect: OpenEffect | None = None
    effect_stands: str = ""


class AgentView(msgspec.Struct, frozen=True, gc=False):
    """State of an agent.

    Attributes:
        life: "unborn"; "starting": before the end of `on_start`; "running"; "failed": waiting for a recovery; "stopping".
        turn: kind of the running turn: "message", "input", "timer", "start", "create", "letter"; empty between two turns.
        sender: sender of that turn's message.
        attempts: failed attempts of the turn that runs, or that is retried in `retry_ns`.
        messages, inputs: number of messages from agents and of inputs from outside that wait for turns.
        outbox: number of messages that have not been sent yet.
        spawns: requested agents that were not granted yet.
        timers: name and nanoseconds until it fires.
        inputs_consumed: number of the last consumed input.
        keys: number of remembered input keys.
        checkpoint: number of the last checkpoint.
        dead_letter_count: number of all dead letters, without those handled after a retry; `dead_letters`: the newest ones, with numbers.
        durable: unfinished durable turn, if any.
    """

    agent: str
    kind: str
    incarnation: int
    life: str
    turn: str
    sender: str
    attempts: int
    retry_ns: int | None
    messages: int
    inputs: int
    outbox: int
    spawns: tuple[str, ...]
    timers: tuple[tuple[str, int], ...]
    inputs_consumed: int
    keys: int
    checkpoint: int
    dead_letter_count: int
    dead_letters: tuple[DeadLetterRecord, ...]
    dead_letter_numbers: tuple[int, ...]
    durable: TurnView | None = None


class AnswerView(Command, frozen=True, gc=False):
    """An answer to ViewRequested. `view` is None, with a reason, if the agent is not on this host now. If the view had to be settled, the state must be
    read at once."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """An answer to WaitingAgentsRequested. `more`: agents that are left out."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0

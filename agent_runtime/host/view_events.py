"""Requests of people to a host core about one agent, and its answers."""

import msgspec

from snapline.agent_runtime.host.events import Command, Event
from snapline.messages.effect_records import StandingEffect
from snapline.storage.packs.checkpoint import DeadLetterRecord, JournalEntry
from snapline.storage.packs.saved_effects import OpenEffect


class ViewWanted(Event, frozen=True, gc=False):
    """A request to see an agent. The answer is one AnswerView of this number; `is_settled`: not before it is between two turns."""

    request: int
    agent: str
    is_settled: bool


class EffectsWanted(Event, frozen=True, gc=False):
    """A request for the effects at which the agents here wait. The answer is one AnswerEffects of this number."""

    request: int


class AnswerEffects(Command, frozen=True, gc=False):
    """An answer to EffectsWanted."""

    request: int
    effects: tuple[StandingEffect, ...]


class WaitingWanted(Event, frozen=True, gc=False):
    """A request for the agents here with which something waits. The answer is one AnswerWaiting of this number."""

    request: int


class TracingWanted(Event, frozen=True, gc=False):
    """A change of tracing for viewers: of each channel, every N-th message is traced from now on; 0 = none."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """State of a durable turn that has not ended.

    Attributes:
        what, sender, payload: of the message that began it.
        entries: how many its journal has; `newest`: the last ones.
        waits: entry that it waits for, since `waits_ns`; None: that has come.
        put_off: number of messages that it has deferred.
        problem: why it cannot continue, or "".
        effect: the one at which it waits; `effect_stands`: its state, for people.
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
        life: "unborn"; "starting": before the end of `on_start`; "running"; "failed": a recovery is to bring it back; "stopping".
        turn: what its turn is about: "message", "input", "timer", "start", "create", "letter"; empty between two turns.
        sender: of that turn.
        attempts: failed ones of the turn that runs, or is to be retried in `retry_ns`.
        messages, inputs: that wait for their turns; inputs are from outside.
        outbox: messages that have not left yet.
        spawns: agents that it requested and that were not granted yet.
        timers: name and nanoseconds until it fires.
        inputs_consumed: number of the last one.
        keys: of inputs, that it remembers.
        checkpoint: number of its last one.
        dead_letter_count: how many there ever were, less those that were handled after all; `dead_letters`: the newest ones, and their numbers.
        durable: its durable turn, if one has begun and not ended.
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
    """An answer to ViewWanted; None: the agent is not here just now, and why. If it was to be settled its state must be read at once."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """An answer to WaitingWanted. `more`: agents that are left out."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0

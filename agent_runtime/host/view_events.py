"""What a host core is asked about one agent by people, and what it says."""

import msgspec

from snapline.agent_runtime.host.events import Command, Event
from snapline.messages.effect_records import StandingEffect
from snapline.storage.packs.checkpoint import DeadLetterRecord, JournalEntry
from snapline.storage.packs.saved_effects import OpenEffect


class ViewWanted(Event, frozen=True, gc=False):
    """Somebody wants to see an agent. Comes back as one AnswerView of this number; `is_settled`: not before it is between two turns."""

    request: int
    agent: str
    is_settled: bool


class EffectsWanted(Event, frozen=True, gc=False):
    """Somebody wants to see at which effects the agents here stand. Comes back as one AnswerEffects of this number."""

    request: int


class AnswerEffects(Command, frozen=True, gc=False):
    """Tell who asked."""

    request: int
    effects: tuple[StandingEffect, ...]


class WaitingWanted(Event, frozen=True, gc=False):
    """Somebody wants to see with which agents here something waits. Comes back as one AnswerWaiting of this number."""

    request: int


class TracingWanted(Event, frozen=True, gc=False):
    """Somebody looks at what happens here, or nobody does any more: of each channel, every so manieth message is traced from now on; 0 = none."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """How a durable turn stands that has not ended.

    Attributes:
        what, sender, payload: of what it was begun for.
        entries: how many its journal has; `newest`: the last ones.
        waits: what it waits for, since `waits_ns`; None: that has come.
        put_off: messages that it has passed by.
        problem: why it cannot be gone on with, or "".
        effect: at which it stands; `effect_stands`: how that stands, for people.
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
    """How an agent stands.

    Attributes:
        life: "unborn"; "starting": before the end of `on_start`; "running"; "failed": a recovery is to bring it back; "stopping".
        turn: what its turn is about: "message", "input", "timer", "start", "create", "letter"; empty between two turns.
        sender: of that turn.
        attempts: failed ones of the turn that runs, or is to be tried again in `retry_ns`.
        messages, inputs: that wait for their turns; inputs are from outside.
        outbox: messages that have not left yet.
        spawns: agents that it asked for and that were not granted yet.
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
    letter_numbers: tuple[int, ...]
    durable: TurnView | None = None


class AnswerView(Command, frozen=True, gc=False):
    """Tell who asked; None: the agent is not here just now, and why. If it was to be settled its state must be looked at at once."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """Tell who asked. `more`: agents that are left out."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0

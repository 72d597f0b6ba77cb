"""Defines the entries in agents' mailboxes, each of which gets a turn, and the stages of an agent.

The class of an entry is its kind, which is determined once, when the entry is created. For a message, an input or a stashed message, the
kind depends on the payload's first byte (`message_entry`, `input_entry`, `stashed_entry`).
"""

from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Final, assert_never

import msgspec

from snapline.agent_runtime.host.host_events import TurnKind
from snapline.messages.agent_commands import COMMAND_PREFIX
from snapline.messages.payloads import CREATE
from snapline.storage.log.log_record import LoggedInput
from snapline.storage.packs.checkpoint import StashedMessage

if TYPE_CHECKING:
    from snapline.agent_runtime.host.host_state import AgentInlet, LocalAgent

Mark = int | bytes
"""Protocol data attached to a message: a stamp in chandy-lamport, and a piggyback in all other protocols."""


class MessageEntry(msgspec.Struct, frozen=True):
    """A message from another agent. The entry must be tracked by the garbage collector, because the receiving end of its channel refers
    back to the mailbox."""

    kind: ClassVar[TurnKind] = "message"

    inlet: "AgentInlet"
    mark: Mark
    payload: bytes


class CreationEntry(MessageEntry, frozen=True):
    """A message that creates its receiver."""

    kind: ClassVar[TurnKind] = "create"


class StartEntry(msgspec.Struct, frozen=True, gc=False):
    """The start of an agent that was not created by a message. It runs `on_start`."""

    kind: ClassVar[TurnKind] = "start"
    payload: ClassVar[bytes] = b""


class TimerEntry(msgspec.Struct, frozen=True, gc=False):
    """A timer that has fired."""

    kind: ClassVar[TurnKind] = "timer"

    name: str
    payload: bytes


class InputEntry(msgspec.Struct, frozen=True, gc=False):
    """An input from a client."""

    kind: ClassVar[TurnKind] = "input"

    input: LoggedInput

    @property
    def payload(self) -> bytes:
        return self.input.payload


class CommandEntry(InputEntry, frozen=True, gc=False):
    """An operator command, which is a special kind of input."""

    kind: ClassVar[TurnKind] = "letter"


class StashedEntry(msgspec.Struct, frozen=True, gc=False):
    """A stashed message or input, which was consumed early, while a durable turn was waiting."""

    kind: ClassVar[TurnKind] = "stashed"

    stashed: StashedMessage

    @property
    def payload(self) -> bytes:
        return self.stashed.payload


class StashedCommandEntry(StashedEntry, frozen=True, gc=False):
    """A stashed operator command, which was consumed early, while a durable turn was waiting."""

    kind: ClassVar[TurnKind] = "letter"


class SegmentEntry(msgspec.Struct, frozen=True, gc=False):
    """The next segment of a durable turn. A segment entry is never in a mailbox."""

    kind: ClassVar[TurnKind] = "segment"
    payload: ClassVar[bytes] = b""


Entry = MessageEntry | StartEntry | TimerEntry | InputEntry | StashedEntry | SegmentEntry

FirstEntry = StartEntry | CreationEntry
"""Kinds of entries whose turns run `on_start`."""

OperatorCommandEntry = CommandEntry | StashedCommandEntry


def message_entry(inlet: "AgentInlet", mark: Mark, payload: bytes) -> MessageEntry:
    """Return the entry for a message that has arrived."""
    return (CreationEntry if payload[:1] == CREATE else MessageEntry)(inlet, mark, payload)


def input_entry(logged: LoggedInput) -> InputEntry:
    """Return the entry for an input or an operator command."""
    return (CommandEntry if logged.payload[:1] == COMMAND_PREFIX else InputEntry)(logged)


def stashed_entry(stashed: StashedMessage) -> StashedEntry:
    """Return the entry for a stashed message or input. Only inputs have keys, and operator commands are always inputs."""
    is_command = stashed.key and stashed.payload[:1] == COMMAND_PREFIX
    return (StashedCommandEntry if is_command else StashedEntry)(stashed)


def sender_of(agent: "LocalAgent", entry: Entry) -> str:
    """Return the sender of a mailbox entry. For the agent's own turns, the sender is the agent itself. For inputs, the sender is `@`
    followed by the client's name, which is never the id of an agent."""
    match entry:
        case MessageEntry():
            return entry.inlet.sender
        case InputEntry():
            return f"@{entry.input.client}"
        case StashedEntry():
            return entry.stashed.sender
        case StartEntry() | TimerEntry() | SegmentEntry():
            return agent.id
        case _:
            assert_never(entry)


def key_of(entry: Entry) -> str:
    """Return the idempotency key of an input or an operator command, or "" for any other entry."""
    match entry:
        case InputEntry():
            return entry.input.key
        case StashedEntry():
            return entry.stashed.key
        case _:
            return ""


def is_on(entry: Entry, inlet: "AgentInlet") -> bool:
    """Return whether the entry is a message from the channel of `inlet`."""
    return isinstance(entry, MessageEntry) and entry.inlet is inlet


def is_from_others(entry: Entry) -> bool:
    """Return whether the entry came from an agent or a client. Operator commands are excluded, because the messages to which they refer
    were counted earlier."""
    is_sent = isinstance(entry, MessageEntry | InputEntry | StashedEntry)
    return is_sent and not isinstance(entry, OperatorCommandEntry)


class Stage(Enum):
    """The current activity of an agent. An agent records its state, takes checkpoints and starts turns only while it is idle.

    The stages BETWEEN_SEGMENTS and SENDING begin and end within the handling of a single event.
    """

    IDLE = auto()
    """The agent is between two turns."""

    IN_TURN = auto()
    """The turn of the agent's current entry is running."""

    BETWEEN_SEGMENTS = auto()
    """The agent's durable turn consumes entries or settles an effect, and no segment is running."""

    SENDING = auto()
    """The agent sends messages or replies that do not belong to a running turn."""


IDLE: Final = Stage.IDLE
IN_TURN: Final = Stage.IN_TURN
"""Module-level names of the two stages that the hot path compares and sets."""

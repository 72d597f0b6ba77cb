"""Entries of agents' mailboxes, each of which gets a turn, and the stages of an agent.

The class of an entry is its kind. An entry's class is chosen once, when the entry is made: by the first byte of the payload if the entry is
a message, an input or a stashed message (`message_entry`, `input_entry`, `stashed_entry`).
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
"""Protocol data of a message: a stamp in chandy-lamport, otherwise a piggyback."""


class MessageEntry(msgspec.Struct, frozen=True):
    """A message of an agent. The garbage collector tracks it, since its inlet leads back to the mailbox."""

    kind: ClassVar[TurnKind] = "message"

    inlet: "AgentInlet"
    mark: Mark
    payload: bytes


class CreationEntry(MessageEntry, frozen=True):
    """A message that creates its receiver."""

    kind: ClassVar[TurnKind] = "create"


class StartEntry(msgspec.Struct, frozen=True, gc=False):
    """The turn that runs `on_start` of an agent that no message has created."""

    kind: ClassVar[TurnKind] = "start"
    payload: ClassVar[bytes] = b""


class TimerEntry(msgspec.Struct, frozen=True, gc=False):
    """A timer that has fired."""

    kind: ClassVar[TurnKind] = "timer"

    name: str
    payload: bytes


class InputEntry(msgspec.Struct, frozen=True, gc=False):
    """An input of a client."""

    kind: ClassVar[TurnKind] = "input"

    input: LoggedInput

    @property
    def payload(self) -> bytes:
        return self.input.payload


class CommandEntry(InputEntry, frozen=True, gc=False):
    """An operator command, which is an input too."""

    kind: ClassVar[TurnKind] = "letter"


class StashedEntry(msgspec.Struct, frozen=True, gc=False):
    """A message or an input from the stash: a durable turn consumed it early."""

    kind: ClassVar[TurnKind] = "stashed"

    stashed: StashedMessage

    @property
    def payload(self) -> bytes:
        return self.stashed.payload


class StashedCommandEntry(StashedEntry, frozen=True, gc=False):
    """An operator command from the stash."""

    kind: ClassVar[TurnKind] = "letter"


class SegmentEntry(msgspec.Struct, frozen=True, gc=False):
    """The next segment of a durable turn. The entry is never in a mailbox."""

    kind: ClassVar[TurnKind] = "segment"
    payload: ClassVar[bytes] = b""


Entry = MessageEntry | StartEntry | TimerEntry | InputEntry | StashedEntry | SegmentEntry

FirstEntry = StartEntry | CreationEntry
"""Entries that run `on_start`."""

OperatorCommandEntry = CommandEntry | StashedCommandEntry


def message_entry(inlet: "AgentInlet", mark: Mark, payload: bytes) -> MessageEntry:
    """Return the entry of an arrived message."""
    return (CreationEntry if payload[:1] == CREATE else MessageEntry)(inlet, mark, payload)


def input_entry(logged: LoggedInput) -> InputEntry:
    """Return the entry of an input or an operator command."""
    return (CommandEntry if logged.payload[:1] == COMMAND_PREFIX else InputEntry)(logged)


def stashed_entry(stashed: StashedMessage) -> StashedEntry:
    """Return the entry of a stashed message. Only an input has a key, and may be an operator command."""
    is_command = stashed.key and stashed.payload[:1] == COMMAND_PREFIX
    return (StashedCommandEntry if is_command else StashedEntry)(stashed)


def sender_of(agent: "LocalAgent", entry: Entry) -> str:
    """Return the sender: for the agent's own turns the agent itself; for inputs `@` and the client's name, which no agent has."""
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
    """Return the idempotency key of an input or an operator command; "" for anything else."""
    match entry:
        case InputEntry():
            return entry.input.key
        case StashedEntry():
            return entry.stashed.key
        case _:
            return ""


def is_on(entry: Entry, inlet: "AgentInlet") -> bool:
    """Return whether the entry is a message of this channel."""
    return isinstance(entry, MessageEntry) and entry.inlet is inlet


def is_from_others(entry: Entry) -> bool:
    """Return whether another agent or an outside client sent the entry. Operator commands do not count, since the messages that they
    concern were counted before."""
    is_sent = isinstance(entry, MessageEntry | InputEntry | StashedEntry)
    return is_sent and not isinstance(entry, OperatorCommandEntry)


class Stage(Enum):
    """What an agent does. Only an idle agent records, takes a checkpoint or starts a turn.

    The last two stages begin and end within one event.
    """

    IDLE = auto()
    """Between two turns."""

    IN_TURN = auto()
    """The turn of its current entry runs."""

    BETWEEN_SEGMENTS = auto()
    """Its durable turn consumes entries, or settles an effect, with no segment running."""

    SENDING = auto()
    """Messages or answers leave that belong to no running turn."""


IDLE: Final = Stage.IDLE
IN_TURN: Final = Stage.IN_TURN
"""The stages that the hot path compares and sets."""

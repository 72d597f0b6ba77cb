"""Events and commands of a host core.

Events are in the past tense and come from the adapters: the links, the turns, the store, the clock. Commands are imperatives
and are carried out by the adapters, in order, before the next event. Messages between the coordinator and the host are defined
in `messages/host_messages.py`, and the core takes and gives them as they are.
"""

from collections.abc import Mapping

import msgspec

from snapline.agent_runtime.durable import Pause
from snapline.agent_runtime.rolling_back import RollbackRequest
from snapline.channels.frame import Frame, LinkHello
from snapline.messages import host_messages as msg
from snapline.messages.inputs import InputOutcome
from snapline.messages.turn_deaths import TurnDeath
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture.sealed_journal import SealedRuns
from snapline.storage.log.names import LogName
from snapline.storage.log.record import LoggedEntry, LoggedInput
from snapline.storage.packs.checkpoint import (
    NO_INPUTS,
    NO_OUTPUTS,
    AgentCheckpoint,
    DeadLetterNumbers,
    DeadLetterRecord,
    InTransitMessage,
    JournalEntry,
    ParkedMessage,
    SavedInputs,
    SavedOutputs,
    SavedTimer,
    SavedTurn,
    SpawnRequest,
    StashedMessage,
)
from snapline.storage.packs.saved_effects import SavedEffects

Spawn = tuple[str, str, bytes]
"""Id, kind and state image of an agent to create."""

Emission = tuple[str, bytes, int]
"""Topic, payload and wall-clock time of an output."""

Log = dict[str, list[InTransitMessage]]
"""A sender log: receiver → messages sent since the sender's checkpoint before, in order."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of a host core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base of a host core's commands."""


Heard = Event | msg.Directive
"""Input of a host core: a directive of the coordinator is an event as it is, but for the plan."""

Said = Command | msg.HostMessage
"""Output of a host core: a message is to be sent to the coordinator."""


class Placement(msgspec.Struct, frozen=True):
    """One agent's place in a plan."""

    agent: str
    kind: str
    host: str
    incarnation: int
    ordinal: int = 0


class LoadedAgent(msgspec.Struct, frozen=True):
    """An agent that the adapter has made: initial (`checkpoint` is None), restored, or unborn.

    `passed_ns`: time since the checkpoint, as far as the machine's clock knows.
    """

    agent: str
    incarnation: int
    checkpoint: AgentCheckpoint | None
    passed_ns: int = 0


# ---- from the coordinator -----------------------------------------------------------------------------------------


class PlanReceived(Event, frozen=True, gc=False):
    """The fleet (re)starts from the line of epoch `line_epoch`; 0 = the initial states. `logs`: of earlier plans, perhaps unsealed.

    `drop_before`: what logs of plans below this one hold beyond the line is dropped. `deaths`: turns in which processes have died. `newest`: logs,
    each with the number of a batch that is in it, as far as the coordinator knows.
    """

    number: int
    line_epoch: int
    line_root: str
    begun_epoch: int
    hosts: tuple[str, ...]
    agents: tuple[Placement, ...]
    logs: tuple[LogName, ...] = ()
    drop_before: int = 0
    deaths: tuple[TurnDeath, ...] = ()
    newest: tuple[tuple[LogName, int], ...] = ()


# ---- from links, turns, store, clock ------------------------------------------------------------------------------


class StreamOpened(Event, frozen=True, gc=False):
    peer: str
    attempt: int


class PeerKnocked(Event, frozen=True, gc=False):
    """A request to be dialled, from a host that may not dial this one."""

    hello: LinkHello


class FrameReceived(Event, frozen=True, gc=False):
    peer: str
    frame: Frame


class StreamClosed(Event, frozen=True, gc=False):
    peer: str


class WriteReady(Event, frozen=True, gc=False):
    """The writer of the stream to `peer` is free: at most one `WriteFrame` comes back."""

    peer: str


class AgentsLoaded(Event, frozen=True, gc=False):
    """`inputs`: of the logs of earlier plans, of all agents, in the order of each agent's numbers; `dropped`: those that come before them, and
    are not given any more; `entries`: of durable turns, in the order of the logs. All these logs are sealed. `why_no_log`: why the store
    takes no host logs, or "". `log_key`: the public key for signed batches, or b"". `is_authenticated`: the store is signed or encrypted."""

    plan: int
    agents: tuple[LoadedAgent, ...]
    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_no_log: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False


class LoadFailed(Event, frozen=True, gc=False):
    """The line cannot be loaded. `damaged_epoch` is 0 if none is damaged; `may_pass`: the store cannot be read just now."""

    plan: int
    damaged_epoch: int
    path: str
    reason: str
    may_pass: bool = False


class TurnEnded(Event, frozen=True, gc=False):
    """The handler has returned, or `pause`: a segment of a durable turn has ended. `is_durable`: the last one, perhaps the only one."""

    agent: str
    incarnation: int
    sends: list[tuple[str, bytes]] = []
    timers: list[tuple[str, int, bytes]] = []
    cancelled: list[str] = []
    spawns: list[Spawn] = []
    stops: bool = False
    wants_checkpoint: bool = False
    reply: bytes = b""
    outputs: list[Emission] = []
    pause: Pause | None = None
    is_durable: bool = False


class TurnFailed(Event, frozen=True, gc=False):
    """The handler raised. `on_error`, `retries` and the waits before each of these, if any, are its class's; `is_final`: trying
    again cannot help; `is_divergent`: a durable turn that does not repeat itself; `is_durable`: it was one; `rollback`: it requests a rollback of
    the fleet; `is_of_step`: a failed step caused it."""

    agent: str
    incarnation: int
    error: str
    time_ns: int
    on_error: str = "undo"
    retries: int = 0
    is_final: bool = False
    waits_ns: tuple[int, ...] = ()
    is_divergent: bool = False
    is_durable: bool = False
    rollback: RollbackRequest | None = None
    is_of_step: bool = False


class EpochStored(Event, frozen=True, gc=False):
    """The host's part of the epoch is durable."""

    epoch: int
    plan: int


class EpochNotStored(Event, frozen=True, gc=False):
    """The host's part of the epoch could not be written."""

    epoch: int
    plan: int
    reason: str


class CaptureFailed(Event, frozen=True, gc=False):
    """A state could not be encoded; the epoch cannot complete."""

    agent: str
    epochs: tuple[int, ...]
    reason: str


class CheckpointMeasured(Event, frozen=True, gc=False):
    """Time that an agent paused for its checkpoint; measured if the policy needs it."""

    agent: str
    cost_ns: int


class CheckpointFailed(Event, frozen=True, gc=False):
    """A state could not be encoded: the agent cannot be brought back to here, so it cannot go on from here."""

    agent: str
    incarnation: int
    reason: str


class StoreWatched(Event, frozen=True, gc=False):
    """State of the store for checkpoints: `is_busy`: too many wait for the store; `problem`: why it takes none, or ""; `is_full`: no more
    can wait at all."""

    is_busy: bool
    problem: str
    is_full: bool = False


class OfferedInput(msgspec.Struct, frozen=True, gc=False):
    """A message from outside. `payload`: as `encode_message` gives it; `key`: the client's, for the case that it comes again."""

    agent: str
    key: str
    payload: bytes
    is_word: bool = False  # an operator's, about a dead letter


class InputsOffered(Event, frozen=True, gc=False):
    """A client's request. Comes back as one AnswerInputs of this number. `wall_ns`: since 1970, of this host."""

    request: int
    client: str
    wall_ns: int
    inputs: tuple[OfferedInput, ...]


class ReplyAwaited(Event, frozen=True, gc=False):
    """A client waits for the answer to the input of this key, `is_early` at its turn's end, else in a complete epoch. One AnswerAsk comes back."""

    request: int
    agent: str
    key: str
    is_early: bool


class AskAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an input. `reply`: what its turn answered, as `encode_message` gives it; b"": nothing.

    `status`: "replied": its turn has ended well; "buried": it is a dead letter; "retry": not known here just now; "unknown": never
    received, or forgotten. `reason`: of the last two.
    """

    status: str
    number: int = 0
    reply: bytes = b""
    reason: str = ""


class TimerFired(Event, frozen=True, gc=False):
    """The clock has passed `wakeup_ns`."""


class BatchEnded(Event, frozen=True, gc=False):
    """The adapter has no more turns to run right now: what was queued for links goes out."""


OF_MODES: tuple[type[Heard], ...] = (
    *(msg.BeginEpoch, EpochStored, EpochNotStored, CaptureFailed),
    *(msg.FreezeAgents, msg.ThawAgents, msg.RequestCheckpoints, msg.ReportNumbers),
    *(CheckpointMeasured, CheckpointFailed, StoreWatched),
)
"""Events that only some checkpointing protocols know."""

# ---- commands -----------------------------------------------------------------------------------------------------


class StartTurn(Command, frozen=True, gc=False):
    """Run a turn. `what`: "start" (`on_start`), "create" (the message makes the agent), "message", "timer", "input", or "segment" of a durable
    turn: the next one, now that this was `found`, or all of them once more, as of this `turn`. `number`: if it is a durable one, among those
    of its agent; `logged`: what host logs hold of turns of that number. `refusal`: it fails for this reason, and its handler is not called; if it
    is to create the agent, that is there only if `is_made`."""

    agent: str
    incarnation: int
    what: str
    sender: str
    payload: bytes
    found: JournalEntry | None = None
    turn: SavedTurn | None = None
    number: int = 1
    logged: tuple[LoggedEntry, ...] = ()
    refusal: str = ""
    is_made: bool = False


class UndoTurn(Command, frozen=True, gc=False):
    """Put back the image taken before the turn that just failed."""

    agent: str


class Control(msgspec.Struct, frozen=True):
    """Contents of an agent's checkpoint besides its state and channels."""

    incarnation: int
    number: int
    is_born: bool
    is_started: bool
    is_leaving: bool
    outbox: list[ParkedMessage]
    spawns: list[SpawnRequest]
    timers: list[SavedTimer]
    dead_letters: list[DeadLetterRecord]
    dead_letter_count: int
    protocol_state: bytes = b""
    inputs: SavedInputs = NO_INPUTS
    outputs: SavedOutputs = NO_OUTPUTS
    turn: SavedTurn | None = None
    stash: list[StashedMessage] = []
    dead_letter_numbers: DeadLetterNumbers | None = None  # they are counted
    sealed: SealedRuns | None = None  # of the turn's journal: `turn` has the rest
    durable_turns: int = 0
    effects: SavedEffects | None = None

    @property
    def ended_turns(self) -> int:
        """Number of durable turns that have ended."""
        return self.durable_turns - (self.turn is not None)


class CaptureState(Command, frozen=True, gc=False):
    """Take the image of an agent's state now; it serves all these epochs."""

    agent: str
    epochs: tuple[int, ...]
    control: Control


class TakeCheckpoint(Command, frozen=True, gc=False):
    """Take the image of an agent's state now, and make it durable with its log later.

    Attributes:
        basis: "initial", "basic", "forced" or "tentative".
        round: the koo-toueg round of a tentative one, else 0.
        sent, received: by channel, the last number sent, and consumed.
        changed_sent, changed_received: those that differ from the agent's checkpoint before.
        log: what was sent since then.
        turns: taken since then.
    """

    agent: str
    basis: str
    round: int
    control: Control
    sent: dict[str, int]
    received: dict[str, int]
    changed_sent: dict[str, int]
    changed_received: dict[str, int]
    log: Log
    turns: int


class ReportFrozen(Command, frozen=True, gc=False):
    """Report that nothing moves here, once all checkpoints taken so far are durable. `running` count as failed."""

    plan: int
    number: int
    running: tuple[str, ...]


class StoreEpoch(Command, frozen=True, gc=False):
    """Make this host's part of an epoch durable: all of it is known. Comes back as EpochStored."""

    epoch: int
    plan: int
    records: dict[str, RecordedPart]
    departed: dict[str, dict[str, int]]  # agents that have left: receiver → last number sent
    heard_ns: int = 0  # when the host had its first word of the epoch


class ReportEpoch(Command, frozen=True, gc=False):
    """Report to the coordinator that this host's part of the epoch is durable."""

    epoch: int


class DropEpoch(Command, frozen=True, gc=False):
    """The epoch has ended: forget what was captured and reported for it."""

    epoch: int


class CancelTurns(Command, frozen=True, gc=False):
    """Stop and forget all agents and their turns; a plan has undone them."""


class LoadAgents(Command, frozen=True, gc=False):
    """Make these agents from the line, seal the logs of earlier plans, and read what they hold. Comes back as AgentsLoaded.

    `newest`: see PlanReceived.
    """

    plan: int
    line_epoch: int
    line_root: str
    agents: tuple[Placement, ...]
    logs: tuple[LogName, ...] = ()
    drop_before: int = 0
    newest: tuple[tuple[LogName, int], ...] = ()


class AnswerInputs(Command, frozen=True, gc=False):
    """Send a client the outcome of its request: one answer for each input."""

    request: int
    answers: tuple[InputOutcome, ...]


class AnswerAsk(Command, frozen=True, gc=False):
    """Send a client the outcome of its input."""

    request: int
    answer: AskAnswer


class ForgetAgent(Command, frozen=True, gc=False):
    agent: str


class DialPeer(Command, frozen=True, gc=False):
    peer: str
    address: str


class KnockAtPeer(Command, frozen=True, gc=False):
    """Ask the peer to dial this host: send it `hello`, once. It may be lost."""

    peer: str
    address: str
    hello: LinkHello


class UndialPeer(Command, frozen=True, gc=False):
    peer: str


class CloseStream(Command, frozen=True, gc=False):
    peer: str
    reason: str


class RefuseStream(Command, frozen=True, gc=False):
    peer: str
    reason: str
    is_final: bool


class WriteFrame(Command, frozen=True, gc=False):
    peer: str
    frame: Frame


class WakeWriter(Command, frozen=True, gc=False):
    peer: str


class Trace(Command, frozen=True, gc=False):
    """A sampled message left ("send") or is consumed ("receive"); for traces and pictures only.

    Or a tentative checkpoint has become permanent ("checkpoint", `other` its basis), or this host has sent another one a marker item, or got
    one ("send_marker", "receive_marker"; `number` its epoch).
    """

    what: str
    agent: str
    other: str
    number: int


class Note(Command, frozen=True, gc=False):
    """Something worth logging. `level`: "info" or "warning"."""

    level: str
    text: str
    fields: Mapping[str, object] = {}

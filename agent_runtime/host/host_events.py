"""Events and commands of a host core.

Events have names in the past tense and come from the adapters: links, turns, store and clock. Commands have imperative names, and the
adapters execute them in order before the next event. Messages between coordinator and host are defined in `messages/host_messages.py`. The
core receives and sends these messages unchanged.

The first sections contain the events and commands that all fleets use. The other sections are about durable turns, observers of messages
(`is_watched`), the host log, dead letters, views of agents, and messages that no turn sends.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from snapline.agent_runtime.durable import Pause
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.channels.frame import Frame, LinkHello
from snapline.messages import host_messages as msg
from snapline.messages.client_requests import InputOutcome
from snapline.messages.effect_records import UnfinishedEffect
from snapline.messages.host_messages import TurnDeath
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture.chunking import SealedRuns
from snapline.storage.log.log_record import LoggedEntry, LoggedInput, LogName
from snapline.storage.packs.checkpoint import (
    NO_INPUTS,
    NO_OUTPUTS,
    AgentCheckpoint,
    DeadLetterNumbers,
    DeadLetterRecord,
    InTransitMessage,
    JournalEntry,
    OpenEffect,
    ParkedMessage,
    SavedEffects,
    SavedInputs,
    SavedOutputs,
    SavedTimer,
    SavedTurn,
    SpawnRequest,
    StashedMessage,
)

Spawn = tuple[str, str, bytes]
"""Id, kind and state image of an agent to create."""

Emission = tuple[str, bytes, int]
"""Topic, payload and wall-clock time of an output."""

Log = dict[str, list[InTransitMessage]]
"""A sender log: mapping from receivers to the messages sent to them since the sender's previous checkpoint, in order."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base class of a host core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of a host core's commands."""


Heard = Event | msg.Directive
"""Input of a host core. The coordinator's directives are passed to the core unchanged, except for the recovery plan."""

HostOutput = Command | msg.HostMessage
"""Output of a host core: a command, or a `HostMessage` that is sent to the coordinator."""


class Placement(msgspec.Struct, frozen=True):
    """The host and incarnation that a plan assigns to one agent."""

    agent: str
    kind: str
    host: str
    incarnation: int
    ordinal: int = 0


class LoadedAgent(msgspec.Struct, frozen=True):
    """An agent that the adapter has loaded: in its initial state (`checkpoint` is None), restored from a checkpoint, or unborn.

    `passed_ns` is the time since the checkpoint, or 0 if the machine's clock cannot measure it.
    """

    agent: str
    incarnation: int
    checkpoint: AgentCheckpoint | None
    passed_ns: int = 0


# ---- from the coordinator -----------------------------------------------------------------------------------------


class PlanReceived(Event, frozen=True, gc=False):
    """The fleet starts or restarts from the recovery line of epoch `line_epoch`, or from the agents' initial states if it is 0. `logs` are
    the host logs of earlier plans, which may be unsealed.

    Log entries beyond the recovery line are dropped if they belong to plans with lower numbers than `drop_before`. `deaths` are the turns
    during which processes died. `newest` contains the newest batch of each log that the coordinator knows.
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
    """A host that must not dial this host has asked this host to dial it."""

    hello: LinkHello


class FrameReceived(Event, frozen=True, gc=False):
    peer: str
    frame: Frame


class StreamClosed(Event, frozen=True, gc=False):
    peer: str


class WriteReady(Event, frozen=True, gc=False):
    """The writer of the stream to `peer` is ready. The core responds with at most one `WriteFrame`."""

    peer: str


class AgentsLoaded(Event, frozen=True, gc=False):
    """The plan's agents are loaded, and the logs of earlier plans sealed and read.

    `inputs` are the inputs in these logs for all agents, sorted by number for each agent. `dropped` are earlier inputs, which are not
    delivered again. `entries` are the entries of durable turns, in log order. `why_no_log` is the reason why the store accepts no host
    logs, or "". `log_key` is the public key for signed batches, or b"". `is_authenticated` says whether the store is signed or
    encrypted."""

    plan: int
    agents: tuple[LoadedAgent, ...]
    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_no_log: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False


class LoadFailed(Event, frozen=True, gc=False):
    """The recovery line cannot be loaded. `damaged_epoch` is 0 if no epoch is damaged. `may_pass` says whether the failure may be temporary
    because the store is currently unreadable."""

    plan: int
    damaged_epoch: int
    path: str
    reason: str
    may_pass: bool = False


class TurnEnded(Event, frozen=True, gc=False):
    """The handler has returned, or, if `pause` is set, a segment of a durable turn has ended. `is_durable` says whether this is the last
    segment of a durable turn."""

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
    """The turn failed. `on_error`, `retries` and `waits_ns` (the waits before retries) are taken from the agent's class. `is_final` says
    whether a retry would fail too. `is_divergent` says whether a repeated durable turn made different requests. `rollback` is set if the
    handler requested a rollback. `is_of_step` says whether a failed step is the cause."""

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
    """A state could not be encoded, so the epoch cannot complete."""

    agent: str
    epochs: tuple[int, ...]
    reason: str


class CheckpointMeasured(Event, frozen=True, gc=False):
    """The adapter has measured for how long an agent paused for its checkpoint, which the policy needs to know."""

    agent: str
    cost_ns: int


class CheckpointFailed(Event, frozen=True, gc=False):
    """The state for an agent's checkpoint could not be encoded. The agent could not be restored to this point, so it cannot continue."""

    agent: str
    incarnation: int
    reason: str


class StoreStatusChanged(Event, frozen=True, gc=False):
    """The store's readiness for checkpoints has changed. `is_busy` says whether too many checkpoints wait, and `is_full` whether no more
    checkpoints may wait. `problem` is the reason why the store accepts no checkpoints, or ""."""

    is_busy: bool
    problem: str
    is_full: bool = False


class OfferedInput(msgspec.Struct, frozen=True, gc=False):
    """A message from outside the fleet. `payload` is the result of `encode_message`. `key` is the client's key, by which duplicates are
    detected."""

    agent: str
    key: str
    payload: bytes
    is_operator_command: bool = False  # whether this is an operator command, not a client's input


class InputsOffered(Event, frozen=True, gc=False):
    """A client has sent a request with inputs. The core replies with one AnswerInputs with the same request number. `wall_ns` is this
    host's wall-clock time since 1970."""

    request: int
    client: str
    wall_ns: int
    inputs: tuple[OfferedInput, ...]


class ReplyAwaited(Event, frozen=True, gc=False):
    """A client waits for the reply to the input with this key. The core sends the reply in one AnswerAsk: at the end of the turn if
    `is_early`, otherwise when a complete epoch contains the turn."""

    request: int
    agent: str
    key: str
    is_early: bool


class AskAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an input. `reply` is the reply of its turn as returned by `encode_message`, or b"" if there is none.

    `status` is "replied" (the turn has succeeded), "buried" (the input is a dead letter), "retry" (the input is currently unknown on this
    host) or "unknown" (the input was never received, or has been forgotten). `reason` explains "retry" and "unknown".
    """

    status: str
    number: int = 0
    reply: bytes = b""
    reason: str = ""


class TimerFired(Event, frozen=True, gc=False):
    """The clock has reached the core's `wakeup_ns`."""


class BatchEnded(Event, frozen=True, gc=False):
    """The adapter has no more turns to run at the moment, so the core should send the items queued for links."""


MODE_EVENTS: tuple[type[Heard], ...] = (
    *(msg.BeginEpoch, EpochStored, EpochNotStored, CaptureFailed),
    *(msg.FreezeAgents, msg.ThawAgents, msg.RequestCheckpoints, msg.ReportNumbers),
    *(CheckpointMeasured, CheckpointFailed, StoreStatusChanged),
)
"""Events that only some checkpointing protocols handle."""

# ---- commands -----------------------------------------------------------------------------------------------------


TurnKind = Literal["start", "create", "message", "timer", "input", "letter", "stashed", "segment"]
"""Kinds of turns. "start" runs `on_start`, and "create" creates the agent from a creation message. "letter" is the turn of an operator
command. "stashed" handles a message or input that was consumed earlier, during a durable turn. "segment" is the next segment of a durable
turn. These words must not change, since files and traces contain them."""


class StartTurn(Command, frozen=True, gc=False):
    """Run a turn.

    A "segment" continues its turn with the entry `found`, or runs all segments of `turn` again. If the turn is durable, `number` is its
    number among the agent's durable turns, and `logged` are the host-log entries for turns with that number. If `refusal` is not empty, the
    turn fails for this reason without calling its handler. Such a turn still creates its agent if `is_made` is true."""

    agent: str
    incarnation: int
    what: TurnKind
    sender: str
    payload: bytes
    found: JournalEntry | None = None
    turn: SavedTurn | None = None
    number: int = 1
    logged: tuple[LoggedEntry, ...] = ()
    refusal: str = ""
    is_made: bool = False


class UndoTurn(Command, frozen=True, gc=False):
    """Restore the agent's state from the image taken before the turn that has just failed."""

    agent: str


class Control(msgspec.Struct, frozen=True):
    """Contents of an agent's checkpoint except for its state and channels."""

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
    dead_letter_numbers: DeadLetterNumbers | None = None  # None if they follow from the count
    sealed: SealedRuns | None = None  # sealed part of the turn's journal; `turn` contains all other entries
    durable_turns: int = 0
    effects: SavedEffects | None = None

    @property
    def ended_turns(self) -> int:
        """Number of the agent's durable turns that have ended."""
        return self.durable_turns - (self.turn is not None)


class CaptureState(Command, frozen=True, gc=False):
    """Take an image of an agent's state now, to be used for all these epochs."""

    agent: str
    epochs: tuple[int, ...]
    control: Control


class TakeCheckpoint(Command, frozen=True, gc=False):
    """Take an image of an agent's state now. Make it durable later, together with the agent's sender log.

    Attributes:
        basis: "initial", "basic", "forced" or "tentative".
        round: number of the koo-toueg round of a tentative checkpoint, or 0 for any other checkpoint.
        sent, received: sequence number of the last message sent to, and consumed from, each other agent.
        changed_sent, changed_received: the sequence numbers in `sent` and `received` that have changed since the agent's previous
            checkpoint.
        log: messages that the agent has sent since its previous checkpoint.
        turns: number of the agent's turns since its previous checkpoint.
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
    """Report to the coordinator that all agents are frozen, once all checkpoints taken so far are durable. Agents in `running` count as
    failed."""

    plan: int
    number: int
    running: tuple[str, ...]


class StoreEpoch(Command, frozen=True, gc=False):
    """Make this host's complete part of an epoch durable. The adapter responds with EpochStored or EpochNotStored."""

    epoch: int
    plan: int
    records: dict[str, RecordedPart]
    departed: dict[str, dict[str, int]]  # departed agent → receiver → sequence number of the last message sent
    heard_ns: int = 0  # arrival time of the first message about the epoch


class ReportEpoch(Command, frozen=True, gc=False):
    """Report to the coordinator that this host's part of the epoch is durable."""

    epoch: int


class DropEpoch(Command, frozen=True, gc=False):
    """Discard the captures and reports of an epoch that has ended."""

    epoch: int


class CancelTurns(Command, frozen=True, gc=False):
    """Stop all turns and remove all agents, since a recovery plan has undone them."""


class LoadAgents(Command, frozen=True, gc=False):
    """Load these agents from the recovery line, and seal and read the host logs of earlier plans. The adapter responds with AgentsLoaded or
    LoadFailed.

    `drop_before` and `newest` have the same meaning as in PlanReceived.
    """

    plan: int
    line_epoch: int
    line_root: str
    agents: tuple[Placement, ...]
    logs: tuple[LogName, ...] = ()
    drop_before: int = 0
    newest: tuple[tuple[LogName, int], ...] = ()


class AnswerInputs(Command, frozen=True, gc=False):
    """Send a client the outcomes of its request, one for each input."""

    request: int
    answers: tuple[InputOutcome, ...]


class AnswerAsk(Command, frozen=True, gc=False):
    """Send a client the outcome of its input, for which it has waited."""

    request: int
    answer: AskAnswer


class ForgetAgent(Command, frozen=True, gc=False):
    agent: str


class DialPeer(Command, frozen=True, gc=False):
    peer: str
    address: str


class KnockAtPeer(Command, frozen=True, gc=False):
    """Ask the peer to dial this host by sending `hello` once. The message may be lost."""

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
    """Record an event in the trace, which serves only for diagrams: a sampled message left its sender ("send") or was consumed ("receive").

    Other kinds are that a tentative checkpoint became permanent ("checkpoint", where `other` is its basis), and that this host sent or
    received a marker item ("send_marker" and "receive_marker", where `number` is the epoch).
    """

    what: str
    agent: str
    other: str
    number: int


class Note(Command, frozen=True, gc=False):
    """Write a line to the process's log. `level` is "info" or "warning"."""

    level: str
    text: str
    fields: Mapping[str, object] = {}


# ---- durable turns --------------------------------------------------------------------------------------------------


class RunStep(Command, frozen=True, gc=False):
    """Run the step for which the agent's turn waits. `place` is the step's index in the journal, counted from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class RunEffect(RunStep, frozen=True, gc=False):
    """Run the effect for which the agent's turn waits.

    Attributes:
        key: outside key of the effect.
        is_in_doubt: whether an earlier call of the effect may have been made, and may still be running.
        undoes: outside key of the effect that this compensation undoes, or "" if this is not a compensation.
        wait_s: how long a call of the effect to undo may still run. The compensation waits for this time.
    """

    key: str
    is_in_doubt: bool
    undoes: str = ""
    wait_s: float = 0.0


class StepEnded(Event, frozen=True, gc=False):
    """A step or an effect has ended.

    Attributes:
        outcome, result: outcome and encoded result, as in `JournalEntry`.
        time_ns: wall-clock time of the end, since 1970.
        late_s: for a failed effect, how long its last call may still run.
    """

    agent: str
    incarnation: int
    place: int
    outcome: str
    result: bytes
    time_ns: int = 0
    late_s: float = 0.0


# ---- for observers --------------------------------------------------------------------------------------------------


class LoggedMessageSent(Command, frozen=True, gc=False):
    """The next message of a logged channel left its sender's outbox. The core issues this command only if an observer watches.

    `is_in_turn` says that the sender is in a turn, whose message the sender's protocol rule has already processed.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class OperatorCommandConsumed(Command, frozen=True, gc=False):
    """An operator command was consumed without a turn. `told` is the reply to the command."""

    agent: str
    payload: bytes
    told: bytes


class EffectRecordEmitted(Command, frozen=True, gc=False):
    """The core itself emitted a ledger record for an agent. The record is not part of any turn's outputs."""

    agent: str
    payload: bytes


class MessageConsumedInTurn(Command, frozen=True, gc=False):
    """A message or an input was consumed during a durable turn, either by this turn, or, if `is_stashed`, to be handled in a later turn. If
    `what` is "effect", it starts the compensation of a failed turn and has no sender."""

    agent: str
    what: TurnKind | Literal["effect"]
    sender: str
    payload: bytes
    is_stashed: bool


# ---- the host's log -------------------------------------------------------------------------------------------------


class AppendBatch(Command, frozen=True, gc=False):
    """Make the next batch of this host's log durable, and retry until the outcome is known. The adapter responds with BatchAppended or
    LogSealed.

    If batches are signed, `certificate` is the coordinator's certificate for this log.
    """

    log: LogName
    number: int
    inputs: tuple[LoggedInput, ...]
    entries: tuple[LoggedEntry, ...] = ()
    certificate: bytes = b""


class BatchAppended(Event, frozen=True, gc=False):
    """A batch of the host's log is durable."""

    log: LogName
    number: int


class LogSealed(Event, frozen=True, gc=False):
    """The store has rejected a batch, since a later plan has sealed the log. The log will never contain this batch."""

    log: LogName
    number: int


class LogStatusChanged(Event, frozen=True, gc=False):
    """Writing a batch to this log is delayed, or no longer delayed. `problem` is the reason for the delay, or ""."""

    log: LogName
    problem: str


# ---- dead letters ---------------------------------------------------------------------------------------------------


class MessageDeadLettered(Command, frozen=True, gc=False):
    """A message, a timer or an input became a dead letter of its receiver, that is, it was consumed without effect."""

    agent: str
    what: TurnKind
    sender: str
    payload: bytes
    error: str


class UnroutableMessageDeadLettered(Command, frozen=True, gc=False):
    """A message that can never arrive became a dead letter of its sender. `is_refused_creation` says that it is a spawn request that was
    refused."""

    sender: str
    receiver: str
    payload: bytes
    error: str
    is_refused_creation: bool = False


# ---- views of agents ------------------------------------------------------------------------------------------------


class ViewRequested(Event, frozen=True, gc=False):
    """An operator has requested a view of an agent. The core replies with one AnswerView with the same request number. If `is_settled`, it
    replies only when the agent is between two turns."""

    request: int
    agent: str
    is_settled: bool


class EffectsRequested(Event, frozen=True, gc=False):
    """A caller has requested the effects that agents on this host wait for. The core replies with one AnswerEffects with the same request
    number."""

    request: int


class AnswerEffects(Command, frozen=True, gc=False):
    """Reply to an EffectsRequested."""

    request: int
    effects: tuple[UnfinishedEffect, ...]


class WaitingAgentsRequested(Event, frozen=True, gc=False):
    """A caller has asked which agents on this host have waiting messages or inputs. The core replies with one AnswerWaiting with the same
    request number."""

    request: int


class TracingRequested(Event, frozen=True, gc=False):
    """The viewers' tracing rate has changed. From now on, every `every`-th message of each channel is traced, or no message if `every` is
    0."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """View of an unfinished durable turn.

    Attributes:
        what, sender, payload: kind, sender and payload of the message that started the turn.
        entries, newest: number of journal entries, and the newest of these entries.
        waits, waits_ns: entry that the turn waits for, or None if the entry has arrived, and the duration of the wait so far.
        put_off: number of messages that are deferred until the turn ends.
        problem: reason why the turn cannot continue, or "".
        effect, effect_stands: effect that the turn waits for, if any, and the effect's state as text.
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
    """View of an agent.

    Attributes:
        life: "unborn", "starting" (before the end of `on_start`), "running", "failed" (waiting for a recovery) or "stopping".
        turn: kind of the running turn, or "" between two turns. A segment of a durable turn counts as "timer".
        sender: sender of the running turn's message.
        attempts: number of failed attempts of the current turn, which is running or will be retried after `retry_ns`.
        messages, inputs: number of messages from agents, and number of inputs from outside, that wait to be handled.
        outbox: number of messages in the agent's outbox, which have not been sent yet.
        spawns: agents whose spawn requests have not been granted yet.
        timers: name of each timer, with the nanoseconds until it fires.
        inputs_consumed: number of the last consumed input.
        keys: number of input keys that the agent remembers to detect duplicates.
        checkpoint: number of the last checkpoint.
        dead_letter_count: total number of dead letters, without dead letters that a retry handled. `dead_letters` contains only the newest.
        durable: the unfinished durable turn, or None if there is none.
    """

    agent: str
    kind: str
    incarnation: int
    life: str
    turn: TurnKind | Literal[""]
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
    """Reply to a ViewRequested. If the agent is not on this host, `view` is None and `reason` says why. If the request has `is_settled`,
    the adapter must read the state immediately."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """Reply to a WaitingAgentsRequested. `more` is the number of agents that are omitted."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0


# ---- sends from outside of turns ------------------------------------------------------------------------------------


class ExternalSends(Event, frozen=True, gc=False):
    """An agent sends messages outside of any turn, because the external object that the agent represents has changed. The state change and
    the sends take effect together.

    `sends` contains the receivers and the encoded messages.
    """

    agent: str
    incarnation: int
    sends: tuple[tuple[str, bytes], ...]

"""Events and commands of a host core.

Events are named in the past tense and come from the adapters: links, turns, store and clock. Commands are named as imperatives; the
adapters carry them out in order, before the next event. Messages between coordinator and host are defined in `messages/host_messages.py`,
and the core receives and sends these messages unchanged.

The file begins with the events and commands of every fleet. Sections follow for durable turns, for observers that watch messages (`is_watched`), for
the host's log, for dead letters, for users' views of agents, and for sends that do not come from a turn.
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
"""A sender log: receiver → messages sent since the sender's previous checkpoint, in order."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base class of a host core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of a host core's commands."""


Heard = Event | msg.Directive
"""Input of a host core. Directives of the coordinator are passed to the core unchanged as events, except for the recovery plan."""

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
    """An agent that the adapter has made: initial (`checkpoint` is None), restored, or unborn.

    `passed_ns`: time since the checkpoint, as far as the machine's clock can tell.
    """

    agent: str
    incarnation: int
    checkpoint: AgentCheckpoint | None
    passed_ns: int = 0


# ---- from the coordinator -----------------------------------------------------------------------------------------


class PlanReceived(Event, frozen=True, gc=False):
    """The fleet starts or restarts from the recovery line of epoch `line_epoch`; 0 = the initial states. `logs`: host logs of earlier
    plans, perhaps unsealed.

    `drop_before`: logs of plans with lower numbers than this are dropped beyond the line. `deaths`: turns during which processes have
    died. `newest`: log → newest batch known to the coordinator.
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
    """A host that may not dial this one has asked to be dialled."""

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
    """The plan's agents are loaded, and the logs of earlier plans sealed and read.

    `inputs`: inputs of these logs for all agents, in the order of each agent's numbers; `dropped`: earlier inputs, which are not delivered again;
    `entries`: entries of durable turns, in log order. `why_no_log`: reason why the store takes no host logs, or "". `log_key`: public key for
    signed batches, or b"". `is_authenticated`: the store is signed or encrypted."""

    plan: int
    agents: tuple[LoadedAgent, ...]
    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_no_log: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False


class LoadFailed(Event, frozen=True, gc=False):
    """The recovery line cannot be loaded. `damaged_epoch` is 0 if no epoch is damaged; `may_pass`: the failure may be temporary, since the
    store cannot be read now."""

    plan: int
    damaged_epoch: int
    path: str
    reason: str
    may_pass: bool = False


class TurnEnded(Event, frozen=True, gc=False):
    """The handler has returned; or, if `pause` is set, a segment of a durable turn has ended. `is_durable`: this is the last segment of a
    durable turn, perhaps its only one."""

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
    """The handler raised. `on_error`, `retries` and the waits before retries are those of the agent's class. `is_final`: a retry would fail
    too; `is_divergent`: the durable turn did not repeat its requests; `is_durable`: the turn is durable; `rollback`: the handler requests a
    rollback of the fleet; `is_of_step`: a failed step is the cause."""

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
    """The time that an agent paused for its checkpoint was measured, since the policy needs this time."""

    agent: str
    cost_ns: int


class CheckpointFailed(Event, frozen=True, gc=False):
    """A state could not be encoded. The agent could not be restored to this point, so the agent cannot continue."""

    agent: str
    incarnation: int
    reason: str


class StoreStatusChanged(Event, frozen=True, gc=False):
    """The store's readiness for checkpoints has changed. `is_busy`: too many checkpoints wait; `problem`: reason why the store accepts
    none, or ""; `is_full`: no more checkpoints can wait."""

    is_busy: bool
    problem: str
    is_full: bool = False


class OfferedInput(msgspec.Struct, frozen=True, gc=False):
    """A message from outside the fleet. `payload`: result of `encode_message`; `key`: the client's key, by which a repetition is
    recognized."""

    agent: str
    key: str
    payload: bytes
    is_operator_command: bool = False  # an operator command, not a client's input


class InputsOffered(Event, frozen=True, gc=False):
    """A client's request with inputs. The core answers with one AnswerInputs of this number. `wall_ns`: this host's time since 1970."""

    request: int
    client: str
    wall_ns: int
    inputs: tuple[OfferedInput, ...]


class ReplyAwaited(Event, frozen=True, gc=False):
    """A client waits for the answer to the input with this key: until the turn's end if `is_early`, otherwise until a complete epoch. The
    core answers with one AnswerAsk."""

    request: int
    agent: str
    key: str
    is_early: bool


class AskAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an input. `reply`: answer of its turn, in the form of `encode_message`; b"" if there is none.

    `status`: "replied": the turn has succeeded; "buried": the input is a dead letter; "retry": the input is not known on this host now;
    "unknown": the input was never received, or was forgotten. `reason`: reason for "retry" or "unknown".
    """

    status: str
    number: int = 0
    reply: bytes = b""
    reason: str = ""


class TimerFired(Event, frozen=True, gc=False):
    """The clock has passed `wakeup_ns`."""


class BatchEnded(Event, frozen=True, gc=False):
    """The adapter has no more turns to run now, so the core sends the items queued for links."""


MODE_EVENTS: tuple[type[Heard], ...] = (
    *(msg.BeginEpoch, EpochStored, EpochNotStored, CaptureFailed),
    *(msg.FreezeAgents, msg.ThawAgents, msg.RequestCheckpoints, msg.ReportNumbers),
    *(CheckpointMeasured, CheckpointFailed, StoreStatusChanged),
)
"""Events that only some checkpointing protocols handle."""

# ---- commands -----------------------------------------------------------------------------------------------------


TurnKind = Literal["start", "create", "message", "timer", "input", "letter", "stashed", "segment"]
"""Kinds of turns: "start" runs `on_start`; the message of "create" makes the agent; "letter" is the turn of an operator command; a "stashed"
message or input was consumed before, during a durable turn; "segment" is the next segment of a durable turn. Files and traces contain these
words."""


class StartTurn(Command, frozen=True, gc=False):
    """Run a turn.

    A "segment" runs after the awaited entry was `found`, or runs all segments of `turn` again. `number`: number of a durable
    turn among those of its agent; `logged`: entries of host logs for turns of that number. `refusal`: reason why the turn fails without
    calling its handler; such a turn still creates its agent if `is_made` is true."""

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
    dead_letter_numbers: DeadLetterNumbers | None = None  # None: derived from their count
    sealed: SealedRuns | None = None  # sealed part of the turn's journal; `turn` has the other entries
    durable_turns: int = 0
    effects: SavedEffects | None = None

    @property
    def ended_turns(self) -> int:
        """Number of durable turns that have ended."""
        return self.durable_turns - (self.turn is not None)


class CaptureState(Command, frozen=True, gc=False):
    """Take the image of an agent's state now; the image is used for all these epochs."""

    agent: str
    epochs: tuple[int, ...]
    control: Control


class TakeCheckpoint(Command, frozen=True, gc=False):
    """Take the image of an agent's state now, and make the image durable later, together with the agent's log.

    Attributes:
        basis: "initial", "basic", "forced" or "tentative".
        round: koo-toueg round of a tentative checkpoint, else 0.
        sent, received: number of the last message sent and consumed, by channel.
        changed_sent, changed_received: numbers that differ from the agent's previous checkpoint.
        log: messages sent since the previous checkpoint.
        turns: number of turns since the previous checkpoint.
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
    """Report that all agents are frozen, once all checkpoints taken so far are durable. Agents in `running` count as failed."""

    plan: int
    number: int
    running: tuple[str, ...]


class StoreEpoch(Command, frozen=True, gc=False):
    """Make this host's complete part of an epoch durable. The answer is EpochStored."""

    epoch: int
    plan: int
    records: dict[str, RecordedPart]
    departed: dict[str, dict[str, int]]  # departed agent → receiver → last number sent
    heard_ns: int = 0  # time of the host's first message about the epoch


class ReportEpoch(Command, frozen=True, gc=False):
    """Report to the coordinator that this host's part of the epoch is durable."""

    epoch: int


class DropEpoch(Command, frozen=True, gc=False):
    """Drop the captures and reports of an epoch that has ended."""

    epoch: int


class CancelTurns(Command, frozen=True, gc=False):
    """Stop and remove all agents and their turns, which a recovery plan has undone."""


class LoadAgents(Command, frozen=True, gc=False):
    """Make these agents from the recovery line, and seal and read the host logs of earlier plans. The answer is AgentsLoaded.

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
    """Trace a sampled message that left its sender ("send") or is consumed ("receive"). The command serves traces and diagrams only.

    Other kinds: a tentative checkpoint has become permanent ("checkpoint", `other` is its basis), or this host has sent or received a marker item
    ("send_marker", "receive_marker", `number` is the epoch).
    """

    what: str
    agent: str
    other: str
    number: int


class Note(Command, frozen=True, gc=False):
    """Write a line to the process's log. `level`: "info" or "warning"."""

    level: str
    text: str
    fields: Mapping[str, object] = {}


# ---- durable turns --------------------------------------------------------------------------------------------------


class RunStep(Command, frozen=True, gc=False):
    """Run the step for which the agent's turn waits; `place`: the step's index in the journal, from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class RunEffect(RunStep, frozen=True, gc=False):
    """Run an effect, like a step.

    Attributes:
        key: outside key of the effect.
        is_in_doubt: an earlier call may have been made, and may still be running.
        undoes: for a compensation, the outside key of the effect that it undoes.
        wait_s: longest time that a call of the undone effect may still run; the compensation waits for it.
    """

    key: str
    is_in_doubt: bool
    undoes: str = ""
    wait_s: float = 0.0


class StepEnded(Event, frozen=True, gc=False):
    """End of a step or an effect.

    Attributes:
        outcome, result: see `JournalEntry`.
        time_ns: wall-clock time since 1970.
        late_s: for a failed effect, the longest time that its last call may still run.
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
    """The next message of a logged channel left its sender's outbox; the event is emitted only for an observer that watches.

    `is_in_turn`: the sender's rule has already processed the message of a turn that has not ended.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class OperatorCommandConsumed(Command, frozen=True, gc=False):
    """An operator command was consumed without a turn; `told`: the reply to the command."""

    agent: str
    payload: bytes
    told: bytes


class EffectRecordEmitted(Command, frozen=True, gc=False):
    """The core itself emitted a ledger record for an agent. The record is not among the outputs of a turn's end."""

    agent: str
    payload: bytes


class MessageConsumedInTurn(Command, frozen=True, gc=False):
    """A message or an input was consumed in the middle of a durable turn: by the turn itself, or, if `is_stashed`, for a turn of its own
    later. "effect": the compensation of a failed turn, which has no sender."""

    agent: str
    what: TurnKind | Literal["effect"]
    sender: str
    payload: bytes
    is_stashed: bool


# ---- the host's log -------------------------------------------------------------------------------------------------


class AppendBatch(Command, frozen=True, gc=False):
    """Make the next batch of this host's log durable, trying until its outcome is known. The answer is BatchAppended or LogSealed.

    `certificate`: certificate of the coordinator for this log, if batches are signed.
    """

    log: LogName
    number: int
    inputs: tuple[LoggedInput, ...]
    entries: tuple[LoggedEntry, ...] = ()
    certificate: bytes = b""


class BatchAppended(Event, frozen=True, gc=False):
    """A batch of the host's log is durable at its place."""

    log: LogName
    number: int


class LogSealed(Event, frozen=True, gc=False):
    """The store has refused a batch, since another object is at its place. A later plan has ended the log, and the batch will never be in
    the log."""

    log: LogName
    number: int


class LogStatusChanged(Event, frozen=True, gc=False):
    """Writing a batch to this log is delayed, or no longer delayed; `problem`: the reason."""

    log: LogName
    problem: str


# ---- dead letters ---------------------------------------------------------------------------------------------------


class MessageDeadLettered(Command, frozen=True, gc=False):
    """A message, a timer or an input became a dead letter of its receiver: it was consumed without effect."""

    agent: str
    what: TurnKind
    sender: str
    payload: bytes
    error: str


class UnroutableMessageDeadLettered(Command, frozen=True, gc=False):
    """A message that can never arrive became a dead letter of its sender. `is_refused_creation`: no other agent may have created it."""

    sender: str
    receiver: str
    payload: bytes
    error: str
    is_refused_creation: bool = False


# ---- views of agents ------------------------------------------------------------------------------------------------


class ViewRequested(Event, frozen=True, gc=False):
    """An operator has requested a view of an agent. The core answers with one AnswerView of this number. `is_settled`: it answers only when
    the agent is between two turns."""

    request: int
    agent: str
    is_settled: bool


class EffectsRequested(Event, frozen=True, gc=False):
    """The effects for which the agents here wait were requested. The core answers with one AnswerEffects of this number."""

    request: int


class AnswerEffects(Command, frozen=True, gc=False):
    """Send the answer to an EffectsRequested."""

    request: int
    effects: tuple[UnfinishedEffect, ...]


class WaitingAgentsRequested(Event, frozen=True, gc=False):
    """The agents here for which messages or inputs wait were requested. The core answers with one AnswerWaiting of this number."""

    request: int


class TracingRequested(Event, frozen=True, gc=False):
    """Tracing for viewers has changed: from now on, every N-th message of each channel is traced; 0 = none."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """State of a durable turn that has not ended.

    Attributes:
        what, sender, payload: kind, sender and payload of the message that began the turn.
        entries, newest: number of journal entries, and the last entries.
        waits, waits_ns: entry that the turn waits for, and duration of the wait so far; None: the entry has arrived.
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
        turn: kind of the running turn, where a segment of a durable turn counts as "timer"; empty between two turns.
        sender: sender of that turn's message.
        attempts: number of failed attempts of the turn that is running, or that will be retried in `retry_ns`.
        messages, inputs: number of messages from agents and of inputs from outside that wait for turns.
        outbox: number of messages that have not been sent yet.
        spawns: requested agents that were not granted yet.
        timers: name of each timer, and nanoseconds until it fires.
        inputs_consumed: number of the last consumed input.
        keys: number of remembered input keys.
        checkpoint: number of the last checkpoint.
        dead_letter_count: number of all dead letters, without those handled after a retry; `dead_letters`: the newest dead letters, with
            their numbers.
        durable: unfinished durable turn, if any.
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
    """Send the answer to a ViewRequested. `view` is None, with a reason, if the agent is not on this host now. If the view was requested as
    settled, the state must be read at once."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """Send the answer to a WaitingAgentsRequested. `more`: number of agents that are left out."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0


# ---- sends from outside of turns ------------------------------------------------------------------------------------


class ExternalSends(Event, frozen=True, gc=False):
    """An agent sends messages outside of any turn, because the external object that the agent represents has changed. State and sends take
    effect together.

    `sends`: receivers and encoded messages.
    """

    agent: str
    incarnation: int
    sends: tuple[tuple[str, bytes], ...]

"""The events and commands of a host core.

Events come from the adapters: links, turns, store and clock. The adapters execute commands in order, before the next event. Messages
between a coordinator and a host are defined in `messages/host_messages.py`. The core receives and sends coordinator messages unchanged.

The first sections contain the events and commands that are used in all fleets. The remaining sections cover durable turns, observers of
messages (`is_watched`), the host log, dead letters, views of agents, and messages sent outside of turns.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from snapline.agent_runtime.durable import Pause
from snapline.agent_runtime.rollback_errors import RestartRequest, RollbackRequest
from snapline.channels.frame import Frame, LinkHello
from snapline.messages import host_messages as msg
from snapline.messages.approvals import OpenApproval
from snapline.messages.client_requests import InputOutcome
from snapline.messages.effect_records import UnfinishedEffect
from snapline.messages.host_messages import TurnDeath
from snapline.messages.past_rollbacks import PastRollback
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture.chunking import SealedRuns
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers
from snapline.storage.log.log_record import CommitPart, LoggedEntry, LoggedInput, LogName
from snapline.storage.packs.checkpoint import (
    NO_INPUTS,
    NO_OUTPUTS,
    AbandonedTurn,
    AgentCheckpoint,
    AskedQuestion,
    DeadLetterNumbers,
    DeadLetterRecord,
    InTransitMessage,
    JournalEntry,
    OpenEffect,
    ParkedMessage,
    SavedApprovals,
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
    """Base class of the events that a host core handles."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of the commands that a host core issues."""


Heard = Event | msg.Directive
"""Input of a host core. The coordinator's directives are passed to the core unchanged, except for the recovery plan."""

HostOutput = Command | msg.HostMessage
"""Output of a host core: a command, or a `HostMessage` that is sent to the coordinator."""


class Placement(msgspec.Struct, frozen=True):
    """The host and the incarnation that a plan assigns to an agent."""

    agent: str
    kind: str
    host: str
    incarnation: int
    ordinal: int = 0


class LoadedAgent(msgspec.Struct, frozen=True):
    """An agent that the adapter has loaded. The agent is in its initial state (`checkpoint` is None), restored from a checkpoint, or not
    created yet.

    `passed_ns` is the time in nanoseconds since the checkpoint, or 0 if the machine's clock cannot measure it.
    """

    agent: str
    incarnation: int
    checkpoint: AgentCheckpoint | None
    passed_ns: int = 0


# ---- from the coordinator -----------------------------------------------------------------------------------------


class PlanReceived(Event, frozen=True, gc=False):
    """Event: the fleet starts or restarts from the recovery line of epoch `line_epoch`. If `line_epoch` is 0, the fleet starts from the
    agents' initial states. `logs` contains the host logs of earlier plans, some of which may not be sealed.

    Entries beyond the recovery line are dropped if they belong to a plan whose number is lower than `drop_before`. `deaths` contains the
    turns during which processes crashed. `newest` contains the newest batch number of each log that the coordinator knows. Commits in the
    logs of plans below `era` are void, because the fleet was taken back on purpose. `sources`, `sources_since` and `rollbacks` are as in `Plan`.
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
    era: int = 0
    sources: tuple[str, ...] = ()
    sources_since: int = 0
    rollbacks: tuple[PastRollback, ...] = ()


# ---- from links, turns, store, clock ------------------------------------------------------------------------------


class StreamOpened(Event, frozen=True, gc=False):
    peer: str
    attempt: int


class PeerKnocked(Event, frozen=True, gc=False):
    """Event: a peer host asks this host to dial it, because the peer itself must not dial this host."""

    hello: LinkHello


class FrameReceived(Event, frozen=True, gc=False):
    peer: str
    frame: Frame


class StreamClosed(Event, frozen=True, gc=False):
    peer: str


class WriteReady(Event, frozen=True, gc=False):
    """Event: the task that writes to the stream to `peer` is ready. The core responds with at most one `WriteFrame`."""

    peer: str


class AgentsLoaded(Event, frozen=True, gc=False):
    """Event: the agents of the plan are loaded, and the logs of earlier plans have been sealed and read.

    `inputs` contains the inputs in the logs of earlier plans for all agents, sorted by number for each agent. `dropped` contains earlier
    inputs that are not redelivered. `entries` contains the entries of durable turns, in log order. `why_no_log` is the reason why the store
    accepts no host logs, or "" if it accepts them. `log_key` is the public key for signed batches, or b"" if batches are not signed.
    `is_authenticated` is set if the data in the store is signed or encrypted. `answers` are those that agents take instead of asking."""

    plan: int
    agents: tuple[LoadedAgent, ...]
    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_no_log: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False
    answers: RecordedAnswers | None = None


class LoadFailed(Event, frozen=True, gc=False):
    """Event: the recovery line cannot be loaded. `damaged_epoch` is the number of the damaged epoch, or 0 if no epoch is damaged.
    `may_pass` is set if the failure may be temporary because the store is currently unreadable."""

    plan: int
    damaged_epoch: int
    path: str
    reason: str
    may_pass: bool = False


class TurnEnded(Event, frozen=True, gc=False):
    """Event: the handler of a turn has returned, or, if `pause` is set, a segment of a durable turn has ended. `is_durable` is set if this
    is the last segment of a durable turn. `entries` are then the requests since the last wait, whose results were known."""

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
    entries: list[JournalEntry] = []


class TurnFailed(Event, frozen=True, gc=False):
    """Event: a turn has failed. `on_error`, `retries` and `waits_ns` (the delays before retries) are taken from the agent's class.
    `is_final` is set if a retry would fail too, `is_divergent` if a rerun durable turn made different requests, `is_of_step` if the turn
    failed because of a failed step. The handler may have requested a `rollback` or a `restart` of the turn. `entries` as in `TurnEnded`."""

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
    restart: RestartRequest | None = None
    entries: list[JournalEntry] = []


class EpochStored(Event, frozen=True, gc=False):
    """Event: this host's part of the epoch is durable."""

    epoch: int
    plan: int


class EpochNotStored(Event, frozen=True, gc=False):
    """Event: this host's part of the epoch could not be written."""

    epoch: int
    plan: int
    reason: str


class CaptureFailed(Event, frozen=True, gc=False):
    """Event: a state could not be encoded, so the epoch cannot become complete."""

    agent: str
    epochs: tuple[int, ...]
    reason: str


class CheckpointMeasured(Event, frozen=True, gc=False):
    """Event: the adapter has measured for how long an agent paused for its checkpoint, which the policy for checkpoints needs."""

    agent: str
    cost_ns: int


class CheckpointFailed(Event, frozen=True, gc=False):
    """Event: the state for an agent's checkpoint could not be encoded. The agent cannot continue without one."""

    agent: str
    incarnation: int
    reason: str


class StoreStatusChanged(Event, frozen=True, gc=False):
    """Event: the readiness of the store for checkpoints has changed. `is_busy` is set if too many checkpoints are waiting, and `is_full` is
    set if no more checkpoints may wait. `problem` is the reason why the store accepts no checkpoints, or "" if it accepts them."""

    is_busy: bool
    problem: str
    is_full: bool = False


class OfferedInput(msgspec.Struct, frozen=True, gc=False):
    """A message from outside the fleet. `payload` is the message as encoded by `encode_message`. `key` is the key that the client has
    chosen for the message, by which duplicates are detected."""

    agent: str
    key: str
    payload: bytes
    is_operator_command: bool = False  # whether this is an operator command, not a client's input


class InputsOffered(Event, frozen=True, gc=False):
    """Event: a client has sent a request that contains inputs. The core replies with a single AnswerInputs command that has the same
    request number. `wall_ns` is the wall-clock time of this host, in nanoseconds since 1970."""

    request: int
    client: str
    wall_ns: int
    inputs: tuple[OfferedInput, ...]


class ReplyAwaited(Event, frozen=True, gc=False):
    """Event: a client waits for the reply to the input with this key. The core sends the reply in a single AnswerAsk command. If `is_early`
    is set, the reply is sent at the end of the turn. Otherwise it is sent when a complete epoch contains the turn."""

    request: int
    agent: str
    key: str
    is_early: bool


class AskAnswer(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an input. `reply` is the reply of the input's turn, as encoded by `encode_message`. If the turn gave no reply, `reply`
    is b"".

    `status` is "replied" (the turn has succeeded), "buried" (the input is a dead letter), "retry" (the input is currently unknown on this
    host) or "unknown" (the input was never received, or has been forgotten). `reason` explains the statuses "retry" and "unknown".
    """

    status: str
    number: int = 0
    reply: bytes = b""
    reason: str = ""


class TimerFired(Event, frozen=True, gc=False):
    """Event: the clock has reached the core's `wakeup_ns`."""


class BatchEnded(Event, frozen=True, gc=False):
    """Event: the adapter currently has no more turns to run, so the core should send the items queued for links."""


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

    If the turn's kind is "segment", the turn continues with the entry `found`, or with the entries `group`, or all segments of `turn` are
    run again. If the turn is durable, `number` is its number among the agent's durable turns, and `logged` contains the host-log entries
    of turns with that number. If `refusal` is not empty, the turn fails for this reason, and its handler is not called. If `is_made` is
    set, a refused turn still creates its agent. `abandoned` are the earlier attempts at a turn that begins again."""

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
    group: tuple[JournalEntry, ...] = ()
    abandoned: tuple[AbandonedTurn, ...] = ()


class UndoTurn(Command, frozen=True, gc=False):
    """Restore the agent's state to the copy taken before the turn that has just failed."""

    agent: str


class Control(msgspec.Struct, frozen=True):
    """The contents of an agent's checkpoint, except for the agent's state and channels."""

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
    effect_group: list[tuple[int, OpenEffect]] = []
    approvals: SavedApprovals | None = None
    asked: list[AskedQuestion] = []

    @property
    def ended_turns(self) -> int:
        """Number of the agent's durable turns that have ended."""
        return self.durable_turns - (self.turn is not None)


class CaptureState(Command, frozen=True, gc=False):
    """Capture an agent's current state, and use it in the checkpoints of all given epochs."""

    agent: str
    epochs: tuple[int, ...]
    control: Control


class TakeCheckpoint(Command, frozen=True, gc=False):
    """Capture an agent's current state. Make the state durable at a later time, together with the agent's sender log.

    Attributes:
        basis: reason for the checkpoint, either "initial", "basic", "forced" or "tentative".
        round: number of the koo-toueg round to which a tentative checkpoint belongs, or 0 for any other checkpoint.
        sent, received: sequence numbers of the last message sent to each other agent, and of the last message consumed from each other
            agent.
        changed_sent, changed_received: those sequence numbers in `sent` and `received` that have changed since the agent's previous
            checkpoint.
        log: messages that the agent has sent since its previous checkpoint.
        turns: number of turns that the agent has run since its previous checkpoint.
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
    """Report to the coordinator that all agents are frozen, as soon as all checkpoints so far are durable. Those in `running` count as failed."""

    plan: int
    number: int
    running: tuple[str, ...]


class StoreEpoch(Command, frozen=True, gc=False):
    """Make this host's part of an epoch durable, because it is complete. The adapter responds with EpochStored or EpochNotStored."""

    epoch: int
    plan: int
    records: dict[str, RecordedPart]
    departed: dict[str, dict[str, int]]  # departed agent → receiver → sequence number of the last message sent
    heard_ns: int = 0  # arrival time of the first message about the epoch
    log_floor: int = 0  # number of the last batch of this host's log whose commits the part covers
    log_start: int = 0  # as in EpochReport


class ReportEpoch(Command, frozen=True, gc=False):
    """Report to the coordinator that this host's part of the epoch is durable."""

    epoch: int


class DropEpoch(Command, frozen=True, gc=False):
    """Discard the captured states and the reports of an epoch that has ended."""

    epoch: int


class CancelTurns(Command, frozen=True, gc=False):
    """Stop all turns and remove all agents, because a recovery plan has undone them."""


class LoadAgents(Command, frozen=True, gc=False):
    """Load the given agents from the recovery line, and seal and read the host logs of earlier plans that may contain entries of these
    agents. The adapter responds with either AgentsLoaded or LoadFailed. `drop_before`, `newest`, `era`, `sources` and `sources_since` have
    the same meaning as in PlanReceived.
    """

    plan: int
    line_epoch: int
    line_root: str
    agents: tuple[Placement, ...]
    logs: tuple[LogName, ...] = ()
    drop_before: int = 0
    newest: tuple[tuple[LogName, int], ...] = ()
    era: int = 0
    sources: tuple[str, ...] = ()
    sources_since: int = 0

    def reads(self, log: LogName) -> bool:
        """Return whether the log may contain entries of the agents."""
        is_early = not self.sources_since or log.plan < self.sources_since
        return log.plan < self.plan and (is_early or log.host in self.sources)


class AnswerInputs(Command, frozen=True, gc=False):
    """Send a client the outcomes of its request, one outcome for each input."""

    request: int
    answers: tuple[InputOutcome, ...]


class AnswerAsk(Command, frozen=True, gc=False):
    """Send a client the outcome of the input for which it has waited."""

    request: int
    answer: AskAnswer


class ForgetAgent(Command, frozen=True, gc=False):
    agent: str


class DialPeer(Command, frozen=True, gc=False):
    peer: str
    address: str


class KnockAtPeer(Command, frozen=True, gc=False):
    """Ask the peer to dial this host by sending it `hello` once. The message with this request may be lost."""

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
    """Record an event in the trace, which is used only for diagrams. For a sampled message, the event is that the message was sent ("send")
    or consumed ("receive").

    Further values of `what` are "checkpoint" (a tentative checkpoint became permanent, where `other` is its basis), "send_marker" and
    "receive_marker" (this host sent or received a marker item, where `number` is the epoch).
    """

    what: str
    agent: str
    other: str
    number: int


class Note(Command, frozen=True, gc=False):
    """Write a line to the log of the process. `level` is "info" or "warning"."""

    level: str
    text: str
    fields: Mapping[str, object] = {}


# ---- durable turns --------------------------------------------------------------------------------------------------


class RunStep(Command, frozen=True, gc=False):
    """Run the step for which the agent's turn waits. `place` is the index of the step in the journal, starting at 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class TakeAnswer(RunStep, frozen=True, gc=False):
    """Take the recorded answer to the step for which the agent's turn waits, instead of running the step."""

    answer: RecordedAnswer


class RunEffect(RunStep, frozen=True, gc=False):
    """Run the effect for which the agent's turn waits.

    Attributes:
        key: outside key of the effect.
        is_in_doubt: whether the effect may have been called earlier. An earlier call of the effect may still be running.
        undoes: outside key of the effect that this compensation undoes, or "" if the effect is not a compensation.
        wait_s: time in seconds for which a call of the effect to be undone may still run. The compensation waits for this time before it is
            called.
    """

    key: str
    is_in_doubt: bool
    undoes: str = ""
    wait_s: float = 0.0


class StepEnded(Event, frozen=True, gc=False):
    """Event: a step or an effect has ended.

    Attributes:
        outcome, result: the outcome and the encoded result, as in `JournalEntry`.
        time_ns: wall-clock time at which the step or effect ended, in nanoseconds since 1970.
        late_s: for a failed effect, the time in seconds for which its last call may still run.
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
    """Report to an observer that the next message of a logged channel has left its sender's outbox. The core issues this command only if an
    observer is watching.

    `is_in_turn` is set if the sender is in a turn whose message the sender's protocol rule has already processed.
    """

    sender: str
    receiver: str
    is_in_turn: bool


class OperatorCommandConsumed(Command, frozen=True, gc=False):
    """Report to an observer that an operator command was consumed without a turn. `told` is the reply to the operator."""

    agent: str
    payload: bytes
    told: bytes


class EffectRecordEmitted(Command, frozen=True, gc=False):
    """Report to an observer that the core has emitted a ledger record for an agent. The ledger record is not an output of any turn."""

    agent: str
    payload: bytes


class AgentsKept(Command, frozen=True, gc=False):
    """Report to an observer that these agents go on under a new plan without a restart."""

    plan: int
    agents: tuple[str, ...]


class MessageConsumedInTurn(Command, frozen=True, gc=False):
    """Report that a message or an input was consumed in a durable turn, which has received it or, if `is_stashed`, leaves it to a later turn.
    If `what` is "effect", the entry undoes the effects of a failed turn; if "again", its turn begins again. Both precede all others."""

    agent: str
    what: TurnKind | Literal["effect", "again"]
    sender: str
    payload: bytes
    is_stashed: bool


# ---- the host's log -------------------------------------------------------------------------------------------------


class AppendBatch(Command, frozen=True, gc=False):
    """Make the next batch of this host's log durable. Retry until the outcome is known: BatchAppended or LogSealed. If batches are signed,
    `certificate` is the certificate that the coordinator has issued for this log."""

    log: LogName
    number: int
    inputs: tuple[LoggedInput, ...]
    entries: tuple[LoggedEntry, ...] = ()
    certificate: bytes = b""
    commits: tuple[CommitPart, ...] = ()


class CommittedAgent(msgspec.Struct, frozen=True):
    """An agent in a commit, except for its state: what `Control` contains, and the numbers and messages of its channels."""

    agent: str
    control: Control
    sent: dict[str, int]
    received: dict[str, int]
    in_transit: dict[str, list[InTransitMessage]]


class CaptureCommit(Command, frozen=True, gc=False):
    """Capture the current states of these agents, for a commit. The state of an agent whose turn runs is its state before the turn. The
    adapter responds with CommitCaptured or CommitFailed."""

    plan: int
    commit: int
    agents: tuple[CommittedAgent, ...]


class CommitCaptured(Event, frozen=True, gc=False):
    """Event: a commit has been captured and encoded."""

    plan: int
    commit: int
    parts: tuple[CommitPart, ...]


class CommitFailed(Event, frozen=True, gc=False):
    """Event: the state of an agent cannot be saved in a commit."""

    plan: int
    agent: str
    reason: str


class BatchAppended(Event, frozen=True, gc=False):
    """Event: a batch of this host's log is durable."""

    log: LogName
    number: int


class LogSealed(Event, frozen=True, gc=False):
    """Event: the store has rejected a batch, because a later plan has sealed the log. The log will never contain the rejected batch."""

    log: LogName
    number: int


class LogStatusChanged(Event, frozen=True, gc=False):
    """Event: the writing of a batch to this log is delayed, or no longer is. `problem` is the reason for the delay, or "" if there is none."""

    log: LogName
    problem: str


# ---- dead letters ---------------------------------------------------------------------------------------------------


class MessageDeadLettered(Command, frozen=True, gc=False):
    """Report that a message, a timer or an input became a dead letter of its receiver, which means that it was consumed without effect."""

    agent: str
    what: TurnKind
    sender: str
    payload: bytes
    error: str


class UnroutableMessageDeadLettered(Command, frozen=True, gc=False):
    """Report that a message that can never be delivered became a dead letter of its sender. `is_refused_creation` is set if the message is
    a spawn request that was refused."""

    sender: str
    receiver: str
    payload: bytes
    error: str
    is_refused_creation: bool = False


# ---- views of agents ------------------------------------------------------------------------------------------------


class ViewRequested(Event, frozen=True, gc=False):
    """Event: an operator has requested a view of an agent. The core replies with a single AnswerView command that has the same request
    number. If `is_settled` is set, the core waits with its reply until the agent is between two turns."""

    request: int
    agent: str
    is_settled: bool


class OpenWaitsRequested(Event, frozen=True, gc=False):
    """Event: a caller asks which effects and approvals the agents on this host wait for. The core replies with AnswerOpenWaits."""

    request: int


class AnswerOpenWaits(Command, frozen=True, gc=False):
    """Reply to the event OpenWaitsRequested."""

    request: int
    effects: tuple[UnfinishedEffect, ...]
    approvals: tuple[OpenApproval, ...] = ()


class WaitingAgentsRequested(Event, frozen=True, gc=False):
    """Event: a caller asks which agents on this host have waiting messages or inputs. The core replies with one AnswerWaiting command."""

    request: int


class TracingRequested(Event, frozen=True, gc=False):
    """Event: the sampling rate for traced messages has changed. From now on, every N-th message of each channel is traced, where N is
    `every`. If `every` is 0, no messages are traced."""

    every: int


class TurnView(msgspec.Struct, frozen=True, gc=False):
    """A view of an unfinished durable turn.

    Attributes:
        what, sender, payload: kind, sender and payload of the message that started the turn.
        entries, newest: the number of journal entries, and the newest journal entries.
        waits, waits_ns: the entry for which the turn waits (None if the entry has arrived), and how long the turn has waited in
            nanoseconds.
        put_off: number of messages that are deferred until the turn ends.
        problem: reason why the turn cannot continue, or "" if it can continue.
        effect, effect_stands: the effect for which the turn waits, if any, and the state of this effect as text.
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
    """A view of an agent.

    Attributes:
        life: "unborn" (not created yet), "starting" (before the end of `on_start`), "running", "failed" (waiting for a recovery) or
            "stopping".
        turn: kind of the running turn, or "" if the agent is between two turns. A segment of a durable turn counts as "timer".
        sender: sender of the message that the running turn handles.
        attempts: number of failed attempts of the current turn. The turn is either running or will be retried after `retry_ns`.
        messages, inputs: number of messages from agents and number of inputs from outside that are waiting to be handled.
        outbox: number of messages that are waiting in the agent's outbox to be sent.
        spawns: agents whose spawn requests have not been granted yet.
        timers: name of each timer, with the time in nanoseconds until it fires.
        inputs_consumed: number of the input that was consumed last.
        keys: number of input keys that the agent remembers to detect duplicates.
        checkpoint: number of the agent's newest checkpoint.
        dead_letter_count: number of dead letters, without those that a retry has handled. `dead_letters` contains only the newest.
        durable: view of the unfinished durable turn, or None if there is none.
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
    """Reply to ViewRequested. If the agent is not on this host, `view` is None, and `reason` explains why. If the request has `is_settled`
    set, the adapter must read the agent's state immediately."""

    request: int
    view: AgentView | None
    reason: str = ""


class AnswerWaiting(Command, frozen=True, gc=False):
    """Reply to the event WaitingAgentsRequested. `more` is the number of agents that were omitted from the reply."""

    request: int
    agents: tuple[AgentView, ...]
    more: int = 0


# ---- sends from outside of turns ------------------------------------------------------------------------------------


class ExternalSends(Event, frozen=True, gc=False):
    """Event: an agent sends messages outside of any turn, because the external object that it represents has changed. Both take effect
    together. `sends` contains the receivers and the encoded messages."""

    agent: str
    incarnation: int
    sends: tuple[tuple[str, bytes], ...]

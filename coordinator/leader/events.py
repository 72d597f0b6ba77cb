"""Events that the leader core handles, and commands that it returns. Commands are executed in order."""

import msgspec

from snapline.coordinator.state.fleet_records import ProposalOutcome
from snapline.coordinator.state.fleet_view import Ancestor
from snapline.coordinator.state.operations import Kind
from snapline.messages.host_messages import Directive, HostMessage, ReportedPack, TurnDeath


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base class of the leader core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of the leader core's commands."""


class LeaderStarted(Event, frozen=True, gc=False):
    """First event: the state reflects the whole log, and this leader decides from now on."""


class MessageReceived(Event, frozen=True, gc=False):
    """A host's message. `session` numbers its stream; the first message of a stream is Join."""

    session: int
    message: HostMessage


class StreamClosed(Event, frozen=True, gc=False):
    session: int


class ProposalEnded(Event, frozen=True, gc=False):
    """Outcome of a `Propose`. A committed operation is already applied to the state."""

    token: int
    outcome: ProposalOutcome


class ProbeWritten(Event, frozen=True, gc=False):
    """Result of a `WriteProbe`. `error` not empty: the probe could not be written."""

    session: int
    path: str
    content: bytes
    error: str = ""


class ManifestWritten(Event, frozen=True, gc=False):
    """Result of a `WriteManifest`: the manifest is durable, and every pack was read back and compared. `error` not empty: that failed.
    `damaged_base`, `damaged_path`: the cause is the damaged manifest of this base epoch."""

    epoch: int
    root: str
    error: str = ""
    damaged_base: int = 0
    damaged_path: str = ""


class EpochPublished(Event, frozen=True, gc=False):
    """Result of a `PublishEpoch`: the ref is durable.

    Attributes:
        error: why the ref is not durable; empty: the ref is durable.
        damaged_path: an existing ref that is damaged.
        is_final: the store has another owner, so a retry is useless.
        inputs: agent → last input that it has consumed in the epoch.
        outputs: agent → last output that it has emitted in the epoch; None: another coordinator wrote the manifest.
    """

    epoch: int
    error: str = ""
    damaged_path: str = ""
    is_final: bool = False
    inputs: dict[str, int] = {}
    outputs: dict[str, int] | None = None


class EpochReleased(Event, frozen=True, gc=False):
    """Result of a `ReleaseEpoch`: the outputs of an epoch are durable.

    Attributes:
        error: why the outputs may not be durable; empty: the outputs are durable.
        damaged_epoch, damaged_path: the error is damage of this epoch, which is the released epoch or an earlier one.
        inputs: agent → last input that it has consumed in the epoch.
        outputs: agent → last output that it has emitted in the epoch.
    """

    epoch: int
    error: str = ""
    damaged_epoch: int = 0
    damaged_path: str = ""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}


class LineChecked(Event, frozen=True, gc=False):
    """Result of a CheckLine. `damaged_path` not empty: the epoch cannot be used;
    otherwise `error` not empty: the store could not be read at this time."""

    epoch: int
    error: str = ""
    damaged_path: str = ""


class LineMaterialised(Event, frozen=True, gc=False):
    """Result of a `MaterialiseLine`: the recovery line is stored as an epoch with a durable pack and manifest. `error` not empty: that
    failed.

    Attributes:
        unborn: agents of the line that are not created yet.
        finished: agents that have stopped, and whose messages are all received in this epoch.
        state_bytes, channel_state_bytes, channel_state_messages: sizes, as in `WriteManifest`.
        error: what failed. With `damaged_path` empty, the store could not be used just now, or the line cannot become an epoch.
        damaged_path: a checkpoint pack, or a file of the base epoch.
        damaged_agent: agent whose checkpoint in that file is damaged; empty: the file as a whole.
    """

    epoch: int
    root: str
    unborn: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    error: str = ""
    damaged_path: str = ""
    damaged_agent: str = ""
    finished: tuple[str, ...] = ()


class StoredCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """One checkpoint in the store.

    Attributes:
        number: number among the agent's checkpoints, over all incarnations.
        basis: "initial", "basic", "forced" or "tentative"; "coordinated" if hosts made the base epoch; "unborn" if the
            agent is not created in the base epoch: number 0, nothing sent, nothing received.
        epoch: round of a tentative checkpoint; the base epoch's number for checkpoints in the base epoch; otherwise 0.
        pack: pack that holds the checkpoint.
        sent: receiver → last number sent before the checkpoint; all channels.
        received: sender → last number consumed before the checkpoint; all channels.
        turns: turns since the previous checkpoint.
        log_bytes: size of the payloads in the checkpoint's sender log.
    """

    agent: str
    number: int
    basis: str
    epoch: int
    pack: ReportedPack
    sent: dict[str, int]
    received: dict[str, int]
    turns: int = 0
    log_bytes: int = 0


class CheckpointsScanned(Event, frozen=True, gc=False):
    """Checkpoints in the store. `error` not empty: the store could not be read; `damaged_path`: the base epoch is damaged.

    Attributes:
        base: one checkpoint of each agent in the base epoch, sorted by agent.
        found: all checkpoints in checkpoint packs of the plan, sorted by agent, number and round. Damaged packs, and files
            that vanish during the scan, are left out.
    """

    plan: int
    base_epoch: int
    base: tuple[StoredCheckpoint, ...] = ()
    found: tuple[StoredCheckpoint, ...] = ()
    error: str = ""
    damaged_path: str = ""


class SnapshotRequested(Event, frozen=True, gc=False):
    """A tool's request for a snapshot; answered by `AnswerSnapshot` with the same number."""

    request: int


class RestoreRequested(Event, frozen=True, gc=False):
    """A request to restore an epoch; answered by `AnswerRestore`. `token`: chosen by the client, the same in a repeated request."""

    request: int
    token: str
    epoch: int
    reason: str
    drop_inputs: bool = False


class SnapshotResolved(Event, frozen=True, gc=False):
    """Result of a ResolveSnapshot: the epoch, or why there is none."""

    snapshot: str
    epoch: int
    error: str = ""


class HostExitReported(Event, frozen=True, gc=False):
    """A launcher's report that this run of a host has ended; `died_in`: turns that were running when the host process died."""

    host: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class HostBusyReported(Event, frozen=True, gc=False):
    """A host's report that its process is alive while its event loop is blocked, for `busy_ns` so far, by `what`.

    A separate thread sends the report.
    """

    host: str
    instance: str
    busy_ns: int
    what: str


class ReplicaStatusChecked(Event, frozen=True, gc=False):
    """The leading replica's check of itself and the others, twice a second.

    Attributes:
        replica: id of this replica.
        missing: replicas to which it has no connection.
        count: number of all replicas.
        certificate_left_ns: time until this replica's certificate expires; 0 or below: expired. None: the certificate need not be renewed.
    """

    replica: str
    missing: tuple[str, ...]
    count: int = 1
    certificate_left_ns: int | None = None


class OutputReadersChanged(Event, frozen=True, gc=False):
    """The first consumer has begun to follow the outputs, or the last one has left."""

    is_watched: bool


class LineRequested(Event, frozen=True, gc=False):
    """A tool's query for the recovery line of an autonomous fleet; answered by `AnswerLine` with the same number.

    Attributes:
        failures: sets of agents that fail together; the answer has one line for each.
    """

    request: int
    failures: tuple[tuple[str, ...], ...]


class TimerFired(Event, frozen=True, gc=False):
    """The timer fired: the clock has passed `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class Propose(Command, frozen=True, gc=False):
    """Propose an operation to the log; answered by `ProposalEnded`. (client, sequence) is its request id."""

    token: int
    client: str
    sequence: int
    kind: Kind


class SendDirective(Command, frozen=True, gc=False):
    """Send a directive to hosts. Sessions that were closed in the meantime are skipped."""

    sessions: tuple[int, ...]
    directive: Directive


class CloseStream(Command, frozen=True, gc=False):
    """End the stream after all messages queued for it were sent."""

    session: int


class WriteProbe(Command, frozen=True, gc=False):
    """Write a probe file into the store; answered by `ProbeWritten`."""

    session: int


class RemoveProbe(Command, frozen=True, gc=False):
    path: str


class ManifestAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of an epoch; `pack` is an index into the packs."""

    agent: str
    kind: str
    host: str
    incarnation: int
    is_unborn: bool
    pack: int


class WriteManifest(Command, frozen=True, gc=False):
    """Read each pack's index back, compare it with the report, and write the manifest; answered by `ManifestWritten`.

    Attributes:
        bases: complete epochs whose chunks the packs may reuse → their roots.
        inputs: agent → last external input that it has consumed.
        outputs: agent → last output that it has emitted.
        durable_turns: agent → number of durable turns that have ended.
    """

    epoch: int
    plan: int
    trigger: str
    hosts: dict[str, int]
    packs: tuple[ReportedPack, ...]
    agents: tuple[ManifestAgent, ...]
    channels: tuple[tuple[str, str], ...]
    state_bytes: int
    channel_state_bytes: int
    channel_state_messages: int
    bases: dict[int, str] = {}
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    durable_turns: dict[str, int] = {}


class PublishEpoch(Command, frozen=True, gc=False):
    """Write the ref of a complete epoch; answered by `EpochPublished`. May be repeated."""

    epoch: int
    root: str


class ReleaseEpoch(Command, frozen=True, gc=False):
    """Write the outputs that agents have emitted since the previous epoch; answered by `EpochReleased`. May be repeated.

    Attributes:
        ancestors: earlier epochs, newest first, down to one that is not condemned. Empty: the initial states.
        is_fall_back: the fleet has abandoned complete epochs between the first ancestor and this one. Consumers of their
            outputs must be notified, so a record is written even if there are no outputs.
    """

    epoch: int
    root: str
    ancestors: tuple[Ancestor, ...] = ()
    is_fall_back: bool = False


class ResolveSnapshot(Command, frozen=True, gc=False):
    """Find the epoch with this tag or number; answered by `SnapshotResolved`."""

    snapshot: str


class CheckLine(Command, frozen=True, gc=False):
    """Read ref, manifest and pack indexes of an epoch, or every byte of it if `is_whole`; answered by `LineChecked`."""

    epoch: int
    root: str
    is_whole: bool = False


class DeleteEpochs(Command, frozen=True, gc=False):
    """Delete forgotten epochs from the store, in the background."""

    epochs: tuple[int, ...]


class SweepStore(Command, frozen=True, gc=False):
    """Delete unreferenced data in the background: packs of aborted epochs, epochs forgotten before a crash.

    Attributes:
        kept: complete and condemned epochs.
        undecided: epochs that are open in the log, or complete and not published yet.
        begun: newest epoch whose data the sweep may delete, so that a late sweep cannot delete newer data.
    """

    kept: tuple[int, ...]
    undecided: tuple[int, ...]
    begun: int


class SweepLogs(Command, frozen=True, gc=False):
    """Delete in the background the batches of host logs that no epoch needs. A late sweep is harmless.

    Attributes:
        plan: number of the present plan.
        epochs: all epochs that a recovery may return to → their roots.
        left: agents that have left → lowest epoch that no longer contains the agent.
        settled_epoch: first epoch from which on no turn undone by the plan is repeated.
    """

    plan: int
    epochs: dict[int, str]
    left: dict[str, int]
    settled_epoch: int


class LineAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of a recovery line that will be stored as an epoch.

    Attributes:
        number: number of the agent's checkpoint on the line.
        base_number: number of the agent's checkpoint in the base epoch; -1: none, because the agent is unborn or there is no base.
        paths: packs of its checkpoints base_number + 1 … number, in order. Without a checkpoint in the base epoch they
            start at 0 for an agent of the fleet's definition, and at 1 for one created later. Empty: the checkpoint of the
            base epoch or, without one, an agent that is not created yet (number 0).
    """

    agent: str
    kind: str
    host: str
    incarnation: int
    number: int
    base_number: int
    paths: tuple[str, ...] = ()


class MaterialiseLine(Command, frozen=True, gc=False):
    """Store a recovery line as an epoch: read its checkpoints and their sender logs, then write one pack and a manifest.

    Answered by `LineMaterialised`. May be repeated; a repetition writes another pack and manifest.

    Attributes:
        base_epoch: the newest epoch that can be used; 0: there is none.
        hosts: as in `WriteManifest`.
        packs: path → reported pack, for all paths in `agents`.
        writer: writer id of the new pack.
    """

    epoch: int
    plan: int
    trigger: str
    base_epoch: int
    base_root: str
    hosts: dict[str, int]
    agents: tuple[LineAgent, ...]
    packs: dict[str, ReportedPack]
    writer: str


class ScanCheckpoints(Command, frozen=True, gc=False):
    """List the checkpoints in the base epoch and the packs of a plan; answered by `CheckpointsScanned`."""

    plan: int
    base_epoch: int
    base_root: str


class DeleteCheckpoints(Command, frozen=True, gc=False):
    """Delete, in the background, checkpoint packs that no recovery line can need any more."""

    paths: tuple[str, ...]


class SweepCheckpoints(Command, frozen=True, gc=False):
    """Delete in the background all checkpoint packs of older plans, except `kept`.

    Packs of this plan and of later plans remain, because a host may be writing them.
    """

    plan: int
    kept: tuple[str, ...] = ()


class AnswerTool(Command, frozen=True, gc=False):
    """Base class of the leader's answers to tool requests. Each request number gets exactly one answer."""

    request: int


class AnswerSnapshot(AnswerTool, frozen=True, gc=False):
    epoch: int
    is_complete: bool
    reason: str
    root: str


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a recovery line for an agent: durable checkpoints lost, and turns undone as far as they are known."""

    checkpoints: int
    turns: int


class RecoveryLineResult(msgspec.Struct, frozen=True, gc=False):
    """Recovery line of a failure.

    Attributes:
        failed: the agents that fail.
        line: agent → number of its checkpoint; None: the agent keeps its live state.
        costs: agent → cost, for agents that go back to a checkpoint.
        in_transit: messages to be delivered again; -1: not counted.
    """

    failed: tuple[str, ...]
    line: dict[str, int | None]
    costs: dict[str, Cost]
    in_transit: int


class AnswerLine(AnswerTool, frozen=True, gc=False):
    """Answer to `LineRequested`: the recovery line of each failure.

    `silent`: hosts that have not reported their live states; `refused`: why there is no answer.
    """

    lines: tuple[RecoveryLineResult, ...] = ()
    silent: tuple[str, ...] = ()
    refused: str = ""


class AnswerRestore(AnswerTool, frozen=True, gc=False):
    """Answer to `RestoreRequested`: the plan of the restore. `refused`: why there is no plan; `may_pass`: a retry may succeed."""

    request: int
    plan: int = 0
    refused: str = ""
    may_pass: bool = False


class Note(Command, frozen=True, gc=False):
    """Write `text` to the process's log. `level`: "info", "warning" or "error"."""

    level: str
    text: str


class EndRun(Command, frozen=True, gc=False):
    """End the coordinator's run: the fleet has ended and the hosts have been notified."""

    exit_code: int
    reason: str


class ForgetHostRequested(Event, frozen=True, gc=False):
    """An operator's request to forget a host; answered by `AnswerForgetHost` with the same number."""

    request: int
    host: str


class EndHostRequested(Event, frozen=True, gc=False):
    """An operator's request to end the current run of a host."""

    host: str


class MovesRequested(Event, frozen=True, gc=False):
    """An operator's request to move agents; answered by `AnswerMoves` with the same number when the hosts are marked.

    Attributes:
        drained: hosts that agents must leave.
        resumed: hosts that may take agents again.
        is_even: spread the agents evenly over all hosts.
    """

    request: int
    drained: tuple[str, ...]
    resumed: tuple[str, ...]
    is_even: bool


class AnswerForgetHost(AnswerTool, frozen=True, gc=False):
    """Answer to `ForgetHostRequested`: the host's record is removed, or the host is back. `refused`: why the record is kept."""

    refused: str = ""


class AnswerMoves(AnswerTool, frozen=True, gc=False):
    """Answer to `MovesRequested`: the drain marks are in the log.

    `refused`: why not; `plan`: the current plan; `is_moving`: the next plan moves agents.
    """

    refused: str = ""
    plan: int = 0
    is_moving: bool = False


class CoordinatorStopRequested(Event, frozen=True, gc=False):
    """Request to stop this coordinator after a last epoch (`fleet_end.py`)."""

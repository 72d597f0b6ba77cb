"""Events that the leader core handles, and commands that it returns. The driver executes the commands in order."""

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
    """The first event. The state reflects the whole log, and this leader makes the decisions from now on."""


class MessageReceived(Event, frozen=True, gc=False):
    """A message from a host. `session` numbers the stream; the first message on a stream is Join."""

    session: int
    message: HostMessage


class StreamClosed(Event, frozen=True, gc=False):
    session: int


class ProposalEnded(Event, frozen=True, gc=False):
    """The outcome of a `Propose` command. If the operation was committed, it has already been applied to the state."""

    token: int
    outcome: ProposalOutcome


class ProbeWritten(Event, frozen=True, gc=False):
    """The result of a `WriteProbe` command. If `error` is not empty, the probe could not be written."""

    session: int
    path: str
    content: bytes
    error: str = ""


class ManifestWritten(Event, frozen=True, gc=False):
    """The result of a `WriteManifest` command.

    If `error` is empty, the manifest is durable, and every pack was read back and compared with its report. If `damaged_base` is not 0, the
    error was caused by the damaged manifest of that base epoch at `damaged_path`.
    """

    epoch: int
    root: str
    error: str = ""
    damaged_base: int = 0
    damaged_path: str = ""


class EpochPublished(Event, frozen=True, gc=False):
    """The result of a `PublishEpoch` command.

    Attributes:
        error: why the ref is not durable; empty if it is durable.
        damaged_path: path of an existing ref that is damaged.
        is_final: whether a retry is useless, because the store has another owner.
        inputs: agent → the last input that the agent has consumed in the epoch.
        outputs: agent → the last output that the agent has emitted in the epoch; None if another coordinator wrote the manifest.
    """

    epoch: int
    error: str = ""
    damaged_path: str = ""
    is_final: bool = False
    inputs: dict[str, int] = {}
    outputs: dict[str, int] | None = None


class EpochReleased(Event, frozen=True, gc=False):
    """The result of a `ReleaseEpoch` command.

    Attributes:
        error: why the outputs may not be durable; empty if they are durable.
        damaged_epoch, damaged_path: the damaged epoch that caused the error, which is the released epoch or an earlier one, and its damaged
            file.
        inputs: agent → the last input that the agent has consumed in the epoch.
        outputs: agent → the last output that the agent has emitted in the epoch.
    """

    epoch: int
    error: str = ""
    damaged_epoch: int = 0
    damaged_path: str = ""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}


class LineChecked(Event, frozen=True, gc=False):
    """The result of a `CheckLine` command.

    If `damaged_path` is not empty, the epoch cannot be used. Otherwise, if `error` is not empty, the store could not be read at this time.
    """

    epoch: int
    error: str = ""
    damaged_path: str = ""


class LineMaterialised(Event, frozen=True, gc=False):
    """The result of a `MaterialiseLine` command. If `error` is empty, the recovery line is stored as an epoch with a durable pack and
    manifest.

    Attributes:
        unborn: agents of the line that have not been created yet.
        finished: agents that have stopped and whose sent messages have all been received in this epoch.
        state_bytes, channel_state_bytes, channel_state_messages: same as in `WriteManifest`.
        error: what failed. If `damaged_path` is empty, the store is currently unavailable, or the line cannot become an epoch.
        damaged_path: a damaged checkpoint pack, or a damaged file of the base epoch.
        damaged_agent: agent whose checkpoint in that file is damaged; empty if the whole file is damaged.
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
        number: the checkpoint's number, counted per agent over all its incarnations.
        basis: "initial", "basic", "forced" or "tentative"; "coordinated" if hosts made the base epoch; "unborn" if the agent has not been
            created in the base epoch, so that the number is 0 and no message has been sent or received.
        epoch: the round of a tentative checkpoint; the base epoch's number for a checkpoint in the base epoch; otherwise 0.
        pack: the pack that contains the checkpoint.
        sent: receiver → the sequence number of the last message sent before the checkpoint, for all channels.
        received: sender → the sequence number of the last message consumed before the checkpoint, for all channels.
        turns: number of turns since the previous checkpoint.
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
    """The result of a `ScanCheckpoints` command.

    If `error` is not empty, the store could not be read. If `damaged_path` is not empty, that file of the base epoch is damaged.

    Attributes:
        base: one checkpoint of each agent in the base epoch, sorted by agent.
        found: all checkpoints in the plan's checkpoint packs, sorted by agent, number and round. Damaged packs, and files that vanish
            during the scan, are skipped.
    """

    plan: int
    base_epoch: int
    base: tuple[StoredCheckpoint, ...] = ()
    found: tuple[StoredCheckpoint, ...] = ()
    error: str = ""
    damaged_path: str = ""


class SnapshotRequested(Event, frozen=True, gc=False):
    """A tool's request for a snapshot. The leader answers with an `AnswerSnapshot` that has the same number."""

    request: int


class RestoreRequested(Event, frozen=True, gc=False):
    """A request to restore an epoch, answered by `AnswerRestore`. The client chooses `token` and repeats it when it retries."""

    request: int
    token: str
    epoch: int
    reason: str
    drop_inputs: bool = False


class SnapshotResolved(Event, frozen=True, gc=False):
    """The result of a `ResolveSnapshot` command: the epoch, or the reason why there is none."""

    snapshot: str
    epoch: int
    error: str = ""


class HostExitReported(Event, frozen=True, gc=False):
    """A launcher's report that this run of a host has ended. `died_in` lists the turns that were running when the host process died."""

    host: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class HostBusyReported(Event, frozen=True, gc=False):
    """A host's report that its process is alive but `what` blocks its event loop, so far for `busy_ns`.

    A separate thread of the host sends the report.
    """

    host: str
    instance: str
    busy_ns: int
    what: str


class ReplicaStatusChecked(Event, frozen=True, gc=False):
    """The leading replica's check of itself and the other replicas, made twice a second.

    Attributes:
        replica: id of this replica.
        missing: the replicas to which this replica has no connection.
        count: number of all replicas.
        certificate_left_ns: how long this replica's certificate remains valid. A value of 0 or less means that it has expired; None means
            that it is not due for renewal.
    """

    replica: str
    missing: tuple[str, ...]
    count: int = 1
    certificate_left_ns: int | None = None


class OutputReadersChanged(Event, frozen=True, gc=False):
    """The first consumer has begun to follow the outputs, or the last consumer has left."""

    is_watched: bool


class LineRequested(Event, frozen=True, gc=False):
    """A tool's query for the recovery line of an autonomous fleet. The leader answers with an `AnswerLine` that has the same number.

    Attributes:
        failures: sets of agents that are assumed to fail together. The answer contains one line for each set.
    """

    request: int
    failures: tuple[tuple[str, ...], ...]


class TimerFired(Event, frozen=True, gc=False):
    """The clock has passed `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class Propose(Command, frozen=True, gc=False):
    """Propose an operation to the log; answered by `ProposalEnded`. The pair (client, sequence) is the operation's request id."""

    token: int
    client: str
    sequence: int
    kind: Kind


class SendDirective(Command, frozen=True, gc=False):
    """Send a directive to hosts. Sessions that were closed in the meantime are skipped."""

    sessions: tuple[int, ...]
    directive: Directive


class CloseStream(Command, frozen=True, gc=False):
    """End the stream after all messages queued for it have been sent."""

    session: int


class WriteProbe(Command, frozen=True, gc=False):
    """Write a probe file into the store; answered by `ProbeWritten`."""

    session: int


class RemoveProbe(Command, frozen=True, gc=False):
    path: str


class ManifestAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of an epoch. `pack` is an index into the epoch's packs."""

    agent: str
    kind: str
    host: str
    incarnation: int
    is_unborn: bool
    pack: int


class WriteManifest(Command, frozen=True, gc=False):
    """Read back each pack's index, compare it with the report, and write the manifest; answered by `ManifestWritten`.

    Attributes:
        bases: complete epoch whose chunks the packs may reuse → its root.
        inputs: agent → the last external input that the agent has consumed.
        outputs: agent → the last output that the agent has emitted.
        durable_turns: agent → number of its durable turns that have ended.
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
    """Write the ref of a complete epoch; answered by `EpochPublished`. The command may be repeated."""

    epoch: int
    root: str


class ReleaseEpoch(Command, frozen=True, gc=False):
    """Write the outputs that agents have emitted since the previous epoch; answered by `EpochReleased`. The command may be repeated.

    Attributes:
        ancestors: earlier epochs, newest first, down to an epoch that is not condemned. The tuple is empty if only the initial states
            precede this epoch.
        is_fall_back: whether the fleet has abandoned complete epochs between the first ancestor and this epoch. Consumers of their outputs
            must be notified, so a record is written even if there are no outputs.
    """

    epoch: int
    root: str
    ancestors: tuple[Ancestor, ...] = ()
    is_fall_back: bool = False


class ResolveSnapshot(Command, frozen=True, gc=False):
    """Find the epoch with this tag or number; answered by `SnapshotResolved`."""

    snapshot: str


class CheckLine(Command, frozen=True, gc=False):
    """Read the ref, manifest and pack indexes of an epoch, or every byte of the epoch if `is_whole`; answered by `LineChecked`."""

    epoch: int
    root: str
    is_whole: bool = False


class DeleteEpochs(Command, frozen=True, gc=False):
    """Delete epochs that the log has forgotten from the store, in the background."""

    epochs: tuple[int, ...]


class SweepStore(Command, frozen=True, gc=False):
    """Delete unreferenced data in the background, such as packs of aborted epochs, or epochs that were forgotten before a crash.

    Attributes:
        kept: complete and condemned epochs.
        undecided: epochs that are open in the log, or complete but not yet published.
        begun: newest epoch whose data the sweep may delete. The limit prevents a late sweep from deleting newer data.
    """

    kept: tuple[int, ...]
    undecided: tuple[int, ...]
    begun: int


class SweepLogs(Command, frozen=True, gc=False):
    """Delete in the background those batches of host logs that no epoch needs. A late sweep is harmless.

    Attributes:
        plan: number of the current plan.
        epochs: epoch to which a recovery may return → its root.
        left: agent that has left → the lowest epoch that no longer contains the agent.
        settled_epoch: number of an epoch; from this epoch on, no turn that the plan has undone is run again.
    """

    plan: int
    epochs: dict[int, str]
    left: dict[str, int]
    settled_epoch: int


class LineAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of a recovery line that will be stored as an epoch.

    Attributes:
        number: number of the agent's checkpoint on the line.
        base_number: number of the agent's checkpoint in the base epoch; -1 if the agent is unborn or there is no base epoch.
        paths: the packs of its checkpoints base_number + 1 … number, in order. If the base epoch has no checkpoint of the agent, they start
            at 0 for an agent of the fleet's definition, and at 1 for an agent created later. Empty if the line uses the checkpoint in the
            base epoch or, without one, if the agent has not been created yet (number 0).
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

    Answered by `LineMaterialised`. The command may be repeated; each repetition writes another pack and manifest.

    Attributes:
        base_epoch: the newest usable epoch; 0 if there is none.
        hosts: same as in `WriteManifest`.
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
    """List the checkpoints in the base epoch and in the packs of a plan; answered by `CheckpointsScanned`."""

    plan: int
    base_epoch: int
    base_root: str


class DeleteCheckpoints(Command, frozen=True, gc=False):
    """Delete, in the background, checkpoint packs that no recovery line can need anymore."""

    paths: tuple[str, ...]


class SweepCheckpoints(Command, frozen=True, gc=False):
    """Delete, in the background, all checkpoint packs of older plans, except `kept`.

    Packs of this plan and of later plans remain, because a host may be writing them.
    """

    plan: int
    kept: tuple[str, ...] = ()


class AnswerTool(Command, frozen=True, gc=False):
    """Base class of the leader's answers to requests from tools. Each request number gets exactly one answer."""

    request: int


class AnswerSnapshot(AnswerTool, frozen=True, gc=False):
    epoch: int
    is_complete: bool
    reason: str
    root: str


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The cost of a recovery line for an agent: the number of durable checkpoints lost, and the known number of turns undone."""

    checkpoints: int
    turns: int


class RecoveryLineResult(msgspec.Struct, frozen=True, gc=False):
    """The recovery line for one failure.

    Attributes:
        failed: the agents that are assumed to fail.
        line: agent → number of its checkpoint on the line; None if the agent keeps its live state.
        costs: agent → cost, for agents that return to a checkpoint.
        in_transit: number of messages to deliver again; -1 if they were not counted.
    """

    failed: tuple[str, ...]
    line: dict[str, int | None]
    costs: dict[str, Cost]
    in_transit: int


class AnswerLine(AnswerTool, frozen=True, gc=False):
    """The answer to `LineRequested`, with one recovery line for each failure.

    `silent` lists hosts that have not reported their live states. `refused` says why there is no answer; it is empty otherwise.
    """

    lines: tuple[RecoveryLineResult, ...] = ()
    silent: tuple[str, ...] = ()
    refused: str = ""


class AnswerRestore(AnswerTool, frozen=True, gc=False):
    """The answer to `RestoreRequested`. `plan` is the plan of the restore; `refused` says why there is none; with `may_pass`, a retry may
    succeed."""

    request: int
    plan: int = 0
    refused: str = ""
    may_pass: bool = False


class Note(Command, frozen=True, gc=False):
    """Write `text` to the process's log. `level` is "info", "warning" or "error"."""

    level: str
    text: str


class EndRun(Command, frozen=True, gc=False):
    """End the coordinator's run, after the fleet has ended and the hosts were notified."""

    exit_code: int
    reason: str


class ForgetHostRequested(Event, frozen=True, gc=False):
    """An operator's request to forget a host. The leader answers with an `AnswerForgetHost` that has the same number."""

    request: int
    host: str


class EndHostRequested(Event, frozen=True, gc=False):
    """An operator's request to end the current run of a host."""

    host: str


class MovesRequested(Event, frozen=True, gc=False):
    """An operator's request to move agents. Once the hosts are marked, the leader answers with an `AnswerMoves` that has the same number.

    Attributes:
        drained: hosts that agents must leave.
        resumed: hosts that may receive agents again.
        is_even: whether to spread the agents evenly over all hosts.
    """

    request: int
    drained: tuple[str, ...]
    resumed: tuple[str, ...]
    is_even: bool


class AnswerForgetHost(AnswerTool, frozen=True, gc=False):
    """The answer to `ForgetHostRequested`. If `refused` is empty, the host's record is removed, or the host has returned; otherwise
    `refused` says why the record is kept."""

    refused: str = ""


class AnswerMoves(AnswerTool, frozen=True, gc=False):
    """The answer to `MovesRequested`. If `refused` is empty, the drain marks are in the log.

    `plan` is the current plan; `is_moving` says whether agents are about to move.
    """

    refused: str = ""
    plan: int = 0
    is_moving: bool = False


class CoordinatorStopRequested(Event, frozen=True, gc=False):
    """A request to stop this coordinator after a last epoch (`fleet_end.py`)."""

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
    """The first event. Event: this process leads from now on, and its state reflects the whole log."""


class MessageReceived(Event, frozen=True, gc=False):
    """A message from a host. `session` is the number of the host's stream. The first message on each stream is Join."""

    session: int
    message: HostMessage


class StreamClosed(Event, frozen=True, gc=False):
    session: int


class ProposalEnded(Event, frozen=True, gc=False):
    """The outcome of a `Propose` command. A committed operation has already been applied to the state when this event arrives."""

    token: int
    outcome: ProposalOutcome


class ProbeWritten(Event, frozen=True, gc=False):
    """The result of a `WriteProbe` command. A nonempty `error` means that the probe could not be written."""

    session: int
    path: str
    content: bytes
    error: str = ""


class ManifestWritten(Event, frozen=True, gc=False):
    """The result of a `WriteManifest` command.

    If `error` is empty, the manifest is durable, and every pack has been read back and matches its report. If `damaged_base` is not 0,
    the cause of the error is that base epoch's manifest, which is damaged at `damaged_path`.
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
        is_final: whether every retry would fail, because the store has another owner.
        inputs: for each agent, the number of the last input that it has consumed in the epoch.
        outputs: for each agent, the number of the last output that it has emitted in the epoch; None if another coordinator wrote the
            manifest.
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
        damaged_epoch, damaged_path: number and damaged file of the epoch that caused the error, which is the released epoch or an earlier
            one.
        inputs: for each agent, the number of the last input that it has consumed in the epoch.
        outputs: for each agent, the number of the last output that it has emitted in the epoch.
    """

    epoch: int
    error: str = ""
    damaged_epoch: int = 0
    damaged_path: str = ""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}


class LineChecked(Event, frozen=True, gc=False):
    """The result of a `CheckLine` command.

    If `damaged_path` is not empty, the epoch is damaged and cannot be used. If only `error` is not empty, the store is currently
    unreadable.
    """

    epoch: int
    error: str = ""
    damaged_path: str = ""


class LineMaterialised(Event, frozen=True, gc=False):
    """The result of a `MaterialiseLine` command. If `error` is empty, the recovery line has been stored as an epoch, whose pack and
    manifest are durable.

    Attributes:
        unborn: agents of the recovery line that have not been created yet.
        finished: stopped agents whose sent messages have all been received in this epoch.
        state_bytes, channel_state_bytes, channel_state_messages: same as in `WriteManifest`.
        error: what failed. If `error` is set and `damaged_path` is empty, the store is unavailable, or the line cannot become an epoch.
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
        basis: "initial", "basic", "forced" or "tentative"; "coordinated" if hosts made the base epoch; "unborn" if the agent does not exist
            yet in the base epoch (number 0, no messages).
        epoch: for a tentative checkpoint, its round; for a checkpoint in the base epoch, that epoch's number; otherwise 0.
        sent: for each receiver, the sequence number of the last message sent to it before the checkpoint.
        received: for each sender, the sequence number of the last message consumed from it before the checkpoint.
        turns: number of turns since the agent's previous checkpoint.
        log_bytes: total payload size in the checkpoint's sender log.
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

    If `error` is not empty, the store was unreadable. If `damaged_path` is not empty, it names a damaged file of the base epoch.

    Attributes:
        base: each agent's checkpoint in the base epoch, sorted by agent.
        found: all checkpoints in the plan's checkpoint packs, sorted by agent, number and round. Damaged packs, and files deleted during
            the scan, are skipped.
    """

    plan: int
    base_epoch: int
    base: tuple[StoredCheckpoint, ...] = ()
    found: tuple[StoredCheckpoint, ...] = ()
    error: str = ""
    damaged_path: str = ""


class SnapshotRequested(Event, frozen=True, gc=False):
    """A tool's request for a snapshot. The leader answers with an `AnswerSnapshot` that has the same request number."""

    request: int


class RestoreRequested(Event, frozen=True, gc=False):
    """A client's request to restore an epoch, answered by `AnswerRestore`. The client chooses `token`, and uses the same token for each
    retry."""

    request: int
    token: str
    epoch: int
    reason: str
    drop_inputs: bool = False


class SnapshotResolved(Event, frozen=True, gc=False):
    """The result of a `ResolveSnapshot` command, which is an epoch or the reason why there is none."""

    snapshot: str
    epoch: int
    error: str = ""
    agent: str = ""


class HostExitReported(Event, frozen=True, gc=False):
    """A launcher's report that the process of a host's run has ended. `died_in` lists the turns that were running when the process died."""

    host: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class HostBusyReported(Event, frozen=True, gc=False):
    """A host's report that `what` has blocked its event loop for `busy_ns`, although its process is alive.

    The report comes from a separate thread of the host.
    """

    host: str
    instance: str
    busy_ns: int
    what: str


class ReplicaStatusChecked(Event, frozen=True, gc=False):
    """The leading replica's check of itself and the other replicas, which runs twice a second.

    Attributes:
        missing: replicas to which this replica has no connection.
        count: total number of replicas.
        certificate_left_ns: how long this replica's certificate remains valid. A value of 0 or less means that the certificate has
            expired; None means that it need not be renewed yet.
    """

    replica: str
    missing: tuple[str, ...]
    count: int = 1
    certificate_left_ns: int | None = None


class OutputReadersChanged(Event, frozen=True, gc=False):
    """Event: the first consumer has started to follow the outputs, or the last consumer has stopped."""

    is_watched: bool


class LineRequested(Event, frozen=True, gc=False):
    """A tool's query for the recovery line of an autonomous fleet. The leader answers with an `AnswerLine` that has the same request
    number.

    Attributes:
        failures: sets of agents; the agents in each set are assumed to fail together. The leader's answer contains one recovery line for
            each set in `failures`.
    """

    request: int
    failures: tuple[tuple[str, ...], ...]


class TimerFired(Event, frozen=True, gc=False):
    """Event: the clock has passed `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class Propose(Command, frozen=True, gc=False):
    """Command: propose an operation to the log. The driver answers with `ProposalEnded`. The pair (client, sequence) is the operation's
    request id."""

    token: int
    client: str
    sequence: int
    kind: Kind


class SendDirective(Command, frozen=True, gc=False):
    """Command: send a directive to hosts. Sessions that have been closed in the meantime are skipped."""

    sessions: tuple[int, ...]
    directive: Directive


class CloseStream(Command, frozen=True, gc=False):
    """Command: close the stream after sending all messages that are queued for it."""

    session: int


class WriteProbe(Command, frozen=True, gc=False):
    """Command: write a probe file into the store. The driver answers with `ProbeWritten`."""

    session: int


class RemoveProbe(Command, frozen=True, gc=False):
    path: str


class ManifestAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent's entry in an epoch. `pack` is an index into the list of the epoch's packs."""

    agent: str
    kind: str
    host: str
    incarnation: int
    is_unborn: bool
    pack: int


class WriteManifest(Command, frozen=True, gc=False):
    """Command: read back each pack's index, compare it with the report, and write the manifest. The driver answers with `ManifestWritten`.

    Attributes:
        bases: roots of the complete epochs whose chunks the packs may reuse, by epoch number.
        inputs: for each agent, the number of the last external input that it has consumed.
        outputs: for each agent, the number of the last output that it has emitted.
        durable_turns: for each agent, the number of its durable turns that have ended.
        log_floors, log_starts: as in `Metadata`.
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
    log_floors: dict[str, int] = {}
    log_starts: dict[str, int] = {}


class PublishEpoch(Command, frozen=True, gc=False):
    """Command: write the ref of a complete epoch. The driver answers with `EpochPublished`. The command may be repeated."""

    epoch: int
    root: str


class ReleaseEpoch(Command, frozen=True, gc=False):
    """Command: write the outputs that agents have emitted since the previous epoch. The driver answers with `EpochReleased`. The command
    may be repeated.

    Attributes:
        ancestors: earlier epochs, newest first, ending with the first that is not condemned. The tuple is empty if only the initial states
            precede the epoch.
        is_fall_back: whether the fleet has abandoned any complete epochs between the first ancestor and this epoch. Consumers of the
            abandoned outputs must be notified, so a record is written even if there are no new outputs.
    """

    epoch: int
    root: str
    ancestors: tuple[Ancestor, ...] = ()
    is_fall_back: bool = False


class ResolveSnapshot(Command, frozen=True, gc=False):
    """Command: find the epoch with this tag or number. If `turn` is set, find the first of these `epochs` in which the agent's durable
    turn with this number has not begun. The driver answers with `SnapshotResolved`."""

    snapshot: str
    agent: str = ""
    turn: int = 0
    epochs: tuple[int, ...] = ()


class CheckLine(Command, frozen=True, gc=False):
    """Command: read an epoch's ref, manifest and pack indexes, or every byte of it if `is_whole` is set. The driver answers with
    `LineChecked`."""

    epoch: int
    root: str
    is_whole: bool = False


class DeleteEpochs(Command, frozen=True, gc=False):
    """Command: delete forgotten epochs from the store, in the background."""

    epochs: tuple[int, ...]


class SweepStore(Command, frozen=True, gc=False):
    """Command: delete unreferenced data in the background, such as packs of aborted epochs, or epochs that were forgotten before a crash.

    Attributes:
        kept: the complete and condemned epochs, whose data must be kept.
        undecided: epochs that are either open or complete but unpublished.
        begun: the newest epoch whose data this sweep may delete. The limit `begun` prevents a delayed sweep from deleting newer data.
    """

    kept: tuple[int, ...]
    undecided: tuple[int, ...]
    begun: int


class SweepLogs(Command, frozen=True, gc=False):
    """Command: delete, in the background, all batches of host logs that no epoch needs. Running this sweep late is harmless.

    Attributes:
        epochs: roots of the epochs to which a recovery may return, by epoch number.
        left: for each agent that has left, the lowest epoch that no longer contains it.
        settled_epoch: number of an epoch from which on no turn undone by the plan will run again.
        era: commits in logs of plans with lower numbers are void.
    """

    plan: int
    epochs: dict[int, str]
    left: dict[str, int]
    settled_epoch: int
    era: int = 0


class LineAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent's entry in a recovery line that will be stored as an epoch.

    Attributes:
        number: number of the agent's checkpoint on the recovery line.
        base_number: number of the agent's checkpoint in the base epoch; -1 if the base epoch contains no checkpoint of the agent.
        paths: the packs that contain the agent's checkpoints base_number + 1 to number, in order. Without a checkpoint in the base epoch,
            the paths start at checkpoint 0 for agents in the fleet's definition, and at 1 for agents created later. The tuple is empty if
            the line uses the checkpoint in the base epoch, or if the agent has not been created yet (number 0).
    """

    agent: str
    kind: str
    host: str
    incarnation: int
    number: int
    base_number: int
    paths: tuple[str, ...] = ()


class MaterialiseLine(Command, frozen=True, gc=False):
    """Command: store a recovery line as an epoch, by reading its checkpoints and sender logs and writing one pack and a manifest.

    Answered by `LineMaterialised`. The command may be repeated. Each repetition writes another pack and manifest.

    Attributes:
        base_epoch: the newest usable epoch; 0 if there is none.
        hosts: same as in `WriteManifest`.
        packs: the reported packs by path, for all paths in `agents`.
        writer: writer id for the new pack.
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
    """Command: list the checkpoints in the base epoch and in a plan's packs. The driver answers with `CheckpointsScanned`."""

    plan: int
    base_epoch: int
    base_root: str


class DeleteCheckpoints(Command, frozen=True, gc=False):
    """Command: delete, in the background, checkpoint packs that no recovery line can need anymore."""

    paths: tuple[str, ...]


class SweepCheckpoints(Command, frozen=True, gc=False):
    """Command: delete, in the background, all checkpoint packs of older plans except those in `kept`.

    Packs of this plan and later plans are not deleted, because a host may be writing them.
    """

    plan: int
    kept: tuple[str, ...] = ()


class AnswerTool(Command, frozen=True, gc=False):
    """Base class of the leader's answers to tools. Each request number gets exactly one answer."""

    request: int


class AnswerSnapshot(AnswerTool, frozen=True, gc=False):
    epoch: int
    is_complete: bool
    reason: str
    root: str


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a recovery line for one agent: the number of durable checkpoints lost, and the known number of turns undone."""

    checkpoints: int
    turns: int


class RecoveryLineResult(msgspec.Struct, frozen=True, gc=False):
    """The recovery line for one assumed failure.

    Attributes:
        failed: the agents that are assumed to fail.
        line: for each agent, the number of its checkpoint on the recovery line; None if it keeps its live state.
        costs: the cost for each agent that returns to a checkpoint.
        in_transit: number of messages to deliver again; -1 if they were not counted.
    """

    failed: tuple[str, ...]
    line: dict[str, int | None]
    costs: dict[str, Cost]
    in_transit: int


class AnswerLine(AnswerTool, frozen=True, gc=False):
    """The answer to `LineRequested`, with one recovery line for each failure.

    `silent` lists the hosts that have not reported their agents' live states. `refused` is the reason why there is no answer, or empty if
    there is one.
    """

    lines: tuple[RecoveryLineResult, ...] = ()
    silent: tuple[str, ...] = ()
    refused: str = ""


class AnswerRestore(AnswerTool, frozen=True, gc=False):
    """The answer to `RestoreRequested`. `plan` is the number of the plan that executes the restore. `refused` says why there is no plan.
    If `may_pass` is set, a retry may succeed."""

    request: int
    plan: int = 0
    refused: str = ""
    may_pass: bool = False


class Note(Command, frozen=True, gc=False):
    """Command: write `text` to the process's log. `level` is "info", "warning" or "error"."""

    level: str
    text: str


class EndRun(Command, frozen=True, gc=False):
    """Command: end the coordinator's run, because the fleet has ended and the hosts have been notified."""

    exit_code: int
    reason: str


class ForgetHostRequested(Event, frozen=True, gc=False):
    """An operator's request to remove a host's record. The leader answers with an `AnswerForgetHost` that has the same request number."""

    request: int
    host: str


class EndHostRequested(Event, frozen=True, gc=False):
    """An operator's request to end a host's current run."""

    host: str


class MovesRequested(Event, frozen=True, gc=False):
    """An operator's request to move agents. Once the log contains the drain marks, the leader answers with an `AnswerMoves` that has the
    same request number.

    Attributes:
        drained: hosts that all agents must leave.
        resumed: hosts that may receive agents again.
        is_even: whether to spread agents evenly over all hosts.
        placed: hosts to which single agents move, by agent.
    """

    request: int
    drained: tuple[str, ...]
    resumed: tuple[str, ...]
    is_even: bool
    placed: dict[str, str] = {}


class AnswerForgetHost(AnswerTool, frozen=True, gc=False):
    """The answer to `ForgetHostRequested`. If `refused` is empty, the host's record has been removed, or the host has returned. If the
    record is kept, `refused` says why."""

    refused: str = ""


class AnswerMoves(AnswerTool, frozen=True, gc=False):
    """The answer to `MovesRequested`. If `refused` is empty, the drain marks are in the log.

    `plan` is the current plan, and `is_moving` tells whether agents are about to move.
    """

    refused: str = ""
    plan: int = 0
    is_moving: bool = False


class CoordinatorStopRequested(Event, frozen=True, gc=False):
    """A request to stop this coordinator after it has taken a last epoch (`fleet_end.py`)."""

"""The coordinator's answers to tools, and the JSON documents that tools print for these answers.

Structs and their fields have the same names as in `coordinator.proto`. Status messages are in `status.py`. Programs that read `-o json`
output depend on the names and the order of a document's fields.
"""

from collections.abc import Iterable

import msgspec

from snapline.ids import HOST_PREFIX
from snapline.messages.dependencies import DependencyChange
from snapline.messages.status import FleetStatus, ForkedFrom, SnapshotOutcome
from snapline.storage.disk.record import Finding
from snapline.storage.store.catalog import SnapshotSummary
from snapline.storage.timestamps import instant


class SnapshotsReply(msgspec.Struct, frozen=True, gc=False):
    """Base class of the replies to the call `ReadSnapshots`."""


class RecoveryLineReply(msgspec.Struct, frozen=True, gc=False):
    """Base class of the replies to the call `RecoveryLine`."""


class Document(SnapshotsReply, frozen=True, gc=False):
    """A JSON document whose structure depends on the states and messages of the fleet's agents."""

    json: bytes


class SnapshotList(SnapshotsReply, frozen=True, gc=False):
    """All snapshots, oldest first. If a snapshot is unreadable, its `damage` field contains the reason.

    Attributes:
        pins: numbers of the pinned epochs.
        tags: maps each tag's name to its epoch number.
        tags_damage: why the tags are unreadable; empty if they are readable.
        fork: for a fork, the fleet and the snapshot from which this fleet was created.
    """

    store: str
    snapshots: tuple[SnapshotSummary, ...]
    pins: tuple[int, ...]
    tags: dict[str, int]
    tags_damage: str = ""
    fork: ForkedFrom | None = None


class StoreVerification(SnapshotsReply, frozen=True, gc=False):
    """Result of verifying every byte of a store or of one epoch against its digest."""

    store: str
    epoch: int | None
    is_whole: bool
    checked_files: int
    checked_bytes: int
    findings: tuple[Finding, ...]
    unreferenced: tuple[str, ...]


class CoordinatedLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet in which every failure rolls all agents back to the same epoch or, with local recovery, the agents of the
    failed hosts to their newest commits.

    Attributes:
        recovery_line: maps each agent that goes back to the epoch to which it rolls back. With local recovery, its newest commit completes
            that epoch.
        unborn: agents that did not exist yet in that epoch.
        rolled_back: number of agents that are rolled back.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    recovery_line: dict[str, int]
    unborn: tuple[str, ...]
    rolled_back: int
    messages_delivered_again: int


class CoordinatedLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery lines for the failure of each single agent or host. Any of these failures rolls back all agents.

    With local recovery, `hosts` maps each agent to its host, and a failure takes back only the agents of one host. Otherwise it is empty.
    """

    epoch: int
    failures: tuple[str, ...]
    rolled_back: tuple[str, ...]
    hosts: dict[str, str] = {}

    def rolled_back_by(self, failed: str) -> list[str]:
        """Return the agents that go back if this agent or host fails."""
        if not self.hosts:
            return list(self.rolled_back)
        failed_host = self.hosts.get(failed, failed.removeprefix(HOST_PREFIX))
        return [agent for agent in self.rolled_back if self.hosts.get(agent) == failed_host]


class AgentOnLine(msgspec.Struct, frozen=True, gc=False):
    """The checkpoint to which an agent rolls back, and the cost of this rollback.

    Attributes:
        to: number of the checkpoint, or None if the agent keeps its live state.
        checkpoints: number of newer durable checkpoints that the rollback discards.
        turns: number of undone turns, without turns that are unknown.
    """

    agent: str
    to: int | None
    checkpoints: int
    turns: int


class AutonomousLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet whose agents take checkpoints independently.

    Attributes:
        epoch: newest complete epoch. No recovery line of the current plan is older than this epoch. The other fields do not count messages
            in the epoch's channel states.
        agents: all agents, sorted.
        in_transit: number of messages that must be delivered again.
        silent_hosts: hosts that did not reply. The live states of these hosts' agents are unknown.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    agents: tuple[AgentOnLine, ...]
    in_transit: int
    silent_hosts: tuple[str, ...]


class FailureCost(msgspec.Struct, frozen=True, gc=False):
    """The cost of one failure. `failed` is an agent's id, or `host:` followed by a host's id. `agents` contains the agents that are rolled
    back, in sorted order."""

    failed: str
    agents: tuple[AgentOnLine, ...]


class AutonomousLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery lines for the failures of each single agent, followed by those of each single host."""

    lines: tuple[FailureCost, ...]
    silent_hosts: tuple[str, ...]


class PastRecovery(msgspec.Struct, frozen=True, gc=False):
    """A recovery that has been started. Times are in UTC, in RFC 3339 format. While the recovery is in progress, `done` and `duration_s`
    are None."""

    plan: int
    line_epoch: int
    line_root: str
    reason: str
    lost_hosts: tuple[str, ...]
    hosts: tuple[str, ...]
    agents: int
    rolled_back: int
    checkpoints_lost: int
    messages_delivered_again: int
    condemned_epochs: tuple[int, ...]
    suspected: str
    committed: str
    done: str | None
    duration_s: float | None
    is_restore: bool = False
    is_dropping_inputs: bool = False
    void_epochs: tuple[int, ...] = ()


class InputsAgain(msgspec.Struct, frozen=True, gc=False):
    """Inputs that an agent had not consumed yet in an older epoch.

    Attributes:
        first, count: sequence number of the first of these inputs, and number of inputs.
        missing: sequence numbers of the first and the last input that no log contains anymore; empty if no input is missing.
    """

    agent: str
    first: int
    count: int
    missing: tuple[int, ...] = ()


class TopicUndone(msgspec.Struct, frozen=True, gc=False):
    """Number of released outputs of a topic that a restore would revert."""

    topic: str
    count: int


class RestorePreview(msgspec.Struct, frozen=True, gc=False):
    """Preview of what a restore would undo.

    Attributes:
        created: time at which the snapshot was taken, in UTC and in RFC 3339 format.
        void_epochs: complete epochs after the snapshot, which the restore discards.
        agents_gone: agents created after the snapshot, which the restore removes.
        agents_back: agents that have left since the snapshot, which the restore brings back.
        inputs: for each agent, the inputs that it had not consumed yet when the snapshot was taken. These inputs are delivered again, or
            dropped if `is_dropping_inputs` is set.
        effects: external effects since the snapshot. A restore does not undo external effects.
        dependencies: what the hosts run on now, and did not in the snapshot.
    """

    epoch: int
    root: str
    created: str
    age_s: float
    void_epochs: tuple[int, ...]
    agents_gone: tuple[str, ...]
    agents_back: tuple[str, ...]
    is_dropping_inputs: bool
    inputs: tuple[InputsAgain, ...]
    outputs: tuple[TopicUndone, ...]
    effects: tuple[str, ...] = ()
    dependencies: tuple[DependencyChange, ...] = ()


class RestoreReply(msgspec.Struct, frozen=True, gc=False):
    """The number of the plan that restores the fleet, and the epochs that are discarded."""

    plan: int
    epoch: int
    void_epochs: tuple[int, ...]


class CondemnedEpoch(msgspec.Struct, frozen=True, gc=False):
    """A damaged epoch that is no longer used."""

    epoch: int
    path: str
    reason: str


class RecoveryHistoryReply(msgspec.Struct, frozen=True, gc=False):
    """All recoveries so far, oldest first. The initial start of the fleet does not count as a recovery."""

    recoveries: tuple[PastRecovery, ...]
    condemned_epochs: tuple[CondemnedEpoch, ...]


class LocatedAgent(msgspec.Struct, frozen=True, gc=False):
    """An agent and its location.

    Attributes:
        state: "alive" if the agent runs on a host, "lost" if its host is lost and the agent has not been recovered yet, "unplaced" if the
            fleet is still forming, "left" if the agent has stopped, or "unknown" if the fleet has no such agent.
        address: address at which the agent's host accepts calls.
    """

    agent: str
    state: str
    host: str = ""
    address: str = ""
    incarnation: int = 0


class LocateReply(msgspec.Struct, frozen=True, gc=False):
    """Locations of agents. `phase` and `reason` have the same meaning as in `FleetStatus`."""

    phase: str
    reason: str
    agents: tuple[LocatedAgent, ...]


class LeaderTransferred(msgspec.Struct, frozen=True, gc=False):
    """Reply after a change of leader, with the id of the new leader."""

    leader: str


class BackupReply(msgspec.Struct, frozen=True, gc=False):
    """The complete replicated state in compressed form, and the name of the cluster."""

    image: bytes
    cluster: str


class ReportHostExitReply(msgspec.Struct, frozen=True, gc=False):
    """Reply that is true if the fleet considered this run of the host alive before the report."""

    is_known: bool


class ReportHostBusyReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the report was received."""


class ForgetHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the host's record was deleted."""


class MoveAgentsReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the drain marks of the hosts were changed. If `is_moving` is true, the plan after the plan numbered `plan` moves
    agents."""

    plan: int
    is_moving: bool


class EndReplicaReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the replica is about to exit."""


class EndHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the host was notified."""


Answer = (
    SnapshotsReply
    | RecoveryLineReply
    | RecoveryHistoryReply
    | RestorePreview
    | RestoreReply
    | LocateReply
    | LeaderTransferred
    | Document
)


class ReleasedOutput(msgspec.Struct, frozen=True, gc=False):
    """An output that was released to readers. `payload` is the message in the encoding of `encode_message`. `cursor` is the position
    directly after the output. `emitted_ns` is the wall-clock time at which the agent emitted the output."""

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int
    cursor: str


class UndoneOutputs(msgspec.Struct, frozen=True, gc=False):
    """Notice that all outputs of epochs after `after` have been reverted. `epochs` contains the reverted epochs whose files still exist."""

    after: int
    epochs: tuple[int, ...]
    cursor: str


class ReleasedOutputs(msgspec.Struct, frozen=True, gc=False):
    """All or some of the released outputs of one epoch. If `undone` is set, the reader must process this notice before the outputs."""

    epoch: int
    undone: UndoneOutputs | None
    outputs: tuple[ReleasedOutput, ...]


class ReadOutputsReply(msgspec.Struct, frozen=True, gc=False):
    """The outputs after a cursor.

    Attributes:
        releases: the released outputs in order; empty if no output was released in time.
        cursor: position at which the reader continues. If more outputs follow, but only of other topics, the cursor is after these outputs.
        is_over: whether the fleet has ended, so that no more outputs follow.
    """

    releases: tuple[ReleasedOutputs, ...]
    cursor: str
    is_over: bool = False


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """A named consumer, its position, and the wall-clock time of its last acknowledgement. `cursor` is empty if the consumer has not
    acknowledged any output yet."""

    name: str
    cursor: str
    acknowledged_ns: int


class ReadConsumersReply(msgspec.Struct, frozen=True, gc=False):
    """All named consumers, sorted by name."""

    consumers: tuple[Consumer, ...]


class MoveConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Reply that contains the consumer's new position."""

    cursor: str


class ForgetConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the consumer was deleted."""


class MakeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Reply that contains the time, on the leader's clock, at which the token expires."""

    expires_ns: int


class RevokeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the token is revoked."""


class TokenStatus(msgspec.Struct, frozen=True, gc=False):
    """Information about a token for operators, without the token's digest."""

    name: str
    role: str
    made_ns: int
    expires_ns: int
    is_expired: bool


class ReadTokensReply(msgspec.Struct, frozen=True, gc=False):
    """All tokens, oldest first."""

    tokens: tuple[TokenStatus, ...]


class CheckTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Name and role of a token's bearer, which are empty if the token is invalid."""

    name: str
    role: str


class RecordCallReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement that the call was recorded."""


class RecordedCall(msgspec.Struct, frozen=True, gc=False):
    """A recorded call of a user that changed state. The fields are the same as in `fleet_records.CallRecord`."""

    number: int
    made_ns: int
    name: str
    role: str
    is_borne: bool
    at: str
    call: str
    about: str
    outcome: str


class ReadAuditReply(msgspec.Struct, frozen=True, gc=False):
    """The most recent calls, oldest first. `dropped` is the number of earlier calls, or calls between these, whose records have been
    deleted."""

    calls: tuple[RecordedCall, ...]
    dropped: int


Rows = dict[str, object]

API_VERSION = "snapline/v1"
"""Version of all JSON documents. It changes when a field changes its name or meaning."""


def document(kind: str, **fields: object) -> Rows:
    """Return a document that consists of `apiVersion`, `kind` and the given fields."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def document_of(answer: Answer | FleetStatus | SnapshotOutcome | ReadConsumersReply) -> Rows:
    """Convert `answer` to the document that tools print."""
    match answer:
        case Document():
            return msgspec.json.decode(answer.json, type=dict[str, object])
        case FleetStatus():
            return _status(answer)
        case SnapshotOutcome():
            is_new = answer.is_complete and not answer.reason
            return document("SnapshotCreated", is_new=is_new, **_plain(answer))
        case SnapshotList():
            return _list(answer)
        case StoreVerification():
            findings = [
                {"path": x.path, "epoch": x.epoch, "agent": x.agent, "reason": x.reason} for x in answer.findings
            ]
            return document("Verification", **_plain(answer) | {"findings": findings})
        case CoordinatedLine():
            return document("RecoveryLine", **_plain(answer))
        case CoordinatedLines():
            lines = [{"failed": name, "rolled_back": answer.rolled_back_by(name)} for name in answer.failures]
            return document("RecoveryLines", epoch=answer.epoch, lines=lines)
        case AutonomousLine():
            return _line(answer)
        case AutonomousLines():
            rows = [_failure(line) for line in answer.lines]
            return document("RecoveryLines", lines=rows, silent_hosts=list(answer.silent_hosts))
        case RecoveryHistoryReply():
            return document("RecoveryHistory", **_plain(answer))
        case RestorePreview():
            return document("RestorePreview", **_plain(answer))
        case RestoreReply():
            return document("FleetRestored", **_plain(answer))
        case LocateReply():
            return document("AgentList", **_plain(answer))
        case ReadConsumersReply():
            rows = [
                {"name": x.name, "cursor": x.cursor, "acknowledged": instant(x.acknowledged_ns / 1e9)}
                for x in answer.consumers
            ]
            return document("OutputConsumers", consumers=rows)
        case LeaderTransferred():
            return document("LeaderTransferred", **_plain(answer))
        case _:
            raise AssertionError(f"no document shows {answer!r}")


def _plain(answer: msgspec.Struct) -> Rows:
    """Convert the struct to plain JSON values, with lists instead of tuples."""
    return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, object])


IN_SECONDS = {"store": 3, "concerns": 3, "loss": 6, "interval": 6}
"""Part of a fleet's status whose times are printed in seconds → number of decimal places. Six places are needed for an agent's pause, which
takes microseconds."""


def _status(answer: FleetStatus) -> Rows:
    fields = _plain(answer)
    fields |= {name: _in_seconds(fields[name], digits) for name, digits in IN_SECONDS.items()}
    if answer.fork is None:
        del fields["fork"]
    return document("FleetStatus", **fields)


def _in_seconds(value: object, digits: int) -> object:
    """Convert all times in a nested value to seconds."""
    match value:
        case dict():
            return {_in_s(name): _time(name, inner, digits) for name, inner in value.items()}
        case list():
            return [_in_seconds(inner, digits) for inner in value]
    return value


def _in_s(name: str) -> str:
    return name.removesuffix("_ns") + "_s" if name.endswith("_ns") else name


def _time(name: str, value: object, digits: int) -> object:
    if name.endswith("_ns") and isinstance(value, int):
        return round(value / 1e9, digits)
    return _in_seconds(value, digits)


def _list(answer: SnapshotList) -> Rows:
    snapshots: list[Rows] = []
    for snapshot in answer.snapshots:
        row = {"epoch": snapshot.epoch, "damage": snapshot.damage} if snapshot.damage else _plain(snapshot)
        if not snapshot.damage:
            del row["damage"], row["pack_count"]
        snapshots.append(row)
    optional_fields: Rows = {"tags_damage": answer.tags_damage} if answer.tags_damage else {}
    if answer.fork is not None:
        optional_fields["fork"] = _plain(answer.fork)
    pins = list(answer.pins)
    return document(
        "SnapshotList", store=answer.store, snapshots=snapshots, pins=pins, tags=answer.tags, **optional_fields
    )


def _line(answer: AutonomousLine) -> Rows:
    return document(
        "RecoveryLine",
        failed=list(answer.failed),
        epoch=answer.epoch,
        root=answer.root,
        recovery_line={x.agent: x.to for x in answer.agents},
        rolled_back=[x.agent for x in answer.agents if x.to is not None],
        rollback=_rollback(answer.agents),
        in_transit=answer.in_transit,
        silent_hosts=list(answer.silent_hosts),
    )


def _failure(line: FailureCost) -> Rows:
    return {
        "failed": line.failed,
        "rolled_back": [x.agent for x in line.agents],
        "checkpoints": sum(x.checkpoints for x in line.agents),
        "turns": sum(x.turns for x in line.agents),
        "rollback": _rollback(line.agents),
    }


def _rollback(agents: Iterable[AgentOnLine]) -> Rows:
    return {x.agent: {"to": x.to, "checkpoints": x.checkpoints, "turns": x.turns} for x in agents if x.to is not None}

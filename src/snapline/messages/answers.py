"""The coordinator's answers to tools, except plain statuses, and the JSON documents that tools print for these answers.

Structs and fields have the names of `coordinator.proto`. Readers of `-o json` rely on the names and the order of a document's fields.
"""

from collections.abc import Iterable

import msgspec

from snapline.messages.status import FleetStatus, ForkedFrom, SnapshotOutcome
from snapline.storage.disk.record import Finding
from snapline.storage.store.catalog import SnapshotSummary
from snapline.storage.timestamps import instant


class SnapshotsReply(msgspec.Struct, frozen=True, gc=False):
    """Base class of the replies to ReadSnapshots."""


class RecoveryLineReply(msgspec.Struct, frozen=True, gc=False):
    """Base class of the replies to RecoveryLine."""


class Document(SnapshotsReply, frozen=True, gc=False):
    """JSON document whose shape depends on the fleet's own states and messages."""

    json: bytes


class SnapshotList(SnapshotsReply, frozen=True, gc=False):
    """All snapshots, oldest first. For an unreadable snapshot, `damage` holds the reason.

    Attributes:
        pins: epochs that are pinned.
        tags: name of the tag → epoch.
        tags_damage: reason why the tags cannot be read; empty if they can be read.
        fork: origin of the store's fleet if the fleet is a fork.
    """

    store: str
    snapshots: tuple[SnapshotSummary, ...]
    pins: tuple[int, ...]
    tags: dict[str, int]
    tags_damage: str = ""
    fork: ForkedFrom | None = None


class StoreVerification(SnapshotsReply, frozen=True, gc=False):
    """Result of comparing every byte of a store, or of one epoch, with its digest."""

    store: str
    epoch: int | None
    is_whole: bool
    checked_files: int
    checked_bytes: int
    findings: tuple[Finding, ...]
    unreferenced: tuple[str, ...]


class CoordinatedLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet in which one epoch serves all failures.

    Attributes:
        recovery_line: agent → epoch to which the agent rolls back.
        unborn: agents not yet created in that epoch.
        rolled_back: number of agents that roll back.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    recovery_line: dict[str, int]
    unborn: tuple[str, ...]
    rolled_back: int
    messages_delivered_again: int


class CoordinatedLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line for every single failure. All agents roll back, whichever fails."""

    epoch: int
    failures: tuple[str, ...]
    rolled_back: tuple[str, ...]


class AgentOnLine(msgspec.Struct, frozen=True, gc=False):
    """Rollback target of one agent, and its cost.

    Attributes:
        to: number of the checkpoint to which the agent rolls back; None if the agent keeps its live state.
        checkpoints: number of durable checkpoints that the rollback skips.
        turns: number of turns undone, as far as known.
    """

    agent: str
    to: int | None
    checkpoints: int
    turns: int


class AutonomousLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet whose agents checkpoint independently.

    Attributes:
        epoch: newest complete epoch; no line of this plan lies before this epoch. The epoch's channel states are not counted here.
        agents: all agents, sorted.
        in_transit: number of messages to be delivered again.
        silent_hosts: hosts that did not answer; the live states of their agents are unknown.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    agents: tuple[AgentOnLine, ...]
    in_transit: int
    silent_hosts: tuple[str, ...]


class FailureCost(msgspec.Struct, frozen=True, gc=False):
    """Cost of one failure. `failed` is an agent or `host:h1`; `agents` are the agents that roll back, sorted."""

    failed: str
    agents: tuple[AgentOnLine, ...]


class AutonomousLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery lines for every single failure, agents first, then hosts."""

    lines: tuple[FailureCost, ...]
    silent_hosts: tuple[str, ...]


class PastRecovery(msgspec.Struct, frozen=True, gc=False):
    """A recovery in the past. Times are RFC 3339 in UTC. `done` and `duration_s` are None while the recovery is in progress."""

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
    """Inputs of an agent that an older epoch has not consumed.

    Attributes:
        first, count: number of the first input, and number of inputs.
        missing: numbers of the first and last input that no log holds any more; empty if none is missing.
    """

    agent: str
    first: int
    count: int
    missing: tuple[int, ...] = ()


class TopicUndone(msgspec.Struct, frozen=True, gc=False):
    """Number of a topic's released outputs that a restore would revert."""

    topic: str
    count: int


class RestorePreview(msgspec.Struct, frozen=True, gc=False):
    """Preview of what a restore would undo.

    Attributes:
        created: time at which the snapshot was taken; RFC 3339 in UTC.
        void_epochs: complete epochs after the snapshot, which the restore discards.
        agents_gone, agents_back: agents created after the snapshot, and agents that have left since.
        inputs: for each agent, its inputs after the snapshot. They are delivered again, or dropped if `is_dropping_inputs`.
        effects: external effects since the snapshot; a restore does not undo them.
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


class RestoreReply(msgspec.Struct, frozen=True, gc=False):
    """The plan that restores the fleet, and the epochs that it discards."""

    plan: int
    epoch: int
    void_epochs: tuple[int, ...]


class CondemnedEpoch(msgspec.Struct, frozen=True, gc=False):
    """A damaged epoch that is not used any more."""

    epoch: int
    path: str
    reason: str


class RecoveryHistoryReply(msgspec.Struct, frozen=True, gc=False):
    """All recoveries so far, oldest first. The start of the fleet is not one of them."""

    recoveries: tuple[PastRecovery, ...]
    condemned_epochs: tuple[CondemnedEpoch, ...]


class LocatedAgent(msgspec.Struct, frozen=True, gc=False):
    """Agent and its location.

    Attributes:
        state: "alive"; "lost": its host is lost, until a recovery; "unplaced": the fleet is forming; "left": the agent has stopped;
            "unknown".
        address: address of the services of the agent's host.
    """

    agent: str
    state: str
    host: str = ""
    address: str = ""
    incarnation: int = 0


class LocateReply(msgspec.Struct, frozen=True, gc=False):
    """Locations of agents. `phase` and `reason` are those of the fleet's status."""

    phase: str
    reason: str
    agents: tuple[LocatedAgent, ...]


class LeaderTransferred(msgspec.Struct, frozen=True, gc=False):
    """Id of the replica that leads now."""

    leader: str


class BackupReply(msgspec.Struct, frozen=True, gc=False):
    """The complete replicated state, compressed, and the cluster name."""

    image: bytes
    cluster: str


class ReportHostExitReply(msgspec.Struct, frozen=True, gc=False):
    """Answer that says whether the fleet counted that run of a host as alive."""

    is_known: bool


class ReportHostBusyReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement of the report."""


class ForgetHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the host is forgotten."""


class MoveAgentsReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the hosts are marked. `is_moving` means that the plan after `plan` moves agents."""

    plan: int
    is_moving: bool


class EndReplicaReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the replica is about to end."""


class EndHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the host was notified."""


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
    """An output that was released. `payload` is the message as encoded by `encode_message`, `cursor` the position after the output, and
    `emitted_ns` wall-clock time."""

    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int
    cursor: str


class UndoneOutputs(msgspec.Struct, frozen=True, gc=False):
    """Notice that outputs of epochs above `after` are reverted. `epochs` are those epochs, as far as their files still exist."""

    after: int
    epochs: tuple[int, ...]
    cursor: str


class ReleasedOutputs(msgspec.Struct, frozen=True, gc=False):
    """Outputs of one epoch, or of a part of the epoch. The notice of reverted outputs comes first."""

    epoch: int
    undone: UndoneOutputs | None
    outputs: tuple[ReleasedOutput, ...]


class ReadOutputsReply(msgspec.Struct, frozen=True, gc=False):
    """Outputs after a cursor.

    Attributes:
        releases: released outputs in order; empty if nothing was released in time.
        cursor: position at which to continue. It is beyond the last output if the outputs that follow have other topics.
        is_over: the fleet has ended, and no output follows.
    """

    releases: tuple[ReleasedOutputs, ...]
    cursor: str
    is_over: bool = False


class Consumer(msgspec.Struct, frozen=True, gc=False):
    """Position of a named consumer (empty if nothing was consumed), and the wall-clock time of its last acknowledgement."""

    name: str
    cursor: str
    acknowledged_ns: int


class ReadConsumersReply(msgspec.Struct, frozen=True, gc=False):
    """All named consumers, sorted by name."""

    consumers: tuple[Consumer, ...]


class MoveConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """New position of the consumer."""

    cursor: str


class ForgetConsumerReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the consumer is forgotten."""


class MakeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Time at which the token expires, by the leader's clock."""

    expires_ns: int


class RevokeTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the token is revoked."""


class TokenStatus(msgspec.Struct, frozen=True, gc=False):
    """A token, without its digest."""

    name: str
    role: str
    made_ns: int
    expires_ns: int
    is_expired: bool


class ReadTokensReply(msgspec.Struct, frozen=True, gc=False):
    """All tokens, in the order of their creation."""

    tokens: tuple[TokenStatus, ...]


class CheckTokenReply(msgspec.Struct, frozen=True, gc=False):
    """Name and role of the token's bearer; both are empty if the token is not valid."""

    name: str
    role: str


class RecordCallReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the call is recorded."""


class RecordedCall(msgspec.Struct, frozen=True, gc=False):
    """A user's call that changed state, as in `fleet_records.CallRecord`."""

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
    """The last calls, oldest first. `dropped` is the number of calls before or between them that are no longer stored."""

    calls: tuple[RecordedCall, ...]
    dropped: int


Rows = dict[str, object]

API_VERSION = "snapline/v1"
"""Version of all JSON documents. It changes when a field changes its name or meaning."""


def document(kind: str, **fields: object) -> Rows:
    """Return a document with these fields and the two fields that all documents have."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def document_of(answer: Answer | FleetStatus | SnapshotOutcome | ReadConsumersReply) -> Rows:
    """Return the document that shows `answer`."""
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
            lines = [{"failed": name, "rolled_back": list(answer.rolled_back)} for name in answer.failures]
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
    """Return the struct as JSON would decode it, with lists instead of tuples."""
    return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, object])


IN_SECONDS = {"store": 3, "concerns": 3, "loss": 6, "interval": 6}
"""Part of a fleet's status whose times are printed in seconds → number of digits. An agent's pause takes microseconds."""


def _status(answer: FleetStatus) -> Rows:
    fields = _plain(answer)
    fields |= {name: _in_seconds(fields[name], digits) for name, digits in IN_SECONDS.items()}
    if answer.fork is None:
        del fields["fork"]
    return document("FleetStatus", **fields)


def _in_seconds(value: object, digits: int) -> object:
    """Return the value with its times in seconds, at any depth."""
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

"""Coordinator answers to tools that hold more than a status; names are those of `coordinator.proto`."""

import msgspec

from snapline.messages.status import ForkedFrom
from snapline.storage.disk.record import Finding
from snapline.storage.retention.catalog import SnapshotSummary


class SnapshotsReply(msgspec.Struct, frozen=True, gc=False):
    """Base of the replies to ReadSnapshots."""


class RecoveryLineReply(msgspec.Struct, frozen=True, gc=False):
    """Base of the replies to RecoveryLine."""


class Document(SnapshotsReply, frozen=True, gc=False):
    """JSON document whose shape is defined by the fleet's own states and messages."""

    json: bytes


class SnapshotList(SnapshotsReply, frozen=True, gc=False):
    """All snapshots, oldest first; for an unreadable one, `damage` holds the reason.

    Attributes:
        pins: epochs that are pinned.
        tags: name → epoch.
        tags_damage: reason why the tags cannot be read; empty if they can.
        fork: origin of the store's fleet if it is a fork.
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
    """Recovery line of a fleet where one epoch serves all failures.

    Attributes:
        recovery_line: agent → epoch.
        unborn: agents not yet created in that epoch.
        rolled_back: number of agents.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    recovery_line: dict[str, int]
    unborn: tuple[str, ...]
    rolled_back: int
    messages_delivered_again: int


class CoordinatedLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line for every single failure: all agents roll back, whichever fails."""

    epoch: int
    failures: tuple[str, ...]
    rolled_back: tuple[str, ...]


class AgentOnLine(msgspec.Struct, frozen=True, gc=False):
    """Rollback target of one agent, and its cost.

    Attributes:
        to: number of the checkpoint that the agent returns to; None: it keeps its live state.
        checkpoints: number of durable checkpoints that are skipped.
        turns: number of turns undone, as far as known.
    """

    agent: str
    to: int | None
    checkpoints: int
    turns: int


class AutonomousLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet whose agents checkpoint on their own.

    Attributes:
        epoch: newest complete epoch; no line of this plan falls below it. Its channel states are not counted here.
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
    """Cost of one failure. `failed`: an agent, or `host:h1`; `agents`: the agents that roll back, sorted."""

    failed: str
    agents: tuple[AgentOnLine, ...]


class AutonomousLines(RecoveryLineReply, frozen=True, gc=False):
    """Recovery lines for every single failure, agents first, then hosts."""

    lines: tuple[FailureCost, ...]
    silent_hosts: tuple[str, ...]


class PastRecovery(msgspec.Struct, frozen=True, gc=False):
    """Past recovery. Times are RFC 3339 in UTC; `done` and `duration_s` are None while it is in progress."""

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
    """An agent's inputs that an older epoch has not consumed.

    Attributes:
        first, count: number of the first input, and how many there are.
        missing: numbers of the first and last input that no log holds any more; empty if none is missing.
    """

    agent: str
    first: int
    count: int
    missing: tuple[int, ...] = ()


class TopicUndone(msgspec.Struct, frozen=True, gc=False):
    """Number of released outputs of a topic that would be reverted."""

    topic: str
    count: int


class RestorePreview(msgspec.Struct, frozen=True, gc=False):
    """Preview of what a restore would undo.

    Attributes:
        created: when the snapshot was taken; RFC 3339 in UTC.
        void_epochs: complete epochs after the snapshot.
        agents_gone, agents_back: agents created after the snapshot, and agents that have left since.
        inputs: for each agent, its inputs beyond the snapshot; they are delivered again, or dropped if `is_dropping_inputs`.
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
    """The recoveries so far, oldest first; the fleet's start is not one of them."""

    recoveries: tuple[PastRecovery, ...]
    condemned_epochs: tuple[CondemnedEpoch, ...]


class LocatedAgent(msgspec.Struct, frozen=True, gc=False):
    """Location of one agent.

    Attributes:
        state: "alive"; "lost": its host is lost, until a recovery; "unplaced": the fleet is forming; "left"; "unknown".
        address: address of its host's services.
    """

    agent: str
    state: str
    host: str = ""
    address: str = ""
    incarnation: int = 0


class LocateReply(msgspec.Struct, frozen=True, gc=False):
    """Locations of agents; `phase` and `reason` are those of the status."""

    phase: str
    reason: str
    agents: tuple[LocatedAgent, ...]


class LeaderTransferred(msgspec.Struct, frozen=True, gc=False):
    """Replica that leads now."""

    leader: str


class BackupReply(msgspec.Struct, frozen=True, gc=False):
    """The whole replicated state, compressed, and the cluster name."""

    image: bytes
    cluster: str


class ReportHostExitReply(msgspec.Struct, frozen=True, gc=False):
    """Whether the fleet counted that run of a host as alive."""

    is_known: bool


class ReportHostBusyReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement of the report."""


class ForgetHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the host is forgotten."""


class MoveAgentsReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the hosts are marked. `is_moving`: the plan after `plan` moves agents."""

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

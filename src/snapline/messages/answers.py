"""Coordinator answers to tools that hold more than a status; names are those of `coordinator.proto`."""

import msgspec

from snapline.messages.status import ForkedFrom
from snapline.storage.retention.catalog import SnapshotSummary
from snapline.storage.store.damage import Finding


class SnapshotsReply(msgspec.Struct, frozen=True, gc=False):
    """Base of what ReadSnapshots answers."""


class RecoveryLineReply(msgspec.Struct, frozen=True, gc=False):
    """Base of what RecoveryLine answers."""


class Document(SnapshotsReply, frozen=True, gc=False):
    """A document by nature: its shape is that of the fleet's own states and messages."""

    json: bytes


class SnapshotList(SnapshotsReply, frozen=True, gc=False):
    """All snapshots, oldest first; one that cannot be read has the reason under `damage`.

    Attributes:
        pins: epochs that are pinned.
        tags: name → epoch.
        tags_damage: why tags cannot be read; empty if they can.
        fork: what the store's fleet was forked from.
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
    """Recovery line of a fleet where one epoch answers for all failures.

    Attributes:
        recovery_line: agent → epoch.
        unborn: agents not created yet in it.
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
    """The same line for every single failure: all agents go back, whichever fails."""

    epoch: int
    failures: tuple[str, ...]
    rolled_back: tuple[str, ...]


class AgentOnLine(msgspec.Struct, frozen=True, gc=False):
    """Rollback target of one agent, and its cost.

    Attributes:
        to: number of its checkpoint; None: it keeps its live state.
        checkpoints: durable ones passed over.
        turns: undone ones, as far as they are known.
    """

    agent: str
    to: int | None
    checkpoints: int
    turns: int


class AutonomousLine(RecoveryLineReply, frozen=True, gc=False):
    """Recovery line of a fleet whose agents checkpoint on their own.

    Attributes:
        epoch: the newest complete one, which no line of this plan falls below; its channel states are not counted here.
        agents: all, sorted.
        in_transit: messages to be delivered again.
        silent_hosts: their agents' live states are not known.
    """

    failed: tuple[str, ...]
    epoch: int
    root: str
    agents: tuple[AgentOnLine, ...]
    in_transit: int
    silent_hosts: tuple[str, ...]


class FailureCost(msgspec.Struct, frozen=True, gc=False):
    """Cost of one failure. `failed`: an agent, or `host:h1`; `agents`: those that roll back, sorted."""

    failed: str
    agents: tuple[AgentOnLine, ...]


class AutonomousLines(RecoveryLineReply, frozen=True, gc=False):
    """The same for every single failure, agents first, then hosts."""

    lines: tuple[FailureCost, ...]
    silent_hosts: tuple[str, ...]


class PastRecovery(msgspec.Struct, frozen=True, gc=False):
    """Past recovery. Times are RFC 3339 in UTC; `done` and `duration_s` are None while it lasts."""

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
        first, count: number of the first one, and how many there are.
        missing: numbers of the first and the last that no log holds any more; empty: none is missing.
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
        void_epochs: complete ones after it.
        agents_gone, agents_back: those born later, and those that have left since.
        inputs: of each agent that has any beyond the snapshot; delivered again or, `is_dropping_inputs`, dropped.
        effects: external ones since then; they remain.
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
    """The plan that takes the fleet back, and the epochs that are void from it on."""

    plan: int
    epoch: int
    void_epochs: tuple[int, ...]


class CondemnedEpoch(msgspec.Struct, frozen=True, gc=False):
    """An epoch that was found damaged, and is not used any more."""

    epoch: int
    path: str
    reason: str


class RecoveryHistoryReply(msgspec.Struct, frozen=True, gc=False):
    """The recoveries so far, oldest first; the fleet's start is no recovery."""

    recoveries: tuple[PastRecovery, ...]
    condemned_epochs: tuple[CondemnedEpoch, ...]


class LocatedAgent(msgspec.Struct, frozen=True, gc=False):
    """Location of one agent.

    Attributes:
        state: "alive"; "lost", as its host is, until a recovery; "unplaced": the fleet forms; "left"; "unknown".
        address: of its host's services.
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
    """The whole replicated state, compressed, and the name of its cluster."""

    image: bytes
    cluster: str


class ReportHostExitReply(msgspec.Struct, frozen=True, gc=False):
    """Answer: whether the fleet counted that run of a host as alive."""

    is_known: bool


class ReportHostBusyReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement of the report."""


class ForgetHostReply(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgement: the host is forgotten."""


class MoveAgentsReply(msgspec.Struct, frozen=True, gc=False):
    """The hosts are marked. `is_moving`: by the plan after `plan` agents move."""

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

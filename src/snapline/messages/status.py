"""Status of a fleet, as the coordinator reports it to tools; names are those of `coordinator.proto`."""

import msgspec

from snapline.messages.concerns import Concern
from snapline.messages.host_messages import OpenTurn


class HostStatus(msgspec.Struct, frozen=True):
    """Status of a host; `state` is "alive", "lost" or "left".

    Attributes:
        inputs_waiting: from outside, that no turn has consumed.
        outputs_waiting, output_bytes_waiting: that are not known to be released.
        agents_full: take nothing from outside, and no turns that they give themselves, until some of these are released.
        is_drained: an operator wants it without agents.
        agents_standing: those that cannot go on until people do something; the fleet's concerns name them.
    """

    host: str
    address: str
    host_start: int
    state: str
    agents: int
    turns: int = 0
    dead_letters: int = 0
    parked: int = 0
    busy: tuple[OpenTurn, ...] = ()
    log_messages: int = 0
    log_bytes: int = 0
    checkpoints: int = 0
    forced: int = 0
    piggyback_bytes: int = 0
    piggybacked: int = 0
    inputs_waiting: int = 0
    outputs_waiting: int = 0
    output_bytes_waiting: int = 0
    agents_full: int = 0
    is_drained: bool = False
    agents_standing: int = 0


class StoreStatus(msgspec.Struct, frozen=True):
    """Location and state of the store.

    Attributes:
        state: "ok"; "degraded": epochs, or checkpoints of agents, cannot be stored; "": only the leader knows.
        since_ns: how long it has been degraded.
        reason: the latest failure; "" if it is not degraded.
        next_try_ns: until the next regular epoch; 0: now, or there are none.
        skipped: triggers and basic checkpoints deferred because of the store.
    """

    location: str
    state: str = ""
    since_ns: int = 0
    reason: str = ""
    next_try_ns: int = 0
    skipped: int = 0


class ForkedFrom(msgspec.Struct, frozen=True):
    """Origin of a fork.

    Attributes:
        name: of the fork.
        parent, parent_name: cluster of the other fleet, and its name.
        epoch: of the snapshot, in both.
        is_live: it may do effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    is_live: bool


class RecoveryTime(msgspec.Struct, frozen=True):
    """Duration of a recovery that is over, and what it undid.

    Attributes:
        is_failure: a host or an agent had failed; otherwise agents moved, or the fleet was restored.
        plan_ns: from the first suspicion until its plan was committed.
        load_ns: from there until all hosts had applied it.
        rolled_back: agents, of `agents`, that did not keep their live state.
        lost_ns: work; None: nobody knows, since agents checkpoint on their own.
        checkpoints_lost: durable ones past the line, summed over the agents.
    """

    plan: int
    is_failure: bool
    plan_ns: int
    load_ns: int
    agents: int
    rolled_back: int
    lost_ns: int | None = None
    checkpoints_lost: int = 0


class LossStatus(msgspec.Struct, frozen=True):
    """Cost of failures: of one now, and of earlier ones.

    Attributes:
        at_risk_ns: work that would be lost if all hosts failed now, at most where agents checkpoint on their own; None: the fleet does not run.
        failures: in the last `observed_ns`, which go back to the oldest plan that is kept.
        recoveries: the last ones that are over, oldest first.
        rpo_ns, rto_ns: what the fleet's definition allows; 0: not set.
        missed: "rpo", "rto"; only the leader knows.
    """

    at_risk_ns: int | None = None
    failures: int = 0
    observed_ns: int = 0
    recoveries: tuple[RecoveryTime, ...] = ()
    rpo_ns: int = 0
    rto_ns: int = 0
    missed: tuple[str, ...] = ()


class IntervalStatus(msgspec.Struct, frozen=True):
    """Cost of epochs. None: a figure of the newest epoch that the leading process completed itself, where there is none yet.

    Attributes:
        period_ns: between two; 0: they are requested by hand.
        policy: when agents checkpoint on their own; "": they do not.
        epochs: complete ones that are kept, of which the next three are.
        duration_ns, duration_max_ns: from begin to decision; the mean, and the longest.
        gap_ns: the mean time from one's begin to the next one's under the same plan; 0: not known.
        pause_ns: longest wait of one agent.
        capture_ns: total wait of a host's agents, one after another; of the host where it is longest.
        new_bytes: written for it. state_bytes: states in it, as if written whole. channel_state_bytes: messages in it.
    """

    period_ns: int = 0
    policy: str = ""
    epochs: int = 0
    duration_ns: int = 0
    duration_max_ns: int = 0
    gap_ns: int = 0
    pause_ns: int | None = None
    capture_ns: int | None = None
    new_bytes: int | None = None
    state_bytes: int | None = None
    channel_state_bytes: int | None = None


class FleetStatus(msgspec.Struct, frozen=True):
    """The fleet; `phase` is "forming", "running", "recovering", "finished" or "failed".

    `caller_role`: the caller's role, such as "operator"; "" without certificates, where everybody may do everything.
    """

    fleet: str
    phase: str
    protocol: str
    plan: int
    line_epoch: int
    hosts: tuple[HostStatus, ...]
    hosts_expected: int
    agents: int
    epochs_begun: int
    epochs_completed: int
    epochs_aborted: int
    epochs_open: int
    triggers_skipped: int
    last_complete_epoch: int
    reason: str
    store: StoreStatus
    mode: str
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    stored_log_bytes: int
    leader: str
    term: int
    replicas: tuple[str, ...]
    concerns: tuple[Concern, ...]
    fork: ForkedFrom | None = None
    loss: LossStatus = LossStatus()
    interval: IntervalStatus = IntervalStatus()
    caller_role: str = ""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Leadership as one replica sees it; another may know better already.

    Attributes:
        term: Raft's term; 0 before anything happened.
        leader: id of the leader; empty if there is none known.
        is_leader: whether it is this replica.
    """

    term: int = 0
    leader: str = ""
    is_leader: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Status of one replica at one instant.

    Attributes:
        node: its id.
        standing: see Standing.
        is_learner: whether it lost its log, and may not vote before it has caught up.
        has_quorum: whether it is connected to a majority, itself counted.
        connected: ids of the others it can send to, sorted.
        commit_index: last entry known to be committed.
        applied: last entry applied here.
        first_index, last_index: bounds of its journal.
        journal_bytes: length of these entries.
    """

    node: str
    standing: Standing
    is_learner: bool
    has_quorum: bool
    connected: tuple[str, ...]
    commit_index: int
    applied: int
    first_index: int
    last_index: int
    journal_bytes: int


class AskedReplica(msgspec.Struct, frozen=True):
    """A replica of the coordinator, and what it says of itself.

    Attributes:
        id, address: as the replicas know it.
        status: None: it has not answered.
        problem: why not.
    """

    id: str
    address: str
    status: ReplicaStatus | None = None
    problem: str = ""


class SnapshotOutcome(msgspec.Struct, frozen=True):
    """Outcome of an epoch requested by hand; epoch 0: it did not even begin.

    A `reason` next to `is_complete`: the epoch is not new, since the recovery line has not advanced.
    """

    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int

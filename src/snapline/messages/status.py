"""Status of a fleet and its concerns, as reported by the coordinator to tools. Structs and their fields have the same names as in
`coordinator.proto`.

A concern is a condition that needs attention, such as a long wait or a missing resource. Each concern includes its duration and a remedy.
The leader detects concerns (`coordinator/leader/leader_concerns.py`). All code that shows, counts or raises alerts for concerns uses
`KINDS`. The test `tests/deploy/test_alerts.py` fails if a kind is missing from the docstring of `Concern` (docs/cli.md), the alerts or the
runbook.
"""

import msgspec

from snapline.messages.host_messages import OpenTurn

HOSTS_MAX = 1_000
"""Largest number of hosts in a fleet. Every pair of hosts has a link, so a typing error must not create a billion links."""

KINDS: dict[str, str] = {
    "busy": "`snapline host logs {host}` names what blocks it; give such a handler `thread=True`, or end the process: `snapline host kill {host}`",
    "certificate": "renew it: `snapline auth renew DIR` does it for those that `snapline auth init` has made",
    "cut": "see to the network between their addresses (`snapline host list`): firewalls, `--advertise`, certificates",
    "drained": "`snapline host resume {host}` lets agents come back",
    "effects": "wait for the calls to end; `snapline effect list --open` names them",
    "epochs": "`snapline snapshot history` says why each was aborted",
    "hosts": "start hosts as before: `snapline host run`, or `snapline up` on the fleet's folder; `snapline host logs ID` says why one has ended",
    "in_doubt": "look at the other side whether it was done, then `snapline effect list --agent {agent}` and `snapline effect resolve {agent} KEY`",
    "killer": "fix the handler; `snapline agent dead-letters list` shows what was set aside",
    "log": "repair the store, as `snapline doctor --store STORE` finds it; the host tries again by itself",
    "memory": "repair the store, as `snapline doctor --store STORE` finds it; the agents go on by themselves when it takes what waits",
    "plan": "`snapline host logs {host}` says what it does; if it does not come round: `snapline host kill {host}`",
    "replica": "start it again with its old `--data-dir`, or renew its certificate; `snapline coordinator status --coordinator HOST:PORT` asks one replica",
    "restore": "`snapline host list` shows whether its hosts are there, `snapline doctor --store STORE` whether its store is",
    "rollback": "fix the cause, then `snapline recovery restore ID`: the agent may ask again",
    "rpo": "`snapline snapshot history` says how long epochs take, and why they are aborted; or let triggers come more often",
    "rto": "`snapline recovery history` says what recoveries wait for",
    "spare": "see to what held the fleet up; it is used again after a minute or so, a new process of it at once",
    "stop": "`snapline host list` and `snapline effect list --open` show whom the fleet waits for",
    "store": "bring the store back, as `snapline doctor --store STORE` finds it; the recovery goes on by itself",
    "turn": "`snapline agent describe {agent}` shows its journal; run the code that began the turn, or `snapline recovery restore ID` to before it",
}
"""Kind of a concern → its remedy, a sentence without a full stop. `{host}` and `{agent}` are replaced by the first host and the first agent
concerned."""

URGENT = frozenset(
    ("certificate", "epochs", "hosts", "in_doubt", "killer", "log", "memory", "rollback", "rpo", "store", "turn")
)
"""Kinds of concerns that need an operator immediately. These are the kinds whose alert is critical, and effects in doubt, for which only an
operator may be able to act."""


class Concern(msgspec.Struct, frozen=True):
    """A condition for which the fleet is waiting, or a resource that it lacks.

    Attributes:
        hosts: ids of the affected hosts.
        since_ns: how long this leader has observed the condition, in nanoseconds.
        text: description of the condition, as a sentence without the final full stop.
        agents: ids of the affected agents.
        remedy: remedy, as a sentence without the final full stop, or "" to use the default remedy of the kind.

    If a concern lasts for three seconds, `snapline run` prints its beginning and its end. Each kind has an alert (docs/runbook.md). If
    agents of a host are waiting, `agents` contains the eight agents that have waited longest. The coordinator logs a warning when a concern
    of the kind `rpo` or `rto` begins, and a message when it ends.

    Kinds:
        busy: an agent's code blocks the event loop of a live host. The text contains the agent, the handler and the line.
        certificate: the certificate of a host or of the leading replica has expired or is due for renewal.
        cut: two hosts cannot reach each other.
        drained: an operator has drained a host, so that it has no agents.
        effects: before agents move or hosts stop, running effects must end.
        epochs: at least three consecutive epochs were aborted, although the store is healthy. The text contains the latest reason.
        hosts: no host is present, because all hosts have left or are lost, or because a new fleet is still waiting for its first hosts.
        in_doubt: an agent waits for an effect that may or may not have been executed. Either an operator must resolve the effect, or the
            effect's external service has not replied for ten seconds.
        killer: processes have died while handling a certain message. The concern lasts until a turn handles this message successfully, or
            the host's process ends between turns.
        log: a host cannot write its log, so it accepts no inputs and its durable turns wait.
        memory: a host's agents are paused, because its memory is filled by sender logs and by checkpoints that wait for the store.
        plan: a host has not applied the recovery plan yet.
        replica: the leading replica is not connected to some other replicas, because they are dead or disconnected.
        restore: a restore of the fleet was requested, but no recovery plan can be made.
        rollback: an agent's request to restore the fleet was rejected, and the agent waits for an operator.
        rpo: a failure would undo more work than the fleet's `rpo_s` allows. The concern lasts until an epoch is completed in time again.
        rto: a failure stopped the fleet for longer than its `rto_s`. The concern lasts until a later recovery is fast enough.
        spare: a host is alive but currently receives no agents, because it blocked the fleet.
        stop: a host has not reported whether the fleet may stop, or the fleet waits for running effects before it ends.
        store: a recovery waits for the store, or all snapshots are damaged and the recovery waits for an operator.
        turn: an agent is suspended in a durable turn that the current code cannot continue. The code does not match the journal, the
            handler is missing, or data cannot be decoded.
    """

    kind: str
    hosts: tuple[str, ...] = ()
    since_ns: int = 0
    text: str = ""
    agents: tuple[str, ...] = ()
    remedy: str = ""


def remedy_of(concern: Concern) -> str:
    """Return the concern's own remedy if it is set, otherwise the default remedy of its kind."""
    host, agent = next(iter(concern.hosts), "ID"), next(iter(concern.agents), "AGENT")
    return concern.remedy or KINDS[concern.kind].format(host=host, agent=agent)


class HostStatus(msgspec.Struct, frozen=True):
    """Status of a host. `state` is "alive", "lost" or "left".

    Attributes:
        log_messages, log_bytes: number and total size of messages in memory that were sent after their sender's last checkpoint. These
            numbers and the next four fields are 0 with `chandy-lamport`.
        checkpoints, forced: number of all checkpoints, and how many of them were forced.
        piggyback_bytes, piggybacked: total size of protocol data on messages, and number of messages that carry protocol data.
        inputs_waiting: number of client inputs that no turn has consumed yet.
        outputs_waiting, output_bytes_waiting: number and total size of the outputs that are not known to be released.
        agents_full: number of agents that accept no inputs and start no turns on their own until some of their outputs are released.
        is_drained: whether an operator has drained the host, so that no agents are placed on it.
        agents_standing: number of agents that are waiting for an operator. The fleet's concerns name these agents.
    """

    host: str
    address: str = ""
    host_start: int = 0
    state: str = ""
    agents: int = 0
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

    A degraded store never stops the agents, but their work is not saved while the store is degraded. After three consecutive epochs that
    could not be stored, the coordinator waits for one second before it begins the next epoch. The delay doubles after each further failure,
    up to one minute. The delay ends with the first epoch that is stored. Snapshots that are requested manually or needed before a recovery
    are attempted immediately.

    With message logging, agents defer basic checkpoints while more than 16,384 checkpoints or 128 MiB wait on a host. Forced checkpoints
    are still taken. If the sender logs reach 256 MiB of a host's memory, the host's agents are paused (concern `memory`).

    Attributes:
        state: "ok", or "degraded" if epochs or agents' checkpoints cannot be stored. `state` is "" if the state is unknown, because only
            the leader knows it.
        since_ns: how long the store has been degraded, in nanoseconds.
        reason: the latest failure, or "" if the store is not degraded.
        location: path or URL of the store.
        next_try_ns: nanoseconds until the next periodic epoch. `next_try_ns` is 0 if that epoch begins now or there are no periodic epochs.
        skipped: number of epochs and basic checkpoints that were deferred because of the store's state.
    """

    location: str = ""
    state: str = ""
    since_ns: int = 0
    reason: str = ""
    next_try_ns: int = 0
    skipped: int = 0


class ForkedFrom(msgspec.Struct, frozen=True):
    """Origin of a forked fleet.

    Attributes:
        parent, parent_name: cluster id and name of the original fleet.
        epoch: epoch number of the snapshot from which the fork was created. The number is the same in the original fleet and the fork.
        is_live: whether the fork may perform external effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    is_live: bool


class RecoveryTime(msgspec.Struct, frozen=True):
    """Duration of a completed recovery, and the work that it undid.

    Attributes:
        is_failure: whether a host or an agent had failed. If `is_failure` is false, agents were moved or the fleet was restored.
        plan_ns: time from the first suspicion of a failure until the plan was committed.
        load_ns: time from the commit until all hosts had applied the plan.
        rolled_back: number of agents that did not keep their live state.
        lost_ns: duration of the lost work, or None if it is unknown because agents take checkpoints independently.
        checkpoints_lost: number of durable checkpoints after the recovery line, summed over all agents.
    """

    plan: int = 0
    is_failure: bool = True
    plan_ns: int = 0
    load_ns: int = 0
    agents: int = 0
    rolled_back: int = 0
    lost_ns: int | None = None
    checkpoints_lost: int = 0


class LossStatus(msgspec.Struct, frozen=True):
    """Cost that a failure would have now, and cost of earlier failures.

    Attributes:
        at_risk_ns: duration of the work that would be lost if all hosts failed now, or None if the fleet is not running. `at_risk_ns` is an
            upper bound if agents take checkpoints independently.
        failures: number of failures during the last `observed_ns` nanoseconds. The observation period begins with the oldest plan that is
            kept. At most 64 plans are kept.
        recoveries: the last eight completed recoveries, oldest first.
        rpo_ns, rto_ns: the recovery objectives in the fleet's definition; 0 if they are not set.
        missed: the objectives that are currently missed: "rpo", "rto", both or none. Only the leader knows this value.
    """

    at_risk_ns: int | None = None
    failures: int = 0
    observed_ns: int = 0
    recoveries: tuple[RecoveryTime, ...] = ()
    rpo_ns: int = 0
    rto_ns: int = 0
    missed: tuple[str, ...] = ()


class IntervalStatus(msgspec.Struct, frozen=True):
    """Cost of epochs, measured on the newest epoch that was completed under the current leader's process. If there is no such epoch yet,
    the measured fields are None.

    Attributes:
        period_ns: time between two periodic epochs; 0 if epochs are taken only on request.
        policy: the checkpointing policy if agents take checkpoints independently, otherwise "".
        epochs: number of complete epochs in the retained history. `duration_ns`, `duration_max_ns` and `gap_ns` are measured over these
            epochs.
        duration_ns, duration_max_ns: mean and maximum time from the start of an epoch until it was completed.
        gap_ns: mean time between the starts of two consecutive epochs under the same plan; 0 if it is unknown.
        pause_ns: longest time for which a single agent was paused.
        capture_ns: total time for which the agents of a host were paused, one after another. `capture_ns` is the time of the host with the
            longest total time.
        new_bytes: number of bytes written for the epoch.
        state_bytes: total size of the agents' states in the epoch, including unchanged parts that were not written again.
        channel_state_bytes: total size of the messages in transit in the epoch.
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
    """Status of the fleet. `phase` is "forming", "running", "recovering", "finished" or "failed".

    `caller_role` is the role of the caller, such as "operator". `caller_role` is "" in a fleet without certificates, where every caller has
    all permissions.

    `recovery` is "global" if a failure takes all agents back, and "local" if only those of the failed host.

    `stored_log_bytes` is the total size of the stored sender logs that the last complete epoch still needs.

    In JSON, times in nanoseconds (`…_ns`) become times in seconds (`…_s`), and None becomes null.
    """

    fleet: str = ""
    phase: str = ""
    protocol: str = ""
    plan: int = 0
    line_epoch: int = 0
    hosts: tuple[HostStatus, ...] = ()
    hosts_expected: int = 0
    agents: int = 0
    epochs_begun: int = 0
    epochs_completed: int = 0
    epochs_aborted: int = 0
    epochs_open: int = 0
    triggers_skipped: int = 0
    last_complete_epoch: int = 0
    reason: str = ""
    store: StoreStatus = StoreStatus()
    mode: str = ""
    log_messages: int = 0
    log_bytes: int = 0
    checkpoints: int = 0
    forced: int = 0
    piggyback_bytes: int = 0
    piggybacked: int = 0
    stored_log_bytes: int = 0
    leader: str = ""
    term: int = 0
    replicas: tuple[str, ...] = ()
    concerns: tuple[Concern, ...] = ()
    fork: ForkedFrom | None = None
    loss: LossStatus = LossStatus()
    interval: IntervalStatus = IntervalStatus()
    caller_role: str = ""
    recovery: str = ""

    def total(self, name: str) -> int:
        """Return the sum of a field over all hosts."""
        return sum([getattr(host, name) for host in self.hosts])


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Leadership from the point of view of one replica. Other replicas may have newer information.

    Attributes:
        term: Raft term; 0 before the first election.
        leader: id of the leader; empty if the leader is unknown.
        is_leader: whether this replica is the leader.
    """

    term: int = 0
    leader: str = ""
    is_leader: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Status of one replica at a point in time.

    Attributes:
        standing: leadership from the point of view of this replica.
        is_learner: whether the replica has lost its log and must not vote until it has caught up.
        has_quorum: whether the replica is connected to a majority of replicas, including itself.
        connected: sorted ids of the other replicas to which this replica can send messages.
        commit_index: index of the last log entry that is known to be committed.
        applied: index of the last log entry that this replica has applied.
        first_index, last_index: indices of the first and last entries in the replica's journal.
        journal_bytes: total size of all entries in the journal.
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
    """A replica of the coordinator, and the status that it has reported.

    Attributes:
        id, address: the replica's id and address among the replicas.
        status: the reported status, or None if the replica has not replied.
        problem: why the replica has not replied, or "" if it has replied.
    """

    id: str
    address: str
    status: ReplicaStatus | None = None
    problem: str = ""


class SnapshotOutcome(msgspec.Struct, frozen=True):
    """Outcome of a snapshot request. `epoch` is 0 if no epoch was started.

    If `is_complete` is true and `reason` is not empty, `epoch` is an earlier epoch, after which the recovery line has not advanced.
    """

    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int

"""Status of a fleet and its concerns, as the coordinator reports them to tools. Structs and fields have the same names as in
`coordinator.proto`.

A concern is a condition that needs attention, such as a long wait or a missing resource. Each concern contains its age and a remedy. The
leader detects concerns (`coordinator/leader/leader_concerns.py`). All code that shows, counts or raises alerts for concerns uses `KINDS`.
`tests/deploy/test_alerts.py` fails if a kind is missing from the docstring of `Concern` (docs/cli.md), from the alerts or from the runbook.
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
    """A condition for which the fleet waits, or a resource that it lacks.

    Attributes:
        kind: one of `KINDS`.
        hosts: ids of the hosts concerned.
        since_ns: time in nanoseconds for which this leader has seen the condition.
        text: description, which is a sentence without a full stop.
        agents: ids of the agents concerned.
        remedy: remedy, which is also a sentence without a full stop. "" to use the remedy of the kind.

    `snapline run` prints each concern that lasts for three seconds, and also its end. Each kind has an alert (docs/runbook.md). If agents
    of a host wait, `agents` contains the eight agents that have waited longest. The coordinator logs the beginning of each `rpo` and `rto`
    once, as a warning, and also its end.

    Kinds:
        busy: an agent's code blocks the event loop of a live host. The text names the agent, the handler and the line.
        certificate: the certificate of a host or of the leading replica has expired or is due for renewal.
        cut: two hosts cannot reach each other.
        drained: an operator keeps a host without agents.
        effects: agents are not moved, or hosts do not stop, until running effects have ended.
        epochs: three or more epochs in a row were aborted, although the store is healthy. The text contains the last reason.
        hosts: no host is present, because all hosts have left or are lost, or because a new fleet still waits for its first hosts.
        in_doubt: an agent waits at an effect that may have happened. Either an operator must resolve the effect, or the effect's service
            has not answered for ten seconds.
        killer: processes have died while a turn handled a certain message. The concern lasts until a turn of that message succeeds, or the
            host's process ends between turns.
        log: a host cannot write its log, so it accepts no inputs, and its durable turns wait.
        memory: a host's agents are paused, because sender logs and checkpoints that wait for the store fill its memory.
        plan: a host has not applied the recovery plan.
        replica: the leading replica is not connected to other replicas, because they are dead or disconnected.
        restore: a restore of the fleet was requested, but no plan can be made.
        rollback: an agent's request to restore the fleet was rejected, and the agent waits for an operator.
        rpo: a failure would undo more work than the fleet's `rpo_s` allows. The concern lasts until an epoch is on time again.
        rto: a failure stopped the fleet for longer than its `rto_s`. The concern lasts until a later recovery is on time.
        spare: a host is alive but currently receives no agents, because it blocked the fleet.
        stop: a host has not reported whether the fleet may stop, or the fleet ends as soon as running effects have ended.
        store: a recovery waits for the store, or for an operator because all snapshots are damaged.
        turn: an agent is suspended in a durable turn that the current code cannot continue, because the journal differs, the handler is
            missing, or something cannot be decoded.
    """

    kind: str
    hosts: tuple[str, ...] = ()
    since_ns: int = 0
    text: str = ""
    agents: tuple[str, ...] = ()
    remedy: str = ""


def remedy_of(concern: Concern) -> str:
    """Return the concern's own remedy if it has one, otherwise the remedy of its kind."""
    host, agent = next(iter(concern.hosts), "ID"), next(iter(concern.agents), "AGENT")
    return concern.remedy or KINDS[concern.kind].format(host=host, agent=agent)


class HostStatus(msgspec.Struct, frozen=True):
    """Status of a host. `state` is "alive", "lost" or "left".

    Attributes:
        log_messages, log_bytes: number and total size of the messages in memory that were sent since their sender's last checkpoint. These
            and the next four figures are 0 with `chandy-lamport`.
        checkpoints, forced: number of all checkpoints, and number of forced checkpoints among them.
        piggyback_bytes, piggybacked: total size of the protocol data on messages, and number of these messages.
        inputs_waiting: number of inputs from clients that no turn has consumed.
        outputs_waiting, output_bytes_waiting: number and total size of the outputs that are not known to be released.
        agents_full: number of agents that accept no inputs and start no turns of their own until some of their outputs are released.
        is_drained: whether an operator has drained the host, so that no agents are placed on it.
        agents_standing: number of agents that wait for an operator. The fleet's concerns name these agents.
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
    could not be stored, the coordinator waits for one second before the next epoch. The wait doubles after each further failure, up to one
    minute. The first success ends this. Snapshots that are requested manually or taken before a recovery are attempted at once.

    With message logging, agents defer basic checkpoints while more than 16,384 checkpoints or 128 MiB wait on a host; forced checkpoints
    are still taken. If the sender logs reach 256 MiB of a host's memory, its agents are paused (concern `memory`).

    Attributes:
        state: "ok", or "degraded" if epochs or agents' checkpoints cannot be stored. It is "" if it is unknown, because only the leader
            knows the state.
        since_ns: time in nanoseconds for which the store has been degraded.
        reason: the latest failure. "" if the store is not degraded.
        location: path or URL of the store.
        next_try_ns: time in nanoseconds until the next periodic epoch. 0 if it begins now, or if there are no periodic epochs.
        skipped: number of epoch triggers and basic checkpoints that were deferred because of the store's state.
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
        name: name of the fork.
        parent, parent_name: cluster id and name of the fleet from which the fork was made.
        epoch: epoch number of the snapshot from which the fork was made. It is the same in both fleets.
        is_live: whether the fork may perform external effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    is_live: bool


class RecoveryTime(msgspec.Struct, frozen=True):
    """Duration of a finished recovery, and the work that it undid.

    Attributes:
        is_failure: whether the cause was the failure of a host or an agent. If False, agents were moved, or the fleet was restored.
        plan_ns: time from the first suspicion of a failure until the plan was committed.
        load_ns: time from the commit until all hosts had applied the plan.
        rolled_back: how many of the agents did not keep their live state.
        lost_ns: amount of work lost, as a time. None if it is unknown because agents take checkpoints independently.
        checkpoints_lost: total number of durable checkpoints that lie after the recovery line, over all agents.
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
    """The cost that a failure would have now, and the cost of earlier failures.

    Attributes:
        at_risk_ns: amount of work that would be lost if all hosts failed now, as a time. It is an upper bound if agents take checkpoints
            independently. None if the fleet is not running.
        failures: number of failures during the last `observed_ns`, the time since the oldest plan that is kept (at most 64 plans are kept).
        recoveries: the last eight finished recoveries, oldest first.
        rpo_ns, rto_ns: recovery objectives in the fleet's definition. 0 if they are not set.
        missed: objectives that are currently missed, "rpo" or "rto" or both. Only the leader knows them.
    """

    at_risk_ns: int | None = None
    failures: int = 0
    observed_ns: int = 0
    recoveries: tuple[RecoveryTime, ...] = ()
    rpo_ns: int = 0
    rto_ns: int = 0
    missed: tuple[str, ...] = ()


class IntervalStatus(msgspec.Struct, frozen=True):
    """Cost of epochs, measured on the newest epoch that was completed by the process that now leads. These measurements are None if there
    is no such epoch yet.

    Attributes:
        period_ns: time between two periodic epochs. 0 if epochs are taken only on request.
        policy: checkpointing policy if agents take checkpoints independently. "" if they do not.
        epochs: number of complete epochs in the retained history. `duration_ns`, `duration_max_ns` and `gap_ns` are measured over these
            epochs.
        duration_ns, duration_max_ns: mean and longest time from the start of an epoch until it was decided.
        gap_ns: mean time between the starts of two consecutive epochs under one plan. 0 if it is unknown.
        pause_ns: longest time for which a single agent was paused.
        capture_ns: total time for which a host's agents were paused, one after another. The value is that of the host with the largest
            total.
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

    `caller_role` is the caller's role, such as "operator". It is "" in a fleet without certificates, where every caller has all
    permissions.

    `stored_log_bytes` is the total size of the stored sender logs that the last complete epoch still needs.

    In JSON, times that are in nanoseconds (`…_ns`) in this struct and its parts are in seconds (`…_s`), and None is null.
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

    def total(self, name: str) -> int:
        """Return the sum of a figure over all hosts."""
        return sum([getattr(host, name) for host in self.hosts])


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Leadership as one replica sees it. Other replicas may have newer information.

    Attributes:
        term: Raft term. 0 before the first election.
        leader: id of the leader. Empty if it is unknown.
        is_leader: whether this replica leads.
    """

    term: int = 0
    leader: str = ""
    is_leader: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Status of one replica at a point in time.

    Attributes:
        node: id of the replica.
        standing: leadership as this replica sees it.
        is_learner: whether the replica has lost its log and must not vote until it has caught up.
        has_quorum: whether the replica is connected to a majority of replicas, including itself.
        connected: sorted ids of the other replicas to which this replica can send.
        commit_index: index of the last log entry that is known to be committed.
        applied: index of the last log entry that this replica has applied.
        first_index, last_index: indices of the first and the last entry in the replica's journal.
        journal_bytes: total size of the journal's entries.
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
    """A replica of the coordinator, and the status that the replica itself has reported.

    Attributes:
        id, address: id and address by which the replicas know this replica.
        status: the reported status. None if the replica has not answered.
        problem: reason why the replica has not answered. "" if it has.
    """

    id: str
    address: str
    status: ReplicaStatus | None = None
    problem: str = ""


class SnapshotOutcome(msgspec.Struct, frozen=True):
    """Outcome of a requested snapshot. `epoch` is 0 if no epoch was started.

    If both `is_complete` and `reason` are set, `epoch` is an earlier epoch, since the recovery line has not advanced since then.
    """

    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int

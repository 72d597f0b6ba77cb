"""Records of the replicated state. All records together form one image, which is encoded as a whole when the log is compacted.

Every table has a size limit, given by a constant. The image therefore stays below 64 MiB, the largest size that a replica accepts from
another replica. If names have the usual length, the image takes at most 16 MiB.

The outcomes and time accounts of epochs are only for display, and no decision depends on them.
"""

import msgspec

from snapline.errors import LogError, UsageError
from snapline.ids import check_id
from snapline.messages.host_messages import PlaceRule, TurnDeath
from snapline.messages.past_rollbacks import PastRollback
from snapline.messages.status import HOSTS_MAX
from snapline.protocols.names import GLOBAL, is_logged

ENDS_KEPT = 256
"""Number of newest epochs whose outcome is kept. The kept outcomes cover four minutes at one epoch per second, or ten days at one per hour.
With the longest ids and reasons, the outcomes take several hundred KiB of the image."""

REASON_CHARACTERS_MAX = 300
"""Largest length, in characters, of a reason in these outcomes. The newest outcomes are also kept with the full reason
(`OutcomeRecord`)."""


class PartTimes(msgspec.Struct, frozen=True, gc=False):
    """Durations of one host's part of an epoch.

    All durations except `after_ns` are consecutive and measured by the host's own clock. The durations describe the host's agent that was
    the last to record its state. Hosts that run an older release report neither these durations nor an agent.

    Attributes:
        agent: the host's agent that was the last to record its state; "" if no agent had to record its state.
        after_ns: time, by the leader's clock, from the start of the epoch until the report arrived. A new leader counts this time from its
            own start.
        start_delay_ns: time from the host's first notice of the epoch until the agent was between two turns, so that its state could be
            recorded.
        capture_ns: duration of capturing the agent's state.
        alignment_ns: duration until no more messages of the epoch could arrive at the host.
        store_ns: duration until the host's part of the epoch was durable.
    """

    host: str
    agent: str = ""
    after_ns: int = 0
    start_delay_ns: int = 0
    capture_ns: int = 0
    alignment_ns: int = 0
    store_ns: int = 0

    @property
    def recorded_ns(self) -> int:
        """Return the duration, in nanoseconds, from the host's first notice of the epoch until its last agent's state was recorded."""
        return self.start_delay_ns + self.capture_ns


class EpochAccount(msgspec.Struct, frozen=True, gc=False):
    """Summary of the hosts' reports for an epoch, kept in the log.

    Attributes:
        reports: number of hosts that have reported.
        new_bytes: number of bytes that these hosts have written for the epoch.
        last: durations of the host that was the last to report.
        late: durations of the host whose agent was the last to record its state. Other hosts wait for the agent in `late`, and may report
            later than its own host.
    """

    reports: int = 0
    new_bytes: int = 0
    last: PartTimes | None = None
    late: PartTimes | None = None


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """Record of how an epoch ended.

    Attributes:
        begun_ns, ended_ns: start and end of the epoch, by the wall clock of the leader that proposed the operation.
        reason: why the epoch was aborted; "" if it completed.
        account: summary of the hosts' reports; None if hosts do not report on this kind of epoch, or if a plan or the fleet's end aborted
            the epoch.
    """

    epoch: int
    plan: int
    trigger: str
    begun_ns: int
    ended_ns: int
    is_complete: bool
    reason: str = ""
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    account: EpochAccount | None = None


IMAGE_VERSION = 1

LONG_HOSTS_MAX, SHORT_HOST_BYTES = 256, 16
"""Limits on the length of hosts' names. 256 hosts may have names of 128 bytes; further hosts may have names of 16 bytes. Thus all names fit
into one log entry (64 KiB), a CommitPlan or a LoseHosts, together with the reason."""

AGENTS_MAX, LONG_AGENTS_MAX, SHORT_AGENT_BYTES = 100_000, 20_000, 80
"""Limits on agents that are alive or part of a kept epoch. Each agent takes about 150 bytes of the image, which takes about 30 ms to
encode. A plan names all agents in one message of at most 16 MiB. So beyond 20,000 agents, an agent's id and kind may have 80 bytes in
total."""

LOGGED_AGENTS_MAX = 20_000
"""Largest number of agents in protocols with sender logs, in which each agent has vectors with one entry per agent."""

AGENTS_EVER_MAX = 200_000
"""Largest number of agents ever created. Ids are never reused, so the ids of departed agents are kept; they take at most about 10 MiB of
the image."""

EPOCHS_OPEN_MAX = 4
"""Largest number of open epochs. A larger number would only store the channel state of the same slow agent several times."""

OUTCOMES_KEPT = 64
"""Number of ended epochs whose outcome can still be sent to a host. Hosts report only on open epochs, of which there are at most 4."""

PLANS_KEPT = 64
"""Number of plans kept in the recovery history."""

ROLLBACKS_KEPT = 16
"""Number of restores that agents can learn about. Each may take some 10 KiB in the replicated state and in each plan."""

RESULTS_KEPT = 64
"""Number of results kept per client, which is also the largest number of unresolved requests that a client may have."""

CLIENTS_MAX = 1024
"""Number of clients whose results are kept. Clients are runs of hosts (three clients each) and of the coordinator. The least recently used
client is forgotten first."""

PAST_INSTANCES_KEPT = 16
"""Number of a host's earlier runs whose names are kept. A run whose name is kept can be refused if it returns."""

ALIVE, LOST, LEFT = "alive", "lost", "left"
OPEN, COMPLETE, CONDEMNED, VOID = "open", "complete", "condemned", "void"
FORMING, RECOVERING, RUNNING, FINISHED, FAILED = "forming", "recovering", "running", "finished", "failed"
RECOVERY_TRIGGER = "recovery"
APPLIED, UNCHANGED, REFUSED, OVER = "applied", "unchanged", "refused", "over"


class OperationResult(msgspec.Struct, frozen=True, gc=False):
    """The result of an operation.

    Attributes:
        status: "applied"; "unchanged" if the state already had this value; "refused" if the state does not allow the operation and stays
            as it was; "over" if the operation was refused because its proposer or the fleet has ended, or its plan was replaced. If its
            plan was replaced, the next plan resolves the request.
        reason: why the operation was refused.
        number: number that the operation assigned, which is a host start, plan, epoch or incarnation, or the position of the next agent to
            define.
        begun: for creations of agents, the latest epoch that has begun.
        epochs: the epochs that the operation aborted (losses, plans, damage, the end) or forgot; for creations and removals of agents, the
            open epochs.
    """

    status: str
    reason: str = ""
    number: int = 0
    begun: int = 0
    epochs: tuple[int, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Return whether the operation was refused, so that the state is unchanged."""
        return self.status in (REFUSED, OVER)


class HostRecord(msgspec.Struct):
    """The record of one host.

    Attributes:
        start: number of the host's current run, counted from 1.
        instance: name of the current run, chosen by the host process.
        past: names of earlier runs, oldest first.
        state: "alive", "lost" or "left".
        spare: why the host is on standby although it is reachable; "" if it is not on standby. A plan that uses the host, and a new process
            of the host, clear this field.
        is_drained: whether an operator has drained the host. The drain mark survives restarts of the host.
        died: name of the host's last run whose process is known to have died during turns; "" if there is none.
        report: key of the current run's report in `FleetImage.reports`; "" if it made none.
    """

    start: int
    instance: str
    address: str
    state: str = ALIVE
    past: list[str] = []
    spare: str = ""
    is_drained: bool = False
    died: str = ""
    report: str = ""


class AgentRecord(msgspec.Struct):
    """The record of one agent that is alive or is a member of a kept epoch.

    Attributes:
        host: the host on which the agent is placed; "" before the first plan.
        incarnation: a number that increases with every restart of the agent. Because all agents restart together, the incarnation equals
            the number of their plan. An id can therefore be reused after its creation became void, without repeating an incarnation (G9).
        is_initial: whether the fleet's definition contains the agent, so that it is a member of epoch 0.
        born_epoch: the latest epoch that had begun when the agent's creation was committed; 0 for initial agents.
        left_epoch: the latest epoch that had begun when the agent's removal was committed; None if the agent has not left.
        created_plan: the plan under which the agent was created; 0 for initial agents.
        left_plan: the plan under which the agent was removed; None if the agent has not left.
        ordinal: the agent's index in the vectors that messages contain. Ordinals are never reused, even if the agent's creation becomes
            void.
        parent: the agent that created this agent, which may request the creation again; "" unless recovery is local.
    """

    kind: str
    host: str = ""
    incarnation: int = 0
    is_initial: bool = True
    born_epoch: int = 0
    left_epoch: int | None = None
    created_plan: int = 0
    left_plan: int | None = None
    ordinal: int = 0
    parent: str = ""

    def is_member_of(self, epoch: int) -> bool:
        """Return whether the agent is a member of `epoch` (docs/protocols.md, 2.2, rules 7 and 8). The members of epoch 0 are the initial
        agents."""
        if epoch == 0:
            return self.is_initial
        return self.born_epoch < epoch and (self.left_epoch is None or self.left_epoch >= epoch)


class EpochRecord(msgspec.Struct):
    """The record of one epoch. An epoch is open, complete, condemned (later found damaged) or void (the fleet was restored to an earlier
    epoch).

    Attributes:
        root: root of the epoch's manifest; "" until the epoch is complete.
        unborn: agents that do not exist yet in the epoch, so that a recovery to this epoch creates them again.
        drop_before: if it is not 0, a plan that starts from this epoch drops inputs logged under plans with lower numbers.
    """

    plan: int
    trigger: str
    begun_ns: int
    status: str = OPEN
    root: str = ""
    ended_ns: int = 0
    unborn: list[str] = []
    channel_state_messages: int = 0
    drop_before: int = 0


class OutcomeRecord(msgspec.Struct):
    """The outcome of an epoch. `reason` says why the epoch was aborted."""

    epoch: int
    is_complete: bool
    reason: str


class RestoreRecord(msgspec.Struct, frozen=True):
    """The restore that a plan executes.

    Attributes:
        request: token by which the client identifies its request.
        drop_inputs: whether the client asked to drop later inputs. The plan's field `drop_before` implements this.
        voided: complete epochs that the restore has made void.
        agent: the agent that requested the restore; "" if an operator did.
    """

    request: str
    drop_inputs: bool
    voided: list[int]
    agent: str = ""


PLANNED_STOP = "planned stop: the host left when it was asked to"
"""Reason of a plan after `snapline down`, SIGTERM or the end of a pod, in the history of recoveries."""


class PlanRecord(msgspec.Struct):
    """The record of a recovery plan, with which the fleet starts or restarts from a recovery line.

    Attributes:
        line_epoch, line_root: epoch and root of the recovery line; 0 and "" stand for the initial states.
        begun_epoch: the latest epoch that had begun when the plan was committed. Every agent starts with `begun_epoch` as its r, the last
            epoch that it has recorded.
        hosts: hosts that run agents, in order. These hosts confirm the plan and report epochs, and losing one of them requires a new
            plan.
        unborn: agents that do not exist yet on the recovery line, because their creation is in transit or waits in a checkpoint.
        lost: hosts whose loss caused the plan.
        condemned: epochs found damaged since the previous plan, and therefore not used as the recovery line.
        messages: number of messages in transit on the recovery line, which are delivered again.
        suspected_ns, committed_ns, done_ns: wall-clock times of the suspicion, the commit and the last confirmation; done_ns is 0 until all
            hosts have confirmed.
        rolled_back: number of agents that lost their live state, which in coordinated protocols are all agents.
        checkpoints_lost: total number of durable checkpoints after the recovery line, over all agents.
        restore: the restore that the plan executes; None if the plan is a start, a recovery or a move.
        drop_before: if it is not 0, inputs after the recovery line that were logged under plans with lower numbers are dropped.
        is_move: whether the plan was made to move agents rather than after a failure.
        lost_ns: duration of the undone work, in nanoseconds, up to the time when the lost hosts were last known to work; 0 if unknown, as
            in autonomous protocols.
        era: the era to which the plan belongs, as in `FleetImage.era`.
        sources, sources_since: as in `Plan` (`messages/host_messages.py`).
    """

    number: int
    line_epoch: int
    line_root: str
    begun_epoch: int
    hosts: list[str]
    reason: str
    unborn: list[str]
    agents: int
    messages: int
    lost: list[str]
    condemned: list[int]
    suspected_ns: int
    committed_ns: int
    confirmed: list[str] = []
    done_ns: int = 0
    rolled_back: int = 0
    checkpoints_lost: int = 0
    restore: RestoreRecord | None = None
    drop_before: int = 0
    lost_ns: int = 0
    is_move: bool = False
    era: int = 0
    sources: list[str] = []
    sources_since: int = 0

    @property
    def is_failure(self) -> bool:
        """Return whether the plan was caused by a failure rather than by a move, a restore or a planned stop."""
        return self.restore is None and not self.is_move and self.reason != PLANNED_STOP


LOGS_KNOWN_MAX = 1024
"""Number of sealed logs, of the latest plans, whose newest batch is kept. Records of these logs take about 40 KB of the state."""


class LogRecord(msgspec.Struct, frozen=True):
    """A host log that the hosts of a later plan may not have sealed yet, or whose newest batch is known.

    `newest` is the number of the newest batch known to be durable; 0 if none is known. The number shows whether the batch was removed from
    a signed or encrypted store.
    """

    plan: int
    host: str
    host_start: int
    newest: int = 0


class ForkOrigin(msgspec.Struct, frozen=True):
    """The origin of a fork, which starts from one complete epoch of another fleet and has no initial states.

    Attributes:
        parent, parent_name: cluster id and name of the parent fleet.
        epoch: epoch number of the snapshot, which is the same in both fleets.
        plan: plan number of the snapshot. The fork's first plan has the next number.
        is_live: whether the fork's agents may call external effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    plan: int
    is_live: bool


class TokenRecord(msgspec.Struct, frozen=True):
    """A user's token: its role, its SHA-256 digest, and the times of its creation and expiry."""

    role: str
    digest: bytes
    made_ns: int
    expires_ns: int


class CallRecord(msgspec.Struct, frozen=True):
    """The audit record of one user call that changes the fleet.

    Attributes:
        number: sequence number of the call, counted from 1 without gaps.
        made_ns: time by the wall clock of the leader that proposed the record.
        name, role: name and role of the caller, who was authenticated by a token if `is_borne` is set, otherwise by a certificate.
        at: host that was called; "" if the coordinator was called.
        call: name of the RPC.
        about: description of the request, followed by the reason if the outcome is "failed".
        outcome: "allowed", "refused" or "failed".
    """

    number: int
    made_ns: int
    name: str
    role: str
    is_borne: bool
    at: str
    call: str
    about: str
    outcome: str


class PlanNeed(msgspec.Struct):
    """The reason why the fleet cannot continue under its current plan. `worked_until_ns` is the wall-clock time at which the lost hosts
    were last known to work."""

    reason: str
    lost: list[str]
    suspected_ns: int
    worked_until_ns: int = 0


class CondemnedRecord(msgspec.Struct):
    """Record of a complete epoch whose data was found damaged later, under the plan numbered `plan`."""

    epoch: int
    plan: int
    path: str
    reason: str


class RememberedResult(msgspec.Struct):
    """The result of a request, kept so that a repeated request gets the same result."""

    sequence: int
    digest: bytes
    result: OperationResult


class FleetImage(msgspec.Struct):
    """The whole replicated state.

    Attributes:
        policy: text for display that describes when agents checkpoint on their own.
        log_bytes_max: limit, in bytes, on the sender logs in the store; 0 means no limit.
        places: placement rules. For each agent, the first placement rule that names it applies.
        agents_defined: number of agents in the fleet's definition. The fleet counts as defined when all these agents are in `agents`.
        next_ordinal: ordinal of the next agent to be defined or created.
        forgotten_start: largest start number of all removed host records. A new host's start number is larger than `forgotten_start` (G9).
        gone: ids of agents that have left and are members of no kept epoch. These ids are never reused.
        epochs: all open, complete, condemned and void epochs, in ascending order.
        begun: number of the latest epoch that has begun.
        forgotten: the highest epoch number among the complete epochs that were forgotten.
        logs: host logs, at most one per host run and plan. For plans before the last one that all hosts have confirmed, only the last 1,024
            logs with a known batch are kept.
        need: why a new plan is needed; None if the current plan can continue.
        outcome: "stopped" or "failed" once the fleet has ended, for the reason in `ending`; otherwise "".
        requests: the last results of each client, with the most recently used client last.
        now_ns: the latest proposal time of all applied operations.
        rpo_ns: recovery objective, in nanoseconds, for the work that a failure may undo; 0 if there is none.
        rto_ns: recovery objective, in nanoseconds, for the duration of a recovery; 0 if there is none.
        fork: origin of the fleet; None if the fleet started from its initial states.
        tokens: users' tokens by name.
        calls, refusals: records of users' last calls that change the fleet; `refusals` contains the refused calls.
        calls_made: sequence number of the last recorded call.
        ends: how the last epochs ended, oldest first. Changes of an epoch after its end are not recorded in `ends`.
        deaths: turns during which processes have died. The most recently counted turn is last.
        rollbacks: the newest restores of the fleet, oldest first.
        recovery: "global", or "local" if agents recover from their newest commits.
        era: number of the newest plan that a restore made, or of the first plan after the coordinator was restored from a backup. Commits in
            logs of plans with lower numbers are void. The era is 0 if there is no such plan, also in a fork, because a fork's store
            contains no commits of other fleets.
        era_line: epoch from which the era began, 0 if from the initial states.
        is_era_adopted: whether all agents have been committed since the era began.
        base: newest epoch that was the second newest complete one. Commits that it covers may be deleted.
        reports: reports of what the known hosts run on, by their digest (`snapline.messages.dependencies`).
        fork_reports: reports of the hosts of a fork's snapshot.
    """

    version: int = IMAGE_VERSION
    cluster: str = ""
    name: str = ""
    protocol: str = ""
    period_ns: int = 0
    epoch_timeout_ns: int = 0
    definition_digest: bytes = b""
    definition_parts: list[str] = []
    agents_defined: int = 0
    never_stops: bool = False
    policy: str = ""
    log_bytes_max: int = 0
    places: list[PlaceRule] = []
    next_ordinal: int = 0
    hosts: dict[str, HostRecord] = {}
    forgotten_start: int = 0
    agents: dict[str, AgentRecord] = {}
    gone: dict[str, None] = {}
    epochs: dict[int, EpochRecord] = {}
    begun: int = 0
    completed: int = 0
    aborted: int = 0
    forgotten: int = 0
    outcomes: list[OutcomeRecord] = []
    plans: list[PlanRecord] = []
    logs: list[LogRecord] = []
    need: PlanNeed | None = None
    condemned: list[CondemnedRecord] = []
    outcome: str = ""
    outcome_epoch: int = 0
    ending: str = ""
    requests: dict[str, list[RememberedResult]] = {}
    now_ns: int = 0
    fork: ForkOrigin | None = None
    tokens: dict[str, TokenRecord] = {}
    calls: list[CallRecord] = []
    refusals: list[CallRecord] = []
    calls_made: int = 0
    rpo_ns: int = 0
    rto_ns: int = 0
    ends: list[EpochEnd] = []
    deaths: list[TurnDeath] = []
    rollbacks: list[PastRollback] = []
    recovery: str = GLOBAL
    era: int = 0
    era_line: int = 0
    is_era_adopted: bool = False
    base: int = 0
    reports: dict[str, dict[str, str]] = {}
    fork_reports: list[dict[str, str]] = []


_image_decoder = msgspec.msgpack.Decoder(FleetImage)


def decode_image(image: bytes) -> FleetImage:
    """Return the replicated state that `image` encodes.

    Raises:
        LogError: `image` is not a state of this version.
    """
    try:
        state = _image_decoder.decode(image)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogError(f"the log's image of the state cannot be read: {error}") from error
    if state.version != IMAGE_VERSION:
        raise LogError(
            f"the log's image has version {state.version}, this release knows {IMAGE_VERSION}: "
            "run the coordinator with the release that wrote it"
        )
    return state


def agents_max(protocol: str) -> int:
    """Return the largest number of agents that a fleet with this protocol may have."""
    return LOGGED_AGENTS_MAX if is_logged(protocol) else AGENTS_MAX


def problem_of_agent_size(agent: str, kind: str, position: int) -> str:
    """Return why an agent's id and class are too long if `position` agents precede it, or "" if they are not."""
    if position < LONG_AGENTS_MAX or len(agent.encode()) + len(kind.encode()) <= SHORT_AGENT_BYTES:
        return ""
    return f"beyond {LONG_AGENTS_MAX} agents id and class have {SHORT_AGENT_BYTES} bytes together at most, not as agent {agent}"


def problem_of_host(host: str, others: int) -> str:
    """Return why this host cannot be added to a fleet that has `others` hosts, or "" if it can."""
    if others >= HOSTS_MAX or not is_id(host):
        return f"a fleet has at most {HOSTS_MAX} hosts, each with a valid id"
    is_long = others >= LONG_HOSTS_MAX and len(host) > SHORT_HOST_BYTES
    return f"beyond {LONG_HOSTS_MAX} hosts ids have at most {SHORT_HOST_BYTES} bytes, not as {host}" if is_long else ""


def is_id(text: str) -> bool:
    """Return whether `text` is a valid id of an agent or a host."""
    try:
        check_id(text)
    except UsageError:
        return False
    return True


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a proposal: the operation is in the log permanently and has been applied."""

    result: OperationResult


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a proposal: the operation is not in the log and never will be."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a proposal: the operation may be in the log, now or later. If the proposal is repeated with the same request id, it is
    applied only once."""

    reason: str


ProposalOutcome = Committed | Rejected | Unknown

"""Records of the replicated state. They form one image, which is encoded as a whole when the log is compacted.

Every table is bounded by a constant. The image stays below the 64 MiB that a replica accepts from another. With names
of usual lengths the image has 16 MiB at most.

The outcomes of epochs and their time accounts are for display only. No decision depends on them.
"""

import msgspec

from snapline.errors import LogError, UsageError
from snapline.ids import check_id
from snapline.messages.host_messages import PlaceRule, TurnDeath
from snapline.messages.status import HOSTS_MAX
from snapline.protocols.names import is_logged

ENDS_KEPT = 256
"""Number of newest epochs whose outcome is kept: four minutes at one epoch per second, ten days at one per hour. With the longest ids and
reasons, the outcomes take some hundred KiB of the image."""

REASON_CHARACTERS_MAX = 300
"""Largest length of a reason here, in characters; recent outcomes have the full reason."""


class PartTimes(msgspec.Struct, frozen=True, gc=False):
    """Durations of one host's part of an epoch.

    All but `after_ns` are consecutive durations by the host's own clock, for its agent that was last to record its state. A host of
    an older release reports neither these durations nor an agent.

    Attributes:
        agent: the last agent of the host to record its state; "": no agent had to.
        after_ns: time from the epoch's begin until the report arrived, by the leader's clock. A new leader counts from its own start.
        start_delay_ns: time from the host's first notice of the epoch until the agent could be recorded, between two turns.
        capture_ns: time to take the agent's image.
        alignment_ns: time until no more messages of the epoch could arrive at the host.
        store_ns: time until the host's part was durable.
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
        """Return the time from the host's first notice of the epoch until its last agent was recorded."""
        return self.start_delay_ns + self.capture_ns


class EpochAccount(msgspec.Struct, frozen=True, gc=False):
    """Summary of an epoch's reports, for the log.

    Attributes:
        reports: number of hosts that have reported.
        new_bytes: bytes that these hosts have written for the epoch.
        last: the host that reported last.
        late: the host with the agent that was recorded last. Other hosts wait for this agent, and may report later.
    """

    reports: int = 0
    new_bytes: int = 0
    last: PartTimes | None = None
    late: PartTimes | None = None


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """End of an epoch.

    Attributes:
        begun_ns, ended_ns: wall clock of the leader that proposed the operation.
        reason: why the epoch was aborted.
        account: summary of the reports; None: hosts do not report such epochs, or a plan or the fleet's end aborted it.
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
"""Limits on the length of hosts' names: 256 hosts may have names of 128 bytes, further hosts names of 16 bytes.
All names fit into one log entry (64 KiB), in a CommitPlan or a LoseHosts, with room for the reason."""

AGENTS_MAX, LONG_AGENTS_MAX, SHORT_AGENT_BYTES = 100_000, 20_000, 80
"""Limits on agents that are alive or part of a retained epoch. Each agent takes some 150 bytes of the image, which is encoded in some 30
ms. A plan names all of them in one message of 16 MiB, so beyond 20,000 agents an agent's id and kind have 80 bytes together."""

LOGGED_AGENTS_MAX = 20_000
"""Largest number of agents in logged protocols: each agent has vectors with one entry per agent."""

AGENTS_EVER_MAX = 200_000
"""Largest number of agents ever created. Ids are never reused, so the ids of departed agents are kept: at most about 10 MiB of the
image."""

EPOCHS_OPEN_MAX = 4
"""Largest number of open epochs: more would only keep channel state of the same slow agent several times."""

OUTCOMES_KEPT = 64
"""Number of ended epochs whose outcome can still be sent to a host. Hosts report only on open epochs, at most 4."""

PLANS_KEPT = 64
"""Number of plans in the recovery history."""

RESULTS_KEPT = 64
"""Number of results kept per client, which is also the number of unresolved requests that a client may have."""

CLIENTS_MAX = 1024
"""Number of clients remembered: runs of hosts (three clients each) and of the coordinator. The least recently used client is forgotten
first."""

PAST_INSTANCES_KEPT = 16
"""Number of earlier runs of a host that are remembered by name, so that they can be refused."""

ALIVE, LOST, LEFT = "alive", "lost", "left"
OPEN, COMPLETE, CONDEMNED, VOID = "open", "complete", "condemned", "void"
FORMING, RECOVERING, RUNNING, FINISHED, FAILED = "forming", "recovering", "running", "finished", "failed"
RECOVERY_TRIGGER = "recovery"
APPLIED, UNCHANGED, REFUSED, OVER = "applied", "unchanged", "refused", "over"


class OperationResult(msgspec.Struct, frozen=True, gc=False):
    """Result of an operation.

    Attributes:
        status: "applied"; "unchanged": the state already had this value; "refused": the state does not allow it and is unchanged;
            "over": refused because its proposer, its plan or the fleet is over. The next plan resolves the request.
        reason: why the operation was refused.
        number: assigned number: host start, plan, epoch, incarnation, or position of the next agent to define.
        begun: latest epoch that has begun (for creations).
        epochs: epochs that the operation aborted (losses, plans, damage, the end) or forgot, or open epochs (creations and removals).
    """

    status: str
    reason: str = ""
    number: int = 0
    begun: int = 0
    epochs: tuple[int, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Return whether the operation was refused, so the state is unchanged."""
        return self.status in (REFUSED, OVER)


class HostRecord(msgspec.Struct):
    """Record of one host.

    Attributes:
        start: number of the host's current run, from 1.
        instance: name of the current run, which the host process chose.
        past: names of earlier runs, oldest first.
        state: "alive", "lost" or "left".
        spare: why the host is on standby although it is reachable; "": the host is not kept on standby. Cleared
            when a plan uses the host.
        is_drained: an operator drains the host; the mark survives restarts of the host.
        died: number of the last run whose process is known to have died during turns.
    """

    start: int
    instance: str
    address: str
    state: str = ALIVE
    past: list[str] = []
    spare: str = ""
    is_drained: bool = False
    died: str = ""


class AgentRecord(msgspec.Struct):
    """Record of one agent that is alive or part of a kept epoch.

    Attributes:
        host: host on which the agent is placed; "" before the first plan.
        incarnation: grows with every restart. All agents restart together, so the incarnation is the number of their
            plan. Thus an id whose creation was void can be used again without repeating an incarnation (G9).
        is_initial: the fleet's definition names the agent, so it is a member of line 0.
        born_epoch: latest epoch begun when the agent's creation was committed; 0 for initial agents.
        left_epoch: latest epoch begun when the agent's removal was committed; None while it has not left.
        created_plan: plan under which the agent was created; 0 for initial agents.
        left_plan: plan under which the agent was removed; None while it has not left.
        ordinal: the agent's index in the vectors that messages carry; never reused, even if the agent's creation is void.
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

    def is_member_of(self, epoch: int) -> bool:
        """Return whether the agent is a member of `epoch` (protocols.md, 2.2 rules 7 and 8); line 0 holds the initial agents."""
        if epoch == 0:
            return self.is_initial
        return self.born_epoch < epoch and (self.left_epoch is None or self.left_epoch >= epoch)


class EpochRecord(msgspec.Struct):
    """Record of an epoch that is open, complete, condemned (found damaged later) or void (the fleet was restored to an earlier one).

    Attributes:
        root: root of the epoch's manifest, once complete.
        unborn: agents that are unborn in the epoch: a recovery to this epoch creates them again.
        drop_before: a plan that starts from this epoch drops inputs logged under plans below this number; 0: none.
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
    """Outcome of an epoch."""

    epoch: int
    is_complete: bool
    reason: str


class RestoreRecord(msgspec.Struct, frozen=True):
    """Restore that a plan executes.

    Attributes:
        request: the client's token of the request.
        drop_inputs: the request's choice; the plan's `drop_before` implements it.
        voided: complete epochs that the restore has made void.
        agent: the requesting agent; "": an operator.
    """

    request: str
    drop_inputs: bool
    voided: list[int]
    agent: str = ""


class PlanRecord(msgspec.Struct):
    """Record of a recovery plan, by which the fleet starts or restarts from a recovery line.

    Attributes:
        line_epoch, line_root: the recovery line; 0 and "" stand for the initial states.
        begun_epoch: latest epoch begun when the plan was committed; every agent starts with it as its r.
        hosts: hosts with agents, in order. They confirm the plan and report epochs; losing one requires a new plan.
        confirmed: hosts that have confirmed the plan.
        unborn: agents that are unborn on the line: their creation is in transit there, or waits in a checkpoint.
        lost: hosts whose loss caused the plan.
        condemned: epochs found damaged since the previous plan, and skipped in the choice of the line.
        messages: number of in-transit messages of the line, which are delivered again.
        suspected_ns, committed_ns, done_ns: wall clock; done 0: not all hosts have confirmed.
        rolled_back: number of agents that did not keep their live state; all of them in coordinated protocols.
        checkpoints_lost: number of durable checkpoints past the line, summed over the agents.
        restore: the restore that the plan executes; None: the plan is a start, a recovery or a move.
        drop_before: inputs past the line that were logged under plans below this number are dropped; 0: none.
        is_move: the plan moves agents and was not caused by a failure.
        lost_ns: duration of the work undone, up to the time when the lost hosts were last known to work; 0: unknown, in
            autonomous protocols.
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

    @property
    def is_failure(self) -> bool:
        """Return whether a failure caused the plan, rather than a move or a restore."""
        return self.restore is None and not self.is_move


LOGS_KNOWN_MAX = 1024
"""Number of sealed logs of the latest plans whose newest batch is remembered. They take some 40 KB of the state."""


class LogRecord(msgspec.Struct, frozen=True):
    """A host log that a later plan's hosts may not have sealed yet, or whose newest batch is known.

    `newest`: number of a durable batch, kept to detect the batch's removal from a signed or encrypted store; 0: none is known.
    """

    plan: int
    host: str
    host_start: int
    newest: int = 0


class ForkOrigin(msgspec.Struct, frozen=True):
    """Origin of a fork, which begins with one complete epoch of another fleet and has no initial states.

    Attributes:
        name: name of the fork.
        parent, parent_name: cluster and name of the other fleet.
        epoch: epoch of the snapshot, in both fleets.
        plan: plan of the snapshot; the fork's first plan has the next number.
        is_live: agents may do effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    plan: int
    is_live: bool


class TokenRecord(msgspec.Struct, frozen=True):
    """A user's token: its role, its SHA-256 digest, and its expiry."""

    role: str
    digest: bytes
    made_ns: int
    expires_ns: int


class CallRecord(msgspec.Struct, frozen=True):
    """Audit record of a user's call that changes the fleet.

    Attributes:
        number: sequence number of the call, from 1, without gaps.
        made_ns: time by the wall clock of the leader that proposed the record.
        name, role: the caller, authenticated by certificate or (`is_borne`) by token.
        at: the host that was called; "": the coordinator.
        call: name of the RPC.
        about: description of the request; for "failed" also the reason.
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
    """Reason why the fleet cannot continue under its current plan. `worked_until_ns`: wall-clock time until which lost hosts worked."""

    reason: str
    lost: list[str]
    suspected_ns: int
    worked_until_ns: int = 0


class CondemnedRecord(msgspec.Struct):
    """A complete epoch whose bytes were found damaged later, under `plan`."""

    epoch: int
    plan: int
    path: str
    reason: str


class RememberedResult(msgspec.Struct):
    """Result of a request, kept in case the request is repeated."""

    sequence: int
    digest: bytes
    result: OperationResult


class FleetImage(msgspec.Struct):
    """All of the replicated state.

    Attributes:
        policy: text that describes when agents checkpoint on their own, for display.
        log_bytes_max: limit on the size of sender logs in the store; 0: no limit.
        places: placement rules; the first rule that names an agent counts.
        agents_defined: number of agents in the definition; the fleet is defined when all of them are in `agents`.
        next_ordinal: ordinal of the next agent to be defined or created.
        forgotten_start: largest start of a forgotten host; new hosts begin above it (G9).
        gone: ids of agents that left and are in no kept epoch; these ids are never reused.
        epochs: open, complete, condemned and void epochs, ascending.
        begun: number of the latest epoch begun.
        forgotten: the highest forgotten epoch that was complete.
        logs: host logs, at most one per host and plan. Of plans older than the last one that all hosts have confirmed, only the last
            1,024 logs with a known batch are kept.
        need: set from the loss of a host with agents until the next plan.
        outcome: "stopped" or "failed" once the fleet has ended; `ending` has the reason.
        requests: client → its last results; the most recently used client is last.
        now_ns: largest time of any applied operation.
        rpo_ns: objective for the work that a failure may undo; 0: none.
        rto_ns: objective for the duration of a recovery; 0: none.
        fork: origin of the fleet; None: it began with its initial states.
        tokens: name → a user's token.
        calls, refusals: the last admitted, and the last refused, calls of users that change the fleet.
        calls_made: number of the last recorded call.
        ends: outcomes of the last epochs, oldest first; later changes of an epoch are not recorded here.
        deaths: turns during which processes have died, the most recently counted last.
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


_image_decoder = msgspec.msgpack.Decoder(FleetImage)


def decode_image(image: bytes) -> FleetImage:
    """Return the state in `image`.

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
    """Return the largest number of agents that a fleet of this protocol may have."""
    return LOGGED_AGENTS_MAX if is_logged(protocol) else AGENTS_MAX


def problem_of_agent_size(agent: str, kind: str, position: int) -> str:
    """Return why the id and class of an agent with `position` agents before it are too long, or "" if they are not."""
    if position < LONG_AGENTS_MAX or len(agent.encode()) + len(kind.encode()) <= SHORT_AGENT_BYTES:
        return ""
    return f"beyond {LONG_AGENTS_MAX} agents id and class have {SHORT_AGENT_BYTES} bytes together at most, not as agent {agent}"


def problem_of_host(host: str, others: int) -> str:
    """Return why this host cannot be added to a fleet of `others` hosts, or "" if it can."""
    if others >= HOSTS_MAX or not is_id(host):
        return f"a fleet has at most {HOSTS_MAX} hosts, each with a valid id"
    is_long = others >= LONG_HOSTS_MAX and len(host) > SHORT_HOST_BYTES
    return f"beyond {LONG_HOSTS_MAX} hosts ids have at most {SHORT_HOST_BYTES} bytes, not as {host}" if is_long else ""


def is_id(text: str) -> bool:
    """Return whether `text` can be the id of an agent or a host."""
    try:
        check_id(text)
    except UsageError:
        return False
    return True


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the operation is in the log permanently and has been applied."""

    result: OperationResult


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the operation is not in the log and never will be."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Outcome unknown: the operation may be in the log, now or later. Proposing it again under the same request id applies it only once."""

    reason: str


ProposalOutcome = Committed | Rejected | Unknown

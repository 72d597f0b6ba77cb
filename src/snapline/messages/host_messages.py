"""Messages between hosts and the coordinator. The comments in `coordinator.proto` explain the fields.

The codec maps structs and fields by name, so their names are the same as in `coordinator.proto`.
"""

import msgspec

from snapline.messages.past_rollbacks import PastRollback
from snapline.protocols.names import GLOBAL


class UnreachedPeer(msgspec.Struct, frozen=True, gc=False):
    """A host in the plan that has no link to this host, and how long the link has been missing. `is_waited` is true if a message or request
    is waiting for the link."""

    host: str
    host_start: int
    elapsed_ns: int
    is_waited: bool


COMMIT_AGE_NS = 50_000_000
"""Age of a change at which a host with local recovery commits it although nothing waits for it. A failure undoes changes that no commit
contains."""


CAPTURE, STOP_WHEN = "capture", "stop_when"
"""Names of two special turns. The first captures an agent's state. The second evaluates the fleet's `stop_when` predicate, and belongs to
no agent."""


class TurnDeath(msgspec.Struct, frozen=True, gc=False):
    """A turn during which the host's process died. `times`, the number of processes that have died during this turn, is set only in plans
    and in the log.

    `limit` is the number of tolerated deaths. `is_beside` is true if the turn ran in its own thread instead of on the event loop.
    """

    agent: str
    what: str
    sender: str
    type: str
    digest: bytes
    limit: int = 0
    is_beside: bool = False
    times: int = 0

    def describe(self) -> str:
        """Describe what the process was doing when it died."""
        if self.what == STOP_WHEN:
            return "stop_when was asked"
        if self.what == CAPTURE:
            return f"the state of agent {self.agent} was saved"
        of = f"{self.type} from {self.sender}" if self.type else f'"{self.what}"'
        return f"agent {self.agent} handled {of}"

    def sentence(self) -> str:
        """Return a sentence that contains this description and the number of deaths."""
        return f"{self.times} process{'es' * (self.times > 1)} died while {self.describe()}"


class HostMessage(msgspec.Struct, frozen=True, gc=False):
    """Base class of messages from a host to the coordinator."""


class Directive(msgspec.Struct, frozen=True, gc=False):
    """Base class of messages from the coordinator to hosts. All directives are idempotent, and are resent on every new stream."""


class AgentKind(msgspec.Struct, frozen=True, gc=False):
    """An agent and its class."""

    agent: str
    kind: str


class PlaceRule(msgspec.Struct, frozen=True, gc=False):
    """Rule that places certain agents on the given hosts, as long as at least one of these hosts is available. `agents` is an agent's id,
    or a prefix of ids followed by `*`."""

    agents: str
    hosts: tuple[str, ...]

    def applies_to(self, agent: str) -> bool:
        """Return whether the rule names this agent."""
        return agent.startswith(self.agents[:-1]) if self.agents.endswith("*") else agent == self.agents


class OpenTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that has run for more than a second."""

    agent: str
    elapsed_ns: int


class StandingAgent(msgspec.Struct, frozen=True, gc=False):
    """An agent that is suspended during a durable turn and waits for an operator. `kind` is the kind of the `Concern` about this agent."""

    agent: str
    kind: str
    reason: str
    elapsed_ns: int


class ReportedPack(msgspec.Struct, frozen=True, gc=False):
    """Report that a host has made a pack durable."""

    path: str
    size_bytes: int
    index_digest: bytes


# ---- host → coordinator -------------------------------------------------------------------------------------------


class Join(HostMessage, frozen=True, gc=False):
    host: str
    instance: str
    address: str
    fleet: str
    definition_digest: bytes
    plan: int = 0
    died: str = ""
    died_in: tuple[TurnDeath, ...] = ()
    definition_parts: tuple[str, ...] = ()
    dependencies: dict[str, str] = {}


class FleetDefinition(HostMessage, frozen=True, gc=False):
    name: str
    protocol: str
    period_ns: int
    epoch_timeout_ns: int
    agents: tuple[AgentKind, ...]
    never_stops: bool = False
    policy: str = ""
    log_bytes_max: int = 0
    places: tuple[PlaceRule, ...] = ()
    rpo_ns: int = 0
    rto_ns: int = 0
    recovery: str = GLOBAL


class ProbeRead(HostMessage, frozen=True, gc=False):
    path: str
    content: bytes
    error: str = ""
    may_pass: bool = False


class Heartbeat(HostMessage, frozen=True, gc=False):
    sequence: int
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
    storing: int = 0
    put_off: int = 0
    store_problem: str = ""
    is_standing: bool = False
    plan: int = 0
    steps_loaded: int = 0
    unreached: tuple[UnreachedPeer, ...] = ()
    inputs_waiting: int = 0
    outputs_waiting: int = 0
    output_bytes_waiting: int = 0
    agents_full: int = 0
    standing: tuple[StandingAgent, ...] = ()
    agents_standing: int = 0
    log_problem: str = ""
    certificate_left_ns: int | None = None


class EpochReport(HostMessage, frozen=True, gc=False):
    """Report that a host's part of an epoch is durable. The tuples are columns of a table, in which agents are represented by indices into
    `names`.

    `slowest` is the agent on this host that recorded its state last. The fields from `start_delay_ns` to `store_ns` are the durations of
    the agent's phases, as in `PartTimes`. `new_bytes` is the number of bytes written. If `since` is not 0, channels that have not changed
    since this host's report of epoch `since` are omitted. If `since` is 0, no channel is omitted.

    `log_floor` is the number of the newest batch, in this host's log of the epoch's plan, up to which this part of the epoch covers all
    commits. The number is 0 if there is no such batch. `log_start` is the number of the first batch in this log that may contain commits,
    inputs or journal entries that this part does not cover. It is 0 if logs of earlier plans may contain inputs or journal entries too.
    """

    epoch: int
    host_start: int
    pack: ReportedPack
    names: tuple[str, ...] = ()
    agents: tuple[int, ...] = ()
    unborn: tuple[bool, ...] = ()
    sent_from: tuple[int, ...] = ()
    sent_to: tuple[int, ...] = ()
    sent_number: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    received_to: tuple[int, ...] = ()
    received_number: tuple[int, ...] = ()
    recorded_count: tuple[int, ...] = ()
    capture_ns: int = 0
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    input_of: tuple[int, ...] = ()
    input_number: tuple[int, ...] = ()
    output_of: tuple[int, ...] = ()
    output_number: tuple[int, ...] = ()
    durable_of: tuple[int, ...] = ()
    durable_number: tuple[int, ...] = ()
    captures_ns: int = 0
    slowest: str = ""
    start_delay_ns: int = 0
    slowest_capture_ns: int = 0
    alignment_ns: int = 0
    store_ns: int = 0
    new_bytes: int = 0
    since: int = 0
    log_floor: int = 0
    log_start: int = 0


class EpochRefused(HostMessage, frozen=True, gc=False):
    epoch: int
    reason: str
    is_final: bool = False


class PlanApplied(HostMessage, frozen=True, gc=False):
    plan: int
    host_start: int


class PlanRefused(HostMessage, frozen=True, gc=False):
    plan: int
    host_start: int
    damaged_epoch: int = 0
    path: str = ""
    reason: str = ""
    may_pass: bool = False


class ReserveAgents(HostMessage, frozen=True, gc=False):
    """Request to create agents. If recovery is local, `parent` is the agent that creates them, and may repeat the request after it was
    restarted."""

    request: int
    plan: int
    agents: tuple[AgentKind, ...]
    parent: str = ""


class RetireAgent(HostMessage, frozen=True, gc=False):
    request: int
    plan: int
    agent: str


class OpenLog(HostMessage, frozen=True, gc=False):
    """Request for permission to log inputs under this plan, or later, a report of the last logged batch.

    Attributes:
        key: public key for verifying the host's signatures on batches; empty if batches are not signed.
        newest: number of the last durable batch if the store is signed or encrypted, otherwise 0.
    """

    plan: int
    key: bytes = b""
    newest: int = 0


class WantEpoch(HostMessage, frozen=True, gc=False):
    """Request for an epoch, because a client waits until a complete epoch contains the work of agents on this host."""

    plan: int


class LocateAgents(HostMessage, frozen=True, gc=False):
    request: int
    agents: tuple[str, ...]


class PeerSuspected(HostMessage, frozen=True, gc=False):
    host: str
    host_start: int
    reason: str = ""


class AgentFailed(HostMessage, frozen=True, gc=False):
    agent: str
    incarnation: int
    reason: str


class WantRollback(HostMessage, frozen=True, gc=False):
    """Report that a turn has requested a rollback of the fleet to a snapshot: "last", "turn", a tag or an epoch number. The agent waits
    for the rollback.

    Attributes:
        place: function and line in the agent's code that made the request.
        done: what the turn had requested, encoded by `past_rollbacks.encode_requests`.
        turn: number of the turn among the agent's durable turns, or 0 if it is a plain turn.
        at_most: number of rollbacks for this reason from this place, above which an operator must decide.
    """

    agent: str
    incarnation: int
    snapshot: str
    reason: str
    place: str
    done: bytes = b""
    turn: int = 0
    at_most: int = 1


class TurnSurvived(HostMessage, frozen=True, gc=False):
    """Report that a turn has succeeded after earlier attempts had killed their processes."""

    agent: str
    digest: bytes


class StopEvaluated(HostMessage, frozen=True, gc=False):
    # open_effects: effects that must end before the fleet stops; if `reached`, turns with external effects that are still running
    epoch: int
    reached: bool
    error: str = ""
    open_effects: tuple[str, ...] = ()


class Leave(HostMessage, frozen=True, gc=False):
    reason: str = ""


class CheckpointsStored(HostMessage, frozen=True, gc=False):
    """Report that checkpoints of individual agents are durable. The agents took these checkpoints independently or for a checkpoint round.
    The tuples are columns of a table, which `coordinator.proto` explains."""

    host_start: int
    plan: int
    sequence: int
    pack: ReportedPack
    names: tuple[str, ...] = ()
    agents: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    bases: tuple[str, ...] = ()
    epoch: int = 0
    sent_of: tuple[int, ...] = ()
    sent_to: tuple[int, ...] = ()
    sent_number: tuple[int, ...] = ()
    received_of: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    received_number: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    log_messages: int = 0
    log_bytes: int = 0
    state_bytes: int = 0
    capture_ns: int = 0
    captures_ns: int = 0


class AgentsFrozen(HostMessage, frozen=True, gc=False):
    """Report that all agents on the host are frozen. No agent starts another turn. Each agent that is not in `running` has a durable
    checkpoint of its live state."""

    plan: int
    number: int
    host_start: int
    running: tuple[str, ...] = ()


class CheckpointsAnswered(HostMessage, frozen=True, gc=False):
    """Agents' answers to the requests of a checkpoint round. The tuples are columns of a table. `request_of` contains indices into
    `agents`. `askers` contains, for each of `agents`, the agent whose request is answered."""

    epoch: int
    plan: int
    host_start: int
    agents: tuple[str, ...] = ()
    willing: tuple[bool, ...] = ()
    participants: tuple[bool, ...] = ()
    numbers: tuple[int, ...] = ()
    request_of: tuple[int, ...] = ()
    request_to: tuple[str, ...] = ()
    request_number: tuple[int, ...] = ()
    askers: tuple[str, ...] = ()


class NumbersReported(HostMessage, frozen=True, gc=False):
    """Current sequence numbers of the agents on a host. Agents that have had no turn since their last checkpoint are omitted."""

    request: int
    plan: int
    names: tuple[str, ...] = ()
    agents: tuple[int, ...] = ()
    received_of: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    received_number: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()


class MessagePart(HostMessage, frozen=True, gc=False):
    """Part of a message that is too large for a single message on the wire."""

    data: bytes
    is_last: bool


# ---- coordinator → host -------------------------------------------------------------------------------------------


class Welcome(Directive, frozen=True, gc=False):
    """Admission of a host's process. If `refuses_effects` is true, the fleet is a fork and must not perform external effects."""

    host_start: int
    cluster: str
    wants_definition: bool = False
    heartbeat_ns: int = 0
    refuses_effects: bool = False


class ReadProbe(Directive, frozen=True, gc=False):
    """Instruction to read this file in the store and return its contents."""

    path: str


class RosterEntry(msgspec.Struct, frozen=True, gc=False):
    """A live host."""

    host: str
    address: str
    host_start: int


class Roster(Directive, frozen=True, gc=False):
    hosts: tuple[RosterEntry, ...]


class PlacedAgent(msgspec.Struct, frozen=True, gc=False):
    """The placement of one agent in a plan. `host` is an index into the hosts of the plan."""

    agent: str
    kind: str
    host: int
    incarnation: int
    is_unborn: bool = False
    ordinal: int = 0


class HostLog(msgspec.Struct, frozen=True, gc=False):
    """The input log that one run of a host writes under one plan. `newest` is the number of a batch that the log is known to contain, or 0
    if no batch is known."""

    plan: int
    host: str
    host_start: int
    newest: int = 0


class Plan(Directive, frozen=True, gc=False):
    """A recovery plan. `logs` contains logs of earlier plans, if hosts may still write to them or they contain a known batch.

    Inputs beyond the recovery line are dropped if they are in the log of a plan whose number is below `drop_before`. Commits in logs of
    plans whose number is below `era` are void.

    With local recovery, `sources` contains the hosts that had the agents which start again. Of the logs of the plan `sources_since` and later
    plans, only those of these hosts contain anything of these agents. If `sources_since` is 0, all logs may.

    `rollbacks` are the newest returns of the fleet to earlier snapshots, oldest first.
    """

    number: int
    line_epoch: int
    line_root: str
    begun_epoch: int
    hosts: tuple[str, ...]
    agents: tuple[PlacedAgent, ...]
    logs: tuple[HostLog, ...] = ()
    drop_before: int = 0
    deaths: tuple[TurnDeath, ...] = ()
    era: int = 0
    sources: tuple[str, ...] = ()
    sources_since: int = 0
    rollbacks: tuple[PastRollback, ...] = ()


class BeginEpoch(Directive, frozen=True, gc=False):
    """Instruction to begin an epoch. `base` is the newest complete epoch. If a host refers to a newer epoch than `base`, that epoch has
    been condemned.

    `told` is an epoch for which this leader has received all reports, or 0 if there is none. The report of the new epoch may omit channels
    that have not changed since the epoch `told`. If `again` is true, the host's earlier report of this epoch was not sufficient.
    """

    epoch: int
    plan: int
    hosts: tuple[str, ...] = ()
    base: int = 0
    told: int = 0
    again: bool = False


class EndEpoch(Directive, frozen=True, gc=False):
    """Notice that an epoch is complete or aborted. For a complete epoch, `agents` and `inputs` may list agents, each with the number of the
    last input that the agent had consumed in the epoch.

    `emitters` and `outputs` list agents, each with the number of the last output that the agent had emitted in the epoch. `emitters` and
    `outputs` are sent in a second `EndEpoch` when the outputs of the epoch are released.
    """

    epoch: int
    is_complete: bool
    reason: str = ""
    agents: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    emitters: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()


class OutputsWatched(Directive, frozen=True, gc=False):
    """Notice whether a consumer is reading outputs live, in which case hosts request an epoch for each pending output."""

    is_watched: bool


class RollbackRefused(Directive, frozen=True, gc=False):
    """Notice that an agent's rollback request was refused. The agent keeps waiting until a plan is made for another reason."""

    agent: str
    incarnation: int
    reason: str


class AgentsReserved(Directive, frozen=True, gc=False):
    request: int
    recorded: int = 0
    open_epochs: tuple[int, ...] = ()
    incarnation: int = 0
    refused: str = ""
    ordinals: tuple[int, ...] = ()


class LogOpened(Directive, frozen=True, gc=False):
    """Confirmation that a log is open. All later plans inform the hosts about this log.

    Attributes:
        certificate: the coordinator's signature over the host's key for this log; empty if batches are not signed.
        newest: number of a batch that, from now on, the coordinator knows to be in the log.
    """

    plan: int
    certificate: bytes = b""
    newest: int = 0


class AgentRetired(Directive, frozen=True, gc=False):
    request: int
    open_epochs: tuple[int, ...] = ()
    refused: str = ""


class AgentsLocated(Directive, frozen=True, gc=False):
    request: int
    agents: tuple[str, ...]
    hosts: tuple[str, ...]
    incarnations: tuple[int, ...]
    ordinals: tuple[int, ...] = ()


class EvaluateStop(Directive, frozen=True, gc=False):
    epoch: int
    root: str
    is_decided: bool = False


class Finish(Directive, frozen=True, gc=False):
    epoch: int
    outcome: str
    reason: str


class TurnedAway(Directive, frozen=True, gc=False):
    reason: str
    is_final: bool


class CheckpointsKnown(Directive, frozen=True, gc=False):
    """Notice that the host need not resend its `CheckpointsStored` reports up to this sequence number."""

    sequence: int


class FreezeAgents(Directive, frozen=True, gc=False):
    """Instruction to start no more turns, checkpoint every agent that has changed, and then send `AgentsFrozen`."""

    plan: int
    number: int


class ThawAgents(Directive, frozen=True, gc=False):
    """Instruction to end the freeze with this number. The number 0 ends any freeze, because the host may have missed an earlier
    instruction."""

    plan: int
    number: int


class RequestCheckpoints(Directive, frozen=True, gc=False):
    """Instruction to deliver the checkpoint requests of a round to these agents. An agent whose asker is empty is an initiator of the
    round."""

    epoch: int
    plan: int
    agents: tuple[str, ...]
    askers: tuple[str, ...]
    numbers: tuple[int, ...]


class ReportNumbers(Directive, frozen=True, gc=False):
    """Request for the current sequence numbers of the agents on the host, on behalf of a tool."""

    request: int
    plan: int


SAME_SIGNAL_S = 0.2
"""Two stop signals that reach a process within this time in seconds count as one, because a terminal or batch system and the launcher may
both deliver the same signal."""


class Quiesce(Directive, frozen=True, gc=False):
    """Instruction to hold back clients' inputs or calls of external effects until the next `Quiesce`, plan or stream. If effects are held
    back, the host replies with `Quiesced`.

    With local recovery, `frozen` contains agents that are about to move. They begin no turn until the next `Quiesce` or plan, and before
    `Quiesced` a durable commit contains all that they have done.
    """

    number: int
    holds_inputs: bool = False
    holds_effects: bool = False
    frozen: tuple[str, ...] = ()


class Quiesced(HostMessage, frozen=True, gc=False):
    """Report that no effect call is running on this host, and that none will start until the hold with this number ends."""

    number: int


class WantLeave(HostMessage, frozen=True, gc=False):
    """Report that the host wants to stop and waits for a snapshot that contains all work of its agents."""

    reason: str = ""


class MayLeave(Directive, frozen=True, gc=False):
    """Permission to stop. The epoch `epoch` contains all work that the host's agents had done when the host sent `WantLeave`."""

    epoch: int

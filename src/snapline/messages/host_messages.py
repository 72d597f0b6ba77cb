"""Messages between hosts and the coordinator, as structs. The comments in `coordinator.proto` explain the fields.

The codec maps structs and fields by name, so they have the names of `coordinator.proto`.
"""

import msgspec


class UnreachedPeer(msgspec.Struct, frozen=True, gc=False):
    """A peer host of the plan, and how long there has been no link to it. `is_waited`: a message or request waits for the link."""

    host: str
    host_start: int
    elapsed_ns: int
    is_waited: bool


CAPTURE, STOP_WHEN = "capture", "stop_when"
"""Names of special turns: the capture of an agent's state, and the evaluation of the fleet's predicate, which belongs to no agent."""


class TurnDeath(msgspec.Struct, frozen=True, gc=False):
    """A turn during which a host's process died. `times` is the number of such deaths, counted in plans.

    `limit` is the number of deaths tolerated. `is_beside` means that the turn ran in a thread, next to the event loop.
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
        """Return a readable description of what the process was doing."""
        if self.what == STOP_WHEN:
            return "stop_when was asked"
        if self.what == CAPTURE:
            return f"the state of agent {self.agent} was saved"
        of = f"{self.type} from {self.sender}" if self.type else f'"{self.what}"'
        return f"agent {self.agent} handled {of}"

    def sentence(self) -> str:
        """Return a readable sentence with the number of deaths."""
        return f"{self.times} process{'es' * (self.times > 1)} died while {self.describe()}"


class HostMessage(msgspec.Struct, frozen=True, gc=False):
    """Base class of messages from a host to the coordinator."""


class Directive(msgspec.Struct, frozen=True, gc=False):
    """Base class of messages from the coordinator to hosts. All are idempotent, and are sent again on every new stream."""


class AgentKind(msgspec.Struct, frozen=True, gc=False):
    """An agent and its class."""

    agent: str
    kind: str


class PlaceRule(msgspec.Struct, frozen=True, gc=False):
    """Rule that places some agents on one of these hosts, as long as one is present. `agents`: an id, or a prefix of ids followed by
    `*`."""

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
    """An agent that waits for an operator in the middle of a durable turn. `kind` is the kind of the fleet's concern about it."""

    agent: str
    kind: str
    reason: str
    elapsed_ns: int


class ReportedPack(msgspec.Struct, frozen=True, gc=False):
    """A pack that a host has made durable, as the host reports it to the coordinator."""

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
    """Report that a host's part of an epoch is durable. The fields are columns; indices point into `names`.

    `slowest` is the agent of this host that recorded last, with its phases `start_delay_ns` … `store_ns` as in `PartTimes`. `new_bytes`
    is the number of bytes written. `since`: channels that are omitted are unchanged since this host's report of that epoch; 0 if none is
    omitted.
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
    request: int
    plan: int
    agents: tuple[AgentKind, ...]


class RetireAgent(HostMessage, frozen=True, gc=False):
    request: int
    plan: int
    agent: str


class OpenLog(HostMessage, frozen=True, gc=False):
    """Request to log inputs under this plan, or a later report of what was logged.

    Attributes:
        key: public key with which the host signs batches; empty if they are not signed.
        newest: number of the last durable batch if the store is signed or encrypted; 0 otherwise.
    """

    plan: int
    key: bytes = b""
    newest: int = 0


class WantEpoch(HostMessage, frozen=True, gc=False):
    """Epoch request: a client waits for an epoch that holds what agents of this host have done."""

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
    """Report that a turn has requested a rollback of the fleet to a snapshot ("last", a tag or an epoch). Its agent waits. `place` is the
    function and the line in the agent's code."""

    agent: str
    incarnation: int
    snapshot: str
    reason: str
    place: str


class TurnSurvived(HostMessage, frozen=True, gc=False):
    """Report that a turn that had killed processes before has ended successfully."""

    agent: str
    digest: bytes


class StopEvaluated(HostMessage, frozen=True, gc=False):
    # open_effects: effects that must end first; if `reached`, turns with external effects that are still running
    epoch: int
    reached: bool
    error: str = ""
    open_effects: tuple[str, ...] = ()


class Leave(HostMessage, frozen=True, gc=False):
    reason: str = ""


class CheckpointsStored(HostMessage, frozen=True, gc=False):
    """Report that checkpoints of single agents, taken independently or for a round, are durable. The fields are columns; see the proto."""

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
    """Report that agents are frozen: no agent of the host takes a turn; each agent except `running` has a durable checkpoint of its live
    state."""

    plan: int
    number: int
    host_start: int
    running: tuple[str, ...] = ()


class CheckpointsAnswered(HostMessage, frozen=True, gc=False):
    """Answers of agents to the requests of a round. The fields are columns. `request_of` is an index into `agents`; `askers` names the
    agent whose request each of them answers."""

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
    """Current numbers of a host's agents. Agents without a turn since their checkpoint are omitted."""

    request: int
    plan: int
    names: tuple[str, ...] = ()
    agents: tuple[int, ...] = ()
    received_of: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    received_number: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()


class MessagePart(HostMessage, frozen=True, gc=False):
    """A part of a message that exceeds the size of one message on the wire."""

    data: bytes
    is_last: bool


# ---- coordinator → host -------------------------------------------------------------------------------------------


class Welcome(Directive, frozen=True, gc=False):
    """Admit a run of a host. `refuses_effects`: the fleet is a fork that must not perform external effects."""

    host_start: int
    cluster: str
    wants_definition: bool = False
    heartbeat_ns: int = 0
    refuses_effects: bool = False


class ReadProbe(Directive, frozen=True, gc=False):
    """Read this file in the store and return its content."""

    path: str


class RosterEntry(msgspec.Struct, frozen=True, gc=False):
    """A living host."""

    host: str
    address: str
    host_start: int


class Roster(Directive, frozen=True, gc=False):
    hosts: tuple[RosterEntry, ...]


class PlacedAgent(msgspec.Struct, frozen=True, gc=False):
    """Place of an agent in a plan. `host` is an index into the plan's hosts."""

    agent: str
    kind: str
    host: int
    incarnation: int
    is_unborn: bool = False
    ordinal: int = 0


class HostLog(msgspec.Struct, frozen=True, gc=False):
    """Input log of one run of a host under one plan. `newest` is the number of a batch that the coordinator knows to be in the log."""

    plan: int
    host: str
    host_start: int
    newest: int = 0


class Plan(Directive, frozen=True, gc=False):
    """Recovery plan. `logs` are the logs of earlier plans that may still be written, or whose newest batch is known.

    `drop_before`: inputs beyond the recovery line are dropped if they are in logs of plans below this number.
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


class BeginEpoch(Directive, frozen=True, gc=False):
    """Begin an epoch. `base` is the newest complete epoch. If a host refers to a newer epoch, that epoch was condemned in the meantime.

    `told` is an epoch of which this leader has all reports, so channels unchanged since then may be omitted; 0 if there is none.
    `again` means that the host's earlier report of this epoch was not sufficient.
    """

    epoch: int
    plan: int
    hosts: tuple[str, ...] = ()
    base: int = 0
    told: int = 0
    again: bool = False


class EndEpoch(Directive, frozen=True, gc=False):
    """End an epoch. For a complete epoch, `agents` and `inputs` may hold agents and the numbers of the last inputs that they had consumed
    in it.

    `emitters` and `outputs` hold agents and the numbers of the last outputs that they had emitted in the epoch. They are sent in a second
    EndEpoch, when the outputs of the epoch are released.
    """

    epoch: int
    is_complete: bool
    reason: str = ""
    agents: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    emitters: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()


class OutputsWatched(Directive, frozen=True, gc=False):
    """Notice whether a consumer reads outputs live. If one does, hosts request an epoch for each pending output."""

    is_watched: bool


class RollbackRefused(Directive, frozen=True, gc=False):
    """Notice that a rollback was refused. The agent waits until a plan is made for another reason."""

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
    """Confirmation that a log is open. Every host that gets a later plan learns of this log.

    Attributes:
        certificate: the coordinator's signature of the host's key for this log; empty if batches are not signed.
        newest: number of a batch known to be in the log from now on.
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
    """Notice that the host need not repeat its reports up to this number."""

    sequence: int


class FreezeAgents(Directive, frozen=True, gc=False):
    """Start no more turns, checkpoint every agent that has changed, and send AgentsFrozen."""

    plan: int
    number: int


class ThawAgents(Directive, frozen=True, gc=False):
    """End the freeze with this number; 0 ends any freeze, for a host that missed the end of one."""

    plan: int
    number: int


class RequestCheckpoints(Directive, frozen=True, gc=False):
    """Make these agents handle the checkpoint requests of a round. An empty asker makes the agent an initiator."""

    epoch: int
    plan: int
    agents: tuple[str, ...]
    askers: tuple[str, ...]
    numbers: tuple[int, ...]


class ReportNumbers(Directive, frozen=True, gc=False):
    """Request the current numbers of the agents, on behalf of a tool."""

    request: int
    plan: int


SAME_SIGNAL_S = 0.2
"""Two signals to a process within this time in seconds count as one stop, because a terminal or batch system and the launcher both pass
it on."""


class Quiesce(Directive, frozen=True, gc=False):
    """Hold back inputs of clients, or calls of effects, until the next Quiesce, plan or stream. Answer with Quiesced if effects are
    held."""

    number: int
    holds_inputs: bool = False
    holds_effects: bool = False


class Quiesced(HostMessage, frozen=True, gc=False):
    """Report that effects are held: no effect call is running on this host, and none will start until the hold with this number ends."""

    number: int


class WantLeave(HostMessage, frozen=True, gc=False):
    """Report that the host wants to stop, and waits for a snapshot that holds what its agents have done."""

    reason: str = ""


class MayLeave(Directive, frozen=True, gc=False):
    """Permission to stop: epoch `epoch` holds what the host's agents had done when the host sent WantLeave."""

    epoch: int

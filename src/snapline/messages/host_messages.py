"""Messages between hosts and the coordinator, as structs; the proto comments say what each means.

The codec goes by names: they are those of `coordinator.proto`.
"""

import msgspec

from snapline.messages.turn_deaths import TurnDeath
from snapline.messages.unreached import UnreachedPeer


class HostMessage(msgspec.Struct, frozen=True, gc=False):
    """Base of what a host says."""


class Directive(msgspec.Struct, frozen=True, gc=False):
    """Base of what the coordinator sends to hosts. All are idempotent and sent again on every new stream."""


class AgentKind(msgspec.Struct, frozen=True, gc=False):
    """An agent and its class."""

    agent: str
    kind: str


class PlaceRule(msgspec.Struct, frozen=True, gc=False):
    """Placement of some agents: on one of these hosts, as long as one of them is there. `agents`: an id, or the beginning of ids and `*`."""

    agents: str
    hosts: tuple[str, ...]

    def is_about(self, agent: str) -> bool:
        """Return whether the rule names this agent."""
        return agent.startswith(self.agents[:-1]) if self.agents.endswith("*") else agent == self.agents


class OpenTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that has run for more than a second."""

    agent: str
    elapsed_ns: int


class StandingAgent(msgspec.Struct, frozen=True, gc=False):
    """An agent that waits in the middle of a durable turn until people do something. `kind`: of the concern."""

    agent: str
    kind: str
    reason: str
    elapsed_ns: int


class ReportedPack(msgspec.Struct, frozen=True, gc=False):
    """A pack that its writer has made durable: its report to the coordinator."""

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
    """A host's part of an epoch is durable. Columns; indices point into `names`.

    `slowest`, `start_delay_ns` … `store_ns`: the agent here that recorded last, and its way, in `PartTimes`'s words; `new_bytes`: written.
    `since`: channels that are left out are as in this host's report of that epoch; 0: none is left out.
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
    """The host wants to log inputs under this plan; or it does so, and reports what it has written.

    Attributes:
        key: the public key that it signs batches with; empty where they are not signed.
        newest: number of the last batch that is durable, where the store is signed or encrypted; else 0.
    """

    plan: int
    key: bytes = b""
    newest: int = 0


class WantEpoch(HostMessage, frozen=True, gc=False):
    """Epoch request: somebody outside waits for one that holds what agents here have done."""

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
    """A turn requested a rollback of the fleet to a snapshot ("last", a tag or an epoch). Its agent waits. `place`: in its code."""

    agent: str
    incarnation: int
    snapshot: str
    reason: str
    place: str


class TurnSurvived(HostMessage, frozen=True, gc=False):
    """A turn in which processes had died has ended well."""

    agent: str
    digest: bytes


class StopEvaluated(HostMessage, frozen=True, gc=False):
    # open_effects: what is to end before; if `reached`, turns that have done something outside and go on
    epoch: int
    reached: bool
    error: str = ""
    open_effects: tuple[str, ...] = ()


class Leave(HostMessage, frozen=True, gc=False):
    reason: str = ""


class CheckpointsStored(HostMessage, frozen=True, gc=False):
    """Checkpoints that agents took on their own, or for a round, are durable. Columns; see the proto."""

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
    """Agents frozen: no agent of the host takes a turn; each but `running` has a durable checkpoint of its live state."""

    plan: int
    number: int
    host_start: int
    running: tuple[str, ...] = ()


class CheckpointsAnswered(HostMessage, frozen=True, gc=False):
    """Answers of agents to a round's requests. Columns; `request_of` is an index into `agents`, `askers` says which
    question each of them answers."""

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
    """Current numbers of a host's agents; those without a turn since their checkpoint are left out."""

    request: int
    plan: int
    names: tuple[str, ...] = ()
    agents: tuple[int, ...] = ()
    received_of: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    received_number: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()


class MessagePart(HostMessage, frozen=True, gc=False):
    """A piece of a message that is too large for one."""

    data: bytes
    is_last: bool


# ---- coordinator → host -------------------------------------------------------------------------------------------


class Welcome(Directive, frozen=True, gc=False):
    """`refuses_effects`: the fleet is a fork that may not touch the world outside."""

    host_start: int
    cluster: str
    wants_definition: bool = False
    heartbeat_ns: int = 0
    refuses_effects: bool = False


class ReadProbe(Directive, frozen=True, gc=False):
    """Read this file in the store and say what is in it."""

    path: str


class RosterEntry(msgspec.Struct, frozen=True, gc=False):
    """A living host."""

    host: str
    address: str
    host_start: int


class Roster(Directive, frozen=True, gc=False):
    hosts: tuple[RosterEntry, ...]


class PlacedAgent(msgspec.Struct, frozen=True, gc=False):
    """An agent's place in a plan; `host` is an index into its hosts."""

    agent: str
    kind: str
    host: int
    incarnation: int
    is_unborn: bool = False
    ordinal: int = 0


class HostLog(msgspec.Struct, frozen=True, gc=False):
    """The log of inputs of one run of a host under one plan. `newest`: number of a batch that is in it, as far as the coordinator knows."""

    plan: int
    host: str
    host_start: int
    newest: int = 0


class Plan(Directive, frozen=True, gc=False):
    """Recovery plan. `logs`: of earlier plans, which may be written still, or whose newest batch is known.

    `drop_before`: inputs beyond the line in logs of plans below this one are dropped.
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
    """`base`: the newest complete epoch. A host that refers to a newer one refers to one that was condemned since.

    `told`: an epoch whose reports this leader has all: channels that have not changed since may be left out; 0: none. `again`: what the
    host has reported of this epoch does not suffice.
    """

    epoch: int
    plan: int
    hosts: tuple[str, ...] = ()
    base: int = 0
    told: int = 0
    again: bool = False


class EndEpoch(Directive, frozen=True, gc=False):
    """`agents`, `inputs`: of a complete one, perhaps, agents and the numbers of the last inputs that they had consumed in it.

    `emitters`, `outputs`: once its outputs are released, agents and the numbers of the last ones that they had emitted in it. Then
    it is said again.
    """

    epoch: int
    is_complete: bool
    reason: str = ""
    agents: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    emitters: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()


class OutputsWatched(Directive, frozen=True, gc=False):
    """Notice whether a consumer reads outputs as they come: then hosts want an epoch for each that is pending."""

    is_watched: bool


class RollbackRefused(Directive, frozen=True, gc=False):
    """Rollback refused: the agent waits until there is a plan for another reason."""

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
    """Log opened: every holder of a later plan will know of it.

    Attributes:
        certificate: the coordinator's signature of the host's key for this log; empty where batches are not signed.
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
    """The host need not repeat its reports up to this one."""

    sequence: int


class FreezeAgents(Directive, frozen=True, gc=False):
    """Start no more turns, checkpoint what has moved, and say AgentsFrozen."""

    plan: int
    number: int


class ThawAgents(Directive, frozen=True, gc=False):
    """Go on; `number` 0: whatever freeze it is, for a host that came back without learning of its end."""

    plan: int
    number: int


class RequestCheckpoints(Directive, frozen=True, gc=False):
    """A round asks these agents; asker "" makes one an initiator."""

    epoch: int
    plan: int
    agents: tuple[str, ...]
    askers: tuple[str, ...]
    numbers: tuple[int, ...]


class ReportNumbers(Directive, frozen=True, gc=False):
    """A tool requests the agents' numbers."""

    request: int
    plan: int

"""Content of the replicated state: one image, encoded as a whole into the log when it is compacted.

Every table is bounded; the constants say by what. The image stays below the 64 MiB that a replica accepts from another;
where names have usual lengths, and ids are not used up, it has 16 MiB at most.
"""

import msgspec

from snapline.coordinator.state.epoch_records import EpochEnd
from snapline.errors import LogError, UsageError
from snapline.ids import check_id
from snapline.messages.host_messages import PlaceRule
from snapline.messages.turn_deaths import TurnDeath
from snapline.protocols.names import is_logged

IMAGE_VERSION = 1

HOSTS_MAX, LONG_HOSTS_MAX, SHORT_HOST_BYTES = 1_000, 256, 16
"""Limits of host names: all fit into one entry of the log (64 KiB), in a CommitPlan and a LoseHosts, with room for the reason: 256 of 128 bytes
each, and of those that come when there are so many 16 bytes each."""

AGENTS_MAX, LONG_AGENTS_MAX, SHORT_AGENT_BYTES = 100_000, 20_000, 80
"""Agents alive or still part of a retained epoch: some 150 bytes each in the image, which is frozen in some 30 ms. A plan names all of them in one
message of 16 MiB: of those that come when there are 20,000, id and kind have 80 bytes together."""

LOGGED_AGENTS_MAX = 20_000
"""The same where agents store checkpoints of their own: each has vectors that are as long as there were agents."""

AGENTS_EVER_MAX = 200_000
"""Ids of agents that have left stay known, since ids are never used again: at most about 10 MiB of the image."""

EPOCHS_OPEN_MAX = 4
"""Largest number of open epochs: more would only keep channel state of the same slow agent several times."""

OUTCOMES_KEPT = 64
"""Number of ended epochs whose outcome can be sent to a host that asks again. Hosts ask only for open ones, 4 at most."""

PLANS_KEPT = 64
"""Plans in the recovery history."""

RESULTS_KEPT = 64
"""Results kept for each client: as many as it may have unresolved."""

CLIENTS_MAX = 1024
"""Clients remembered: runs of hosts (three each) and of the coordinator. The one longest silent is forgotten first."""

PAST_INSTANCES_KEPT = 16
"""Earlier runs of a host that are recognised, and refused, by name."""

ALIVE, LOST, LEFT = "alive", "lost", "left"
OPEN, COMPLETE, CONDEMNED, VOID = "open", "complete", "condemned", "void"
FORMING, RECOVERING, RUNNING, FINISHED, FAILED = "forming", "recovering", "running", "finished", "failed"
RECOVERY_TRIGGER = "recovery"
APPLIED, UNCHANGED, REFUSED, OVER = "applied", "unchanged", "refused", "over"


class OperationResult(msgspec.Struct, frozen=True, gc=False):
    """Result of an operation.

    Attributes:
        status: "applied"; "unchanged": it was so already; "refused": the state does not allow it, and is as before; "over":
            likewise, since its proposer is over, or its plan or the fleet. The next plan settles what was wanted.
        reason: why it was refused.
        number: the number it assigned: host start, plan, epoch, incarnation, position of the next agent to define.
        begun: latest epoch begun (creations).
        epochs: epochs it aborted (losses, plans, damage, the end), forgot, or that are open (creations and removals).
    """

    status: str
    reason: str = ""
    number: int = 0
    begun: int = 0
    epochs: tuple[int, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Return whether the state is as it was, and the proposer's view of it was wrong."""
        return self.status in (REFUSED, OVER)


class HostRecord(msgspec.Struct):
    """Record of one host.

    Attributes:
        start: number of its current run, from 1.
        instance: the name that run gave itself.
        past: names of earlier runs, oldest first.
        state: "alive", "lost" or "left".
        spare: why agents are kept away from it although it is reachable; "": they are not. Until a plan may use it again.
        is_drained: an operator wants it without agents, whatever run of it there is.
        died: the last run whose process is known to have died in the middle of turns.
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
    """Record of one agent, alive or part of an epoch that is kept.

    Attributes:
        host: where it is placed; "" before the first plan.
        incarnation: grows with every restart. All agents restart together, so it is the number of their plan, and an
            id whose creation was void can be used again without repeating an incarnation (G9).
        is_initial: named by the fleet's definition, hence a member of line 0.
        born_epoch: latest epoch begun when its creation was committed; 0 for initial agents.
        left_epoch: latest epoch begun when its removal was committed; None while it has not left.
        created_plan: plan it was created under; 0 for initial agents.
        left_plan: plan it was removed under; None while it has not left.
        ordinal: its place in the vectors that messages carry; never used again, even if its creation is void.
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
        """Return whether the agent counts in `epoch` (protocols.md, 2.2 rules 7 and 8); line 0 holds the initial agents."""
        if epoch == 0:
            return self.is_initial
        return self.born_epoch < epoch and (self.left_epoch is None or self.left_epoch >= epoch)


class EpochRecord(msgspec.Struct):
    """Record of an epoch that is open or complete, was found damaged after it completed, or is void: the fleet was restored past it.

    Attributes:
        root: root of its manifest, once complete.
        unborn: agents that are unborn in it: a recovery to it makes them again.
        drop_before: a plan that starts from it drops inputs in logs of plans below this one; 0: none.
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
    """Request for a plan.

    Attributes:
        request: the client, and which of its requests.
        drop_inputs: as requested; what is dropped is in the plan.
        voided: complete epochs that it has made void.
        agent: requester; "": an operator.
    """

    request: str
    drop_inputs: bool
    voided: list[int]
    agent: str = ""


class PlanRecord(msgspec.Struct):
    """Record of a plan: the fleet starts, or starts again, from a line.

    Attributes:
        line_epoch, line_root: where it starts from; 0 and "" are the initial states.
        begun_epoch: latest epoch begun when the plan was committed: every agent's r.
        hosts: those with agents, in order. They confirm the plan and report epochs; losing one needs a new plan.
        confirmed: those that have.
        unborn: agents that are unborn on the line: their creation is in transit there, or waits in a checkpoint.
        lost: hosts whose loss it answers.
        condemned: epochs found damaged since the plan before: skipped on the way to the line.
        messages: in-transit messages of the line, delivered again.
        suspected_ns, committed_ns, done_ns: wall clock; done 0 = not all have confirmed.
        rolled_back: agents that did not keep their live state; all of them, where nobody checkpoints alone.
        checkpoints_lost: durable checkpoints past the line, summed over the agents.
        restore: set if the fleet was restored.
        drop_before: inputs beyond the line in logs of plans below this one are dropped; 0: none.
        is_move: nothing had failed.
        lost_ns: work that it undid, up to when a leader last knew the lost hosts; 0 where nobody knows, since agents checkpoint on their own.
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
        """Return whether a host, an agent or a line had failed: else agents moved, or people wanted the fleet back."""
        return self.restore is None and not self.is_move


LOGS_KNOWN_MAX = 1024
"""Sealed logs whose newest batch is remembered, those of the latest plans: some 40 KB of the state."""


class LogRecord(msgspec.Struct, frozen=True):
    """A host log that was opened, and that not all owners of a later plan are known to have sealed; or of which a batch is known.

    `newest`: number of a batch that was durable, where the store is signed or encrypted: nobody may take it away. 0: none is known.
    """

    plan: int
    host: str
    host_start: int
    newest: int = 0


class ForkOrigin(msgspec.Struct, frozen=True):
    """Origin of a fork. A fork begins with one complete epoch of another fleet, and has no initial states.

    Attributes:
        name: of the fork.
        parent, parent_name: cluster of the other fleet, and its name.
        epoch: of the snapshot, in both.
        plan: of the snapshot: the fork's first plan is the next one.
        is_live: whether agents may do effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    plan: int
    is_live: bool


class TokenRecord(msgspec.Struct, frozen=True):
    """A token of a person: what it may do, its SHA-256, and until when it is good."""

    role: str
    digest: bytes
    made_ns: int
    expires_ns: int


class CallRecord(msgspec.Struct, frozen=True):
    """A call of a person that changes something.

    Attributes:
        number: from 1, without a gap.
        made_ns: wall clock of the leader that proposed to write it down.
        name, role: who called, by certificate or (`is_borne`) by token.
        at: the host that was called; "": the coordinator.
        call: the RPC.
        about: what it was about, in words.
        outcome: "allowed", "refused", or "failed": then `about` says why.
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
    """Reason why the fleet cannot go on under its current plan. `worked_until_ns`: wall-clock time; what a plan undoes was done before it."""

    reason: str
    lost: list[str]
    suspected_ns: int
    worked_until_ns: int = 0


class CondemnedRecord(msgspec.Struct):
    """An epoch that was complete and whose bytes were found damaged later, under `plan`."""

    epoch: int
    plan: int
    path: str
    reason: str


class RememberedResult(msgspec.Struct):
    """Result of a request, for the case that it comes again."""

    sequence: int
    digest: bytes
    result: OperationResult


class FleetImage(msgspec.Struct):
    """All of the replicated state.

    Attributes:
        policy: when agents checkpoint on their own, as text; for people.
        log_bytes_max: of sender logs in the store; 0: no limit.
        places: where agents belong; of rules that name one the first counts.
        agents_defined: how many agents the definition announced; the fleet is defined when they are all here.
        next_ordinal: of the next agent to be defined or created.
        forgotten_start: largest start of a host whose record was forgotten; new ones begin above it (G9).
        gone: ids of agents that left and are in no epoch any more. Never used again.
        epochs: open, complete and condemned ones, ascending.
        begun: number of the latest epoch begun.
        forgotten: the highest epoch that was complete and is not known any more.
        logs: one for each host of each plan at most; of those of plans before the last one that all hosts have confirmed only the last
            1,024 of which a batch is known are left.
        need: set from the loss of a host that counts until the plan that answers it.
        outcome: "stopped" or "failed" once the fleet has ended, with `ending` for the reason.
        requests: client → its last results; the client heard of last is last.
        now_ns: largest time any operation bore.
        rpo_ns: work that a failure may undo, rto_ns: how long a recovery may take; 0: nothing is said. Missing them is reported.
        fork: origin of the fleet; None: it began with its initial states.
        tokens: name → a user's token.
        calls, refusals: the last calls of users that change something: those that were admitted, and those that were not.
        calls_made: number of the last of them.
        ends: how the last epochs ended, whatever became of them since, oldest first.
        deaths: turns in which processes have died; the one that was counted last is last.
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
        LogError: it is none, or one of another version.
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


def problem_of_size(agent: str, kind: str, position: int) -> str:
    """Return why there is no room for the names of this agent, the next after `position` others; "": there is."""
    if position < LONG_AGENTS_MAX or len(agent.encode()) + len(kind.encode()) <= SHORT_AGENT_BYTES:
        return ""
    return f"beyond {LONG_AGENTS_MAX} agents id and class have {SHORT_AGENT_BYTES} bytes together at most, not as agent {agent}"


def problem_of_host(host: str, others: int) -> str:
    """Return why no record of this host fits next to so many others; "": one does."""
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
    """The operation is in the log permanently, and applied."""

    result: OperationResult


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The operation is not in the log and will not get there."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Outcome unknown: it may be in the log now or later. Proposing it again under the same request id does it once."""

    reason: str


ProposalOutcome = Committed | Rejected | Unknown

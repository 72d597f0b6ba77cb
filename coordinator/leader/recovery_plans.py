"""Recovery plans, which determine when the fleet starts or restarts, from which recovery line, and on which hosts.

A recovery plan is needed

- to start the fleet;
- after the loss of a host with agents (`need` in the state);
- after an agent has failed, or a host could not apply the plan (the reports are volatile, because hosts repeat them);
- for a restore or a move of agents (`agent_moves.py`).

The leader makes a plan in these steps:

1. Wait until every host with agents is attached, has left, or has been lost for longer than the rejoin grace period. A host with a broken
   stream either reconnects or counts as lost within two seconds. Grace periods do not run while no host is attached, because otherwise the
   first host that returns after a power failure would receive all agents. A host evicted for blocking the fleet (`failure_detector.py`) is
   neither awaited nor used, and a drained host is not used.
2. Choose as recovery line the newest epoch that is complete, not condemned, *and readable*. Before the plan is committed, the epoch's ref,
   manifest and pack indexes are read. If the epoch is damaged, it is condemned, and the previous epoch is tried. If no epoch is left, the
   fleet starts from its initial states, or ends as failed if it is a fork, which has none. In autonomous protocols, the fleet is frozen
   before the recovery line is chosen. If the surviving live states are newer than the newest epoch, they are stored as an epoch, which
   becomes the recovery line. Surviving agents continue from their live states. For a restore, the given epoch is the recovery line: no
   other epoch is made, and no agent keeps a live state. Every byte of that epoch is read first, because the plan makes later epochs void,
   and damage found afterwards could cost them all.
3. Propose CommitPlan with the recovery line and all attached hosts. The proposal is refused if the recovery line has changed in the
   meantime.
4. Send the plan to all hosts, and propose ConfirmPlan for each host that has applied it. The fleet runs when all hosts have applied the
   plan. Hosts that make no progress in time are evicted. If no host makes progress, all hosts are kept and a new plan is made for them.

If anything fails while a plan is made or applied, another plan follows, from the same recovery line or an older one. A recovery can thus be
interrupted at any point (G10). The fleet ends after a permanent error: hosts refuse plans three times for reasons other than damage or an
unreadable store, an agent fails repeatedly without a complete epoch in between, or a fork has no readable epoch left.

*Time limits.* A host answers each plan with PlanApplied or PlanRefused. Until a host answers the plan, its heartbeats report how much it
has loaded. A host that makes no progress for ANSWER_NS counts as failed, and the next plan excludes it. Time during which a host sends
nothing on an open stream does not count, because the host is busy. If no host makes progress, the hosts are not to blame, so the new plan
includes all of them. After each plan that was not applied in time, the time limit doubles, so that a fleet with one slow loading step can
start too.

*Restores* are operators' requests to return the fleet to an epoch. Only one restore is active at a time. The plan for a restore is made
like any other plan, except that it starts from the requested epoch. The log entry of a restore's plan also makes all later epochs void
(`state/fleet_view.py`). A restore request is identified by the client's token. If the client repeats a restore request, to this or a later
leader, the answer is the plan that the log contains for the client's token. If a leader dies before the restore's plan is in the log,
nothing has changed.

*Rollbacks* are agents' requests to return the fleet to an epoch (`ctx.rollback`). Each rollback is executed as a restore. A second rollback
for the same reason is refused until an operator has restored the fleet. The requesting agent waits and loses nothing, because its turn has
had no effect and its message is kept. The agent's host resends the request on every new stream, so the request survives a change of leader.
Each rollback request belongs to one incarnation of its agent. Every new plan ends the incarnation and its rollback request, so the turn
runs again and may repeat the request.

The log keeps the reason of each rollback, because agents that were rolled back do not remember it. Earlier rollback requests count as
long as the log keeps their plans. Requests before an operator's last restore do not count, because the operator knows of them.
"""

import msgspec

from snapline.coordinator.leader.agent_moves import HostLoads, Moves
from snapline.coordinator.leader.epochs.epoch_lifecycle import Triggers
from snapline.coordinator.leader.events import (
    AnswerRestore,
    CheckLine,
    LineChecked,
    ResolveSnapshot,
    RestoreRequested,
    SnapshotResolved,
)
from snapline.coordinator.leader.hosts.failure_detector import StandbyHosts
from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import LossReport, ModeChoice
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    COMPLETE,
    LOST,
    RECOVERING,
    RECOVERY_TRIGGER,
    RUNNING,
    OperationResult,
    PlanRecord,
)
from snapline.coordinator.state.fleet_view import refusal_of_restore
from snapline.messages.host_messages import (
    AgentFailed,
    HostLog,
    PlacedAgent,
    Plan,
    PlanApplied,
    PlanRefused,
    RollbackRefused,
    WantRollback,
)
from snapline.messages.status import Concern
from snapline.protocols.names import LOCAL

REFUSE_NS = 60 * SECOND_NS
"""Time limit, in nanoseconds, for the plan to be made. Waiting for lost hosts takes seconds; waiting for an unreadable store takes longer.
An operator's request must not be executed long after it was made."""


class RestoreDemand(msgspec.Struct, frozen=True):
    """The active restore. `said` is the message of the agent that called `ctx.rollback`, or None for an operator's restore."""

    token: str
    epoch: int
    reason: str
    drop_inputs: bool
    asked_ns: int
    said: WantRollback | None = None


class Restores:
    """The active restore, and the requests that are waiting for it. Of this state, only the committed plan is durable.

    Attributes:
        wanted: the active restore, until its plan is committed or refused.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.wanted: RestoreDemand | None = None
        self._requests: list[int] = []
        """Requests that wait for the active restore, by number."""
        self._refused: dict[str, str] = {}
        """Token of an agent's restore → the reason why the restore was refused."""

    def on_requested(self, event: RestoreRequested) -> None:
        """Handle an operator's request to restore an epoch. The operator may repeat the request."""
        wanted = self.wanted
        if wanted is None:
            self.wanted = RestoreDemand(event.token, event.epoch, event.reason, event.drop_inputs, self._shared.now)
        elif wanted.token != event.token:
            refused = f"the fleet is about to go back to epoch {wanted.epoch}: ask again when it has"
            self._shared.out.append(AnswerRestore(event.request, refused=refused, may_pass=True))
            return
        self._requests.append(event.request)

    def want(self, wanted: RestoreDemand) -> None:
        """Start a restore for an agent's rollback, which `Rollbacks` requests. The caller must ensure that no other restore is active."""
        assert self.wanted is None, self.wanted
        self.wanted = wanted

    def withdraw(self, token: str) -> None:
        """Drop an agent's restore, because the incarnation that requested it has ended."""
        self._refused.pop(token, None)
        if self.wanted is not None and self.wanted.token == token:
            self.wanted = None

    def take_refusal(self, token: str) -> str:
        """Remove and return the reason for which an agent's restore was refused, or "" if it was not refused."""
        return self._refused.pop(token, "")

    def evaluate(self) -> None:
        """Answer the waiting requests if the active restore is done or impossible."""
        wanted, state = self.wanted, self._shared.state
        if wanted is None:
            return
        plan = state.plan_of_request(wanted.token)
        if plan is not None:
            self._answer(plan.number, "")
        elif state.image.outcome:
            self._answer(0, "the fleet has ended: make a new one of that snapshot")
        elif state.plan is None:
            self._answer(0, "the fleet has not begun: there is nothing to go back to")
        elif refusal := refusal_of_restore(state.image, wanted.epoch):
            self._answer(0, refusal)
        elif self._shared.now >= wanted.asked_ns + REFUSE_NS and not self._shared.is_pending("plan"):
            waited_s = REFUSE_NS // SECOND_NS
            refused = f"no plan could be made for {waited_s} s: `snapline status` says what the fleet waits for"
            self._answer(0, refused, may_pass=True)

    def _answer(self, plan: int, refused: str, *, may_pass: bool = False) -> None:
        wanted, requests = self.wanted, self._requests
        self.wanted, self._requests = None, []
        if wanted is not None and wanted.said is not None and refused and not may_pass:
            self._refused[wanted.token] = refused
        for request in requests:
            self._shared.out.append(AnswerRestore(request, plan, refused, may_pass))

    def concerns(self) -> list[Concern]:
        """Return a concern if the active restore has been waiting for at least SHOWN_NS."""
        wanted = self.wanted
        lasts_ns = 0 if wanted is None else self._shared.now - wanted.asked_ns
        if wanted is None or lasts_ns < SHOWN_NS:
            return []
        text = f"the fleet is to go back to epoch {wanted.epoch}, and no plan could be made for {lasts_ns / 1e9:.1f} s"
        return [Concern("restore", (), lasts_ns, text)]


LAST, TURN = "last", "turn"
"""Names of the newest snapshot, and of the newest one in which the agent's turn has not begun."""


class RollbackDemand(msgspec.Struct):
    """A rollback request by one incarnation of an agent.

    Attributes:
        said: the host's message that contains the request.
        epoch: the epoch to restore; 0 until it is known.
        refused: why the request was refused, as a text for operators; "" if it was not refused.
        received_ns: time when this leader first received the request.
    """

    said: WantRollback
    received_ns: int
    epoch: int = 0
    refused: str = ""

    @property
    def token(self) -> str:
        """Return the restore's token, which is the same each time the host repeats the request."""
        return f"{self.said.agent}@{self.said.incarnation}"

    @property
    def reason(self) -> str:
        """Return the plan's reason, which is the same for repeated requests with the same text from the same code location."""
        return op.clip(f"agent {self.said.agent} asked to go back, at {self.said.place}: {self.said.reason}")


class Rollbacks:
    """Open rollback requests. This state need not be durable, because hosts repeat rollback requests."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, restores: Restores) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._restores = restores
        self._demands: dict[str, RollbackDemand] = {}

    def on_wanted(self, session: HostSession, message: WantRollback) -> None:
        """Handle a rollback request from a turn. The host may repeat the request."""
        record = self._shared.state.image.agents.get(message.agent)
        if record is None or record.host != session.host or not self._is_current(message):
            return
        earlier = self._demands.get(message.agent)
        if earlier is None or earlier.said.incarnation != message.incarnation:
            self._demands[message.agent] = demand = RollbackDemand(message, self._shared.now)
            if self._goes_before_turn(message):
                epochs = [x for x, record in self._shared.state.image.epochs.items() if record.status == COMPLETE]
                resolve = ResolveSnapshot(TURN, message.agent, message.turn, tuple(reversed(epochs)))
                self._shared.out.append(resolve)
            elif message.snapshot not in (LAST, TURN):
                self._shared.out.append(ResolveSnapshot(message.snapshot))
            self._shared.note("warning", demand.reason)
        elif earlier.refused:
            self._send_refusal(earlier)

    def on_resolved(self, event: SnapshotResolved) -> None:
        """Record the epoch to restore, or refuse the request if that epoch does not exist."""
        for demand in self._demands.values():
            is_its = demand.said.snapshot == event.snapshot and event.agent in ("", demand.said.agent)
            if is_its and not demand.refused:
                demand.epoch = event.epoch
                if event.error:
                    self._refuse(demand, event.error)

    def evaluate(self) -> None:
        """Start one restore at a time, and drop requests whose incarnation or fleet has ended."""
        for agent, demand in list(self._demands.items()):
            if not self._is_current(demand.said) or self._shared.state.image.outcome:
                del self._demands[agent]
                self._restores.withdraw(demand.token)
            elif not demand.refused:
                self._start_restore(demand)

    @staticmethod
    def _goes_before_turn(said: WantRollback) -> bool:
        """Return whether the fleet is to go back to a snapshot in which a turn has not begun. A plain turn has begun in no snapshot."""
        return said.snapshot == TURN and said.turn > 0

    def _is_current(self, said: WantRollback) -> bool:
        record = self._shared.state.image.agents.get(said.agent)
        return record is not None and record.left_plan is None and record.incarnation == said.incarnation

    def _start_restore(self, demand: RollbackDemand) -> None:
        refused = self._restores.take_refusal(demand.token)
        said = demand.said
        refused = refused or self._shared.state.refusal_of_rollback(said.agent, demand.reason, said.at_most)
        if refused:
            self._refuse(demand, refused)
            return
        is_newest = said.snapshot == LAST or (said.snapshot == TURN and not said.turn)
        epoch = demand.epoch or (self._shared.state.newest_complete() if is_newest else 0)
        if is_newest and not epoch:
            self._refuse(demand, "no snapshot is complete yet")
        elif epoch and self._restores.wanted is None:
            wanted = RestoreDemand(demand.token, epoch, demand.reason, False, self._shared.now, said)
            self._restores.want(wanted)

    def _refuse(self, demand: RollbackDemand, why: str) -> None:
        demand.refused = f"{demand.reason}. The fleet does not go back: {why}. The agent is suspended"
        self._shared.note("error", demand.refused)
        self._send_refusal(demand)

    def _send_refusal(self, demand: RollbackDemand) -> None:
        request = demand.said
        session = self._host_sessions.attached_session(self._shared.state.image.agents[request.agent].host)
        if session is not None:
            self._shared.send((session.id,), RollbackRefused(request.agent, request.incarnation, demand.refused))

    def concerns(self) -> list[Concern]:
        """Return one concern for each agent whose request was refused and that is waiting for an operator."""
        now, refused = self._shared.now, [x for x in self._demands.values() if x.refused]
        return [Concern("rollback", (), now - x.received_ns, x.refused, (x.said.agent,)) for x in refused]


CHECK_RETRY_NS = 1 * SECOND_NS
CHECK_LOG_TRIES = 30
"""Number of reads per log line while the store is unreachable (not damaged). Reads are retried without limit."""


class LineUnread(msgspec.Struct, frozen=True):
    """State in which the recovery line has not been read. The next read may start at or after `not_before_ns`."""

    not_before_ns: int = 0


class Reading(msgspec.Struct, frozen=True):
    """State in which the epoch is being read. `is_whole` tells whether every byte of the epoch is read."""

    epoch: int
    is_whole: bool = False


class Readable(msgspec.Struct, frozen=True):
    """State in which the epoch has been read without finding damage. `is_whole` tells whether every byte of the epoch was read."""

    epoch: int
    is_whole: bool = False


class LineCheck:
    """Checks whether recovery lines are readable, one at a time. This state is volatile."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._stage: LineUnread | Reading | Readable = LineUnread()
        self._tries = 0
        self._since_ns = 0
        self._reason = ""

    def is_readable(self, line: int, *, is_whole: bool = False) -> bool:
        """Return whether the recovery line is known to be readable. If the line has not been read yet, start to read it."""
        stage = self._stage
        if stage == Readable(line, is_whole):
            return True
        is_waiting = isinstance(stage, Reading) or (
            isinstance(stage, LineUnread) and self._shared.now < stage.not_before_ns
        )
        if not is_waiting:
            self._stage = Reading(line, is_whole)
            self._shared.out.append(CheckLine(line, self._shared.state.image.epochs[line].root, is_whole))
        return False

    def on_checked(self, event: LineChecked) -> None:
        """Handle the result of a CheckLine command."""
        stage = self._stage
        if not isinstance(stage, Reading) or stage.epoch != event.epoch:
            return
        self._stage = LineUnread()
        if event.damaged_path:
            self._shared.condemn(event.epoch, event.damaged_path, event.error)
        elif event.error:
            if not self._tries:
                self._since_ns = self._shared.now
            if self._tries % CHECK_LOG_TRIES == 0:
                self._shared.note("error", f"the recovery waits: epoch {event.epoch} cannot be read now: {event.error}")
            self._tries, self._reason = self._tries + 1, op.clip(event.error)
            self._stage = LineUnread(self._shared.now + CHECK_RETRY_NS)
        else:
            self._stage, self._tries = Readable(event.epoch, stage.is_whole), 0

    def concerns(self) -> list[Concern]:
        """Return a concern if the recovery is waiting for the store to become readable."""
        if not self._tries:
            return []
        text = f"the recovery waits for the store: {self._reason}"
        return [Concern("store", (), self._shared.now - self._since_ns, text)]

    def on_plan_ended(self) -> None:
        """Drop the result after CommitPlan, so that the next plan's recovery line is read again."""
        if isinstance(self._stage, Readable):
            self._stage = LineUnread()


ANSWER_NS = 5 * SECOND_NS
"""Time without progress, in nanoseconds, after which a host counts as failed. Loading one large state may cause a short pause in
progress."""

DOUBLINGS_MAX = 5
"""Largest number of times that ANSWER_NS is doubled. With this limit, the longest wait is 160 s."""

SHOWN_NS = SECOND_NS

LoadingProgress = tuple[int, int, int]
"""(plan, session, number of loaded steps)."""


class PlanAnswers:
    """The hosts that have not answered the current plan, and their time limit. This state is volatile."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._waits: dict[str, tuple[LoadingProgress, int]] = {}
        """Host that has not answered → (its loading progress, time at which it reached that progress)."""
        self._doublings = 0

    def shift(self, late_ns: int) -> None:
        """Extend all waits by `late_ns`, the time for which this process was suspended."""
        now = self._shared.now
        self._waits = {host: (place, min(since + late_ns, now)) for host, (place, since) in self._waits.items()}

    def applied(self) -> None:
        """Drop all waits and reset the time limit, because all hosts have applied the plan."""
        self._waits, self._doublings = {}, 0

    def stop_waiting(self) -> None:
        """Drop all waits, because another plan is needed."""
        self._waits = {}

    def overdue(self, plan: PlanRecord, answered: list[str]) -> dict[str, str]:
        """Return the overdue hosts, each with a description of what it has not done."""
        late = {}
        for host in plan.hosts:
            session = self._host_sessions.attached_session(host)
            if session is None or host in answered:
                self._waits.pop(host, None)
                continue
            beat = session.heartbeat
            place = plan.number, session.id, beat.steps_loaded if beat.plan == plan.number else 0
            if host not in self._waits or self._waits[host][0] != place:
                self._waits[host] = place, self._shared.now
            quiet_ns = self._host_sessions.quiet_ns(session)
            lasts_ns = self._shared.now - self._waits[host][1] - (quiet_ns if quiet_ns >= QUIET_NS else 0)
            if lasts_ns >= ANSWER_NS << self._doublings:
                late[host] = _describe_overdue(plan.number, lasts_ns)
        return late

    def give_up(self) -> None:
        """Double the next plan's time limit, because this plan is being replaced or some hosts were evicted."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        self._waits = {}

    def concerns(self) -> list[Concern]:
        """Return one concern for each host that has made no progress for at least SHOWN_NS."""
        concerns = []
        for host, ((number, _, _), since_ns) in self._waits.items():
            lasts_ns = self._shared.now - since_ns
            if lasts_ns >= SHOWN_NS:
                concerns.append(
                    Concern("plan", (host,), lasts_ns, f"host {host}: {_describe_overdue(number, lasts_ns)}")
                )
        return concerns


def _describe_overdue(number: int, lasts_ns: int) -> str:
    return f"it has not applied plan {number}, and not got on with it for {lasts_ns / 1e9:.1f} s"


_FORK_WITHOUT_SNAPSHOT = (
    "the snapshot that this fork was made of is damaged, and it has completed no other: make the fork again"
)

BEGIN_ANEW_REFUSED = (
    "every snapshot of the fleet is damaged, and it does not begin anew from its initial states by itself: bring the store's files back, or start its "
    "coordinators (`coordinator run`, `run`, `up`) with --begin-anew"
)

REFUSALS_MAX = 3
"""Number of refused plans, for reasons other than damage or an unreadable store and without a running fleet in between, after which the
fleet ends as failed."""

AGENT_FAILURES_MAX = 20
"""Largest number of plans that one agent may cause without a complete epoch in between. A limit is needed because a deterministic bug would
recur forever. The limit is high because one message may crash many agents, each until its retries are used up."""


class ReplacedPlan(msgspec.Struct, frozen=True):
    """A plan that must be replaced, with the reason. This state need not be durable, because hosts repeat the reports that caused it. With
    local recovery, the agents on the hosts `restarted` start again. If it is empty, all agents do."""

    plan: int
    reason: str
    restarted: tuple[str, ...] = ()


class Plans:
    """Makes recovery plans. Apart from the committed plans in the replicated state, this state is volatile."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        lines: RecoveryLines,
        modes: ModeChoice,
        triggers: Triggers,
        line_check: LineCheck,
        answers: PlanAnswers,
        standby_hosts: StandbyHosts,
        restores: Restores,
        moves: Moves,
        loads: HostLoads,
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._modes = modes
        self._triggers = triggers
        self._line_check = line_check
        self._answers = answers
        self._standby_hosts = standby_hosts
        self._restores = restores
        self._moves = moves
        self._loads = loads
        self._sent_plan = 0
        """Number of the newest plan that was sent to all attached hosts."""
        self._lost_ns: dict[str, int] = {}
        self._applied: dict[str, tuple[int, int]] = {}
        self._to_confirm: dict[str, None] = {}
        """Hosts whose `_applied` entry has not been proposed yet, since scanning all hosts after each message would take quadratic time."""
        self._replaced: ReplacedPlan | None = None
        self._refusals = 0
        self._begin_anew_refused_ns: int | None = None
        self._agent_failures: tuple[int, dict[str, int]] = (0, {})
        """(newest epoch not made for a recovery, agent → number of the agent's failures since that epoch)."""

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_applied(self, session: HostSession, message: PlanApplied) -> None:
        """Record that a host has applied a plan."""
        if message.host_start == session.start:
            self._applied[session.host] = (message.plan, message.host_start)
            self._to_confirm[session.host] = None

    def on_refused(self, session: HostSession, message: PlanRefused) -> None:
        """Handle a host's report that it cannot apply the current plan."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or message.plan != plan.number or message.host_start != session.start:
            return
        if state.phase != RECOVERING or state.image.need is not None or self._is_replaced(plan):
            return
        if message.damaged_epoch and message.damaged_epoch == plan.line_epoch:
            self._shared.condemn(plan.line_epoch, message.path, message.reason)
            return
        self._refusals += not message.may_pass  # an unreachable store may become reachable again
        reason = f"host {session.host} could not apply plan {plan.number}: {message.reason}"
        self._shared.note("error", reason)
        if self._refusals >= REFUSALS_MAX:
            self._shared.end(0, "failed", op.clip(reason))
        else:
            self._replaced = ReplacedPlan(plan.number, reason, (session.host,))

    def on_agent_failed(self, session: HostSession, message: AgentFailed) -> None:
        """Handle an agent's failure, after which the fleet returns to the recovery line."""
        plan, record = self._shared.state.plan, self._shared.state.image.agents.get(message.agent)
        if plan is None or record is None or record.host != session.host or record.left_plan is not None:
            return
        if record.incarnation != message.incarnation or self._is_replaced(plan):
            return
        line = self._newest_regular()
        if self._agent_failures[0] != line:
            self._agent_failures = (line, {})
        failures = self._agent_failures[1]
        count = failures[message.agent] = failures.get(message.agent, 0) + 1
        reason = f"agent {message.agent} failed: {message.reason}"
        self._shared.note("warning", reason)
        if count > AGENT_FAILURES_MAX:
            self._shared.end(0, "failed", op.clip(f"{count} recoveries from epoch {line} did not help: {reason}"))
        else:
            self._replaced = ReplacedPlan(plan.number, reason, (session.host,))

    def _newest_regular(self) -> int:
        """Return the newest complete epoch that was not made for a recovery, or 0 if there is none. Epochs made for a recovery do not
        prove that agents make progress."""
        epochs = self._shared.state.image.epochs
        regular = [x for x in self._shared.state.complete_epochs() if epochs[x].trigger != RECOVERY_TRIGGER]
        return regular[-1] if regular else 0

    def on_plan_ended(self) -> None:
        """Reset the line check and the checkpoint mode after CommitPlan, so that the next plan's recovery line is read again."""
        self._line_check.on_plan_ended()
        self._modes.mode.on_plan_ended()

    def on_confirmation_ended(self, kind: op.ConfirmPlan, result: OperationResult | None) -> None:
        """Queue the host's confirmation again if ConfirmPlan was not committed, or if the host has since applied another plan."""
        is_written = result is not None and not result.is_refused
        if not is_written or self._applied.get(kind.host) != (kind.plan, kind.host_start):
            self._to_confirm[kind.host] = None

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self, *, are_hosts_changed: bool) -> None:
        """Start or restart the fleet if necessary, and confirm plans. Check for lost and overdue hosts only if `are_hosts_changed` is
        set."""
        state = self._shared.state
        self._triggers.on_plan_demand_changed(is_wanted=state.plan is not None and bool(self._reason()))
        if are_hosts_changed:
            self._note_losses()
        self._condemn_damaged()
        if state.image.outcome or self._shared.ending is not None:
            return
        if state.is_fork_without_epoch:
            self._shared.end(0, "failed", _FORK_WITHOUT_SNAPSHOT)
            return
        self._send_plan()
        if state.phase == RUNNING:
            self._refusals = 0
            self._answers.applied()
        if state.plan is None:
            self._start()
            return
        reason = self._reason()
        if reason:
            self._answers.stop_waiting()
            self._restart(state.plan, reason)
        elif state.phase == RECOVERING:
            self._confirm(state.plan)
            if are_hosts_changed:
                self._evict_overdue_hosts(state.plan)

    def _condemn_damaged(self) -> None:
        epochs = self._shared.state.image.epochs
        for epoch, (path, reason) in list(self._shared.damaged.items()):
            if epoch in epochs and epochs[epoch].status == COMPLETE:
                self._shared.propose(f"condemn/{epoch}", op.CondemnEpoch(epoch, op.clip(path), op.clip(reason)))
            else:
                del self._shared.damaged[epoch]

    def _note_losses(self) -> None:
        is_nobody_here = not self._host_sessions.attached()
        for host, record in self._shared.state.image.hosts.items():
            if record.state != LOST:
                self._lost_ns.pop(host, None)
            elif is_nobody_here:
                self._lost_ns[host] = self._shared.now
            else:
                self._lost_ns.setdefault(host, self._shared.now)

    def _reason(self) -> str:
        state, wanted = self._shared.state, self._restores.wanted
        if wanted is not None:
            return wanted.reason
        if state.image.need is not None:
            return state.image.need.reason
        replaced = self._replaced
        if replaced is not None and replaced.plan == state.plan_number:
            return replaced.reason
        return self._lines.problem or self._moves.reason

    def _is_replaced(self, plan: PlanRecord) -> bool:
        return self._replaced is not None and self._replaced.plan == plan.number

    def _start(self) -> None:
        state, hosts = self._shared.state, self._host_sessions.attached()
        if not state.is_defined or len(hosts) < self._shared.options.hosts_expected:
            return
        fork, line = state.image.fork, state.newest_complete()
        if fork is None:
            self._commit(0, hosts, "the fleet starts")
        elif line not in self._shared.damaged and self._line_check.is_readable(line):
            self._commit(line, hosts, f"fork {fork.name} starts")

    def _restart(self, plan: PlanRecord, reason: str) -> None:
        hosts = self._standby_hosts.usable(self._moves.usable(self._host_sessions.attached()))
        if not hosts or not all(self._is_settled(host) for host in plan.hosts):
            return
        wanted = self._restores.wanted
        if wanted is None and not self._modes.mode.is_line_made():
            return
        line = self._shared.state.newest_complete() if wanted is None else wanted.epoch
        if line in self._shared.damaged or self._is_begin_anew_refused(line):
            return
        if not line or self._line_check.is_readable(line, is_whole=wanted is not None):
            self._commit(line, hosts, reason)

    def _is_begin_anew_refused(self, line: int) -> bool:
        """Return whether the plan would restart a fleet with snapshots from its initial states without an operator's consent."""
        is_barred = not line and bool(self._shared.state.image.condemned) and not self._shared.options.may_begin_anew
        if is_barred and self._begin_anew_refused_ns is None:
            self._begin_anew_refused_ns = self._shared.now
            self._shared.note("error", f"the recovery waits: {BEGIN_ANEW_REFUSED}")
        elif not is_barred:
            self._begin_anew_refused_ns = None
        return is_barred

    def concerns(self) -> list[Concern]:
        """Return a concern if the recovery is waiting for an operator's consent to restart from the initial states."""
        if self._begin_anew_refused_ns is None:
            return []
        return [Concern("store", (), self._shared.now - self._begin_anew_refused_ns, BEGIN_ANEW_REFUSED)]

    def _is_settled(self, host: str) -> bool:
        """Return whether the plan need not wait for `host`, because it is attached, evicted, gone, or lost for longer than its grace
        period."""
        if self._host_sessions.attached_session(host) is not None or self._standby_hosts.is_evicted(host):
            return True
        record = self._shared.state.image.hosts[host]
        if record.state == ALIVE:
            return False
        grace = self._shared.options.rejoin_grace_ns
        return record.state != LOST or self._shared.now >= self._lost_ns.setdefault(host, self._shared.now) + grace

    def _commit(self, line: int, hosts: list[str], reason: str) -> None:
        number = self._shared.state.plan_number
        losses = self._losses(line) if self._shared.state.plan is not None else LossReport(0)
        plan_fields = (number, line, tuple(hosts), op.clip(reason), losses.rolled_back, losses.checkpoints)
        wanted = self._restores.wanted
        is_move, weights = reason == self._moves.reason, self._loads.weights()
        placed, frozen = (self._moves.placed, self._moves.frozen) if is_move else ({}, ())
        kind: op.Kind = op.CommitPlan(
            *(*plan_fields, self._moves.is_even, is_move, weights), self._restarted(), placed=placed, frozen=frozen
        )
        if wanted is not None:
            kind = op.Restore(*plan_fields, wanted.token, wanted.drop_inputs)
            if (said := wanted.said) is not None:
                asked = {"asked": op.clip(said.reason), "done": said.done, "at_most": said.at_most}
                kind = msgspec.structs.replace(kind, agent=said.agent, place=op.clip(said.place), **asked)
        if self._shared.propose("plan", kind):
            self._shared.note("info", f"plan {number + 1} from epoch {line} on {', '.join(hosts)}: {reason}")

    def _restarted(self) -> tuple[str, ...]:
        """Return the hosts whose agents must start again although the hosts live. After a loss or for a move, there are none."""
        plan, replaced = self._shared.state.plan, self._replaced
        if self._shared.state.image.recovery != LOCAL or plan is None:
            return ()
        if replaced is not None and replaced.plan == plan.number:
            return replaced.restarted or tuple(plan.hosts)
        return tuple(plan.hosts) if self._lines.problem else ()

    def _losses(self, line: int) -> LossReport:
        """Return what the plan loses. A restore rolls back all agents, because no agent was frozen before it."""
        if self._restores.wanted is not None:
            return LossReport(len(list(self._shared.state.living_agents())))
        return self._modes.mode.losses(line, self._applied)

    def _confirm(self, plan: PlanRecord) -> None:
        for host in sorted(self._to_confirm):
            key = f"confirm/{host}"
            if host not in plan.confirmed and self._has_applied(plan, host) and not self._shared.is_pending(key):
                if self._shared.is_full:
                    return
                start = self._shared.state.image.hosts[host].start
                if not self._shared.propose(key, op.ConfirmPlan(plan.number, host, start)):
                    continue
            del self._to_confirm[host]

    def _has_applied(self, plan: PlanRecord, host: str) -> bool:
        record = self._shared.state.image.hosts.get(host)
        return record is not None and self._applied.get(host) == (plan.number, record.start)

    def _evict_overdue_hosts(self, plan: PlanRecord) -> None:
        """Evict hosts that have made no progress in applying the plan within the time limit. If no host of the plan has made progress in
        time, replace the plan instead."""
        answered = [host for host in plan.hosts if host in plan.confirmed or self._has_applied(plan, host)]
        late = self._answers.overdue(plan, answered)
        if not late:
            return
        if len(late) == len(plan.hosts):
            self._replaced = ReplacedPlan(plan.number, f"no host has applied plan {plan.number} in time")
            self._shared.note("warning", self._replaced.reason)
        elif not self._standby_hosts.evict(late):
            return
        self._answers.give_up()

    # ---- sending --------------------------------------------------------------------------------------------------

    def _send_plan(self) -> None:
        directive = self.directive() if self._sent_plan != self._shared.state.plan_number else None
        if directive is not None:
            self._sent_plan = directive.number
            self._shared.send(self._host_sessions.all_sessions(), directive)

    def directive(self) -> Plan | None:
        """Return the current plan as a directive for a new stream, or None if a new plan is needed.

        Sending the old plan would let a restarted host start agents under a plan that its earlier run has confirmed.
        """
        state = self._shared.state
        plan = state.plan
        if plan is None or state.image.need is not None:
            return None
        index = {host: number for number, host in enumerate(plan.hosts)}
        unborn = dict.fromkeys(plan.unborn)
        agents = [
            PlacedAgent(agent, record.kind, index[record.host], record.incarnation, agent in unborn, record.ordinal)
            for agent, record in state.placed_by(plan)
        ]
        logs = [HostLog(x.plan, x.host, x.host_start, x.newest) for x in state.image.logs if x.plan < plan.number]
        return Plan(
            number=plan.number,
            line_epoch=plan.line_epoch,
            line_root=plan.line_root,
            begun_epoch=plan.begun_epoch,
            hosts=tuple(plan.hosts),
            agents=tuple(agents),
            logs=tuple(logs),
            drop_before=plan.drop_before,
            deaths=tuple(state.image.deaths),
            era=state.image.era,
            sources=tuple(plan.sources),
            sources_since=plan.sources_since,
            rollbacks=tuple(state.image.rollbacks),
        )

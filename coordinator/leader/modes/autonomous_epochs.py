"""Checkpoint mode of fleets whose agents checkpoint on their own. The mode for autonomous protocols decides when an epoch begins, and
which states survive a failure.

The recovery line of an epoch is fixed when BeginEpoch is proposed, so it exists before the epoch. Every agent with a checkpoint on the
recovery line was therefore created before the epoch began, and is a member of the epoch. One of these triggers begins an epoch:

    hand      a tool requests a snapshot. If the line has not advanced since the base epoch, the base epoch is returned
    period    the period has elapsed and the line has advanced
    log       the sender logs in the store exceed half of their limit and the line has advanced
    recovery  the hosts are frozen before a plan and the line has advanced: the surviving states become an epoch

Effects and final answers of an agent wait for an epoch that contains the agent's later checkpoint. Idle agents whose policy takes no
checkpoint may keep the recovery line from advancing to that checkpoint. If hosts have waited too long for an epoch, the fleet is frozen,
and all live states become an epoch.

*Freezing.* While frozen, hosts start no new turns and take checkpoints of their agents' live states. The fleet is frozen in three cases:

- Before a plan, so that the surviving live states are stored and lie on the plan's recovery line (protocols.md, section 6).
- When the sender logs exceed their limit but one agent keeps the recovery line from advancing (the domino effect), so that an epoch of that
  line would not help. The cut of all live states becomes an epoch, and the fleet continues. Only such a coordinated checkpoint can bound
  the logs.
- For an epoch that must contain all work of every agent, or for which hosts have waited too long.

Before a host answers a freeze, it makes its checkpoints durable and reports them on the same stream. In the answer, `running` names agents
that are inside a long turn. Agents named in `running` are treated as failed, and so are all agents of a host that does not answer in time.
A freeze request is idempotent, and a plan or ThawAgents ends the freeze.

A host sends AgentsFrozen only once, and both request and answer may be lost with the stream or the leader. The leader therefore begins
every new stream with FreezeAgents, or with a ThawAgents that ends any leader's freeze. If a plan is needed and no freeze is active,
neither message is sent, because the plan ends any freeze and frozen agents lose nothing.
"""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import Failing, OpenEpoch, Stage, StoringLine
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.failure_detector import StandbyHosts
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import (
    LOG_TRIGGER,
    Begun,
    EpochDemand,
    Later,
    LineEpochs,
    LossReport,
    PendingRemovals,
    Present,
)
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERY_TRIGGER, RUNNING, OperationResult, PlanRecord
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents, RetireAgent, ThawAgents

FREEZE_NS = 5 * SECOND_NS
"""Time limit, in nanoseconds, for a host to answer a freeze request. Agents whose turn takes longer than a second are skipped; the
remaining time is for the disk."""

ANY_FREEZE = 0
"""Freeze number in a ThawAgents that ends any freeze. Actual freezes are numbered from 1."""


class Freeze(msgspec.Struct, frozen=True):
    """A request that the hosts of a plan freeze their agents, and the hosts' answers.

    Attributes:
        asked_ns: time of the request, by session.
        answers: the answers, by session. A host that reconnects is asked again, because an earlier leader that does not know of its
            successor may have thawed it.
    """

    plan: int
    number: int
    asked_ns: dict[int, int] = {}
    answers: dict[int, AgentsFrozen] = {}


class Freezing:
    """The current freeze of the fleet. This state is volatile."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, standby_hosts: StandbyHosts) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._standby_hosts = standby_hosts
        self._freeze: Freeze | None = None
        self._latest = 0
        """Number of the latest freeze that this leader knows of."""

    def ask(self) -> bool:
        """Freeze the hosts of the current plan. Return whether each attached host has answered or has exceeded FREEZE_NS."""
        plan, freeze = self._shared.state.plan, self._freeze
        assert plan is not None, "a freeze without a plan"
        if freeze is None or freeze.plan != plan.number:
            # Numbers must differ from those of earlier leaders. now_ns advances with each operation, and frozen hosts report their number.
            self._latest = max(self._latest + 1, self._shared.state.image.now_ns)
            freeze = self._freeze = Freeze(plan.number, self._latest)
            self._shared.send(self._host_sessions.sessions_of(plan.hosts), FreezeAgents(freeze.plan, freeze.number))
        return not [host for host in plan.hosts if self._is_awaited_host(host, freeze)]

    def _is_awaited_host(self, host: str, freeze: Freeze) -> bool:
        session = self._host_sessions.attached_session(host)
        if session is None or session.id in freeze.answers or self._standby_hosts.is_evicted(host):
            return False
        return self._shared.now < freeze.asked_ns.setdefault(session.id, self._shared.now) + FREEZE_NS

    def on_frozen(self, session: HostSession, message: AgentsFrozen) -> None:
        """Handle a host's report that its agents are frozen."""
        self._latest = max(self._latest, message.number)
        freeze = self._freeze
        is_asked = freeze is not None and (message.plan, message.number) == (freeze.plan, freeze.number)
        if freeze is not None and is_asked and message.host_start == session.start:
            freeze.answers[session.id] = message

    def has_checkpointed_live_state(self, host: str, agent: str) -> bool:
        """Return whether the host has reported that the newest checkpoint of `agent` contains its live state."""
        session = self._host_sessions.attached_session(host)
        if session is None or self._freeze is None:
            return False
        answer = self._freeze.answers.get(session.id)
        return answer is not None and agent not in answer.running

    def thaw(self) -> None:
        """End the freeze, so that the hosts start turns again."""
        freeze, self._freeze = self._freeze, None
        if freeze is not None and freeze.plan == self._shared.state.plan_number:
            self._shared.send(self._host_sessions.all_sessions(), ThawAgents(freeze.plan, freeze.number))

    def directives_for(self, host: str) -> list[FreezeAgents | ThawAgents]:
        """Return the directives for a host that has just reconnected."""
        state, plan, freeze = self._shared.state, self._shared.state.plan, self._freeze
        if plan is None or host not in plan.hosts:
            return []
        if freeze is not None and freeze.plan == plan.number:
            return [FreezeAgents(freeze.plan, freeze.number)]
        return [] if state.image.need is not None else [ThawAgents(plan.number, ANY_FREEZE)]

    def evaluate(self) -> None:
        """Forget a freeze that a new plan has ended."""
        if self._freeze is not None and self._freeze.plan != self._shared.state.plan_number:
            self._freeze = None


FREEZE_PAUSE_NS = 10 * SECOND_NS
"""Shortest time, in nanoseconds, between two freezes because of large logs. Without this limit, the fleet could be frozen all the time."""

RECOVERY_FAILURES_MAX = 10
"""Largest number of failed attempts to store surviving states. After so many failed attempts, the fleet recovers from the newest epoch."""

RECOVERY_EPOCHS_MAX = 3
"""Largest number of epochs made before one plan. A limit is needed because a host that does not freeze may report new checkpoints
forever."""


class Autonomous:
    """Checkpoint mode of fleets with uncoordinated or communication-induced checkpoints."""

    def __init__(
        self,
        shared: LeaderState,
        lines: RecoveryLines,
        epochs: LineEpochs,
        freezing: Freezing,
        leaving: PendingRemovals,
        store: StoreWatch,
    ) -> None:
        self._shared = shared
        self._lines = lines
        self._epochs = epochs
        self._freezing = freezing
        self._leaving = leaving
        self._store = store
        self._is_freezing = False
        """True while the fleet is frozen for an epoch."""
        self._freeze_ns = 0
        """Earliest time of the next freeze because of large logs."""
        self._log_left = 0
        """Size, in bytes, of the logs that remained after the last complete epoch that was not made for a recovery."""
        self._newest: dict[str, int] = {}
        """Agent → number of its newest checkpoint after the hosts were frozen. Checkpoints of live states are included."""

    def evaluate(self) -> None:
        """Handle changes in the plan and in the checkpoints. If the fleet stops running, cancel a freeze that was made for an epoch."""
        self._lines.evaluate()
        self._freezing.evaluate()
        if self._shared.state.phase != RUNNING:
            self._is_freezing = False

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Present | None:
        """Propose an epoch if there is a trigger. A freeze that has begun is completed even while the store is failing."""
        if self._epochs.is_busy:
            return Later()
        if demand.is_held:
            return None
        trigger = self._trigger(demand) if demand.is_asked or self._is_freezing or self._store.allows() else ""
        if trigger:
            return Begun() if self._epochs.propose(trigger) else None
        is_wanted = demand.is_asked or (demand.is_of_all and not self._is_freezing)
        return self._present() if is_wanted and self._lines.is_settled else None

    def _trigger(self, demand: EpochDemand) -> str:
        """Return the trigger of the epoch that should begin now, or "" if none should begin."""
        lines = self._lines
        if not lines.is_ready or not lines.is_settled:
            return ""
        if demand.is_of_all or (demand.is_overdue and lines.is_behind):
            return self._frozen_trigger("period")
        if demand.is_asked and self._present() is None:
            return "hand"
        if demand.is_due and lines.has_advanced:
            return "period"
        return self._frozen_trigger(LOG_TRIGGER) if self._is_freezing else self._log_trigger()

    def _frozen_trigger(self, trigger: str) -> str:
        """Freeze the hosts. Once all hosts have answered, return `trigger` if the line of live states has advanced, otherwise thaw the
        hosts. Return "" if no epoch can begin."""
        self._is_freezing = True
        if not self._freezing.ask():
            return ""
        if self._lines.has_advanced:
            return trigger
        self._thaw()
        return ""

    def _present(self) -> Present | None:
        """Return the base epoch if it already contains the current recovery line, otherwise None."""
        ledger = self._lines.ledger
        if ledger is None or ledger.base_epoch == 0 or ledger.has_advanced:
            return None
        return Present(ledger.base_epoch, op.clip(ledger.why_not_advanced()))

    def _log_trigger(self) -> str:
        limit, size = self._shared.state.image.log_bytes_max, self._lines.log_bytes
        if not limit:
            return ""
        has_advanced = self._lines.has_advanced
        if has_advanced and size > max(limit // 2, self._log_left + limit // 4):
            return LOG_TRIGGER
        if size > limit and (not has_advanced or self._log_left > limit) and self._shared.now >= self._freeze_ns:
            self._shared.note(
                "warning",
                f"sender logs take {size} bytes of at most {limit}, and the recovery line does not advance: the fleet is "
                "stopped for a checkpoint of all its agents. A shorter checkpoint policy, or a protocol that forces "
                "checkpoints, would make that unnecessary",
            )
            self._is_freezing = True
            self._freezing.ask()
        return ""

    def _thaw(self) -> None:
        self._is_freezing, self._freeze_ns = False, self._shared.now + FREEZE_PAUSE_NS
        self._freezing.thaw()

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch."""
        self._epochs.on_begin_ended(result)

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Request that the recovery line fixed in the proposal be stored."""
        begun, ledger = self._epochs.take(epoch), self._lines.ledger
        if begun is None or isinstance(begun, Failing) or ledger is None:
            return begun if isinstance(begun, Failing) else None
        if any(number > ledger.newest.get(agent, 0) for agent, number in begun.line.items()):
            return Failing("a checkpoint of its line was found damaged")
        self._lines.materialise(epoch, begun.line, self._shared.state.member_records(epoch))
        return StoringLine()

    def collect(self, entry: OpenEpoch) -> None:
        """Do nothing, because the recovery line existed before the epoch."""

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """Thaw the fleet if it was frozen for the epoch."""
        if is_complete and entry.trigger != RECOVERY_TRIGGER:
            self._log_left = self._lines.log_bytes
        if self._is_freezing:
            self._thaw()

    def directives_for(self, host: str) -> Sequence[FreezeAgents | ThawAgents]:
        """Return the directive that freezes or thaws the agents of a host that has just reconnected."""
        return self._freezing.directives_for(host)

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Return whether the surviving states are in the newest complete epoch or cannot be stored. If the surviving states are not
        stored yet, take the next step to store them."""
        lines, epochs = self._lines, self._epochs
        if not self._freezing.ask() or not lines.is_settled or epochs.is_busy:
            return False
        self._newest = lines.newest()
        records, number = self._shared.state.image.epochs.values(), self._shared.state.plan_number
        recovery_epochs = [x for x in records if x.plan == number and x.trigger == RECOVERY_TRIGGER]
        is_enough = len(recovery_epochs) >= RECOVERY_EPOCHS_MAX or epochs.recovery_failures >= RECOVERY_FAILURES_MAX
        if not lines.has_advanced or is_enough:
            return True
        epochs.propose(RECOVERY_TRIGGER)
        return False

    def on_plan_ended(self) -> None:
        """Reset after CommitPlan, so that the next plan checks the surviving states again."""
        self._newest = {}
        self._epochs.on_plan_ended()

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan loses. An agent keeps its live state if its newest checkpoint contains that state and lies on the plan's
        recovery line."""
        state, ledger = self._shared.state, self._lines.ledger
        living = list(state.living_agents())
        if ledger is None or ledger.base_epoch != line:
            return LossReport(len(living))
        kept = passed = 0
        for agent, record in living:
            start = state.image.hosts[record.host].start if record.host else 0
            is_same_run = applied.get(record.host) == (state.plan_number, start)
            past = self._newest.get(agent, 0) - ledger.base.get(agent, 0)
            passed += past
            kept += is_same_run and not past and self._freezing.has_checkpointed_live_state(record.host, agent)
        return LossReport(len(living) - kept, passed)

    def retire(self, session: HostSession, message: RetireAgent) -> None:
        """Queue the agent, which is removed as soon as no recovery line can need it."""
        self._leaving.on_asked(session, message)

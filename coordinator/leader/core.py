"""The leader core: all decisions of the coordinator, and no state that must survive it.

Theory of operation. The replicated state (`fleet_state.py`) holds agreed facts; this core holds work in progress: streams,
reports, timers, pending proposals. After every event it compares the two and proposes the next operations. Nothing volatile is
needed for safety: a leader may die at any instruction, and the next one starts from the state alone, since

- hosts repeat on every new stream all messages without an answer (reports, applied plans, requests, refusals);
- directives are idempotent, and repeated on every new stream;
- an operation that was late, doubled or based on an older state is refused by the state machine.

The parts share a desk (`leader_state.py`) and are put together in `parts.py`. After every event each looks at the state, in this order:

    hosts/     hosts that are attached, admitted, lost or evicted
    modes/     how epochs are made: the mode is chosen by the fleet's protocol; it goes by `lines/`, where agents checkpoint by
               themselves: checkpoints in the store, and the recovery line
    plans/     starting and recovering
    epochs/    open epochs, their end, triggers, retention
    here       the fleet's definition, requests of hosts and tools, the stop condition, the end

A host receives on a new stream, in this order: ReadProbe, unless this leader has seen it read one; Welcome; Roster; Plan
(unless a new one is needed), EndEpoch for epochs that ended under this plan, and again for the newest release, OutputsWatched if
outputs are, BeginEpoch for open epochs (in logged protocols the questions of a round), FreezeAgents or ThawAgents if agents checkpoint
on their own, Quiesce if inputs or effects are held, EvaluateStop if it is asked that, and Finish if the fleet has ended.

Carries G4 and G9 with the state machine, and G10 within the fault budget.

The caller's duties:
1. First `LeaderStarted`, then events as they happen, and `TimerFired` when the clock passes `wakeup_ns`.
2. Carry out commands in order. Each `Propose`, `WriteProbe`, `WriteManifest`, `PublishEpoch`, `ReleaseEpoch`, `CheckLine`, `ResolveSnapshot`,
   `MaterialiseLine` and `ScanCheckpoints` is answered by one event.
3. `state` has applied an operation before its `ProposalEnded` is handed in.
"""

from snapline.coordinator.leader.concerns import Concerns
from snapline.coordinator.leader.events import (
    CheckpointsScanned,
    Command,
    EpochPublished,
    EpochReleased,
    Event,
    HostBusyReported,
    HostExitReported,
    LeaderStarted,
    LineChecked,
    LineMaterialised,
    LineRequested,
    ManifestWritten,
    MessageReceived,
    OutputReadersChanged,
    ProbeWritten,
    ProposalEnded,
    ReplicaLooked,
    RestoreRequested,
    SnapshotRequested,
    SnapshotResolved,
    StreamClosed,
    TimerFired,
)
from snapline.coordinator.leader.host_words import EndHostRequested, EndWanted, ForgetHostRequested, MovesRequested
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderOptions, Proposal
from snapline.coordinator.leader.parts import make_parts, sources_of
from snapline.coordinator.leader.standing import LeaderStatus
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERING, OperationResult
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import (
    AgentFailed,
    AgentsFrozen,
    CheckpointsAnswered,
    CheckpointsStored,
    Directive,
    EpochRefused,
    EpochReport,
    FleetDefinition,
    Heartbeat,
    HostMessage,
    Join,
    Leave,
    LocateAgents,
    NumbersReported,
    OpenLog,
    PeerSuspected,
    PlanApplied,
    PlanRefused,
    ProbeRead,
    ReserveAgents,
    RetireAgent,
    StopEvaluated,
    TurnSurvived,
    WantEpoch,
    WantRollback,
)
from snapline.messages.planned_ends import Quiesced, WantLeave

TICK_NS = SECOND_NS // 10
"""Longest delay in noticing a time-out."""

LATE_NS = SECOND_NS // 5
"""Lateness of a timer that means that this process did not run: no host is suspected for its silence meanwhile."""


OF_AGENTS = (Heartbeat, EpochReport, CheckpointsStored, AgentsFrozen, CheckpointsAnswered, PlanApplied)
"""Frequent messages that do not change which hosts are attached: the parts that check all hosts wait for the next tick then, and after a
heartbeat all parts do. So after a confirmation of a plan, while others are to come. With some hundred hosts that would be most of
the work (`benchmarks/scale.py --simulated`)."""

ASKED_BY_HOSTS = (op.CreateAgents, op.RemoveAgent, op.OpenHostLog)
"""Operations whose host is sent the refusal, or the plan that has overtaken them."""


class LeaderCore:
    """Decides for the fleet, as long as this process leads.

    Attributes:
        state: read only; changed by the log.
        parts: for reading.
        wakeup_ns: time of the next TimerFired.
    """

    def __init__(self, state: FleetView, options: LeaderOptions) -> None:
        self.state = state
        self.parts = make_parts(state, options)
        self.wakeup_ns = 0
        self._is_one_confirmation_of_many = False
        self._concerns = Concerns(self.parts.shared, sources_of(self.parts))

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Take one event and return the commands, to be carried out in order; `now_ns` is monotonic."""
        parts, shared = self.parts, self.parts.shared
        late_ns = now_ns - self.wakeup_ns
        shared.now, shared.out = now_ns, []
        if self.wakeup_ns and late_ns > LATE_NS:
            late = (
                parts.host_sessions,
                parts.failure_detector,
                parts.partitions,
                parts.answers,
                parts.stop_question,
                parts.quiescence,
            )
            for part in late:
                part.shift(late_ns)
        self._is_one_confirmation_of_many = False
        self._take(event)
        message = event.message if isinstance(event, MessageReceived) else None
        is_early = now_ns < self.wakeup_ns
        if isinstance(message, Heartbeat) and is_early:
            return shared.out
        shared.propose_again()
        self._greet()
        is_of_agents = isinstance(message, OF_AGENTS) or self._is_one_confirmation_of_many
        self._evaluate(is_news_of_hosts=not (is_of_agents and is_early))
        trigger_ns = parts.period.next_ns
        is_near = trigger_ns is not None and now_ns < trigger_ns < now_ns + TICK_NS
        self.wakeup_ns = trigger_ns if trigger_ns is not None and is_near else now_ns + TICK_NS
        return shared.out

    def _take(self, event: Event) -> None:
        parts = self.parts
        match event:
            case TimerFired():
                pass  # what is due is seen after every event: where there is always something to hear, no timer fires
            case MessageReceived():
                self._on_message_received(event.session, event.message)
            case ProposalEnded():
                self._on_proposal_ended(event)
            case StreamClosed():
                parts.host_sessions.on_closed(event.session)
            case ManifestWritten():
                parts.coordinated.on_manifest_written(event)
            case LineMaterialised():
                parts.line_epochs.on_materialised(event)
            case CheckpointsScanned():
                parts.lines.on_scanned(event)
            case EpochPublished():
                parts.publisher.on_published(event)
                parts.releases.on_published(event)
            case EpochReleased():
                parts.releases.on_released(event)
            case OutputReadersChanged():
                parts.releases.on_readers_changed(event)
            case LineChecked():
                parts.line_check.on_checked(event)
            case ProbeWritten():
                parts.admission.on_probe_written(event)
            case SnapshotRequested():
                parts.snapshots.on_requested(event.request)
            case LineRequested():
                parts.questions.on_requested(event)
            case RestoreRequested():
                parts.restores.on_requested(event)
            case SnapshotResolved():
                parts.rollbacks.on_resolved(event)
            case HostExitReported():
                parts.failure_detector.on_exit_reported(event)
            case HostBusyReported():
                parts.failure_detector.on_busy_reported(event)
            case ForgetHostRequested():
                parts.host_removal.on_requested(event)
            case ReplicaLooked():
                parts.processes.on_replica_looked(event)
            case EndHostRequested():
                parts.failure_detector.on_end_requested(event.host)
            case EndWanted():
                parts.departures.on_end_wanted()
            case MovesRequested():
                parts.moves.on_requested(event)
            case LeaderStarted():
                parts.host_sessions.on_started()
                parts.failure_detector.on_started()
                parts.publisher.on_started()
                parts.releases.on_started()
                parts.retention.on_started()
            case _:
                raise AssertionError(f"no rule for {event!r}")

    def _evaluate(self, *, is_news_of_hosts: bool) -> None:
        parts = self.parts
        if is_news_of_hosts:
            parts.standby_hosts.evaluate()
            parts.host_sessions.evaluate()
            parts.admission.evaluate()
            parts.failure_detector.evaluate()
            parts.partitions.evaluate()
            parts.host_removal.evaluate()
            parts.missing_hosts.evaluate()
            parts.definition.evaluate()
        parts.modes.mode.evaluate()
        parts.rollbacks.evaluate()
        parts.restores.evaluate()
        if is_news_of_hosts:
            parts.moves.evaluate()
        parts.departures.evaluate()
        parts.plans.evaluate(is_news_of_hosts=is_news_of_hosts)
        parts.quiescence.evaluate()
        parts.epochs.evaluate()
        parts.releases.evaluate()
        parts.store.evaluate()
        parts.triggers.evaluate()
        parts.retention.evaluate()
        parts.leaving.evaluate()
        parts.questions.evaluate()
        parts.stop_question.evaluate()
        parts.shutdown.evaluate()
        parts.objectives.evaluate()
        self._concerns.evaluate()

    def standing(self) -> LeaderStatus:
        """Return the status of the fleet now, next to that in the state."""
        parts = self.parts
        return LeaderStatus(
            parts.triggers.skipped,
            parts.lines.log_bytes,
            parts.store.condition(),
            self._concerns.current(),
            parts.host_sessions.heartbeats(),
            parts.releases.is_settled,
            0 if parts.lines.ledger is None else len(parts.lines.ledger.packs),
        )

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def _on_message_received(self, number: int, message: HostMessage) -> None:
        parts = self.parts
        if isinstance(message, Join):
            parts.admission.on_joined(number, message)
            return
        if isinstance(message, ProbeRead):
            parts.admission.on_probe_read(number, message)
            return
        session = parts.host_sessions.session(number)
        if session is None:
            return
        parts.host_sessions.on_heard(session)
        match message:
            case Heartbeat():
                parts.host_sessions.on_heartbeat(session, message)
                parts.loads.on_heartbeat(session)
            case EpochReport():
                parts.epochs.on_report(session, message)
            case CheckpointsStored():
                parts.lines.on_stored(session, message)
            case AgentsFrozen():
                parts.freezing.on_frozen(session, message)
            case CheckpointsAnswered():
                parts.rounds.on_checkpoints_answered(session, message)
            case NumbersReported():
                parts.questions.on_numbers_reported(session, message)
            case FleetDefinition():
                parts.definition.on_received(session, message)
            case PlanApplied():
                parts.plans.on_applied(session, message)
            case PlanRefused():
                parts.plans.on_refused(session, message)
            case EpochRefused():
                parts.epochs.on_refused(session, message)
            case ReserveAgents() | RetireAgent() | LocateAgents():
                parts.requests.on_received(session, message)
            case WantEpoch():
                parts.triggers.on_wanted(session, message)
            case OpenLog():
                parts.requests.on_log_wanted(session, message)
            case PeerSuspected():
                parts.failure_detector.on_peer_suspected(message)
            case AgentFailed():
                parts.plans.on_agent_failed(session, message)
            case WantRollback():
                parts.rollbacks.on_wanted(session, message)
            case TurnSurvived():
                forgiven = op.ForgiveTurn(message.agent, message.digest)
                parts.shared.propose(f"forgive/{message.agent}/{message.digest.hex()}", forgiven)
            case StopEvaluated():
                parts.stop_question.on_reached(session, message)
            case Quiesced():
                parts.quiescence.on_quiesced(session, message)
            case WantLeave():
                parts.departures.on_wanted(session, message)
            case Leave():
                parts.failure_detector.on_leave(session, message)

    def _greet(self) -> None:
        """Send to new streams the directives that the others have already."""
        parts = self.parts
        for session in parts.host_sessions.take_newly_attached():
            here = (session.id,)
            parts.shared.send(here, parts.host_sessions.roster())  # a new one goes to all, and so to this one again
            plan = parts.plans.directive()
            directives: list[Directive] = []
            if plan is not None and not self.state.image.outcome:
                ended = parts.epochs.ended_since(plan.begun_epoch)
                directives = [plan, *ended, *parts.releases.directives_for()]
            directives += [*parts.modes.mode.directives_for(session.host), *parts.quiescence.directives_for()]
            directives += parts.shutdown.directives_for()
            for directive in directives:
                parts.shared.send(here, directive)

    # ---- proposals ------------------------------------------------------------------------------------------------

    def _on_proposal_ended(self, event: ProposalEnded) -> None:
        ended = self.parts.shared.end_proposal(event.token, event.outcome)
        if ended is None:
            return
        proposal, result = ended
        if result is not None and result.is_refused and not isinstance(proposal.kind, ASKED_BY_HOSTS):
            self.parts.shared.note("info", f"{type(proposal.kind).__name__} was refused: {result.reason}")
        self._dispatch_result(proposal, result)

    def _dispatch_result(self, proposal: Proposal, result: OperationResult | None) -> None:
        parts = self.parts
        match proposal.kind:
            case op.AdmitHost():
                parts.admission.on_admission_ended(proposal.key, proposal.kind, result)
            case op.CommitPlan() | op.Restore():
                parts.plans.on_plan_ended()
            case op.ConfirmPlan():
                parts.plans.on_confirmation_ended(proposal.kind, result)
                self._is_one_confirmation_of_many = self.state.phase == RECOVERING
            case op.BeginEpoch():
                parts.triggers.on_begin_ended(result)
            case op.ForgetEpochs() if result is not None:
                parts.retention.on_forgotten(result)
            case op.CreateAgents() | op.RemoveAgent() if result is not None:
                parts.requests.on_ended(proposal, result)
            case op.OpenHostLog() if result is not None:
                parts.requests.on_log_opened(proposal.kind, result)
            case op.DefineFleet():
                parts.admission.on_defined()
            case op.EndFleet() if result is not None:
                parts.shutdown.on_end_ended(result)

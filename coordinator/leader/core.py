"""Core of the coordinator's leader. The leader core makes all decisions and holds no state that must survive a change of leader.

Theory of operation. The replicated state (`fleet_state.py`) contains everything on which the replicas have agreed. The core contains only
work in progress: streams, reports, timers and pending proposals. After every event, the core compares its work with the replicated state
and proposes the next operations. Safety does not depend on volatile state. A leader may die at any instruction. The next leader starts
from the replicated state alone, because

- on every new stream, hosts resend all unanswered messages (reports, applied plans, requests, refusals);
- the leader resends its directives, which are idempotent, on every new stream;
- the state machine refuses operations that are late, duplicate or based on an older state.

All parts of the leader core share one `LeaderState`, and `make_parts` connects the parts. Each part has references to the parts that it
calls, and does not know its callers. After every event, the parts compare the replicated state with their own work, in this order:

    hosts/        attached, admitted, lost and evicted hosts; the fleet's definition
    modes/        how epochs are made (the fleet's protocol chooses the mode); the recovery line of fleets whose agents keep sender logs
    plans         starting and recovering: `recovery_plans.py`, `agent_moves.py`
    epochs/       open epochs, their completion, triggers, retention
    this folder   requests from hosts, concerns, the stop condition, the shutdown

On a new stream a host receives these messages, in this order:

- ReadProbe, unless this leader has already seen the host read a probe; Welcome; Roster;
- Plan, unless a new plan is needed;
- EndEpoch for epochs that ended under this plan, then EndEpoch for the newest released epoch; OutputsWatched if a consumer follows the
  outputs;
- BeginEpoch for open epochs (in protocols with sender logs, the requests of the current checkpoint round);
- FreezeAgents or ThawAgents if agents checkpoint on their own;
- Quiesce if inputs or effects are held; EvaluateStop if this host must evaluate the stop condition; Finish if the fleet has ended.

This core and the state machine together provide G4 and G9, and G10 within the fault budget.

The caller's duties:
1. Pass `LeaderStarted` first, then each event as it happens, and `TimerFired` when the clock passes `wakeup_ns`.
2. Execute commands in order. Answer each of the following commands with exactly one event: `Propose`, `WriteProbe`, `WriteManifest`,
   `PublishEpoch`, `ReleaseEpoch`, `CheckLine`, `ResolveSnapshot`, `MaterialiseLine` and `ScanCheckpoints`.
3. Apply each committed operation to `state` before passing the corresponding `ProposalEnded`.

*Host requests* create, retire or locate agents between epochs, or open a log for client inputs. The checkpoint mode decides when a
stopped agent may be removed.

Each host numbers its requests, and the request id in the log is (run of the host, action, number). A repeated request is therefore applied
only once. The leader looks up agents' locations in the state without a proposal. A stale location is harmless, because a host refuses
messages to an agent that it does not run, and the sender then asks again.
"""

from dataclasses import dataclass
from functools import partial

import msgspec

from snapline.coordinator.leader.agent_moves import HostLoads, Moves
from snapline.coordinator.leader.epochs.epoch_lifecycle import Epochs, Retention, Triggers
from snapline.coordinator.leader.epochs.open_epochs import OpenEpochs
from snapline.coordinator.leader.epochs.publishing import RefPublisher, Releases, Snapshots
from snapline.coordinator.leader.epochs.store_watch import Period, StoreCondition, StoreWatch
from snapline.coordinator.leader.events import (
    CheckpointsScanned,
    CloseStream,
    Command,
    CoordinatorStopRequested,
    EndHostRequested,
    EpochPublished,
    EpochReleased,
    Event,
    ForgetHostRequested,
    HostBusyReported,
    HostExitReported,
    LeaderStarted,
    LineChecked,
    LineMaterialised,
    LineRequested,
    ManifestWritten,
    MessageReceived,
    MovesRequested,
    OutputReadersChanged,
    ProbeWritten,
    ProposalEnded,
    ReplicaStatusChecked,
    RestoreRequested,
    SnapshotRequested,
    SnapshotResolved,
    StreamClosed,
    TimerFired,
)
from snapline.coordinator.leader.fleet_end import Departures, Quiescence, Shutdown, StopQuestion
from snapline.coordinator.leader.hosts.admission import Admission, Definition
from snapline.coordinator.leader.hosts.failure_detector import FailureDetector, HostRemoval, Partitions, StandbyHosts
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_concerns import (
    Concerns,
    MissingHosts,
    Objectives,
    ProcessWatch,
    Source,
    aborted_epoch_concerns,
    standing_agents,
)
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderOptions, LeaderState, Proposal
from snapline.coordinator.leader.modes.autonomous_epochs import Autonomous, Freezing
from snapline.coordinator.leader.modes.checkpoint_modes import LineEpochs, ModeChoice, PendingRemovals
from snapline.coordinator.leader.modes.coordinated_epochs import Coordinated
from snapline.coordinator.leader.modes.koo_toueg_epochs import CheckpointRounds, KooToueg
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines, RecoveryQueries
from snapline.coordinator.leader.recovery_plans import LineCheck, PlanAnswers, Plans, Restores, Rollbacks
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OVER, RECOVERING, OperationResult
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import (
    AgentFailed,
    AgentRetired,
    AgentsFrozen,
    AgentsLocated,
    AgentsReserved,
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
    LogOpened,
    NumbersReported,
    OpenLog,
    PeerSuspected,
    PlanApplied,
    PlanRefused,
    ProbeRead,
    Quiesced,
    ReserveAgents,
    RetireAgent,
    StopEvaluated,
    TurnSurvived,
    WantEpoch,
    WantLeave,
    WantRollback,
)
from snapline.messages.status import Concern
from snapline.storage.log.log_record import LogName

BATCH_BYTES_MAX = 48 * 1024
"""Largest total size, in bytes, of the names and kinds in one creation request. The limit keeps the operation below 64 KiB."""


class HostRequests:
    """Handler of hosts' requests between epochs."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, modes: ModeChoice) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._modes = modes

    def on_received(self, session: HostSession, message: ReserveAgents | RetireAgent | LocateAgents) -> None:
        """Handle a host's request to create, retire or locate agents. The host may repeat the request."""
        if isinstance(message, LocateAgents):
            self._shared.send((session.id,), self._locate(message))
            return
        kind: op.Kind
        if isinstance(message, ReserveAgents):
            names = tuple([x.agent for x in message.agents])
            kinds = tuple([x.kind for x in message.agents])
            if sum(len(x.encode()) + 4 for x in (*names, *kinds, message.parent)) > BATCH_BYTES_MAX:
                reason = f"{len(names)} agents are too many for one request"
                self._shared.send((session.id,), AgentsReserved(message.request, refused=reason))
                return
            action = "reserve"
            kind = op.CreateAgents(session.host, session.start, message.plan, names, kinds, message.parent)
        else:
            removal = self._modes.mode.retire(session, message)
            if removal is None:
                return
            action, kind = "retire", removal
        if self._shared.is_full:
            self._shared.note("error", f"host {session.host} asks for too much at once")
            self._shared.out.append(CloseStream(session.id))
            self._host_sessions.on_closed(session.id)
            return
        client = f"{session.host}.{session.start}.{action}"
        self._shared.propose(f"{client}/{message.request}", kind, client=client, sequence=message.request)

    def on_log_wanted(self, session: HostSession, message: OpenLog) -> None:
        """Handle a host's request to open its log. The host may repeat the request."""
        kind = op.OpenHostLog(session.host, session.start, message.plan, message.key, message.newest)
        self._shared.propose(f"log/{message.plan}/{session.host}.{session.start}", kind)

    def on_log_opened(self, kind: op.OpenHostLog, result: OperationResult) -> None:
        """Allow a host to write its log, unless its request was refused.

        If the request was refused because the plan was replaced, the host receives the next plan instead.
        """
        session = self._host_sessions.session_of(kind.host)
        if session is not None and session.start == kind.host_start and not result.is_refused:
            certify, log = self._shared.options.certify, LogName(kind.plan, kind.host, kind.host_start)
            certificate = certify(log, kind.key) if certify is not None and kind.key else b""
            self._shared.send((session.id,), LogOpened(kind.plan, certificate, kind.newest))

    def on_ended(self, proposal: Proposal, result: OperationResult) -> None:
        """Answer the host's request to create or remove agents, after the operation was committed or refused. Removals that the leader
        itself has proposed are answered by `modes/checkpoint_modes.py`.

        The host gets no answer if the request was refused because its plan was replaced (OVER). A lost host may rejoin before the next
        plan, and its agents may keep their live states. If the host then got a refusal, its agents' requests to create other agents would
        be lost permanently.
        """
        kind = proposal.kind
        assert isinstance(kind, op.CreateAgents | op.RemoveAgent)
        session = self._host_sessions.session_of(kind.host)
        is_own = proposal.client == self._shared.options.client
        if session is None or session.start != kind.host_start or is_own or result.status == OVER:
            return
        refused = (result.reason or "refused") if result.is_refused else ""
        answer: Directive
        if isinstance(kind, op.CreateAgents):
            agents = self._shared.state.image.agents
            if not refused and not all(agent in agents for agent in kind.agents):
                return  # A newer plan has removed these agents. A host without that plan would create agents that the state does not have.
            ordinals = () if refused else tuple([agents[agent].ordinal for agent in kind.agents])
            answer = AgentsReserved(proposal.sequence, result.begun, result.epochs, result.number, refused, ordinals)
        else:
            answer = AgentRetired(proposal.sequence, result.epochs, refused)
        self._shared.send((session.id,), answer)

    def _locate(self, message: LocateAgents) -> AgentsLocated:
        agents = self._shared.state.image.agents
        hosts: list[str] = []
        incarnations: list[int] = []
        ordinals: list[int] = []
        for agent in message.agents:
            record = agents.get(agent)
            is_here = record is not None and record.left_plan is None
            hosts.append(record.host if record is not None and is_here else "")
            incarnations.append(record.incarnation if record is not None and is_here else 0)
            ordinals.append(record.ordinal if record is not None and is_here else 0)
        return AgentsLocated(message.request, message.agents, tuple(hosts), tuple(incarnations), tuple(ordinals))


TICK_NS = SECOND_NS // 10
"""Timer interval in nanoseconds, which is also the longest delay before a time-out is noticed."""

LATE_NS = SECOND_NS // 5
"""Timer lateness, in nanoseconds, from which this process is assumed to have been suspended. Time spent suspended does not count as silence
of hosts."""


FREQUENT_MESSAGES = (Heartbeat, EpochReport, CheckpointsStored, AgentsFrozen, CheckpointsAnswered, PlanApplied)
"""Frequent messages that do not change which hosts are attached. After one of these messages, the parts that check all hosts wait for the
next tick; after a heartbeat, all parts wait. The parts that check all hosts also wait after a ConfirmPlan operation while other hosts have
not confirmed the plan. With several hundred hosts these checks would otherwise be most of the leader's work (`benchmarks/scale.py
--simulated`)."""

HOST_REQUESTED_OPERATIONS = (op.CreateAgents, op.RemoveAgent, op.OpenHostLog)
"""Operations requested by a host. A refusal of such an operation is not logged, because the host receives the refusal or a newer plan."""


class LeaderStatus(msgspec.Struct, frozen=True):
    """Information for `snapline status` that is not in the replicated log. No decision depends on this information.

    Attributes:
        triggers_skipped: number of epoch triggers skipped since this leader started.
        stored_log_bytes: size of the sender logs written to the store since the newest epoch.
        stored_packs: number of checkpoint packs in the store that a recovery line may need, without the epochs' packs.
        concerns: problems of the fleet, such as missing hosts or broken links, and when they began.
        heartbeats: last heartbeat of each host that has a stream.
        is_released: whether the outputs of all complete epochs have been released to consumers.
    """

    triggers_skipped: int
    stored_log_bytes: int
    store: StoreCondition
    concerns: tuple[Concern, ...]
    heartbeats: dict[str, Heartbeat]
    is_released: bool = True
    stored_packs: int = 0


class LeaderCore:
    """Core that makes all decisions for the fleet while this process leads.

    Attributes:
        state: the replicated state; read only.
        parts: all parts of this leader; read only.
        wakeup_ns: time at which the next TimerFired event is due.
    """

    def __init__(self, state: FleetView, options: LeaderOptions) -> None:
        self.state = state
        self.parts = make_parts(state, options)
        self.wakeup_ns = 0
        self._is_partial_confirmation = False
        self._concerns = Concerns(self.parts.shared, concern_sources(self.parts))

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event at the monotonic time `now_ns`, and return the commands to execute in order."""
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
        self._is_partial_confirmation = False
        self._take(event)
        message = event.message if isinstance(event, MessageReceived) else None
        is_early = now_ns < self.wakeup_ns
        if isinstance(message, Heartbeat) and is_early:
            return shared.out
        shared.propose_again()
        self._send_initial_directives()
        is_of_agents = isinstance(message, FREQUENT_MESSAGES) or self._is_partial_confirmation
        self._evaluate(are_hosts_changed=not (is_of_agents and is_early))
        trigger_ns = parts.period.next_ns
        is_near = trigger_ns is not None and now_ns < trigger_ns < now_ns + TICK_NS
        self.wakeup_ns = trigger_ns if trigger_ns is not None and is_near else now_ns + TICK_NS
        return shared.out

    def _take(self, event: Event) -> None:
        parts = self.parts
        match event:
            case TimerFired():
                pass  # every event evaluates the parts; TimerFired does so for idle fleets
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
            case ReplicaStatusChecked():
                parts.processes.on_replica_status_checked(event)
            case EndHostRequested():
                parts.failure_detector.on_end_requested(event.host)
            case CoordinatorStopRequested():
                parts.departures.on_coordinator_stop_requested()
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

    def _evaluate(self, *, are_hosts_changed: bool) -> None:
        parts = self.parts
        if are_hosts_changed:
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
        if are_hosts_changed:
            parts.moves.evaluate()
        parts.departures.evaluate()
        parts.plans.evaluate(are_hosts_changed=are_hosts_changed)
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
        """Return the current status information that is not in the replicated state."""
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
        parts.host_sessions.on_activity(session)
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
                parts.stop_question.on_stop_evaluated(session, message)
            case Quiesced():
                parts.quiescence.on_quiesced(session, message)
            case WantLeave():
                parts.departures.on_wanted(session, message)
            case Leave():
                parts.failure_detector.on_leave(session, message)

    def _send_initial_directives(self) -> None:
        """Send the current directives to each newly opened stream."""
        parts = self.parts
        for session in parts.host_sessions.take_newly_attached():
            sessions = (session.id,)
            parts.shared.send(
                sessions, parts.host_sessions.roster()
            )  # a changed roster goes to all sessions, so this one may receive it twice
            plan = parts.plans.directive()
            directives: list[Directive] = []
            if plan is not None and not self.state.image.outcome:
                ended = parts.epochs.ended_since(plan.begun_epoch)
                directives = [plan, *ended, *parts.releases.directives_for()]
            directives += [*parts.modes.mode.directives_for(session.host), *parts.quiescence.directives_for()]
            directives += parts.shutdown.directives_for()
            for directive in directives:
                parts.shared.send(sessions, directive)

    # ---- proposals ------------------------------------------------------------------------------------------------

    def _on_proposal_ended(self, event: ProposalEnded) -> None:
        ended = self.parts.shared.end_proposal(event.token, event.outcome)
        if ended is None:
            return
        proposal, result = ended
        if result is not None and result.is_refused and not isinstance(proposal.kind, HOST_REQUESTED_OPERATIONS):
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
                self._is_partial_confirmation = self.state.phase == RECOVERING
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


@dataclass(frozen=True)
class Parts:
    """All parts of one leader. The core dispatches events to these parts. Tests inspect them."""

    shared: LeaderState
    # hosts
    host_sessions: HostSessions
    admission: Admission
    failure_detector: FailureDetector
    host_removal: HostRemoval
    missing_hosts: MissingHosts
    standby_hosts: StandbyHosts
    partitions: Partitions
    definition: Definition
    # checkpoints of the fleet
    store: StoreWatch
    period: Period
    snapshots: Snapshots
    open_epochs: OpenEpochs
    publisher: RefPublisher
    releases: Releases
    triggers: Triggers
    epochs: Epochs
    retention: Retention
    # checkpoint modes
    modes: ModeChoice
    coordinated: Coordinated
    lines: RecoveryLines
    line_epochs: LineEpochs
    freezing: Freezing
    rounds: CheckpointRounds
    leaving: PendingRemovals
    # recoveries
    line_check: LineCheck
    answers: PlanAnswers
    restores: Restores
    moves: Moves
    loads: HostLoads
    rollbacks: Rollbacks
    plans: Plans
    # requests of hosts and tools
    requests: HostRequests
    questions: RecoveryQueries
    stop_question: StopQuestion
    quiescence: Quiescence
    departures: Departures
    shutdown: Shutdown
    objectives: Objectives
    processes: ProcessWatch


def concern_sources(parts: Parts) -> tuple[Source, ...]:
    """Return all sources of concerns, in display order."""
    return (
        parts.missing_hosts.concerns,
        parts.processes.concerns,
        parts.failure_detector.concerns,
        parts.partitions.concerns,
        parts.answers.concerns,
        parts.stop_question.concerns,
        parts.standby_hosts.concerns,
        parts.moves.concerns,
        parts.quiescence.concerns,
        parts.restores.concerns,
        parts.rollbacks.concerns,
        partial(standing_agents, parts.shared, parts.host_sessions),
        parts.store.concerns,
        partial(aborted_epoch_concerns, parts.shared, parts.store),
        parts.objectives.concerns,
        parts.line_check.concerns,
        parts.plans.concerns,
    )


def make_parts(state: FleetView, options: LeaderOptions) -> Parts:
    """Return the parts of a new leader."""
    shared = LeaderState(state, options)
    host_sessions, standby_hosts = HostSessions(shared), StandbyHosts(shared)
    period, snapshots = Period(shared), Snapshots(shared)
    lines, store = RecoveryLines(shared, host_sessions), StoreWatch(shared, host_sessions, period)
    open_epochs = OpenEpochs(shared, store)
    publisher = RefPublisher(shared, host_sessions, snapshots, store, lines)
    releases = Releases(shared, host_sessions, publisher, store)
    freezing, rounds = Freezing(shared, host_sessions, standby_hosts), CheckpointRounds(shared, host_sessions, lines)
    leaving, line_epochs = PendingRemovals(shared, host_sessions, lines), LineEpochs(shared, open_epochs, lines)
    coordinated = Coordinated(shared, host_sessions, open_epochs)
    modes = ModeChoice(
        state,
        coordinated=coordinated,
        koo_toueg=KooToueg(shared, host_sessions, lines, line_epochs, rounds, publisher, leaving, open_epochs, store),
        autonomous=Autonomous(shared, lines, line_epochs, freezing, leaving, store),
    )
    quiescence = Quiescence(shared, host_sessions)
    moves, loads = Moves(shared, host_sessions, quiescence), HostLoads(shared)
    stop_question = StopQuestion(shared, host_sessions, publisher, quiescence)
    departures = Departures(shared, host_sessions, publisher, quiescence)
    triggers = Triggers(
        shared, modes, open_epochs, publisher, snapshots, store, period, moves, departures, stop_question
    )
    line_check, answers, restores = LineCheck(shared), PlanAnswers(shared, host_sessions), Restores(shared)
    return Parts(
        shared=shared,
        host_sessions=host_sessions,
        admission=Admission(shared, host_sessions),
        failure_detector=FailureDetector(shared, host_sessions),
        host_removal=HostRemoval(shared),
        missing_hosts=MissingHosts(shared, host_sessions),
        standby_hosts=standby_hosts,
        partitions=Partitions(shared, host_sessions, standby_hosts),
        definition=Definition(shared, host_sessions),
        store=store,
        period=period,
        snapshots=snapshots,
        open_epochs=open_epochs,
        publisher=publisher,
        releases=releases,
        triggers=triggers,
        epochs=Epochs(shared, modes, open_epochs, publisher, releases, store),
        retention=Retention(shared, open_epochs, publisher, releases, stop_question),
        modes=modes,
        coordinated=coordinated,
        lines=lines,
        line_epochs=line_epochs,
        freezing=freezing,
        rounds=rounds,
        leaving=leaving,
        line_check=line_check,
        answers=answers,
        restores=restores,
        moves=moves,
        loads=loads,
        rollbacks=Rollbacks(shared, host_sessions, restores),
        plans=Plans(
            shared, host_sessions, lines, modes, triggers, line_check, answers, standby_hosts, restores, moves, loads
        ),
        requests=HostRequests(shared, host_sessions, modes),
        questions=RecoveryQueries(shared, host_sessions, lines),
        stop_question=stop_question,
        quiescence=quiescence,
        departures=departures,
        shutdown=Shutdown(shared, host_sessions, publisher, releases, snapshots),
        objectives=Objectives(shared),
        processes=ProcessWatch(shared, host_sessions),
    )

"""The leader core: everything the coordinator decides, and nothing that must survive it.

Theory of operation. The replicated state (`fleet_state.py`) holds what is agreed; this core holds what is going on: streams,
reports, timers, proposals on their way. After every event it compares the two and proposes what follows. Nothing volatile is
needed for safety: a leader may die at any instruction, and the next one starts from the state alone, since

- hosts repeat on every new stream what has not been answered (reports, applied plans, requests, refusals);
- directives are idempotent, and repeated on every new stream;
- an operation that was late, doubled or based on an older state is refused by the state machine.

The parts share a desk (`desk.py`), evaluated in this order after every event: `attendance.py` (who is there), the
fleet's definition, `lines.py` (checkpoints that agents took by themselves, in logged protocols), `plans.py` (starting and
recovering), `epochs.py` (checkpoints of the fleet), `stop_question.py`, and here requests of hosts and the end. `cuts.py` and `plan_answers.py` find who
holds the fleet up although it can be heard, and `spares.py` does without.

What a host sees on a new stream, in this order: ReadProbe, unless this leader has seen it read one; Welcome; Roster; Plan
(unless a new one is needed), EndEpoch for epochs that ended under this plan, BeginEpoch for open ones (in logged protocols
the questions of a round), FreezeAgents or ThawAgents if agents checkpoint on their own, EvaluateStop if it was asked that, and
Finish if the fleet has ended.

Carries G4 and G9 with the state machine, and G10 within the fault budget.

The caller's duties:
1. First `LeaderStarted`, then events as they happen, and `TimerFired` when the clock passes `wakeup_ns`.
2. Carry out commands in order. Each `Propose`, `WriteProbe`, `WriteManifest`, `PublishEpoch`, `CheckLine`, `MaterialiseLine`
   and `ScanCheckpoints` is answered by one event.
3. `state` has applied an operation before its `ProposalEnded` is handed in.
"""

from snapline.conversation.messages import (
    AgentFailed,
    AgentsFrozen,
    CheckpointsAnswered,
    CheckpointsStored,
    EpochRefused,
    EpochReport,
    Finish,
    FleetDefinition,
    Heartbeat,
    HostMessage,
    Join,
    Leave,
    LocateAgents,
    NumbersReported,
    PeerSuspected,
    PlanApplied,
    PlanRefused,
    ProbeRead,
    ReserveAgents,
    RetireAgent,
    StopEvaluated,
)
from snapline.coordinator.leader.attendance import Attendance
from snapline.coordinator.leader.cuts import Cuts
from snapline.coordinator.leader.desk import SECOND_NS, Desk, LeaderOptions, Proposal
from snapline.coordinator.leader.epochs import Epochs
from snapline.coordinator.leader.events import (
    CheckpointsScanned,
    Command,
    EndRun,
    EpochPublished,
    Event,
    ForgetHostRequested,
    HostExitReported,
    LeaderStarted,
    LineChecked,
    LineMaterialised,
    LineRequested,
    ManifestWritten,
    MessageReceived,
    ProbeWritten,
    ProposalEnded,
    SnapshotRequested,
    StreamClosed,
    TimerFired,
)
from snapline.coordinator.leader.forgetting import Forgetting
from snapline.coordinator.leader.freezing import Freezing
from snapline.coordinator.leader.line_epochs import LineEpochs
from snapline.coordinator.leader.lines import Lines
from snapline.coordinator.leader.plans import Plans
from snapline.coordinator.leader.questions import Questions
from snapline.coordinator.leader.requests import Requests
from snapline.coordinator.leader.rounds import Rounds
from snapline.coordinator.leader.spares import Spares
from snapline.coordinator.leader.standing import LeaderStanding
from snapline.coordinator.leader.stop_question import StopQuestion
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.definition import Definition
from snapline.coordinator.state.fleet_records import OperationResult
from snapline.coordinator.state.fleet_view import FleetView

TICK_NS = SECOND_NS // 10
"""How late a time-out may be noticed."""

LATE_NS = SECOND_NS // 5
"""A timer later than this means that this process did not run: nobody is suspected for what was not heard meanwhile."""

FAREWELL_NS = 5 * SECOND_NS
"""How long hosts have to hear that the fleet has ended, and to leave."""


class LeaderCore:
    """Decides for the fleet, as long as this process leads.

    Attributes:
        state: read only; changed by the log.
        attendance, lines, plans, epochs, questions: the parts, for reading.
        wakeup_ns: when TimerFired is wanted.
    """

    def __init__(self, state: FleetView, options: LeaderOptions) -> None:
        self.state = state
        self._desk = Desk(state, options)
        self.attendance = Attendance(self._desk)
        self._forgetting = Forgetting(self._desk)
        self.lines = Lines(self._desk, self.attendance)
        self._spares = Spares(self._desk)
        self._freezing = Freezing(self._desk, self.attendance, self._spares)
        self._rounds = Rounds(self._desk, self.attendance, self.lines)
        line_epochs = LineEpochs(self._desk, self.attendance, self.lines, self._rounds, self._freezing)
        self.epochs = Epochs(self._desk, self.attendance, self.lines, line_epochs)
        self._cuts = Cuts(self._desk, self.attendance, self._spares)
        self.plans = Plans(self._desk, self.attendance, self.lines, self._freezing, self.epochs, self._spares)
        self._stop_question = StopQuestion(self._desk, self.attendance, self.epochs)
        self._definition = Definition(self._desk, self.attendance)
        self.questions = Questions(self._desk, self.attendance, self.lines)
        self._requests = Requests(self._desk, self.attendance, self.lines)
        self.wakeup_ns = 0
        self._ended_ns = 0
        self._is_over = False

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Take one event; `now_ns` is monotonic. The commands are to be carried out in order."""
        desk = self._desk
        late_ns = now_ns - self.wakeup_ns
        desk.now, desk.out = now_ns, []
        if self.wakeup_ns and late_ns > LATE_NS:
            for part in (self.attendance, self._cuts, self.plans.answers, self._stop_question):
                part.shift(late_ns)
        self._take(event)
        desk.propose_again()
        self._greet()
        self._evaluate()
        trigger_ns = self.epochs.next_trigger_ns()
        self.wakeup_ns = min(now_ns + TICK_NS, trigger_ns) if trigger_ns > now_ns else now_ns + TICK_NS
        return desk.out

    def _take(self, event: Event) -> None:
        match event:
            case TimerFired():
                pass  # what is due is seen after every event: where there is always something to hear, no timer fires
            case MessageReceived():
                self._on_message_received(event.session, event.message)
            case ProposalEnded():
                self._on_proposal_ended(event)
            case StreamClosed():
                self.attendance.on_closed(event.session)
            case ManifestWritten():
                self.epochs.on_manifest_written(event)
            case LineMaterialised():
                self.epochs.on_line_materialised(event)
            case CheckpointsScanned():
                self.lines.on_scanned(event)
            case EpochPublished():
                self.epochs.on_published(event)
            case LineChecked():
                self.plans.on_line_checked(event)
            case ProbeWritten():
                self.attendance.on_probe_written(event)
            case SnapshotRequested():
                self.epochs.on_requested(event.request)
            case LineRequested():
                self.questions.on_requested(event)
            case HostExitReported():
                self.attendance.on_exit_reported(event.host, event.instance, event.reason)
            case ForgetHostRequested():
                self._forgetting.on_requested(event)
            case LeaderStarted():
                self.attendance.on_started()
                self.epochs.on_started()
            case _:
                raise AssertionError(f"no rule for {event!r}")

    def _evaluate(self) -> None:
        self._spares.evaluate()
        self.attendance.evaluate()
        self._cuts.evaluate()
        self._forgetting.evaluate()
        self._definition.evaluate()
        self.lines.evaluate()
        self.plans.evaluate()
        self.epochs.evaluate()
        self._requests.evaluate()
        self.questions.evaluate()
        self._stop_question.evaluate()
        self._end()

    def standing(self) -> LeaderStanding:
        """What there is to say about the fleet now, beside what the state says."""
        parts = (self._cuts, self.plans.answers, self._stop_question, self._spares, self.epochs.store)
        concerns = () if self.state.image.outcome else tuple([x for part in parts for x in part.concerns()])
        return LeaderStanding(
            self.epochs.skipped,
            self.lines.log_bytes,
            self.epochs.store.condition(),
            concerns,
            self.attendance.heartbeats(),
        )

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def _on_message_received(self, number: int, message: HostMessage) -> None:
        if isinstance(message, Join):
            self.attendance.on_joined(number, message)
            return
        if isinstance(message, ProbeRead):
            self.attendance.on_probe_read(number, message)
            return
        session = self.attendance.session(number)
        if session is None:
            return
        self.attendance.on_heard(session)
        match message:
            case Heartbeat():
                self.attendance.on_heartbeat(session, message)
            case EpochReport():
                self.epochs.on_report(session, message)
            case CheckpointsStored():
                self.lines.on_stored(session, message)
            case AgentsFrozen():
                self._freezing.on_frozen(session, message)
            case CheckpointsAnswered():
                self._rounds.on_answers(session, message)
            case NumbersReported():
                self.questions.on_live(session, message)
            case FleetDefinition():
                self._definition.on_received(session, message)
            case PlanApplied():
                self.plans.on_applied(session, message)
            case PlanRefused():
                self.plans.on_refused(session, message)
            case EpochRefused():
                self.epochs.on_refused(session, message)
            case ReserveAgents() | RetireAgent() | LocateAgents():
                self._requests.on_received(session, message)
            case PeerSuspected():
                self.attendance.on_peer_suspected(message)
            case AgentFailed():
                self.plans.on_agent_failed(session, message)
            case StopEvaluated():
                self._stop_question.on_reached(session, message)
            case Leave():
                self.attendance.on_leave(session, message)

    def _greet(self) -> None:
        """Tell streams that have just come what the others know already."""
        sessions, self.attendance.newly_attached = self.attendance.newly_attached, []
        for session in sessions:
            here = (session.id,)
            self._desk.send(here, self.attendance.roster())  # a new one goes to all, and so to this one again
            plan = self.plans.directive()
            if plan is not None and not self.state.image.outcome:
                self._desk.send(here, plan)
                for directive in self.epochs.directives_for(session.host, plan.begun_epoch):
                    self._desk.send(here, directive)
            for asked in (*self._rounds.directives_for(session.host), *self._freezing.directives_for(session.host)):
                self._desk.send(here, asked)
            if self._ended_ns:
                self._desk.send(here, self._finish())

    # ---- proposals ------------------------------------------------------------------------------------------------

    def _on_proposal_ended(self, event: ProposalEnded) -> None:
        ended = self._desk.end_proposal(event.token, event.outcome)
        if ended is None:
            return
        proposal, result = ended
        if result is not None and result.is_refused and not isinstance(proposal.kind, op.CreateAgents | op.RemoveAgent):
            self._desk.note("info", f"{type(proposal.kind).__name__} was refused: {result.reason}")
        self._dispatch_result(proposal, result)

    def _dispatch_result(self, proposal: Proposal, result: OperationResult | None) -> None:
        match proposal.kind:
            case op.AdmitHost():
                self.attendance.on_admission_ended(proposal.key, proposal.kind, result)
            case op.CommitPlan():
                self.plans.on_plan_ended()
            case op.BeginEpoch():
                self.epochs.on_begin_ended(result)
            case op.ForgetEpochs() if result is not None:
                self.epochs.on_forgotten(result)
            case op.CreateAgents() | op.RemoveAgent() if result is not None:
                self._requests.on_ended(proposal, result)
            case op.DefineFleet():
                self.attendance.turn_away_other_definitions()
            case op.EndFleet() if result is not None and result.is_refused:
                self._desk.ending = None

    # ---- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        desk, image = self._desk, self.state.image
        if not image.outcome:
            if desk.ending is not None:
                desk.propose("end", op.EndFleet(*desk.ending))
            return
        if not self._ended_ns:
            self._ended_ns = max(1, desk.now)
            desk.note("info", f"the fleet has {image.outcome}: {image.ending}")
            desk.send(self.attendance.all_sessions(), self._finish())
        is_time_over = desk.now >= self._ended_ns + FAREWELL_NS
        is_settled = self.attendance.is_empty and self.epochs.is_settled
        if desk.options.exit_when_finished and not self._is_over and (is_time_over or is_settled):
            self._is_over = True
            desk.out.append(EndRun(0 if image.outcome == "stopped" else 1, image.ending))

    def _finish(self) -> Finish:
        image = self.state.image
        return Finish(image.outcome_epoch, image.outcome, image.ending)

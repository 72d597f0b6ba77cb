"""The parts of one leader, wired together. Each part is given the parts that it calls, and none knows its callers."""

from dataclasses import dataclass
from functools import partial

from snapline.coordinator.leader.concerns import Source, aborted_epoch_concerns, standing_agents
from snapline.coordinator.leader.definition import Definition
from snapline.coordinator.leader.departures import Departures
from snapline.coordinator.leader.epochs.epochs import Epochs
from snapline.coordinator.leader.epochs.open_epochs import OpenEpochs
from snapline.coordinator.leader.epochs.period import Period
from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.epochs.releases import Releases
from snapline.coordinator.leader.epochs.retention import Retention
from snapline.coordinator.leader.epochs.snapshots import Snapshots
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.epochs.triggers import Triggers
from snapline.coordinator.leader.hosts.admission import Admission
from snapline.coordinator.leader.hosts.failure_detector import FailureDetector
from snapline.coordinator.leader.hosts.host_removal import HostRemoval
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.hosts.load import Loads
from snapline.coordinator.leader.hosts.missing_hosts import MissingHosts
from snapline.coordinator.leader.hosts.partitions import Partitions
from snapline.coordinator.leader.hosts.standby_hosts import StandbyHosts
from snapline.coordinator.leader.leader_state import LeaderOptions, LeaderState
from snapline.coordinator.leader.modes.agent_removal import Leaving
from snapline.coordinator.leader.modes.autonomous import Autonomous
from snapline.coordinator.leader.modes.choice import ModeChoice
from snapline.coordinator.leader.modes.coordinated import Coordinated
from snapline.coordinator.leader.modes.freeze import Freezing
from snapline.coordinator.leader.modes.koo_toueg import KooToueg
from snapline.coordinator.leader.modes.line_epochs import LineEpochs
from snapline.coordinator.leader.modes.rounds import Rounds
from snapline.coordinator.leader.objectives import Objectives
from snapline.coordinator.leader.plans.line_check import LineCheck
from snapline.coordinator.leader.plans.moves import Moves
from snapline.coordinator.leader.plans.plan_answers import PlanAnswers
from snapline.coordinator.leader.plans.plans import Plans
from snapline.coordinator.leader.plans.restores import Restores
from snapline.coordinator.leader.plans.rollbacks import Rollbacks
from snapline.coordinator.leader.process_watch import ProcessWatch
from snapline.coordinator.leader.quiescence import Quiescence
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.leader.recovery_queries import RecoveryQueries
from snapline.coordinator.leader.requests import Requests
from snapline.coordinator.leader.shutdown import Shutdown
from snapline.coordinator.leader.stop_condition import StopQuestion
from snapline.coordinator.state.fleet_view import FleetView


@dataclass(frozen=True)
class Parts:
    """All parts of one leader, for the core, which dispatches to them, and for tests."""

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
    lines: Lines
    line_epochs: LineEpochs
    freezing: Freezing
    rounds: Rounds
    leaving: Leaving
    # recoveries
    line_check: LineCheck
    answers: PlanAnswers
    restores: Restores
    moves: Moves
    loads: Loads
    rollbacks: Rollbacks
    plans: Plans
    # requests of hosts and tools
    requests: Requests
    questions: RecoveryQueries
    stop_question: StopQuestion
    quiescence: Quiescence
    departures: Departures
    shutdown: Shutdown
    objectives: Objectives
    processes: ProcessWatch


def concern_sources(parts: Parts) -> tuple[Source, ...]:
    """Return the sources of concerns, in the order of display."""
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
    lines, store = Lines(shared, host_sessions), StoreWatch(shared, host_sessions, period)
    open_epochs = OpenEpochs(shared, store)
    publisher = RefPublisher(shared, host_sessions, snapshots, store, lines)
    releases = Releases(shared, host_sessions, publisher, store)
    freezing, rounds = Freezing(shared, host_sessions, standby_hosts), Rounds(shared, host_sessions, lines)
    leaving, line_epochs = Leaving(shared, host_sessions, lines), LineEpochs(shared, open_epochs, lines)
    coordinated = Coordinated(shared, host_sessions, open_epochs)
    modes = ModeChoice(
        state,
        coordinated=coordinated,
        koo_toueg=KooToueg(shared, host_sessions, lines, line_epochs, rounds, publisher, leaving, open_epochs, store),
        autonomous=Autonomous(shared, lines, line_epochs, freezing, leaving, store),
    )
    quiescence = Quiescence(shared, host_sessions)
    moves, loads = Moves(shared, host_sessions, quiescence), Loads(shared)
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
        requests=Requests(shared, host_sessions, modes),
        questions=RecoveryQueries(shared, host_sessions, lines),
        stop_question=stop_question,
        quiescence=quiescence,
        departures=departures,
        shutdown=Shutdown(shared, host_sessions, publisher, releases, snapshots),
        objectives=Objectives(shared),
        processes=ProcessWatch(shared, host_sessions),
    )

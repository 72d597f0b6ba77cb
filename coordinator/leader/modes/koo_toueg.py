"""Epochs of koo-toueg fleets: each epoch is a round, which makes the line that becomes the epoch.

A round begins manually, when the period is over, or when the sender logs in some host's memory are large. In the last case all agents are
asked, since only rounds move logs into the store. Every host must know how a round ended before it is asked in the next one.
"""

from collections.abc import Mapping, Sequence

from snapline.coordinator.leader.epochs.open_epochs import (
    Asking,
    Failing,
    OpenEpoch,
    OpenEpochs,
    Stage,
    StoringLine,
)
from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import (
    LOG_TRIGGER,
    Begun,
    EpochDemand,
    Later,
    Leaving,
    LineEpochs,
    LossReport,
)
from snapline.coordinator.leader.modes.rounds import Rounds
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.state.fleet_records import OperationResult, PlanRecord
from snapline.messages.host_messages import RequestCheckpoints, RetireAgent

ROUND_LOG_BYTES = 64 * 1024 * 1024
"""Size of sender logs in one host's memory that begins a round: a quarter of the size that pauses its agents (`agent_runtime/host/backlog.py`)."""


class KooToueg:
    """Mode of koo-toueg fleets, whose agents are asked in rounds."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        lines: Lines,
        epochs: LineEpochs,
        rounds: Rounds,
        publisher: RefPublisher,
        leaving: Leaving,
        open_epochs: OpenEpochs,
        store: StoreWatch,
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._epochs = epochs
        self._rounds = rounds
        self._publisher = publisher
        self._leaving = leaving
        self._open_epochs = open_epochs
        self._store = store

    def evaluate(self) -> None:
        """Follow the plan and the checkpoints."""
        self._lines.evaluate()

    # ---- begin ----------------------------------------------------------------------------------------------------

    def try_begin(self, demand: EpochDemand) -> Begun | Later | None:
        """Propose a round. A manual round, or one for the logs, has all agents as initiators; a periodic one has the agent that waits longest."""
        if self._epochs.is_busy or self._publisher.unpublished:
            return Later()
        if demand.is_held or not (demand.is_asked or self._store.allows()):
            return None
        trigger = self._trigger(demand)
        if not trigger or not self._epochs.may_begin(trigger):
            return None
        is_all_agents = demand.is_of_all or trigger in ("hand", LOG_TRIGGER)
        initiators = self._rounds.initiators(is_all_agents=is_all_agents)
        return Begun() if initiators and self._epochs.propose(trigger, initiators) else None

    def _trigger(self, demand: EpochDemand) -> str:
        """Return the trigger of a round that should begin now; "": none."""
        if not self._lines.is_ready or not self._lines.is_settled:
            return ""
        if demand.is_asked or demand.is_due:
            return "hand" if demand.is_asked else "period"
        return LOG_TRIGGER if self._host_sessions.log_bytes() > ROUND_LOG_BYTES else ""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch."""
        self._epochs.on_begin_ended(result)

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Ask the initiators."""
        begun = self._epochs.take(epoch)
        if begun is None or isinstance(begun, Failing):
            return begun
        self._rounds.start(epoch, begun.initiators)
        return Asking()

    # ---- progress -------------------------------------------------------------------------------------------------

    def collect(self, entry: OpenEpoch) -> None:
        """Store the round's line once it is complete. Fail the round if a host cannot store: its agents would stay blocked."""
        if reason := self._store.host_problem(entry.hosts):
            self._open_epochs.fail_to_store(entry, f"it could not be stored: {reason}")
        elif self._rounds.problem:
            self._open_epochs.fail(entry, self._rounds.problem)
        elif (line := self._rounds.line(entry.epoch)) is not None:
            # The cut was unknown when the round began: agents created since may be inside it, as unborn agents.
            agents = self._shared.state.image.agents.items()
            members = [(x, y) for x, y in agents if y.is_member_of(entry.epoch) or y.born_epoch == entry.epoch]
            self._lines.materialise(entry.epoch, line, members)
            entry.stage = StoringLine()

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """End the round."""
        self._rounds.end(entry.epoch, is_complete=is_complete)

    def directives_for(self, host: str) -> Sequence[RequestCheckpoints]:
        """Return the round's open questions to this host."""
        return self._rounds.directives_for(host)

    # ---- plans and agents -------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Return True: the line is the newest complete epoch, without tentative checkpoints."""
        return True

    def on_plan_ended(self) -> None:
        """Do nothing: no epoch was made for the plan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return the losses: all living agents go back."""
        return LossReport(len(list(self._shared.state.living_agents())))

    def retire(self, session: HostSession, message: RetireAgent) -> None:
        """Queue the agent: it leaves when no line can need it."""
        self._leaving.on_asked(session, message)

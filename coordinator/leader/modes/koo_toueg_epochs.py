"""Checkpoint mode for the Koo-Toueg protocol: each epoch is a round of checkpoints, whose recovery line is stored as the epoch.

*When.* A round begins on request, when the period has elapsed, or when any host's sender logs in memory are large. If the sender logs are
large, all agents are asked for checkpoints, because only rounds move logs into the store. Each host must know how the previous round ended
before it is asked in the next round.

*Rounds.* `KooTouegRound` (`protocols/koo_toueg.py`) decides which agents to ask and whether to commit. `CheckpointRounds` sends the
requests to the hosts and passes their answers to the round. Once the round has decided to commit, and hosts have reported all its tentative
checkpoints, these are added to the ledger. After a round, the newest checkpoints of all agents must form a consistent cut. `FleetHistory`
checks this independently of the rounds, so each round is verified (G1) before its epoch is decided. A verified recovery line is stored as
an epoch, as in any fleet with sender logs. The tentative checkpoints become permanent when the epoch completes.

Because the state of a round is volatile, a new leader aborts an open epoch and begins another one later.

In a periodic round, the initiator is the agent with the oldest checkpoint. In a round for which a tool has asked, for large logs, or for
an epoch of all agents, every agent is an initiator. Agents created since the base epoch are always initiators. If an agent does not exist
yet, it answers yes without taking a checkpoint.
"""

from collections.abc import Mapping, Sequence

from snapline.coordinator.leader.epochs.open_epochs import Asking, Failing, OpenEpoch, OpenEpochs, Stage, StoringLine
from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.events import StoredCheckpoint
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import (
    LOG_TRIGGER,
    Begun,
    EpochDemand,
    Later,
    LineEpochs,
    LossReport,
    PendingRemovals,
)
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.state.fleet_records import OperationResult, PlanRecord
from snapline.errors import ProtocolError
from snapline.messages.host_messages import CheckpointsAnswered, RequestCheckpoints, RetireAgent
from snapline.protocols.koo_toueg import (
    Answer,
    AnswerReceived,
    AskAgent,
    KooTouegRound,
    RoundCommand,
    RoundStarted,
    TimedOut,
)


class CheckpointRounds:
    """The rounds of a Koo-Toueg fleet, which run one at a time."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, lines: RecoveryLines) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._round: KooTouegRound | None = None
        self._numbers: dict[str, int] = {}
        """Participant → number of its tentative checkpoint."""
        self._is_added = False
        self._taken: dict[str, int] = {}
        """Agent → latest round in which it took part, as far as this leader knows."""
        self.problem = ""
        """Reason why the round cannot be committed; "" if there is none."""

    # ---- queries --------------------------------------------------------------------------------------------------

    def initiators(self, *, is_all_agents: bool) -> tuple[str, ...]:
        """Return the initiators of the next round, or an empty tuple if no agent can be asked."""
        ledger = self._lines.ledger
        if ledger is None:
            return ()
        living = list(self._shared.state.living_agents())
        existing = [agent for agent, record in living if record.is_initial or agent in ledger.base]
        if not existing:
            return ()
        oldest = min(existing, key=lambda agent: self._taken.get(agent, 0))
        known = dict.fromkeys(existing)
        return tuple([agent for agent, _ in living if is_all_agents or agent == oldest or agent not in known])

    def directives_for(self, host: str) -> list[RequestCheckpoints]:
        """Return all unanswered checkpoint requests for a host that has just reconnected."""
        if self._round is None:
            return []
        agents = self._shared.state.image.agents
        asked = [x for x in self._round.open_questions if x.agent in agents and agents[x.agent].host == host]
        return [self._request(asked)] if asked else []

    def line(self, epoch: int) -> dict[str, int] | None:
        """Return the round's recovery line, or None until the round has decided to commit and all its checkpoints are durable."""
        ledger = self._lines.ledger
        if self._round is None or self._round.round != epoch or not self._round.decision or ledger is None:
            return None
        if self.problem or not ledger.is_ready:
            return None
        tentative: list[StoredCheckpoint] = []
        for agent in self._round.participants:
            checkpoint = self._lines.tentative.get((epoch, agent))
            if checkpoint is None or checkpoint.number != self._numbers[agent]:
                return None
            tentative.append(checkpoint)
        self._is_added = True
        outcomes = [ledger.add(x) for x in tentative]
        if outcomes.count("added") != len(outcomes):
            self.problem = "a tentative checkpoint does not follow its agent's permanent one"
        elif ledger.line != ledger.newest:
            self.problem = "the tentative checkpoints and the permanent ones of the others are no consistent cut"
            self._shared.note("error", f"round {epoch}: {self.problem}")
        return None if self.problem else ledger.line

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_checkpoints_answered(self, session: HostSession, message: CheckpointsAnswered) -> None:
        """Handle the answers of a host's agents to checkpoint requests."""
        current_round = self._round
        if (
            current_round is None
            or message.epoch != current_round.round
            or message.plan != self._shared.state.plan_number
        ):
            return
        if message.host_start != session.start:
            return
        columns = (message.willing, message.participants, message.numbers, message.askers)
        lengths = {len(x) for x in (message.request_of, message.request_to, message.request_number)}
        is_whole = all(len(column) == len(message.agents) for column in columns) and len(lengths) == 1
        if not is_whole or max(message.request_of, default=-1) >= len(message.agents):
            self.problem = f"host {session.host} answered with columns that differ in length"
            return
        stranger = self._shared.state.stranger_of(session.host, message.agents)
        if stranger:
            self._shared.note("error", f"host {session.host} answers for agent {stranger}, which is placed elsewhere")
            return
        requests: list[dict[str, int]] = [{} for _ in message.agents]
        for index, agent, number in zip(message.request_of, message.request_to, message.request_number, strict=True):
            requests[index][agent] = number
        for index, agent in enumerate(message.agents):
            answer = Answer(
                current_round.round,
                message.askers[index] or None,
                message.willing[index],
                message.participants[index],
                requests[index],
            )
            if answer.is_participant:
                self._numbers[agent] = message.numbers[index]
            if not answer.is_willing:
                self.problem = self.problem or f"agent {agent} cannot take a checkpoint now"
            try:
                self._carry_out(current_round.handle(self._shared.now, AnswerReceived(agent, answer)))
            except ProtocolError as error:
                self.problem = str(error)

    # ---- life of a round ------------------------------------------------------------------------------------------

    def start(self, epoch: int, initiators: tuple[str, ...]) -> None:
        """Start the round of an epoch whose BeginEpoch is in the log."""
        self._round = KooTouegRound(epoch, initiators)
        self._numbers, self._is_added, self.problem = {}, False, ""
        self._carry_out(self._round.handle(self._shared.now, RoundStarted()))

    def end(self, epoch: int, *, is_complete: bool) -> None:
        """End the round because its epoch has ended. If the round was aborted, delete its checkpoints from the store."""
        ended_round, ledger = self._round, self._lines.ledger
        if ended_round is None or ended_round.round != epoch:
            return
        if is_complete:
            self._taken.update(dict.fromkeys(ended_round.participants, epoch))
        else:
            ended_round.handle(self._shared.now, TimedOut())
            if self._is_added and ledger is not None:
                ledger.drop_above_base()
            # Each host writes its part of a round to its own packs, so these hold nothing else.
            paths = dict.fromkeys(x.pack.path for (at, _), x in self._lines.tentative.items() if at == epoch)
            self._lines.delete(tuple(paths))
        self._lines.on_round_ended(epoch)
        self._round = None

    def _carry_out(self, commands: list[RoundCommand]) -> None:
        agents = self._shared.state.image.agents
        by_host: dict[str, list[AskAgent]] = {}
        for command in commands:
            if not isinstance(command, AskAgent):
                continue
            record = agents.get(command.agent)
            if record is None:
                self.problem = f"agent {command.agent} is asked for, and is not in the fleet"
            elif self._round is not None and record.born_epoch >= self._round.round:
                self.problem = f"agent {command.agent} was created in this round: the next one has it"
            else:
                by_host.setdefault(record.host, []).append(command)
        for host, asked in by_host.items():
            self._shared.send(self._host_sessions.sessions_of([host]), self._request(asked))

    def _request(self, asked: list[AskAgent]) -> RequestCheckpoints:
        assert self._round is not None, "a question without a round"
        return RequestCheckpoints(
            self._round.round,
            self._shared.state.plan_number,
            tuple([x.agent for x in asked]),
            tuple([x.by or "" for x in asked]),
            tuple([x.number for x in asked]),
        )


ROUND_LOG_BYTES = 64 * 1024 * 1024
"""Size, in bytes, of sender logs in one host's memory at which a round begins: a quarter of the size at which the host pauses its agents
(`agent_runtime/host/logged_agent.py`)."""


class KooToueg:
    """Checkpoint mode in which agents are asked for checkpoints in rounds (Koo-Toueg)."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        lines: RecoveryLines,
        epochs: LineEpochs,
        rounds: CheckpointRounds,
        publisher: RefPublisher,
        leaving: PendingRemovals,
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
        """Handle changes in the plan and in the checkpoints."""
        self._lines.evaluate()

    # ---- begin ----------------------------------------------------------------------------------------------------

    def try_begin(self, demand: EpochDemand) -> Begun | Later | None:
        """Propose a round if there is a trigger.

        In a round for which a tool has asked, for large logs, or for an epoch of all agents, every agent is an initiator. In a periodic
        round, the agent with the oldest checkpoint is the initiator.
        """
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
        """Return the trigger of a round that should begin now, or "" if no round should begin."""
        if not self._lines.is_ready or not self._lines.is_settled:
            return ""
        if demand.is_asked or demand.is_due:
            return "hand" if demand.is_asked else "period"
        return LOG_TRIGGER if self._host_sessions.log_bytes() > ROUND_LOG_BYTES else ""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch."""
        self._epochs.on_begin_ended(result)

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Start the epoch's round by asking its initiators for checkpoints."""
        begun = self._epochs.take(epoch)
        if begun is None or isinstance(begun, Failing):
            return begun
        self._rounds.start(epoch, begun.initiators)
        return Asking()

    # ---- progress -------------------------------------------------------------------------------------------------

    def collect(self, entry: OpenEpoch) -> None:
        """Request that the round's recovery line be stored, once it is complete.

        If a host cannot use the store, fail the round, because the host's agents would otherwise remain blocked.
        """
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
        """End the round because the outcome of its epoch is in the log."""
        self._rounds.end(entry.epoch, is_complete=is_complete)

    def directives_for(self, host: str) -> Sequence[RequestCheckpoints]:
        """Return all unanswered checkpoint requests for this host."""
        return self._rounds.directives_for(host)

    # ---- plans and agents -------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Return True, because the recovery line is always the newest complete epoch, without tentative checkpoints."""
        return True

    def on_plan_ended(self) -> None:
        """Do nothing, because no epoch was made for the plan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan loses: in this mode, all living agents lose their live state."""
        return LossReport(len(list(self._shared.state.living_agents())))

    def retire(self, session: HostSession, message: RetireAgent) -> None:
        """Queue the agent, which is removed as soon as no recovery line can need it."""
        self._leaving.on_asked(session, message)

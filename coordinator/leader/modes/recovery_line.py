"""The recovery line of a fleet with sender logs, computed from the checkpoints stored after the newest complete epoch.

A recovery line is *materialised* by storing it as an epoch, which is then treated like an epoch made by hosts. `RecoveryLines` updates
the ledger (`checkpoint_ledger.py`) in this way:

1. After the leader's start and after every recovery plan, the store is scanned for the base epoch and the plan's checkpoint packs. Hosts'
   reports that arrive during the scan are added afterwards.
2. A host's report is acknowledged (CheckpointsKnown) once all its checkpoints are in the ledger. A host resends its report until the report
   is acknowledged. If the predecessor of a checkpoint is missing, the checkpoint waits, and after GAP_NS the store is scanned again.
3. When a recovery line has become an epoch, that epoch is the new base. Packs without checkpoints after the base are deleted. Packs of
   earlier plans are deleted after a scan has shown that the current plan's base is readable.

*Damage.* An unreadable checkpoint and the agent's later checkpoints are ignored, because the messages logged between them are lost. If
the base is damaged, no later checkpoint can become part of an epoch. After any damage, the fleet cannot complete epochs properly.
`problem` therefore requests a recovery plan at once, because a later plan would lose more work.

*Recovery queries* ask to which checkpoints the fleet would return if certain agents failed. In autonomous fleets, agents that do not fail
keep their live states, so hosts report their agents' positions (ReportNumbers) while the agents keep running. A recovery query is answered
after at most one second, from the replies that have arrived. The answer is only an estimate if a live state is unknown or has changed since
(`recovery/dependency_history.py`). The line of an actual recovery is exact, because the fleet is frozen first. A query waits while the
store is being scanned, and is refused after some seconds.
"""

from collections.abc import Callable, Iterator

import msgspec

from snapline.coordinator.leader.events import (
    AnswerLine,
    CheckpointsScanned,
    Cost,
    DeleteCheckpoints,
    LineMaterialised,
    LineRequested,
    MaterialiseLine,
    RecoveryLineResult,
    ScanCheckpoints,
    StoredCheckpoint,
    SweepCheckpoints,
)
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.checkpoint_ledger import GAP, Ledger
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, COMPLETE, OPEN, AgentRecord
from snapline.messages.host_messages import CheckpointsKnown, CheckpointsStored, NumbersReported, ReportNumbers


def without_departed_agents(checkpoint: StoredCheckpoint, has_left: Callable[[str], bool]) -> StoredCheckpoint:
    """Return the checkpoint without the channel numbers of departed agents, because messages received from them would look like orphans."""
    if not any(map(has_left, (*checkpoint.sent, *checkpoint.received))):
        return checkpoint
    sent = {agent: number for agent, number in checkpoint.sent.items() if not has_left(agent)}
    received = {agent: number for agent, number in checkpoint.received.items() if not has_left(agent)}
    return msgspec.structs.replace(checkpoint, sent=sent, received=received)


def shape_problem(message: CheckpointsStored) -> str:
    """Describe an error in the message's column lengths or indices. Return "" if the columns are valid."""
    names, agents = len(message.names), len(message.agents)
    if not {len(message.numbers), len(message.bases)} <= {agents} or len(message.turns) not in (0, agents):
        return "the columns of its agents differ in length"
    if len({len(message.sent_of), len(message.sent_to), len(message.sent_number)}) > 1:
        return "the columns of channels sent on differ in length"
    if len({len(message.received_of), len(message.received_from), len(message.received_number)}) > 1:
        return "the columns of channels received on differ in length"
    columns = (message.agents, names), (message.sent_of, agents), (message.sent_to, names)
    for column, size in (*columns, (message.received_of, agents), (message.received_from, names)):
        if column and max(column) >= size:
            return f"index {max(column)} of {size}"
    return ""


def checkpoints_of(message: CheckpointsStored) -> Iterator[StoredCheckpoint]:
    """Yield the report's checkpoints, each with only those channels that have changed. The first checkpoint contains the total size of
    all logs in the report."""
    names = message.names
    sent: list[dict[str, int]] = [{} for _ in message.agents]
    received: list[dict[str, int]] = [{} for _ in message.agents]
    for index, peer, number in zip(message.sent_of, message.sent_to, message.sent_number, strict=True):
        sent[index][names[peer]] = number
    for index, peer, number in zip(message.received_of, message.received_from, message.received_number, strict=True):
        received[index][names[peer]] = number
    turns = message.turns or (0,) * len(message.agents)
    for index, agent in enumerate(message.agents):
        yield StoredCheckpoint(
            names[agent],
            message.numbers[index],
            message.bases[index],
            message.epoch,
            message.pack,
            sent[index],
            received[index],
            turns[index],
            0 if index else message.log_bytes,
        )


SCAN_RETRY_NS = 1 * SECOND_NS
SCAN_TRIES_MAX = 60
"""Largest number of attempts to scan a store that is unreachable but not damaged, which take about a minute."""

GAP_NS = 2 * SECOND_NS
"""Time, in nanoseconds, to wait for a checkpoint's missing predecessor. A predecessor that has not been reported by then is in the store or
lost."""

LEFT_MAX = 1024
"""Number of departed agents that the ledger may always keep; a large ledger may keep half as many departed agents as it has agents in
total. Beyond that, the ledger is rebuilt by a scan, as at the start of a leader."""

WAITING_MAX = 65_536
"""Largest number of reports that wait for a scan. Further reports are not acknowledged, so hosts repeat them on their next stream."""

TENTATIVE = "tentative"


class WaitingReport(msgspec.Struct, frozen=True):
    """A host's report that has not been added to the ledger yet."""

    host: str
    start: int
    sequence: int
    checkpoints: tuple[StoredCheckpoint, ...]


class Scan(msgspec.Struct, frozen=True):
    """A scan of the store that is in progress. If `is_late` is set, the result may be outdated, so another scan follows."""

    plan: int
    base_epoch: int
    is_late: bool = False


class RecoveryLines:
    """The recovery lines of a logged fleet. This state need not be durable, because a new leader rebuilds them from the store and the
    hosts' reports.

    Attributes:
        ledger: the ledger of checkpoints; None until the store has been scanned under the current plan.
        problem: why a recovery plan is needed; "" if none is needed.
        is_base_lost: whether the base is damaged, so that no later checkpoint can become part of an epoch.
        tentative: the checkpoint of each (round, agent) in an undecided round.
        finished: stopped agents that may leave, because all messages that they have sent were received before the published base.
    """

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self.ledger: Ledger | None = None
        self.problem = ""
        self.is_base_lost = False
        self.tentative: dict[tuple[int, str], StoredCheckpoint] = {}
        self.finished: dict[str, None] = {}
        self._plan = 0
        self._scan: Scan | None = None
        self._scan_at_ns = 0
        self._scan_tries = 0
        self._is_swept = False
        self._waiting: list[WaitingReport] = []
        self._gap_ns: int | None = None
        """Time since which a checkpoint's predecessor has been missing; None if none is missing."""
        self._is_gap_scanned = False
        self._damaged: dict[str, int] = {}
        self._unheard_hosts: dict[str, int] | None = None
        """Host that was alive before this leader started and has not attached to it since → the host's run. None before the first
        evaluation."""
        self._materialising: dict[int, dict[str, int]] = {}
        """Epoch → the recovery line that the epoch will contain. The entry is removed when the epoch becomes the base or a newer one
        does."""
        self._finishing: dict[int, tuple[str, ...]] = {}
        """Epoch → the value of `finished` from the time when the epoch is published."""

    # ---- queries --------------------------------------------------------------------------------------------------

    @property
    def has_advanced(self) -> bool:
        """Return whether the recovery line is newer than the base epoch and can be stored as an epoch."""
        return self.is_ready and self.ledger is not None and self.ledger.has_advanced

    @property
    def is_ready(self) -> bool:
        """Return whether the recovery line can be stored as an epoch, even if it equals the base."""
        ledger = self.ledger
        return (
            ledger is not None
            and ledger.is_ready
            and not self._unheard_hosts
            and ledger.base_epoch not in self._shared.damaged
        )

    @property
    def is_settled(self) -> bool:
        """Return whether all received reports are in the ledger, or the base is lost."""
        return self.is_base_lost or (self.ledger is not None and not self._waiting and not self._unheard_hosts)

    @property
    def is_behind(self) -> bool:
        """Return whether any agent's newest checkpoint is newer than the recovery line."""
        ledger = self.ledger
        return ledger is not None and any(number > ledger.line.get(agent, 0) for agent, number in ledger.newest.items())

    @property
    def log_bytes(self) -> int:
        """Return the total size, in bytes, of the stored sender logs after the base."""
        return self.ledger.log_bytes if self.ledger is not None else 0

    def newest(self) -> dict[str, int]:
        """Return the number of each agent's newest checkpoint."""
        return {} if self.ledger is None else dict(self.ledger.newest)

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_stored(self, session: HostSession, message: CheckpointsStored) -> None:
        """Handle a host's report of durable checkpoints. The host may repeat the report."""
        if message.host_start != session.start or not self._plan:
            return  # no plan, or a fleet whose hosts make the epochs: there is no ledger
        problem = shape_problem(message)
        is_current = message.plan == self._shared.state.plan_number
        if is_current and not problem:
            stranger = self._shared.state.stranger_of(session.host, [message.names[x] for x in message.agents])
            problem = stranger and f"agent {stranger} is placed elsewhere"
        if problem:
            self._shared.note("error", f"a report of host {session.host} is wrong and not used: {problem}")
        if problem or not is_current:
            self._acknowledge(session.host, session.start, message.sequence)
            return
        if len(self._waiting) >= WAITING_MAX:
            self._shared.note(
                "error", f"{WAITING_MAX} reports wait for the store: one of host {session.host} is dropped"
            )
            return
        checkpoints = tuple(checkpoints_of(message))
        self._waiting.append(WaitingReport(session.host, session.start, message.sequence, checkpoints))

    def on_scanned(self, event: CheckpointsScanned) -> None:
        """Handle the result of a scan of the store."""
        scan = self._scan
        if scan is None or (scan.plan, scan.base_epoch) != (event.plan, event.base_epoch):
            return
        self._scan = None
        if scan.is_late or (event.plan, event.base_epoch) != (self._shared.state.plan_number, self._base()):
            return
        if event.damaged_path:
            self._shared.condemn(event.base_epoch, event.damaged_path, event.error)
        elif event.error:
            self._scan_tries += 1
            self._scan_at_ns = self._shared.now + SCAN_RETRY_NS
            self._shared.note("error", f"checkpoints of plan {event.plan} cannot be read now: {event.error}")
            if self._scan_tries >= SCAN_TRIES_MAX:
                self._shared.end(0, "failed", op.clip(f"the store cannot be read: {event.error}"))
        else:
            self._scan_tries = 0
            self._load(event)

    def _load(self, event: CheckpointsScanned) -> None:
        agents = self._shared.state.image.agents
        initial = [agent for agent, record in agents.items() if record.is_initial]
        has_left = self._shared.state.has_left
        base = [without_departed_agents(x, has_left) for x in event.base if not has_left(x.agent)]
        initial = [agent for agent in initial if not has_left(agent)]
        ledger = self.ledger = Ledger(event.plan, event.base_epoch, base, initial, self._damaged)
        checkpoints = [without_departed_agents(x, has_left) for x in event.found if not has_left(x.agent)]
        ledger.hold(checkpoints)
        for checkpoint in checkpoints:
            # A checkpoint without its predecessor is useless, or was written during the scan and will be reported.
            # Tentative checkpoints are skipped: a new leader aborts open rounds.
            if checkpoint.basis != TENTATIVE or checkpoint.number <= ledger.base.get(checkpoint.agent, 0):
                ledger.add(checkpoint)
        self._delete_obsolete(ledger)
        if not self._is_swept:
            self._is_swept = True
            self._shared.out.append(SweepCheckpoints(event.plan))

    # ---- materialising --------------------------------------------------------------------------------------------

    def materialise(self, epoch: int, line: dict[str, int], members: list[tuple[str, AgentRecord]]) -> None:
        """Request that `line` be stored as the epoch numbered `epoch`, which is open. `members` are the epoch's agents, including unborn
        agents."""
        state, ledger = self._shared.state, self.ledger
        plan, record = state.plan, state.image.epochs[epoch]
        assert plan is not None and ledger is not None, "a line without a plan"
        agents, packs = ledger.line_agents(members, line)
        base = ledger.base_epoch
        self._materialising[epoch] = {x.agent: x.number for x in agents}
        self._shared.out.append(
            MaterialiseLine(
                epoch=epoch,
                plan=plan.number,
                trigger=record.trigger,
                base_epoch=base,
                base_root=state.image.epochs[base].root if base else "",
                hosts={host: state.image.hosts[host].start for host in plan.hosts},
                agents=agents,
                packs=packs,
                writer=f"coordinator-{self._shared.options.client.rpartition('.')[2]}",
            )
        )

    def on_materialised(self, event: LineMaterialised) -> None:
        """Record the finished agents of a materialised recovery line until its epoch is published."""
        self._finishing[event.epoch] = event.finished

    def on_published(self, epoch: int) -> None:
        """Update `finished` when the base epoch is published, because its tentative checkpoints are now permanent on all hosts."""
        if self.ledger is not None and self.ledger.base_epoch == epoch:
            self.finished = dict.fromkeys(self._finishing.pop(epoch, ()))

    def on_left(self, agent: str) -> None:
        """Remove a stopped agent that has left the fleet. The ledger is rebuilt when it contains too many departed agents."""
        self.finished.pop(agent, None)
        if self.ledger is not None:
            self.ledger.leave(agent)
            if len(self.ledger.left) > max(LEFT_MAX, len(self.ledger.newest) // 2):
                self.ledger = None

    def on_damaged(self, event: LineMaterialised) -> None:
        """Handle damage to a file that is needed for a recovery line."""
        ledger = self.ledger
        if ledger is None:
            return
        if event.damaged_path not in ledger.packs:
            if ledger.base_epoch:
                self._shared.condemn(ledger.base_epoch, event.damaged_path, event.error)
            return
        for agent, number in ledger.lowest_checkpoints_in(event.damaged_path, event.damaged_agent).items():
            self._damaged[agent] = min(number, self._damaged.get(agent, number))
            self._shared.note("warning", f"checkpoint {number} of agent {agent} is damaged: {event.damaged_path}")
        self.problem = f"a checkpoint is damaged: {event.damaged_path}: {event.error}"
        self.ledger = None

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Follow changes of the plan and the base, and add the waiting reports to the ledger."""
        state = self._shared.state
        if state.plan is None or state.image.outcome:
            return
        if self._plan != state.plan_number:
            self._begin_plan()
        self._rescan_after_other_leader()
        base = self._base()
        if base is None:
            self.problem = self.problem or "the epoch that the checkpoints build on is damaged"
            self.is_base_lost, self.ledger, self._waiting = True, None, []
            return
        if self.ledger is not None and self.ledger.base_epoch != base:
            self._rebase(base)
        if self.ledger is None:
            self._ask_scan(base)
        else:
            self._take_waiting(self.ledger)

    def _rescan_after_other_leader(self) -> None:
        """Scan the store again when a host that may have been served by another leader attaches to this leader, or is lost.

        An earlier leader that does not know of its successor still acknowledges reports, and hosts resend only unacknowledged reports.
        Checkpoints acknowledged by that leader are in the store, but this leader's first scan may have missed them.
        """
        hosts = self._shared.state.image.hosts
        if self._unheard_hosts is None:
            self._unheard_hosts = {host: record.start for host, record in hosts.items() if record.state == ALIVE}
        for host, start in list(self._unheard_hosts.items()):
            session = self._host_sessions.attached_session(host)
            is_heard = session is not None and session.start == start
            if is_heard or hosts[host].start != start or hosts[host].state != ALIVE:
                del self._unheard_hosts[host]
                self.ledger = None
                if self._scan is not None:
                    self._scan = msgspec.structs.replace(self._scan, is_late=True)

    def _begin_plan(self) -> None:
        self._plan = self._shared.state.plan_number
        self.ledger, self.problem, self.is_base_lost = None, "", False
        self._is_swept, self._is_gap_scanned = False, False
        self.tentative, self._damaged, self._materialising = {}, {}, {}
        self.finished, self._finishing = {}, {}
        self._waiting, self._gap_ns, self._scan_at_ns, self._scan_tries = [], None, 0, 0

    def _base(self) -> int | None:
        """Return the base of this plan's checkpoints, which is the plan's last complete epoch or, if it has none, its recovery line.
        Return None if the base is damaged."""
        plan, epochs = self._shared.state.plan, self._shared.state.image.epochs
        assert plan is not None, "no plan"
        for epoch in reversed(epochs):
            record = epochs[epoch]
            if record.status != OPEN and (record.plan == plan.number or epoch == plan.line_epoch):
                return epoch if record.status == COMPLETE else None
        return 0 if plan.line_epoch == 0 else None

    def _rebase(self, base: int) -> None:
        line = self._materialising.pop(base, None)
        if line is None or self.ledger is None or base < self.ledger.base_epoch:
            self.ledger = None
            return
        self.ledger.rebase(base, line)
        self._materialising = {epoch: x for epoch, x in self._materialising.items() if epoch > base}
        self._finishing = {epoch: x for epoch, x in self._finishing.items() if epoch >= base}
        self.finished = {}
        self._delete_obsolete(self.ledger)

    def on_round_ended(self, epoch: int) -> None:
        """Drop the tentative checkpoints of this round and of earlier rounds."""
        self.tentative = {key: x for key, x in self.tentative.items() if key[0] > epoch}

    def _delete_obsolete(self, ledger: Ledger) -> None:
        paths = ledger.take_obsolete()
        if paths:
            self._shared.out.append(DeleteCheckpoints(paths))

    def delete(self, paths: tuple[str, ...]) -> None:
        """Delete these packs of an aborted round from the store."""
        if paths:
            if self.ledger is not None:
                self.ledger.release(paths)
            self._shared.out.append(DeleteCheckpoints(paths))

    def _ask_scan(self, base: int) -> None:
        if self._scan is not None or self._shared.now < self._scan_at_ns or base in self._shared.damaged:
            return
        self._scan = Scan(self._plan, base)
        root = self._shared.state.image.epochs[base].root if base else ""
        self._shared.out.append(ScanCheckpoints(self._plan, base, root))

    def _take_waiting(self, ledger: Ledger) -> None:
        waiting, self._waiting = self._waiting, []
        blocked: dict[tuple[str, int], None] = {}
        acknowledged: dict[tuple[str, int], int] = {}
        for report in waiting:
            ledger.hold(report.checkpoints)
            owner = (report.host, report.start)
            if [x for x in report.checkpoints if not self._take(ledger, x)]:
                self._waiting.append(report)
                blocked[owner] = None
            elif owner not in blocked:
                acknowledged[owner] = report.sequence
        for (host, start), sequence in acknowledged.items():
            self._acknowledge(host, start, sequence)
        for problem in ledger.problems:
            self._shared.note("error", problem)
        ledger.problems = []
        self._check_gap()

    def _take(self, ledger: Ledger, checkpoint: StoredCheckpoint) -> bool:
        if checkpoint.basis == TENTATIVE and checkpoint.number > ledger.base.get(checkpoint.agent, 0):
            if checkpoint.epoch in self._shared.state.image.epochs:
                self.tentative[checkpoint.epoch, checkpoint.agent] = checkpoint
            else:
                self.delete((checkpoint.pack.path,))
            return True
        return ledger.add(checkpoint) != GAP

    def _check_gap(self) -> None:
        if not self._waiting:
            self._gap_ns, self._is_gap_scanned = None, False
        elif self._gap_ns is None:
            self._gap_ns = self._shared.now
        elif self._shared.now >= self._gap_ns + GAP_NS:
            if self._is_gap_scanned:
                self._give_up_gaps()
            self.ledger, self._gap_ns, self._is_gap_scanned = None, None, True

    def _give_up_gaps(self) -> None:
        """Mark checkpoints as unusable if a scan has not found their predecessors."""
        newest = self.newest()
        for checkpoint in [x for report in self._waiting for x in report.checkpoints]:
            agent, number = checkpoint.agent, newest.get(checkpoint.agent, 0) + 1
            if checkpoint.number > number and agent not in self._damaged:
                self._damaged[agent] = number
                self.problem = f"checkpoint {number} of agent {agent} is not in the store"
                self._shared.note("warning", self.problem)

    def _acknowledge(self, host: str, start: int, sequence: int) -> None:
        session = self._host_sessions.attached_session(host)
        if session is not None and session.start == start:
            self._shared.send((session.id,), CheckpointsKnown(sequence))


WAIT_NS = 1 * SECOND_NS
"""Time, in nanoseconds, for hosts to report their agents' positions."""

REFUSE_NS = 5 * SECOND_NS
"""Longest time, in nanoseconds, that a query waits while the store is being scanned. A query that has waited longer is refused, and the
tool can repeat it."""

QUERIES_MAX = 64
"""Largest number of open queries. If there are more, the oldest is refused."""


class LineQuery(msgspec.Struct):
    """An open query. `waiting` contains the hosts that have not yet reported their agents' positions."""

    failures: tuple[tuple[str, ...], ...]
    asked_ns: int
    waiting: dict[str, None]


class RecoveryQueries:
    """The open recovery queries. Each query is answered or refused exactly once."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, lines: RecoveryLines) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._questions: dict[int, LineQuery] = {}

    def on_requested(self, event: LineRequested) -> None:
        """Handle a tool's recovery query."""
        plan = self._shared.state.plan
        hosts = [] if plan is None else [x for x in plan.hosts if self._host_sessions.attached_session(x)]
        self._questions[event.request] = LineQuery(event.failures, self._shared.now, dict.fromkeys(hosts))
        if len(self._questions) > QUERIES_MAX:
            self._refuse(next(iter(self._questions)), f"{QUERIES_MAX} others have asked since")
        if plan is not None:
            self._shared.send(self._host_sessions.sessions_of(hosts), ReportNumbers(event.request, plan.number))

    def on_numbers_reported(self, session: HostSession, message: NumbersReported) -> None:
        """Handle a host's report of its agents' positions, made for a recovery query."""
        question, ledger = self._questions.get(message.request), self._lines.ledger
        if question is None or message.plan != self._shared.state.plan_number or session.host not in question.waiting:
            return
        names, sizes = message.names, (len(message.received_from), len(message.received_number))
        indices = (*message.agents, *message.received_from)
        if sizes != (len(message.received_of),) * 2 or len(message.turns) != len(message.agents):
            return
        if max(indices, default=-1) >= len(names) or max(message.received_of, default=-1) >= len(message.agents):
            return
        if self._shared.state.stranger_of(session.host, [names[x] for x in message.agents]):
            return
        del question.waiting[session.host]
        received: list[dict[str, int]] = [{} for _ in message.agents]
        for index, sender, number in zip(
            message.received_of, message.received_from, message.received_number, strict=True
        ):
            received[index][names[sender]] = number
        living = self._shared.state.image.agents
        for index, agent in enumerate(message.agents):
            if ledger is not None and names[agent] in living:
                ledger.report_live(names[agent], received[index], message.turns[index])

    def evaluate(self) -> None:
        """Answer the queries that can be answered, and refuse queries that have waited too long."""
        ledger, now = (self._lines.ledger if self._lines.is_settled else None), self._shared.now
        for request, question in list(self._questions.items()):
            if ledger is not None and (not question.waiting or now >= question.asked_ns + WAIT_NS):
                self._answer(request, question, ledger)
            elif now >= question.asked_ns + REFUSE_NS:
                self._refuse(request, "the checkpoints in the store are being read")

    def _answer(self, request: int, question: LineQuery, ledger: Ledger) -> None:
        for agent, _ in self._shared.state.living_agents():
            ledger.join(agent)
        del self._questions[request]
        lines = find_lines(ledger, question.failures)
        self._shared.out.append(AnswerLine(request, tuple(lines), tuple(question.waiting)))

    def _refuse(self, request: int, reason: str) -> None:
        del self._questions[request]
        self._shared.out.append(AnswerLine(request, refused=f"{reason}: ask again in a moment"))


def find_lines(ledger: Ledger, failures: tuple[tuple[str, ...], ...]) -> list[RecoveryLineResult]:
    """Return one recovery line for each set of failed agents. Failed agents that are no longer in the ledger are ignored."""
    known_failures = [tuple([agent for agent in failed if agent in ledger.newest]) for failed in failures]
    history = ledger.history
    single = len(known_failures) == 1
    answers = []
    for failed, line in zip(
        known_failures, [history.line(known_failures[0])] if single else history.lines(known_failures), strict=True
    ):
        costs = history.cost(line)
        numbers = {x: None if n is None else ledger.ledger_number_of(x, n) for x, n in line.checkpoints.items()}
        in_transit = sum(map(len, history.in_transit(line).values())) if single else -1
        paid = {x: Cost(n, costs.turns.get(x, 0)) for x, n in costs.checkpoints.items()}
        answers.append(RecoveryLineResult(failed, numbers, paid, in_transit))
    return answers

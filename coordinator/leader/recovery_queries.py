"""Recovery queries of tools: where would the fleet go back to if these agents failed?

Survivors keep their live states, so the hosts of an autonomous fleet report their agents' positions (ReportNumbers) while the
agents keep running. After a second the answer is computed from the replies so far. It is an estimate if a live state is unknown or
has changed since (`recovery/dependency_history.py`); a recovery freezes the fleet first and is exact. While the store is being read a query
waits, and after some seconds it is refused.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerLine, Cost, LineRequested, RecoveryLineResult
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.checkpoint_ledger import Ledger
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.messages.host_messages import NumbersReported, ReportNumbers

WAIT_NS = 1 * SECOND_NS
"""Time for hosts to report their agents' positions."""

REFUSE_NS = 5 * SECOND_NS
"""Longest wait of a query while the store is being read; after it the query is refused and can be repeated."""

QUERIES_MAX = 64
"""Largest number of open queries; beyond it the oldest is refused."""


class LineQuery(msgspec.Struct):
    """An open query; `waiting` are the hosts that have not reported their agents' positions."""

    failures: tuple[tuple[str, ...], ...]
    asked_ns: int
    waiting: dict[str, None]


class RecoveryQueries:
    """Open recovery queries."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, lines: Lines) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._questions: dict[int, LineQuery] = {}

    def on_requested(self, event: LineRequested) -> None:
        """Take a tool's query."""
        plan = self._shared.state.plan
        hosts = [] if plan is None else [x for x in plan.hosts if self._host_sessions.attached_session(x)]
        self._questions[event.request] = LineQuery(event.failures, self._shared.now, dict.fromkeys(hosts))
        if len(self._questions) > QUERIES_MAX:
            self._refuse(next(iter(self._questions)), f"{QUERIES_MAX} others have asked since")
        if plan is not None:
            self._shared.send(self._host_sessions.sessions_of(hosts), ReportNumbers(event.request, plan.number))

    def on_numbers_reported(self, session: HostSession, message: NumbersReported) -> None:
        """Take the positions of a host's agents."""
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
        """Answer the queries that can be answered, and refuse those that are too old."""
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
    """Return the recovery line of each failure. Agents that are no longer in the ledger are ignored."""
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

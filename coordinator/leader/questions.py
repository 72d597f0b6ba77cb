"""Questions of tools: where would the fleet go back to if these agents failed?

Survivors keep their live states, so the hosts of an autonomous fleet are asked where their agents stand (ReportNumbers),
without disturbing them. After a second the answer is computed with what has come. A live state that is not known, or has
moved on meanwhile, makes it an estimate (`recovery/history.py`); a recovery freezes the fleet first and is exact.
"""

import msgspec

from snapline.conversation.messages import NumbersReported, ReportNumbers
from snapline.coordinator.leader.attendance import Attendance, Session
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.events import LineRequested
from snapline.coordinator.leader.ledger import Ledger
from snapline.coordinator.leader.lines import Lines

WAIT_NS = 1 * SECOND_NS
"""For hosts to say where their agents stand."""

QUESTIONS_MAX = 64
"""Asked at once, answers not taken included; the oldest is dropped."""


class Cost(msgspec.Struct, frozen=True):
    """What a line costs an agent: durable checkpoints passed over, and turns undone as far as they are known."""

    checkpoints: int
    turns: int


class FoundLine(msgspec.Struct, frozen=True):
    """Where the fleet goes back to.

    Attributes:
        failed: the agents that fail.
        line: agent → number of its checkpoint; None: it keeps its live state.
        costs: of those that do not.
        in_transit: messages to be delivered again; -1: not counted.
    """

    failed: tuple[str, ...]
    line: dict[str, int | None]
    costs: dict[str, Cost]
    in_transit: int


class Answer(msgspec.Struct, frozen=True):
    """`silent`: hosts whose agents' live states are not known."""

    lines: tuple[FoundLine, ...]
    silent: tuple[str, ...]


class Question(msgspec.Struct):
    """One on its way."""

    failures: tuple[tuple[str, ...], ...]
    deadline_ns: int
    waiting: dict[str, None]
    answer: Answer | None = None


class Questions:
    """Questions on their way, and answers that nobody has taken yet."""

    def __init__(self, desk: Desk, attendance: Attendance, lines: Lines) -> None:
        self._desk = desk
        self._attendance = attendance
        self._lines = lines
        self._questions: dict[int, Question] = {}

    def on_requested(self, event: LineRequested) -> None:
        """A tool asks."""
        plan = self._desk.state.plan
        hosts = [] if plan is None else [x for x in plan.hosts if self._attendance.attached_session(x)]
        self._questions[event.request] = Question(event.failures, self._desk.now + WAIT_NS, dict.fromkeys(hosts))
        while len(self._questions) > QUESTIONS_MAX:
            del self._questions[next(iter(self._questions))]
        if plan is not None:
            self._desk.send(self._attendance.sessions_of(hosts), ReportNumbers(event.request, plan.number))

    def on_live(self, session: Session, message: NumbersReported) -> None:
        """Where the agents of a host stand."""
        question, ledger = self._questions.get(message.request), self._lines.ledger
        if question is None or message.plan != self._desk.state.plan_number or session.host not in question.waiting:
            return
        names, sizes = message.names, (len(message.received_from), len(message.received_number))
        indices = (*message.agents, *message.received_from)
        if sizes != (len(message.received_of),) * 2 or len(message.turns) != len(message.agents):
            return
        if max(indices, default=-1) >= len(names) or max(message.received_of, default=-1) >= len(message.agents):
            return
        if self._desk.state.stranger_of(session.host, [names[x] for x in message.agents]):
            return
        del question.waiting[session.host]
        received: list[dict[str, int]] = [{} for _ in message.agents]
        for index, sender, number in zip(
            message.received_of, message.received_from, message.received_number, strict=True
        ):
            received[index][names[sender]] = number
        living = self._desk.state.image.agents
        for index, agent in enumerate(message.agents):
            if ledger is not None and names[agent] in living:
                ledger.report_live(names[agent], received[index], message.turns[index])

    def evaluate(self) -> None:
        """Answer what can be answered."""
        ledger = self._lines.ledger
        if ledger is None or not self._lines.is_settled:
            return
        for question in self._questions.values():
            if question.answer is None and (not question.waiting or self._desk.now >= question.deadline_ns):
                for agent, _ in self._desk.state.living_agents():
                    ledger.join(agent)
                lines = find_lines(ledger, question.failures)
                question.answer = Answer(tuple(lines), tuple(question.waiting))

    def take(self, request: int) -> Answer | None:
        """The answer, once; None as long as there is none."""
        question = self._questions.get(request)
        if question is None or question.answer is None:
            return None
        del self._questions[request]
        return question.answer


def find_lines(ledger: Ledger, failures: tuple[tuple[str, ...], ...]) -> list[FoundLine]:
    """The recovery line of each failure. Agents that are not in the ledger any more do not fail."""
    known = [tuple([agent for agent in failed if agent in ledger.newest]) for failed in failures]
    history = ledger.history
    single = len(known) == 1
    found = []
    for failed, line in zip(known, [history.line(known[0])] if single else history.lines(known), strict=True):
        costs = history.cost(line)
        numbers = {x: None if n is None else ledger.number_of(x, n) for x, n in line.checkpoints.items()}
        in_transit = sum(map(len, history.in_transit(line).values())) if single else -1
        paid = {x: Cost(n, costs.turns.get(x, 0)) for x, n in costs.checkpoints.items()}
        found.append(FoundLine(failed, numbers, paid, in_transit))
    return found

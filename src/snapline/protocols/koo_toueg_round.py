"""The coordinator's part of one Koo-Toueg round: ask, forward requests, collect the answers, decide.

Theory of operation
-------------------
`koo_toueg` has the rules, the proof and the source. In the paper each agent forwards requests itself and answers when all
agents below it have answered. Here the coordinator does that for all of them: an answer carries the agent's own requests, and
the round ends when no question is open. A *question* is (agent, by): the agent is asked on behalf of `by`; None: as an initiator.
Each question has one number, since it comes from the one tentative checkpoint of `by`.

- All answers are yes and no question is open: commit.
- A no, the loss of an agent that was asked, or the timeout: abort.

A question is omitted if its answer is known to be yes: the agent already has a tentative checkpoint in this round, or has
left the fleet after a last checkpoint that holds all its messages. An agent that need not take part for one asker may need
to for the next, so an earlier yes answers only its own question.

The state is not durable: a new leader reads the round's number from the log, and aborts the round.

Invariants (see `validate`): every answered question was asked; a committed round has no open question; participants are
among those asked.

The caller's duties:

1. Begin with `RoundStarted`, one round at a time, each with a higher number.
2. Commit a `Decide` to the log, then send it to every agent of `asked`. Only then begin the next round.
3. Ask the questions of `open_questions` again when a host comes back; answers may come twice.
4. Hand in `AgentLost` when an agent's host is declared failed, asked or not, and before the plan of the recovery.
"""

from collections.abc import Collection
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.koo_toueg import Answer


class RoundStarted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round's number is committed: ask the initiators. A repeat is a no-op."""


class AnswerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has answered. Answers of other rounds, repeats and late answers are no-ops."""

    agent: str
    answer: Answer


class AgentLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has failed. Aborts the round if the agent was asked, or as soon as it would have to be."""

    agent: str


class TimedOut(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round has lasted too long. Aborts it unless it is decided."""


class AskAgent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send `agent` a CheckpointRequested with the round's number, `by` and `number`."""

    agent: str
    by: str | None
    number: int


class Decide(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Commit the round's outcome to the log. The last command, returned once."""

    is_committed: bool


Event = RoundStarted | AnswerReceived | AgentLost | TimedOut
Command = AskAgent | Decide
Question = tuple[str, str | None]


class KooTouegRoundImage(msgspec.Struct, frozen=True):
    """A hashable image of a round; the fields are those of `KooTouegRound`."""

    round: int
    initiators: tuple[str, ...]
    gone: tuple[str, ...]
    questions: tuple[tuple[str, str | None, int], ...]
    answered: tuple[Question, ...]
    participants: tuple[str, ...]
    lost: tuple[str, ...]
    decision: bool | None


class KooTouegRound:
    """One round at the coordinator. Not thread-safe; no I/O.

    Attributes:
        round: its number.
        initiators: ascending, at least one.
        decision: True for committed, False for aborted, None while it is open.
        _gone: agents that have left; they are not asked.
        _questions: every question asked, with its number, in order.
        _answered: the questions that were answered with yes.
        _participants: agents with a tentative checkpoint, in the order of their answers.
        _lost: agents that have failed.
    """

    __slots__ = ("_answered", "_gone", "_lost", "_participants", "_questions", "decision", "initiators", "round")

    def __init__(self, round: int, initiators: Collection[str], *, gone: Collection[str] = ()) -> None:
        """Prepare a round.

        Args:
            round: its number, as committed.
            initiators: agents that need a checkpoint.
            gone: agents that have left the fleet after a last checkpoint.

        Raises:
            UsageError: there is no initiator, or one that has left.
        """
        if not initiators:
            raise UsageError(f"round {round} has no initiator; name at least one agent that wants a checkpoint")
        for agent in initiators:
            if agent in gone:
                raise UsageError(f"{agent} has left and cannot begin round {round}; leave it out")
        self.round = round
        self.initiators = tuple(sorted(set(initiators)))
        self.decision: bool | None = None
        self._gone = dict.fromkeys(sorted(gone))
        self._questions: dict[Question, int] = {}
        self._answered: dict[Question, None] = {}
        self._participants: dict[str, None] = {}
        self._lost: dict[str, None] = {}

    @property
    def participants(self) -> tuple[str, ...]:
        """Agents known to have a tentative checkpoint, ascending; after a commit, those with a new permanent one."""
        return tuple(sorted(self._participants))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return every agent that was asked, ascending: each must receive the decision."""
        return tuple(sorted({agent for agent, _ in self._questions}))

    @property
    def open_questions(self) -> list[AskAgent]:
        """Return the questions asked and not answered, in the order of asking; empty when decided."""
        if self.decision is not None:
            return []
        return [
            AskAgent(agent, by, number)
            for (agent, by), number in self._questions.items()
            if (agent, by) not in self._answered
        ]

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event; return the commands, in order.

        Raises:
            ProtocolError: an answer to a question of this round that was never asked.
        """
        if self.decision is not None:
            return []
        match event:
            case RoundStarted():
                return self._on_round_started()
            case AnswerReceived():
                return self._on_answer_received(event)
            case AgentLost():
                return self._on_agent_lost(event)
            case TimedOut():
                return self._decide(is_committed=False)
            case _:
                assert_never(event)

    def _on_round_started(self) -> list[Command]:
        if self._questions:
            return []
        return self._ask(dict.fromkeys(self.initiators, 0), by=None)

    def _on_answer_received(self, event: AnswerReceived) -> list[Command]:
        answer = event.answer
        question = (event.agent, answer.by)
        if answer.round != self.round:
            return []
        if question not in self._questions:
            raise ProtocolError(
                f"{event.agent} answers a question that round {self.round} did not ask, in the name of {answer.by}"
            )
        if not answer.is_willing:
            return self._decide(is_committed=False)
        if question in self._answered:
            return []
        self._answered[question] = None
        commands: list[Command] = []
        if answer.is_participant and event.agent not in self._participants:
            self._participants[event.agent] = None
            commands = self._ask(answer.requests, by=event.agent)
        return commands + self._commit_if_answered()

    def _on_agent_lost(self, event: AgentLost) -> list[Command]:
        self._lost[event.agent] = None
        is_asked = any(agent == event.agent for agent, _ in self._questions)
        return self._decide(is_committed=False) if is_asked else []

    def _ask(self, requests: dict[str, int], *, by: str | None) -> list[Command]:
        """Ask in the order of the names, so that the same answers give the same questions."""
        commands: list[Command] = []
        for agent, number in sorted(requests.items()):
            if agent in self._participants or agent in self._gone:
                continue
            if agent in self._lost:
                return self._decide(is_committed=False)
            self._questions[agent, by] = number
            commands.append(AskAgent(agent, by, number))
        return commands

    def _commit_if_answered(self) -> list[Command]:
        if self.decision is not None or len(self._answered) < len(self._questions):
            return []
        return self._decide(is_committed=True)

    def _decide(self, *, is_committed: bool) -> list[Command]:
        self.decision = is_committed
        return [Decide(is_committed)]

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: one does not hold, which is a fault of this core.
        """
        about = f"round {self.round}"
        assert self._answered.keys() <= self._questions.keys(), f"{about}: an answer without a question"
        assert set(self._participants) <= set(self.asked), f"{about}: somebody takes part without being asked"
        if self.decision:
            assert len(self._answered) == len(self._questions), f"{about}: committed with a question open"
            assert set(self.initiators) <= set(self._participants), f"{about}: committed without an initiator"

    def freeze(self) -> KooTouegRoundImage:
        """Return a hashable image of the whole state."""
        return KooTouegRoundImage(
            self.round,
            self.initiators,
            tuple(self._gone),
            tuple((agent, by, number) for (agent, by), number in self._questions.items()),
            tuple(self._answered),
            tuple(self._participants),
            tuple(self._lost),
            self.decision,
        )

    @classmethod
    def restore(cls, image: KooTouegRoundImage) -> Self:
        """Build a round that goes on exactly where the frozen one stood."""
        core = cls(image.round, image.initiators, gone=image.gone)
        core._questions = {(agent, by): number for agent, by, number in image.questions}
        core._answered = dict.fromkeys(image.answered)
        core._participants = dict.fromkeys(image.participants)
        core._lost = dict.fromkeys(image.lost)
        core.decision = image.decision
        return core

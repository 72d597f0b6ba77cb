"""Koo and Toueg's checkpointing protocol, which is blocking, has two phases, and involves only as many participants as consistency
requires.

Theory of operation
-------------------
The problem: from time to time, some agents need a new checkpoint. These agents are the initiators of a round. Which other agents must take
a checkpoint too, so that the latest permanent checkpoints of all agents still form a consistent cut? Model: agents are crash-stop, channels
are reliable and FIFO with messages numbered 1, 2, 3 …, turns are atomic, and there are no clocks. There is one round at a time, and round
numbers increase. *Received* means consumed by a turn. `KooTouegCore` implements an agent's part of the protocol, and `KooTouegRound` the
coordinator's part.

Each agent keeps two tables about the time since its own last checkpoint, whether permanent or tentative. `received_from[j]` is the number
of the last message received from j, and `first_sent[j]` the number of the first message sent to j. A missing entry means 0.

1. An agent takes a *tentative* checkpoint if it is an initiator, or if p asks it for a checkpoint with a number v and 0 < first_sent[p] <=
   v. The latter means that p has received a message that this agent sent after its last checkpoint. If an agent is asked again in the same
   round, it answers yes. If an agent is asked for a checkpoint that it does not need, it answers yes without taking one.
2. When an agent takes a tentative checkpoint, it saves both tables and empties them. It then asks every agent j in the saved
   `received_from` for a checkpoint, with the saved number.
3. Between its tentative checkpoint and the decision, an agent starts no turn, and no message leaves its outbox.
4. If all agents have answered yes, the tentative checkpoints become permanent. Otherwise they are discarded, and the saved tables are
   merged with the current ones. Merging keeps the newer entry of `received_from` and the older entry of `first_sent`.

Correctness. Suppose that, after a commit, j has received message v from i inside the cut, but i sent v outside the cut. The previous cut
was consistent, so j took part in the round and had received v since its last checkpoint. Hence i was asked with a number of at least v. If
i took no part, v was sent after i's last checkpoint, so 0 < first_sent[j] <= v, and i should have taken part. If i took part, v was sent
after i's tentative checkpoint, and by rule 3 after the decision. But the decision waited for j, which had already received v. Both cases
are contradictions. No agent takes part without need. So the participants are the smallest set that contains the initiators and, for each
participant p, all agents from which p has received a message that was sent after their permanent checkpoint.

Recovery with survivors. Let P be the permanent checkpoints and L the recovery line of a plan. L contains the live state of each surviving
agent, and the permanent checkpoint of each agent that is rolled back (or an older checkpoint if that one is unreadable). *No survivor's
table needs to change.* A table contains only its agent's own message numbers, between the agent's permanent checkpoint and its current
state. A survivor keeps both. For an agent that is rolled back, the two are the same checkpoint, so its tables are empty (`restart`). Reused
numbers are unambiguous too, since numbers are reused only beyond the line. L is consistent, so each message that a survivor has received
from a rolled-back agent was sent inside L. Each message that a survivor has sent to a rolled-back agent since its own permanent checkpoint
is delivered again under its old number. The new permanent checkpoints are the entrywise minimum of P and L, and the minimum of two
consistent cuts is consistent.

An agent that joins starts with empty tables. Its permanent checkpoint is its unborn state, so the message that creates it counts as
received since that checkpoint.

Source: R. Koo and S. Toueg, "Checkpointing and Rollback-Recovery for Distributed Systems", IEEE TSE SE-13(1), 1987, the checkpoint
algorithm. Departures: there is no tree of requests. Each agent answers immediately, and its answer contains its own requests, which the
coordinator forwards. The coordinator collects all answers. Several initiators may share a round. Messages in transit are not left to the
transport, but are resent from the senders' logs. Instead of the paper's rollback algorithm, the coordinator computes the recovery line.

Invariants (see `validate`): while an agent is blocked, both tables are empty. Every entry is at least 1. When the round is decided, there
are no saved tables.

The duties of an agent's caller:

1. *Safety depends on this rule:* while `is_blocked` is True, start no turn and send no message from the outbox. Pass `CheckpointRequested`
   only while no turn is running, and execute `TakeTentative` before the next event.
2. Store in the tentative checkpoint the image that `freeze` returns immediately after `TakeTentative`. Send an `Answer` only when the
   checkpoint is durable. If the checkpoint cannot be stored, pass `TentativeFailed`, and send the answer that results from it instead.
3. Report every message with its number, both when it leaves the outbox and when a turn consumes it, in the channel's order.
4. Deliver the decision of a round to every agent that was asked in the round, before any request of a later round. Requests and decisions
   may arrive twice or late.
5. Abort the open round when a recovery plan is made. Inform each survivor of every decision before it reports its live state.

The coordinator's part of one round
-----------------------------------
The coordinator asks agents for checkpoints, forwards their requests, collects the answers and decides. In the paper, each agent forwards
requests itself, and answers when all agents below it in the tree have answered. Here the coordinator does both for all agents. An answer
contains the agent's own requests, and the round ends when no question is open. A *question* is a pair (agent, by). The agent is asked on
behalf of the agent `by`, or as an initiator if `by` is None. Each question has exactly one number, since `by` takes only one tentative
checkpoint per round.

- If all answers are yes and no question is open, the round is committed.
- If an agent answers no, an agent that was asked is lost, or the round times out, the round is aborted.

A question is omitted if its answer is known to be yes. This is the case if the agent already has a tentative checkpoint in this round, or
has left the fleet after a last checkpoint that holds all its messages. An agent that need not take part on behalf of one asker may have to
take part on behalf of the next. So a yes answers only the question that was asked.

The state of a round is not durable. A new leader reads the round's number from the log, and aborts the round.

Invariants (see `validate`): every answered question was asked. A committed round has no open question. All participants were asked.

The duties of a round's caller:

1. Begin each round with `RoundStarted`. Run one round at a time, and give each a higher number than the previous one.
2. Commit a `Decide` to the log, then send the decision to every agent in `asked`. Only then begin the next round.
3. When a host reconnects, ask the questions in `open_questions` again. Answers may arrive twice.
4. Pass `AgentLost` when an agent's host is declared failed, before the recovery plan, and whether or not the agent was asked.
"""

from collections.abc import Collection
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError, UsageError


class MessageSent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Message `number` to the agent `to` has left the outbox."""

    to: str
    number: int


class MessageConsumed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A turn has consumed message `number` from the agent `sender`."""

    sender: str
    number: int


class CheckpointRequested(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The coordinator requests a checkpoint in `round`. The event may arrive twice or late.

    Attributes:
        by: the agent on whose behalf the coordinator asks. None if this agent is an initiator.
        number: number of the last message that `by` has received from this agent. It has no meaning for an initiator.
        is_willing: whether the caller can take a checkpoint now, which requires free storage and an agent that is not leaving.
    """

    round: int
    by: str | None
    number: int
    is_willing: bool = True


class TentativeFailed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The tentative checkpoint of `round` could not be stored. The agent stays blocked until the round is aborted."""

    round: int


class RoundDecided(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`round` has been committed or aborted. The event has no effect on checkpoints if the outcome is already known here, or if this agent
    took no part."""

    round: int
    is_committed: bool


class TakeTentative(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Capture the agent's image now, including the result of this core's `freeze`, and store it as the agent's tentative checkpoint."""

    round: int


class Answer(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer to the coordinator. A repeated question (same `round` and `by`) is answered again.

    Attributes:
        by: the value of `by` in the request.
        is_willing: whether the answer is yes. A single no aborts the round.
        is_participant: whether the agent has taken a tentative checkpoint in this round.
        requests: agent to ask → number of the last message received from that agent. Empty unless this agent is a participant. It must not
            be modified.
    """

    round: int
    by: str | None
    is_willing: bool
    is_participant: bool
    requests: dict[str, int]


class MakePermanent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Make the tentative checkpoint the agent's permanent checkpoint. Turns may start again."""

    round: int


class Discard(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Discard the tentative checkpoint. Turns may start again."""

    round: int


Event = MessageSent | MessageConsumed | CheckpointRequested | TentativeFailed | RoundDecided
Command = TakeTentative | Answer | MakePermanent | Discard


class ChannelTables(msgspec.Struct, frozen=True, array_like=True):
    """The tables `received_from` and `first_sent` as saved by a tentative checkpoint. They never change."""

    received_from: dict[str, int]
    first_sent: dict[str, int]


class _Image(msgspec.Struct, frozen=True, array_like=True):
    """Image that `freeze` encodes. The docstring of `KooTouegCore` describes the fields."""

    agent: str
    round: int
    is_decided: bool
    is_refused: bool
    asked_by: str | None
    live: ChannelTables
    saved: ChannelTables | None


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(_Image)


class KooTouegCore:
    """Core of the protocol for one agent. It is not thread-safe and does no I/O.

    Attributes:
        agent: this agent's id.
        round: the latest round known here, or 0 before the first round. It never decreases. Requests of older rounds are ignored.
        received_from: sender → number of the last message received since the last checkpoint.
        first_sent: receiver → number of the first message sent since the last checkpoint.
        _is_decided: whether the decision of `round` is known, so that further requests of the round are ignored.
        _is_refused: whether this agent has answered no in `round`. It then repeats that answer.
        _asked_by: the agent on whose behalf the tentative checkpoint was requested.
        _saved: the tables as they were before the tentative checkpoint. None if there is no tentative checkpoint.
    """

    __slots__ = ("_asked_by", "_is_decided", "_is_refused", "_saved", "agent", "first_sent", "received_from", "round")

    def __init__(self, agent: str, *, latest_round: int = 0) -> None:
        """Create the core of an agent whose permanent checkpoint equals its current state.

        Args:
            agent: the agent's id.
            latest_round: the last decided round. Requests of this round and of older rounds are ignored.
        """
        self.agent = agent
        self.round = latest_round
        self.received_from: dict[str, int] = {}
        self.first_sent: dict[str, int] = {}
        self._is_decided = True
        self._is_refused = False
        self._asked_by: str | None = None
        self._saved: ChannelTables | None = None

    @property
    def is_blocked(self) -> bool:
        """Return whether there is a tentative checkpoint whose round is undecided. If there is, the caller must start no turn and send no
        message from the outbox."""
        return self._saved is not None

    def sent(self, to: str, number: int) -> None:
        """Handle `MessageSent` without creating an event object, because this runs for every message.

        Raises:
            UsageError: the agent is blocked.
        """
        if self._saved is not None:
            raise self._blocked_error(f"message {number} to {to} left its outbox")
        if to not in self.first_sent:
            self.first_sent[to] = number

    def consumed(self, sender: str, number: int) -> None:
        """Handle `MessageConsumed` without creating an event object, because this runs for every message.

        Raises:
            UsageError: the agent is blocked.
        """
        if self._saved is not None:
            raise self._blocked_error(f"a turn consumed message {number} of {sender}")
        self.received_from[sender] = number

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event. Return the commands to execute, in order.

        Raises:
            ProtocolError: the event is a request of a new round while an older round is undecided here, a request without a number, or the
                commit of a round that this agent has refused.
            UsageError: a message was sent or consumed while the agent is blocked.
        """
        match event:
            case MessageSent():
                self.sent(event.to, event.number)
                return []
            case MessageConsumed():
                self.consumed(event.sender, event.number)
                return []
            case CheckpointRequested():
                return self._on_checkpoint_requested(event)
            case TentativeFailed():
                return self._on_tentative_failed(event)
            case RoundDecided():
                return self._on_round_decided(event)
            case _:
                assert_never(event)

    def _on_checkpoint_requested(self, event: CheckpointRequested) -> list[Command]:
        if event.by is not None and event.number < 1:
            raise ProtocolError(
                f"{event.by} asks {self.agent} for a checkpoint, having received {event.number} from it"
            )
        if event.round < self.round or (event.round == self.round and self._is_decided):
            return []
        if event.round > self.round:
            self._begin(event.round)
        if self._is_refused or self._saved is not None or not self._is_needed(event):
            return [self._answer(event.by)]
        if not event.is_willing:
            self._is_refused = True
            return [self._answer(event.by)]
        self._take_tentative(event.by)
        return [TakeTentative(event.round), self._answer(event.by)]

    def _begin(self, number: int) -> None:
        if self._saved is not None:
            raise ProtocolError(
                f"{self.agent} is asked for round {number} while round {self.round} is undecided here; "
                "deliver that decision first"
            )
        self.round, self._is_decided, self._is_refused = number, False, False

    def _is_needed(self, event: CheckpointRequested) -> bool:
        """Apply rule 1: return whether this agent is an initiator, or whether the asking agent has received a message that this agent sent
        after its last checkpoint."""
        return event.by is None or 0 < self.first_sent.get(event.by, 0) <= event.number

    def _take_tentative(self, by: str | None) -> None:
        """Save and empty the tables (rule 2)."""
        self._asked_by = by
        self._saved = ChannelTables(self.received_from, self.first_sent)
        self.received_from, self.first_sent = {}, {}

    def _answer(self, by: str | None) -> Answer:
        requests = {} if self._is_refused else self._requests()
        return Answer(self.round, by, not self._is_refused, self.is_blocked, requests)

    def _requests(self) -> dict[str, int]:
        """Return the requests of rule 2, taken from the saved tables. Messages that the agent sent to itself are skipped."""
        if self._saved is None:
            return {}
        return {agent: number for agent, number in self._saved.received_from.items() if agent != self.agent}

    def _on_tentative_failed(self, event: TentativeFailed) -> list[Command]:
        if event.round != self.round or self._saved is None:
            return []
        self._is_refused = True
        return [self._answer(self._asked_by)]

    def _on_round_decided(self, event: RoundDecided) -> list[Command]:
        if event.round < self.round or (self._is_decided and event.round == self.round):
            return []
        if event.round > self.round:
            return self._skip(event.round)
        if self._is_refused and event.is_committed:
            raise ProtocolError(f"round {event.round} is committed although {self.agent} has refused it")
        saved = self._saved
        self._is_decided, self._is_refused, self._asked_by, self._saved = True, False, None, None
        if saved is None:
            return []
        if event.is_committed:
            return [MakePermanent(event.round)]
        self._merge_back(saved)
        return [Discard(event.round)]

    def _skip(self, number: int) -> list[Command]:
        """Mark a round as decided in which this agent took no part. Otherwise a late request of that round would block the agent
        forever."""
        if self._saved is None:
            self.round, self._is_decided, self._is_refused = number, True, False
        return []

    def _merge_back(self, saved: ChannelTables) -> None:
        """Merge the saved tables with the current ones (rule 4), keeping the newer `received_from` and the older `first_sent`."""
        self.received_from = {**saved.received_from, **self.received_from}
        self.first_sent = {**self.first_sent, **saved.first_sent}

    def _blocked_error(self, what: str) -> UsageError:
        return UsageError(
            f"{what} although {self.agent} is blocked by round {self.round}; ask `is_blocked` before a turn or a send"
        )

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: an invariant is violated, which means that this core has a bug.
        """
        about = f"{self.agent}, round {self.round}"
        assert self.round >= 0, f"{about}: rounds are numbered from 1"
        tables = [self.received_from, self.first_sent]
        if self._saved is not None:
            assert not self._is_decided, f"{about}: decided, yet tentative"
            assert not self.received_from and not self.first_sent, f"{about}: something happened while blocked"
            tables += [self._saved.received_from, self._saved.first_sent]
        assert not (self._is_decided and self._is_refused), f"{about}: decided, yet refused"
        for table in tables:
            assert all(number >= 1 for number in table.values()), f"{about}: an entry below 1"

    def freeze(self) -> bytes:
        """Encode the complete state, which is stored in every checkpoint. Equal states have equal encodings."""
        live = ChannelTables(self.received_from, self.first_sent)
        image = _Image(self.agent, self.round, self._is_decided, self._is_refused, self._asked_by, live, self._saved)
        return _ENCODER.encode(image)

    @classmethod
    def restore(cls, image: bytes) -> Self:
        """Return a core in exactly the encoded state, which may be blocked. See also `restart`.

        Raises:
            ProtocolError: `image` is not a result of `freeze`.
        """
        decoded = _decode(image)
        core = cls(decoded.agent, latest_round=decoded.round)
        core.received_from, core.first_sent = decoded.live.received_from, decoded.live.first_sent
        core._is_decided, core._is_refused = decoded.is_decided, decoded.is_refused
        core._asked_by, core._saved = decoded.asked_by, decoded.saved
        return core

    @classmethod
    def restart(cls, image: bytes, *, latest_round: int = 0) -> Self:
        """Return the core of an agent that starts from a permanent checkpoint. `image` is the core's image in that checkpoint.

        The image was taken immediately after the checkpoint, so its tables are empty. Its round was undecided at that time, which no longer
        matters. Pass the plan's `latest_round`, so that requests from before the recovery are ignored.

        Raises:
            ProtocolError: `image` is not a result of `freeze` immediately after a checkpoint.
        """
        decoded = _decode(image)
        if decoded.live.received_from or decoded.live.first_sent:
            raise ProtocolError(f"the image of {decoded.agent} was not taken right after a checkpoint; take it there")
        return cls(decoded.agent, latest_round=max(decoded.round, latest_round))


def _decode(image: bytes) -> _Image:
    try:
        return _DECODER.decode(image)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"this is no image of a Koo-Toueg core: {error}") from error


class RoundStarted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round's number is committed, so the initiators can be asked. A duplicate event has no effect."""


class AnswerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has answered. Answers of other rounds, duplicate answers and late answers have no effect."""

    agent: str
    answer: Answer


class AgentLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has failed. The round is aborted if the agent was asked. Otherwise it is aborted as soon as the agent would have to be
    asked."""

    agent: str


class TimedOut(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round has lasted too long. It is aborted unless it is already decided."""


class AskAgent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send a CheckpointRequested to `agent`, with the round's number, `by` and `number`."""

    agent: str
    by: str | None
    number: int


class Decide(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Commit the round's outcome to the log. This is the last command of a round, and is returned only once."""

    is_committed: bool


RoundEvent = RoundStarted | AnswerReceived | AgentLost | TimedOut
RoundCommand = AskAgent | Decide
Question = tuple[str, str | None]


class KooTouegRoundImage(msgspec.Struct, frozen=True):
    """A hashable image of a round. The docstring of `KooTouegRound` describes the fields."""

    round: int
    initiators: tuple[str, ...]
    gone: tuple[str, ...]
    questions: tuple[tuple[str, str | None, int], ...]
    answered: tuple[Question, ...]
    participants: tuple[str, ...]
    lost: tuple[str, ...]
    decision: bool | None


class KooTouegRound:
    """Core of one round at the coordinator. It is not thread-safe and does no I/O.

    Attributes:
        round: number of the round.
        initiators: ids of the initiators in ascending order. There is at least one.
        decision: True if the round is committed, False if it is aborted, None while it is open.
        _gone: agents that have left the fleet. They are not asked.
        _questions: question → number, for every question asked, in the order of asking.
        _answered: the questions that were answered with yes.
        _participants: agents that have a tentative checkpoint, in the order of their answers.
        _lost: agents that have failed.
    """

    __slots__ = ("_answered", "_gone", "_lost", "_participants", "_questions", "decision", "initiators", "round")

    def __init__(self, round: int, initiators: Collection[str], *, gone: Collection[str] = ()) -> None:
        """Create an undecided round in which no agent has been asked.

        Args:
            round: number of the round, as committed in the coordinator's log.
            initiators: agents that need a checkpoint.
            gone: agents that have left the fleet after a last checkpoint.

        Raises:
            UsageError: there is no initiator, or an initiator has left the fleet.
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
        """Return, in ascending order, the agents that are known to have a tentative checkpoint. After a commit, that checkpoint is
        permanent."""
        return tuple(sorted(self._participants))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return all agents that were asked, in ascending order. Each of them must receive the decision."""
        return tuple(sorted({agent for agent, _ in self._questions}))

    @property
    def open_questions(self) -> list[AskAgent]:
        """Return the questions that were asked but not answered with yes, in the order of asking. If the round is decided, return no
        questions."""
        if self.decision is not None:
            return []
        return [
            AskAgent(agent, by, number)
            for (agent, by), number in self._questions.items()
            if (agent, by) not in self._answered
        ]

    def handle(self, now_ns: int, event: RoundEvent) -> list[RoundCommand]:
        """Handle one event. Return the commands to execute, in order.

        Raises:
            ProtocolError: the event is an answer to a question that was never asked in this round.
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

    def _on_round_started(self) -> list[RoundCommand]:
        if self._questions:
            return []
        return self._ask(dict.fromkeys(self.initiators, 0), by=None)

    def _on_answer_received(self, event: AnswerReceived) -> list[RoundCommand]:
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
        commands: list[RoundCommand] = []
        if answer.is_participant and event.agent not in self._participants:
            self._participants[event.agent] = None
            commands = self._ask(answer.requests, by=event.agent)
        return commands + self._commit_if_answered()

    def _on_agent_lost(self, event: AgentLost) -> list[RoundCommand]:
        self._lost[event.agent] = None
        is_asked = any(agent == event.agent for agent, _ in self._questions)
        return self._decide(is_committed=False) if is_asked else []

    def _ask(self, requests: dict[str, int], *, by: str | None) -> list[RoundCommand]:
        """Return the commands that ask these agents, in the order of their ids, so that equal answers lead to equal questions. Abort the
        round if one of the agents is lost."""
        commands: list[RoundCommand] = []
        for agent, number in sorted(requests.items()):
            if agent in self._participants or agent in self._gone:
                continue
            if agent in self._lost:
                return self._decide(is_committed=False)
            self._questions[agent, by] = number
            commands.append(AskAgent(agent, by, number))
        return commands

    def _commit_if_answered(self) -> list[RoundCommand]:
        if self.decision is not None or len(self._answered) < len(self._questions):
            return []
        return self._decide(is_committed=True)

    def _decide(self, *, is_committed: bool) -> list[RoundCommand]:
        self.decision = is_committed
        return [Decide(is_committed)]

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: an invariant is violated, which means that this core has a bug.
        """
        about = f"round {self.round}"
        assert self._answered.keys() <= self._questions.keys(), f"{about}: an answer without a question"
        assert set(self._participants) <= set(self.asked), f"{about}: somebody takes part without being asked"
        if self.decision:
            assert len(self._answered) == len(self._questions), f"{about}: committed with a question open"
            assert set(self.initiators) <= set(self._participants), f"{about}: committed without an initiator"

    def freeze(self) -> KooTouegRoundImage:
        """Return a hashable image of the complete state."""
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
        """Return a round in exactly the state of the image."""
        core = cls(image.round, image.initiators, gone=image.gone)
        core._questions = {(agent, by): number for agent, by, number in image.questions}
        core._answered = dict.fromkeys(image.answered)
        core._participants = dict.fromkeys(image.participants)
        core._lost = dict.fromkeys(image.lost)
        core.decision = image.decision
        return core

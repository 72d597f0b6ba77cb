"""Koo and Toueg's blocking two-phase checkpointing protocol, in which only those agents take part that consistency requires.

Theory of operation
-------------------
Problem: from time to time, some agents, called the initiators of a round, need a new checkpoint. Which other agents must take a checkpoint
too, so that the latest permanent checkpoints of all agents still form a consistent cut? Model: agents are crash-stop, channels are reliable
and FIFO with messages numbered 1, 2, 3 …, turns are atomic, and there are no clocks. There is one round at a time, and round numbers
increase. A message counts as *received* when a turn has consumed it. `KooTouegCore` implements an agent's part of the protocol, and
`KooTouegRound` the coordinator's part.

Each agent keeps two tables, which cover the time since its last permanent or tentative checkpoint. `received_from[j]` is the number of the
last message received from j, and `first_sent[j]` the number of the first message sent to j. An entry that is missing counts as 0.

1. An agent takes a *tentative* checkpoint if it is an initiator, or if an agent p requests one with a message number v such that 0 <
   first_sent[p] <= v. The inequality means that p has received a message that this agent sent after its last checkpoint. If an agent
   already has a tentative checkpoint in the round, it answers yes to further requests. If an agent receives a request for a checkpoint that
   it does not need, it answers yes without taking one.
2. When an agent takes a tentative checkpoint, it saves both tables and empties them. The agent then requests a checkpoint from every agent
   j in the saved `received_from`, and passes the saved number along.
3. Between its tentative checkpoint and the decision, an agent starts no turn, and no message leaves its outbox.
4. If all agents have answered yes, the tentative checkpoints become permanent. If the round is aborted, the tentative checkpoints are
   discarded, and the saved tables are merged with the current tables. Merging keeps the newer entry of `received_from` and the older entry
   of `first_sent`.

Correctness. Suppose that, after a commit, j has received message v from i inside the cut, but i sent v outside the cut. The previous cut
was consistent, so j took a checkpoint in the round after it had received v. Hence j requested a checkpoint from i with a number of at least
v. If i took no checkpoint in the round, v was sent after i's last checkpoint, so 0 < first_sent[j] <= v, and i should have taken one. If i
took a checkpoint in the round, v was sent after this tentative checkpoint, and therefore, by rule 3, after the decision. But the decision
was made only after j had answered, and j had received v before its answer. Both cases are contradictions. No agent takes an unnecessary
checkpoint. So the set of participants is the smallest that contains the initiators and, for each participant p, every agent whose messages
since its permanent checkpoint include one that p has received.

Recovery with survivors. Let P be the permanent checkpoints and L the recovery line of a plan. L contains the live state of each surviving
agent and the permanent checkpoint of each agent that is rolled back. If an agent's permanent checkpoint is unreadable, L contains an older
checkpoint of the agent. The tables of survivors need not change. An agent's tables contain only message numbers from its own permanent
checkpoint to its current state. A survivor keeps both. The tables of an agent that is rolled back are empty, because its current state is
its permanent checkpoint (see `restart`). Reused message numbers are unambiguous, since a rollback reuses only numbers of messages that were
sent outside L. L is consistent, so each message that a survivor has received from a rolled-back agent was sent inside L. Each message that
a survivor has sent to a rolled-back agent since its own permanent checkpoint is delivered again under its old number. For each agent, the
new permanent checkpoint is the earlier of its entries in P and L, and the minimum of two consistent cuts is consistent.

An agent that joins starts with empty tables. The permanent checkpoint of a joining agent is its state before its creation, so the message
that creates it counts as received since that checkpoint.

Source: R. Koo and S. Toueg, "Checkpointing and Rollback-Recovery for Distributed Systems", IEEE TSE SE-13(1), 1987, the checkpoint
algorithm. Unlike in the paper, there is no tree of requests. Each agent answers immediately, and its answer contains its own requests,
which the coordinator forwards. A round may have several initiators. Messages in transit are resent from the senders' logs instead of being
left to the transport. Instead of the paper's rollback algorithm, the coordinator computes the recovery line.

Invariant (see `validate`): while an agent is blocked, both tables are empty. Invariant: every entry of a table is at least 1. Invariant:
after the decision of the round, there are no saved tables.

The caller of an agent's core has the following duties.

1. *Safety depends on this rule:* while `is_blocked` is True, start no turn and send no message from the outbox. Pass `CheckpointRequested`
   only while no turn is running, and execute `TakeTentative` before the next event.
2. Store in the tentative checkpoint the image that `freeze` returns immediately after `TakeTentative`. Send an `Answer` only after the
   checkpoint is durable. If the checkpoint cannot be stored, pass `TentativeFailed` to the core, and send only the answer that it returns
   for this event.
3. Report each message's number when the message leaves the outbox and when a turn consumes it. Report the numbers in the order of the
   channel.
4. Deliver a round's decision to every agent that received a request in the round, before any request of a later round. Requests and
   decisions may be duplicated or delayed.
5. Abort the open round when a recovery plan is made. Deliver every decision to each survivor before the survivor reports its live state.

The coordinator's part of one round
-----------------------------------
The coordinator asks agents for checkpoints, forwards their requests, collects the answers and decides. In the paper, each agent forwards
requests itself, and answers when all agents below it in the tree have answered. Here the coordinator forwards the requests and collects the
answers of all agents. An answer contains the agent's own requests. The round ends when no question is unanswered. A *question* is a pair
(agent, by), which represents a request to the agent. The coordinator sends the request on behalf of the agent `by`. If `by` is None, the
agent is an initiator. Each question has exactly one message number, since the agent `by` takes only one tentative checkpoint per round.

- If all questions are answered with yes, the round is committed.
- The round is aborted if an agent answers no, if an agent that was asked fails, or if the round times out.

The coordinator omits a question if the answer is known to be yes. The answer is known if the agent already has a tentative checkpoint in
this round, or if it left the fleet after a last checkpoint that covers all its messages. An agent that needs no checkpoint on behalf of one
agent may need one on behalf of another. So an answer of yes counts only for the question that it answers.

The state of a round is not durable. A new leader reads the round's number from the log, and aborts the round.

Invariant (see `validate`): every answered question was asked. Invariant: in a committed round, every question is answered. Invariant: every
participant was asked.

The caller of a round's core has the following duties.

1. Begin each round by passing a `RoundStarted` event. Run one round at a time. Round numbers must increase.
2. Commit a `Decide` to the log, then send the decision to every agent in `asked`. Begin the next round only after the decision has been
   sent.
3. When a host reconnects, resend the requests for the questions in `open_questions`. Answers may arrive twice.
4. When an agent's host is declared failed, pass `AgentLost` before the recovery plan is made, even if the agent was not asked.
"""

from collections.abc import Collection
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError, UsageError


class MessageSent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The message with this number to the agent `to` has left the outbox."""

    to: str
    number: int


class MessageConsumed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A turn has consumed the message with this number from the agent `sender`."""

    sender: str
    number: int


class CheckpointRequested(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The coordinator requests a checkpoint from this agent in `round`. The request may be duplicated or delayed.

    Attributes:
        by: the agent on whose behalf the coordinator requests the checkpoint, or None if this agent is an initiator.
        number: number of the last message that the agent `by` has received from this agent. The number has no meaning if this agent is an
            initiator.
        is_willing: whether the caller can take a checkpoint now. The caller cannot take one if there is no free storage or if the agent is
            leaving.
    """

    round: int
    by: str | None
    number: int
    is_willing: bool = True


class TentativeFailed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The tentative checkpoint of `round` could not be stored. The agent stays blocked until the round is aborted."""

    round: int


class RoundDecided(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The coordinator has committed or aborted the round. The event has no effect on checkpoints if the outcome is already known, or if
    this agent has no tentative checkpoint in the round."""

    round: int
    is_committed: bool


class TakeTentative(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Capture the agent's image now, including the result of this core's `freeze`, and store it as the agent's tentative checkpoint."""

    round: int


class Answer(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer to the coordinator. A repeated request with the same `round` and `by` is answered again.

    Attributes:
        is_willing: whether the answer is yes. If one agent answers no, the round is aborted.
        is_participant: whether the agent has taken a tentative checkpoint in this round.
        requests: for each agent from which a checkpoint is requested, the number of the last message received from that agent. The mapping
            is empty unless this agent is a participant. The receiver of the answer must not modify the mapping.
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
    """The tables `received_from` and `first_sent`, as saved when a tentative checkpoint is taken. They never change."""

    received_from: dict[str, int]
    first_sent: dict[str, int]


class _Image(msgspec.Struct, frozen=True, array_like=True):
    """Image that `freeze` encodes."""

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
    """Core that runs the protocol for one agent. The core is not thread-safe and does no I/O.

    Attributes:
        round: number of the latest round that this agent knows of, or 0 before the first round. It never decreases. The core ignores
            requests of older rounds.
        received_from: for each sender, the number of the last message received since this agent's last checkpoint.
        first_sent: for each receiver, the number of the first message sent since this agent's last checkpoint.
        _is_decided: whether this agent knows the decision of `round`, so that it ignores further requests of the round.
        _is_refused: whether this agent has answered no in `round`. If it has, the agent repeats this answer for each further request of the
            round.
        _asked_by: the agent on whose behalf the tentative checkpoint was requested.
        _saved: the tables as they were before the tentative checkpoint, or None if there is no tentative checkpoint.
    """

    __slots__ = ("_asked_by", "_is_decided", "_is_refused", "_saved", "agent", "first_sent", "received_from", "round")

    def __init__(self, agent: str, *, latest_round: int = 0) -> None:
        """Create the core of an agent whose permanent checkpoint equals its current state.

        Args:
            latest_round: the last decided round. The core ignores requests of this round and of older rounds.
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
        """Return whether the agent is blocked, which means that it has a tentative checkpoint whose round is undecided. While the agent is
        blocked, the caller must start no turn and send no message from the outbox."""
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
            ProtocolError: If a request of a new round arrives while an older round is undecided, if a request has no number, or if the
                event commits a round that this agent has refused.
            UsageError: If a message was sent or consumed while the agent is blocked.
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
        """Return whether rule 1 requires a checkpoint: this agent is an initiator, or the requesting agent has received a message sent
        after this agent's last checkpoint."""
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
        """Return the requests that this agent makes under rule 2, based on the saved tables. The agent makes no request to itself."""
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
        """Mark a round as decided if this agent took no checkpoint in it. Without the mark, a late request of the round would block the
        agent forever."""
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
        """Encode the complete state of the core. Every checkpoint of the agent contains this encoding. Equal states have equal
        encodings."""
        live = ChannelTables(self.received_from, self.first_sent)
        image = _Image(self.agent, self.round, self._is_decided, self._is_refused, self._asked_by, live, self._saved)
        return _ENCODER.encode(image)

    @classmethod
    def restore(cls, image: bytes) -> Self:
        """Return a core whose state is exactly the encoded state. The core may be blocked. See also `restart`.

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
        """Return the core of an agent that starts from a permanent checkpoint. `image` is the encoding of the core in that checkpoint.

        The core was encoded immediately after the checkpoint, so the tables in the image are empty. The round in the image was undecided at
        that time, which no longer matters. Pass the recovery plan's `latest_round`, so that the core ignores requests from before the
        recovery.

        Raises:
            ProtocolError: If `image` was not returned by `freeze` immediately after a checkpoint.
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
    """The round's number is committed. The coordinator can now send requests to the initiators. A duplicate event has no effect."""


class AnswerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has answered. Answers that belong to other rounds, are duplicates or arrive late have no effect."""

    agent: str
    answer: Answer


class AgentLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has failed. If the agent was asked for a checkpoint, the round is aborted. If the agent was not asked, the round is aborted
    as soon as the agent would have to be asked."""

    agent: str


class TimedOut(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round has exceeded its time limit. The round is aborted unless it is already decided."""


class AskAgent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send a CheckpointRequested to `agent`, with the round's number, `by` and `number`."""

    agent: str
    by: str | None
    number: int


class Decide(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Commit the round's outcome to the log. A round returns this command exactly once, as its last command."""

    is_committed: bool


RoundEvent = RoundStarted | AnswerReceived | AgentLost | TimedOut
RoundCommand = AskAgent | Decide
Question = tuple[str, str | None]


class KooTouegRoundImage(msgspec.Struct, frozen=True):
    """A hashable copy of a round's state."""

    round: int
    initiators: tuple[str, ...]
    gone: tuple[str, ...]
    questions: tuple[tuple[str, str | None, int], ...]
    answered: tuple[Question, ...]
    participants: tuple[str, ...]
    lost: tuple[str, ...]
    decision: bool | None


class KooTouegRound:
    """Core that runs one round at the coordinator. The core is not thread-safe and does no I/O.

    Attributes:
        initiators: ids of the initiators in ascending order. A round has at least one initiator.
        decision: True if the round is committed, False if it is aborted, None while it is undecided.
        _gone: agents that have left the fleet. They are not asked.
        _questions: for each question asked, its message number. The questions are in the order in which they were asked.
        _answered: the questions that agents have answered with yes.
        _participants: agents that have a tentative checkpoint, in the order of their answers.
    """

    __slots__ = ("_answered", "_gone", "_lost", "_participants", "_questions", "decision", "initiators", "round")

    def __init__(self, round: int, initiators: Collection[str], *, gone: Collection[str] = ()) -> None:
        """Create an undecided round. No agent has been asked for a checkpoint yet.

        Args:
            round: number of the round, which must be committed to the coordinator's log.
            gone: agents that have left the fleet after taking a last checkpoint.

        Raises:
            UsageError: If there is no initiator, or if an initiator has left the fleet.
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
        """Return, in ascending order, the agents that are known to have a tentative checkpoint. If the round is committed, these tentative
        checkpoints are permanent."""
        return tuple(sorted(self._participants))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the ids of all agents that were asked for a checkpoint, in ascending order. The caller must send the round's decision to
        each of these agents."""
        return tuple(sorted({agent for agent, _ in self._questions}))

    @property
    def open_questions(self) -> list[AskAgent]:
        """Return the questions that no agent has answered with yes yet, in the order in which they were asked. If the round is decided,
        return an empty list."""
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
            ProtocolError: If the event is an answer to a question that was never asked in this round.
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
        """Return the commands that request checkpoints from these agents. The commands are in the order of agent ids, so that equal answers
        lead to equal questions. If one of the agents has failed, abort the round."""
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
        """Return a round whose state is exactly the state in the image."""
        core = cls(image.round, image.initiators, gone=image.gone)
        core._questions = {(agent, by): number for agent, by, number in image.questions}
        core._answered = dict.fromkeys(image.answered)
        core._participants = dict.fromkeys(image.participants)
        core._lost = dict.fromkeys(image.lost)
        core.decision = image.decision
        return core

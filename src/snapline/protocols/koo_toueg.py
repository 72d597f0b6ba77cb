"""Koo and Toueg's checkpoint protocol: blocking, two-phase, with the fewest participants that keep the checkpoints consistent.

Theory of operation
-------------------
The problem: from time to time some agents, the initiators of a round, need a new checkpoint. Who else must take one, so that the
latest permanent checkpoints of all agents go on forming a consistent cut? Model: crash-stop agents, reliable FIFO channels
numbered 1, 2, 3 …, atomic turns, no clocks; one round at a time, with rising numbers; *received* means consumed by a turn.
`KooTouegCore` implements one agent's part, `KooTouegRound` the coordinator's part.

Each agent keeps two tables about the time since its own last checkpoint, permanent or tentative; no entry means 0:
`received_from[j]`, the last number received from j, and `first_sent[j]`, the first number sent to j.

1. An agent takes a *tentative* checkpoint when it is an initiator, or when p asks it with v and 0 < first_sent[p] <= v:
   p has received a message that this agent sent after its last checkpoint. An agent that is asked again in the same round answers
   yes. An agent that is asked without need answers yes and takes no checkpoint.
2. A tentative checkpoint saves both tables and empties them. The agent asks every j of the saved `received_from`, with
   the saved number.
3. From the tentative checkpoint until the decision, the agent starts no turn, and no message leaves its outbox.
4. If all answered yes, the tentative checkpoints become permanent. Otherwise they are discarded, and the saved tables merged
   back: the newer `received_from`, the older `first_sent`.

Correctness. Suppose that after a commit j has received v from i inside the cut, and i sent it outside. The cut
before was consistent, so j took part and received v since its last checkpoint; hence i was asked with at least v. If i
took no part, v was sent after i's last checkpoint, so 0 < first_sent[j] <= v and i had to. If i took part, v was sent
after i's tentative checkpoint, by rule 3 after the decision; but the decision waited for j, which had received v by
then. No agent takes part without need, so the participants are the least set that contains the initiators and, with p,
every agent of which p has received something sent after its permanent checkpoint.

Recovery with survivors. Let P be the permanent checkpoints and L the line of a plan: for an agent set back its
permanent checkpoint (or an older one, if that cannot be read), for a survivor its live state. *No survivor's table
needs to change:* a table speaks only of its agent's own numbers, between its own permanent checkpoint and its own
present state. A survivor keeps both; for an agent set back both are the same checkpoint, so its tables are empty (`restart`).
Reused numbers are unambiguous too, since numbers are reused only past the line: L is consistent, so what a survivor
has received from an agent set back was sent inside L, and what it has sent there since its own permanent checkpoint is
delivered again under its old number. The new permanent checkpoints are the entrywise minimum of P and L, and the
minimum of two consistent cuts is consistent.

An agent that joins starts with empty tables. Its permanent checkpoint is its unborn state, so the message that creates
it counts as received since.

Source: R. Koo and S. Toueg, "Checkpointing and Rollback-Recovery for Distributed Systems", IEEE TSE SE-13(1), 1987, the
checkpoint algorithm. Departures: there is no tree of requests; an answer comes at once and carries the agent's own requests, and
the coordinator forwards the requests and collects the answers. Several initiators may share a round. Messages in transit are not
left to the transport: they come from the senders' logs. The paper's rollback algorithm is not used; the recovery line is
computed.

Invariants (see `validate`): while blocked, both tables are empty; every entry is at least 1; a decided round has no
saved tables.

The duties of an agent's caller:

1. *The rule that safety depends on:* while `is_blocked`, start no turn and send nothing from the outbox. Hand
   `CheckpointRequested` in only while no turn is running, and execute `TakeTentative` before the next event.
2. The tentative checkpoint holds what `freeze` returns right after `TakeTentative`. Send an `Answer` only when the checkpoint is
   durable. If storing it fails, hand in `TentativeFailed` and send its answer instead.
3. Report every message as it leaves the outbox, with its number, and as a turn consumes it, in the channel's order.
4. Deliver the decision of a round to every agent asked in it, before any request of a later round. Requests and
   decisions may arrive twice, or late.
5. A recovery plan aborts the open round. A survivor learns of every decision before it reports its live state.

The coordinator's part of one round
-----------------------------------
The coordinator asks, forwards requests, collects the answers and decides. In the paper each agent forwards requests itself and
answers when all agents below it have answered. Here the coordinator does both for all agents: an answer carries the agent's own
requests, and the round ends when no question is open. A *question* is a pair (agent, by): the agent is asked on behalf of the
agent `by`, or as an initiator if `by` is None. Each question has one number, since it comes from the one tentative checkpoint of
`by`.

- All answers are yes and no question is open: commit.
- An agent answers no, an asked agent is lost, or the round times out: abort.

A question is omitted if its answer is known to be yes: the agent already has a tentative checkpoint in this round, or has
left the fleet after a last checkpoint that holds all its messages. An agent that need not take part for one asker may need
to for the next, so an earlier yes answers only its own question.

The state is not durable: a new leader reads the round's number from the log, and aborts the round.

Invariants (see `validate`): every answered question was asked; a committed round has no open question; participants are
among those asked.

The duties of a round's caller:

1. Begin with `RoundStarted`, one round at a time, each with a higher number.
2. Commit a `Decide` to the log, then send it to every agent of `asked`. Only then begin the next round.
3. Ask the questions of `open_questions` again when a host comes back; answers may come twice.
4. Hand in `AgentLost` when an agent's host is declared failed, asked or not, and before the plan of the recovery.
"""

from collections.abc import Collection
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError, UsageError


class MessageSent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Message `number` left the outbox for the agent `to`."""

    to: str
    number: int


class MessageConsumed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A turn consumed message `number` of the agent `sender`."""

    sender: str
    number: int


class CheckpointRequested(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The coordinator requests a checkpoint in `round`. May arrive twice, or late.

    Attributes:
        by: the agent on whose behalf the coordinator asks; None: this agent is an initiator.
        number: the last number that `by` has received from this agent; meaningless for an initiator.
        is_willing: the caller can take a checkpoint now: storage has space, and the agent is not leaving.
    """

    round: int
    by: str | None
    number: int
    is_willing: bool = True


class TentativeFailed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The tentative checkpoint of `round` could not be stored. The agent stays blocked until the round is aborted."""

    round: int


class RoundDecided(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Outcome of `round`. The event is a no-op if the outcome is known, or if this agent took no part."""

    round: int
    is_committed: bool


class TakeTentative(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Capture the agent's image now, with `freeze` of this core, and store it as its tentative checkpoint."""

    round: int


class Answer(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer to the coordinator. The same question (`round`, `by`) always gets the same answer.

    Attributes:
        by: the value of `by` in the request.
        is_willing: yes or no; a single no aborts the round.
        is_participant: the agent has taken a tentative checkpoint in this round.
        requests: by agent to be asked, the last number received from that agent. Empty unless this agent is a participant. Read only.
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
    """Both tables (`received_from`, `first_sent`) as saved by a tentative checkpoint. Never changed."""

    received_from: dict[str, int]
    first_sent: dict[str, int]


class _Image(msgspec.Struct, frozen=True, array_like=True):
    """Image that `freeze` encodes; the fields are those of `KooTouegCore`."""

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
    """Core of the protocol for one agent. Not thread-safe; does no I/O.

    Attributes:
        agent: this agent's id.
        round: the latest round known here, 0 before the first. Never falls; older requests are ignored.
        received_from: by sender, the last number received since the last checkpoint.
        first_sent: by receiver, the first number sent since the last checkpoint.
        _is_decided: the decision of `round` is known, so its requests are ignored.
        _is_refused: this agent has answered no in `round`, and repeats that answer.
        _asked_by: the agent on whose behalf the tentative checkpoint was requested.
        _saved: the tables as of before the tentative checkpoint; None when there is no tentative checkpoint.
    """

    __slots__ = ("_asked_by", "_is_decided", "_is_refused", "_saved", "agent", "first_sent", "received_from", "round")

    def __init__(self, agent: str, *, latest_round: int = 0) -> None:
        """Create the core of an agent whose permanent checkpoint equals its current state.

        Args:
            agent: the agent's id.
            latest_round: the last decided round; messages of this and older rounds are ignored.
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
        """Return whether a tentative checkpoint is undecided. If so, start no turn, and send nothing from the outbox."""
        return self._saved is not None

    def sent(self, to: str, number: int) -> None:
        """Handle `MessageSent` without an event object, for the hot path.

        Raises:
            UsageError: the agent is blocked.
        """
        if self._saved is not None:
            raise self._blocked_error(f"message {number} to {to} left its outbox")
        if to not in self.first_sent:
            self.first_sent[to] = number

    def consumed(self, sender: str, number: int) -> None:
        """Handle `MessageConsumed` without an event object, for the hot path.

        Raises:
            UsageError: the agent is blocked.
        """
        if self._saved is not None:
            raise self._blocked_error(f"a turn consumed message {number} of {sender}")
        self.received_from[sender] = number

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event; return the commands, in order.

        Raises:
            ProtocolError: a request of a new round while an older one is undecided here, a request without a number, or
                a commit of a round that this agent has refused.
            UsageError: a message sent or consumed while the agent is blocked.
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
        """Apply rule 1: return whether the other agent has received a message that this agent sent after its last checkpoint."""
        return event.by is None or 0 < self.first_sent.get(event.by, 0) <= event.number

    def _take_tentative(self, by: str | None) -> None:
        """Rule 2."""
        self._asked_by = by
        self._saved = ChannelTables(self.received_from, self.first_sent)
        self.received_from, self.first_sent = {}, {}

    def _answer(self, by: str | None) -> Answer:
        requests = {} if self._is_refused else self._requests()
        return Answer(self.round, by, not self._is_refused, self.is_blocked, requests)

    def _requests(self) -> dict[str, int]:
        """Return the requests of rule 2, from the saved tables. Messages of the agent to itself need no other agent."""
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
        """Skip a round in which this agent took no part, because a late request of that round would block the agent forever."""
        if self._saved is None:
            self.round, self._is_decided, self._is_refused = number, True, False
        return []

    def _merge_back(self, saved: ChannelTables) -> None:
        """Apply rule 4: keep the newer `received_from` and the older `first_sent`."""
        self.received_from = {**saved.received_from, **self.received_from}
        self.first_sent = {**self.first_sent, **saved.first_sent}

    def _blocked_error(self, what: str) -> UsageError:
        return UsageError(
            f"{what} although {self.agent} is blocked by round {self.round}; ask `is_blocked` before a turn or a send"
        )

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: one does not hold, which is a fault of this core.
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
        """Encode the whole state; equal states give equal bytes. Part of every checkpoint."""
        live = ChannelTables(self.received_from, self.first_sent)
        image = _Image(self.agent, self.round, self._is_decided, self._is_refused, self._asked_by, live, self._saved)
        return _ENCODER.encode(image)

    @classmethod
    def restore(cls, image: bytes) -> Self:
        """Build a core in exactly the frozen state, which may be blocked. See also `restart`.

        Raises:
            ProtocolError: `image` is not what `freeze` returned.
        """
        decoded = _decode(image)
        core = cls(decoded.agent, latest_round=decoded.round)
        core.received_from, core.first_sent = decoded.live.received_from, decoded.live.first_sent
        core._is_decided, core._is_refused = decoded.is_decided, decoded.is_refused
        core._asked_by, core._saved = decoded.asked_by, decoded.saved
        return core

    @classmethod
    def restart(cls, image: bytes, *, latest_round: int = 0) -> Self:
        """Build the core of an agent that starts from the permanent checkpoint that contains `image`.

        The image was taken right after the checkpoint, so the tables are empty. Its round was undecided at that moment,
        which no longer matters. Pass the plan's `latest_round`, so that requests from before the recovery are ignored.

        Raises:
            ProtocolError: `image` is not what `freeze` returned right after a checkpoint.
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
    """The round's number is committed: ask the initiators. A repeat is a no-op."""


class AnswerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has answered. Answers of other rounds, repeats and late answers are no-ops."""

    agent: str
    answer: Answer


class AgentLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`agent` has failed. The round is aborted if the agent was asked, or as soon as the agent would have to be asked."""

    agent: str


class TimedOut(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The round has lasted too long. The round is aborted unless it is decided."""


class AskAgent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send `agent` a CheckpointRequested with the round's number, `by` and `number`."""

    agent: str
    by: str | None
    number: int


class Decide(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Commit the round's outcome to the log. This is the last command of a round and is returned once."""

    is_committed: bool


RoundEvent = RoundStarted | AnswerReceived | AgentLost | TimedOut
RoundCommand = AskAgent | Decide
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
    """Core of one round at the coordinator. Not thread-safe; does no I/O.

    Attributes:
        round: its number.
        initiators: ascending, at least one.
        decision: True for committed, False for aborted, None while it is open.
        _gone: agents that have left the fleet; they are not asked.
        _questions: every question asked, with its number, in order.
        _answered: the questions that were answered with yes.
        _participants: agents with a tentative checkpoint, in the order of their answers.
        _lost: agents that have failed.
    """

    __slots__ = ("_answered", "_gone", "_lost", "_participants", "_questions", "decision", "initiators", "round")

    def __init__(self, round: int, initiators: Collection[str], *, gone: Collection[str] = ()) -> None:
        """Prepare a round of checkpoints.

        Args:
            round: its number, as committed.
            initiators: agents that need a checkpoint.
            gone: agents that have left the fleet after a last checkpoint.

        Raises:
            UsageError: there is no initiator, or an initiator has left.
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
        """Return the agents known to have a tentative checkpoint, ascending; after a commit, those with a new permanent checkpoint."""
        return tuple(sorted(self._participants))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return every agent that was asked, ascending. Each of them must receive the decision."""
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

    def handle(self, now_ns: int, event: RoundEvent) -> list[RoundCommand]:
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
        """Ask the agents in the order of their names, so that equal answers lead to equal questions."""
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
        """Build a round in exactly the state that was frozen."""
        core = cls(image.round, image.initiators, gone=image.gone)
        core._questions = {(agent, by): number for agent, by, number in image.questions}
        core._answered = dict.fromkeys(image.answered)
        core._participants = dict.fromkeys(image.participants)
        core._lost = dict.fromkeys(image.lost)
        core.decision = image.decision
        return core

"""Model of a fleet that runs Koo and Toueg's checkpoint rounds, using the core in `protocols.koo_toueg`.

While no round is open, the coordinator may begin a round with any single agent as its initiator. The number of rounds is bounded. Requests,
answers and decisions are delivered in separate steps, between which any other step may happen. An open round may time out at any moment. An
agent that receives a request for a checkpoint may refuse it, or may fail to store the checkpoint. A blocked agent neither sends nor
consumes messages.

Any agent may crash in any state. `logged_model` defines the recovery. As the protocol's duties require, the open round
is aborted before the recovery, and the surviving agents receive all decisions.

In addition to the checks in `logged_model`, this model checks the following. In every state, the latest permanent checkpoints that the
coordinator has committed form a consistent cut (G1). Every agent that receives a decision executes it (G4).
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from snapline.protocols.koo_toueg import (
    AgentLost,
    Answer,
    AnswerReceived,
    AskAgent,
    CheckpointRequested,
    Command,
    Decide,
    Discard,
    Event,
    KooTouegCore,
    KooTouegRound,
    KooTouegRoundImage,
    MakePermanent,
    RoundDecided,
    RoundEvent,
    RoundStarted,
    TakeTentative,
    TentativeFailed,
    TimedOut,
)
from snapline.sim.explorer.cuts import Judgement, empty_ledger, replaced, with_consumed, with_sent
from snapline.sim.explorer.logged_model import LoggedMessage, LoggedModel, LoggedNode, SavedState
from snapline.sim.explorer.state_search import (
    Bounds,
    CoreMemo,
    Fault,
    Interner,
    Memo,
    Outputs,
    ProposedMove,
    State,
    key_of,
    validated_image,
)


class HashableAnswer(NamedTuple):
    """Hashable form of an agent's answer to the coordinator."""

    agent: int
    round: int
    by: str | None
    is_willing: bool
    is_participant: bool
    requests: tuple[tuple[str, int], ...]

    def answer(self) -> Answer:
        """Convert the answer to the protocol's own type."""
        return Answer(self.round, self.by, self.is_willing, self.is_participant, dict(self.requests))


class RoundCoordinator(NamedTuple):
    """State of the coordinator.

    Attributes:
        core: number that identifies the image of the open round's core, or -1 if no round is open.
        decided: for each decided round, in order, whether the round was committed.
        answers: for each agent, its answers that are in transit to the coordinator.
    """

    crashes: int
    core: int
    decided: tuple[bool, ...]
    answers: tuple[tuple[HashableAnswer, ...], ...]

    @property
    def begun(self) -> int:
        """Number of rounds begun so far, including the open round."""
        return len(self.decided) + (self.core >= 0)


class RoundModel(LoggedModel):
    """Model of a fleet that runs Koo and Toueg's protocol."""

    def __init__(
        self,
        bounds: Bounds,
        core_type: type[KooTouegCore] = KooTouegCore,
        round_type: type[KooTouegRound] = KooTouegRound,
    ) -> None:
        super().__init__(bounds)
        self.core_type, self.round_type = core_type, round_type
        self.cores: list[CoreMemo[KooTouegCore]] = [CoreMemo(validated_image, core_type.restore) for _ in self.agents]
        self.rounds: CoreMemo[KooTouegRound] = CoreMemo(validated_image, round_type.restore)
        self.coordinators: Interner[RoundCoordinator] = Interner()
        self._masks: Memo[int, int] = Memo(lambda number: self._mask(self.coordinators.values[number].decided))
        self._columns = [self._columns_memo(agent) for agent in self.agents]
        self._settled: Memo[tuple[int, int, int, int], int] = Memo(lambda key: self._settle(*key))

    def start(self) -> State:
        count = len(self.agents)
        nodes = []
        for agent, name in enumerate(self.names):
            past = SavedState(self.cores[agent].enter(self.core_type(name)), empty_ledger(count, agent), ((),) * count)
            nodes.append(self.nodes[agent].of(LoggedNode(past, (past,), ((),) * count)))
        return (*nodes, self.coordinators.of(RoundCoordinator(0, -1, (), ((),) * count)))

    # -- steps ----------------------------------------------------------------------------------------------------------

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        if actor == len(self.agents):
            yield from self._coordinator_proposals(self.coordinators.values[node])
            return
        name, agent_node = self.names[actor], self.nodes[actor].values[node]
        if agent_node.words:
            yield ProposedMove(f"{name} hears {_text_of(agent_node.words[0])}", "hear")
            if isinstance(agent_node.words[0], CheckpointRequested):
                yield ProposedMove(f"{name} refuses {_text_of(agent_node.words[0])}", "refuse")
                if not self.is_held(actor, agent_node):
                    yield ProposedMove(f"{name} hears {_text_of(agent_node.words[0])} and its store fails", "fail")
        if not self.is_held(actor, agent_node):
            if sum(agent_node.now.ledger.sent) < self.bounds.sends:
                for to in self.agents:
                    if to != actor:
                        yield ProposedMove(f"{name} sends to {self.names[to]}", "send", to)
            for sender, messages in enumerate(agent_node.channels):
                if messages:
                    text = f"{name} receives {messages[0].number} from {self.names[sender]}"
                    yield ProposedMove(text, "receive", sender)

    def is_held(self, agent: int, node: LoggedNode) -> bool:
        """Return whether the agent is blocked. A blocked agent starts no turn and sends nothing (the protocol's duty 1)."""
        return self.cores[agent].run(node.now.core, "is_blocked", lambda core: core.is_blocked)[1]

    def _coordinator_proposals(self, found: RoundCoordinator) -> Iterator[ProposedMove]:
        if found.core >= 0:
            yield ProposedMove(f"round {found.begun} times out", "timeout")
        elif found.begun < self.bounds.epochs:
            for agent, name in enumerate(self.names):
                yield ProposedMove(f"round {found.begun + 1} begins for {name}", "begin", agent)
        for agent, answers in enumerate(found.answers):
            if answers:
                yield ProposedMove(f"the coordinator hears the answer of {self.names[agent]}", "answer", agent)

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        if actor == len(self.agents):
            return self._coordinate(self.coordinators.values[node], proposal)
        agent_node = self.nodes[actor].values[node]
        match proposal.kind:
            case "hear":
                after, outputs = self.hear(actor, agent_node)
            case "refuse":
                after, outputs = self._refuse(actor, agent_node)
            case "fail":
                after, outputs = self._fail(actor, agent_node)
            case "send":
                after, outputs = self._send(actor, agent_node, proposal.detail)
            case _:
                after, outputs = self._receive(actor, agent_node, proposal.detail), ()
        return self.nodes[actor].of(after), outputs

    def _send(self, agent: int, node: LoggedNode, to: int) -> tuple[LoggedNode, Outputs]:
        now, number = node.now, node.now.ledger.sent[to] + 1
        core, _ = self.cores[agent].run(now.core, ("sent", to, number), lambda core: core.sent(self.names[to], number))
        sent = LoggedMessage(number, b"", ())
        log = replaced(now.log, to, (*now.log[to], sent))
        node = node._replace(now=now._replace(core=core, ledger=with_sent(now.ledger, to), log=log))
        return node, ((to, self.items.of((agent, sent))),)

    def _receive(self, agent: int, node: LoggedNode, sender: int) -> LoggedNode:
        now, number = node.now, node.channels[sender][0].number
        name = self.names[sender]
        core, _ = self.cores[agent].run(now.core, ("consumed", name, number), lambda core: core.consumed(name, number))
        now = now._replace(core=core, ledger=with_consumed(now.ledger, sender, number))
        return node._replace(now=now, channels=replaced(node.channels, sender, node.channels[sender][1:]))

    def hear(self, agent: int, node: LoggedNode) -> tuple[LoggedNode, Outputs]:
        """Handle the oldest message from the coordinator that the agent has not yet handled."""
        message, after = node.words[0], node._replace(words=node.words[1:])
        after, outputs = self._feed(agent, after, message)
        if isinstance(message, RoundDecided) and node.tentative is not None and node.tentative.mark == message.round:
            expected = (*node.checkpoints, node.tentative) if message.is_committed else node.checkpoints
            if after.checkpoints != expected or after.tentative is not None:
                raise Fault("outcomes", "G4", f"{self.names[agent]} does not do what {_text_of(message)} says")
        return after, outputs

    def _refuse(self, agent: int, node: LoggedNode) -> tuple[LoggedNode, Outputs]:
        """Refuse a request, as an agent does that has no storage space or is leaving."""
        request = msgspec.structs.replace(node.words[0], is_willing=False)
        return self._feed(agent, node._replace(words=node.words[1:]), request)

    def _fail(self, agent: int, node: LoggedNode) -> tuple[LoggedNode, Outputs]:
        """Handle a request, but fail to store the tentative checkpoint. The answer reports the failure (the protocol's duty 2)."""
        after, outputs = self.hear(agent, node)
        if after.tentative is None:
            return after, outputs
        return self._feed(agent, after, TentativeFailed(after.tentative.mark))

    def _feed(self, agent: int, node: LoggedNode, event: Event) -> tuple[LoggedNode, Outputs]:
        core, commands = self.cores[agent].run(node.now.core, key_of(event), lambda core: core.handle(0, event))
        node = node._replace(now=node.now._replace(core=core))
        outputs: Outputs = ()
        for command in commands:
            node, new_outputs = self._execute(agent, node, command)
            outputs += new_outputs
        return node, outputs

    def _execute(self, agent: int, node: LoggedNode, command: Command) -> tuple[LoggedNode, Outputs]:
        match command:
            case TakeTentative():
                return node._replace(tentative=node.now._replace(mark=command.round)), ()
            case Answer():
                requests = tuple(command.requests.items())
                answer = HashableAnswer(
                    agent, command.round, command.by, command.is_willing, command.is_participant, requests
                )
                return node, ((len(self.agents), self.items.of(answer)),)
            case MakePermanent():
                permanent = () if node.tentative is None else (node.tentative,)
                return node._replace(checkpoints=node.checkpoints + permanent, tentative=None), ()
            case Discard():
                return node._replace(tentative=None), ()

    # -- the coordinator ------------------------------------------------------------------------------------------------

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        if actor < len(self.agents):
            return super().arrive(actor, node, item)
        coordinator, answer = self.coordinators.values[node], self.items.values[item]
        answers = replaced(coordinator.answers, answer.agent, (*coordinator.answers[answer.agent], answer))
        return self.coordinators.of(coordinator._replace(answers=answers)), ()

    def _coordinate(self, found: RoundCoordinator, proposal: ProposedMove) -> tuple[int, Outputs]:
        event: RoundEvent
        match proposal.kind:
            case "begin":
                core = self.round_type(found.begun + 1, [self.names[proposal.detail]])
                found, event = found._replace(core=self.rounds.enter(core)), RoundStarted()
            case "timeout":
                event = TimedOut()
            case _:
                agent = proposal.detail
                answer = found.answers[agent][0]
                found = found._replace(answers=replaced(found.answers, agent, found.answers[agent][1:]))
                event = AnswerReceived(self.names[agent], answer.answer())
        if found.core < 0:
            return self.coordinators.of(found), ()
        after, outputs = self._feed_round(found, event)
        return self.coordinators.of(after), outputs

    def _feed_round(self, found: RoundCoordinator, event: RoundEvent) -> tuple[RoundCoordinator, Outputs]:
        core, commands = self.rounds.run(found.core, key_of(event), lambda core: core.handle(0, event))
        image: KooTouegRoundImage = self.rounds.images.values[core]
        found = found._replace(core=core)
        outputs: Outputs = ()
        for command in commands:
            match command:
                case AskAgent():
                    word = CheckpointRequested(image.round, command.by, command.number)
                    outputs += ((self.names.index(command.agent), self.items.of(word)),)
                case Decide():
                    found = found._replace(core=-1, decided=(*found.decided, command.is_committed))
                    decided = RoundDecided(image.round, command.is_committed)
                    asked = sorted({agent for agent, _, _ in image.questions})
                    outputs += tuple((self.names.index(name), self.items.of(decided)) for name in asked)
        return found, outputs

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def can_crash(self, state: State) -> bool:
        return self.coordinators.values[state[-1]].crashes < self.bounds.crashes

    def crashes(self, state: State) -> list[tuple[int, State]]:
        if not self.can_crash(state):
            return []
        lines = self.recoveries.lines[self.columns_of(state)]
        before = self.coordinators.values[state[-1]]
        decided, aborted = before.decided, 0
        after = []
        for failed, name in enumerate(self.names):
            if before.core >= 0:
                decided, aborted = (*before.decided, False), before.begun
                self._check_abort(before, name)
            coordinator = RoundCoordinator(before.crashes + 1, -1, decided, ((),) * len(self.agents))
            rounds = self._mask(decided)
            nodes = tuple(
                [
                    self._settled[agent, state[agent], rounds, -1 if agent == failed else aborted]
                    for agent in self.agents
                ]
            )
            new = self.recovered(nodes, lines[failed], begun=before.begun)
            after.append((self.labels.of(f"{name} crashes"), (*new, self.coordinators.of(coordinator))))
        return after

    def _check_abort(self, found: RoundCoordinator, failed: str) -> None:
        """Check that the failure of an agent aborts the round, either immediately or when the round times out."""
        after, _ = self._feed_round(found, AgentLost(failed))
        if after.core >= 0:
            after, _ = self._feed_round(after, TimedOut())
        if after.core >= 0 or after.decided[-1]:
            raise Fault(
                "outcomes", "G4", f"round {found.begun} is not aborted by the loss of {failed}", f"{failed} crashes"
            )

    def _settle(self, agent: int, number: int, committed: int, aborted: int) -> int:
        """Return an agent's node immediately before a recovery. A surviving agent has received all decisions by then. A failed agent keeps
        only its stored checkpoints.

        Args:
            number: the number that identifies the agent's node before the crash.
            committed: bit mask of the committed rounds.
            aborted: number of the round that the recovery plan aborts. 0 means that the plan aborts no round, and -1 means that this agent
                has failed.
        """
        node = self.nodes[agent].values[number]
        if aborted < 0:
            permanent = () if node.tentative is None or not committed >> node.tentative.mark & 1 else (node.tentative,)
            settled = node._replace(checkpoints=node.checkpoints + permanent, tentative=None, words=())
            return self.nodes[agent].of(settled)
        if aborted:
            node = node._replace(words=(*node.words, RoundDecided(aborted, False)))
        while node.words:
            node, _ = self.hear(agent, node)
        if self.is_held(agent, node):
            raise Fault("outcomes", "G4", f"{self.names[agent]} has heard all decisions and is blocked", "a crash")
        return self.nodes[agent].of(node)

    def restart(self, agent: int, past: SavedState, place: int, begun: int) -> SavedState:
        image = self.cores[agent].images.values[past.core]
        return past._replace(core=self.cores[agent].enter(self.core_type.restart(image, latest_round=begun)))

    # -- oracles --------------------------------------------------------------------------------------------------------

    def _columns_memo(self, agent: int) -> Memo[tuple[int, int], int]:
        return Memo(lambda key: self._column(self.nodes[agent].values[key[0]], key[1]))

    def _column(self, node: LoggedNode, committed: int) -> int:
        """Return the number that identifies an agent's column. The column contains the permanent checkpoints, the tentative checkpoint if
        its round is committed, and the live state."""
        entries = [past.ledger for past in node.checkpoints]
        if node.tentative is not None and committed >> node.tentative.mark & 1:
            entries.append(node.tentative.ledger)
        return self.cuts.columns.of((*entries, node.now.ledger))

    def _mask(self, decided: tuple[bool, ...]) -> int:
        return sum(1 << round for round, is_committed in enumerate(decided, 1) if is_committed)

    def columns_of(self, state: State) -> tuple[int, ...]:
        rounds = self._masks[state[-1]]
        return tuple([memo[node, rounds] for memo, node in zip(self._columns, state, strict=False)])

    def check_promises(self, judgement: Judgement) -> None:
        permanent = tuple(size - 2 for size in judgement.sizes)
        if not any(prefix == permanent[:-1] and mask >> permanent[-1] & 1 for prefix, mask in judgement.cuts):
            raise Fault("orphans", "G1", f"the permanent checkpoints {permanent} are no consistent cut")

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.agents):
            return "a round is open" if self.coordinators.values[node].core >= 0 else ""
        agent_node = self.nodes[actor].values[node]
        is_done = not any(agent_node.channels) and agent_node.tentative is None and not self.is_held(actor, agent_node)
        return "" if is_done else f"{self.names[actor]} is stuck"


def _text_of(word: msgspec.Struct) -> str:
    match word:
        case CheckpointRequested():
            return f"a request of round {word.round}"
        case RoundDecided():
            return f"that round {word.round} is {'committed' if word.is_committed else 'aborted'}"
    return repr(word)

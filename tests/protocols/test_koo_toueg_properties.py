"""Koo-Toueg rounds over random executions with traffic, duplicates, refusals, lost agents and recoveries.

The world below gives every message an id of its own. Its oracles read histories of ids and ask no core what it knows:
the consistency of the permanent checkpoints, the least set of participants, and what the tables must be.
"""

from collections import Counter
from random import Random

import pytest

from snapline.protocols import koo_toueg as coordinator
from snapline.protocols.koo_toueg import (
    AgentLost,
    Answer,
    AnswerReceived,
    CheckpointRequested,
    Discard,
    KooTouegCore,
    KooTouegRound,
    MakePermanent,
    RoundDecided,
    RoundStarted,
    TakeTentative,
    TentativeFailed,
    TimedOut,
)

ROUNDS, ROUNDS_SLOW = 800, 60_000
ROUNDS_PER_EXECUTION = 12

Ids = dict[str, tuple[int, ...]]


class OrphanError(AssertionError):
    """A cut holds the receipt of a message, but not its send."""


class Checkpoint:
    """What one agent's checkpoint holds: its history up to there."""

    def __init__(self, agent: "Agent") -> None:
        self.image = agent.core.freeze()
        self.sent: Ids = {to: tuple(ids) for to, ids in agent.sent.items()}
        self.consumed: Ids = {sender: tuple(ids) for sender, ids in agent.consumed.items()}
        self.outbox = tuple(agent.outbox)


class Agent:
    """One agent with its core, its history of message ids, and what the coordinator has told it, still unheard."""

    def __init__(self, name: str, core_type: type[KooTouegCore]) -> None:
        self.name = name
        self.core = core_type(name)
        self.sent: dict[str, list[int]] = {}
        self.consumed: dict[str, list[int]] = {}
        self.outbox: list[tuple[str, int]] = []
        self.told: list[CheckpointRequested | RoundDecided] = []
        self.permanent = Checkpoint(self)
        self.tentative: Checkpoint | None = None

    def go_back(self, checkpoint: Checkpoint, latest_round: int) -> None:
        self.sent = {to: list(ids) for to, ids in checkpoint.sent.items()}
        self.consumed = {sender: list(ids) for sender, ids in checkpoint.consumed.items()}
        self.outbox = list(checkpoint.outbox)
        self.permanent, self.tentative = checkpoint, None
        self.core = type(self.core).restart(checkpoint.image, latest_round=latest_round)


class World:
    """A fleet, its coordinator, and chance. Mutants override the class attributes.

    Attributes:
        line: by agent, every committed checkpoint, oldest first: the coordinator's view.
    """

    core_type: type[KooTouegCore] = KooTouegCore
    round_type: type[KooTouegRound] = KooTouegRound
    are_turns_blocked = True
    is_outbox_blocked = True
    checks_tables = True

    def __init__(self, random: Random) -> None:
        self.random = random
        names = [f"a{ordinal}" for ordinal in range(random.randint(2, 8))]
        self.agents = {name: Agent(name, self.core_type) for name in names}
        self.line = {agent.name: [agent.permanent] for agent in self.agents.values()}
        self.number = 0
        self.round: KooTouegRound | None = None
        self.answers: list[AnswerReceived] = []
        self.ids = 0
        self.seen: Counter[str] = Counter()
        self.is_quiet = random.random() < 0.3  # little traffic: few participants
        self.is_faulty = random.random() < 0.5

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(self, rounds: int) -> None:
        while self.number < rounds or self.round is not None:
            self.step()

    def step(self) -> None:
        chance = self.random.random() * (2 if self.is_quiet else 1)
        if chance < 0.5:
            self.take_turn()
        elif chance < 0.56:
            self.release(self.any_agent())
        elif self.is_faulty and chance < 0.564:
            self.lose_agents()
        elif self.round is None:
            if self.random.random() < 0.15:
                self.start_round()
            else:
                self.hear(self.any_agent())
        elif self.is_faulty and chance < 0.568:
            self.feed_round(TimedOut())
        elif self.answers and chance < 0.7:
            self.hear_answer()
        else:
            self.hear(self.any_agent())
        if self.checks_tables:
            agent = self.any_agent()
            agent.core.validate()
            self.check_tables(agent)

    def any_agent(self) -> Agent:
        return self.random.choice(list(self.agents.values()))

    def take_turn(self) -> None:
        agent = self.any_agent()
        if agent.core.is_blocked and self.are_turns_blocked:
            return
        waiting = [
            sender
            for sender in self.agents.values()
            if len(sender.sent.get(agent.name, ())) > len(agent.consumed.get(sender.name, ()))
        ]
        if waiting and self.random.random() < 0.8:
            sender = self.random.choice(waiting)
            history = agent.consumed.setdefault(sender.name, [])
            history.append(sender.sent[agent.name][len(history)])
            agent.core.consumed(sender.name, len(history))
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            self.ids += 1
            agent.outbox.append((self.any_agent().name, self.ids))
        if self.random.random() < 0.8:
            self.release(agent)

    def release(self, agent: Agent) -> None:
        if agent.core.is_blocked and self.is_outbox_blocked:
            return
        for to, identity in agent.outbox:
            history = agent.sent.setdefault(to, [])
            history.append(identity)
            agent.core.sent(to, len(history))
        agent.outbox.clear()

    def start_round(self) -> None:
        self.number += 1
        initiators = self.random.sample(sorted(self.agents), min(len(self.agents), self.random.choice((1, 1, 1, 2, 3))))
        self.round = self.round_type(self.number, initiators)
        self.seen["several initiators"] += len(initiators) > 1
        self.feed_round(RoundStarted())

    def feed_round(self, event: coordinator.RoundEvent) -> None:
        assert self.round is not None
        commands = self.round.handle(0, event)
        self.round.validate()
        for command in commands:
            if isinstance(command, coordinator.AskAgent):
                willing = not (self.is_faulty and self.random.random() < 0.02)
                request = CheckpointRequested(self.number, command.by, command.number, willing)
                self.agents[command.agent].told.append(request)
            else:
                self.decide(command.is_committed)

    def decide(self, is_committed: bool) -> None:
        ended, self.round = self.round, None
        assert ended is not None
        self.seen["committed" if is_committed else "aborted"] += 1
        if is_committed:
            self.check_participants(ended)
            for name in ended.participants:
                tentative = self.agents[name].tentative
                assert tentative is not None
                self.line[name].append(tentative)
            self.seen["some of many"] += 1 < len(ended.participants) < len(self.agents)
        self.check_line()
        for name, agent in self.agents.items():
            if name in ended.asked or self.random.random() < 0.3:
                agent.told.append(RoundDecided(ended.round, is_committed))

    def hear_answer(self) -> None:
        """Answers come in any order, some of them twice."""
        event = self.answers.pop(self.random.randrange(len(self.answers)))
        if self.random.random() < 0.1:
            self.answers.append(event)
        if self.round is not None:
            self.feed_round(event)

    def hear(self, agent: Agent) -> None:
        """The coordinator's words come in order, but some come again later."""
        if not agent.told:
            return
        event = agent.told.pop(0)
        if self.random.random() < 0.15:
            self.seen["repeated"] += 1
            agent.told.append(event)
        self.feed_agent(agent, event)

    def feed_agent(self, agent: Agent, event: CheckpointRequested | RoundDecided | TentativeFailed) -> None:
        for command in agent.core.handle(0, event):
            match command:
                case TakeTentative():
                    assert agent.tentative is None, "a third checkpoint"
                    agent.tentative = Checkpoint(agent)
                    if self.is_faulty and self.random.random() < 0.02:
                        self.feed_agent(agent, TentativeFailed(command.round))
                        return
                case Answer():
                    self.seen["yes, without need"] += command.is_willing and not command.is_participant
                    self.answers.append(AnswerReceived(agent.name, command))
                case MakePermanent():
                    assert agent.tentative is not None, "nothing to make permanent"
                    agent.permanent, agent.tentative = agent.tentative, None
                case Discard():
                    assert agent.tentative is not None, "nothing to discard"
                    agent.tentative = None
        agent.core.validate()
        if self.checks_tables:
            self.check_tables(agent)

    # -- failures -----------------------------------------------------------------------------------------------------

    def lose_agents(self) -> None:
        """Some agents fail. The coordinator ends the round, and plans a recovery with the survivors' live states."""
        failed = self.random.sample(sorted(self.agents), self.random.randint(1, min(2, len(self.agents))))
        if self.round is not None:
            for name in failed:
                if self.round is not None:
                    self.feed_round(AgentLost(name))
        if self.round is not None:
            self.feed_round(TimedOut())
        survivors = [agent for name, agent in self.agents.items() if name not in failed]
        for agent in survivors:
            while any(isinstance(event, RoundDecided) for event in agent.told):
                self.feed_agent(agent, agent.told.pop(0))
            assert not agent.core.is_blocked
        back = self.recovery_line(failed)
        self.seen["recoveries with survivors"] += len(back) < len(self.agents)
        for name, checkpoint in back.items():
            self.agents[name].go_back(checkpoint, self.number)  # what it was told before still comes: all stale
        self.after_recovery(survivors)
        self.check_line()
        if self.checks_tables:
            for agent in self.agents.values():
                self.check_tables(agent)

    def after_recovery(self, survivors: list[Agent]) -> None:
        """For mutants."""

    def recovery_line(self, failed: list[str]) -> dict[str, Checkpoint]:
        """The orphan fix-point over ids: who goes back, and to what. Sometimes the last checkpoint cannot be read."""
        depth = dict.fromkeys(self.agents, 0)
        for name in failed:
            is_damaged = len(self.line[name]) > 1 and self.random.random() < 0.2
            depth[name] = 2 if is_damaged else 1
        is_readable = max(depth.values()) == 1
        while (orphaned := self.orphaned(depth)) is not None:
            depth[orphaned] += 1
            if is_readable and depth[orphaned] > 1:
                raise OrphanError(f"{orphaned} would have to go back beyond its permanent checkpoint")
        for name, back in depth.items():
            del self.line[name][len(self.line[name]) - max(0, back - 1) :]
        self.seen["recoveries beyond the permanent"] += any(back > 1 for back in depth.values())
        return {name: self.line[name][-1] for name, back in depth.items() if back}

    def orphaned(self, depth: dict[str, int]) -> str | None:
        def history(name: str) -> Agent | Checkpoint:
            return self.line[name][-depth[name]] if depth[name] else self.agents[name]

        for receiver in self.agents:
            for sender, ids in history(receiver).consumed.items():
                if not set(ids) <= set(history(sender).sent.get(receiver, ())):
                    return receiver
        return None

    # -- oracles ------------------------------------------------------------------------------------------------------

    def check_line(self) -> None:
        """The last committed checkpoints form a consistent cut."""
        sent = {identity for history in self.line.values() for ids in history[-1].sent.values() for identity in ids}
        for name, history in self.line.items():
            for sender, ids in history[-1].consumed.items():
                if not set(ids) <= sent:
                    raise OrphanError(f"round {self.number}: {name} holds what {sender} has not sent")

    def check_participants(self, ended: KooTouegRound) -> None:
        """They are the least set closed under "received something sent after the other's permanent checkpoint"."""
        least: dict[str, None] = {}
        waiting = list(ended.initiators)
        while waiting:
            name = waiting.pop()
            tentative = self.agents[name].tentative
            if name in least or tentative is None:
                continue
            least[name] = None
            for sender, ids in tentative.consumed.items():
                if not set(ids) <= set(self.line[sender][-1].sent.get(name, ())):
                    waiting.append(sender)
        if self.checks_tables:
            assert ended.participants == tuple(sorted(least))

    def check_tables(self, agent: Agent) -> None:
        """By definition, from the history since the tentative checkpoint, or the permanent one the agent knows of."""
        base = agent.permanent if agent.tentative is None else agent.tentative
        received_from, first_sent = {}, {}
        for sender, ids in agent.consumed.items():
            if len(ids) > len(base.consumed.get(sender, ())):
                received_from[sender] = len(ids)
        for to, ids in agent.sent.items():
            if len(ids) > len(base.sent.get(to, ())):
                first_sent[to] = len(base.sent.get(to, ())) + 1
        assert agent.core.received_from == received_from
        assert agent.core.first_sent == first_sent
        assert agent.core.is_blocked == (agent.tentative is not None)


def run_rounds(world_type: type[World], rounds: int) -> Counter[str]:
    """At least so many rounds, over as many executions as that takes; a failure names its seed."""
    seen: Counter[str] = Counter()
    for seed in range(rounds // ROUNDS_PER_EXECUTION + 1):
        world = world_type(Random(seed))
        try:
            world.run(ROUNDS_PER_EXECUTION)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen += world.seen
    return seen


def check_rounds(rounds: int) -> None:
    seen = run_rounds(World, rounds)
    assert seen["committed"] + seen["aborted"] >= rounds
    # Against vacuity: the executions did contain what they are to test.
    for what, share in {
        "committed": 2,
        "aborted": 50,
        "several initiators": 10,
        "some of many": 10,
        "yes, without need": 10,
        "repeated": 5,
        "recoveries with survivors": 30,
        "recoveries beyond the permanent": 100,
    }.items():
        assert seen[what] >= rounds / share, f"{what}: only {seen[what]}"


def test_random_rounds_keep_the_permanent_checkpoints_consistent_and_the_participants_few() -> None:
    check_rounds(ROUNDS)


@pytest.mark.slow
def test_many_random_rounds() -> None:
    check_rounds(ROUNDS_SLOW)

"""Rules through recoveries: after rollbacks to consistent cuts nothing that survives is useless, and deltas stay right.

A recovery: some agents fail and start from one of their last checkpoints, the others from their live state; the orphan
fix-point gives the cut. Who is rolled back gets the rule of the checkpoint; what is in transit is delivered again with
the piggyback it had. Each agent has the product's rule, with deltas, and the reference, with absolute piggybacks, whose
states are copied, not frozen: they must force at the same places all along.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from tests.protocols.executions import BASIC, FORCED, RECEIVE, REFERENCES, SEND, Event, Graph, Reference

from snapline.errors import ProtocolError
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES, make_rule, restore_rule

INDUCED = [name for name in RULES if name != "uncoordinated"]
RDT = ["fdas", "fdi", "bhmr", "nras", "cbr", "cas"]
EXECUTIONS, EXECUTIONS_SLOW = 30, 1_200
STEPS, RECOVERY = 220, 0.02


class Sent(NamedTuple):
    """A logged message: its number in the histories, and both piggybacks."""

    message: int
    piggyback: bytes
    reference: Reference


class Checkpoint(NamedTuple):
    """What a checkpoint holds: how far the history had come, per channel the numbers, and the rules."""

    events: int
    sent: dict[int, int]
    received: dict[int, int]
    image: bytes
    reference: Reference


class Agent:
    """One agent with both its rules and all it stored.

    Attributes:
        log: by receiver, every message sent, in order: number k of the channel stands at k - 1.
        received: by sender, the last number received.
    """

    def __init__(self, name: str, number: int, agents: int) -> None:
        self.number = number
        self.rule: CheckpointRule = make_rule(name, number, agents)
        self.reference = REFERENCES[name](number, agents)
        self.history: list[Event] = []
        self.log: dict[int, list[Sent]] = {}
        self.received: dict[int, int] = {}
        self.checkpoints = [self.live()]

    def live(self) -> Checkpoint:
        sent = {to: len(messages) for to, messages in self.log.items()}
        return Checkpoint(len(self.history), sent, dict(self.received), self.rule.freeze(), self.reference.copy())

    def store(self, kind: str) -> None:
        """Right after the checkpoint action, so that the image has it."""
        self.history.append(Event(kind))
        self.checkpoints.append(self.live())


class World:
    """A fleet under one protocol, on FIFO channels."""

    def __init__(self, name: str, random: Random) -> None:
        self.name, self.random = name, random
        count = random.choice((2, 3, 3, 4))
        self.agents = [Agent(name, number, count) for number in range(count)]
        self.messages = self.recoveries = self.undone = self.redelivered = 0
        self.basic = random.choice((0.03, 0.1, 0.2))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            draw = self.random.random()
            if draw < RECOVERY:
                self.recover()
            elif draw < RECOVERY + self.basic:
                agent = self.random.choice(self.agents)
                agent.rule.checkpoint()
                agent.reference.checkpoint()
                agent.store(BASIC)
            elif draw < 0.55 or not self.receive():
                self.send()

    def send(self) -> None:
        sender, receiver = self.random.sample(self.agents, 2)
        sent = Sent(self.messages, sender.rule.send(receiver.number), sender.reference.send(receiver.number))
        self.messages += 1
        sender.log.setdefault(receiver.number, []).append(sent)
        sender.history.append(Event(SEND, sent.message))
        if sender.rule.checkpoints_after_sends:
            sender.rule.checkpoint()
            sender.reference.checkpoint()
            sender.store(FORCED)

    def receive(self) -> bool:
        """Take the head of a channel; False if all are empty."""
        waiting = [
            (sender, self.agents[to])
            for sender in self.agents
            for to, messages in sender.log.items()
            if len(messages) > self.agents[to].received.get(sender.number, 0)
        ]
        if not waiting:
            return False
        sender, receiver = self.random.choice(waiting)
        number = receiver.received.get(sender.number, 0)
        self.consume(sender.number, receiver, sender.log[receiver.number][number])
        receiver.received[sender.number] = number + 1
        receiver.history.append(Event(RECEIVE, sender.log[receiver.number][number].message))
        return True

    def consume(self, sender: int, receiver: Agent, sent: Sent) -> None:
        is_forced = receiver.rule.forces(sender, sent.piggyback)
        assert is_forced == receiver.reference.forces(sender, sent.reference), "not where the paper forces"
        if is_forced:
            receiver.rule.checkpoint(sent.piggyback)
            receiver.reference.checkpoint(sent.reference)
            receiver.store(FORCED)
        receiver.rule.receive(sender, sent.piggyback)
        receiver.reference.receive(sender, sent.reference)

    # -- recovery

    def recover(self) -> None:
        """Not always the recovery line of the last checkpoints: what was not yet durable does not count."""
        failed = self.random.sample(self.agents, self.random.randint(1, len(self.agents)))
        cut: dict[int, int | None] = dict.fromkeys(range(len(self.agents)))
        for agent in failed:
            cut[agent.number] = max(0, len(agent.checkpoints) - self.random.choice((1, 1, 2, 3)))
        records = self.fix_point(cut)
        for agent in self.agents:
            number = cut[agent.number]
            if number is not None:
                self.roll_back(agent, number)
        self.recoveries += 1
        self.redelivered += sum(
            sent - records[to].received.get(agent, 0)
            for agent, record in records.items()
            for to, sent in record.sent.items()
        )

    def fix_point(self, cut: dict[int, int | None]) -> dict[int, Checkpoint]:
        """Move the cut back until no message is an orphan; its records."""
        while True:
            records = {}
            for agent in self.agents:
                number = cut[agent.number]
                records[agent.number] = agent.live() if number is None else agent.checkpoints[number]
            orphans = [
                receiver
                for receiver, record in records.items()
                for sender, received in record.received.items()
                if received > records[sender].sent.get(receiver, 0)
            ]
            if not orphans:
                return records
            receiver = orphans[0]
            number = cut[receiver]
            cut[receiver] = len(self.agents[receiver].checkpoints) - 1 if number is None else number - 1

    def roll_back(self, agent: Agent, number: int) -> None:
        checkpoint = agent.checkpoints[number]
        self.undone += len(agent.history) - checkpoint.events
        del agent.history[checkpoint.events :]
        del agent.checkpoints[number + 1 :]
        for to, messages in agent.log.items():
            del messages[checkpoint.sent.get(to, 0) :]
        agent.received = dict(checkpoint.received)
        agent.rule = self.restore(agent, checkpoint.image)
        agent.reference = checkpoint.reference.copy()

    def restore(self, agent: Agent, image: bytes) -> CheckpointRule:
        return restore_rule(self.name, agent.number, image)


def check(world: World) -> None:
    graph = Graph([agent.history for agent in world.agents])
    assert not graph.useless(), f"useless {graph.useless()}"
    assert world.name not in RDT or not graph.untracked(), f"untracked {graph.untracked()}"


def check_many(name: str, seeds: range) -> World:
    """All numbers together, so that the test is seen to test something."""
    total = World(name, Random(0))
    for seed in seeds:
        world = World(name, Random(seed))
        try:
            world.run(STEPS)
            check(world)
        except AssertionError as error:
            raise AssertionError(f"{name}, seed {seed}: {error}") from error
        total.recoveries += world.recoveries
        total.undone += world.undone
        total.redelivered += world.redelivered
    return total


@pytest.mark.parametrize("name", INDUCED)
def test_recoveries_leave_no_useless_checkpoint_and_deltas_stay_right(name: str) -> None:
    total = check_many(name, range(EXECUTIONS))
    assert total.recoveries > 3 * EXECUTIONS
    assert total.undone > total.recoveries
    assert total.redelivered > total.recoveries / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", INDUCED)
def test_many_recoveries_leave_no_useless_checkpoint(name: str) -> None:
    assert check_many(name, range(1_000, 1_000 + EXECUTIONS_SLOW)).recoveries > 2_400


def test_without_a_protocol_recoveries_leave_useless_checkpoints() -> None:
    with pytest.raises(AssertionError, match="useless"):
        check_many("uncoordinated", range(EXECUTIONS))


# -- faults -----------------------------------------------------------------------------------------------------------


class KeepsSendsUndone(World):
    """The bookkeeping of the deltas is not rolled back: undone sends count as sent."""

    def restore(self, agent: Agent, image: bytes) -> CheckpointRule:
        rule = super().restore(agent, image)
        rule._changes._sent = agent.rule._changes._sent  # type: ignore[attr-defined]  # of the rules with deltas
        return rule


class KeepsTheRule(World):
    """Whoever is rolled back keeps the rule it had when it failed."""

    def restore(self, agent: Agent, image: bytes) -> CheckpointRule:
        return agent.rule


class StartsAnew(World):
    """Whoever is rolled back has a rule as after the initial checkpoint."""

    def restore(self, agent: Agent, image: bytes) -> CheckpointRule:
        return make_rule(self.name, agent.number)


class ImageBeforeTheAction(World):
    """The checkpoint holds the rule as it was before the checkpoint action: restored, the action is missing."""

    def roll_back(self, agent: Agent, number: int) -> None:
        previous = agent.checkpoints[max(0, number - 1)].image
        agent.checkpoints[number] = agent.checkpoints[number]._replace(image=previous)
        super().roll_back(agent, number)


class ResendsWithoutPiggyback(World):
    """What is delivered again has lost its piggyback."""

    def recover(self) -> None:
        super().recover()
        for agent in self.agents:
            for to, messages in agent.log.items():
                for number in range(self.agents[to].received.get(agent.number, 0), len(messages)):
                    messages[number] = messages[number]._replace(piggyback=b"")


@pytest.mark.parametrize(
    "world_type", [KeepsSendsUndone, KeepsTheRule, StartsAnew, ImageBeforeTheAction, ResendsWithoutPiggyback]
)
@pytest.mark.parametrize("name", ["hmnr", "fdas", "fdi", "bhmr"])
def test_faults_of_the_recovery_are_found(name: str, world_type: Callable[[str, Random], World]) -> None:
    with pytest.raises((AssertionError, ProtocolError)):
        for seed in range(EXECUTIONS):
            world = world_type(name, Random(seed))
            world.run(STEPS)
            check(world)

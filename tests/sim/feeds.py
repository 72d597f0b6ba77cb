"""A tiny fleet that feeds a judge: agents with FIFO channels in one process, without any core of the product.

Its cuts are consistent by construction: a snapshot is the state of everything at one instant. So a judge must find nothing, and
whatever a test breaks on the way to the judge, the right oracle must find.
"""

import random
from collections.abc import Mapping
from typing import Any

import msgspec

import snapline
from snapline.agent_runtime.host.host_events import Control, Spawn
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed, OperationResult
from snapline.coordinator.state.fleet_state import FleetState
from snapline.sim.oracles.judge import Judge, JudgeTerms
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, ParkedMessage, SpawnRequest


class Idle(snapline.Agent):
    """Stands in for agents that the feed plays itself."""

    state: int


def make_fleet(agents: int) -> snapline.Fleet:
    return snapline.Fleet("feed", agents={f"a{number}": Idle(0) for number in range(agents)})


def nothing(_: Cut) -> str | None:
    return None


class Actor(msgspec.Struct):
    """One agent: a running hash of all that it did is its state."""

    name: str
    turns: int = 0
    state: bytes = b""
    number: int = 0
    outbox: list[tuple[str, bytes]] = []
    spawns: list[Spawn] = []
    is_stopping: bool = False
    is_born: bool = True


class Fleet(msgspec.Struct):
    """Everything of one plan at one instant."""

    plan: int
    actors: dict[str, Actor]
    channels: dict[tuple[str, str], list[bytes]]


class Feed:
    """Plays a fleet and tells a judge. `spawning`: agents come and go.

    Attributes:
        now: the fleet under the newest plan. zombie: what an old plan's hosts still do; None without one.
        saved: epoch → its checkpoints, as in a store.
        wait: chance in ten that a message stays in its sender's outbox for a while.
    """

    def __init__(
        self, seed: int, *, agents: int = 3, protocol: str = "chandy-lamport", spawning: bool = False, **options: Any
    ) -> None:
        self.random = random.Random(seed)
        self.spawning = spawning
        self.protocol = protocol
        names = [f"a{number}" for number in range(agents)]
        terms = JudgeTerms(
            protocol=protocol,
            budget=options.pop("budget", "within"),
            check_cut=options.pop("check_cut", nothing),
            with_clocks=True,
            with_replay=False,
        )
        self.judge = Judge(terms, fleet=make_fleet(agents), agents=names)
        self.names = names
        self.t_ns = 0
        self.wait = 2
        self.sent = 0
        self.spawned = 0
        self.epoch = 0
        self.saved: dict[int, dict[str, AgentCheckpoint]] = {}
        self.packs: dict[str, list[AgentCheckpoint]] = {}
        self.now = Fleet(0, {}, {})
        self.zombie: Fleet | None = None
        self.start(0)

    # ---- turns ----------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        fleet = self.now if self.zombie is None or self.random.random() < 0.7 else self.zombie
        kind = self.random.random()
        waiting = [key for key, queue in fleet.channels.items() if queue and self.can_turn(fleet, key)]
        if kind < 0.2:
            self.leave(fleet)
        elif kind < 0.6 and waiting:
            sender, receiver = self.random.choice(waiting)
            self.deliver(fleet, sender, receiver)
        else:
            living = [x.name for x in fleet.actors.values() if x.is_born and not x.is_stopping and not x.spawns]
            if living:
                self.turn(fleet, self.random.choice(living), "timer", "", b"")

    def can_turn(self, fleet: Fleet, channel: tuple[str, str]) -> bool:
        actor = fleet.actors.get(channel[1])
        if actor is None or actor.is_stopping or actor.spawns:
            return False
        return actor.is_born or fleet.channels[channel][0][:1] == b"\0"

    def deliver(self, fleet: Fleet, sender: str, receiver: str) -> None:
        payload = fleet.channels[sender, receiver].pop(0)
        self.consume(fleet, sender, receiver, payload)

    def consume(self, fleet: Fleet, sender: str, receiver: str, payload: bytes) -> None:
        what = "create" if payload[:1] == b"\0" else "message"
        fleet.actors[receiver].is_born = True
        self.turn(fleet, receiver, what, sender, payload)

    def turn(self, fleet: Fleet, agent: str, what: str, sender: str, payload: bytes) -> None:
        actor = fleet.actors[agent]
        actor.turns += 1
        self.t_ns += 1000
        others = [name for name in fleet.actors if name != "" and not fleet.actors[name].is_stopping]
        sends = []
        for _ in range(self.random.choice((0, 1, 1, 2))):
            self.sent += 1
            sends.append((self.random.choice(others), f"{agent}.{self.sent}".encode()))
        spawns: list[Spawn] = []
        if self.spawning and self.random.random() < 0.05:
            self.spawned += 1
            spawns.append((f"c{self.spawned}", "m:C", b"state"))
        actor.state = b"%s|%d|%s|%d" % (agent.encode(), actor.turns, payload[-8:], fleet.plan)
        stops = self.spawning and agent.startswith("c") and self.random.random() < 0.2
        self.judge.on_turn(self.t_ns, fleet.plan, agent, what, sender, payload, sends, spawns)
        if stops:
            actor.is_stopping = True
            self.judge.on_stopping(fleet.plan, agent)
        actor.spawns = spawns
        actor.outbox.extend(sends)
        if not spawns and self.random.random() * 10 >= self.wait:
            self.release(fleet, actor)

    def leave(self, fleet: Fleet) -> None:
        """What waits for its id, or in an outbox, goes."""
        waiting = [x for x in fleet.actors.values() if x.spawns or x.outbox]
        if waiting:
            self.release(fleet, self.random.choice(waiting))

    def release(self, fleet: Fleet, actor: Actor) -> None:
        for name, kind, state in actor.spawns:
            fleet.actors.setdefault(name, Actor(name, is_born=False))
            fleet.channels.setdefault((actor.name, name), []).append(creation_payload(kind, state))
        actor.spawns = []
        for receiver, payload in actor.outbox:
            fleet.channels.setdefault((actor.name, receiver), []).append(payload)
        actor.outbox = []

    # ---- images ---------------------------------------------------------------------------------------------------

    def capture(self, agent: str, basis: str = "coordinated") -> AgentCheckpoint:
        """Take an agent's image now; its checkpoint has no channel state yet."""
        actor = self.now.actors[agent]
        actor.number += basis != "initial"
        control = Control(
            incarnation=self.now.plan,
            number=actor.number,
            is_born=True,
            is_started=True,
            is_leaving=actor.is_stopping,
            outbox=[ParkedMessage(*letter) for letter in actor.outbox],
            spawns=[SpawnRequest(*spawn) for spawn in actor.spawns],
            timers=[],
            dead_letters=[],
            dead_letter_count=0,
        )
        self.judge.on_captured(self.t_ns, self.now.plan, agent, control, actor.state, basis, 0)
        return AgentCheckpoint(
            agent=agent,
            kind="m:A",
            epoch=0,
            incarnation=self.now.plan,
            number=actor.number,
            is_started=True,
            is_leaving=actor.is_stopping,
            state=actor.state,
            outbox=control.outbox,
            spawns=control.spawns,
            turns=actor.turns,
            basis=basis,
        )

    def in_transit(self, agent: str) -> dict[str, list[InTransitMessage]]:
        found = {}
        for (sender, receiver), queue in self.now.channels.items():
            if receiver == agent and queue:
                found[sender] = [InTransitMessage(number, 0, payload) for number, payload in enumerate(queue, 1)]
        return found

    def snapshot(self) -> dict[str, AgentCheckpoint]:
        """The checkpoints of one instant; agents that have left are not in it, those that are not born are."""
        found = {}
        for agent, actor in self.now.actors.items():
            if actor.is_stopping and not actor.outbox and not actor.spawns and self.random.random() < 0.7:
                continue
            if actor.is_born:
                checkpoint = self.capture(agent)
            else:
                checkpoint = AgentCheckpoint(agent=agent, kind="", epoch=0, incarnation=0, is_unborn=True)
            found[agent] = msgspec.structs.replace(checkpoint, in_transit=self.in_transit(agent))
        return found

    def complete(self, checkpoints: Mapping[str, AgentCheckpoint], trigger: str = "period") -> int:
        """These become the next epoch."""
        self.epoch += 1
        found = {name: msgspec.structs.replace(x, epoch=self.epoch) for name, x in checkpoints.items()}
        self.saved[self.epoch] = found
        self.judge.on_epoch_complete(self.t_ns, self.epoch, trigger, found, "")
        return self.epoch

    # ---- recoveries -----------------------------------------------------------------------------------------------

    def start(self, epoch: int, *, keeps_zombie: bool = False) -> None:
        """A plan begins, from an epoch or from the initial states."""
        plan = self.now.plan + 1
        self.zombie = self.now if keeps_zombie else None
        self.now = Fleet(plan, {}, {})
        if epoch == 0:
            for name in self.names:
                self.now.actors[name] = Actor(name)
                self.judge.on_loaded(self.t_ns, plan, 0, name, None)
            return
        for agent, checkpoint in self.saved[epoch].items():
            self.load(epoch, agent, checkpoint)

    def load(self, epoch: int, agent: str, checkpoint: AgentCheckpoint) -> None:
        fleet = self.now
        fleet.actors[agent] = Actor(
            agent,
            turns=checkpoint.turns,
            state=checkpoint.state,
            number=checkpoint.number,
            outbox=[(letter.receiver, letter.payload) for letter in checkpoint.outbox],
            spawns=[(spawn.agent, spawn.kind, spawn.payload) for spawn in checkpoint.spawns],
            is_stopping=checkpoint.is_leaving,
            is_born=not checkpoint.is_unborn,
        )
        for sender, messages in checkpoint.in_transit.items():
            fleet.channels[sender, agent] = [message.payload for message in messages]
        self.judge.on_loaded(self.t_ns, fleet.plan, epoch, agent, checkpoint)

    @property
    def found(self) -> list[str]:
        """The oracles that have found something, in order."""
        return [violation.oracle for violation in self.judge.violations]

    def nonempty(self) -> tuple[str, str]:
        """A channel with at least two messages, made if need be, to an agent that can take a turn."""
        for _ in range(500):
            for channel, queue in self.now.channels.items():
                if len(queue) > 1 and self.can_turn(self.now, channel):
                    return channel
            self.step()
        raise AssertionError("no channel fills up")


class Log:
    """The real state machine, and a judge that hears of every proposal, entry and answer."""

    def __init__(self, feed: Feed | None = None) -> None:
        self.state = FleetState()
        self.feed = feed or Feed(0)
        self.index = 0
        self.commit(op.DefineFleet("c", "f", self.feed.protocol, 1, 1, b"", 1))
        self.commit(op.DefineAgents(0, ("a0",), ("m:A",)))
        self.commit(op.AdmitHost("h", "h.1", "x:1", 0))
        self.plan(0)

    def commit(self, kind: op.Kind, result: OperationResult | None = None, sequence: int = 0) -> OperationResult:
        """Apply an operation; the judge may be told of another `result`."""
        self.index += 1
        operation = op.Operation(0, "leader", sequence or self.index, kind)
        judge, proposal = self.feed.judge, 1000 + self.index
        judge.on_proposed(0, proposal, op.encode_operation(operation))
        real = self.state.apply(operation)
        judge.on_committed(0, self.index, operation, result or real, self.state)
        judge.on_outcome(0, proposal, Committed(result or real), self.index)
        return real

    def plan(self, line: int) -> None:
        number = self.state.plan_number
        self.commit(op.CommitPlan(number, line, ("h",), "test"))
        self.commit(op.ConfirmPlan(number + 1, "h", 1))

    def epoch(self) -> int:
        return self.commit(op.BeginEpoch(self.state.image.begun, "period")).number

    @property
    def found(self) -> list[str]:
        return self.feed.found

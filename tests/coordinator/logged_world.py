"""The seeded world with hosts of a logged protocol: agents that send, consume and checkpoint, packs in a store, and an oracle
that knows the recovery line from plain lists (the orphan fix-point, protocols.md, section 6).

A message is a number on a channel. What an agent has sent is there for its receiver at once, also if the sender's host dies
right after: so orphans are common.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tests.coordinator.world import SECOND, FakeHost, World
from tests.kit.checkpoints import Packs, taken

from snapline.agent_runtime.host import host_events as host_ev
from snapline.agent_runtime.host.checkpoint_writer import CheckpointWriter
from snapline.coordinator.leader import events as ev
from snapline.coordinator.state import operations as op
from snapline.messages import host_messages as msg
from snapline.protocols import koo_toueg as kt

Table = dict[str, int]


class Place(msgspec.Struct, frozen=True):
    """An agent at one checkpoint."""

    number: int
    sent: Table
    received: Table


NOTHING = Place(0, {}, {})


class FakeAgent:
    def __init__(self, name: str, place: Place, *, is_made: bool, round_: int) -> None:
        self.name = name
        self.number = place.number
        self.sent, self.received = dict(place.sent), dict(place.received)
        self.saved = place
        self.is_made = is_made
        self.has_moved = False
        self.is_failed = False
        self.core = kt.KooTouegCore(name, latest_round=round_)

    def place(self, number: int) -> Place:
        return Place(number, dict(self.sent), dict(self.received))


class LoggedHost(FakeHost):
    """One host's process in a logged protocol. What writes its checkpoints, and reports them, is the production code.

    Attributes:
        held: packs whose writing waits for the test, if it wants that.
    """

    world: "LoggedWorld"

    def __init__(self, world: "LoggedWorld", name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.living: dict[str, FakeAgent] = {}
        self.peers: dict[str, None] = {}
        open_store: Callable[[], Any] = lambda: world.store  # no Store, but as much of one as a writer needs
        self.writer = CheckpointWriter(
            open_store, self._in_worker, self.say, lambda event: None, call_later=world.call_later
        )
        self.held: list[Callable[[], None]] | None = None
        self.frozen = 0
        self.is_deaf = False
        self.round = 0
        self.step_later()

    @property
    def is_loaded(self) -> bool:
        return (self.name, self.start, self.plan) in self.world.applied

    # ---- hearing ----------------------------------------------------------------------------------------------------

    def hear(self, directive: msg.Directive) -> None:
        if isinstance(directive, msg.Welcome):
            self.writer.repeat()
        super().hear(directive)
        match directive:
            case msg.Welcome():
                for agent in self.living.values():
                    if agent.is_failed:
                        self.say(msg.AgentFailed(agent.name, self.plan, "bug"))
            case msg.CheckpointsKnown():
                self.writer.known(directive.sequence)
            case msg.FreezeAgents():
                self._on_freeze(directive)
            case msg.ThawAgents():
                if directive.plan == self.plan and directive.number in (0, self.frozen):
                    self.frozen = 0
            case msg.RequestCheckpoints():
                self._on_request(directive)
            case msg.EndEpoch():
                self._on_decided(directive)
            case msg.ReportNumbers():
                self.say(self._live(directive))

    def _on_plan(self, plan: msg.Plan) -> None:
        before = self.plan
        super()._on_plan(plan)
        if self.plan == before:
            return
        world, content = self.world, self.world.content[plan.line_epoch]
        self.frozen, self.is_deaf = 0, False
        self.writer.begin(f"{self.name}-{self.start}", self.start, self.plan)
        self.round = plan.begun_epoch
        self.living = {}
        self.peers = dict.fromkeys(x.agent for x in plan.agents)
        for placed in plan.agents:
            if plan.hosts[placed.host] != self.name:
                continue
            is_made = plan.line_epoch == 0 or placed.agent in content
            assert is_made != placed.is_unborn, f"{placed} on line {plan.line_epoch}"
            place = content.get(placed.agent, NOTHING)
            agent = FakeAgent(placed.agent, place, is_made=is_made, round_=plan.begun_epoch)
            self.living[placed.agent] = agent
            for peer, number in place.sent.items():
                world.wire[plan.number, placed.agent, peer] = number
            if plan.line_epoch == 0:
                self._add(agent, "initial", 0, NOTHING)

    def _on_reserved(self, directive: msg.AgentsReserved) -> None:
        super()._on_reserved(directive)
        for name in self.agents:
            record = self.world.state.image.agents.get(name)
            if name not in self.living and record is not None and record.host == self.name:
                self.living[name] = FakeAgent(name, NOTHING, is_made=False, round_=self.round)
                self.peers[name] = None

    # ---- turns ------------------------------------------------------------------------------------------------------

    def step_later(self) -> None:
        def step() -> None:
            if self.is_current():
                self.step()
                self.step_later()

        self.world.after(self.world.delay(40), step)

    def step(self) -> None:
        rng = self.world.random
        free = [x for x in self.living.values() if not x.is_failed and not x.core.is_blocked]
        if not self.is_loaded or self.frozen or not free:
            return
        agent = rng.choice(free)
        if not self._consume(agent) and not (agent.is_made and rng.random() < 0.3):
            return
        agent.has_moved = True
        for peer in rng.sample(sorted(self.peers), min(len(self.peers), rng.randrange(3))):
            number = agent.sent[peer] = agent.sent.get(peer, 0) + 1
            self.world.wire[self.plan, agent.name, peer] = number
            if self.world.is_koo_toueg:
                agent.core.sent(peer, number)
        if not self.world.is_koo_toueg and rng.random() < self.world.checkpoint_rate:
            self.take(agent, "basic")

    def _consume(self, agent: FakeAgent) -> bool:
        wire = self.world.wire
        senders = [x for x in self.peers if wire.get((self.plan, x, agent.name), 0) > agent.received.get(x, 0)]
        if not senders:
            return False
        sender = self.world.random.choice(sorted(senders))
        agent.received[sender] = agent.received.get(sender, 0) + 1
        agent.is_made = True
        if self.world.is_koo_toueg:
            agent.core.consumed(sender, agent.received[sender])
        return True

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def take(self, agent: FakeAgent, basis: str, round_: int = 0) -> None:
        place = agent.place(agent.number + 1)
        self._add(agent, basis, round_, place)
        if basis != "tentative":
            agent.number, agent.saved, agent.has_moved = place.number, place, False

    def _add(self, agent: FakeAgent, basis: str, round_: int, place: Place) -> None:
        now, before = (place.sent, place.received), (agent.saved.sent, agent.saved.received)
        self.writer.add(taken(agent.name, place.number, basis, round_, now, before))

    def _in_worker(self, write: Callable[[], object], *, then: Callable[[object], None]) -> None:
        """It takes its time. What a host was writing when it died is there, or is not."""
        world = self.world

        def done() -> None:
            if self.is_current():
                then(write())
            elif world.random.random() < 0.5:
                write()

        if self.held is not None:
            self.held.append(done)
        else:
            world.after(world.delay(30), done)

    def join(self) -> msg.Join:
        self.writer.stream_opened()
        return super().join()

    # ---- freezing and rounds ------------------------------------------------------------------------------------------

    def _on_freeze(self, directive: msg.FreezeAgents) -> None:
        rng, number = self.world.random, directive.number
        if directive.plan != self.plan or not self.is_loaded:
            self.writer.report_frozen(host_ev.ReportFrozen(directive.plan, number, ()), self.start)
            return
        self.is_deaf = self.is_deaf or rng.random() < self.world.chaos * 0.05
        if self.is_deaf:
            return
        self.frozen = number
        running = []
        for agent in self.living.values():
            if agent.is_failed or (agent.has_moved and rng.random() < self.world.chaos * 0.1):
                running.append(agent.name)
            elif agent.has_moved:
                self.take(agent, "basic")
        self.writer.report_frozen(host_ev.ReportFrozen(self.plan, number, tuple(running)), self.start)
        if rng.random() < self.world.chaos * 0.1:
            self.world.after(self.world.delay(60), functools.partial(self.world.disconnect, self.session))

    def _on_request(self, directive: msg.RequestCheckpoints) -> None:
        if directive.plan != self.plan or not self.is_loaded:
            return
        for name, asker, number in zip(directive.agents, directive.askers, directive.numbers, strict=True):
            # One that this host has not heard of is not made yet.
            agent = self.living.get(name) or FakeAgent(name, NOTHING, is_made=False, round_=self.round)
            self._ask(agent, kt.CheckpointRequested(directive.epoch, asker or None, number))

    def _ask(self, agent: FakeAgent, request: kt.CheckpointRequested) -> None:
        if not agent.is_made or agent.is_failed:
            answer = kt.Answer(request.round, request.by, not agent.is_failed, False, {})
            self._answer(agent, answer, 0)
            return
        willing = self.world.random.random() > self.world.chaos * 0.02
        asked = kt.CheckpointRequested(request.round, request.by, request.number, willing)
        for command in agent.core.handle(0, asked):
            if isinstance(command, kt.TakeTentative):
                self.take(agent, "tentative", command.round)
            elif isinstance(command, kt.Answer):
                number = agent.number + 1 if command.is_participant else 0
                self._answer(agent, command, number)

    def _answer(self, agent: FakeAgent, answer: kt.Answer, number: int) -> None:
        """At once: that its checkpoint is durable is said by the report."""
        self.say(
            msg.CheckpointsAnswered(
                answer.round,
                self.plan,
                self.start,
                (agent.name,),
                (answer.is_willing,),
                (answer.is_participant,),
                (number,),
                (0,) * len(answer.requests),
                tuple(answer.requests),
                tuple(answer.requests.values()),
                (answer.by or "",),
            )
        )

    def _on_decided(self, directive: msg.EndEpoch) -> None:
        self.round = max(self.round, directive.epoch)
        if not directive.is_complete:
            self.writer.drop_round(directive.epoch)
        for agent in self.living.values():
            for command in agent.core.handle(0, kt.RoundDecided(directive.epoch, directive.is_complete)):
                if isinstance(command, kt.MakePermanent):
                    agent.number += 1
                    agent.saved = agent.place(agent.number)

    def _live(self, directive: msg.ReportNumbers) -> msg.NumbersReported:
        names: dict[str, int] = {}
        agents: list[int] = []
        received: list[tuple[int, int, int]] = []
        for agent in self.living.values():
            if agent.has_moved:
                for peer, number in agent.received.items():
                    received.append((len(agents), names.setdefault(peer, len(names)), number))
                agents.append(names.setdefault(agent.name, len(names)))
        of, senders, numbers = (tuple(x[n] for x in received) for n in range(3))
        turns = (1,) * len(agents)
        return msg.NumbersReported(
            directive.request, directive.plan, tuple(names), tuple(agents), of, senders, numbers, turns
        )


class LoggedWorld(World):
    """One execution of a logged protocol."""

    host_class = LoggedHost
    hosts: dict[str, LoggedHost]  # type: ignore[assignment]  # the same dictionary, of the subclass

    def __init__(
        self,
        seed: int,
        protocol: str,
        *,
        hosts: int = 2,
        agents: int = 4,
        period_ms: int = 100,
        chaos: float = 0.0,
        log_bytes_max: int = 0,
        checkpoint_rate: float = 0.2,
    ) -> None:
        self.protocol = protocol
        self.is_koo_toueg = protocol == "koo-toueg"
        self.log_bytes_max = log_bytes_max
        self.checkpoint_rate = checkpoint_rate
        self.wire: dict[tuple[int, str, str], int] = {}
        self.store = Packs()
        self.packs = self.store.found
        self.damaged_packs: set[str] = set()
        self.damage_told: set[str] = set()
        """Packs of which the leader knows it. It does not listen for an epoch that has been aborted meanwhile, and is told again."""
        self.content: dict[int, dict[str, Place]] = {0: {}}
        self.known: dict[str, dict[int, Place]] = {}
        """What the leader has been told under the current plan, or has found: agent → number → record."""
        self.known_initial: set[str] = set()
        self.expected: Mapping[str, int] | None = None
        self.tokens: set[int] = set()
        """Proposals seen: one that is made again, after an unknown outcome, is still about the line it had first."""
        self.lines_found: dict[int, ev.AnswerLine] = {}
        self.kept = 0
        self.moved = 0
        super().__init__(seed, hosts=hosts, agents=agents, period_ms=period_ms, chaos=chaos)

    def fleet_definition(self) -> msg.FleetDefinition:
        return msg.FleetDefinition(
            "f", self.protocol, self.period_ns, 5 * SECOND, self.definition, log_bytes_max=self.log_bytes_max
        )

    # ---- what the leader knows ------------------------------------------------------------------------------------------

    def start_leader(self) -> None:
        self.known, self.known_initial, self.expected, self.tokens = {}, set(), None, set()
        super().start_leader()

    def _on_applied(self, operation: op.Operation, line: int, opened: tuple[int, ...], plan_number: int) -> None:
        super()._on_applied(operation, line, opened, plan_number)
        if self.state.plan_number != plan_number:
            self.known, self.known_initial = {}, set()

    def event_received(self, event: ev.Event) -> None:
        if isinstance(event, ev.MessageReceived) and isinstance(event.message, msg.CheckpointsStored):
            report = event.message
            session = self.core.parts.host_sessions.session(event.session) if self.core is not None else None
            is_heard = session is not None and session.start == report.host_start
            if is_heard and report.plan == self.state.plan_number and report.pack.path in self.packs:
                self.learn(self.packs[report.pack.path][1])
        if isinstance(event, ev.LineMaterialised) and self.core is not None and event.damaged_path:
            is_heard = self.core.parts.open_epochs.get(event.epoch) is not None
            self.damage_told |= {event.damaged_path} if is_heard else set()

    def learn(self, stored: list[ev.StoredCheckpoint]) -> None:
        for x in stored:
            if x.basis == "initial":
                self.known_initial.add(x.agent)
            elif x.basis != "tentative":
                self.known.setdefault(x.agent, {})[x.number] = Place(x.number, x.sent, x.received)

    def frozen_hosts(self) -> list[str]:
        return sorted(name for name, host in self.hosts.items() if host.frozen)

    def base(self) -> int:
        """The epoch that checkpoints of this plan build on; -1: it is damaged."""
        plan = self.state.plan
        assert plan is not None
        epochs = [e for e, x in self.state.image.epochs.items() if x.status != "open"]
        mine = [e for e in epochs if self.state.image.epochs[e].plan == plan.number or e == plan.line_epoch]
        if not mine:
            return 0 if plan.line_epoch == 0 else -1
        return mine[-1] if self.state.image.epochs[mine[-1]].status == "complete" else -1

    def oracle(self) -> dict[str, int]:
        """The greatest consistent cut of what the leader knows, by the orphan fix-point on plain lists."""
        base = self.content[self.base()]
        lists: dict[str, list[Place]] = {}
        for agent, _ in self.state.living_agents():
            places = [base.get(agent, NOTHING)]
            known = self.known.get(agent, {})
            while (number := places[-1].number + 1) in known and not self.is_damaged(agent, number):
                places.append(known[number])
            lists[agent] = places
        while True:
            orphan = [
                receiver
                for receiver, places in lists.items()
                for sender, number in places[-1].received.items()
                if number > (lists[sender][-1].sent.get(receiver, 0) if sender in lists else 0)
            ]
            if not orphan:
                return {agent: places[-1].number for agent, places in lists.items()}
            lists[orphan[0]].pop()

    def is_damaged(self, agent: str, number: int) -> bool:
        plan = self.state.plan_number
        return any(
            x.agent == agent and x.number == number
            for path in self.damage_told
            for x in self.packs.get(path, (0, []))[1]
            if self.packs[path][0] == plan
        )

    # ---- commands -----------------------------------------------------------------------------------------------------

    def command_issued(self, command: ev.Command) -> None:
        match command:
            case ev.MaterialiseLine():
                self._check_line_asked(command)
            case ev.Propose() if isinstance(command.kind, op.BeginEpoch):
                if command.token not in self.tokens and not self.is_koo_toueg:
                    self.expected = self.oracle()
                self.tokens.add(command.token)
            case ev.Propose() if isinstance(command.kind, op.CommitPlan):
                if command.token not in self.tokens:
                    self._check_plan(command.kind)
                self.tokens.add(command.token)

    def answered(self, answer: ev.AnswerTool) -> None:
        if isinstance(answer, ev.AnswerLine):
            assert answer.request not in self.lines_found, "answered twice"
            self.lines_found[answer.request] = answer
        super().answered(answer)

    def delete_checkpoints(self, command: ev.DeleteCheckpoints) -> None:
        for path in command.paths:
            self._delete_pack(path)

    def sweep_checkpoints(self, command: ev.SweepCheckpoints) -> None:
        for path in [x for x, (plan, _) in self.packs.items() if plan < command.plan]:
            if path not in command.kept:
                del self.packs[path]

    def _check_plan(self, kind: op.CommitPlan) -> None:
        """A plan starts from the greatest consistent cut of all that the leader can know; survivors keep their live states."""
        state = self.state
        if (
            not state.plan_number
            or kind.expected_plan != state.plan_number
            or self.is_koo_toueg
            or self.base() < 0
            or self.core is None
        ):
            return
        initial = {agent for agent, x in state.image.agents.items() if x.is_initial}
        records = state.image.epochs.values()
        made = sum(x.trigger == "recovery" and x.plan == state.plan_number for x in records)
        is_ready = initial <= self.known_initial and not any(self.is_damaged(agent, 0) for agent in initial)
        if (self.base() == 0 and not is_ready) or made >= 3:
            return
        if kind.line_epoch != state.newest_complete():
            return  # Made again after an unknown outcome, and late: it will be refused.
        line = self.oracle()
        content = self.content[kind.line_epoch]
        numbers = {agent: content.get(agent, NOTHING).number for agent in line}
        assert numbers == line, f"plan from {numbers}, and {line} is the line"
        for host in self.hosts.values():
            if host.plan != state.plan_number or not host.is_loaded or not host.frozen:
                continue
            for agent in host.living.values():
                if self.core.parts.freezing.has_checkpointed_live_state(host.name, agent.name) and agent.is_made:
                    assert not agent.has_moved and agent.number in {*self.known.get(agent.name, {}), agent.saved.number}
                    self.kept += agent.number == numbers.get(agent.name)
        self.moved += kind.rolled_back

    def _check_line_asked(self, command: ev.MaterialiseLine) -> None:
        """The line is the oracle's; packs are named exactly, and are there."""
        numbers = {x.agent: x.number for x in command.agents}
        if self.expected is not None:
            assert numbers == {agent: self.expected.get(agent, 0) for agent in numbers}, (
                "not the greatest consistent cut"
            )
            assert all(number == 0 for agent, number in self.expected.items() if agent not in numbers)
        base = self.content[command.base_epoch]
        assert command.base_epoch == self.base()
        named: set[str] = set()
        for x in command.agents:
            assert x.base_number == (base[x.agent].number if x.agent in base else -1)
            is_initial = self.state.image.agents[x.agent].is_initial
            first = x.base_number + 1 if x.base_number >= 0 or is_initial else 1
            places = []
            for path, number in zip(x.paths, range(first, x.number + 1), strict=True):
                assert path in self.packs, f"{path} has been deleted (G7)"
                plan, stored = self.packs[path]
                assert plan == command.plan
                found = [y for y in stored if (y.agent, y.number) == (x.agent, number)]
                assert found and (not found[0].epoch or found[0].epoch == command.epoch), f"{number} of {x.agent}"
                places.append(found[0])
                named.add(path)
        assert named == set(command.packs)
        content = self._content_of(command)
        for agent, place in content.items():
            for sender, number in place.received.items():
                assert number <= content.get(sender, NOTHING).sent.get(agent, 0), "an orphan (G1)"

    def _content_of(self, command: ev.MaterialiseLine) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for x in command.agents:
            if x.paths:
                stored = [y for y in self.packs[x.paths[-1]][1] if (y.agent, y.number) == (x.agent, x.number)]
                found[x.agent] = Place(x.number, stored[0].sent, stored[0].received)
            elif x.base_number >= 0:
                found[x.agent] = self.content[command.base_epoch][x.agent]
        return found

    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised:
        luck, epoch = self.random.random(), command.epoch
        if luck < self.chaos * 0.03:
            return ev.LineMaterialised(epoch, "", error="disk full")
        if luck < self.chaos * 0.05 and command.packs:
            self.damaged_packs.add(self.random.choice(sorted(command.packs)))
        if (luck > 1 - self.chaos * 0.01 and command.base_epoch) or command.base_epoch in self.damaged_lines:
            self.damaged_lines.add(command.base_epoch)
            return ev.LineMaterialised(epoch, "", error="flipped", damaged_path="manifests/x")
        for path in command.packs:
            if path in self.damaged_packs:
                return ev.LineMaterialised(epoch, "", error="flipped", damaged_path=path)
            if path not in self.packs:
                assert epoch not in self.state.open_epochs(), "a pack is deleted while its line is being stored (G7)"
                return ev.LineMaterialised(epoch, "", error="gone")
        content = self._content_of(command)
        self.content[epoch] = content
        self.manifests[epoch] = ev.WriteManifest(epoch, command.plan, "", {}, (), (), (), 0, 0, 0)
        unborn = tuple([x.agent for x in command.agents if x.agent not in content])
        return ev.LineMaterialised(epoch, f"root-{epoch}", unborn)

    def scan(self, command: ev.ScanCheckpoints) -> ev.CheckpointsScanned:
        if self.random.random() < self.chaos * 0.1:
            return ev.CheckpointsScanned(command.plan, command.base_epoch, error="no route to the store")
        if command.base_epoch in self.damaged_lines:
            return ev.CheckpointsScanned(command.plan, command.base_epoch, error="flipped", damaged_path="manifests/x")
        pack = msg.ReportedPack("packs/base", 1, b"")
        unborn = self.state.image.epochs[command.base_epoch].unborn if command.base_epoch else []
        base = [
            ev.StoredCheckpoint(agent, x.number, "basic", command.base_epoch, pack, x.sent, x.received)
            for agent, x in self.content[command.base_epoch].items()
        ]
        base += [ev.StoredCheckpoint(agent, 0, "unborn", command.base_epoch, pack, {}, {}) for agent in unborn]
        found = [
            x
            for path, (plan, stored) in self.packs.items()
            if plan == command.plan and path not in self.damaged_packs
            for x in stored
        ]
        found.sort(key=lambda x: (x.agent, x.number, x.epoch))
        self.damage_told |= self.damaged_packs
        if command.plan == self.state.plan_number:
            self.learn(found)
        base.sort(key=lambda x: x.agent)
        return ev.CheckpointsScanned(command.plan, command.base_epoch, tuple(base), tuple(found))

    def _delete_pack(self, path: str) -> None:
        plan, stored = self.packs.get(path, (0, []))
        if plan == self.state.plan_number:
            base = self.content[max(0, self.base())]
            for x in stored:
                is_void = x.epoch > 0 and x.epoch not in self.state.open_epochs()
                is_past = self.base() > 0 and x.number <= base.get(x.agent, NOTHING).number
                assert is_void or is_past, f"{path} is deleted, and holds {x.number} of {x.agent} (G7)"
        self.packs.pop(path, None)

    def check_complete(self, epoch: int, hosts: list[str]) -> None:
        assert epoch in self.content, f"epoch {epoch} is complete and was never stored"

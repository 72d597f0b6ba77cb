"""A seeded world around the coordinator's cores: virtual time, a log in memory, a store that is two dictionaries, and hosts
that are plain functions. It counts nothing itself; `check` and the oracles in `_on_applied` are independent of the cores:
they go by what hosts really did.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.coordinator.world_outputs import WorldOutputs
from tests.kit.virtual_time import VirtualTime

from snapline.agent_runtime.host.epoch_files import ChannelNumbers, EpochReports, with_channels
from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.leader_state import LeaderOptions
from snapline.coordinator.service.leader_driver import LeaderDriver, LeaderObserver
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    COMPLETE,
    RUNNING,
    Committed,
    OperationResult,
    ProposalOutcome,
    Rejected,
    Unknown,
)
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as ends
from snapline.messages import host_messages as msg

MS = 1_000_000
SECOND = 1_000 * MS
DIGEST = b"d" * 32

DELAYS_MS: dict[type[ev.Command], int] = {ev.WriteManifest: 20, ev.MaterialiseLine: 30, ev.ScanCheckpoints: 30}
"""Longest delays of the store, where they are not 10 ms."""


class FakeHost:
    """One host's process, as far as the coordinator can tell."""

    def __init__(self, world: "World", name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.instance = f"{name}-{number}"
        self.session = 0
        self.start = 0
        self.plan = 0
        self.line = 0
        self.agents: dict[str, int] = {}
        """Agent → r when it was made; -1 for those of the plan."""
        self.open_in: dict[str, tuple[int, ...]] = {}
        self.left: dict[str, tuple[int, ...]] = {}
        """Agents whose leave is committed: they stay for the epochs that were open then."""
        self.begun: dict[int, bool] = {}
        """Open epoch → is its report made."""
        self.ended: dict[int, None] = {}
        self.pending: dict[int, list[str]] = {}
        """Open epoch → agents whose ids were asked for, and not reserved yet, when this host recorded: unborn in it."""
        self.requests: dict[int, msg.HostMessage] = {}
        self.asked = 0
        self.reports = EpochReports()
        self.is_finished = False

    # ---- hearing ----------------------------------------------------------------------------------------------------

    def hear(self, directive: msg.Directive) -> None:
        world = self.world
        match directive:
            case msg.Welcome():
                self.start = directive.host_start
                self.reports.welcomed()
                if directive.wants_definition:
                    self.say(world.fleet_definition())
                if (self.name, self.start, self.plan) in world.applied:
                    self.say(msg.PlanApplied(self.plan, self.start))
                for epoch, is_reported in self.begun.items():
                    if is_reported:
                        self.report(epoch)
                for message in self.requests.values():
                    self.say(message)
            case msg.ReadProbe():
                self.say(msg.ProbeRead(directive.path, world.probes.get(directive.path, b"")))
            case msg.Plan():
                self._on_plan(directive)
            case msg.BeginEpoch():
                self.reports.begun(directive)
                self._on_begun(directive)
                if directive.again and self.begun.get(directive.epoch):
                    self.report(directive.epoch)
            case msg.EndEpoch():
                world.note_outcome(directive)
                self.reports.dropped(directive.epoch)
                self.begun.pop(directive.epoch, None)
                self.pending.pop(directive.epoch, None)
                self.ended[directive.epoch] = None
            case msg.AgentsReserved():
                self._on_reserved(directive)
            case msg.AgentRetired():
                request = self.requests.pop(directive.request, None)
                if isinstance(request, msg.RetireAgent) and request.plan == self.plan and not directive.refused:
                    self.left[request.agent] = directive.open_epochs
            case ends.Quiesce(number=number, holds_effects=True):
                self.say(ends.Quiesced(number))
            case msg.EvaluateStop():
                self.say(msg.StopEvaluated(directive.epoch, False))
            case msg.TurnedAway():
                world.turned_away.append((self.name, directive))
            case msg.Finish():
                self.is_finished = True

    def _on_begun(self, directive: msg.BeginEpoch) -> None:
        """The coordinator says so, or a peer's marker, which may be faster."""
        epoch, world = directive.epoch, self.world
        if directive.plan != self.plan or epoch in self.begun or epoch in self.ended or not self.is_current():
            return
        assert self.name in directive.hosts
        self.begun[epoch] = False
        self.pending[epoch] = [x for x in self.asked_for() if x not in self.agents]
        world.after(world.delay(60), lambda: self.report(epoch))
        for peer in directive.hosts:
            if peer in world.hosts:
                world.after(world.delay(4), functools.partial(world.hosts[peer]._on_begun, directive))

    def _on_plan(self, plan: msg.Plan) -> None:
        if plan.number <= self.plan:
            if (self.name, self.start, plan.number) in self.world.applied and plan.number == self.plan:
                self.say(msg.PlanApplied(plan.number, self.start))
            return
        world, damaged = self.world, self.world.damaged_blobs
        if plan.line_epoch in damaged:
            self.say(msg.PlanRefused(plan.number, self.start, plan.line_epoch, "packs/x", "flipped"))
            return
        for epoch in list(self.begun):
            del self.begun[epoch]
        self.reports.plan_began()
        self.requests.clear()
        self.plan, self.line = plan.number, plan.line_epoch
        mine = [x for x in plan.agents if plan.hosts[x.host] == self.name]
        self.agents = {x.agent: -1 for x in mine}
        self.open_in, self.left, self.pending = {}, {}, {}
        for agent in mine:
            world.note_started(agent.agent, agent.incarnation)

        def applied() -> None:
            if self.is_current() and self.plan == plan.number:
                world.applied.add((self.name, self.start, plan.number))
                self.say(msg.PlanApplied(plan.number, self.start))
                for parent, child in world.spawns_pending.get(plan.line_epoch, {}).items():
                    if parent in self.agents:
                        self.spawn(child)

        world.after(world.delay(100), applied)

    def spawn(self, child: str) -> None:
        """A turn creates an agent; or the checkpoint of its agent holds one that has not been answered."""
        self.ask(lambda request: msg.ReserveAgents(request, self.plan, (msg.AgentKind(child, "m:N"),)))

    def asked_for(self) -> list[str]:
        asked = [x for x in self.requests.values() if isinstance(x, msg.ReserveAgents) and x.plan == self.plan]
        return [agent.agent for request in asked for agent in request.agents]

    def _on_reserved(self, directive: msg.AgentsReserved) -> None:
        request = self.requests.pop(directive.request, None)
        if not isinstance(request, msg.ReserveAgents) or request.plan != self.plan:
            return
        if directive.refused:
            again = self.world.spawns_pending.get(self.line, {}).values()
            is_lost = "created before" in directive.refused and any(x.agent in again for x in request.agents)
            assert not is_lost, f"a spawn that is pending in epoch {self.line} is refused (G3): {directive.refused}"
            return
        for agent in request.agents:
            self.world.note_started(agent.agent, directive.incarnation)
            self.agents[agent.agent] = directive.recorded
            self.open_in[agent.agent] = directive.open_epochs

    # ---- saying -----------------------------------------------------------------------------------------------------

    def is_current(self) -> bool:
        return self.world.hosts.get(self.name) is self

    def join(self) -> msg.Join:
        return msg.Join(self.name, self.instance, f"{self.name}:1", "f", DIGEST, self.plan)

    def say(self, message: msg.HostMessage) -> None:
        self.world.message(self, message)

    def ask(self, make: Callable[[int], msg.HostMessage]) -> None:
        self.asked += 1
        self.requests[self.asked] = make(self.asked)
        self.say(self.requests[self.asked])

    def report(self, epoch: int) -> None:
        """Everything of this epoch is durable: each agent has sent some messages to its neighbour, one is in transit.

        As long as an answer is due that may make agents of this epoch, there is no report.
        """
        if not self.is_current() or epoch not in self.begun:
            return
        if self.asked_for() and not self.begun[epoch]:
            self.world.after(10 * MS, lambda: self.report(epoch))
            return
        self.begun[epoch] = True
        self.world.reported.add((self.name, self.start, epoch))
        members = [
            x
            for x, r in self.agents.items()
            if (r < epoch or epoch in self.open_in.get(x, ())) and epoch in self.left.get(x, (epoch,))
        ]
        pending = self.pending.get(epoch, ())
        unborn = [self.agents[x] >= epoch or x in pending for x in members]
        parent = next((x for x in members if self.agents[x] < 0), "")
        for child in pending:
            if parent and child in members and self.agents[child] < epoch:
                self.world.spawns_pending.setdefault(epoch, {})[parent] = child
        born = [n for n, is_unborn in enumerate(unborn) if not is_unborn]
        pairs = [(members[sender], members[receiver]) for sender, receiver in itertools.pairwise(born)]
        sent = 2 + epoch // 3  # in some epochs nothing has changed
        numbers = ChannelNumbers(
            {a: {b: sent} for a, b in pairs}, {b: {a: sent - 1} for a, b in pairs}, {b: {a: 1} for a, b in pairs}
        )
        since, earlier = self.reports.earlier(epoch)
        report = msg.EpochReport(
            epoch,
            self.start,
            msg.ReportedPack(f"packs/{self.name}/{epoch}", 1, b"i"),
            names=tuple(members),
            agents=tuple(range(len(members))),
            unborn=tuple(unborn),
        )
        self.say(with_channels(report, numbers.since(earlier), since=since))
        self.reports.written(report, numbers)


class Environment:
    """The leader's driver in a world: an environment whose answers come late, in another order, or never."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns

    def wall_ns(self) -> int:
        return self._world.now_ns

    def set_timer(self, when_ns: int, function: Callable[[], None]) -> None:
        self._world.later(max(1, when_ns - self._world.now_ns), function)

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        world, core = self._world, self._world.core
        world.after(world.delay(8), lambda: world.commit(core, entry, ended))

    def send(self, sessions: Sequence[int], directive: msg.Directive) -> None:
        for number in sessions:
            host = self._world.sessions.get(number)
            if host is not None:
                self._world.deliver(number, host, directive)

    def close_stream(self, session: int) -> None:
        self._world.disconnect(session)

    def in_worker(self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]) -> None:
        world = self._world
        is_release = isinstance(command, ev.ReleaseEpoch)
        delay_ns = world.outputs.delay_ns() if is_release else world.delay(DELAYS_MS.get(type(command), 10))
        world.later(delay_ns, lambda: then(work(command)))

    def in_cleaner(self, command: ev.Command, chore: Callable[[Any], object]) -> None:
        def clean() -> None:
            chore(command)

        self._world.after(self._world.delay(400) if isinstance(command, ev.SweepStore) else 0, clean)

    def answer(self, answer: ev.AnswerTool) -> None:
        self._world.answered(answer)

    def note(self, note: ev.Note) -> None:
        self._world.notes.append(note.text)

    def end(self, ending: ev.EndRun) -> None:
        self._world.ended = ending


class World(VirtualTime, LeaderObserver):
    """One execution; also the store of the leader's driver, and its observer."""

    host_class: type[FakeHost] = FakeHost

    def __init__(self, seed: int, *, hosts: int = 2, agents: int = 4, period_ms: int = 100, chaos: float = 0.0) -> None:
        super().__init__(SECOND)
        self.random = random.Random(seed)
        self.outputs = WorldOutputs(seed, chaos)
        self.period_ns = period_ms * MS
        self.chaos = chaos
        self.definition = tuple(msg.AgentKind(f"a{n}", "m:A") for n in range(agents))
        self.options = LeaderOptions(client="leader-0", cluster="c", hosts_expected=hosts, keep_epochs=3)
        self.state = FleetState()
        self.entries: list[bytes] = []
        self.core: LeaderCore | None = None
        self.leaders = 0
        self.hosts: dict[str, FakeHost] = {}
        self.starts = 0
        self.sessions: dict[int, FakeHost] = {}
        self.session_number = 0
        self._last: dict[int, int] = {}
        # the store
        self.probes: dict[str, bytes] = {}
        self.refs: dict[int, str] = {}
        self.manifests: dict[int, ev.WriteManifest] = {}
        self.damaged_lines: set[int] = set()
        self.damaged_blobs: set[int] = set()
        # what really happened
        self.applied: set[tuple[str, int, int]] = set()
        self.reported: set[tuple[str, int, int]] = set()
        self.spawns_pending: dict[int, dict[str, str]] = {}
        """Epoch → an agent that had asked for another one when it recorded → the other one, a member of the epoch."""
        self.outcomes: dict[int, bool] = {}
        self.told: dict[int, bool] = {}
        self.incarnations: dict[str, int] = {}
        self.voided: set[int] = set()
        """Epochs that were complete, and that the fleet was taken back past."""
        self.restores: list[ev.AnswerRestore] = []
        self.turned_away: list[tuple[str, msg.TurnedAway]] = []
        self.answers: list[ev.AnswerSnapshot] = []
        self.notes: list[str] = []
        self.ended: ev.EndRun | None = None
        self.start_leader()
        for n in range(hosts):
            self.start_host(f"h{n}")

    # ---- time -------------------------------------------------------------------------------------------------------

    def delay(self, up_to_ms: int) -> int:
        return self.random.randrange(1, up_to_ms * MS)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for so long, or until; return whether `until` came true."""
        return self.run_until(self.now_ns + round(seconds * SECOND), until)

    # ---- the leader -------------------------------------------------------------------------------------------------

    def start_leader(self) -> None:
        self.leaders += 1
        self.state = FleetState.restore(self.state.freeze())
        options = self.options
        self.core = LeaderCore(
            self.state,
            LeaderOptions(f"leader-{self.leaders}", f"c{self.leaders}", options.hosts_expected, keep_epochs=3),
        )
        self.driver = LeaderDriver(self.core, self, Environment(self), [self])
        self.feed(ev.LeaderStarted())
        for host in list(self.hosts.values()):
            self.after(self.delay(300), functools.partial(self.connect, host))

    def crash_leader(self) -> None:
        self.core = None
        for session in list(self.sessions):
            del self.sessions[session]
        self.after(self.delay(1500), self.start_leader)

    def feed(self, event: ev.Event) -> None:
        if self.core is not None and self.ended is None:
            self.driver.feed(event)

    def later(self, delay_ns: int, call: Callable[[], None]) -> None:
        """Call back the present driver; not if the leader has died meanwhile."""
        core = self.core

        def call_back() -> None:
            if self.core is core and self.ended is None:
                call()

        self.after(delay_ns, call_back)

    def answered(self, answer: ev.AnswerTool) -> None:
        match answer:
            case ev.AnswerSnapshot():
                self.answers.append(answer)
            case ev.AnswerRestore():
                self.restores.append(answer)

    def deliver(self, number: int, host: FakeHost, directive: msg.Directive) -> None:
        """Directives of one stream stay in order, since delays are added to the stream's last delivery."""

        def deliver() -> None:
            if self.sessions.get(number) is host and host.is_current():
                host.hear(directive)

        at = max(self.now_ns + self.delay(4), self._last.get(number, 0) + 1)
        self._last[number] = at
        self.after(at - self.now_ns, deliver)

    # ---- the log ----------------------------------------------------------------------------------------------------

    def commit(self, core: LeaderCore | None, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        luck = self.random.random()
        is_dead = self.core is not core
        outcome: ProposalOutcome
        if luck < self.chaos * 0.05 or (is_dead and luck < 0.5):
            outcome = Rejected("no") if self.random.random() < 0.5 else Unknown("who knows")
        else:
            result = self._apply(entry)
            outcome = Unknown("lost reply") if luck > 1 - self.chaos * 0.05 else Committed(result)
        if not is_dead:
            self.later(self.delay(3), lambda: ended(outcome))

    def _apply(self, entry: bytes) -> OperationResult:
        before = self.state.newest_complete()
        opened = self.state.open_epochs()
        plan_number = self.state.plan_number
        operation = op.decode_operation(entry)
        result = self.state.apply(operation)
        self.entries.append(entry)
        self.state.validate()
        self._on_applied(operation, before, opened, plan_number)
        return result

    def _on_applied(self, operation: op.Operation, line: int, opened: tuple[int, ...], plan_number: int) -> None:
        image, plan = self.state.image, self.state.plan
        for epoch in opened:
            record = image.epochs.get(epoch)
            if record is None or record.status == COMPLETE:
                is_complete = record is not None
                assert epoch not in self.outcomes, f"epoch {epoch} ended twice"
                self.outcomes[epoch] = is_complete
                self.outputs.outcomes[epoch] = record.plan if record is not None else 0
                if is_complete and plan is not None:
                    self.check_complete(epoch, plan.hosts)
        if plan is not None and plan.number != plan_number:
            if isinstance(operation.kind, op.Restore):
                line = operation.kind.line_epoch
                self.voided |= {x for x, is_complete in self.outcomes.items() if is_complete and x > line}
            assert line not in self.voided, "a plan from an epoch that the fleet was taken back past"
            self.outputs.lines[plan.number] = line
            assert plan.line_epoch == line, "a plan from another line than the newest complete epoch"
            assert plan.line_epoch not in self.damaged_lines, "a plan from a line that cannot be read"
        if plan is not None and plan.done_ns == operation.now_ns:
            for host in plan.hosts:
                key = (host, image.hosts[host].start, plan.number)
                assert key in self.applied, f"plan {plan.number} is done, but not on {host}"
        for agent, agent_record in image.agents.items():
            assert agent_record.incarnation >= self.incarnations.get(agent, 0), f"{agent} became younger"

    def fleet_definition(self) -> msg.FleetDefinition:
        return msg.FleetDefinition("f", "chandy-lamport", self.period_ns, 5 * SECOND, self.definition)

    def check_complete(self, epoch: int, hosts: list[str]) -> None:
        for host in hosts:
            key = (host, self.state.image.hosts[host].start, epoch)
            assert key in self.reported, f"epoch {epoch} is complete without a report of {host}"

    def note_started(self, agent: str, incarnation: int) -> None:
        assert incarnation >= self.incarnations.get(agent, 0), f"{agent} started as {incarnation} again"
        self.incarnations[agent] = incarnation

    def note_outcome(self, directive: msg.EndEpoch) -> None:
        known = self.outcomes[directive.epoch]
        assert known == directive.is_complete, f"epoch {directive.epoch}: hosts were told {directive}"
        record = self.state.image.epochs.get(directive.epoch)
        assert record is None or record.status != COMPLETE or directive.epoch in self.refs, "told before it has its ref"
        self.told[directive.epoch] = known

    # ---- the store --------------------------------------------------------------------------------------------------

    def write_probe(self, command: ev.WriteProbe) -> ev.ProbeWritten:
        path = f"probes/{self.asked}"
        self.probes[path] = path.encode()
        return ev.ProbeWritten(command.session, path, path.encode())

    def remove_probe(self, command: ev.RemoveProbe) -> None:
        self.probes.pop(command.path, None)

    def write_manifest(self, command: ev.WriteManifest) -> ev.ManifestWritten:
        if self.random.random() < self.chaos * 0.05:
            return ev.ManifestWritten(command.epoch, "", "disk full")
        self.manifests[command.epoch] = command
        return ev.ManifestWritten(command.epoch, f"root-{command.epoch}")

    def publish(self, command: ev.PublishEpoch) -> ev.EpochPublished:
        if self.random.random() < self.chaos * 0.05:
            return ev.EpochPublished(command.epoch, "disk full")
        assert self.refs.get(command.epoch, command.root) == command.root, "two roots for one epoch"
        self.refs[command.epoch] = command.root
        return ev.EpochPublished(command.epoch, outputs=self.outputs.known(command.epoch))

    def release(self, command: ev.ReleaseEpoch) -> ev.EpochReleased:
        return self.outputs.release(command, self.state.image)

    def check_line(self, command: ev.CheckLine) -> ev.LineChecked:
        if self.random.random() < self.chaos * 0.1:
            self.damaged_lines.add(command.epoch)
        if command.epoch in self.damaged_lines:
            return ev.LineChecked(command.epoch, "flipped bit", "manifests/x")
        if self.random.random() < self.chaos * 0.1:
            return ev.LineChecked(command.epoch, "no route to the store")
        assert command.epoch in self.manifests, "the line has been deleted (G7)"
        if self.random.random() < self.chaos * 0.1:
            self.damaged_blobs.add(command.epoch)
        return ev.LineChecked(command.epoch)

    def resolve(self, command: ev.ResolveSnapshot) -> ev.SnapshotResolved:
        raise NotImplementedError

    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised:
        raise NotImplementedError

    def scan(self, command: ev.ScanCheckpoints) -> ev.CheckpointsScanned:
        raise NotImplementedError

    def delete(self, command: ev.DeleteEpochs) -> None:
        for epoch in command.epochs:
            self._delete(epoch)

    def sweep(self, command: ev.SweepStore) -> None:
        """Behind all else that is to be cleaned: what the command says may be old by now."""
        for epoch in sorted({*self.refs, *self.manifests}):
            if epoch <= command.begun and epoch not in (*command.kept, *command.undecided):
                self._delete(epoch)

    def sweep_logs(self, command: ev.SweepLogs) -> None: ...

    def delete_checkpoints(self, command: ev.DeleteCheckpoints) -> None: ...

    def sweep_checkpoints(self, command: ev.SweepCheckpoints) -> None: ...

    def _delete(self, epoch: int) -> None:
        assert epoch not in self.state.image.epochs, f"epoch {epoch} is deleted, and the log knows it (G4, G7)"
        self.refs.pop(epoch, None)
        self.manifests.pop(epoch, None)

    # ---- hosts and their streams --------------------------------------------------------------------------------------

    def start_host(self, name: str) -> FakeHost:
        self.starts += 1
        host = self.hosts[name] = self.host_class(self, name, self.starts)
        self.after(self.delay(50), lambda: self.connect(host))
        self._beat(host)
        return host

    def kill_host(self, name: str) -> None:
        host = self.hosts.pop(name, None)
        if host is not None:
            self.disconnect(host.session)

    def _beat(self, host: FakeHost) -> None:
        def beat() -> None:
            if host.is_current():
                if host.session not in self.sessions and not host.is_finished:
                    self.connect(host)
                host.say(msg.Heartbeat(1))
                self._beat(host)

        self.after(400 * MS, beat)

    def connect(self, host: FakeHost) -> None:
        if not host.is_current() or host.session in self.sessions or self.core is None:
            return
        self.session_number += 1
        host.session = self.session_number
        self.sessions[host.session] = host
        host.say(host.join())

    def disconnect(self, number: int) -> None:
        if self.sessions.pop(number, None) is not None:
            self.after(self.delay(5), lambda: self.feed(ev.StreamClosed(number)))

    def message(self, host: FakeHost, message: msg.HostMessage) -> None:
        """In order within a stream, sometimes twice; lost with the stream, or late: after it has been closed."""
        number, core = host.session, self.core
        if number not in self.sessions or core is None:
            return
        times = 2 if self.random.random() < self.chaos * 0.05 else 1

        def arrive() -> None:
            if self.core is core and (number in self.sessions or self.chaos):
                for _ in range(times):
                    self.feed(ev.MessageReceived(number, message))

        at = max(self.now_ns + self.delay(4), self._last.get(-number, 0) + 1)
        self._last[-number] = at
        self.after(at - self.now_ns, arrive)

    # ---- questions ----------------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self.state.phase == RUNNING

    def completed(self) -> int:
        return self.state.image.completed

    def alive(self) -> Iterator[str]:
        return (host for host, record in self.state.image.hosts.items() if record.state == ALIVE)

"""A leader core on a bench: proposals are committed and the store answers at once, unless a test holds them back."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.leader_state import LeaderOptions
from snapline.coordinator.service.leader_driver import LeaderDriver, LeaderObserver
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed, ProposalOutcome
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as ends
from snapline.messages import host_messages as msg

MS = 1_000_000
SECOND = 1_000 * MS
DIGEST = b"d"


class BenchStore:
    """A store (`LeaderStore`) where everything succeeds, but for what the bench says."""

    def __init__(self, bench: "Bench") -> None:
        self.bench = bench

    def write_probe(self, command: ev.WriteProbe) -> ev.ProbeWritten:
        return ev.ProbeWritten(command.session, f"probes/{command.session}", b"content")

    def write_manifest(self, command: ev.WriteManifest) -> ev.ManifestWritten:
        return ev.ManifestWritten(command.epoch, f"root-{command.epoch}")

    def publish(self, command: ev.PublishEpoch) -> ev.EpochPublished:
        return ev.EpochPublished(command.epoch, outputs={} if self.bench.emitted == {} else None)

    def release(self, command: ev.ReleaseEpoch) -> ev.EpochReleased:
        return ev.EpochReleased(command.epoch, outputs=self.bench.emitted.get(command.epoch, {}))

    def check_line(self, command: ev.CheckLine) -> ev.LineChecked:
        damaged = self.bench.damaged.get(command.epoch, "")
        return ev.LineChecked(command.epoch, "flipped" if damaged else "", damaged)

    def resolve(self, command: ev.ResolveSnapshot) -> ev.SnapshotResolved:
        found = self.bench.tags.get(command.snapshot, 0)
        if command.turn:
            found = next((x for x in command.epochs if self.bench.begun_turns[x] < command.turn), 0)
        error = "" if found else f"no snapshot {command.snapshot}"
        return ev.SnapshotResolved(command.snapshot, found, error, command.agent)

    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised:
        raise NotImplementedError

    def scan(self, command: ev.ScanCheckpoints) -> ev.CheckpointsScanned:
        raise NotImplementedError

    def remove_probe(self, command: ev.RemoveProbe) -> None: ...

    def delete(self, command: ev.DeleteEpochs) -> None: ...

    def sweep(self, command: ev.SweepStore) -> None: ...

    def sweep_logs(self, command: ev.SweepLogs) -> None: ...

    def delete_checkpoints(self, command: ev.DeleteCheckpoints) -> None: ...

    def sweep_checkpoints(self, command: ev.SweepCheckpoints) -> None: ...


class Bench(LeaderObserver):
    """One leader, its log, its store and its hosts' streams: the environment of its driver, and an observer.

    Attributes:
        held: classes of commands that are not carried out, but kept in `waiting`.
        heard: session → directives, in order.
        calling: hosts that call effects all the time.
        beats: host → what makes its heartbeats, where a plain one will not do.
    """

    AHEAD_NS = 0
    """How far the wall clock, which operations bear, is ahead of the monotonic one."""

    UNANSWERED: tuple[type[ev.Command], ...] = (ev.MaterialiseLine, ev.ScanCheckpoints)
    """Commands whose answers a test feeds itself."""

    def __init__(
        self,
        hosts_expected: int = 2,
        *,
        agents: int = 4,
        period_ns: int = 0,
        keep_epochs: int = 3,
        timeout_ns: int = 0,
        may_begin_anew: bool = True,
        store: BenchStore | None = None,
    ) -> None:
        self.now = 100 * SECOND
        self.state = FleetState()
        self.options = LeaderOptions(
            "leader", "cluster", hosts_expected, keep_epochs=keep_epochs, may_begin_anew=may_begin_anew
        )
        self.definition = msg.FleetDefinition(
            "f", "p", period_ns, timeout_ns, tuple(msg.AgentKind(f"a{n}", "m:A") for n in range(agents))
        )
        self.parts: tuple[str, ...] = ()
        self.dependencies: dict[str, str] = {}
        """Of the definition, as hosts say them."""
        self.held: tuple[type[ev.Command], ...] = ()
        self.waiting: list[ev.Command] = []
        self.heard: dict[int, list[msg.Directive]] = {}
        self.beats: dict[str, Callable[[], msg.Heartbeat]] = {}
        self.calling: list[str] = []
        self.closed: list[int] = []
        self.log: list[op.Kind] = []
        self.commands: list[ev.Command] = []
        self.outcomes: dict[type[op.Kind], list[ProposalOutcome]] = {}
        """Outcomes to give instead of committing, for proposals of a kind."""
        self.sessions = 0
        self.current: dict[str, int] = {}
        self.answers: list[ev.AnswerSnapshot] = []
        self.notes: list[ev.Note] = []
        self.damaged: dict[int, str] = {}
        self.tags: dict[str, int] = {}
        self.begun_turns: dict[int, int] = {}
        """Durable turns of the asking agent that have begun, by epoch."""
        self.emitted: dict[int, dict[str, int]] = {}
        """Epoch → what its agents have emitted in it. Where none has, the store says so as it publishes."""
        self._store = store or BenchStore(self)
        self._calls: deque[Callable[[], None]] = deque()
        """What comes back to the driver, when it has carried out its commands."""
        self.start_leader()

    def start_leader(self, client: str = "leader") -> None:
        """A new leader on the same log; all streams are gone."""
        self.state = FleetState.restore(self.state.freeze())
        self.state.validate()
        self.core = LeaderCore(
            self.state,
            msgspec.structs.replace(self.options, client=client),
        )
        self.driver = LeaderDriver(self.core, self._store, self, [self])
        self.current = {}
        self.feed(ev.LeaderStarted())

    # ---- events -----------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        self._calls.append(partial(self.driver.feed, event))
        self._make_calls()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def command_issued(self, command: ev.Command) -> None:
        self.commands.append(command)

    def is_held(self, command: ev.Command) -> bool:
        return isinstance(command, self.held)

    def release(self) -> None:
        """Carry out what was held back."""
        waiting, self.waiting, self.held = self.waiting, [], ()
        for command in waiting:
            self.driver.carry_out(command)
            self._make_calls()

    def pass_time(self, seconds: float, *, silent: tuple[str, ...] = ()) -> None:
        """Let time pass; hosts with a stream go on sending heartbeats, but for the silent ones."""
        end = self.now + round(seconds * SECOND)
        beat = self.now
        while self.now < end:
            self.now = min(end, max(self.now + MS, self.core.wakeup_ns))
            if self.now - beat >= 400 * MS:
                beat = self.now
                for host in list(self.current):
                    if host not in silent:
                        self.say(host, self.beats[host]() if host in self.beats else msg.Heartbeat(1))
            self.feed(ev.TimerFired())

    # ---- the driver's environment -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now + self.AHEAD_NS

    def set_timer(self, when_ns: int, function: Callable[[], None]) -> None:
        """`pass_time` asks the core."""

    def send(self, sessions: Sequence[int], directive: msg.Directive) -> None:
        for number in sessions:
            self.heard.setdefault(number, []).append(directive)
        if isinstance(directive, ends.Quiesce) and directive.holds_effects:
            # Hosts call no effects, and say so when they are asked, but for those in `calling`.
            for host, number in self.current.items():
                if number in sessions and host not in self.calling:
                    answer = ev.MessageReceived(number, ends.Quiesced(directive.number))
                    self._calls.append(partial(self.driver.feed, answer))

    def close_stream(self, session: int) -> None:
        self.closed.append(session)
        self.current = {host: x for host, x in self.current.items() if x != session}

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        if self.is_held(command):
            self.waiting.append(command)
        elif outcomes := self.outcomes.get(type(command.kind)):
            self._calls.append(partial(ended, outcomes.pop(0)))
        else:
            result = self.state.apply(op.decode_operation(entry))
            self.state.validate()
            self.log.append(command.kind)
            self._calls.append(partial(ended, Committed(result)))

    def in_worker(self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]) -> None:
        if self.is_held(command):
            self.waiting.append(command)
        elif not isinstance(command, self.UNANSWERED):
            self._calls.append(partial(then, work(command)))

    def in_cleaner(self, command: ev.Command, chore: Callable[[Any], object]) -> None:
        chore(command)

    def answer(self, answer: ev.AnswerTool) -> None:
        if isinstance(answer, ev.AnswerSnapshot):
            self.answers.append(answer)

    def note(self, note: ev.Note) -> None:
        self.notes.append(note)

    def end(self, ending: ev.EndRun) -> None:
        """The core's last command."""

    # ---- hosts --------------------------------------------------------------------------------------------------------

    def join(
        self,
        host: str,
        instance: str = "",
        *,
        digest: bytes = DIGEST,
        plan: int = 0,
        fleet: str = "f",
        parts: tuple[str, ...] = (),
    ) -> int:
        """A host connects; no more than that."""
        self.sessions += 1
        self.current[host] = self.sessions
        number = self.sessions
        join = msg.Join(
            host,
            instance or f"{host}-1",
            f"{host}:1",
            fleet,
            digest,
            plan,
            definition_parts=parts or self.parts,
            dependencies=self.dependencies,
        )
        self.feed(ev.MessageReceived(number, join))
        return number

    def attach(self, host: str, instance: str = "", *, plan: int = 0) -> int:
        """A host connects and does what its Welcome asks for."""
        number = self.join(host, instance, plan=plan)
        for directive in self.heard.get(number, []):  # it grows while it is answered
            if isinstance(directive, msg.ReadProbe):
                self.say(host, msg.ProbeRead(directive.path, b"content"))
            elif isinstance(directive, msg.Welcome) and directive.wants_definition:
                self.say(host, self.definition)
        return number

    def say(self, host: str, message: msg.HostMessage) -> None:
        if host in self.current:
            self.feed(ev.MessageReceived(self.current[host], message))

    def drop(self, host: str) -> None:
        """Its stream breaks."""
        self.feed(ev.StreamClosed(self.current.pop(host)))

    def apply_plan(self, *hosts: str) -> None:
        for host in hosts:
            start = self.state.image.hosts[host].start
            self.say(host, msg.PlanApplied(self.state.plan_number, start))

    def start_fleet(self, *hosts: str) -> None:
        """A running fleet."""
        for host in hosts:
            self.attach(host)
        self.apply_plan(*hosts)
        assert self.state.phase == "running"

    def report(self, host: str, epoch: int, **changes: object) -> None:
        """The host's agents, all idle."""
        agents = tuple(x for x, record in self.state.image.agents.items() if record.host == host)
        fields: dict[str, object] = {
            "names": agents,
            "agents": tuple(range(len(agents))),
            "unborn": (False,) * len(agents),
        }
        start = self.state.image.hosts[host].start
        pack = msg.ReportedPack(f"packs/{host}", 1, b"")
        self.say(host, msg.EpochReport(epoch, start, pack, **{**fields, **changes}))  # type: ignore[arg-type]

    def snapshot(self, *hosts: str) -> int:
        """An epoch by hand, reported by these hosts; returns its number."""
        self.feed(ev.SnapshotRequested(1))
        epoch = self.state.image.begun
        for host in hosts:
            self.report(host, epoch)
        return epoch

    # ---- questions ----------------------------------------------------------------------------------------------------

    def directives(self, host: str) -> list[msg.Directive]:
        return self.heard.get(self.current[host], [])

    def kinds(self, host: str) -> list[str]:
        return [type(x).__name__ for x in self.directives(host)]

    def last(self, host: str) -> msg.Directive:
        return self.directives(host)[-1]

    def count(self, kind: type[op.Kind]) -> int:
        return sum(isinstance(x, kind) for x in self.log)

    def given(self, kind: type[ev.Command]) -> int:
        return sum(isinstance(x, kind) for x in self.commands)

"""A leader core on a bench: proposals are committed and the store answers at once, unless a test holds them back."""

from collections import deque
from collections.abc import Callable

import msgspec

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.leader_state import LeaderOptions
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed, ProposalOutcome
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as msg
from snapline.messages import planned_ends as ends

MS = 1_000_000
SECOND = 1_000 * MS
DIGEST = b"d"


class Bench:
    """One leader, its log, its store and its hosts' streams.

    Attributes:
        held: classes of commands that are not carried out, but kept in `waiting`.
        heard: session → directives, in order.
        calling: hosts that call effects all the time.
        beats: host → what makes its heartbeats, where a plain one will not do.
    """

    AHEAD_NS = 0
    """How far the wall clock, which operations bear, is ahead of the monotonic one."""

    def __init__(
        self,
        hosts_expected: int = 2,
        *,
        agents: int = 4,
        period_ns: int = 0,
        keep_epochs: int = 3,
        timeout_ns: int = 0,
        may_begin_anew: bool = True,
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
        self.emitted: dict[int, dict[str, int]] = {}
        """Epoch → what its agents have emitted in it. Where none has, the store says so as it publishes."""
        self.start_leader()

    def start_leader(self, client: str = "leader") -> None:
        """A new leader on the same log; all streams are gone."""
        self.state = FleetState.restore(self.state.freeze())
        self.core = LeaderCore(
            self.state,
            msgspec.structs.replace(self.options, client=client),
        )
        self.current = {}
        self.feed(ev.LeaderStarted())

    # ---- events -----------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            self._note(events[0])
            for command in self.core.handle(self.now, events.popleft()):
                self.commands.append(command)
                self._note(command)
                if self._is_held(command):
                    self.waiting.append(command)
                elif (answer := self._carry_out(command)) is not None:
                    events.append(answer)
                events.extend(self._quiesced(command))
            self.state.validate()

    def _quiesced(self, command: ev.Command) -> list[ev.Event]:
        """Hosts call no effects, and say so when they are asked, but for those in `calling`."""
        if not isinstance(command, ev.SendDirective) or not isinstance(command.directive, ends.Quiesce):
            return []
        answer = ends.Quiesced(command.directive.number)
        idle = [
            number for host, number in self.current.items() if number in command.sessions and host not in self.calling
        ]
        return [ev.MessageReceived(number, answer) for number in idle if command.directive.holds_effects]

    def _note(self, what: ev.Event | ev.Command) -> None:
        """For those who write down what happens."""

    def _is_held(self, command: ev.Command) -> bool:
        return isinstance(command, self.held)

    def release(self) -> None:
        """Carry out what was held back."""
        waiting, self.waiting, self.held = self.waiting, [], ()
        for command in waiting:
            answer = self._carry_out(command)
            if answer is not None:
                self.feed(answer)

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

    def _carry_out(self, command: ev.Command) -> ev.Event | None:
        match command:
            case ev.Propose():
                return self._propose(command)
            case ev.SendDirective():
                for number in command.sessions:
                    self.heard.setdefault(number, []).append(command.directive)
            case ev.CloseStream():
                self.closed.append(command.session)
                self.current = {host: x for host, x in self.current.items() if x != command.session}
            case ev.WriteProbe():
                return ev.ProbeWritten(command.session, f"probes/{command.session}", b"content")
            case ev.WriteManifest():
                return ev.ManifestWritten(command.epoch, f"root-{command.epoch}")
            case ev.PublishEpoch():
                return ev.EpochPublished(command.epoch, outputs={} if self.emitted == {} else None)
            case ev.ReleaseEpoch():
                return ev.EpochReleased(command.epoch, outputs=self.emitted.get(command.epoch, {}))
            case ev.CheckLine():
                damaged = self.damaged.get(command.epoch, "")
                return ev.LineChecked(command.epoch, "flipped" if damaged else "", damaged)
            case ev.ResolveSnapshot():
                found = self.tags.get(command.snapshot, 0)
                error = "" if found else f"no snapshot {command.snapshot}"
                return ev.SnapshotResolved(command.snapshot, found, error)
            case ev.AnswerSnapshot():
                self.answers.append(command)
            case ev.Note():
                self.notes.append(command)
        return None

    def _propose(self, command: ev.Propose) -> ev.ProposalEnded:
        outcomes = self.outcomes.get(type(command.kind))
        if outcomes:
            return ev.ProposalEnded(command.token, outcomes.pop(0))
        operation = op.Operation(self.now + self.AHEAD_NS, command.client, command.sequence, command.kind)
        result = self.state.apply(op.decode_operation(op.encode_operation(operation)))
        self.log.append(command.kind)
        return ev.ProposalEnded(command.token, Committed(result))

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
            host, instance or f"{host}-1", f"{host}:1", fleet, digest, plan, definition_parts=parts or self.parts
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

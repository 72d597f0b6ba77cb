"""Driver of a leader core, which passes events to the core and executes its commands.

The driver makes no decisions and has no sockets, threads or clocks: its `LeaderEnvironment` provides them. In production, the environment
is the process (`leadership.py`); in the simulator, a heap with virtual time (`sim/world/simulated_replica.py`); in tests, a set of plain
functions. A `LeaderStore` executes the calls to the store; it is `StoreKeeper` both in production and in the simulator.

All calls to the driver come from one thread. The environment must not call back while a call to the driver is running.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.state.fleet_records import ProposalOutcome, Rejected
from snapline.coordinator.state.operations import Kind, Operation, encode_operation
from snapline.errors import UsageError
from snapline.messages.host_messages import Directive

_log = logging.getLogger("snapline.coordinator")


class LeaderEnvironment(Protocol):
    """Environment of a leader, which provides clocks, the hosts' streams, the replicated log, threads for store calls, and tools'
    requests."""

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970. Operations carry this time."""

    def set_timer(self, when_ns: int, function: Callable[[], None]) -> None:
        """Call `function` at this monotonic time, or as soon as possible if the time has passed. The new timer replaces the timer set
        earlier."""

    def send(self, sessions: Sequence[int], directive: Directive) -> None:
        """Send a directive to hosts, after all directives sent earlier. Sessions that have ended are skipped."""

    def close_stream(self, session: int) -> None:
        """End a host's stream once all directives sent so far have been delivered."""

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        """Propose an entry to the log. The environment must call `ended` exactly once, within a time limit."""

    def in_worker(self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]) -> None:
        """Run the blocking call `work(command)` in a worker thread, and pass its result to `then`. Several calls of `work` may run at the
        same time."""

    def in_cleaner(self, command: ev.Command, chore: Callable[[Any], object]) -> None:
        """Run the blocking call `chore(command)` in a thread that runs these calls one after another."""

    def answer(self, answer: ev.AnswerTool) -> None:
        """Pass an answer to the tool that has made the request."""

    def note(self, note: ev.Note) -> None:
        """Log a message of the leader core."""

    def end(self, ending: ev.EndRun) -> None:
        """End the coordinator's run."""


class LeaderStore(Protocol):
    """Interface to the store calls that execute a leader's commands; see `StoreKeeper`."""

    def write_probe(self, command: ev.WriteProbe) -> ev.ProbeWritten: ...
    def write_manifest(self, command: ev.WriteManifest) -> ev.ManifestWritten: ...
    def publish(self, command: ev.PublishEpoch) -> ev.EpochPublished: ...
    def release(self, command: ev.ReleaseEpoch) -> ev.EpochReleased: ...
    def check_line(self, command: ev.CheckLine) -> ev.LineChecked: ...
    def resolve(self, command: ev.ResolveSnapshot) -> ev.SnapshotResolved: ...
    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised: ...
    def scan(self, command: ev.ScanCheckpoints) -> ev.CheckpointsScanned: ...
    def remove_probe(self, command: ev.RemoveProbe) -> None: ...
    def delete(self, command: ev.DeleteEpochs) -> None: ...
    def sweep(self, command: ev.SweepStore) -> None: ...
    def sweep_logs(self, command: ev.SweepLogs) -> None: ...
    def delete_checkpoints(self, command: ev.DeleteCheckpoints) -> None: ...
    def sweep_checkpoints(self, command: ev.SweepCheckpoints) -> None: ...


class LeaderObserver:
    """Observer of a leader's driver. Each hook does nothing unless a subclass overrides it."""

    def event_received(self, event: ev.Event) -> None:
        """Observe an event before the core handles it."""

    def command_issued(self, command: ev.Command) -> None:
        """Observe a command before it is executed."""

    def proposal_ended(self, kind: Kind, outcome: ProposalOutcome) -> None:
        """Observe the outcome of a proposal before the core handles it."""


class LeaderDriver:
    """Driver of one leader core during one leadership."""

    def __init__(
        self,
        core: LeaderCore,
        store: LeaderStore,
        environment: LeaderEnvironment,
        observers: Sequence[LeaderObserver] = (),
    ) -> None:
        self.core = core
        self._store = store
        self._environment = environment
        self._observers = tuple(observers)
        self._wakeup_ns = 0
        """Time of the next timer call; 0 if none is scheduled."""

    def start(self) -> None:
        """Start the leader core."""
        self.feed(ev.LeaderStarted())

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the core and execute the resulting commands."""
        for observer in self._observers:
            observer.event_received(event)
        for command in self.core.handle(self._environment.now_ns(), event):
            for observer in self._observers:
                observer.command_issued(command)
            self.carry_out(command)
        if self.core.wakeup_ns < self._wakeup_ns or not self._wakeup_ns:
            self._set_timer()

    def _set_timer(self) -> None:
        self._wakeup_ns = self.core.wakeup_ns
        self._environment.set_timer(self._wakeup_ns, partial(self._on_timer, self._wakeup_ns))

    def _on_timer(self, wakeup_ns: int) -> None:
        if wakeup_ns != self._wakeup_ns:
            return  # An earlier wake-up has replaced this one.
        if self.core.wakeup_ns > self._environment.now_ns():
            self._set_timer()
            return
        self._wakeup_ns = 0
        self.feed(ev.TimerFired())

    def carry_out(self, command: ev.Command) -> None:
        """Execute one command from the core."""
        environment, store = self._environment, self._store
        match command:
            case ev.SendDirective():
                environment.send(command.sessions, command.directive)
            case ev.Propose():
                self._propose(command)
            case ev.CloseStream():
                environment.close_stream(command.session)
            case ev.AnswerTool():
                environment.answer(command)
            case ev.Note():
                environment.note(command)
            case ev.EndRun():
                environment.end(command)
            case ev.WriteProbe():
                environment.in_worker(command, store.write_probe, self.feed)
            case ev.WriteManifest():
                environment.in_worker(command, store.write_manifest, self.feed)
            case ev.PublishEpoch():
                environment.in_worker(command, store.publish, self.feed)
            case ev.ReleaseEpoch():
                environment.in_worker(command, store.release, self.feed)
            case ev.CheckLine():
                environment.in_worker(command, store.check_line, self.feed)
            case ev.ResolveSnapshot():
                environment.in_worker(command, store.resolve, self.feed)
            case ev.MaterialiseLine():
                environment.in_worker(command, store.materialise, self.feed)
            case ev.ScanCheckpoints():
                environment.in_worker(command, store.scan, self.feed)
            case ev.RemoveProbe():
                environment.in_cleaner(command, store.remove_probe)
            case ev.DeleteEpochs():
                environment.in_cleaner(command, store.delete)
            case ev.SweepStore():
                environment.in_cleaner(command, store.sweep)
            case ev.SweepLogs():
                environment.in_cleaner(command, store.sweep_logs)
            case ev.DeleteCheckpoints():
                environment.in_cleaner(command, store.delete_checkpoints)
            case ev.SweepCheckpoints():
                environment.in_cleaner(command, store.sweep_checkpoints)
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    def _propose(self, command: ev.Propose) -> None:
        operation = Operation(self._environment.wall_ns(), command.client, command.sequence, command.kind)
        ended = partial(self._proposal_ended, command)
        try:
            entry = encode_operation(operation)
        except UsageError as error:
            _log.error("an operation that cannot be proposed: %s", error)
            rejected = Rejected(str(error))
            event = ev.ProposalEnded(command.token, rejected)
            # The outcome must be passed on later, because the core is still busy; the result of a worker arrives later.
            self._environment.in_worker(command, lambda _: event, lambda _: ended(rejected))
            return
        self._environment.propose(command, entry, ended)

    def _proposal_ended(self, command: ev.Propose, outcome: ProposalOutcome) -> None:
        for observer in self._observers:
            observer.proposal_ended(command.kind, outcome)
        self.feed(ev.ProposalEnded(command.token, outcome))

"""Drives a host core: runs turns, captures states, loads recovery lines, and exchanges messages with the coordinator.

The driver makes no protocol decisions. The driver has no sockets, threads or clocks of its own, because its `HostEnvironment` provides
them. In production, the environment is the host process (`process.py`). In the simulator, the environment is an event queue with virtual
time (`sim/world/host.py`).
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import CheckpointWriter, ChunkTables, TakenCheckpoint
from snapline.agent_runtime.host.coordinator_messages import (
    ask_stop,
    definition_of,
    heartbeat_of,
    placed,
    read_probe,
    timed,
)
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.driver_interfaces import (
    Execute,
    HostEnvironment,
    HostObserver,
    RunTurn,
    TraceSink,
    Transport,
)
from snapline.agent_runtime.host.epoch_files import (
    Capture,
    Captures,
    EpochReports,
    LoadedLine,
    LoadProgress,
    StoredEpoch,
    committed_checkpoint,
    load_line,
    load_points,
    read_logs,
    write_epoch,
)
from snapline.agent_runtime.host.host_trace import Tracing
from snapline.agent_runtime.host.intake import Intake
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.migrations import MigrationError
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.channels.child_processes import exit_if_child
from snapline.channels.frame import Frame, LinkHello, Refused
from snapline.errors import (
    ConnectionRejectedError,
    DamagedDataError,
    FleetDefinitionError,
    SnaplineError,
    StoreError,
    UsageError,
)
from snapline.messages.host_messages import (
    BeginEpoch,
    CheckpointsKnown,
    Directive,
    EndEpoch,
    EvaluateStop,
    Finish,
    Heartbeat,
    HostMessage,
    Join,
    MayLeave,
    OpenTurn,
    Plan,
    PlanApplied,
    ReadProbe,
    TurnedAway,
    Welcome,
)
from snapline.protocols.names import LOCAL
from snapline.protocols.policy import Adaptive, AnyOf
from snapline.storage.disk.record import finding_of
from snapline.storage.log.answer_files import RecordedAnswers
from snapline.storage.log.commits import CommitEncoder
from snapline.storage.store.store import Store

TURNS_IN_A_ROW = 64
"""Largest number of turns that run between two passes of the event loop. This many plain turns take about a millisecond."""

ADAPTER_DIRECTIVES = (ReadProbe, EvaluateStop, Finish, MayLeave, CheckpointsKnown, TurnedAway)
"""Directives from the coordinator that the driver handles without the core."""

log = logging.getLogger("snapline.host")


class HostDriver:
    """Drives one host's core and agents, and owns the host's links (`LinkOwner`).

    Attributes:
        plan: number of the newest plan that was applied and confirmed.
        offer, ask, view: functions of `Intake` that accept inputs, wait for replies, and return views of agents.
        tracing: the host's trace, and the viewers that follow it.
        started: for each agent whose turn runs in a task, the time at which the turn started (monotonic ns).
        at: the turn or step that is running or starting, so that log lines can name it.
    """

    def __init__(
        self,
        host: str,
        fleet: Fleet,
        environment: HostEnvironment,
        transport: Transport,
        *,
        world: TurnEnvironment | None = None,
        trace: TraceSink | None = None,
        trace_every: int = 1,
        is_watched: bool = False,
        observer: HostObserver | None = None,
    ) -> None:
        """Create the driver. With `is_watched`, the core also reports events that only an observer needs, such as the sending of each
        logged message."""
        self.host = host
        self.fleet = fleet
        self.core = HostCore(
            host,
            protocol=fleet.protocol,
            policy=fleet.policy,
            trace_every=trace_every if trace is not None else 0,
            is_watched=is_watched,
            is_local=fleet.recovery == LOCAL,
            keeps_answers=fleet.keep_answers,
        )
        self._answers: RecordedAnswers | None = None
        self._has_read_answers = False
        self.plan = 0
        self.started: dict[str, int] = {}
        self.at: ev.StartTurn | ev.RunStep | None = None
        self._environment = environment
        self._transport = transport
        self._now_ns = environment.now_ns
        self.tracing = Tracing(environment, self.core, self.feed, trace, trace_every)
        self.turns = Turns(
            fleet, self._turn_ended, log.warning, world, start=environment.start_turn, step_ended=self.feed
        )
        self.checkpoints = CheckpointWriter(
            environment.open_store,
            environment.in_worker,
            environment.send,
            self.feed,
            call_later=environment.call_later,
        )
        self._intake = Intake(environment, self.feed, keeps_answers=fleet.keep_answers)
        self.offer, self.ask, self.view = self._intake.offer, self._intake.ask, self._intake.view
        self.open_waits, self.waiting = self._intake.open_waits, self._intake.waiting
        self.queue: deque[ev.StartTurn] = deque()
        self._captures: dict[int, Captures] = {}
        self._tables = ChunkTables()
        self._reports = EpochReports()
        self._commits = CommitEncoder()
        self._frame: Frame | None = None
        self._progress = LoadProgress(self._now_ns, self.fleet.busy_limit_s)
        self._is_over = False
        policy = fleet.policy
        parts = policy.policies if isinstance(policy, AnyOf) else (policy,)
        self._measures = any(isinstance(part, Adaptive) for part in parts)
        self._observer = HostObserver() if observer is None else observer
        self._run_turn: RunTurn = self.turns.run
        self._observer.attached(self)
        self._executors = self._make_executors(transport)
        for kind, observe in self._observer.commands().items():
            self._executors[kind] = partial(_observed, observe, self._executors.get(kind, _nothing))

    def _make_executors(self, transport: Transport) -> dict[type[ev.HostOutput], Execute]:
        return {
            ev.StartTurn: self.queue.append,
            ev.WakeWriter: lambda command: transport.wake(command.peer),
            ev.WriteFrame: self._carry_frame,
            ev.RunStep: self._run_step,
            ev.TakeAnswer: self._run_step,
            ev.RunEffect: self._run_step,
            ev.UndoTurn: lambda command: self.turns.undo(command.agent),
            ev.CaptureState: self._capture,
            ev.CaptureCommit: self._capture_commit,
            ev.TakeCheckpoint: self._take_checkpoint,
            ev.ReportFrozen: lambda command: self.checkpoints.report_frozen(command, self.core.start),
            ev.StoreEpoch: self._store_epoch,
            ev.ReportEpoch: self._report_epoch,
            ev.DropEpoch: self._drop_epoch,
            ev.CancelTurns: self._cancel_turns,
            ev.LoadAgents: self._load_agents,
            ev.AppendBatch: self._intake.append,
            ev.AnswerInputs: self._intake.answer,
            ev.AnswerAsk: self._intake.answer_ask,
            ev.AnswerView: self._intake.answer_view,
            ev.AnswerOpenWaits: self._intake.answer_open_waits,
            ev.AnswerWaiting: self._intake.answer_waiting,
            ev.ForgetAgent: lambda command: self.turns.forget(command.agent),
            ev.DialPeer: lambda command: transport.dial(command.peer, command.address),
            ev.KnockAtPeer: lambda command: transport.knock(command.peer, command.address, command.hello),
            ev.UndialPeer: lambda command: transport.undial(command.peer),
            ev.CloseStream: self._close_stream,
            ev.RefuseStream: lambda command: transport.refuse_stream(command.peer, command.reason, command.is_final),
            ev.Trace: self.tracing.carry,
            ev.MessageDeadLettered: lambda command: _log_dead_letter(command.sender, command.agent, command.error),
            ev.UnroutableMessageDeadLettered: lambda command: _log_dead_letter(
                command.sender, command.receiver, command.error
            ),
            ev.Note: lambda command: log.log(logging.getLevelNamesMapping()[command.level.upper()], command.text),
        }

    # ---- feeding the core -----------------------------------------------------------------------------------------

    def feed(self, event: ev.Heard) -> None:
        """Pass one event to the core, and execute the commands that the core returns."""
        exit_if_child()
        if self._is_over:
            return
        try:
            self._carry(self.core.handle(self._now_ns(), event))
        except Exception as error:
            self._environment.fail(error)
            raise
        self._environment.fed()

    def stop(self) -> None:
        """Stop the driver. The agents start no more turns, and all pending work is discarded."""
        self._is_over = True
        self._intake.stop()
        self.queue.clear()
        self.turns.forget_all()

    def wrap_turns(self, wrap: Callable[[RunTurn], RunTurn]) -> None:
        """Wrap the function that runs turns and segments on the event loop."""
        self._run_turn = wrap(self._run_turn)

    def run_turns(self, most: int = TURNS_IN_A_ROW) -> None:
        """Run up to `most` turns. Then pass the messages that the turns have sent to the links."""
        queue, core, run, executors = self.queue, self.core, self._run_turn, self._executors
        now_ns, append = self._now_ns, queue.append
        for _ in range(min(len(queue), most)):
            if not queue:
                break
            self.at = turn = queue.popleft()
            outcome = run(turn)
            exit_if_child()
            if outcome is None:
                self.started[turn.agent] = now_ns()
                continue
            for command in core.handle(now_ns(), outcome):
                if type(command) is ev.StartTurn:
                    append(command)
                else:
                    execute = executors.get(type(command))
                    if execute is not None:
                        execute(command)
                    else:
                        self._tell_coordinator(command)
        self.at = None
        self._carry(core.handle(now_ns(), ev.BatchEnded()))

    def _turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> None:
        event = self._observer.turn_ended(event)
        self.started.pop(event.agent, None)
        self.feed(event)

    def _run_step(self, command: ev.RunStep) -> None:
        before, self.at = self.at, command
        self.turns.run_step(command)
        self.at = before

    def _carry(self, commands: list[ev.HostOutput]) -> None:
        executors = self._executors
        for command in commands:
            execute = executors.get(type(command))
            if execute is not None:
                execute(command)
            else:
                self._tell_coordinator(command)

    # ---- links (LinkOwner) ----------------------------------------------------------------------------------------

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        """Check the `hello` of `peer`, which opens a stream. Return the refusal to send, or None if the stream is acceptable."""
        return self.core.judge(hello)

    def dial_requested(self, hello: LinkHello) -> None:
        """Handle a peer host's request to dial it."""
        self.feed(ev.PeerKnocked(hello))

    def opened(self, peer: str, attempt: int) -> bool:
        """Handle an opened stream. Return whether the host expects a link to this peer."""
        if not self.core.links.is_expected(peer):
            return False
        self.feed(ev.StreamOpened(peer, attempt))
        return True

    def received(self, peer: str, frame: Frame) -> None:
        """Handle a received frame."""
        self.feed(ev.FrameReceived(peer, frame))

    def next_frame(self, peer: str) -> Frame | None:
        """Return the next frame to write to `peer`, or None if there is nothing to write."""
        if peer not in self.core.peers:
            return None
        self._frame = None
        self.feed(ev.WriteReady(peer))
        return self._frame

    def closed(self, peer: str, error: str | None) -> None:
        """Handle a closed stream."""
        if peer in self.core.peers:
            self.feed(ev.StreamClosed(peer))

    def _carry_frame(self, command: ev.WriteFrame) -> None:
        self._frame = command.frame

    def _close_stream(self, command: ev.CloseStream) -> None:
        log.info("stream to %s closed: %s", command.peer, command.reason)
        self._transport.close_stream(command.peer)

    # ---- coordinator ----------------------------------------------------------------------------------------------

    def hello(self, *, instance: str, address: str) -> Join:
        """Return the first message to send on a new stream to the coordinator."""
        self.checkpoints.stream_opened()
        fleet, parts = self.fleet, self.fleet.definition_parts()
        digest = fleet.definition_digest()
        return Join(
            self.host,
            instance,
            address,
            fleet.name,
            digest,
            self.plan,
            definition_parts=parts,
            dependencies=self._environment.dependencies(),
        )

    def heartbeat(
        self, sequence: int, busy: tuple[OpenTurn, ...] = (), certificate_left_ns: int | None = None
    ) -> Heartbeat:
        """Return a heartbeat for the coordinator, which shows that this host is alive and reports its state."""
        now_ns, steps = self._now_ns(), self._progress.steps()
        return heartbeat_of(
            *(self.core, sequence),
            now_ns=now_ns,
            steps_loaded=steps,
            busy=busy,
            certificate_left_ns=certificate_left_ns,
        )

    def _tell_coordinator(self, said: ev.HostOutput) -> None:
        assert isinstance(said, HostMessage), f"nobody carries out {said!r}"
        if isinstance(said, PlanApplied):
            if said.plan != self.plan:
                self._reports.plan_began()
            self.plan = said.plan
        self._environment.send(said)

    def directive_received(self, directive: Directive) -> None:
        """Handle a directive from the coordinator."""
        self._environment.directive_received(directive)
        match directive:
            case Welcome():
                self._welcomed(directive)
            case ReadProbe():
                self._environment.in_worker(
                    read_probe, self._environment.open_store, directive.path, then=self._environment.send
                )
            case EvaluateStop(epoch, _, is_decided):
                ask = partial(ask_stop, self.fleet, self._environment.open_store, epoch, is_decided=is_decided)
                self._environment.in_evaluator(ask, self._environment.send)
            case Finish():
                log.info("the fleet has ended: %s", directive.reason or directive.outcome)
                self._environment.finish(0 if directive.outcome == "stopped" else 1)
            case BeginEpoch():
                self._tables.begun(directive.base)
                self._reports.begun(directive)
            case EndEpoch():
                self._tables.ended(directive.epoch, is_complete=directive.is_complete)
            case CheckpointsKnown():
                self.checkpoints.known(directive.sequence)
            case TurnedAway():
                self._turned_away(directive)
        if not isinstance(directive, ADAPTER_DIRECTIVES):
            self.feed(placed(directive) if isinstance(directive, Plan) else directive)
        if isinstance(directive, EndEpoch) and not directive.is_complete:
            self.checkpoints.drop_round(directive.epoch)
        self._observer.directive_handled()

    def _turned_away(self, rejection: TurnedAway) -> None:
        """Handle the coordinator's rejection of this host. If the rejection is final, stop the host. If the coordinator never welcomed the
        host, the host was started incorrectly, so it fails with the reason. If the host was welcomed before, another host has replaced it,
        so it exits without an error."""
        log.warning("turned away: %s", rejection.reason)
        if rejection.is_final and not self.core.start:
            self._environment.fail(UsageError(rejection.reason))
        elif rejection.is_final:
            self._environment.finish(ConnectionRejectedError.exit_code)

    def _welcomed(self, welcome: Welcome) -> None:
        self.turns.welcomed(welcome.cluster)
        self._reports.welcomed()
        self.checkpoints.repeat()
        if welcome.wants_definition:
            self._environment.send(definition_of(self.fleet))
        self._environment.welcomed(welcome.heartbeat_ns)

    # ---- epochs and plans -----------------------------------------------------------------------------------------

    def _capture(self, command: ev.CaptureState) -> None:
        self._commits.recorded(command.agent)
        if not command.control.is_born:
            return
        started = self._now_ns()
        base = self._tables.base_of(command.agent)
        try:
            self._environment.capturing(command.agent)
            known, version, image = self.turns.capture(command.agent, base)
        except SnaplineError as error:
            log.warning("%s", error)
            self.feed(ev.CaptureFailed(command.agent, command.epochs, str(error)))
            return
        self._environment.captured(command, known, image)
        took = self._now_ns() - started
        if self.tracing.is_on:
            self.tracing.checkpoint(command.agent, command.control.number, "coordinated", command.epochs)
        capture = Capture(
            known, version, image, command.control, self._environment.wall_ns(), took,
            base_epoch=self._tables.base_epoch, base=base, uses=len(command.epochs), started_ns=started,
            clock=self._environment.boot_clock(),
        )  # fmt: skip
        for epoch in command.epochs:
            self._captures.setdefault(epoch, {})[command.agent] = capture

    def _capture_commit(self, command: ev.CaptureCommit) -> None:
        """Capture and encode a commit before any agent's next turn."""
        checkpoints = []
        recorded = self._environment.wall_ns(), self._environment.boot_clock()
        for each in command.agents:
            try:
                known, version, state = self.turns.committed_state(each.agent)
            except SnaplineError as error:
                log.warning("%s", error)
                self.feed(ev.CommitFailed(command.plan, each.agent, str(error)))
                return
            self._environment.committed(each, state)
            checkpoints.append(committed_checkpoint(each, known, version, state, *recorded))
        parts = self._commits.encode(command.plan, command.commit, checkpoints)
        self.feed(ev.CommitCaptured(command.plan, command.commit, tuple(parts)))

    def _take_checkpoint(self, command: ev.TakeCheckpoint) -> None:
        started = self._now_ns()
        try:
            self._environment.capturing(command.agent)
            known, version, image = self.turns.capture(command.agent)
        except SnaplineError as error:
            log.warning("%s", error)
            failed = ev.CheckpointFailed(command.agent, command.control.incarnation, str(error))
            self._observer.checkpoint_failed(failed)
            self.feed(failed)
            return
        self._environment.captured(command, known, image)
        took = self._now_ns() - started
        if self.tracing.is_on and command.basis in ("basic", "forced"):
            self.tracing.checkpoint(command.agent, command.control.number, command.basis)
        elif self.tracing.is_on:
            # A tentative checkpoint is traced when it becomes permanent, but its contents are traced before they are durable.
            self.tracing.flush()
        recorded = self._environment.wall_ns(), took, self._environment.boot_clock()
        self.checkpoints.add(TakenCheckpoint(known, version, image, command, *recorded))
        if self._measures:
            self.feed(ev.CheckpointMeasured(command.agent, took))

    def _store_epoch(self, command: ev.StoreEpoch) -> None:
        self._environment.part_closed(command.epoch)
        writer = f"{self.host}-{self.core.start}"
        captures = self._captures.pop(command.epoch, {})
        earlier = self._reports.earlier(command.epoch)
        closed_ns = self._now_ns()

        def store() -> StoredEpoch | str:
            try:
                return write_epoch(self._environment.open_store(), writer, self.core.start, command, captures, earlier)
            except (SnaplineError, OSError) as error:
                return str(error)

        self._environment.in_worker(
            store, then=lambda outcome: self._epoch_stored(command, captures, closed_ns, outcome)
        )

    def _epoch_stored(
        self, command: ev.StoreEpoch, captures: Captures, closed_ns: int, outcome: StoredEpoch | str
    ) -> None:
        _release(captures)
        if isinstance(outcome, str):
            log.warning("epoch %d cannot be stored: %s", command.epoch, outcome)
            self.feed(ev.EpochNotStored(command.epoch, command.plan, outcome))
            return
        if command.plan == self.core.plan:
            times = {"heard_ns": command.heard_ns, "closed_ns": closed_ns, "durable_ns": self._now_ns()}
            self._reports.written(timed(outcome.report, captures, **times), outcome.numbers)
            self._tables.written(command.epoch, outcome.tables)
            self.feed(ev.EpochStored(command.epoch, command.plan))

    def _report_epoch(self, command: ev.ReportEpoch) -> None:
        report = self._reports.report_of(command.epoch)
        if report is not None:
            self._environment.send(report)

    def _drop_epoch(self, command: ev.DropEpoch) -> None:
        _release(self._captures.pop(command.epoch, {}))
        self._reports.dropped(command.epoch)

    def _cancel_turns(self, _command: ev.CancelTurns) -> None:
        self.checkpoints.begin(f"{self.host}-{self.core.start}", self.core.start, self.core.plan)
        self.queue.clear()
        self.started.clear()
        self.turns.forget_all()
        for captures in self._captures.values():
            _release(captures)
        self._captures.clear()

    def _load_agents(self, command: ev.LoadAgents) -> None:
        self._progress.step()
        log.info("plan %d: loading %d agents from epoch %d", command.plan, len(command.agents), command.line_epoch)
        self._environment.in_worker(self._load, command, then=lambda outcome: self._loaded(command, outcome))

    def _load(self, command: ev.LoadAgents) -> LoadedLine | ev.LoadFailed:
        if command.plan != self.core.plan:  # the command waited while an older plan's agents were loading
            return ev.LoadFailed(command.plan, 0, "", "a newer plan has come")
        try:
            store = self._environment.open_store()
            line = store.confirm_damage(lambda: self._read_line(store, command))
            line.buffers = self.turns.buffers_for(line.objects.values())
            return line
        except DamagedDataError as error:
            finding = finding_of(error)
            path = finding.path if finding is not None else ""
            return ev.LoadFailed(command.plan, command.line_epoch, path, str(error))
        except MigrationError:
            raise  # stop this host, since a plan that fails three times would end the fleet permanently
        except UsageError as error:
            if command.line_epoch:
                return ev.LoadFailed(command.plan, 0, "", str(error))
            raise FleetDefinitionError(str(error)) from error  # the definition is invalid
        except Exception as error:
            may_pass = isinstance(error, StoreError | OSError)
            return ev.LoadFailed(command.plan, 0, "", str(error), may_pass=may_pass)

    def _read_line(self, store: Store, command: ev.LoadAgents) -> LoadedLine:
        line = self._read_agents(store, command)
        if not self._has_read_answers:
            try:
                self._answers, self._has_read_answers = store.recorded_answers(), True
            except DamagedDataError as error:  # no earlier epoch would have better answers
                raise StoreError(str(error)) from error
        line.answers = self._answers
        return line

    def _read_agents(self, store: Store, command: ev.LoadAgents) -> LoadedLine:
        clock = self._environment.boot_clock()
        if self.fleet.recovery != LOCAL:
            line = load_line(store, self.fleet, command, self._progress, clock)
            line.logged = read_logs(store, command, line.agents)
            return line
        if store.logs_unsupported_reason:
            raise UsageError(f'{store.logs_unsupported_reason}: a fleet with recovery="local" needs another store')
        return load_points(store, self.fleet, command, self._progress, clock)

    def _loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        self._observer.line_loaded(command, outcome)
        if command.plan != self.core.plan:
            return
        if isinstance(outcome, ev.LoadFailed):
            log.warning("plan %d cannot be loaded: %s", command.plan, outcome.reason)
            self.feed(outcome)
            return
        for agent, agent_object in outcome.objects.items():
            self.turns.add(agent, agent_object)
        has_all_answers = outcome.answers is not None and outcome.answers.is_complete
        self.turns.use_store(takes_outputs=not outcome.logged.why_none, has_all_answers=has_all_answers)
        self._tables.loaded(command.line_epoch, outcome.tables)
        self._reports.plan_began()
        if outcome.buffers:
            self._environment.in_evaluator(lambda: self.turns.reserve(outcome.buffers), lambda _: None)
        if self.tracing.is_on:
            loaded = outcome.agents
            numbers = {
                loaded_agent.agent: loaded_agent.checkpoint.number if loaded_agent.checkpoint is not None else 0
                for loaded_agent in loaded
            }
            self.tracing.plan(command.plan, numbers)
        logged = outcome.logged
        agents = tuple(outcome.agents)
        self.feed(
            ev.AgentsLoaded(
                command.plan,
                agents,
                logged.inputs,
                logged.dropped,
                logged.entries,
                why_no_log=logged.why_none,
                log_key=logged.log_key,
                is_authenticated=logged.is_authenticated,
                answers=outcome.answers,
            )
        )


def _observed(observe: Callable[[ev.HostOutput, Execute], None], execute: Execute, command: ev.HostOutput) -> None:
    observe(command, execute)


def _nothing(_command: ev.HostOutput) -> None:
    """Ignore a command that only an observer needs."""


def _log_dead_letter(sender: str, receiver: str, error: str) -> None:
    log.warning("a message from %s to %s went to the dead letters: %s", sender, receiver, error)


def _release(captures: Captures) -> None:
    for capture in captures.values():
        capture.release()

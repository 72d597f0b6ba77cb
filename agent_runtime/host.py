"""The host process: feeds the host core and carries its commands out. Decides nothing about protocols.

One event loop does everything but blocking work; the store is written and read in a worker thread. Turns are run in
batches, so that frames, heartbeats and the coordinator's word are never kept waiting for long.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from snapline.agent_runtime import host_events as ev
from snapline.agent_runtime.agent import Agent
from snapline.agent_runtime.checkpoint_files import TakenCheckpoint
from snapline.agent_runtime.checkpoint_writer import CheckpointWriter
from snapline.agent_runtime.coordinator_messages import definition_of, event_of, heartbeat_of, message_of
from snapline.agent_runtime.epoch_files import Capture, Captures, load_line, write_epoch
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host_core import HostCore
from snapline.agent_runtime.session import Session
from snapline.agent_runtime.stopping import ask_stop
from snapline.agent_runtime.trace import TraceWriter
from snapline.agent_runtime.turns import Turns
from snapline.channels.frame import Frame, Hello, Refused
from snapline.channels.grpc_link import LinkTransport
from snapline.channels.security import Security, is_loopback
from snapline.errors import DamagedDataError, SnaplineError
from snapline.ids import check_id
from snapline.protocols.policy import Adaptive, AnyOf
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.storage.damage import finding_of
from snapline.storage.store import Store

TURNS_IN_A_ROW = 64
"""Turns between two looks at the event loop: a millisecond or so of plain turns."""

LONG_TURN_S = 1.0
"""Turns that run longer are named in the heartbeat, so that a waiting epoch can be explained."""

_Loaded = tuple[list[ev.LoadedAgent], dict[str, Agent]]

log = logging.getLogger("snapline.host")


class HostOptions(msgspec.Struct, kw_only=True):
    """How to run one host."""

    host: str
    instance: str  # random, one for each run of the process
    fleet: Fleet
    coordinator: str
    store: str
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    security: Security
    trace: str = ""  # folder for the host's trace; "" = none
    trace_every: int = 1  # of each channel, trace every so manieth message


class Host:
    """One host of a fleet; see `run_host`."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options
        self._fleet = options.fleet
        self._core = HostCore(
            check_id(options.host, "host"),
            protocol=options.fleet.protocol,
            policy=options.fleet.policy,
            trace_every=options.trace_every if options.trace else 0,
        )
        self._trace: TraceWriter | None = None
        self._turns = Turns(options.fleet, self._turn_ended, log.warning)
        self._transport = LinkTransport(self, host=options.host, security=options.security)
        self._session = Session(
            options.coordinator, options.security, self._hello, self._directive_received, log.warning
        )
        self._store: Store | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="snapline-store")
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="snapline-stop")
        self._checkpoints = CheckpointWriter(self._open_store, self._in_worker, self._session.send, self._feed)
        self._queue: deque[ev.StartTurn] = deque()
        self._started: dict[str, float] = {}
        self._captures: dict[int, Captures] = {}
        self._reports: dict[int, pb.EpochReport] = {}
        self._frame: Frame | None = None
        self._is_pumping = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None
        self._finished: asyncio.Future[int] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._heartbeat_ns = 500_000_000
        self._address = ""
        self._plan = 0
        policy = options.fleet.policy
        parts = policy.policies if isinstance(policy, AnyOf) else (policy,)
        self._measures = any(isinstance(part, Adaptive) for part in parts)
        self._carriers: Mapping[type[ev.Command], Callable[..., None]] = {
            ev.StartTurn: self._queue.append,
            ev.WakeWriter: lambda command: self._transport.wake(command.peer),
            ev.WriteFrame: self._carry_frame,
            ev.UndoTurn: lambda command: self._turns.undo(command.agent),
            ev.CaptureState: self._capture,
            ev.TakeCheckpoint: self._take_checkpoint,
            ev.ReportFrozen: lambda command: self._checkpoints.report_frozen(command, self._core.start),
            ev.StoreEpoch: self._store_epoch,
            ev.ReportEpoch: self._report_epoch,
            ev.DropEpoch: self._drop_epoch,
            ev.CancelTurns: self._cancel_turns,
            ev.LoadAgents: self._load_agents,
            ev.ForgetAgent: lambda command: self._turns.forget(command.agent),
            ev.DialPeer: lambda command: self._transport.dial(command.peer, command.address),
            ev.UndialPeer: lambda command: self._transport.undial(command.peer),
            ev.CloseStream: self._close_stream,
            ev.RefuseStream: lambda command: self._transport.refuse_stream(
                command.peer, command.reason, command.is_final
            ),
            ev.Trace: self._carry_trace,
            ev.Note: lambda command: log.log(logging.getLevelName(command.level.upper()), command.text),
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Take part in the fleet until it ends; returns an exit code."""
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._options.security.check_listen_address(self._options.listen)
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self._finish, 0 if number == signal.SIGTERM else 130)
        if self._options.trace:
            self._trace = TraceWriter(
                Path(self._options.trace) / f"{self._options.host}.{self._options.instance}.jsonl"
            )
        port = await self._transport.start(self._options.listen)
        self._address = self._options.advertise or f"{self._options.listen.rpartition(':')[0]}:{port}"
        log.info("host %s listens on %s", self._options.host, self._address)
        session = loop.create_task(self._session.run())
        session.add_done_callback(self._session_ended)
        try:
            return await self._finished
        finally:
            await self._session.leave("host stops")
            session.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if self._trace is not None:
                self._trace.close()
            await self._transport.stop()
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._evaluator.shutdown(wait=False, cancel_futures=True)

    def _finish(self, code: int) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(code)
        self._session.expect_end()
        self._stop_turns()

    def _fail(self, error: BaseException) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)
        self._stop_turns()

    def _stop_turns(self) -> None:
        """From here on nothing happens to the agents: what they would still do belongs to nobody."""
        self._is_over = True
        self._queue.clear()
        self._turns.forget_all()

    def _session_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception() or AssertionError())

    # ---- feeding the core -----------------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        """Hand one event to the core and carry its commands out."""
        if self._is_over:
            return
        try:
            self._carry(self._core.handle(time.monotonic_ns(), event))
        except Exception as error:
            self._fail(error)
            raise
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> None:
        """A turn that had a task of its own has ended."""
        self._started.pop(event.agent, None)
        self._feed(event)

    def _carry(self, commands: list[ev.Command]) -> None:
        carriers = self._carriers
        for command in commands:
            carrier = carriers.get(type(command))
            if carrier is not None:
                carrier(command)
            else:
                self._tell_coordinator(command)

    def _pump(self) -> None:
        """Run a batch of turns, then let the links have what they sent.

        An error here is one of ours: the host ends with it rather than look alive without ever running a turn again.
        """
        if self._is_over:
            return
        try:
            self._run_turns()
            self._carry(self._core.handle(time.monotonic_ns(), ev.BatchEnded()))
        except Exception as error:
            self._fail(error)
            return
        if self._queue:
            asyncio.get_running_loop().call_soon(self._pump)
        else:
            self._is_pumping = False
        self._set_timer()

    def _run_turns(self) -> None:
        queue, core, run, carriers = self._queue, self._core, self._turns.run, self._carriers
        monotonic_ns, append = time.monotonic_ns, queue.append
        for _ in range(min(len(queue), TURNS_IN_A_ROW)):
            if not queue:
                break
            turn = queue.popleft()
            ended = run(turn)
            if ended is None:
                self._started[turn.agent] = time.monotonic()
                continue
            for command in core.handle(monotonic_ns(), ended):
                if type(command) is ev.StartTurn:
                    append(command)
                else:
                    carrier = carriers.get(type(command))
                    if carrier is not None:
                        carrier(command)
                    else:
                        self._tell_coordinator(command)

    def _set_timer(self) -> None:
        wakeup_ns = self._core.wakeup_ns
        if wakeup_ns is None or (self._timer_ns is not None and self._timer_ns <= wakeup_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (wakeup_ns - time.monotonic_ns()) / 1e9)
        self._timer_ns = wakeup_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = self._timer_ns = None
        self._feed(ev.TimerFired())

    # ---- links (LinkOwner) ----------------------------------------------------------------------------------------

    def accepted(self, peer: str, hello: Hello) -> Refused | None:
        return self._core.judge(hello)

    def opened(self, peer: str, attempt: int) -> bool:
        if peer not in self._core.peers:
            return False
        self._feed(ev.StreamOpened(peer, attempt))
        return True

    def received(self, peer: str, frame: Frame) -> None:
        self._feed(ev.FrameReceived(peer, frame))

    def next_frame(self, peer: str) -> Frame | None:
        if peer not in self._core.peers:
            return None
        self._frame = None
        self._feed(ev.WriteReady(peer))
        return self._frame

    def closed(self, peer: str, error: str | None) -> None:
        if peer in self._core.peers:
            self._feed(ev.StreamClosed(peer))

    def is_remote(self, peer: str) -> bool:
        entry = self._core.roster.get(peer)
        return entry is not None and not is_loopback(entry.address)

    def _carry_frame(self, command: ev.WriteFrame) -> None:
        self._frame = command.frame

    def _close_stream(self, command: ev.CloseStream) -> None:
        log.info("stream to %s closed: %s", command.peer, command.reason)
        self._transport.close_stream(command.peer)

    def _carry_trace(self, command: ev.Trace) -> None:
        if self._trace is None:
            return
        if command.what == "checkpoint":
            self._trace.checkpoint(command.agent, command.number, command.other)
        else:
            self._trace.message(command.what, command.agent, command.other, command.number)

    # ---- coordinator ----------------------------------------------------------------------------------------------

    def _hello(self) -> pb.HostMessage:
        return pb.HostMessage(
            join=pb.Join(
                host=self._options.host,
                instance=self._options.instance,
                address=self._address,
                fleet=self._fleet.name,
                definition_digest=self._fleet.definition_digest(),
                plan=self._plan,
            )
        )

    def _tell_coordinator(self, command: ev.Command) -> None:
        message = message_of(command, self._core.start)
        if message is None:
            raise AssertionError(f"nobody carries out {command!r}")
        if isinstance(command, ev.ConfirmPlan):
            self._plan = command.plan
        self._session.send(message)

    def _directive_received(self, directive: pb.Directive) -> None:
        match directive.WhichOneof("kind"):
            case "welcome":
                self._welcomed(directive.welcome)
            case "evaluate":
                self._evaluator.submit(self._evaluate, directive.evaluate.epoch, asyncio.get_running_loop())
            case "finish":
                finish = directive.finish
                log.info("the fleet has ended: %s", finish.reason or finish.outcome)
                self._finish(0 if finish.outcome == "stopped" else 1)
            case "known":
                self._checkpoints.known(directive.known.sequence)
            case "turned_away":
                log.warning("turned away: %s", directive.turned_away.reason)
                if directive.turned_away.is_final:
                    self._finish(5)
        event = event_of(directive)
        if event is not None:
            self._feed(event)

    def _welcomed(self, welcome: pb.Welcome) -> None:
        self._heartbeat_ns = welcome.heartbeat_ns or self._heartbeat_ns
        self._checkpoints.repeat()
        if welcome.wants_definition:
            self._session.send(pb.HostMessage(fleet=definition_of(self._fleet)))
        if welcome.probe_path:
            self._in_worker(self._read_probe, welcome.probe_path, then=self._session.send)
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    def _read_probe(self, path: str) -> pb.HostMessage:
        try:
            content, error = self._open_store().read_probe(path), ""
        except (SnaplineError, OSError) as caught:
            content, error = b"", str(caught)
        return pb.HostMessage(probe=pb.ProbeRead(path=path, content=content, error=error))

    def _open_store(self) -> Store:
        if self._store is None:
            self._store = Store.open(self._options.store)
        return self._store

    async def _beat(self) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(self._heartbeat_ns / 1e9)
            sequence += 1
            beat = heartbeat_of(self._core, sequence)
            now = time.monotonic()
            for agent, since in self._started.items():
                if now - since > LONG_TURN_S:
                    beat.busy.add(agent=agent, elapsed_ns=round((now - since) * 1e9))
            self._session.send(pb.HostMessage(heartbeat=beat))

    # ---- epochs and plans -----------------------------------------------------------------------------------------

    def _in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run blocking work in order, off the loop; `then` gets its result on the loop."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                loop.call_soon_threadsafe(self._fail, error)
            else:
                loop.call_soon_threadsafe(then, result)

        self._worker.submit(work)

    def _capture(self, command: ev.CaptureState) -> None:
        if not command.control.is_born:
            return
        started = time.perf_counter_ns()
        try:
            known, version, image = self._turns.capture(command.agent)
        except SnaplineError as error:
            log.warning("%s", error)
            self._feed(ev.CaptureFailed(command.agent, command.epochs, str(error)))
            return
        took = time.perf_counter_ns() - started
        if self._trace is not None:
            self._trace.checkpoint(command.agent, command.control.number, "coordinated", command.epochs)
        capture = Capture(known, version, image, command.control, time.time_ns(), took)
        for epoch in command.epochs:
            self._captures.setdefault(epoch, {})[command.agent] = capture

    def _take_checkpoint(self, command: ev.TakeCheckpoint) -> None:
        started = time.perf_counter_ns()
        try:
            known, version, image = self._turns.capture(command.agent)
        except SnaplineError as error:
            log.warning("%s", error)
            self._feed(ev.CheckpointFailed(command.agent, command.control.incarnation, str(error)))
            return
        took = time.perf_counter_ns() - started
        if self._trace is not None and command.basis in ("basic", "forced"):
            self._trace.checkpoint(command.agent, command.control.number, command.basis)
        elif self._trace is not None:
            self._trace.flush()  # a tentative one is traced when it is permanent; what it holds, before it is durable
        self._checkpoints.add(TakenCheckpoint(known, version, image, command, time.time_ns(), took))
        if self._measures:
            self._feed(ev.CheckpointMeasured(command.agent, took))

    def _store_epoch(self, command: ev.StoreEpoch) -> None:
        writer = f"{self._options.host}-{self._core.start}"
        captures = self._captures.pop(command.epoch, {})

        def store() -> pb.EpochReport | str:
            try:
                return write_epoch(self._open_store(), writer, self._core.start, command, captures)
            except (SnaplineError, OSError) as error:
                return str(error)

        self._in_worker(store, then=lambda outcome: self._epoch_stored(command, outcome))

    def _epoch_stored(self, command: ev.StoreEpoch, outcome: pb.EpochReport | str) -> None:
        if isinstance(outcome, str):
            log.warning("epoch %d cannot be stored: %s", command.epoch, outcome)
            self._tell_coordinator(ev.RefuseEpoch(command.epoch, outcome))
            return
        if command.plan == self._core.plan:
            self._reports[command.epoch] = outcome
            self._feed(ev.EpochStored(command.epoch, command.plan))

    def _report_epoch(self, command: ev.ReportEpoch) -> None:
        report = self._reports.get(command.epoch)
        if report is not None:
            self._session.send(pb.HostMessage(report=report))

    def _drop_epoch(self, command: ev.DropEpoch) -> None:
        self._captures.pop(command.epoch, None)
        self._reports.pop(command.epoch, None)

    def _cancel_turns(self, _command: ev.CancelTurns) -> None:
        self._checkpoints.begin(f"{self._options.host}-{self._core.start}", self._core.start, self._core.plan)
        self._queue.clear()
        self._started.clear()
        self._turns.forget_all()

    def _load_agents(self, command: ev.LoadAgents) -> None:
        def load() -> "_Loaded | ev.LoadFailed":
            store = self._open_store() if command.line_epoch else None
            try:
                return load_line(store, self._fleet, command)
            except DamagedDataError as error:
                found = finding_of(error)
                path = found.path if found is not None else ""
                return ev.LoadFailed(command.plan, command.line_epoch, path, str(error))
            except Exception as error:
                return ev.LoadFailed(command.plan, 0, "", str(error))

        log.info("plan %d: loading %d agents from epoch %d", command.plan, len(command.agents), command.line_epoch)
        self._in_worker(load, then=lambda outcome: self._loaded(command, outcome))

    def _loaded(self, command: ev.LoadAgents, outcome: "_Loaded | ev.LoadFailed") -> None:
        if command.plan != self._core.plan:
            return
        if isinstance(outcome, ev.LoadFailed):
            log.warning("plan %d cannot be applied: %s", command.plan, outcome.reason)
            self._feed(outcome)
            return
        loaded, objects = outcome
        for agent, made in objects.items():
            self._turns.add(agent, made)
        if self._trace is not None:
            numbers = {each.agent: each.checkpoint.number if each.checkpoint is not None else 0 for each in loaded}
            self._trace.plan(command.plan, numbers)
        self._feed(ev.AgentsLoaded(command.plan, tuple(loaded)))

    def _evaluate(self, epoch: int, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in its own thread."""
        answer = ask_stop(self._fleet, self._open_store, epoch)
        loop.call_soon_threadsafe(self._session.send, pb.HostMessage(stop_reached=answer))


async def run_host(options: HostOptions) -> int:
    """Run a host until its fleet ends, it is told to stop, or it is turned away; returns the exit code.

    Raises:
        MisuseError: it may not listen where it was told to.
    """
    return await Host(options).run()

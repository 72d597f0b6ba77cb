"""The host process, which provides clocks, threads and sockets to a host driver. This module makes no protocol decisions.

One event loop does all work that does not block, and a worker thread reads and writes the store. Turns run in batches, so that frames,
heartbeats and directives do not wait long. A handler that blocks still delays all other work, and `loop_watch.py` reports the handler.
"""

import asyncio
import contextlib
import contextvars
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from snapline.agent_runtime import unawaited
from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.dependency_report import dependency_report
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.coordinator_session import CoordinatorUsers, HostStop, Session
from snapline.agent_runtime.host.driver import HostDriver
from snapline.agent_runtime.host.host_metrics import FAMILIES, HostMetrics
from snapline.agent_runtime.host.host_trace import TraceWriter
from snapline.agent_runtime.host.input_service import InputService, TakeInput, unchanged_payload
from snapline.agent_runtime.host.loop_watch import BusyReports, LoopWatch, describe_running
from snapline.agent_runtime.host.turn_marks import ProcessMarks
from snapline.agent_runtime.host.view_service import ViewService
from snapline.channels.child_processes import close_in_children, exit_if_child, handle_signal, port_of
from snapline.channels.frame import LinkHello, Refused
from snapline.channels.grpc_link import LinkTransport
from snapline.channels.servers import supervised
from snapline.errors import SnaplineError, StoreKeyError, UsageError
from snapline.ids import check_id
from snapline.messages.client_wire import AGENTS_SERVICE, INPUTS_SERVICE
from snapline.messages.host_messages import Directive, HostMessage, OpenTurn
from snapline.security.rpc_authorization import HOST
from snapline.security.transport import Security, is_loopback
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import BootClock
from snapline.storage.store.store import Store
from snapline.telemetry.health import READY, open_health_server, tell
from snapline.telemetry.log_lines import BoundIds, LogScope
from snapline.telemetry.metrics import Readings
from snapline.telemetry.metrics_server import MetricsPlace, MetricsServer, open_metrics_server
from snapline.telemetry.spans import SPANS, SpanOptions, open_spans, read_spans

if TYPE_CHECKING:
    from snapline.agent_runtime.host.host_spans import HostSpans

LONG_TURN_NS = 1_000_000_000
"""A turn that runs for longer than this is named in heartbeats, to explain why an epoch waits."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

BOOT = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
"""Id of the machine's current boot, or "" on systems without such an id."""

log = logging.getLogger("snapline.host")


class HostOptions(msgspec.Struct, kw_only=True):
    """Options of one host."""

    host: str
    instance: str  # random id of this process
    fleet: Fleet
    coordinator: str
    store: str
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    security: Security
    health: str = ""  # address of a health service without certificates, or ""
    metrics: MetricsPlace = MetricsPlace()
    spans: SpanOptions = SpanOptions()  # options for exporting spans to OpenTelemetry
    log_ids: BoundIds = msgspec.field(default_factory=BoundIds)  # ids shown in each log line
    marks: str = ""  # file for turn marks, which the next process reads, or ""
    trace: str = ""  # folder for the host's trace, or ""
    trace_every: int = 1  # trace every N-th message of each channel
    last_snapshot_s: float = 0.0  # longest wait for a snapshot after a stop signal, or 0 for no wait


class Host:
    """A host of a fleet, as run by `run_host`. The class is the driver's `HostEnvironment` in production. The class also connects the
    services for clients to the driver."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options
        check_id(options.host, "host")
        self._trace: TraceWriter | None = None
        if options.trace:
            self._trace = TraceWriter(Path(options.trace) / f"{options.host}.{options.instance}.jsonl")
        self._store: Store | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="snapline-store")
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="snapline-stop")
        self._logger = ThreadPoolExecutor(1, thread_name_prefix="snapline-log")
        self._is_pumping = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None
        self._finished: asyncio.Future[int] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._heartbeat_ns = 500_000_000
        self._metrics: HostMetrics | None = None
        self._spans: HostSpans | None = None
        self._trace_of_line: Callable[[], dict[str, object]] = dict
        self._take_input: TakeInput = unchanged_payload
        self._address = ""
        self._report: dict[str, str] = {}
        self._agents_of: WeakKeyDictionary[asyncio.Task[None], str] = WeakKeyDictionary()
        """Agents by the tasks that run their turns or steps."""
        self._imaged = ""
        self._people = CoordinatorUsers(options.coordinator, options.security)
        self._transport = LinkTransport(self, host=options.host, security=options.security, people=self._people)
        self._export = open_spans(options.spans, role="host", name=options.host)
        self._driver = self._make_driver()
        self._session = Session(
            options.coordinator, options.security, self._hello, self._driver.directive_received, log.warning
        )
        self._planned_stop = HostStop(
            self._session, options.last_snapshot_s, lambda: bool(self._driver.core.agents), self.finish
        )
        self._marks = ProcessMarks(self._driver, options.marks, host=options.host, instance=options.instance)
        self.dial_requested = self._driver.dial_requested
        self.opened = self._driver.opened
        self.received = self._driver.received
        self.next_frame = self._driver.next_frame
        self.closed = self._driver.closed
        self.offer, self.ask = self._driver.offer, self._driver.ask
        self.view, self.look_at = self._driver.view, self._driver.turns.look_at
        self.open_waits, self.waiting = self._driver.open_waits, self._driver.waiting
        self.type_of = self._driver.turns.type_of
        self.recent_trace = self._driver.tracing.recent
        self._inputs = InputService(self, self._transport.guard, host=options.host, take_input=self._take_input)
        self._views = ViewService(self, host=options.host)

    def _make_driver(self) -> HostDriver:
        options, export = self._options, self._export
        observer, world = None, None
        if export is not None:
            import snapline.telemetry.gen_ai_spans  # noqa: F401  now: the package may be replaced while this runs
            from snapline.agent_runtime.host.host_spans import (
                HostSpans,
                SpanObserver,
                TracedTurnEnvironment,
                current_trace,
            )

            self._trace_of_line = current_trace
            self._spans = HostSpans(export)
            observer, world = SpanObserver(export), TracedTurnEnvironment(export)
        driver = HostDriver(
            options.host,
            options.fleet,
            self,
            self._transport,
            world=world,
            trace=self._trace,
            trace_every=options.trace_every,
            observer=observer,
        )
        if observer is not None:
            self._take_input = observer.spans.take_input
        return driver

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Take part in the fleet until the fleet or the host ends, and return the exit code."""
        unawaited.watch()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._marks.threads())
        self._finished = loop.create_future()
        self._options.security.check_listen_address(self._options.listen)
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                handle_signal(loop, number, self._planned_stop.asked, number)
        self._report = await asyncio.to_thread(  # it finds errors in the agents' classes, and a server must not be left without its end
            dependency_report, self._options.fleet.agents, self._options.fleet.declared, self.open_store
        )
        port = await self._transport.start(
            self._options.listen, {INPUTS_SERVICE: self._inputs.handlers(), AGENTS_SERVICE: self._views.handlers()}
        )
        self._address = self._options.advertise or f"{self._options.listen.rpartition(':')[0]}:{port}"
        log.info("host %s listens on %s", self._options.host, self._address)
        session = loop.create_task(self._session.run())
        session.add_done_callback(self._session_ended)
        self.in_worker(self._check_keys, then=lambda _: None)
        try:
            async with contextlib.AsyncExitStack() as stack:
                await open_health_server(stack, self._transport.healthy, self._options.health)
                await open_metrics_server(stack, self._metrics_server, self._options.metrics, self._options.host)
                await stack.enter_async_context(supervised())
                close_in_children(loop, self._fleet_ports)
                stack.enter_context(self._options.log_ids.reading(self._standing))
                stack.enter_context(self._watch(loop))
                return await self._finished
        finally:
            await self._session.leave("host stops")
            session.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if self._trace is not None:
                self._trace.close()
            await self._transport.stop()
            await self._people.close()
            if self._export is not None:
                await asyncio.to_thread(self._export.close)
            self._marks.close()
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._evaluator.shutdown(wait=False, cancel_futures=True)
            self._logger.shutdown(wait=False, cancel_futures=True)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> contextlib.AbstractContextManager[None]:
        options = self._options
        reports = BusyReports(options.coordinator, options.security, host=options.host, instance=options.instance)

        def holder(codes: list[CodeType]) -> str:
            task = asyncio.current_task(loop)
            return describe_running(
                self._driver.at,
                codes,
                self._driver.turns.type_of,
                in_task=self._agents_of.get(task, "") if task is not None else "",
                imaged=self._imaged,
            )

        return LoopWatch(loop, reports, holder, limit_s=options.fleet.busy_limit_s).watching()

    def finish(self, code: int) -> None:
        """End the run with an exit code."""
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(code)
        self._stop()

    def fail(self, error: BaseException) -> None:
        """End the run because of an internal error."""
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)
        self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self._session.expect_end()
        self._driver.stop()

    def _session_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception() or AssertionError())

    # ---- turns and timers -----------------------------------------------------------------------------------------

    def fed(self) -> None:
        self._marks.end()  # erase the mark that a failed capture left
        if not self._is_pumping and not self._is_over:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Run a batch of turns, and schedule the next batch.

        An error here is a bug. The host then ends, because a host that runs no turns must not appear alive.
        """
        if self._is_over:
            return
        try:
            self._driver.run_turns()
        except Exception as error:
            self.fail(error)
            return
        finally:
            exit_if_child()  # a forked child's SystemExit must not end the loop as the parent's would
        if self._driver.queue:
            asyncio.get_running_loop().call_soon(self._pump)
        else:
            self._is_pumping = False
        self._set_timer()

    def _set_timer(self) -> None:
        wakeup_ns = self._driver.core.wakeup_ns
        if wakeup_ns is None or (self._timer_ns is not None and self._timer_ns <= wakeup_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (wakeup_ns - time.monotonic_ns()) / 1e9)
        self._timer_ns = wakeup_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = self._timer_ns = None
        self._driver.feed(ev.TimerFired())

    def start_turn(self, coroutine: "Coroutine[object, None, None]") -> "asyncio.Task[None]":
        """Start the task that runs a turn or step. The task's log lines name the agent."""
        at = self._driver.at
        if at is None:
            return asyncio.get_running_loop().create_task(coroutine)
        scope, context = LogScope(agent=at.agent, incarnation=at.incarnation), contextvars.copy_context()
        context.run(scope.enter)
        marked = self._marks.task_of(at, coroutine, context)
        task = asyncio.get_running_loop().create_task(marked, context=context)
        task.add_done_callback(scope.close)
        self._agents_of[task] = at.agent
        return task

    # ---- environment ----------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def boot_clock(self) -> BootClock | None:
        return BootClock(BOOT, time.clock_gettime_ns(time.CLOCK_BOOTTIME)) if BOOT else None

    def call_later(self, delay_s: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, function)

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        self._in_thread(self._worker, function, arguments, then)

    def in_evaluator(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        self._in_thread(self._evaluator, self._marks.evaluating(function), (), then)

    def in_log(self, function: Callable[[], object], then: Callable[..., None]) -> None:
        self._in_thread(self._logger, function, (), then)

    def _in_thread(
        self,
        pool: ThreadPoolExecutor,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        then: Callable[..., None],
    ) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                loop.call_soon_threadsafe(self.fail, error)
            else:
                loop.call_soon_threadsafe(then, result)

        pool.submit(work)

    def _check_keys(self) -> None:
        """End the host immediately if a key or the store's URL is invalid. A missing store is reported only when it is used, because it may
        be created later."""
        try:
            self.open_store()
        except (StoreKeyError, UsageError):
            raise
        except (SnaplineError, OSError):
            pass

    def open_store(self) -> Store:
        if self._store is None:
            self._store = Store.open(self._options.store)
        return self._store

    def address_of(self, peer: str) -> str:
        """Return the address that the coordinator has reported for a host, or "" if the address is unknown."""
        entry = self._driver.core.links.roster.get(peer)
        return "" if entry is None else entry.address

    def is_remote(self, peer: str) -> bool:
        """Return whether a host is known to be on another machine."""
        address = self.address_of(peer)
        return bool(address) and not is_loopback(address)

    def _fleet_ports(self) -> list[int]:
        """Return the ports of the coordinator's replicas and of all hosts."""
        addresses = [entry.address for entry in self._driver.core.links.roster.values()]
        return [port_of(address) for address in [*self._options.coordinator.split(","), *addresses]]

    def place_of(self, agent: str) -> tuple[str, str]:
        """Return the id and address of the other host on which an agent runs, or two empty strings if they are unknown. Clients are
        redirected there."""
        host, _ = self._driver.core.shared.routes.get(agent, ("", 0))
        return ("", "") if host == self._options.host else (host, self.address_of(host))

    # ---- coordinator ----------------------------------------------------------------------------------------------

    def capturing(self, agent: str) -> None:
        self._imaged = agent
        self._marks.capturing(agent)
        if self._metrics is not None:
            self._metrics.capturing()

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        self._marks.end()
        if self._metrics is not None:
            self._metrics.captured(command.epochs if isinstance(command, ev.CaptureState) else ())

    def committed(self, agent: ev.CommittedAgent, state: bytes) -> None:
        """Do nothing, because commits have no metrics of their own yet."""

    def part_closed(self, epoch: int) -> None:
        if self._metrics is not None:
            self._metrics.closed(epoch)

    def send(self, message: HostMessage) -> None:
        if self._metrics is not None:
            self._metrics.said(message)
        if self._spans is not None:
            self._spans.said(message)
        self._session.send(message)

    def dependencies(self) -> dict[str, str]:
        return self._report

    def _hello(self) -> HostMessage:
        return self._marks.hello(self._driver.hello(instance=self._options.instance, address=self._address))

    def directive_received(self, directive: Directive) -> None:
        self._planned_stop.directive_received(directive)
        if self._metrics is not None:
            self._metrics.directive_received(directive)
        if self._spans is not None:
            self._spans.directive_received(directive)

    def welcomed(self, heartbeat_ns: int) -> None:
        self._planned_stop.welcomed()
        self._heartbeat_ns = heartbeat_ns or self._heartbeat_ns
        if self._heartbeat is None:
            self._marks.begin()
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        sequence = 0
        await tell(self._transport.healthy, (READY,), is_serving=True)
        while True:
            await asyncio.sleep(self._heartbeat_ns / 1e9)
            sequence += 1
            left_ns = self._options.security.certificate_left_ns()
            self._session.send(self._driver.heartbeat(sequence, self._long_turns(), left_ns))

    def _long_turns(self) -> tuple[OpenTurn, ...]:
        now_ns = time.monotonic_ns()
        elapsed_ns = {agent: now_ns - since_ns for agent, since_ns in self._driver.started.items()}
        return tuple([OpenTurn(agent, x_ns) for agent, x_ns in elapsed_ns.items() if x_ns > LONG_TURN_NS])

    def _standing(self) -> dict[str, object]:
        """Return the fields to add to each log line."""
        shared, at = self._driver.core.shared, self._driver.at
        details = {} if at is None else {"agent": at.agent, "incarnation": at.incarnation}
        return {
            "host_start": shared.start,
            "plan": shared.plan,
            "epoch": shared.begun_epoch,
            **details,
            **self._trace_of_line(),
        }

    # ---- metrics --------------------------------------------------------------------------------------------------

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        """Return the reason to reject the stream from `peer`, or None if the stream may be accepted."""
        refused = self._driver.accepted(peer, hello)
        if refused is not None and self._metrics is not None:
            self._metrics.refused()
        return refused

    def _metrics_server(self) -> MetricsServer:
        self._metrics = metrics = HostMetrics(self._driver.core)

        async def read() -> Readings:
            values = metrics.read(self._driver.heartbeat(0, self._long_turns()))
            return {**values, **read_spans(self._export)}

        return MetricsServer(HOST, self._options.host, (*FAMILIES, *SPANS), read, self._options.security)


async def run_host(options: HostOptions) -> int:
    """Run a host until its fleet ends, a signal stops the host, or the coordinator rejects the host. Return the exit code.

    Raises:
        UsageError: If the listen address is not allowed, or if spans are configured but OpenTelemetry is not installed.
    """
    return await Host(options).run()

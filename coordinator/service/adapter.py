"""Adapter around the leader core: streams, log, store, clock. It carries out commands and decides nothing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.leader_status import LeaderStatus
from snapline.coordinator.service.leader_statistics import LeaderFigures
from snapline.coordinator.service.log import ReplicatedLog
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_records import ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.operations import Operation, encode_operation
from snapline.errors import CoordinatorUnavailableError, LogError, UsageError
from snapline.messages.host_messages import Directive, HostMessage, Plan
from snapline.messages.wire import encode_directive

if TYPE_CHECKING:
    from snapline.coordinator.service.fleet_spans import FleetSpans

_log = logging.getLogger("snapline.coordinator")

CommandT = TypeVar("CommandT", bound=ev.Command)
AnswerT = TypeVar("AnswerT", bound=ev.AnswerTool)

OUTBOX_DIRECTIVES_MAX = 4096
"""Largest queue for a host that does not read. Beyond it the stream is closed; the next stream begins with the present directives."""

STORE_THREADS = 4
"""Number of threads for the store: the largest number of open epochs."""

PROPOSAL_TIMEOUT_S = 30.0
"""Time limit for a proposal. Then its outcome is unknown, and the leader proposes it again."""


class Outbox:
    """Queue of directives to be written to one host's stream."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    def put(self, directive: bytes) -> None:
        """Queue an encoded directive, unless the stream is being closed."""
        if self.is_closed:
            return
        if self._waiting.qsize() >= OUTBOX_DIRECTIVES_MAX:
            _log.warning("a host does not read its directives: closing its stream")
            self.close()
            return
        self._waiting.put_nowait(directive)

    def close(self) -> None:
        """End the stream after the queued directives."""
        if not self.is_closed:
            self.is_closed = True
            self._waiting.put_nowait(None)

    async def get(self) -> bytes | None:
        """Return the next directive; None at the end."""
        return await self._waiting.get()


class Driver:
    """Feeds one leader core and carries out its commands, on one event loop.

    Attributes:
        ended: set when the driver has ended; `exit_code` or `failure` says how.
        on_ended: called when the driver has ended by itself, not by `stop`.
    """

    def __init__(
        self,
        core: LeaderCore,
        log: ReplicatedLog,
        keeper: StoreKeeper,
        figures: LeaderFigures,
        spans: "FleetSpans | None" = None,
    ) -> None:
        self._core = core
        self._figures = figures
        self._spans = spans
        self._replicated_log = log
        self._keeper = keeper
        self._pool = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="coordinator-store")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="coordinator-sweep")
        self._tasks: set[asyncio.Task[None]] = set()
        self._outboxes: dict[int, Outbox] = {}
        self._plan: tuple[Plan, bytes] | None = None
        """The last plan that was sent, and its encoding."""
        self._pending_requests: dict[int, asyncio.Future[ev.AnswerTool]] = {}
        self._numbers = 0
        self.ended = asyncio.Event()
        self.exit_code = 1
        self.failure: BaseException | None = None
        self.on_ended: Callable[[Driver], None] = lambda _: None

    # ---- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to lead."""
        self.feed(ev.LeaderStarted())
        self._spawn(self._run_timer())

    def close_streams(self) -> None:
        """Take no more events, and end all streams after the queued directives."""
        self._stop_taking_events()
        for outbox in list(self._outboxes.values()):
            outbox.close()

    def _stop_taking_events(self) -> None:
        """Stop, and fail all pending requests of tools: their callers ask the next leader."""
        self.ended.set()
        for waiting in self._pending_requests.values():
            if not waiting.done():
                waiting.set_exception(CoordinatorUnavailableError("the replica that was asked has ceased to lead"))

    async def stop(self) -> None:
        """End all work. The outcome of pending proposals is unknown."""
        self.close_streams()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._pool, self._cleaner):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        await self._replicated_log.close()

    @property
    def has_hosts(self) -> bool:
        """Return whether hosts are connected."""
        return not self._core.parts.host_sessions.is_empty

    @property
    def is_saved(self) -> bool:
        """Return whether the epoch requested by CoordinatorStopRequested is complete, or none is needed."""
        return self._core.parts.departures.is_saved

    def feed(self, event: ev.Event) -> None:
        """Hand an event to the core and carry out its commands."""
        if self.ended.is_set():
            return
        try:
            for command in self._core.handle(time.monotonic_ns(), event):
                self._carry_out(command)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            _log.critical("the coordinator ends: %s", error, exc_info=not isinstance(error, LogError))
        self._end()

    def _end(self) -> None:
        if not self.ended.is_set():
            self._stop_taking_events()
            self.on_ended(self)

    async def _run_timer(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, (self._core.wakeup_ns - time.monotonic_ns()) / 1e9))
            self.feed(ev.TimerFired())

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    # ---- streams and tools ------------------------------------------------------------------------------------------

    def open_stream(self) -> tuple[int, Outbox]:
        """Register a new stream of a host; return its session number and its directives."""
        self._numbers += 1
        outbox = self._outboxes[self._numbers] = Outbox()
        return self._numbers, outbox

    def close_stream(self, session: int) -> None:
        """Report a closed stream to the core."""
        if self._outboxes.pop(session, None) is not None:
            self.feed(ev.StreamClosed(session))

    def on_host_message(self, session: int, message: HostMessage) -> None:
        """Feed a host's message to the core."""
        if session in self._outboxes:
            self._figures.heard(message)
            self.feed(ev.MessageReceived(session, message))

    async def ask(self, question: Callable[[int], ev.Event], answer: type[AnswerT]) -> AnswerT:
        """Send a tool's request to the core under a new number, and wait for its answer.

        Raises:
            CoordinatorUnavailableError: this leader ends before it has answered.
        """
        if self.ended.is_set():
            raise CoordinatorUnavailableError("the replica that was asked has ceased to lead")
        self._numbers += 1
        number = self._numbers
        waiting = self._pending_requests[number] = asyncio.get_running_loop().create_future()
        try:
            self.feed(question(number))
            reply = await waiting
        finally:
            del self._pending_requests[number]
        assert isinstance(reply, answer), f"{question} is answered by {reply!r}"
        return reply

    def standing(self) -> LeaderStatus:
        """Return this leader's view of itself."""
        return self._core.standing()

    # ---- commands ---------------------------------------------------------------------------------------------------

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.SendDirective():
                self._send(command)
            case ev.Propose():
                self._spawn(self._propose(command))
            case ev.WriteManifest():
                self._in_thread(self._keeper.write_manifest, command)
            case ev.PublishEpoch():
                self._in_thread(self._keeper.publish, command)
            case ev.ReleaseEpoch():
                self._in_thread(self._keeper.outputs.release, command)
            case ev.CheckLine():
                self._in_thread(self._keeper.check_line, command)
            case ev.ResolveSnapshot():
                self._in_thread(self._keeper.resolve, command)
            case ev.MaterialiseLine():
                self._in_thread(self._keeper.materialise, command)
            case ev.ScanCheckpoints():
                self._in_thread(self._keeper.scan, command)
            case ev.WriteProbe():
                self._in_thread(self._keeper.write_probe, command)
            case ev.RemoveProbe():
                self._cleaner.submit(self._keeper.remove_probe, command.path)
            case ev.DeleteEpochs():
                self._cleaner.submit(self._keeper.delete, command)
            case ev.SweepStore():
                self._cleaner.submit(self._keeper.sweep, command)
            case ev.SweepLogs():
                self._cleaner.submit(self._keeper.logs.sweep, command)
            case ev.DeleteCheckpoints():
                self._cleaner.submit(self._keeper.delete_checkpoints, command)
            case ev.SweepCheckpoints():
                self._cleaner.submit(self._keeper.sweep_checkpoints, command)
            case ev.CloseStream():
                outbox = self._outboxes.pop(command.session, None)
                if outbox is not None:
                    outbox.close()
            case ev.AnswerTool():
                waiting = self._pending_requests.get(command.request)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
            case ev.Note():
                _log.log(logging.getLevelNamesMapping()[command.level.upper()], command.text)
            case ev.EndRun():
                self.exit_code = command.exit_code
                self._end()
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    def _send(self, command: ev.SendDirective) -> None:
        outboxes = [self._outboxes[number] for number in command.sessions if number in self._outboxes]
        if outboxes:
            message = self._encoded(command.directive)
            for outbox in outboxes:
                outbox.put(message)

    def _encoded(self, directive: Directive) -> bytes:
        """Encode a directive. A plan names all agents, and is sent to one host after the other after an election, so its encoding is kept."""
        if not isinstance(directive, Plan):
            return encode_directive(directive)
        if self._plan is None or self._plan[0] != directive:
            self._plan = (directive, encode_directive(directive))
        return self._plan[1]

    async def _propose(self, command: ev.Propose) -> None:
        outcome: ProposalOutcome
        try:
            operation = Operation(time.time_ns(), command.client, command.sequence, command.kind)
            entry = encode_operation(operation)
            async with asyncio.timeout(PROPOSAL_TIMEOUT_S):
                outcome = await self._replicated_log.propose(entry)
        except TimeoutError:
            outcome = Unknown(f"the log did not answer within {PROPOSAL_TIMEOUT_S:g} s")
        except UsageError as error:
            _log.error("an operation that cannot be proposed: %s", error)
            outcome = Rejected(str(error))
        self._figures.decided(command.kind, outcome)
        if self._spans is not None:
            self._spans.decided(command.kind, outcome)
        self.feed(ev.ProposalEnded(command.token, outcome))

    def _in_thread(self, call: Callable[[CommandT], ev.Event], command: CommandT) -> None:
        self._spawn(self._run_in_thread(call, command))

    async def _run_in_thread(self, call: Callable[[CommandT], ev.Event], command: CommandT) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(asyncio.CancelledError):
            self.feed(await loop.run_in_executor(self._pool, call, command))

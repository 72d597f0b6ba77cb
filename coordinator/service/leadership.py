"""Leadership of this replica. This module runs a leader core while this replica leads, and otherwise refers hosts and tools to the leader.

A new leader must know everything that was acknowledged before it was elected. A new leader therefore waits until a newly proposed entry (a
barrier) has been applied. Leadership ends when another replica is elected, or when this replica has not reached a majority for some time.
While a leadership ends and another begins, two replicas may both believe that they lead. The older leader is harmless, because its
proposals either fail or are committed by the newer leader, and are refused if the state has changed. An older leader's messages to hosts
are harmless too, because they follow from committed operations, and directives are idempotent.

`LeaderRunner` is the production environment of the leader's driver (`leader_driver.py`). The runner provides the hosts' streams, the
tools' requests, the log, threads for store calls, and the clock.

*Replicated log.* The coordinator's log is replicated with Raft (`raft/`). A single replica uses the same code as several replicas.

Each process keeps two copies of the state. One copy belongs to Raft, which applies entries and saves and restores the state on a separate
thread. All other code, such as the leader and the servicer, reads the other copy on the event loop. Both copies apply the same entries in
the same order, and the event loop's copy applies each entry before its proposer receives the outcome. Because applying an entry is
deterministic, both copies are equal. Applying an entry takes microseconds and needs no lock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore, LeaderStatus
from snapline.coordinator.raft import raft_driver
from snapline.coordinator.raft.raft_driver import RaftDriver
from snapline.coordinator.service.leader_driver import LeaderDriver, LeaderObserver
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import CoordinatorUnavailableError, LogError, SnaplineError, UsageError
from snapline.messages.host_messages import Directive, HostMessage, Plan
from snapline.messages.status import Standing
from snapline.messages.wire import encode_directive

Post = Callable[[Callable[[], None]], None]


class MirroredMachine:
    """The replicated state machine, which Raft drives, and its copy on the event loop.

    Attributes:
        state: the copy, which may be read only on the event loop. The attribute always refers to the same object.
    """

    def __init__(self) -> None:
        self.state = FleetState()
        self._own = FleetState()
        self._post: Post = lambda _: None

    def post_with(self, post: Post) -> None:
        """Set the function that schedules calls on the event loop, in order. This method must be called before the replica starts."""
        self._post = post

    # ---- on the tick thread ---------------------------------------------------------------------------------------

    def apply(self, entry: bytes) -> OperationResult:
        """Apply one committed entry. Raise LogError if the entry is not an operation, after which the process must end."""
        result = self._own.apply(decode_operation(entry))
        self._post(partial(self._follow, entry))
        return result

    def freeze(self) -> bytes:
        """Encode the whole state."""
        return self._own.freeze()

    def restore(self, image: bytes) -> None:
        """Replace the state with that of a dump, made by this replica or received from the leader."""
        self._own = FleetState.restore(image)
        self._post(partial(self._take, image))

    # ---- on the loop ----------------------------------------------------------------------------------------------

    def _follow(self, entry: bytes) -> None:
        self.state.apply(decode_operation(entry))

    def _take(self, image: bytes) -> None:
        self.state.image = FleetState.restore(image).image


class RaftLog:
    """The log to which a leader proposes operations.

    A former leader's proposal may still be committed by its successor, but the state machine refuses it if the state has changed.
    """

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Commit and apply `entry`; see `ReplicatedLog`."""
        outcome = await self._driver.propose(entry)
        match outcome:
            case raft_driver.Committed():
                if not isinstance(outcome.result, OperationResult):
                    raise LogError(f"an operation could not be applied: {outcome.result!r}")
                return Committed(outcome.result)
            case raft_driver.Rejected():
                return Rejected(outcome.reason)
            case raft_driver.Unknown():
                return Unknown(outcome.reason)


class ReplicatedLog(Protocol):
    """Interface of the log through which a leader commits its decisions before they take effect."""

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Commit and apply `entry`.

        Return Committed with the state machine's result, or Rejected if the entry is not in the log and never will be. Otherwise, return
        Unknown. After Unknown, the caller must propose the same request again. Raise LogError if the log has ended permanently.
        """


_log = logging.getLogger("snapline.coordinator")

AnswerT = TypeVar("AnswerT", bound=ev.AnswerTool)

OUTBOX_DIRECTIVES_MAX = 4096
"""Largest number of directives queued for a host that does not read them. If the limit is reached, the stream is closed. The next stream
begins with the current directives."""

STORE_THREADS = 4
"""Number of threads for store calls, equal to the largest number of open epochs."""

PROPOSAL_TIMEOUT_S = 30.0
"""Time limit for a proposal, in seconds. After that the outcome is unknown, and the leader proposes the operation again."""


class Outbox:
    """Queue of directives that are to be written to one host's stream."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    def put(self, directive: bytes) -> None:
        """Queue an encoded directive. If the outbox is closed, do nothing. If it is full, close it."""
        if self.is_closed:
            return
        if self._waiting.qsize() >= OUTBOX_DIRECTIVES_MAX:
            _log.warning("a host does not read its directives: closing its stream")
            self.close()
            return
        self._waiting.put_nowait(directive)

    def close(self) -> None:
        """End the stream once all queued directives have been sent."""
        if not self.is_closed:
            self.is_closed = True
            self._waiting.put_nowait(None)

    async def get(self) -> bytes | None:
        """Wait for the next directive, and return it, or None at the end of the stream."""
        return await self._waiting.get()


class LeaderRunner:
    """Runs one leader on one event loop. The runner implements `LeaderEnvironment` for the leader's driver.

    Attributes:
        is_ended: whether this leadership has ended.
        exit_code: the coordinator's exit code if the leader has not failed.
        failure: the error that ended the leadership; None if there was none.
        on_ended: function that is called when the leadership ends for any reason other than `stop`.
    """

    def __init__(
        self,
        core: LeaderCore,
        log: ReplicatedLog,
        keeper: StoreKeeper,
        observers: Sequence[LeaderObserver] = (),
    ) -> None:
        self._core = core
        self._driver = LeaderDriver(core, keeper, self, observers)
        self._replicated_log = log
        self._pool = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="coordinator-store")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="coordinator-sweep")
        self._tasks: set[asyncio.Task[None]] = set()
        self._outboxes: dict[int, Outbox] = {}
        self._plan: tuple[Plan, bytes] | None = None
        """The last plan that was sent, with its encoding."""
        self._pending_requests: dict[int, asyncio.Future[ev.AnswerTool]] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.is_ended = False
        self.exit_code = 1
        self.failure: BaseException | None = None
        self.on_ended: Callable[[LeaderRunner], None] = lambda _: None

    # ---- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the leader core."""
        self._unless_ended(self._driver.start)

    def close_streams(self) -> None:
        """Stop handling events, and end each stream once its queued directives have been sent."""
        self._stop_taking_events()
        for outbox in list(self._outboxes.values()):
            outbox.close()

    def _stop_taking_events(self) -> None:
        """Stop handling events, and fail all pending requests from tools, so that the tools ask the next leader."""
        self.is_ended = True
        for waiting in self._pending_requests.values():
            if not waiting.done():
                waiting.set_exception(CoordinatorUnavailableError("the replica that was asked has ceased to lead"))

    async def stop(self) -> None:
        """Stop all tasks and threads of this leadership. The outcome of pending proposals then remains unknown."""
        self.close_streams()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._pool, self._cleaner):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)

    @property
    def has_hosts(self) -> bool:
        """Return whether any host has an open stream."""
        return not self._core.parts.host_sessions.is_empty

    @property
    def is_saved(self) -> bool:
        """Return whether the epoch requested by CoordinatorStopRequested is complete or not needed."""
        return self._core.parts.departures.is_saved

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the core and execute the resulting commands."""
        self._unless_ended(self._driver.feed, event)

    def _unless_ended(self, function: Callable[..., object], *arguments: object) -> None:
        """Call `function`, unless this leadership has ended. If the function raises an exception, end the leadership."""
        if self.is_ended:
            return
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            _log.critical("the coordinator ends: %s", error, exc_info=not isinstance(error, LogError))
        self._end()

    def _end(self) -> None:
        if not self.is_ended:
            self._stop_taking_events()
            self.on_ended(self)

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
        """Register a new stream of a host. Return its session number and the outbox for its directives."""
        self._numbers += 1
        outbox = self._outboxes[self._numbers] = Outbox()
        return self._numbers, outbox

    def stream_closed(self, session: int) -> None:
        """Report a closed stream to the core."""
        if self._outboxes.pop(session, None) is not None:
            self.feed(ev.StreamClosed(session))

    def on_host_message(self, session: int, message: HostMessage) -> None:
        """Pass a host's message to the core, unless its stream is closed."""
        if session in self._outboxes:
            self.feed(ev.MessageReceived(session, message))

    async def ask(self, question: Callable[[int], ev.Event], answer: type[AnswerT]) -> AnswerT:
        """Pass a tool's request to the core under a new request number, and wait for the answer.

        Raises:
            CoordinatorUnavailableError: this leadership has ended, or ends before the core has answered.
        """
        if self.is_ended:
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
        """Return the fleet's status as known to the leader core."""
        return self._core.standing()

    # ---- the driver's environment -----------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970."""
        return time.time_ns()

    def set_timer(self, when_ns: int, function: Callable[[], None]) -> None:
        """Call `function` on the event loop at this monotonic time, unless this leadership has ended by then."""
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (when_ns - time.monotonic_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._unless_ended, function)

    def send(self, sessions: Sequence[int], directive: Directive) -> None:
        """Queue a directive for hosts' streams."""
        outboxes = [self._outboxes[number] for number in sessions if number in self._outboxes]
        if outboxes:
            message = self._encoded(directive)
            for outbox in outboxes:
                outbox.put(message)

    def _encoded(self, directive: Directive) -> bytes:
        """Return the encoding of a directive.

        A plan lists all agents, and is sent to many hosts one after another after an election. The encoding of the last plan is therefore
        cached.
        """
        if not isinstance(directive, Plan):
            return encode_directive(directive)
        if self._plan is None or self._plan[0] != directive:
            self._plan = (directive, encode_directive(directive))
        return self._plan[1]

    def close_stream(self, session: int) -> None:
        """End a stream once its queued directives have been sent."""
        outbox = self._outboxes.pop(session, None)
        if outbox is not None:
            outbox.close()

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        """Propose an entry to the log."""
        self._spawn(self._propose(entry, ended))

    async def _propose(self, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        outcome: ProposalOutcome
        try:
            async with asyncio.timeout(PROPOSAL_TIMEOUT_S):
                outcome = await self._replicated_log.propose(entry)
        except TimeoutError:
            outcome = Unknown(f"the log did not answer within {PROPOSAL_TIMEOUT_S:g} s")
        except UsageError as error:
            _log.error("an operation that cannot be proposed: %s", error)
            outcome = Rejected(str(error))
        self._unless_ended(ended, outcome)

    def in_worker(self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]) -> None:
        """Run a blocking call in one of the threads for store calls."""
        self._spawn(self._run_in_worker(command, work, then))

    async def _run_in_worker(
        self, command: ev.Command, work: Callable[[Any], ev.Event], then: Callable[[ev.Event], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(asyncio.CancelledError):
            self._unless_ended(then, await loop.run_in_executor(self._pool, work, command))

    def in_cleaner(self, command: ev.Command, chore: Callable[[Any], object]) -> None:
        """Run a blocking call in the single thread that deletes data from the store."""
        self._cleaner.submit(chore, command)

    def answer(self, answer: ev.AnswerTool) -> None:
        """Pass an answer to a tool's request if the tool is still waiting."""
        waiting = self._pending_requests.get(answer.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def note(self, note: ev.Note) -> None:
        """Log a message of the leader core."""
        _log.log(logging.getLevelNamesMapping()[note.level.upper()], note.text)

    def end(self, ending: ev.EndRun) -> None:
        """End the coordinator's run."""
        self.exit_code = ending.exit_code
        self._end()


class Leadership:
    """Runs a leader core while this replica leads.

    Attributes:
        runner: runner of the current leadership; None while this replica does not lead.
        ended: event that is set when the coordinator's run has ended.
        led: event that is set when this replica first becomes the leader.
    """

    def __init__(self, make: Callable[[], LeaderRunner]) -> None:
        """Prepare to lead. `make` creates the runner for a new leadership, and raises SnaplineError if this replica cannot lead."""
        self._make = make
        self._changed = asyncio.Event()
        self._standing = Standing()
        self.runner: LeaderRunner | None = None
        self.ended = asyncio.Event()
        self.led = asyncio.Event()
        self.exit_code = 0
        self.failure: BaseException | None = None

    @property
    def leader(self) -> str:
        """Return the id of the leading replica as known to this replica, or "" if no replica leads."""
        return self._standing.leader

    def on_standing(self, standing: Standing) -> None:
        """Handle a change of leader that this replica has detected."""
        self._standing = standing
        self._changed.set()

    def end(self, exit_code: int) -> None:
        """End the coordinator's run."""
        self.exit_code = exit_code
        self.ended.set()

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        self.failure = self.failure or error
        self.ended.set()

    async def run(self, raft: RaftDriver) -> None:
        """Run a leadership whenever this replica is elected, until the task is cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._standing.is_leader and self.runner is None:
                    await self._begin(raft)
                elif not self._standing.is_leader and self.runner is not None:
                    await self._stop_leading(f"{self._standing.leader or 'nobody'} leads now")
        except SnaplineError as error:
            self.fail(error)
        finally:
            await self._stop_leading("the coordinator ends")

    async def _begin(self, raft: RaftDriver) -> None:
        standing = self._standing
        try:
            await raft.wait_ready()
        except CoordinatorUnavailableError as error:
            _log.warning("elected in term %d, but %s", standing.term, error)
            self._changed.set()
            return
        if self._standing != standing:
            return
        _log.info("leading in term %d", standing.term)
        self.runner = self._make()
        self.runner.on_ended = self._on_runner_ended
        self.runner.start()
        self.led.set()

    def _on_runner_ended(self, runner: LeaderRunner) -> None:
        if runner is not self.runner:
            return
        if runner.failure is not None:
            self.fail(runner.failure)
        else:
            self.end(runner.exit_code)

    async def _stop_leading(self, why: str) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            _log.info("leadership ended: %s", why)
            await runner.stop()

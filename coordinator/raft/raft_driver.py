"""A replica of the log and its driver, which runs Raft's ticks on a thread and offers an asyncio interface for proposals and reads.

Theory of operation
-------------------
A `Replica` consists of streams on the event loop, a Raft node on a separate thread, and a driver that connects them.

pysyncobj is single-threaded, except that other threads may propose entries. One thread therefore creates, ticks and destroys the node.
Other calls (status, leadership transfer) are posted to the tick thread through the inbox. Answers come back through one queue, and a
single signal makes the event loop empty the queue.

*Proposals.* The library may never call a proposal's callback, because the frame with the proposal or its answer may be lost. Each proposal
therefore has a deadline. At its deadline, a proposal's outcome is *unknown*, and the caller proposes the same request again. Memory is
bounded, because at most `IN_FLIGHT_MAX` proposals may be in flight. Further proposals are rejected at once.

*Reads (linearizable, Herlihy and Wing 1990).* Because there are no leases, a leader that is cut off may still answer for a while after its
successor was elected. Therefore a read waits until an empty entry (a barrier), proposed after the read began, is applied on this replica.
When the barrier is applied, this replica has applied everything acknowledged before the read, and the tick thread builds the reply.
Readers share barriers. A reader that arrives while a barrier is in flight waits for the next one, because the first may have been proposed
before the read.

*Exceptions.* An exception in a tick is logged and counted. After `FAILURES_MAX` consecutive failed ticks, the process ends, because the
node's memory may be corrupt.

An outcome is *committed*, *rejected* or *unknown*. The outcome of a proposal in flight comes from the library's callback. If the callback
is not called before the time-out, the outcome is *unknown*.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import msgspec
from pysyncobj.config import FAIL_REASON, SyncObjConf  # type: ignore[import-untyped]  # the library has no types

from snapline.coordinator.raft.durability import fail_stop
from snapline.coordinator.raft.learner import LogMarks
from snapline.coordinator.raft.node import Machine, SafeSyncObj
from snapline.coordinator.raft.pysyncobj_adapter import TICK_S, RaftNode, raft_configuration
from snapline.coordinator.raft.raft_streams import Inbox, PeerStreams, call_soon
from snapline.coordinator.raft.transport import GrpcTransport
from snapline.errors import CoordinatorUnavailableError, LogError, UsageError
from snapline.ids import check_id
from snapline.messages.status import ReplicaStatus, Standing
from snapline.security.transport import Security
from snapline.telemetry.metrics import Distribution


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the entry is in the log permanently and has been applied on this replica."""

    result: object
    """The value that the machine's `apply` returned on this replica."""


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the entry is not in the log, and this attempt will not add it."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the entry may be in the log, now or later. The caller must propose the same request again, and the state machine ignores
    duplicates."""

    reason: str


Outcome = Committed | Rejected | Unknown

_REJECTED = {
    FAIL_REASON.QUEUE_FULL: "too many proposals wait",
    FAIL_REASON.MISSING_LEADER: "there is no leader",
    FAIL_REASON.DISCARDED: "another entry took its place",
    FAIL_REASON.NOT_LEADER: "the leader has changed",
    FAIL_REASON.REQUEST_DENIED: "the leader refuses it",
}

_UNKNOWN = {
    FAIL_REASON.LEADER_CHANGED: "the leader changed, or the connection to it broke, before it answered",
    FAIL_REASON.UNKNOWN_OUTCOME: "its place in the log was passed before its answer came",
}


def outcome_of(result: object, code: int | None) -> Outcome:
    """Convert the arguments of the library's callback into an outcome. Only codes that mean "not appended" count as rejections."""
    if code == FAIL_REASON.SUCCESS:
        return Committed(result)
    reason = _REJECTED.get(code)
    if reason is not None:
        return Rejected(reason)
    return Unknown(_UNKNOWN.get(code, f"the library answered {code}"))


ValueT = TypeVar("ValueT")


class Pending:
    """Futures of pending proposals on one event loop. Each future receives its proposal's outcome, or *unknown* after a time-out.

    All futures share one timer, because one timer per future would use a seventh of the CPU time of a proposal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[asyncio.Future[Outcome], tuple[float, float]] = {}
        """Future → (deadline by the loop's clock, time-out), both in seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, timeout_s: float) -> "asyncio.Future[Outcome]":
        """Return a future for a new proposal. The caller must call `discard` when the future has its outcome."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        at_s = self._loop.time() + timeout_s
        self._deadlines[future] = at_s, timeout_s
        if at_s < self._timer_s:
            self._set_timer(at_s)
        return future

    def discard(self, future: "asyncio.Future[Outcome]") -> None:
        """Stop tracking a future."""
        del self._deadlines[future]

    def give_up(self, reason: str) -> None:
        """Set the outcome of all pending proposals to unknown."""
        for future in self._deadlines:
            settle(future, Unknown(reason))

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def _look(self) -> None:
        now_s = self._loop.time()
        for future, (at_s, timeout_s) in self._deadlines.items():
            if at_s <= now_s:
                settle(future, Unknown(f"no answer within {timeout_s} s"))
        self._timer, self._timer_s = None, math.inf
        next_s = min([at_s for at_s, _ in self._deadlines.values() if at_s > now_s], default=math.inf)
        if next_s < math.inf:
            self._set_timer(next_s)


def settle(future: "asyncio.Future[ValueT]", value: ValueT) -> None:
    """Set a future's result, unless the future is done or cancelled."""
    if not future.done():
        future.set_result(value)


def settle_error(future: "asyncio.Future[ValueT]", error: BaseException) -> None:
    """Set a future's exception, unless the future is done or cancelled."""
    if not future.done():
        future.set_exception(error)


LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds, in seconds, of the buckets for commit latency. A further bucket has no upper bound."""


class Counters:
    """Counters of one replica since it started. `commits_s` is a histogram of commit durations in seconds."""

    def __init__(self) -> None:
        self.proposals = self.committed = self.rejected = self.unknown = 0
        self.barriers = self.reads = 0
        self.ticks = self.tick_errors = 0
        self.tick_s_max = 0.0
        """Duration of the longest tick, in seconds. Dumps and slow disks cause long ticks, which must stay shorter than the election
        time-out."""
        self.leader_changes = 0
        self.commits_s = Distribution(LATENCY_BUCKETS_S)

    def count_outcome(self, outcome: Outcome, took_s: float) -> None:
        match outcome:
            case Committed():
                self.committed += 1
                self.commits_s.observe(took_s)
            case Rejected():
                self.rejected += 1
            case Unknown():
                self.unknown += 1


_log = logging.getLogger("snapline.coordinator.raft")

IN_FLIGHT_MAX = 1024
"""Largest number of proposals in flight. The number is a quarter of the size of the library's queue, which also contains proposals
forwarded by other replicas."""

PROPOSE_S = 5.0
"""Time limit, in seconds, for a proposal. The limit is longer than one and a half elections, so most proposals made during an election are
answered."""

READ_S = 5.0
BARRIER_S = 1.0
"""Time, in seconds, after which another barrier is proposed, since the frame of the first barrier may have been lost."""

RETRY_S = 0.05
"""Time, in seconds, between failed barriers, which fail at once if there is no leader."""

TRANSFER_S = 5.0
STATUS_S = 5.0

FAILURES_MAX = 10
"""Number of consecutive failed ticks that ends the process."""


T = TypeVar("T")


class RaftDriver:
    """Asyncio driver of one replica. The driver must be created, started with `start`, and used on one event loop.

    Attributes:
        standing: current term and leader, as far as this replica knows. The object `standing` is immutable and is replaced when the term
            or leader changes.
        counters: counters of this replica; read only.
        failure: the error that ended the tick thread; None if the thread has not failed.
    """

    def __init__(
        self,
        make_node: Callable[[], SafeSyncObj],
        inbox: Inbox,
        *,
        on_standing: Callable[[Standing], None] | None = None,
    ) -> None:
        """Create the driver. Nothing runs before `start`.

        Args:
            make_node: function that creates the Raft node; called on the tick thread. The transport of this node must empty `inbox`.
            inbox: queue of calls for the tick thread, shared with the node's streams.
            on_standing: function that is called on the event loop when `standing` has changed, and must not block.
        """
        self.standing = Standing()
        self.counters = Counters()
        self.failure: BaseException | None = None
        self._make_node = make_node
        self._inbox = inbox
        self._on_standing = on_standing
        self._loop = asyncio.get_running_loop()
        self._node: SafeSyncObj | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._pending = Pending(self._loop)
        self._answers: deque[Callable[[], None]] = deque()
        self._is_signalled = False
        self._ticking = 0
        """Identifier of the tick thread while the thread is running ticks, otherwise 0."""
        self._barrier = _Barrier(self)

    async def start(self) -> None:
        """Create the node and start the thread that ticks it.

        Raises:
            LogError: this replica's files are unreadable or cannot be trusted.
        """
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="raft-tick", daemon=True)
        self._thread.start()
        await started

    async def stop(self) -> None:
        """End the replica. After this call, proposals without an answer have the outcome unknown. A repeated call has no effect."""
        self._is_stopping = True
        self._inbox.wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._give_up("the replica has stopped")

    # ---- proposing --------------------------------------------------------------------------------------------------

    async def propose(self, entry: bytes, *, timeout_s: float = PROPOSE_S) -> Outcome:
        """Propose `entry`, and wait until it is committed and applied on this replica.

        Args:
            entry: 1 to ENTRY_BYTES_MAX bytes, in a form that the state machine's `apply` accepts.
            timeout_s: time, in seconds, after which the outcome counts as unknown.

        Raises:
            UsageError: the entry is empty, or too large (MessageTooLargeError).
            LogError: the replica has ended.
        """
        node = self._alive()
        if len(self._pending) >= IN_FLIGHT_MAX:
            self.counters.rejected += 1
            return Rejected(f"{IN_FLIGHT_MAX} proposals are under way")
        began_s = time.monotonic()
        future = self._pending.add(timeout_s)
        try:
            self.counters.proposals += 1
            node.propose(entry, partial(self._answer, future))
            return self._counted(await future, began_s)
        except UsageError:
            raise
        except Exception as error:  # the entry may already be queued
            _log.exception("proposing")
            return self._counted(Unknown(f"proposing raised {error!r}"), began_s)
        finally:
            self._pending.discard(future)

    def _counted(self, outcome: Outcome, began_s: float) -> Outcome:
        self.counters.count_outcome(outcome, time.monotonic() - began_s)
        return outcome

    def _answer(self, future: "asyncio.Future[Outcome]", result: object, code: int | None) -> None:
        """Pass the outcome of a proposal to its waiting proposer. The library calls this function on the tick thread or on the proposer's
        thread."""
        self.call_on_loop(partial(settle, future, outcome_of(result, code)))

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def read(self, build: Callable[[], T], *, timeout_s: float = READ_S) -> T:
        """Return the result of `build()`, called on the tick thread once the state reflects everything that was acknowledged before this
        call.

        `build` must return an immutable value and must not change the state. An exception raised by `build` is raised by this method.

        Raises:
            CoordinatorUnavailableError: no majority answered in time.
            LogError: the replica has ended.
        """
        self._alive()
        self.counters.reads += 1
        future: asyncio.Future[T] = self._loop.create_future()
        self._barrier.join(build, future)
        try:
            await asyncio.wait({future}, timeout=timeout_s)
            if future.done():
                return future.result()
        finally:
            future.cancel()
        raise CoordinatorUnavailableError(
            f"no majority of the coordinator's replicas answered within {timeout_s} s: are enough of them running?"
        )

    async def wait_ready(self, *, timeout_s: float = READ_S) -> None:
        """Wait until a barrier that this replica has proposed succeeds. Raises the same errors as `read`."""
        await self.read(lambda: None, timeout_s=timeout_s)

    # ---- for operators ----------------------------------------------------------------------------------------------

    async def status(self, *, timeout_s: float = STATUS_S) -> ReplicaStatus:
        """Return this replica's status. Raises CoordinatorUnavailableError if the tick thread does not answer in time."""
        return await self._on_tick_thread(self._status, timeout_s)

    async def transfer_leadership(self, to: str | None = None, *, timeout_s: float = TRANSFER_S) -> str:
        """Transfer leadership to another replica, and return the new leader. If `to` is None, choose the replica with the longest log.

        Raises:
            UsageError: this replica does not lead, it is the only one, or `to` is not another replica.
            CoordinatorUnavailableError: no other replica is up to date, the time limit has passed, or a different replica won the election.
                Try again.
        """
        deadline_s = self._loop.time() + timeout_s
        before = self.standing
        is_sent = False
        while self._loop.time() < deadline_s:
            # A replica without the last entries would lose the election, but may receive them a moment later.
            is_sent = is_sent or await self._on_tick_thread(partial(self._transfer, to), timeout_s)
            leader = self.standing.leader
            if self.standing.term > before.term and leader:
                if to is not None and leader != to:
                    raise CoordinatorUnavailableError(f"{leader} won the election, not {to}: ask it")
                return leader
            await asyncio.sleep(TICK_S)
        raise CoordinatorUnavailableError(
            f"no other replica took over within {timeout_s} s: ask again who leads"
            if is_sent
            else f"{f'{to} was not' if to else 'no other replica was'} up to date within {timeout_s:g} s: try again with less to do"
        )

    @property
    def is_learner(self) -> bool:
        """Return whether this replica has lost its log and may not vote until it has caught up. The answer may be slightly outdated."""
        return self._node is not None and self._node.is_learner

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges by name, with times in seconds. Values about the journal may be slightly outdated."""
        counters, standing = self.counters, self.standing
        journal = self._node._SyncObj__raftLog if self._node is not None else None
        values = {
            "raft_term": float(standing.term),
            "raft_is_leader": float(standing.is_leader),
            "raft_is_learner": float(self.is_learner),
            "raft_leader_changes_total": float(counters.leader_changes),
            "raft_proposals_total": float(counters.proposals),
            "raft_committed_total": float(counters.committed),
            "raft_rejected_total": float(counters.rejected),
            "raft_unknown_total": float(counters.unknown),
            "raft_in_flight": float(len(self._pending)),
            "raft_reads_total": float(counters.reads),
            "raft_barriers_total": float(counters.barriers),
            "raft_ticks_total": float(counters.ticks),
            "raft_tick_max_seconds": counters.tick_s_max,
            "raft_tick_errors_total": float(counters.tick_errors),
            "raft_commit_seconds_sum": counters.commits_s.sum,
        }
        if journal is not None:
            values["raft_log_entries"] = float(len(journal))
            values["raft_log_bytes"] = float(journal.size_bytes)
            values["raft_sync_seconds_count"] = float(journal.commits)
            values["raft_sync_seconds_sum"] = journal.commit_s
            values["raft_sync_max_seconds"] = journal.commit_s_max
        buckets = {
            f'raft_commit_seconds_bucket{{le="{bound}"}}': float(n)
            for bound, n in counters.commits_s.cumulative_counts()
        }
        return values | buckets

    # ---- between the threads ----------------------------------------------------------------------------------------

    def call_on_loop(self, call: Callable[[], None]) -> None:
        """Schedule `call` on the event loop. This method may be called from any thread. Calls run in order, and a single signal wakes the
        loop for all waiting calls.

        Because a signal is a system call that releases the interpreter lock, the loop might run after the first of many answers. A tick
        therefore sends one signal for the entries that it has applied, before it waits for the disk, and another at its end.
        """
        self._answers.append(call)
        if threading.get_ident() != self._ticking:
            self._signal()

    def _signal(self) -> None:
        if self._answers and not self._is_signalled:
            self._is_signalled = True
            call_soon(self._loop, self._run_answers)

    def _run_answers(self) -> None:
        self._is_signalled = False  # cleared first, because a caller that finds it set has already appended its call
        while self._answers:
            try:
                self._answers.popleft()()
            except Exception:
                _log.exception("an answer could not be given")

    async def _on_tick_thread(self, call: Callable[[], T], timeout_s: float) -> T:
        self._alive()
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                self.call_on_loop(partial(settle, future, call()))
            except Exception as error:
                self.call_on_loop(partial(settle_error, future, error))

        self._inbox.put(run)
        await asyncio.wait({future}, timeout=timeout_s)
        if not future.done():
            raise CoordinatorUnavailableError(f"the replica's thread did not answer within {timeout_s} s")
        return future.result()

    def _alive(self) -> SafeSyncObj:
        if self.failure is not None:
            raise LogError(f"the replica has ended: {self.failure}") from self.failure
        if self._node is None or self._is_stopping:
            raise LogError("the replica is not running")
        return self._node

    def _give_up(self, reason: str) -> None:
        self._pending.give_up(reason)
        self._barrier.give_up(reason)

    # ---- the tick thread --------------------------------------------------------------------------------------------

    def _run(self, started: "asyncio.Future[None]") -> None:
        try:
            node = self._make_node()
        except BaseException as error:
            self.call_on_loop(partial(settle_error, started, error))
            return
        node.set_wake_scheduler(self._loop.call_soon)
        node.on_applied = self._signal
        self._node = node
        self.call_on_loop(partial(settle, started, None))
        try:
            self._tick_until_stopped(node)
        except BaseException as error:
            self.failure = error
            self.call_on_loop(partial(self._give_up, f"the replica has ended: {error}"))
        finally:
            self._ticking = 0
            self._signal()
            try:
                node.destroy()
            except BaseException as error:
                self.failure = self.failure or error
                _log.exception("ending the replica")

    def _tick_until_stopped(self, node: SafeSyncObj) -> None:
        failures, self._ticking = 0, threading.get_ident()
        while not self._is_stopping:
            began_s = time.monotonic()
            try:
                node.doTick(TICK_S)
                failures = 0
            except Exception as error:
                failures += 1
                self.counters.tick_errors += 1
                _log.exception("a tick failed")
                if failures >= FAILURES_MAX:
                    fail_stop(f"{failures} ticks in a row failed, the last with {error!r}: start the replica again")
            self.counters.ticks += 1
            self.counters.tick_s_max = max(self.counters.tick_s_max, time.monotonic() - began_s)
            self._observe(node)
            self._signal()

    def _observe(self, node: SafeSyncObj) -> None:
        leader = node._getLeader()
        now = Standing(node.raftCurrentTerm, "" if leader is None else leader.id, node.is_leader)
        before = self.standing
        if now == before:
            return
        if now.leader != before.leader:
            self.counters.leader_changes += 1
        self.standing = now
        if self._on_standing is not None:
            self.call_on_loop(partial(self._on_standing, now))

    def _status(self) -> ReplicaStatus:
        node = self._node
        assert node is not None
        entries = node._SyncObj__raftLog
        return ReplicaStatus(
            node=node.selfNode.id,
            standing=self.standing,
            is_learner=node.is_learner,
            has_quorum=node.hasQuorum,
            connected=tuple(sorted([other.id for other in node.otherNodes if node.isNodeConnected(other)])),
            commit_index=node.raftCommitIndex,
            applied=node.raftLastApplied,
            first_index=entries[0][1],
            last_index=entries[-1][1],
            journal_bytes=entries.size_bytes,
        )

    def _transfer(self, to: str | None) -> bool:
        """Ask another replica to start an election. Return False if no other suitable replica is up to date."""
        node = self._node
        assert node is not None
        if not node.is_leader:
            raise UsageError(f"replica {node.selfNode.id} does not lead: ask {self.standing.leader or 'again soon'}")
        target = next((other for other in node.otherNodes if other.id == to), None)
        if not node.otherNodes:
            raise UsageError("the coordinator has only one replica, so no other can take over the leadership")
        if to is not None and target is None:
            raise UsageError(f"{to} is no other replica of this coordinator")
        codes: list[int] = []
        node.transferLeadership(target, lambda _, code: codes.append(code))
        return codes == [FAIL_REASON.SUCCESS]


class _Barrier:
    """Readers that wait for the barrier in flight, and readers that wait for the next one."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver
        self._next: list[_Reader] = []
        self._under_way: list[_Reader] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, build: Callable[[], T], future: "asyncio.Future[T]") -> None:
        """Add a reader, which waits for the next barrier. This method runs on the event loop."""
        self._next.append(_Reader(build, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())

    def give_up(self, reason: str) -> None:
        """Fail all waiting readers. This method runs on the event loop."""
        for reader in self._next + self._under_way:
            settle_error(reader.future, CoordinatorUnavailableError(reason))
        self._next = self._under_way = []
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        while self._next:
            self._under_way, self._next = self._next, []
            while self._under_way:
                has_succeeded = await self._try_once(self._under_way)
                self._under_way = [reader for reader in self._under_way if not (has_succeeded or reader.future.done())]
                if self._under_way:
                    await asyncio.sleep(RETRY_S)
                    # A new barrier is proposed after the later readers' reads began, so it serves those readers too.
                    self._under_way, self._next = self._under_way + self._next, []

    async def _try_once(self, readers: "list[_Reader]") -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def passed(_: object, code: int | None) -> None:
            # Runs on the tick thread, because only at this moment does the state match the barrier's position in the log.
            if code == FAIL_REASON.SUCCESS:
                for reader in readers:
                    reader.build_reply(self._driver)
            self._driver.call_on_loop(partial(settle, done, code == FAIL_REASON.SUCCESS))

        self._driver.counters.barriers += 1
        try:
            self._driver._alive().barrier(passed)
        except Exception:
            _log.exception("proposing a barrier")
        await asyncio.wait({done}, timeout=BARRIER_S)
        return done.done() and done.result()


class _Reader:
    """A reader that is waiting for a barrier."""

    __slots__ = ("_build", "future")

    def __init__(self, build: Callable[[], T], future: "asyncio.Future[T]") -> None:
        self.future: asyncio.Future[Any] = future  # Any: the type that `build` returns
        self._build: Callable[[], Any] = build

    def build_reply(self, driver: RaftDriver) -> None:
        """Build the reply and pass it to the reader. This method runs on the tick thread."""
        if self.future.done():
            return
        try:
            driver.call_on_loop(partial(settle, self.future, self._build()))
        except Exception as error:
            driver.call_on_loop(partial(settle_error, self.future, error))


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a replica.

    Attributes:
        node: id of the replica, which is one of `members`.
        members: the "host:port" address of each replica, by id. All replicas have the same mapping, which never changes.
        folder: folder for this replica's files, on a local disk and not shared with other replicas.
        cluster: name of the cluster that owns the log. Files and replicas that belong to another cluster are refused.
        marks: storage of the log marks, which all replicas share, outside their folders.
        security: certificates for the role `coordinator`, or loopback connections only.
        configuration: settings for pysyncobj; None means `raft_configuration` with this replica's rank.
    """

    node: str
    members: dict[str, str]
    folder: Path
    cluster: str
    marks: LogMarks
    security: Security = msgspec.field(default_factory=Security.loopback)
    configuration: SyncObjConf | None = None


class Replica:
    """A replica of the coordinator's log. A replica must be created on the event loop that serves requests, and started once its server is
    bound.

    Attributes:
        driver: the driver, through which callers propose, read and get the status.
        streams: the Raft streams, which the caller must add to the server.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        machine: Machine,
        *,
        on_alarm: Callable[[str], None],
        on_standing: Callable[[Standing], None] | None = None,
    ) -> None:
        """Create the replica. Nothing runs before `start`.

        Args:
            options: settings of this replica.
            machine: the replicated state machine, whose methods are called only on the tick thread.
            on_alarm: function that is called on the tick thread with a message for operators, and must return at once.
            on_standing: same as in `RaftDriver`.

        Raises:
            UsageError: the members in `options` are inconsistent.
        """
        if options.node not in options.members:
            raise UsageError(f"{options.node} is not among the members {', '.join(sorted(options.members))}")
        for node in options.members:
            check_id(node, "replica")
        if len(set(options.members.values())) < len(options.members):
            raise UsageError("two members have the same address: each replica needs its own")
        self._options = options
        self._machine = machine
        self._on_alarm = on_alarm
        self._others = [
            RaftNode(node, address) for node, address in sorted(options.members.items()) if node != options.node
        ]
        for other in self._others:
            options.security.check_dial_address(other.address)
        self.streams = PeerStreams(
            node=options.node,
            others=self._others,
            cluster=options.cluster,
            security=options.security,
            address=options.members[options.node],
        )
        self.driver = RaftDriver(self._make_node, self.streams.inbox, on_standing=on_standing)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Add the Raft streams to `server`, which has not been started yet."""
        self.streams.add_to_server(server)

    async def start(self) -> None:
        """Open the files and join the cluster. Raises LogError if the files are damaged or unreadable."""
        await self.driver.start()

    async def stop(self) -> None:
        """End the replica, but keep its files. A repeated call has no effect."""
        await self.driver.stop()
        await self.streams.stop()

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges by name for Prometheus, with times in seconds."""
        streams = self.streams
        return self.driver.metrics() | {
            "raft_streams_opened_total": float(streams.opened),
            "raft_streams_refused_total": float(streams.refused),
        }

    def _make_node(self) -> SafeSyncObj:
        options = self._options
        rank = sorted(options.members).index(options.node)
        return SafeSyncObj(
            RaftNode(options.node, options.members[options.node]),
            self._others,
            options.configuration or raft_configuration(rank),
            transport_class=partial(GrpcTransport, streams=self.streams),
            machine=self._machine,
            folder=options.folder,
            cluster=options.cluster,
            marks=options.marks,
            on_alarm=self._on_alarm,
        )

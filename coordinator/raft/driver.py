"""Drives one replica: a thread that ticks, and proposals and reads for asyncio.

Theory of operation
-------------------
pysyncobj is single-threaded; only proposing is safe from elsewhere. So one thread makes the node, ticks it and destroys it,
and everything else is posted to that thread through the inbox: status, transfer of leadership. Answers come back in one
queue, which the loop is told to empty once, however many wait in it.

*Proposals.* A callback may never fire: the frame that was to carry the proposal, or its answer, may be lost. So each has a
deadline, and running into it is an outcome: unknown. At most `IN_FLIGHT_MAX` are under way; the next is rejected at
once, so memory stays bounded however many callers there are. A caller that got *unknown* proposes the same request again.

*Reads (linearizable, Herlihy and Wing 1990).* There are no leases: a leader that is cut off answers for a while next to its
successor. A read therefore waits until an empty entry, proposed after the read began, is applied here: then this replica
holds whatever was acknowledged before. The reply is built there and then, on the tick thread. Readers share barriers: who
comes while one is under way takes the next, since that one may have been proposed too early for him.

*Exceptions.* One in a tick is logged and counted. After `FAILURES_MAX` ticks in a row the process ends: nobody knows what the
node's memory is worth.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types

from snapline.coordinator.raft.configuration import TICK_S
from snapline.coordinator.raft.counters import Counters
from snapline.coordinator.raft.fail_stop import fail_stop
from snapline.coordinator.raft.inbox import Inbox
from snapline.coordinator.raft.node import SafeSyncObj
from snapline.coordinator.raft.outcomes import Outcome, Rejected, Unknown, outcome_of
from snapline.coordinator.raft.pending import Pending, settle, settle_error
from snapline.coordinator.raft.streams import call_soon
from snapline.errors import CoordinatorUnavailableError, LogError, UsageError
from snapline.messages.status import ReplicaStatus, Standing

_log = logging.getLogger("snapline.coordinator.raft")

IN_FLIGHT_MAX = 1024
"""Proposals under way. A quarter of what the library's queue takes: others forward theirs to us."""

PROPOSE_S = 5.0
"""Time limit of a proposal, longer than an election and a half: most proposals that meet one are answered."""

READ_S = 5.0
BARRIER_S = 1.0
"""A barrier not answered for so long is given up and another tried: its frame may be lost."""

RETRY_S = 0.05
"""Time between barriers that fail: without a leader they fail at once."""

TRANSFER_S = 5.0
STATUS_S = 5.0

FAILURES_MAX = 10
"""Ticks in a row that may raise."""


T = TypeVar("T")


class RaftDriver:
    """Driver of one replica for asyncio. Make it, `start` it, and use it from one event loop.

    Attributes:
        standing: who leads, as far as this replica knows; an immutable value, replaced when it changes.
        counters: what happened so far; read-only for others.
        failure: why the tick thread has ended, if it has without `stop`.
    """

    def __init__(
        self,
        make_node: Callable[[], SafeSyncObj],
        inbox: Inbox,
        *,
        on_standing: Callable[[Standing], None] | None = None,
    ) -> None:
        """Create the driver; nothing runs before `start`.

        Args:
            make_node: called on the tick thread; the node's transport must drain `inbox`.
            inbox: of the node's streams.
            on_standing: called on the loop when `standing` has changed; must not block.
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
        """The tick thread while it ticks."""
        self._barrier = _Barrier(self)

    async def start(self) -> None:
        """Make the node and tick it.

        Raises:
            LogError: the files of this replica cannot be trusted or read.
        """
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="raft-tick", daemon=True)
        self._thread.start()
        await started

    async def stop(self) -> None:
        """End the replica; what was proposed and not answered is unknown. May be called again."""
        self._is_stopping = True
        self._inbox.wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._give_up("the replica has stopped")

    # ---- proposing --------------------------------------------------------------------------------------------------

    async def propose(self, entry: bytes, *, timeout_s: float = PROPOSE_S) -> Outcome:
        """Have `entry` committed, and applied here.

        Args:
            entry: 1 to ENTRY_BYTES_MAX bytes, as the machine's `apply` takes them.
            timeout_s: the outcome is unknown after this.

        Raises:
            UsageError: it is empty, or too large (MessageTooLargeError).
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
        except Exception as error:  # it may be queued
            _log.exception("proposing")
            return self._counted(Unknown(f"proposing raised {error!r}"), began_s)
        finally:
            self._pending.discard(future)

    def _counted(self, outcome: Outcome, began_s: float) -> Outcome:
        self.counters.count_outcome(outcome, time.monotonic() - began_s)
        return outcome

    def _answer(self, future: "asyncio.Future[Outcome]", result: object, code: int | None) -> None:
        """The library's callback: on the tick thread, or on the proposer's."""
        self.call_on_loop(partial(settle, future, outcome_of(result, code)))

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def read(self, build: Callable[[], T], *, timeout_s: float = READ_S) -> T:
        """Return `build()`, called on the tick thread when the state holds all that was acknowledged before this call.

        `build` must return something immutable and not change the state; what it raises is raised here.

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
        """Wait until this replica takes part: a barrier of its own has succeeded. Raises as `read` does."""
        await self.read(lambda: None, timeout_s=timeout_s)

    # ---- for operators ----------------------------------------------------------------------------------------------

    async def status(self, *, timeout_s: float = STATUS_S) -> ReplicaStatus:
        """Return this replica's status. Raises CoordinatorUnavailableError if its thread does not answer in time."""
        return await self._on_tick_thread(self._status, timeout_s)

    async def transfer_leadership(self, to: str | None = None, *, timeout_s: float = TRANSFER_S) -> str:
        """Have another replica lead, if this one does; returns the new leader. `to=None`: the one with most of the log.

        Raises:
            UsageError: this replica does not lead, or `to` is no other replica.
            CoordinatorUnavailableError: nobody is up to date, the change did not come in time, or another one than `to` won the election: ask again.
        """
        deadline_s = self._loop.time() + timeout_s
        before = self.standing
        is_sent = False
        while self._loop.time() < deadline_s:
            # Whoever lacks the last entries would lose the election: a moment later it may have them.
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
            else f"{to or 'no other replica'} was not up to date within {timeout_s} s: try again with less to do"
        )

    @property
    def is_learner(self) -> bool:
        """Return whether this replica lost its log and may not vote yet; a moment old."""
        return self._node is not None and self._node.is_learner

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by name, times in seconds; the journal's are a moment old."""
        counters, standing = self.counters, self.standing
        journal = self._node._SyncObj__raftLog if self._node is not None else None
        found = {
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
            found["raft_log_entries"] = float(len(journal))
            found["raft_log_bytes"] = float(journal.size_bytes)
            found["raft_sync_seconds_count"] = float(journal.commits)
            found["raft_sync_seconds_sum"] = journal.commit_s
            found["raft_sync_max_seconds"] = journal.commit_s_max
        buckets = {f'raft_commit_seconds_bucket{{le="{bound}"}}': float(n) for bound, n in counters.commits_s.up_to()}
        return found | buckets

    # ---- between the threads ----------------------------------------------------------------------------------------

    def call_on_loop(self, call: Callable[[], None]) -> None:
        """Have `call` run on the loop, from any thread, in order; one signal wakes it for all that wait.

        A signal is a system call, in which the tick thread lets go of the interpreter: the first of many answers would be the loop's only
        one. So a tick signals what it has applied before it waits for the disk, and the rest at its end.
        """
        self._answers.append(call)
        if threading.get_ident() != self._ticking:
            self._signal()

    def _signal(self) -> None:
        if self._answers and not self._is_signalled:
            self._is_signalled = True
            call_soon(self._loop, self._run_answers)

    def _run_answers(self) -> None:
        self._is_signalled = False  # before anything is taken: who finds it set has appended before
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
        node.wake_later(self._loop.call_soon)
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
        """Ask another replica to stand for election; False if it is not up to date."""
        node = self._node
        assert node is not None
        if not node.is_leader:
            raise UsageError(f"replica {node.selfNode.id} does not lead: ask {self.standing.leader or 'again soon'}")
        target = next((other for other in node.otherNodes if other.id == to), None)
        if to is not None and target is None:
            raise UsageError(f"{to} is no other replica of this coordinator")
        codes: list[int] = []
        node.transferLeadership(target, lambda _, code: codes.append(code))
        return codes == [FAIL_REASON.SUCCESS]


class _Barrier:
    """Readers that wait for an empty entry; the next entry's, and those of the one that is under way."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver
        self._next: list[_Reader] = []
        self._under_way: list[_Reader] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, build: Callable[[], T], future: "asyncio.Future[T]") -> None:
        """Take part in the next barrier, on the loop."""
        self._next.append(_Reader(build, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())

    def give_up(self, reason: str) -> None:
        """Fail all readers, on the loop."""
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
                self._under_way = [each for each in self._under_way if not (has_succeeded or each.future.done())]
                if self._under_way:
                    await asyncio.sleep(RETRY_S)
                    # A barrier proposed anew is late enough for those who came meanwhile too.
                    self._under_way, self._next = self._under_way + self._next, []

    async def _try_once(self, readers: "list[_Reader]") -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def passed(_: object, code: int | None) -> None:
            # On the tick thread: the state is as of the barrier now, and only now.
            if code == FAIL_REASON.SUCCESS:
                for reader in readers:
                    reader.build_on(self._driver)
            self._driver.call_on_loop(partial(settle, done, code == FAIL_REASON.SUCCESS))

        self._driver.counters.barriers += 1
        try:
            self._driver._alive().barrier(passed)
        except Exception:
            _log.exception("proposing a barrier")
        await asyncio.wait({done}, timeout=BARRIER_S)
        return done.done() and done.result()


class _Reader:
    """Reader that waits for a barrier."""

    __slots__ = ("_build", "future")

    def __init__(self, build: Callable[[], T], future: "asyncio.Future[T]") -> None:
        self.future: asyncio.Future[Any] = future  # what `build` returns: only the reader knows
        self._build: Callable[[], Any] = build

    def build_on(self, driver: RaftDriver) -> None:
        """Build the reply, on the tick thread."""
        if self.future.done():
            return
        try:
            driver.call_on_loop(partial(settle, self.future, self._build()))
        except Exception as error:
            driver.call_on_loop(partial(settle_error, self.future, error))

"""Checkpoints of single agents on their way into the store, and the reports of them on their way to the coordinator.

One pack is written at a time, in a worker thread; what is taken meanwhile goes into the next one, however often an agent is
among it: so a busy disk makes larger packs, not a longer queue. A pack that cannot be written is tried again until it can: the checkpoints behind it
would be of no use without its logs. Reports are repeated on every new stream until the coordinator has acknowledged them.

**Backpressure.* With a store that is slow or dead the queue would grow without bound. Above WAITING_CHECKPOINTS_MAX or WAITING_BYTES_MAX
the writer reports a busy store to the host core, which defers basic checkpoints until half of the queue has drained. Others are
taken all the same, since the protocol, a freeze or a round needs them: so the limits may be passed by what they add, and by one
basic checkpoint of each agent. Sender logs grow meanwhile, in the agents or in this queue. Above twice the limits the queue is
**full*: then the host core pauses the agents until half of the limits is reached (`backlog.py`).

It logs once that the store takes no checkpoints, and once that it does again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.checkpoint_files import TakenCheckpoint, unwritable, write_checkpoints
from snapline.errors import EncodingError, SnaplineError
from snapline.messages.host_messages import AgentsFrozen, CheckpointsStored, HostMessage
from snapline.storage.store.store import Store

GATHER_S = 0.005
"""Time to gather a pack: agents whose checkpoints fall due together share it, and its fsyncs."""

PACK_CHECKPOINTS_MAX = 4096
"""Largest number of checkpoints in one pack. That many small ones take 0.13 s to write, and their fsyncs 5 ms of that: larger packs would gain
nothing, and be lost in larger pieces, since nothing in a pack is durable before all of it is."""

PACK_BYTES_MAX = 32 * 1024 * 1024
"""Largest size of states and logs in one pack, unless one checkpoint alone is larger: a fraction of a second's work for a disk. They are
encoded in memory before they are written, and the coordinator reads a pack's part of a line at once; its report, by
`CHANNEL_BYTES`, stays below the 16 MiB that a message may have."""

RETRY_S, RETRY_S_MAX = 1.0, 8.0
"""Time from a failure to the next try, doubled each time up to the maximum: a full disk is not emptied faster, each try writes a
pack again, and a recovery that waits for checkpoints should not wait for much longer than the store does."""

WAITING_CHECKPOINTS_MAX = 4 * PACK_CHECKPOINTS_MAX
WAITING_BYTES_MAX = 4 * PACK_BYTES_MAX
"""Largest number and size waiting, or being written: above one of them the store counts as busy. Four packs: a disk that keeps up has one in work and
one that gathers; 128 MiB is what a host can spare."""

log = logging.getLogger("snapline.host")

Worker = Callable[..., None]

_Outcome = CheckpointsStored | str | dict[str, tuple[int, str]]
"""The report; why the pack could not be written just now; or agent → its first checkpoint that can never be, and why."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


def _on_running_loop(delay_s: float, function: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, function)


class CheckpointWriter:
    """Writer of a host's checkpoints. It runs on the event loop, but for the writing itself.

    `in_worker(function, *arguments, then=…)` runs blocking work; `send` sends to the coordinator, `feed` to the host core;
    `call_later(delay_s, function)` is the loop's.

    Attributes:
        unknown: by sequence, reports that the coordinator has not acknowledged.
        size_bytes: size of what waits, or is being written.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        in_worker: Worker,
        send: Callable[[HostMessage], None],
        feed: Callable[[ev.Event], None],
        *,
        call_later: Callable[[float, Callable[[], None]], Timer] = _on_running_loop,
    ) -> None:
        self._open_store = open_store
        self._in_worker = in_worker
        self._send = send
        self._feed = feed
        self._call_later = call_later
        self._writer = ""
        self._host_start = 0
        self._plan = 0
        self._sequence = 0
        self._waiting: list[TakenCheckpoint] = []
        self._is_writing = False
        self._writing_count = self._writing_bytes = self.size_bytes = 0
        self._failures = 0
        self._retry_s = 0.0
        self._told = (False, "", False)
        """Last report to the host core: is the store busy, what is wrong with it, and is the queue full."""
        self._timer: Timer | None = None
        self.unknown: dict[int, CheckpointsStored] = {}
        self._is_welcome = False
        """This stream has had its Welcome. Before it no report leaves: it would be acknowledged together with older ones that
        were lost with the stream before, and are repeated at the Welcome."""
        self._frozen: AgentsFrozen | None = None

    def begin(self, writer: str, host_start: int, plan: int) -> None:
        """Begin a plan: what was taken under the one before is discarded."""
        if host_start != self._host_start:
            self._sequence = 0
        self._writer, self._host_start, self._plan = writer, host_start, plan
        _release(self._waiting)
        self._waiting = []
        self.unknown.clear()
        self._frozen = None
        # A plan begins with a good opinion of the store, here as in the core. What is being written is counted no more.
        self._writing_count = self._writing_bytes = self.size_bytes = self._failures = 0
        self._told = (False, "", False)

    def add(self, taken: TakenCheckpoint) -> None:
        """Add a captured checkpoint."""
        self._waiting.append(taken)
        self.size_bytes += taken.size_bytes
        self._write_soon(GATHER_S)
        self._tell_core()

    def drop_round(self, round_: int) -> None:
        """Discard what waits for an aborted round. The coordinator deletes what is being written."""
        dropped = [taken for taken in self._waiting if taken.command.round == round_]
        if not dropped:
            return
        self._waiting = [taken for taken in self._waiting if taken.command.round != round_]
        self.size_bytes -= sum([taken.size_bytes for taken in dropped])
        _release(dropped)
        self._tell_core()
        self._say_frozen()

    def report_frozen(self, command: ev.ReportFrozen, host_start: int) -> None:
        """Report the freeze when everything taken so far is durable and reported."""
        self._frozen = AgentsFrozen(command.plan, command.number, host_start, command.running)
        if self._waiting and not self._is_writing:
            self._write()
        self._say_frozen()

    def known(self, sequence: int) -> None:
        """Forget the reports up to this one, which the coordinator knows."""
        for number in [number for number in self.unknown if number <= sequence]:
            del self.unknown[number]

    def stream_opened(self) -> None:
        """Begin a new stream to the coordinator, which has not sent Welcome yet."""
        self._is_welcome = False

    def repeat(self) -> None:
        """Repeat, at the coordinator's Welcome, what it may not have received."""
        self._is_welcome = True
        for message in self.unknown.values():
            self._send(message)
        self._say_frozen()

    def _write_soon(self, delay_s: float) -> None:
        if self._timer is None and not self._is_writing:
            self._timer = self._call_later(delay_s, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_writing or not self._waiting:
            return
        batch = self._next_batch()
        self._is_writing, self._writing_count = True, len(batch)
        plan, host_start, writer = self._plan, self._host_start, self._writer

        def write() -> "_Outcome":
            try:
                return write_checkpoints(self._open_store(), writer, plan, batch)
            except EncodingError:
                return unwritable(batch)
            except (SnaplineError, OSError) as error:
                return str(error)

        self._in_worker(write, then=lambda outcome: self._written(batch, plan, host_start, outcome))

    def _next_batch(self) -> list[TakenCheckpoint]:
        """Take the oldest of what waits: as many as one pack may hold, and of one round, whose packs go if it is aborted.

        Order is kept, since a checkpoint is of no use without the logs of those before it. None comes twice: such a pack
        would always be refused.
        """
        round_ = self._waiting[0].command.round
        known: dict[tuple[str, int], None] = {}
        size_bytes = self._writing_bytes = 0
        for taken in self._waiting[:PACK_CHECKPOINTS_MAX]:
            command = taken.command
            key = command.agent, command.control.number
            size_bytes += taken.size_bytes
            if command.round != round_ or key in known or (known and size_bytes > PACK_BYTES_MAX):
                break
            known[key], self._writing_bytes = None, size_bytes
        batch, self._waiting = self._waiting[: len(known)], self._waiting[len(known) :]
        return batch

    def _written(self, batch: list[TakenCheckpoint], plan: int, host_start: int, outcome: "_Outcome") -> None:
        self._is_writing = False
        if (plan, host_start) != (self._plan, self._host_start):
            _release(batch)
            self._write_soon(0)
            return
        self._writing_count = 0
        if isinstance(outcome, dict):
            self._give_up(batch, outcome)
            return
        if isinstance(outcome, str):
            self._try_again(batch, outcome)
            return
        self._note_stored(batch)
        self._sequence += 1
        report = msgspec.structs.replace(outcome, sequence=self._sequence, host_start=host_start, plan=plan)
        self.unknown[self._sequence] = report
        if self._is_welcome:
            self._send(report)
        if self._waiting:
            self._write_soon(0)
        self._tell_core()
        self._say_frozen()

    def _try_again(self, batch: list[TakenCheckpoint], problem: str) -> None:
        """Queue the batch again: the store does not take it just now."""
        if not self._failures:
            log.warning("%d checkpoints cannot be stored, trying again and again: %s", len(batch), problem)
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX) if self._failures else RETRY_S
        self._failures += 1
        self._waiting = batch + self._waiting
        self._write_soon(self._retry_s)
        self._tell_core(problem)

    def _note_stored(self, batch: list[TakenCheckpoint]) -> None:
        if self._failures:
            log.info("checkpoints can be stored again, after %d tries; %d wait", self._failures, len(self._waiting))
        self._failures = 0
        self.size_bytes -= self._writing_bytes
        _release(batch)

    def _tell_core(self, problem: str = "") -> None:
        """Report to the host core when something has changed. Without a new problem the known one lasts while it may."""
        was_busy, known, was_full = self._told
        count = len(self._waiting) + self._writing_count
        part = 2 if was_busy else 1
        is_busy = count > WAITING_CHECKPOINTS_MAX // part or self.size_bytes > WAITING_BYTES_MAX // part
        is_full = (
            (was_full and is_busy) or count > 2 * WAITING_CHECKPOINTS_MAX or self.size_bytes > 2 * WAITING_BYTES_MAX
        )
        told = is_busy, (problem or known) if self._failures and count else "", is_full
        if told != self._told:
            self._told = told
            self._feed(ev.StoreWatched(*told))

    def _give_up(self, batch: list[TakenCheckpoint], spoilt: dict[str, tuple[int, str]]) -> None:
        """Give up states that cannot be saved: their agents fail, everything else is written without them.

        Earlier checkpoints of such an agent are still of use; later ones build on a log that is lost.
        """
        kept: list[TakenCheckpoint] = []
        failed: dict[str, int] = {}
        for taken in batch + self._waiting:
            command = taken.command
            if command.agent not in spoilt or command.control.number < spoilt[command.agent][0]:
                kept.append(taken)
            else:
                _release([taken])
                failed.setdefault(command.agent, command.control.incarnation)
        self._waiting = kept
        self.size_bytes = sum([taken.size_bytes for taken in kept])
        if kept:
            self._write_soon(0)
        self._tell_core()
        for agent, incarnation in failed.items():
            reason = spoilt[agent][1]
            log.warning("%s", reason)
            self._feed(ev.CheckpointFailed(agent, incarnation, reason))
        self._say_frozen()

    def _say_frozen(self) -> None:
        frozen = self._frozen
        if frozen is None or self._waiting or self._is_writing or not self._is_welcome:
            return
        self._frozen = None
        self._send(frozen)


def _release(dropped: list[TakenCheckpoint]) -> None:
    """Release checkpoints that are durable or discarded: the memory that their images point into may be used again."""
    for taken in dropped:
        taken.image.release()

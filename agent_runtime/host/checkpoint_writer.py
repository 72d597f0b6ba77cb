"""Stores the checkpoints that agents take independently or in rounds, and reports the stored checkpoints to the coordinator.

The states of agents are captured on the event loop, between turns. Packs are written in a worker thread, one after another. Each pack
contains all checkpoints taken since the previous pack, so that these checkpoints share one disk sync. A pack may contain checkpoints of
many agents, or several checkpoints of one agent, because a protocol may force a checkpoint for every message. A busy disk therefore leads
to larger packs instead of more packs in the queue. Each checkpoint contains the messages that its agent has sent since its previous
checkpoint (the sender log, docs/protocols.md, section 3). A message therefore becomes durable together with a state in which it has already
been sent.

A failed pack is retried until it has been written, because later checkpoints would be useless without its sender logs. Reports are repeated
on each new coordinator stream until the coordinator has acknowledged them.

*Backpressure.* If the store is slow or unavailable, the queue must not grow without limit. Above WAITING_CHECKPOINTS_MAX or
WAITING_BYTES_MAX, the writer reports a busy store to the host core. The host core then defers basic checkpoints until the queue has shrunk
to half of the limits. Checkpoints that the protocol, a freeze or a round needs are still taken. These checkpoints, and one basic checkpoint
of each agent, may therefore exceed the limits. While checkpoints are deferred or waiting, sender logs grow in the agents or in this queue.
When the queue exceeds twice the limits, it is *full*. The host core then pauses the agents until the queue has shrunk to half of the limits
(`logged_agent.py`). The writer logs one line when the store stops accepting checkpoints, and another line when the store accepts
checkpoints again.

*Reused chunks.* An agent's next checkpoint may refer to chunks that are already in the store instead of writing them again. Each agent has
one table of its chunks for each epoch that this host has written and that may still become complete. The newest complete epoch is the
*base*. Only chunks of the base are reused, because no other chunks are certain to remain until the new epoch is complete or aborted
(`storage/packs/checkpoint_packs.py`). A new plan discards all tables, and the epoch of the plan's recovery line becomes the base. Only
coordinated epochs use a base. A pack with independent checkpoints is deleted as the recovery line advances, so it contains all chunks that
its checkpoints need.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import Capture, NameIndex, check_image, image_of, new_chunks, reported
from snapline.errors import EncodingError, SnaplineError, UsageError
from snapline.messages.host_messages import AgentsFrozen, CheckpointsStored, HostMessage, ReportedPack
from snapline.storage.capture.chunking import ChunkedState, chunk_image, with_journal
from snapline.storage.capture.image import ChunkTable, StateImage
from snapline.storage.packs.checkpoint import AgentCheckpoint, BootClock, StatePart, encode_checkpoint, size_of
from snapline.storage.store.store import Store

CHANNEL_BYTES = 32
"""Number of bytes that one channel counts towards a pack's size: name and number in the file, and three columns of the report."""


class TakenCheckpoint(msgspec.Struct):
    """A captured state of an agent, together with the core's command that requested the capture. Code that discards a captured checkpoint
    must release its image.

    Attributes:
        size_bytes: approximate size of the checkpoint in a pack, including state, sender log, pending outputs, sealed journal, and both
            channel tables. The size is measured once, so that the same number is added to and later subtracted from the queue's size. For a
            forked capture, the size does not include the part of the state that is encoded later.
    """

    known: AgentType
    state_version: int
    image: StateImage
    command: ev.TakeCheckpoint
    recorded_ns: int
    capture_ns: int
    clock: BootClock | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        command = self.command
        channels = len(command.sent) + len(command.received)
        outputs_bytes = sum([len(output.payload) for output in command.control.outputs.pending])
        log_bytes = size_of(command.log.values())[1]
        sealed = command.control.sealed
        journal_bytes = sum(map(len, sealed.runs)) if sealed is not None else 0
        self.size_bytes = self.image.size_bytes + log_bytes + outputs_bytes + journal_bytes + channels * CHANNEL_BYTES


def write_checkpoints(store: Store, writer: str, plan: int, captures: list[TakenCheckpoint]) -> CheckpointsStored:
    """Write checkpoints as one checkpoint pack, and return the report on these checkpoints. The pack is durable when the function returns.

    The checkpoints of each agent must be in the order in which they were taken, because each checkpoint lists changes since the previous
    one. The caller must set the report's `host_start` and `sequence`.

    Raises:
        EncodingError: If a state could not be restored from its image. The error message names the agent.
        StoreError: If the store cannot be written. No other data in the store refers to a partially written pack.
        UsageError: If a checkpoint occurs twice, or if the checkpoints belong to different rounds.
    """
    rounds = {capture.command.round for capture in captures} - {0}
    if len(rounds) > 1:
        raise UsageError(f"checkpoints of rounds {sorted(rounds)} in one pack: write those of each round on their own")
    chunked = [_chunk(store, capture) for capture in captures]
    checkpoints = [_checkpoint_of(capture, state.parts) for capture, state in zip(captures, chunked, strict=True)]
    blobs = [(checkpoint.agent, checkpoint.number, encode_checkpoint(checkpoint)) for checkpoint in checkpoints]
    reference = store.write_checkpoints(writer=writer, plan=plan, blobs=blobs, chunks=new_chunks(chunked))
    return _report_of(captures, plan=plan, epoch=max(rounds, default=0), pack=reported(reference))


def _chunk(store: Store, taken: TakenCheckpoint) -> ChunkedState:
    """Split an image into chunks without reusing any chunks. The pack must contain all chunks of its checkpoints, because no manifest
    refers to further packs."""
    taken.image.resolve()
    check_image(taken.command.agent, taken.known, taken.image)
    return chunk_image(with_journal(taken.image, taken.command.control.sealed), None, digest=store.digest)


def unwritable(captures: list[TakenCheckpoint]) -> dict[str, tuple[int, str]]:
    """Return, for each affected agent, the first checkpoint that can never be written, and the reason. The state of an unwritable
    checkpoint could not be restored from its image."""
    failed: dict[str, tuple[int, str]] = {}
    for capture in captures:
        command = capture.command
        if command.agent not in failed:
            try:
                check_image(command.agent, capture.known, capture.image)
                encode_checkpoint(_checkpoint_of(capture, []))
            except EncodingError as error:
                failed[command.agent] = command.control.number, str(error)
    return failed


def _checkpoint_of(taken: TakenCheckpoint, parts: list[StatePart]) -> AgentCheckpoint:
    command = taken.command
    capture = Capture(
        taken.known,
        taken.state_version,
        taken.image,
        command.control,
        taken.recorded_ns,
        taken.capture_ns,
        clock=taken.clock,
    )
    return msgspec.structs.replace(
        image_of(command.agent, capture, parts, sent=command.sent, received=command.received),
        basis=command.basis,
        round=command.round,
        turns=command.turns,
        sender_log=command.log,
    )


def _report_of(captures: list[TakenCheckpoint], *, plan: int, epoch: int, pack: ReportedPack) -> CheckpointsStored:
    """Return a report with an entry for each checkpoint, and an entry for each channel whose sequence number has changed since the agent's
    previous checkpoint."""
    commands = [capture.command for capture in captures]
    places = NameIndex()
    agents = [places[command.agent] for command in commands]
    sent = [
        (x, places[receiver], n) for x, command in enumerate(commands) for receiver, n in command.changed_sent.items()
    ]
    received = [
        (x, places[sender], n) for x, command in enumerate(commands) for sender, n in command.changed_received.items()
    ]
    sizes = [size_of(command.log.values()) for command in commands]
    pauses = [capture.capture_ns for capture in captures]
    return CheckpointsStored(
        host_start=0, plan=plan, sequence=0, pack=pack, names=tuple(places), agents=tuple(agents),
        numbers=tuple([command.control.number for command in commands]),
        bases=tuple([command.basis for command in commands]), epoch=epoch,
        sent_of=tuple([x for x, _, _ in sent]), sent_to=tuple([x for _, x, _ in sent]),
        sent_number=tuple([x for _, _, x in sent]), received_of=tuple([x for x, _, _ in received]),
        received_from=tuple([x for _, x, _ in received]), received_number=tuple([x for _, _, x in received]),
        turns=tuple([command.turns for command in commands]), log_messages=sum([count for count, _ in sizes]),
        log_bytes=sum([size for _, size in sizes]), state_bytes=sum([capture.image.size_bytes for capture in captures]),
        capture_ns=max(pauses, default=0), captures_ns=sum(pauses),
    )  # fmt: skip


GATHER_S = 0.005
"""Time for which checkpoints are gathered into a pack, so that agents whose checkpoints are due at the same time share one pack and its
fsyncs."""

PACK_CHECKPOINTS_MAX = 4096
"""Largest number of checkpoints in one pack. Writing this many small checkpoints takes 0.13 s, of which the fsyncs take only 5 ms, so
larger packs would not be faster. With larger packs a crash would lose more, since a pack becomes durable as a whole."""

PACK_BYTES_MAX = 32 * 1024 * 1024
"""Largest total size of states and logs in one pack, unless a single checkpoint is larger. A disk writes this amount in a fraction of a
second. The limit is needed since a pack is encoded in memory, and the coordinator reads a pack's part of a recovery line in one piece.
Since `CHANNEL_BYTES` are counted for each channel, the pack's report stays below the message limit of 16 MiB."""

RETRY_S, RETRY_S_MAX = 1.0, 8.0
"""Time from a failure to the next attempt, which doubles with each failure up to the maximum. Attempts should be rare, since each writes
the whole pack again. But a recovery that waits for checkpoints should not wait much longer than the store is unavailable."""

WAITING_CHECKPOINTS_MAX = 4 * PACK_CHECKPOINTS_MAX
WAITING_BYTES_MAX = 4 * PACK_BYTES_MAX
"""Largest number and total size of checkpoints that wait or are being written. Above either limit the store counts as busy. Both limits
correspond to four packs. With a fast disk two packs are enough: one is being written while the next is gathered. A host can spare 128
MiB."""

log = logging.getLogger("snapline.host")

Worker = Callable[..., None]

_Outcome = CheckpointsStored | str | dict[str, tuple[int, str]]
"""Outcome of writing a pack: the report, or the reason why the pack could not be written now, or the result of `unwritable`."""


class Timer(Protocol):
    """A function call scheduled for later."""

    def cancel(self) -> None:
        """Cancel the scheduled call."""


def _on_running_loop(delay_s: float, function: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, function)


class CheckpointWriter:
    """Writes the checkpoints that a host's agents take independently or in rounds. All methods run on the event loop, and only the writing
    of packs runs in a worker thread.

    `in_worker(function, *arguments, then=…)` runs blocking work in a worker thread. `send` sends a message to the coordinator, and `feed`
    passes an event to the host core. `call_later(delay_s, function)` is the method of the event loop.

    Attributes:
        unknown: reports that the coordinator has not acknowledged yet, by sequence number.
        size_bytes: total size of the checkpoints that are waiting or being written.
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
        self._reported = (False, "", False)
        """Last status reported to the host core: whether the store is busy, the store's problem, and whether the queue is full."""
        self._timer: Timer | None = None
        self.unknown: dict[int, CheckpointsStored] = {}
        self._has_welcome = False
        """Whether the coordinator has sent Welcome on this stream. No report is sent before the Welcome, since its acknowledgement would
        also cover older reports that were lost with the previous stream. Those are repeated at the Welcome."""
        self._frozen: AgentsFrozen | None = None

    def begin(self, writer: str, host_start: int, plan: int) -> None:
        """Start a plan, and discard the previous plan's checkpoints."""
        if host_start != self._host_start:
            self._sequence = 0
        self._writer, self._host_start, self._plan = writer, host_start, plan
        _release(self._waiting)
        self._waiting = []
        self.unknown.clear()
        self._frozen = None
        # At the start of a plan the writer and the core assume that the store works. Checkpoints that are still being written no longer
        # count.
        self._writing_count = self._writing_bytes = self.size_bytes = self._failures = 0
        self._reported = (False, "", False)

    def add(self, taken: TakenCheckpoint) -> None:
        """Queue a captured checkpoint for writing."""
        self._waiting.append(taken)
        self.size_bytes += taken.size_bytes
        self._write_soon(GATHER_S)
        self._report_store_status()

    def drop_round(self, round_: int) -> None:
        """Discard the waiting checkpoints of an aborted round. The coordinator deletes those checkpoints of the round that are already
        being written."""
        dropped = [checkpoint for checkpoint in self._waiting if checkpoint.command.round == round_]
        if not dropped:
            return
        self._waiting = [checkpoint for checkpoint in self._waiting if checkpoint.command.round != round_]
        self.size_bytes -= sum([checkpoint.size_bytes for checkpoint in dropped])
        _release(dropped)
        self._report_store_status()
        self._send_frozen_report()

    def report_frozen(self, command: ev.ReportFrozen, host_start: int) -> None:
        """Report to the coordinator that all agents are frozen, as soon as all checkpoints taken so far are durable and reported."""
        self._frozen = AgentsFrozen(command.plan, command.number, host_start, command.running)
        if self._waiting and not self._is_writing:
            self._write()
        self._send_frozen_report()

    def known(self, sequence: int) -> None:
        """Discard the reports up to this sequence number, because the coordinator has acknowledged them."""
        for number in [number for number in self.unknown if number <= sequence]:
            del self.unknown[number]

    def stream_opened(self) -> None:
        """Handle a new stream to the coordinator on which the coordinator has not sent a Welcome yet."""
        self._has_welcome = False

    def repeat(self) -> None:
        """Resend, after the coordinator's Welcome, all reports that the coordinator may not have received."""
        self._has_welcome = True
        for message in self.unknown.values():
            self._send(message)
        self._send_frozen_report()

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
        """Remove and return the oldest waiting checkpoints that fit into a single pack. All checkpoints in a pack belong to the same round,
        because the packs of an aborted round are deleted.

        The order of checkpoints is kept, because a checkpoint is useless without the sender logs in earlier checkpoints. A pack contains no
        checkpoint twice, because a pack with a duplicate would always be rejected.
        """
        round_ = self._waiting[0].command.round
        known: dict[tuple[str, int], None] = {}
        size_bytes = self._writing_bytes = 0
        for checkpoint in self._waiting[:PACK_CHECKPOINTS_MAX]:
            command = checkpoint.command
            key = command.agent, command.control.number
            size_bytes += checkpoint.size_bytes
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
        if self._has_welcome:
            self._send(report)
        if self._waiting:
            self._write_soon(0)
        self._report_store_status()
        self._send_frozen_report()

    def _try_again(self, batch: list[TakenCheckpoint], problem: str) -> None:
        """Return the checkpoints to the queue, because the store is currently not writable."""
        if not self._failures:
            log.warning("%d checkpoints cannot be stored, trying again and again: %s", len(batch), problem)
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX) if self._failures else RETRY_S
        self._failures += 1
        self._waiting = batch + self._waiting
        self._write_soon(self._retry_s)
        self._report_store_status(problem)

    def _note_stored(self, batch: list[TakenCheckpoint]) -> None:
        if self._failures:
            log.info("checkpoints can be stored again, after %d tries; %d wait", self._failures, len(self._waiting))
        self._failures = 0
        self.size_bytes -= self._writing_bytes
        _release(batch)

    def _report_store_status(self, problem: str = "") -> None:
        """Report the store's status to the host core if it has changed. If `problem` is empty, the known problem continues to be reported
        until a write succeeds."""
        was_busy, known, was_full = self._reported
        count = len(self._waiting) + self._writing_count
        part = 2 if was_busy else 1
        is_busy = count > WAITING_CHECKPOINTS_MAX // part or self.size_bytes > WAITING_BYTES_MAX // part
        is_full = (
            (was_full and is_busy) or count > 2 * WAITING_CHECKPOINTS_MAX or self.size_bytes > 2 * WAITING_BYTES_MAX
        )
        report = is_busy, (problem or known) if self._failures and count else "", is_full
        if report != self._reported:
            self._reported = report
            self._feed(ev.StoreStatusChanged(*report))

    def _give_up(self, batch: list[TakenCheckpoint], spoilt: dict[str, tuple[int, str]]) -> None:
        """Discard checkpoints whose states cannot be saved. The agents of discarded checkpoints fail, and all other checkpoints are
        written.

        A failed agent's earlier checkpoints are still written, but its later checkpoints are discarded, because they depend on the lost
        sender log.
        """
        kept: list[TakenCheckpoint] = []
        failed: dict[str, int] = {}
        for checkpoint in batch + self._waiting:
            command = checkpoint.command
            if command.agent not in spoilt or command.control.number < spoilt[command.agent][0]:
                kept.append(checkpoint)
            else:
                _release([checkpoint])
                failed.setdefault(command.agent, command.control.incarnation)
        self._waiting = kept
        self.size_bytes = sum([checkpoint.size_bytes for checkpoint in kept])
        if kept:
            self._write_soon(0)
        self._report_store_status()
        for agent, incarnation in failed.items():
            reason = spoilt[agent][1]
            log.warning("%s", reason)
            self._feed(ev.CheckpointFailed(agent, incarnation, reason))
        self._send_frozen_report()

    def _send_frozen_report(self) -> None:
        frozen = self._frozen
        if frozen is None or self._waiting or self._is_writing or not self._has_welcome:
            return
        self._frozen = None
        self._send(frozen)


def _release(dropped: list[TakenCheckpoint]) -> None:
    """Release the images of durable or discarded checkpoints, so that the memory can be reused."""
    for checkpoint in dropped:
        checkpoint.image.release()


Tables = Mapping[str, ChunkTable]
"""Mapping from agents to their chunk tables."""

TABLES_MAX = 16
"""Largest number of epochs whose tables are kept, which is more than the number of epochs that may be open. If there are more, for example
because the end of an epoch was never received, the oldest tables are discarded."""


class ChunkTables:
    """The chunk tables of one host, which determine which chunks the next checkpoints may reuse.

    Attributes:
        base_epoch: newest complete epoch, or 0 if none is known.
    """

    def __init__(self) -> None:
        self.base_epoch = 0
        self._base: Tables = {}
        self._open: dict[int, Tables] = {}

    def base_of(self, agent: str) -> ChunkTable | None:
        """Return the chunks that a new checkpoint of `agent` may refer to, or None if there are none."""
        return self._base.get(agent)

    def written(self, epoch: int, tables: Tables) -> None:
        """Keep the chunk tables of `epoch` once this host's part of the epoch is durable."""
        self._open[epoch] = tables
        while len(self._open) > TABLES_MAX:
            del self._open[min(self._open)]

    def ended(self, epoch: int, *, is_complete: bool) -> None:
        """Handle the end of an epoch. If a complete epoch has no tables on this host, no chunks are reused, because the previous base may
        now be deleted."""
        tables = self._open.pop(epoch, {})
        if is_complete and epoch > self.base_epoch:
            self.base_epoch, self._base = epoch, tables

    def begun(self, newest: int) -> None:
        """Discard the base at the beginning of an epoch if it is newer than `newest`, the newest complete epoch. Such a base was found to
        be damaged."""
        if self.base_epoch > newest:
            self.base_epoch, self._base = 0, {}

    def loaded(self, epoch: int, tables: Tables) -> None:
        """Start a plan from the recovery line `epoch`, or from the fleet's definition if `epoch` is 0."""
        self.base_epoch, self._base = epoch, tables
        self._open.clear()

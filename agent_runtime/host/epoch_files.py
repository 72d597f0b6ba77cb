"""Writes captured states of a host's agents to the store as checkpoints of an epoch, and restores agents from a recovery line.

States are captured on the event loop, between turns, and agents pause only for the capture. All other work in this module runs in a worker
thread, including the reading of host logs from earlier plans.

*Reports* on open epochs list all agents, but they list only the channels that have changed since an earlier epoch. The leader names an
earlier epoch for which it has received all reports (`BeginEpoch.told`). If neither the sender's nor the receiver's host reports a channel,
the channel has not changed since the earlier epoch (`coordinator/leader/modes/coordinated_epochs.py`). A host that no longer has the
sequence numbers of the earlier epoch reports all channels. A host also reports all channels on a new coordinator stream, because the stream
may lead to a new leader that has no reports.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.fleet import Fleet, check_skeleton, plan_line, revive
from snapline.agent_runtime.host import host_events as ev
from snapline.errors import DamagedDataError, EncodingError, NotFoundError, StoreError
from snapline.messages.host_messages import BeginEpoch, EpochReport, ReportedPack
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture.chunking import ChunkedState, chunk_image, split_journal, whole_turn, with_journal
from snapline.storage.capture.decoder import PartReader
from snapline.storage.capture.image import ChunkTable, StateImage
from snapline.storage.disk.local_disk import parallel_map, requests_at_once
from snapline.storage.log.answer_files import RecordedAnswers
from snapline.storage.log.commits import CommittedCheckpoint, NewestCommit, note_newest
from snapline.storage.log.commits import checkpoint_of as committed_checkpoint_of
from snapline.storage.log.log_record import EFFECT, LogBatch, LoggedEntry, LoggedInput, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, BootClock, InTransitMessage, StatePart, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds, PackReference, group_blobs
from snapline.storage.store.store import Store

EPOCHS_KEPT = 8
"""Number of epochs whose channel numbers are kept. This is enough for all epochs that may be open at the same time, and at least one
earlier epoch."""

Numbers = Mapping[str, Mapping[str, int]]
"""Mapping from an agent on this host, and the agent at the other end of the channel, to a number. The inner dictionaries are shared with
the records and must not be changed. Copies would cost an allocation for each channel and epoch, and garbage collection time."""


class ChannelNumbers(msgspec.Struct, frozen=True):
    """The sequence numbers of this host's channels in one epoch.

    Attributes:
        sent: sequence number of the last message that was sent before the cut, by sender and receiver.
        received: sequence number of the last message that was consumed before the cut, by receiver and sender.
        recorded: number of messages in the channel's recorded state, by receiver and sender.
    """

    sent: Numbers = {}
    received: Numbers = {}
    recorded: Numbers = {}

    def since(self, earlier: "ChannelNumbers") -> "ChannelNumbers":
        """Return the channels whose sequence numbers differ from those in `earlier`."""
        if not earlier.sent and not earlier.received and not earlier.recorded:
            return self
        sent: dict[str, Mapping[str, int]] = {}
        for agent, numbers in self.sent.items():
            before = earlier.sent.get(agent, NO_NUMBERS)
            if numbers != before:
                sent[agent] = {other: number for other, number in numbers.items() if before.get(other) != number}
        received: dict[str, Mapping[str, int]] = {}
        recorded: dict[str, Mapping[str, int]] = {}
        for agent, numbers in self.received.items():
            waiting = self.recorded.get(agent, NO_NUMBERS)
            read, waited = earlier.received.get(agent, NO_NUMBERS), earlier.recorded.get(agent, NO_NUMBERS)
            if numbers != read or waiting != waited:
                changed = [
                    other
                    for other in senders_of(numbers, waiting)
                    if (other not in read and other not in waited)
                    or numbers.get(other, 0) + waiting.get(other, 0) != read.get(other, 0) + waited.get(other, 0)
                ]
                received[agent] = {other: numbers.get(other, 0) for other in changed}
                recorded[agent] = {other: waiting[other] for other in changed if other in waiting}
        return ChannelNumbers(sent, received, recorded)


NO_NUMBERS: Mapping[str, int] = {}

NOTHING_REPORTED = 0, ChannelNumbers()
"""An earlier epoch and its channel numbers, if no earlier epoch has been reported."""


def senders_of(received: Mapping[str, int], recorded: Mapping[str, int]) -> Iterable[str]:
    """Return all senders that occur in at least one of the two mappings."""
    return received if recorded.keys() <= received.keys() else dict.fromkeys([*received, *recorded])


def numbers_of(command: ev.StoreEpoch) -> ChannelNumbers:
    """Return the channel numbers of this host's agents and of agents that have left, but whose messages may still be in transit."""
    records = command.records
    return ChannelNumbers(
        {**{agent: record.sent for agent, record in records.items()}, **command.departed},
        {agent: record.received for agent, record in records.items()},
        {
            agent: {sender: len(messages) for sender, messages in record.in_transit.items()}
            for agent, record in records.items()
            if record.in_transit
        },
    )


def with_channels(report: EpochReport, channels: ChannelNumbers, *, since: int) -> EpochReport:
    """Return the report with its channel columns replaced by those of `channels`. The report's list of names must begin with the names of
    its agents."""
    places = NameIndex({name: place for place, name in enumerate(report.names[: len(report.agents)])})
    sent_from: list[int] = []
    sent_to: list[int] = []
    sent_number: list[int] = []
    received_from: list[int] = []
    received_to: list[int] = []
    received_number: list[int] = []
    recorded_count: list[int] = []
    for agent, numbers in channels.sent.items():
        sent_from += [places[agent]] * len(numbers) if numbers else []
        sent_to += [places[receiver] for receiver in numbers]
        sent_number += numbers.values()
    for agent, numbers in channels.received.items():
        waiting = channels.recorded.get(agent, NO_NUMBERS)
        senders = list(senders_of(numbers, waiting))
        received_from += [places[sender] for sender in senders]
        received_to += [places[agent]] * len(senders) if senders else []
        received_number += [numbers.get(sender, 0) for sender in senders]
        recorded_count += [waiting.get(sender, 0) for sender in senders]
    return msgspec.structs.replace(
        report, since=since, names=tuple(places),
        sent_from=tuple(sent_from), sent_to=tuple(sent_to), sent_number=tuple(sent_number),
        received_from=tuple(received_from), received_to=tuple(received_to), received_number=tuple(received_number),
        recorded_count=tuple(recorded_count),
    )  # fmt: skip


class NameIndex(dict[str, int]):
    """Maps names to their indexes in a list of names. Looking up an unknown name appends it to the list."""

    def __missing__(self, name: str) -> int:
        place = self[name] = len(self)
        return place


class EpochReports:
    """The epoch reports that a host sends to the coordinator."""

    def __init__(self) -> None:
        self._reports: dict[int, EpochReport] = {}
        self._numbers: dict[int, ChannelNumbers] = {}
        self._reported: dict[int, int] = {}

    def begun(self, begin: BeginEpoch) -> None:
        """Record for which earlier epoch the leader on this stream has received all reports. From now on, the leader will name no older
        epoch. The numbers of older epochs that have ended are therefore deleted."""
        self._reported[begin.epoch] = begin.told
        for epoch in [epoch for epoch in self._numbers if epoch < begin.told and epoch not in self._reports]:
            del self._numbers[epoch]

    def welcomed(self) -> None:
        """Forget which reports the leader has received, because a new stream may lead to a new leader."""
        self._reported.clear()

    def earlier(self, epoch: int) -> tuple[int, ChannelNumbers]:
        """Return an earlier epoch to which the report of `epoch` may refer, and the channel numbers of that earlier epoch."""
        reported = self._reported.get(epoch, 0)
        numbers = self._numbers.get(reported)
        return NOTHING_REPORTED if numbers is None else (reported, numbers)

    def written(self, report: EpochReport, numbers: ChannelNumbers) -> None:
        """Keep the report of an epoch once this host's part of the epoch is durable."""
        self._reports[report.epoch] = report
        self._numbers[report.epoch] = numbers
        ended_epochs = sorted([epoch for epoch in self._numbers if epoch not in self._reports])
        for epoch in ended_epochs[: max(0, len(self._numbers) - EPOCHS_KEPT)]:
            del self._numbers[epoch]

    def report_of(self, epoch: int) -> EpochReport | None:
        """Return the report of this epoch in its current form, or None if there is no report, for example because the epoch has ended."""
        report = self._reports.get(epoch)
        if report is None:
            return None
        since, earlier = self.earlier(epoch)
        if report.since != since:
            report = self._reports[epoch] = with_channels(report, self._numbers[epoch].since(earlier), since=since)
        return report

    def dropped(self, epoch: int) -> None:
        """Delete the report of an ended epoch. Keep its channel numbers, because reports of later epochs may refer to them."""
        self._reports.pop(epoch, None)
        self._reported.pop(epoch, None)

    def plan_began(self) -> None:
        """Delete all reports, because a new plan has ended the history to which they belong."""
        self._reports.clear()
        self._numbers.clear()
        self._reported.clear()


WITHOUT_INPUTS = "go on without inputs: `snapline recovery restore ID --drop-inputs`"


class LogContents(msgspec.Struct, frozen=True):
    """Entries of host logs that are newer than the agents' checkpoints. For agents on other hosts, all log entries are included.

    Attributes:
        inputs: inputs to be redelivered, sorted by agent and number.
        dropped: inputs in the logs of dropped plans, which are not redelivered.
        entries: entries of durable turns that have not ended in the checkpoints, in log order. From the logs of dropped plans, only effects
            are included. An external action that was or may have been performed is part of every history.
        why_none: reason why the store accepts no host logs, or "" if it accepts them.
        log_key: public key for the signatures of this host's batches, or b"" if batches are not signed.
        is_authenticated: whether the data in the store is signed or encrypted.
    """

    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_none: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False


Batches = dict[LogName, list[tuple[int, LogBatch]]]
"""The batches of the logs of earlier plans, with their numbers."""


class LogTail(msgspec.Struct, frozen=True):
    """The part of the host logs that may contain something newer than the recovery line.

    Attributes:
        plan: logs of earlier plans contain nothing newer. If it is 0, all logs may.
        starts: map from `<host>-<start>` to the first batch of that host's log of `plan` that may contain something newer.
    """

    plan: int = 0
    starts: Mapping[str, int] = {}

    def start_of(self, log: LogName) -> int:
        """Return the number of the first batch to be read."""
        return self.starts.get(f"{log.host}-{log.start}", 1) if log.plan == self.plan else 1


ALL_LOGS = LogTail()


def tail_beyond(command: ev.LoadAgents, line: Metadata | None) -> LogTail:
    """Return the part of the host logs that may contain something newer than the recovery line."""
    if line is None or line.plan < max(command.era, command.drop_before):
        return ALL_LOGS
    parts = {f"{host}-{start}" for host, start in line.hosts.items()}
    return LogTail(line.plan, line.log_starts) if parts <= line.log_starts.keys() else ALL_LOGS


def read_logs(store: Store, command: ev.LoadAgents, agents: Sequence[ev.LoadedAgent]) -> LogContents:
    """Seal the logs of all earlier plans, and return their entries that are newer than the agents' checkpoints. Raise the errors of
    `seal_and_read` and `entries_beyond`."""
    return entries_beyond(store, command, seal_and_read(store, command), agents)


def seal_and_read(
    store: Store, command: ev.LoadAgents, progress: "LoadProgress | None" = None, tail: LogTail = ALL_LOGS
) -> Batches:
    """Seal the logs of earlier plans that may contain entries of the agents, and read their batches, as far as they are in `tail`.

    All such logs that the coordinator names are sealed, even logs without batches, because their writers may not have started yet. Logs that
    exist in the store but that the coordinator no longer knows are sealed too.

    Raises:
        StoreError: If the store is currently unavailable, or if a batch is damaged or was written or removed without a key. A StoreError
            does not mean that the epoch is damaged, because every other epoch would need the same logs.
    """

    def is_read(log: LogName) -> bool:
        return log.plan >= tail.plan and command.reads(log)

    wanted = [log for log in sorted({*command.logs, *store.find_logs(tail.plan)}) if is_read(log)]
    for log in wanted:
        store.seal_log(log)
    found: Batches = {}
    for log, numbers in store.exclude_deleted(store.read_logs(wanted)).items():
        read = [(number, _read_batch(store, log, number)) for number in numbers if number >= tail.start_of(log)]
        found[log] = [(number, batch) for number, batch in read if batch is not None]
        if progress is not None:
            progress.step()
    kept = {log: [number for number, _ in read] for log, read in found.items() if log.plan >= command.drop_before}
    newest = {x: number for x, number in command.newest if x.plan >= command.drop_before and is_read(x)}
    starts = {log: tail.start_of(log) for log in (*kept, *newest)}
    _check_none_missing(store.missing_batches(kept, newest, starts))
    return found


def newest_commits(command: ev.LoadAgents, logs: Batches) -> dict[str, NewestCommit]:
    """Return the newest commit of each agent in these logs. Raise StoreError if a commit is damaged."""
    newest: dict[str, NewestCommit] = {}
    try:
        for log, batches in logs.items():
            if log.plan >= command.era:
                note_newest([batch for _, batch in batches], newest)
    except DamagedDataError as error:
        raise damaged_commit(command, error) from error
    return newest


def damaged_commit(command: ev.LoadAgents, error: DamagedDataError) -> StoreError:
    """Return the error for a damaged commit. The epoch is not damaged, so it must not count as such."""
    return StoreError(f"a commit in the host logs of plans before {command.plan} is damaged: {error}")


def entries_beyond(
    store: Store,
    command: ev.LoadAgents,
    logs: Batches,
    agents: Sequence[ev.LoadedAgent],
    tail: LogTail = ALL_LOGS,
) -> LogContents:
    """Return the inputs and journal entries in the logs of earlier plans that are newer than the agents' checkpoints. A part of the logs
    has no whole set of other agents' inputs, so none of those are returned then.

    Raises:
        StoreError: If inputs newer than a checkpoint were deleted.
    """
    consumed = {each.agent: each.checkpoint.inputs.number if each.checkpoint is not None else 0 for each in agents}
    ended_turns = {each.agent: each.checkpoint.ended_turns if each.checkpoint is not None else 0 for each in agents}
    dropped: list[LoggedInput] = []
    inputs: list[LoggedInput] = []
    entries: list[LoggedEntry] = []

    def is_beyond(agent: str, number: int, last: Mapping[str, int]) -> bool:
        return number > last.get(agent, 0) and (agent in last or tail == ALL_LOGS)

    for log, numbered in logs.items():
        is_dropped = log.plan < command.drop_before
        for _, batch in numbered:
            batch_inputs = dropped if is_dropped else inputs
            batch_inputs += [x for x in batch.inputs if is_beyond(x.agent, x.number, consumed)]
            beyond = [x for x in batch.entries if is_beyond(x.agent, x.turn, ended_turns)]
            entries += [x for x in beyond if not is_dropped or x.entry.kind == EFFECT]
    for batch_inputs in (dropped, inputs):
        batch_inputs.sort(key=lambda each: (each.agent, each.number))
    # Dropped logs may have gaps, since none of their inputs is delivered.
    _check_whole(inputs, {**consumed, **{each.agent: each.number for each in dropped if each.agent in consumed}})
    return LogContents(
        tuple(inputs),
        tuple(dropped),
        tuple(entries),
        store.logs_unsupported_reason,
        store.log_key,
        store.is_authenticated,
    )


def _read_batch(store: Store, log: LogName, number: int) -> LogBatch | None:
    """Return the batch, or None if the log entry is a seal or was deleted. No epoch needs the data of a deleted batch."""
    try:
        return store.read_batch(log, number)
    except NotFoundError:
        return None
    except DamagedDataError as error:
        raise StoreError(f"{error}. Bring the batch back from a copy, or remove it and {WITHOUT_INPUTS}") from error


def _check_none_missing(missing: dict[LogName, int]) -> None:
    if missing:
        log, number = next(iter(missing.items()))
        more = f", and of {len(missing) - 1} other logs" if len(missing) > 1 else ""
        raise StoreError(
            f"batch {number} of {log}{more} was taken out of the store ({log.directory}), and not by snapline: bring it back from a copy, "
            f"or {WITHOUT_INPUTS}"
        )


def _check_whole(found: Sequence[LoggedInput], consumed: dict[str, int]) -> None:
    last = dict(consumed)
    for logged in found:
        if logged.agent in consumed and logged.number != last[logged.agent] + 1:
            raise StoreError(
                f"the host log lacks inputs {last[logged.agent] + 1} to {logged.number - 1} of agent {logged.agent}: they were given up "
                "when newer epochs were complete; restore the store from a copy, or start from a later snapshot"
            )
        last[logged.agent] = logged.number


CHUNK_PACK_BYTES = 32 * 2**20
"""Size at which a pack of new chunks is full. Two packs are written at a time: one is hashed and copied while the other is written to disk.
Deletion and compaction work on whole packs."""

THREADS = 2
"""Number of threads that write packs of chunks. One thread hashes while the other waits for the disk. An object store may use more
threads."""


class Capture(msgspec.Struct):
    """A captured state of an agent, kept while the channel states of its checkpoint are still being recorded.

    Attributes:
        image: the captured state, which is released after `uses` epochs have used it.
        base_epoch, base: epoch to whose chunks the image refers, and these chunks. The image omits data that has not changed since the base
            epoch.
        started_ns: time at which the capture started, according to the monotonic clock.
        clock: time at which the agent's state was recorded, according to the machine's boot clock. None if the machine has no such clock.
    """

    known: AgentType
    state_version: int
    image: StateImage
    control: ev.Control
    recorded_ns: int
    capture_ns: int
    base_epoch: int = 0
    base: ChunkTable | None = None
    uses: int = 1
    started_ns: int = 0
    clock: BootClock | None = None

    def release(self) -> None:
        """Record that one more epoch no longer needs the capture. When no epoch needs the capture any longer, its image is released."""
        self.uses -= 1
        if self.uses == 0:
            self.image.release()


Captures = dict[str, Capture]


class StoredEpoch(msgspec.Struct):
    """The durable part of an epoch on this host: the report to the coordinator, all channel numbers, and the chunks that later epochs may
    reuse."""

    report: EpochReport
    numbers: ChannelNumbers
    tables: dict[str, ChunkTable]


def write_epoch(
    store: Store,
    writer: str,
    host_start: int,
    command: ev.StoreEpoch,
    captures: Captures,
    earlier: tuple[int, ChannelNumbers] = NOTHING_REPORTED,
) -> StoredEpoch:
    """Write this host's part of an epoch as a single pack. If there are many chunks, write them to further packs.

    The report lists only the channels that have changed since the epoch in `earlier`.

    Raises:
        EncodingError: If a state could not be restored from its image.
        StoreError: If the store cannot be written. No other data in the store refers to partially written packs.
    """
    state_bytes = 0
    chunked = {agent: _chunk(store, agent, captures[agent]) for agent in command.records if agent in captures}
    blobs = []
    for agent, record in command.records.items():
        parts = chunked.get(agent)
        checkpoint = checkpoint_of(agent, record, captures.get(agent), parts.parts if parts is not None else [])
        blobs.append((agent, encode_checkpoint(checkpoint)))
        state_bytes += checkpoint.state_bytes
    chunks, others = _place_chunks(store, writer, command.epoch, chunked.values())
    reused = list({chunk.digest: None for parts in chunked.values() for chunk in parts.reused})
    base = max([captures[agent].base_epoch for agent in chunked], default=0) if reused else 0
    needs = PackNeeds(base, reused, others)
    reference = store.write_pack(writer=writer, epoch=command.epoch, blobs=blobs, chunks=chunks, needs=needs)
    pack = reported(reference)
    report = _report_of(command, captures, host_start=host_start, pack=pack, state_bytes=state_bytes)
    new_bytes = sum([x.size_bytes for x in (reference, *others)])
    report = msgspec.structs.replace(
        report, new_bytes=new_bytes, log_floor=command.log_floor, log_start=command.log_start
    )
    numbers, (since, reported_numbers) = numbers_of(command), earlier
    report = with_channels(report, numbers.since(reported_numbers), since=since)
    return StoredEpoch(report, numbers, {agent: parts.table for agent, parts in chunked.items()})


def _chunk(store: Store, agent: str, capture: Capture) -> ChunkedState:
    capture.image.resolve()
    check_image(agent, capture.known, capture.image)
    return chunk_image(with_journal(capture.image, capture.control.sealed), capture.base, digest=store.digest)


def new_chunks(states: Iterable[ChunkedState]) -> list[PackBlob]:
    """Return the chunks that must be written. A chunk that several agents share is returned only once."""
    chunks = {chunk.digest: chunk for state in states for chunk in state.new}
    return [PackBlob("", KIND_CHUNK, x.data, x.digest, x.compresses) for x in chunks.values()]


def _place_chunks(
    store: Store, writer: str, epoch: int, states: Iterable[ChunkedState]
) -> tuple[list[PackBlob], list[PackReference]]:
    """Return the chunks to be written to the epoch's own pack, and references to further packs. If there are many chunks, write all of them
    to further packs, and return no chunks."""
    chunks = new_chunks(states)
    groups = list(group_blobs(chunks, CHUNK_PACK_BYTES))
    if len(groups) <= 1:
        return chunks, []
    threads = max(THREADS, requests_at_once(store.disk))
    write = partial(_write_chunks, store, writer, epoch)
    return [], list(parallel_map(write, groups, threads))


def _write_chunks(store: Store, writer: str, epoch: int, chunks: list[PackBlob]) -> PackReference:
    return store.write_chunks(writer=writer, epoch=epoch, chunks=chunks)


def reported(reference: PackReference) -> ReportedPack:
    """Convert a reference to a pack to the form used in the report to the coordinator."""
    return ReportedPack(reference.path, reference.size_bytes, reference.index_digest)


def check_image(agent: str, known: AgentType, image: StateImage) -> None:
    """Check that the value of each field has the declared type. A value of another type could be written, but a recovery from it would
    fail.

    Raises:
        EncodingError: If the value of a field does not have the declared type. The error message names the agent and the next step.
    """
    if image.parts:  # parts have their declared types, since the encoders of these types made them
        return
    try:
        check_skeleton(agent, known, image.skeleton, image.authors.handlers)
    except EncodingError:
        image.authors.is_refused = True
        raise


def checkpoint_of(agent: str, record: RecordedPart, capture: Capture | None, parts: list[StatePart]) -> AgentCheckpoint:
    """Build a checkpoint from an agent's captured state and its recorded channel states. If there is no captured state, the checkpoint
    describes an agent that has not been created yet."""
    in_transit = {
        sender: [InTransitMessage(message.number, message.stamp, message.payload) for message in messages]
        for sender, messages in record.in_transit.items()
    }
    if capture is None:  # unborn, since its creation message is in transit
        return AgentCheckpoint(
            agent=agent, kind="", incarnation=0, number=0, epoch=record.epoch, is_unborn=True, is_started=False,
            is_leaving=False, state=b"", state_type="", state_version=0, state_fields={}, sent=record.sent,
            received=record.received, protocol_state=b"", in_transit=in_transit, outbox=[], spawns=[], timers=[],
            dead_letters=[], dead_letter_count=0, recorded_ns=0,
        )  # fmt: skip
    image = image_of(agent, capture, parts, sent=record.sent, received=record.received)
    return msgspec.structs.replace(image, epoch=record.epoch, in_transit=in_transit)


def image_of(
    agent: str,
    capture: Capture,
    parts: list[StatePart],
    *,
    sent: dict[str, int],
    received: dict[str, int],
    record_type: type[AgentCheckpoint] = AgentCheckpoint,
) -> AgentCheckpoint:
    """Build a checkpoint of the class `record_type` from an agent's captured state. The checkpoint does not belong to a cut yet."""
    known, control = capture.known, capture.control
    of_state, journal = split_journal(parts)
    return record_type(
        agent=agent, kind=known.kind, incarnation=control.incarnation, number=control.number, epoch=0,
        is_unborn=False, is_started=control.is_started, is_leaving=control.is_leaving, state=capture.image.skeleton,
        parts=of_state, state_type=known.state_name, state_version=capture.state_version, state_fields=known.state_fields,
        sent=sent, received=received, protocol_state=control.protocol_state,
        outbox=control.outbox, spawns=control.spawns, timers=control.timers, dead_letters=control.dead_letters,
        dead_letter_count=control.dead_letter_count, recorded_ns=capture.recorded_ns, inputs=control.inputs,
        saved_outputs=control.outputs if control.outputs.number else UNSET,
        saved_turn=control.turn or UNSET, saved_journal=journal or UNSET, saved_stash=control.stash or UNSET,
        saved_numbers=control.dead_letter_numbers or UNSET, saved_turns=control.durable_turns or UNSET,
        saved_effects=control.effects or UNSET, saved_group=control.effect_group or UNSET,
        saved_approvals=control.approvals or UNSET,
        saved_asked=control.asked or UNSET,
        saved_clock=(capture.clock or UNSET) if control.timers else UNSET,
    )  # fmt: skip


def committed_checkpoint(
    committed: ev.CommittedAgent,
    known: AgentType,
    state_version: int,
    state: bytes,
    recorded_ns: int,
    clock: BootClock | None,
) -> AgentCheckpoint:
    """Return an agent's checkpoint in a commit."""
    capture = Capture(known, state_version, StateImage(state), committed.control, recorded_ns, 0, clock=clock)
    image = image_of(
        committed.agent, capture, [], sent=committed.sent, received=committed.received, record_type=CommittedCheckpoint
    )
    return msgspec.structs.replace(image, in_transit=committed.in_transit) if committed.in_transit else image


def _report_of(
    command: ev.StoreEpoch, captures: Captures, *, host_start: int, pack: ReportedPack, state_bytes: int
) -> EpochReport:
    """Return the report to the coordinator, without the channels. The columns of the report are parallel tuples, which refer to agents by
    their indexes in `names`."""
    places = {agent: place for place, agent in enumerate(command.records)}
    records = command.records.values()
    controls = {agent: captures[agent].control for agent in command.records if agent in captures}
    inputs = {agent: number for agent, control in controls.items() if (number := control.inputs.settled)}
    outputs = {agent: number for agent, control in controls.items() if (number := control.outputs.number)}
    durable = {agent: number for agent, control in controls.items() if (number := control.ended_turns)}
    payloads = [x.payload for record in records for messages in record.in_transit.values() for x in messages]
    pauses = [x.capture_ns for x in captures.values()]
    return EpochReport(
        epoch=command.epoch, host_start=host_start, pack=pack, names=tuple(places),
        agents=tuple(places.values()), unborn=tuple([agent not in captures for agent in places]),
        capture_ns=max(pauses, default=0), captures_ns=sum(pauses),
        input_of=tuple([places[agent] for agent in inputs]), input_number=tuple(inputs.values()),
        output_of=tuple([places[agent] for agent in outputs]), output_number=tuple(outputs.values()),
        durable_of=tuple([places[agent] for agent in durable]), durable_number=tuple(durable.values()),
        state_bytes=state_bytes, channel_state_bytes=sum(map(len, payloads)), channel_state_messages=len(payloads),
    )  # fmt: skip


class LoadProgress:
    """Measures the progress of loading agents. The coordinator waits for a host for as long as the host's progress count increases.

    User code that creates agents or migrates states may be slow. While user code runs, each second counts as one step.
    """

    def __init__(self, now_ns: Callable[[], int] = lambda: 0, limit_s: float | None = None) -> None:
        """`limit_s` is the longest time in seconds for which a single call of user code counts as progress, or None if there is no
        limit."""
        self._now_ns = now_ns
        self._limit_s = limit_s
        self._steps = 0
        self._since_ns: int | None = None

    def step(self) -> None:
        """Count one step, because a checkpoint has been read or an agent has been loaded."""
        self._steps += 1

    def steps(self) -> int:
        """Return the number of steps completed so far. This method may be called from any thread."""
        since_ns = self._since_ns
        if since_ns is None:
            return self._steps
        seconds = (self._now_ns() - since_ns) / 1e9
        return self._steps + int(seconds if self._limit_s is None else min(seconds, self._limit_s))

    @contextlib.contextmanager
    def in_users_code(self) -> Iterator[None]:
        """Mark the block as a call of user code, and count the end of the call as one step."""
        self._since_ns = self._now_ns()
        try:
            yield
        finally:
            self._since_ns = None
            self._steps += 1


class LoadedLine(msgspec.Struct):
    """The agents of a recovery line on one host: their data for the host core, their objects, and the chunks of their states.

    `buffers` contains the sizes in bytes of buffers to allocate in advance for captures. `logged` contains the entries of host logs that
    are newer than the recovery line. `answers` are those that agents take instead of asking.
    """

    agents: list[ev.LoadedAgent]
    objects: dict[str, Agent]
    tables: dict[str, ChunkTable]
    buffers: list[int] = []
    logged: LogContents = LogContents()
    answers: RecordedAnswers | None = None


def load_line(
    store: Store | None,
    fleet: Fleet,
    command: ev.LoadAgents,
    progress: LoadProgress | None = None,
    clock: BootClock | None = None,
) -> LoadedLine:
    """Load the agents of a recovery line from their checkpoints. Without a recovery line, create the agents from the fleet's definition.

    Before the first state is decoded, all checkpoints are read and the versions of all states are checked. `progress` counts the
    checkpoints that have been read and the agents that have been loaded. `clock` measures the time that has passed since a checkpoint,
    which is deducted from the agent's timers.

    Raises:
        DamagedDataError: If a checkpoint is damaged. No data of a damaged checkpoint has been used (G11).
        SnaplineError: If an agent cannot be created. The error message names the agent that cannot be created.
    """
    if not command.agents:  # a host that joined after the recovery line has no agents in it
        return LoadedLine([], {}, {})
    progress = progress or LoadProgress()
    if command.line_epoch == 0 or store is None:
        objects = {}
        for place in command.agents:
            with progress.in_users_code():
                objects[place.agent] = fleet.make(place.agent)
        return LoadedLine(
            [ev.LoadedAgent(place.agent, place.incarnation, None) for place in command.agents], objects, {}
        )
    manifest = store.read_manifest(command.line_root, epoch=command.line_epoch)
    checkpoints = []
    for place in command.agents:
        checkpoints.append(_read(store, manifest, place.agent, command.line_epoch))
        progress.step()
    return _revive_line(fleet, command.agents, checkpoints, store.part_reader(manifest), progress, clock)


def load_points(
    store: Store, fleet: Fleet, command: ev.LoadAgents, progress: LoadProgress, clock: BootClock | None
) -> LoadedLine:
    """Load each agent from its newest commit, or from the recovery line if its checkpoint there is newer, and read the log entries beyond.
    An agent with neither is in its initial state or, if it is not in the fleet's definition, waits for the message that creates it.

    Raise the errors of `load_line`, `seal_and_read` and `entries_beyond`.
    """
    manifest = store.read_manifest(command.line_root, epoch=command.line_epoch) if command.line_epoch else None
    tail = tail_beyond(command, manifest.metadata if manifest is not None else None)
    logs = seal_and_read(store, command, progress, tail) if command.agents or tail == ALL_LOGS else {}
    line = _revive_points(store, fleet, command, progress, clock, manifest, newest_commits(command, logs))
    line.logged = entries_beyond(store, command, logs, line.agents, tail)
    return line


def _revive_points(
    store: Store,
    fleet: Fleet,
    command: ev.LoadAgents,
    progress: LoadProgress,
    clock: BootClock | None,
    manifest: Manifest | None,
    commits: Mapping[str, NewestCommit],
) -> LoadedLine:
    """Create each agent from the newer one of its newest commit and its checkpoint in the recovery line."""
    inside = {line.agent for line in manifest.agents} if manifest is not None else set()
    line = LoadedLine([], {}, {})
    restored, checkpoints = [], []
    for place in command.agents:
        base = None
        if manifest is not None and place.agent in inside:
            base = _read(store, manifest, place.agent, command.line_epoch)
        try:
            point = _newest_point(base, commits.get(place.agent))
        except DamagedDataError as error:
            raise damaged_commit(command, error) from error
        if point is None and place.agent in fleet.agents and not command.line_epoch:
            with progress.in_users_code():
                line.objects[place.agent] = fleet.make(place.agent)
            line.agents.append(ev.LoadedAgent(place.agent, place.incarnation, None))
        else:
            restored.append(place)
            unborn = AgentCheckpoint(
                agent=place.agent, kind="", epoch=command.line_epoch, incarnation=0, is_unborn=True
            )
            checkpoints.append(unborn if point is None else point)
        progress.step()
    reader = store.part_reader(manifest) if manifest is not None else None
    revived = _revive_line(fleet, restored, checkpoints, reader, progress, clock)
    return LoadedLine([*line.agents, *revived.agents], {**line.objects, **revived.objects}, revived.tables)


def _newest_point(base: AgentCheckpoint | None, newest: NewestCommit | None) -> AgentCheckpoint | None:
    """Return the newer checkpoint of an agent, with the messages in transit that it has not consumed. The senders may have forgotten
    them."""
    if newest is None or (base is not None and not base.is_unborn and base.number > newest.number):
        return base
    commit = committed_checkpoint_of(newest)
    if base is None:
        return commit
    in_transit: dict[str, list[InTransitMessage]] = {}
    for sender in dict.fromkeys([*base.in_transit, *commit.in_transit]):
        consumed = commit.received.get(sender, 0)
        both = {x.number: x for point in (base, commit) for x in point.in_transit.get(sender, ())}
        in_transit[sender] = [message for number, message in sorted(both.items()) if number > consumed]
    return msgspec.structs.replace(commit, in_transit=in_transit)


def _revive_line(
    fleet: Fleet,
    places: Sequence[ev.Placement],
    checkpoints: Sequence[AgentCheckpoint],
    reader: PartReader | None,
    progress: LoadProgress,
    clock: BootClock | None,
) -> LoadedLine:
    """Create the agents from their checkpoints. `reader` reads the parts of states, which only checkpoints of an epoch have."""
    with progress.in_users_code():
        plans = plan_line(fleet, checkpoints)
    line = LoadedLine([], {}, {})
    for place, checkpoint in zip(places, checkpoints, strict=True):
        saved = checkpoint.saved_clock or None
        passed_ns = clock.since(saved) if clock is not None and saved is not None else 0
        line.agents.append(ev.LoadedAgent(place.agent, place.incarnation, checkpoint, passed_ns))
        if not checkpoint.is_unborn:
            contents = reader.read(place.agent, checkpoint.parts) if reader is not None and checkpoint.parts else []
            with progress.in_users_code():
                made_now, table = revive(plans[place.agent], checkpoint, contents)
            line.objects[place.agent], line.tables[place.agent] = made_now, table
            if checkpoint.journal_part is not None and reader is not None:
                line.agents[-1] = _with_whole_turn(line.agents[-1], checkpoint, reader, table)
        progress.step()
    return line


def _with_whole_turn(
    loaded: ev.LoadedAgent, checkpoint: AgentCheckpoint, reader: PartReader, table: ChunkTable
) -> ev.LoadedAgent:
    """Restore an agent's durable turn, including its whole journal. The chunks of the journal are added to `table`, so that they need not
    be written again."""
    assert checkpoint.journal_part is not None
    table.digests |= {chunk.digest: chunk for chunk in checkpoint.journal_part.chunks()}
    (content,) = reader.read(checkpoint.agent, [checkpoint.journal_part])
    return msgspec.structs.replace(loaded, checkpoint=whole_turn(checkpoint, content))


def _read(store: Store, manifest: Manifest, agent: str, epoch: int) -> AgentCheckpoint:
    checkpoint = store.read_checkpoint(manifest, agent)
    if checkpoint.agent != agent or checkpoint.epoch != epoch:
        raise DamagedDataError(
            f"epoch {epoch}: the checkpoint of {agent} is that of {checkpoint.agent}, epoch {checkpoint.epoch}"
        )
    return checkpoint

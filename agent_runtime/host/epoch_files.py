"""Epochs in the store: images of a host's agents become checkpoints, and a recovery line becomes agents again.

Images are taken on the event loop, between turns; that is the only pause an agent feels. Everything else here runs in a
worker thread.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
from msgspec import UNSET

from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.agent_classes import plan_line, revive
from snapline.agent_runtime.fleet import Fleet, check_skeleton
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_reports import NOTHING_REPORTED, ChannelNumbers, numbers_of, with_channels
from snapline.agent_runtime.host.log_files import LogContents
from snapline.errors import DamagedDataError, EncodingError
from snapline.messages.host_messages import EpochReport, ReportedPack
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture.chunking import ChunkedState, chunk_image
from snapline.storage.capture.decoder import PartReader
from snapline.storage.capture.image import ChunkTable, StateImage
from snapline.storage.capture.sealed_journal import split_journal, whole_turn, with_journal
from snapline.storage.disk.local_disk import parallel_map, requests_at_once
from snapline.storage.packs.blob import KIND_CHUNK, PackBlob, group_blobs
from snapline.storage.packs.checkpoint import AgentCheckpoint, BootClock, InTransitMessage, StatePart, encode_checkpoint
from snapline.storage.packs.pack import PackNeeds, PackReference
from snapline.storage.store.manifest import Manifest
from snapline.storage.store.store import Store

CHUNK_PACK_BYTES = 32 * 2**20
"""Size at which a pack of new chunks is full. Two packs are written at once: one is hashed and copied while the other is written to disk. Deletion
and compaction work on whole packs."""

THREADS = 2
"""Number of threads that write packs of chunks: one hashes while the other waits for the disk. An object store may use more."""


class Capture(msgspec.Struct):
    """An agent's image with its data, while its channel states are still open.

    Attributes:
        image: the image, released after `uses` epochs have used it.
        base_epoch, base: epoch and chunks that the image refers to: it omits their unchanged parts.
        started_ns: start of the capture, by the monotonic clock.
        clock: time of the record, by the machine's clock; None if there is none.
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
        """Release the capture for one epoch."""
        self.uses -= 1
        if self.uses == 0:
            self.image.release()


Captures = dict[str, Capture]


class StoredEpoch(msgspec.Struct):
    """Durable part of this host in an epoch: the report for the coordinator, all channel numbers, and what later epochs may refer to."""

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
    """Write this host's part of an epoch: one pack, and further packs for many chunks.

    The report has the channels that have changed since `earlier`.

    Raises:
        EncodingError: a state cannot be restored from its image.
        StoreError: the store cannot be written; nothing refers to partial data.
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
    report = msgspec.structs.replace(report, new_bytes=sum([x.size_bytes for x in (reference, *others)]))
    numbers, (since, reported_numbers) = numbers_of(command), earlier
    report = with_channels(report, numbers.since(reported_numbers), since=since)
    return StoredEpoch(report, numbers, {agent: parts.table for agent, parts in chunked.items()})


def _chunk(store: Store, agent: str, capture: Capture) -> ChunkedState:
    capture.image.resolve()
    check_image(agent, capture.known, capture.image)
    return chunk_image(with_journal(capture.image, capture.control.sealed), capture.base, digest=store.digest)


def new_chunks(states: Iterable[ChunkedState]) -> list[PackBlob]:
    """Return the chunks to be written, each once, also where several agents have the same."""
    chunks = {chunk.digest: chunk for state in states for chunk in state.new}
    return [PackBlob("", KIND_CHUNK, x.data, x.digest, x.compresses) for x in chunks.values()]


def _place_chunks(
    store: Store, writer: str, epoch: int, states: Iterable[ChunkedState]
) -> tuple[list[PackBlob], list[PackReference]]:
    """Return the chunks for the epoch's own pack; if they are many, none, and the packs that they were written to."""
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
    """Return the report about a pack for the coordinator."""
    return ReportedPack(reference.path, reference.size_bytes, reference.index_digest)


def check_image(agent: str, known: AgentType, image: StateImage) -> None:
    """Check that fields hold their declared types: other values can be written, and only a recovery would fail.

    Raises:
        EncodingError: names the agent and what to do.
    """
    if image.parts:  # Parts have their declared types: their own encoders made them.
        return
    try:
        check_skeleton(agent, known, image.skeleton, image.authors.handlers)
    except EncodingError:
        image.authors.is_refused = True
        raise


def checkpoint_of(agent: str, record: RecordedPart, capture: Capture | None, parts: list[StatePart]) -> AgentCheckpoint:
    """Put an agent's image and its closed channel states together; without an image the agent is unborn."""
    in_transit = {
        sender: [InTransitMessage(message.number, message.stamp, message.payload) for message in messages]
        for sender, messages in record.in_transit.items()
    }
    if capture is None:  # unborn: the message that creates the agent is in transit
        return AgentCheckpoint(
            agent=agent, kind="", incarnation=0, number=0, epoch=record.epoch, is_unborn=True, is_started=False,
            is_leaving=False, state=b"", state_type="", state_version=0, state_fields={}, sent=record.sent,
            received=record.received, protocol_state=b"", in_transit=in_transit, outbox=[], spawns=[], timers=[],
            dead_letters=[], dead_letter_count=0, recorded_ns=0,
        )  # fmt: skip
    image = image_of(agent, capture, parts, sent=record.sent, received=record.received)
    return msgspec.structs.replace(image, epoch=record.epoch, in_transit=in_transit)


def image_of(
    agent: str, capture: Capture, parts: list[StatePart], *, sent: dict[str, int], received: dict[str, int]
) -> AgentCheckpoint:
    """Make an agent's image a checkpoint that is in no cut yet."""
    known, control = capture.known, capture.control
    of_state, journal = split_journal(parts)
    return AgentCheckpoint(
        agent=agent, kind=known.kind, incarnation=control.incarnation, number=control.number, epoch=0,
        is_unborn=False, is_started=control.is_started, is_leaving=control.is_leaving, state=capture.image.skeleton,
        parts=of_state, state_type=known.state_name, state_version=capture.state_version, state_fields=known.state_fields,
        sent=sent, received=received, protocol_state=control.protocol_state,
        outbox=control.outbox, spawns=control.spawns, timers=control.timers, dead_letters=control.dead_letters,
        dead_letter_count=control.dead_letter_count, recorded_ns=capture.recorded_ns, inputs=control.inputs,
        saved_outputs=control.outputs if control.outputs.number else UNSET,
        saved_turn=control.turn or UNSET, saved_journal=journal or UNSET, saved_stash=control.stash or UNSET,
        saved_numbers=control.dead_letter_numbers or UNSET, saved_turns=control.durable_turns or UNSET,
        saved_effects=control.effects or UNSET, saved_clock=(capture.clock or UNSET) if control.timers else UNSET,
    )  # fmt: skip


def _report_of(
    command: ev.StoreEpoch, captures: Captures, *, host_start: int, pack: ReportedPack, state_bytes: int
) -> EpochReport:
    """Return the report for the coordinator, without channels: agents as parallel columns; names are listed once."""
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
    """Progress of loading: the coordinator waits for a host as long as it makes progress.

    User code that makes agents and migrates states may be slow: while it runs, each second counts as a step.
    """

    def __init__(self, now_ns: Callable[[], int] = lambda: 0, limit_s: float | None = None) -> None:
        """`limit_s`: longest time that counts at a time."""
        self._now_ns = now_ns
        self._limit_s = limit_s
        self._steps = 0
        self._since_ns: int | None = None

    def step(self) -> None:
        """Count something that was read, or made."""
        self._steps += 1

    def steps(self) -> int:
        """Return the steps so far. Called on another thread."""
        since_ns = self._since_ns
        if since_ns is None:
            return self._steps
        seconds = (self._now_ns() - since_ns) / 1e9
        return self._steps + int(seconds if self._limit_s is None else min(seconds, self._limit_s))

    @contextlib.contextmanager
    def in_users_code(self) -> Iterator[None]:
        """Run one piece of the user's code; its end is a step."""
        self._since_ns = self._now_ns()
        try:
            yield
        finally:
            self._since_ns = None
            self._steps += 1


class LoadedLine(msgspec.Struct):
    """Agents of a recovery line on one host: data for the core, the objects, and the chunks of their parts.

    `buffers`: sizes of the buffers that a capture will need, to be allocated in advance. `logged`: contents of host logs beyond the line.
    """

    agents: list[ev.LoadedAgent]
    objects: dict[str, Agent]
    tables: dict[str, ChunkTable]
    buffers: list[int] = []
    logged: LogContents = LogContents()


def load_line(
    store: Store | None,
    fleet: Fleet,
    command: ev.LoadAgents,
    progress: LoadProgress | None = None,
    clock: BootClock | None = None,
) -> LoadedLine:
    """Make the agents of a line: initial ones from the fleet's definition, others from their checkpoints.

    All checkpoints are read, and their versions checked, before the first state is made. `progress` counts each checkpoint read and each agent made.
    Time on `clock` since a checkpoint counts for the agent's timers.

    Raises:
        DamagedDataError: a checkpoint is damaged; none of its data was used (G11).
        SnaplineError: an agent cannot be made; names it.
    """
    if not command.agents:  # a host that joined after the line has no agents in it
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
    with progress.in_users_code():
        plans = plan_line(fleet, checkpoints)
    reader = store.part_reader(manifest)
    line = LoadedLine([], {}, {})
    for place, checkpoint in zip(command.agents, checkpoints, strict=True):
        saved = checkpoint.saved_clock or None
        passed_ns = clock.since(saved) if clock is not None and saved is not None else 0
        line.agents.append(ev.LoadedAgent(place.agent, place.incarnation, checkpoint, passed_ns))
        if not checkpoint.is_unborn:
            contents = reader.read(place.agent, checkpoint.parts)
            with progress.in_users_code():
                made_now, table = revive(plans[place.agent], checkpoint, contents)
            line.objects[place.agent], line.tables[place.agent] = made_now, table
            if checkpoint.journal_part is not None:
                line.agents[-1] = _with_whole_turn(line.agents[-1], checkpoint, reader, table)
        progress.step()
    return line


def _with_whole_turn(
    loaded: ev.LoadedAgent, checkpoint: AgentCheckpoint, reader: PartReader, table: ChunkTable
) -> ev.LoadedAgent:
    """Restore the agent's turn with its whole journal, whose chunks need not be written again."""
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

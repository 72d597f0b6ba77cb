"""Checkpoint packs: images of agents that checkpoint on their own or for a round, written to the store.

Images are taken on the event loop, between turns; `write_checkpoints` runs in a worker thread. One pack holds all checkpoints since the previous
pack, of many agents or several of one (a protocol may force a checkpoint at every message), so that they share one disk sync. Each checkpoint carries
the messages that its agent sent since its previous checkpoint (the sender log, docs/protocols.md, section 3). So messages become durable together
with the state that will not send them again.
"""

import msgspec

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import Capture, NameIndex, check_image, image_of, new_chunks, reported
from snapline.errors import EncodingError, UsageError
from snapline.messages.host_messages import CheckpointsStored, ReportedPack
from snapline.storage.capture.chunking import ChunkedState, chunk_image
from snapline.storage.capture.image import StateImage
from snapline.storage.capture.sealed_journal import with_journal
from snapline.storage.packs.checkpoint import AgentCheckpoint, BootClock, StatePart, encode_checkpoint, size_of
from snapline.storage.store.store import Store

CHANNEL_BYTES = 32
"""Size counted for one channel's number in a pack: name and number in the file, and three columns of the report."""


class TakenCheckpoint(msgspec.Struct):
    """An agent's image, and the core's command that requested it. Code that drops the checkpoint releases the image.

    Attributes:
        size_bytes: approximate size in a pack: state, log, pending outputs, a sealed journal, and both channel tables. It is measured once, so that
            additions to a queue's size match removals. The later skeleton of a forked capture is not counted.
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
    """Write checkpoints as one checkpoint pack, durable when this returns; return the report.

    Checkpoints of one agent are in the order in which it took them: each lists changes since the previous one.

    The caller sets `host_start` and `sequence` of the report.

    Raises:
        EncodingError: a state cannot be restored from its image; names the agent.
        StoreError: the store cannot be written; nothing refers to partial data.
        UsageError: a checkpoint occurs twice, or the checkpoints belong to two rounds.
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
    """Chunk an image without a base: such a pack holds all that its checkpoints consist of, since no manifest names others for it."""
    taken.image.resolve()
    check_image(taken.command.agent, taken.known, taken.image)
    return chunk_image(with_journal(taken.image, taken.command.control.sealed), None, digest=store.digest)


def unwritable(captures: list[TakenCheckpoint]) -> dict[str, tuple[int, str]]:
    """Return agent → its first checkpoint that can never be written, and why: the state would not come back from its image."""
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
    """Report one entry for each checkpoint, and for each channel whose number has changed since the agent's one before."""
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

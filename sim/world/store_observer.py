"""Observer of the store: reads it directly, and reports written and deleted data to the judge.

Reader of checkpoint packs on the virtual disk, for the judge; written independently from `docs/snapshot-format.md`.

The judge compares the checkpoints in a pack with the captured images. So it needs the bytes, but not the product's checks. A
damaged pack is not judged here, since its users must detect the damage (G11).
"""

import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from sys import intern

import lz4.block
import msgspec
from blake3 import blake3
from msgspec.structs import replace

from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_state
from snapline.agent_runtime.host.restore import restored
from snapline.coordinator.leader import events as le
from snapline.errors import NotFoundError, SnaplineError
from snapline.messages.host_messages import CheckpointsStored, HostMessage
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState
from snapline.storage.capture.sealed_journal import whole_turn
from snapline.storage.disk import layout
from snapline.storage.outputs.record import Release
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, decode_checkpoint
from snapline.storage.retention.retention_policy import parse_created
from snapline.storage.store.manifest import Manifest

_FOOTER = struct.Struct("<QQ32s16s8s")
_MAGIC = b"SNAPFOOT"
_RECORD_HEAD_BYTES, _RECORD_DIGEST_BYTES = 24, 32
_BLOB_HEAD_BYTES = 96 + 16
"""Size of a blob's header without the name."""

_LZ4 = 1
_CHECKPOINT, _CHUNK = 1, 2

_decode_index = msgspec.msgpack.Decoder().decode
_decode_run = msgspec.msgpack.Decoder(list[JournalEntry]).decode

_Entry = tuple[str, int, int, int, int, int, bytes, bytes]


def read_pack(data: bytes) -> list[AgentCheckpoint]:
    """Return the checkpoints of a pack, in order; empty if the pack is damaged."""
    if data[-len(_MAGIC) :] != _MAGIC:
        return []
    start, size = _FOOTER.unpack(data[-_FOOTER.size :])[:2]
    body = data[start + _RECORD_HEAD_BYTES : start + size - _RECORD_DIGEST_BYTES]
    try:
        entries = _decode_index(body)["entries"]
        checkpoints = [decode_checkpoint(_read_blob(data, entry)) for entry in entries if entry[1] == _CHECKPOINT]
        if any(each.journal_part is not None for each in checkpoints):
            chunks = {entry[6]: _read_blob(data, entry) for entry in entries if entry[1] == _CHUNK}
            checkpoints = [_with_journal(each, chunks) for each in checkpoints]
        return checkpoints
    except (msgspec.DecodeError, lz4.block.LZ4BlockError, SnaplineError, _NotWholeError):
        return []


class _NotWholeError(Exception):
    """Error for a blob that does not match the index."""


def _read_blob(data: bytes, entry: _Entry) -> bytes:
    name, _kind, codec, offset, stored_bytes, size_bytes, _digest, stored_digest = entry
    start = offset + _BLOB_HEAD_BYTES + len(name)
    stored = data[start : start + stored_bytes]
    if blake3(stored).digest() != stored_digest:
        raise _NotWholeError(name)
    return lz4.block.decompress(stored, uncompressed_size=size_bytes) if codec == _LZ4 else stored


def _with_journal(checkpoint: AgentCheckpoint, chunks: Mapping[bytes, bytes]) -> AgentCheckpoint:
    """Return the checkpoint with the whole journal of its durable turn in the turn."""
    turn, part = checkpoint.turn, checkpoint.journal_part
    if turn is None or part is None:
        return checkpoint
    digests = [part.digests[start : start + 32] for start in range(0, len(part.digests), 32)]
    sealed = [entry for digest in digests for entry in _decode_run(chunks[digest])]
    return replace(checkpoint, saved_turn=replace(turn, journal=sealed + turn.journal), saved_journal=msgspec.UNSET)


class StoreObserver:
    """Observer of the store.

    Attributes:
        flipped: path of each file that a fault has damaged → flipped bit.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog) -> None:
        self._shared = shared
        self._log = log
        self._disk = shared.stores.disk
        self._reader = shared.stores.reader
        self.flipped: dict[str, int] = {}
        self._packs: dict[str, list[tuple[str, int]]] = {}
        self._unreported: dict[str, None] = {}
        self._published_ms: dict[int, int] = {}
        self._last_read: tuple[str, list[tuple[str, bytes | None]]] = "", []

    # ---- packs of checkpoints -------------------------------------------------------------------------------------

    def on_reported(self, message: HostMessage) -> None:
        """Report the checkpoints of a pack that a host has reported as durable."""
        if isinstance(message, CheckpointsStored):
            self._unreported.pop(message.pack.path, None)
            self._see_pack(message.pack.path)

    def see_packs(self, plan: int) -> None:
        """Read all packs of the plan, including unreported ones."""
        for path in self._reader.checkpoint_packs(plan):
            if path not in self._packs:
                self._unreported[path] = None
                self._see_pack(path)

    def _see_pack(self, path: str) -> None:
        if path in self._packs:
            return
        self._packs[path] = []
        data = self._disk.bytes_of(path)
        checkpoints = read_pack(data) if data is not None and path not in self.flipped else []
        if not checkpoints:
            return
        self._packs[path] = [(checkpoint.agent, checkpoint.number) for checkpoint in checkpoints]
        name = layout.parse_any_pack_path(path)
        if name is not None:
            self._note_saved(checkpoints)
            self._shared.judge.on_checkpoints_durable(self._shared.kernel.now_ns, name.number, checkpoints)

    def _note_saved(self, found: Iterable[AgentCheckpoint]) -> None:
        now_ns, books = self._shared.kernel.now_ns, self._shared.judge.books
        for captured in filter(None, map(books.find, found)):
            self._shared.figures.on_saved(now_ns - captured.t_ns)

    def on_known(self, path: str) -> None:
        """Report the checkpoints of a pack that the coordinator has acknowledged to its host."""
        name = layout.parse_any_pack_path(path)
        for agent, number in self._packs.get(path, ()):
            self._shared.judge.on_checkpoints_known(0 if name is None else name.number, agent, number)

    # ---- publishing and deletion ----------------------------------------------------------------------------------

    def on_published(self, epoch: int, root: str) -> None:
        """Report a ref that a leader has written."""
        self._shared.judge.on_published(self._shared.kernel.now_ns, epoch, root)
        if self._shared.scenario.run.retention and epoch not in self._published_ms:
            with contextlib.suppress(SnaplineError):
                self._published_ms[epoch] = self._created_of(epoch, root)

    def on_released(self, epoch: int) -> None:
        """Report an epoch's outputs that a leader has released, read from the file if there is one."""
        self._shared.judge.on_released(self._shared.kernel.now_ns, epoch, self._read_release(epoch))

    def _read_release(self, epoch: int) -> Release | None:
        try:
            return self._reader.read_release(epoch)
        except NotFoundError:
            return None

    def releases(self) -> dict[int, Release]:
        """Return all release files, by epoch."""
        files = {epoch: self._read_release(epoch) for epoch in self._reader.output_epochs()}
        return {epoch: release for epoch, release in files.items() if release is not None}

    def on_deleted(self, command: le.Command, node: str) -> None:
        """Report a leader's deletion to the judge, which checks that the data of the newest line is left."""
        if not isinstance(command, le.DeleteEpochs | le.SweepStore | le.DeleteCheckpoints | le.SweepCheckpoints):
            return
        self._note_refs(node)
        nodes = self._disk.nodes
        missing: dict[int, list[tuple[str, int]]] = {}
        for path in [path for path in self._packs if path not in nodes]:
            name = layout.parse_any_pack_path(path)
            missing.setdefault(0 if name is None else name.number, []).extend(self._packs.pop(path))
        epoch = self._log.canonical.newest_complete()
        is_readable = not epoch or bool(self.flipped) or self._is_readable(epoch)
        for plan, checkpoints in (missing or {0: []}).items():
            self._shared.judge.on_deleted(self._shared.kernel.now_ns, is_readable, checkpoints, plan=plan)

    def _note_refs(self, node: str) -> None:
        """Report the epochs left in the store, if a retention policy is set."""
        if not self._shared.scenario.run.retention or self.flipped:
            return
        after = set(self._reader.epochs())
        before_ms = {**self._created_ms(after - self._published_ms.keys()), **self._published_ms}
        now_ms = self._shared.clocks.wall_ns(node) // 1_000_000
        self._shared.judge.on_retained(self._shared.kernel.now_ns, before_ms, after, now_ms=now_ms)
        self._published_ms = {epoch: each for epoch, each in self._published_ms.items() if epoch in after}

    def _created_ms(self, untold: set[int]) -> dict[int, int]:
        """Return the creation times of epochs whose refs the policy sees but whose writer crashed before it reported them."""
        created_ms = {}
        for epoch in sorted(untold):
            with contextlib.suppress(SnaplineError):
                created_ms[epoch] = self._created_of(epoch, self._reader.read_ref(epoch))
        return created_ms

    def _created_of(self, epoch: int, root: str) -> int:
        created = parse_created(self._reader.read_manifest(root, epoch=epoch).metadata.created)
        return (created or 0) // 1_000_000

    # ---- damage ---------------------------------------------------------------------------------------------------

    def on_damaged(self, path: str) -> None:
        """Record a damaged file that the coordinator has found; "" if none."""
        self._shared.judge.probes.sometimes(bool(path) and path not in self.flipped, "torn write found")

    def files_of(self, epoch: int) -> list[str]:
        """Return all files of a complete epoch."""
        root = self._log.canonical.image.epochs[epoch].root
        try:
            packs = [pack.path for pack in self._reader.read_manifest(root, epoch=epoch).packs]
        except SnaplineError:
            packs = []
        return [layout.ref_path(epoch), layout.manifest_path(root), *packs]

    def is_flipped(self, epoch: int) -> bool:
        """Return whether a fault has damaged a file of the epoch."""
        return any(path in self.flipped for path in self.files_of(epoch))

    def on_power_cut(self, host: str) -> None:
        """Check that complete epochs are undamaged. A pack whose writer crashed before it reported the pack as durable may be lost."""
        for path in [path for path in self._unreported if path not in self._disk.nodes]:
            del self._unreported[path]
            self._packs.pop(path, None)
        if self.flipped:
            return
        for epoch in self._log.canonical.complete_epochs():
            checkpoints, error = self._read_epoch(epoch)
            if checkpoints is None:
                text = f"epoch {epoch} was complete, and lost with the power of {host}: {error}"
                self._shared.say("durable", "G4", text)
        self._check_refs(host)

    def _check_refs(self, node: str) -> None:
        """Check that listed epochs are undamaged, since deletion removes the ref first. A torn ref is detected on reading."""
        for epoch in self._reader.epochs():
            with contextlib.suppress(SnaplineError):
                checkpoints, error = self.read_root(epoch, self._reader.read_ref(epoch))
                if checkpoints is None:
                    text = f"epoch {epoch} is listed after {node} lost its power, and is not whole: {error}"
                    self._shared.say("listed", "G4", text)

    # ---- reading whole epochs -------------------------------------------------------------------------------------

    def read_back(self) -> None:
        """Read back every kept epoch except the newest, which plans and oracles have read."""
        for epoch in self._log.canonical.complete_epochs()[:-1]:
            if not self.is_flipped(epoch):
                self._shared.judge.on_read_back(self._shared.kernel.now_ns, epoch, *self._read_epoch(epoch))

    def _is_readable(self, epoch: int) -> bool:
        """Return whether every byte of a complete epoch can be read. Files unchanged since the last read are not read again."""
        root = self._log.canonical.image.epochs[epoch].root
        read_root, files = self._last_read
        if root == read_root and all(self._disk.bytes_of(path) is data for path, data in files):
            return True
        return self.read_root(epoch, root)[0] is not None

    def _read_epoch(self, epoch: int) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        return self.read_root(epoch, self._log.canonical.image.epochs[epoch].root)

    def read_root(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Return the checkpoints of a complete epoch from the disk, or None and the error."""
        try:
            manifest = self._reader.read_manifest(root, epoch=epoch)
            read = [self._whole(manifest, checkpoint) for checkpoint in self._reader.read_checkpoints(manifest)]
            checkpoints = {checkpoint.agent: checkpoint for checkpoint in _share_fields(read)}
        except SnaplineError as error:
            return None, str(error)
        paths = [layout.manifest_path(root), *(pack.path for pack in manifest.packs)]
        self._last_read = root, [(path, self._disk.bytes_of(path)) for path in paths]
        return checkpoints, ""

    def read_written(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Return the checkpoints of an epoch as they were before faults damaged it."""
        damaged = [(path, bit) for path, bit in self.flipped.items() if path in self._disk.nodes]
        for path, bit in damaged:
            self._disk.flip(path, bit)
        try:
            return self.read_root(epoch, root)
        finally:
            for path, bit in damaged:
                self._disk.flip(path, bit)

    def _whole(self, manifest: Manifest, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """Return the checkpoint in the form of its captured image: with its whole state, and its journal in the turn."""
        parts = self._reader.part_reader(manifest)
        if checkpoint.journal_part is not None:
            checkpoint = whole_turn(checkpoint, parts.read(checkpoint.agent, [checkpoint.journal_part])[0])
        if not checkpoint.parts:
            return checkpoint
        contents = parts.read(checkpoint.agent, checkpoint.parts)
        agent_object = restored(self._shared.workload.fleet, checkpoint, contents)
        state = encode_state(checkpoint.agent, agent_object, agent_type(type(agent_object)))
        return replace(checkpoint, state=state, parts=[])


def _share_fields(checkpoints: Iterable[AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
    """Yield equal checkpoints in less memory: agents of one class share the description of their state."""
    known: dict[str, AgentCheckpoint] = {}
    for checkpoint in checkpoints:
        other = known.setdefault(checkpoint.kind, checkpoint)
        if other is not checkpoint and other.state_fields == checkpoint.state_fields:
            yield replace(
                checkpoint,
                kind=other.kind,
                state_fields=other.state_fields,
                sent={intern(agent): number for agent, number in checkpoint.sent.items()},
                received={intern(agent): number for agent, number in checkpoint.received.items()},
            )
        else:
            yield checkpoint

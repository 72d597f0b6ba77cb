r"""Manifests. A manifest lists the contents of one epoch, and their locations. An epoch counts as a snapshot if a ref points to it.

The manifest file is a record (kind `MANI`) whose body is the MessagePack array `[metadata, content, locations]`:

- metadata: a map, the fields of `Metadata`;
- content: one array for each agent, sorted by agent: `[agent, kind, host, incarnation, is_unborn, digest, size]`;
- locations: `[packs, places, chunks]`. A pack is `[path, size, index digest, key id]`. A place is the location of one agent's checkpoint,
  `[pack, offset, stored size, codec, stored digest]`. Places have the same order as the agents. A chunk is `[digest, pack, offset, stored
  size, size, codec, stored digest]`. Chunks are sorted by digest. The stored digest is empty if it equals the digest.

The **root** is the BLAKE3 digest of `"snapline root 1\0"`, metadata and content, as encoded in the file. The root does not cover locations.
So `compaction.py` may move blobs and write a new generation of the manifest, and the root in the coordinator's log stays valid. The digest
of the manifest's record covers everything.

The root also covers the chunk lists, because each agent's checkpoint lists its chunks and the root covers the checkpoint's digest. The
manifest contains the location of *every* chunk. So it refers to no other manifest, and a restore follows no chain of manifests. A manifest
may name packs of earlier epochs, but not of later ones. Manifest files of version 1 have no chunks, and name only packs of their own epoch.

The ref `refs/epochs/<epoch>` is a record (kind `EREF`) that names the root of a complete epoch.
"""

import contextlib
import re
from bisect import bisect_left
from operator import attrgetter

import msgspec
from blake3 import blake3

from snapline.errors import NotFoundError, StoreError, UsageError
from snapline.ids import check_id
from snapline.storage.disk import layout
from snapline.storage.disk.layout import MANIFESTS, is_root, manifest_path, parse_manifest_path, ref_path
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import (
    DIGEST_BYTES,
    OVERHEAD_BYTES,
    Guard,
    canonical,
    check_store,
    damaged,
    seal,
    unseal,
)
from snapline.storage.disk.store_files import SMALL_BYTES_MAX, decoding, read_file
from snapline.storage.keys.ciphers import epoch_message
from snapline.storage.packs.pack import (
    CODEC_PLAIN,
    KIND_CHECKPOINT,
    KIND_CHUNK,
    BlobEntry,
    PackReference,
    contradiction_of,
    end_of,
)

MANIFEST_VERSION = 2

MANIFEST_BYTES_MAX = 256 * 2**20
"""Largest manifest, enough for a million agents at about 200 bytes each, or for 300 GB of arrays at 55 bytes per chunk. The size is checked
before reading."""

PACK_BYTES_MAX = 2**60
"""Upper limit for pack sizes, which is larger than any disk and valid as a file offset."""

_KIND = b"MANI"
_ROOT_CONTEXT = b"snapline root 1\0"
_LOG = re.compile(rf"[A-Za-z0-9_.-]{{1,128}}-{layout.NUMBER_PATTERN}")


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata of an epoch, excluding its agents. The root covers the metadata.

    Attributes:
        created: creation time in UTC and ISO 8601, which only retention uses (`epoch_retention.py`).
        trigger: cause of the epoch, such as `"periodic"`.
        fleet: the fleet's name.
        cluster: random id of the fleet's run.
        plan: recovery plan in force.
        protocol: the checkpointing protocol.
        raft_index: position of the log entry that begins the epoch in the coordinator's log.
        hosts: map from each participating host to its start number.
        kinds: map from each agent class to the schema version of its state, or "" if unknown.
        dependencies: what the hosts ran on, as a map from names such as `python`, `numpy` or `source:MODULE` to values. A name is
            `host:HOST:NAME` if the value is not equal on all hosts.
        topology_fingerprint: digest over agents, classes and channels.
        config_hash: digest of the fleet's definition.
        state_bytes, channel_state_bytes, channel_state_messages: sizes as reported by the hosts.
        inputs: map from each agent that has consumed an input in the cut to the sequence number of its last consumed input. Files omit the
            map if it is empty, as in older files, so that roots stay the same.
        outputs: map from each agent that has emitted an output in the cut to the sequence number of its last output. Files omit an empty
            map.
        durable_turns: map from each agent with finished durable turns to the number of the last durable turn that has ended in the cut.
            Files omit an empty map.
        log_floors: map from `<host>-<start>`, the name of a host's log of the plan, to the number of the newest batch up to which the
            epoch covers all commits in the log. Files omit an empty map.
        log_starts: map from `<host>-<start>` to the number of the first batch in the host's log of the plan that may contain something that
            the epoch does not cover. A host is missing if logs of earlier plans may also contain inputs or journal entries that its part of
            the epoch does not cover. Files omit an empty map.
        ordinals: map from each agent to its index in the vectors of its protocol. Only agents that take checkpoints independently have an
            ordinal. Files omit an empty map.
        next_ordinal: lowest index that is above every index ever used by an agent of the fleet. Files omit 0.
        validity: properties that were proven when the epoch was committed. Later findings are not recorded in the manifest.
    """

    epoch: int
    created: str = ""
    trigger: str = ""
    fleet: str = ""
    cluster: str = ""
    plan: int = 0
    protocol: str = ""
    raft_index: int = 0
    hosts: dict[str, int] = {}
    kinds: dict[str, str] = {}
    dependencies: dict[str, str] = {}
    topology_fingerprint: str = ""
    config_hash: str = ""
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    durable_turns: dict[str, int] = {}
    log_floors: dict[str, int] = {}
    log_starts: dict[str, int] = {}
    ordinals: dict[str, int] = {}
    next_ordinal: int = 0
    validity: str = ""


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of one agent in a manifest. The root covers the digest of the agent's checkpoint, but not the location of the blob.

    Attributes:
        agent, kind, host, incarnation, is_unborn: values that the host reported.
        digest: digest of the checkpoint's plaintext, which is `size_bytes` bytes long.
        pack: index of the pack in the manifest's `packs`.
        offset: offset of the blob's header in the pack.
        stored_bytes: length of the blob as stored with `codec` (0 plain, 1 lz4 block, plus 2 if encrypted), excluding its header.
        stored_digest: BLAKE3 of the stored bytes.
    """

    agent: str
    kind: str
    host: str
    incarnation: int
    is_unborn: bool = False
    digest: bytes
    size_bytes: int
    pack: int
    offset: int
    stored_bytes: int
    codec: int
    stored_digest: bytes

    def entry(self) -> BlobEntry:
        """Return the expected entry for the blob in the pack's index."""
        return BlobEntry(
            name=self.agent,
            kind=KIND_CHECKPOINT,
            codec=self.codec,
            offset=self.offset,
            stored_bytes=self.stored_bytes,
            size_bytes=self.size_bytes,
            digest=self.digest,
            stored_digest=self.stored_digest,
        )


def agent_line(
    entry: BlobEntry, *, pack: int, kind: str, host: str, incarnation: int, is_unborn: bool = False
) -> AgentLine:
    """Return the manifest entry for a blob in the pack with this index. The blob's name is the agent's id."""
    return AgentLine(
        agent=entry.name,
        kind=kind,
        host=host,
        incarnation=incarnation,
        is_unborn=is_unborn,
        digest=entry.digest,
        size_bytes=entry.size_bytes,
        pack=pack,
        offset=entry.offset,
        stored_bytes=entry.stored_bytes,
        codec=entry.codec,
        stored_digest=entry.stored_digest,
    )


class ChunkPlace(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Location of one chunk. `pack` is the index of the pack in the manifest's `packs`. The other fields have the same meaning as in
    `BlobEntry`."""

    digest: bytes
    pack: int
    offset: int
    stored_bytes: int
    size_bytes: int
    codec: int
    stored_digest: bytes

    def entry(self) -> BlobEntry:
        """Return the expected entry for the chunk in the pack's index."""
        return BlobEntry(
            name="",
            kind=KIND_CHUNK,
            codec=self.codec,
            offset=self.offset,
            stored_bytes=self.stored_bytes,
            size_bytes=self.size_bytes,
            digest=self.digest,
            stored_digest=self.stored_digest or self.digest,
        )


def chunk_place(entry: BlobEntry, *, pack: int) -> ChunkPlace:
    """Return the location of a chunk in the pack with this index."""
    return ChunkPlace(
        digest=entry.digest,
        pack=pack,
        offset=entry.offset,
        stored_bytes=entry.stored_bytes,
        size_bytes=entry.size_bytes,
        codec=entry.codec,
        stored_digest=b"" if entry.codec == CODEC_PLAIN else entry.stored_digest,
    )


class Manifest(msgspec.Struct, frozen=True):
    """Contents of an epoch, and the location of each item. Encoding sorts `agents` and `chunks`."""

    metadata: Metadata
    agents: list[AgentLine]
    packs: list[PackReference]
    chunks: list[ChunkPlace] = []

    def line_of(self, agent: str) -> AgentLine:
        """Return the entry of an agent. Raise NotFoundError if the epoch does not contain the agent."""
        place = bisect_left(self.agents, agent, key=_agent_of)
        if place < len(self.agents) and self.agents[place].agent == agent:
            return self.agents[place]
        for line in self.agents:  # Either the lines are not sorted, or the agent is missing.
            if line.agent == agent:
                return line
        raise NotFoundError(f"agent {agent!r} is not in epoch {self.metadata.epoch}: `snapshot show` lists its agents")


_agent_of = attrgetter("agent")

_Content = tuple[str, str, str, int, bool, bytes, int]
_Place = tuple[int, int, int, int, bytes]
_body_decoder = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw])
_metadata_decoder = msgspec.msgpack.Decoder(Metadata)
_content_decoder = msgspec.msgpack.Decoder(list[_Content])
_Locations = tuple[list[PackReference], list[_Place], list[ChunkPlace]]
_locations_decoder = msgspec.msgpack.Decoder(_Locations)
_locations_1_decoder = msgspec.msgpack.Decoder(tuple[list[PackReference], list[_Place]])


def encode_manifest(manifest: Manifest) -> tuple[str, bytes]:
    """Encode a manifest. Return the manifest's root in hexadecimal, and the encoded file.

    Raises:
        UsageError: If the manifest is inconsistent, for example because a blob extends beyond its pack.
    """
    reason = _contradiction(manifest)
    if reason:
        raise UsageError(f"the manifest of epoch {manifest.metadata.epoch} cannot be written: {reason}")
    lines = sorted(manifest.agents, key=lambda line: line.agent)
    metadata = _encode_metadata(manifest.metadata)
    content = canonical.encode(
        [(x.agent, x.kind, x.host, x.incarnation, x.is_unborn, x.digest, x.size_bytes) for x in lines]
    )
    places = [(x.pack, x.offset, x.stored_bytes, x.codec, x.stored_digest) for x in lines]
    chunks = sorted(manifest.chunks, key=lambda chunk: chunk.digest)
    locations = canonical.encode((manifest.packs, places, chunks))
    body = canonical.encode((msgspec.Raw(metadata), msgspec.Raw(content), msgspec.Raw(locations)))
    if len(body) + OVERHEAD_BYTES > MANIFEST_BYTES_MAX:
        raise UsageError(
            f"the manifest of epoch {manifest.metadata.epoch} has {len(body)} bytes: too many agents or chunks"
        )
    return _root_of(metadata, content), seal(_KIND, body, version=MANIFEST_VERSION)


def _encode_metadata(metadata: Metadata) -> bytes:
    fields = msgspec.structs.asdict(metadata)
    for name in ("inputs", "outputs", "durable_turns", "log_floors", "log_starts", "ordinals", "next_ordinal"):
        if not fields[name]:
            del fields[name]
    return canonical.encode(fields)


def decode_manifest(data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest:
    """Decode the manifest in the file `data`.

    Raises:
        DamagedDataError: If a digest does not match, or the root or an entry is invalid.
        StoreError: If the file has an unsupported version.
    """
    body = unseal(_KIND, data, path=path, epoch=epoch, versions=(1, MANIFEST_VERSION))
    try:
        metadata, content, locations = _body_decoder.decode(body)
        found_root = _root_of(bytes(metadata), bytes(content))
        lines = _content_decoder.decode(content)
        packs, places, chunks = _read_locations(locations)
        manifest = Manifest(_metadata_decoder.decode(metadata), _join_lines(lines, places), packs, chunks)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise damaged(path, f"its body cannot be read: {error}", epoch=epoch) from error
    if found_root != root:
        raise damaged(path, f"its root is {found_root}, not that of its name", epoch=manifest.metadata.epoch)
    if epoch is not None and manifest.metadata.epoch != epoch:
        raise damaged(path, f"it is the manifest of epoch {manifest.metadata.epoch}", epoch=epoch)
    reason = _contradiction(manifest)
    if reason:
        raise damaged(path, reason, epoch=manifest.metadata.epoch)
    return manifest


def _read_locations(locations: msgspec.Raw) -> _Locations:
    """Decode the locations. A manifest of version 1 has no chunks, and its shorter array shows the version."""
    try:
        decoded: _Locations = _locations_decoder.decode(locations)
        return decoded
    except msgspec.ValidationError:
        packs, places = _locations_1_decoder.decode(locations)
        return packs, places, []


def _root_of(metadata: bytes, content: bytes) -> str:
    return blake3(_ROOT_CONTEXT).update(metadata).update(content).hexdigest()


def _join_lines(lines: list[_Content], places: list[_Place]) -> list[AgentLine]:
    return [
        AgentLine(
            agent=line[0],
            kind=line[1],
            host=line[2],
            incarnation=line[3],
            is_unborn=line[4],
            digest=line[5],
            size_bytes=line[6],
            pack=place[0],
            offset=place[1],
            stored_bytes=place[2],
            codec=place[3],
            stored_digest=place[4],
        )
        for line, place in zip(lines, places, strict=True)
    ]


def _contradiction(manifest: Manifest) -> str:
    """Return why the manifest is invalid, or "" if it is valid. Manifests are checked before writing and after reading."""
    epoch = manifest.metadata.epoch
    if not 0 <= epoch <= layout.EPOCH_MAX:
        return f"{epoch} is no epoch number"
    paths = {pack.path for pack in manifest.packs}
    if len(paths) != len(manifest.packs):
        return "a pack is listed twice"
    for pack in manifest.packs:
        name = layout.parse_pack_path(pack.path)
        if name is None or name.number > epoch:
            return f"{pack.path!r} is no pack of epoch {epoch} or before"
        if len(pack.index_digest) != DIGEST_BYTES or not 0 <= pack.size_bytes <= PACK_BYTES_MAX:
            return f"{pack.path!r} has an impossible length or digest"
    return (
        _contradiction_in_numbers(manifest.metadata.inputs, "an input")
        or _contradiction_in_numbers(manifest.metadata.outputs, "an output")
        or _contradiction_in_numbers(manifest.metadata.durable_turns, "a durable turn")
        or _contradiction_in_batches(manifest.metadata.log_floors)
        or _contradiction_in_batches(manifest.metadata.log_starts)
        or _contradiction_in_ordinals(manifest.metadata)
        or _contradiction_in_lines(manifest)
        or _contradiction_in_chunks(manifest)
    )


def _contradiction_in_numbers(numbers: dict[str, int], what: str) -> str:
    for agent, number in numbers.items():
        try:
            check_id(agent)
        except UsageError as error:
            return str(error)
        if not 1 <= number <= layout.EPOCH_MAX:
            return f"{number} is no number of {what} of agent {agent!r}: they count from 1"
    return ""


def _contradiction_in_batches(numbers: dict[str, int]) -> str:
    for name, number in numbers.items():
        if _LOG.fullmatch(name) is None or not 1 <= number <= layout.EPOCH_MAX:
            return f"{number} is no number of a batch in the log {name!r}: they count from 1"
    return ""


def _contradiction_in_ordinals(metadata: Metadata) -> str:
    known = set(metadata.ordinals.values())
    if len(known) < len(metadata.ordinals) or not all(0 <= x < metadata.next_ordinal for x in known):
        return "two agents have one ordinal, or one above all that there were"
    return ""


def _contradiction_in_lines(manifest: Manifest) -> str:
    agents: set[str] = set()
    sizes = [pack.size_bytes for pack in manifest.packs]
    for line in manifest.agents:
        try:
            check_id(line.agent)
        except UsageError as error:
            return str(error)
        if line.agent in agents:
            return f"agent {line.agent!r} is listed twice"
        agents.add(line.agent)
        reason = _contradiction_in_place(f"agent {line.agent!r}", line, sizes)
        if reason:
            return reason
    return ""


def _contradiction_in_chunks(manifest: Manifest) -> str:
    sizes = [pack.size_bytes for pack in manifest.packs]
    known: set[bytes] = set()
    for chunk in manifest.chunks:
        if chunk.digest in known:
            return f"chunk {chunk.digest.hex()[:12]} is listed twice"
        known.add(chunk.digest)
        reason = _contradiction_in_place(f"chunk {chunk.digest.hex()[:12]}", chunk, sizes)
        if reason:
            return reason
    return ""


def _contradiction_in_place(what: str, blob: AgentLine | ChunkPlace, sizes: list[int]) -> str:
    if not 0 <= blob.pack < len(sizes):
        return f"{what} names pack {blob.pack} of {len(sizes)}"
    entry = blob.entry()
    reason = contradiction_of(entry)
    if reason:
        return f"{what}: {reason}"
    return f"{what} lies outside its pack" if end_of(entry) > sizes[blob.pack] else ""


def read_manifest(disk: Disk, root: str, *, epoch: int | None = None, generation: int | None = None) -> Manifest:
    """Read and check the manifest with this root. `epoch` is the expected epoch of the manifest, or None if unknown.

    If `generation` is None, read the first generation, or the latest one if the first has been removed.
    """
    if generation is None:
        generation = find_generation(disk, root)
    path = manifest_path(root, generation)
    data = read_file(disk, path, epoch=epoch, size_bytes_max=MANIFEST_BYTES_MAX)
    return decode_manifest(data, root=root, path=path, epoch=epoch)


def find_generation(disk: Disk, root: str) -> int:
    """Return which generation of a manifest to read. The result is 0 as long as generation 0 exists, so that most readers need not list the
    directory."""
    with contextlib.suppress(OSError):
        disk.size(manifest_path(root))
        return 0
    with contextlib.suppress(OSError):
        return max(list_generations(disk).get(root, [0]))
    return 0


def list_generations(disk: Disk) -> dict[str, list[int]]:
    """List all manifests. Return a map from each root to the numbers of its generations."""
    generations: dict[str, list[int]] = {}
    for entry in disk.list_directory(MANIFESTS):
        parsed = parse_manifest_path(f"{MANIFESTS}/{entry.name}")
        if parsed is not None and not entry.is_directory:
            generations.setdefault(parsed[0], []).append(parsed[1])
    return generations


REF_KIND = b"EREF"
_SIGNED_REF_VERSION = 2


class RefBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a ref. The coordinator's log determines these values, so every leader writes the same bytes."""

    epoch: int
    root: str
    store: str


class SignedRefBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a signed ref (version 2). The Ed25519 signature over `ciphers.epoch_message` is deterministic, so every leader writes the
    same bytes."""

    epoch: int
    root: str
    store: str
    signature: bytes


class UnsignedRefError(StoreError):
    """A ref lacks a valid signature by any of the given keys."""


_ref_decoder = msgspec.msgpack.Decoder(RefBody)
_signed_ref_decoder = msgspec.msgpack.Decoder(SignedRefBody)


def encode_ref(epoch: int, root: str, store_id: str, guard: Guard | None = None) -> bytes:
    """Encode a ref as a file, and sign it if the guard has a signing key."""
    if guard is None or not guard.signs:
        return seal(REF_KIND, canonical.encode(RefBody(epoch=epoch, root=root, store=store_id)))
    signature = guard.sign(epoch_message(store_id, epoch, root))
    body = SignedRefBody(epoch=epoch, root=root, store=store_id, signature=signature)
    return seal(REF_KIND, canonical.encode(body), version=_SIGNED_REF_VERSION)


def read_ref(disk: Disk, epoch: int, store_id: str | None, guard: Guard | None = None) -> str:
    """Read and check the ref of `epoch`, and return the root that it names. If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the ref is missing, damaged, or belongs to another store or epoch.
        UnsignedRefError: If the ref lacks a signature that the guard requires.
    """
    path = ref_path(epoch)
    data = read_file(disk, path, epoch=epoch, size_bytes_max=SMALL_BYTES_MAX)
    body = unseal(REF_KIND, data, path=path, epoch=epoch, versions=(1, _SIGNED_REF_VERSION))
    with decoding(path, epoch):
        ref = _decode_ref(body)
    if ref.epoch != epoch:
        raise damaged(path, f"it is the ref of epoch {ref.epoch}", epoch=epoch)
    check_store(ref.store, path, store_id, epoch=epoch)
    if not is_root(ref.root):
        raise damaged(path, f"{ref.root!r} is no root", epoch=epoch)
    _check_signature(ref, path, guard)
    return ref.root


def _decode_ref(body: bytes) -> RefBody | SignedRefBody:
    try:
        return _ref_decoder.decode(body)
    except msgspec.ValidationError:
        return _signed_ref_decoder.decode(body)


def _check_signature(ref: RefBody | SignedRefBody, path: str, guard: Guard | None) -> None:
    if guard is None or not guard.requires_signatures:
        return
    if isinstance(ref, RefBody):
        raise UnsignedRefError(
            f"{path} (epoch {ref.epoch}) is not signed, and there is a key to verify with: do not use it"
        )
    if not guard.verify(epoch_message(ref.store, ref.epoch, ref.root), ref.signature):
        raise UnsignedRefError(f"{path} (epoch {ref.epoch}) was not signed by the owner of the key: do not use it")

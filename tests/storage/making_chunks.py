"""Small fleets whose states are made of chunks, for the tests of the store.

A state is a list of contents, one a chunk. What a test expects is a copy of these lists: it knows nothing of packs, digests
or generations.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec

from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line, list_generations, read_manifest
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds, PackReference, end_of
from snapline.storage.store.store import Store

HOSTS = {"h1": ("a1", "a2"), "h2": ("b1",)}
AGENTS = tuple(agent for agents in HOSTS.values() for agent in agents)
SLOTS = 4

State = dict[str, list[bytes]]
"""Agent -> contents of its chunks."""


def content(agent: str, slot: int, version: int, *, size_bytes: int = 120) -> bytes:
    """A chunk of its own for each combination; in the last slot one that lz4 shrinks, and that all agents share."""
    if slot == SLOTS - 1:
        return f"all agents have version {version} ".encode() * (size_bytes // 12)
    return random.Random(f"{agent} {slot} {version}").randbytes(size_bytes + slot)


def first_state(*, size_bytes: int = 120) -> State:
    return {agent: [content(agent, slot, 0, size_bytes=size_bytes) for slot in range(SLOTS)] for agent in AGENTS}


def changed(state: State, agent: str, slot: int, version: int, *, size_bytes: int = 120) -> State:
    """Return a copy in which one chunk is another."""
    copy = {name: list(chunks) for name, chunks in state.items()}
    copy[agent][slot] = content(agent, slot, version, size_bytes=size_bytes)
    return copy


def make_part_checkpoint(store: Store, agent: str, epoch: int, chunks: Sequence[bytes]) -> AgentCheckpoint:
    digests = b"".join([store.digest(chunk) for chunk in chunks])
    part = StatePart(3, b"", sum(map(len, chunks)), 0, [len(chunk) for chunk in chunks], digests)
    return AgentCheckpoint(agent=agent, kind="tests:Agent", epoch=epoch, number=epoch, state=b"state", parts=[part])


def write_host(
    store: Store, host: str, epoch: int, state: State, *, base: int = 0, base_state: State | None = None
) -> PackReference:
    """Write one host's part of an epoch. Of h1 two packs of chunks, and one that needs them; of h2 one pack with all."""
    agents, writer = HOSTS[host], f"{host}-1"
    contents = {store.digest(chunk): chunk for agent in agents for chunk in state[agent]}
    known = {store.digest(chunk) for agent in agents for chunk in (base_state or {}).get(agent, [])}
    reused = [digest for digest in contents if digest in known]
    new = [PackBlob("", KIND_CHUNK, data, digest) for digest, data in contents.items() if digest not in known]
    others: list[PackReference] = []
    if host == "h1" and len(new) > 1:
        halves = new[: len(new) // 2], new[len(new) // 2 :]
        others = [store.write_chunks(writer=writer, epoch=epoch, chunks=half) for half in halves]
        new = []
    blobs = [(agent, encode_checkpoint(make_part_checkpoint(store, agent, epoch, state[agent]))) for agent in agents]
    needs = PackNeeds(base if reused else 0, reused, others)
    return store.write_pack(writer=writer, epoch=epoch, blobs=blobs, chunks=new, needs=needs)


def write_hosts(
    store: Store, epoch: int, state: State, *, base: int = 0, base_state: State | None = None
) -> dict[str, PackReference]:
    return {host: write_host(store, host, epoch, state, base=base, base_state=base_state) for host in HOSTS}


def gather_manifest(store: Store, epoch: int, packs: Mapping[str, PackReference], bases: Mapping[int, str]) -> Manifest:
    gathered = store.gather(list(packs.values()), epoch=epoch, bases=bases)
    lines = [
        agent_line(entry, pack=number, kind="tests:Agent", host=host, incarnation=1)
        for number, host in enumerate(packs)
        for entry in gathered.checkpoints[number].values()
    ]
    metadata = Metadata(epoch=epoch, created="2025-01-01T00:00:00Z", fleet="tests", hosts={"h1": 1, "h2": 1})
    return Manifest(metadata, lines, gathered.packs, gathered.chunks)


def commit_chunked(
    store: Store,
    epoch: int,
    state: State,
    *,
    base: int = 0,
    base_state: State | None = None,
    is_published: bool = True,
) -> str:
    """Write an epoch over a base, and publish it; return its root."""
    packs = write_hosts(store, epoch, state, base=base, base_state=base_state)
    bases = {base: store.read_ref(base)} if base else {}
    root = store.write_manifest(gather_manifest(store, epoch, packs, bases))
    if is_published:
        store.publish(epoch, root)
    return root


def check_manifest_restores(store: Store, manifest: Manifest, state: State) -> None:
    """Assert that what the manifest leads to is exactly `state`."""
    epoch = manifest.metadata.epoch
    assert [line.agent for line in manifest.agents] == sorted(state)
    reader = store.part_reader(manifest)
    for checkpoint in store.read_checkpoints(manifest):
        agent = checkpoint.agent
        assert checkpoint == make_part_checkpoint(store, agent, epoch, state[agent])
        assert [bytes(part) for part in reader.read(agent, checkpoint.parts)] == [b"".join(state[agent])]


def check_chunked(store: Store, epoch: int, state: State) -> None:
    """Assert that a published epoch restores exactly."""
    check_manifest_restores(store, store.read_manifest(store.read_ref(epoch), epoch=epoch), state)


def newest_manifest(disk: Disk, root: str) -> Manifest:
    return read_manifest(disk, root, generation=max(list_generations(disk)[root]))


def pack_paths(disk: Disk) -> list[str]:
    return [
        f"{layout.PACKS}/{writer.name}/{entry.name}"
        for writer in disk.list_directory(layout.PACKS)
        for entry in disk.list_directory(f"{layout.PACKS}/{writer.name}")
    ]


def live_shares(store: Store, disk: Disk) -> dict[str, float]:
    """Return, for each pack that the newest generations of published epochs name, live bytes among its blobs' bytes."""
    live: dict[str, set[tuple[int, int]]] = {}
    references: dict[str, PackReference] = {}
    for epoch in store.epochs():
        manifest = newest_manifest(disk, store.read_ref(epoch))
        places = [(line.pack, line.entry()) for line in manifest.agents]
        for number, entry in places + [(chunk.pack, chunk.entry()) for chunk in manifest.chunks]:
            pack = manifest.packs[number]
            references[pack.path] = pack
            live.setdefault(pack.path, set()).add((entry.offset, end_of(entry)))
    shares = {}
    for path, spans in live.items():
        sizes = [end_of(entry) - entry.offset for entry in store.read_pack_index(references[path])]
        shares[path] = sum([end - start for start, end in spans]) / sum(sizes)
    return shares


class Promise(msgspec.Struct):
    """An epoch that was published: its root, and what it must restore to."""

    root: str
    state: State

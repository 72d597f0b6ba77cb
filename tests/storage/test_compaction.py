"""Compaction moves bytes and changes nothing else: whatever is written, aborted, deleted and compacted, in whatever order, each
epoch that is left restores exactly.

The oracle is a copy of the states at the moment they were written.
"""

import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.storage.compaction_world import (
    STEPS,
    Step,
    World,
    commit,
    disk_bytes,
    finish,
    plan_compaction,
    play,
    sparse_world,
)
from tests.storage.making_chunks import (
    HOSTS,
    live_shares,
    newest_manifest,
    pack_paths,
)
from tests.storage.simulated_disk import Inode, SimulatedDisk

from snapline.storage.disk import layout
from snapline.storage.keys.key_files import Keys, make_wrapping_key
from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import GRACE_S
from snapline.storage.packs.manifest import Manifest, list_generations
from snapline.storage.packs.pack import CODEC_ENCRYPTED, PackReference, end_of

KEYS = Keys((make_wrapping_key(b"k" * 32),))


REPLACED_TWICE: list[Step] = [
    *(("sweep", 0), ("change", 0), ("commit", 0), ("change", 0), ("change", 8), ("commit", 0), ("commit", 0)),
    *(("delete", 0), ("compact", 0), ("delete", 0)),
]
"""A pack that compaction has made is replaced, and goes two rounds later than others."""


@pytest.fixture(autouse=True)
def tiny_packs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs here have some hundred bytes."""
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 0)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["open", "encrypted"])
def test_whatever_happens_each_epoch_restores_and_little_is_dead(keys: Keys | None) -> None:
    @settings(max_examples=40 if keys is None else 15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
    @example(steps=REPLACED_TWICE)
    def check(steps: list[Step]) -> None:
        world = World(keys)
        play(world, [("commit", 0), *steps])
        finish(world)

    check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_whatever_happens_at_length(steps: list[Step]) -> None:
    world = World()
    play(world, [("commit", 0), *steps])
    finish(world)


# -- what moves --------------------------------------------------------------------------------------------------------


def test_dead_bytes_are_freed_an_hour_later() -> None:
    world = sparse_world()
    before, shares = disk_bytes(world.disk), live_shares(world.store, world.disk)
    sparse = [path for path, share in shares.items() if share < 0.5]
    assert sparse
    done = world.compact()
    assert done.copied_bytes > 0 and done.packs and len(done.generations) == 3
    world.sweep()
    assert set(sparse) <= set(pack_paths(world.disk)), "what was replaced stays for the grace"
    world.compact()
    world.now_s += GRACE_S - 1
    world.compact()
    world.sweep()
    assert set(sparse) <= set(pack_paths(world.disk))
    world.now_s += 1
    assert len(world.compact().removed) == 3
    world.sweep()
    assert not set(sparse) & set(pack_paths(world.disk))
    assert disk_bytes(world.disk) < before
    world.check()


def test_a_few_dead_bytes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 10_000)
    world = sparse_world()
    assert plan_compaction(world) == []
    assert world.compact().packs == []


def test_one_call_moves_no_more_than_it_may_and_one_blob_at_least() -> None:
    world = sparse_world()
    everything = plan_compaction(world)
    sizes = [end_of(blob.entry) - blob.entry.offset for blob in everything]
    for bytes_max in range(1, sum(sizes) + 2, 50):
        blobs = plan_compaction(world, bytes_max=bytes_max)
        assert blobs == everything[: len(blobs)] and blobs
        assert sum(sizes[: len(blobs) - 1]) < bytes_max <= sum(sizes[: len(blobs) + 1]) or blobs == everything
    assert world.compact(bytes_max=1).copied_bytes == sizes[0]
    world.check()


def test_an_epoch_in_many_packs_is_gathered_into_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dead here: each epoch is kept."""
    monkeypatch.setattr(compaction, "PACKS_PER_EPOCH_MAX", 4)
    world = World()
    commit(world, 15)
    newest = world.promises[15].root
    assert len(newest_manifest(world.disk, newest).packs) > 4 * len(HOSTS)
    world.compact_fully()
    assert len(newest_manifest(world.disk, newest).packs) <= 4 * len(HOSTS)
    world.check()


def test_merging_does_not_copy_the_same_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PACKS_PER_EPOCH_MAX", 4)
    world = World()
    commit(world, 15)
    copied = []
    for _ in range(20):
        commit(world)
        if len(world.promises) > 10:
            world.delete(0)
        copied.append(world.compact().copied_bytes)
        world.now_s += GRACE_S
    assert copied.count(0) >= 10, copied
    world.check()


def test_encrypted_blobs_are_sealed_anew() -> None:
    world = sparse_world(KEYS)
    done = world.compact()
    index = world.store.read_pack_index(world_reference(world, done.packs[0]))
    assert index and all(entry.codec & CODEC_ENCRYPTED for entry in index)
    world.compact_fully()
    world.check()


def world_reference(world: World, path: str) -> PackReference:
    manifests = [newest_manifest(world.disk, promise.root) for promise in world.promises.values()]
    return next(pack for manifest in manifests for pack in manifest.packs if pack.path == path)


def test_packs_that_an_undecided_epoch_names_are_left_alone() -> None:
    world = sparse_world()
    world.write(0)
    world.complete(world.epoch, is_published=False)
    named = {pack.path for _, manifest in manifests_of(world) for pack in manifest.packs}
    moved = {blob.pack.path for blob in plan_compaction(world)}
    assert moved <= named
    undecided = [m for root, m in manifests_of(world) if root not in {x.root for x in world.promises.values()}]
    assert not moved & {pack.path for pack in undecided[0].packs}


def manifests_of(world: World) -> list[tuple[str, Manifest]]:
    found = list_generations(world.disk)
    return [(root, newest_manifest(world.disk, root)) for root in found]


def test_what_an_unreadable_manifest_may_need_is_left_alone() -> None:
    world = sparse_world()
    epoch = max(world.promises)
    spoil(world.disk, layout.manifest_path(world.promises[epoch].root))
    assert plan_compaction(world) == []
    before = set(pack_paths(world.disk))
    world.compact()
    world.now_s += GRACE_S
    world.compact()
    world.sweep()
    assert set(pack_paths(world.disk)) == before


def spoil(disk: SimulatedDisk, path: str, position: int = -40) -> None:
    node = disk.nodes[path]
    assert node is not None
    data = bytearray(node.data)
    data[position] ^= 1
    disk.nodes[path] = Inode(bytes(data), bytes(data))


def test_a_damaged_blob_stays_where_it_is_and_the_others_move() -> None:
    """Whoever copied it would make damage look like a whole file."""
    world = sparse_world()
    blobs = plan_compaction(world)
    digests = [blob.entry.digest for blob in blobs]
    hit = next(blob for blob in blobs if digests.count(blob.entry.digest) == 1)
    spoil(world.disk, hit.pack.path, end_of(hit.entry) - 1)
    world.compact_fully()
    findings = world.store.verify().findings
    assert findings and {finding.path for finding in findings} == {hit.pack.path}
    moved = {blob.pack.path for blob in blobs} - {hit.pack.path}
    assert moved and not moved & set(pack_paths(world.disk))


def test_nothing_is_read_again_while_nothing_changes() -> None:
    world = sparse_world()
    world.compact_fully()
    world.compact()
    read: list[str] = []

    def note(path: str, offset: int, length: int) -> bytes:
        read.append(path)
        return SimulatedDisk.read(world.disk, path, offset, length)

    world.disk.read = note  # type: ignore[method-assign]  # A spy on one disk.
    world.compact()
    assert not [path for path in read if not path.startswith((layout.REFS, layout.IDENTITY))], read


def test_generations_do_not_pile_up() -> None:
    world = World()
    commit(world, 3)
    for _ in range(3 * compaction.GENERATIONS_MAX):
        commit(world, 2)
        world.delete(0)
        world.compact(bytes_max=1)
    assert max(map(len, list_generations(world.disk).values())) <= compaction.GENERATIONS_MAX
    world.compact_fully()
    world.check()

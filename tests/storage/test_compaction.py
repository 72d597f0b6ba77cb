"""Compaction moves bytes and changes nothing else: whatever is written, aborted, deleted and compacted, in whatever order, each
epoch that is left restores exactly.

The oracle is a copy of the states at the moment they were written.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.making import seeded_bytes
from tests.storage.making_chunks import (
    AGENTS,
    HOSTS,
    SLOTS,
    Promise,
    State,
    changed,
    check_chunked,
    check_manifest_restores,
    commit_chunked,
    first_state,
    gather_manifest,
    live_shares,
    newest_manifest,
    pack_paths,
    write_hosts,
)
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk

from snapline.errors import SnaplineError, StoreError
from snapline.storage import compaction, files, layout
from snapline.storage.blob import CODEC_ENCRYPTED, end_of
from snapline.storage.compaction import GRACE_S, WRITER, plan_compaction
from snapline.storage.generations import Retirement
from snapline.storage.key_files import Keys, make_wrapping_key
from snapline.storage.manifest import Manifest, encode_manifest
from snapline.storage.pack import PackReference
from snapline.storage.store import Store

KEYS = Keys((make_wrapping_key(b"k" * 32),))


@pytest.fixture(autouse=True)
def tiny_packs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs here have some hundred bytes."""
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 0)


class World:
    """A fleet, its store, the one who cleans up, and readers. Time stands still but for `pass_time`."""

    def __init__(self, keys: Keys | None = None) -> None:
        self.disk = SimulatedDisk()
        self.store = Store.create("simulated", disk=self.disk, random_bytes=seeded_bytes(), keys=keys)
        self.cleaner = Store.open("simulated", disk=self.disk, keys=keys)
        self.now_s = 0.0
        self.epoch = 0
        self.version = 0
        self.state = first_state()
        self.written: dict[int, tuple[dict[str, PackReference], int, State]] = {}
        self.gathered: dict[int, tuple[Manifest, float]] = {}
        self.promises: dict[int, Promise] = {}
        self.held: list[tuple[int, Manifest]] = []

    # -- the fleet ---------------------------------------------------------------------------------------------------

    def change(self, number: int) -> None:
        self.version += 1
        agent, slot = AGENTS[number % len(AGENTS)], number // len(AGENTS) % SLOTS
        self.state = changed(self.state, agent, slot, self.version)

    def write(self, number: int) -> None:
        """Packs of a new epoch over one of the two newest ones."""
        bases = sorted(self.promises)[-2:]
        base = bases[number % len(bases)] if bases else 0
        base_state = self.promises[base].state if base else None
        self.epoch += 1
        packs = write_hosts(self.store, self.epoch, self.state, base=base, base_state=base_state)
        self.written[self.epoch] = packs, base, self.state

    def gather(self, epoch: int) -> None:
        packs, base, _ = self.written[epoch]
        if base in self.promises or base == 0:
            bases = {base: self.promises[base].root} if base else {}
            self.gathered[epoch] = gather_manifest(self.store, epoch, packs, bases), self.now_s

    def complete(self, epoch: int, *, is_published: bool = True) -> None:
        if epoch not in self.gathered:
            self.gather(epoch)
        _, base, state = self.written.pop(epoch)
        manifest, gathered_s = self.gathered.pop(epoch, (None, 0.0))
        is_late = self.now_s - gathered_s >= GRACE_S or (base and base not in self.promises)
        if manifest is None or is_late:
            return
        root = self.store.write_manifest(manifest)
        if is_published:
            self.store.publish(epoch, root)
            self.promises[epoch] = Promise(root, state)

    # -- the one who cleans up ---------------------------------------------------------------------------------------

    def delete(self, number: int) -> None:
        """Any epoch but the newest two, as the coordinator does; its readers know that."""
        old = sorted(self.promises)[:-2]
        if old:
            epoch = old[number % len(old)]
            self.held = [each for each in self.held if each[0] != epoch]
            del self.promises[epoch]
            self.cleaner.delete_epoch(epoch)

    def sweep(self) -> None:
        self.cleaner.delete_unreferenced(begun_below=self.epoch + 1, open_epochs=self.written, open_writers=(WRITER,))

    def compact(self, bytes_max: int = 10**9) -> compaction.Compacted:
        return self.cleaner.compact(now_s=self.now_s, bytes_max=bytes_max)

    def compact_fully(self) -> None:
        """Until nothing moves any more, and what was replaced is gone."""
        for _ in range(100):
            if not self.compact().copied_bytes:
                break
            self.now_s += GRACE_S
        else:
            raise AssertionError("compaction never ends")
        self.now_s += GRACE_S
        self.compact()
        self.sweep()

    # -- readers -----------------------------------------------------------------------------------------------------

    def hold(self, number: int) -> None:
        if self.promises:
            epoch = sorted(self.promises)[number % len(self.promises)]
            self.held.append((epoch, self.cleaner.read_manifest(self.promises[epoch].root)))

    def read_held(self) -> None:
        """However long a reader takes, it finds what it began with."""
        for epoch, manifest in self.held:
            check_manifest_restores(self.store, manifest, self.promises[epoch].state)
        self.held = []

    def check(self) -> None:
        assert self.store.epochs() == sorted(self.promises)
        for epoch, promise in self.promises.items():
            assert self.store.read_ref(epoch) == promise.root
            check_chunked(self.store, epoch, promise.state)
            check_manifest_restores(self.store, newest_manifest(self.disk, promise.root), promise.state)
        assert self.store.verify().findings == []


Step = tuple[str, int]
NUMBERED = ("change", "change", "write", "gather", "complete", "complete", "abort", "delete", "compact", "hold")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NUMBERED), st.integers(0, 30)),
        st.tuples(st.sampled_from(("commit", "commit", "commit", "sweep", "read", "pass", "check")), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


def play(world: World, steps: list[Step]) -> None:
    for what, number in steps:
        if what == "change":
            world.change(number)
        elif what == "write" and len(world.written) < 3:
            world.write(number)
        elif what == "gather" and world.written:
            world.gather(sorted(world.written)[number % len(world.written)])
        elif what in ("complete", "abort") and world.written:
            world.complete(sorted(world.written)[number % len(world.written)], is_published=what == "complete")
        elif what == "commit":
            world.change(world.version)
            world.write(0)
            world.complete(world.epoch)
        elif what == "delete":
            world.delete(number)
        elif what == "sweep":
            world.sweep()
        elif what == "compact":
            world.compact((10**9, 700)[number % 2])
        elif what == "hold":
            world.hold(number)
        elif what == "read":
            world.read_held()
        elif what == "pass":
            world.now_s += GRACE_S / 2
        elif what == "check":
            world.check()


def finish(world: World) -> None:
    """What is open ends; then nothing but live packs is left."""
    for epoch in sorted(world.written):
        world.complete(epoch, is_published=False)
    world.sweep()
    world.check()
    world.compact_fully()
    world.check()
    assert all(share >= compaction.LIVE_SHARE_MIN for share in live_shares(world.store, world.disk).values())
    verification = world.store.verify()
    assert verification.unreferenced == []
    assert len(world.disk.list_directory(layout.MANIFESTS)) == len(world.promises)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["open", "encrypted"])
def test_whatever_happens_each_epoch_restores_and_little_is_dead(keys: Keys | None) -> None:
    @settings(max_examples=40 if keys is None else 15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
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


def commit(world: World, count: int = 1) -> None:
    for _ in range(count):
        play(world, [("commit", 0)])


def sparse_world(keys: Keys | None = None) -> World:
    """Epochs 5 to 7 of which each reuses a little of epoch 1, which is gone with those after it."""
    world = World(keys)
    commit(world, 7)
    for _ in range(4):
        world.delete(0)
    return world


def disk_bytes(disk: SimulatedDisk) -> int:
    return sum([disk.size(path) for path in pack_paths(disk)])


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
    assert plan_compaction(world.disk, world.store.store_id) == []
    assert world.compact().packs == []


def test_one_call_moves_no_more_than_it_may_and_one_blob_at_least() -> None:
    world = sparse_world()
    everything = plan_compaction(world.disk, world.store.store_id)
    sizes = [end_of(blob.entry) - blob.entry.offset for blob in everything]
    for bytes_max in range(1, sum(sizes) + 2, 50):
        blobs = plan_compaction(world.disk, world.store.store_id, bytes_max=bytes_max)
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
    moved = {blob.pack.path for blob in plan_compaction(world.disk, world.store.store_id)}
    assert moved <= named
    undecided = [m for root, m in manifests_of(world) if root not in {x.root for x in world.promises.values()}]
    assert not moved & {pack.path for pack in undecided[0].packs}


def manifests_of(world: World) -> list[tuple[str, Manifest]]:
    found = files.generations(world.disk)
    return [(root, newest_manifest(world.disk, root)) for root in found]


def test_what_an_unreadable_manifest_may_need_is_left_alone() -> None:
    world = sparse_world()
    epoch = max(world.promises)
    spoil(world.disk, layout.manifest_path(world.promises[epoch].root))
    assert plan_compaction(world.disk, world.store.store_id) == []
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
    blobs = plan_compaction(world.disk, world.store.store_id)
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
    assert not [path for path in read if not path.startswith(layout.REFS)], read


def test_generations_do_not_pile_up() -> None:
    world = World()
    commit(world, 3)
    for _ in range(3 * compaction.GENERATIONS_MAX):
        commit(world, 2)
        world.delete(0)
        world.compact(bytes_max=1)
    assert max(map(len, files.generations(world.disk).values())) <= compaction.GENERATIONS_MAX
    world.compact_fully()
    world.check()


# -- others who are there at the same time -----------------------------------------------------------------------------


def copy_of(world: World) -> World:
    other = World()
    other.disk, other.epoch, other.promises = world.disk.copy(), world.epoch, dict(world.promises)
    other.store = Store(other.disk, world.store.store_id, random_bytes=seeded_bytes(5))
    other.cleaner = Store(other.disk, world.store.store_id, random_bytes=seeded_bytes(6))
    return other


def at_every_call(ours: Callable[[World], object], act: Callable[[World], object], *, step: int = 3) -> int:
    """Run `act` before the n-th call of `ours`, for each `step`-th n; then everything must be there, now and when time has
    passed."""
    original = sparse_world()
    for moment in range(0, 2000, step):
        world = copy_of(original)
        count = 0

        def on_call(name: str, world: World = world, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count == moment + 1:
                world.disk.on_call = lambda name: None
                act(world)
                world.disk.on_call = on_call

        world.disk.on_call = on_call
        with contextlib.suppress(StoreError):  # Such as: what was just written is gone. The next call goes on.
            ours(world)
        world.disk.on_call = lambda name: None
        if count <= moment:
            return moment
        check_restores(world)
        assert act is compact_late or world.store.verify().is_whole
        world.compact_fully()
        world.check()
    raise AssertionError("too many calls")


def check_restores(world: World) -> None:
    assert world.store.epochs() == sorted(world.promises)
    for epoch, promise in world.promises.items():
        check_chunked(world.store, epoch, promise.state)


def deposed(world: World) -> Store:
    """Another leader, who does not know yet that it is none any more."""
    return Store(world.disk, world.store.store_id, random_bytes=seeded_bytes(7))


def compact_late(world: World) -> None:
    """An hour passes for the other one, while ours stands still: longer than promised, and nothing is lost all the same."""
    other = deposed(world)
    for now_s in (0.0, GRACE_S):
        other.compact(now_s=now_s)
        other.delete_unreferenced(begun_below=max(world.promises) + 1, open_writers=(WRITER,))


def sweep_late(world: World) -> None:
    deposed(world).delete_unreferenced(begun_below=max(world.promises) + 1, open_writers=(WRITER,))


def delete_late(world: World) -> None:
    epoch = min(world.promises)
    del world.promises[epoch]
    deposed(world).delete_epoch(epoch)


def commit_over(world: World) -> None:
    """A commit over the newest epoch. It must succeed."""
    base = max(world.promises)
    world.epoch += 1
    state = changed(world.promises[base].state, "a1", 1, 99)
    try:
        root = commit_chunked(world.store, world.epoch, state, base=base, base_state=world.promises[base].state)
    except SnaplineError as error:
        raise AssertionError("the commit failed") from error
    world.promises[world.epoch] = Promise(root, state)


ACTS = [compact_late, sweep_late, delete_late, commit_over]


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_others_at_each_single_call_of_a_compaction_lose_nothing(act: Callable[[World], object]) -> None:
    assert at_every_call(World.compact, act, step=1) > 50


@pytest.mark.parametrize("act", ACTS)
def test_others_at_every_call_of_a_compaction_lose_nothing(act: Callable[[World], object]) -> None:
    assert at_every_call(World.compact, act) > 50


@pytest.mark.parametrize("ours", [commit_over, sweep_late, delete_late])
def test_a_compaction_at_every_call_of_others_loses_nothing(ours: Callable[[World], object]) -> None:
    """It begins and ends within one call of theirs, without waiting for anything but the grace."""
    assert at_every_call(ours, World.compact) > 10


def test_a_commit_and_a_compaction_with_the_sweep_after_it_lose_nothing() -> None:
    """What the commit found through the replaced generation is still there when its manifest is written."""

    def compact_and_sweep(world: World) -> None:
        world.compact()
        world.now_s += GRACE_S - 1
        world.compact()
        sweep_late(world)

    assert at_every_call(commit_over, compact_and_sweep) > 10


def test_a_generation_whose_pack_is_gone_does_not_count() -> None:
    """An old sweep took the new pack. Readers find the older generation, and the next call makes that the newest."""
    world = sparse_world()
    done = world.compact()
    for path in done.packs:
        world.disk.unlink(path)
    check_restores(world)
    for root in files.generations(world.disk):
        assert newest_manifest(world.disk, root).packs
    assert set(done.generations) <= set(world.compact().removed)
    world.compact_fully()
    world.check()


def test_an_old_generation_goes_only_if_the_newest_is_whole() -> None:
    world = sparse_world()
    done = world.compact()
    world.compact()
    world.disk.unlink(done.packs[0])
    world.now_s += GRACE_S
    world.compact()
    check_restores(world)


def test_packs_of_a_compaction_that_was_broken_off_go_after_the_grace() -> None:
    world = sparse_world()
    moment = next(i for i in range(1000) if crash_in_compaction(world, i))
    broken = copy_of(world)
    broken.disk.crash_after = moment
    with pytest.raises(SimulatedCrashError):
        broken.compact()
    broken.disk.crash_after = None
    broken.cleaner = deposed(broken)
    left = [path for path in pack_paths(broken.disk) if f"/{WRITER}/" in path]
    assert left
    broken.compact()
    broken.sweep()
    assert set(left) <= set(pack_paths(broken.disk))
    broken.compact_fully()
    assert not set(left) & set(pack_paths(broken.disk))
    broken.check()


def crash_in_compaction(original: World, moment: int) -> bool:
    """Does the first manifest come right after this call?"""
    world = copy_of(original)
    world.disk.crash_after = moment
    try:
        world.compact()
    except SimulatedCrashError:
        is_packed = any(f"/{WRITER}/" in path for path in pack_paths(world.disk))
        return is_packed and world.disk.calls[-1] == "sync_directory"
    return False


def test_the_root_of_an_old_release_is_computed_alike() -> None:
    """A manifest that was written by an earlier release could otherwise not move."""
    store = Store.open(Path(__file__).parent / "golden_1")
    for epoch in store.epochs():
        root = store.read_ref(epoch)
        assert encode_manifest(store.read_manifest(root))[0] == root


# -- these tests can fail ----------------------------------------------------------------------------------------------


def _retire_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retirement, "_is_due", lambda self, since, path: True)


def _retire_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retirement, "_is_whole", lambda self, root, epoch, generation: True)


def _move_without_asking_the_ref(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_is_published", lambda disk, store_id, epoch, root: True)


def _keep_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """New packs have the number of the newest epoch."""
    right = compaction._batches
    monkeypatch.setattr(
        compaction, "_batches", lambda blobs: [(max(b.last_epoch for s in x for b in s), x) for _, x in right(blobs)]
    )


def _forget_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are thought to stand where chunks do."""
    right = compaction.relocated
    monkeypatch.setattr(
        compaction, "relocated", lambda manifest, places: right(manifest, dict(list(places.items())[:1]))
    )


def _read_old_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits look at the first generation there is."""
    read = files.read_manifest
    monkeypatch.setattr("snapline.storage.store.read_newest", lambda disk, root, epoch: read(disk, root, epoch=epoch))


def _give_up_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.storage.store.other_generations", lambda disk, manifest: [])


def hold_on() -> None:
    """A reader and a commit begin before a compaction, and end when what it replaced is gone, or nearly so."""
    steps: list[Step] = [("commit", 0)] * 7 + [("delete", 0)] * 4 + [("hold", 0), ("hold", 1), ("compact", 0)]
    steps += [("pass", 0), ("compact", 0), ("pass", 0), ("write", 0), ("gather", 0), ("pass", 0), ("compact", 0)]
    steps += [("sweep", 0), ("complete", 0), ("read", 0), ("check", 0)]
    world = World()
    play(world, steps)
    finish(world)


def test_readers_and_commits_outlast_a_compaction() -> None:
    hold_on()


def delete_at_every_call() -> None:
    at_every_call(World.compact, delete_late)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (_retire_at_once, test_dead_bytes_are_freed_an_hour_later),
        (_retire_unchecked, test_an_old_generation_goes_only_if_the_newest_is_whole),
        (_move_without_asking_the_ref, delete_at_every_call),
        (_keep_the_number, hold_on),
        (_forget_checkpoints, hold_on),
        (_read_old_places, hold_on),
        (_give_up_readers, hold_on),
    ],
)
def test_the_tests_catch(
    mutant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, SnaplineError)):
        test()

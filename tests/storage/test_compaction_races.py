"""Others who are there while a store is compacted: commits, sweeps, deletions, readers, a leader that was deposed."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.compaction_world import Step, World, finish, play, sparse_world
from tests.storage.making import seeded_bytes
from tests.storage.making_chunks import (
    Promise,
    changed,
    check_chunked,
    commit_chunked,
    newest_manifest,
    pack_paths,
)
from tests.storage.simulated_disk import SimulatedCrashError

from snapline.errors import SnaplineError, StoreError
from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import GRACE_S, WRITER, Retirement
from snapline.storage.packs.manifest import encode_manifest, list_generations, read_manifest
from snapline.storage.store.store import Store


@pytest.fixture(autouse=True)
def tiny_packs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs here have some hundred bytes."""
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 0)


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
    for root in list_generations(world.disk):
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
    read = read_manifest
    monkeypatch.setattr(
        "snapline.storage.store.store.read_newest", lambda disk, root, epoch: read(disk, root, epoch=epoch)
    )


def _give_up_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.storage.store.reader.other_generations", lambda disk, manifest: [])


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


def nothing_goes_at_once() -> None:
    world = sparse_world()
    assert world.compact().generations
    assert world.compact().removed == world.compact().removed == []


def delete_at_every_call() -> None:
    at_every_call(World.compact, delete_late)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (_retire_at_once, nothing_goes_at_once),
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

"""The coordinator's work in a store that is away, or where another one is: it condemns nothing, and deletes nothing."""

import shutil
from pathlib import Path

import pytest
from tests.storage.making import make_store, write_epoch

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_view import FleetView
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.retention.epoch_retention import Policy
from snapline.storage.store.store import Store


def filled(path: Path, seed: int) -> tuple[Store, dict[int, str]]:
    store = make_store(LocalDisk(path), seed=seed)
    return store, {epoch: write_epoch(store, epoch) for epoch in (1, 2, 3)}


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another store"])
def test_epochs_of_a_store_that_is_away_are_neither_damaged_nor_deleted(tmp_path: Path, left: str) -> None:
    path, kept, other = tmp_path / "store", tmp_path / "kept", tmp_path / "other"
    store, roots = filled(path, 0)
    filled(other, 1)
    keeper = StoreKeeper(store, FleetView(), retention=Policy(1, 0, 0))
    path.rename(kept)
    if left == "an empty folder":
        path.mkdir()
    elif left == "another store":
        other.rename(path)
    for is_whole in (False, True):
        checked = keeper.check_line(ev.CheckLine(3, roots[3], is_whole))
        assert checked.error and not checked.damaged_path
    published = keeper.publish(ev.PublishEpoch(3, roots[3]))
    assert published.error and not published.damaged_path and not published.is_final
    released = keeper.release(ev.ReleaseEpoch(3, roots[3], (), is_fall_back=True))
    assert released.error and not released.damaged_path and not released.damaged_epoch
    scanned = keeper.scan(ev.ScanCheckpoints(1, 3, roots[3]))
    assert scanned.error and not scanned.damaged_path
    lies_there = sorted(path.rglob("*"))
    keeper.delete(ev.DeleteEpochs((1,)))
    keeper.sweep(ev.SweepStore((3,), (), 99))
    keeper.sweep_checkpoints(ev.SweepCheckpoints(9, ()))
    assert sorted(path.rglob("*")) == lies_there
    shutil.rmtree(path, ignore_errors=True)
    kept.rename(path)
    assert store.epochs() == [1, 2, 3]
    assert not keeper.check_line(ev.CheckLine(3, roots[3], is_whole=True)).error
    keeper.sweep(ev.SweepStore((3,), (), 99))
    assert store.epochs() == [3], "the next sweep does what the last one could not"


def test_damage_is_found_as_before(tmp_path: Path) -> None:
    store, roots = filled(tmp_path / "store", 0)
    keeper = StoreKeeper(store, FleetView())
    pack = store.read_manifest(roots[3]).packs[0].path
    (tmp_path / "store" / pack).unlink()
    for is_whole in (False, True):
        assert keeper.check_line(ev.CheckLine(3, roots[3], is_whole)).damaged_path == pack

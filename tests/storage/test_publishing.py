"""Refs are prepared beside their manifests: published by their name alone, bounded, and of no account where they are gone."""

import errno
import gc
import os
from pathlib import Path

import pytest
from tests.storage.making import check_epoch_restores, make_manifest, make_store, seeded_bytes, write_epoch, write_packs
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import StoreError
from snapline.storage.store.disk import LocalDisk
from snapline.storage.store.publishing import PREPARED_MAX
from snapline.storage.store.store import Store

SMALL_FILE = ["open_temporary", "write", "sync_data", "link", "sync_directory"]


def steps(disk: SimulatedDisk) -> list[str]:
    return [call for call in disk.calls if call in SMALL_FILE]


def stored(store: Store, epoch: int) -> str:
    return store.write_manifest(make_manifest(store, epoch, write_packs(store, epoch)))


def test_a_prepared_ref_is_published_by_its_name_alone() -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    root = stored(store, 1)
    disk.calls.clear()
    store.publish(1, root)
    assert steps(disk) == ["link", "sync_directory"]
    check_epoch_restores(store, 1)


def test_who_has_prepared_nothing_takes_all_the_steps() -> None:
    disk = SimulatedDisk()
    root = stored(make_store(disk), 1)
    other = Store.open("", disk=disk)
    disk.calls.clear()
    other.publish(1, root)
    assert steps(disk) == SMALL_FILE
    check_epoch_restores(other, 1)


def test_both_ways_write_the_same_bytes() -> None:
    disks = SimulatedDisk(), SimulatedDisk()
    for disk, is_prepared in zip(disks, (True, False), strict=True):
        store = make_store(disk)
        root = stored(store, 1)
        (store if is_prepared else Store.open("", disk=disk)).publish(1, root)
    first, second = [disk.read("refs/epochs/1", 0, 4096) for disk in disks]
    assert first == second != b""


def test_two_leaders_publish_one_epoch() -> None:
    """Both have prepared it: the second finds the name taken, by the same bytes."""
    disk = SimulatedDisk()
    store = make_store(disk)
    other = Store(disk, store.store_id, random_bytes=seeded_bytes(5))
    manifest = make_manifest(store, 1, write_packs(store, 1))
    root = store.write_manifest(manifest)
    assert other.write_manifest(manifest) == root
    store.publish(1, root)
    other.publish(1, root)
    other.publish(1, root)
    assert store.epochs() == [1] and disk.open_handles == 0


def test_a_prepared_ref_does_not_hide_another_fleets() -> None:
    disk = SimulatedDisk()
    store, other = make_store(disk), Store.open("", disk=disk)
    write_epoch(other, 1)
    manifest = make_manifest(store, 1, {"h1": write_packs(store, 1)["h1"]})
    root = store.write_manifest(manifest)
    with pytest.raises(StoreError, match="two fleets on one store"):
        store.publish(1, root)
    assert disk.open_handles == 0


def test_refs_that_are_never_published_are_bounded_and_go_with_the_store() -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    roots = {epoch: stored(store, epoch) for epoch in range(1, 3 * PREPARED_MAX)}
    assert disk.open_handles == PREPARED_MAX
    store.publish(1, roots[1])  # its own was dropped
    check_epoch_restores(store, 1)
    assert disk.open_handles == PREPARED_MAX
    del store
    gc.collect()
    assert disk.open_handles == 0


class ForgetfulDisk(SimulatedDisk):
    """May lose its open files, as that of a process that has come back."""

    def link(self, handle: int, path: str) -> None:
        self._known(handle)
        super().link(handle, path)

    def close(self, handle: int) -> None:
        self._known(handle)
        super().close(handle)

    def _known(self, handle: int) -> None:
        if handle not in self._handles:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def test_a_prepared_ref_that_the_disk_has_lost_is_written_again() -> None:
    disk = ForgetfulDisk()
    store = make_store(disk)
    root = stored(store, 1)
    disk._handles.clear()
    store.publish(1, root)
    check_epoch_restores(store, 1)


def test_a_prepared_ref_whose_temporary_file_was_swept_is_written_again() -> None:
    disk = SimulatedDisk(has_unnamed_files=False)
    store = make_store(disk)
    root = stored(store, 1)
    store.delete_unreferenced(begun_below=2, open_epochs=(1,))
    for name in disk.list_names("temporary"):
        disk.unlink(f"temporary/{name}")
    store.publish(1, root)
    check_epoch_restores(store, 1)


class FailingDisk(LocalDisk):
    """Cannot sync one file."""

    refuses = -1

    def sync_data(self, handle: int) -> None:
        super().sync_data(handle)
        if handle == self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_files_that_are_synced_at_once_fail_as_one(place: int, tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    handles = [disk.open_temporary("", f"{number}") for number in range(3)]
    disk.sync_together(handles)
    disk.refuses = handles[place]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.sync_together(handles)
    for handle in handles:
        disk.close(handle)

"""Crashes and disk errors at every call of the store's life: what was published stays whole, nothing else is visible."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.making import (
    check_epoch_restores,
    check_taken,
    make_manifest,
    make_store,
    seeded_bytes,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk, broken_write_once

from snapline.errors import SnaplineError, StoreError, StoreMissingError
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, LocalDisk
from snapline.storage.packs.manifest import encode_manifest, encode_ref
from snapline.storage.retention import epoch_retention
from snapline.storage.store import store as store_module
from snapline.storage.store.store import Store

Commit = Callable[[Store, int], object]


class Life:
    """Creates a store, commits three epochs, deletes one, sweeps; writes checkpoint packs of two plans, sweeps those of
    the first; knows at each moment what was promised."""

    def __init__(self, disk: Disk, commit: Commit = write_epoch) -> None:
        self.disk = disk
        self.commit = commit
        self.is_created = False
        self.published: set[int] = set()
        self.uncertain: set[int] = set()
        """Being published or deleted: may be there, but then it is whole."""
        self.plans: set[int] = set()
        """Whose checkpoints were written and not deleted."""

    def run(self) -> None:
        store = make_store(self.disk)
        self.is_created = True
        for epoch in (1, 2):
            self._commit(store, epoch)
        for plan in (1, 2):
            write_taken(store, plan)
            self.plans.add(plan)
        write_packs(store, 3)  # aborted
        self.published.discard(1)
        self.uncertain.add(1)
        store.delete_epoch(1)
        self.uncertain.discard(1)
        store.delete_unreferenced(begun_below=4)
        self._commit(store, 4)
        self.plans.discard(1)
        store.sweep_checkpoints(plans_below=2)

    def _commit(self, store: Store, epoch: int) -> None:
        self.uncertain.add(epoch)
        self.commit(store, epoch)
        self.uncertain.discard(epoch)
        self.published.add(epoch)

    @property
    def promises(self) -> tuple[object, ...]:
        return self.is_created, frozenset(self.published), frozenset(self.uncertain), frozenset(self.plans)

    def check(self, image: SimulatedDisk) -> None:
        """Assert that an image a crash may have left keeps every promise, and that life goes on from it."""
        try:
            store = Store.open("simulated", disk=image)
        except StoreMissingError:
            assert not self.is_created
            store = Store.create("simulated", disk=image, random_bytes=seeded_bytes(9))
        epochs = set(store.epochs())
        assert self.published <= epochs <= self.published | self.uncertain
        for epoch in epochs:
            check_epoch_restores(store, epoch)
        plans = _check_checkpoints(store)
        assert self.plans <= plans <= {1, 2}
        assert store.verify().findings == []
        write_epoch(store, 7)
        check_epoch_restores(store, 7)
        write_taken(store, 7)
        store.delete_unreferenced(begun_below=8)
        assert _check_checkpoints(store) == plans | {7}, "the sweep of epochs leaves checkpoints alone"
        store.sweep_checkpoints(plans_below=7)
        assert _check_checkpoints(store) == {7}
        verification = store.verify()
        assert verification.findings == [] and verification.unreferenced == []
        assert set(store.epochs()) == epochs | {7}


def _check_checkpoints(store: Store) -> set[int]:
    """Assert that each checkpoint pack is whole; return their plans."""
    plans = set()
    for path in store.checkpoint_packs():
        name = layout.parse_pack_path(path, layout.CHECKPOINTS)
        assert name is not None
        check_taken(store, path, name.number)
        plans.add(name.number)
    return plans


def _crash_everywhere(commit: Commit = write_epoch, *, has_unnamed_files: bool = True) -> int:
    """Crash before each call, and check every image once; return how many there were."""
    images = 0
    checked = set()
    for moment in range(1000):
        disk = SimulatedDisk(has_unnamed_files=has_unnamed_files)
        disk.crash_after = moment
        life = Life(disk, commit)
        try:
            life.run()
        except SimulatedCrashError:
            pass
        else:
            assert moment > 60, "every call was a moment to crash"
            return images
        for image in disk.images():
            images += 1
            seen = image.fingerprint(), life.promises
            if seen not in checked:
                checked.add(seen)
                life.check(image)
    raise AssertionError("the store's life has more calls than expected")


@pytest.mark.parametrize("has_unnamed_files", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_crash_at_every_call_keeps_what_was_published(has_unnamed_files: bool) -> None:
    assert _crash_everywhere(has_unnamed_files=has_unnamed_files) > 100


# -- the test above can fail -------------------------------------------------------------------------------------------


def _publish_first(store: Store, epoch: int) -> None:
    manifest = make_manifest(store, epoch, write_packs(store, epoch))
    data = encode_ref(epoch, encode_manifest(manifest)[0], store.store_id)
    store._create(f"refs/epochs/{epoch}", data, epoch=epoch, point="store.ref")
    store.write_manifest(manifest)


def _delete_packs_first(disk: Disk, store_id: str, epoch: int, notes: epoch_retention.Notes) -> list[str]:
    manifests, packs = epoch_retention._files_of_epoch(disk, store_id, epoch, notes)
    for path in [*packs, *manifests, f"refs/epochs/{epoch}"]:
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])
    return []


def _delete_without_syncs(disk: Disk, store_id: str, epoch: int, notes: epoch_retention.Notes) -> list[str]:
    manifests, packs = epoch_retention._files_of_epoch(disk, store_id, epoch, notes)
    return store_files.unlink(disk, [f"refs/epochs/{epoch}", *manifests, *packs])


def _make_directory(prefix: str) -> Callable[..., None]:
    """Return a copy of `make_durable_directory` that does not sync for paths that begin with `prefix`; ending in `$`, for
    the path alone."""

    def make_directory(disk: Any, path: str) -> None:
        if path not in disk.nodes:
            disk.make_directory(path)
        if not f"{path}$".startswith(prefix):
            disk.sync_directory(path.rpartition("/")[0])

    return make_directory


def _use_steps(monkeypatch: pytest.MonkeyPatch, prefix: str, *steps: str) -> None:
    for module in (store_files, store_files, store_module):
        monkeypatch.setattr(module, "write_once", broken_write_once(prefix, *steps))


def _expect_caught(commit: Commit = write_epoch) -> None:
    with pytest.raises((AssertionError, SnaplineError)):
        _crash_everywhere(commit)


def test_crash_test_passes_the_unbroken_copy_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_steps(monkeypatch, "none")
    for module in (store_files, store_module):
        monkeypatch.setattr(module, "make_durable_directory", _make_directory("none"))
    _crash_everywhere()


@pytest.mark.parametrize("prefix", ["snapline-store", "packs/", "checkpoints/", "manifests/", "refs/"])
@pytest.mark.parametrize("steps", [("link", "directory"), ("sync", "link"), ("link", "sync", "directory")])
def test_crash_test_catches_a_missing_or_late_sync(
    prefix: str, steps: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_steps(monkeypatch, prefix, *steps)
    _expect_caught()


@pytest.mark.parametrize("prefix", ["packs/", "refs/epochs", "checkpoints$", "checkpoints/"])
def test_crash_test_catches_a_directory_that_is_not_synced(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store_files, store_module):
        monkeypatch.setattr(module, "make_durable_directory", _make_directory(prefix))
    _expect_caught()


def test_crash_test_catches_a_ref_before_its_manifest() -> None:
    _expect_caught(_publish_first)


@pytest.mark.parametrize("deletion", [_delete_packs_first, _delete_without_syncs])
def test_crash_test_catches_deletions_out_of_order(
    deletion: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_retention, "delete_epoch", deletion)
    _expect_caught()


def test_simulated_and_local_disk_agree(tmp_path: Path) -> None:
    """The same life leaves the same files: what the crash test shows is about the real steps."""
    simulated, local = SimulatedDisk(), LocalDisk(tmp_path)
    Life(simulated).run()
    Life(local).run()
    found = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {path: simulated.read(path, 0, 10**6) for path in simulated.files()}


# -- errors ------------------------------------------------------------------------------------------------------------


def _calls_of(run: Callable[[SimulatedDisk], object]) -> int:
    disk = SimulatedDisk()
    run(disk)
    return len(disk.calls)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_error_at_every_call_is_clean_and_the_next_epoch_succeeds(code: int) -> None:
    """The failed call raises StoreError and leaves no open file; nothing is half there; then the disk works again."""
    count = _calls_of(lambda disk: Life(disk).run())
    for moment in range(count):
        disk = SimulatedDisk()
        disk.fail_at, disk.fail_with = moment, code
        life = Life(disk)
        try:
            life.run()
        except StoreError as error:
            assert os.strerror(code) in str(error)
            assert ("free space" in str(error)) is (code in (errno.ENOSPC, errno.EDQUOT))
            assert isinstance(error.__cause__, OSError)
        else:
            assert disk.calls[moment] == "remove_directory", "only the removal of empty directories may fail silently"
        assert disk.open_handles == 0
        life.check(disk)


def test_failed_data_sync_is_never_repeated_on_the_same_file() -> None:
    """The kernel may have dropped the pages: a second sync would succeed and mean nothing."""
    disk = SimulatedDisk()
    store = make_store(disk)
    write_epoch(store, 1)
    disk.calls.clear()
    disk.fail_at = 2
    with pytest.raises(StoreError):
        store.write_pack(writer="h1.1", epoch=2, blobs=[("a", b"1")])
    assert disk.calls == ["open_temporary", "write", "sync_data"]
    write_epoch(store, 2)
    check_epoch_restores(store, 2)


def test_repeated_call_after_an_error_is_durable() -> None:
    """Each step of a commit fails once at each call, and is repeated by the caller; then the machine crashes."""

    def commit_repeating(store: Store, epoch: int) -> None:
        def repeat(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except StoreError:
                return step()

        packs = repeat(lambda: write_packs(store, epoch))
        manifest = make_manifest(store, epoch, packs)
        root = repeat(lambda: store.write_manifest(manifest))
        repeat(lambda: store.publish(epoch, root))

    disk = SimulatedDisk()
    store = make_store(disk)
    write_epoch(store, 1)
    before = len(disk.calls)
    commit_repeating(store, 2)
    count = len(disk.calls) - before
    for moment in range(count):
        disk = SimulatedDisk()
        store = make_store(disk)
        write_epoch(store, 1)
        disk.fail_at = before + moment
        commit_repeating(store, 2)
        for image in disk.images():
            reopened = Store.open("simulated", disk=image)
            assert reopened.epochs() == [1, 2]
            check_epoch_restores(reopened, 2)
            assert reopened.verify().findings == []

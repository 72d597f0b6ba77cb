"""Crashes and disk errors at every call of a commit over a base, of a deletion of shared packs, and of a compaction."""

import errno
import functools
import os
from collections.abc import Callable

import pytest
from tests.storage.making import make_store, seeded_bytes
from tests.storage.making_chunks import (
    Promise,
    changed,
    check_chunked,
    commit_chunked,
    first_state,
    gather_manifest,
    live_shares,
    write_hosts,
)
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk, broken_write_once

from snapline.errors import SnaplineError, StoreError
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import GRACE_S, Retirement
from snapline.storage.packs.manifest import list_generations, read_manifest
from snapline.storage.retention import epoch_retention
from snapline.storage.store import store as store_module
from snapline.storage.store.store import Store

KEPT = 4
"""Epochs before a life begins; each changes one chunk of the one before."""


@pytest.fixture(autouse=True)
def tiny_packs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs here have some hundred bytes."""
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 0)


@functools.cache
def base_store(first: int) -> tuple[SimulatedDisk, str, dict[int, Promise]]:
    """A store with epochs `first` to `KEPT`; those before were deleted."""
    disk = SimulatedDisk()
    store = make_store(disk)
    promises: dict[int, Promise] = {}
    state = first_state()
    for epoch in range(1, KEPT + 1):
        base = epoch - 1
        base_state = promises[base].state if base else None
        promises[epoch] = Promise(commit_chunked(store, epoch, state, base=base, base_state=base_state), state)
        state = changed(state, "a1", epoch % 3, epoch)
    for epoch in range(1, first):
        store.delete_epoch(epoch)
        del promises[epoch]
    assert store.verify().is_whole
    return disk, store.store_id, promises


class Life:
    """One thing that is done to a store; knows at each moment what was promised."""

    first = 1
    calls_min = 0

    def __init__(self) -> None:
        disk, store_id, promises = base_store(self.first)
        self.disk = disk.copy()
        self.store = Store(self.disk, store_id, random_bytes=seeded_bytes(3))
        self.promises = dict(promises)
        self.uncertain: dict[int, Promise] = {}
        """Being published or deleted: may be there, but then it is whole."""

    def run(self) -> None:
        raise NotImplementedError

    def check(self, image: SimulatedDisk) -> None:
        """Assert that what a crash may have left keeps every promise, and that life goes on from it."""
        store = Store(image, self.store.store_id, random_bytes=seeded_bytes(4))
        known = self.promises | self.uncertain
        assert set(self.promises) <= set(store.epochs()) <= set(known)
        for epoch in store.epochs():
            assert store.read_ref(epoch) == known[epoch].root or not known[epoch].root
            check_chunked(store, epoch, known[epoch].state)
        assert store.verify().findings == []
        newest = store.epochs()[-1]
        state = changed(known[newest].state, "b1", 2, 77)
        commit_chunked(store, 9, state, base=newest, base_state=known[newest].state)
        store.delete_unreferenced(begun_below=10)
        for now_s in (0.0, 1.0, GRACE_S + 1):
            store.compact(now_s=now_s)
        store.delete_unreferenced(begun_below=10)
        check_chunked(store, 9, state)
        verification = store.verify()
        assert verification.findings == [] and verification.unreferenced == []
        assert all(share >= compaction.LIVE_SHARE_MIN for share in live_shares(store, image).values())


class Commit(Life):
    """An epoch over a base: packs of chunks, a pack that needs them, the manifest, the ref."""

    calls_min = 30

    def run(self) -> None:
        state = changed(changed(self.promises[KEPT].state, "a1", 1, 50), "a2", 0, 50)
        state = changed(state, "b1", 0, 50)
        self.uncertain[KEPT + 1] = Promise("", state)
        base = self.promises[KEPT]
        packs = write_hosts(self.store, KEPT + 1, state, base=KEPT, base_state=base.state)
        assert (
            sum(
                len(self.store.gather([pack], epoch=KEPT + 1, bases={KEPT: base.root}).packs) for pack in packs.values()
            )
            > 4
        )
        root = self.store.write_manifest(gather_manifest(self.store, KEPT + 1, packs, {KEPT: base.root}))
        self.uncertain[KEPT + 1].root = root
        self.store.publish(KEPT + 1, root)
        self.promises[KEPT + 1] = self.uncertain.pop(KEPT + 1)


class Delete(Life):
    """Epochs whose packs others share, in any order."""

    calls_min = 8

    def run(self) -> None:
        for epoch in (2, 1, 3):
            self.uncertain[epoch] = self.promises.pop(epoch)
            self.store.delete_epoch(epoch)
            del self.uncertain[epoch]


class Compact(Life):
    """Blobs move, what was replaced is retired, the rest is swept, and it begins again."""

    first = 3
    calls_min = 30

    def run(self) -> None:
        for now_s in (0.0, 1.0, GRACE_S + 1):
            self.store.compact(now_s=now_s)
        self.store.delete_unreferenced(begun_below=KEPT + 1)
        self.uncertain[3] = self.promises.pop(3)
        self.store.delete_epoch(3)
        del self.uncertain[3]
        self.store.compact(now_s=GRACE_S + 2)


LIVES = [Commit, Delete, Compact]


def crash_everywhere(life_of: type[Life]) -> int:
    """Crash before each call, and check every image once; return how many there were."""
    images = 0
    checked = set()
    for moment in range(1000):
        life = life_of()
        life.disk.crash_after = moment
        is_over = False
        try:
            life.run()
            is_over = True
        except SimulatedCrashError:
            pass
        for image in life.disk.images():
            images += 1
            roots = [
                (epoch, promise.root) for known in (life.promises, life.uncertain) for epoch, promise in known.items()
            ]
            seen = image.fingerprint(), len(life.promises), tuple(roots)
            if seen not in checked:
                checked.add(seen)
                life.check(image)
        if is_over:
            assert moment >= life.calls_min, "every call was a moment to crash"
            return images
    raise AssertionError("this life has more calls than expected")


@pytest.mark.parametrize("life_of", LIVES)
def test_crash_at_every_call_keeps_what_was_published(life_of: type[Life]) -> None:
    assert crash_everywhere(life_of) > life_of.calls_min


def test_the_lives_do_what_they_are_for() -> None:
    life = Compact()
    before = set(life.disk.files())
    life.run()
    assert any(path.startswith("packs/compaction/") for path in life.disk.files())
    assert any(path.startswith("packs/h1-1/1.") for path in before - set(life.disk.files())), "a mostly dead pack went"
    assert any(path.startswith("manifests/") and path.endswith(".1") for path in life.disk.files())


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("life_of", "code"), [(Commit, errno.ENOSPC), (Delete, errno.EIO), (Compact, errno.EIO)])
def test_error_at_every_call_is_clean_and_the_next_epoch_succeeds(life_of: type[Life], code: int) -> None:
    """The failed call raises StoreError and leaves no open file; nothing is half there; then the disk works again."""
    whole = life_of()
    whole.run()
    for moment in range(len(whole.disk.calls)):
        life = life_of()
        life.disk.fail_at, life.disk.fail_with = moment, code
        try:
            life.run()
        except StoreError as error:
            assert os.strerror(code) in str(error)
        else:
            assert life.disk.calls[moment] == "remove_directory", (
                "only the removal of empty directories may fail silently"
            )
        assert life.disk.open_handles == 0
        life.check(life.disk)


# -- the tests above can fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [("link", "directory"), ("sync", "link")])
@pytest.mark.parametrize(
    ("prefix", "life_of"),
    [
        ("packs/", Commit),
        ("manifests/", Commit),
        ("refs/", Commit),
        ("packs/compaction/", Compact),
    ],
)
def test_a_missing_sync_is_caught(
    prefix: str, life_of: type[Life], steps: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    life_of()
    for module in (store_files, store_module):
        monkeypatch.setattr(module, "write_once", broken_write_once(prefix, *steps))
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(life_of)


def test_a_generation_without_its_bytes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    Compact()
    monkeypatch.setattr(store_files, "write_once", broken_write_once("manifests/", "link", "directory"))
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(Compact)


def test_a_generation_whose_writer_died_before_its_name_was_durable_is_no_danger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older one may go an hour later: whoever removes it sees to it that the newer one is durable."""
    Compact()
    monkeypatch.setattr(store_files, "write_once", broken_write_once("manifests/", "sync", "link"))
    crash_everywhere(Compact)


def _delete_packs_first(disk: Disk, store_id: str, epoch: int, notes: epoch_retention.Notes) -> list[str]:
    manifests, packs = epoch_retention._files_of_epoch(disk, store_id, epoch, notes)
    named = {
        pack.path
        for other, numbers in list_generations(disk).items()
        for number in numbers
        if f"manifests/{other}.{number}" not in manifests
        for pack in read_manifest(disk, other, generation=number).packs
    }
    for path in [*[path for path in packs if path not in named], *manifests, f"refs/epochs/{epoch}"]:
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])
    return []


def _delete_shared_packs(disk: Disk, store_id: str, epoch: int, notes: epoch_retention.Notes) -> list[str]:
    manifests, packs = epoch_retention._files_of_epoch(disk, store_id, epoch, notes)
    for path in [f"refs/epochs/{epoch}", *manifests, *packs]:
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])
    return []


@pytest.mark.parametrize("deletion", [_delete_packs_first, _delete_shared_packs])
def test_a_wrong_deletion_is_caught(deletion: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    Delete()
    monkeypatch.setattr(epoch_retention, "delete_epoch", deletion)
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(Delete)


def _generations_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older generation goes before the new one is written."""
    right = compaction._write_generations

    def write(
        survey: compaction.Survey, places: dict[tuple[str, int], compaction._Place], create: compaction.Create
    ) -> list[str]:
        def create_after(path: str, data: bytes, *, epoch: int, point: str) -> None:
            root, number = path[10:].split(".")
            store_files.unlink(survey.disk, [f"manifests/{root}.{int(number) - 1}"])
            create(path, data, epoch=epoch, point=point)

        return right(survey, places, create_after)

    monkeypatch.setattr(compaction, "_write_generations", write)


def _packs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced goes with the new generation, without a grace for the packs and before its name is durable."""
    right = Retirement.run

    def run(self: Retirement) -> list[str]:
        removed = right(self)
        for root, numbers in list_generations(self._disk).items():
            for number in sorted(numbers)[:-1]:
                for pack in read_manifest(self._disk, root, generation=number).packs:
                    store_files.unlink(self._disk, [pack.path])
        return removed

    monkeypatch.setattr(Retirement, "run", run)


@pytest.mark.parametrize("mutant", [_generations_first, _packs_at_once])
def test_a_compaction_out_of_order_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Compact()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(Compact)

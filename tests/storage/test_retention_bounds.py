"""A store in which epochs come and go for a long time stays as large as what it keeps.

Bounds are compared within a run: what the later part of a life needs at most is what its first part needed.
"""

from pathlib import Path

import msgspec
import pytest
from tests.storage.making import seeded_bytes, write_epoch, write_packs
from tests.storage.making_chunks import Promise, changed, check_chunked, commit_chunked, first_state
from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.packs import compaction
from snapline.storage.packs.compaction import GRACE_S, WRITER
from snapline.storage.store.catalog import read_summaries
from snapline.storage.store.store import Store

KEEP = 10
"""Epochs that are kept."""

SWEEP_EVERY = 4
"""Epochs from one sweep to the next."""

EPOCH_S = GRACE_S / 2
"""From one epoch to the next: what compaction replaced goes before its epoch does."""


@pytest.fixture(autouse=True)
def tiny_packs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs here have some hundred bytes, and an epoch lies in some ten of them."""
    monkeypatch.setattr(compaction, "DEAD_BYTES_MIN", 0)
    monkeypatch.setattr(compaction, "PACKS_PER_EPOCH_MAX", 3)


class Sizes(msgspec.Struct, frozen=True):
    """What a store needs after an epoch: on its disk, in the memory of its owner, in the catalog."""

    files: int
    directories: int
    disk_bytes: int
    notes: int
    catalog_rows: int
    catalog_bytes: int


class LongLife:
    """One fleet; each epoch changes one chunk, but some chunks never change. Every seventh epoch is aborted."""

    def __init__(self, path: Path) -> None:
        self.disk = SimulatedDisk()
        self.store = Store.create("simulated", disk=self.disk, random_bytes=seeded_bytes())
        self.state = first_state()
        self.promises: dict[int, Promise] = {}
        self.catalog_path = path / "catalog" / "snapshots"
        self.compacted = 0
        self.retired = 0

    def run(self, epochs: int) -> list[Sizes]:
        sizes = []
        for epoch in range(1, epochs + 1):
            self._commit(epoch)
            if epoch % SWEEP_EVERY == 0:
                self._clean(epoch)
                sizes.append(self._sizes(rows=len(read_summaries(self.store, self.catalog_path))))
        return sizes

    def _commit(self, epoch: int) -> None:
        base = max(self.promises, default=0)
        base_state = self.promises[base].state if base else None
        self.state = changed(self.state, ("a1", "a2", "b1")[epoch % 3], epoch % 2 + 1, epoch)
        root = commit_chunked(
            self.store, epoch, self.state, base=base, base_state=base_state, is_published=epoch % 7 > 0
        )
        if epoch % 7:
            self.promises[epoch] = Promise(root, self.state)
        for old in sorted(self.promises)[:-KEEP]:
            self.store.delete_epoch(old)
            del self.promises[old]

    def _clean(self, epoch: int) -> None:
        self.store.delete_unreferenced(begun_below=epoch + 1, open_writers=(WRITER,))
        done = self.store.compact(now_s=epoch * EPOCH_S)
        self.compacted += len(done.packs)
        self.retired += len(done.removed)

    def _sizes(self, *, rows: int) -> Sizes:
        paths = self.disk.files()
        notes = self.store._compaction
        return Sizes(
            files=len(paths),
            directories=len(self.disk.nodes) - len(paths),
            disk_bytes=sum(map(self.disk.size, paths)),
            notes=len(self.store._notes)
            + len(notes.replaced)
            + len(notes.unnamed)
            + len(notes.whole)
            + len(notes.unreadable_packs)
            + len(notes.idle_listing)
            + len(notes.packs_of),
            catalog_rows=rows,
            catalog_bytes=sum([path.stat().st_size for path in self.catalog_path.parent.iterdir()]),
        )

    def check(self) -> None:
        for epoch, promise in self.promises.items():
            assert self.store.read_ref(epoch) == promise.root
            check_chunked(self.store, epoch, promise.state)
        assert self.store.verify().is_whole


def expect_bounded(sizes: list[Sizes], first: int) -> None:
    """The first `first` samples show how much is needed; the others need no more, but for the digits of the numbers."""
    for field in Sizes.__struct_fields__:
        values = [getattr(each, field) for each in sizes]
        assert max(values[first:]) <= 1.1 * max(values[:first]), (field, max(values[:first]), max(values[first:]))


def test_hundreds_of_epochs_need_no_more_than_the_first_ones(tmp_path: Path) -> None:
    life = LongLife(tmp_path)
    sizes = life.run(200)
    expect_bounded(sizes, 20)
    assert sizes[-1].catalog_rows == KEEP and life.compacted > 10 and life.retired > 10
    life.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_epochs_need_no_more_than_the_first_ones(tmp_path: Path) -> None:
    life = LongLife(tmp_path)
    sizes = life.run(10_000)
    expect_bounded(sizes, 100)
    life.check()


def _keep_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.storage.retention.epoch_retention._manifests_with", lambda disk, root: [])
    monkeypatch.setattr("snapline.storage.retention.epoch_retention._Sweep.manifests_to_delete", lambda self: [])


def _keep_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forever(dict[str, object]):
        def __delitem__(self, key: str) -> None:
            """Keep it."""

    right = LongLife.__init__

    def init(self: LongLife, path: Path) -> None:
        right(self, path)
        self.store._notes = Forever()  # type: ignore[assignment]  # Notes that never forget.

    monkeypatch.setattr(LongLife, "__init__", init)


@pytest.mark.parametrize("mutant", [_keep_manifests, _keep_notes])
def test_growth_is_noticed(mutant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutant)
    mutant(monkeypatch)
    sizes = LongLife(tmp_path).run(100)
    with pytest.raises(AssertionError):
        expect_bounded(sizes, 15)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_deletion_reads_no_more_files_of_a_larger_store(damaged: bool) -> None:
    """What manifests name is remembered since they were written. Other refs are looked at only where a manifest cannot be read."""

    def reads(kept: int) -> int:
        disk = SimulatedDisk()
        store = Store.create("simulated", disk=disk, random_bytes=seeded_bytes())
        for epoch in range(1, kept + 3):
            root = write_epoch(store, epoch)
        store.delete_epoch(1)
        if damaged:
            disk._file(f"manifests/{root}.0").data = b"not a manifest"
            store._notes.clear()
        paths: list[str] = []
        disk.on_call = paths.append
        store.delete_epoch(2)
        return paths.count("read")

    if damaged:
        assert 1 < reads(20) < reads(40)
    else:
        assert reads(20) == reads(40) == 7  # its own ref, and the id of the store whenever something is listed or goes


def test_what_is_noted_of_a_manifest_is_no_word_for_a_ref_of_another_epoch() -> None:
    """It is as damaged as it is for who reads the manifest."""

    def removed(*, is_noted: bool) -> list[str]:
        store = Store.create("simulated", disk=SimulatedDisk(), random_bytes=seeded_bytes())
        root = write_epoch(store, 1)
        write_packs(store, 2)
        store.publish(2, root)
        if not is_noted:
            store._notes.clear()
        return store.delete_epoch(2)

    found = removed(is_noted=True)
    assert found == removed(is_noted=False) and any("packs/" in path and "/2." in path for path in found)

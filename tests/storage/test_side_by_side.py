"""Requests to an object store run side by side: in both directions, in order, and what fails among them leaves nothing that is visible."""

import errno
import threading
from functools import partial
from typing import Any

import obstore.store
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.making import check_epoch_restores, seeded_bytes, write_epoch
from tests.storage.making_chunks import check_chunked, commit_chunked, first_state

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.capture import decoder
from snapline.storage.disk.local_disk import Disk, LocalDisk, parallel_map, requests_at_once
from snapline.storage.disk.object_disk import ObjectDisk
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackReference, end_of
from snapline.storage.store.store import Store

TOGETHER = 4
WAIT_S = 60
"""Who waits alone fails; who is not alone waits for a scheduler only."""


class MeetingDisk(ObjectDisk):
    """While `meets`, no request is answered before `TOGETHER` are under way."""

    def __init__(self) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory")
        self.meets = ""
        self.barrier = threading.Barrier(TOGETHER)

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._meet("read", path)
        return super().read(path, offset, length)

    def link(self, handle: int, path: str) -> None:
        self._meet("link", path)
        super().link(handle, path)

    def _meet(self, what: str, path: str) -> None:
        if self.meets == what and path.startswith("packs/"):
            self.barrier.wait(WAIT_S)


def store_on(disk: Disk) -> Store:
    return Store.create("", disk=disk, random_bytes=seeded_bytes())


def test_only_an_object_store_asks_for_requests_side_by_side(tmp_path: Any) -> None:
    assert requests_at_once(LocalDisk(tmp_path)) == 1 and requests_at_once(MeetingDisk()) >= TOGETHER


def test_ranges_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MeetingDisk()
    store, state = store_on(disk), first_state()
    commit_chunked(store, 1, state)
    manifest = store.read_manifest(store.read_ref(1))
    made = store.read_checkpoint(manifest, "a1")
    monkeypatch.setattr(decoder, "RUN_BYTES_MAX", 1)  # each chunk is a request
    disk.meets = "read"
    assert [bytes(x) for x in store.part_reader(manifest).read("a1", made.parts)] == [b"".join(state["a1"])]


def test_checkpoints_are_read_side_by_side() -> None:
    disk = MeetingDisk()
    disk.barrier = threading.Barrier(2)
    store = store_on(disk)
    write_epoch(store, 1)
    manifest = store.read_manifest(store.read_ref(1))
    count = len(manifest.agents) // 2 * 2
    disk.meets = "read"
    wanted = [line.agent for line in manifest.agents[:count]]
    assert [x.agent for x in store.read_checkpoints(manifest, wanted)] == wanted


def chunk_packs(store: Store, count: int, at_once: int) -> list[PackReference]:
    data = [bytes([number]) * 100 for number in range(count)]
    groups = [[PackBlob("", KIND_CHUNK, each, digest_of(each))] for each in data]
    return list(parallel_map(lambda chunks: store.write_chunks(writer="h.1", epoch=2, chunks=chunks), groups, at_once))


def test_packs_are_put_side_by_side() -> None:
    disk = MeetingDisk()
    store = store_on(disk)
    disk.meets = "link"
    assert len(chunk_packs(store, TOGETHER, TOGETHER)) == TOGETHER


class RefusingDisk(ObjectDisk):
    """Fails the puts of packs with these numbers, before or after they have had their effect."""

    def __init__(self, fails: set[int], *, is_after: bool) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory")
        self.fails = fails
        self.is_after = is_after
        self.puts = 0

    def link(self, handle: int, path: str) -> None:
        if not path.startswith("packs/h.1/"):
            super().link(handle, path)
            return
        with self._lock:
            self.puts += 1
            is_refused = self.puts in self.fails
        if not is_refused or self.is_after:
            super().link(handle, path)
        if is_refused:
            raise OSError(errno.EREMOTEIO, "no answer")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.sets(st.integers(1, 12), min_size=1), st.booleans(), st.integers(1, 6))
def test_whatever_put_fails_nothing_is_visible_and_the_sweep_finds_it_all(
    count: int, fails: set[int], is_after: bool, at_once: int
) -> None:
    disk = RefusingDisk(fails, is_after=is_after)
    store = store_on(disk)
    write_epoch(store, 1)
    before = set(store.verify().unreferenced)
    if min(fails) <= count:
        with pytest.raises(StoreError):
            chunk_packs(store, count, at_once)
    else:
        assert len(chunk_packs(store, count, at_once)) == count
    assert store.epochs() == [1] and store.verify().findings == []
    check_epoch_restores(store, 1)
    left = set(store.verify().unreferenced) - before
    assert set(store.delete_unreferenced(begun_below=3)) == left
    assert store.verify().unreferenced == []


def test_damage_in_any_range_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "RUN_BYTES_MAX", 1)
    disk = MeetingDisk()
    store, state = store_on(disk), first_state()
    commit_chunked(store, 1, state)
    check_chunked(store, 1, state)
    manifest = store.read_manifest(store.read_ref(1))
    made = store.read_checkpoint(manifest, "a1")
    for chunk in manifest.chunks:
        entry = chunk.entry()
        if entry.digest not in {each.digest for each in made.parts[0].chunks()}:
            continue
        path = manifest.packs[chunk.pack].path
        whole = bytearray(obstore.get(disk._store, path).bytes())
        whole[end_of(entry) - 1] ^= 1
        kept = obstore.get(disk._store, path).bytes()
        obstore.put(disk._store, path, bytes(whole), mode="overwrite")
        with pytest.raises(DamagedDataError):
            store.part_reader(manifest).read("a1", made.parts)
        obstore.put(disk._store, path, bytes(kept), mode="overwrite")
    check_chunked(store, 1, state)


@given(st.lists(st.integers()), st.integers(0, 9))
def test_results_come_in_order(items: list[int], count: int) -> None:
    assert list(parallel_map(partial(int.__add__, 1), items, count)) == [item + 1 for item in items]


@given(st.integers(1, 30), st.data())
def test_the_first_that_raises_ends_it(length: int, data: st.DataObject) -> None:
    at, count = data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, 9))
    found: list[int] = []

    def call(item: int) -> int:
        if item >= at:
            raise ValueError(item)
        return item

    with pytest.raises(ValueError, match=f"^{at}$"):
        found.extend(parallel_map(call, range(length), count))

"""Copies of snapshots: the same states under the same root, whatever was there before and wherever the copy was interrupted."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.copying import Writer, chunk_of
from tests.storage.making import make_store, seeded_bytes, write_epoch
from tests.storage.protecting import NEW, OLD
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk, below

from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, StoreError, UsageError
from snapline.storage.disk import layout
from snapline.storage.keys.key_files import Keys
from snapline.storage.packs.manifest import encode_ref
from snapline.storage.packs.pack import decode_blob, header_bytes, read_index
from snapline.storage.store.store import Store
from snapline.storage.transfer import snapshot_copy
from snapline.storage.transfer.snapshot_copy import check_epoch, copy_epoch

CONTENTS = {1: {"a": [1, 2, 3], "b": [3, 4]}, 2: {"a": [1, 2, 5], "b": [3, 6, 3]}, 3: {"a": [7, 2], "b": [1], "c": [8]}}
"""Epochs that share chunks, within themselves too."""


def make_source(contents: Any = None, *, seed: int = 0, cluster: str = "") -> Writer:
    writer = Writer(make_store(SimulatedDisk(), seed=seed))
    for epoch, agents in (contents or CONTENTS).items():
        writer.write(epoch, agents, cluster=cluster or writer.store.store_id)
    return writer


def disk_of(store: Store) -> SimulatedDisk:
    return below(store._disk)


def make_target(*, seed: int = 1) -> Store:
    return make_store(SimulatedDisk(), seed=seed)


def reopen(disk: SimulatedDisk, *, seed: int = 5) -> Store:
    store = Store.open("simulated", disk=disk)
    store._random_bytes = seeded_bytes(seed)
    return store


def packs_in(store: Store) -> list[str]:
    return [path for path in disk_of(store).files() if path.startswith("packs/")]


# ---- what is copied ------------------------------------------------------------------------------------------------

AGENTS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 12), max_size=6), min_size=1)
STEPS = st.lists(AGENTS, min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_a_copy_restores_as_the_original_in_any_order_and_is_whole(steps: Any, data: st.DataObject) -> None:
    source = make_source(dict(enumerate(steps, 1)))
    target = make_target()
    order = data.draw(st.permutations(range(1, len(steps) + 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_copy, "PACK_BYTES_MAX", data.draw(st.sampled_from([1, 300, 10**9])))
        patch.setattr(snapshot_copy, "RUN_BYTES_MAX", data.draw(st.sampled_from([1, 700, 10**9])))
        for epoch in order:
            assert copy_epoch(source.store, target, epoch).root == source.store.read_ref(epoch)
    for epoch in order:
        source.check(target, epoch)
        check_epoch(target, epoch, set())
    verification = target.verify()
    assert verification.findings == [] and verification.unreferenced == []
    assert target.epochs() == sorted(order)
    for epoch in order[1:]:
        target.delete_epoch(epoch)
    source.check(target, order[0])
    assert target.verify().findings == []


def test_chunks_that_the_target_has_are_not_copied_again() -> None:
    source, target = make_source(), make_target()
    first = copy_epoch(source.store, target, 1)
    second = copy_epoch(source.store, target, 2)
    assert first.found_bytes == 0 and first.written_bytes == sum(
        target._disk.size(path) for path in packs_in(target) if "/1." in path
    )
    assert second.found_bytes == sum(len(chunk_of(seed)) for seed in (1, 2, 3))
    found = [entry for path in packs_in(target) if "/2." in path for entry in _entries(target, path)]
    assert sorted(entry.size_bytes for entry in found if not entry.name) == sorted(len(chunk_of(x)) for x in (5, 6))


def _entries(store: Store, path: str) -> list[Any]:
    manifests = [store.read_manifest(store.read_ref(epoch)) for epoch in store.epochs()]
    return store.read_pack_index(next(pack for x in manifests for pack in x.packs if pack.path == path))


def test_a_manifest_names_no_pack_of_a_later_epoch() -> None:
    source, target = make_source(), make_target()
    copy_epoch(source.store, target, 2)
    assert copy_epoch(source.store, target, 1).found_bytes == 0
    target.delete_epoch(2)
    source.check(target, 1)


def test_packs_are_bounded_and_a_larger_blob_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make_source({1: {"a": list(range(1, 40))}}), make_target()
    monkeypatch.setattr(snapshot_copy, "PACK_BYTES_MAX", 600)
    copy_epoch(source.store, target, 1)
    sizes = [[entry.size_bytes for entry in _entries(target, path)] for path in packs_in(target)]
    assert len(sizes) > 10 and all(sum(some) <= 600 or len(some) == 1 for some in sizes)
    source.check(target, 1)


def test_reads_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make_source({1: {"a": list(range(1, 40))}}), make_target()
    calls: list[str] = []
    disk_of(source.store).on_call = calls.append
    copy_epoch(source.store, target, 1)
    assert calls.count("read") < 10, "ref, manifest, and one run of chunks"


def test_copying_again_is_success_and_writes_nothing() -> None:
    source, target = make_source(), make_target()
    copy_epoch(source.store, target, 1)
    before = len(disk_of(target).calls)
    again = copy_epoch(source.store, target, 1)
    assert not again.is_new and len(disk_of(target).calls) == before


def test_a_snapshot_of_format_1_keeps_its_root() -> None:
    golden = Store.open(Path(__file__).parent / "golden_1")
    target = make_target()
    for epoch in golden.epochs():
        copy_epoch(golden, target, epoch)
        assert target.read_ref(epoch) == golden.read_ref(epoch)
        old, new = (x.read_manifest(x.read_ref(epoch)) for x in (golden, target))
        assert list(target.read_checkpoints(new)) == list(golden.read_checkpoints(old))
    assert golden.epochs() and target.verify().findings == []


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_another_snapshot_under_the_number_is_refused_and_stays() -> None:
    source, other, target = make_source(), make_source({1: {"a": [9]}}, seed=3), make_target()
    copy_epoch(other.store, target, 1)
    with pytest.raises(StoreError, match="is another snapshot"):
        copy_epoch(source.store, target, 1)
    other.check(target, 1)


def test_an_epoch_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotFoundError, match="epoch 9"):
        copy_epoch(make_source().store, make_target(), 9)


def make_keyed(keys: Keys, *, seed: int, disk: SimulatedDisk | None = None) -> Store:
    return Store.create("simulated", disk=disk or SimulatedDisk(), keys=keys, random_bytes=seeded_bytes(seed))


@pytest.mark.parametrize(("from_keys", "to_keys"), [(OLD, None), (None, OLD), (OLD, NEW), (OLD, OLD)])
def test_stores_with_other_digests_are_refused_and_nothing_is_written(
    from_keys: Keys | None, to_keys: Keys | None
) -> None:
    """Also two stores under one key file: each has a digest key of its own."""
    source = make_keyed(from_keys, seed=2) if from_keys else make_store(SimulatedDisk(), seed=2)
    target = make_keyed(to_keys, seed=3) if to_keys else make_target()
    write_epoch(source, 1)
    with pytest.raises(UsageError, match="encrypted, and digests in it depend on its keys"):
        copy_epoch(source, target, 1)
    assert target.epochs() == [] and not [path for path in disk_of(target).files() if path.startswith(("packs", "man"))]


def test_an_encrypted_snapshot_comes_home_to_the_keys_of_its_store() -> None:
    disk = SimulatedDisk()
    writer = Writer(make_keyed(OLD, seed=2, disk=disk))
    for epoch, agents in CONTENTS.items():
        writer.write(epoch, agents, cluster=writer.store.store_id)
    kept = Store.open("simulated", disk=disk.copy(), keys=OLD)
    writer.store.delete_epoch(1)
    copied = copy_epoch(kept, writer.store, 1)
    assert copied.is_new
    writer.check(writer.store, 1)
    assert writer.store.verify().findings == []
    assert not any(chunk_of(3) in disk.read(path, 0, 10**6) for path in disk.files())


def test_the_store_of_a_fleet_takes_back_its_own_older_epochs_and_nothing_else() -> None:
    """It may use other numbers itself, one day; two snapshots with one number would stop it."""
    home, stranger = make_source(), make_source({1: {"x": [1]}, 5: {"x": [2]}}, seed=4)
    second = make_target()
    for epoch in (1, 2, 3):
        copy_epoch(home.store, second, epoch)
    home.store.delete_epoch(1)
    copy_epoch(second, home.store, 1)
    home.check(home.store, 1)
    home.store.delete_epoch(3)
    home.store.delete_epoch(1)
    for source, epoch in ((second, 3), (stranger.store, 5), (stranger.store, 1)):
        with pytest.raises(UsageError, match="the store of a fleet"):
            copy_epoch(source, home.store, epoch)
    assert home.store.epochs() == [2]
    with pytest.raises(UsageError, match="the store of a fleet"):
        copy_epoch(home.store, make_target(seed=9), 2, is_fleet_store=True)


def test_a_deletion_of_the_source_meanwhile_is_no_damage() -> None:
    source, target = make_source(), make_target()

    def delete(call: str) -> None:
        if call == "read" and target._disk.list_directory("packs"):
            disk_of(source.store).on_call = lambda name: None
            source.store.delete_epoch(1)
            source.store.delete_epoch(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_copy, "PACK_BYTES_MAX", 1)
        disk_of(source.store).on_call = delete
        with pytest.raises(NotFoundError, match="deleted while it was read: pin"):
            copy_epoch(source.store, target, 1)
    assert target.epochs() == []


# ---- damage --------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_in_the_source_is_never_copied() -> None:
    """A flip of any byte: the copy is refused as damaged, or (of bytes it does not need) is right."""
    source = make_source()
    disk = disk_of(source.store)
    refused = 0
    for path in disk.files():
        data = disk.read(path, 0, 10**6)
        for place in range(0, len(data), 39):
            flipped = disk.copy()
            wrong = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
            flipped.nodes[path] = Inode(wrong, wrong)
            target = make_target()
            try:
                copy_epoch(Store.open("simulated", disk=flipped), target, 2)
            except (DamagedDataError, StoreError):
                refused += 1
                assert target.epochs() == []
            else:
                source.check(target, 2)
    assert refused > 16


def test_a_checkpoint_whose_chunk_has_no_place_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source()
    right = source.store.read_manifest

    def without_chunks(root: str, *, epoch: int | None = None) -> Any:
        manifest = right(root, epoch=epoch)
        del manifest.chunks[0]
        return manifest

    monkeypatch.setattr(source.store, "read_manifest", without_chunks)
    with pytest.raises(DamagedDataError, match="does not say where a chunk"):
        copy_epoch(source.store, make_target(), 1)


@pytest.mark.parametrize("what", ["packs/", "manifests/", "refs/"])
def test_a_damaged_copy_is_found(what: str) -> None:
    source, target = make_source(), make_target()
    copy_epoch(source.store, target, 1)
    disk = disk_of(target)
    for path in disk.files():
        if path.startswith(what):
            data = disk.read(path, 0, 10**6)
            for place in range(0, len(data), 7):
                disk.nodes[path] = Inode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
                if what == "packs/" and place < len(transfer_header(target, path)):
                    continue  # `verify` compares the header; no blob is read by it.
                with pytest.raises((DamagedDataError, StoreError)):
                    check_epoch(target, 1, set())
            disk.nodes[path] = Inode(data, data)
    check_epoch(target, 1, set())


def transfer_header(store: Store, path: str) -> bytes:
    disk = disk_of(store)
    right = next(x for e in store.epochs() for x in store.read_manifest(store.read_ref(e)).packs if x.path == path)
    try:
        return read_index(disk, path, size_bytes=right.size_bytes, store_id=None)[0].header()
    except SnaplineError:
        return b""


# ---- crashes -------------------------------------------------------------------------------------------------------


class Job:
    """Copies epochs 1 and 2 into a store that has epoch 3 of the same fleet; knows what was promised."""

    def __init__(self, source: Writer, copy: Callable[..., Any] = copy_epoch) -> None:
        self.source = source
        self.copy = copy
        self.disk = SimulatedDisk()
        self.target = make_store(self.disk, seed=1)
        self.start = len(self.disk.calls)
        self.done: set[int] = set()

    def run(self) -> None:
        for epoch in (1, 2):
            self.copy(self.source.store, self.target, epoch)
            self.done.add(epoch)

    def check(self, image: SimulatedDisk, *, seed: int) -> None:
        """An image that a crash may have left: what was promised is there, what is visible is whole; the copy goes on."""
        target = reopen(image, seed=seed)
        assert self.done <= set(target.epochs()) <= {1, 2}
        for epoch in target.epochs():
            self.source.check(target, epoch)
        assert target.verify().findings == []
        for epoch in (1, 2):
            self.copy(self.source.store, target, epoch)
        for epoch in (1, 2):
            self.source.check(target, epoch)
        assert target.verify().findings == []


def crash_everywhere(copy: Callable[..., Any] = copy_epoch) -> int:
    source = make_source({1: {"a": [1, 2, 4], "b": [5]}, 2: {"a": [1, 2, 7], "b": [5]}})
    images = 0
    for moment in range(1000):
        job = Job(source, copy)
        job.disk.crash_after = job.start + moment
        try:
            job.run()
        except SimulatedCrashError:
            pass
        else:
            assert moment > 20, "every call was a moment to crash"
            return images
        for image in job.disk.images():
            images += 1
            job.check(image, seed=50 + moment)
    raise AssertionError("a copy has more calls than expected")


def test_crash_at_every_call_leaves_nothing_half_and_the_next_try_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_copy, "PACK_BYTES_MAX", 600)
    assert crash_everywhere() > 60


def test_the_next_try_begins_with_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_copy, "PACK_BYTES_MAX", 300)
    source = make_source()
    target = make_target()
    disk = disk_of(target)
    disk.fail_at = len(disk.calls) + 20
    with pytest.raises(StoreError):
        copy_epoch(source.store, target, 1)
    left = packs_in(target)
    assert len(left) > 1
    copied = copy_epoch(source.store, target, 1)
    assert copied.found_bytes > 0
    assert set(left) <= {pack.path for pack in target.read_manifest(copied.root).packs}
    assert target.verify().unreferenced == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_every_call_is_clean_and_the_next_try_finishes(code: int) -> None:
    source = make_source({1: {"a": [1, 2]}})
    for moment in range(1000):
        target = make_target()
        disk = disk_of(target)
        disk.fail_at, disk.fail_with = len(disk.calls) + moment, code
        try:
            copy_epoch(source.store, target, 1)
        except StoreError:
            assert disk.open_handles == 0
            copy_epoch(source.store, target, 1)
            source.check(target, 1)
            assert target.verify().findings == []
        else:
            assert moment > 10
            return


def test_a_lost_pack_of_an_unpublished_copy_is_written_again() -> None:
    source, target = make_source(), make_target()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "publish", lambda *_: None)
        copy_epoch(source.store, target, 1)
    disk_of(target).unlink(packs_in(target)[0])
    copy_epoch(source.store, target, 1)
    source.check(target, 1)
    assert target.verify().findings == []


def test_two_copies_at_once_agree() -> None:
    """At each of its calls another one does the whole copy."""
    source = make_source({1: {"a": [1, 2]}})
    for moment in range(1000):
        target = make_target()
        other = reopen(disk_of(target), seed=77)
        left = [moment]

        def step(name: str, left: list[int] = left, other: Store = other) -> None:
            left[0] -= 1
            if left[0] == -1:
                copy_epoch(source.store, other, 1)

        disk_of(target).on_call = step
        copy_epoch(source.store, target, 1)
        source.check(target, 1)
        assert target.verify().findings == []
        if left[0] >= 0:
            assert moment > 20
            return


def test_a_deletion_in_the_target_between_looking_and_writing_is_found() -> None:
    """At each call of the copy of epoch 2, somebody deletes epoch 1, whose chunks it uses."""
    source = make_source()
    outcomes = set()
    for moment in range(1000):
        target = make_target()
        copy_epoch(source.store, target, 1)
        other = reopen(disk_of(target), seed=77)
        left = [moment]

        def step(name: str, left: list[int] = left, other: Store = other) -> None:
            left[0] -= 1
            if left[0] == -1:
                other.delete_epoch(1)

        disk_of(target).on_call = step
        try:
            copy_epoch(source.store, target, 2)
        except StoreError:
            outcomes.add("refused")
            copy_epoch(source.store, target, 2)
        source.check(target, 2)
        check_epoch(target, 2, set())
        if left[0] >= 0:
            assert outcomes == {"refused"}
            return


# ---- the tests above can fail --------------------------------------------------------------------------------------


def _publishing_first(source: Store, target: Store, epoch: int) -> None:
    root = source.read_ref(epoch)
    with pytest.MonkeyPatch.context() as patch:
        right = snapshot_copy._Copy._write_manifest

        def write(self: Any) -> None:
            data = encode_ref(epoch, root, target.store_id)
            target._create(layout.ref_path(epoch), data, epoch=epoch, point="")
            right(self)

        patch.setattr(snapshot_copy._Copy, "_write_manifest", write)
        copy_epoch(source, target, epoch)


def test_the_crash_test_catches_a_ref_before_its_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(_publishing_first)


def test_the_crash_test_catches_a_copy_that_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look for the manifest of an earlier try."""
    monkeypatch.setattr(snapshot_copy._Copy, "_is_written", lambda self: False)
    monkeypatch.setattr(snapshot_copy._Copy, "_left_behind", lambda self: iter(()))
    with pytest.raises(SnaplineError):
        crash_everywhere()


def test_the_test_of_deletions_catches_a_copy_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_copy._Copy, "_check_shared_packs", lambda self: None)
    with pytest.raises((AssertionError, SnaplineError)):
        test_a_deletion_in_the_target_between_looking_and_writing_is_found()


def test_the_test_of_deletions_catches_a_look_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    look, write = snapshot_copy._Copy._check_shared_packs, snapshot_copy._Copy._write_manifest

    def look_first(self: Any) -> None:
        look(self)
        write(self)

    monkeypatch.setattr(snapshot_copy._Copy, "_write_manifest", look_first)
    monkeypatch.setattr(snapshot_copy._Copy, "_check_shared_packs", lambda self: None)
    with pytest.raises((AssertionError, SnaplineError)):
        test_a_deletion_in_the_target_between_looking_and_writing_is_found()


def test_the_test_of_damage_catches_blobs_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode_blob

    def unchecked(data: Any, entry: Any, **others: Any) -> Any:
        return right(data, entry, **others) if entry.codec else bytes(data[header_bytes(entry.name) :])

    monkeypatch.setattr(snapshot_copy, "decode_blob", unchecked)
    with pytest.raises((AssertionError, SnaplineError)):
        test_a_flipped_byte_in_the_source_is_never_copied()

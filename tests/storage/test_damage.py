"""Every byte of every file is under a digest (G11): change any, and `verify` names the file and its epoch."""

import errno
from collections.abc import Iterator

import msgspec
import pytest
from tests.storage.log.logging_hosts import LOG, append
from tests.storage.making import (
    HOSTS,
    check_epoch_restores,
    make_manifest,
    make_store,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.simulated_disk import Inode, SimulatedDisk

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk import layout
from snapline.storage.disk.record import digest_of, finding_of
from snapline.storage.packs.pack import BlobEntry, contradiction_of, decode_blob
from snapline.storage.store.store import Store
from snapline.storage.store.verify import verify_location

Case = tuple[SimulatedDisk, Store, dict[str, int | None]]


@pytest.fixture(scope="module")
def case() -> Case:
    """A store with two epochs, the packs and manifest of an aborted one, checkpoints, a probe and a sealed host log; and
    what epoch each file is of."""
    disk = SimulatedDisk()
    store = make_store(disk)
    roots = {epoch: write_epoch(store, epoch) for epoch in (1, 2)}
    roots[3] = store.write_manifest(make_manifest(store, 3, write_packs(store, 3)))
    write_taken(store, 4)
    store.write_probe()
    for number in (1, 2):
        append(store, number)
    store.seal_log(LOG)
    epochs: dict[str, int | None] = {}
    for path in disk.files():
        name = layout.parse_pack_path(path)
        epochs[path] = name.epoch if name else layout.parse_ref_path(path)
    # An unreferenced manifest that cannot be read has no epoch that anyone knows.
    epochs |= {layout.manifest_path(root): epoch if epoch != 3 else None for epoch, root in roots.items()}
    assert store.verify().is_whole
    return disk, store, epochs


def _changed(disk: SimulatedDisk, path: str, data: bytes) -> SimulatedDisk:
    """Return a disk on which `path` alone is another file; the rest is shared."""
    changed = SimulatedDisk()
    changed.nodes = disk.nodes | {path: Inode(data, data)}
    return changed


def _expect_finding(disk: SimulatedDisk, store_id: str, path: str, epoch: int | None, reason: str = "") -> None:
    findings = Store(disk, store_id).verify().findings
    named = {(finding.path, finding.epoch) for finding in findings}
    assert (path, epoch) in named, findings
    assert {found for found, _ in named} == {path}, "files that are whole are not blamed"
    is_taken = layout.parse_pack_path(path, layout.CHECKPOINTS) is not None
    assert {finding.plan for finding in findings} == {4 if is_taken else None}
    assert reason in " ".join(finding.reason for finding in findings)


def _flips(data: bytes, *, every: int = 1, is_full: bool = False) -> Iterator[bytes]:
    """Yield `data` with one bit changed: in each `every`th byte one, or all eight."""
    for position in range(0, len(data), every):
        for bit in range(8) if is_full else (position % 8,):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            yield bytes(changed)


def _check_flips(case: Case, *, every: int = 1, is_full: bool = False) -> None:
    disk, store, epochs = case
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        assert node is not None
        for data in _flips(node.data, every=every, is_full=is_full):
            _expect_finding(_changed(disk, path, data), store.store_id, path, epoch)


def test_flips_all_over_are_found_and_named(case: Case) -> None:
    """In every third byte: no field and no record is shorter. Epoch 2 has the same files as 1. Every bit of every byte: the slow test."""
    disk, store, epochs = case
    _check_flips((disk, store, {path: epoch for path, epoch in epochs.items() if epoch != 2}), every=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flip_of_every_bit_is_found_and_named(case: Case) -> None:
    _check_flips(case, is_full=True)


def test_no_flip_is_ever_restored(case: Case) -> None:
    """Reading gives the right checkpoints or an error that names file and epoch; never anything else."""
    disk, store, epochs = case
    refused = 0
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        if epoch != 1 or node is None:
            continue
        for data in _flips(node.data):
            try:
                check_epoch_restores(Store(_changed(disk, path, data), store.store_id), 1)
            except DamagedDataError as error:
                refused += 1
                finding = finding_of(error)
                assert finding is not None and (finding.path, finding.epoch) == (path, 1)
                assert path in str(error) and "epoch 1" in str(error)
                if path.startswith("packs"):
                    assert finding.agent in {agent for agents in HOSTS.values() for agent in agents}
                    assert finding.agent in str(error)
    assert refused > 1000


def test_every_truncation_is_found(case: Case) -> None:
    disk, store, epochs = case
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        assert node is not None
        for length in range(0, len(node.data), 21):
            _expect_finding(_changed(disk, path, node.data[:length]), store.store_id, path, epoch, "truncated")


@pytest.mark.parametrize("surplus", [b"\0", b"x" * 5000])
def test_surplus_bytes_are_found(case: Case, surplus: bytes) -> None:
    disk, store, epochs = case
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        assert node is not None
        _expect_finding(_changed(disk, path, node.data + surplus), store.store_id, path, epoch)
        _expect_finding(_changed(disk, path, surplus + node.data), store.store_id, path, epoch)


def test_zeroed_and_swapped_files_are_found(case: Case) -> None:
    """Files that are whole, but stand under another's name."""
    disk, store, epochs = case
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        assert node is not None
        _expect_finding(_changed(disk, path, bytes(len(node.data))), store.store_id, path, epoch)
        for other_path in epochs:
            other = disk.nodes[other_path]
            if other_path != path and other is not None:
                changed = _changed(disk, path, other.data)
                findings = Store(changed, store.store_id).verify().findings
                is_probe = path.startswith("probes") and other_path.startswith("probes")
                assert is_probe or path in {finding.path for finding in findings}, other_path


def test_missing_files_are_found(case: Case) -> None:
    disk, store, epochs = case
    for path, epoch in epochs.items():
        changed = SimulatedDisk()
        changed.nodes = {name: node for name, node in disk.nodes.items() if name != path}
        findings = Store(changed, store.store_id).verify().findings
        if path.startswith(("refs", "probes", "checkpoints", "log")) or (
            path.startswith("manifests") and epoch is None
        ):
            assert findings == [], "nothing tells that it was there: the coordinator's log does"
        else:
            assert [(finding.path, finding.epoch) for finding in findings] == [(path, epoch)]
            assert "missing" in findings[0].reason


def test_files_of_another_store_are_found(case: Case) -> None:
    disk, store, _ = case
    other_disk = SimulatedDisk()
    other = make_store(other_disk, seed=1)
    write_epoch(other, 1)
    ref = other_disk.nodes["refs/epochs/1"]
    assert ref is not None
    _expect_finding(_changed(disk, "refs/epochs/1", ref.data), store.store_id, "refs/epochs/1", 1, "belongs to store")
    pack = next(path for path in other_disk.files() if path.startswith("packs/"))
    node = other_disk.nodes[pack]
    assert node is not None
    _expect_finding(_changed(disk, pack, node.data), store.store_id, pack, 1, "belongs to store")


def test_unknown_files_are_named(case: Case) -> None:
    disk, store, _ = case
    for path in (
        "x",
        "refs/x",
        "refs/epochs/01",
        "refs/epochs/x",
        "manifests/x.0",
        "probes/x",
        "packs/x",
        "packs/h1.1/x",
        "checkpoints/x",
        "checkpoints/h1.1/x",
        "log/x",
        "log/1/x",
        "log/1/h1-1/x",
        "log/1/h1-1/01",
    ):
        _expect_finding(_changed(disk, path, b"x"), store.store_id, path, None, "no file of a snapline store")


def test_later_versions_are_refused_not_called_damaged(case: Case) -> None:
    disk, store, epochs = case
    for path in epochs:
        node = disk.nodes[path]
        assert node is not None
        if path.startswith(("packs", "checkpoints")):
            continue
        data = node.data[:12] + (9).to_bytes(4, "little") + node.data[16:-32]
        changed = _changed(disk, path, data + digest_of(data))
        findings = Store(changed, store.store_id).verify().findings
        assert [finding.path for finding in findings] == [path]
        assert "format version 9, this snapline reads up to" in findings[0].reason
        if path == layout.IDENTITY:
            with pytest.raises(StoreError, match="format version 9") as caught:
                Store.open("simulated", disk=changed)
            assert not isinstance(caught.value, DamagedDataError)


def test_impossible_lengths_are_refused_before_anything_is_allocated() -> None:
    """Such as an lz4 bomb under a right digest."""
    good = BlobEntry("a", 1, 1, 0, 1000, 5000, bytes(32), bytes(32))
    plain = msgspec.structs.replace(good, codec=0, stored_bytes=5000)
    assert contradiction_of(good) == "" and contradiction_of(plain) == ""
    for wrong in (
        msgspec.structs.replace(good, size_bytes=255_001),
        msgspec.structs.replace(good, stored_bytes=2**27, size_bytes=2**28 + 1),
        msgspec.structs.replace(good, stored_bytes=2**60),
        msgspec.structs.replace(good, offset=-1),
        msgspec.structs.replace(good, kind=2),
        msgspec.structs.replace(good, codec=2),
        msgspec.structs.replace(plain, stored_bytes=5001),
        msgspec.structs.replace(plain, stored_digest=bytes(31)),
        msgspec.structs.replace(plain, stored_bytes=2**33 + 1, size_bytes=2**33 + 1),
    ):
        assert contradiction_of(wrong)
        with pytest.raises(DamagedDataError):
            decode_blob(b"", wrong, path="packs/w/1.x", epoch=1)


def test_damaged_identity_is_not_opened_but_can_be_verified(case: Case) -> None:
    disk, _, _ = case
    changed = _changed(disk, layout.IDENTITY, b"SNAPLINE")
    with pytest.raises(DamagedDataError, match="snapline-store"):
        Store.open("simulated", disk=changed)
    assert [finding.path for finding in verify_location("", disk=changed).findings] == [layout.IDENTITY]


def test_one_epoch_is_verified_alone(case: Case) -> None:
    disk, store, epochs = case
    verification = store.verify(1)
    assert verification.is_whole
    assert sorted(file.path for file in verification.checked) == sorted(path for path in epochs if epochs[path] == 1)
    for path, epoch in epochs.items():
        node = disk.nodes[path]
        assert node is not None
        findings = Store(_changed(disk, path, node.data[:-1]), store.store_id).verify(1).findings
        assert [finding.path for finding in findings] == ([path] if epoch == 1 else [])


class BadSectorDisk(SimulatedDisk):
    """One file cannot be read."""

    bad_path = ""

    def read(self, path: str, offset: int, length: int) -> bytes:
        if path == self.bad_path:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(path, offset, length)


def test_unreadable_files_are_found(case: Case) -> None:
    disk, store, epochs = case
    for path, epoch in epochs.items():
        changed = BadSectorDisk()
        changed.nodes, changed.bad_path = disk.nodes, path
        findings = Store(changed, store.store_id).verify().findings
        assert [(finding.path, finding.epoch) for finding in findings] == [(path, epoch)]
        assert "cannot be read: " in findings[0].reason
        if epoch == 1:
            with pytest.raises(DamagedDataError, match=r"epoch 1.*cannot be read"):
                check_epoch_restores(Store(changed, store.store_id), 1)


def test_verifying_while_epochs_are_deleted_finds_no_damage() -> None:
    """At whatever call of the verification the deletion happens."""
    for moment in range(200):
        disk = SimulatedDisk()
        store = make_store(disk)
        write_epoch(store, 1)
        write_epoch(store, 2)
        taken = write_taken(store, 1)
        for number in (1, 2):
            append(store, number)
        count = 0

        def delete_at(
            name: str, disk: SimulatedDisk = disk, store: Store = store, path: str = taken.path, moment: int = moment
        ) -> None:
            nonlocal count
            count += 1
            if count == moment:
                disk.on_call = lambda name: None
                store.delete_epoch(1)
                store.delete_checkpoints([path])
                store.delete_batches([(LOG, 1)])

        disk.on_call = delete_at
        assert store.verify().findings == [], moment
        if count < moment:
            return
    raise AssertionError("the verification makes more calls than expected")


def test_a_disk_on_which_nothing_can_be_read_is_not_damage(case: Case) -> None:
    """It may come back with every byte: whoever took it for damage would condemn one good epoch after the other."""
    original, store, _ = case
    disk = original.copy()
    root = store.read_ref(2)

    def fail(call: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.on_call = fail
    with pytest.raises(StoreError) as caught:
        Store(disk, store.store_id).read_manifest(root, epoch=2)
    assert not isinstance(caught.value, DamagedDataError)

"""A whole store with keys: it restores what was written, and takes nothing that its owner did not write in that
place."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.storage.making import (
    HOSTS,
    check_epoch_restores,
    check_taken,
    make_checkpoint,
    make_manifest,
    seeded_bytes,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.protecting import BOTH, NEW, OLD, content, put_file
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk

from snapline.errors import DamagedDataError, StoreError, StoreKeyError, StoreMissingError, UsageError
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.disk.record import canonical, seal
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import NO_KEYS, Keys, make_signing_key, make_wrapping_key
from snapline.storage.keys.key_records import list_keys
from snapline.storage.packs.manifest import encode_ref
from snapline.storage.store.protection import make_guard
from snapline.storage.store.store import Store

SIGNER = make_signing_key(b"s" * 32)
OTHER_SIGNER = make_signing_key(b"t" * 32)
GUARDED = Keys(OLD.wrapping, SIGNER)
READER = Keys(OLD.wrapping, None, (SIGNER.verify_key(),))


def make_guarded(*, seed: int = 0, keys: Keys = GUARDED, epochs: int = 2) -> tuple[SimulatedDisk, Store]:
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes(seed))
    for epoch in range(1, epochs + 1):
        write_epoch(store, epoch)
    return disk, store


def reopen(disk: SimulatedDisk, keys: Keys = READER) -> Store:
    return Store.open("simulated", disk=disk, keys=keys)


def changed(disk: SimulatedDisk, path: str, data: bytes) -> SimulatedDisk:
    other = SimulatedDisk()
    other.nodes = disk.nodes | {path: Inode(data, data)}
    return other


def packs_of(disk: SimulatedDisk, epoch: int) -> list[str]:
    names = ((path, layout.parse_pack_path(path)) for path in disk.files())
    return [path for path, name in names if name is not None and name.number == epoch]


def expect_refused(disk: SimulatedDisk, epoch: int = 1, keys: Keys = READER) -> None:
    with pytest.raises(StoreError):
        check_epoch_restores(reopen(disk, keys), epoch)
    with contextlib.suppress(StoreError):  # Then it could not even be opened.
        assert reopen(disk, keys).verify().findings


def test_a_guarded_store_restores_and_shows_no_content() -> None:
    disk, store = make_guarded()
    taken = write_taken(store, 4)
    for keys in (READER, GUARDED, Keys(NEW.wrapping + OLD.wrapping)):
        for epoch in (1, 2):
            check_epoch_restores(reopen(disk, keys), epoch)
        check_taken(reopen(disk, keys), taken, 4)
        assert reopen(disk, keys).verify().findings == []
    for path in disk.files():
        assert b" in 1 " not in content(disk, path) and b" under 4 " not in content(disk, path)
    assert any(b" in 1 " in make_checkpoint(agent, 1).state for agent in HOSTS["h1"]), (
        "the search looks for the content"
    )


def test_every_flipped_bit_is_found_and_never_restored() -> None:
    """With encryption and signatures as without; samples of all files, most of keys and refs."""
    disk, _ = make_guarded(epochs=1)
    for path in disk.files():
        data = content(disk, path)
        is_small = path.startswith(("keys/", "refs/"))
        for position in range(0, len(data), 3 if is_small else 61):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            broken = changed(disk, path, bytes(flipped))
            try:
                findings = reopen(broken).verify().findings
            except StoreError as error:
                assert path in str(error) or path == layout.IDENTITY
            else:
                assert path in {finding.path for finding in findings}, position


@pytest.mark.parametrize("keys", [NO_KEYS, NEW, Keys(signing=SIGNER)])
def test_without_the_key_nothing_is_read_or_written(keys: Keys) -> None:
    disk, _ = make_guarded()
    with pytest.raises(StoreError, match=f"encrypted with key {OLD.wrapping[0].key_id}"):
        reopen(disk, keys)


@pytest.mark.parametrize(
    "keys", [Keys(OLD.wrapping, OTHER_SIGNER), Keys(OLD.wrapping, None, (OTHER_SIGNER.verify_key(),))]
)
def test_a_store_that_none_of_our_keys_has_signed_is_refused_when_it_is_opened(keys: Keys) -> None:
    disk, _ = make_guarded()
    with pytest.raises(StoreKeyError, match=r"no key that is given has signed.*SNAPLINE_VERIFY_KEY.*epoch 2"):
        reopen(disk, keys)
    assert StoreKeyError.exit_code == UsageError.exit_code


def test_one_ref_of_another_key_is_damage_and_no_reason_to_refuse_the_store() -> None:
    disk, store = make_guarded()
    write_epoch(
        Store(disk, store.store_id, guard=make_guard(disk, store.store_id, Keys(OLD.wrapping, OTHER_SIGNER))), 3
    )
    check_epoch_restores(reopen(disk), 2)
    with pytest.raises(StoreError, match="not signed by the owner"):
        check_epoch_restores(reopen(disk), 3)


def test_a_key_that_the_probes_writer_lacks_is_refused_before_anything_is_encrypted() -> None:
    disk, plain = make_guarded(keys=NO_KEYS, epochs=0)
    path, content = plain.write_probe()
    with pytest.raises(StoreKeyError, match="the same SNAPLINE_STORE_KEY"):
        reopen(disk, OLD).read_probe(path)
    assert reopen(disk, NO_KEYS).read_probe(path) == content and not list_keys(disk)


def test_packs_cannot_be_swapped() -> None:
    """Between epochs, writers, and stores with the same key file."""
    disk, _ = make_guarded()
    other_disk, _ = make_guarded(seed=5)
    for source, path in ((disk, packs_of(disk, 2)[0]), (other_disk, packs_of(other_disk, 1)[0])):
        expect_refused(changed(disk, packs_of(disk, 1)[0], content(source, path)))


def test_a_pack_of_another_store_with_its_keys_is_refused() -> None:
    """Packs, manifests, refs and data keys of a store with the same key file, put under our identity."""
    disk, _ = make_guarded()
    other_disk, _ = make_guarded(seed=5)
    mixed = SimulatedDisk()
    mixed.nodes = other_disk.nodes | {path: disk.nodes[path] for path in (layout.IDENTITY, "keys/digest.0")}
    expect_refused(mixed)


def _resealed_ref(store: Store, root: str, *, signature: bytes | None = None) -> bytes:
    if signature is None:
        return encode_ref(1, root, store.store_id)
    body = {"epoch": 1, "root": root, "store": store.store_id, "signature": signature}
    return seal(b"EREF", canonical.encode(body), version=2)


@pytest.mark.parametrize("keys", [GUARDED, READER, Keys(verifying=(SIGNER.verify_key(),))])
def test_a_ref_without_the_right_signature_is_refused(keys: Keys) -> None:
    """Stripped, made up, by another key, or of another epoch: each with right digests."""
    disk, store = make_guarded(keys=Keys(keys.wrapping, SIGNER))
    root, path = store.read_ref(1), layout.ref_path(1)
    other = msgspec.msgpack.decode(content(disk, layout.ref_path(2))[24:-32])["signature"]
    signed = Store(
        disk, store.store_id, guard=Store.create("x", disk=SimulatedDisk(), keys=Keys((), OTHER_SIGNER))._guard
    )
    foreign = encode_ref(1, root, store.store_id, signed._guard)
    check_epoch_restores(reopen(disk, keys), 1)
    for data in (
        _resealed_ref(store, root),
        _resealed_ref(store, root, signature=b""),
        _resealed_ref(store, root, signature=bytes(64)),
        _resealed_ref(store, root, signature=other),
        foreign,
    ):
        broken = changed(disk, path, data)
        expect_refused(broken, keys=keys)
        check_epoch_restores(reopen(broken, keys), 2)


def test_a_plain_epoch_in_an_encrypted_store_is_refused() -> None:
    """Who can write, and has no key, adds an epoch with right digests."""
    disk, store = make_guarded(keys=OLD)
    intruder = Store(disk, store.store_id, random_bytes=seeded_bytes(8))
    intruder.publish(3, intruder.write_manifest(make_manifest(intruder, 3, write_packs(intruder, 3))))
    assert 3 in reopen(disk, OLD).epochs()
    with pytest.raises(StoreError, match="not encrypted"):
        check_epoch_restores(reopen(disk, OLD), 3)
    check_epoch_restores(reopen(disk, OLD), 2)


def test_signed_and_plain_or_unsigned_and_encrypted_work_alone() -> None:
    for keys in (Keys(signing=SIGNER), OLD):
        disk, _ = make_guarded(keys=keys)
        check_epoch_restores(reopen(disk, keys), 2)
        assert reopen(disk, keys).verify().findings == []
    with pytest.raises(StoreError, match="not signed"):
        check_epoch_restores(reopen(disk, READER), 2)


def test_racing_leaders_write_the_same_signed_ref() -> None:
    disk, store = make_guarded(epochs=0)
    root = store.write_manifest(make_manifest(store, 1, write_packs(store, 1)))
    store.publish(1, root)
    before = content(disk, layout.ref_path(1))
    reopen(disk, GUARDED).publish(1, root)
    assert content(disk, layout.ref_path(1)) == before


def test_a_rotated_store_restores() -> None:
    disk, store = make_guarded()
    before = {path: content(disk, path) for path in disk.files() if not path.startswith("keys/")}
    assert key_records.rotate(disk, store.store_id, OLD, NEW) == len(list_keys(disk)) >= 3
    assert {path: content(disk, path) for path in disk.files() if not path.startswith("keys/")} == before
    check_epoch_restores(reopen(disk, NEW), 2)
    write_epoch(reopen(disk, NEW), 3)
    assert reopen(disk, BOTH).verify().findings == []
    with pytest.raises(StoreError, match=NEW.wrapping[0].key_id):
        reopen(disk, OLD)


def test_a_lost_data_key_costs_only_what_it_sealed() -> None:
    disk, _ = make_guarded()
    key_ids = [key_id for key_id in list_keys(disk) if key_id != "digest"]
    put_file(disk, f"keys/{key_ids[0]}.0", b"damaged")
    findings = reopen(disk).verify().findings
    assert f"keys/{key_ids[0]}.0" in {finding.path for finding in findings}
    with pytest.raises(DamagedDataError, match=key_ids[0]):
        check_epoch_restores(reopen(disk), 1)


# -- crashes -----------------------------------------------------------------------------------------------------------


def _crash_everywhere(commit: Callable[[Store, int], object] = write_epoch) -> int:
    images = 0
    for moment in range(500):
        disk = SimulatedDisk()
        disk.crash_after = moment
        published: list[int] = []
        try:
            store = Store.create("simulated", disk=disk, keys=GUARDED, random_bytes=seeded_bytes())
            for epoch in (1, 2):
                commit(store, epoch)
                published.append(epoch)
        except SimulatedCrashError:
            pass
        else:
            return images
        for image in disk.images():
            images += 1
            _check_image(image, published)
    raise AssertionError("more calls than expected")


def _check_image(image: SimulatedDisk, published: list[int]) -> None:
    try:
        store = reopen(image)
    except StoreMissingError:
        assert not published
        return
    assert set(published) <= set(store.epochs())
    for epoch in store.epochs():
        check_epoch_restores(store, epoch)
    assert store.verify().findings == []
    write_epoch(reopen(image, GUARDED), 7)
    check_epoch_restores(reopen(image), 7)


def test_a_crash_at_every_call_keeps_what_was_published() -> None:
    assert _crash_everywhere() > 80


def test_the_crash_test_catches_keys_that_are_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimulatedDisk.sync_directory
    monkeypatch.setattr(
        SimulatedDisk, "sync_directory", lambda disk, path: None if path == layout.KEYS else sync(disk, path)
    )
    with pytest.raises((AssertionError, StoreError)):
        _crash_everywhere()


def test_keys_that_no_pack_names_are_deleted_while_nobody_writes(tmp_path: Path) -> None:
    keys = Keys((make_wrapping_key(bytes(range(32))),))
    store = Store.create("", disk=LocalDisk(tmp_path / "store"), keys=keys)
    kept = store.write_pack(writer="h1.1", epoch=1, blobs=[("a", b"state")])
    gone = store.write_pack(writer="h2.1", epoch=1, blobs=[("b", b"state")])
    store.write_checkpoints(writer="h3.1", plan=1, blobs=[("c", 0, b"state")])
    (tmp_path / "store" / gone.path).unlink()
    assert len(store.delete_unneeded_keys()) == 1
    opened = Store.open("", disk=LocalDisk(tmp_path / "store"), keys=keys)
    assert [entry.name for entry in opened.read_pack_index(kept)] == ["a"]
    assert opened.verify().is_whole
    (tmp_path / "store" / kept.path).write_bytes(b"damaged")
    assert store.delete_unneeded_keys() == [], "nobody knows which key it needs"

"""Manifests are decoded once in a run: what is remembered is what decoding says, also of damaged bytes."""

from random import Random

import pytest

from snapline.errors import DamagedDataError
from snapline.sim.world.disk import VirtualDisk
from snapline.sim.world.product_patches import MANIFESTS_KEPT, manifests_cached, remembered
from snapline.storage.disk.layout import manifest_path
from snapline.storage.packs import manifest
from snapline.storage.packs.manifest import Manifest, Metadata, decode_manifest, encode_manifest
from snapline.storage.store.store import Store


def manifests(count: int) -> list[tuple[str, bytes]]:
    """Root and bytes of different ones."""
    return [encode_manifest(Manifest(Metadata(epoch=epoch), [], [])) for epoch in range(1, count + 1)]


def test_what_is_remembered_is_what_decoding_says() -> None:
    """In any order, for more manifests than are kept, and with one bit of some flipped."""
    random, decode = Random(1), remembered(decode_manifest)
    known = manifests(MANIFESTS_KEPT + 10)
    for _ in range(3_000):
        root, data = random.choice(known)
        if random.random() < 0.1:
            place = random.randrange(len(data))
            flipped = data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
            with pytest.raises(DamagedDataError):
                decode(flipped, root=root, path=manifest_path(root), epoch=None)
        else:
            path = manifest_path(root)
            assert decode(data, root=root, path=path, epoch=None) == decode_manifest(
                data, root=root, path=path, epoch=None
            )


def test_a_manifest_of_another_epoch_or_root_is_refused_though_its_bytes_are_known() -> None:
    """What is asked for belongs to the question."""
    (root, data), (other, _) = manifests(2)
    decode = remembered(decode_manifest)
    decode(data, root=root, path=manifest_path(root), epoch=1)
    for wrong_root, wrong_epoch in ((root, 2), (other, 1)):
        with pytest.raises(DamagedDataError):
            decode(data, root=wrong_root, path=manifest_path(wrong_root), epoch=wrong_epoch)


def test_a_store_sees_damage_that_comes_after_it_has_read_a_manifest() -> None:
    """Through the store's own files, on the simulated disk."""
    disk = VirtualDisk()
    store = Store.create("", disk=disk.reader())
    with manifests_cached():
        root = store.write_manifest(Manifest(Metadata(epoch=1), [], []))
        assert store.read_manifest(root).metadata.epoch == 1
        disk.flip(manifest_path(root), 300)
        with pytest.raises(DamagedDataError):
            store.read_manifest(root)
    assert vars(manifest)["decode_manifest"] is decode_manifest, "put back"

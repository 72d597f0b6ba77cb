"""The files of outputs: every byte is under a digest, a file belongs to one place, and where there is a key nothing shows."""

import struct
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from tests.storage.making import make_store, seeded_bytes
from tests.storage.outputs.releasing import CREATED_NS, make_output, make_outputs, release, root_of
from tests.storage.protecting import NEW, OLD, content, put_file
from tests.storage.simulated_disk import Inode, SimulatedDisk

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk.record import canonical, finding_of, seal
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import Keys
from snapline.storage.keys.key_records import list_keys
from snapline.storage.outputs import output_record as records
from snapline.storage.outputs.output_files import RevertedEpochs
from snapline.storage.outputs.output_record import FILE_BYTES_MAX
from snapline.storage.store.store import Store


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outputs to a part."""
    monkeypatch.setattr(records, "PART_BYTES", 200)


def make_released(keys: Keys | None = None) -> tuple[SimulatedDisk, Store]:
    """Epochs 1 and 2, two parts each, and a consumer."""
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes())
    for epoch in (1, 2):
        release(store, epoch)
    store.acknowledge_outputs("c1", "1.2", now_ns=5)
    return disk, store


def paths(disk: SimulatedDisk, epoch: int) -> list[str]:
    return sorted(path for path in disk.files() if path.startswith(f"outputs/{epoch}."))


def reopen(disk: SimulatedDisk, keys: Keys | None = None) -> Store:
    return Store.open("simulated", disk=disk, keys=keys)


def changed(disk: SimulatedDisk, path: str, data: bytes) -> SimulatedDisk:
    other = SimulatedDisk()
    other.nodes = disk.nodes | {path: Inode(data, data)}
    return other


def expect_damage(store: Store, path: str, words: str = "is damaged") -> None:
    with pytest.raises(DamagedDataError, match=words) as caught:
        if "consumers" in path:
            store.output_consumers()
        else:
            store.read_release(1)
    finding = finding_of(caught.value)
    assert finding is not None and finding.path == path
    assert path in {found.path for found in store.verify().findings}


@pytest.mark.parametrize("keys", [None, OLD])
def test_no_flipped_bit_is_ever_read(keys: Keys | None) -> None:
    disk, _ = make_released(keys)
    assert len(paths(disk, 1)) == 2
    for path in (*paths(disk, 1), "outputs/consumers/c1.1"):
        data = content(disk, path)
        for position in range(0, len(data), 3):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            expect_damage(reopen(changed(disk, path, bytes(flipped)), keys), path)


def test_truncated_and_longer_files_are_damage() -> None:
    disk, _ = make_released()
    for path in (*paths(disk, 1), "outputs/consumers/c1.1"):
        data = content(disk, path)
        for length in range(0, len(data), 9):
            expect_damage(reopen(changed(disk, path, data[:length])), path, "truncated")
        expect_damage(reopen(changed(disk, path, data + b"x")), path, "surplus")


def test_too_large_files_are_not_read() -> None:
    disk, _ = make_released()

    class LargeDisk(SimulatedDisk):
        def size(self, path: str) -> int:
            return FILE_BYTES_MAX + 1 if path == "outputs/1.0" else super().size(path)

        def read(self, path: str, offset: int, length: int) -> bytes:
            assert path != "outputs/1.0"
            return super().read(path, offset, length)

    large = LargeDisk()
    large.nodes = disk.nodes
    expect_damage(reopen(large), "outputs/1.0", "surplus")


@pytest.mark.parametrize("keys", [None, OLD])
def test_files_in_the_wrong_place_are_damage(keys: Keys | None) -> None:
    disk, store = make_released(keys)
    first, second = paths(disk, 1), paths(disk, 2)
    for path, other in ((first[0], second[0]), (first[1], second[1]), (first[0], first[1]), (first[1], first[0])):
        expect_damage(reopen(changed(disk, path, content(disk, other)), keys), path, "it is the file")
    place = "outputs/consumers/c1.1"
    store.acknowledge_outputs("c2", "1.1", now_ns=0)
    expect_damage(
        reopen(changed(disk, place, content(disk, "outputs/consumers/c2.1")), keys), place, "of consumer 'c2'"
    )
    other_disk = SimulatedDisk()
    other_store = make_store(other_disk, seed=1)
    release(other_store, 1)
    other_store.acknowledge_outputs("c1", "1.1", now_ns=0)
    for path in (first[0], place):
        expect_damage(reopen(changed(disk, path, content(other_disk, path)), keys), path, "belongs to store")


def test_a_part_that_is_missing_is_damage_and_a_part_0_that_is_missing_is_no_release() -> None:
    disk, store = make_released()
    part = paths(disk, 1)[1]
    disk.unlink(part)
    expect_damage(store, part, "it is missing")
    disk, store = make_released()
    part = paths(disk, 2)[1]
    disk.unlink("outputs/2.0")
    assert store.output_epochs() == [1] and [batch.epoch for batch in store.read_outputs()] == [1, 1]
    assert store.verify().is_whole and store.verify().unreferenced == [part]


def test_parts_of_two_tries_never_make_a_release() -> None:
    """Under the id of the first, and a right digest, but with other words about the release."""
    disk, store = make_released()
    path = paths(disk, 1)[1]
    body = msgspec.msgpack.decode(content(disk, path)[24:-32])
    for change in ({"created_ns": 7}, {"counts": [2, 1, 0]}, {"after": 0, "previous": [0, 1]}, {"root": root_of(9)}):
        forged = changed(disk, path, seal(b"OUTP", canonical.encode(body | change)))
        expect_damage(reopen(forged), path, "differs from that of outputs/1.0")
    assert store.verify().is_whole


def test_what_cannot_be_is_damage_also_under_a_right_digest() -> None:
    disk, _ = make_released()
    path = "outputs/1.0"
    body = msgspec.msgpack.decode(content(disk, path)[24:-32])
    good = msgspec.msgpack.decode(body["data"])
    impossible: list[object] = [
        [["a/1", 1, "t", b"", 0]] * 2,
        good[::-1],
        [good[0], good[0]],
        good[:1],
        [[]],
        7,
        [[*good[0], 1], good[1]],
    ]
    for outputs in impossible:
        forged = seal(b"OUTP", canonical.encode(body | {"data": canonical.encode(outputs)}))
        expect_damage(reopen(changed(disk, path, forged)), path)
    changes: list[dict[str, object]] = [
        {"after": 1},
        {"after": -1},
        {"previous": [1, 0]},
        {"previous": [0, -1]},
        {"counts": []},
        {"counts": [-1]},
        {"root": "x"},
        {"later": 1},
    ]
    for change in changes:
        expect_damage(reopen(changed(disk, path, seal(b"OUTP", canonical.encode(body | change)))), path)
    expect_damage(reopen(changed(disk, path, seal(b"PROB", canonical.encode(body)))), path, "kind")
    place = "outputs/consumers/c1.1"
    body = msgspec.msgpack.decode(content(disk, place)[24:-32])
    expect_damage(
        reopen(changed(disk, place, seal(b"OCUR", canonical.encode(body | {"cursor": "x"})))), place, "no cursor"
    )


def test_later_versions_are_refused_not_called_damaged() -> None:
    disk, _ = make_released()
    for path in paths(disk, 1):
        data = content(disk, path)
        later = data[:12] + (2).to_bytes(4, "little") + data[16:-32]
        with pytest.raises(StoreError, match="format version 2") as caught:
            reopen(changed(disk, path, later + blake3(later).digest())).read_release(1)
        assert not isinstance(caught.value, DamagedDataError)


def test_damage_to_a_release_is_its_readers_to_find_and_holds_up_nobody_else() -> None:
    disk, store = make_released()
    put_file(disk, "outputs/1.0", b"damaged")
    put_file(disk, "outputs/2.0", b"damaged")
    put_file(disk, "outputs/consumers/c1.1", b"damaged")
    other = Store(disk, store.store_id, random_bytes=seeded_bytes(1))
    for epoch in (1, 2, 3, 4, 5):
        release(other, epoch)
    with pytest.raises(DamagedDataError, match=r"outputs/1\.0 is damaged"):
        list(other.read_outputs())
    with pytest.raises(DamagedDataError, match=r"consumers/c1\.1"):
        other.delete_outputs(now_ns=CREATED_NS, age_ns_min=0)
    assert other.acknowledge_outputs("c1", "4.3", now_ns=0).cursor == "4.3"
    other.delete_outputs(now_ns=CREATED_NS, age_ns_min=0)
    assert other.output_epochs() == [5] and other.verify().is_whole


def test_who_has_read_a_release_before_it_was_damaged_reads_on() -> None:
    """The next one says how many outputs it had. Who gives a larger number passes over what is lost."""
    disk, store = make_released()
    release(store, 3)
    put_file(disk, "outputs/2.0", b"damaged")
    for cursor in ("1.3", "2.0", "2.2"):
        with pytest.raises(DamagedDataError, match=r"outputs/2\.0 is damaged"):
            list(store.read_outputs(cursor))
    for cursor in ("2.3", "2.99"):
        assert [batch.epoch for batch in store.read_outputs(cursor)] == [3, 3]
    release(store, 5, after=1)
    found = list(store.read_outputs("3.3"))
    assert found[0].undone == RevertedEpochs(1, (2, 3)) and store.read_release(5).outputs == make_outputs(5)
    put_file(disk, "outputs/5.0", b"damaged")
    with pytest.raises(DamagedDataError, match=r"outputs/5\.0 is damaged"):
        list(store.read_outputs("5.3"))


def test_files_that_nobody_knows_are_found() -> None:
    for path in (
        "outputs/x",
        "outputs/0.0",
        "outputs/1.1",
        "outputs/01.0",
        "outputs/consumers/x",
        "outputs/consumers/c.0",
    ):
        disk, store = make_released()
        put_file(disk, path, b"")
        assert [found.path for found in store.verify().findings] == [path]


def test_outputs_may_be_deleted_while_they_are_verified() -> None:
    for moment in range(300):
        disk, store = make_released()
        count = 0

        def act(name: str, disk: SimulatedDisk = disk, store: Store = store, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count == moment:
                disk.on_call = lambda name: None
                store.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0)
                store.acknowledge_outputs("c1", "2.1", now_ns=0)

        disk.on_call = act
        assert store.verify().findings == [], moment
        if count < moment:
            return
    raise AssertionError("the verification makes more calls than expected")


# -- a stranger's reader, from docs/snapshot-format.md ----------------------------------------------------------------


def read_stranger(data: bytes) -> tuple[bytes, dict[str, Any]]:
    magic, kind, version, length = struct.unpack_from("<8s4sIQ", data)
    assert (magic, version, len(data)) == (b"SNAPLINE", 1, 24 + length + 32)
    assert blake3(data[:-32]).digest() == data[-32:]
    return kind, msgspec.msgpack.decode(data[24:-32])


def test_a_stranger_reads_outputs_from_the_page() -> None:
    disk, store = make_released()
    for epoch, previous in ((1, [0, 0]), (2, [1, 3])):
        kind, body = read_stranger(content(disk, f"outputs/{epoch}.0"))
        datas, random = [body.pop("data")], body["release"]
        wanted = {
            "after": epoch - 1,
            "counts": [2, 1],
            "created_ns": CREATED_NS,
            "epoch": epoch,
            "key": "",
            "previous": previous,
            "release": random,
            "root": root_of(epoch),
            "store": store.store_id,
        }
        assert kind == b"OUTP" and body == wanted | {"part": 0} and len(random) == 32
        kind, body = read_stranger(content(disk, f"outputs/{epoch}.1.{random}"))
        datas.append(body.pop("data"))
        assert kind == b"OUTP" and body == wanted | {"part": 1}
        found = [each for data in datas for each in msgspec.msgpack.decode(data)]
        assert found == [[x.agent, x.number, x.topic, x.payload, x.emitted_ns] for x in make_outputs(epoch)]
    place = {"acknowledged_ns": 5, "consumer": "c1", "cursor": "1.2", "store": store.store_id}
    assert read_stranger(content(disk, "outputs/consumers/c1.1")) == (b"OCUR", place)


# -- encryption -------------------------------------------------------------------------------------------------------

SECRET = make_output("secret-agent", 77)


def test_encrypted_outputs_show_nothing_of_what_they_say() -> None:
    disk, store = make_released(OLD)
    store.release_outputs(3, root_of(3), 2, [SECRET], created_ns=0)
    for path in disk.files():
        for words in (b"secret-agent", SECRET.payload, b"news"):
            assert words not in content(disk, path)
    assert reopen(disk, OLD).read_release(3).outputs == [SECRET]
    assert next(each.outputs for each in reopen(disk, OLD).read_outputs("1.1")) == make_outputs(1)[1:2]


def test_an_encrypted_part_opens_in_its_own_place_alone() -> None:
    disk, _ = make_released(OLD)
    path = "outputs/1.0"
    body = msgspec.msgpack.decode(content(disk, path)[24:-32])
    other = msgspec.msgpack.decode(content(disk, paths(disk, 1)[1])[24:-32])
    for change in (
        {"created_ns": 7},
        {"root": root_of(9)},
        {"release": "d" * 32},
        {"data": other["data"]},
        {"data": b""},
    ):
        forged = changed(disk, path, seal(b"OUTP", canonical.encode(body | change)))
        expect_damage(reopen(forged, OLD), path, "does not open under its key")


def test_kinds_of_stores_are_kept_apart() -> None:
    disk, _ = make_released(OLD)
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        reopen(disk).read_release(1)
    plain, _ = make_released()
    with pytest.raises(StoreError, match="holds packs, batches, outputs or a shelf, but no keys"):
        reopen(plain, OLD)
    forged = changed(disk, "outputs/1.0", seal(b"OUTP", read_plain(plain, disk)))
    with pytest.raises(StoreError, match="not encrypted, and there is a key"):
        reopen(forged, OLD).read_release(1)


def read_plain(plain: SimulatedDisk, encrypted: SimulatedDisk) -> bytes:
    """The body of a plain part, as of the encrypted store."""
    _, body = read_stranger(content(plain, "outputs/1.0"))
    _, other = read_stranger(content(encrypted, "outputs/1.0"))
    return canonical.encode(body | {"store": other["store"]})


def test_keys_of_outputs_are_rotated_and_kept_while_they_are_needed() -> None:
    disk, store = make_released(OLD)
    assert key_records.rotate(disk, store.store_id, OLD, NEW) == len(list_keys(disk)) == 2
    assert reopen(disk, NEW).read_release(1).outputs == make_outputs(1)
    other = Store.open("simulated", disk=disk, keys=NEW)
    release(other, 3)
    before = set(list_keys(disk))
    assert other.delete_unneeded_keys() == []
    other.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0)
    assert len(other.delete_unneeded_keys()) == 1 and len(set(list_keys(disk))) == len(before) - 1
    assert reopen(disk, NEW).read_release(3).outputs == make_outputs(3)

"""The files of host logs: every byte is under a digest, a file belongs to one place, and where there is a key nothing shows."""

import re
import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from tests.storage.log.logging_hosts import LOG, OTHER, append, make_batch
from tests.storage.making import make_store, seeded_bytes
from tests.storage.protecting import NEW, OLD, content, put_file
from tests.storage.simulated_disk import Inode, SimulatedDisk

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk.record import canonical, finding_of, seal
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import Keys
from snapline.storage.keys.key_records import list_keys
from snapline.storage.log.log_record import BATCH_BYTES_MAX, LogBatch, LoggedInput, LogName, encode_seal, entry_path
from snapline.storage.store.store import Store

SECRET = LogBatch([LoggedInput("secret-agent", 77, "secret-client", "secret key", b"secret payload", 0)])


def make_log(keys: Keys | None = None) -> tuple[SimulatedDisk, Store]:
    """Batches 1 and 2, the seal 3."""
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes())
    for number in (1, 2):
        append(store, number)
    store.seal_log(LOG)
    return disk, store


def reopen(disk: SimulatedDisk, keys: Keys | None = None) -> Store:
    return Store.open("simulated", disk=disk, keys=keys)


def changed(disk: SimulatedDisk, path: str, data: bytes) -> SimulatedDisk:
    other = SimulatedDisk()
    other.nodes = disk.nodes | {path: Inode(data, data)}
    return other


def expect_damage(store: Store, number: int, words: str = "is damaged") -> None:
    with pytest.raises(DamagedDataError, match=words) as caught:
        store.read_batch(LOG, number)
    finding = finding_of(caught.value)
    assert finding is not None and finding.path == f"log/1/h1-1/{number}"
    assert finding.path in {found.path for found in store.verify().findings}


@pytest.mark.parametrize("keys", [None, OLD])
def test_no_flipped_bit_is_ever_read(keys: Keys | None) -> None:
    disk, _ = make_log(keys)
    for number in (1, 2, 3):
        path = entry_path(LOG, number)
        data = content(disk, path)
        for position in range(0, len(data), 3):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            expect_damage(reopen(changed(disk, path, bytes(flipped)), keys), number)


def test_truncated_and_longer_files_are_damage() -> None:
    disk, _ = make_log()
    for number in (1, 3):
        path = entry_path(LOG, number)
        data = content(disk, path)
        for length in range(0, len(data), 5):
            expect_damage(reopen(changed(disk, path, data[:length])), number, "truncated")
        expect_damage(reopen(changed(disk, path, data + b"x")), number, "surplus")


def test_too_large_files_are_not_read() -> None:
    disk, _ = make_log()

    class LargeDisk(SimulatedDisk):
        def size(self, path: str) -> int:
            return BATCH_BYTES_MAX + 1 if path.endswith("/1") else super().size(path)

        def read(self, path: str, offset: int, length: int) -> bytes:
            assert not path.endswith("/1")
            return super().read(path, offset, length)

    large = LargeDisk()
    large.nodes = disk.nodes
    expect_damage(reopen(large), 1, "surplus")


@pytest.mark.parametrize("keys", [None, OLD])
def test_files_in_the_wrong_place_are_damage(keys: Keys | None) -> None:
    """Of another number, log or store; seals in the place of the mark, and the mark in the place of a seal."""
    disk, store = make_log(keys)
    for log in (OTHER, LogName(1, "h1", 2), LogName(2, "h1", 1), LogName(1, "h2", 1)):
        append(store, 1, log=log)
        expect_damage(
            reopen(changed(disk, entry_path(LOG, 1), content(disk, entry_path(log, 1))), keys), 1, "it is the file"
        )
    for number, other in ((1, 2), (2, 1), (3, "sealed"), (3, "sealing")):
        expect_damage(
            reopen(changed(disk, entry_path(LOG, number), content(disk, entry_path(LOG, other))), keys),
            number,
            "it is the file",
        )
    for mark, other in (("sealing", 1), ("sealing", 3), ("sealing", "sealed"), ("sealed", "sealing")):
        moved = changed(disk, entry_path(LOG, mark), content(disk, entry_path(LOG, other)))
        assert [found.path for found in reopen(moved, keys).verify().findings] == [f"log/1/h1-1/{mark}"]
    other_disk = SimulatedDisk()
    append(make_store(other_disk, seed=1), 1)
    expect_damage(
        reopen(changed(disk, entry_path(LOG, 1), content(other_disk, entry_path(LOG, 1))), keys), 1, "belongs to store"
    )


def test_what_cannot_be_is_damage_also_under_a_right_digest() -> None:
    disk, store = make_log()
    path = entry_path(LOG, 1)
    body = msgspec.msgpack.decode(content(disk, path)[24:-32])
    impossible: list[object] = [
        [["a/1", 1, "c", "k", b"", 0]],
        [["a", 0, "c", "k", b"", 0]],
        [["a", 1, "c", "k", b""]],
        [[]],
        7,
    ]
    for inputs in impossible:
        data = canonical.encode({"inputs": inputs})
        expect_damage(reopen(changed(disk, path, seal(b"LBAT", canonical.encode(body | {"data": data})))), 1)
    for wrong in (b"", b"\xc1", canonical.encode({"inputs": [], "journal": []})):
        expect_damage(reopen(changed(disk, path, seal(b"LBAT", canonical.encode(body | {"data": wrong})))), 1)
    expect_damage(reopen(changed(disk, path, seal(b"PROB", canonical.encode(body)))), 1, "kind")
    assert store.verify().is_whole


def test_later_versions_are_refused_not_called_damaged() -> None:
    disk, _ = make_log()
    for number in (1, 3):
        path = entry_path(LOG, number)
        data = content(disk, path)
        later = data[:12] + (3).to_bytes(4, "little") + data[16:-32]
        with pytest.raises(StoreError, match="format version 3") as caught:
            reopen(changed(disk, path, later + blake3(later).digest())).read_batch(LOG, number)
        assert not isinstance(caught.value, DamagedDataError)


def test_a_batch_that_is_damaged_in_its_own_place_leaves_its_outcome_open() -> None:
    """It may be the very batch: who said "not taken" would be wrong when it is mended."""
    disk, store = make_log()
    prepared = store.prepare_batch(OTHER, 1, make_batch(1))
    assert store.append_batch(prepared)
    put_file(disk, prepared.path, prepared.data[:-1] + b"x")
    with pytest.raises(DamagedDataError, match=re.escape(prepared.path)):
        store.append_batch(prepared)
    put_file(disk, prepared.path, prepared.data)
    assert store.append_batch(prepared)


def test_damage_does_not_keep_a_log_from_being_sealed() -> None:
    """A damaged batch is no seal, and a damaged mark is a mark."""
    disk, store = make_log()
    for number in (1, 2):
        append(store, number, log=OTHER)
    put_file(disk, entry_path(OTHER, 2), seal(b"LSEA", b"") + b"x")
    put_file(disk, entry_path(OTHER, "sealing"), b"")
    store.seal_log(OTHER)
    assert store.read_logs()[OTHER] == [1, 2, 3] and store.read_batch(OTHER, 3) is None
    assert not append(store, 3, log=OTHER)
    put_file(disk, entry_path(LOG, 3), content(disk, entry_path(LOG, 3))[:-1])
    disk.unlink(entry_path(LOG, "sealed"))
    store.seal_log(LOG)
    assert store.read_logs()[LOG] == [1, 2, 3, 4] and store.read_batch(LOG, 4) is None


def test_only_what_begins_as_a_batch_is_deleted() -> None:
    disk, store = make_log()
    stray = entry_path(LOG, 1)
    put_file(disk, stray, encode_seal(LOG, 1, store_id=store.store_id))
    assert store.delete_batches([(LOG, 1), (LOG, 2), (LOG, 3)]) == ["log/1/h1-1/2"]
    put_file(disk, stray, b"damaged")
    assert store.delete_batches([(LOG, 1)]) == []


# -- a stranger's reader, from docs/snapshot-format.md ----------------------------------------------------------------


def read_stranger(data: bytes) -> tuple[bytes, dict[str, Any]]:
    magic, kind, version, length = struct.unpack_from("<8s4sIQ", data)
    assert (magic, version, len(data)) == (b"SNAPLINE", 1, 24 + length + 32)
    assert blake3(data[:-32]).digest() == data[-32:]
    return kind, msgspec.msgpack.decode(data[24:-32])


def test_a_stranger_reads_a_log_from_the_page() -> None:
    disk, store = make_log()
    place = {"host": "h1", "plan": 1, "start": 1, "store": store.store_id}
    for number in (1, 2):
        kind, body = read_stranger(content(disk, f"log/1/h1-1/{number}"))
        data, nonce = body.pop("data"), body.pop("nonce")
        assert kind == b"LBAT" and body == {**place, "number": number, "key": ""} and len(nonce) == 32
        wanted = [[x.agent, x.number, x.client, x.key, x.payload, x.admitted_ns] for x in make_batch(number).inputs]
        assert msgspec.msgpack.decode(data) == {"inputs": wanted}
    for entry in ("3", "sealing", "sealed"):
        assert read_stranger(content(disk, f"log/1/h1-1/{entry}")) == (b"LSEA", {**place, "entry": entry})


def test_seals_are_the_same_bytes_whoever_writes_them() -> None:
    for seed in (1, 2):
        disk = SimulatedDisk()
        store = make_store(disk)
        Store(disk, store.store_id, random_bytes=seeded_bytes(seed)).seal_log(LOG)
        assert content(disk, entry_path(LOG, 1)) == encode_seal(LOG, 1, store_id=store.store_id)


TEXT = st.text(max_size=8)
IDS = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
INPUTS = st.builds(
    LoggedInput,
    agent=IDS,
    number=st.integers(1, 2**63 - 1),
    client=TEXT,
    key=TEXT,
    payload=st.binary(max_size=64),
    admitted_ns=st.integers(-(2**63), 2**63 - 1),
)


@pytest.mark.parametrize("keys", [None, OLD])
def test_any_batch_is_read_as_it_was_appended(keys: Keys | None) -> None:
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes())
    reader = reopen(disk, keys)
    numbers = iter(range(1, 10_000))

    @given(st.lists(INPUTS, max_size=5), IDS, st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1))
    @settings(max_examples=25, deadline=None)
    def run(inputs: list[LoggedInput], host: str, start: int, plan: int) -> None:
        log, number = LogName(plan, host, start), next(numbers)
        assert store.append_batch(store.prepare_batch(log, number, LogBatch(inputs)))
        assert reader.read_batch(log, number) == LogBatch(inputs)
        assert number in reader.read_logs()[log]

    run()


# -- keys -------------------------------------------------------------------------------------------------------------


def test_an_encrypted_log_shows_nothing_of_what_it_says() -> None:
    disk, store = make_log(OLD)
    reader = reopen(disk, OLD)
    assert [reader.read_batch(LOG, number) for number in (1, 2, 3)] == [make_batch(1), make_batch(2), None]
    assert reader.verify().is_whole
    plain = make_log()[1].prepare_batch(LOG, 4, SECRET).data
    sealed = store.prepare_batch(LOG, 4, SECRET).data
    for secret in (b"secret-agent", b"secret-client", b"secret key", b"secret payload", b"inputs"):
        assert secret in plain and secret not in sealed


def test_no_two_batches_have_one_key() -> None:
    """The same batch, prepared again, would else be sealed twice under one key and nonce."""
    _, store = make_log(OLD)
    datas = {store.prepare_batch(LOG, 3, make_batch(3)).data for _ in range(20)}
    nonces = {msgspec.msgpack.decode(data[24:-32])["nonce"] for data in datas}
    assert len(datas) == len(nonces) == 20


def test_an_encrypted_batch_opens_in_its_place_only() -> None:
    disk, store = make_log(OLD)
    for number, other in ((1, 2), (2, 1)):
        body = msgspec.msgpack.decode(content(disk, entry_path(LOG, other))[24:-32]) | {"number": number}
        forged = changed(disk, entry_path(LOG, number), seal(b"LBAT", canonical.encode(body)))
        expect_damage(reopen(forged, OLD), number, "moved, or changed")
    append(store, 1, log=OTHER)
    body = msgspec.msgpack.decode(content(disk, entry_path(OTHER, 1))[24:-32])
    for moved in (body, body | {"plan": 1, "host": "h1", "start": 1}):
        forged = changed(disk, entry_path(LOG, 1), seal(b"LBAT", canonical.encode(moved)))
        expect_damage(reopen(forged, OLD), 1)
    body = msgspec.msgpack.decode(content(disk, entry_path(LOG, 1))[24:-32])
    for fields in ({"data": body["data"][:-1] + b"x"}, {"nonce": "0" * 32}):
        forged = changed(disk, entry_path(LOG, 1), seal(b"LBAT", canonical.encode(body | fields)))
        expect_damage(reopen(forged, OLD), 1, "moved, or changed")
    forged = changed(disk, entry_path(LOG, 1), seal(b"LBAT", canonical.encode(body | {"key": "c" * 32})))
    with pytest.raises(DamagedDataError, match="keys/cccc"):
        reopen(forged, OLD).read_batch(LOG, 1)


def test_a_plain_batch_in_an_encrypted_store_is_refused() -> None:
    """Who can write, and has no key, adds inputs with right digests."""
    disk, store = make_log(OLD)
    assert append(Store(disk, store.store_id, random_bytes=seeded_bytes(8)), 1, log=OTHER)
    with pytest.raises(StoreError, match="not encrypted"):
        reopen(disk, OLD).read_batch(OTHER, 1)
    assert [found.path for found in reopen(disk, OLD).verify().findings] == [entry_path(OTHER, 1)]


def test_without_the_key_an_encrypted_batch_is_not_read() -> None:
    disk, store = make_log(OLD)
    with pytest.raises(StoreError, match="SNAPLINE_STORE_KEY"):
        Store(disk, store.store_id).read_batch(LOG, 1)


def test_a_plain_log_is_refused_with_a_key_and_a_seal_is_not() -> None:
    """A seal may be the first file of an encrypted store, before any key."""
    disk = SimulatedDisk()
    store = make_store(disk)
    store.seal_log(OTHER)
    assert reopen(disk, OLD).read_batch(OTHER, 1) is None
    append(store, 1)
    with pytest.raises(StoreError, match="batches, outputs or a shelf, but no keys"):
        reopen(disk, OLD)


def test_a_rotated_store_reads_its_logs_and_goes_on() -> None:
    disk, store = make_log(OLD)
    assert key_records.rotate(disk, store.store_id, OLD, NEW) == len(list_keys(disk)) == 2
    reader = reopen(disk, NEW)
    assert reader.read_batch(LOG, 1) == make_batch(1)
    assert append(reader, 1, log=OTHER) and reader.read_batch(OTHER, 1) == make_batch(1)


def test_keys_that_batches_name_are_kept() -> None:
    disk, store = make_log(OLD)
    append(store, 1, log=OTHER)
    assert store.delete_unneeded_keys() == []
    disk.unlink(entry_path(OTHER, 1))
    assert len(store.delete_unneeded_keys()) == 1
    assert reopen(disk, OLD).read_batch(LOG, 2) == make_batch(2)
    put_file(disk, entry_path(LOG, 1), b"damaged")
    disk.unlink(entry_path(LOG, 2))
    assert store.delete_unneeded_keys() == [], "nobody knows which key it needs"

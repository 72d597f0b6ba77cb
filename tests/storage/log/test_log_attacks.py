"""Somebody who can write to the store and has no key: whatever he does to host logs is found before anything in them is believed."""

from collections.abc import Callable

import msgspec
import pytest
from tests.storage.log.logging_hosts import LOG, OTHER, append, make_batch
from tests.storage.making import seeded_bytes
from tests.storage.protecting import NEW, OLD, content, put_file
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk.record import canonical, digest_of, seal
from snapline.storage.keys.key_files import Keys, make_signing_key
from snapline.storage.log import log_files
from snapline.storage.log.log_files import DELETIONS_KIND, first_missing, join
from snapline.storage.log.log_record import LogName, UnsignedBatchError, encode_seal, entry_path
from snapline.storage.store.store import Store

SIGNER, STRANGER = make_signing_key(b"s" * 32), make_signing_key(b"t" * 32)
SIGNED = Keys(signing=SIGNER)
BOTH = Keys(OLD.wrapping, SIGNER)
GUARDED = pytest.mark.parametrize("keys", [SIGNED, OLD, BOTH], ids=["signed", "encrypted", "both"])
HOST = Keys(verifying=(SIGNER.verify_key(),))


def make_log(keys: Keys | None, *, last: int = 4) -> tuple[SimulatedDisk, Store]:
    """Batches 1 to `last`, and a sealed log."""
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, keys=keys, random_bytes=seeded_bytes())
    for number in range(1, last + 1):
        assert append(store, number)
    store.seal_log(LOG)
    return disk, store


def reopen(disk: SimulatedDisk, keys: Keys | None) -> Store:
    return Store.open("simulated", disk=disk, keys=keys)


def remove(disk: SimulatedDisk, number: int) -> None:
    disk.unlink(entry_path(LOG, number))


def missing(store: Store, newest: int = 0) -> dict[LogName, int]:
    """As a plan's hosts look."""
    logs = store.read_logs()
    batches = {log: [n for n in numbers if store.read_batch(log, n) is not None] for log, numbers in logs.items()}
    return store.missing_batches(batches, {LOG: newest} if newest else {})


def found_by_verify(disk: SimulatedDisk, keys: Keys | None) -> list[str]:
    return [finding.path for finding in reopen(disk, keys).verify().findings]


# -- another batch, or the same one elsewhere -------------------------------------------------------------------------


def of_a_store_without_keys(disk: SimulatedDisk, store: Store) -> bytes:
    other = Store(disk, store.store_id, random_bytes=seeded_bytes(5))
    return other.prepare_batch(LOG, 2, make_batch(9)).data


def of_a_host_that_nobody_knows(disk: SimulatedDisk, store: Store) -> bytes:
    """It certifies itself, with a key of its own."""
    twin = SimulatedDisk()
    keys = Keys(NEW.wrapping if store.guard is not None and store.guard.encrypts else (), STRANGER)
    Store.create("simulated", disk=twin, keys=keys, random_bytes=seeded_bytes())
    other = Store.open("simulated", disk=twin, keys=keys)
    other.store_id = other._log_writer._store_id = store.store_id
    return other.prepare_batch(LOG, 2, make_batch(9)).data


def with_other_data(disk: SimulatedDisk, store: Store) -> bytes:
    return resealed(content(disk, entry_path(LOG, 2)), data=canonical.encode(make_batch(9)))


def with_the_place_of_another(disk: SimulatedDisk, store: Store) -> bytes:
    """Batch 3 says that it is batch 2."""
    return resealed(content(disk, entry_path(LOG, 3)), number=2)


def of_another_log(disk: SimulatedDisk, store: Store) -> bytes:
    assert append(store, 2, log=OTHER)
    return resealed(content(disk, entry_path(OTHER, 2)), host=LOG.host, plan=LOG.plan, start=LOG.start)


def as_it_stood(disk: SimulatedDisk, store: Store) -> bytes:
    """As it was, of another log: nothing in it is changed."""
    assert append(store, 2, log=OTHER)
    return content(disk, entry_path(OTHER, 2))


def resealed(data: bytes, /, **fields: object) -> bytes:
    """The record with these fields, under a right digest."""
    body = canonical.encode(msgspec.msgpack.decode(data[24:-32]) | fields)
    head = data[:16] + len(body).to_bytes(8, "little") + body
    return head + digest_of(head)


FORGERIES: list[Callable[[SimulatedDisk, Store], bytes]] = [
    of_a_store_without_keys,
    of_a_host_that_nobody_knows,
    with_other_data,
    with_the_place_of_another,
    of_another_log,
    as_it_stood,
]


@GUARDED
@pytest.mark.parametrize("forge", FORGERIES)
def test_no_other_batch_is_believed(keys: Keys, forge: Callable[[SimulatedDisk, Store], bytes]) -> None:
    disk, store = make_log(keys)
    put_file(disk, entry_path(LOG, 2), forge(disk, store))
    with pytest.raises(StoreError):
        reopen(disk, keys).read_batch(LOG, 2)
    assert found_by_verify(disk, keys) != []


def test_a_forged_batch_is_no_damage_for_which_an_epoch_is_condemned() -> None:
    """An older epoch would ask for the same batch."""
    disk, store = make_log(SIGNED)
    for forge in (of_a_store_without_keys, of_a_host_that_nobody_knows, with_other_data):
        put_file(disk, entry_path(LOG, 2), forge(disk, store))
        with pytest.raises(UnsignedBatchError, match=r"log/1/h1-1/2 .*remove the file.*--drop-inputs") as caught:
            reopen(disk, SIGNED).read_batch(LOG, 2)
        assert not isinstance(caught.value, DamagedDataError)


@GUARDED
def test_a_batch_that_is_added_behind_the_end_is_not_believed(keys: Keys) -> None:
    disk, store = make_log(keys)
    put_file(disk, entry_path(LOG, 9), resealed(of_a_store_without_keys(disk, store), number=9))
    with pytest.raises(StoreError):
        reopen(disk, keys).read_batch(LOG, 9)
    assert entry_path(LOG, 9) in found_by_verify(disk, keys)


# -- what is taken away -----------------------------------------------------------------------------------------------


@GUARDED
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_batch_below_another_cannot_be_taken_away(keys: Keys, number: int) -> None:
    disk, _ = make_log(keys)
    remove(disk, number)
    assert missing(reopen(disk, keys)) == {LOG: number}
    assert found_by_verify(disk, keys) == [entry_path(LOG, number)]


@GUARDED
def test_a_seal_in_the_place_of_a_batch_is_no_batch(keys: Keys) -> None:
    disk, store = make_log(keys)
    put_file(disk, entry_path(LOG, 2), encode_seal(LOG, 2, store_id=store.store_id))
    assert missing(reopen(disk, keys)) == {LOG: 2}
    assert found_by_verify(disk, keys) == [entry_path(LOG, 2)]


@GUARDED
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_the_end_cannot_be_cut_off_below_what_the_coordinator_knows(keys: Keys, kept: int) -> None:
    disk, store = make_log(keys)
    for number in range(kept + 1, 5):
        put_file(disk, entry_path(LOG, number), encode_seal(LOG, number, store_id=store.store_id))
    assert missing(reopen(disk, keys), newest=kept) == {}, "nobody knows of more"
    assert missing(reopen(disk, keys), newest=4) == {LOG: kept + 1}


@GUARDED
def test_a_whole_log_cannot_be_taken_away(keys: Keys) -> None:
    disk, _ = make_log(keys)
    for entry in list(disk.list_directory(LOG.directory)):
        disk.unlink(f"{LOG.directory}/{entry.name}")
    assert missing(reopen(disk, keys), newest=4) == {LOG: 1}


@GUARDED
def test_what_the_collector_has_deleted_is_not_missing(keys: Keys) -> None:
    disk, store = make_log(keys)
    assert len(store.delete_batches([(LOG, 1), (LOG, 3)])) == 2
    assert missing(reopen(disk, keys), newest=4) == {}
    assert len(reopen(disk, keys).delete_batches([(LOG, number) for number in (2, 4)])) == 2
    assert missing(reopen(disk, keys), newest=4) == {} == missing(reopen(disk, keys))
    assert found_by_verify(disk, keys) == []
    assert len(log_files.find_deletions(disk)) == 1, "one record says all"
    assert missing(reopen(disk, keys), newest=5) == {LOG: 5}


@GUARDED
def test_a_deleted_batch_that_is_brought_back_counts_for_nothing(keys: Keys) -> None:
    """Nor does one that a crash has left; the collector removes it with the next ones."""
    disk, store = make_log(keys)
    data = content(disk, entry_path(LOG, 2))
    store.delete_batches([(LOG, 1), (LOG, 2)])
    put_file(disk, entry_path(LOG, 2), data)
    other = reopen(disk, keys)
    assert other.read_logs() == {LOG: [2, 3, 4, 5]} and other.exclude_deleted(other.read_logs()) == {LOG: [3, 4, 5]}
    assert missing(other, newest=4) == {} and found_by_verify(disk, keys) == []
    assert len(other.delete_batches([(LOG, 2), (LOG, 3)])) == 2
    assert other.exclude_deleted(other.read_logs()) == other.read_logs() == {LOG: [4, 5]}


@GUARDED
def test_nobody_else_can_say_what_was_deleted(keys: Keys) -> None:
    disk, store = make_log(keys)
    remove(disk, 2)
    body = canonical.encode({"logs": {LOG.directory: [(1, 9)]}, "store": store.store_id, "tag": bytes(64)})
    put_file(disk, "log/deleted." + "a" * 32, seal(DELETIONS_KIND, body))
    with pytest.raises(StoreError, match="was not written by somebody with the key"):
        missing(reopen(disk, keys))
    assert "log/deleted." + "a" * 32 in found_by_verify(disk, keys)


@GUARDED
def test_a_record_of_deletions_of_another_store_counts_for_nothing(keys: Keys) -> None:
    disk, _ = make_log(keys)
    other, store = SimulatedDisk(), None
    store = Store.create("simulated", disk=other, keys=keys, random_bytes=seeded_bytes(1))
    for number in (1, 2, 3):
        append(store, number)
    store.delete_batches([(LOG, 1), (LOG, 2)])
    (path,) = log_files.find_deletions(other)
    put_file(disk, path, content(other, path))
    with pytest.raises(StoreError, match="belongs to store"):
        missing(reopen(disk, keys))


@GUARDED
def test_deletions_are_written_down_before_anything_is_deleted(keys: Keys) -> None:
    """Crash at every call: what is gone was said to be, and nothing that an older record said is forgotten."""
    disk, store = make_log(keys)
    store.delete_batches([(LOG, 1)])
    for calls in range(200):
        copy = SimulatedDisk()
        copy.nodes, copy.durable = dict(disk.nodes), dict(disk.nodes)
        copy.crash_after = len(copy.calls) + calls
        try:
            reopen(copy, keys).delete_batches([(LOG, 2), (LOG, 3)])
        except BaseException as error:
            assert type(error).__name__ == "SimulatedCrashError"
        else:
            break
        for image in copy.images():
            assert missing(reopen(image, keys), newest=4) == {}
    else:
        raise AssertionError("too many calls")


def test_a_store_without_keys_writes_what_it_wrote() -> None:
    disk, store = make_log(None)
    data = content(disk, entry_path(LOG, 1))
    assert data[12] == 1 and "signer" not in msgspec.msgpack.decode(data[24:-32])
    store.delete_batches([(LOG, 1)])
    remove(disk, 2)
    assert log_files.find_deletions(disk) == [] and missing(store, newest=4) == {}
    assert found_by_verify(disk, None) == []


# -- certificates -----------------------------------------------------------------------------------------------------


def test_a_host_signs_with_a_key_that_the_coordinator_has_certified_for_this_log() -> None:
    disk, coordinator = make_log(SIGNED)
    host = reopen(disk, HOST)
    assert len(host.log_key) == 32 and host.log_key == host.log_key != reopen(disk, HOST).log_key
    certificate = coordinator.certify_log(OTHER, host.log_key)
    assert host.append_batch(host.prepare_batch(OTHER, 1, make_batch(1), certificate))
    assert reopen(disk, HOST).read_batch(OTHER, 1) == make_batch(1) == coordinator.read_batch(OTHER, 1)
    assert coordinator.verify().is_whole
    assert (content(disk, entry_path(OTHER, 1))).count(certificate) == 1


def test_a_batch_that_nobody_would_believe_is_not_written() -> None:
    """Without a certificate, or with one for another log or of another host."""
    disk, coordinator = make_log(SIGNED)
    host, other = reopen(disk, HOST), reopen(disk, HOST)
    for certificate in (
        b"",
        bytes(64),
        coordinator.certify_log(LOG, host.log_key),
        coordinator.certify_log(OTHER, other.log_key),
    ):
        with pytest.raises(StoreError, match="has not certified this host's key"):
            host.prepare_batch(OTHER, 1, make_batch(1), certificate)


def test_without_a_private_key_nothing_is_certified_and_nothing_deleted() -> None:
    disk, _ = make_log(SIGNED)
    host = reopen(disk, HOST)
    assert host.certify_log(OTHER, host.log_key) == b""
    with pytest.raises(ValueError, match="no key to sign with"):
        host.delete_batches([(LOG, 1)])
    assert reopen(disk, SIGNED).read_batch(LOG, 1) == make_batch(1)
    assert make_log(None)[1].log_key == b"" == make_log(OLD)[1].log_key


# -- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "spans", "newest", "expected"),
    [
        ([], [], 0, 0),
        ([], [], 3, 1),
        ([1, 2, 3], [], 3, 0),
        ([1, 2, 3], [], 4, 4),
        ([3], [(1, 1)], 0, 2),
        ([4], [(1, 3)], 0, 0),
        ([4], [(1, 9)], 9, 0),
        ([2], [], 0, 1),
        ([], [(1, 3)], 5, 4),
    ],
)
def test_the_lowest_number_that_is_neither_there_nor_deleted(
    batches: list[int], spans: list[tuple[int, int]], newest: int, expected: int
) -> None:
    assert first_missing(batches, spans, newest) == expected


def test_ranges_are_joined() -> None:
    spans = join([(5, 6), (1, 2), (3, 3), (8, 8), (2, 4), (8, 9)])
    assert spans == [(1, 6), (8, 9)]
    assert [number for number in range(12) if log_files.holds(spans, number)] == [1, 2, 3, 4, 5, 6, 8, 9]
    assert not log_files.holds([], 1)

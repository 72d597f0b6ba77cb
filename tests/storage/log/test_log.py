"""Host logs as a store shows them: batches are appended, read, sealed away, deleted."""

import errno

import pytest
from tests.storage.log.logging_hosts import LOG, OTHER, append, make_batch
from tests.storage.making import make_store, write_epoch
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError, StoreError, UsageError
from snapline.storage.log.log_record import BATCH_BYTES_MAX, LogBatch, LoggedEntry, LoggedInput, LogName, parse_path
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.store.store import Store


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    return make_store(disk)


def test_a_store_without_logs_has_none(store: Store) -> None:
    assert store.read_logs() == {}
    with pytest.raises(NotFoundError, match="log/1/h1-1/1 is not in the store"):
        store.read_batch(LOG, 1)
    assert store.delete_batches([(LOG, 1)]) == []


def test_what_was_appended_before_the_seal_may_be_repeated(store: Store) -> None:
    """The host was slow to learn that it succeeded."""
    prepared = store.prepare_batch(LOG, 1, make_batch(1))
    assert store.append_batch(prepared)
    store.seal_log(LOG)
    assert store.append_batch(prepared)


def test_who_lists_again_syncs_what_is_new_only(
    store: Store, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old logs are many, and sealed; each sync may be a disk's turn."""
    append(store, 1)
    for number in (1, 2):
        append(store, number, log=OTHER)
    store.seal_log(OTHER)
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    other = Store(disk, store.store_id)
    assert other.read_logs() == {LOG: [1], OTHER: [1, 2, 3]} and synced == [LOG.directory]
    assert other.read_logs() and other.read_batch(LOG, 1) and other.read_batch(OTHER, 1) and synced == [LOG.directory]
    assert Store(disk, store.store_id).read_batch(OTHER, 1) and synced == [LOG.directory, OTHER.directory]


def test_other_logs_are_not_sealed(store: Store) -> None:
    store.seal_log(LOG)
    for log in (LogName(1, "h1", 2), LogName(1, "h2", 1), LogName(2, "h1", 1), LogName(1, "h1-1", 1)):
        assert append(store, 1, log=log)


def test_batches_are_deleted_and_the_highest_number_stays(store: Store) -> None:
    for number in range(1, 6):
        append(store, number)
    assert store.delete_batches([(LOG, 2), (LOG, 4), (LOG, 4), (LOG, 5), (LOG, 9), (OTHER, 1)]) == [
        "log/1/h1-1/2",
        "log/1/h1-1/4",
    ]
    assert store.read_logs() == {LOG: [1, 3, 5]}
    assert store.delete_batches([(LOG, number) for number in range(1, 6)]) == ["log/1/h1-1/1", "log/1/h1-1/3"]
    assert store.read_logs() == {LOG: [5]} and store.read_batch(LOG, 5) == make_batch(5)
    store.seal_log(LOG)
    assert store.read_logs() == {LOG: [5, 6]}
    assert store.delete_batches([(LOG, 5), (LOG, 6)]) == ["log/1/h1-1/5"]
    assert store.read_logs() == {LOG: [6]} and store.read_batch(LOG, 6) is None


def test_temporary_files_of_lower_plans_are_swept() -> None:
    disk = SimulatedDisk(has_unnamed_files=False)
    store = make_store(disk)
    for log in (LOG, OTHER):
        disk.open_temporary("", f"log-{log.plan}-{'a' * 32}")
    assert len(store.verify().unreferenced) == 2 and store.verify().is_whole
    store.delete_unreferenced(begun_below=100)
    store.sweep_checkpoints(plans_below=100)
    assert store.delete_batches([]) == []
    assert store.delete_batches([], plans_below=2) == [f"temporary/log-1-{'a' * 32}"]


def test_what_cannot_be_is_refused(store: Store) -> None:
    good = make_batch(1).inputs[0]
    with pytest.raises(UsageError, match="count from 1"):
        store.prepare_batch(LOG, 0, make_batch(1))
    for log in (LogName(0, "h1", 1), LogName(1, "h/1", 1), LogName(1, "h1", -1), LogName(2**63, "h1", 1)):
        with pytest.raises(UsageError):
            store.prepare_batch(log, 1, make_batch(1))
        with pytest.raises(UsageError):
            store.seal_log(log)
    for wrong in (LoggedInput("a/1", 1, "", "", b"", 0), LoggedInput("a1", 0, "", "", b"", 0)):
        with pytest.raises(UsageError, match="log/1/h1-1/1 cannot be written"):
            store.prepare_batch(LOG, 1, LogBatch([good, wrong]))
    entry = JournalEntry("step", "s")
    for wrong_entry in (LoggedEntry("a/1", 1, b"", 0, b"", entry), LoggedEntry("a1", 0, b"", 0, b"", entry)):
        with pytest.raises(UsageError, match="log/1/h1-1/1 cannot be written"):
            store.prepare_batch(LOG, 1, LogBatch([good], [wrong_entry]))
    with pytest.raises(UsageError, match="make two of it"):
        store.prepare_batch(LOG, 1, LogBatch([LoggedInput("a1", 1, "", "", bytes(BATCH_BYTES_MAX), 0)]))
    assert store.read_logs() == {}


def test_entries_of_turns_stand_beside_inputs_and_are_not_in_the_bytes_of_batches_without(store: Store) -> None:
    """Batches of earlier releases read on, and theirs read ours, as long as nobody has durable turns."""
    both = LogBatch(make_batch(1).inputs, [LoggedEntry("a1", 3, b"seed", 5, b"prefix", JournalEntry("step", "s"))])
    assert store.append_batch(store.prepare_batch(LOG, 1, both)) and store.read_batch(LOG, 1) == both
    assert b"entries" in store.prepare_batch(LOG, 2, both).data
    assert b"entries" not in store.prepare_batch(LOG, 2, make_batch(1)).data


def test_hosts_may_be_called_as_they_like() -> None:
    for name in ("h", "-", "-1", ".", "..", "a-1.b-2", "x" * 128, "0-0"):
        for start in (0, 7, 2**63 - 1):
            log = LogName(3, name, start)
            for entry in (1, 10, 2**63 - 1, "sealing", "sealed"):
                assert parse_path(f"{log.directory}/{entry}") == (log, entry)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "log/1/h1-1/0",
            "log/1/h1-1/seal",
            "log/1/h1-1/sealed1",
            "log/1/sealed",
            "log/1/h1-1/",
            "log/1/h1-1/x",
            "log/1/h1-1/01",
            "log/1/h1-1/-1",
            "log/1/h1-1/1/1",
            f"log/1/h1-1/{2**63}",
        ),
        *("log/1/h1/1", "log/0/h1-1/1", "log/01/h1-1/1", "log/1/h1-01/1", "log/1/-1/1", "log/1/1", "logs/1/h1-1/1"),
        *(f"log/{2**63}/h1-1/1", f"log/1/h1-{2**63}/1", "log/1/h 1-1/1", "log/1/h1-1/1.tmp"),
    ],
)
def test_other_paths_are_none_of_a_log(path: str) -> None:
    assert parse_path(path) is None


def test_a_failed_last_sync_is_made_up_for() -> None:
    """At every call that can fail: the batch is durable when a repetition says so, and it is one batch."""
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        write_epoch(store, 1)
        prepared = store.prepare_batch(LOG, 1, make_batch(1))
        disk.fail_at = len(disk.calls) + moment
        try:
            assert store.append_batch(prepared)
        except StoreError as error:
            assert "cannot write entry 1 of the log of host 'h1', start 1, plan 1" in str(error)
        else:
            assert moment > 9
            return
        disk.fail_at = None
        assert store.append_batch(prepared)
        for image in disk.images():
            assert Store(image, store.store_id).read_batch(LOG, 1) == make_batch(1)
    raise AssertionError("too many calls")


def test_a_full_disk_says_so() -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    append(store, 1)
    disk.fail_at, disk.fail_with = len(disk.calls) + 1, errno.ENOSPC
    with pytest.raises(StoreError, match=r"entry 2 of .* No space left on device; free space"):
        append(store, 2)

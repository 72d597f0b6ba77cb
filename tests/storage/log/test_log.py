"""Host logs as a store shows them: batches are appended, read, sealed away, deleted."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.log.logging_hosts import LOG, OTHER, append, make_batch
from tests.storage.making import make_store, seeded_bytes, write_epoch
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError, StoreError, UsageError
from snapline.storage.disk.local_disk import Disk, LocalDisk
from snapline.storage.disk.object_disk import open_disk
from snapline.storage.log.log_record import BATCH_BYTES_MAX, LogBatch, LoggedEntry, LoggedInput, LogName, parse_path
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.store.store import Store


@pytest.fixture(params=["simulated", "named", "local", "objects"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "local":
        return LocalDisk(tmp_path / "store")
    if request.param == "objects":
        pytest.importorskip("obstore")
        return open_disk(f"memory://{tmp_path.name}-{tmp_path.parent.name}")
    return SimulatedDisk(has_unnamed_files=request.param == "simulated")


@pytest.fixture
def store(disk: Disk) -> Store:
    return make_store(disk)


def test_batches_are_read_as_they_were_appended(store: Store, disk: Disk) -> None:
    for number in (1, 2, 3):
        assert append(store, number)
    assert append(store, 1, log=OTHER)
    other = Store(disk, store.store_id)
    assert other.read_logs() == {LOG: [1, 2, 3], OTHER: [1]}
    assert [other.read_batch(LOG, number) for number in (1, 2, 3)] == [make_batch(number) for number in (1, 2, 3)]
    assert other.read_batch(OTHER, 1) == make_batch(1)


def test_a_store_without_logs_has_none(store: Store) -> None:
    assert store.read_logs() == {}
    with pytest.raises(NotFoundError, match="log/1/h1-1/1 is not in the store"):
        store.read_batch(LOG, 1)
    assert store.delete_batches([(LOG, 1)]) == []


def test_the_next_number_comes_after_tens(store: Store) -> None:
    """Listings are sorted as text."""
    for number in range(1, 12):
        append(store, number)
    store.seal_log(LOG)
    assert store.read_logs() == {LOG: list(range(1, 13))}
    assert store.read_batch(LOG, 12) is None


def test_a_batch_is_appended_again_and_again(store: Store) -> None:
    prepared = store.prepare_batch(LOG, 1, make_batch(1))
    assert [store.append_batch(prepared) for _ in range(3)] == [True, True, True]
    assert store.read_logs() == {LOG: [1]}


def test_the_same_inputs_prepared_twice_are_two_batches(store: Store) -> None:
    """Else a zombie would take the batch of its successor for its own."""
    first, second = (store.prepare_batch(LOG, 1, make_batch(1)) for _ in range(2))
    assert store.append_batch(first) and not store.append_batch(second)
    assert store.append_batch(first)


def test_a_sealed_log_takes_nothing(store: Store) -> None:
    append(store, 1)
    store.seal_log(LOG)
    prepared = store.prepare_batch(LOG, 2, make_batch(2))
    assert [store.append_batch(prepared) for _ in range(2)] == [False, False]
    assert store.read_logs() == {LOG: [1, 2]}
    assert store.read_batch(LOG, 1) == make_batch(1) and store.read_batch(LOG, 2) is None


def test_what_was_appended_before_the_seal_may_be_repeated(store: Store) -> None:
    """The host was slow to learn that it succeeded."""
    prepared = store.prepare_batch(LOG, 1, make_batch(1))
    assert store.append_batch(prepared)
    store.seal_log(LOG)
    assert store.append_batch(prepared)


def test_a_log_without_entries_is_sealed(store: Store) -> None:
    store.seal_log(LOG)
    assert store.read_logs() == {LOG: [1]} and store.read_batch(LOG, 1) is None
    assert not append(store, 1)


def test_seals_are_written_once(store: Store, disk: Disk) -> None:
    append(store, 1)
    for sealer in (store, Store(disk, store.store_id), store):
        sealer.seal_log(LOG)
    assert store.read_logs() == {LOG: [1, 2]}


def test_who_lists_again_syncs_what_is_new_only(store: Store, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_deleted_while_a_log_is_being_sealed(store: Store, disk: Disk) -> None:
    for number in (1, 2, 3):
        append(store, number)

    class Ended(Exception):
        pass

    list_directory = disk.list_directory

    def end(path: str) -> object:
        if path == LOG.directory:
            raise Ended
        return list_directory(path)

    sealer = Store(disk, store.store_id)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Ended):
        patch.setattr(disk, "list_directory", end)
        sealer.seal_log(LOG)
    assert store.delete_batches([(LOG, 1)]) == []
    store.seal_log(LOG)
    assert store.delete_batches([(LOG, 1)]) == ["log/1/h1-1/1"]


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


@pytest.mark.parametrize("name", ["h", "-", "-1", ".", "..", "a-1.b-2", "x" * 128, "0-0"])
@pytest.mark.parametrize("start", [0, 7, 2**63 - 1])
def test_hosts_may_be_called_as_they_like(name: str, start: int) -> None:
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


def test_a_server_that_overwrites_is_refused() -> None:
    """Its writers do not exclude each other."""

    class Overwriting(SimulatedDisk):
        class abilities:
            creates_only = False

    store = make_store(Overwriting())
    with pytest.raises(UsageError, match="overwrites"):
        append(store, 1)
    with pytest.raises(UsageError, match="overwrites"):
        store.seal_log(LOG)


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


def test_encoding_needs_no_disk() -> None:
    """It is done once, before the first try."""
    disk = SimulatedDisk()
    store = Store.create("simulated", disk=disk, random_bytes=seeded_bytes())

    def fail(name: str) -> None:
        raise AssertionError(name)

    on_call: Callable[[str], None] = fail
    disk.on_call = on_call
    assert store.prepare_batch(LOG, 1, make_batch(1)).path == "log/1/h1-1/1"

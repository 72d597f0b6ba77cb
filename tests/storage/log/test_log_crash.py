"""Crashes at every call of a log's life: what was acknowledged is read, what was sealed takes nothing; also if only a process dies,
others go on with what it left, and then the power fails."""

import contextlib
import functools
from collections.abc import Callable

import pytest
from tests.storage.log.logging_hosts import LOG, OTHER, make_batch
from tests.storage.making import make_store, seeded_bytes
from tests.storage.protecting import OLD
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk, broken_write_once

from snapline.errors import NotFoundError, StoreError, StoreMissingError
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import Disk, write_once
from snapline.storage.keys.key_files import Keys
from snapline.storage.log import log_files as writing
from snapline.storage.log.log_files import LogReader, list_numbers
from snapline.storage.log.log_record import SEALED, SEALING, LogName, PreparedBatch
from snapline.storage.store.store import Store

Place = tuple[LogName, int]


class Life:
    """Two logs: appended to, sealed, appended to in vain, cleared; knows at each moment what was promised.

    Attributes:
        kept: appended, and not to be deleted.
        highest: the last number appended to each log.
        sealed: logs whose seals have returned.
    """

    def __init__(self, disk: SimulatedDisk, keys: Keys | None = None) -> None:
        self.disk = disk
        self.keys = keys
        self.is_created = False
        self.kept: set[Place] = set()
        self.highest: dict[LogName, int] = {LOG: 0, OTHER: 0}
        self.sealed: set[LogName] = set()

    def run(self) -> None:
        store = Store.create("simulated", disk=self.disk, keys=self.keys, random_bytes=seeded_bytes())
        self.is_created = True
        for place in ((LOG, 1), (LOG, 2), (OTHER, 1), (LOG, 3)):
            self._append(store, place)
        self._seal(store, LOG)
        assert not store.append_batch(store.prepare_batch(LOG, 4, make_batch(4)))
        self._append(store, (OTHER, 2))
        self.kept -= {(LOG, 1), (LOG, 3), (OTHER, 1)}
        store.delete_batches([(LOG, 1), (LOG, 3), (LOG, 4), (OTHER, 1), (OTHER, 2)], plans_below=3)
        self._append(store, (OTHER, 3))
        self._seal(store, OTHER)

    def _append(self, store: Store, place: Place) -> None:
        log, number = place
        assert store.append_batch(store.prepare_batch(log, number, make_batch(number)))
        self.kept.add(place)
        self.highest[log] = number

    def _seal(self, store: Store, log: LogName) -> None:
        store.seal_log(log)
        self.sealed.add(log)

    @property
    def promises(self) -> tuple[object, ...]:
        return self.is_created, frozenset(self.kept), frozenset(self.highest.items()), frozenset(self.sealed)

    def check(self, image: SimulatedDisk) -> None:
        """Assert that an image a crash may have left keeps every promise, and that life goes on from it."""
        try:
            store = Store.open("simulated", disk=image, keys=self.keys)
        except StoreMissingError:
            assert not self.is_created
            return
        assert store.verify().findings == []
        found = read_all(store)
        assert self.kept <= found
        for log, highest in self.highest.items():
            number = max([highest, *[number for each, number in found if each == log]]) + 1
            if store.append_batch(store.prepare_batch(log, number, make_batch(number))):
                assert log not in self.sealed
                found.add((log, number))
                number += 1
            store.seal_log(log)
            assert not store.append_batch(store.prepare_batch(log, number, make_batch(number)))
        assert read_all(store) == found
        store.delete_batches(found, plans_below=10)
        store.delete_unreferenced(begun_below=1)
        assert read_all(store) == set() and store.verify().is_whole and not store.verify().unreferenced


def read_all(store: Store) -> set[Place]:
    """Return the places of all batches there are; each says what it should."""
    found = set()
    for log, numbers in store.read_logs().items():
        for number in numbers:
            batch = store.read_batch(log, number)
            if batch is not None:
                assert batch == make_batch(number)
                found.add((log, number))
    return found


def crash_everywhere(*, has_unnamed_files: bool = True, keys: Keys | None = None) -> int:
    """Crash before each call, and check every image once; return how many there were."""
    images = 0
    checked = set()
    for moment in range(1000):
        disk = SimulatedDisk(has_unnamed_files=has_unnamed_files)
        disk.crash_after = moment
        life = Life(disk, keys)
        try:
            life.run()
        except SimulatedCrashError:
            pass
        else:
            return images
        for image in disk.images():
            images += 1
            seen = image.fingerprint(), life.promises
            if seen not in checked:
                checked.add(seen)
                life.check(image)
    raise AssertionError("too many calls")


@pytest.mark.parametrize(
    ("keys", "has_unnamed_files"),
    [(None, True), (OLD, True), (None, False), pytest.param(OLD, False, marks=pytest.mark.slow)],
)
def test_a_crash_at_every_call_keeps_what_was_promised(has_unnamed_files: bool, keys: Keys | None) -> None:
    assert crash_everywhere(has_unnamed_files=has_unnamed_files, keys=keys) > 100


# -- a process dies, another goes on, and then the power fails --------------------------------------------------------


def die_everywhere(
    first: Callable[[Store, PreparedBatch], object],
    second: Callable[[Store, PreparedBatch], object],
    check: Callable[[Store, PreparedBatch, object], None],
) -> int:
    """Let `first` die before each of its calls; let another process do `second` on what is left, cut the power, and `check` each
    image, given what `second` has returned. Return how many images there were."""
    images = 0
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        prepared = store.prepare_batch(LOG, 1, make_batch(1))
        disk.crash_after = len(disk.calls) + moment
        has_died = False
        try:
            first(store, prepared)
        except SimulatedCrashError:
            has_died = True
        disk.crash_after = None
        outcome = second(Store(disk, store.store_id, random_bytes=seeded_bytes(1)), prepared)
        for image in disk.images():
            images += 1
            check(Store(image, store.store_id, random_bytes=seeded_bytes(2)), prepared, outcome)
        if not has_died:
            return images
    raise AssertionError("too many calls")


def appends(store: Store, prepared: PreparedBatch) -> bool:
    return store.append_batch(prepared)


def seals(store: Store, prepared: PreparedBatch) -> None:
    store.seal_log(prepared.log)


def appends_and_seals(store: Store, prepared: PreparedBatch) -> None:
    store.append_batch(prepared)
    store.seal_log(prepared.log)


def reads(store: Store, prepared: PreparedBatch) -> set[Place]:
    return read_all(store)


def reads_one(store: Store, prepared: PreparedBatch) -> set[Place]:
    """Without a listing."""
    try:
        return set() if store.read_batch(prepared.log, prepared.number) is None else {(prepared.log, prepared.number)}
    except NotFoundError:
        return set()


def test_who_reads_a_batch_has_made_it_durable() -> None:
    def check(store: Store, prepared: PreparedBatch, found: object) -> None:
        assert found == set() or read_all(store) == found

    assert die_everywhere(appends, reads, check) > 11
    assert die_everywhere(appends_and_seals, reads, check) > 20
    assert die_everywhere(appends, reads_one, check) > 11


def test_who_finds_a_seal_has_made_it_durable() -> None:
    def check_sealed(store: Store, prepared: PreparedBatch, _: object) -> None:
        assert not appends(store, prepared)

    assert die_everywhere(seals, seals, check_sealed) > 11

    def check_refused(store: Store, prepared: PreparedBatch, is_taken: object) -> None:
        assert appends(store, prepared) == is_taken

    assert die_everywhere(seals, appends, check_refused) > 11


def test_who_repeats_a_batch_has_made_it_durable() -> None:
    def check(store: Store, prepared: PreparedBatch, is_taken: object) -> None:
        assert is_taken and read_all(store) == {(LOG, 1)}

    assert die_everywhere(appends, appends, check) > 11


def test_who_seals_has_made_the_batches_below_durable() -> None:
    """The owner finds a batch in his way: it counts, so it may not vanish."""

    def seal_and_read(store: Store, prepared: PreparedBatch) -> set[Place]:
        store.seal_log(prepared.log)
        return read_all(store)

    def check(store: Store, prepared: PreparedBatch, found: object) -> None:
        assert read_all(store) == found
        assert store.append_batch(prepared) == bool(found)
        assert not found or not store.append_batch(store.prepare_batch(LOG, 2, make_batch(2)))

    assert die_everywhere(appends, seal_and_read, check) > 11


def test_who_goes_on_where_a_sealer_died_seals_what_is_below() -> None:
    """He died between a seal far above and the last batch: the appender's next numbers may still be free."""

    def check(store: Store, prepared: PreparedBatch, _: object) -> None:
        assert not appends(store, prepared)
        numbers = store.read_logs()[LOG]
        assert numbers == list(range(1, numbers[-1] + 1)) and numbers[-1] < 10

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing.LogWriter, "_seal_above", jump)
        assert die_everywhere(seals, seals, check) > 20


def jump(self: writing.LogWriter, log: LogName, number: int) -> int:
    """As after some tries."""
    assert self._create_seal(log, number + 4)
    return number + 4


@pytest.mark.parametrize("moment", range(26))
def test_the_mark_of_a_sealed_log_can_be_believed(moment: int) -> None:
    """An owner makes a seal while a second one lists, and dies before he has synced it; the second makes the mark, and dies before
    he has synced that; a third sees the mark, and the power fails."""
    believe_the_mark(moment)


def believe_the_mark(moment: int) -> None:
    for second_moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        prepared = store.prepare_batch(LOG, 1, make_batch(1))

        def act(name: str, disk: SimulatedDisk = disk, store: Store = store) -> None:
            if name == "list_directory":
                disk.on_call = lambda name: None
                seal_and_die(disk, store, moment)

        disk.on_call = act
        has_died = seal_and_die(disk, Store(disk, store.store_id, random_bytes=seeded_bytes(1)), second_moment)
        disk.on_call = lambda name: None
        Store(disk, store.store_id, random_bytes=seeded_bytes(2)).seal_log(LOG)
        for image in disk.images():
            assert not Store(image, store.store_id).append_batch(prepared)
        if not has_died:
            assert second_moment > 15
            return
    raise AssertionError("too many calls")


def seal_and_die(disk: SimulatedDisk, store: Store, calls: int) -> bool:
    """Seal the log and die before that call, whoever else was to die later; return whether it came to that."""
    before, limit = len(disk.calls), disk.crash_after
    disk.crash_after = before + calls
    try:
        store.seal_log(LOG)
    except SimulatedCrashError:
        return True
    finally:
        disk.crash_after = None if limit is None else limit + len(disk.calls) - before
    return False


# -- the disk fails ---------------------------------------------------------------------------------------------------


def test_a_seal_whose_disk_failed_is_made_by_a_repetition() -> None:
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        assert store.append_batch(store.prepare_batch(LOG, 1, make_batch(1)))
        disk.fail_at = len(disk.calls) + moment
        try:
            store.seal_log(LOG)
        except StoreError as error:
            assert "cannot write the seal of the log of host 'h1', start 1, plan 1" in str(error)
        else:
            assert moment > 8
            return
        disk.fail_at = None
        store.seal_log(LOG)
        assert disk.open_handles == 0
        for image in disk.images():
            other = Store(image, store.store_id)
            assert read_all(other) == {(LOG, 1)}
            assert not other.append_batch(other.prepare_batch(LOG, 2, make_batch(2)))
    raise AssertionError("too many calls")


# -- mutants ----------------------------------------------------------------------------------------------------------


def without_sync_if_found(
    disk: Disk, path: str, data: bytes, *, temporary_name: str, point: str, epoch: int | None = None
) -> bool:
    """`create_or_compare` that believes what it finds."""
    try:
        write_once(disk, path, (data,), temporary_name=temporary_name, point=point)
    except FileExistsError:
        if disk.read(path, 0, disk.size(path)) != data:
            raise
        return True
    return False


def unsynced_directories(disk: Disk, path: str) -> None:
    with contextlib.suppress(FileExistsError):
        disk.make_directory(path)


def trust_what_is_found(self: writing.LogWriter, log: LogName) -> None:
    """`seal` without the sync before the mark `sealed`."""
    with store_files.writing(self._disk, f"the seal of {log}"):
        if self._is_marked(log, SEALED):
            return
        self._prepare_directory(log)
        self._mark(log, SEALING)
        top = max(list_numbers(self._disk, log), default=0)
        if not top or not self._is_seal(log, top):
            top = self._seal_above(log, top)
        self._seal_below(log, top)
        self._mark(log, SEALED)


def stop_at_seals(self: writing.LogWriter, log: LogName, top: int) -> None:
    """Whatever stands there, what is below has been seen to."""
    for number in range(top - 1, 0, -1):
        if number in list_numbers(self._disk, log):
            return
        self._create_seal(log, number)


def refuse_on_sight(self: writing.LogWriter, prepared: PreparedBatch) -> bool:
    self._prepare_directory(prepared.log)
    name = self._temporary_name(prepared.log)
    try:
        store_files.create_or_compare(
            self._disk, prepared.path, prepared.data, temporary_name=name, point="store.log.batch"
        )
    except FileExistsError:
        return False
    return True


MUTANTS: dict[str, tuple[object, str, object]] = {
    "a reader that does not sync": (LogReader, "_make_durable", lambda self, log, numbers: None),
    "a name before its bytes": (store_files, "write_once", broken_write_once("log/", "link", "sync", "directory")),
    "no sync of bytes": (store_files, "write_once", broken_write_once("log/", "link", "directory")),
    "no sync of the name": (store_files, "write_once", broken_write_once("log/", "sync", "link")),
    "no sync of what was found": (store_files, "create_or_compare", without_sync_if_found),
    "no sync of new directories": (writing, "make_durable_directory", unsynced_directories),
    "no sync of a seal that was found": (writing.LogWriter, "seal", trust_what_is_found),
    "the end of the way down at another's seal": (writing.LogWriter, "_seal_below", stop_at_seals),
    "no sync of a seal that was met": (writing.LogWriter, "append", refuse_on_sight),
}

TESTS: tuple[Callable[[], object], ...] = (
    test_who_reads_a_batch_has_made_it_durable,
    test_who_finds_a_seal_has_made_it_durable,
    test_who_repeats_a_batch_has_made_it_durable,
    test_who_seals_has_made_the_batches_below_durable,
    test_who_goes_on_where_a_sealer_died_seals_what_is_below,
    test_a_seal_whose_disk_failed_is_made_by_a_repetition,
    crash_everywhere,
    *(functools.partial(believe_the_mark, moment) for moment in range(26)),
)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises((AssertionError, StoreError)):
        for test in TESTS:
            test()

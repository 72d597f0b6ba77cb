"""Crashes at every call of outputs' life: what was released or acknowledged stays, also if only a process dies and others go on."""

from collections.abc import Callable

import pytest
from tests.storage.making import make_store, seeded_bytes
from tests.storage.outputs.releasing import CREATED_NS, make_outputs, release
from tests.storage.protecting import OLD
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk, broken_write_once

from snapline.errors import StoreError, StoreMissingError
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.keys.key_files import Keys
from snapline.storage.outputs import output_files
from snapline.storage.outputs import output_files as writing
from snapline.storage.outputs import output_record as records
from snapline.storage.outputs.output_files import OutputReader, list_parts, released_epochs
from snapline.storage.store.store import Store

SIZE = 60


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PART_BYTES", 100)


def reopened(disk: SimulatedDisk, store: Store, seed: int) -> Store:
    return Store(disk, store.store_id, random_bytes=seeded_bytes(seed), guard=store.guard)


def read_epochs(store: Store) -> set[int]:
    """The epochs that are released, after asserting that each holds what it should."""
    found = store.output_epochs()
    for epoch in found:
        assert store.read_release(epoch).outputs == make_outputs(epoch, size=SIZE)
    return set(found)


class Life:
    """Releases, consumers that move, a deletion; knows at each moment what was promised."""

    def __init__(self, disk: SimulatedDisk, keys: Keys | None) -> None:
        self.disk = disk
        self.keys = keys
        self.is_created = False
        self.kept: set[int] = set()
        self.place = ""

    def run(self) -> None:
        store = Store.create("simulated", disk=self.disk, keys=self.keys, random_bytes=seeded_bytes())
        self.is_created = True
        self.release(store, 1)
        self.move(store, "1.1")
        self.release(store, 2)
        self.release(store, 3)
        self.move(store, "2.3")
        self.kept -= {1, 2}
        store.delete_outputs(now_ns=CREATED_NS, age_ns_min=0)
        self.release(store, 4)

    def release(self, store: Store, epoch: int) -> None:
        release(store, epoch, size=SIZE)
        self.kept.add(epoch)

    def move(self, store: Store, cursor: str) -> None:
        store.acknowledge_outputs("c1", cursor, now_ns=0)
        self.place = cursor

    @property
    def promises(self) -> tuple[object, ...]:
        return self.is_created, frozenset(self.kept), self.place

    def check(self, image: SimulatedDisk) -> None:
        try:
            store = Store.open("simulated", disk=image, keys=self.keys)
        except StoreMissingError:
            assert not self.is_created
            return
        assert store.verify().findings == []
        assert self.kept <= read_epochs(store)
        places = store.output_consumers()
        assert (places["c1"].cursor if places else "") >= self.place
        for epoch in range(1, 6):
            release(store, epoch, size=SIZE)
        assert {4, 5} | self.kept <= read_epochs(store) and store.verify().findings == []
        store.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0)
        assert read_epochs(store) == {5}
        assert not [path for path in store.verify().unreferenced if "output" in path]


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
    first: Callable[[Store], object], second: Callable[[Store], object], check: Callable[[Store, object], None]
) -> int:
    """Let `first` die before each of its calls; let another process do `second`, cut the power, and `check` each image, given what
    `second` has returned. Return how many images there were."""
    images = 0
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        disk.crash_after = len(disk.calls) + moment
        has_died = False
        try:
            first(store)
        except SimulatedCrashError:
            has_died = True
        disk.crash_after = None
        outcome = second(reopened(disk, store, 1))
        for image in disk.images():
            images += 1
            check(reopened(image, store, 2), outcome)
        if not has_died:
            return images
    raise AssertionError("too many calls")


def releases(store: Store) -> None:
    release(store, 1, size=SIZE)


def moves(store: Store) -> None:
    release(store, 1, size=SIZE)
    store.acknowledge_outputs("c1", "1.2", now_ns=0)


def test_who_reads_a_release_has_made_it_durable() -> None:
    def check(store: Store, found: object) -> None:
        assert found == set() or read_epochs(store) == found

    assert die_everywhere(releases, read_epochs, check) > 20


def test_who_repeats_a_release_has_made_it_durable() -> None:
    def check(store: Store, _: object) -> None:
        assert read_epochs(store) == {1}

    assert die_everywhere(releases, releases, check) > 12


def test_who_repeats_a_move_has_made_it_durable() -> None:
    def check(store: Store, _: object) -> None:
        places = store.output_consumers()
        assert places and places["c1"].cursor == "1.2"

    assert die_everywhere(moves, moves, check) > 20


def test_a_release_whose_disk_failed_is_made_by_a_repetition() -> None:
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        disk.fail_at = len(disk.calls) + moment
        try:
            release(store, 1, size=SIZE)
        except StoreError as error:
            assert "cannot write the outputs of epoch 1" in str(error)
        else:
            assert moment > 12
            return
        disk.fail_at = None
        release(store, 1, size=SIZE)
        assert disk.open_handles == 0
        for image in disk.images():
            assert read_epochs(reopened(image, store, 1)) == {1}
    raise AssertionError("too many calls")


# -- mutants ----------------------------------------------------------------------------------------------------------


def unsynced_directories(disk: Disk, path: str) -> None:
    try:
        disk.make_directory(path)
    except FileExistsError:
        return


def trust_what_is_found(self: writing.OutputWriter, path: str, root: str, after: int) -> None:
    """Whoever has released it has seen to it that it stays."""


def read_without_sync(self: OutputReader) -> list[int]:
    return released_epochs(list_parts(self._disk))


MUTANTS: dict[str, tuple[object, str, object]] = {
    "a reader that does not sync": (OutputReader, "epochs", read_without_sync),
    "a name before its bytes": (writing, "write_once", broken_write_once("outputs/", "link", "sync", "directory")),
    "no sync of bytes": (writing, "write_once", broken_write_once("outputs/", "link", "directory")),
    "no sync of the name": (writing, "write_once", broken_write_once("outputs/", "sync", "link")),
    "no sync of a consumer's name": (output_files, "write_once", broken_write_once("outputs/", "sync", "link")),
    "no sync of what was found": (writing.OutputWriter, "_check_same", trust_what_is_found),
    "no sync of new directories": (writing, "make_durable_directory", unsynced_directories),
    "no sync before parts go": (
        writing.OutputWriter,
        "_unlink",
        lambda self, heads, others: store_files.unlink(self._disk, heads + others),
    ),
    "part 0 first": (writing, "order_of_parts", range),
}

TESTS: tuple[Callable[[], object], ...] = (
    test_who_reads_a_release_has_made_it_durable,
    test_who_repeats_a_release_has_made_it_durable,
    test_who_repeats_a_move_has_made_it_durable,
    test_a_release_whose_disk_failed_is_made_by_a_repetition,
    crash_everywhere,
)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, mutant = MUTANTS[name]
    assert hasattr(place, attribute)
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises((AssertionError, StoreError)):
        for test in TESTS:
            test()

"""A host that appends, owners that seal, a coordinator that deletes, at once and in every order: what was acknowledged is found after
the seal, and nothing is acknowledged into nowhere."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.storage.log.interleaving import Action, SharedDisk, run_all
from tests.storage.log.logging_hosts import LOG, append, make_batch
from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError
from snapline.storage.log import writing
from snapline.storage.log.names import LogName, entry_path
from snapline.storage.log.reading import list_numbers
from snapline.storage.log.records import PreparedBatch, encode_seal
from snapline.storage.store import files
from snapline.storage.store.disk import Disk, LocalDisk
from snapline.storage.store.store import Store


class World:
    """One log with some batches; what became of what others do with it.

    Attributes:
        taken: numbers that were acknowledged.
        refused: numbers that were not taken.
        found: for each owner, what he has read after his seal.
        removed: paths that the collector has removed.
    """

    def __init__(self, *, there: Iterable[int] = (), gone: Iterable[int] = ()) -> None:
        self.disk = SimulatedDisk()
        self.store = make_store(self.disk)
        self.taken: set[int] = set()
        self.refused: set[int] = set()
        self.found: list[set[int]] = []
        self.removed: set[str] = set()
        for number in there:
            assert append(self.store, number)
            self.taken.add(number)
        self.removed |= set(self.store.delete_batches([(LOG, number) for number in gone]))
        for directory in ("log", "log/1", "log/1/h1-1"):
            self.disk.nodes.setdefault(directory, None)

    def _store(self, disk: Disk, seed: int) -> Store:
        return Store(disk, self.store.store_id, random_bytes=seeded_bytes(seed))

    def append(self, *numbers: int) -> Action:
        """A host: one after the other, until one is refused."""

        def run(disk: SharedDisk) -> None:
            store = self._store(disk, 1)
            for number in numbers:
                if not append(store, number):
                    self.refused.add(number)
                    return
                self.taken.add(number)

        return run

    def seal(self, seed: int = 2, *, reads: bool = True, stops_to_read: bool = False) -> Action:
        """An owner: seals, then reads all there is."""

        def run(disk: SharedDisk) -> None:
            store = self._store(disk, seed)
            store.seal_log(LOG)
            if not reads:
                return
            disk.stops_to_read = stops_to_read
            found = set()
            for number in store.read_logs().get(LOG, []):
                try:
                    batch = store.read_batch(LOG, number)
                except NotFoundError:
                    continue
                if batch is not None:
                    assert batch == make_batch(number)
                    found.add(number)
            self.found.append(found)

        return run

    def delete(self, *numbers: int) -> Action:
        """The coordinator: no epoch needs these batches."""

        def run(disk: SharedDisk) -> None:
            disk.sees_most = True
            self.removed |= set(self._store(disk, 3).delete_batches([(LOG, number) for number in numbers]))

        return run

    def check(self) -> None:
        needed = {number for number in self.taken if entry_path(LOG, number) not in self.removed}
        for found in self.found:
            assert needed <= found, f"{sorted(needed - found)} were acknowledged, and not found after the seal"
            assert not self.refused & found, "what was refused is found"
        after = Store(self.disk, self.store.store_id, random_bytes=seeded_bytes(9))
        if self.found:
            assert not append(after, max(self.taken | {0}) + 1), "a sealed log takes more"
        numbers = after.read_logs()[LOG]
        assert {number for number in numbers if after.read_batch(LOG, number) is not None} >= needed
        assert after.verify().is_whole


Case = Callable[[], tuple[World, list[Action]]]


def appending_while_sealed() -> tuple[World, list[Action]]:
    world = World()
    return world, [world.append(1, 2), world.seal()]


def appending_above_gaps() -> tuple[World, list[Action]]:
    world = World(there=(1, 2, 3), gone=(1, 2))
    return world, [world.append(4, 5), world.seal()]


def two_owners() -> tuple[World, list[Action]]:
    world = World(there=(1,))
    return world, [world.append(2, 3), world.seal(2), world.seal(4)]


def collecting_while_sealed() -> tuple[World, list[Action]]:
    world = World(there=(1, 2))
    return world, [world.append(3, 4), world.seal(), world.delete(1, 2, 3)]


def collecting_all() -> tuple[World, list[Action]]:
    world = World(there=(1,))
    return world, [world.append(2), world.seal(stops_to_read=True), world.delete(1, 2, 3)]


def collecting_while_two_seal() -> tuple[World, list[Action]]:
    """A seal may come to stand in the middle; the first one ends the log all the same."""
    world = World(there=(1, 2))
    return world, [world.seal(2), world.seal(4, reads=False), world.delete(1, 2)]


CASES: dict[str, Case] = {
    "appending while sealed": appending_while_sealed,
    "appending above gaps": appending_above_gaps,
    "two owners": two_owners,
    "collecting while sealed": collecting_while_sealed,
    "collecting all": collecting_all,
    "collecting while two seal": collecting_while_two_seal,
}


def run_case(case: Case) -> int:
    def world() -> tuple[SimulatedDisk, list[Action], Callable[[], None]]:
        made, actions = case()
        return made.disk, actions, made.check

    return run_all(world)


@pytest.mark.parametrize("name", CASES)
def test_in_every_order_what_was_acknowledged_is_found(name: str) -> None:
    assert run_case(CASES[name]) > 5


def test_a_seal_in_the_middle_is_among_the_orders_tried() -> None:
    """Else the case would say nothing on what its docstring says."""
    seals: set[tuple[int, ...]] = set()

    def world() -> tuple[SimulatedDisk, list[Action], Callable[[], None]]:
        made, actions = collecting_while_two_seal()

        def note() -> None:
            numbers = made.store.read_logs()[LOG]
            seals.add(tuple(number for number in numbers if made.store.read_batch(LOG, number) is None))

        return made.disk, actions, note

    run_all(world)
    assert (3,) in seals and any(len(found) > 1 for found in seals)


# -- mutants ----------------------------------------------------------------------------------------------------------


def probe(self: writing.LogWriter, log: LogName) -> None:
    """From 1 on until a place is free, instead of after the highest number of a listing."""
    for number in range(1, 100):
        data = encode_seal(log, number, store_id=self._store_id)
        try:
            name = self._temporary_name(log)
            files.create_or_compare(
                self._disk, entry_path(log, number), data, temporary_name=name, point="store.log.seal"
            )
        except FileExistsError:
            continue
        return


def replace(self: writing.LogWriter, log: LogName) -> None:
    """A seal takes its place as a rename would, whoever stands there."""
    number = max(list_numbers(self._disk, log), default=0) + 1
    data = encode_seal(log, number, store_id=self._store_id)
    with contextlib.suppress(FileNotFoundError):
        self._disk.unlink(entry_path(log, number))
    name = self._temporary_name(log)
    files.create_or_compare(self._disk, entry_path(log, number), data, temporary_name=name, point="store.log.seal")


def give_up(self: writing.LogWriter, log: LogName) -> None:
    """A batch that was faster is taken for a seal."""
    number = max(list_numbers(self._disk, log), default=0) + 1
    data = encode_seal(log, number, store_id=self._store_id)
    with contextlib.suppress(FileExistsError):
        name = self._temporary_name(log)
        files.create_or_compare(self._disk, entry_path(log, number), data, temporary_name=name, point="store.log.seal")


def look_and_list(self: writing.LogWriter, log: LogName, numbers: set[int]) -> list[str]:
    """The look for the mark comes first."""
    if self._is_being_sealed(log):
        return []
    listed = list_numbers(self._disk, log)
    paths = [entry_path(log, number) for number in listed if number in numbers and number < listed[-1]]
    return files.unlink(self._disk, paths)


def delete_highest(self: writing.LogWriter, log: LogName, numbers: set[int]) -> list[str]:
    listed = list_numbers(self._disk, log)
    if self._is_being_sealed(log):
        return []
    return files.unlink(self._disk, [entry_path(log, number) for number in listed if number in numbers])


def believe(self: writing.LogWriter, prepared: PreparedBatch) -> bool:
    """A name that is taken must be ours."""
    self._prepare_directory(prepared.log)
    with contextlib.suppress(FileExistsError):
        name = self._temporary_name(prepared.log)
        files.create_or_compare(self._disk, prepared.path, prepared.data, temporary_name=name, point="store.log.batch")
    return True


MUTANTS: dict[str, tuple[str, object]] = {
    "sealing without a mark": ("_create_mark", lambda self, log: None),
    "deleting without a look for the mark": ("_is_being_sealed", lambda self, log: False),
    "looking for the mark before listing": ("_delete_from", look_and_list),
    "deleting the highest number": ("_delete_from", delete_highest),
    "sealing by probing": ("_create_seal", probe),
    "sealing over what is there": ("_create_seal", replace),
    "a batch taken for a seal": ("_create_seal", give_up),
    "a seal taken for one's own batch": ("append", believe),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, mutant = MUTANTS[name]
    monkeypatch.setattr(writing.LogWriter, method, mutant)
    with pytest.raises(AssertionError):
        for case in CASES.values():
            run_case(case)


# -- threads on a real disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_threads_on_a_real_disk(tmp_path: Path, seed: int) -> None:
    """A host that appends as fast as it can, owners that seal, a collector: as above, with the kernel's own orders."""
    first = Store.create("", disk=LocalDisk(tmp_path / "store"))
    taken: list[int] = []
    found: list[set[int]] = []
    removed: set[str] = set()
    has_ended = threading.Event()

    def open_store() -> Store:
        return Store(LocalDisk(tmp_path / "store"), first.store_id)

    def host() -> None:
        store = open_store()
        for number in range(1, 10_000):
            if not append(store, number):
                break
            taken.append(number)
        has_ended.set()

    def owner() -> None:
        store = open_store()
        while len(taken) < 5 + 3 * seed:
            time.sleep(0.001)
        store.seal_log(LOG)
        numbers = store.read_logs()[LOG]
        found.append({number for number in numbers if entry_exists(store, number)})

    def collector() -> None:
        store = open_store()
        while not has_ended.is_set():
            removed.update(store.delete_batches([(LOG, number) for number in range(1, len(taken) + 2)]))

    threads = [threading.Thread(target=each, daemon=True) for each in (host, owner, owner, owner, collector)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3 and has_ended.is_set()
    needed = {number for number in taken if entry_path(LOG, number) not in removed}
    for each in found:
        assert needed <= each
    assert removed and open_store().verify().is_whole
    assert first.read_batch(LOG, taken[-1] + 1) is None


def entry_exists(store: Store, number: int) -> bool:
    try:
        return store.read_batch(LOG, number) is not None
    except NotFoundError:
        return False

"""A host that appends, owners that seal, a coordinator that deletes, at once and in every order: what was acknowledged is found after
the seal, and nothing is acknowledged into nowhere."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from tests.storage.log.interleaving import Action, SharedDisk, run_all
from tests.storage.log.logging_hosts import LOG, append, make_batch
from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import Disk, LocalDisk
from snapline.storage.log import log_files as writing
from snapline.storage.log.log_files import holds_batch, list_numbers
from snapline.storage.log.log_record import SEALED, SEALING, LogName, PreparedBatch, entry_path
from snapline.storage.store.store import Store


class Results(msgspec.Struct, frozen=True):
    """What one process has learnt.

    Attributes:
        taken, refused: numbers that its appends were told of.
        found: what it has read after its seal; None: it has not.
        removed: paths.
    """

    taken: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    found: frozenset[int] | None = None
    removed: frozenset[str] = frozenset()


class World:
    """One log with some batches, `there`, of which some are `gone` again; and what may be done to it."""

    def __init__(self, *, there: Iterable[int] = (), gone: Iterable[int] = ()) -> None:
        self.disk = SimulatedDisk()
        self.store = make_store(self.disk)
        for number in there:
            assert append(self.store, number)
        removed = self.store.delete_batches([(LOG, number) for number in gone])
        self.before = Results(taken=frozenset(there), removed=frozenset(removed))
        for directory in ("log", "log/1", "log/1/h1-1"):
            self.disk.nodes.setdefault(directory, None)

    def open(self, disk: Disk, seed: int) -> Store:
        return Store(disk, self.store.store_id, random_bytes=seeded_bytes(seed))

    def append(self, *numbers: int) -> Action:
        """A host: one after the other, until one is refused."""

        def run(disk: SharedDisk) -> Results:
            store = self.open(disk, 1)
            taken: set[int] = set()
            for number in numbers:
                if not append(store, number):
                    return Results(frozenset(taken), frozenset((number,)))
                taken.add(number)
            return Results(frozenset(taken))

        return run

    def seal(self, seed: int = 2, *, reads: bool = True, steps_to_read: bool = False) -> Action:
        """An owner: seals, then reads all there is."""

        def run(disk: SharedDisk) -> Results:
            store = self.open(disk, seed)
            store.seal_log(LOG)
            disk.steps_to_read, disk.at_once = steps_to_read, not steps_to_read
            return Results(found=read_all(store)) if reads else Results()

        return run

    def delete(self, *numbers: int) -> Action:
        """The coordinator: no epoch needs these batches."""

        def run(disk: SharedDisk) -> Results:
            disk.sees_most = True
            removed = self.open(disk, 3).delete_batches([(LOG, number) for number in numbers])
            return Results(removed=frozenset(removed))

        return run

    def check(self, disk: SimulatedDisk, results: list[object]) -> None:
        known = [self.before, *(result for result in results if isinstance(result, Results))]
        assert len(known) == len(results) + 1
        taken = frozenset[int]().union(*(each.taken for each in known))
        refused = frozenset[int]().union(*(each.refused for each in known))
        removed = frozenset[str]().union(*(each.removed for each in known))
        needed = {number for number in taken if entry_path(LOG, number) not in removed}
        after = self.open(disk, 9)
        for found in (*(each.found for each in known if each.found is not None), read_all(after)):
            assert needed <= found, f"{sorted(needed - found)} were acknowledged, and not found after the seal"
            assert not refused & found, "what was refused is found"
        assert not append(after, max(taken | {0}) + 1), "a sealed log takes more"
        assert after.verify().is_whole


def read_all(store: Store) -> frozenset[int]:
    """Return the numbers of all batches; each says what it should."""
    found = set()
    for number in store.read_logs().get(LOG, []):
        try:
            batch = store.read_batch(LOG, number)
        except NotFoundError:
            continue
        if batch is not None:
            assert batch == make_batch(number)
            found.add(number)
    return frozenset(found)


Case = Callable[[], tuple[World, list[Action]]]


def appending_while_sealed() -> tuple[World, list[Action]]:
    world = World()
    return world, [world.append(1, 2), world.seal()]


def appending_above_gaps() -> tuple[World, list[Action]]:
    world = World(there=(1, 2, 3), gone=(1, 2))
    return world, [world.append(4, 5), world.seal()]


def two_owners() -> tuple[World, list[Action]]:
    world = World()
    return world, [world.append(1), world.seal(2), world.seal(4)]


def collecting_while_sealed() -> tuple[World, list[Action]]:
    world = World(there=(1,))
    return world, [world.append(2, 3), world.seal(), world.delete(1, 2)]


def collecting_all() -> tuple[World, list[Action]]:
    world = World(there=(1,))
    return world, [world.append(2), world.seal(steps_to_read=True), world.delete(1, 2, 3)]


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
}


def run_case(case: Case) -> int:
    world, actions = case()
    return run_all(world.disk, actions, world.check)


def test_jumps_and_filling_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after many tries."""
    monkeypatch.setattr(writing.LogWriter, "_seal_above", jump)
    for name in ("appending while sealed", "appending above gaps", "collecting while sealed"):
        assert run_case(CASES[name]) > 5


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each == "collecting all")) for each in CASES]
)
def test_in_every_order_what_was_acknowledged_is_found(name: str) -> None:
    assert run_case(CASES[name]) > 5


def test_a_seal_in_the_middle_does_no_harm() -> None:
    """That one arises is seen to: else the case would say nothing on what its docstring says."""
    world, actions = collecting_while_two_seal()
    seals: set[tuple[int, ...]] = set()

    def note(disk: SimulatedDisk, results: list[object]) -> None:
        world.check(disk, results)
        store = world.open(disk, 8)
        seals.add(tuple(number for number in store.read_logs()[LOG] if store.read_batch(LOG, number) is None))

    run_all(world.disk, actions, note)
    assert {(3,), (1, 3)} <= seals


# -- mutants ----------------------------------------------------------------------------------------------------------


def probe(self: writing.LogWriter, log: LogName, number: int) -> int:
    """From 1 on until a place is free, instead of above the highest number of a listing."""
    return next(number for number in range(1, 100) if self._create_seal(log, number))


def replace(self: writing.LogWriter, log: LogName, number: int) -> bool:
    """A seal takes its place as a rename would, whoever stands there."""
    with contextlib.suppress(FileNotFoundError):
        self._disk.unlink(entry_path(log, number))
    return create_seal(self, log, number)


def give_up(self: writing.LogWriter, log: LogName, number: int) -> int:
    """A batch that was faster is taken for a seal."""
    self._create_seal(log, number + 1)
    return number + 1


def jump(self: writing.LogWriter, log: LogName, number: int) -> int:
    """Not the next number, but the one after it, at once."""
    return next(above for above in range(number + 2, number + 10) if self._create_seal(log, above))


def upwards(self: writing.LogWriter, log: LogName, top: int) -> None:
    """A batch on the way up says nothing on what is above it."""
    for number in range(1, top):
        if not self._create_seal(log, number) and holds_batch(self._disk, entry_path(log, number)):
            return


def look_and_list(self: writing.LogWriter, log: LogName, numbers: set[int]) -> list[int]:
    """The look for the mark comes first."""
    if self._is_marked(log, SEALING) and not self._is_marked(log, SEALED):
        return []
    listed = list_numbers(self._disk, log)
    return [number for number in listed if number in numbers and number < listed[-1]]


def delete_highest(self: writing.LogWriter, log: LogName, numbers: set[int]) -> list[int]:
    listed = list_numbers(self._disk, log)
    if self._is_marked(log, SEALING) and not self._is_marked(log, SEALED):
        return []
    return [number for number in listed if number in numbers]


def believe(self: writing.LogWriter, prepared: PreparedBatch) -> bool:
    """A name that is taken must be ours."""
    self._prepare_directory(prepared.log)
    with contextlib.suppress(FileExistsError):
        name = self._temporary_name(prepared.log)
        store_files.create_or_compare(
            self._disk, prepared.path, prepared.data, temporary_name=name, point="store.log.batch"
        )
    return True


def never_sealing(self: writing.LogWriter, log: LogName, mark: str) -> bool:
    return mark == SEALED and is_marked(self, log, mark)


def mark_sealed_only(self: writing.LogWriter, log: LogName, name: str) -> None:
    if name == SEALED:
        mark(self, log, name)


create_seal, is_marked, mark = writing.LogWriter._create_seal, writing.LogWriter._is_marked, writing.LogWriter._mark

MUTANTS: dict[str, dict[str, object]] = {
    "sealing without a mark": {"_mark": mark_sealed_only},
    "deleting without a look for the mark": {"_is_marked": never_sealing},
    "looking for the mark before listing": {"_find_deletable": look_and_list},
    "deleting the highest number": {"_find_deletable": delete_highest},
    "sealing by probing": {"_seal_above": probe},
    "sealing over what is there": {"_create_seal": replace},
    "a batch taken for a seal": {"_seal_above": give_up},
    "nothing is sealed below": {"_seal_above": jump, "_seal_below": lambda self, log, top: None},
    "sealing upwards until a batch comes": {"_seal_above": jump, "_seal_below": upwards},
    "a seal taken for one's own batch": {"append": believe},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, mutant in MUTANTS[name].items():
        monkeypatch.setattr(writing.LogWriter, method, mutant)
    with pytest.raises(AssertionError):
        for case in (appending_while_sealed, appending_above_gaps, collecting_while_sealed):
            run_case(case)


# -- an appender that is faster ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [1, 3, 10])
def test_a_fast_appender_is_stopped(pace: int) -> None:
    """It appends so many batches between any two calls of the sealer: a seal in the next place would always come too late."""
    world = World(there=(1,))
    other, taken = world.open(world.disk, 1), {1}
    is_refused = False

    def act(name: str) -> None:
        nonlocal is_refused
        world.disk.on_call = lambda name: None
        for _ in range(pace):
            is_refused = is_refused or not append(other, max(taken) + 1)
            taken.update(() if is_refused else (max(taken) + 1,))
        world.disk.on_call = act

    world.disk.on_call = act
    store = world.open(world.disk, 2)
    store.seal_log(LOG)
    world.disk.on_call = lambda name: None
    assert is_refused and not append(other, max(taken) + 1)
    assert read_all(store) == taken
    numbers = store.read_logs()[LOG]
    assert numbers == list(range(1, numbers[-1] + 1))
    assert len(taken) < 1000 and numbers[-1] < 3 * len(taken) + 10


# -- threads on a real disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_threads_on_a_real_disk(tmp_path: Path, seed: int) -> None:
    """A host that appends as fast as it can, owners that seal, a collector: as above, with the kernel's own orders.

    The owners wait until the collector has deleted something, and the host goes on until it is refused: else a busy machine might have
    the log sealed before the collector comes to its first batch.
    """
    first = Store.create("", disk=LocalDisk(tmp_path / "store"))
    taken: list[int] = []
    found: list[frozenset[int]] = []
    removed: set[str] = set()
    has_deleted, has_ended = threading.Event(), threading.Event()

    def open_store() -> Store:
        return Store(LocalDisk(tmp_path / "store"), first.store_id)

    def host() -> None:
        store = open_store()
        for number in range(1, 100_000):
            if not append(store, number):
                break
            taken.append(number)
        has_ended.set()

    def owner() -> None:
        store = open_store()
        while len(taken) < 5 + 3 * seed:
            time.sleep(0.001)
        has_deleted.wait(60)
        store.seal_log(LOG)
        found.append(read_all(store))

    def collector() -> None:
        store = open_store()
        while not has_ended.is_set():
            removed.update(store.delete_batches([(LOG, number) for number in range(1, len(taken) + 2)]))
            if removed:
                has_deleted.set()

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

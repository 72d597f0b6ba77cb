"""Random lives of a fleet, with epochs that end without being complete, going back, and releases that are repeated: whoever reads, and wherever he
stops and comes back, has in the end exactly what the agents of the one history that counts have emitted.

The oracle keeps the history itself, and knows nothing of files, `after` or cursors.
"""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.storage.making import make_store, seeded_bytes
from tests.storage.outputs.releasing import make_output, root_of
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError
from snapline.storage.outputs import output_files as reading
from snapline.storage.outputs import output_record as records
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store

AGENTS = ("a1", "b1")

complete = st.tuples(st.just("complete"), st.integers(1, 3), st.tuples(st.integers(0, 2), st.integers(0, 2)))
"""Skip as many epoch numbers, less one; each agent emits as often."""
silent = st.tuples(st.just("silent"))
"""An epoch without outputs that writes a file all the same."""
go_back = st.tuples(st.just("go back"), st.integers(0, 3))
"""Over as many complete epochs."""
read = st.tuples(st.just("read"), st.integers(0, 2), st.integers(0, 4))
"""Which reader, and how many outputs at most."""
release_again = st.tuples(st.just("release again"), st.integers(0, 3))
delete = st.tuples(st.just("delete"))
steps = st.lists(st.one_of(complete, complete, silent, go_back, read, read, release_again, delete), max_size=25)


class Fleet:
    """The oracle's fleet: `history` holds the complete epochs that count, each with what it has released."""

    def __init__(self, store: Store, disk: SimulatedDisk) -> None:
        self.store = store
        self.disk = disk
        self.epoch = 0
        self.history: list[tuple[int, list[EmittedOutput]]] = []
        self.releases: list[tuple[int, int, list[EmittedOutput]]] = []
        self.silent: set[int] = set()

    def complete(self, skipped: int, counts: Sequence[int]) -> None:
        self.epoch += skipped
        numbers = {agent: 0 for agent in AGENTS}
        for _, outputs in self.history:
            for each in outputs:
                numbers[each.agent] = each.number
        emitted = [
            make_output(agent, numbers[agent] + index, epoch=self.epoch)
            for agent, count in zip(AGENTS, counts, strict=True)
            for index in range(1, count + 1)
        ]
        before = self.history[-1][0] if self.history else 0
        self.history.append((self.epoch, emitted))
        self.releases.append((self.epoch, before, emitted))
        self.release(self.store, -1)

    def go_back(self, count: int) -> None:
        self.history = self.history[: max(0, len(self.history) - count)]

    def release(self, store: Store, index: int) -> None:
        epoch, before, emitted = self.releases[index]
        outputs = None if epoch in self.silent else emitted
        store.release_outputs(epoch, root_of(epoch), before, outputs, created_ns=epoch)

    def release_again(self, count: int) -> None:
        """A new leader does all of the last epochs once more."""
        store = Store(self.disk, self.store.store_id, random_bytes=seeded_bytes(self.epoch + 1))
        for index in range(max(0, len(self.releases) - count), len(self.releases)):
            self.release(store, index)
        self.store = store

    def outputs(self) -> list[tuple[int, EmittedOutput]]:
        return [(epoch, each) for epoch, outputs in self.history for each in outputs]


class Reader:
    """Has what it was given and not taken back; comes back with its cursor to a store that it has not seen before."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.cursor = ""
        self.has: list[tuple[int, EmittedOutput]] = []

    def read(self, limit: int) -> None:
        store = Store(self.fleet.disk, self.fleet.store.store_id, random_bytes=seeded_bytes())
        for batch in store.read_outputs(self.cursor):
            if batch.undone is not None:
                self._take_back(batch.undone)
                self.cursor = str(batch.cursor(0))
            for index, each in enumerate(batch.outputs):
                if not limit:
                    return
                limit -= 1
                self.has.append((batch.epoch, each))
                self.cursor = str(batch.cursor(index + 1))

    def _take_back(self, undone: reading.RevertedEpochs) -> None:
        gone = {epoch for epoch, _ in self.has if epoch > undone.after}
        left = set(self.fleet.store.output_epochs())
        assert gone & left <= set(undone.epochs) and min(undone.epochs) > undone.after
        self.has = [(epoch, each) for epoch, each in self.has if epoch <= undone.after]


def live(script: list[tuple[object, ...]], *, deletes: bool) -> None:
    disk = SimulatedDisk()
    fleet = Fleet(make_store(disk), disk)
    readers = [Reader(fleet, f"r{number}") for number in range(3)]
    for reader in readers:
        fleet.store.acknowledge_outputs(reader.name, "", now_ns=0)
    for step in script:
        match step:
            case ("complete", int(skipped), (int(), int()) as counts):
                fleet.complete(skipped, counts)
            case ("silent",):
                fleet.silent.add(fleet.epoch + 1)
                fleet.complete(1, (0, 0))
            case ("go back", int(count)):
                fleet.go_back(count)
            case ("read", int(which), int(limit)):
                reader = readers[which]
                reader.read(limit)
                fleet.store.acknowledge_outputs(reader.name, reader.cursor, now_ns=0)
            case ("release again", int(count)):
                fleet.release_again(count)
            case ("delete",) if deletes:
                fleet.store.delete_outputs(now_ns=0, age_ns_min=0)
    fleet.complete(1, (1, 0))
    for reader in readers:
        reader.read(10**6)
        assert reader.has == fleet.outputs()
        reader.read(10**6)
        assert reader.has == fleet.outputs()
    assert fleet.store.verify().is_whole


@given(script=steps, deletes=st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_reader_has_what_the_one_history_has_emitted(script: list[tuple[object, ...]], deletes: bool) -> None:
    """Also where what all readers have acknowledged is deleted on the way."""
    live(script, deletes=deletes)


@given(script=steps, deletes=st.booleans())
@settings(max_examples=30, deadline=None)
def test_parts_make_no_difference(script: list[tuple[object, ...]], deletes: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PART_BYTES", 1)
        live(script, deletes=deletes)


@given(script=steps, oldest=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_who_comes_back_after_old_outputs_went_misses_nothing_or_is_told(
    script: list[tuple[object, ...]], oldest: int
) -> None:
    disk = SimulatedDisk()
    fleet = Fleet(make_store(disk), disk)
    reader = Reader(fleet, "r1")
    for step in [*script, ("complete", 1, (1, 1))]:
        match step:
            case ("complete", int(skipped), (int(), int()) as counts):
                fleet.complete(skipped, counts)
            case ("silent",):
                fleet.silent.add(fleet.epoch + 1)
                fleet.complete(1, (0, 0))
            case ("go back", int(count)):
                fleet.go_back(count)
            case ("read", int(), int(limit)):
                reader.read(limit)
    before = fleet.store.output_epochs()
    fleet.store.delete_outputs(now_ns=oldest, age_ns_max=0, age_ns_min=0)
    gone = [epoch for epoch in before if epoch not in fleet.store.output_epochs()]
    place = tuple(map(int, reader.cursor.split("."))) if reader.cursor else (0, 0)
    try:
        reader.read(10**6)
    except NotFoundError:
        emitted = {epoch: len(outputs) for epoch, _, outputs in fleet.releases}
        assert any((epoch, emitted[epoch]) > place for epoch in gone)
    else:
        assert reader.has == fleet.outputs() or not reader.cursor or place == (0, 0)


# -- mutants ----------------------------------------------------------------------------------------------------------

FORGOTTEN: list[tuple[object, ...]] = [("complete", 1, (1, 0)), ("complete", 1, (1, 1)), ("read", 0, 9), ("go back", 1)]
TWICE: list[tuple[object, ...]] = [("complete", 1, (2, 0)), ("read", 0, 1)]
EMPTY: list[tuple[object, ...]] = [*FORGOTTEN, ("complete", 1, (0, 0)), ("complete", 1, (1, 0))]
DELETED: list[tuple[object, ...]] = [
    ("complete", 1, (1, 0)),
    ("read", 0, 9),
    ("read", 1, 9),
    ("read", 2, 9),
    ("complete", 1, (1, 0)),
    ("delete",),
]
SCRIPTS: list[list[tuple[object, ...]]] = [FORGOTTEN, TWICE, EMPTY, [*DELETED, ("release again", 3)]]


def test_the_scripts_that_mutants_fail_are_fine() -> None:
    for script in SCRIPTS:
        live(script, deletes=True)


def nothing_undone(self: object, head: object, position: object, epochs: object) -> None:
    return None


def whole_release(self: reading.OutputReader, head: records.OutputBody, position: object, epochs: object) -> object:
    yield reading.OutputBatch(head.epoch, 0, self.release(head.epoch).outputs)


MUTANTS: dict[str, tuple[object, str, object]] = {
    "nothing is ever taken back": (reading.OutputReader, "_undone", nothing_undone),
    "all of a release again": (reading.OutputReader, "_rest_of", whole_release),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError):
        for script in SCRIPTS:
            live(script, deletes=True)

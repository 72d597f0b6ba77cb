"""A pin either stops a deletion or is refused: every order of the steps of pinners and deleters, and every death among them."""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.storage.making import make_store, seeded_bytes, write_epoch
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk

from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, StoreError, UsageError
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import canonical, seal
from snapline.storage.retention import pins
from snapline.storage.store.store import Holds, Store

NOW_S = 1_700_000_000.0
STORE = "ab" * 16
ROOT = "cd" * 32
EPOCH = 7

Actor = Callable[["FlatDisk", str], Generator[None, None, Any]]


class FlatDisk:
    """Just names and bytes, no durability: what the orders are tried on. Counts what others could notice."""

    location = "flat"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.touched = 0
        self._written: dict[int, bytes] = {}

    def open_temporary(self, directory: str, name: str) -> int:
        self._written[len(self._written)] = b""
        return len(self._written) - 1

    def write(self, handle: int, pieces: Any) -> None:
        self._written[handle] += b"".join(pieces)

    def link(self, handle: int, path: str) -> None:
        self.touched += 1
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = self._written[handle]

    def unlink(self, path: str) -> None:
        self.touched += 1
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    def size(self, path: str) -> int:
        if path in pins.DIRECTORIES:
            return 0
        if path not in self.files:
            raise FileNotFoundError(path)
        return len(self.files[path])

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self.files[path][offset : offset + length]

    def list_directory(self, path: str) -> list[Any]:
        self.touched += 1
        from snapline.storage.disk.local_disk import DirectoryEntry

        names = [name for name in self.files if name.rpartition("/")[0] == path]
        return [DirectoryEntry(name.rpartition("/")[2], False) for name in sorted(names)]

    def make_root(self) -> None: ...
    def make_directory(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def sync_data(self, handle: int) -> None: ...
    def close(self, handle: int) -> None: ...


class DiedError(BaseException):
    """The deleter died inside of `delete`."""


def flat_store() -> FlatDisk:
    disk = FlatDisk()
    body = {"epoch": EPOCH, "root": ROOT, "store": STORE}
    disk.files[layout.ref_path(EPOCH)] = seal(b"EREF", canonical.encode(body))
    disk.files[layout.manifest_path(ROOT)] = b"manifest"
    return disk


def pinner(disk: Disk, token: str) -> Generator[None, None, Any]:
    return pins.pin_steps(disk, STORE, EPOCH, token=token, now_s=NOW_S)


def tagger(disk: Disk, token: str) -> Generator[None, None, Any]:
    return pins.tag_steps(disk, STORE, "good", EPOCH, token=token, now_s=NOW_S)


def deleter(disk: FlatDisk, token: str, *, dies: str = "") -> Generator[None, None, Any]:
    def delete(epoch: int) -> list[str]:
        removed = []
        for path in (layout.ref_path(epoch), layout.manifest_path(ROOT)):
            if dies == path:
                raise DiedError
            with suppress(FileNotFoundError):
                disk.unlink(path)
                removed.append(path)
        return removed

    return pins.delete_steps(disk, STORE, [EPOCH], delete, token=token, now_s=NOW_S)


def deleter_dying_at(path: str) -> Actor:
    return lambda disk, token: deleter(disk, token, dies=path)


class Running:
    """One actor: how far it came, and what became of it: "", "done", "refused" or "died"."""

    def __init__(self, actor: Actor, disk: FlatDisk, number: int) -> None:
        self.steps = actor(disk, f"{number:032x}")
        self.outcome = ""
        self.result: object = None

    def state(self) -> object:
        """Where it stands and what it knows: its generators' lines and variables."""
        found: list[object] = [self.outcome, self.result]
        steps: Any = self.steps
        while steps is not None and getattr(steps, "gi_frame", None) is not None:
            known = {k: v for k, v in steps.gi_frame.f_locals.items() if isinstance(v, bool | int | str | list | dict)}
            found.append((steps.gi_frame.f_lineno, known))
            steps = steps.gi_yieldfrom
        return found

    def step(self) -> None:
        try:
            next(self.steps)
        except StopIteration as end:
            self.outcome, self.result = "done", end.value
        except SnaplineError:
            self.outcome = "refused"
        except DiedError:
            self.outcome = "died"


def every_order(actors: tuple[Actor, ...], *, with_deaths: bool = True) -> Iterator[tuple[FlatDisk, list[Running]]]:
    """Run the actors' steps in every order to the end; with deaths, also end anywhere: then all who still run are dead.

    An order is a list of choices: which of those that still run goes on, or (the last one) that nobody does. What follows on a
    state depends on the state alone, so an order that comes to one that another order has been in is not followed.
    """
    order: list[tuple[int, int]] = []  # (choice, how many choices there were)
    seen: set[str] = set()
    while True:
        disk = flat_store()
        running = [Running(actor, disk, number) for number, actor in enumerate(actors)]
        position, is_known = 0, False
        while not is_known and (alive := [each for each in running if not each.outcome]):
            if position == len(order):
                order.append((0, len(alive) + with_deaths))
            choice = order[position][0]
            position += 1
            if choice == len(alive):
                break
            alive[choice].step()
            if position == len(order):
                state = repr((sorted(disk.files), [each.state() for each in running]))
                is_known = state in seen
                seen.add(state)
        if not is_known:
            yield disk, running
        while order and order[-1][0] + 1 == order[-1][1]:
            order.pop()
        if not order:
            return
        order[-1] = (order[-1][0] + 1, order[-1][1])


def promise_broken(disk: FlatDisk, pinners: list[Running]) -> bool:
    """Was a pin granted, and the snapshot or the pin is gone?"""
    granted = any(each.outcome == "done" for each in pinners)
    is_whole = {layout.ref_path(EPOCH), layout.manifest_path(ROOT)} <= disk.files.keys()
    return granted and not (is_whole and EPOCH in pins.held_epochs(disk, STORE))


def clean_up(disk: FlatDisk) -> None:
    """What the next prune does: nobody else runs then."""
    pins.clear_leftovers(disk, STORE, now_s=NOW_S, is_alone=True)


def check_not_stuck(disk: FlatDisk) -> None:
    """Assert that after a prune the snapshot can be pinned if it is there, and nothing is left of it otherwise."""
    clean_up(disk)
    assert not [path for path in disk.files if path.startswith(pins.DELETING)]
    if layout.ref_path(EPOCH) in disk.files:
        pins.pin(disk, STORE, EPOCH, token="f" * 32, now_s=NOW_S)
        assert pins.guarded_delete(disk, STORE, [EPOCH], lambda epoch: [], tokens=lambda: "e" * 32, now_s=NOW_S) == {
            EPOCH: None
        }
        pins.unpin(disk, EPOCH)
    else:
        with pytest.raises(NotFoundError):
            pins.pin(disk, STORE, EPOCH, token="f" * 32, now_s=NOW_S)


REF, MANIFEST = layout.ref_path(EPOCH), layout.manifest_path(ROOT)
PAIRS = [(holder, dying) for holder in (pinner, tagger) for dying in ("", REF, MANIFEST)]


@pytest.mark.parametrize(("holder", "dying"), PAIRS)
def test_one_pins_and_one_deletes_in_every_order(holder: Actor, dying: str) -> None:
    outcomes = set()
    for disk, (holding, deleting) in every_order((holder, deleter_dying_at(dying))):
        assert not promise_broken(disk, [holding])
        if holding.outcome == deleting.outcome == "done":
            assert deleting.result == {EPOCH: None}
        outcomes.add(holding.outcome)
        check_not_stuck(disk)
    assert outcomes == {"", "done", "refused"}, "all three happen: death, success, refusal"


@pytest.mark.parametrize("actors", [(pinner, deleter, deleter), (pinner, tagger, deleter), (pinner, pinner, deleter)])
def test_several_at_once_in_every_order(actors: tuple[Actor, ...]) -> None:
    """Two deleters: a leader that does not know it is deposed, and the new one."""
    for disk, running in every_order(actors):
        holding = [each for each, actor in zip(running, actors, strict=True) if actor is not deleter]
        assert not promise_broken(disk, holding)
        if all(each.outcome for each in running):
            assert not [path for path in disk.files if path.startswith(pins.DELETING)]
        check_not_stuck(disk)


def test_each_step_does_one_thing_that_others_could_notice() -> None:
    """Otherwise the orders tried here would not be all there are."""
    for actor in (pinner, tagger, deleter):
        disk = flat_store()
        running = Running(actor, disk, 1)
        while not running.outcome:
            before = disk.touched
            running.step()
            assert disk.touched - before <= (2 if actor is deleter else 1), "a deletion removes ref and manifest in one"


# ---- mutants: the orders above find each of these -------------------------------------------------------------------


def _forget_intents(patch: pytest.MonkeyPatch) -> Actor:
    lists = pins._paths
    patch.setattr(pins, "_paths", lambda disk, directory: [] if directory == pins.DELETING else lists(disk, directory))
    return deleter


def _forget_the_ref(patch: pytest.MonkeyPatch) -> Actor:
    is_there = pins._is_there
    started: list[str] = []

    def mutant(disk: Disk, path: str) -> bool:
        started.append(path)
        return True if path == REF and started.count(REF) % 2 == 0 else is_there(disk, path)

    patch.setattr(pins, "_is_there", mutant)
    return deleter


def _look_for_the_ref_first(patch: pytest.MonkeyPatch) -> Actor:
    def claim(disk: Disk, path: str, record: pins.Pin, token: str, *, what: str) -> Generator[None, None, None]:
        pins._create(disk, path, record, token, what=what)
        yield
        is_there = pins._is_there(disk, REF)
        yield
        if not is_there or pins._paths(disk, pins.DELETING):
            pins._remove(disk, pins.PINS, [path])
            raise StoreError("refused")

    patch.setattr(pins, "_claim", claim)
    return deleter


def _look_at_pins_first(patch: pytest.MonkeyPatch) -> Actor:
    def mutant(disk: FlatDisk, token: str) -> Generator[None, None, Any]:
        is_held = EPOCH in pins.held_epochs(disk, STORE)
        yield
        yield from ([] if is_held else deleter(disk, token))

    held = {"steps": pins._held_steps}

    def blind(disk: Disk, store_id: str) -> Generator[None, None, dict[int, str]]:
        yield from ()
        return {}

    patch.setattr(pins, "_held_steps", blind)
    patch.setattr(pins, "held_epochs", lambda disk, store_id: pins._run(held["steps"](disk, store_id)))
    return mutant


MUTANTS = [_forget_intents, _forget_the_ref, _look_for_the_ref_first, _look_at_pins_first]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistaken_procedure_is_found(mutant: Callable[[pytest.MonkeyPatch], Actor]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        wrong = mutant(patch)
        assert any(promise_broken(disk, [holding]) for disk, (holding, _) in every_order((pinner, wrong)))


@pytest.mark.parametrize("shared", [pinner, deleter])
def test_claims_that_two_makers_share_are_found(shared: Actor) -> None:
    """With one intent for all deleters, the second removes the first one's; likewise with one pin for all pinners."""

    def same(disk: FlatDisk, token: str) -> Generator[None, None, Any]:
        return shared(disk, "a" * 32)

    actors = (same, same, deleter) if shared is pinner else (pinner, same, same)
    found = False
    for disk, running in every_order(actors):
        found = found or promise_broken(disk, running[:2] if shared is pinner else running[:1])
    assert found


# ---- on a whole store ----------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    made = make_store(disk)
    for epoch in (1, 2, 3):
        write_epoch(made, epoch)
    return made


@pytest.fixture
def holds(store: Store) -> Holds:
    return Holds(store, now_s=lambda: NOW_S)


def test_what_is_held_survives_a_deletion_and_what_is_not_goes(store: Store, holds: Holds) -> None:
    holds.pin(1)
    holds.tag("good", 2)
    done = holds.delete([1, 2, 3])
    assert (done[1], done[2]) == (None, None)
    assert done[3] and store.epochs() == [1, 2]
    assert holds.unpin(1) and holds.untag("good")
    assert not holds.unpin(1) and not holds.untag("good")
    holds.delete([1, 2])
    assert store.epochs() == []


def test_pins_and_tags_are_listed_with_what_they_are_of(store: Store, holds: Holds) -> None:
    assert (holds.pins(), holds.tags(), holds.held()) == ([], [], {})
    made = holds.pin(2)
    assert made == pins.Pin(2, store.read_ref(2), store.store_id, "2023-11-14T22:13:20.000Z")
    assert holds.pin(2) == made, "again is fine"
    tags = [holds.tag(name, 3) for name in ("b", "a")]
    assert (holds.pins(), holds.tags()) == ([made], tags[::-1])
    assert holds.held() == {2: "pinned", 3: "tag a"}
    holds.pin(3)
    assert holds.held()[3] == "pinned"
    assert holds.unpin(2) and [each.epoch for each in holds.pins()] == [3]


def test_a_tag_names_one_epoch_until_it_is_removed(disk: SimulatedDisk, store: Store, holds: Holds) -> None:
    holds.tag("good", 1)
    for epoch in (1, 2):
        with pytest.raises(UsageError, match="exists already"):
            holds.tag("good", epoch)
    assert pins.tagged_epoch(disk, store.store_id, "good") == 1
    holds.untag("good")
    holds.tag("good", 2)
    assert pins.tagged_epoch(disk, store.store_id, "good") == 2
    for name in ("bad", "", "..", "latest", "x/y", "7"):
        assert pins.tagged_epoch(disk, store.store_id, name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "latest", "12", "a/b", "ä", "x" * 129])
def test_names_that_mean_something_else_are_no_tags(holds: Holds, name: str) -> None:
    with pytest.raises(UsageError):
        holds.tag(name, 1)
    with pytest.raises(UsageError):
        holds.untag(name)


def test_what_is_not_there_cannot_be_held(holds: Holds) -> None:
    for hold in (lambda: holds.pin(9), lambda: holds.tag("good", 9)):
        with pytest.raises(NotFoundError, match="epoch 9"):
            hold()
    assert holds.held() == {}


def test_a_pin_during_a_deletion_is_refused_with_the_next_step(store: Store, holds: Holds) -> None:
    def delete(epoch: int) -> list[str]:
        with pytest.raises(StoreError, match="snapshot prune"):
            holds.pin(epoch)
        return store.delete_epoch(epoch)

    assert holds.delete([1], delete)[1]
    assert holds.held() == {}


def test_a_deletion_that_fails_leaves_no_intent(disk: SimulatedDisk, holds: Holds) -> None:
    def refuse(epoch: int) -> list[str]:
        raise StoreError("not mounted")

    with pytest.raises(StoreError, match="not mounted"):
        holds.delete([1, 2], refuse)
    assert not [path for path in disk.files() if path.startswith("deleting/")]
    holds.pin(1)


def test_many_epochs_are_deleted_in_groups(disk: SimulatedDisk, store: Store, holds: Holds) -> None:
    for epoch in range(4, 4 + pins.DELETED_AT_ONCE):
        write_epoch(store, epoch)
    seen: list[int] = []

    def delete(epoch: int) -> list[str]:
        seen.append(len([path for path in disk.files() if path.startswith("deleting/")]))
        return store.delete_epoch(epoch)

    assert len(holds.delete(store.epochs(), delete)) == pins.DELETED_AT_ONCE + 3
    assert (max(seen), seen[-1]) == (pins.DELETED_AT_ONCE, 3)
    assert store.epochs() == []


def test_on_an_object_store_it_is_the_same() -> None:
    pytest.importorskip("obstore")
    store = Store.create("memory://test-pins/store")
    for epoch in (1, 2, 3):
        write_epoch(store, epoch)
    holds = Holds(store, now_s=lambda: NOW_S)
    assert (holds.pins(), holds.tags(), holds.clear_leftovers()) == ([], [], [])
    holds.pin(1)
    holds.tag("good", 2)
    assert [epoch for epoch, paths in holds.delete([1, 2, 3]).items() if paths] == [3]
    assert holds.unpin(1) and holds.untag("good") and not holds.unpin(1)
    holds.delete([1, 2])
    assert (store.epochs(), holds.clear_leftovers()) == ([], [])


# ---- what the dead leave -------------------------------------------------------------------------------------------


def die_in_delete(holds: Holds, epoch: int) -> None:
    def die(epoch: int) -> list[str]:
        raise DiedError

    with suppress(DiedError):
        holds.delete([epoch], die)


def test_an_intent_of_a_dead_deleter_goes_after_an_hour_or_if_the_caller_is_alone(
    disk: SimulatedDisk, store: Store
) -> None:
    for later_s, is_alone, is_cleared in (
        (3600, False, False),
        (3601, False, True),
        (0, True, True),
        (-9999, False, False),
    ):
        copy = disk.copy()
        there = Store.open("simulated", disk=copy)
        die_in_delete(Holds(there, now_s=lambda: NOW_S), 1)
        holds = Holds(there, now_s=lambda later_s=later_s: NOW_S + later_s)  # type: ignore[misc]  # a default argument
        with pytest.raises(StoreError):
            holds.pin(1)
        assert bool(holds.clear_leftovers(is_alone=is_alone)) is is_cleared
        if is_cleared:
            holds.pin(1)


def test_the_rest_of_a_deletion_is_cleared_at_once(store: Store, holds: Holds, disk: SimulatedDisk) -> None:
    holds.pin(1)  # as of a maker that died before it looked: it has told nobody
    store.delete_epoch(1)
    die_in_delete(holds, 2)
    store.delete_epoch(2)
    removed = holds.clear_leftovers()
    assert [path.partition("/")[0] for path in removed] == ["deleting", "pins"]
    assert holds.clear_leftovers() == []


def test_a_pin_whose_ref_was_lost_stays(store: Store, holds: Holds, disk: SimulatedDisk) -> None:
    """The manifest is there: nobody has deleted this. The pin is a witness."""
    holds.pin(1)
    holds.tag("good", 1)
    disk.unlink(layout.ref_path(1))
    assert holds.clear_leftovers() == []
    assert holds.held() == {1: "pinned"}


# ---- damage, disks and limits --------------------------------------------------------------------------------------


def damage(disk: SimulatedDisk, directory: str) -> str:
    path = next(path for path in disk.files() if path.startswith(f"{directory}/"))
    node = disk.nodes[path]
    assert node is not None
    node.data = node.data[:20] + bytes([node.data[20] ^ 1]) + node.data[21:]
    return path


def test_nothing_is_deleted_while_a_tag_cannot_be_read(store: Store, holds: Holds, disk: SimulatedDisk) -> None:
    holds.tag("good", 1)
    path = damage(disk, "tags")
    for call in (holds.held, holds.tags, lambda: holds.delete([2])):
        with pytest.raises(DamagedDataError, match="tags/good"):
            call()
    with pytest.raises(DamagedDataError):
        pins.read_record(disk, path, store.store_id)
    assert store.epochs() == [1, 2, 3] and holds.clear_leftovers() == []
    assert holds.untag("good")
    assert holds.delete([2])[2]


def test_a_damaged_pin_holds_by_its_name(store: Store, holds: Holds, disk: SimulatedDisk) -> None:
    holds.pin(1)
    damage(disk, "pins")
    assert holds.delete([1]) == {1: None}
    with pytest.raises(DamagedDataError):
        holds.pins()
    assert holds.unpin(1)


@pytest.mark.parametrize("path", ["pins/1", "pins/x", "tags/latest", "deleting/1.g", "else/1", "pins/01." + "a" * 32])
def test_files_that_do_not_belong_are_no_records(store: Store, disk: SimulatedDisk, path: str) -> None:
    with pytest.raises(DamagedDataError):
        pins.read_record(disk, path, store.store_id)


def test_records_read_back_and_belong_to_their_store_and_name(store: Store, holds: Holds, disk: SimulatedDisk) -> None:
    made = holds.tag("good", 1)
    assert pins.read_record(disk, "tags/good", store.store_id) == made
    assert pins.read_record(disk, "tags/gone", store.store_id) is None
    with pytest.raises(DamagedDataError, match="belongs to store"):
        pins.read_record(disk, "tags/good", "0" * 32)
    assert pins.read_record(disk, "tags/good", None) == made
    disk.nodes["tags/bad"] = disk.nodes["tags/good"]
    with pytest.raises(DamagedDataError, match="it is tag 'good'"):
        pins.read_record(disk, "tags/bad", None)


def test_a_granted_pin_survives_any_crash(disk: SimulatedDisk, store: Store, holds: Holds) -> None:
    holds.pin(1)
    holds.tag("good", 2)
    images = list(disk.images())
    for image in images:
        assert pins.held_epochs(image, store.store_id) == {1: "pinned", 2: "tag good"}


def test_a_crash_at_any_call_leaves_a_store_that_deletes_and_pins() -> None:
    call = 0
    while True:
        disk = SimulatedDisk()
        made = make_store(disk)
        for epoch in (1, 2):
            write_epoch(made, epoch)
        for path in list(disk.pending):
            disk.sync_directory(path.rpartition("/")[0])
        disk.crash_after = len(disk.calls) + call
        holds, has_crashed = Holds(made, now_s=lambda: NOW_S), True
        with suppress(SimulatedCrashError):
            holds.pin(1)
            holds.delete([1, 2])
            has_crashed = False
        if not has_crashed:
            break
        for image in disk.images():
            there = Store.open("simulated", disk=image)
            there._random_bytes = seeded_bytes(call)
            after = Holds(there, now_s=lambda: NOW_S)
            after.clear_leftovers(is_alone=True)
            if 2 in there.epochs():
                after.pin(2)
                after.unpin(2)
            after.delete([2])
            assert 1 in there.epochs() and 2 not in there.epochs()
            assert not [path for path in image.files() if path.startswith("deleting/")]
        call += 1
    assert call > 15


def test_a_full_disk_refuses_a_pin_and_says_why(disk: SimulatedDisk, holds: Holds) -> None:
    import errno

    disk.fail_at, disk.fail_with = len(disk.calls) + 3, errno.ENOSPC
    with pytest.raises(StoreError, match="free space"):
        holds.pin(1)
    assert holds.held() == {}


def test_pins_are_bounded(holds: Holds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "HOLDS_MAX", 1)
    holds.pin(1)
    with pytest.raises(UsageError, match="remove some first"):
        holds.pin(2)


def test_tokens_are_checked(disk: SimulatedDisk, store: Store) -> None:
    with pytest.raises(UsageError, match="token"):
        pins.pin(disk, store.store_id, 1, token="x", now_s=NOW_S)

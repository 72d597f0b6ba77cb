"""Moving snapshots to a second store: nothing is removed here that is not whole there."""

from typing import Any

import pytest
from tests.storage.copying import Writer, check_oracle
from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk, below

from snapline.errors import DamagedDataError, UsageError
from snapline.storage.store.store import Holds, Store
from snapline.storage.transfer import snapshot_copy
from snapline.storage.transfer.snapshot_copy import HELD, NEWEST, all_but_newest, move_epochs

CONTENTS = {1: {"a": [1, 2]}, 2: {"a": [1, 2, 3]}, 3: {"a": [1, 4], "b": [2]}, 4: {"a": [1]}}


def make_source() -> Writer:
    writer = Writer(make_store(SimulatedDisk()))
    for epoch, agents in CONTENTS.items():
        writer.write(epoch, agents, cluster=writer.store.store_id)
    return writer


def make_target() -> Store:
    return make_store(SimulatedDisk(), seed=1)


def disk_of(store: Store) -> SimulatedDisk:
    return below(store._disk)


def holds_of(store: Store) -> Holds:
    return Holds(store, now_s=lambda: 1e9)


def test_older_than_leaves_the_newest() -> None:
    store = make_source().store
    assert [all_but_newest(store, count) for count in (1, 3, 4, 9)] == [[1, 2, 3], [1], [], []]
    with pytest.raises(UsageError, match="at least 1"):
        all_but_newest(store, 0)


def test_snapshots_are_copied_oldest_first_and_stay() -> None:
    source, target = make_source(), make_target()
    moved = list(move_epochs(source.store, target, [3, 1, 2, 1]))
    assert [x.copied.epoch for x in moved] == [1, 2, 3]
    assert not any(x.is_removed or x.kept_because for x in moved)
    assert source.store.epochs() == [1, 2, 3, 4] and target.epochs() == [1, 2, 3]
    for epoch in (1, 2, 3):
        source.check(target, epoch)


def test_what_is_removed_here_is_whole_there_and_what_must_stay_stays() -> None:
    source, target = make_source(), make_target()
    oracle = {epoch: source.store.read_ref(epoch) for epoch in CONTENTS}
    holds = holds_of(source.store)
    holds.pin(2)
    moved = list(move_epochs(source.store, target, source.store.epochs(), holds=holds))
    assert [(x.copied.epoch, x.is_removed, x.kept_because) for x in moved] == [
        (1, True, ""),
        (2, False, HELD),
        (3, True, ""),
        (4, False, NEWEST),
    ]
    assert source.store.epochs() == [2, 4]
    assert {epoch: target.read_ref(epoch) for epoch in target.epochs()} == oracle
    assert source.store.verify().findings == [] and target.verify().findings == []
    for epoch in (2, 4):
        source.check(source.store, epoch)


def test_a_pin_that_comes_while_it_is_copied_keeps_it() -> None:
    source, target = make_source(), make_target()
    holds = holds_of(source.store)

    def pin(call: str) -> None:
        if target.epochs():
            disk_of(source.store).on_call = lambda name: None
            holds.tag("late", 1)

    disk_of(source.store).on_call = pin
    assert [x.kept_because for x in move_epochs(source.store, target, [1], holds=holds)] == [HELD]
    source.check(source.store, 1)


def test_one_store_under_two_names_is_not_emptied() -> None:
    source = make_source()
    same = Store.open("other name", disk=disk_of(source.store))
    with pytest.raises(UsageError, match="are one store"):
        list(move_epochs(source.store, same, [1], holds=holds_of(source.store)))
    assert source.store.epochs() == [1, 2, 3, 4]
    assert not [path for path in disk_of(source.store).files() if path.startswith("probes/")]


def test_a_copy_of_the_files_is_another_store_though_it_has_the_id() -> None:
    source = make_source()
    twin = Store.open("twin", disk=disk_of(source.store).copy())
    moved = list(move_epochs(source.store, twin, [1], holds=holds_of(source.store)))
    assert [x.is_removed for x in moved] == [True]
    assert 1 not in source.store.epochs()
    check_oracle(twin, 1, source.oracles[1])
    assert twin.verify().findings == []


@pytest.mark.parametrize("what", ["packs/", "manifests/"])
def test_a_damaged_copy_keeps_the_original(what: str) -> None:
    source, target = make_source(), make_target()
    list(move_epochs(source.store, target, [1]))
    path = next(path for path in disk_of(target).files() if path.startswith(what))
    data = disk_of(target).read(path, 0, 10**6)
    for place in range(len(data) // 3, len(data), 5):
        disk_of(target).nodes[path] = Inode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedDataError):
            list(move_epochs(source.store, target, [1], holds=holds_of(source.store)))
    assert source.store.epochs() == [1, 2, 3, 4]
    source.check(source.store, 1)


def test_packs_that_copies_share_are_read_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make_source(), make_target()
    seen: list[str] = []
    right = snapshot_copy.read_blobs

    def noting(store: Store, blobs: Any, epoch: int) -> Any:
        listed = list(blobs)
        if store is target:
            seen.extend({blob.pack.path: None for blob in listed if not blob.entry.name})
        return right(store, listed, epoch)

    monkeypatch.setattr(snapshot_copy, "read_blobs", noting)
    list(move_epochs(source.store, target, [1, 2, 3]))
    assert len(seen) == len(set(seen)) > 2


def crash_everywhere() -> int:
    """Crash at each call on either disk; in every image each epoch is whole here or there, and the move can go on."""
    images = 0
    for crashed in (0, 1):
        for moment in range(1000):
            source, target = make_source(), make_target()
            roots = {epoch: source.store.read_ref(epoch) for epoch in CONTENTS}
            disks = disk_of(source.store), disk_of(target)
            disks[crashed].crash_after = len(disks[crashed].calls) + moment
            try:
                list(move_epochs(source.store, target, [1, 2], holds=holds_of(source.store)))
            except SimulatedCrashError:
                pass
            else:
                assert moment > 10
                break
            others = disks[1 - crashed].copy()
            for image in disks[crashed].images():
                images += 1
                here, there = (image, others.copy())[:: 1 - 2 * crashed]
                _check(source, roots, here, there, seed=90 + moment)
    return images


def _check(source: Writer, roots: dict[int, str], here: SimulatedDisk, there: SimulatedDisk, *, seed: int) -> None:
    first, second = Store.open("here", disk=here), Store.open("there", disk=there)
    first._random_bytes, second._random_bytes = seeded_bytes(seed), seeded_bytes(seed + 1000)
    for epoch, root in roots.items():
        found = [store for store in (first, second) if epoch in store.epochs()]
        assert found, f"epoch {epoch} is nowhere"
        for store in found:
            assert store.read_ref(epoch) == root
            snapshot_copy.check_epoch(store, epoch, set())
    Holds(first, now_s=lambda: 1e9).clear_leftovers(is_alone=True)
    left = [epoch for epoch in (1, 2) if epoch in first.epochs()]
    list(move_epochs(first, second, left, holds=holds_of(first)))
    assert first.epochs() == [3, 4] and second.epochs() == [1, 2]
    assert first.verify().findings == [] and second.verify().findings == []


def test_crash_at_every_call_loses_nothing() -> None:
    assert crash_everywhere() > 50


# ---- the tests above can fail --------------------------------------------------------------------------------------


def test_the_crash_test_catches_a_removal_before_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    right = snapshot_copy.copy_epoch

    def remove_first(source: Store, target: Store, epoch: int, **others: Any) -> Any:
        memory = Store.open("memory", disk=disk_of(source).copy())
        source.delete_epoch(epoch)
        return right(memory, target, epoch, **others)

    monkeypatch.setattr(snapshot_copy, "copy_epoch", remove_first)
    with pytest.raises(AssertionError, match="is nowhere"):
        crash_everywhere()


def test_the_test_of_damage_catches_a_copy_that_is_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_copy, "check_epoch", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_damaged_copy_keeps_the_original("packs/")


def test_the_test_of_one_store_catches_a_move_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_copy, "_are_one", lambda *_: False)
    with pytest.raises(pytest.fail.Exception):
        test_one_store_under_two_names_is_not_emptied()

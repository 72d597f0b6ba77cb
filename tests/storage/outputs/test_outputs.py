"""Outputs in a store: released once, in order, whole; read from any cursor; kept for consumers; deleted when all have had them."""

from collections.abc import Callable

import pytest
from tests.storage.making import make_store, seeded_bytes
from tests.storage.outputs.releasing import CREATED_NS, make_output, make_outputs, release, root_of
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import NotFoundError, StoreError, UsageError
from snapline.storage.disk.object_disk import DiskCapabilities
from snapline.storage.outputs import output_files as writing
from snapline.storage.outputs import output_record as records
from snapline.storage.outputs.output_files import RevertedEpochs
from snapline.storage.store.store import Store

OutputKey = tuple[int, str, int]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    return make_store(disk)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """About one output to a part."""
    monkeypatch.setattr(records, "PART_BYTES", 100)


def another(disk: SimulatedDisk, store: Store, seed: int = 1) -> Store:
    """The store in another process."""
    return Store(disk, store.store_id, random_bytes=seeded_bytes(seed))


def read(store: Store, after: str = "") -> list[OutputKey | RevertedEpochs]:
    found: list[OutputKey | RevertedEpochs] = []
    for batch in store.read_outputs(after):
        found += [batch.undone] if batch.undone is not None else []
        found += [(batch.epoch, each.agent, each.number) for each in batch.outputs]
    return found


def keys(*epochs: int) -> list[OutputKey | RevertedEpochs]:
    return [(epoch, each.agent, each.number) for epoch in epochs for each in make_outputs(epoch)]


def run_between(disk: SimulatedDisk, moment: int, ours: Callable[[], object], others: Callable[[], object]) -> bool:
    """Do `ours`, and `others` before its call number `moment`; return whether there was one."""
    limit, has_acted = len(disk.calls) + moment, False

    def act(name: str) -> None:
        nonlocal has_acted
        if len(disk.calls) >= limit:
            disk.on_call, has_acted = (lambda name: None), True
            others()

    disk.on_call = act
    ours()
    disk.on_call = lambda name: None
    return has_acted


def test_a_store_without_outputs_has_no_folder_for_them(disk: SimulatedDisk, store: Store) -> None:
    before = list(disk.calls)
    assert store.output_epochs() == [] and read(store) == [] and store.output_consumers() == {}
    store.release_outputs(1, root_of(1), 0, [], created_ns=CREATED_NS)
    assert store.delete_outputs(now_ns=CREATED_NS, age_ns_min=0) == []
    assert not any(path.startswith("outputs") for path in disk.files())
    assert {name for name in disk.calls[len(before) :]} <= {"list_directory"}


def test_what_is_released_is_read_in_order_from_every_cursor(disk: SimulatedDisk, store: Store) -> None:
    for epoch in (1, 2, 11, 12):
        release(store, epoch, after=epoch - 1)
    other = another(disk, store)
    assert other.output_epochs() == [1, 2, 11, 12]
    found = other.read_release(2)
    assert (found.epoch, found.after, found.root, found.created_ns) == (2, 1, root_of(2), CREATED_NS)
    assert found.outputs == make_outputs(2)
    assert read(other) == keys(1, 2, 11, 12)
    places = [(batch, index) for batch in other.read_outputs() for index in range(len(batch.outputs))]
    cursors = [str(batch.cursor(index + 1)) for batch, index in places]
    assert cursors[:4] == ["1.1", "1.2", "1.3", "2.1"]
    for index, cursor in enumerate(cursors):
        assert read(other, cursor) == keys(1, 2, 11, 12)[index + 1 :]
    assert other.verify().is_whole


def test_outputs_are_sorted_by_whoever_releases_them(store: Store) -> None:
    store.release_outputs(1, root_of(1), 0, make_outputs(1)[::-1], created_ns=0)
    assert store.read_release(1).outputs == make_outputs(1)


@pytest.mark.usefixtures("small_parts")
def test_a_long_release_has_parts_and_is_read_a_part_at_a_time(disk: SimulatedDisk, store: Store) -> None:
    release(store, 1, size=60)
    assert len([path for path in disk.files() if path.startswith("outputs/1.")]) == 3
    assert [(batch.first, len(batch.outputs)) for batch in store.read_outputs()] == [(0, 1), (1, 1), (2, 1)]
    assert [(batch.first, len(batch.outputs)) for batch in store.read_outputs("1.2")] == [(2, 1)]
    assert store.read_release(1).outputs == make_outputs(1, size=60)
    assert read(store, "1.3") == [] and store.verify().is_whole


def test_a_second_release_is_success_and_writes_nothing(disk: SimulatedDisk, store: Store) -> None:
    release(store, 1)
    release(store, 2)
    before = {path: disk.nodes[path] for path in disk.files()}
    for other in (store, another(disk, store)):
        for epoch in (1, 2):
            release(other, epoch, created_ns=7)
    assert {path: disk.nodes[path] for path in disk.files()} == before


def test_of_two_who_release_at_a_time_both_succeed() -> None:
    """Between any two calls of ours another process releases the same epoch."""
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        release(store, 1)
        other = another(disk, store)
        has_acted = run_between(disk, moment, lambda: release(store, 2), lambda: release(other, 2))  # noqa: B023
        release(store, 3)
        assert read(store) == keys(1, 2, 3) and store.verify().is_whole
        if not has_acted:
            assert moment > 5
            return
    raise AssertionError("too many calls")


def test_another_root_or_history_of_the_same_epoch_is_another_fleets(disk: SimulatedDisk, store: Store) -> None:
    release(store, 1)
    release(store, 2)
    for epoch, root, after in ((2, 3, 1), (2, 2, 0), (1, 2, 0)):
        for each in (store, another(disk, store)):
            with pytest.raises(StoreError, match="two fleets on one store"):
                each.release_outputs(epoch, root_of(root), after, make_outputs(epoch), created_ns=0)


def test_what_was_released_and_deleted_is_not_released_again(disk: SimulatedDisk, store: Store) -> None:
    """A new leader releases all that it knows once more."""
    for epoch in (1, 2, 3):
        release(store, epoch)
    assert store.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0) == ["outputs/1.0", "outputs/2.0"]
    for other in (store, another(disk, store)):
        for epoch in (1, 2, 3):
            release(other, epoch)
    assert store.output_epochs() == [3]


def test_an_epoch_without_outputs_writes_a_file_only_where_it_takes_others_back(store: Store) -> None:
    for epoch in (1, 2, 3):
        release(store, epoch)
    store.release_outputs(4, root_of(4), 3, [], created_ns=0)
    assert store.output_epochs() == [1, 2, 3]
    store.release_outputs(6, root_of(6), 1, [], created_ns=0)
    store.release_outputs(7, root_of(7), 6, [], created_ns=0)
    assert store.output_epochs() == [1, 2, 3, 6]
    assert read(store) == [*keys(1, 2, 3), RevertedEpochs(1, (2, 3))]
    release(store, 8, after=7)
    assert read(store, "3.3") == [RevertedEpochs(1, (2, 3)), *keys(8)]
    assert read(store, "2.2") == [*keys(2)[2:], *keys(3), RevertedEpochs(1, (2, 3)), *keys(8)]
    assert read(store, "6.0") == keys(8)


def test_an_epoch_can_be_closed_so_that_nobody_releases_it_later(disk: SimulatedDisk, store: Store) -> None:
    other = another(disk, store)
    release(other, 1)
    store.release_outputs(3, root_of(3), 1, None, created_ns=1)
    release(other, 3, after=1)
    assert store.read_release(3).outputs == [] and read(store) == keys(1)


def test_what_was_taken_back_once_is_not_named_again(store: Store) -> None:
    for epoch, after in ((1, 0), (2, 1), (3, 2), (5, 2), (6, 5), (9, 1)):
        release(store, epoch, after=after)
    assert read(store) == [*keys(1, 2, 3), RevertedEpochs(2, (3,)), *keys(5, 6), RevertedEpochs(1, (2, 5, 6)), *keys(9)]
    with pytest.raises(UsageError, match="the fleet went back from it to 1"):
        release(store, 10, after=6)


def test_readers_of_what_was_deleted_are_told(store: Store) -> None:
    for epoch in range(1, 6):
        release(store, epoch, created_ns=CREATED_NS + min(epoch, 4))
    store.delete_outputs(now_ns=CREATED_NS + 4, age_ns_max=0, age_ns_min=0)
    assert store.output_epochs() == [4, 5]
    assert read(store) == keys(4, 5)
    assert read(store, "3.3") == keys(4, 5)
    for cursor in ("3.2", "1.1", "1.3"):
        with pytest.raises(
            NotFoundError, match=f"after '{cursor}' were deleted .* the oldest that are left are of epoch 4"
        ):
            read(store, cursor)


def test_a_leader_that_leads_again_hides_no_deletion(disk: SimulatedDisk, store: Store) -> None:
    """What it had released is not the newest any more; a reader that goes on from there has missed something."""
    release(store, 1)
    other = another(disk, store)
    release(other, 2)
    release(other, 3)
    release(store, 4)
    store.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0)
    assert store.output_epochs() == [4] and read(store, "3.3") == keys(4)
    with pytest.raises(NotFoundError, match=r"after '1\.3' were deleted"):
        read(store, "1.3")


def test_a_reader_that_is_overtaken_by_the_deletion_is_told(disk: SimulatedDisk, store: Store) -> None:
    for epoch in range(1, 6):
        release(store, epoch)
    batches = store.read_outputs()
    assert next(batches).epoch == 1
    another(disk, store).delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0)
    with pytest.raises(NotFoundError, match=r"after '1\.3' were deleted"):
        next(batches)


def test_cursors_that_cannot_be_are_refused(store: Store) -> None:
    for cursor in ("x", "1", "1.", "-1.0", "0.0", "01.1", "1.01", "1.1.1", f"{2**63}.1"):
        with pytest.raises(UsageError, match="is no cursor"):
            read(store, cursor)
    for cursor in ("1.0", "7.1"):
        with pytest.raises(UsageError, match="another's cursor"):
            read(store, cursor)
    release(store, 5)
    for cursor in ("5.4", "6.0"):
        with pytest.raises(UsageError, match="another's cursor"):
            read(store, cursor)


def test_what_cannot_be_released_is_refused_before_anything_is_written(disk: SimulatedDisk, store: Store) -> None:
    good = make_outputs(1)
    for wrong in (make_output("a/1", 1), make_output("a1", 0), good[0]):
        with pytest.raises(UsageError, match="outputs cannot be released"):
            store.release_outputs(1, root_of(1), 0, [*good, wrong], created_ns=0)
    for epoch, after, root in (
        (0, 0, root_of(0)),
        (1, 1, root_of(1)),
        (1, -1, root_of(1)),
        (1, 0, "x"),
        (2**63, 0, root_of(1)),
    ):
        with pytest.raises(UsageError):
            store.release_outputs(epoch, root, after, good, created_ns=0)
    with pytest.raises(UsageError, match="at most 67108864 are possible"):
        store.release_outputs(1, root_of(1), 0, [make_output("a1", 1, size=2**26)], created_ns=0)
    assert not any(path.startswith("outputs") for path in disk.files())


def test_a_disk_that_overwrites_objects_is_refused(disk: SimulatedDisk, store: Store) -> None:
    disk.abilities = DiskCapabilities(creates_only=False)  # type: ignore[attr-defined]  # As an object disk has them.
    with pytest.raises(UsageError, match="a fleet with outputs needs another one"):
        release(store, 1)


# -- consumers --------------------------------------------------------------------------------------------------------


def test_a_consumers_place_goes_on_and_never_back(disk: SimulatedDisk, store: Store) -> None:
    release(store, 1)
    release(store, 12)
    assert store.acknowledge_outputs("billing.v2", "", now_ns=5).cursor == ""
    for cursor, place in (("1.2", "1.2"), ("1.1", "1.2"), ("12.0", "12.0"), ("1.3", "12.0"), ("12.1", "12.1")):
        assert store.acknowledge_outputs("billing.v2", cursor, now_ns=6).cursor == place
    assert another(disk, store).acknowledge_outputs("audit", "1.1", now_ns=7).cursor == "1.1"
    places = another(disk, store).output_consumers()
    assert {name: (place.cursor, place.acknowledged_ns) for name, place in places.items()} == {
        "audit": ("1.1", 7),
        "billing.v2": ("12.1", 6),
    }
    assert [path for path in disk.files() if "consumers" in path] == [
        "outputs/consumers/audit.1",
        "outputs/consumers/billing.v2.4",
    ]
    assert store.forget_consumer("audit") and not store.forget_consumer("audit")
    assert list(store.output_consumers()) == ["billing.v2"] and store.verify().is_whole


def test_no_consumer_is_ahead_of_what_was_released(disk: SimulatedDisk, store: Store) -> None:
    release(store, 3)
    for each in (store, another(disk, store)):
        with pytest.raises(UsageError, match="another's cursor"):
            each.acknowledge_outputs("c1", "4.0", now_ns=0)
    with pytest.raises(UsageError, match="no valid consumer id"):
        store.acknowledge_outputs("c/1", "3.0", now_ns=0)


def test_consumers_that_move_at_a_time_both_arrive() -> None:
    """Between any two calls of ours another process moves the same consumer."""
    for moment in range(100):
        disk = SimulatedDisk()
        store = make_store(disk)
        release(store, 1)
        store.acknowledge_outputs("c1", "", now_ns=0)
        other = another(disk, store)
        has_acted = run_between(
            disk,
            moment,
            lambda: store.acknowledge_outputs("c1", "1.1", now_ns=1),  # noqa: B023
            lambda: other.acknowledge_outputs("c1", "1.2", now_ns=1),  # noqa: B023
        )
        assert store.output_consumers()["c1"].cursor == ("1.2" if has_acted else "1.1")
        if not has_acted:
            assert moment > 8
            return
    raise AssertionError("too many calls")


# -- retention --------------------------------------------------------------------------------------------------------


def test_what_all_consumers_have_passed_goes_but_the_newest(store: Store) -> None:
    for epoch in range(1, 6):
        release(store, epoch)
    now_ns = CREATED_NS
    assert store.delete_outputs(now_ns=now_ns, age_ns_min=0) == []
    store.acknowledge_outputs("c1", "5.3", now_ns=0)
    store.acknowledge_outputs("c2", "3.2", now_ns=0)
    assert store.delete_outputs(now_ns=now_ns, age_ns_min=0) == ["outputs/1.0", "outputs/2.0"]
    store.acknowledge_outputs("c2", "3.3", now_ns=0)
    assert store.delete_outputs(now_ns=now_ns, age_ns_min=0) == ["outputs/3.0"]
    store.forget_consumer("c2")
    assert store.delete_outputs(now_ns=now_ns, age_ns_min=0) == ["outputs/4.0"]
    assert store.delete_outputs(now_ns=now_ns + 10**18, age_ns_max=1, age_ns_min=0) == [] and read(store) == keys(5)


def releases_every(store: Store, seconds: int) -> list[int]:
    """Sixty releases so far from each other; returns when each was."""
    times = [CREATED_NS + epoch * seconds * 10**9 for epoch in range(61)]
    for epoch in range(1, 61):
        release(store, epoch, created_ns=times[epoch])
    return times


def heads(*epochs: int) -> list[str]:
    return [f"outputs/{epoch}.0" for epoch in epochs]


def test_what_is_young_stays_for_readers_without_a_name(store: Store) -> None:
    """An hour."""
    times = releases_every(store, 120)
    store.acknowledge_outputs("c1", "60.3", now_ns=0)
    assert store.delete_outputs(now_ns=times[60]) == heads(*range(1, 31))
    assert store.delete_outputs(now_ns=times[60] + 120 * 10**9) == heads(31)


def test_what_is_old_goes_whoever_has_not_had_it_and_in_order(store: Store) -> None:
    """A week."""
    times = releases_every(store, 6 * 3600)
    store.acknowledge_outputs("c1", "", now_ns=0)
    assert store.delete_outputs(now_ns=times[60]) == heads(*range(1, 32)), "28 releases make a week"
    assert store.delete_outputs(now_ns=times[60] + 6 * 3600 * 10**9) == heads(32)


@pytest.mark.parametrize("jump_s", [-(10**9), 3600, 10**9])
def test_no_jump_of_a_clock_deletes_what_nobody_has_had(store: Store, jump_s: int) -> None:
    """On a leader that only looks, and on one that releases: some of a day's releases may go a little early, and no more."""
    jump_ns = jump_s * 10**9
    for epoch in range(1, 31):
        release(store, epoch, created_ns=CREATED_NS + epoch * 10**9)
    store.acknowledge_outputs("c1", "", now_ns=0)
    store.acknowledge_outputs("c2", "", now_ns=0)
    assert store.delete_outputs(now_ns=CREATED_NS + jump_ns) == []
    release(store, 31, created_ns=CREATED_NS + 31 * 10**9 + jump_ns)
    release(store, 32, created_ns=CREATED_NS + 32 * 10**9)
    for consumer in ("c1", "c2"):
        store.acknowledge_outputs(consumer, "32.3", now_ns=0)
    assert store.delete_outputs(now_ns=CREATED_NS + 33 * 10**9 + jump_ns) == [], "nor is the hour over"


def test_of_many_releases_a_deletion_looks_at_some(
    disk: SimulatedDisk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LOOKED_AT", 100)
    quarter_ns = 900 * 10**9
    for epoch in range(1, 301):
        release(store, epoch, created_ns=CREATED_NS + epoch * quarter_ns)
    before = len(disk.calls)
    store.delete_outputs(now_ns=CREATED_NS + 300 * quarter_ns, age_ns_max=120 * quarter_ns)
    assert store.output_epochs() == list(range(177, 301)), "180 is not old yet, and between 176 and 180 it did not look"
    assert len([call for call in disk.calls[before:] if "read" in call]) < 100


@pytest.mark.usefixtures("small_parts")
def test_parts_of_tries_that_died_go_when_a_later_epoch_was_released(disk: SimulatedDisk, store: Store) -> None:
    release(store, 1, size=60)
    stale = [f"outputs/{epoch}.1.{'c' * 32}" for epoch in (1, 2, 4)]
    for path in stale:
        disk.nodes[path] = disk.nodes["outputs/1.0"]
    release(store, 3, after=1, size=60)
    assert store.delete_outputs(now_ns=CREATED_NS, age_ns_min=0) == stale[:2]
    parts = [path for path in disk.files() if path.startswith("outputs/1.")]
    assert store.delete_outputs(now_ns=CREATED_NS + 1, age_ns_max=0, age_ns_min=0) == parts
    assert read(store) == keys(3)


def test_temporary_files_of_earlier_releases_go() -> None:
    disk = SimulatedDisk(has_unnamed_files=False)
    store = make_store(disk)
    release(store, 3)
    for name in ("output-3", "output-4", "log-1", "2"):
        disk.nodes[f"temporary/{name}-{'a' * 32}"] = disk.nodes["snapline-store"]
    assert store.delete_outputs(now_ns=CREATED_NS, age_ns_min=0) == [f"temporary/output-3-{'a' * 32}"]

"""Rotation: at every moment, and after a crash at any, each key opens with the old or with the new key."""

import pytest
from tests.storage.making import seeded_bytes
from tests.storage.protecting import (
    BOTH,
    CONTEXT,
    NEW,
    OLD,
    OTHER_PACK,
    PACK,
    STORE,
    Life,
    content,
    crash_everywhere,
    forge,
    load,
    make_disk,
    put_file,
    run_at_every_call,
)
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.disk.local_disk import Disk
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import NO_KEYS, Keys, make_wrapping_key
from snapline.storage.keys.key_records import list_keys, open_key, read_record

THIRD = Keys((make_wrapping_key(b"3" * 32),))


def rotate(disk: Disk, old: Keys = OLD, new: Keys = NEW, *, seed: int = 100) -> int:
    return key_records.rotate(disk, STORE, old, new, random_bytes=seeded_bytes(seed))


def make_used() -> tuple[SimulatedDisk, Life]:
    """A store with five keys, everything durable, and what was written with them."""
    disk = make_disk()
    life = Life(disk)
    life.run()
    disk.durable, disk.pending = dict(disk.nodes), {}
    disk.calls.clear()
    return disk, life


def wrappers(disk: SimulatedDisk) -> set[str]:
    return {
        read_record(disk, f"keys/{key_id}.{generation}", STORE).wrapper
        for key_id, generations in list_keys(disk).items()
        for generation in generations
    }


def test_rotation_rewraps_every_key_and_nothing_else() -> None:
    disk, life = make_used()
    keys = list_keys(disk)
    assert len(keys) == 5
    assert rotate(disk) == 5
    assert list_keys(disk) == {key_id: [1] for key_id in keys}
    assert wrappers(disk) == {NEW.wrapping[0].key_id}
    life.check(disk.copy(), NEW)
    with pytest.raises(StoreError, match=f"encrypted with key {NEW.wrapping[0].key_id}"):
        load(disk, OLD)
    assert [path for path in disk.files() if not path.startswith("keys/")] == ["snapline-store"]


def test_rotation_again_does_nothing_and_back_works() -> None:
    disk, life = make_used()
    rotate(disk)
    count = len(disk.calls)
    assert rotate(disk) == 0 == rotate(disk, NO_KEYS) == rotate(disk, NEW)
    assert len(disk.calls) == count
    assert rotate(disk, NEW, OLD, seed=101) == 5
    assert set(map(tuple, list_keys(disk).values())) == {(2,)}
    life.check(disk)


def test_processes_that_run_notice_nothing() -> None:
    """They hold the old key only; what they have read stays, and what they read next they find with both keys."""
    disk, life = make_used()
    writer, reader = load(disk, OLD, seed=50), load(disk, BOTH, seed=51)
    cipher = writer.begin_pack("h5.1", PACK)
    rotate(disk)
    sealed = cipher.seal(0, CONTEXT, b"late")
    later = writer.begin_pack("h5.1", OTHER_PACK)
    assert later.key_id == cipher.key_id
    assert reader.open_pack(cipher.key_id, PACK).open(0, CONTEXT, sealed) == b"late"
    assert reader.digest(b"state") == writer.digest(b"state") == life.sealed[0][3]


def test_a_key_that_needs_another_file_stops_rotation_before_it_begins() -> None:
    disk, life = make_used()
    load(disk, Keys(THIRD.wrapping + OLD.wrapping), seed=60).begin_pack("h6.1", PACK)
    before = {path: content(disk, path) for path in disk.files()}
    with pytest.raises(StoreError, match=f"encrypted with key {THIRD.wrapping[0].key_id}"):
        rotate(disk)
    assert {path: content(disk, path) for path in disk.files()} == before
    assert rotate(disk, Keys(OLD.wrapping + THIRD.wrapping)) == 6
    life.check(disk, NEW)


def test_rotation_needs_a_new_key() -> None:
    with pytest.raises(UsageError, match="snapline keys generate"):
        rotate(make_used()[0], OLD, NO_KEYS)
    assert rotate(make_disk()) == 0, "nothing is encrypted yet"


def test_a_lost_key_is_named_after_all_others_were_rotated() -> None:
    disk, life = make_used()
    lost = life.sealed.pop()[0]
    put_file(disk, f"keys/{lost}.0", b"damaged")
    with pytest.raises(DamagedDataError, match=f"keys/{lost}.0"):
        rotate(disk)
    assert list_keys(disk).pop(lost) == [0]
    life.check(disk, NEW)


def test_a_damaged_newest_generation_is_replaced_from_an_older_one() -> None:
    disk, life = make_used()
    key_id = life.sealed[0][0]
    put_file(disk, f"keys/{key_id}.1", b"damaged")
    life.check(disk.copy())
    assert rotate(disk, OLD, OLD) == 1
    assert list_keys(disk)[key_id] == [2]
    life.check(disk)


# -- crashes and errors ------------------------------------------------------------------------------------------------


def _check_rotated(life: Life, image: SimulatedDisk) -> None:
    life.check(image.copy(), BOTH)
    rotate(image, seed=200)
    assert wrappers(image) == {NEW.wrapping[0].key_id}
    assert all(len(generations) == 1 for generations in list_keys(image).values())
    life.check(image, NEW)


def _rotate_life(disk: SimulatedDisk) -> Life:
    used, life = make_used()
    disk.nodes, disk.durable = dict(used.nodes), dict(used.nodes)
    life.disk = disk
    return life


def _crash_in_rotation() -> int:
    return crash_everywhere(_rotate_life, lambda life: rotate_quietly(life.disk), _check_rotated)


def test_a_crash_at_every_step_leaves_every_key_readable() -> None:
    """And rotation again completes it."""
    assert _crash_in_rotation() > 100


def _remove_first(rotation: key_records._Round) -> None:
    for key_id, generations in rotation._listed.items():
        if rotation._opened[key_id].record.wrapper != NEW.wrapping[0].key_id:
            key_records.remove_generations(rotation._disk, [f"keys/{key_id}.{n}" for n in generations])


def test_the_crash_test_catches_removal_before_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrap = key_records._Round.rewrap

    def mutant(rotation: key_records._Round) -> None:
        _remove_first(rotation)
        rewrap(rotation)

    monkeypatch.setattr(key_records._Round, "rewrap", mutant)
    with pytest.raises((AssertionError, StoreError)):
        _crash_in_rotation()


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_the_crash_test_catches_a_missing_sync(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, call, lambda disk, target: None)
    with pytest.raises((AssertionError, StoreError)):
        _crash_in_rotation()


def test_removal_relies_on_no_name_that_a_dead_rotation_left_unsynced() -> None:
    """It was killed between link and sync, the machine went on, and loses its power during the next rotation."""

    def run(life: Life) -> None:
        disk = life.disk
        sync, disk.sync_directory = disk.sync_directory, lambda path: None  # type: ignore[method-assign]  # no sync
        rotation = key_records._Round(disk, STORE, BOTH, seeded_bytes(100))
        rotation.open_all()
        rotation.rewrap()
        disk.sync_directory = sync  # type: ignore[method-assign]  # as it was
        rotate(disk, seed=101)

    assert crash_everywhere(_rotate_life, run, _check_rotated) > 100


def test_an_error_at_every_call_is_clean_and_rotation_again_completes_it() -> None:
    disk, _ = make_used()
    rotate(disk)
    for moment in range(len(disk.calls)):
        failing, life = make_used()
        failing.fail_at = moment
        with pytest.raises(StoreError, match="cannot write"):
            rotate(failing)
        assert failing.open_handles == 0
        _check_rotated(life, failing)


# -- others at work meanwhile ------------------------------------------------------------------------------------------


def _used_disk() -> SimulatedDisk:
    return make_used()[0]


LIFE = make_used()[1]
"""The same in each `make_used`: its randomness has a seed."""


def test_readers_find_every_key_at_every_moment_of_a_rotation() -> None:
    assert (
        run_at_every_call(_used_disk, rotate_quietly, lambda disk: LIFE.check(disk.copy(), BOTH), lambda disk: None)
        > 50
    )


def rotate_quietly(disk: SimulatedDisk) -> None:
    rotate(disk)


def test_a_rotation_at_every_moment_of_a_reader_disturbs_nothing() -> None:
    """Names vanish between listing and reading: the reader looks again."""
    calls = run_at_every_call(_used_disk, lambda disk: LIFE.check(disk, BOTH), rotate_quietly, lambda disk: None)
    assert calls > 20


def test_a_reader_that_never_looks_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_records, "LISTINGS_MAX", 1)
    with pytest.raises(StoreError):
        run_at_every_call(_used_disk, lambda disk: LIFE.check(disk, BOTH), rotate_quietly, lambda disk: None)


def test_a_writer_with_the_old_key_at_every_moment_of_a_rotation() -> None:
    """What it makes is rewrapped, or (after the last look) stays readable with the old key."""
    made: list[str] = []

    def write(disk: SimulatedDisk) -> None:
        made.append(load(disk, Keys(OLD.wrapping + NEW.wrapping), seed=300).begin_pack("h7.1", PACK).key_id)

    def check(disk: SimulatedDisk) -> None:
        open_key(disk, STORE, made[-1], BOTH)
        LIFE.check(disk, BOTH)

    calls = run_at_every_call(_used_disk, rotate_quietly, write, check)
    assert calls > 50


def test_racing_rotations_leave_one_generation_that_opens() -> None:
    def check(disk: SimulatedDisk) -> None:
        assert wrappers(disk) == {NEW.wrapping[0].key_id}
        LIFE.check(disk, NEW)

    run_at_every_call(_used_disk, rotate_quietly, rotate_with_other_nonces, check)


def rotate_with_other_nonces(disk: SimulatedDisk) -> None:
    rotate(disk, seed=400)


def test_keys_that_appear_all_the_time_end_rotation() -> None:
    disk, _ = make_used()
    seeds = iter(range(1000, 2000))

    def write(name: str) -> None:
        if name == "list_directory":
            disk.on_call = lambda name: None
            load(disk, Keys(OLD.wrapping + NEW.wrapping), seed=next(seeds)).begin_pack("h7.1", PACK)
            disk.on_call = write

    disk.on_call = write
    with pytest.raises(StoreError, match="in front of the old one"):
        rotate(disk, OLD, Keys(NEW.wrapping + OLD.wrapping))


def test_a_stray_first_digest_key_is_never_used() -> None:
    """A process found no key, slept while another made one and rotated it, and then made a `digest.0` of its own."""

    def rotate_first(disk: SimulatedDisk) -> None:
        load(disk, OLD, seed=1).prepare()
        rotate(disk)

    digests: list[bytes] = []

    def sleeper(disk: SimulatedDisk) -> None:
        digests.append(load(disk, Keys(OLD.wrapping + NEW.wrapping), seed=2).digest(b"state"))

    def check(disk: SimulatedDisk) -> None:
        assert digests[-1] == load(disk, BOTH, seed=3).digest(b"state")
        assert list_keys(disk)["digest"] == [1], "no stray is left"

    assert run_at_every_call(make_disk, sleeper, rotate_first, check) > 10


def test_a_stray_that_a_crash_left_is_told_by_its_check() -> None:
    disk, stray = make_disk(), make_disk()
    load(disk, OLD, seed=1).prepare()
    rotate(disk)
    load(stray, OLD, seed=2).prepare()
    put_file(disk, "keys/digest.0", content(stray, "keys/digest.0"))
    with pytest.raises(StoreError, match=f"encrypted with key {NEW.wrapping[0].key_id}"):
        load(disk, OLD)
    assert load(disk, BOTH).digest(b"x") == load(disk, NEW).digest(b"x")
    cleared = disk.copy()
    assert rotate(cleared) == 0 and list_keys(cleared) == {"digest": [1]}
    forge(disk, "keys/digest.1", check=bytes(16))
    with pytest.raises(DamagedDataError, match="keys/digest"):
        load(disk, BOTH)

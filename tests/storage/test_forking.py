"""Forks in the store: the parent's snapshot under another cluster, whatever keys there are and wherever the fork was interrupted."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.copying import Writer
from tests.storage.making import make_store, seeded_bytes
from tests.storage.protecting import NEW, OLD
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk
from tests.storage.test_transfer import disk_of, make_source

from snapline.errors import DamagedDataError, SnaplineError, StoreError, StoreMissingError, UsageError
from snapline.storage.disk import store_files
from snapline.storage.disk.local_disk import write_once
from snapline.storage.disk.store_files import encode_fork
from snapline.storage.keys.key_files import Keys, make_signing_key
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint
from snapline.storage.store.store import Holds, Store
from snapline.storage.transfer import forking, snapshot_copy
from snapline.storage.transfer.forking import ForkOrder, clear_unfinished, first_gap, pending_inputs, write_fork
from snapline.storage.transfer.snapshot_copy import check_epoch

ORDER = ForkOrder(
    name="other", parent_name="tests", is_live=False, created="2026-01-01T00:00:00Z", fleet="tests", config_hash="ab"
)
INPUTS = [LoggedInput(agent, number, "c", f"k{number}", b"x" * 50, 0) for agent in ("a", "b") for number in (3, 4)]


def fork(source: Store, epoch: int, disk: SimulatedDisk, order: ForkOrder = ORDER, **options: Any) -> Store:
    return write_fork(
        source, epoch, disk, order, keys=options.pop("keys", None), random_bytes=seeded_bytes(7), **options
    )


def content_of(store: Store, epoch: int) -> dict[str, tuple[AgentCheckpoint, list[bytes]]]:
    """What an epoch restores: of each agent its checkpoint, without the names of its chunks, and the bytes of its parts."""
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    reader = store.part_reader(manifest)
    return {
        found.agent: (
            msgspec.structs.replace(found, parts=[msgspec.structs.replace(part, digests=b"") for part in found.parts]),
            [bytes(content) for content in reader.read(found.agent, found.parts)],
        )
        for found in store.read_checkpoints(manifest)
    }


# ---- what is forked ------------------------------------------------------------------------------------------------

AGENTS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 12), max_size=6), min_size=1)
STEPS = st.lists(AGENTS, min_size=1, max_size=4)
KEYS = st.sampled_from([None, OLD, NEW])


@settings(max_examples=60, deadline=None)
@given(STEPS, KEYS, KEYS, st.data())
def test_a_fork_restores_as_its_parents_snapshot_under_any_keys(
    steps: Any, old: Keys | None, new: Keys | None, data: st.DataObject
) -> None:
    source = Writer(Store.create("simulated", disk=SimulatedDisk(), keys=old, random_bytes=seeded_bytes(0)))
    for epoch, agents in enumerate(steps, 1):
        source.write(epoch, agents, cluster=source.store.store_id)
    epoch = data.draw(st.integers(1, len(steps)))
    before = {path: disk_of(source.store).read(path, 0, 10**6) for path in disk_of(source.store).files()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_copy, "PACK_BYTES_MAX", data.draw(st.sampled_from([1, 300, 10**9])))
        made = fork(source.store, epoch, SimulatedDisk(), keys=new)
    again = Store.open("simulated", disk=disk_of(made), keys=new)
    assert content_of(again, epoch) == content_of(source.store, epoch)
    check_epoch(again, epoch, set())
    assert again.verify().findings == [] and again.verify().unreferenced == []
    assert again.epochs() == [epoch] and again.store_id != source.store.store_id
    assert {path: disk_of(source.store).read(path, 0, 10**6) for path in disk_of(source.store).files()} == before


def test_manifest_and_record_say_whose_fork_it_is() -> None:
    source = make_source().store
    made = fork(source, 2, SimulatedDisk())
    about = made.read_manifest(made.read_ref(2), epoch=2).metadata
    parent = source.read_manifest(source.read_ref(2), epoch=2).metadata
    assert (about.cluster, about.config_hash, about.trigger, about.created) == (
        made.store_id, "ab", "fork", "2026-01-01T00:00:00Z",
    )  # fmt: skip
    changed = {"cluster": "", "config_hash": "", "trigger": "", "created": ""}
    assert msgspec.structs.replace(about, **changed) == msgspec.structs.replace(parent, **changed)
    record = made.fork_record()
    assert record is not None and source.fork_record() is None
    assert (record.name, record.parent, record.parent_name, record.epoch) == ("other", source.store_id, "tests", 2)
    assert (record.root, record.store, record.is_live) == (source.read_ref(2), made.store_id, False)


def test_a_changed_checkpoint_takes_the_place_of_the_snapshots() -> None:
    source = make_source()
    before = decode_checkpoint(source.oracles[2]["a"][0])
    changed = msgspec.structs.replace(before, state=before.state + b"\xc0")
    made = fork(source.store, 2, SimulatedDisk(), msgspec.structs.replace(ORDER, changed={"a": changed}))
    expected = content_of(source.store, 2)
    expected["a"] = (msgspec.structs.replace(expected["a"][0], state=changed.state), expected["a"][1])
    assert content_of(made, 2) == expected
    old, new = (x.read_manifest(x.read_ref(2)).metadata.state_bytes for x in (source.store, made))
    assert new == old + 1


def test_a_fork_of_a_fork_needs_neither_of_the_others() -> None:
    source = make_source()
    first = fork(source.store, 3, SimulatedDisk())
    source.store.delete_epoch(3)
    second = write_fork(first, 3, SimulatedDisk(), ORDER, keys=None, random_bytes=seeded_bytes(8))
    first.delete_epoch(3)
    content = content_of(second, 3)
    for agent, (encoded, content_bytes) in source.oracles[3].items():
        assert b"".join(content[agent][1]) == content_bytes
        assert content[agent][0].state == decode_checkpoint(encoded).state
    record = second.fork_record()
    assert record is not None and record.parent == first.store_id


def test_a_snapshot_is_held_by_one_pin_meanwhile_and_by_nobodys_else_after() -> None:
    source = make_source().store
    holds = Holds(source, now_s=lambda: 1.0)
    with holds.holding(2):
        assert holds.pinned() == [2] and holds.delete([2]) == {2: None}
    assert holds.pinned() == []
    holds.pin(2)
    with holds.holding(2):
        pass
    assert holds.pinned() == [2]


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_inputs_are_taken_along_and_their_log_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "INPUTS_BYTES_MAX", 100)
    made = write_with_inputs()
    consumed = {"a": 2, "b": 2, "c": 9}
    assert pending_inputs(made, consumed) == INPUTS and first_gap(INPUTS, consumed) is None
    assert pending_inputs(made, {"b": 3}) == INPUTS[3:]
    log = LogName(1, forking.FORK_WRITER, 0)
    assert not made.append_batch(made.prepare_batch(log, 3, LogBatch([])))
    assert made.verify().findings == []


def write_with_inputs(disk: SimulatedDisk | None = None, **options: Any) -> Store:
    source = make_store(SimulatedDisk())
    writer = Writer(source)
    writer.write(2, {"a": [1, 2], "b": [3]})
    manifest = source.read_manifest(source.read_ref(2))
    about = msgspec.structs.replace(manifest.metadata, plan=1)
    root = source.write_manifest(msgspec.structs.replace(manifest, metadata=about))
    store_files.unlink(source.disk, ["refs/epochs/2"])
    source.publish(2, root)
    return fork(source, 2, disk or SimulatedDisk(), msgspec.structs.replace(ORDER, inputs=INPUTS), **options)


def test_the_first_gap_is_named() -> None:
    assert first_gap(INPUTS[1:], {"a": 2, "b": 2}) == ("a", 3)
    assert first_gap([INPUTS[0], INPUTS[2]], {"a": 2, "b": 1}) == ("b", 2)
    assert first_gap([], {"a": 2}) is None


# ---- where it may not be made --------------------------------------------------------------------------------------


def test_a_fork_is_not_made_over_anything() -> None:
    source, other = make_source(), make_source(seed=3)
    with pytest.raises(UsageError, match="there is a store at simulated already"):
        fork(source.store, 2, disk_of(other.store))
    disk = SimulatedDisk()
    disk.nodes["notes.txt"] = Inode(b"x", b"x")
    with pytest.raises(UsageError, match=r"holds 'notes.txt' and is no store"):
        fork(source.store, 2, disk, begin_again=True)
    other.check(other.store, 3)


def test_a_damaged_or_foreign_record_is_found() -> None:
    made = fork(make_source().store, 2, SimulatedDisk())
    disk = disk_of(made)
    data = disk.read("fork", 0, 10**4)
    for place in range(0, len(data), 5):
        disk.nodes["fork"] = Inode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises((DamagedDataError, StoreError)):
            made.fork_record()
        assert [finding.path for finding in made.verify().findings] == ["fork"]
    other = write_fork(make_source().store, 2, SimulatedDisk(), ORDER, keys=None, random_bytes=seeded_bytes(9))
    disk.nodes["fork"] = Inode(disk_of(other).read("fork", 0, 10**4))
    with pytest.raises(DamagedDataError, match="belongs to store"):
        made.fork_record()


def test_where_refs_are_signed_nobody_else_makes_a_fork_live() -> None:
    signing = make_signing_key(b"s" * 32)
    signed = Keys(signing=signing, verifying=(signing.verify_key(),))
    disk = SimulatedDisk()
    fork(make_source().store, 2, disk, keys=signed)
    record = Store.open("simulated", disk=disk, keys=signed).fork_record()
    assert record is not None and not record.is_live
    forged = encode_fork(msgspec.structs.replace(record, is_live=True), None)
    disk.nodes["fork"] = Inode(forged, forged)
    with pytest.raises(StoreError, match="was not signed by the owner"):
        Store.open("simulated", disk=disk, keys=signed).fork_record()
    assert Store.open("simulated", disk=disk, keys=Keys()).fork_record() is not None


# ---- crashes -------------------------------------------------------------------------------------------------------


def crash_everywhere(make: Callable[..., Store], keys: Keys | None = None) -> int:
    """Crash a fork at every call, look at all that may be left, and make it again; return how many moments there were."""
    moment = 0
    while True:
        disk = SimulatedDisk()
        disk.crash_after = moment
        try:
            make(disk, keys=keys)
        except SimulatedCrashError:
            for image in disk.images():
                check_left(image, make, keys)
            moment += 1
            continue
        return moment


def check_left(image: SimulatedDisk, make: Callable[..., Store], keys: Keys | None) -> None:
    """No fork, or one that is refused and can be made again."""
    try:
        made = Store.open("simulated", disk=image.copy(), keys=keys)
    except StoreMissingError as error:
        if "fork" in image.nodes:
            assert "make it again with `snapline snapshot fork --again`" in str(error)
            with pytest.raises(UsageError, match="was not finished"):
                make(image.copy(), keys=keys)
            with pytest.raises(UsageError, match="was not finished"):
                Store.open_or_create("simulated", disk=image.copy(), keys=keys)
        else:
            assert not any(path.startswith(("packs/", "refs/", "manifests/", "log/")) for path in image.files())
        made = make(image, keys=keys, begin_again=True)
    assert made.epochs() == [2] and made.fork_record() is not None
    assert made.verify().findings == []
    assert made.verify().unreferenced == []


@pytest.mark.parametrize("keys", [None, OLD])
def test_a_crash_at_every_call_leaves_no_fork_or_one_that_can_be_made_again(
    keys: Keys | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_copy, "PACK_BYTES_MAX", 300)
    assert crash_everywhere(write_with_inputs, keys) > 60


def test_a_crash_while_the_remains_are_removed_does_no_harm() -> None:
    left = SimulatedDisk()
    left.crash_after = 60
    with pytest.raises(SimulatedCrashError):
        write_with_inputs(left)
    left = next(iter(left.images()))
    moment = 0
    while True:
        disk = left.copy()
        disk.crash_after = moment
        try:
            clear_unfinished(disk)
        except SimulatedCrashError:
            for image in disk.images():
                check_left(image, write_with_inputs, None)
            moment += 1
            continue
        break
    assert moment > 4


def test_what_is_no_unfinished_fork_is_not_removed() -> None:
    made = fork(make_source().store, 2, SimulatedDisk())
    with pytest.raises(UsageError, match="there is a store"):
        fork(make_source().store, 2, disk_of(made), begin_again=True)
    clear_unfinished(disk_of(made))
    clear_unfinished(disk_of(make_source().store))
    check_epoch(made, 2, set())


# ---- mutants: what the crash test must find --------------------------------------------------------------------------


def test_the_crash_test_finds_an_identity_before_the_ref(monkeypatch: pytest.MonkeyPatch) -> None:
    right = forking._write_first

    def with_identity(target: Any, data: bytes, *, temporary_name: str) -> None:
        right(target, data, temporary_name=temporary_name)
        store_id = msgspec.msgpack.decode(data[24:-32])["store"]
        write_once(target, "snapline-store", (store_files.encode_identity(store_id),), temporary_name="0-x", point="x")

    monkeypatch.setattr(forking, "_write_first", with_identity)
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(write_with_inputs)


def test_the_crash_test_finds_a_fork_without_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_write_first", lambda target, data, temporary_name: None)
    with pytest.raises((AssertionError, SnaplineError)):
        crash_everywhere(write_with_inputs)

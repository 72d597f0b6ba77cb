"""Packs of checkpoints that agents take on their own."""

import shutil
import threading
from pathlib import Path

import msgspec
import pytest
from tests.storage.making import (
    check_epoch_restores,
    check_taken,
    make_checkpoint,
    make_store,
    make_taken,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.simulated_disk import Inode, SimulatedDisk

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.disk.record import finding_of
from snapline.storage.packs.checkpoint import InTransitMessage, encode_checkpoint, size_of
from snapline.storage.packs.pack import KIND_CHECKPOINT, PackBlob, PackReference, PackWriter
from snapline.storage.store.store import Store

GOLDEN = Path(__file__).parent / "golden_1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_checkpoints_come_back_as_they_were_written(store: Store) -> None:
    pack = write_taken(store, 3)
    assert store.checkpoint_packs() == [pack.path]
    for known in (pack, pack.path):
        check_taken(store, known, 3)
        assert store.read_checkpoint_pack(known, {"a2": [4]}) == [make_taken("a2", 3)]
        assert store.read_checkpoint_pack(known, {}) == store.read_checkpoint_pack(known, {"a1": [], "b1": []}) == []
        for wanted, agent, number in (
            ({"a1": [4], "b1": [4]}, "b1", 4),
            ({"a2": [4, 5]}, "a2", 5),
            ({"a1": [3]}, "a1", 3),
        ):
            with pytest.raises(NotFoundError, match=f"no checkpoint {number} of agent '{agent}'"):
                store.read_checkpoint_pack(known, wanted)
    assert store.reference_checkpoint_pack(pack.path) == pack
    again = Store.open(store.location)
    check_taken(again, pack, 3)


def test_agent_may_have_several_checkpoints_in_a_pack_each_found_by_number(store: Store) -> None:
    """In the pack's order, whatever is asked for."""
    pack = write_taken(store, 3)
    first, second = make_taken("a1", 3, 1), make_taken("a1", 3, 2)
    assert store.read_checkpoint_pack(pack, {"a1": [5]}) == [second]
    assert store.read_checkpoint_pack(pack, {"a1": (5, 4)}) == [first, second]
    assert store.read_checkpoint_pack(pack, {"a1": {5, 4}, "a2": {4}}) == [first, make_taken("a2", 3), second]


LONGEST = "a" * 128


@pytest.mark.parametrize("agent", [LONGEST, "7.a", "7", "0.0", ".", "..", "-.a", "a." * 64])
def test_every_agents_id_can_be_told_from_the_number(store: Store, agent: str) -> None:
    """Ids may hold dots and digits: `3.7.a` is checkpoint 3 of agent `7.a`, never checkpoint 3.7 of `a`."""
    made = [msgspec.structs.replace(make_taken(agent, 1), number=number) for number in (0, 3, 37, 2**63 - 1)]
    pack = store.write_checkpoints(
        writer="w", plan=1, blobs=[(agent, x.number, encode_checkpoint(x)) for x in made]
    )  # fmt: skip
    assert store.read_checkpoint_pack(pack) == made
    for checkpoint in made:
        assert store.read_checkpoint_pack(pack, {agent: [checkpoint.number]}) == [checkpoint]
        assert layout.parse_checkpoint_name(f"{checkpoint.number}.{agent}") == (agent, checkpoint.number)
    assert store.verify().is_whole


@pytest.mark.parametrize(
    "name",
    ["a", "1", "1.", ".a", "-1.a", "+1.a", "01.a", "1a.a", "1_0.a", "1.a b", f"1.{LONGEST}a", f"{2**63}.a", "²3.a"],
)
def test_names_of_another_form_are_refused(store: Store, name: str) -> None:
    """When a pack is written; and in an index that is whole otherwise."""
    assert layout.parse_checkpoint_name(name) is None
    path = layout.PackName("w", 1, "0" * 32, layout.CHECKPOINTS)
    with pytest.raises(UsageError, match=r"look like <number>\.<agent>"):
        list(PackWriter(path, store_id=store.store_id).pieces([PackBlob(name, KIND_CHECKPOINT, b"")]))


def test_index_with_a_name_of_another_form_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As packs had them before agents could come several times."""
    disk = SimulatedDisk()
    store = make_store(disk)
    monkeypatch.setattr(layout, "checkpoint_name", lambda agent, number: agent)
    monkeypatch.setattr(PackWriter, "_check_name", lambda self, blob: None)
    pack = store.write_checkpoints(writer="w", plan=1, blobs=[("a1", 1, encode_checkpoint(make_taken("a1", 1)))])
    monkeypatch.undo()
    with pytest.raises(DamagedDataError, match="blob 'a1': it names no checkpoint"):
        store.read_checkpoint_pack(pack)
    assert [x.path for x in store.verify().findings] == [pack.path]


@pytest.mark.parametrize(
    ("agent", "number", "reason"),
    [("a2", 2, "the checkpoint of 'a1'"), ("a1", 3, "it is checkpoint 2"), ("1.a1", 2, "of 'a1'")],
)
def test_checkpoint_under_another_name_is_damaged(store: Store, agent: str, number: int, reason: str) -> None:
    """Its own agent and number are compared with its name; the error names whose it was to be."""
    pack = store.write_checkpoints(writer="w", plan=1, blobs=[(agent, number, encode_checkpoint(make_taken("a1", 1)))])
    with pytest.raises(
        DamagedDataError, match=f"agent '{agent}', checkpoint {number} is damaged: .*{reason}"
    ) as caught:
        store.read_checkpoint_pack(pack, {agent: [number]})
    finding = finding_of(caught.value)
    assert finding is not None and (finding.path, finding.agent, finding.number) == (pack.path, agent, number)


def test_packs_are_listed_by_plan(store: Store) -> None:
    assert store.checkpoint_packs() == store.checkpoint_packs(1) == []
    packs = {plan: [write_taken(store, plan).path for _ in range(3)] for plan in (1, 2, 10)}
    other = store.write_checkpoints(writer="h", plan=2, blobs=[]).path
    assert store.checkpoint_packs() == sorted([*packs[1], *packs[2], *packs[10], other])
    assert store.checkpoint_packs(1) == sorted(packs[1])
    assert store.checkpoint_packs(2) == sorted([*packs[2], other])


def test_store_without_the_folder_gets_it_with_the_first_checkpoint(tmp_path: Path) -> None:
    """As one that was made by an earlier release."""
    shutil.copytree(GOLDEN, tmp_path / "store")
    (tmp_path / "store" / "probes").mkdir(exist_ok=True)
    store = Store.open(tmp_path / "store")
    assert store.checkpoint_packs() == [] and store.verify().is_whole
    assert store.sweep_checkpoints(plans_below=5) == []
    pack = write_taken(store, 1)
    check_taken(Store.open(tmp_path / "store"), pack, 1)
    check_epoch_restores(store, 1)
    assert store.verify().is_whole


def test_checkpoints_cost_one_data_sync_and_one_directory_sync() -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    write_taken(store, 1)
    disk.calls.clear()
    write_taken(store, 1)
    assert disk.calls == ["open_temporary", "write", "sync_data", "link", "sync_directory"]


def test_impossible_names_are_refused(store: Store) -> None:
    write_epoch(store, 1)
    epoch_pack = store.read_manifest(store.read_ref(1)).packs[0]
    for path in (
        epoch_pack.path,
        "checkpoints/../x",
        f"checkpoints/../1.{'0' * 32}",
        "checkpoints/w/1.x",
        "/etc/passwd",
    ):
        for call in (
            lambda path=path: store.read_checkpoint_pack(path),
            lambda path=path: store.read_checkpoint_pack(PackReference(path, 1, b"")),
            lambda path=path: store.reference_checkpoint_pack(path),
            lambda path=path: store.delete_checkpoints([path]),
        ):
            with pytest.raises(UsageError, match="no path of a checkpoint pack"):
                call()
    taken = write_taken(store, 1)
    with pytest.raises(UsageError, match="no path of a pack"):
        store.read_pack_index(taken)
    for plan in (0, -1, 2**63):
        with pytest.raises(UsageError, match="no number of a plan"):
            store.write_checkpoints(writer="w", plan=plan, blobs=[])
    with pytest.raises(UsageError, match="writer"):
        store.write_checkpoints(writer="..", plan=1, blobs=[])
    with pytest.raises(UsageError, match=r"checkpoint '3.a' comes twice in the pack checkpoints/w/1\."):
        store.write_checkpoints(writer="w", plan=1, blobs=[("a", 3, b"1"), ("a", 4, b"2"), ("a", 3, b"3")])
    for agent, number in (("", 1), ("a b", 1), ("a" * 129, 1), ("a", -1), ("a", 2**63)):
        with pytest.raises(UsageError, match=r"no valid agent id|no number of a checkpoint"):
            store.write_checkpoints(writer="w", plan=1, blobs=[(agent, number, b"")])
    assert store.checkpoint_packs() == [taken.path]


def test_pack_that_differs_from_its_report_is_damaged(store: Store) -> None:
    pack, other = write_taken(store, 1), write_taken(store, 1)
    for reported in (
        msgspec.structs.replace(pack, index_digest=bytes(32)),
        msgspec.structs.replace(pack, size_bytes=pack.size_bytes - 1),
        msgspec.structs.replace(pack, path=other.path),
        msgspec.structs.replace(pack, path=pack.path[:-4] + "0000"),
    ):
        with pytest.raises(DamagedDataError, match=r"\(plan 1\) is damaged: ") as caught:
            store.read_checkpoint_pack(reported)
        finding = finding_of(caught.value)
        assert finding is not None and (finding.path, finding.plan) == (reported.path, 1)


def test_epochs_pack_is_no_checkpoint_pack_even_under_its_name(store: Store) -> None:
    """The bytes are whole; what they hold belongs to an epoch."""
    pack = store.write_checkpoints(writer="w", plan=1, blobs=[("a1", 1, encode_checkpoint(make_checkpoint("a1", 1)))])
    with pytest.raises(DamagedDataError, match="it is of epoch 1"):
        store.read_checkpoint_pack(pack)


def test_no_flip_is_ever_used() -> None:
    """Reading gives the right checkpoints or an error that names file, plan and agent; never anything else (G11)."""
    disk = SimulatedDisk()
    store = make_store(disk)
    pack = write_taken(store, 4)
    node = disk.nodes[pack.path]
    assert node is not None
    refused = set()
    for position in range(len(node.data)):
        changed = bytearray(node.data)
        changed[position] ^= 1 << position % 8
        copy = SimulatedDisk()
        copy.nodes = disk.nodes | {pack.path: Inode(bytes(changed), bytes(changed))}
        try:
            check_taken(Store(copy, store.store_id), pack if position % 2 else pack.path, 4)
        except DamagedDataError as error:
            finding = finding_of(error)
            assert finding is not None and (finding.path, finding.epoch, finding.plan) == (pack.path, None, 4)
            assert pack.path in str(error) and "plan 4" in str(error)
            refused.add((finding.agent, finding.number))
        else:
            assert position < node.data.index(b"SNAPBLOB"), "only the header is not needed; `verify` reads it"
    assert refused == {("a1", 5), ("a2", 5), ("a1", 6), ("", None)}


def test_missing_and_unreadable_packs_are_damage(store: Store) -> None:
    pack = write_taken(store, 1)
    store.delete_checkpoints([pack.path])
    for known in (pack, pack.path):
        with pytest.raises(DamagedDataError, match="it is missing"):
            store.read_checkpoint_pack(known)


def test_deleted_checkpoints_are_gone_and_others_stay(store: Store) -> None:
    packs = [write_taken(store, plan) for plan in (1, 1, 2, 3)]
    assert store.delete_checkpoints([packs[0].path]) == [packs[0].path]
    assert store.delete_checkpoints([packs[0].path]) == []
    assert store.sweep_checkpoints(plans_below=3, kept=[packs[2].path]) == [packs[1].path]
    assert store.checkpoint_packs() == sorted([packs[2].path, packs[3].path])
    check_taken(store, packs[2], 2)
    check_taken(store, packs[3], 3)
    assert store.sweep_checkpoints(plans_below=4) == sorted([packs[2].path, packs[3].path])
    check_taken(store, write_taken(store, 4), 4)  # the writer's folder is still there, or made again
    assert store.verify().is_whole


def test_sweeps_of_epochs_and_of_checkpoints_leave_each_other_alone(store: Store) -> None:
    """Their numbers have nothing to do with each other."""
    write_epoch(store, 1)
    garbage = write_packs(store, 2)
    taken = write_taken(store, 1)
    removed = store.delete_unreferenced(begun_below=100)
    assert sorted(removed) == sorted([pack.path for pack in garbage.values()])
    assert store.delete_epoch(1) and store.checkpoint_packs() == [taken.path]
    write_epoch(store, 3)
    assert store.sweep_checkpoints(plans_below=100) == [taken.path]
    check_epoch_restores(store, 3)


def test_verification_reads_checkpoint_packs_and_calls_none_unreferenced(store: Store) -> None:
    pack = write_taken(store, 6)
    verification = store.verify()
    assert verification.is_whole and verification.unreferenced == []
    assert pack.path in [file.path for file in verification.checked]
    path = Path(store.location) / pack.path
    data = bytearray(path.read_bytes())
    for place in (data.index(b"SNAPBLOB"), data.rindex(b"SNAPBLOB")):
        data[place + 130] ^= 1
    path.write_bytes(data)
    findings = store.verify().findings
    assert [(x.path, x.plan, x.epoch, x.agent, x.number) for x in findings] == [
        (pack.path, 6, None, "a1", 7), (pack.path, 6, None, "a1", 8),
    ]  # fmt: skip


def test_temporary_files_of_checkpoints_are_swept_with_their_plan_only(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "store")
    disk._has_unnamed_files = False
    store = Store.create("unused", disk=disk)
    check_taken(store, write_taken(store, 7), 7)
    leftover = f"temporary/plan-7-{'0' * 32}"
    (tmp_path / "store" / leftover).touch()
    assert store.verify().unreferenced == [leftover] and store.verify().is_whole
    assert store.delete_unreferenced(begun_below=100) == []
    assert store.sweep_checkpoints(plans_below=7) == []
    assert len(store.sweep_checkpoints(plans_below=8)) == 2
    assert store.verify().unreferenced == []


def test_many_threads_write_the_first_checkpoints_of_a_store(store: Store) -> None:
    """Each makes the folders, and each pack is there."""
    packs: list[PackReference] = []
    stores = [Store.open(store.location) for _ in range(8)]
    threads = [threading.Thread(target=lambda own=own: packs.append(write_taken(own, 2))) for own in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.checkpoint_packs(2) == sorted([pack.path for pack in packs])
    assert len(packs) == 8 and store.verify().is_whole


def test_full_disk_is_told_and_leaves_nothing() -> None:
    disk = SimulatedDisk()
    store = make_store(disk)
    write_taken(store, 1)
    for moment in range(5):
        disk.fail_at = len(disk.calls) + moment
        with pytest.raises(StoreError, match="cannot write checkpoints of plan 2"):
            write_taken(store, 2)
        disk.fail_at = None
        assert store.verify().is_whole and disk.open_handles == 0
    check_taken(store, write_taken(store, 2), 2)


def test_sizes_count_payloads_and_piggybacks() -> None:
    channels = [
        [InTransitMessage(1, 0, b"abc"), InTransitMessage(2, 0, b"d", b"ef")],
        [],
        [InTransitMessage(1, 0, b"")],
    ]
    assert size_of(channels) == (3, 6)
    assert size_of([]) == (0, 0)

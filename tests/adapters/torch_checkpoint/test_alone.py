"""One process without a group: object stores, saving in a thread, what is refused, and what is kept from others' eyes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from snapline.adapters.torch_checkpoint import SnaplineReader, SnaplineWriter
from snapline.errors import DamagedDataError, UsageError
from snapline.storage.disk.object_disk import ObjectDisk
from snapline.storage.keys.key_files import Keys, make_wrapping_key
from snapline.storage.packs.manifest import Manifest, Metadata
from snapline.storage.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it is one process


def save(store: Path, state: dict[str, Any], **more: Any) -> None:
    with SnaplineWriter.open(store, **more) as writer:
        dcp.save(state, storage_writer=writer, no_dist=True)


def test_on_an_object_store(tmp_path: Path) -> None:
    disk = ObjectDisk(pytest.importorskip("obstore").store.MemoryStore(), "memory")
    writer = SnaplineWriter(Store.create("", disk=disk), keep_last=2)
    state = {"x": torch.arange(100_000.0), "step": 0}
    for step in range(4):
        state["x"][:10] += 1
        dcp.save({**state, "step": step}, storage_writer=writer, no_dist=True)
    store = Store.open("", disk=disk)
    assert store.epochs() == [3, 4] and store.verify().is_whole
    back: dict[str, Any] = {"x": torch.zeros(100_000), "step": None}
    dcp.load(back, storage_reader=SnaplineReader(store), no_dist=True)
    assert torch.equal(back["x"], state["x"]) and back["step"] == 3


def test_a_thread_saves_what_was_there_when_it_was_asked(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        state = {"x": torch.zeros(50_000)}
        with SnaplineWriter.open(tmp_path / "store") as writer:
            saving = dcp.async_save(state, storage_writer=writer)
            state["x"] += 1
            saving.result()
    finally:
        torch.distributed.destroy_process_group()
    dcp.load(state, storage_reader=SnaplineReader.open(tmp_path / "store"), no_dist=True)
    assert not state["x"].any()


def test_a_second_job_is_refused_while_one_saves(tmp_path: Path) -> None:
    with SnaplineWriter.open(tmp_path / "store") as first, SnaplineWriter.open(tmp_path / "store") as second:
        (plan,) = first.prepare_global_plan([SavePlan([])])
        assert plan.storage_data.epoch == 1 and plan.storage_data.base == 0
        with pytest.raises(UsageError, match="another job saves into the store"):
            second.prepare_global_plan([SavePlan([])])
        first.close()
        second.prepare_global_plan([SavePlan([])])


def test_a_save_without_its_ranks_together_is_refused(tmp_path: Path) -> None:
    with SnaplineWriter.open(tmp_path / "store") as writer:
        with pytest.raises(UsageError, match="use_collectives=False"):
            writer.set_up_storage_writer(True, rank=0, use_collectives=False)
        with pytest.raises(UsageError, match="enable_plan_caching"):
            writer.prepare_global_plan([dataclasses.replace(SavePlan([]), usable=False)])
    with pytest.raises(UsageError, match="keep_last=0"):
        SnaplineWriter.open(tmp_path / "store", keep_last=0)


def test_a_store_of_a_fleet_is_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    store.publish(1, store.write_manifest(Manifest(Metadata(epoch=1), [], [])))
    with pytest.raises(UsageError, match="holds snapshots of a fleet"):
        SnaplineWriter.open(tmp_path / "store").prepare_global_plan([SavePlan([])])


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="odd cannot be saved: sparse"):  # as torch wraps it
        save(tmp_path / "store", {"odd": torch.eye(3).to_sparse()})

    class Chatty(DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            return plans, dataclasses.replace(metadata, planner_data=object())

    writer = SnaplineWriter.open(tmp_path / "store")
    with pytest.raises(BaseException, match="the planner's metadata cannot be saved"):
        dcp.save({"x": torch.ones(1)}, storage_writer=writer, planner=Chatty(), no_dist=True)
    assert Store.open(tmp_path / "store").epochs() == []


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    state = {"x": torch.arange(100_000.0)}
    save(tmp_path / "store", state)
    (pack,) = (tmp_path / "store" / "packs" / "rank-0").iterdir()
    data = bytearray(pack.read_bytes())
    data[5000] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises(BaseException, match="rank-0/1") as found:
        dcp.load(state, storage_reader=SnaplineReader.open(tmp_path / "store"), no_dist=True)
    assert DamagedDataError.__name__ in repr(found.value) or isinstance(found.value, DamagedDataError)


def test_with_a_key_all_of_it_is_encrypted(tmp_path: Path) -> None:
    keys = Keys((make_wrapping_key(bytes(32)),))
    state = {"secret name": torch.full((50_000,), 7.25), "word": "secret word"}
    save(tmp_path / "store", state, keys=keys)
    save(tmp_path / "store", state, keys=keys)
    for path in (tmp_path / "store" / "packs").rglob("*.*"):
        assert (
            b"secret" not in path.read_bytes() and torch.tensor([7.25] * 4).numpy().tobytes() not in path.read_bytes()
        )
    back: dict[str, Any] = {"secret name": torch.zeros(50_000), "word": ""}
    dcp.load(back, storage_reader=SnaplineReader.open(tmp_path / "store", keys=keys), no_dist=True)
    assert torch.equal(back["secret name"], state["secret name"]) and back["word"] == "secret word"

"""torch's sharded checkpoints in our store: two real ranks with gloo save and load, change their number, and are killed."""

import shutil
from pathlib import Path

import pytest
from tests.adapters.torch_checkpoint import job  # skips where torch is not there

from snapline.chaos.crash_child import CrashNote
from snapline.chaos.crash_kit import CrashKit
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_what_two_ranks_save_any_number_of_ranks_loads(store: Path) -> None:
    saved = job.run(2, job.save, store, [1, 2])
    assert saved[0] == saved[1] and len(saved[0]["digests"]) == 2, saved
    for ranks in (2, 1, 3):
        found = job.run(ranks, job.load, store)
        assert found == [{"digest": saved[0]["digests"][1], "step": 2}] * ranks
    assert job.run(2, job.load, store, "1") == [{"digest": saved[0]["digests"][0], "step": 1}] * 2
    assert Store.open(store).verify().is_whole


def test_it_comes_back_as_from_torchs_own_files(store: Path, tmp_path: Path) -> None:
    for found in job.run(2, job.save_as_torch_does, store, tmp_path / "theirs"):
        assert len(set(found["digests"])) == 1 and found["same"] and found["keys"], found


def test_a_tensor_that_has_not_changed_costs_a_reference(store: Path, tmp_path: Path) -> None:
    (found, _) = job.run(2, job.save_one_changed, store, tmp_path / "theirs")
    (first, theirs), (second, theirs_again) = found["sizes"]
    layer_bytes = 97 * 512 * 4
    assert theirs_again >= 0.99 * theirs >= job.LAYERS * layer_bytes
    new_bytes = second - first
    assert layer_bytes < new_bytes < layer_bytes + 40 * 1024, "the layer, and what says where everything is"
    assert job.run(2, job.load, store)[0]["digest"] == found["digest"]


def test_another_process_reuses_what_the_one_before_has_written(store: Path) -> None:
    job.run(2, job.save, store, [1])
    first = job.bytes_in(store)
    job.run(3, job.save, store, [1])
    assert job.bytes_in(store) - first < 0.75 * first, "rows that three ranks cut otherwise are other bytes"
    second = job.bytes_in(store)
    job.run(3, job.save, store, [1])
    assert job.bytes_in(store) - second < 40 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_is_killed_leaves_the_last_complete_checkpoint(tmp_path: Path, dying: int) -> None:
    calm = job.run(2, job.save_and_die, tmp_path / "calm", dying, 0)
    points = calm[dying]["passed"]
    assert points >= 5, calm
    becomes_complete = []
    for at in range(1, points + 1):
        store = tmp_path / f"at-{at}"
        found = job.run(2, job.save_and_die, store, dying, at)
        assert found[dying] == -9 and isinstance(found[1 - dying], str), f"the other rank is told: {found}"
        (loaded,) = job.run(1, job.load, store)
        becomes_complete.append(loaded["step"] == 2)
        assert loaded["step"] in (1, 2), loaded
        saved = job.run(2, job.save, store, [3])
        assert job.run(1, job.load, store) == [{"digest": saved[0]["digests"][0], "step": 3}]
        assert Store.open(store).verify().is_whole
        shutil.rmtree(store)
    assert becomes_complete == sorted(becomes_complete), "one moment makes it visible"
    assert becomes_complete[-1] is (dying == 0), "and it is the coordinating rank's"


def test_checkpoints_have_names_and_others_go(store: Path) -> None:
    (found, _) = job.run(2, job.save_under_names, store)
    assert "there is a checkpoint 'step-1' already" in found["refused"]
    assert Store.open(store).epochs() == [1, 3], "the one with a name stays"
    assert job.run(2, job.load, store, "step-1")[1]["step"] == 1
    assert "no snapshot 'step-2'" in str(job.run(2, job.load, store, "step-2")[0])


def training(folder: Path, note: CrashNote) -> list[int]:
    """One process that saves after each step."""
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    from snapline.adapters.torch_checkpoint import SnaplineReader, SnaplineWriter

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    state = {"weight": torch.zeros(300), "frozen": torch.arange(500.0), "steps": []}
    with SnaplineWriter.open(folder / "store", keep_last=2) as writer:
        if Store.open(folder / "store").epochs():
            dcp.load(state, storage_reader=SnaplineReader.open(folder / "store"), no_dist=True)
        assert state["frozen"].sum() == sum(range(500)) and state["weight"].eq(len(state["steps"])).all()
        note.found(*map(str, state["steps"]))
        for step in range(len(state["steps"]), 4):
            note.began(str(step))
            state = {**state, "weight": state["weight"] + 1, "steps": [*state["steps"], step]}
            dcp.save(state, storage_writer=writer, no_dist=True)
            note.kept(str(step))
    return state["steps"]


def test_a_training_resumes_wherever_it_is_killed(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(training, points=120)
    assert report.kills >= 100

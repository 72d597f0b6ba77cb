"""A data-parallel job of some ranks on this machine, with gloo: real processes, forked from one that has loaded torch.

run(2, save, store, …)      what each rank returns, or the signal that has ended it
"""

import hashlib
import multiprocessing
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from snapline import failpoints
from snapline.adapters.torch_checkpoint import SnaplineReader, SnaplineWriter

RANK_S_MAX = 60.0
"""A rank's peers wait for it so long if it is killed; gloo notices a closed connection at once."""

LAYERS = 8
Results = list[Any]


def run(ranks: int, work: Callable[..., Any], *arguments: Any) -> Results:
    """Run `work(rank, *arguments)` on so many ranks; return what each returns: a dict; a string: its error; a number: what ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # which DTensor would load in each rank anew
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(target=_rank, args=(rank, ranks, meeting, pipe[1], work, arguments))
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        found = [_answer(process, ours) for process, (ours, _) in zip(processes, pipes, strict=True)]
    return found


def _answer(process: Any, ours: Any) -> Any:
    answer = None
    if ours.poll(RANK_S_MAX):
        try:
            answer = ours.recv()
        except EOFError:
            answer = None
    process.join(RANK_S_MAX)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode if answer is None else answer


def _rank(rank: int, ranks: int, meeting: str, answers: Any, work: Callable[..., Any], arguments: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    try:
        answers.send(work(rank, *arguments))
    except BaseException as error:
        answers.send(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # gloo would wait for ranks that are gone


def state_of(step: int, *, changed: int | None = None) -> dict[str, Any]:
    """A state, sharded over all ranks: every tensor says its step, or the layer `changed` alone does."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = {}
    for layer in range(LAYERS):
        seed = layer if changed not in (None, layer) else 1000 * step + layer
        whole = torch.randn(97, 512, generator=torch.Generator().manual_seed(seed))
        model[f"layers.{layer}.weight"] = distribute_tensor(whole, mesh, [Shard(0)])
    narrow = torch.arange(33, dtype=torch.float32).reshape(11, 3).to(torch.bfloat16) + (
        0 if changed is not None else step
    )
    model["narrow"] = distribute_tensor(narrow, mesh, [Shard(0)])
    optimizer = {
        "lr": 0.5 / (step + 1),
        "betas": (0.9, 0.999),
        "moment": torch.full((1000,), float(step)),
        "none": torch.empty(0),
    }
    return {"model": model, "optimizer": optimizer, "step": step, "note": f"step {step}"}


def blank() -> dict[str, Any]:
    """A state to load into."""
    state = state_of(0)
    for tensor in (*state["model"].values(), state["optimizer"]["moment"]):
        tensor.zero_()
    return {**state, "optimizer": {**state["optimizer"], "lr": None, "betas": None}, "step": None, "note": None}


def digest_of(state: dict[str, Any]) -> str:
    """Of all values, put together from all ranks."""
    found = hashlib.sha256()
    for name, tensor in sorted(state["model"].items()):
        found.update(name.encode() + tensor.full_tensor().view(torch.uint8).numpy().tobytes())
    rest = state["optimizer"]
    found.update(rest["moment"].numpy().tobytes())
    found.update(repr((rest["lr"], rest["betas"], rest["none"].shape, state["step"], state["note"])).encode())
    return found.hexdigest()


# -- what ranks do ----------------------------------------------------------------------------------------------------


def save(rank: int, store: Path, steps: list[int], **more: Any) -> dict[str, Any]:
    """Save these steps, one after the other."""
    digests = []
    with SnaplineWriter.open(store, **more) as writer:
        for step in steps:
            state = state_of(step)
            dcp.save(state, storage_writer=writer)
            digests.append(digest_of(state))
    return {"digests": digests}


def load(rank: int, store: Path, checkpoint: str = "latest") -> dict[str, Any]:
    state = blank()
    dcp.load(state, storage_reader=SnaplineReader.open(store, checkpoint))
    return {"digest": digest_of(state), "step": state["step"]}


def save_one_changed(rank: int, store: Path, folder: Path) -> dict[str, Any]:
    """Twice: the second time one layer of many has changed, and nothing else. Beside torch's own files of the same states."""
    sizes = []
    with SnaplineWriter.open(store) as writer:
        for step in (1, 2):
            state = state_of(1) if step == 1 else {**state_of(1), "model": {**state_of(1)["model"]}}
            if step == 2:
                state["model"]["layers.3.weight"] = state_of(7)["model"]["layers.3.weight"]
            dcp.save(state, storage_writer=writer)
            dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / str(step)))
            dist.barrier()
            sizes.append((bytes_in(store), bytes_in(folder / str(step))))
    return {"sizes": sizes, "digest": digest_of(state)}


def save_as_torch_does(rank: int, store: Path, folder: Path) -> dict[str, Any]:
    """The same state through torch's own files and through ours: what comes back, and what the metadata say of it."""
    state = state_of(3)
    theirs = dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))
    with SnaplineWriter.open(store) as writer:
        dcp.save(state, storage_writer=writer)
    first, second = blank(), blank()
    dcp.load(first, storage_reader=dcp.FileSystemReader(folder))
    dcp.load(second, storage_reader=SnaplineReader.open(store))
    ours = SnaplineReader.open(store).read_metadata()
    theirs = dcp.FileSystemReader(folder).read_metadata()
    return {
        "digests": [digest_of(state), digest_of(first), digest_of(second)],
        "same": ours.state_dict_metadata == theirs.state_dict_metadata and ours.planner_data == theirs.planner_data,
        "keys": ours.storage_data.keys() == theirs.storage_data.keys(),
    }


def save_and_die(rank: int, store: Path, dying: int, at: int) -> dict[str, Any]:
    """Save step 1, then step 2, in which rank `dying` is killed where it passes its failpoint number `at`; 0: nobody is."""
    with SnaplineWriter.open(store) as writer:
        dcp.save(state_of(1), storage_writer=writer)
        passed = 0

        def count(name: str) -> None:
            nonlocal passed
            passed += 1
            if rank == dying and passed == at:
                os.kill(os.getpid(), signal.SIGKILL)

        failpoints.install(count)
        dcp.save(state_of(2), storage_writer=writer)
        return {"passed": passed}


def save_under_names(rank: int, store: Path) -> dict[str, Any]:
    with SnaplineWriter.open(store, keep_last=1) as writer:
        for step in (1, 2, 3):
            dcp.save(state_of(step), checkpoint_id=f"step-{step}" if step == 1 else None, storage_writer=writer)
        try:
            dcp.save(state_of(4), checkpoint_id="step-1", storage_writer=writer)
        except BaseException as error:  # as torch raises it
            return {"refused": str(error)}
    return {"refused": ""}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

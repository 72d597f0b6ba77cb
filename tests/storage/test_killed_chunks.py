"""SIGKILL of a real process at steps of a commit whose epochs share packs, on the real file system."""

from pathlib import Path

import pytest
from tests.kit.forked_process import run_forked
from tests.storage.making_chunks import changed, check_chunked, first_state

from snapline.storage.store.store import Store

KILLED = """
import os, signal, sys
from snapline import failpoints
from snapline.storage.store.store import Store
from tests.storage.making_chunks import changed, commit_chunked, first_state

def kill(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

store, first = Store.open(sys.argv[1]), first_state()
commit_chunked(store, 1, first)
failpoints.install(kill)
commit_chunked(store, 2, {**changed(first, "a1", 1, 2), "a2": changed(first, "a2", 0, 2)["a2"]}, base=1, base_state=first)
store.delete_epoch(1)
"""


@pytest.mark.parametrize(
    ("point", "epochs"),
    [
        ("store.chunks.written", [1]),
        ("store.pack.linked", [1]),
        ("store.manifest.synced", [1]),
        ("store.manifest.durable", [1]),
        ("store.ref.linked", [1, 2]),
        ("store.delete.ref", [2]),
        ("store.delete.manifest", [2]),
        ("store.delete.packs", [2]),
    ],
)
def test_a_killed_process_leaves_whole_epochs_that_share_packs(tmp_path: Path, point: str, epochs: list[int]) -> None:
    store = Store.create(tmp_path / "store")
    assert run_forked(KILLED, store.location, point).returncode == -9
    assert store.epochs() == epochs
    first = first_state()
    states = {1: first, 2: {**changed(first, "a1", 1, 2), "a2": changed(first, "a2", 0, 2)["a2"]}}
    for _ in range(2):
        for epoch in epochs:
            check_chunked(store, epoch, states[epoch])
        assert store.verify().is_whole
        store.delete_unreferenced(begun_below=3)
    assert store.verify().unreferenced == []

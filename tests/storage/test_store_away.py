"""A store that is not there for a while: what is not listed is not taken for never written, and nothing is begun in its place."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.log.logging_hosts import append, make_batch
from tests.storage.making import seeded_bytes, write_taken
from tests.storage.outputs.releasing import CREATED_NS, make_outputs, release, root_of

from snapline.errors import DamagedDataError, SnaplineError, StoreError
from snapline.storage.log.names import LogName
from snapline.storage.store.store import Store

LOG = LogName(1, "h1", 1)


def filled(path: Path) -> Store:
    store = Store.create(path, random_bytes=seeded_bytes())
    release(store, 1)
    append(store, 1, log=LOG)
    write_taken(store, 1)
    store.acknowledge_outputs("shop", "", now_ns=CREATED_NS)
    return store


def lists(store: Store) -> list[Callable[[], object]]:
    return [store.read_logs, store.output_epochs, store.output_consumers, store.checkpoint_packs]


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_what_is_not_listed_while_the_store_is_away_is_not_never_written(tmp_path: Path, left: str) -> None:
    path, kept = tmp_path / "store", tmp_path / "kept"
    store = filled(path)
    before = [read() for read in lists(store)]
    assert all(before)
    path.rename(kept)
    if left != "nothing":
        path.mkdir()
    for read in lists(store):
        with pytest.raises(StoreError) as caught:
            read()
        assert not isinstance(caught.value, DamagedDataError) and "is away" in str(caught.value)
    shutil.rmtree(path, ignore_errors=True)
    kept.rename(path)
    assert [read() for read in lists(store)] == before


def test_no_log_and_no_outputs_are_begun_in_an_empty_mount_point(tmp_path: Path) -> None:
    path, kept = tmp_path / "store", tmp_path / "kept"
    store = filled(path)
    fresh = store.prepare_batch(LogName(1, "h2", 1), 1, make_batch(1))
    path.rename(kept)
    path.mkdir()
    writes: list[Callable[[], object]] = [
        lambda: store.append_batch(fresh),
        lambda: store.seal_log(LogName(1, "h3", 1)),
        lambda: store.release_outputs(2, root_of(2), 1, make_outputs(2), created_ns=CREATED_NS),
        lambda: store.acknowledge_outputs("bank", "", now_ns=CREATED_NS),
    ]
    for write in writes:
        with pytest.raises((SnaplineError, OSError)) as caught:
            write()
        assert not isinstance(caught.value, DamagedDataError)
    assert not list(path.rglob("*"))
    path.rmdir()
    kept.rename(path)
    assert store.append_batch(fresh)

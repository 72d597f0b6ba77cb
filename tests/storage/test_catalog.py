"""The catalog says what the manifests say, whatever becomes of its file; and it stays as small as the store."""

import functools
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.making import make_store, write_epoch
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import StoreError
from snapline.storage.disk import layout
from snapline.storage.packs.manifest import Manifest, Metadata
from snapline.storage.store import catalog as catalog_module
from snapline.storage.store.catalog import Catalog, read_summaries
from snapline.storage.store.store import Store


class CountingStore(Store):
    """Counts the manifests that are read."""

    manifests_read = 0

    def read_manifest(self, root: str, *, epoch: int | None = None) -> Manifest:
        self.manifests_read += 1
        return super().read_manifest(root, epoch=epoch)


def counting(disk: SimulatedDisk) -> CountingStore:
    return CountingStore(disk, Store.open("simulated", disk=disk).store_id)


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    store = make_store(made)
    for epoch in (1, 2, 10):
        write_epoch(store, epoch)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "store.sqlite"


def dump(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection as database:
        return database.execute("SELECT * FROM snapshots ORDER BY epoch").fetchall()


def flip(disk: SimulatedDisk, path: str) -> Callable[[], None]:
    node = disk.nodes[path]
    assert node is not None
    whole = node.data
    node.data = whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]

    def mend() -> None:
        node.data = whole

    return mend


def test_it_says_what_the_manifests_say(disk: SimulatedDisk, path: Path) -> None:
    store = Store.open("simulated", disk=disk)
    found = read_summaries(store, path)
    assert [summary.epoch for summary in found] == [1, 2, 10]
    manifest = store.read_manifest(store.read_ref(10))
    last = msgspec.structs.asdict(found[-1])
    assert last.pop("hosts") == ("h1", "h2") and last.pop("root") == store.read_ref(10)
    assert (last.pop("agent_count"), last.pop("pack_count"), last.pop("damage")) == (3, 2, "")
    assert last.pop("stored_bytes") == sum(pack.size_bytes for pack in manifest.packs)
    about = msgspec.structs.asdict(manifest.metadata)
    assert last == {name: about[name] for name in last}
    assert read_summaries(store) == found, "without a file the same"


def test_manifests_are_read_once(disk: SimulatedDisk, path: Path) -> None:
    store = counting(disk)
    first = read_summaries(store, path)
    assert store.manifests_read == 3
    assert read_summaries(store, path) == first
    assert store.manifests_read == 3
    write_epoch(store, 11)
    store.delete_epoch(1)
    store.manifests_read = 0
    assert [summary.epoch for summary in read_summaries(store, path)] == [2, 10, 11]
    assert store.manifests_read == 1
    assert [row[0] for row in dump(path)] == [2, 10, 11]


def test_deleted_and_rebuilt_it_is_identical(disk: SimulatedDisk, path: Path) -> None:
    store = Store.open("simulated", disk=disk)
    read_summaries(store, path)
    for epoch in (11, 12):
        write_epoch(store, epoch)
    store.delete_epoch(2)
    read_summaries(store, path)
    grown = dump(path)
    path.unlink()
    read_summaries(store, path)
    assert dump(path) == grown


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _torn(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


def _other_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute("PRAGMA user_version = 99")


def _other_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute("UPDATE catalog SET store = 'another'")
        database.execute("UPDATE snapshots SET created = 'wrong'")


def _other_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute("ALTER TABLE snapshots DROP COLUMN damage")


def _wrong_values(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute("UPDATE snapshots SET hosts = '{'")


def _other_root(path: Path) -> None:
    """As of an epoch's number that was used again: the store's copy, restored from a backup, went another way."""
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute("UPDATE snapshots SET root = 'another', created = 'wrong' WHERE epoch = 2")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


BROKEN = [_garbage, _truncated, _torn, _other_version, _other_store, _other_table, _wrong_values, _other_root, _empty]


@pytest.mark.parametrize("break_", BROKEN)
def test_a_file_that_is_no_catalog_of_this_store_is_made_anew(
    disk: SimulatedDisk, path: Path, break_: Callable[[Path], None]
) -> None:
    store = Store.open("simulated", disk=disk)
    expected = read_summaries(store, path)
    whole = dump(path)
    break_(path)
    assert read_summaries(store, path) == expected
    assert dump(path) == whole


@functools.cache
def five_epochs() -> tuple[Store, bytes]:
    """A store, and its catalog's file."""
    store = make_store(SimulatedDisk())
    for epoch in range(1, 6):
        write_epoch(store, epoch)
    with tempfile.TemporaryDirectory() as folder:
        read_summaries(store, Path(folder) / "x.sqlite")
        return store, (Path(folder) / "x.sqlite").read_bytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_damage_to_the_file_changes_nothing_or_is_found(data: st.DataObject) -> None:
    """SQLite keeps no digests: a changed value may go unnoticed. But never an error, and never another set of epochs."""
    store, written = five_epochs()
    with tempfile.TemporaryDirectory() as folder:
        path, whole = Path(folder) / "x.sqlite", bytearray(written)
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(1, 64))] = data.draw(st.binary(min_size=1, max_size=64))
        path.write_bytes(whole)
        assert [summary.epoch for summary in read_summaries(store, path)] == [1, 2, 3, 4, 5]


def test_where_no_file_can_be_the_store_is_read(disk: SimulatedDisk, tmp_path: Path) -> None:
    store = Store.open("simulated", disk=disk)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "x.sqlite", tmp_path / "folder", Path("/proc/nowhere/x.sqlite")):
        assert [summary.epoch for summary in read_summaries(store, place)] == [1, 2, 10]
    assert (tmp_path / "folder").is_dir()


def test_a_file_that_others_hold_is_left_to_them(
    disk: SimulatedDisk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open("simulated", disk=disk)
    read_summaries(store, path)
    monkeypatch.setattr(catalog_module, "BUSY_S", 0.0)
    write_epoch(store, 11)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM snapshots WHERE epoch = 1")
        assert [summary.epoch for summary in read_summaries(store, path)] == [1, 2, 10, 11]
        other.rollback()
    assert [row[0] for row in dump(path)] == [1, 2, 10]


@pytest.mark.parametrize("what", ["ref", "manifest"])
def test_damage_is_shown_and_looked_at_again(disk: SimulatedDisk, path: Path, what: str) -> None:
    store = Store.open("simulated", disk=disk)
    file = layout.ref_path(2) if what == "ref" else layout.manifest_path(store.read_ref(2))
    mend = flip(disk, file)
    for _ in range(2):
        sound, damaged, _ = read_summaries(store, path)
        assert not sound.damage and "(epoch 2)" in damaged.damage
    mend()
    assert [summary.damage for summary in read_summaries(store, path)] == ["", "", ""]


def test_a_ref_that_is_damaged_later_is_shown(disk: SimulatedDisk, path: Path) -> None:
    store = Store.open("simulated", disk=disk)
    read_summaries(store, path)
    flip(disk, layout.ref_path(2))
    assert "(epoch 2)" in read_summaries(store, path)[1].damage


def test_an_epoch_that_is_deleted_meanwhile_is_left_out(disk: SimulatedDisk, path: Path) -> None:
    store = Store.open("simulated", disk=disk)
    seen: list[str] = []

    def delete(call: str) -> None:
        seen.append(call)
        if seen.count("read") == 2:  # the first ref has been read
            disk.on_call = lambda name: None
            Store.open("simulated", disk=disk).delete_epoch(1)

    disk.on_call = delete
    assert [summary.epoch for summary in read_summaries(store, path)] == [2, 10]


def test_a_store_that_cannot_be_read_is_an_error(disk: SimulatedDisk, path: Path) -> None:
    store = Store.open("simulated", disk=disk)

    def refuse(call: str) -> None:
        raise OSError(5, "Input/output error")

    disk.on_call = refuse
    with pytest.raises(StoreError):
        read_summaries(store, path)


def test_ten_thousand_epochs_come_and_go_in_a_small_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed and pruned, ten at a time. The manifests are made up: what is measured is the catalog."""
    monkeypatch.setattr(catalog_module, "VACUUM_PAGES_MIN", 8)

    class MadeUp:
        store_id = "made-up"

        def __init__(self) -> None:
            self.there: list[int] = []

        def epochs(self) -> list[int]:
            return list(self.there)

        def read_ref(self, epoch: int) -> str:
            return f"{epoch:064x}"

        def read_manifest(self, root: str, *, epoch: int | None = None) -> Manifest:
            return Manifest(Metadata(epoch=epoch or 0, trigger="periodic" * 20, hosts={"h1": 1}), [], [])

    store, sizes = MadeUp(), list[int]()
    with Catalog(path, store.store_id) as catalog:
        for first in range(0, 10_000, 100):
            store.there = [*store.there[-48:], *range(first, first + 100)]
            rows = catalog.refresh(store)  # type: ignore[arg-type]  # what a catalog asks of a store
            assert [row.epoch for row in rows] == store.there
            sizes.append(path.stat().st_size)
        store.there = list(range(10_000, 14_000))
        catalog.refresh(store)  # type: ignore[arg-type]
        grown = catalog._connection().execute("PRAGMA page_count").fetchone()[0]
        store.there = [13_999]
        assert catalog.refresh(store) == [catalog.rows()[0]]  # type: ignore[arg-type]
        shrunk = catalog._connection().execute("PRAGMA page_count").fetchone()[0]
    assert shrunk < grown / 20
    assert max(sizes) < 300_000
    assert path.stat().st_size < 50_000

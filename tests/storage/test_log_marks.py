"""Marks of the coordinator's logs: in order, whole, and each written by one process only."""

from pathlib import Path

import pytest

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk import store_files
from snapline.storage.disk.store_files import LogMark, parse_mark_path
from snapline.storage.store.store import Store

FIRST, SECOND = LogMark("a" * 32, True), LogMark("b" * 32, False)


def test_the_newest_mark_of_each_replica_comes_last(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    assert store.log_marks() == {}
    for number in range(12):
        store.add_log_mark("c1", LogMark(f"{number:032x}", True))
    store.add_log_mark("c2.x", FIRST)
    store.add_log_mark("c2.x", SECOND)
    marks = Store.open(tmp_path / "store").log_marks()
    assert [mark.log for mark in marks["c1"]] == [f"{number:032x}" for number in range(12)], "ten comes after nine"
    assert marks["c2.x"] == [FIRST, SECOND]
    assert Store.open(tmp_path / "store").verify().is_whole


def test_two_processes_of_one_replica_see_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    store.add_log_mark("c1", FIRST)
    monkeypatch.setattr(store_files, "_paths", lambda _: [])
    store.add_log_mark("c1", FIRST)
    with pytest.raises(StoreError, match="two processes run as replica c1"):
        store.add_log_mark("c1", SECOND)


def test_a_damaged_mark_is_named_and_not_taken_for_none(tmp_path: Path) -> None:
    """A mark that is skipped would make a replica without its log a new one."""
    store = Store.create(tmp_path / "store")
    store.add_log_mark("c1", FIRST)
    path = tmp_path / "store" / "replicas" / "c1.1"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedDataError, match=r"replicas/c1\.1"):
        store.log_marks()
    assert [finding.path for finding in store.verify().findings] == ["replicas/c1.1"]


def test_a_mark_of_another_store_or_replica_is_none(tmp_path: Path) -> None:
    here, there = Store.create(tmp_path / "here"), Store.create(tmp_path / "there")
    here.add_log_mark("c1", FIRST)
    there.add_log_mark("c1", FIRST)
    (tmp_path / "here" / "replicas" / "c2.1").write_bytes((tmp_path / "here" / "replicas" / "c1.1").read_bytes())
    with pytest.raises(DamagedDataError, match="it is of replica c1"):
        here.log_marks()
    (tmp_path / "there" / "replicas" / "c1.2").write_bytes((tmp_path / "here" / "replicas" / "c1.1").read_bytes())
    with pytest.raises(DamagedDataError, match="it belongs to store"):
        there.log_marks()


@pytest.mark.parametrize(
    "path",
    ["replicas/c1", "replicas/c1.0", "replicas/c1.01", "replicas/a/b.1", "probes/c1.1", "replicas/c1.1000000000"],
)
def test_other_names_are_no_marks(path: str) -> None:
    assert parse_mark_path(path) is None

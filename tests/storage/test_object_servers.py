"""Stores on real object stores: radosgw passes, rclone is refused. `make test-s3` installs both."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage.making import check_epoch_restores, write_epoch
from tests.storage.object_servers import (
    BUCKET,
    missing_for_radosgw,
    missing_for_rclone,
    radosgw_server,
    rclone_server,
)

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage import conformance
from snapline.storage.disk import object_disk
from snapline.storage.disk.object_disk import ObjectDisk, open_disk
from snapline.storage.disk.store_files import OpenedDisk
from snapline.storage.store.store import Store

obstore = pytest.importorskip("obstore")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

all_checks = pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: str(check.__name__))


def _with_environment(environment: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def radosgw() -> Iterator[None]:
    if missing_for_radosgw():
        pytest.skip(missing_for_radosgw())
    with radosgw_server() as environment:
        yield from _with_environment(environment)


@pytest.fixture
def rclone() -> Iterator[None]:
    if missing_for_rclone():
        pytest.skip(missing_for_rclone())
    with rclone_server() as environment:
        yield from _with_environment(environment)


# -- radosgw -----------------------------------------------------------------------------------------------------------


@all_checks
def test_radosgw_conforms(radosgw: None, check: conformance.Check, tmp_path: Path) -> None:
    check(lambda place: open_disk(f"s3://{BUCKET}/{tmp_path.name}/{place}"))


def test_radosgw_can_all_that_is_asked(radosgw: None) -> None:
    disk = open_disk(f"s3://{BUCKET}/abilities")
    assert isinstance(disk, ObjectDisk)
    assert disk.abilities.creates_only and disk.abilities.reads_ranges and disk.abilities.may_write
    assert disk.list_directory("") == []


def test_a_bucket_that_is_missing_is_named(radosgw: None) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/x.*no such bucket"):
        open_disk("s3://no-such-bucket/x")


def test_a_wrong_key_is_named(radosgw: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="check its address, the bucket and the keys"):
        open_disk(f"s3://{BUCKET}/x")


def test_an_emptied_prefix_is_a_store_that_is_away(radosgw: None) -> None:
    url = f"s3://{BUCKET}/away"
    store = Store.create(url)
    write_epoch(store, 1)
    objects = object_disk._object_store("s3", url)
    names = [meta["path"] for page in obstore.list(objects) for meta in page]
    kept = {name: bytes(obstore.get(objects, name).bytes()) for name in names}
    obstore.delete(objects, names)
    calls: list[Callable[[], object]] = [
        store.epochs,
        lambda: store.read_ref(1),
        store.verify,
        store.read_logs,
        store.write_probe,
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is away") as caught:
            call()
        assert not isinstance(caught.value, DamagedDataError)
    assert not [page for page in obstore.list(objects)]
    for name, data in kept.items():
        obstore.put(objects, name, data)
    check_epoch_restores(store, 1)


def test_a_missing_bucket_is_a_store_that_is_away(radosgw: None) -> None:
    disk = ObjectDisk(object_disk._object_store("s3", "s3://no-such-bucket/x"), "s3://no-such-bucket/x")
    store = Store(OpenedDisk(disk, "0" * 32), "0" * 32)
    calls: list[Callable[[], object]] = [store.epochs, lambda: store.read_ref(1), store.read_logs, store.write_probe]
    for call in calls:
        with pytest.raises(StoreError, match="is away") as caught:
            call()
        assert not isinstance(caught.value, DamagedDataError)


# -- rclone ------------------------------------------------------------------------------------------------------------


def test_rclone_is_refused_because_it_overwrites(rclone: None) -> None:
    with pytest.raises(UsageError, match="overwrites"):
        open_disk(f"s3://{BUCKET}/store")


def test_rclone_serves_a_fleet_with_one_coordinator(rclone: None) -> None:
    """Neither create-only nor ranges: one writer at a time is still served right."""
    disk = open_disk(f"s3://{BUCKET}/store", allow_unconditional=True)
    assert isinstance(disk, ObjectDisk)
    assert not disk.abilities.creates_only and not disk.abilities.reads_ranges
    store = Store.create("store", disk=disk)
    write_epoch(store, 1)
    again = Store.open("store", disk=open_disk(f"s3://{BUCKET}/store", allow_unconditional=True))
    check_epoch_restores(again, 1)
    verification = again.verify()
    assert verification.is_whole and not verification.unreferenced

"""Stores on real object stores: radosgw passes, rclone is refused. `make test-s3` installs both."""

import os
from collections.abc import Iterator
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

from snapline.errors import MisuseError, StoreError
from snapline.storage import conformance
from snapline.storage.buckets.object_disk import ObjectDisk
from snapline.storage.store.opening import open_disk
from snapline.storage.store.store import Store

pytest.importorskip("obstore")
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


# -- rclone ------------------------------------------------------------------------------------------------------------


def test_rclone_is_refused_because_it_overwrites(rclone: None) -> None:
    with pytest.raises(MisuseError, match="overwrites"):
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

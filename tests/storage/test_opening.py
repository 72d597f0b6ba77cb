"""Which disk a URL names, and what the probe of an object store finds out."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.making import check_epoch_restores, write_epoch
from tests.storage.object_servers import BUCKET, FakeS3, fake_s3

from snapline.errors import StoreError, UsageError
from snapline.storage.disk import layout, object_disk
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.disk.object_disk import DiskCapabilities, ObjectDisk, open_disk
from snapline.storage.store.store import Store

pytest.importorskip("obstore")
URL = f"s3://{BUCKET}/pre"
IDENTITY = "pre/snapline-store"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """A server that `URL` reaches. Nobody waits between retries."""
    monkeypatch.setattr(object_disk, "_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(object_disk, "_PAUSE_MAX_S", 0.001)
    fake = FakeS3()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with fake_s3(fake) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def open_object_disk(**options: bool) -> ObjectDisk:
    disk = open_disk(URL, **options)  # type: ignore[arg-type]  # only `allow_unconditional`
    assert isinstance(disk, ObjectDisk)
    return disk


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_paths_and_file_urls_name_directories(tmp_path: Path) -> None:
    for url in (str(tmp_path / "store"), (tmp_path / "store").as_uri()):
        disk = open_disk(url)
        assert isinstance(disk, LocalDisk) and disk.location == str(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_memory_names_the_same_objects_in_one_process() -> None:
    store = Store.create("m", disk=open_disk("memory://test-opening/one"))
    write_epoch(store, 1)
    check_epoch_restores(Store.open("m", disk=open_disk("memory://test-opening/one/")), 1)
    assert open_disk("memory://test-opening/two").list_directory("") == []


def test_memory_stores_without_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_disk, "MEMORY_STORES_MAX", 0)
    with pytest.raises(UsageError, match="use a name again"):
        open_disk("memory://test-opening/three")


@pytest.mark.parametrize("url", ["ftp://x/y", "http://x/y", "S4://b/x", "://x"])
def test_unknown_schemes_are_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(UsageError, match=r"is no scheme of a store.*file:///.*s3://"):
        open_disk(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///x",
        "s3://b/../x",
        "s3://b/./x",
        "s3://b//x",
        "s3://b/x?y=1",
        "s3://b/x#y",
        "s3://k:s@b/x",
        "s3://b/x%2e",
    ],
)
def test_malformed_urls_are_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError, match=re.escape(url)):
        open_disk(url)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"install snapline\[s3\]"):
        open_disk("s3://bucket/x")
    assert isinstance(open_disk(str(tmp_path)), LocalDisk)


def test_what_obstore_cannot_use_is_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=r"cannot open the store az://container/x.*Account must be specified"):
        open_disk("az://container/x")


def test_all_requests_of_one_call_end_within_a_minute() -> None:
    """The last retry begins before RETRY_S, after a pause, and takes a request's time at most."""
    assert (
        object_disk.RETRY_S + object_disk._PAUSE_MAX_S + object_disk.REQUEST_TIMEOUT_S + object_disk.CONNECT_TIMEOUT_S
        <= 60
    )


def test_options_of_the_client_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_disk._client_options("AWS") == {"connect_timeout": "5s", "timeout": "40s"}
    monkeypatch.setenv("AWS_ALLOW_HTTP", "True")
    monkeypatch.setenv("AWS_TIMEOUT", "300s")
    monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "0")
    options = {"allow_http": True, "allow_invalid_certificates": False, "connect_timeout": "5s", "timeout": "300s"}
    assert object_disk._client_options("AWS") == options


# -- the probe ---------------------------------------------------------------------------------------------------------


def test_a_good_server_is_taken_and_nothing_is_left(fake: FakeS3) -> None:
    assert open_object_disk().abilities == DiskCapabilities()
    assert fake.objects == {} and len(fake.requests) == 6
    store = Store.create(URL, disk=open_object_disk())
    write_epoch(store, 1)
    check_epoch_restores(Store.open(URL, disk=open_object_disk()), 1)
    verification = store.verify()
    assert verification.is_whole and not verification.unreferenced


def test_a_server_that_overwrites_is_refused(fake: FakeS3) -> None:
    fake.ignores_conditions = True
    with pytest.raises(UsageError, match=rf"{URL} overwrites.*allow_unconditional=True"):
        open_disk(URL)
    assert fake.objects == {}
    disk = open_object_disk(allow_unconditional=True)
    assert disk.abilities == DiskCapabilities(creates_only=False)
    write_epoch(Store.create(URL, disk=disk), 1)
    with pytest.raises(UsageError, match="there is a store"):
        Store.create(URL, disk=disk)


def test_a_server_that_refuses_the_condition_is_refused(fake: FakeS3) -> None:
    """As if it knew no `If-None-Match`: 501."""
    fake.refuses_conditions = True
    with pytest.raises(UsageError, match="overwrites"):
        open_disk(URL)
    assert fake.objects == {}
    write_epoch(Store.create(URL, disk=open_object_disk(allow_unconditional=True)), 1)


def test_a_server_that_fails_for_a_moment_is_not_taken_for_one_that_overwrites(fake: FakeS3) -> None:
    """The refusal is for good, so it needs proof."""
    fake.faults = [("PUT", "500")] * (object_disk.RETRIES_MAX + 1)
    assert open_object_disk().abilities == DiskCapabilities()
    fake.faults = [("PUT", "400")]
    assert open_object_disk().abilities == DiskCapabilities()


def test_a_server_that_says_no_and_overwrites_is_refused(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the second PUT is not believed: the first bytes must still be there."""
    put = object_disk.put_new

    def lying_put(store: object, path: str, pieces: list[bytes]) -> None:
        if path in {key.removeprefix("pre/") for key in fake.objects}:
            fake.objects[f"pre/{path}"] = pieces[0]
        put(store, path, pieces)  # type: ignore[arg-type]  # obstore's store, passed on

    monkeypatch.setattr(object_disk, "put_new", lying_put)
    with pytest.raises(UsageError, match="overwrites"):
        open_disk(URL)


def test_a_server_without_ranges_is_read_whole(fake: FakeS3) -> None:
    fake.ignores_ranges = True
    disk = open_object_disk()
    assert disk.abilities == DiskCapabilities(reads_ranges=False)
    store = Store.create(URL, disk=disk)
    write_epoch(store, 1)
    check_epoch_restores(store, 1)
    assert store.verify().is_whole


def test_a_lost_answer_to_the_first_put_misleads_nobody(fake: FakeS3) -> None:
    """The retry meets its own object; that is no proof that the server refuses a second PUT."""
    fake.faults = [("PUT", "503 after")]
    assert open_object_disk().abilities == DiskCapabilities()
    fake.ignores_conditions = True
    fake.faults = [("PUT", "503 after")]
    with pytest.raises(UsageError, match="overwrites"):
        open_disk(URL)


def test_a_server_that_loses_bytes_is_refused(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_disk, "get_whole", lambda store, path: b"something else")
    with pytest.raises(StoreError, match="never written"):
        open_disk(URL)
    assert fake.objects == {}


def test_a_key_that_may_only_read_opens_the_store_for_reading(fake: FakeS3) -> None:
    write_epoch(Store.create(URL, disk=open_object_disk()), 1)
    before = dict(fake.objects)
    fake.forbidden = ("PUT", "DELETE")
    for ignores_ranges in (False, True):
        fake.ignores_ranges = ignores_ranges
        disk = open_object_disk()
        assert disk.abilities == DiskCapabilities(may_write=False, reads_ranges=not ignores_ranges)
        store = Store.open(URL, disk=disk)
        check_epoch_restores(store, 1)
        with pytest.raises(StoreError, match="read only"):
            store.write_probe()
    assert fake.objects == before


def test_a_key_that_may_nothing_is_refused(fake: FakeS3) -> None:
    fake.forbidden = ("PUT", "GET", "HEAD", "LIST", "DELETE")
    with pytest.raises(StoreError, match=r"cannot open the store s3://.*the key is wrong"):
        open_disk(URL)


def test_a_server_that_is_down_is_named(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=rf"cannot open the store {URL}: connection refused; check its address"):
        open_disk(URL)


def test_plain_http_needs_permission(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP=true"):
        open_disk(URL)


def test_what_a_killed_opener_leaves_is_garbage_and_swept(fake: FakeS3) -> None:
    """It is no damage, and does not hinder the creation of the store."""
    fake.faults = [("DELETE", "denied")]
    disk = open_object_disk()
    left = [key.removeprefix("pre/") for key in fake.objects]
    assert len(left) == 1 and layout.parse_temporary_path(left[0]) == (layout.PACKS, 0)
    store = Store.create(URL, disk=disk)
    verification = store.verify()
    assert verification.is_whole and verification.unreferenced == left
    assert store.delete_unreferenced(begun_below=1) == left
    assert list(fake.objects) == [IDENTITY]

"""An object store as a disk: against a model, on a server that fails as told, and its errors one by one."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.object_servers import BUCKET, FakeS3, fake_s3

from snapline.errors import StoreError
from snapline.storage.disk import object_disk, store_files
from snapline.storage.disk.local_disk import DirectoryEntry, write_once
from snapline.storage.disk.object_disk import CONFLICTS_MAX, DiskCapabilities, ObjectDisk, open_disk, translating

obstore = pytest.importorskip("obstore")
PACK = b"0123456789" * 100


@pytest.fixture
def fake() -> FakeS3:
    return FakeS3()


@pytest.fixture
def disk(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectDisk]:
    """A disk on the fake, after its probe. Nobody waits between retries."""
    monkeypatch.setattr(object_disk, "_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(object_disk, "_PAUSE_MAX_S", 0.001)
    with fake_s3(fake) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        opened = open_disk(f"s3://{BUCKET}/pre")
        assert isinstance(opened, ObjectDisk) and opened.abilities == DiskCapabilities()
        opened._pause = lambda seconds: None
        fake.requests.clear()
        yield opened


def create(disk: ObjectDisk, path: str, data: bytes) -> None:
    write_once(disk, path, [data], temporary_name="0-" + "0" * 32, point="test")


# -- against a model ---------------------------------------------------------------------------------------------------

paths = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "da"])
operations = st.one_of(
    st.tuples(st.just("create"), paths, st.binary(max_size=40)),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("size"), paths),
    st.tuples(st.just("read"), paths, st.integers(0, 50), st.integers(0, 50)),
    st.tuples(st.just("list"), st.sampled_from(["", "d", "d/e", "x"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, max_size=25), st.booleans())
def test_any_calls_do_what_a_dictionary_of_bytes_does(calls: list[tuple[Any, ...]], reads_ranges: bool) -> None:
    disk = ObjectDisk(obstore.store.MemoryStore(), "memory", abilities=DiskCapabilities(reads_ranges=reads_ranges))
    model: dict[str, bytes] = {}
    for name, path, *rest in calls:
        assert _outcome_on_disk(disk, name, path, rest) == _outcome_in_model(model, name, path, rest)


def _outcome_on_disk(disk: ObjectDisk, name: str, path: str, rest: list[Any]) -> object:
    try:
        match name:
            case "create":
                create(disk, path, *rest)
                return None
            case "list":
                return [(entry.name, entry.is_directory) for entry in disk.list_directory(path)]
            case _:
                return getattr(disk, name)(path, *rest)
    except OSError as error:
        return type(error)


def _outcome_in_model(model: dict[str, bytes], name: str, path: str, rest: list[Any]) -> object:
    if name == "list":
        inside = [each[len(path) + 1 if path else 0 :] for each in model if not path or each.startswith(f"{path}/")]
        return sorted({(each.split("/")[0], "/" in each) for each in inside})
    if name == "create":
        return FileExistsError if path in model else model.update({path: rest[0]})
    if path not in model:
        return FileNotFoundError
    if name == "unlink":
        del model[path]
        return None
    return len(model[path]) if name == "size" else model[path][rest[0] : rest[0] + rest[1]]


# -- requests ----------------------------------------------------------------------------------------------------------


def test_each_call_makes_the_requests_that_it_must(disk: ObjectDisk, fake: FakeS3) -> None:
    """Requests cost money and time: a write is one, a read is one, directories are none."""
    disk.make_root()
    disk.make_directory("packs")
    disk.sync_directory("packs")
    disk.remove_directory("packs")
    assert fake.requests == []
    create(disk, "packs/1", PACK)
    disk.read("packs/1", 5, 10)
    disk.size("packs/1")
    disk.list_directory("packs")
    disk.unlink("packs/1")
    assert fake.requests == ["PUT", "GET", "HEAD", "LIST", "HEAD", "DELETE"]


def test_a_file_without_a_name_is_sent_nowhere(disk: ObjectDisk, fake: FakeS3) -> None:
    handle = disk.open_temporary("packs", "0-1")
    disk.write(handle, [PACK])
    disk.sync_data(handle)
    disk.close(handle)
    assert fake.requests == [] and fake.objects == {}
    for call in (disk.close, disk.sync_data, lambda handle: disk.write(handle, [b"x"])):
        with pytest.raises(OSError) as caught:
            call(handle)
        assert caught.value.errno == errno.EBADF


def test_a_file_above_the_limit_of_one_put_is_refused_before_it_is_held(fake: FakeS3) -> None:
    disk = ObjectDisk(obstore.store.MemoryStore(), "memory", put_bytes_max=1000)
    handle = disk.open_temporary("packs", "0-1")
    disk.write(handle, [b"x" * 1000])
    with pytest.raises(OSError, match="too many for one object") as caught:
        disk.write(handle, [b"x"])
    assert caught.value.errno == errno.EFBIG
    disk.link(handle, "packs/1")
    assert disk.size("packs/1") == 1000


def test_a_key_that_may_only_read_is_told_so() -> None:
    disk = ObjectDisk(obstore.store.MemoryStore(), "memory", abilities=DiskCapabilities(may_write=False))
    with pytest.raises(PermissionError, match="read only"):
        create(disk, "packs/1", PACK)


# -- answers that are lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["503 after", "drop after"])
def test_a_put_whose_answer_is_lost_never_counts_as_success_silently(
    disk: ObjectDisk, fake: FakeS3, fault: str
) -> None:
    """The object is there, whole, and the caller is told that the name is taken, or that nobody knows."""
    fake.faults = [("PUT", fault)]
    with pytest.raises(OSError) as caught:
        create(disk, "refs/1", PACK)
    assert caught.value.errno in (errno.EEXIST, errno.EREMOTEIO, errno.ETIMEDOUT)
    assert fake.objects == {"pre/refs/1": PACK}


@pytest.mark.parametrize("fault", ["503 after", "drop after"])
def test_who_compares_finds_its_own_object(disk: ObjectDisk, fake: FakeS3, fault: str) -> None:
    """So manifests and refs are written: the second call at the latest says that all is well."""
    fake.faults = [("PUT", fault)]
    for _ in range(2):
        try:
            is_same = store_files.create_or_compare(disk, "refs/1", PACK, temporary_name="0-1", point="test")
        except OSError:
            continue
        assert is_same
        break
    else:
        pytest.fail("the second call failed, too")
    with pytest.raises(FileExistsError):
        store_files.create_or_compare(disk, "refs/1", PACK + b"x", temporary_name="0-1", point="test")


def test_a_conflict_that_left_nothing_is_tried_again(disk: ObjectDisk, fake: FakeS3) -> None:
    """S3 answers 409 to a PUT that met another one, or a DELETE; then the name may still be free."""
    fake.faults = [("PUT", "409")] * (CONFLICTS_MAX - 1)
    create(disk, "refs/1", PACK)
    assert fake.objects == {"pre/refs/1": PACK}


def test_conflicts_without_end_are_given_up(disk: ObjectDisk, fake: FakeS3) -> None:
    fake.faults = [("PUT", "409")] * (CONFLICTS_MAX + 1)
    with pytest.raises(OSError) as caught:
        create(disk, "refs/1", PACK)
    assert caught.value.errno == errno.EBUSY and len(fake.faults) == 1


def test_half_an_answer_is_no_short_file(disk: ObjectDisk, fake: FakeS3) -> None:
    """Fewer bytes than wanted would mean that the object ends there: a connection that was cut must not look so."""
    create(disk, "packs/1", PACK)
    for offset, length in ((0, 1000), (100, 500), (900, 500)):
        fake.faults = [("GET", "cut")] * 20
        try:
            data = disk.read("packs/1", offset, length)
        except OSError as error:
            assert error.errno not in (errno.EIO, errno.ENOENT)
        else:
            assert data == PACK[offset : offset + length]


def test_reading_at_or_after_the_end_returns_nothing(disk: ObjectDisk, fake: FakeS3) -> None:
    create(disk, "packs/1", PACK)
    create(disk, "packs/empty", b"")
    assert disk.read("packs/1", 1000, 1) == disk.read("packs/1", 5000, 9) == disk.read("packs/empty", 0, 9) == b""
    assert disk.read("packs/1", 999, 9) == PACK[999:]


@pytest.mark.parametrize("method", ["GET", "HEAD", "LIST", "PUT"])
@pytest.mark.parametrize(("status", "number"), [("403", errno.EACCES), ("500", errno.EREMOTEIO), ("400", None)])
def test_a_server_that_refuses_damages_nothing(
    disk: ObjectDisk, fake: FakeS3, method: str, status: str, number: int | None
) -> None:
    create(disk, "packs/1", PACK)
    fake.faults = [(method, status)] * 50
    calls: dict[str, Callable[[], object]] = {
        "GET": lambda: disk.read("packs/1", 0, 5),
        "HEAD": lambda: disk.size("packs/1"),
        "LIST": lambda: disk.list_directory("packs"),
        "PUT": lambda: create(disk, "packs/2", PACK),
    }
    with pytest.raises(OSError) as caught:
        calls[method]()
    assert not isinstance(caught.value, FileNotFoundError | FileExistsError) and caught.value.errno != errno.EIO
    if number is not None:
        assert caught.value.errno == number


def test_a_key_that_may_not_delete_is_told_so(disk: ObjectDisk, fake: FakeS3) -> None:
    """The answer to a deletion is 200, with the refusal inside."""
    create(disk, "packs/1", PACK)
    fake.faults = [("DELETE", "denied")]
    with pytest.raises(OSError) as caught:
        disk.unlink("packs/1")
    assert caught.value.errno not in (errno.ENOENT, errno.EIO) and "pre/packs/1" in fake.objects


def test_unreachable_is_no_damage(disk: ObjectDisk, fake: FakeS3) -> None:
    """`files.reading` says damage for a file that is missing, or for EIO; never because nobody answers."""
    create(disk, "packs/1", PACK)
    fake.faults = [("HEAD", "500")] * 50
    with pytest.raises(StoreError) as caught:
        store_files.read_file(disk, "packs/1", epoch=1, size_bytes_max=2000)
    assert type(caught.value) is StoreError


def test_a_server_that_is_gone_is_named() -> None:
    store = obstore.store.S3Store(
        "bucket",
        endpoint="http://127.0.0.1:9",
        skip_signature=True,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    disk = ObjectDisk(store, "s3://bucket")
    for call in (lambda: disk.size("x"), lambda: disk.read("x", 0, 1), lambda: disk.list_directory("")):
        with pytest.raises(ConnectionRefusedError):
            call()
    with pytest.raises(ConnectionRefusedError):
        create(disk, "x", b"")


# -- errors ------------------------------------------------------------------------------------------------------------


def _foreign_errors() -> list[tuple[Exception, int]]:
    found: list[tuple[Exception, int]] = [
        (obstore.exceptions.AlreadyExistsError("x"), errno.EEXIST),
        (obstore.exceptions.PermissionDeniedError("x"), errno.EACCES),
        (obstore.exceptions.UnauthenticatedError("x"), errno.EACCES),
        (obstore.exceptions.NotSupportedError("x"), errno.EOPNOTSUPP),
        (obstore.exceptions.InvalidPathError("x"), errno.EINVAL),
        (obstore.exceptions.JoinError("x"), errno.EREMOTEIO),
        (FileNotFoundError("Object at location x not found"), errno.ENOENT),
        (ValueError("Could not parse path"), errno.EINVAL),
        (OSError("without a number"), errno.EREMOTEIO),
        (obstore.exceptions.PermissionDeniedError("403 <Code>QuotaExceeded</Code>"), errno.EDQUOT),
    ]
    texts = {
        "status code: 507 Insufficient Storage": errno.ENOSPC,
        "kind: Timeout": errno.ETIMEDOUT,
        "source: ConnectError(kind: ConnectionRefused)": errno.ECONNREFUSED,
        "dns error: failed to lookup": errno.EHOSTUNREACH,
        "404: <Code>NoSuchBucket</Code>": errno.ENOENT,
        "400: <Code>EntityTooLarge</Code>": errno.EFBIG,
        "something new": errno.EREMOTEIO,
        "PUT packs/NoSuchBucket-QuotaExceeded.Timeout/1": errno.EREMOTEIO,
    }
    return found + [(obstore.exceptions.GenericError(text), number) for text, number in texts.items()]


@pytest.mark.parametrize(("error", "number"), _foreign_errors(), ids=lambda value: str(value)[:40])
def test_foreign_errors_become_oserrors(error: Exception, number: int) -> None:
    with pytest.raises(OSError) as caught, translating("packs/1"):
        raise error
    assert caught.value.errno == number and caught.value.__cause__ is error
    assert caught.value.filename == "packs/1" and caught.value.strerror
    assert type(caught.value) is type(OSError(number, os.strerror(number)))


def test_pages_of_xml_are_no_message() -> None:
    long = obstore.exceptions.GenericError(
        "Server said 500: <?xml?><Error>" + "x" * 5000 + "\nDebug source:\nGeneric {"
    )
    with pytest.raises(OSError) as caught, translating("p"):
        raise long
    assert caught.value.strerror == "Server said 500"


def test_names_that_are_files_and_directories_do_not_confuse() -> None:
    disk = ObjectDisk(obstore.store.MemoryStore(), "memory")
    for path in ("a/b", "a", "a/b/c"):
        create(disk, path, path.encode())
    assert disk.size("a") == 1 and disk.size("a/b") == 3
    assert disk.list_directory("a") == [DirectoryEntry("b", False), DirectoryEntry("b", True)]
    for prefix, missing in itertools.product(("", "a/"), ("x", "b/x")):
        with pytest.raises(FileNotFoundError):
            disk.size(prefix + missing)

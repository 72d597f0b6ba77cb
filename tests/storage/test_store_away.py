"""A store that is not there for a while, as a folder and as a bucket: nothing is missing, damaged, made or deleted meanwhile."""

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.storage.log.logging_hosts import append, make_batch
from tests.storage.making import (
    check_epoch_restores,
    make_manifest,
    seeded_bytes,
    write_epoch,
    write_packs,
    write_taken,
)
from tests.storage.object_servers import BUCKET, FakeS3, fake_s3
from tests.storage.object_streams.making import contents, save
from tests.storage.outputs.releasing import CREATED_NS, make_outputs, release, root_of
from tests.storage.protecting import OLD
from tests.storage.simulated_disk import SimulatedDisk

from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, StoreError, StoreMissingError
from snapline.storage.disk import object_disk
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.store_files import LogMark
from snapline.storage.keys import key_records
from snapline.storage.log.log_record import LogName
from snapline.storage.store.catalog import summarise
from snapline.storage.store.object_segments import list_object_streams
from snapline.storage.store.object_stream import ObjectStream
from snapline.storage.store.store import Holds, Store
from snapline.storage.transfer.snapshot_copy import copy_epoch

LOG = LogName(1, "h1", 1)
LEFT = ["nothing", "an empty place", "another store"]


class Folder:
    """A place whose store can go away, and leaves nothing, an empty mount point or another store."""

    def __init__(self, path: Path) -> None:
        self.url = str(path / "store")
        self._place, self._kept, self._other = path / "store", path / "kept", path / "other"
        fill(str(self._other), seed=1)

    def go(self, left: str) -> None:
        self._place.rename(self._kept)
        if left == "an empty place":
            self._place.mkdir()
        elif left == "another store":
            self._other.rename(self._place)

    def contents(self) -> dict[str, bytes]:
        files = {path: path.read_bytes() if path.is_file() else b"" for path in self._place.rglob("*")}
        return {str(path): data for path, data in files.items()}

    def come_back(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self._kept.rename(self._place)


class Bucket:
    """The same of a bucket: it is gone, or its prefix is empty or holds another store."""

    url = f"s3://{BUCKET}/pre"

    def __init__(self, fake: FakeS3) -> None:
        self._fake = fake
        fill(self.url, seed=1)
        self._other, self._kept = fake.objects, dict[str, bytes]()
        fake.objects = {}

    def go(self, left: str) -> None:
        self._kept, self._fake.objects = self._fake.objects, dict(self._other) if left == "another store" else {}
        self._fake.has_bucket = left != "nothing"

    def contents(self) -> dict[str, bytes]:
        return dict(self._fake.objects)

    def come_back(self) -> None:
        self._fake.objects, self._fake.has_bucket = self._kept, True


Place = Folder | Bucket


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path)
        return
    pytest.importorskip("obstore")
    for module, name in (
        (object_disk, "_PAUSE_FIRST_S"),
        (object_disk, "_PAUSE_MAX_S"),
        (object_disk, "_CONFLICT_PAUSE_S"),
    ):
        monkeypatch.setattr(module, name, 0.001)
    fake = FakeS3()
    with fake_s3(fake) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield Bucket(fake)


def fill(url: str, *, seed: int = 0, disk: Disk | None = None) -> Store:
    store = Store.create(url, disk=disk, keys=OLD, random_bytes=seeded_bytes(seed))
    for epoch in (1, 2, 3):
        write_epoch(store, epoch)
        release(store, epoch)
    append(store, 1, log=LOG)
    append(store, 2, log=LOG)
    write_taken(store, 1)
    store.acknowledge_outputs("shop", "", now_ns=CREATED_NS)
    store.add_log_mark("c1", LogMark("a" * 32, is_voter=True))
    Holds(store, now_s=lambda: 100.0).pin(1)
    Holds(store, now_s=lambda: 100.0).tag("good", 2)
    object_stream = ObjectStream.open(store, "play", random_bytes=seeded_bytes(seed + 10))
    save(object_stream, "one", "text")
    object_stream.close()
    return store


def reads_of(store: Store) -> list[Callable[[], object]]:
    holds = Holds(store, now_s=lambda: 200.0)
    root = store.read_ref(1)
    return [
        store.epochs,
        lambda: store.read_ref(1),
        lambda: store.read_manifest(root, epoch=1),
        lambda: list(store.read_checkpoints(store.read_manifest(root, epoch=1))),
        lambda: store.resolve("good"),
        lambda: store.resolve("latest"),
        lambda: store.verify().findings,
        lambda: store.verify(1).findings,
        lambda: summarise(store, 1),
        store.read_logs,
        lambda: store.read_batch(LOG, 1),
        store.output_epochs,
        lambda: store.read_release(1),
        lambda: list(store.read_outputs()),
        store.output_consumers,
        store.checkpoint_packs,
        store.log_marks,
        store.fork_record,
        holds.pins,
        holds.pinned,
        holds.tags,
        holds.held,
        lambda: key_records.list_keys(store.disk),
        lambda: list_object_streams(store.disk),
    ]


def writes_of(store: Store) -> list[Callable[[], object]]:
    holds = Holds(store, now_s=lambda: 10.0**6)
    source = fill("", disk=SimulatedDisk())
    packs = write_packs(store, 4)
    manifest = make_manifest(store, 4, packs)
    root = store.read_ref(3)
    fresh = store.prepare_batch(LogName(1, "h2", 1), 1, make_batch(1))
    more = store.prepare_batch(LOG, 3, make_batch(3))
    return [
        lambda: store.write_probe(),
        lambda: write_packs(store, 5),
        lambda: write_taken(store, 2),
        lambda: store.write_manifest(manifest),
        lambda: store.publish(3, root),
        lambda: store.publish(7, root),
        lambda: store.append_batch(fresh),
        lambda: store.append_batch(more),
        lambda: store.seal_log(LogName(1, "h3", 1)),
        lambda: store.release_outputs(4, root_of(4), 3, make_outputs(4), created_ns=CREATED_NS),
        lambda: store.acknowledge_outputs("shop", "", now_ns=CREATED_NS),
        lambda: store.acknowledge_outputs("bank", "", now_ns=CREATED_NS),
        lambda: store.forget_consumer("shop"),
        lambda: store.add_log_mark("c1", LogMark("b" * 32, is_voter=True)),
        lambda: holds.pin(2),
        lambda: holds.tag("better", 1),
        lambda: holds.unpin(1),
        lambda: holds.untag("good"),
        lambda: holds.delete([1, 2, 3]),
        lambda: holds.clear_leftovers(is_alone=True),
        lambda: store.delete_epoch(3),
        lambda: store.delete_batches([(LOG, 1)], plans_below=9),
        lambda: store.delete_outputs(now_ns=CREATED_NS * 2, age_ns_max=1, age_ns_min=0),
        lambda: store.delete_unreferenced(begun_below=100),
        lambda: store.sweep_checkpoints(plans_below=9),
        lambda: store.compact(now_s=10.0**6, grace_s=0),
        lambda: ObjectStream.open(store, "play"),
        lambda: ObjectStream.open(store, "other"),
        lambda: copy_epoch(source, store, 1),
    ]


def outcome(call: Callable[[], object]) -> str:
    """What somebody may conclude from a call while the store is away."""
    try:
        call()
    except (DamagedDataError, NotFoundError, StoreMissingError) as error:
        return f"{type(error).__name__}: {error}"
    except StoreError as error:
        return "away" if "away" in str(error) or "another store" in str(error) else f"StoreError: {error}"
    except (SnaplineError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize("left", LEFT)
def test_while_it_is_away_nothing_is_missing_or_damaged_or_made_or_deleted(place: Place, left: str) -> None:
    store = fill(place.url)
    writes = writes_of(store)
    reads = reads_of(store)
    before = [read() for read in reads]
    place.go(left)
    lies_there = place.contents()
    told = [outcome(functools.partial(store.confirm_damage, read)) for read in reads]
    assert told == ["away"] * len(reads)
    assert [outcome(write) for write in writes] == ["away"] * len(writes)
    assert place.contents() == lies_there
    place.come_back()
    assert [read() for read in reads] == before
    for epoch in (1, 2, 3):
        check_epoch_restores(store, epoch)
    assert store.append_batch(store.prepare_batch(LOG, 3, make_batch(3)))


class Flickering:
    """Two disks: which one answers a call is decided by its number."""

    def __init__(self, disk: Disk, other: Disk, is_away: Callable[[int], bool]) -> None:
        self.disk, self.other, self.is_away = disk, other, is_away
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.other if self.is_away(self.calls) else self.disk, name)


def test_a_short_absence_at_any_moment_changes_no_answer() -> None:
    disk, nothing = SimulatedDisk(), SimulatedDisk()
    fill("", disk=disk)
    flickering = Flickering(disk, nothing, lambda call: False)
    store = Store.open("", disk=flickering, keys=OLD)
    for number, read in enumerate(reads_of(store)):
        flickering.is_away = lambda call: False
        right = read()
        flickering.calls = 0
        store.confirm_damage(read)
        for first in range(1, flickering.calls + 1):
            for length in (1, 3, 10**9):
                flickering.calls = 0
                flickering.is_away = lambda call, first=first, length=length: first <= call < first + length  # type: ignore[misc]
                told: list[object] = []
                ended = outcome(lambda: told.append(store.confirm_damage(read)))  # noqa: B023  # called at once
                assert ended == "away" or (ended == "done" and told == [right]), (number, first, length, ended)


def test_another_store_in_its_place_from_any_moment_changes_no_answer() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk()
    fill("", disk=disk)
    fill("", disk=other, seed=1)
    flickering = Flickering(disk, other, lambda call: False)
    store = Store.open("", disk=flickering, keys=OLD)
    for number, read in enumerate(reads_of(store)):
        flickering.is_away = lambda call: False
        right = read()
        flickering.calls = 0
        store.confirm_damage(read)
        for first in range(1, flickering.calls + 1):
            flickering.calls = 0
            flickering.is_away = lambda call, first=first: call >= first  # type: ignore[misc]
            told: list[object] = []
            ended = outcome(lambda: told.append(store.confirm_damage(read)))  # noqa: B023  # called at once
            assert ended == "away" or (ended == "done" and told == [right]), (number, first, ended)


def test_a_shelf_goes_on_when_its_store_is_back(place: Place) -> None:
    store = fill(place.url)
    object_stream = ObjectStream.open(store, "play")
    place.go("an empty place")
    if isinstance(place, Bucket):  # in a folder the open file goes with the store
        with pytest.raises(StoreError, match="away"):
            save(object_stream, "two", "text")
    assert not place.contents()
    place.come_back()
    save(object_stream, "three", "text")
    object_stream.close()
    assert {"one", "three"} <= set(contents(ObjectStream.open(store, "play"))["thread/"])


def test_a_store_that_goes_while_it_is_opened_is_not_damaged() -> None:
    disk = SimulatedDisk()
    fill("", disk=disk)
    flickering = Flickering(disk, SimulatedDisk(), lambda call: False)
    Store.open("", disk=flickering, keys=OLD)
    for first in range(1, flickering.calls + 1):
        for length in (1, 10**9):
            flickering.calls = 0
            flickering.is_away = lambda call, first=first, length=length: first <= call < first + length  # type: ignore[misc]
            try:
                Store.open("", disk=flickering, keys=OLD)
            except StoreError as error:
                assert not isinstance(error, DamagedDataError), (first, length)

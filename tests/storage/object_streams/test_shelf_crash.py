"""Crashes and disk errors at every call of a shelf's life: what was acknowledged is there, and each change is whole or absent."""

import errno
from pathlib import Path

import pytest
from tests.kit.forked_process import run_forked
from tests.storage.object_streams.making import PATH, contents, open_object_stream, remove, save
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk

from snapline.errors import StoreError
from snapline.storage.store import object_segments as segments_module
from snapline.storage.store import object_stream as object_stream_module
from snapline.storage.store.object_stream import ObjectStream
from snapline.storage.store.store import Store


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short life writes segments again."""
    monkeypatch.setattr(object_stream_module, "SMALL_BYTES", 300)
    monkeypatch.setattr(object_stream_module, "SMALL_SEGMENTS_MAX", 3)
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES_MAX", 1500)


class Life:
    """Saves, removes, opens again; knows what was acknowledged, and what is under way."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.held: dict[str, list[str]] = {}
        self.coming: dict[str, list[str]] | None = None

    def run(self) -> None:
        object_stream = open_object_stream(self.disk)
        for number in range(4):
            self._save(object_stream, f"{number % 3}", "shared", f"text {number}")
        self._remove(object_stream, "0")
        object_stream.close()
        object_stream = open_object_stream(self.disk, seed=2)
        self._save(object_stream, "1", "another")
        self._remove(object_stream, "2")
        object_stream.close()
        object_stream = open_object_stream(self.disk, seed=3)
        self._save(object_stream, "4", "shared", "last")

    def _save(self, object_stream: ObjectStream, name: str, *texts: str) -> None:
        self.coming = {**self.held, name: list(texts)}
        save(object_stream, name, *texts)
        self.held, self.coming = self.coming, None

    def _remove(self, object_stream: ObjectStream, name: str) -> None:
        self.coming = {other: texts for other, texts in self.held.items() if other != name}
        remove(object_stream, name)
        self.held, self.coming = self.coming, None

    def check(self, image: SimulatedDisk) -> None:
        object_stream = open_object_stream(image, seed=8)
        found = contents(object_stream).get("thread/", {})
        assert found in (self.held, self.coming), (found, self.held, self.coming)
        save(object_stream, "after", "the crash")
        object_stream.close()
        again = contents(open_object_stream(image, seed=9))
        assert again == {"thread/": {**found, "after": ["the crash"]}}


@pytest.mark.parametrize("has_unnamed_files", [True, False])
def test_a_crash_at_any_call_leaves_every_change_whole_or_absent(has_unnamed_files: bool) -> None:
    images, moment = 0, 0
    while True:
        disk = SimulatedDisk(has_unnamed_files=has_unnamed_files)
        disk.crash_after = moment
        life = Life(disk)
        try:
            life.run()
        except SimulatedCrashError:
            pass
        else:
            break
        for image in disk.images():
            if "snapline-store" in image.nodes:
                life.check(image)
                images += 1
        moment += 1
    assert moment > 45 and images > 50


def test_a_disk_that_fails_at_any_call_loses_nothing_that_was_acknowledged() -> None:
    moment = 0
    while True:
        disk = SimulatedDisk()
        open_object_stream(disk).close()
        disk.calls.clear()
        disk.fail_at, disk.fail_with = moment, errno.ENOSPC
        object_stream, held, unknown = open_object_stream_or_none(disk), {}, {}
        if object_stream is not None:
            for number in range(6):
                try:
                    save(object_stream, f"{number}", "shared", f"text {number}")
                    held[f"{number}"] = ["shared", f"text {number}"]
                except StoreError as error:
                    assert "No space left" in str(error)
                    unknown[f"{number}"] = ["shared", f"text {number}"]
            assert contents(object_stream).get("thread/", {}) == held, moment
            assert len(unknown) <= 1
            object_stream.close()
        if len(disk.calls) <= moment:
            break
        found = contents(open_object_stream(disk, seed=7)).get("thread/", {})
        assert held.items() <= found.items() <= {**held, **unknown}.items()
        moment += 1
    assert moment > 15


def open_object_stream_or_none(disk: SimulatedDisk) -> ObjectStream | None:
    try:
        return open_object_stream(disk, seed=2)
    except StoreError:
        return None


KILLED = """
import os, signal, sys
from snapline import failpoints
from snapline.storage.store.object_stream import ObjectStream
from snapline.storage.store.store import Store
from tests.storage.object_streams.making import save

seen = []
def kill(name):
    seen.append(name)
    if name == sys.argv[2] and seen.count(name) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

failpoints.install(kill)
shelf = ObjectStream.open(Store.open(sys.argv[1]), "play")
for number in range(5):
    save(shelf, f"{number}", "shared", f"text {number}")
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("point", "time"),
    [
        *((f"store.shelf.segment.{step}", 1) for step in ("opened", "written", "synced", "linked", "durable")),
        *((f"store.shelf.commit.{step}", time) for step in ("written", "durable") for time in (1, 4)),
    ],
)
def test_a_killed_process_leaves_what_it_acknowledged(tmp_path: Path, point: str, time: int) -> None:
    store = Store.create(tmp_path / "store")
    done = run_forked(KILLED, store.location, point, str(time))
    assert done.returncode == -9, done.stderr
    acknowledged = [line for line in done.stdout.split()]
    object_stream = ObjectStream.open(store, "play")
    found = contents(object_stream).get("thread/", {})
    coming = [*acknowledged, str(len(acknowledged))]
    assert list(found) in (acknowledged, coming)
    assert all(texts == ["shared", f"text {name}"] for name, texts in found.items())
    assert object_stream.entries(PATH).keys() == found.keys()

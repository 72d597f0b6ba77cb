"""The conformance suite passes on our disks, and fails, by the right check, on disks with one fault each."""

import errno
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from snapline.storage import conformance
from snapline.storage.disk.local_disk import DirectoryEntry, Disk, LocalDisk
from snapline.storage.disk.object_disk import DiskCapabilities, ObjectDisk, open_disk
from snapline.storage.disk.record import Buffer

obstore_store = pytest.importorskip("obstore.store")

all_checks = pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: str(check.__name__))


def memory_opener(abilities: DiskCapabilities | None = None) -> conformance.OpenDisk:
    """Places are stores in memory; this opener's alone."""
    stores: dict[str, object] = {}

    def open_memory(place: str) -> Disk:
        store = stores.setdefault(place, obstore_store.MemoryStore())
        return ObjectDisk(store, f"memory://{place}", abilities=abilities)  # type: ignore[arg-type]  # obstore is optional

    return open_memory


@all_checks
def test_local_disk(check: conformance.Check, tmp_path: Path) -> None:
    check(lambda place: LocalDisk(tmp_path / place))


@pytest.mark.parametrize(
    "check",
    [*conformance.DISK_CHECKS, *conformance.LOG_CHECKS, *conformance.OUTPUT_CHECKS],
    ids=lambda check: str(check.__name__),
)
def test_local_disk_without_unnamed_files(check: conformance.Check, tmp_path: Path) -> None:
    def open_local(place: str) -> Disk:
        disk = LocalDisk(tmp_path / place)
        disk._has_unnamed_files = False
        return disk

    check(open_local)


@all_checks
def test_object_disk_in_memory(check: conformance.Check, tmp_path: Path) -> None:
    check(lambda place: open_disk(f"memory://{tmp_path.name}/{place}"))


@all_checks
def test_object_disk_that_reads_whole_objects(check: conformance.Check) -> None:
    check(memory_opener(DiskCapabilities(reads_ranges=False)))


class Passing:
    """A disk that passes everything on: the faults below change one call each."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.location = inner.location

    def make_root(self) -> None:
        self.inner.make_root()

    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self.inner.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.inner.sync_directory(path)

    def open_temporary(self, directory: str, name: str) -> int:
        return self.inner.open_temporary(directory, name)

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self.inner.write(handle, pieces)

    def sync_data(self, handle: int) -> None:
        self.inner.sync_data(handle)

    def link(self, handle: int, path: str) -> None:
        self.inner.link(handle, path)

    def close(self, handle: int) -> None:
        self.inner.close(handle)

    def unlink(self, path: str) -> None:
        self.inner.unlink(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self.inner.read(path, offset, length)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        return self.inner.list_directory(path)


class Overwriting(Passing):
    def link(self, handle: int, path: str) -> None:
        while True:
            try:
                return super().link(handle, path)
            except FileExistsError:
                self.unlink(path)


class SilentlyKeeping(Passing):
    """The first stays, but the second is told that it won."""

    def link(self, handle: int, path: str) -> None:
        try:
            super().link(handle, path)
        except FileExistsError:
            return


class LookingFirst(Passing):
    """Create-only as long as nobody else comes in between look and act."""

    def link(self, handle: int, path: str) -> None:
        try:
            self.size(path)
        except FileNotFoundError:
            time.sleep(0.001)  # The gap: other threads run.
            try:
                return super().link(handle, path)
            except FileExistsError:
                return
        raise FileExistsError(errno.EEXIST, "exists", path)


class LosingTails(Passing):
    """Ranges that reach over the end come back empty."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        data = super().read(path, offset, length)
        return data if len(data) == length else b""


class ShortReading(Passing):
    """At most a MiB for one request, and nobody asks for the rest."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        return super().read(path, offset, min(length, 2**20))


class IgnoringRanges(Passing):
    """The whole file, whatever was asked for."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        return super().read(path, 0, 2**30)


class CuttingListings(Passing):
    def list_directory(self, path: str) -> list[DirectoryEntry]:
        return super().list_directory(path)[:1000]


class ListingDirectoriesLast(Passing):
    def list_directory(self, path: str) -> list[DirectoryEntry]:
        return sorted(super().list_directory(path), key=lambda entry: (entry.is_directory, entry.name))


class ListingTwice(Passing):
    """An entry at the border of two pages comes with both."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        found = super().list_directory(path)
        return [*found[:1000], *found[999:]] if len(found) > 1000 else found


class UnlinkingSilently(Passing):
    def unlink(self, path: str) -> None:
        try:
            super().unlink(path)
        except FileNotFoundError:
            return


class FindingPrefixes(Passing):
    """A name is there as soon as one begins so."""

    def size(self, path: str) -> int:
        try:
            return super().size(path)
        except FileNotFoundError:
            directory, _, name = path.rpartition("/")
            if any(entry.name.startswith(name) for entry in self.list_directory(directory)):
                return 0
            raise


class FoldingCase(Passing):
    def _fold(self, path: str) -> str:
        return path.lower()

    def link(self, handle: int, path: str) -> None:
        super().link(handle, self._fold(path))

    def make_directory(self, path: str) -> None:
        super().make_directory(self._fold(path))

    def size(self, path: str) -> int:
        return super().size(self._fold(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return super().read(self._fold(path), offset, length)


class RemovingTrees(Passing):
    """Removes a directory with what it holds."""

    def remove_directory(self, path: str) -> None:
        for entry in self.list_directory(path):
            self.unlink(f"{path}/{entry.name}")
        super().remove_directory(path)


class KeepingBuffers(Passing):
    """Keeps what it was given and reads it later."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self._later: dict[int, list[Buffer]] = {}

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self._later.setdefault(handle, []).extend(pieces)

    def link(self, handle: int, path: str) -> None:
        self.inner.write(handle, self._later.pop(handle, []))
        super().link(handle, path)


class SeeingLate(Passing):
    """Remembers what it once listed: another process's files appear late."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self._listed: dict[str, list[DirectoryEntry]] = {}

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        return self._listed.setdefault(path, super().list_directory(path))


class ShowingParts(Passing):
    """Gives the name before the last bytes: a reader may see a part."""

    def __init__(self, inner: LocalDisk) -> None:
        super().__init__(inner)
        self._later: dict[int, list[Buffer]] = {}

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self._later.setdefault(handle, []).extend(bytes(piece) for piece in pieces)

    def link(self, handle: int, path: str) -> None:
        pieces = self._later.pop(handle, [])
        self.inner.write(handle, pieces[:1])
        super().link(handle, path)
        time.sleep(0.01)  # Readers run.
        self.inner.write(handle, pieces[1:])


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Overwriting, "check_a_name_is_given_once"),
        (Overwriting, "check_one_of_racing_writers_wins"),
        (Overwriting, "check_two_fleets_stop"),
        (Overwriting, "check_life_of_a_log"),
        (Overwriting, "check_one_batch_for_each_number"),
        (SilentlyKeeping, "check_one_batch_for_each_number"),
        (LookingFirst, "check_one_batch_for_each_number"),
        (SeeingLate, "check_life_of_a_log"),
        (SeeingLate, "check_racing_seals"),
        (SilentlyKeeping, "check_a_name_is_given_once"),
        (LookingFirst, "check_one_of_racing_writers_wins"),
        (LosingTails, "check_ranges"),
        (ShortReading, "check_large_file"),
        (IgnoringRanges, "check_ranges"),
        (CuttingListings, "check_long_listing"),
        (ListingDirectoriesLast, "check_long_listing"),
        (ListingTwice, "check_long_listing"),
        (UnlinkingSilently, "check_unlink"),
        (FindingPrefixes, "check_what_is_missing_is_missing"),
        (FoldingCase, "check_names"),
        (RemovingTrees, "check_directories"),
        (KeepingBuffers, "check_pieces_are_kept_when_their_buffer_changes"),
        (SeeingLate, "check_unlink"),
        (ShowingParts, "check_no_one_sees_a_part"),
    ],
)
def test_each_fault_is_found(fault: Callable[[LocalDisk], Disk], check: str, tmp_path: Path) -> None:
    """A suite that passes everything would prove nothing."""
    run = next(each for each in conformance.checks() if each.__name__ == check)
    with pytest.raises(conformance.ConformanceError, match=check):
        run(lambda place: fault(LocalDisk(tmp_path / place)))


@pytest.mark.parametrize("fault", [Overwriting, LosingTails, CuttingListings])
def test_check_disk_stops_at_the_first_failure(fault: type[Passing]) -> None:
    opener = memory_opener()
    with pytest.raises(conformance.ConformanceError, match=r"^check_"):
        conformance.check_disk(lambda place: fault(opener(place)), racers=3)


def test_check_disk_runs_every_check() -> None:
    places: list[str] = []
    opener = memory_opener()

    def noting(place: str) -> Disk:
        places.append(place.rpartition("-")[0].replace("-", "_"))
        return opener(place)

    conformance.check_disk(noting, racers=2)
    assert list(dict.fromkeys(places)) == [check.__name__ for check in conformance.checks()]


def test_object_disk_that_may_overwrite_loses_races_only() -> None:
    """Without create-only PUTs one leader at a time is still told the truth. But nothing is logged there, or given out."""
    opener = memory_opener(DiskCapabilities(creates_only=False))
    for check in conformance.checks():
        if check in [*conformance.LOG_CHECKS, *conformance.OUTPUT_CHECKS]:
            with pytest.raises(conformance.ConformanceError, match="overwrites objects"):
                check(opener)
        elif "racing" not in check.__name__ and "two_fleets" not in check.__name__:
            check(opener)

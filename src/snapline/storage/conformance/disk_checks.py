"""Checks of the `Disk` protocol itself.

Shared parts of the disk checks: the declaration of checks, races of threads, and writing files.
"""

import array
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once

OpenDisk = Callable[[str], Disk]
"""Returns a new disk object for the named place."""

Check = Callable[..., None]
"""Called with `open_disk` and optionally `racers`; raises ConformanceError."""

RACERS = 8
"""Default number of racing threads: enough that a server with several workers interleaves them."""

RACE_TIMEOUT_S = 120.0
"""Time limit of a race in seconds: it takes seconds even on a slow server, and a hanging thread must not hang the tests."""

T = TypeVar("T")
P = ParamSpec("P")


class ConformanceError(AssertionError):
    """A disk does not meet the requirements of a store. The message begins with the name of the check."""


def check(function: Callable[[OpenDisk, int], None]) -> Check:
    """Declare a check: every error that it raises becomes a ConformanceError with its name."""

    @functools.wraps(function)
    def run(open_disk: OpenDisk, racers: int = RACERS) -> None:
        try:
            function(functools.partial(_open_named, open_disk, function.__name__), racers)
        except Exception as error:
            message = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
            raise ConformanceError(f"{function.__name__}: {message}") from error

    return run


def _open_named(open_disk: OpenDisk, name: str, place: str) -> Disk:
    """Open a place that belongs to one check."""
    return open_disk(f"{name}-{place}".replace("_", "-"))


def require(is_so: bool, words: str) -> None:
    """Raise ConformanceError unless `is_so`."""
    if not is_so:
        raise ConformanceError(words)


def require_missing(words: str, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Demand that the call raises FileNotFoundError."""
    try:
        result = function(*args, **kwargs)
    except FileNotFoundError:
        return
    raise ConformanceError(f"{words}: FileNotFoundError was due, it returned {str(result)[:80]}")


def race(count: int, action: Callable[[int], T]) -> list[T | Exception]:
    """Call `action(0)`, `action(1)` … in threads that start together; return what each returned or raised."""
    results: list[T | Exception] = [TimeoutError("the thread did not end")] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait(RACE_TIMEOUT_S)
            results[number] = action(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RACE_TIMEOUT_S)
    return results


def prepare(disk: Disk, *directories: str) -> Disk:
    """Create the store's directory and the given subdirectories; return the disk."""
    disk.make_root()
    for directory in directories:
        make_durable_directory(disk, directory)
    return disk


def create(disk: Disk, path: str, *pieces: bytes) -> None:
    """Create a file as `Store` does."""
    write_once(disk, path, pieces, temporary_name=temporary_name(), point="conformance")


def create_unsynced(disk: Disk, path: str, pieces: Sequence[bytes]) -> None:
    """Create a file that need not survive a crash, for checks with many files."""
    handle = disk.open_temporary(path.rpartition("/")[0], temporary_name())
    try:
        disk.write(handle, pieces)
        disk.link(handle, path)
    finally:
        disk.close(handle)


def read_all(disk: Disk, path: str) -> bytes:
    """Return the file's bytes."""
    return disk.read(path, 0, disk.size(path))


def temporary_name() -> str:
    """Return a name for an unfinished file."""
    return f"0-{os.urandom(16).hex()}"


def pattern(length: int, seed: int = 0) -> bytes:
    """Return bytes in which no two aligned words of 8 bytes are equal; other seeds give other words."""
    first = seed << 40
    return array.array("Q", range(first, first + length // 8 + 1)).tobytes()[:length]


RACED_NAMES = 20
"""Number of races: enough to detect a server that decides randomly, even fairly."""

ENTRIES = 1200
"""Number of files: object stores list at most 1000 names in one answer."""

_LARGE_BYTES = 20 * 2**20
"""Size above every client's multipart threshold of 5 to 16 MiB."""

_SEEN_BYTES = 4 * 2**20
_SEEN_FILES = 6
_LOOKS_MAX = 100_000
"""Limit on a reader's attempts to see partial files, which end when the writers end."""

_DIRECTORY = "packs/w"


@check
def check_read_after_write(open_disk: OpenDisk, racers: int) -> None:
    """Check that a second disk object sees a new file at once, in one piece, however it was written."""
    writer, reader = prepare(open_disk("a"), "packs", _DIRECTORY), open_disk("a")
    contents = {
        "empty": [],
        "empty-piece": [b""],
        "one": [b"x"],
        "several": [b"ab", b"", b"c" * 70_000, b"d"],
        "many": [bytes([number % 251]) for number in range(3000)],
    }
    for name, pieces in contents.items():
        path, data = f"{_DIRECTORY}/{name}", b"".join(pieces)
        create(writer, path, *pieces)
        require(reader.size(path) == len(data), f"{name}: size is {reader.size(path)}, {len(data)} were written")
        require(read_all(reader, path) == data, f"{name}: other bytes were read than written")


@check
def check_pieces_are_kept_when_their_buffer_changes(open_disk: OpenDisk, racers: int) -> None:
    """Check that a caller may reuse its buffer after `write` has returned."""
    disk = prepare(open_disk("a"), "packs")
    buffer = bytearray(b"a" * 1000)
    handle = disk.open_temporary("packs", temporary_name())
    try:
        for letter in b"ab":
            buffer[:] = bytes([letter]) * 1000
            disk.write(handle, [memoryview(buffer)])
        disk.link(handle, "packs/1")
    finally:
        disk.close(handle)
    require(read_all(disk, "packs/1") == b"a" * 1000 + b"b" * 1000, "the bytes of the first write are gone")


@check
def check_a_name_is_given_once(open_disk: OpenDisk, racers: int) -> None:
    """Check that a second file cannot take the name, with any contents, until the name is removed."""
    disk, other = prepare(open_disk("a"), "refs"), open_disk("a")
    create(disk, "refs/1", b"first")
    for data in (b"second, and longer", b"first", b""):
        try:
            create(other, "refs/1", data)
        except FileExistsError:
            require(read_all(disk, "refs/1") == b"first", "the refused file has replaced the first")
        else:
            raise ConformanceError("a second file took a name that was taken")
    disk.unlink("refs/1")
    create(other, "refs/1", b"third")
    require(read_all(disk, "refs/1") == b"third", "a name that was free again leads to old bytes")


@check
def check_one_of_racing_writers_wins(open_disk: OpenDisk, racers: int) -> None:
    """Check that if threads link one name at once, exactly one succeeds, and the file has its bytes."""
    prepare(open_disk("a"), "refs")
    disks = [open_disk("a") for _ in range(racers)]
    for name in range(RACED_NAMES):
        path = f"refs/{name}"
        contents = [pattern(5000 + number, seed=number) for number in range(racers)]
        _demand_one_winner(disks, path, contents)


def _demand_one_winner(disks: list[Disk], path: str, contents: list[bytes]) -> None:
    results = race(len(disks), lambda number: create_unsynced(disks[number], path, [contents[number]]))
    winners = [number for number, result in enumerate(results) if result is None]
    for result in results:
        require(result is None or isinstance(result, FileExistsError), f"{path}: a loser got {result!r}")
    require(len(winners) == 1, f"{path}: {len(winners)} of {len(disks)} racing writers were told that they won")
    require(read_all(disks[0], path) == contents[winners[0]], f"{path}: the bytes are not the winner's")


@check
def check_ranges(open_disk: OpenDisk, racers: int) -> None:
    """Check that any part can be read; fewer bytes are returned only if the file ends earlier."""
    disk = prepare(open_disk("a"), "packs")
    data = pattern(100_003)
    create(disk, "packs/1", data)
    create(disk, "packs/empty")
    for offset in (0, 1, 4095, 65_536, 100_000, 100_002, 100_003, 100_004, 2**33):
        for length in (0, 1, 3, 4096, 100_003, 2**20):
            read_data = disk.read("packs/1", offset, length)
            require(
                read_data == data[offset : offset + length],
                f"read({offset}, {length}) of {len(data)} bytes returned {len(read_data)} bytes, or wrong ones",
            )
    for offset, length in ((0, 0), (0, 10), (5, 5)):
        require(disk.read("packs/empty", offset, length) == b"", "bytes were read from an empty file")


@check
def check_large_file(open_disk: OpenDisk, racers: int) -> None:
    """Check that a file of 20 MiB can be read, whole and in parts."""
    disk = prepare(open_disk("a"), "packs")
    data = pattern(_LARGE_BYTES)
    cuts = (0, 7, 9 * 2**20 + 1, _LARGE_BYTES)
    create(disk, "packs/1", *(data[start:end] for start, end in itertools.pairwise(cuts)))
    require(read_all(disk, "packs/1") == data, "other bytes were read than written")
    for offset in (2**20, 5 * 2**20 - 1, 16 * 2**20 - 3, _LARGE_BYTES - 5):
        require(disk.read("packs/1", offset, 2**20) == data[offset : offset + 2**20], f"wrong bytes from {offset} on")


@check
def check_no_one_sees_a_part(open_disk: OpenDisk, racers: int) -> None:
    """Check that a reader finds each file whole or not at all while files are written."""
    writer, reader = prepare(open_disk("a"), "packs"), open_disk("a")
    contents = [pattern(_SEEN_BYTES, seed=number) for number in range(_SEEN_FILES)]
    has_ended = threading.Event()

    def write(_: int) -> None:
        try:
            for number, data in enumerate(contents):
                create_unsynced(writer, f"packs/{number}", [data[: 2**20], data[2**20 :]])
        finally:
            has_ended.set()

    def look(_: int) -> None:
        for look in range(_LOOKS_MAX):
            path = f"packs/{look % _SEEN_FILES}"
            with contextlib.suppress(FileNotFoundError):
                size = reader.size(path)
                require(size == _SEEN_BYTES, f"a reader saw {size} of {_SEEN_BYTES} bytes")
                require(reader.read(path, size - 8, 8) == contents[look % _SEEN_FILES][-8:], "a reader saw a torn file")
            if has_ended.is_set():
                return

    for result in race(2, lambda number: (write, look)[number](number)):
        if result is not None:
            raise result


@check
def check_listing(open_disk: OpenDisk, racers: int) -> None:
    """Check that a listing has the files and directories of one level, sorted, and nothing of deeper or similarly named ones."""
    disk = prepare(open_disk("a"), "packs", "packs/w", "packs/w1", "packs/w/deep")
    for path in ("packs/w/b", "packs/w/a", "packs/w/Z", "packs/w/a.b", "packs/w/deep/x", "packs/w1/c", "packs/v"):
        create(disk, path, b"1")
    listed = [(entry.name, entry.is_directory) for entry in disk.list_directory("packs/w")]
    require(listed == [("Z", False), ("a", False), ("a.b", False), ("b", False), ("deep", True)], f"listed {listed}")
    listed = [(entry.name, entry.is_directory) for entry in disk.list_directory("packs")]
    require(listed == [("v", False), ("w", True), ("w1", True)], f"listed {listed}")
    listed = [(entry.name, entry.is_directory) for entry in open_disk("a").list_directory("")]
    require(("packs", True) in listed, f"the store's root lists {listed}")


@check
def check_long_listing(open_disk: OpenDisk, racers: int) -> None:
    """Check that a listing with more entries than one answer of an object store holds is complete."""
    disk = prepare(open_disk("a"), "packs", "packs/00500.d")
    create(disk, "packs/00500.d/x", b"1")
    paths = [f"packs/{number:05}" for number in range(ENTRIES)]

    def write(racer: int) -> None:
        for path in paths[racer::racers]:
            create_unsynced(disk, path, [b"1"])

    for result in race(racers, write):
        if result is not None:
            raise result
    listed = [f"packs/{entry.name}" for entry in disk.list_directory("packs")]
    wanted = sorted([*paths, "packs/00500.d"])
    missing = sorted(set(wanted) - set(listed))
    require(not missing, f"{len(missing)} of {len(wanted)} entries were left out, the first is {missing[:1]}")
    require(listed == wanted, "entries came twice, or not sorted")


@check
def check_unlink(open_disk: OpenDisk, racers: int) -> None:
    """Check that a removed name is gone for all processes at once, and its neighbours stay."""
    disk, other = prepare(open_disk("a"), "packs"), open_disk("a")
    names = ["1", "1.a", "11"]
    for count, name in enumerate(names, 1):
        create(disk, f"packs/{name}", name.encode())
        listed = [entry.name for entry in other.list_directory("packs")]
        require(listed == names[:count], f"another process listed {listed} after {count} files")
    disk.unlink("packs/1")
    require_missing("size of a removed file", other.size, "packs/1")
    require_missing("reading a removed file", other.read, "packs/1", 0, 1)
    require_missing("removing a removed file", other.unlink, "packs/1")
    require([entry.name for entry in other.list_directory("packs")] == ["1.a", "11"], "the wrong names are left")


@check
def check_what_is_missing_is_missing(open_disk: OpenDisk, racers: int) -> None:
    """Check that unused names raise FileNotFoundError, even if a longer name is in use."""
    disk = prepare(open_disk("a"), "packs", _DIRECTORY)
    create(disk, f"{_DIRECTORY}/1.abc", b"x")
    for path in (f"{_DIRECTORY}/1", f"{_DIRECTORY}/1.ab", f"{_DIRECTORY}/1.abcd", "snapline-store", "temporary/0-1"):
        require_missing(f"size of {path}", disk.size, path)
        require_missing(f"unlinking {path}", disk.unlink, path)
        for offset, length in ((0, 0), (0, 1), (9, 9)):
            require_missing(f"reading {path}", disk.read, path, offset, length)


@check
def check_names(open_disk: OpenDisk, racers: int) -> None:
    """Check that every name made by `layout` is a separate file: case and length count."""
    disk = prepare(open_disk("a"), "packs")
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [letters, letters.upper(), "a-b_c.d0123456789", "-a", "_a", ".a", "..a", "a.", "a..b", "...", "A", "a"]
    names += ["x" * 127, "x" * 128, "y" * 128, "0", "00", "9223372036854775807." + "0" * 32]
    for name in names:
        make_durable_directory(disk, f"packs/{name}")
        create(disk, f"packs/{name}/{name}", name.encode())
    for name in names:
        require(read_all(disk, f"packs/{name}/{name}") == name.encode(), f"{name!r} leads to another file")
    listed = [entry.name for entry in disk.list_directory("packs")]
    require(listed == sorted(names), f"listed {listed}")


@check
def check_unfinished_files_are_invisible(open_disk: OpenDisk, racers: int) -> None:
    """Check that a file that was written and closed without a name leaves nothing behind, not even in `temporary`."""
    disk = prepare(open_disk("a"), "packs")
    handle = disk.open_temporary("packs", temporary_name())
    disk.write(handle, [b"x" * 1000])
    disk.sync_data(handle)
    require(not disk.list_directory("packs"), "an unfinished file is listed beside finished ones")
    disk.close(handle)
    require(not disk.list_directory("packs"), "a file that was never linked is listed")
    with contextlib.suppress(FileNotFoundError):
        require(not disk.list_directory("temporary"), "close has left a temporary file")


@check
def check_directories(open_disk: OpenDisk, racers: int) -> None:
    """Check that a directory may be made twice, is not removed unless empty, and can be made again after removal."""
    disk = prepare(open_disk("a"), "packs", _DIRECTORY, _DIRECTORY)
    create(disk, f"{_DIRECTORY}/1", b"x")
    with contextlib.suppress(OSError):
        disk.remove_directory(_DIRECTORY)
    require(read_all(disk, f"{_DIRECTORY}/1") == b"x", "a directory was removed together with its file")
    disk.size(_DIRECTORY)  # `Store` checks in this way whether a directory exists.
    disk.unlink(f"{_DIRECTORY}/1")
    disk.remove_directory(_DIRECTORY)
    require(not disk.list_directory("packs"), "a removed directory is listed")
    make_durable_directory(disk, _DIRECTORY)
    create(disk, f"{_DIRECTORY}/2", b"y")
    require(read_all(disk, f"{_DIRECTORY}/2") == b"y", "a directory made again holds other bytes")


DISK_CHECKS = [
    check_read_after_write,
    check_pieces_are_kept_when_their_buffer_changes,
    check_a_name_is_given_once,
    check_one_of_racing_writers_wins,
    check_ranges,
    check_large_file,
    check_no_one_sees_a_part,
    check_listing,
    check_long_listing,
    check_unlink,
    check_what_is_missing_is_missing,
    check_names,
    check_unfinished_files_are_invisible,
    check_directories,
]

"""Conformance checks for disks on which a checkpoint store can be kept, including third-party disks.

`Store` relies on a few properties of its disk. A name can be created only once. A file is either completely visible or not visible at all.
Acknowledged changes are visible to all processes. Listings are complete. The checks first test these properties through the protocol
(`storage/disk/local_disk.py`), with many threads. After that, they run whole stores, host logs and outputs on the disk. The checks cannot
determine whether bytes survive a power failure.

To run the checks in a test suite:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    def test_my_disk(check: conformance.Check, tmp_path: Path) -> None: check(lambda place: MyDisk(tmp_path / place))

`open_disk(place)` must return a new disk object each time. Disk objects for the same place must share their bytes, and a new place must be
empty. So several disk objects for the same place represent several processes. The checks do not delete their files, so use temporary
places.

A directory may be a real directory or only a common prefix of names. So the checks require no particular result if a missing
directory is listed, if a directory is created twice, or if two threads unlink the same name.
"""

import array
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from snapline.errors import NotFoundError, StoreError
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName, PreparedBatch
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

__all__ = [
    "DISK_CHECKS",
    "LOG_CHECKS",
    "OUTPUT_CHECKS",
    "RACERS",
    "STORE_CHECKS",
    "Check",
    "ConformanceError",
    "OpenDisk",
    "check_disk",
    "checks",
]

OpenDisk = Callable[[str], Disk]
"""Function that returns a new disk object for the named place."""

Check = Callable[..., None]
"""Function that takes `open_disk` and optionally `racers`, and raises ConformanceError if the disk fails the check."""

RACERS = 8
"""Default number of racing threads. With this many, a server with several workers interleaves their requests."""

RACE_TIMEOUT_S = 120.0
"""Time limit of a race in seconds. A race takes seconds even on a slow server. A thread that hangs must not block the tests."""

T = TypeVar("T")
P = ParamSpec("P")


class ConformanceError(AssertionError):
    """Raised if a disk does not meet the requirements of a checkpoint store. The message begins with the name of the check."""


def check(function: Callable[[OpenDisk, int], None]) -> Check:
    """Decorator that declares a function as a check. Every error raised by the function becomes a ConformanceError with the name of the
    check."""

    @functools.wraps(function)
    def run(open_disk: OpenDisk, racers: int = RACERS) -> None:
        try:
            function(functools.partial(_open_named, open_disk, function.__name__), racers)
        except Exception as error:
            message = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
            raise ConformanceError(f"{function.__name__}: {message}") from error

    return run


def _open_named(open_disk: OpenDisk, name: str, place: str) -> Disk:
    return open_disk(f"{name}-{place}".replace("_", "-"))


def require(is_so: bool, words: str) -> None:
    """Raise ConformanceError with the message `words` if `is_so` is False."""
    if not is_so:
        raise ConformanceError(words)


def require_missing(words: str, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Raise ConformanceError if the call does not raise FileNotFoundError."""
    try:
        result = function(*args, **kwargs)
    except FileNotFoundError:
        return
    raise ConformanceError(f"{words}: FileNotFoundError was due, it returned {str(result)[:80]}")


def race(count: int, action: Callable[[int], T]) -> list[T | Exception]:
    """Call `action(0)`, `action(1)`, … in threads that all start at the same time. Return the result or the exception of each call."""
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
    """Create the directory of the store and the given subdirectories, and return the disk."""
    disk.make_root()
    for directory in directories:
        make_durable_directory(disk, directory)
    return disk


def create(disk: Disk, path: str, *pieces: bytes) -> None:
    """Create a file in the same way as `Store` does."""
    write_once(disk, path, pieces, temporary_name=temporary_name(), point="conformance")


def create_unsynced(disk: Disk, path: str, pieces: Sequence[bytes]) -> None:
    """Create a file that does not have to survive a crash. Creating a file in this way is faster, so checks with many files use this
    function."""
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
    """Return bytes in which no two aligned 8-byte words are equal. A different seed produces different words."""
    first = seed << 40
    return array.array("Q", range(first, first + length // 8 + 1)).tobytes()[:length]


RACED_NAMES = 20
"""Number of races, which is enough to detect a server that decides randomly, even with equal chances."""

ENTRIES = 1200
"""Number of files. Object stores list at most 1000 names in one response."""

_LARGE_BYTES = 20 * 2**20
"""Size in bytes that exceeds every client's multipart threshold of 5 to 16 MiB."""

_SEEN_BYTES = 4 * 2**20
_SEEN_FILES = 6
_LOOKS_MAX = 100_000
"""Limit on a reader's attempts to see incomplete files. The attempts end earlier when the writer ends."""

_DIRECTORY = "packs/w"


@check
def check_read_after_write(open_disk: OpenDisk, racers: int) -> None:
    """Check that a new file is immediately and completely visible through a second disk object, no matter how the file was written."""
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
    """Check that the caller can reuse a buffer as soon as `write` has returned."""
    disk = prepare(open_disk("a"), "packs")
    buffer = bytearray(b"a" * 1000)
    handle = disk.open_temporary("packs", temporary_name())
    try:
        for byte in b"ab":
            buffer[:] = bytes([byte]) * 1000
            disk.write(handle, [memoryview(buffer)])
        disk.link(handle, "packs/1")
    finally:
        disk.close(handle)
    require(read_all(disk, "packs/1") == b"a" * 1000 + b"b" * 1000, "the bytes of the first write are gone")


@check
def check_a_name_is_given_once(open_disk: OpenDisk, racers: int) -> None:
    """Check that a name that is in use cannot be taken by a second file with any contents, until the name is removed."""
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
    """Check that if several threads try to link the same name, exactly one thread succeeds, and the file has the bytes of this thread."""
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
    """Check that any range of a file can be read, and that fewer bytes are returned only at the end of the file."""
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
    """Check that a file of 20 MiB can be read both as a whole and in parts."""
    disk = prepare(open_disk("a"), "packs")
    data = pattern(_LARGE_BYTES)
    cuts = (0, 7, 9 * 2**20 + 1, _LARGE_BYTES)
    create(disk, "packs/1", *(data[start:end] for start, end in itertools.pairwise(cuts)))
    require(read_all(disk, "packs/1") == data, "other bytes were read than written")
    for offset in (2**20, 5 * 2**20 - 1, 16 * 2**20 - 3, _LARGE_BYTES - 5):
        require(disk.read("packs/1", offset, 2**20) == data[offset : offset + 2**20], f"wrong bytes from {offset} on")


@check
def check_no_one_sees_a_part(open_disk: OpenDisk, racers: int) -> None:
    """Check that while files are being written, a reader sees each file either completely or not at all."""
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
    """Check that a listing contains the files and directories of one level in sorted order. The listing must not contain entries of deeper
    directories or of directories with similar names."""
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
    """Check that a listing is complete even if it has more entries than an object store returns in one response."""
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
    """Check that a removed name disappears immediately for all processes, and that similar names are not removed."""
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
    """Check that names that are not in use raise FileNotFoundError, even if they are prefixes of names in use."""
    disk = prepare(open_disk("a"), "packs", _DIRECTORY)
    create(disk, f"{_DIRECTORY}/1.abc", b"x")
    for path in (f"{_DIRECTORY}/1", f"{_DIRECTORY}/1.ab", f"{_DIRECTORY}/1.abcd", "snapline-store", "temporary/0-1"):
        require_missing(f"size of {path}", disk.size, path)
        require_missing(f"unlinking {path}", disk.unlink, path)
        for offset, length in ((0, 0), (0, 1), (9, 9)):
            require_missing(f"reading {path}", disk.read, path, offset, length)


@check
def check_names(open_disk: OpenDisk, racers: int) -> None:
    """Check that every name created by `layout` belongs to a separate file, so that names that differ only in case or in length are
    different."""
    disk = prepare(open_disk("a"), "packs")
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    names = [alphabet, alphabet.upper(), "a-b_c.d0123456789", "-a", "_a", ".a", "..a", "a.", "a..b", "...", "A", "a"]
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
    """Check that a file that was written and closed but never linked leaves nothing behind, not even in the directory `temporary`."""
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
    """Check that a directory can be created twice, is removed only if it is empty, and can be created again after it was removed."""
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


RACED_NUMBERS = 10
"""Number of races, which is enough to detect a server that decides randomly, even with equal chances."""

RACED_LOGS = 5

APPENDED_MAX = 1000
"""Largest number of appends if sealing fails to stop the appender. Sealing takes a few requests, so the appender usually stops after
about ten appends."""

_LOG = LogName(1, "h1", 1)
_BEFORE = 12
"""Number of entries before the race. The number exceeds nine, so that the order by name differs from the order by number."""


@check
def check_life_of_a_log(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees how batches are appended, read, sealed and deleted."""
    store, other = _open_two(open_disk)
    require(other.read_logs() == {}, "a new store has logs")
    for number in range(1, _BEFORE + 1):
        require(_append(store, number), f"batch {number} was refused")
    require(other.read_logs() == {_LOG: list(range(1, _BEFORE + 1))}, f"another process finds {other.read_logs()}")
    require(other.read_batch(_LOG, 2) == _make_batch(2), "another process reads another batch")
    other.seal_log(_LOG)
    other.seal_log(_LOG)
    require(not _append(store, _BEFORE + 1), "a sealed log took a batch")
    require(store.read_batch(_LOG, _BEFORE + 1) is None, "the seal is none")
    removed = store.delete_batches([(_LOG, number) for number in range(1, _BEFORE + 2)])
    require(len(removed) == _BEFORE, f"{len(removed)} of {_BEFORE} batches were deleted")
    require(other.read_logs() == {_LOG: [_BEFORE + 1]}, f"after the deletion there is {other.read_logs()}")
    verification = other.verify()
    require(
        verification.is_whole and not verification.unreferenced,
        f"verify finds {verification.findings[:1]}, {verification.unreferenced[:1]}",
    )


@check
def check_one_batch_for_each_number(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several processes append different batches under the same number, exactly one succeeds, and that retries have the same
    outcome."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for number in range(1, RACED_NUMBERS + 1):
        prepared = [one_store.prepare_batch(_LOG, number, _make_batch(number)) for one_store in stores]
        results = race(racers, _appending(stores, prepared))
        winners = [racer for racer, result in enumerate(results) if result is True]
        losers = [result for result in results if result is not True]
        require(all(result is False for result in losers), f"a loser got {_first_error(losers)!r}")
        require(len(winners) == 1, f"{len(winners)} of {racers} batches have number {number}")
        require(race(racers, _appending(stores, prepared)) == results, "a repetition ended otherwise")
        require(store.read_batch(_LOG, number) == _make_batch(number), "the batch is damaged")


@check
def check_the_same_batch_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several processes append the same bytes under the same number, all of them succeed."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for number in range(1, RACED_NUMBERS + 1):
        prepared = store.prepare_batch(_LOG, number, _make_batch(number))
        results = race(racers, _appending(stores, [prepared] * racers))
        require(all(result is True for result in results), f"one of many got {_first_error(results)!r}")


@check
def check_racing_seals(open_disk: OpenDisk, racers: int) -> None:
    """Check that a log can be sealed while other processes append to it. After sealing, each sealer must read all acknowledged batches, and
    no more batches may be acknowledged."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers + 1)]
    for start in range(1, RACED_LOGS + 1):
        log = LogName(1, "h1", start)
        for number in range(1, _BEFORE + 1):
            _append(store, number, log)
        results = race(racers + 1, _sealing_while_appended(stores, log))
        require(all(isinstance(result, set) for result in results), f"a racer got {_first_error(results)!r}")
        taken, *seen_by_readers = [result for result in results if isinstance(result, set)]
        lost = sorted(number for number in taken if any(number not in seen for seen in seen_by_readers))
        require(not lost, f"batches {lost} were acknowledged, and one who sealed the log does not find them")
        require(not _append(store, max(taken) + 1, log), "a sealed log takes more")


def _sealing_while_appended(stores: list[Store], log: LogName) -> Callable[[int], set[int]]:
    """Return an action. In the returned action, thread 0 appends batches until an append is refused, and all other threads seal the log and
    read it."""

    def append_all(store: Store) -> set[int]:
        taken = set(range(1, _BEFORE + 1))
        for number in range(_BEFORE + 1, APPENDED_MAX):
            if not _append(store, number, log):
                return taken
            taken.add(number)
        raise AssertionError("the appender was never stopped")

    def seal_and_read(store: Store) -> set[int]:
        store.seal_log(log)
        return {number for number in store.read_logs()[log] if _is_batch(store, log, number)}

    return lambda racer: append_all(stores[0]) if racer == 0 else seal_and_read(stores[racer])


def _is_batch(store: Store, log: LogName, number: int) -> bool:
    try:
        return store.read_batch(log, number) is not None
    except NotFoundError:
        return False


def _open_two(open_disk: OpenDisk) -> tuple[Store, Store]:
    return Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))


def _make_batch(number: int) -> LogBatch:
    return LogBatch([LoggedInput("a1", number, "client", f"key {number}", b"payload" * number, 0)])


def _append(store: Store, number: int, log: LogName = _LOG) -> bool:
    return store.append_batch(store.prepare_batch(log, number, _make_batch(number)))


def _appending(stores: list[Store], prepared: list[PreparedBatch]) -> Callable[[int], bool]:
    return lambda racer: stores[racer].append_batch(prepared[racer])


def _first_error(results: Sequence[object]) -> object:
    return next((result for result in results if isinstance(result, Exception)), results[:1])


LOG_CHECKS = [
    check_life_of_a_log,
    check_one_batch_for_each_number,
    check_the_same_batch_by_many,
    check_racing_seals,
]


_RACED_EPOCHS = 3
_AGENTS = 12
_STATE_BYTES = 30_000
_CREATED = "2025-01-01T00:00:00Z"


@check
def check_store_lifecycle(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees how epochs are written, read, verified and deleted."""
    store = Store.create("a", disk=open_disk("a"))
    other = Store.open("a", disk=open_disk("a"))
    require(other.store_id == store.store_id, "another process opened another store")
    for epoch in (1, 2, 10):
        root = _write_epoch(store, epoch)
        store.publish(epoch, root)
        require(other.read_ref(epoch) == root, f"another process reads another root of epoch {epoch}")
        _demand_epoch_restores(other, epoch)
    require(other.epochs() == [1, 2, 10], f"epochs are {other.epochs()}")
    _demand_whole(other, unreferenced=0)
    require(bool(store.delete_epoch(2)), "nothing of an epoch was deleted")
    require(other.epochs() == [1, 10], "a deleted epoch is listed")
    _demand_whole(other, unreferenced=0)
    _demand_epoch_restores(other, 10)


@check
def check_garbage_is_found(open_disk: OpenDisk, racers: int) -> None:
    """Check that the sweep finds and removes exactly those files that no ref needs."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    store.publish(1, _write_epoch(store, 1))
    _write_epoch(store, 2)
    store.write_pack(writer="late.1", epoch=3, blobs=_blobs(3))
    _demand_whole(other, unreferenced=3)
    removed = other.delete_unreferenced(begun_below=4)
    require(len(removed) == 3, f"the sweep removed {removed}")
    _demand_whole(store, unreferenced=0)
    _demand_epoch_restores(store, 1)


@check
def check_probes(open_disk: OpenDisk, racers: int) -> None:
    """Check that one process can read a probe file that another process has written."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    path, token = store.write_probe()
    require(other.read_probe(path) == token, "another process reads another probe")
    _demand_whole(other, unreferenced=0)
    other.remove_probe(path)
    store.remove_probe(path)
    try:
        store.read_probe(path)
    except StoreError:
        return
    raise ConformanceError("a removed probe was read")


@check
def check_checkpoint_packs(open_disk: OpenDisk, racers: int) -> None:
    """Check that packs of independently taken checkpoints are found, verified and swept."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    for plan in (1, 2):
        taken = [AgentCheckpoint(agent="a", kind="k:K", epoch=0, number=plan, state=b"state" * plan)]
        blobs = [(made.agent, made.number, encode_checkpoint(made)) for made in taken]
        pack = store.write_checkpoints(writer="h1.1", plan=plan, blobs=blobs)
        require(other.checkpoint_packs(plan) == [pack.path], "another process does not find the pack")
        require(other.read_checkpoint_pack(pack) == taken, "another process reads other checkpoints")
    checked = [file.path for file in other.verify().checked]
    require(all(path in checked for path in other.checkpoint_packs()), "verify does not look at checkpoint packs")
    other.sweep_checkpoints(plans_below=2)
    require(len(store.checkpoint_packs()) == 1, "the sweep has not removed one of two packs")


@check
def check_racing_creators_share_one_store(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several processes open or create a store at the same time, all of them get the same store."""

    def create(_: int) -> str:
        return Store.open_or_create("a", disk=open_disk("a")).store_id

    results = race(racers, create)
    require(all(isinstance(result, str) for result in results), f"a racing opener got {_first_error(results)!r}")
    require(len(set(map(str, results))) == 1, "racing processes made several stores")


@check
def check_racing_leaders_agree(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several leaders publish the same epoch with the same root, all of them succeed."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, _RACED_EPOCHS + 1):
        roots = race(racers, _writing(stores, _make_manifest(store, epoch)))
        require(len(set(map(str, roots))) == 1, f"writing one manifest gave {_first_error(roots)!r}")
        root = str(roots[0])
        results = race(racers, _publishing(stores, epoch, [root] * racers))
        require(all(result is None for result in results), f"a leader got {_first_error(results)!r}")
        require(store.read_ref(epoch) == root, "the ref names another root")
    _demand_whole(store, unreferenced=0)


@check
def check_two_fleets_stop(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several leaders publish the same epoch with different roots, one succeeds, and all others get an error."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, _RACED_EPOCHS + 1):
        roots = [_write_epoch(one_store, epoch, fleet=f"fleet{number}") for number, one_store in enumerate(stores)]
        results = race(racers, _publishing(stores, epoch, roots))
        winners = [number for number, result in enumerate(results) if result is None]
        require(len(winners) == 1, f"{len(winners)} of {racers} fleets published epoch {epoch}")
        losers = [result for result in results if result is not None]
        require(all(isinstance(loser, StoreError) for loser in losers), f"a loser got {losers[0]!r}")
        require(store.read_ref(epoch) == roots[winners[0]], "the ref names a loser's root")
    require(store.verify().is_whole, "verify finds damage")


def _writing(stores: list[Store], manifest: Manifest) -> Callable[[int], str]:
    return lambda number: stores[number].write_manifest(manifest)


def _publishing(stores: list[Store], epoch: int, roots: list[str]) -> Callable[[int], None]:
    return lambda number: stores[number].publish(epoch, roots[number])


# -- small fleets ------------------------------------------------------------------------------------------------------


def _make_checkpoint(agent: str, epoch: int) -> AgentCheckpoint:
    state = f"{agent} {epoch} ".encode() * (_STATE_BYTES // 10)
    return AgentCheckpoint(agent=agent, kind="k:K", epoch=epoch, number=epoch, state=state)


def _agents() -> list[str]:
    return [f"a{number:03}" for number in range(_AGENTS)]


def _blobs(epoch: int) -> list[tuple[str, bytes]]:
    return [(agent, encode_checkpoint(_make_checkpoint(agent, epoch))) for agent in _agents()]


def _make_manifest(store: Store, epoch: int, fleet: str = "conformance") -> Manifest:
    pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=_blobs(epoch))
    entries = store.read_pack_index(pack)
    lines = [agent_line(entry, pack=0, kind="k:K", host="h1", incarnation=1) for entry in entries]
    metadata = Metadata(epoch=epoch, created=_CREATED, fleet=fleet, hosts={"h1": 1})
    return Manifest(metadata, lines, [pack])


def _write_epoch(store: Store, epoch: int, fleet: str = "conformance") -> str:
    return store.write_manifest(_make_manifest(store, epoch, fleet))


def _demand_epoch_restores(store: Store, epoch: int) -> None:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = list(store.read_checkpoints(manifest))
    require(checkpoints == [_make_checkpoint(agent, epoch) for agent in _agents()], f"epoch {epoch} came back changed")


def _demand_whole(store: Store, *, unreferenced: int) -> None:
    verification = store.verify()
    require(verification.is_whole, f"verify finds {verification.findings[:1]}")
    require(len(verification.unreferenced) == unreferenced, f"verify finds as garbage {verification.unreferenced}")


STORE_CHECKS = [
    check_store_lifecycle,
    check_garbage_is_found,
    check_probes,
    check_checkpoint_packs,
    check_racing_creators_share_one_store,
    check_racing_leaders_agree,
    check_two_fleets_stop,
]


EPOCHS = 12
"""Number of epochs. The number exceeds nine, so that the order by name differs from the order by number."""

_CREATED_NS = 10**18


@check
def check_output_lifecycle(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees how outputs are released, read, acknowledged and deleted."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    require(other.output_epochs() == [] and other.output_consumers() == {}, "a new store has outputs")
    for epoch in range(1, EPOCHS + 1):
        _release(store, epoch)
        _release(other, epoch)
    require(other.output_epochs() == list(range(1, EPOCHS + 1)), f"another process finds {other.output_epochs()}")
    require(_read(other, "3.1") == list(range(4, EPOCHS + 1)), f"another process reads {_read(other, '3.1')}")
    store.acknowledge_outputs("c1", "", now_ns=0)
    other.acknowledge_outputs("c1", f"{EPOCHS}.1", now_ns=0)
    require(store.output_consumers()["c1"].cursor == f"{EPOCHS}.1", "the consumer is not where it was moved")
    removed = store.delete_outputs(now_ns=_CREATED_NS, age_ns_min=0)
    require(len(removed) == EPOCHS - 1, f"{len(removed)} of {EPOCHS - 1} releases were deleted")
    require(other.output_epochs() == [EPOCHS], f"after the deletion there is {other.output_epochs()}")
    require(other.forget_consumer("c1") and store.output_consumers() == {}, "a consumer that was forgotten is there")
    verification = other.verify()
    require(
        verification.is_whole and not verification.unreferenced,
        f"verify finds {verification.findings[:1]}, {verification.unreferenced[:1]}",
    )


@check
def check_one_release_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several processes release the same epochs, all of them succeed, and each output exists only once."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, EPOCHS + 1):
        results = race(racers, _releasing(stores, epoch))
        errors = [result for result in results if result is not None]
        require(not errors, f"one of many got {errors[:1]!r}")
        require(_read(store, "") == list(range(1, epoch + 1)), f"after epoch {epoch} there is {_read(store, '')}")


@check
def check_one_consumer_moved_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that if several processes move the same consumer, all of them succeed, and the most advanced position is kept."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, racers + 1):
        _release(store, epoch)
    results = race(racers, lambda racer: stores[racer].acknowledge_outputs("c1", f"{racer + 1}.1", now_ns=0).cursor)
    errors = [result for result in results if isinstance(result, Exception)]
    require(not errors, f"one of many got {errors[:1]!r}")
    place = store.output_consumers()["c1"].cursor
    require(place == f"{racers}.1", f"the consumer is at {place}, not at {racers}.1")


def _release(store: Store, epoch: int) -> None:
    output = EmittedOutput("a1", epoch, "topic", b"payload" * epoch, 0)
    store.release_outputs(epoch, f"{epoch:064x}", epoch - 1, [output], created_ns=_CREATED_NS)


def _releasing(stores: list[Store], epoch: int) -> Callable[[int], None]:
    return lambda racer: _release(stores[racer], epoch)


def _read(store: Store, after: str) -> list[int]:
    return [output.number for batch in store.read_outputs(after) for output in batch.outputs]


OUTPUT_CHECKS = [check_output_lifecycle, check_one_release_by_many, check_one_consumer_moved_by_many]


def checks() -> list[Check]:
    """Return all checks. The simplest checks come first in the list. Each check is a function of `open_disk` and, if it has races, of
    `racers`."""
    return [*DISK_CHECKS, *STORE_CHECKS, *LOG_CHECKS, *OUTPUT_CHECKS]


def check_disk(open_disk: OpenDisk, *, racers: int = RACERS) -> None:
    """Run all checks one after another.

    Args:
        open_disk: function that opens a disk, as described in the module docstring.
        racers: number of threads in checks that have races.

    Raises:
        ConformanceError: If a check fails. The message names the first check that failed, and the reason.
    """
    for check in checks():
        check(open_disk, racers)

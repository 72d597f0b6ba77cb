"""Shared parts of the disk checks: the declaration of checks, races of threads, and writing files."""

import array
import functools
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

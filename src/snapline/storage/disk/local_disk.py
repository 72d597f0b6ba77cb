"""The `Disk` protocol, which defines the primitive file operations that the store uses. `LocalDisk` implements them for the local file
system.

Every file is written once and never changed afterwards. `write_once` creates a file that is either complete and durable under its name, or
absent:

1. open a temporary file, unnamed where the file system supports it (`O_TMPFILE`), so that a killed process leaves no file behind;
2. write its bytes;
3. call `fdatasync`, so that the bytes are on disk before any name refers to them;
4. `link` the file to the name, which fails if the name exists. Never rename onto an existing name, because that would replace a file on
   which other processes rely;
5. `fsync` the directory, so that the name is on disk too.

If `fdatasync` fails, the file is abandoned, because the kernel may have dropped the dirty pages and may report success for the next sync.
The next attempt writes another file. Directories are different: their entries are journalled, and after a failure the journal rejects all
later writes. So it is safe to repeat the sync of a directory.

Before a file in a new directory counts as durable, the caller must sync the directory's parent (`make_durable_directory`).

The simulator has its own `Disk` implementation, and the crash test records the calls made to a disk. Paths are relative to the store, and
`""` is the store itself. All methods raise only OSError.

**Lock files.** Only one process at a time can hold a lock. A second process gets an error that names the holder. The kernel releases the
lock when the holder closes the descriptor or its process ends for any reason. The text in a lock file tells operators who holds the lock.
The text is valid only while the file is locked.

**Parallel calls.** Requests to an object store have a high latency, so the store sends many of them in parallel. Each pack is uploaded as
one object in a single conditional request. The upload of a pack succeeds completely or has no effect, and after a failure the whole pack is
sent again (`Store.write_pack`). Multipart uploads are not used, because radosgw ignores the condition when it joins the parts, and an
interrupted upload remains until somebody removes it. Large amounts of data are split into many packs, which are sent in parallel.
"""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from snapline.failpoints import failpoint
from snapline.folders import sync_folder
from snapline.storage.disk.layout import TEMPORARY
from snapline.storage.disk.record import Buffer

HOLDER_BYTES_MAX = 400
"""Largest text in a lock file, in bytes. The text contains a process id, a machine name (255 characters at most), and a time."""


_HOLDER = b"process "
"""How the content of a lock file begins."""


class LockHeldError(BlockingIOError):
    """The lock is held by another process. The message names the holder: `process 17 on alpha, since 2026-01-31T09:00:00Z`."""


def lock_file(path: str | os.PathLike[str]) -> int:
    """Lock a file, creating it if it is missing. Return the descriptor that holds the lock. The holder's name is written into a file that is
    empty or names an earlier holder. The content of any other file, such as the identity of a store, is not changed.

    Raises:
        LockHeldError: If another process holds the lock.
        OSError: If the file cannot be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(handle, HOLDER_BYTES_MAX, 0)
        os.close(handle)
        holder = content.decode(errors="replace").strip() if content.startswith(_HOLDER) else "another process"
        raise LockHeldError(holder) from None
    except OSError:
        os.close(handle)
        raise
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with contextlib.suppress(OSError):  # On a full disk the lock is still held.
        if os.pread(handle, HOLDER_BYTES_MAX, 0).startswith(_HOLDER) or not os.fstat(handle).st_size:
            os.ftruncate(handle, 0)
            os.pwrite(handle, _HOLDER + f"{os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)
    return handle


WRITE_BYTES = 8 * 2**20
"""Size of one write in bytes. A small pack needs only one call, and a large pack is never in memory twice."""

_JOIN_BYTES_MAX = 2**18
"""Size in bytes up to which joining the pieces is cheaper than passing them to the kernel as separate buffers (256 KiB)."""

_BUFFERS_MAX = 1024
"""Largest number of buffers per call (IOV_MAX on Linux)."""

_NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""Error numbers from file systems and old kernels that do not support `O_TMPFILE`."""

_READ_BYTES_MAX = 2**30
"""Largest read in bytes. Linux reads at most 2 GiB - 4 KiB in one call."""


class StoreUnavailableError(OSError):
    """The opened store is unavailable, or another store has replaced it (`store_files.OpenedDisk`)."""


class DirectoryEntry(msgspec.Struct, frozen=True, gc=False):
    """Directory entry. Every entry that is not a directory counts as a file."""

    name: str
    is_directory: bool


class Disk(Protocol):
    """Primitive file operations of a disk. Implementations contain no store logic."""

    @property
    def location(self) -> str:
        """Location of the store, for messages to people."""

    def make_root(self) -> None:
        """Create the store's directory and its missing ancestors, syncing the parent of each created directory. Existing directories are
        kept."""

    def make_directory(self, path: str) -> None:
        """Create one directory. Raise FileExistsError if the directory exists."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Sync the directory, which makes its entries durable."""

    def open_temporary(self, directory: str, name: str) -> int:
        """Open an unnamed file for writing. If the file system does not support unnamed files, create the file as `temporary/<name>`."""

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        """Append the pieces to the open file in order."""

    def sync_data(self, handle: int) -> None:
        """Sync the file's contents and length."""

    def link(self, handle: int, path: str) -> None:
        """Link the open file to a name. Raise FileExistsError if the name already exists."""

    def close(self, handle: int) -> None:
        """Close the file, and remove its temporary name if it has one."""

    def unlink(self, path: str) -> None:
        """Remove a name. Raise FileNotFoundError if the name does not exist."""

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes of a file, starting at `offset`. Return fewer bytes only at the end of the file."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name."""


class LocalDisk:
    """A local or mounted file system. Threads may share the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._named: dict[int, str] = {}
        self._has_unnamed_files = hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()

    @property
    def location(self) -> str:
        return str(self._root)

    def make_root(self) -> None:
        missing = []
        path = self._root.absolute()
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)  # Agent states may be confidential.
            sync_folder(directory.parent)

    def make_directory(self, path: str) -> None:
        os.mkdir(self._full(path))

    def remove_directory(self, path: str) -> None:
        os.rmdir(self._full(path))

    def sync_directory(self, path: str) -> None:
        sync_folder(self._full(path))

    def open_temporary(self, directory: str, name: str) -> int:
        if self._has_unnamed_files:
            try:
                return os.open(self._full(directory), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
                self._has_unnamed_files = False
        os.stat(self._full(directory))  # Create nothing if the store is missing.
        path = self._full(f"{TEMPORARY}/{name}")
        os.makedirs(self._full(TEMPORARY), exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        self._named[handle] = path
        return handle

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        if sum(map(len, pieces)) <= _JOIN_BYTES_MAX:
            pieces = (b"".join(pieces),)
        buffers = [memoryview(piece) for piece in pieces if piece]
        while buffers:
            written = os.writev(handle, buffers[:_BUFFERS_MAX])
            buffers = _drop_front(buffers, written)

    def sync_data(self, handle: int) -> None:
        os.fdatasync(handle)

    def link(self, handle: int, path: str) -> None:
        source = self._named.get(handle)
        if source is not None:
            os.link(source, self._full(path))
            return
        # A directory descriptor makes Python call linkat(AT_SYMLINK_FOLLOW), which gives an unnamed file its name.
        directory = os.open(os.path.dirname(self._full(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(f"/proc/self/fd/{handle}", os.path.basename(path), dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)

    def close(self, handle: int) -> None:
        source = self._named.pop(handle, None)
        try:
            if source is not None:
                os.unlink(source)
        finally:
            os.close(handle)

    def unlink(self, path: str) -> None:
        os.unlink(self._full(path))

    def size(self, path: str) -> int:
        return os.stat(self._full(path)).st_size

    def read(self, path: str, offset: int, length: int) -> bytes:
        handle = os.open(self._full(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.pread(handle, min(length, _READ_BYTES_MAX), offset)
            if len(data) == length:
                return data
            parts = [data]
            while parts[-1] and (rest := length - sum(map(len, parts))):
                parts.append(os.pread(handle, min(rest, _READ_BYTES_MAX), offset + length - rest))
            return b"".join(parts)
        finally:
            os.close(handle)

    def read_into(self, path: str, offset: int, buffers: Sequence[memoryview]) -> int:
        """Read a file from `offset` into `buffers`, filling them in order. Return the number of bytes read."""
        handle = os.open(self._full(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        rest, read_bytes = [buffer for buffer in buffers if len(buffer)], 0
        try:
            while rest:
                count = os.preadv(handle, rest[:_BUFFERS_MAX], offset + read_bytes)
                if not count:
                    break
                read_bytes += count
                rest = _drop_front(rest, count)
        finally:
            os.close(handle)
        return read_bytes

    def lock(self, path: str) -> int:
        """Lock a file, creating it if it is missing. The lock is held until the descriptor is closed or the process ends.

        Raise LockHeldError if the file is already locked.
        """
        return lock_file(self._full(path))

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(self._full(path)) as entries:
            listing = [DirectoryEntry(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        return sorted(listing, key=lambda entry: entry.name)

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path)


def write_once(disk: Disk, path: str, pieces: Iterable[Buffer], *, temporary_name: str, point: str) -> None:
    """Create the file `path` atomically and durably. The failpoints are named `<point>.opened`, `<point>.written`, `<point>.synced`,
    `<point>.linked` and `<point>.durable`.

    Raises:
        FileExistsError: If the name is taken. Nothing was changed.
        OSError: If the disk failed. If only the final directory sync failed, the file exists, but may be lost in a crash.
    """
    directory = path.rpartition("/")[0]
    handle = disk.open_temporary(directory, temporary_name)
    try:
        failpoint(f"{point}.opened")
        for gathered in _gather(pieces):
            disk.write(handle, gathered)
        failpoint(f"{point}.written")
        disk.sync_data(handle)
        failpoint(f"{point}.synced")
        disk.link(handle, path)
        failpoint(f"{point}.linked")
    finally:
        disk.close(handle)
    disk.sync_directory(directory)
    failpoint(f"{point}.durable")


def read_into(disk: Disk, path: str, offset: int, buffers: Sequence[memoryview]) -> int:
    """Read a file from `offset` into `buffers`, filling them in order. Return the number of bytes read.

    The function uses the disk's `read_into` method if there is one, which avoids a copy, or else `read`.
    """
    direct = getattr(disk, "read_into", None)
    if direct is not None:
        return int(direct(path, offset, buffers))
    data = memoryview(disk.read(path, offset, sum(map(len, buffers))))
    start = 0
    for buffer in buffers:
        piece = data[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        start += len(piece)
    return start


def creates_only(disk: Disk) -> bool:
    """Return whether the disk refuses to overwrite an existing file. Some object stores cannot refuse this."""
    return bool(getattr(getattr(disk, "abilities", None), "creates_only", True))


def appends(disk: Disk) -> bool:
    """Return whether the disk supports appending to a file that already has its name."""
    return bool(getattr(getattr(disk, "abilities", None), "appends", True))


def make_durable_directory(disk: Disk, path: str) -> None:
    """Create a directory if it is missing. Always sync the parent directory, because the process that created the directory may have died
    before syncing the parent."""
    with contextlib.suppress(FileExistsError):
        disk.make_directory(path)
    disk.sync_directory(path.rpartition("/")[0])


def _gather(pieces: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """Group the pieces into lists of about `WRITE_BYTES` bytes each."""
    gathered: list[Buffer] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= WRITE_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _drop_front(buffers: list[memoryview], written: int) -> list[memoryview]:
    """Return what remains of `buffers` after the first `written` bytes are dropped."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_AHEAD = 4
"""Number of calls per thread that begin before a result is taken. A caller that takes only the first results waits for few further
calls."""


def requests_at_once(disk: Disk) -> int:
    """Return the recommended number of parallel requests to the disk. A value of 1 means that requests are sent one at a time."""
    return int(getattr(disk, "requests_at_once", 1))


def parallel_map(call: Callable[[ItemT], ResultT], items: Sequence[ItemT], count: int) -> Iterator[ResultT]:
    """Call `call` for each item, and yield the results in the order of the items. Up to `count` threads make calls in parallel.

    After an exception, wait for the calls that are already running, then raise the exception.
    """
    if min(count, len(items)) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(min(count, len(items)), thread_name_prefix="snapline-store") as threads:
        for start in range(0, len(items), _AHEAD * count):
            yield from threads.map(call, items[start : start + _AHEAD * count])

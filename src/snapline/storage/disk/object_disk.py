"""Object stores behind the `Disk` protocol: S3 and compatible stores, Google Cloud Storage, Azure, or memory for tests.

The protocol was made for files. Its calls map onto objects as follows:

| `Disk` | here |
| --- | --- |
| an open file without a name | a buffer in memory: nothing is sent before it is complete |
| `sync_data` | nothing: an acknowledged PUT is durable |
| `link`, which fails if the name is taken | one conditional PUT (`If-None-Match: *` or equivalent) |
| directories, and their sync | nothing: a directory is a common prefix of names |
| `read` | GET of a range |
| `list_directory` | LIST with a delimiter; the client follows all pages |

**Model.** After an answer every later request sees its effect (S3 since 2020, Google, Azure, Ceph). Of several conditional PUTs of one
name, one succeeds. `opening.open_disk` checks this once, on opening; the class trusts the result
(`DiskCapabilities`).

**A PUT of unknown outcome.** The connection may fail after the store has created the object, and a retry then meets its own object.
So FileExistsError means that the name is taken, not by whom. A caller that derives the name from the content compares the existing bytes
(`files.create_or_compare`). A caller with a random name takes another one (packs: call `Store.write_pack` again). Neither needs
to know who created the object.

**Departures from a file system**, all harmless to `Store`: empty directories do not exist; a missing one lists as empty;
`make_directory` never fails. If two threads unlink one name, both may succeed: stores delete silently, so the class checks first.

All methods raise only OSError, and never EIO, which means damaged bytes (`files.reading`): an unreachable store has
not damaged anything. Threads may share a disk. After a fork it works in the parent only.
be reached has damaged nothing. Threads may share a disk. After a fork it works in the parent only.

Carries G4 as `storage/disk/local_disk.py` does: a name has all its bytes, or does not exist.
"""

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from snapline.storage.disk.local_disk import DirectoryEntry
from snapline.storage.disk.record import Buffer

if TYPE_CHECKING:
    from obstore.store import ObjectStore


PUT_BYTES_MAX = 5 * 2**30
"""Largest PUT that S3 accepts (5 GiB). Multipart uploads are unconditional on some servers, so they are not used."""

REQUESTS_AT_ONCE = 8
"""Requests in parallel: each waits some 20 to 100 ms for its first byte. As many packs of 32 MiB are in memory while they are sent."""

CONFLICTS_MAX = 5
"""Largest number of attempts at a PUT that the store rejects because of a simultaneous one (S3: 409) without keeping either."""

_CONFLICT_PAUSE_S = 0.1
"""First pause, doubled after each conflict: 0.1 + 0.2 + 0.4 + 0.8 s, longer than the other request should take."""

_ERROR_TEXT_LENGTH_MAX = 240
"""Longest part of a foreign error's first line to keep, before any XML: enough for request and answer."""

_ERROR_CLASS_ERRNO = (
    ("AlreadyExistsError", errno.EEXIST),
    ("PermissionDeniedError", errno.EACCES),
    ("UnauthenticatedError", errno.EACCES),
    ("NotSupportedError", errno.EOPNOTSUPP),
    ("InvalidPathError", errno.EINVAL),
)

_ERROR_TEXT_ERRNO = (
    ("<Code>QuotaExceeded<", errno.EDQUOT, "the bucket's quota is used up"),
    ("<Code>EntityTooLarge<", errno.EFBIG, "the object store refuses objects of this size"),
    ("<Code>NoSuchBucket<", errno.ENOENT, "there is no such bucket"),
    ("//169.254.169.254/", errno.EACCES, "no keys were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    (" 403 Forbidden", errno.EACCES, "the key is wrong, or may not do this"),
    (" 507 Insufficient", errno.ENOSPC, "the object store is full"),
    ("source: BadScheme", errno.EPROTONOSUPPORT, "plain http is refused unless AWS_ALLOW_HTTP=true"),
    ("dns error", errno.EHOSTUNREACH, "its name cannot be resolved"),
    ("kind: Timeout", errno.ETIMEDOUT, "timed out"),
    ("kind: ConnectionRefused", errno.ECONNREFUSED, "connection refused"),
    ("kind: Connect", errno.ECONNREFUSED, "it cannot be reached"),
)
"""Texts to look for in a foreign error, since all of these have one class. The first match counts.

The error's text contains the object's name, too. So each entry has a character that no name in a store has: a blank, `<` or two slashes.
"""


class DiskCapabilities(msgspec.Struct, frozen=True):
    """Abilities of an object store, as found by a probe.

    Attributes:
        creates_only: a conditional PUT of an existing name fails. Otherwise two racing writers may both succeed.
        reads_ranges: a part of an object can be read. Otherwise each read fetches the whole object.
        may_write: the key may write. Otherwise `link` fails.
        appends: a named file may still grow. Objects cannot.
    """

    creates_only: bool = True
    reads_ranges: bool = True
    may_write: bool = True
    appends: bool = False


class _PendingObject:
    """An open file without a name: its pieces, and their length."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0


class ObjectDisk:
    """Implements `snapline.storage.disk.local_disk.Disk`. Use `opening.open_disk`, unless you bring your own obstore store."""

    def __init__(
        self,
        store: "ObjectStore",
        location: str,
        *,
        abilities: DiskCapabilities | None = None,
        put_bytes_max: int = PUT_BYTES_MAX,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wrap an obstore store whose root is the snapline store's root; `location` names it in messages."""
        self.abilities = abilities or DiskCapabilities()
        self.requests_at_once = REQUESTS_AT_ONCE
        self._store = store
        self._location = location
        self._put_bytes_max = put_bytes_max
        self._pause = pause
        self._lock = threading.Lock()
        self._open: dict[int, _PendingObject] = {}
        self._next_handle = 0

    @property
    def location(self) -> str:
        return self._location

    # -- directories: common starts of names -------------------------------------------------------------------------

    def make_root(self) -> None:
        pass

    def make_directory(self, path: str) -> None:
        pass

    def remove_directory(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        import obstore

        with translating(path):
            listing = obstore.list_with_delimiter(self._store, path or None)
        entries = [DirectoryEntry(meta["path"].rpartition("/")[2], False) for meta in listing["objects"]]
        entries += [DirectoryEntry(prefix.rpartition("/")[2], True) for prefix in listing["common_prefixes"]]
        return sorted(entries, key=lambda entry: entry.name)

    # -- writing -----------------------------------------------------------------------------------------------------

    def open_temporary(self, directory: str, name: str) -> int:
        with self._lock:
            self._next_handle += 1
            self._open[self._next_handle] = _PendingObject()
            return self._next_handle

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        file = self._file(handle)
        size_bytes = file.size_bytes + sum(map(len, pieces))
        if size_bytes > self._put_bytes_max:
            raise OSError(errno.EFBIG, f"{size_bytes} bytes are too many for one object: make smaller packs")
        # The caller may reuse buffers other than bytes, so those are copied.
        file.pieces += [piece if type(piece) is bytes else bytes(piece) for piece in pieces]
        file.size_bytes = size_bytes

    def sync_data(self, handle: int) -> None:
        self._file(handle)

    def link(self, handle: int, path: str) -> None:
        """Send the object. An earlier try of the same caller may have taken the name: see the module's text."""
        pieces = self._file(handle).pieces or [b""]
        if not self.abilities.may_write:
            raise PermissionError(errno.EACCES, "this key may read only", path)
        if not self.abilities.creates_only:
            self._put_if_missing(path, pieces)
            return
        for conflicts in range(CONFLICTS_MAX):
            try:
                put_new(self._store, path, pieces)
                return
            except FileExistsError:
                if self._is_object(path):
                    raise
            if conflicts + 1 < CONFLICTS_MAX:
                self._pause(_CONFLICT_PAUSE_S * 2**conflicts)
        raise OSError(errno.EBUSY, "the object store rejected simultaneous requests for this name", path)

    def close(self, handle: int) -> None:
        with self._lock:
            if self._open.pop(handle, None) is None:
                raise _no_such_handle(handle)

    def unlink(self, path: str) -> None:
        import obstore

        with translating(path):
            obstore.head(self._store, path)
            obstore.delete(self._store, path)

    # -- reading -----------------------------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        """Return the object's length; 0 for a directory that is not empty."""
        try:
            return self._size(path)
        except FileNotFoundError:
            # Not the first page of obstore.list: before 0.12 it holds the interpreter's lock while it waits, and hung.
            if not path or self.list_directory(path):
                return 0
            raise

    def read(self, path: str, offset: int, length: int) -> bytes:
        if length <= 0:
            self._size(path)
            return b""
        if not self.abilities.reads_ranges:
            return bytes(memoryview(get_whole(self._store, path))[offset : offset + length])
        try:
            return get_range(self._store, path, offset, length)
        except OSError as error:
            # A range at or after the end is an error (S3: 416) with a different text in each store. So compare with the object's length.
            if error.errno != errno.EREMOTEIO or self._size(path) > offset:
                raise
            return b""

    # -- inside ------------------------------------------------------------------------------------------------------

    def _file(self, handle: int) -> _PendingObject:
        with self._lock:
            file = self._open.get(handle)
        if file is None:
            raise _no_such_handle(handle)
        return file

    def _put_if_missing(self, path: str, pieces: list[bytes]) -> None:
        """Put without a condition, the best available: a race between two writers goes unnoticed."""
        import obstore

        if self._is_object(path):
            raise FileExistsError(errno.EEXIST, "an object of this name exists", path)
        with translating(path):
            obstore.put(self._store, path, pieces, mode="overwrite", use_multipart=False)

    def _size(self, path: str) -> int:
        import obstore

        if not path:
            raise FileNotFoundError(errno.ENOENT, "no object has an empty name", path)
        with translating(path):
            return obstore.head(self._store, path)["size"]

    def _is_object(self, path: str) -> bool:
        try:
            self._size(path)
        except FileNotFoundError:
            return False
        return True


def put_new(store: "ObjectStore", path: str, pieces: list[bytes]) -> None:
    """Create an object of all pieces; FileExistsError if the name is taken, or was taken meanwhile."""
    import obstore

    with translating(path):
        obstore.put(store, path, pieces, mode="create", use_multipart=False)


def get_range(store: "ObjectStore", path: str, offset: int, length: int) -> bytes:
    """Return `length` bytes from `offset` on, fewer only if the object ends earlier.

    Raises:
        OSError: EREMOTEIO also if the object ends before `offset`, or if the store sent too few bytes.
    """
    import obstore

    with translating(path):
        result = obstore.get(store, path, options={"range": (offset, offset + length)})
        data = bytes(result.bytes())
        wanted = min(length, result.meta["size"] - offset)
    if len(data) != wanted:
        raise OSError(errno.EREMOTEIO, f"the object store sent {len(data)} bytes instead of {wanted}", path)
    return data


def get_whole(store: "ObjectStore", path: str) -> bytes:
    """Return all bytes of an object."""
    import obstore

    with translating(path):
        return bytes(obstore.get(store, path).bytes())


@contextlib.contextmanager
def translating(path: str) -> Iterator[None]:
    """Translate errors of obstore to OSError, keeping the cause."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _translated(error, path) from error


def _translated(error: Exception, path: str) -> OSError:
    """Return the OSError for a foreign error; Python picks the subclass by its number."""
    text = str(error)
    for needle, number, text_part in _ERROR_TEXT_ERRNO:
        if needle in text:
            return OSError(number, text_part, path)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", path)
    for class_name, number in _ERROR_CLASS_ERRNO:
        if type(error).__name__ == class_name:
            return OSError(number, _first_line(text), path)
    number = errno.EINVAL if isinstance(error, ValueError) else errno.EREMOTEIO
    return OSError(number, _first_line(text), path)


def _first_line(text: str) -> str:
    return text.partition("\n")[0].partition("<")[0].strip(" :")[:_ERROR_TEXT_LENGTH_MAX]


def _no_such_handle(handle: int) -> OSError:
    return OSError(errno.EBADF, f"no file is open as {handle}")

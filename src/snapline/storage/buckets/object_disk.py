"""An object store behind the port `Disk`: S3 and what speaks its language, Google Cloud Storage, Azure, or memory for tests.

The port was made for files; what it demands maps onto objects so:

| the port | here |
| --- | --- |
| an open file without a name | a buffer in memory: nothing is sent before it is whole |
| `sync_data` | nothing: what a PUT acknowledged is durable |
| `link`, which fails if the name is taken | one PUT that may create only (`If-None-Match: *` and its like) |
| directories, and their sync | nothing: a directory is the common start of some names |
| `read` | GET of a range |
| `list_directory` | LIST with a delimiter; the client follows all pages |

**Model.** After an answer every later request sees its effect (S3 since 2020, Google, Azure, Ceph). Of several PUTs that may
create only, one wins. `opening.open_disk` checks that once, on opening; the class trusts the result
(`Abilities`).

**A PUT of unknown outcome.** The connection may die after the store has acted, and a repeated request then meets its own object.
So FileExistsError says that the name is taken, not by whom. A caller that derives the name from the content compares what is there
(`files.create_or_compare`); a caller that draws a random name takes another one (packs: `Store.write_pack` called again). Neither needs
to know whose object it was.

**Departures from a file system**, all harmless to `Store`: an empty directory is not there; a missing one lists as empty;
`make_directory` never fails; of two threads that unlink one name both may succeed, since stores delete silently: we look first.

All methods raise OSError and nothing else, and never EIO: that means damaged bytes (`files.reading`), and a store that cannot
be reached has damaged nothing. Threads may share a disk. After a fork it works in the parent only.

Carries G4 as `storage/store/disk.py` does: a name leads to all bytes, or to none.
"""

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from snapline.storage.store.disk import DirectoryEntry
from snapline.storage.store.record import Buffer

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PUT_BYTES_MAX = 5 * 2**30
"""Largest PUT that S3 accepts. A PUT in parts has no condition on some servers, so we make none."""

REQUESTS_AT_ONCE = 8
"""A request waits some 20 to 100 ms for its first byte. So many packs are held in memory while they are sent, 32 MiB each."""

CONFLICTS_MAX = 5
"""Largest number of attempts at a PUT that the store rejected for a simultaneous one (S3: 409), which then left nothing."""

_CONFLICT_PAUSE_S = 0.1
"""Doubled after each conflict: 0.1 + 0.2 + 0.4 + 0.8 s, longer than the other request should take."""

_WORDS_LENGTH_MAX = 240
"""Largest length of a foreign error's first line, up to the XML that some servers add: enough for request and answer."""

_CLASS_ERRNO = (
    ("AlreadyExistsError", errno.EEXIST),
    ("PermissionDeniedError", errno.EACCES),
    ("UnauthenticatedError", errno.EACCES),
    ("NotSupportedError", errno.EOPNOTSUPP),
    ("InvalidPathError", errno.EINVAL),
)

_WORDS_ERRNO = (
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
"""Texts to look for in a foreign error: all of these have one class. The first that fits counts.

The text holds the object's name, too. So each of these has a sign that no name in a store has: a blank, `<` or two slashes.
"""


class Abilities(msgspec.Struct, frozen=True):
    """Abilities of an object store, as a probe found.

    Attributes:
        creates_only: a second PUT of one name is refused on request. Without, two racing writers may both succeed.
        reads_ranges: a part of an object can be read. Without, each read fetches the whole object.
        may_write: the key is allowed to. Without, `link` refuses.
        appends: a file that has its name may still grow. No object may.
    """

    creates_only: bool = True
    reads_ranges: bool = True
    may_write: bool = True
    appends: bool = False


class _Unnamed:
    """A file that has no name yet: its pieces, and their length."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0


class ObjectDisk:
    """Implements `snapline.storage.store.disk.Disk`. Use `opening.open_disk`, unless you bring your own obstore store."""

    def __init__(
        self,
        store: "ObjectStore",
        location: str,
        *,
        abilities: Abilities | None = None,
        put_bytes_max: int = PUT_BYTES_MAX,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Use an obstore store whose root is the store's; `location` names it in messages."""
        self.abilities = abilities or Abilities()
        self.requests_at_once = REQUESTS_AT_ONCE
        self._store = store
        self._location = location
        self._put_bytes_max = put_bytes_max
        self._pause = pause
        self._lock = threading.Lock()
        self._open: dict[int, _Unnamed] = {}
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
            found = obstore.list_with_delimiter(self._store, path or None)
        entries = [DirectoryEntry(meta["path"].rpartition("/")[2], False) for meta in found["objects"]]
        entries += [DirectoryEntry(prefix.rpartition("/")[2], True) for prefix in found["common_prefixes"]]
        return sorted(entries, key=lambda entry: entry.name)

    # -- writing -----------------------------------------------------------------------------------------------------

    def open_temporary(self, directory: str, name: str) -> int:
        with self._lock:
            self._next_handle += 1
            self._open[self._next_handle] = _Unnamed()
            return self._next_handle

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        file = self._file(handle)
        size_bytes = file.size_bytes + sum(map(len, pieces))
        if size_bytes > self._put_bytes_max:
            raise OSError(errno.EFBIG, f"{size_bytes} bytes are too many for one object: make smaller packs")
        # The caller may use other buffers than bytes again; those are copied.
        file.pieces += [piece if type(piece) is bytes else bytes(piece) for piece in pieces]
        file.size_bytes = size_bytes

    def sync_data(self, handle: int) -> None:
        self._file(handle)

    def link(self, handle: int, path: str) -> None:
        """Send the object. The name may be taken by an earlier try of ours: see the module's text."""
        pieces = self._file(handle).pieces or [b""]
        if not self.abilities.may_write:
            raise PermissionError(errno.EACCES, "this key may read only", path)
        if not self.abilities.creates_only:
            self._look_and_put(path, pieces)
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
        raise OSError(errno.EBUSY, "the object store saw simultaneous requests for this name, and kept none", path)

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
        """Return the object's length; 0 for a directory that holds something."""
        try:
            return self._size(path)
        except FileNotFoundError:
            # Not obstore.list and its first page: before 0.12 that holds the interpreter's lock while it waits, and hung.
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
            # Stores refuse a range that begins at the end or after it (S3: 416), each in its own words. So its length decides.
            if error.errno != errno.EREMOTEIO or self._size(path) > offset:
                raise
            return b""

    # -- inside ------------------------------------------------------------------------------------------------------

    def _file(self, handle: int) -> _Unnamed:
        with self._lock:
            file = self._open.get(handle)
        if file is None:
            raise _no_such_handle(handle)
        return file

    def _look_and_put(self, path: str, pieces: list[bytes]) -> None:
        """Put without a condition, the best that is left: a race between two writers is lost unseen."""
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
    """Create an object of all pieces; FileExistsError if the name is taken, or was while we asked."""
    import obstore

    with translating(path):
        obstore.put(store, path, pieces, mode="create", use_multipart=False)


def get_range(store: "ObjectStore", path: str, offset: int, length: int) -> bytes:
    """Return `length` bytes from `offset` on, fewer only if the object ends before.

    Raises:
        OSError: EREMOTEIO also where the object ends before `offset`, and where the store sent fewer bytes than it has.
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
    """Translate what obstore raises to OSError, its cause kept."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _translated(error, path) from error


def _translated(error: Exception, path: str) -> OSError:
    """Return the OSError for a foreign one; Python picks the subclass that the number has."""
    text = str(error)
    for needle, number, words in _WORDS_ERRNO:
        if needle in text:
            return OSError(number, words, path)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", path)
    for class_name, number in _CLASS_ERRNO:
        if type(error).__name__ == class_name:
            return OSError(number, _first_line(text), path)
    number = errno.EINVAL if isinstance(error, ValueError) else errno.EREMOTEIO
    return OSError(number, _first_line(text), path)


def _first_line(text: str) -> str:
    return text.partition("\n")[0].partition("<")[0].strip(" :")[:_WORDS_LENGTH_MAX]


def _no_such_handle(handle: int) -> OSError:
    return OSError(errno.EBADF, f"no file is open as {handle}")

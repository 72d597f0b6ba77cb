"""Object stores behind the `Disk` protocol: S3 and compatible stores, Google Cloud Storage, Azure, or memory for tests. The module also
contains `open_disk`, which opens the disk for a given URL.

The `Disk` protocol was designed for files. The protocol's calls map to object stores as follows:

| `Disk` | object store |
| --- | --- |
| an open file without a name | a buffer in memory: nothing is sent until the file is complete |
| `sync_data` | no request: an acknowledged PUT is durable |
| `link`, which fails if the name is taken | one conditional PUT (`If-None-Match: *` or equivalent) |
| directories and syncing them | no request: a directory is a common prefix of names |
| `read` | GET with a range |
| `list_directory` | LIST with a delimiter, for which the client fetches all pages |

**The model.** After the store has replied to a request, every later request sees its effect (S3 since 2020, Google, Azure, Ceph). If
several conditional PUTs use one name, exactly one succeeds. `open_disk` verifies once that conditional PUTs work, and the class relies on
the result (`DiskCapabilities`).

**A PUT with an unknown outcome.** If the connection fails after the store has created the object, a retry finds the object that the first
attempt created. So FileExistsError means that the name is taken, but not who took it. A caller that derives the name from the content
compares the existing bytes (`store_files.create_or_compare`). A caller with a random name chooses another name (for packs: call
`Store.write_pack` again). In both cases, the caller does not need to know who created the object.

**Differences from a file system.** `Store` tolerates all of these differences. Empty directories do not exist, listing a missing directory
returns an empty list, and `make_directory` never fails. If two threads unlink the same name, both may succeed, because stores report no
error for deleting a missing object.

All methods raise only OSError. The methods never raise EIO, because EIO means damaged bytes (`store_files.reading`), and an unreachable
store has not damaged anything. Threads may share a disk. After a fork, only the parent process may use the disk.

This module guarantees G4 in the same way as `storage/disk/local_disk.py`: a file appears under its name complete, or not at all.

**Opening.** `open_disk` opens the disk that a store's URL names, and probes the capabilities of an object store.

    /data/store, file:///data/store     a directory that all hosts share
    s3://bucket/prefix                  S3 and compatible stores
    gs://bucket/prefix                  Google Cloud Storage
    az://container/prefix               Azure
    memory://name                       objects in this process, for tests; they are lost when the process ends

Keys, region and endpoint come from the standard environment variables of the providers' tools (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
`AWS_ALLOW_HTTP`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` …). Snapline defines no variables of its own for this.

**The probe.** The store's safety relies on conditional PUTs (G4: one ref per epoch). Some servers accept conditional PUTs but ignore the
condition. So `open_disk` writes a randomly named object twice, with different bytes. If the second PUT succeeds, or the first bytes are
gone, the store overwrites objects, and `open_disk` refuses it. `allow_unconditional=True` permits a store that overwrites objects. A store
that overwrites objects is safe only if a single coordinator decides which bytes are written under each name. The probe also tests whether
the store supports range reads. If range reads fail, the disk always fetches whole objects.

The probe object is named like a temporary file of epoch 0, and is removed at once. If the process is killed during a probe, `verify` and
garbage collection treat the remaining object as garbage rather than damage. With credentials that lack write permission, the store is
opened read-only. Opening an object store sends six small requests. Probe results are not cached, since the server may have been replaced.
"""

import contextlib
import datetime
import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from snapline.errors import StoreError, UsageError
from snapline.storage.disk.layout import IDENTITY, TEMPORARY, parse_location
from snapline.storage.disk.local_disk import DirectoryEntry, Disk, LocalDisk
from snapline.storage.disk.record import Buffer

if TYPE_CHECKING:
    from obstore.store import MemoryStore, ObjectStore


PUT_BYTES_MAX = 5 * 2**30
"""Largest PUT that S3 accepts (5 GiB). Multipart uploads are unconditional on some servers, so Snapline does not use them."""

REQUESTS_AT_ONCE = 8
"""Number of parallel requests. A request waits 20 to 100 ms for its first byte, and keeps its pack of 32 MiB in memory during the
upload."""

CONFLICTS_MAX = 5
"""Largest number of attempts at a PUT if the store rejects simultaneous PUTs of one name without accepting any of them (S3: 409)."""

_CONFLICT_PAUSE_S = 0.1
"""First pause in seconds, doubled after each conflict. The pauses of 0.1 + 0.2 + 0.4 + 0.8 s should outlast the other request."""

_ERROR_TEXT_LENGTH_MAX = 240
"""Number of characters kept of a foreign error's first line, before any XML. This number is enough for the request and the reply."""

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
"""Texts to look for in a foreign error, since many such errors share one class. The first match applies.

The error's text also contains the object's name. So each text contains a character that no name in a store contains: a blank, `<` or two
slashes.
"""


class DiskCapabilities(msgspec.Struct, frozen=True):
    """Capabilities of an object store, as determined by a probe.

    Attributes:
        creates_only: whether a conditional PUT of an existing name fails. If False, two concurrent writers may both succeed.
        reads_ranges: whether the store can return a part of an object. If False, each read fetches the whole object.
        may_write: whether the credentials permit writing. If False, `link` fails.
        appends: whether the store can append to an existing file, which object stores cannot.
    """

    creates_only: bool = True
    reads_ranges: bool = True
    may_write: bool = True
    appends: bool = False


class _PendingObject:
    """A file that is being written, buffered in memory until it is sent under its name."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0


class ObjectDisk:
    """Implementation of `local_disk.Disk` for object stores. Use `open_disk` to create one, unless you supply your own obstore store."""

    def __init__(
        self,
        store: "ObjectStore",
        location: str,
        *,
        abilities: DiskCapabilities | None = None,
        put_bytes_max: int = PUT_BYTES_MAX,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wrap an obstore store whose root is the Snapline store's root. `location` names the store in messages."""
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

    # -- directories: common prefixes of names -----------------------------------------------------------------------

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
        """Send the object. An earlier attempt by the same caller may have taken the name, as the module docstring explains."""
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
        """Return the object's length in bytes, or 0 for a directory that is not empty."""
        try:
            return self._size(path)
        except FileNotFoundError:
            # obstore.list is not used here: before 0.12 it held the interpreter's lock while waiting for the first page, and hung.
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
            # A range that begins at or after the end is an error (S3: 416), with a different text in each store. So check the object's
            # length.
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
        """Put an object if its name is free, without a conditional request. If two writers race, neither detects the other."""
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
    """Create an object from the pieces. Raise FileExistsError if an object with this name exists."""
    import obstore

    with translating(path):
        obstore.put(store, path, pieces, mode="create", use_multipart=False)


def get_range(store: "ObjectStore", path: str, offset: int, length: int) -> bytes:
    """Return `length` bytes of an object, starting at `offset`. Return fewer bytes only if the object ends earlier.

    Raises:
        OSError: If the request failed. The error number is EREMOTEIO if the object is shorter than `offset` or the store sent too few
            bytes.
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
    import obstore

    with translating(path):
        return bytes(obstore.get(store, path).bytes())


@contextlib.contextmanager
def translating(path: str) -> Iterator[None]:
    """Translate exceptions of obstore into OSError. The original exception is kept as the cause."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _translated(error, path) from error


def _translated(error: Exception, path: str) -> OSError:
    """Convert an exception of obstore into an OSError. Python picks the OSError subclass from the error number."""
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


CONNECT_TIMEOUT_S = 5
"""Time limit for connecting, in seconds. Connecting takes milliseconds, or longer if one or two packets are lost."""

REQUEST_TIMEOUT_S = 40
"""Time limit for one request including its whole response, in seconds. The limit is enough for 64 MiB at 1.7 MB/s. `AWS_TIMEOUT` and its
equivalents override the limit."""

RETRY_S = 12
"""Time in seconds after which no retry begins. Including the last pause and request, a call ends within 60 s, so that the caller can
decide."""

RETRIES_MAX = 5
"""Largest number of retries for a lost connection or a throttled request. The pauses between retries add up to one to four seconds. Callers
handle longer outages."""

_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 2

MEMORY_STORES_MAX = 1000
"""Largest number of `memory://` stores in a process. The limit exceeds the needs of tests, and stops endless loops that create stores."""

_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""Map from each scheme of object stores to the prefix of its environment variables."""

_FLAGS = ("allow_http", "allow_invalid_certificates")
_TEXTS = ("timeout", "connect_timeout", "proxy_url")
"""Client options that this module reads from the environment, because obstore ignores them once any option is set."""

_PREFIX = re.compile(r"(/[A-Za-z0-9_.=+@,-]+)*/?")
_PROBE_BYTES = (b"0123456789abcdef", b"fedcba9876543210")
"""Contents of the two PUTs of a probe."""

_CONDITION_REFUSED = frozenset({errno.EOPNOTSUPP, errno.EREMOTEIO})
"""Error numbers from a server that does not support conditional requests, for example with status 501."""

_ID_BYTES = 16

_memory_stores: "dict[str, MemoryStore]" = {}
_memory_lock = threading.Lock()


def open_disk(
    url: str, *, allow_unconditional: bool = False, random_bytes: Callable[[int], bytes] = os.urandom
) -> Disk:
    """Return the disk for a plain path or a URL. Object stores are probed before the function returns. Directories are not accessed.

    Args:
        url: a plain path, or a URL in one of the forms that the module docstring lists.
        allow_unconditional: accept an object store that overwrites objects, which is safe only for a fleet with one coordinator.
        random_bytes: random generator for the name of the probe object.

    Raises:
        UsageError: If the scheme is unknown, the URL is malformed, an optional dependency is missing, or the store overwrites objects.
        StoreError: If the object store is unreachable, or returns other bytes than were written.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "file":
        return LocalDisk(parse_location(url))
    if scheme not in (*_ENVIRONMENT, "memory"):
        raise UsageError(f"{scheme}:// is no scheme of a store: give a directory, file:///…, s3://, gs:// or az://")
    location = _normalized(scheme, rest, url)
    store = _memory_store(location) if scheme == "memory" else _object_store(scheme, location)
    try:
        abilities = probe(store, random_bytes=random_bytes)
    except OSError as error:
        raise StoreError(
            f"cannot open the store {location}: {error.strerror or error}; check its address, the bucket and the keys"
        ) from error
    if not (abilities.creates_only or allow_unconditional):
        raise UsageError(
            f"the object store at {location} overwrites objects that it was asked to create only, so two writers could both "
            "succeed: use one that honours `If-None-Match: *`, or, for a fleet with one coordinator, allow_unconditional=True"
        )
    return ObjectDisk(store, location, abilities=abilities)


def probe(store: "ObjectStore", *, random_bytes: Callable[[int], bytes] = os.urandom) -> DiskCapabilities:
    """Determine the capabilities of an object store by a probe. See the module docstring.

    Raises:
        OSError: If the store is unreachable, the credentials permit neither reading nor writing, or the store does not return the written
            bytes.
    """
    path = f"{TEMPORARY}/0-{random_bytes(_ID_BYTES).hex()}"
    try:
        is_refused = _put_is_refused(store, path)
    except PermissionError:
        return DiskCapabilities(may_write=False, reads_ranges=_reads_ranges_of_identity(store))
    try:
        content = get_whole(store, path)
        if content not in _PROBE_BYTES:
            raise OSError(f"it returned {len(content)} bytes that were never written")
        is_first = content == _PROBE_BYTES[0]
        return DiskCapabilities(creates_only=is_refused and is_first, reads_ranges=_reads_ranges(store, path, content))
    finally:
        _remove(store, path)


def _put_is_refused(store: "ObjectStore", path: str) -> bool:
    """Put an object twice, and return whether the store refused the second PUT."""
    # The name is random. If it is already taken, an earlier attempt of this call took it and the reply was lost.
    try:
        with contextlib.suppress(FileExistsError):
            put_new(store, path, [_PROBE_BYTES[0]])
    except PermissionError:
        raise
    except OSError:
        # Some servers reject the condition itself. If there is another problem, the unconditional PUT fails too.
        _put(store, path)
    try:
        put_new(store, path, [_PROBE_BYTES[1]])
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in _CONDITION_REFUSED:
            raise
    return False


def _put(store: "ObjectStore", path: str) -> None:
    import obstore

    with translating(path):
        obstore.put(store, path, [_PROBE_BYTES[0]], use_multipart=False)


def _reads_ranges(store: "ObjectStore", path: str, whole: bytes) -> bool:
    """Return whether the store can read a range in the middle of an object, and a range that extends beyond its end."""
    half = len(whole) // 2
    try:
        parts = get_range(store, path, 1, half - 1), get_range(store, path, half, len(whole))
    except OSError:
        return False
    return parts == (whole[1:half], whole[half:])


def _reads_ranges_of_identity(store: "ObjectStore") -> bool:
    try:
        return _reads_ranges(store, IDENTITY, get_whole(store, IDENTITY))
    except FileNotFoundError:
        return True


def _remove(store: "ObjectStore", path: str) -> None:
    """Remove the probe object. If the credentials do not permit deletion, the object remains until garbage collection removes it."""
    import obstore

    with contextlib.suppress(OSError), translating(path):
        obstore.delete(store, path)


def _normalized(scheme: str, rest: str, url: str) -> str:
    bucket, slash, prefix = rest.partition("/")
    segments = prefix.rstrip("/").split("/")
    if (
        not re.fullmatch(r"[A-Za-z0-9_.-]+", bucket)
        or not _PREFIX.fullmatch(slash + prefix)
        or any(segment in (".", "..") for segment in segments)
    ):
        raise UsageError(f"{url!r} names no store: write {scheme}://bucket/prefix, in letters, digits and _.=+@,-")
    return f"{scheme}://{rest.rstrip('/')}"


def _memory_store(location: str) -> "MemoryStore":
    """Return the in-memory store with this name, which all callers in this process share."""
    memory_store = _imported("memory").MemoryStore
    with _memory_lock:
        if location not in _memory_stores:
            if len(_memory_stores) >= MEMORY_STORES_MAX:
                raise UsageError(f"{MEMORY_STORES_MAX} memory:// stores in one process are enough: use a name again")
            _memory_stores[location] = memory_store()
        return _memory_stores[location]


def _object_store(scheme: str, location: str) -> "ObjectStore":
    from_url = _imported(scheme).from_url
    seconds = datetime.timedelta
    retry = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": seconds(seconds=RETRY_S),
        "backoff": {
            "init_backoff": seconds(seconds=_PAUSE_FIRST_S),
            "max_backoff": seconds(seconds=_PAUSE_MAX_S),
            "base": 2,
        },
    }
    try:
        with translating(""):
            store: ObjectStore = from_url(
                location, client_options=_client_options(_ENVIRONMENT[scheme]), retry_config=retry
            )
    except OSError as error:
        raise UsageError(f"cannot open the store {location}: {error.strerror}") from error
    return store


def _client_options(prefix: str) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "timeout": f"{REQUEST_TIMEOUT_S}s",
    }
    for name in (*_FLAGS, *_TEXTS):
        value = os.environ.get(f"{prefix}_{name.upper()}", "")
        if value:
            options[name] = value.lower() in ("1", "true", "yes", "on") if name in _FLAGS else value
    return options


def _imported(scheme: str) -> Any:  # A module: its two store classes have no common type.
    try:
        import obstore.store
    except ModuleNotFoundError as error:
        raise UsageError(f"stores of scheme {scheme}:// need obstore: install snapline[s3]") from error
    return obstore.store

"""Opens the disk of a store's URL, and probes what an object store can do.

    /data/store, file:///data/store     a directory that all hosts share
    s3://bucket/prefix                  S3 and compatible stores
    gs://bucket/prefix                  Google Cloud Storage
    az://container/prefix               Azure
    memory://name                       objects in this process, for tests; lost when it ends

Keys, region and endpoint come from the standard environment variables of the providers' tools (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` …); snapline defines none of its own.

**The probe.** The store's safety relies on conditional PUTs (G4: one ref per epoch). Some servers accept the condition
and ignore it. So opening puts a random object twice, with different bytes. If the second PUT succeeds, or the first bytes are
gone, the store overwrites objects and is refused. `allow_unconditional=True` opens it nevertheless, which is safe only if
one coordinator decides what is written under each name. Then a range is read; if that fails, only whole objects are read later.

The probe has the name of a temporary file of epoch 0 and is removed at once. `verify` and the sweep treat the probe of a killed process as
garbage, not as damage. A key without write permission opens the store for reading only. Each opening makes six small requests: earlier
answers are not cached, since the server may have been replaced.
"""

import contextlib
import datetime
import errno
import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from snapline.errors import StoreError, UsageError
from snapline.storage.disk.layout import IDENTITY, TEMPORARY, parse_location
from snapline.storage.disk.local_disk import Disk, LocalDisk
from snapline.storage.disk.object_disk import DiskCapabilities, ObjectDisk, get_range, get_whole, put_new, translating

if TYPE_CHECKING:
    from obstore.store import MemoryStore, ObjectStore


CONNECT_TIMEOUT_S = 5
"""Seconds to connect: it takes milliseconds, or a lost packet or two."""

REQUEST_TIMEOUT_S = 40
"""Seconds for one request with its whole answer: a pack of 64 MiB at 1.7 MB/s. `AWS_TIMEOUT` and its equivalents override it."""

RETRY_S = 12
"""Seconds after which no retry begins. With the last pause and request a call ends within 60 s; then the caller decides."""

RETRIES_MAX = 5
"""Retries, with one to four seconds of pauses in all, for a lost connection or a throttled request. Callers handle longer outages."""

_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 2

MEMORY_STORES_MAX = 1000
"""Largest number of `memory://` stores per process: more than tests need, and a limit for endless loops."""

_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""Schemes of object stores, with the prefix of their environment variables."""

_FLAGS = ("allow_http", "allow_invalid_certificates")
_TEXTS = ("timeout", "connect_timeout", "proxy_url")
"""Client options that are read from the environment here: obstore ignores them once any option is set."""

_PREFIX = re.compile(r"(/[A-Za-z0-9_.=+@,-]+)*/?")
_PROBE_BYTES = (b"0123456789abcdef", b"fedcba9876543210")
"""Contents of the two PUTs of a probe."""

_CONDITION_REFUSED = frozenset({errno.EOPNOTSUPP, errno.EREMOTEIO})
"""Errors of a server without conditional requests, such as 501."""

_ID_BYTES = 16

_memory_stores: "dict[str, MemoryStore]" = {}
_memory_lock = threading.Lock()


def open_disk(
    url: str, *, allow_unconditional: bool = False, random_bytes: Callable[[int], bytes] = os.urandom
) -> Disk:
    """Return the disk that a plain path or URL names. An object store is probed first; a directory is not touched.

    Args:
        url: see the module's text.
        allow_unconditional: accept an object store that overwrites; only for a fleet with one coordinator.
        random_bytes: source of the probe's name.

    Raises:
        UsageError: the scheme is unknown, the URL malformed, an extra missing, or the store overwrites.
        StoreError: the object store is unreachable, or loses bytes.
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
    """Probe what an object store can do; see the module's text.

    Raises:
        OSError: the store is unreachable, the key may neither read nor write, or the written bytes do not come back.
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
    """Put twice; return whether the second was refused."""
    # The name is random. If it is taken at once, an earlier try of this call took it and its answer was lost.
    try:
        with contextlib.suppress(FileExistsError):
            put_new(store, path, [_PROBE_BYTES[0]])
    except PermissionError:
        raise
    except OSError:
        # Some servers reject the condition itself. If something else is wrong, the unconditional PUT fails too.
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
    """Return whether a range in the middle, and one that extends over the end, can be read."""
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
    """Remove the probe. A key without the right to delete leaves it as garbage for the sweep."""
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
    """Return the in-memory store of that name, shared by all callers in this process."""
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

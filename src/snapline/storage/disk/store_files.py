"""The small files of a store: its identity, probes, fork record, and the log marks of coordinator replicas.

A new store's directories are created first, and its identity file last. A store without an identity file is incomplete.

**The disk of an opened store** (`OpenedDisk`). A file counts as missing only if the store itself is present, which its id proves.

The problem: when a mount is missing, its mount point is an empty directory. A bucket may also have been emptied, or another store may be at
the path. In such cases a reader finds no pin, log or epoch, but must not conclude that none exists. Nothing may be created or deleted at a
path where the store is not present.

The model: the identity file is written once and never changed. So a process that has just read the expected id has reached the right store.

1. After a missing file or an empty listing, the disk reads the id and repeats the call. Only the second result counts.
2. A listing that is not empty is valid if the id can be read after it.
3. The disk reads the id before it creates, links or removes anything.

If a check of the id fails, the disk raises `StoreUnavailableError`, which means that the store is currently unavailable, never that
something is missing. Reads of existing files need no check of the id, because the contents of every file are verified.
`StoreReader.confirm_damage` reads the id and the file again before damage is reported.

Limits: the checks do not detect a store that vanishes and returns twice between two calls. The checks also do not detect a store that
vanishes between the reading of the id and the following write. On an object store, each write costs one additional small GET.

**The fork record.** A fork is a fleet made from one snapshot of another fleet (`storage/transfer/forking.py`).

    fork        record FORK {created, epoch, gone, is_live, name, parent, parent_name, root, signature, store}

The fork record is the first file of a fork's store, and the identity is the last. A store with a fork record but no identity is an
unfinished fork. If refs are signed, the fork record is signed too, because otherwise an attacker could allow a fork to perform effects.

**Log marks.** A log mark records that a coordinator replica has used a certain Raft log, and whether the replica may vote with that log. A
replica that lost its disk has forgotten its votes and the entries that it acknowledged. The replica cannot detect this loss by itself,
since a new replica also starts with an empty directory. So the store keeps the log marks, and `coordinator/raft/learner.py` decides whether
the replica may vote. The store is the right place for log marks because it identifies the cluster: if the store is emptied too, a new
cluster starts.

    replicas/<replica>.<number>     numbers 1, 2, 3 …; the highest number is valid

Marks are written once. If two processes write a mark with the same number, one of them fails.
"""

import contextlib
import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from snapline.errors import DamagedDataError, StoreError, StoreMissingError, UsageError
from snapline.failpoints import failpoint
from snapline.ids import check_id
from snapline.storage.disk import layout
from snapline.storage.disk import local_disk as port
from snapline.storage.disk.layout import FORK, IDENTITY, is_root
from snapline.storage.disk.local_disk import (
    DirectoryEntry,
    Disk,
    StoreUnavailableError,
    make_durable_directory,
    write_once,
)
from snapline.storage.disk.record import Buffer, Guard, canonical, check_store, damaged, seal, unseal

SMALL_BYTES_MAX = 4096
"""Largest small file in bytes. Identity, refs and probes have about 200 bytes plus signatures. The size is checked before reading."""

IDENTITY_KIND = b"STOR"
PROBE_KIND = b"PROB"


class IdentityBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the identity file. `store` is the store's id, 32 random hexadecimal digits."""

    store: str


class ProbeBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a probe file. `token` is random."""

    store: str
    token: bytes


_identity_decoder = msgspec.msgpack.Decoder(IdentityBody)

_probe_decoder = msgspec.msgpack.Decoder(ProbeBody)


@contextlib.contextmanager
def writing(disk: Disk, what: str) -> Iterator[None]:
    """Translate an OSError during a write into StoreError. `what` describes the data in the error message."""
    try:
        yield
    except OSError as error:
        advice = "; free space there, or keep fewer epochs" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StoreError(f"cannot write {what} to the store {disk.location}: {_words(error)}{advice}") from error


@contextlib.contextmanager
def reading(disk: Disk, path: str, *, epoch: int | None = None, blob: str = "") -> Iterator[None]:
    """Translate an OSError during the reading of a file that must exist. Missing or unreadable bytes count as damage.

    If the whole store is unreadable, the disk or the network has failed and the bytes may be intact, so StoreError is raised.
    """
    try:
        yield
    except OSError as error:
        raise unreadable(error, disk, path, epoch=epoch, blob=blob) from error


def unreadable(
    error: OSError, disk: Disk, path: str, *, epoch: int | None = None, blob: str = ""
) -> DamagedDataError | StoreError:
    """Return the Snapline error for an OSError. The caller raises it. Small reads call this function directly, because the context manager
    `reading` costs more than the read."""
    if isinstance(error, FileNotFoundError):
        return damaged(path, "it is missing", epoch=epoch, blob=blob)
    if error.errno == errno.EIO and _is_readable(disk):
        return damaged(path, f"it cannot be read: {_words(error)}", epoch=epoch, blob=blob)
    return StoreError(f"cannot read {path} in the store {disk.location}: {_words(error)}")


def _is_readable(disk: Disk) -> bool:
    """Return whether the store's identity can be read."""
    try:
        disk.read(IDENTITY, 0, 1)
    except OSError:
        return False
    return True


def listed(disk: Disk, directory: str) -> list[DirectoryEntry]:
    """Return the entries of a directory, or an empty list if the directory does not exist yet.

    Raises:
        StoreError: If the store is unavailable, or cannot be read.
    """
    with reading(disk, directory):
        try:
            return disk.list_directory(directory)
        except FileNotFoundError:
            return []


def read_file(disk: Disk, path: str, *, epoch: int | None, size_bytes_max: int) -> bytes:
    """Return the contents of a whole file. The file's length is checked before anything is allocated."""
    try:
        size_bytes = disk.size(path)
        if size_bytes > size_bytes_max:
            raise damaged(path, f"surplus bytes: {size_bytes}, at most {size_bytes_max} are possible", epoch=epoch)
        return disk.read(path, 0, size_bytes)
    except OSError as error:
        raise unreadable(error, disk, path, epoch=epoch) from error


def create_or_compare(
    disk: Disk, path: str, data: bytes, *, temporary_name: str, point: str, epoch: int | None = None
) -> bool:
    """Create a file whose name is derived from its content. Return whether the file already existed with the same bytes.

    If the file already existed, sync its directory too, because the process that created the file may have died before its sync.

    Raises:
        FileExistsError: If a file with different bytes exists.
        DamagedDataError: If the existing file cannot be read.
        OSError: If the disk failed.
    """
    try:
        write_once(disk, path, (data,), temporary_name=temporary_name, point=point)
    except FileExistsError:
        with reading(disk, path, epoch=epoch):
            size_bytes = disk.size(path)
            is_same = size_bytes == len(data) and disk.read(path, 0, size_bytes) == data
        if not is_same:
            raise
        disk.sync_directory(path.rpartition("/")[0])
        return True
    return False


def unlink(disk: Disk, paths: Iterable[str]) -> list[str]:
    """Remove the files in the given order, and return the paths of the files that existed. The removals become durable only when the
    directory is synced."""
    removed = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
            removed.append(path)
    return removed


def encode_identity(store_id: str) -> bytes:
    """Return the bytes of the identity file."""
    return seal(IDENTITY_KIND, canonical.encode(IdentityBody(store=store_id)))


def encode_probe(token: bytes, store_id: str) -> bytes:
    """Return the bytes of a probe file."""
    return seal(PROBE_KIND, canonical.encode(ProbeBody(store=store_id, token=token)))


def read_identity(disk: Disk) -> str:
    """Return the store's id. Raise the errors of `read_file`."""
    data = read_file(disk, IDENTITY, epoch=None, size_bytes_max=SMALL_BYTES_MAX)
    body = unseal(IDENTITY_KIND, data, path=IDENTITY, epoch=None)
    with decoding(IDENTITY):
        return _identity_decoder.decode(body).store


def read_probe(disk: Disk, path: str, store_id: str | None) -> bytes:
    """Return the random token in a probe file."""
    body = unseal(PROBE_KIND, read_file(disk, path, epoch=None, size_bytes_max=SMALL_BYTES_MAX), path=path, epoch=None)
    with decoding(path):
        probe = _probe_decoder.decode(body)
    check_store(probe.store, path, store_id)
    return probe.token


@contextlib.contextmanager
def decoding(path: str, epoch: int | None = None) -> Iterator[None]:
    """Translate decoding errors into DamagedDataError. The digest of the body has already been verified."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"its body cannot be read: {error}", epoch=epoch) from error


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def exists(disk: Disk, path: str) -> bool:
    try:
        disk.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


UNFINISHED_FORK = "holds a fork that was not finished: make it again with `snapline snapshot fork --again`"

_ID_BYTES = 16
"""Size of a store id in bytes (128 bits, so random ids do not collide)."""


def initialize_store(disk: Disk, *, random_bytes: Callable[[int], bytes]) -> str:
    """Create a new store durably, and return its id.

    Raises:
        UsageError: If the disk already contains a store or other files.
        StoreError: If the disk failed.
    """
    with writing(disk, "a new store"):
        disk.make_root()
        check_no_store(disk)
        for directory in layout.DIRECTORIES:
            make_durable_directory(disk, directory)
        failpoint("store.create.directories")
        store_id = random_bytes(_ID_BYTES).hex()
        name = f"0-{random_bytes(_ID_BYTES).hex()}"
        try:
            data = encode_identity(store_id)
            write_once(disk, layout.IDENTITY, (data,), temporary_name=name, point="store.identity")
        except FileExistsError:
            raise _already_there(disk) from None
    return store_id


def check_no_store(disk: Disk) -> None:
    if exists(disk, layout.IDENTITY):
        raise _already_there(disk)
    if exists(disk, layout.FORK):
        raise UsageError(f"{disk.location} {UNFINISHED_FORK}")
    for entry in disk.list_directory(""):
        if not entry.is_directory or entry.name not in layout.ROOT_DIRECTORIES:
            raise UsageError(f"{disk.location} holds {entry.name!r} and is no store: give an empty directory")
    with contextlib.suppress(FileNotFoundError):
        if disk.list_directory(layout.EPOCH_REFS):
            raise UsageError(f"{disk.location} holds epochs, but lost the file {layout.IDENTITY!r}: bring it back")


def missing_store_error(disk: Disk) -> StoreMissingError:
    if exists(disk, layout.FORK):
        return StoreMissingError(f"there is no store at {disk.location} yet: it {UNFINISHED_FORK}")
    return StoreMissingError(f"there is no store at {disk.location}: check the path and whether it is mounted")


def _already_there(disk: Disk) -> UsageError:
    return UsageError(f"there is a store at {disk.location} already: open it, or give another directory")


_Result = TypeVar("_Result")


class OpenedDisk:
    """Disk of an opened store, which wraps another disk, `below`, and verifies that the store is present. The optional members `abilities`
    and `lock` are those of `below`."""

    def __init__(self, disk: Disk, store_id: str) -> None:
        self.below = disk
        self._store_id = store_id
        self._identity = encode_identity(store_id)

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)

    @property
    def location(self) -> str:
        return self.below.location

    def require_available(self) -> None:
        """Read the store's id. Raise StoreUnavailableError if the id is unreadable or differs from the expected id."""
        try:
            if self.below.read(IDENTITY, 0, SMALL_BYTES_MAX) == self._identity:
                return
            actual_id = read_identity(self.below)
        except OSError as error:
            raise StoreUnavailableError(
                errno.ESTALE, f"it is away: what it is known by cannot be read ({error.strerror or error})", IDENTITY
            ) from error
        except DamagedDataError as error:
            raise StoreUnavailableError(errno.ESTALE, f"nobody knows whether it is there: {error}", IDENTITY) from error
        if actual_id != self._store_id:
            raise StoreUnavailableError(
                errno.ESTALE,
                f"another store (id {actual_id}) is in its place; mount the store {self._store_id} again",
                IDENTITY,
            )

    # -- changing: rule 3 --------------------------------------------------------------------------------------------

    def make_root(self) -> None:
        self.require_available()

    def make_directory(self, path: str) -> None:
        self.require_available()
        self.below.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self.require_available()
        self.below.remove_directory(path)

    def link(self, handle: int, path: str) -> None:
        self.require_available()
        self.below.link(handle, path)

    def unlink(self, path: str) -> None:
        self.require_available()
        self._if_present(lambda: self.below.unlink(path))

    def open_temporary(self, directory: str, name: str) -> int:
        return self._if_present(lambda: self.below.open_temporary(directory, name))

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self.below.write(handle, pieces)

    def sync_data(self, handle: int) -> None:
        self.below.sync_data(handle)

    def sync_directory(self, path: str) -> None:
        self._if_present(lambda: self.below.sync_directory(path))

    def close(self, handle: int) -> None:
        self.below.close(handle)

    # -- reading: rules 1 and 2 --------------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        return self._if_present(lambda: self.below.size(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._if_present(lambda: self.below.read(path, offset, length))

    def read_into(self, path: str, offset: int, buffers: Sequence[memoryview]) -> int:
        return self._if_present(lambda: port.read_into(self.below, path, offset, buffers))

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        entries = self._if_present(lambda: self.below.list_directory(path))
        self.require_available()
        return entries or self._if_present(lambda: self.below.list_directory(path))

    def _if_present(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            self.require_available()
        return call()


FORK_KIND = b"FORK"

FORK_BYTES_MAX = 64 * 2**20
"""Largest fork record in bytes. A fleet has at most 200,000 agents in its life, with ids of up to 128 bytes. The size is checked before
reading."""

_PURPOSE = "snapline fork 1"


class ForkRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record of a fork and its origin.

    Attributes:
        name: name of the fork.
        parent: store id of the parent fleet, which is also its cluster id.
        parent_name: name of the parent fleet.
        epoch: epoch of the snapshot, which has the same number in both fleets.
        root: root hash of the snapshot in the parent's store.
        is_live: whether the fork may perform effects.
        gone: ids of agents that had left the fleet before the snapshot, as far as the agents in the snapshot know. The fork never reuses
            these ids.
        store: store id of the fork.
        created: UTC time of creation in ISO 8601, for display only.
        signature: signature of the record, computed with this field empty, or b"" if the record is unsigned.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    root: str
    is_live: bool
    gone: list[str]
    store: str
    created: str
    signature: bytes = b""


def encode_fork(record: ForkRecord, guard: Guard | None) -> bytes:
    """Encode a fork record, and sign it if the guard has a signing key."""
    if guard is not None and guard.signs:
        record = msgspec.structs.replace(record, signature=guard.sign(_message(record)))
    return seal(FORK_KIND, canonical.encode(record))


def read_fork(disk: Disk, store_id: str | None, guard: Guard | None = None) -> ForkRecord | None:
    """Return the store's fork record, or None if the fleet is not a fork. If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the record is damaged, or belongs to another store.
        StoreError: If the record cannot be read, or lacks a signature that the guard requires.
    """
    with reading(disk, FORK):
        try:
            disk.size(FORK)
        except FileNotFoundError:
            return None
    data = read_file(disk, FORK, epoch=None, size_bytes_max=FORK_BYTES_MAX)
    body = unseal(FORK_KIND, data, path=FORK, epoch=None)
    with decoding(FORK):
        record = msgspec.msgpack.decode(body, type=ForkRecord)
    check_store(record.store, FORK, store_id)
    if not is_root(record.root) or record.epoch < 1:
        raise damaged(FORK, f"there is no snapshot {record.epoch} with root {record.root!r}")
    _check_signature(record, guard)
    return record


def _check_signature(record: ForkRecord, guard: Guard | None) -> None:
    if guard is not None and guard.requires_signatures and not guard.verify(_message(record), record.signature):
        raise StoreError(f"{FORK} was not signed by the owner of the key: do not use this store")


def _message(record: ForkRecord) -> bytes:
    return canonical.encode((_PURPOSE, msgspec.structs.replace(record, signature=b"")))


MARK_KIND = b"RLOG"
NUMBER_MAX = 10**9
"""Largest number of a replica's marks. Each new mark means that the replica lost its disk."""

_PATH = re.compile(rf"{layout.REPLICAS}/([A-Za-z0-9_.-]{{1,128}})\.([1-9][0-9]{{0,8}})")


class LogMark(msgspec.Struct, frozen=True, gc=False):
    """A Raft log of a replica, and whether the replica may vote with that log. `log` is the log's random id."""

    log: str
    is_voter: bool


class _MarkBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    replica: str
    log: str
    is_voter: bool
    store: str


def read_marks(disk: Disk, store_id: str) -> dict[str, list[LogMark]]:
    """Return the log marks of each replica, oldest first.

    Raises:
        DamagedDataError: If a mark is damaged or belongs to another store.
        StoreError: If the store cannot be read.
    """
    marks_by_replica: dict[str, dict[int, LogMark]] = {}
    for path in _paths(disk):
        replica, number = parse_mark_path(path) or ("", 0)
        if number:
            marks_by_replica.setdefault(replica, {})[number] = read_mark(disk, path, store_id)
    return {replica: [marks[number] for number in sorted(marks)] for replica, marks in sorted(marks_by_replica.items())}


def read_mark(disk: Disk, path: str, store_id: str | None) -> LogMark:
    """Read and check one log mark. If `store_id` is None, the store's id is not checked. Raise the errors of `read_marks`."""
    body = unseal(
        MARK_KIND,
        read_file(disk, path, epoch=None, size_bytes_max=SMALL_BYTES_MAX),
        path=path,
        epoch=None,
    )
    with decoding(path):
        mark = msgspec.msgpack.decode(body, type=_MarkBody)
    check_store(mark.store, path, store_id)
    if (parse_mark_path(path) or ("",))[0] != mark.replica:
        raise damaged(path, f"it is of replica {mark.replica}")
    return LogMark(mark.log, mark.is_voter)


def add_mark(disk: Disk, store_id: str, replica: str, mark: LogMark, *, random_bytes: Callable[[int], bytes]) -> None:
    """Store `mark` durably as the newest log mark of `replica`.

    Raises:
        StoreError: If the mark cannot be written, or another process has just written a mark for this replica.
    """
    number = (
        max([number for path in _paths(disk) for name, number in [_parsed(path)] if name == replica], default=0) + 1
    )
    path = f"{layout.REPLICAS}/{check_id(replica, 'replica')}.{number}"
    body = _MarkBody(replica=replica, log=mark.log, is_voter=mark.is_voter, store=store_id)
    name = f"0-{random_bytes(16).hex()}"
    with writing(disk, f"the mark of replica {replica}"):
        make_durable_directory(disk, layout.REPLICAS)
        try:
            create_or_compare(
                disk, path, seal(MARK_KIND, canonical.encode(body)), temporary_name=name, epoch=0, point="store.mark"
            )
        except (FileExistsError, DamagedDataError) as error:
            raise StoreError(f"{path} is there already: two processes run as replica {replica}; end one") from error


def parse_mark_path(path: str) -> tuple[str, int] | None:
    """Parse the path of a log mark into replica and number. Return None if the path is invalid."""
    match = _PATH.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def _parsed(path: str) -> tuple[str, int]:
    return parse_mark_path(path) or ("", 0)


def _paths(disk: Disk) -> list[str]:
    try:
        return sorted(f"{layout.REPLICAS}/{entry.name}" for entry in disk.list_directory(layout.REPLICAS))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {layout.REPLICAS} in the store {disk.location}: {error}") from error

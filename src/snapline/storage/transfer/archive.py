"""Snapshots in one file: a tar of a complete small store, which anybody can unpack and open.

    snapline-store                         } directories first, then files, each sorted by path;
    keys/… (if the store is encrypted)     } all as in the store
    manifests/<root>.<generation>
    packs/<writer>/<epoch>.<random>
    refs/epochs/<epoch>

The problem. A snapshot shall be kept, sent and inspected without its original store; and files from elsewhere must not be trusted.

**Writing.** Files are copied byte by byte, packs as a whole, so an archive may hold chunks of other epochs that share a pack. Keys
and signatures stay valid, an encrypted store's archive is encrypted, and nothing is decoded. The file is written under a temporary name,
read back and verified, synced, and linked to its name, which must be free. A crash leaves at most `<name>.<random>.partial`. The same snapshots of
the same store give the same bytes: the archive has no times and no owners.

**Reading.** `archive_disk.py` presents the tar to the store as a read-only disk. All of it is verified before anything
is copied out of it (`transfer.py`).

Carries: G11.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.folders import open_private
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import damaged
from snapline.storage.keys.key_files import Keys, keys_from_environment
from snapline.storage.store import files
from snapline.storage.store.manifest import find_generation
from snapline.storage.store.store import Store
from snapline.storage.transfer.archive_disk import (
    BLOCK_BYTES,
    DIRECTORY,
    END_BYTES,
    FILE,
    MEMBER_BYTES_MAX,
    ArchiveDisk,
    directories_of,
    header_of,
    reading_archive,
)
from snapline.storage.transfer.snapshot_copy import Copied, copy_epoch

COPY_BYTES = 8 * 2**20
"""Size of one read and write."""

SUFFIX = ".partial"

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links, such as FAT on a memory stick."""


class ExportResult(msgspec.Struct, frozen=True):
    """Contents of an archive: epoch → root, and its length."""

    roots: dict[int, str]
    size_bytes: int


# -- writing ----------------------------------------------------------------------------------------------------------


def write_archive(
    store: Store, epochs: Sequence[int], path: Path, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> ExportResult:
    """Write snapshots of `store`, which may be in use, to a new file; durable and verified when this returns.

    Raises:
        UsageError: the file exists, no epoch was given, or a pack is too large.
        NotFoundError: an epoch does not exist, or was deleted meanwhile.
        DamagedDataError: some bytes in the store differ from those written.
        StoreError: the disk failed.
    """
    if not epochs:
        raise UsageError("an archive holds one snapshot at least: name one")
    _check_free(path)
    roots: dict[int, str] = {}
    temporary = path.with_name(f"{path.name}.{random_bytes(8).hex()}{SUFFIX}")
    try:
        with _reporting_deletion(store, epochs), _writing(path):
            roots = {epoch: store.read_ref(epoch) for epoch in sorted(set(epochs))}
            _write(store, _paths_of(store, roots), temporary)
            _verify(store, temporary)
            size_bytes = temporary.stat().st_size
            _link_to_name(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return ExportResult(roots, size_bytes)


def _paths_of(store: Store, roots: dict[int, str]) -> list[str]:
    """Return the files that the archive holds, sorted."""
    disk = store.disk
    paths = {layout.IDENTITY: None}
    for epoch, root in roots.items():
        manifest = store.read_manifest(root, epoch=epoch)
        paths[layout.ref_path(epoch)] = None
        paths[layout.manifest_path(root, find_generation(disk, root))] = None
        paths |= {pack.path: None for pack in manifest.packs}
    with files.reading(disk, layout.KEYS), contextlib.suppress(FileNotFoundError):
        paths |= {f"{layout.KEYS}/{entry.name}": None for entry in disk.list_directory(layout.KEYS)}
    return sorted(paths)


def _write(store: Store, paths: list[str], temporary: Path) -> None:
    with open(temporary, "xb", opener=open_private) as file:
        file.writelines(header_of(directory, 0, DIRECTORY) for directory in directories_of(paths))
        for path in paths:
            _write_member(store.disk, path, file)
        file.write(bytes(END_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _write_member(disk: Disk, path: str, file: IO[bytes]) -> None:
    with files.reading(disk, path):
        size_bytes = disk.size(path)
    if size_bytes > MEMBER_BYTES_MAX:
        raise UsageError(
            f"{path} has {size_bytes} bytes, too many for an archive: use `snapshot copy` to a second store"
        )
    file.write(header_of(path, size_bytes, FILE))
    for offset in range(0, size_bytes, COPY_BYTES):
        length = min(COPY_BYTES, size_bytes - offset)
        with files.reading(disk, path):
            data = disk.read(path, offset, length)
        if len(data) < length:
            raise damaged(path, f"truncated: {offset + len(data)} of {size_bytes} bytes")
        file.write(data)
    file.write(bytes(-size_bytes % BLOCK_BYTES))


def _verify(store: Store, path: Path) -> None:
    """Read back and verify the archive, before it gets its name."""
    with reading_archive(path) as disk:
        for finding in Store(disk, store.store_id, guard=store.guard).verify().findings:
            raise damaged(finding.path, finding.reason, epoch=finding.epoch, blob=finding.agent)


def _check_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists: choose another name, or remove it first")


def _link_to_name(temporary: Path, path: Path) -> None:
    """Give the file its name durably, without replacing another file."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))  # claims the name
        os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise UsageError(f"{path} exists: choose another name, or remove it first") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


@contextlib.contextmanager
def _reporting_deletion(store: Store, epochs: Iterable[int]) -> Iterator[None]:
    """Report data that is missing because an epoch was deleted meanwhile as not found, not as damage."""
    try:
        yield
    except DamagedDataError as error:
        for epoch in epochs:
            if epoch not in store.epochs():
                raise NotFoundError(
                    f"epoch {epoch} of {store.location} was deleted while it was read: pin a snapshot before you export it"
                ) from error
        raise


# -- reading ----------------------------------------------------------------------------------------------------------


def read_archive(path: Path, target: Store, *, keys: Keys | None = None, is_fleet_store: bool = False) -> list[Copied]:
    """Verify the whole archive, then copy its snapshots into `target`, in order of their numbers.

    A failed copy leaves the previous ones in `target`; another call continues. With `keys` None, the environment's are
    used. See `transfer.copy_epoch` for its errors and for the caller's duties.

    Raises:
        NotFoundError: there is no such file.
        DamagedDataError: some bytes in the archive differ from those written. Nothing was copied.
    """
    with reading_archive(path) as disk:
        source = open_archive(disk, keys=keys)
        for finding in source.verify().findings:
            raise damaged(f"{path.name}/{finding.path}", finding.reason, blob=finding.agent)
        epochs = source.epochs()
        if not epochs:
            raise damaged(path.name, "it holds no snapshot")
        return [copy_epoch(source, target, epoch, is_fleet_store=is_fleet_store) for epoch in epochs]


def open_archive(disk: ArchiveDisk, *, keys: Keys | None = None) -> Store:
    """Return the store in an archive; it can be read only."""
    return Store.open(disk.location, disk=disk, keys=keys if keys is not None else keys_from_environment())

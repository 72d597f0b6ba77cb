"""Archives. An archive is a single file that contains snapshots. The file is a tar of a complete small store, which can be unpacked and
opened.

    snapline-store                         } directories first, then files, each sorted by path;
    keys/… (if the store is encrypted)     } all as in the store
    manifests/<root>.<generation>
    packs/<writer>/<epoch>.<random>
    refs/epochs/<epoch>

The problem: people want to keep, send and inspect a snapshot without its original store, and files from elsewhere must not be trusted.

**Writing.** Files are copied byte by byte. Packs are copied as a whole, so an archive may contain chunks of other epochs that share a pack.
Keys and signatures remain valid, the archive of an encrypted store is encrypted, and nothing is decoded. The archive is written under a
temporary name, read back, verified, synced, and linked to its final name, which must not exist. A crash leaves nothing behind except
perhaps `<name>.<random>.partial`. Exporting the same snapshots of the same store always produces the same bytes, because the archive
contains no times and no owners.

**Reading.** `ArchiveDisk` presents the archive as a read-only disk, from which a store can be opened. The complete archive is verified
before any snapshot is copied from it (`snapshot_copy.py`).

Archives are not trusted: the disk accepts only archives that are exactly as this module writes them. Each header is regenerated from name
and length, and compared with the stored header. Padding and the end of the archive must consist of zeros, and nothing may follow. So every
byte either is compared, or is covered by a digest that the store verifies. Links, devices, sparse files, extended headers, absolute paths
and `..` are rejected, because this module never generates such headers. Names must be valid names of store files, directories must precede
files, and both must be sorted, so duplicates are impossible. Nothing is unpacked. Lengths in the archive cause no allocations except the
store's own reads, which are bounded.

This module carries G11.
"""

import contextlib
import errno
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.folders import open_private
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import DirectoryEntry, Disk
from snapline.storage.disk.record import Buffer, damaged
from snapline.storage.keys.key_files import Keys, keys_from_environment
from snapline.storage.packs.manifest import find_generation
from snapline.storage.store.store import Store
from snapline.storage.transfer.snapshot_copy import Copied, copy_epoch

BLOCK_BYTES = 512
"""Size of a tar block in bytes."""

END_BYTES = 2 * BLOCK_BYTES
"""Number of zero bytes at the end of a tar."""

MEMBER_BYTES_MAX = 8**11 - 1
"""Largest member that a header of the plain format (ustar) can describe (8 GiB). Packs have 64 MiB, unless one agent's state alone is
larger."""

MEMBERS_MAX = 1_000_000
"""Largest number of files and directories in one archive, enough for 60 TB of packs. The limit is checked while headers are read, so the
headers take at most 200 MB of memory."""

FILE, DIRECTORY = tarfile.REGTYPE, tarfile.DIRTYPE
_MODES = {FILE: 0o644, DIRECTORY: 0o755}


class _Member(msgspec.Struct, frozen=True, gc=False):
    offset: int
    size_bytes: int


@contextlib.contextmanager
def reading_archive(path: Path) -> Iterator["ArchiveDisk"]:
    """Open an archive for the duration of the `with` block.

    Raises:
        NotFoundError: If the file does not exist.
        DamagedDataError: If the file is damaged or is not an archive.
        StoreError: If the file is unreadable.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}: check its name") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        disk = ArchiveDisk(path, handle)
        try:
            disk.scan()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
        yield disk
    finally:
        os.close(handle)


class ArchiveDisk:
    """Read-only implementation of `local_disk.Disk` for an archive. All writing methods raise OSError. Threads may share the disk. See
    `reading_archive`."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle
        self._members: dict[str, _Member] = {}
        self._directories: dict[str, list[DirectoryEntry]] = {"": []}

    def scan(self) -> None:
        """Read and check all headers. See the module docstring."""
        size_bytes = os.fstat(self._handle).st_size
        offset, before = 0, (False, "")
        while offset < size_bytes - END_BYTES:
            if len(self._members) + len(self._directories) > MEMBERS_MAX:
                raise self._refused(f"it has more than {MEMBERS_MAX} files")
            name, length, is_directory = self._read_header(offset)
            if (not is_directory, name) <= before:
                raise self._refused(f"{name!r} is not in its place")
            before = (not is_directory, name)
            end = offset + BLOCK_BYTES + length
            next_offset = end + -length % BLOCK_BYTES
            if next_offset > size_bytes - END_BYTES:
                raise self._refused(f"truncated in {name!r}")
            if any(os.pread(self._handle, next_offset - end, end)):
                raise self._refused(f"bytes were changed after {name!r}")
            self._note(name, _Member(offset + BLOCK_BYTES, length), is_directory=is_directory)
            offset = next_offset
        ending = os.pread(self._handle, END_BYTES, offset)
        if len(ending) != END_BYTES or any(ending) or offset + END_BYTES != size_bytes:
            raise self._refused("its end is missing, or bytes were changed there")

    @property
    def location(self) -> str:
        return str(self._path)

    def size(self, path: str) -> int:
        if path in self._directories:
            return 0
        return self._member(path).size_bytes

    def read(self, path: str, offset: int, length: int) -> bytes:
        member = self._member(path)
        length = max(0, min(length, member.size_bytes - offset))
        pieces = [os.pread(self._handle, length, member.offset + offset)]
        while pieces[-1] and (rest := length - sum(map(len, pieces))):
            pieces.append(os.pread(self._handle, rest, member.offset + offset + length - rest))
        return b"".join(pieces)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return sorted(self._directories[path], key=lambda entry: entry.name)

    # Writing methods of `Disk`.

    def make_root(self) -> None:
        raise _read_only()

    def make_directory(self, path: str) -> None:
        raise _read_only()

    def remove_directory(self, path: str) -> None:
        raise _read_only()

    def sync_directory(self, path: str) -> None:
        raise _read_only()

    def open_temporary(self, directory: str, name: str) -> int:
        raise _read_only()

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        raise _read_only()

    def sync_data(self, handle: int) -> None:
        raise _read_only()

    def link(self, handle: int, path: str) -> None:
        raise _read_only()

    def close(self, handle: int) -> None:
        raise _read_only()

    def unlink(self, path: str) -> None:
        raise _read_only()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _member(self, path: str) -> _Member:
        member = self._members.get(path)
        if member is None:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return member

    def _read_header(self, offset: int) -> tuple[str, int, bool]:
        """Read and check a tar header. Return the name, the length, and whether it describes a directory."""
        header = os.pread(self._handle, BLOCK_BYTES, offset)
        try:
            prefix, name = _text(header[345:500]), _text(header[:100])
            path = (f"{prefix}/{name}" if prefix else name).removesuffix("/")
            length, kind = int(header[124:135], 8), header[156:157]
            is_directory = kind == DIRECTORY
            is_right = header == header_of(path, length, kind)
        except ValueError:
            is_right = False
        if not is_right:
            raise self._refused(f"the header at byte {offset} is not one that `snapshot export` writes")
        if not (_is_directory_name(path) and length == 0 if is_directory else _is_file_name(path)):
            raise self._refused(f"no file of a store is called {path!r}")
        return path, length, is_directory

    def _note(self, path: str, member: _Member, *, is_directory: bool) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._directories:
            raise self._refused(f"the directory of {path!r} is missing")
        self._directories[parent].append(DirectoryEntry(name, is_directory))
        if is_directory:
            self._directories[path] = []
        else:
            self._members[path] = member

    def _refused(self, reason: str) -> DamagedDataError:
        return damaged(self._path.name, reason)


# -- headers and names ------------------------------------------------------------------------------------------------


def header_of(path: str, size_bytes: int, kind: bytes) -> bytes:
    """Return the tar header of a file or directory. Raise ValueError if the path is invalid."""
    if kind not in _MODES:
        raise ValueError(f"{path!r} is neither a file nor a directory")
    info = tarfile.TarInfo(path)
    info.type, info.size, info.mode = kind, size_bytes, _MODES[kind]
    header = info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    if len(header) != BLOCK_BYTES:
        raise ValueError(f"{path!r} needs more than one header")
    return header


def directories_of(paths: Iterable[str]) -> list[str]:
    """Return the directories of an archive with these files, including the directories of an empty store, in sorted order."""
    directories = dict.fromkeys(layout.DIRECTORIES)
    for path in paths:
        directory = path.rpartition("/")[0]
        while directory:
            directories[directory] = None
            directory = directory.rpartition("/")[0]
    return sorted(directories)


def _is_directory_name(path: str) -> bool:
    folder, _, writer = path.partition("/")
    if folder == layout.PACKS and writer:
        return layout.parse_pack_path(f"{path}/0.{'0' * 32}") is not None
    return path in layout.DIRECTORIES or path == layout.KEYS


def _is_file_name(path: str) -> bool:
    return (
        path == layout.IDENTITY
        or layout.parse_pack_path(path) is not None
        or layout.parse_manifest_path(path) is not None
        or layout.parse_ref_path(path) is not None
        or _is_key_name(path)
    )


def _is_key_name(path: str) -> bool:
    """Return whether `path` is the path of a key record. The guard checks the record's contents."""
    folder, _, name = path.partition("/")
    return folder == layout.KEYS and name not in ("", ".", "..") and "/" not in name


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("ascii")


def _read_only() -> OSError:
    return OSError(errno.EROFS, "an archive is read only")


COPY_BYTES = 8 * 2**20
"""Size in bytes of one read and one write."""

SUFFIX = ".partial"

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers from file systems without hard links, such as FAT on a memory stick."""


class ExportResult(msgspec.Struct, frozen=True):
    """Result of an export. `roots` maps each archived epoch to its root, and `size_bytes` is the length of the archive."""

    roots: dict[int, str]
    size_bytes: int


# -- writing ----------------------------------------------------------------------------------------------------------


def write_archive(
    store: Store, epochs: Sequence[int], path: Path, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> ExportResult:
    """Export snapshots of `store`, which may be in use, to a new file. The function returns only after the file is verified and durable.

    Raises:
        UsageError: If the file already exists, no epoch was given, or a pack is too large.
        NotFoundError: If an epoch does not exist or was deleted meanwhile.
        DamagedDataError: If data in the store differs from what was originally written.
        StoreError: If the disk failed.
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
    """Return the paths of the files that the archive must contain, in sorted order."""
    disk = store.disk
    paths = {layout.IDENTITY: None}
    for epoch, root in roots.items():
        manifest = store.read_manifest(root, epoch=epoch)
        paths[layout.ref_path(epoch)] = None
        paths[layout.manifest_path(root, find_generation(disk, root))] = None
        paths |= {pack.path: None for pack in manifest.packs}
    with store_files.reading(disk, layout.KEYS), contextlib.suppress(FileNotFoundError):
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
    with store_files.reading(disk, path):
        size_bytes = disk.size(path)
    if size_bytes > MEMBER_BYTES_MAX:
        raise UsageError(
            f"{path} has {size_bytes} bytes, too many for an archive: use `snapshot copy` to a second store"
        )
    file.write(header_of(path, size_bytes, FILE))
    for offset in range(0, size_bytes, COPY_BYTES):
        length = min(COPY_BYTES, size_bytes - offset)
        with store_files.reading(disk, path):
            data = disk.read(path, offset, length)
        if len(data) < length:
            raise damaged(path, f"truncated: {offset + len(data)} of {size_bytes} bytes")
        file.write(data)
    file.write(bytes(-size_bytes % BLOCK_BYTES))


def _verify(store: Store, path: Path) -> None:
    """Read back and verify the archive before it gets its final name."""
    with reading_archive(path) as disk:
        for finding in Store(disk, store.store_id, guard=store.guard).verify().findings:
            raise damaged(finding.path, finding.reason, epoch=finding.epoch, blob=finding.agent)


def _check_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists: choose another name, or remove it first")


def _link_to_name(temporary: Path, path: Path) -> None:
    """Durably give the archive its final name, without replacing an existing file."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))  # This reserves the name.
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
    """Raise NotFoundError instead of DamagedDataError if data is missing because its epoch was deleted meanwhile."""
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
    """Verify the whole archive, then copy its snapshots into `target` in ascending order of their epochs.

    If copying a snapshot fails, the snapshots copied before remain in `target`, and another call continues. If `keys` is None, keys are
    read from the environment. `snapshot_copy.copy_epoch` describes further errors and the caller's duties.

    Raises:
        NotFoundError: If the file does not exist.
        DamagedDataError: If data in the archive differs from what was originally written. Nothing was copied.
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
    """Open the store in an archive. The store is read-only."""
    return Store.open(disk.location, disk=disk, keys=keys if keys is not None else keys_from_environment())

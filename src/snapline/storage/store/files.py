"""Reading and writing the small files of a store, and the translation of the disk's errors."""

import contextlib
import errno
from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk.layout import (
    IDENTITY,
)
from snapline.storage.disk.local_disk import DirectoryEntry, Disk, write_once
from snapline.storage.disk.record import canonical, check_store, damaged, seal, unseal

SMALL_BYTES_MAX = 4096
"""Largest small file: identity, refs and probes have about 200 bytes, plus signatures. Checked before reading."""

IDENTITY_KIND = b"STOR"
PROBE_KIND = b"PROB"


class IdentityBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the identity file: the store's id, 32 random hexadecimal digits."""

    store: str


class ProbeBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a probe: `token` is random."""

    store: str
    token: bytes


_identity_decoder = msgspec.msgpack.Decoder(IdentityBody)

_probe_decoder = msgspec.msgpack.Decoder(ProbeBody)


@contextlib.contextmanager
def writing(disk: Disk, what: str) -> Iterator[None]:
    """Translate OSError from writing `what` to StoreError."""
    try:
        yield
    except OSError as error:
        advice = "; free space there, or keep fewer epochs" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StoreError(f"cannot write {what} to the store {disk.location}: {_words(error)}{advice}") from error


@contextlib.contextmanager
def reading(disk: Disk, path: str, *, epoch: int | None = None, blob: str = "") -> Iterator[None]:
    """Translate OSError from reading a file that must exist: missing or unreadable bytes are damage.

    If nothing of the store can be read, the disk or the network is to blame, and the bytes may still be intact: StoreError.
    """
    try:
        yield
    except OSError as error:
        raise unreadable(error, disk, path, epoch=epoch, blob=blob) from error


def unreadable(
    error: OSError, disk: Disk, path: str, *, epoch: int | None = None, blob: str = ""
) -> DamagedDataError | StoreError:
    """Return (not raise) the translated error: see `reading`, whose overhead exceeds that of a small read."""
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
    """Return the entries of a directory that is created with its first file; empty if it does not exist yet.

    Raises:
        StoreError: the store is away, or cannot be read.
    """
    with reading(disk, directory):
        try:
            return disk.list_directory(directory)
        except FileNotFoundError:
            return []


def read_file(disk: Disk, path: str, *, epoch: int | None, size_bytes_max: int) -> bytes:
    """Return a whole file; its length is checked before anything is allocated."""
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
    """Write `data` once under a name that follows from it; return whether a file with the same bytes already existed.

    Its directory is synced in that case too: the process that linked the file may have died before its sync.

    Raises:
        FileExistsError: a file with other bytes exists.
        DamagedDataError: the existing file cannot be read.
        OSError: the disk failed.
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
    """Remove the files in this order; return those that existed. Not durable before the directory is synced."""
    removed = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
            removed.append(path)
    return removed


def encode_identity(store_id: str) -> bytes:
    """Return the identity file."""
    return seal(IDENTITY_KIND, canonical.encode(IdentityBody(store=store_id)))


def encode_probe(token: bytes, store_id: str) -> bytes:
    """Return the probe's file."""
    return seal(PROBE_KIND, canonical.encode(ProbeBody(store=store_id, token=token)))


def read_identity(disk: Disk) -> str:
    """Return the store's id; DamagedDataError or StoreError as for all files."""
    data = read_file(disk, IDENTITY, epoch=None, size_bytes_max=SMALL_BYTES_MAX)
    body = unseal(IDENTITY_KIND, data, path=IDENTITY, epoch=None)
    with decoding(IDENTITY):
        return _identity_decoder.decode(body).store


def read_probe(disk: Disk, path: str, store_id: str | None) -> bytes:
    """Return the probe's token."""
    body = unseal(PROBE_KIND, read_file(disk, path, epoch=None, size_bytes_max=SMALL_BYTES_MAX), path=path, epoch=None)
    with decoding(path):
        probe = _probe_decoder.decode(body)
    check_store(probe.store, path, store_id)
    return probe.token


@contextlib.contextmanager
def decoding(path: str, epoch: int | None = None) -> Iterator[None]:
    """Translate errors of decoding a body whose digest is right."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"its body cannot be read: {error}", epoch=epoch) from error


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def exists(disk: Disk, path: str) -> bool:
    """Return whether there is a file or directory of this name."""
    try:
        disk.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True

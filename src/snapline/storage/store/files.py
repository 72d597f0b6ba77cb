"""Reading and writing the small files of a store, and the translation of the disk's errors."""

import contextlib
import errno
from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.keys.signing import epoch_message
from snapline.storage.store.damage import check_store, damaged
from snapline.storage.store.disk import DirectoryEntry, Disk, write_once
from snapline.storage.store.guard import Guard
from snapline.storage.store.layout import (
    IDENTITY,
    MANIFESTS,
    is_root,
    manifest_path,
    parse_manifest_path,
    ref_path,
)
from snapline.storage.store.manifest import MANIFEST_BYTES_MAX, Manifest, decode_manifest
from snapline.storage.store.record import canonical, seal, unseal

SMALL_BYTES_MAX = 4096
"""Largest small file: identity, refs and probes have about 200 bytes, plus signatures. Checked before reading."""

IDENTITY_KIND = b"STOR"
REF_KIND = b"EREF"
PROBE_KIND = b"PROB"


class IdentityBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the identity file: the store's id, 32 random hexadecimal digits."""

    store: str


class RefBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a ref. Its bytes follow from the coordinator's log, so any leader writes the same."""

    epoch: int
    root: str
    store: str


class SignedRefBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a signed ref (version 2). The Ed25519 signature over `signing.epoch_message` is deterministic, so any leader writes the same bytes."""

    epoch: int
    root: str
    store: str
    signature: bytes


class ProbeBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a probe: `token` is random."""

    store: str
    token: bytes


_identity_decoder = msgspec.msgpack.Decoder(IdentityBody)
_ref_decoder = msgspec.msgpack.Decoder(RefBody)
_signed_ref_decoder = msgspec.msgpack.Decoder(SignedRefBody)

_SIGNED_REF_VERSION = 2
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


def encode_ref(epoch: int, root: str, store_id: str, guard: Guard | None = None) -> bytes:
    """Return the ref's file; signed if the guard has a signing key."""
    if guard is None or not guard.signs:
        return seal(REF_KIND, canonical.encode(RefBody(epoch=epoch, root=root, store=store_id)))
    signature = guard.sign(epoch_message(store_id, epoch, root))
    body = SignedRefBody(epoch=epoch, root=root, store=store_id, signature=signature)
    return seal(REF_KIND, canonical.encode(body), version=_SIGNED_REF_VERSION)


def encode_probe(token: bytes, store_id: str) -> bytes:
    """Return the probe's file."""
    return seal(PROBE_KIND, canonical.encode(ProbeBody(store=store_id, token=token)))


def read_identity(disk: Disk) -> str:
    """Return the store's id; DamagedDataError or StoreError as for all files."""
    data = read_file(disk, IDENTITY, epoch=None, size_bytes_max=SMALL_BYTES_MAX)
    body = unseal(IDENTITY_KIND, data, path=IDENTITY, epoch=None)
    with decoding(IDENTITY):
        return _identity_decoder.decode(body).store


def read_ref(disk: Disk, epoch: int, store_id: str | None, guard: Guard | None = None) -> str:
    """Return the root that the ref of `epoch` names. `store_id` None skips that comparison.

    Raises:
        DamagedDataError: the ref is missing, damaged, or belongs to another store or epoch.
        UnsignedRefError: the ref is not signed as the guard demands.
    """
    path = ref_path(epoch)
    data = read_file(disk, path, epoch=epoch, size_bytes_max=SMALL_BYTES_MAX)
    body = unseal(REF_KIND, data, path=path, epoch=epoch, versions=(1, _SIGNED_REF_VERSION))
    with decoding(path, epoch):
        ref = _decode_ref(body)
    if ref.epoch != epoch:
        raise damaged(path, f"it is the ref of epoch {ref.epoch}", epoch=epoch)
    check_store(ref.store, path, store_id, epoch=epoch)
    if not is_root(ref.root):
        raise damaged(path, f"{ref.root!r} is no root", epoch=epoch)
    _check_signature(ref, path, guard)
    return ref.root


def _decode_ref(body: bytes) -> RefBody | SignedRefBody:
    try:
        return _ref_decoder.decode(body)
    except msgspec.ValidationError:
        return _signed_ref_decoder.decode(body)


class UnsignedRefError(StoreError):
    """A ref that none of the given keys has signed."""


def _check_signature(ref: RefBody | SignedRefBody, path: str, guard: Guard | None) -> None:
    if guard is None or not guard.verifies:
        return
    if isinstance(ref, RefBody):
        raise UnsignedRefError(
            f"{path} (epoch {ref.epoch}) is not signed, and there is a key to verify with: do not use it"
        )
    if not guard.verify(epoch_message(ref.store, ref.epoch, ref.root), ref.signature):
        raise UnsignedRefError(f"{path} (epoch {ref.epoch}) was not signed by the owner of the key: do not use it")


def read_probe(disk: Disk, path: str, store_id: str | None) -> bytes:
    """Return the probe's token."""
    body = unseal(PROBE_KIND, read_file(disk, path, epoch=None, size_bytes_max=SMALL_BYTES_MAX), path=path, epoch=None)
    with decoding(path):
        probe = _probe_decoder.decode(body)
    check_store(probe.store, path, store_id)
    return probe.token


def read_manifest(disk: Disk, root: str, *, epoch: int | None = None, generation: int | None = None) -> Manifest:
    """Return the manifest with `root`, after every check; `epoch` is its expected epoch, if known.

    With `generation` None, the first one is read, or the latest if the first was replaced.
    """
    if generation is None:
        generation = find_generation(disk, root)
    path = manifest_path(root, generation)
    data = read_file(disk, path, epoch=epoch, size_bytes_max=MANIFEST_BYTES_MAX)
    return decode_manifest(data, root=root, path=path, epoch=epoch)


def find_generation(disk: Disk, root: str) -> int:
    """Return which generation of a manifest to read: 0 while it exists, so that most readers need not list."""
    with contextlib.suppress(OSError):
        disk.size(manifest_path(root))
        return 0
    with contextlib.suppress(OSError):
        return max(generations(disk).get(root, [0]))
    return 0


def generations(disk: Disk) -> dict[str, list[int]]:
    """Return all generations of each manifest, root → numbers."""
    generations: dict[str, list[int]] = {}
    for entry in disk.list_directory(MANIFESTS):
        parsed = parse_manifest_path(f"{MANIFESTS}/{entry.name}")
        if parsed is not None and not entry.is_directory:
            generations.setdefault(parsed[0], []).append(parsed[1])
    return generations


@contextlib.contextmanager
def decoding(path: str, epoch: int | None = None) -> Iterator[None]:
    """Translate errors of decoding a body whose digest is right."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"its body cannot be read: {error}", epoch=epoch) from error


def _words(error: OSError) -> str:
    return error.strerror or str(error)

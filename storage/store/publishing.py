"""An epoch's manifest and its ref: the two files that make packs an epoch.

The manifest is durable before the epoch is complete in the coordinator's log, the ref after that. Its bytes are known before: they name the
manifest's root. So the ref is *prepared* with the manifest, as a file that has no name yet. Both are synced at once, which costs a
disk one flush (`disk.sync_together`); to publish is then to give the ref its name.

A prepared ref that is never published, of an epoch that aborts, goes with its handle, which leads to nothing else. At most
`PREPARED_MAX` are kept. Whoever publishes without one, such as the next leader, or finds it of no use, writes the ref as any small file.

Carries: part of G4. A name leads to all bytes of a ref or to none, as `write_once` has it.
"""

import contextlib
import errno
import threading
import weakref
from collections.abc import Callable, Sequence

from snapline.errors import StoreError
from snapline.failpoints import failpoint
from snapline.storage.store import files, layout
from snapline.storage.store.disk import Disk
from snapline.storage.store.guard import Guard
from snapline.storage.store.manifest import Manifest, encode_manifest

PREPARED_MAX = 4
"""More epochs than a leader completes at a time. Each is an open file."""

_REFS = layout.ref_path(0).rpartition("/")[0]
_POINT = "store.ref"

_OF_NO_USE = frozenset({errno.EEXIST, errno.ENOENT, errno.EBADF})
"""The name is taken; a sweep has taken the temporary file; the process has come back, and its files were closed."""

Key = tuple[int, str]
"""Epoch and root."""


class Publisher:
    """Of one store. Threads may share it."""

    def __init__(
        self, disk: Disk, store_id: str, guard: Guard | None, *, temporary_name: Callable[[int], str], location: str
    ) -> None:
        """`temporary_name` gives a name that was never used, of an epoch."""
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self._temporary_name = temporary_name
        self._location = location
        self._lock = threading.Lock()
        self._prepared: dict[Key, int] = {}
        """Handles of refs that are durable and have no name, oldest first."""
        weakref.finalize(self, _close, disk, self._prepared)

    def write_manifest(self, manifest: Manifest) -> str:
        """See `Store.write_manifest`."""
        root, data = encode_manifest(manifest)
        epoch = manifest.metadata.epoch
        path = layout.manifest_path(root)
        with files.writing(self._disk, f"the manifest of epoch {epoch}"):
            ref = self._prepare(epoch, root)
            try:
                self._create(path, data, epoch=epoch, point="store.manifest", beside=(ref,))
            except FileExistsError:
                self._disk.close(ref)
                files.read_manifest(self._disk, root, epoch=epoch)
                raise StoreError(
                    f"{path} exists with other packs: give the new manifest of epoch {epoch} another creation time"
                ) from None
            except BaseException:
                self._disk.close(ref)
                raise
        self._keep((epoch, root), ref)
        return root

    def publish(self, epoch: int, root: str) -> None:
        """See `Store.publish`."""
        path = layout.ref_path(epoch)
        manifest = layout.manifest_path(root, files.find_generation(self._disk, root))
        with files.reading(self._disk, manifest, epoch=epoch):
            self._disk.size(manifest)
        with files.writing(self._disk, f"the ref of epoch {epoch}"):
            if self._name_prepared((epoch, root), path):
                return
            try:
                self._create(path, self._encode(epoch, root), epoch=epoch, point=_POINT)
            except FileExistsError:
                other = files.read_ref(self._disk, epoch, self._store_id, self._guard)
                raise StoreError(
                    f"two fleets on one store: epoch {epoch} of {self._location} has root {other[:12]}…, not {root[:12]}…; "
                    "give each fleet a store of its own"
                ) from None

    # ---- prepared refs --------------------------------------------------------------------------------------------

    def _prepare(self, epoch: int, root: str) -> int:
        """Write a ref that has no name; not durable yet."""
        ref = self._disk.open_temporary(_REFS, self._temporary_name(epoch))
        try:
            self._disk.write(ref, [self._encode(epoch, root)])
        except BaseException:
            self._disk.close(ref)
            raise
        return ref

    def _keep(self, key: Key, ref: int) -> None:
        with self._lock:
            old = [self._prepared.pop(key)] if key in self._prepared else []
            self._prepared[key] = ref
            while len(self._prepared) > PREPARED_MAX:
                old.append(self._prepared.pop(next(iter(self._prepared))))
        _close(self._disk, dict(enumerate(old)))

    def _name_prepared(self, key: Key, path: str) -> bool:
        """Publish the ref that was prepared; False: there is none, or its name is taken, or the disk knows it no more."""
        with self._lock:
            ref = self._prepared.pop(key, None)
        if ref is None:
            return False
        failpoint(f"{_POINT}.synced")
        try:
            self._disk.link(ref, path)
        except OSError as error:
            if error.errno not in _OF_NO_USE:
                raise
            return False
        finally:
            _close(self._disk, {0: ref})
        failpoint(f"{_POINT}.linked")
        self._disk.sync_directory(_REFS)
        failpoint(f"{_POINT}.durable")
        return True

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _encode(self, epoch: int, root: str) -> bytes:
        return files.encode_ref(epoch, root, self._store_id, self._guard)

    def _create(self, path: str, data: bytes, *, epoch: int, point: str, beside: Sequence[int] = ()) -> None:
        name = self._temporary_name(epoch)
        files.create_or_compare(self._disk, path, data, temporary_name=name, epoch=epoch, point=point, beside=beside)


def _close(disk: Disk, handles: dict[int, int] | dict[Key, int]) -> None:
    """Nothing depends on these files: what cannot be closed is the sweep's."""
    for handle in handles.values():
        with contextlib.suppress(OSError):
            disk.close(handle)

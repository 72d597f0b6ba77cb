"""The disk of an opened store: a file counts as missing only if the store itself is present, which its id shows.

Problem. A missing mount leaves an empty directory, a bucket may be emptied, and another store may be at the path. A reader that then finds no
pin, log or epoch must not conclude that there was none. Nothing may be created or deleted there either.

Model. The identity file is written once and never changed. So a reader that has just read the id has seen that store.

1. After a missing file or an empty listing, the id is read and the call repeated: only the second result counts.
2. A listing counts if the id can be read after it.
3. The id is read before anything is created, linked or removed.

If a check fails, the disk raises `StoreUnavailableError`, which means "not now", never "missing". Existing files are not covered: their contents are checked,
and `StoreReader.judged` reads the id and the file again before it reports damage.

Limits: a store that vanishes and returns twice between two calls is not noticed, nor is one that vanishes between rule 3 and the write.
On an object store each write costs one more small GET.
"""

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

from snapline.errors import DamagedDataError
from snapline.storage.disk import local_disk as port
from snapline.storage.disk.layout import IDENTITY
from snapline.storage.disk.local_disk import DirectoryEntry, Disk, StoreUnavailableError
from snapline.storage.disk.record import Buffer
from snapline.storage.store import files

_Result = TypeVar("_Result")


class OpenedDisk:
    """Implements `Disk` over another disk, `below`. Optional members (`abilities`, `lock`) are those of `below`."""

    def __init__(self, disk: Disk, store_id: str) -> None:
        self.below = disk
        self._store_id = store_id
        self._identity = files.encode_identity(store_id)

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)

    @property
    def location(self) -> str:
        return self.below.location

    def require_available(self) -> None:
        """Read the id; StoreUnavailableError if it cannot be read, or is another store's."""
        try:
            if self.below.read(IDENTITY, 0, files.SMALL_BYTES_MAX) == self._identity:
                return
            actual_id = files.read_identity(self.below)
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

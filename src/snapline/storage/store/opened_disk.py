"""The disk on which a store was opened: a file is missing only where the store itself is there, known by its id.

Problem. A mount that is gone leaves an empty directory, a bucket may be emptied, and another store may lie at the path. A reader that then finds no
pin, no log or no epoch must not take that for "there was none"; and nothing may be made or deleted there.

Model. The identity file is written once and never changed. So a reader that has just read the id has seen that store.

1. A missing file and an empty listing are looked for again after the id was read: only the second look counts.
2. A listing counts if the id can be read after it.
3. The id is read before anything is made, linked or removed.

Otherwise `AwayError`. It means "not now", never "missing". Files that are there are not covered: they are checked by their contents, and
`StoreReader.judged` reads the id and looks again before that counts as damage.

Limit: a store that goes and comes back twice between two calls is not noticed; neither is one that goes between rule 3 and the write.
A write costs an object store one small GET more.
"""

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

from snapline.errors import DamagedDataError
from snapline.storage.store import disk as port
from snapline.storage.store import files
from snapline.storage.store.disk import AwayError, DirectoryEntry, Disk
from snapline.storage.store.layout import IDENTITY
from snapline.storage.store.record import Buffer

_Result = TypeVar("_Result")


class OpenedDisk:
    """Implements `Disk` over another one, `below`. What only some disks have (`abilities`, `lock`) is that one's."""

    def __init__(self, disk: Disk, store_id: str) -> None:
        self.below = disk
        self._store_id = store_id
        self._identity = files.encode_identity(store_id)

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)

    @property
    def location(self) -> str:
        return self.below.location

    def require_there(self) -> None:
        """Read the id; AwayError: it cannot be read, or is that of another store."""
        try:
            if self.below.read(IDENTITY, 0, files.SMALL_BYTES_MAX) == self._identity:
                return
            found = files.read_identity(self.below)
        except OSError as error:
            raise AwayError(
                errno.ESTALE, f"it is away: what it is known by cannot be read ({error.strerror or error})", IDENTITY
            ) from error
        except DamagedDataError as error:
            raise AwayError(errno.ESTALE, f"nobody knows whether it is there: {error}", IDENTITY) from error
        if found != self._store_id:
            raise AwayError(errno.ESTALE, f"another store (id {found}) is there; bring {self._store_id} back", IDENTITY)

    # -- changing: rule 3 --------------------------------------------------------------------------------------------

    def make_root(self) -> None:
        self.require_there()

    def make_directory(self, path: str) -> None:
        self.require_there()
        self.below.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self.require_there()
        self.below.remove_directory(path)

    def link(self, handle: int, path: str) -> None:
        self.require_there()
        self.below.link(handle, path)

    def unlink(self, path: str) -> None:
        self.require_there()
        self._if_there(lambda: self.below.unlink(path))

    def open_temporary(self, directory: str, name: str) -> int:
        return self._if_there(lambda: self.below.open_temporary(directory, name))

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self.below.write(handle, pieces)

    def sync_data(self, handle: int) -> None:
        self.below.sync_data(handle)

    def sync_directory(self, path: str) -> None:
        self._if_there(lambda: self.below.sync_directory(path))

    def close(self, handle: int) -> None:
        self.below.close(handle)

    # -- reading: rules 1 and 2 --------------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        return self._if_there(lambda: self.below.size(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._if_there(lambda: self.below.read(path, offset, length))

    def read_into(self, path: str, offset: int, buffers: Sequence[memoryview]) -> int:
        return self._if_there(lambda: port.read_into(self.below, path, offset, buffers))

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        entries = self._if_there(lambda: self.below.list_directory(path))
        self.require_there()
        return entries or self._if_there(lambda: self.below.list_directory(path))

    def _if_there(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            self.require_there()
        return call()

"""Creating a new store: first its directories, then the identity file, which completes it."""

import contextlib
from collections.abc import Callable

from snapline.errors import StoreMissingError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.store import files
from snapline.storage.store.files import exists

UNFINISHED_FORK = "holds a fork that was not finished: make it again with `snapline snapshot fork --again`"

_ID_BYTES = 16
"""Size of a store id: 128 bits, so random ids never collide."""


def initialize_store(disk: Disk, *, random_bytes: Callable[[int], bytes]) -> str:
    """Create a new store on the disk, durable when this returns; return its id.

    Raises:
        UsageError: the disk already has a store or other files.
        StoreError: the disk failed.
    """
    with files.writing(disk, "a new store"):
        disk.make_root()
        check_no_store(disk)
        for directory in layout.DIRECTORIES:
            make_durable_directory(disk, directory)
        failpoint("store.create.directories")
        store_id = random_bytes(_ID_BYTES).hex()
        name = f"0-{random_bytes(_ID_BYTES).hex()}"
        try:
            data = files.encode_identity(store_id)
            write_once(disk, layout.IDENTITY, (data,), temporary_name=name, point="store.identity")
        except FileExistsError:
            raise _already_there(disk) from None
    return store_id


def check_no_store(disk: Disk) -> None:
    """Refuse to create a store over an existing one, or in a directory with other files."""
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
    """Return the error for a missing store, with the cause if it is known."""
    if exists(disk, layout.FORK):
        return StoreMissingError(f"there is no store at {disk.location} yet: it {UNFINISHED_FORK}")
    return StoreMissingError(f"there is no store at {disk.location}: check the path and whether it is mounted")


def _already_there(disk: Disk) -> UsageError:
    return UsageError(f"there is a store at {disk.location} already: open it, or give another directory")

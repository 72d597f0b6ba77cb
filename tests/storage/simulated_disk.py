"""A disk in memory that forgets what was not synced, and fails or crashes at a chosen call.

It does not share the store's assumptions: it knows inodes, directories and which of their changes were synced, nothing else.
`images` yields every state that a crash may leave, by the rules POSIX gives (no more):

- a file's bytes since its last `sync_data` are kept, lost, or torn;
- a directory's changes since its last `sync_directory` are kept or lost, independently for each name, in order for one name;
- a path is there only if each directory on the way is.
"""

import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from snapline.storage.disk.local_disk import DirectoryEntry, Disk
from snapline.storage.disk.record import Buffer
from snapline.storage.disk.store_files import OpenedDisk


class SimulatedCrashError(BaseException):
    """The machine stopped here. No handler may catch it and go on."""


class Inode:
    """A file: `data` as processes see it, `durable` as the disk holds it."""

    def __init__(self, data: bytes = b"", durable: bytes = b"") -> None:
        self.data = data
        self.durable = durable


Node = Inode | None
"""None stands for a directory."""


class SimulatedDisk:
    """Implements `snapline.storage.disk.local_disk.Disk`."""

    def __init__(self, *, has_unnamed_files: bool = True) -> None:
        self.location = "simulated"
        self.nodes: dict[str, Node] = {"": None}
        self.durable: dict[str, Node] = {"": None}
        self.pending: dict[str, list[Node | str]] = {}
        """Path → what became of the name since its directory was synced: a node, or "gone"."""
        self.calls: list[str] = []
        self.crash_after: int | None = None
        self.fail_at: int | None = None
        self.fail_with = errno.EIO
        self.on_call: Callable[[str], None] = lambda name: None
        self._has_unnamed_files = has_unnamed_files
        self._handles: dict[int, tuple[Inode, str | None]] = {}
        self._next_handle = 3

    # -- the port ----------------------------------------------------------------------------------------------------

    def make_root(self) -> None:
        self._call("make_root")

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)
        self._directory_of(path)
        self._check_free(path)
        self._set(path, None)

    def remove_directory(self, path: str) -> None:
        self._call("remove_directory", path)
        if self.list_names(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._remove(path)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        self._require_directory(path)
        for name in [name for name in self.pending if name.rpartition("/")[0] == path]:
            del self.pending[name]
            if name in self.nodes:
                self.durable[name] = self.nodes[name]
            else:
                self.durable.pop(name, None)

    def open_temporary(self, directory: str, name: str) -> int:
        self._call("open_temporary", directory)
        self._require_directory(directory)
        inode, path = Inode(), None
        if not self._has_unnamed_files:
            if "temporary" not in self.nodes:
                self._set("temporary", None)
            path = f"temporary/{name}"
            self._check_free(path)
            self._set(path, inode)
        self._next_handle += 1
        self._handles[self._next_handle] = (inode, path)
        return self._next_handle

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        inode, _ = self._handles[handle]
        data = b"".join(pieces)
        try:
            self._call("write")
        except OSError:
            inode.data += data[: len(data) // 2]
            raise
        inode.data += data

    def sync_data(self, handle: int) -> None:
        # A failed sync drops the dirty pages from what will ever be written; processes go on seeing them.
        self._call("sync_data")
        inode, _ = self._handles[handle]
        inode.durable = inode.data

    def link(self, handle: int, path: str) -> None:
        self._call("link", path)
        self._directory_of(path)
        self._check_free(path)
        self._set(path, self._handles[handle][0])

    def close(self, handle: int) -> None:
        _, path = self._handles.pop(handle)
        if path is not None and path in self.nodes:
            self._remove(path)

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        self._file(path)
        self._remove(path)

    def size(self, path: str) -> int:
        self.on_call("size")
        if path in self.nodes and self.nodes[path] is None:
            return 4096
        return len(self._file(path).data)

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.on_call("read")
        return self._file(path).data[offset : offset + length]

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self.on_call("list_directory")
        self._require_directory(path)
        prefix = f"{path}/" if path else ""
        return [DirectoryEntry(name, self.nodes[prefix + name] is None) for name in sorted(self.list_names(path))]

    # -- for tests ---------------------------------------------------------------------------------------------------

    def list_names(self, path: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.nodes if name and name.rpartition("/")[0] == path]

    def files(self) -> list[str]:
        return sorted(path for path, node in self.nodes.items() if node is not None)

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def copy(self) -> "SimulatedDisk":
        """Return a disk with the same files, everything durable."""
        return _disk_of({path: node.data if node else None for path, node in self.nodes.items()})

    def fingerprint(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return all that a reader can see: disks with the same fingerprint cannot be told apart."""
        return tuple(sorted((path, node.data if node else None) for path, node in self.nodes.items()))

    def images(self) -> Iterator["SimulatedDisk"]:
        """Yield a disk for each state that a crash now may leave."""
        # Temporary names are never synced: the old ones stand or fall together, or there would be too many images.
        old = [
            name for name, changes in self.pending.items() if name.startswith("temporary/") and changes[-1] == "gone"
        ]
        names = sorted(self.pending.keys() - set(old))
        choices = [range(len(self.pending[name]) + 1) for name in names]
        for are_left, *chosen in itertools.product((False, True) if old else (False,), *choices):
            nodes = dict(self.durable)
            for name, count in zip(names, chosen, strict=True):
                for change in self.pending[name][:count]:
                    if isinstance(change, str):
                        nodes.pop(name, None)
                    else:
                        nodes[name] = change
            if are_left:
                nodes |= {name: Inode(b"left over", b"left over") for name in old}
            yield from _data_variants(_reachable(nodes))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _call(self, name: str, path: str = "") -> None:
        self.on_call(name)
        if self.crash_after is not None and len(self.calls) >= self.crash_after:
            raise SimulatedCrashError(f"before {name} {path}")
        self.calls.append(name)
        if self.fail_at is not None and len(self.calls) - 1 == self.fail_at:
            raise OSError(self.fail_with, os.strerror(self.fail_with), path)

    def _set(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self.pending.setdefault(path, []).append(node)

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        self.pending.setdefault(path, []).append("gone")

    def _check_free(self, path: str) -> None:
        if path in self.nodes:
            raise FileExistsError(errno.EEXIST, "exists", path)

    def _directory_of(self, path: str) -> None:
        self._require_directory(path.rpartition("/")[0])

    def _require_directory(self, path: str) -> None:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        if self.nodes[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, "no directory", path)

    def _file(self, path: str) -> Inode:
        node = self.nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return node


def _disk_of(contents: dict[str, bytes | None]) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.nodes = {path: None if data is None else Inode(data, data) for path, data in contents.items()}
    disk.durable = dict(disk.nodes)
    return disk


def _reachable(nodes: dict[str, Node]) -> dict[str, Node]:
    """Drop what lies in directories that are gone."""
    kept: dict[str, Node] = {}
    for path in sorted(nodes):
        parent = path.rpartition("/")[0]
        if not path or (parent in kept and kept[parent] is None):
            kept[path] = nodes[path]
    return kept


def _data_variants(nodes: dict[str, Node]) -> Iterator[SimulatedDisk]:
    """Yield a disk for each fate of the bytes that were not synced."""
    paths = sorted(nodes)
    fates: list[list[bytes | None]] = []
    for path in paths:
        node = nodes[path]
        if node is None:
            fates.append([None])
        elif node.data == node.durable:
            fates.append([node.data])
        else:
            synced = len(node.durable)  # A file may grow after it was synced; what was synced stays.
            torn = node.data[: synced + (len(node.data) - synced) // 2]
            zeroed = torn + bytes(len(node.data) - len(torn))
            fates.append([node.durable, torn, zeroed, node.data])
    for fate in itertools.product(*fates):
        yield _disk_of(dict(zip(paths, fate, strict=True)))


def broken_write_once(prefix: str, *steps: str) -> Callable[..., None]:
    """Return a copy of `write_once` that takes these steps for paths that begin with `prefix`, the right ones otherwise."""

    def write_once(disk: Disk, path: str, pieces: Iterable[bytes], *, temporary_name: str, point: str) -> None:
        directory = path.rpartition("/")[0]
        handle = disk.open_temporary(directory, temporary_name)
        disk.write(handle, list(pieces))
        for step in steps if path.startswith(prefix) else ("sync", "link", "directory"):
            if step == "sync":
                disk.sync_data(handle)
            elif step == "link":
                disk.link(handle, path)
            else:
                disk.sync_directory(directory)
        disk.close(handle)

    return write_once


def below(disk: Disk) -> SimulatedDisk:
    """The simulated disk of a store that was opened on one."""
    found = disk.below if isinstance(disk, OpenedDisk) else disk
    assert isinstance(found, SimulatedDisk)
    return found

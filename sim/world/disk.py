"""Simulated in-memory file system that all nodes share. Each node has its own view, and calls can fail as on real file systems.

Problem. The checkpoint store is on a file system that all hosts mount, and the simulator runs the real code of `storage/` on it. So the
simulated disk must be fast, must be able to lose unsynced data, and must fail on request.

Model. The disk follows the rules of POSIX and gives no further guarantees:

1. Bytes written to a file since its last `sync_data` are *pending*. Names changed in a directory since its last `sync_directory` are
   pending, too. Pending data belongs to the node that wrote it.
2. `crash` (SIGKILL) closes the node's open handles and loses nothing else. Data that the node has written survives in the page cache of the
   file server.
3. `power_cut` decides what happens to all pending data of the node. Pending bytes are kept, lost, torn in the middle, or torn and followed
   by zeros. Changes to different names are kept or lost independently. Changes to the same name are lost in reverse order, beginning with
   the latest change. Data that is kept by a power cut is durable from then on. If a directory is lost, its contents are lost, too.
4. Syncing a directory makes all its names durable, including names changed by other nodes, because all nodes share one file system journal.
   If a change to a name is durable, all earlier changes to this name by any node are durable, too.
5. A failed `sync_data` permanently loses the bytes that it should have synced. Processes can still read the lost bytes, but after the
   writer's next power cut the bytes are zeros.

Departures. There are no named temporary files, but `O_TMPFILE` works. Each handle is written by only one node. Stale reads model the cache
of a network file system: for `STALE_NS` after a file was linked, other nodes cannot see it. If a link fails because the name already
exists, the cache is refreshed for all nodes, not only for the calling node.

This module supports G4 and G11, because the checkpoint store is tested on it. Choices are drawn from the random stream "storage".
"""

import errno
from collections.abc import Callable, Iterator, Sequence

from snapline.errors import UsageError
from snapline.sim.choices import Choices
from snapline.storage.disk.local_disk import DirectoryEntry, Disk
from snapline.storage.disk.record import Buffer

STALE_NS = 50_000_000
"""Time for which a stale cache hides a new file. It is longer than one pass of the coordinator, but shorter than the coordinator's retries.
"""

FAULTS = ("eio", "full", "failed-sync", "stale-read", "slow", "away")
"""Faults that `set_fault` accepts. "slow" is only recorded, and the world determines the delay. With "away", an empty
directory replaces the mounted file system."""

_WORDS = {
    errno.EIO: "Input/output error",
    errno.ENOSPC: "No space left on device",
    errno.ENOENT: "No such file or directory",
    errno.EEXIST: "File exists",
    errno.ENOTDIR: "Not a directory",
    errno.EISDIR: "Is a directory",
    errno.ENOTEMPTY: "Directory not empty",
    errno.EBADF: "Bad file descriptor",
}

_DIRECTORY_BYTES = 4096


class _File:
    """A file of the shared file system.

    Attributes:
        data: the file's bytes as seen by processes.
        synced: number of bytes that a sync has covered, even if the sync failed.
        lost: ranges of these bytes that a failed sync has lost.
        linked_by, linked_ns: node that last linked the file, and the time of this link. `linked_by` is "" if the file is visible to all
            nodes.
    """

    __slots__ = ("data", "linked_by", "linked_ns", "lost", "synced", "writer")

    def __init__(self, writer: str) -> None:
        self.data = b""
        self.writer = writer
        self.synced = 0
        self.lost: list[tuple[int, int]] = []
        self.linked_by = ""
        self.linked_ns = 0


class _Changes:
    """Changes to one name since its directory was last synced.

    Attributes:
        base: the durable entry with this name, or None if there is none.
        made: for each change, in order, the node that made it and the new entry. The entry is None if the change removed the name.
    """

    __slots__ = ("base", "made")

    def __init__(self, base: "_Node | None") -> None:
        self.base = base
        self.made: list[tuple[str, _Node | None]] = []


class _Directory:
    """A directory: its entries as seen by processes, and its pending changes."""

    __slots__ = ("entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.pending: dict[str, _Changes] = {}


_Node = _File | _Directory


class NodeDisk:
    """One node's view of the file system. The class implements `snapline.storage.disk.local_disk.Disk`, and only `VirtualDisk` creates
    instances."""

    def __init__(self, shared: "VirtualDisk", node: str, *, location: str) -> None:
        self.node = node
        self.location = location
        self.modes: dict[str, None] = {}
        """Active faults that affect calls. Usually empty, so calls can test it quickly."""
        self._nodes = shared.nodes
        self._now = shared.now
        self._count = shared.refused
        self._open: dict[int, _File] = {}
        self._next_handle = 3

    # ---- implementation of `Disk`
    # -------------------------------------------------------------------------------------------------

    def make_root(self) -> None:
        if self.modes:
            self._refuse("")

    def make_directory(self, path: str) -> None:
        if self.modes:
            self._refuse_growth(path)
        directory, name = self._place_of(path)
        if name in directory.entries:
            raise _error(errno.EEXIST, path)
        self._set(directory, name, path, _Directory())

    def remove_directory(self, path: str) -> None:
        if self.modes:
            self._refuse(path)
        if self._directory(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        self._remove(path)

    def sync_directory(self, path: str) -> None:
        if self.modes:
            self._refuse(path)
        self._directory(path).pending.clear()

    def open_temporary(self, directory: str, name: str) -> int:
        if self.modes:
            self._refuse_growth(directory)
        self._directory(directory)
        self._next_handle += 1
        self._open[self._next_handle] = _File(self.node)
        return self._next_handle

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        file = self._file_of(handle)
        data = b"".join(pieces)
        if self.modes:
            self._refuse("")
            if "full" in self.modes:
                file.data += data[: len(data) // 2]
                raise self._refused(errno.ENOSPC, "")
        file.data = file.data + data if file.data else data

    def sync_data(self, handle: int) -> None:
        file = self._file_of(handle)
        if self.modes:
            self._refuse("")
            if "failed-sync" in self.modes:
                file.lost.append((file.synced, len(file.data)))
                file.synced = len(file.data)
                raise self._refused(errno.EIO, "")
        file.synced = len(file.data)

    def link(self, handle: int, path: str) -> None:
        if self.modes:
            self._refuse(path)
        directory, name = self._place_of(path)
        taken = directory.entries.get(name)
        if taken is not None:
            if isinstance(taken, _File):
                taken.linked_by = ""
            raise _error(errno.EEXIST, path)
        file = self._file_of(handle)
        file.linked_by, file.linked_ns = self.node, self._now()
        self._set(directory, name, path, file)

    def close(self, handle: int) -> None:
        # Ignore unknown handles: a process that crashed inside a call still runs its `finally` blocks.
        self._open.pop(handle, None)

    def unlink(self, path: str) -> None:
        if self.modes:
            self._refuse(path)
        node = self._nodes.get(path)
        if not isinstance(node, _File):
            raise self._missing(path) if node is None else _error(errno.EISDIR, path)
        self._remove(path)

    def size(self, path: str) -> int:
        node = self._nodes.get(path)
        if isinstance(node, _Directory):
            if self.modes:
                self._refuse(path)
            return _DIRECTORY_BYTES
        return len(self._visible_file(path, node).data)

    def read(self, path: str, offset: int, length: int) -> bytes:
        node = self._nodes.get(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return self._visible_file(path, node).data[offset : offset + length]

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        entries = self._directory(path).entries
        if self.modes:
            self._refuse(path)
            if "away" in self.modes:
                return []
            entries = {name: node for name, node in entries.items() if not self._is_stale(node)}
        return [DirectoryEntry(name, isinstance(entries[name], _Directory)) for name in sorted(entries)]

    # ---- helpers --------------------------------------------------------------------------------------------------

    def lose_handles(self) -> None:
        """Close all open handles of a process that has ended."""
        self._open.clear()

    def _directory(self, path: str) -> _Directory:
        node = self._nodes.get(path)
        if not isinstance(node, _Directory):
            raise self._missing(path)
        return node

    def _place_of(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _file_of(self, handle: int) -> _File:
        file = self._open.get(handle)
        if file is None:
            raise _error(errno.EBADF, "")
        return file

    def _visible_file(self, path: str, node: "_File | None") -> _File:
        if node is None:
            raise self._missing(path)
        if self.modes:
            self._refuse(path)
            if self._is_stale(node):
                raise _error(errno.ENOENT, path)
        return node

    def _missing(self, path: str) -> OSError:
        """Return the error for a path that does not exist: ENOTDIR if an ancestor of the path is a file, and otherwise ENOENT."""
        ancestor = path
        while ancestor:
            if isinstance(self._nodes.get(ancestor), _File):
                return _error(errno.ENOTDIR, path)
            ancestor = ancestor.rpartition("/")[0]
        return _error(errno.ENOENT, path)

    def _set(self, directory: _Directory, name: str, path: str, node: _Node) -> None:
        changes = directory.pending.get(name)
        if changes is None:
            changes = directory.pending[name] = _Changes(None)
        changes.made.append((self.node, node))
        directory.entries[name] = node
        self._nodes[path] = node

    def _remove(self, path: str) -> None:
        directory, name = self._place_of(path)
        changes = directory.pending.get(name)
        if changes is None:
            changes = directory.pending[name] = _Changes(directory.entries[name])
        changes.made.append((self.node, None))
        del directory.entries[name]
        del self._nodes[path]

    def _is_stale(self, node: _Node) -> bool:
        if "stale-read" not in self.modes or not isinstance(node, _File):
            return False
        return node.linked_by not in ("", self.node) and self._now() < node.linked_ns + STALE_NS

    def _refuse(self, path: str) -> None:
        if "eio" in self.modes:
            raise self._refused(errno.EIO, path)
        if "away" in self.modes and path:
            raise self._refused(errno.ENOENT, path)

    def _refused(self, number: int, path: str) -> OSError:
        """Count a call that fails because of a fault, and return the error to raise."""
        self._count[number] = self._count.get(number, 0) + 1
        return _error(number, path)

    def _refuse_growth(self, path: str) -> None:
        self._refuse(path)
        if "full" in self.modes:
            raise self._refused(errno.ENOSPC, path)


class VirtualDisk:
    """The file system that all nodes share.

    Attributes:
        nodes: files and directories by path, as seen by processes. The attribute is always the same dict object.
        refused: for each error number, the number of calls that failed because of a fault.
    """

    def __init__(self, now: Callable[[], int] = lambda: 0, *, location: str = "simulated") -> None:
        """`now` returns the virtual time in nanoseconds, which is needed only for stale reads."""
        self.now = now
        self._location = location
        self._root = _Directory()
        self.refused: dict[int, int] = {}
        self.nodes: dict[str, _Node] = {"": self._root}
        self._views: dict[str, NodeDisk] = {}
        self._faults: dict[str, dict[str, None]] = {}
        self._cuts: dict[str, int] = {}
        self._reader = NodeDisk(self, "", location=location)

    def of(self, node: str) -> NodeDisk:
        """Return one node's view. If the method is called again for the same node, it returns the same object."""
        view = self._views.get(node)
        if view is None:
            view = self._views[node] = NodeDisk(self, node, location=self._location)
            self._tell_faults()
        return view

    def bytes_of(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None if the file does not exist. Faults have no effect on this method. The same bytes object is
        returned each time until the file changes."""
        node = self.nodes.get(path)
        return node.data if isinstance(node, _File) else None

    def files_below(self, prefix: str) -> dict[str, bytes]:
        """Return the contents of all visible files whose paths begin with a prefix, by path."""
        nodes = [(path, node) for path, node in self.nodes.items() if path.startswith(prefix)]
        return {path: node.data for path, node in nodes if isinstance(node, _File)}

    def durable_files(self, prefix: str) -> dict[str, bytes]:
        """Return the contents of all files whose paths begin with a prefix and that no power cut can lose, by path."""
        return {path: data for path, data in self.files_below(prefix).items() if self.is_durable(path)}

    def is_durable(self, path: str) -> bool:
        """Return whether a file exists and no power cut can lose it."""
        file = self.nodes.get(path)
        if not isinstance(file, _File) or file.lost or file.synced < len(file.data):
            return False
        while path:
            parent, _, name = path.rpartition("/")
            directory = self.nodes[parent]
            if not isinstance(directory, _Directory) or name in directory.pending:
                return False
            path = parent
        return True

    def reader(self) -> Disk:
        """Return a view that faults do not affect, for use by oracles. A power cut never loses data that was written through this view."""
        return self._reader

    # ---- faults ---------------------------------------------------------------------------------------------------

    def crash(self, node: str) -> None:
        """Kill the node (SIGKILL). The node loses its open handles, but all data that it has written stays visible."""
        self.of(node).lose_handles()

    def power_cut(self, node: str, choices: Choices) -> None:
        """Cut the node's power. For the node's unsynced data, `choices` decides whether it is kept (choice 0), lost or torn."""
        self.crash(node)
        self._cuts[node] = self._cuts.get(node, 0) + 1
        _PowerCut(node, self._cuts[node], choices).settle(self._root, "")
        self.nodes.clear()
        self.nodes.update(_paths_of(self._root, ""))

    def set_fault(self, node: str, mode: str, is_on: bool) -> None:
        """Switch a fault from `FAULTS` on or off for one node, or for all nodes if `node` is "". The setting for all nodes and the settings
        for single nodes are independent."""
        if mode not in FAULTS:
            raise UsageError(f"no disk fault is called {mode!r}: take one of {', '.join(FAULTS)}")
        modes = self._faults.setdefault(node, {})
        if is_on:
            modes[mode] = None
        else:
            modes.pop(mode, None)
        self._tell_faults()

    def clear_faults(self) -> None:
        """Switch off all faults for all nodes."""
        self._faults.clear()
        self._tell_faults()

    def is_slow(self, node: str) -> bool:
        """Return whether the fault "slow" is switched on for this node or for all nodes."""
        return "slow" in self._faults.get(node, ()) or "slow" in self._faults.get("", ())

    def flip(self, path: str, bit: int) -> None:
        """Flip a single bit of a file. The bit number is taken modulo the number of bits in the file. The damage is visible to all nodes,
        and no sync repairs it."""
        file = self.nodes.get(path)
        if not isinstance(file, _File):
            raise UsageError(f"there is no file {path!r} to damage: `files` tells which there are")
        if file.data:
            place, shift = divmod(bit % (8 * len(file.data)), 8)
            flipped = bytes((file.data[place] ^ (1 << shift),))
            file.data = file.data[:place] + flipped + file.data[place + 1 :]

    # ---- contents -------------------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """Return the sorted paths of all files."""
        return sorted(path for path, node in self.nodes.items() if isinstance(node, _File))

    def used_bytes(self) -> int:
        """Return the total length of all files in bytes."""
        return sum(len(node.data) for node in self.nodes.values() if isinstance(node, _File))

    def _tell_faults(self) -> None:
        everywhere = self._faults.get("", {})
        for node, view in self._views.items():
            modes = everywhere | self._faults.get(node, {})
            modes.pop("slow", None)
            view.modes = modes


class _PowerCut:
    """One power cut of a node, which decides what happens to the node's pending data."""

    def __init__(self, node: str, number: int, choices: Choices) -> None:
        self._node, self._number, self._choices = node, number, choices

    def settle(self, directory: _Directory, path: str) -> None:
        """Decide what happens to the node's pending data in a directory and below it, including entries that a pending removal by another
        node hides."""
        prefix = f"{path}/" if path else ""
        for name, changes in list(directory.pending.items()):
            self._settle_name(directory, name, changes, prefix + name)
        for name, child in _children_of(directory):
            if isinstance(child, _Directory):
                self.settle(child, prefix + name)
            elif child.writer == self._node:
                self._settle_bytes(child, prefix + name)

    def _settle_name(self, directory: _Directory, name: str, changes: _Changes, path: str) -> None:
        mine = [position for position, (node, _) in enumerate(changes.made) if node == self._node]
        if not mine:
            return
        kept = mine[: len(mine) - self._pick(path, "name", len(mine) + 1)]
        durable = kept[-1] + 1 if kept else 0
        if durable:
            changes.base = changes.made[durable - 1][1]
        changes.made = [change for change in changes.made[durable:] if change[0] != self._node]
        seen = changes.made[-1][1] if changes.made else changes.base
        if seen is None:
            directory.entries.pop(name, None)
        else:
            directory.entries[name] = seen
        if not changes.made:
            del directory.pending[name]

    def _settle_bytes(self, file: _File, path: str) -> None:
        data = file.data
        for start, end in file.lost:
            data = data[:start] + bytes(end - start) + data[end:]
        dirty = len(data) - file.synced
        if dirty:
            torn = data[: file.synced + dirty // 2]
            fates = (data, data[: file.synced], torn, torn + bytes(len(data) - len(torn)))
            data = fates[self._pick(path, "bytes", len(fates))]
        file.data, file.synced, file.lost = data, len(data), []

    def _pick(self, path: str, what: str, n: int) -> int:
        return self._choices.pick("storage", (self._node, self._number, path, what), n)


def _children_of(directory: _Directory) -> Iterator[tuple[str, _Node]]:
    """Yield each entry that is in a directory or may reappear in it after a power cut. Yield each entry once."""
    yield from list(directory.entries.items())
    for name, changes in list(directory.pending.items()):
        yielded = [directory.entries.get(name)]
        for node in (changes.base, *(node for _, node in changes.made)):
            if node is not None and not any(node is other for other in yielded):
                yielded.append(node)
                yield name, node


def _paths_of(directory: _Directory, path: str) -> Iterator[tuple[str, _Node]]:
    yield path, directory
    prefix = f"{path}/" if path else ""
    for name, node in directory.entries.items():
        if isinstance(node, _Directory):
            yield from _paths_of(node, prefix + name)
        else:
            yield prefix + name, node


def _error(number: int, path: str) -> OSError:
    return OSError(number, _WORDS[number], path)

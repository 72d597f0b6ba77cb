"""A disk whose every write, sync, rename and removal is recorded, so that each crash can be replayed, or made to fail.

`Recording` follows two writers into one list of operations: SQLite, through a VFS that calls the real one (ctypes), and
`durability.py` with `folders.py`, through their `os`. From the list `crash_states` makes what the folder may hold if the process is killed
after an operation (all that was done), or the power fails (of what was not synced: any part, torn).

Model: a file's bytes are durable when it is synced; creations, renames and removals are durable in order, when the folder is
synced. SQLite syncs the folder together with the first sync of a file it created. A failed sync loses what it should have written.
"""

import _sqlite3
import contextlib
import ctypes
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from snapline import folders
from snapline.coordinator.raft import durability

SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC = 13, 778, 1034


class Op(NamedTuple):
    kind: str  # create, write, truncate, sync, lose, rename, unlink, sync_folder, mark
    file: int = 0
    name: str = ""
    other: str = ""
    at: int = 0
    data: bytes = b""
    fact: Any = None


class Recording:
    """All operations, in order. `fail_at`: the number of the write, sync or rename that is to fail."""

    def __init__(self, fail_at: int | None = None, *, is_full: bool = False) -> None:
        self.ops: list[Op] = []
        self.fail_at = fail_at
        self.is_full = is_full
        """Fail with "disk full", after half of the bytes, instead of "I/O error"."""
        self.has_failed = False
        self._files = 0

    def new_file(self) -> int:
        self._files += 1
        return self._files

    def mark(self, kind: str, fact: Any) -> None:
        self.ops.append(Op("mark", name=kind, fact=fact))

    def fails_now(self) -> bool:
        failing = self.fail_at is not None and not self.has_failed and len(self.ops) >= self.fail_at
        self.has_failed |= failing
        return failing

    def write(self, file: int, at: int, data: bytes) -> bool:
        """Record it; whether it succeeds."""
        if not self.fails_now():
            self.ops.append(Op("write", file, at=at, data=data))
            return True
        if self.is_full:
            self.ops.append(Op("write", file, at=at, data=data[: len(data) // 2]))
        return False

    def sync(self, file: int) -> bool:
        fails = self.fails_now()
        self.ops.append(Op("lose" if fails else "sync", file))
        return not fails

    def crash_states(self, count: int, rng: random.Random, power_cuts: int) -> Iterator[dict[str, bytes]]:
        """What the folder may hold after the first `count` operations: killed, and after so many power cuts."""
        yield _state(self.ops[:count], None, share=1.0)
        for cut in range(power_cuts):
            yield _state(self.ops[:count], rng, share=(0.0, 0.5, 0.9)[cut % 3])


def _state(ops: list[Op], rng: random.Random | None, *, share: float) -> dict[str, bytes]:
    durable: dict[int, bytearray] = {}
    pending: dict[int, list[Op]] = {}
    names: dict[str, int] = {}
    moves: list[Op] = []
    for op in ops:
        match op.kind:
            case "create" | "rename" | "unlink":
                moves.append(op)
            case "write" | "truncate":
                pending.setdefault(op.file, []).append(op)
            case "sync" | "lose":
                for change in pending.pop(op.file, ()):
                    if op.kind == "sync" or rng is None:  # the page cache still shows what the disk lost
                        _change(durable.setdefault(op.file, bytearray()), change)
            case "sync_folder":
                for move in moves:
                    _move(names, move)
                moves = []
    for move in moves if rng is None else moves[: rng.randint(0, len(moves)) if share else 0]:
        _move(names, move)
    for file, changes in pending.items():
        for change in changes:
            if rng is None or rng.random() < share:
                torn = rng is not None and rng.random() < 0.2
                _change(durable.setdefault(file, bytearray()), change, torn=torn)
    return {name: bytes(durable.get(file, b"")) for name, file in names.items()}


def _change(content: bytearray, op: Op, *, torn: bool = False) -> None:
    if op.kind == "truncate":
        del content[op.at :]
        return
    data = op.data[: len(op.data) // 2] if torn else op.data
    if len(content) < op.at:
        content.extend(bytes(op.at - len(content)))
    content[op.at : op.at + len(data)] = data


def _move(names: dict[str, int], op: Op) -> None:
    if op.kind == "create":
        names[op.name] = op.file
    elif op.kind == "rename":
        names[op.other] = names.pop(op.name)
    else:
        names.pop(op.name, None)


# ---- SQLite ---------------------------------------------------------------------------------------------------------

_P, _INT, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OPEN = ctypes.CFUNCTYPE(_INT, _P, _P, _P, _INT, _P)  # the real one keeps the path's address
_DELETE = ctypes.CFUNCTYPE(_INT, _P, ctypes.c_char_p, _INT)
_WRITE = ctypes.CFUNCTYPE(_INT, _P, _P, _INT, _I64)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _P, _I64)
_SYNC = ctypes.CFUNCTYPE(_INT, _P, _INT)


class _Vfs(ctypes.Structure):
    _fields_ = (
        *(("version", _INT), ("file_bytes", _INT), ("path_bytes_max", _INT), ("next", _P), ("name", ctypes.c_char_p)),
        *(("data", _P), ("open", _P), ("delete", _P), ("rest", _P * 14)),
    )


class _Methods(ctypes.Structure):
    _fields_ = (
        *(("version", _INT), ("close", _P), ("read", _P), ("write", _P), ("truncate", _P), ("sync", _P)),
        ("rest", _P * 13),
    )


def can_record_sqlite() -> bool:
    """Whether the SQLite that Python uses can be reached."""
    try:
        return bool(_library().sqlite3_vfs_find)
    except (AttributeError, OSError):
        return False


def _library() -> Any:
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_vfs_find.restype = _P
    library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    library.sqlite3_vfs_register.argtypes = [_P, _INT]
    library.sqlite3_vfs_unregister.argtypes = [_P]
    return library


_immortal: list[object] = []
"""Every VFS ever made: a connection that somebody forgot to close calls it when it is collected."""


class _RecordedVfs:
    """The default VFS with four calls replaced."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._library = _library()
        self._real_at: int = self._library.sqlite3_vfs_find(None)
        self._real = _Vfs.from_address(self._real_at)
        self._open_names: dict[str, int] = {}
        self._files: dict[int, int] = {}
        """Address of SQLite's file object → our number of the file."""
        self._synced: set[int] = set()
        self._kept: list[object] = []
        """What SQLite points to."""
        _immortal.append(self)
        self.vfs = _Vfs.from_buffer_copy(self._real)
        self.vfs.name = b"recorded"
        self.vfs.open = self._callback(_OPEN, self._on_open)
        self.vfs.delete = self._callback(_DELETE, self._on_delete)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        self._library.sqlite3_vfs_register(ctypes.byref(self.vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_unregister(ctypes.byref(self.vfs))
            self._library.sqlite3_vfs_register(self._real_at, 1)

    def _callback(self, kind: Any, function: Callable[..., int]) -> Any:
        callback = kind(function)
        self._kept.append(callback)
        return ctypes.cast(callback, _P)

    def _on_open(self, _vfs: int, path_at: int | None, file: int, flags: int, out: int) -> int:
        path = ctypes.string_at(path_at).decode() if path_at else ""
        name = os.path.basename(path)
        existed = os.path.exists(path)
        code: int = _OPEN(self._real.open)(self._real_at, path_at, file, flags, out)
        if code or not name:
            return code
        if not existed or name not in self._open_names:
            self._open_names[name] = self._recording.new_file()
            self._recording.ops.append(Op("create", self._open_names[name], name))
        self._files[file] = self._open_names[name]
        methods_at = _P.from_address(file)
        real = _Methods.from_address(methods_at.value or 0)
        methods = _Methods.from_buffer_copy(real)
        methods.write = self._callback(_WRITE, self._on_write(_WRITE(real.write)))
        methods.truncate = self._callback(_TRUNCATE, self._on_truncate(_TRUNCATE(real.truncate)))
        methods.sync = self._callback(_SYNC, self._on_sync(_SYNC(real.sync)))
        self._kept.append(methods)
        methods_at.value = ctypes.addressof(methods)
        return code

    def _on_delete(self, _vfs: int, path: bytes, sync: int) -> int:
        name = os.path.basename(path.decode())
        if name in self._open_names and os.path.exists(path):
            del self._open_names[name]
            self._recording.ops.append(Op("unlink", name=name))
            if sync:
                self._recording.ops.append(Op("sync_folder"))
        code: int = _DELETE(self._real.delete)(self._real_at, path, sync)
        return code

    def _on_write(self, real: Any) -> Callable[[int, int, int, int], int]:
        def write(file: int, data: int, length: int, at: int) -> int:
            if not self._recording.write(self._files[file], at, ctypes.string_at(data, length)):
                return SQLITE_FULL if self._recording.is_full else SQLITE_IOERR_WRITE
            code: int = real(file, data, length, at)
            return code

        return write

    def _on_truncate(self, real: Any) -> Callable[[int, int], int]:
        def truncate(file: int, at: int) -> int:
            self._recording.ops.append(Op("truncate", self._files[file], at=at))
            code: int = real(file, at)
            return code

        return truncate

    def _on_sync(self, real: Any) -> Callable[[int, int], int]:
        def sync(file: int, flags: int) -> int:
            number = self._files[file]
            if not self._recording.sync(number):
                return SQLITE_IOERR_FSYNC
            if number not in self._synced:
                self._synced.add(number)
                self._recording.ops.append(Op("sync_folder"))
            code: int = real(file, flags)
            return code

        return sync


def recorded_sqlite(recording: Recording) -> contextlib.AbstractContextManager[None]:
    """Have all SQLite files opened inside recorded."""
    return _RecordedVfs(recording).installed()


# ---- durability.py and folders.py -------------------------------------------------------------------------------------------------------


class RecordedOs:
    """Stands in for the module `os` of `durability.py` and `folders.py`; records what happens in one folder."""

    def __init__(self, recording: Recording, folder: Path) -> None:
        self._recording = recording
        self._folder = folder
        self._files: dict[int, int] = {}
        """Handle → our number of the file; 0 for the folder itself."""
        self._at: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _fail_or(self, done: bool) -> None:
        if not done:
            raise (
                OSError(28, "No space left on device") if self._recording.is_full else OSError(5, "Input/output error")
            )

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if self._folder not in (path, path.parent):
            return os.open(path, flags, mode)
        self._fail_or(not self._recording.fails_now())
        handle = os.open(path, flags, mode)
        self._files[handle] = 0
        if path != self._folder:
            self._files[handle] = self._recording.new_file()
            self._at[handle] = 0
            self._recording.ops.append(Op("create", self._files[handle], path.name))
        return handle

    def write(self, handle: int, data: memoryview) -> int:
        if handle not in self._files:
            return os.write(handle, data)
        piece = bytes(data[:1000])  # as short as a disk may write it
        self._fail_or(self._recording.write(self._files[handle], self._at[handle], piece))
        self._at[handle] += len(piece)
        return os.write(handle, piece)

    def fsync(self, handle: int) -> None:
        match self._files.get(handle):
            case None:
                return
            case 0:
                self._fail_or(not self._recording.fails_now())
                self._recording.ops.append(Op("sync_folder"))
            case file:
                self._fail_or(self._recording.sync(file))

    def close(self, handle: int) -> None:
        self._files.pop(handle, None)
        os.close(handle)

    def replace(self, source: Path, target: Path) -> None:
        if target.parent == self._folder:
            self._fail_or(not self._recording.fails_now())
            self._recording.ops.append(Op("rename", name=source.name, other=target.name))
        os.replace(source, target)


def record_os(patch: pytest.MonkeyPatch, recording: Recording, folder: Path) -> None:
    """Have the durable files of `folder` recorded."""
    recorded = RecordedOs(recording, folder)
    for module in (durability, folders):
        patch.setattr(module, "os", recorded)

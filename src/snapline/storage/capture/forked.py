"""Capture by fork: a child process encodes the state as it was at the time of the fork, while the agent continues.

The problem: a state that consists of many small objects takes long to encode, and changes to it cannot be tracked.

The solution: between two turns, `fork()` creates a child process with a copy of the state. A page is copied only when one of the two
processes writes to it. In the child, only the thread that called `fork` exists. Locks that other threads held at the time of the fork
remain locked forever. So the child calls only `encode()` and system calls. The child uses no gRPC, logging, asyncio, threads or GPU. The
child writes the encoded bytes to anonymous memory (a memfd). Finally, the child writes a head with the bytes' length and BLAKE3 digest, and
exits with `os._exit`. The child's result is valid only if the head exists, the digest matches, and the exit status is 0. If the result is
not valid, the capture has failed, and the caller encodes the state in its own process.

The rules, and how the module implements them:

1. `GRPC_ENABLE_FORK_SUPPORT=0` must be set before gRPC is imported, because otherwise forked children crash. `fork_unsafe_reason` detects a
   violation. In a process that has not imported gRPC yet, `prepare` sets the variable.
2. The child immediately closes all file descriptors except its own. If the child kept them open, a host that was killed would look alive to
   its peers until the child ends.
3. The child is killed when its parent dies (`PR_SET_PDEATHSIG`). More precisely, the child is killed when the thread that forked it ends,
   so a long-lived thread must fork.
4. The child blocks all signals except SIGKILL, because it must not run the parent's signal handlers.
5. The parent waits for the child up to a time limit, then kills it, and reaps only this child. So no zombie remains. If a capture is
   discarded before `result` is called, its child is killed.
6. At most `FORKS_MAX` children exist at the same time, because each child may cost as much memory as the parent writes while the child
   runs.

Each agent must opt in to forking. Coordinators never fork, and forking works only on Linux. Garbage collection is disabled in the child,
because it would write to the header of every object and so copy every page.

This module implements G11 for the transfer from the child to the parent: the digest detects any changed byte.
"""

import ctypes
import gc
import os
import select
import signal
import struct
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import msgspec
from blake3 import blake3

from snapline.errors import EncodingError, StoreError, UsageError
from snapline.storage.disk.record import Buffer

FORKS_MAX = 2
"""Largest number of children at the same time: one that writes and one that starts. More children would multiply the memory, and two cores
are already busy."""

REAP_TIMEOUT_S = 10.0
"""Longest wait for a killed child to end, in seconds. Freeing many gibibytes takes about a second. If the child ends later, the next
capture reaps it."""

TIMEOUT_S_MAX = 24 * 3600
"""Largest timeout in seconds. Longer waits are pointless, and `poll` counts milliseconds in 32 bits."""

MESSAGE_BYTES_MAX = 64 * 1024
"""Largest error text that the child sends, in bytes. A longer text, which may contain a value's repr, is truncated."""

_WRITE_BYTES_MAX = 1 << 30
"""Largest number of bytes per system call. Linux accepts at most 2 GiB - 4 KiB in one call."""

_HEAD = struct.Struct("=8sB32sQ")
"""Head of the result: magic, outcome, BLAKE3 of the outcome and the bytes, and length. The head is stored before the bytes, but written
after them."""
_MAGIC = b"snapfork"
_ENCODED, _REFUSED = 1, 2

_PR_SET_PDEATHSIG = 1
_FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_STEP = f"set {_FORK_VARIABLE}=0 in the environment before the process starts"


class ForkBusyError(StoreError):
    """Raised if `FORKS_MAX` captures are still running in child processes."""


class ForkFailedError(StoreError):
    """Raised if the child was killed, crashed or took too long. The state itself may be valid, so the caller should encode it in its own
    process."""


class _Child(msgspec.Struct, frozen=True):
    """A forked child process.

    Attributes:
        pid: process id, which is valid until the child is reaped.
        handle: pidfd, which identifies the child even after other code has reaped it and its pid has been reused.
        content: memfd into which the child writes the result.
        parent: process id of the process that forked the child.
    """

    pid: int
    handle: int
    content: int
    parent: int


class _State:
    """State of forked captures in this process.

    Attributes:
        is_prepared: whether `prepare` ran before gRPC was imported.
        running_pids: process ids of children whose results are still expected.
        dying: process ids of killed children that have not ended in time.
        lock: lock for `running_pids` and `dying`, because `result` runs in worker threads.
    """

    def __init__(self) -> None:
        self.is_prepared = False
        self.running_pids: set[int] = set()
        self.dying: set[int] = set()
        self.lock = threading.Lock()


_state = _State()


def prepare() -> None:
    """Prepare this process so that it can fork safely. Call this function before gRPC is imported. A second call has no effect."""
    if "grpc" not in sys.modules or _state.is_prepared:
        os.environ[_FORK_VARIABLE] = "0"
        _state.is_prepared = True


def fork_unsafe_reason() -> str:
    """Return the reason why this process must not fork, or "" if it may."""
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        return "a capture by fork needs Linux 5.3; take the usual capture"
    if "grpc" not in sys.modules:
        return ""
    extension = sys.modules.get("grpc._cython.cygrpc")
    if getattr(extension, "_GRPC_ENABLE_FORK_SUPPORT", False):
        return f"gRPC was imported with fork support, and children would crash; {_STEP}"
    if _state.is_prepared or _was_set_at_start():
        return ""
    return f"gRPC was imported without {_FORK_VARIABLE}=0, and children may crash; {_STEP}"


def _was_set_at_start() -> bool:
    """Return whether the environment variable was already set when the process began. If `os.environ` was changed later, the change may
    have come too late for gRPC."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return f"{_FORK_VARIABLE}=0".encode() in file.read().split(b"\0")
    except OSError:
        return False


def fork_capture(encode: Callable[[], Buffer], *, timeout_s: float) -> "ForkedImage":
    """Fork a child process that encodes the state. Return a handle for the result without waiting.

    Call this function between two turns, on the thread that runs the agent's turns. The calling thread must live longer than the child. The
    cost of a fork is a copy of the page tables, plus one page fault for each page that the parent writes while the child runs.

    Args:
        encode: function that returns the encoded state as contiguous bytes. The function runs in the child, where the other threads do not
            exist, so it must not take a lock that another thread may have held.
        timeout_s: time limit in seconds. When the time limit is reached, the child is killed.

    Raises:
        UsageError: If gRPC was imported in a way that makes children crash, or if `timeout_s` is invalid.
        ForkBusyError: If too many child processes are running.
        ForkFailedError: If the system cannot create a child.
    """
    reason = fork_unsafe_reason()
    if reason:
        raise UsageError(f"cannot fork: {reason}")
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s is {timeout_s}; give 0 to {TIMEOUT_S_MAX} seconds")
    _reap_killed_children()
    deadline = time.monotonic() + timeout_s
    try:
        child = _start(encode)
    except OSError as error:
        raise ForkFailedError(f"cannot capture by fork: {error}; encode in this process") from error
    return ForkedImage(child, deadline)


class ForkedImage:
    """Handle for the result that a child process will produce."""

    def __init__(self, child: _Child, deadline: float) -> None:
        self._child = child
        self._deadline = deadline
        # This is a finalizer rather than a method, because it must also run at exit and when this object is dropped without `close`.
        self._end = weakref.finalize(self, _end, child)

    def result(self) -> bytes:
        """Wait for the child to finish, and return the encoded bytes. The call blocks, so make it in a worker thread, and only once.

        Raises:
            EncodingError: If `encode` raised an error in the child. The error contains the message from the child.
            ForkFailedError: If the child was killed, crashed, was cancelled, or timed out.
            UsageError: If `result` or `close` was already called.
        """
        if not self._end.alive:
            raise UsageError("the result of this capture was taken already; capture again")
        try:
            if not _is_over(self._child, self._deadline):
                raise ForkFailedError(
                    "a forked capture took too long and was killed; encode in this process, or wait longer"
                )
            return _read(self._child.content, _reap(self._child.pid))
        finally:
            self.close()

    def cancel(self) -> None:
        """Kill the child, so that a running call of `result` fails soon. This method may be called by any thread at any time."""
        with _state.lock:
            if self._child.pid in _state.running_pids and self._child.parent == os.getpid():
                _kill(self._child)

    def close(self) -> None:
        """Kill the child if it is still running, and discard the result. A second call has no effect. Do not call this method while
        `result` is running."""
        self._end()


def _start(encode: Callable[[], Buffer]) -> _Child:
    """Create the child process.

    Raises:
        OSError: If no file descriptor or process is available. Everything was cleaned up.
    """
    content = os.memfd_create("snapline-capture", os.MFD_CLOEXEC)
    try:
        pid = _fork(encode, content)
    except OSError:
        os.close(content)
        raise
    try:
        return _Child(pid, os.pidfd_open(pid), content, os.getpid())
    except OSError:
        os.close(content)
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        raise


def _fork(encode: Callable[[], Buffer], descriptor: int) -> int:
    """Fork. In the parent, return the child's process id. In the child, never return."""
    parent = os.getpid()
    set_death_signal = ctypes.CDLL(
        None
    ).prctl  # This lookup precedes the fork, because the child must not load libraries.
    _ignore_warning()
    # The child must never run the parent's handlers, not even between `fork` and the child's first line.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with _state.lock:
            child = os.fork()
            if child:
                _state.running_pids.add(child)
        if not child:
            _run_child(encode, descriptor, parent, set_death_signal)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def _ignore_warning() -> None:
    """Suppress a warning that is caused only by this module. Python 3.12 warns if a process with threads forks. Forks by this module are
    safe, as explained in the module's docstring."""
    if sys.version_info >= (3, 12):
        warnings.filterwarnings(
            "ignore",
            r".*use of fork\(\) may lead to deadlocks",
            DeprecationWarning,
            r"snapline\.storage\.capture\.forked",
        )


def _run_child(
    encode: Callable[[], Buffer], descriptor: int, parent: int, set_death_signal: Callable[[int, int], int]
) -> None:
    code = 1
    try:
        gc.disable()
        set_death_signal(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # The parent died before `set_death_signal` took effect.
            return
        os.closerange(0, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            outcome, content = _ENCODED, encode()
        except BaseException as error:
            outcome, content = _REFUSED, f"{type(error).__name__}: {error}".encode(errors="replace")[:MESSAGE_BYTES_MAX]
        _write(descriptor, outcome, content)
        code = 0
    finally:
        os._exit(code)


def _write(descriptor: int, outcome: int, content: Buffer) -> None:
    view = memoryview(content).cast("B")
    at = 0
    while at < len(view):  # The loop is bounded, since each call writes at least one byte or raises.
        at += os.pwrite(descriptor, view[at : at + _WRITE_BYTES_MAX], _HEAD.size + at)
    os.pwrite(descriptor, _HEAD.pack(_MAGIC, outcome, _digest_of(outcome, view), len(view)), 0)


def _read(descriptor: int, status: int) -> bytes:
    """Return the bytes that the child has written.

    Raises:
        EncodingError: If the encoder failed with an error in the child.
        ForkFailedError: If the child ended too early, or if the bytes are not the bytes that it encoded.
    """
    head = os.pread(descriptor, _HEAD.size, 0)
    if status or len(head) < _HEAD.size:
        raise ForkFailedError(f"a forked capture ended early ({_describe_exit_status(status)}); encode in this process")
    magic, outcome, digest, size = _HEAD.unpack(head)
    held = os.fstat(descriptor).st_size - _HEAD.size
    content = _read_all(descriptor, size) if magic == _MAGIC and size == held else b""
    if _digest_of(outcome, content) != digest:
        raise ForkFailedError("a forked capture sent other bytes than it encoded; encode in this process")
    if outcome != _ENCODED:
        raise EncodingError(f"a forked capture failed: {content.decode(errors='replace')}")
    return content


def _digest_of(outcome: int, content: bytes | memoryview) -> bytes:
    return blake3(bytes([outcome])).update(content).digest()


def _read_all(descriptor: int, size: int) -> bytes:
    parts = [
        os.pread(descriptor, min(_WRITE_BYTES_MAX, size - at), _HEAD.size + at)
        for at in range(0, size, _WRITE_BYTES_MAX)
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _describe_exit_status(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status}"
    return f"exit status {status}" if status else "without a result"


def _reap_killed_children() -> None:
    """Reap killed children that ended only after the parent stopped waiting for them.

    Raises:
        ForkBusyError: If too many children are left.
    """
    for pid in sorted(_state.dying):
        _reap(pid, os.WNOHANG)
    with _state.lock:
        count = len(_state.running_pids) + len(_state.dying)
    if count >= FORKS_MAX:
        raise ForkBusyError(f"{count} forked captures are still being written; checkpoint less often")


def _is_over(child: _Child, deadline: float) -> bool:
    """Wait until the child has ended or `deadline` is reached. Return whether the child has ended."""
    poll = select.poll()
    poll.register(child.handle, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _reap(pid: int, flags: int = 0) -> int:
    """Reap a child that has ended. Return its exit status. The status is negative if the child was killed by a signal."""
    try:
        reaped, status = os.waitpid(pid, flags)
        result = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        reaped, result = pid, 0  # Other code has reaped the child. The digest shows whether its result is complete.
    with _state.lock:
        if reaped:
            _state.running_pids.discard(pid)
            _state.dying.discard(pid)
    return result


def _kill(child: _Child) -> None:
    try:
        signal.pidfd_send_signal(child.handle, signal.SIGKILL)
    except ProcessLookupError:
        return  # The child has ended, and other code has reaped it.


def _end(child: _Child) -> None:
    """Kill and reap the child if it still exists. Do nothing if this process is not the child's parent."""
    if child.parent != os.getpid():
        return
    with _state.lock:
        is_there = child.pid in _state.running_pids
    if is_there:
        _kill(child)
        if _is_over(child, time.monotonic() + REAP_TIMEOUT_S):
            _reap(child.pid)
    with _state.lock:
        if child.pid in _state.running_pids:
            _state.running_pids.discard(child.pid)
            _state.dying.add(child.pid)
        os.close(
            child.handle
        )  # The lock is held, because the descriptor number may be reused, and `cancel` must not use it then.
        os.close(child.content)

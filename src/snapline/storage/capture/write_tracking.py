"""Finds the pages of this process's memory that were written, using userfaultfd in asynchronous write-protect mode and `PAGEMAP_SCAN`.

The problem: the cost of capturing a large array should depend only on the changes, but a process does not know which pages it has written.

The solution: the kernel knows which pages were written. When user code or a system call such as `read` first writes to an *armed* page (a
page that userfaultfd has write-protected), the page is disarmed. In the mode `WP_ASYNC`, the kernel itself disarms the page. So no handler,
thread or signal is involved, and the writer only pays for one page fault. `PAGEMAP_SCAN` with `PM_SCAN_WP_MATCHING` returns all disarmed
pages and arms them again. For each page, returning and arming again is one atomic step. So each write is reported by the first scan after
it, by a concurrent scan, or by both. If a page is copied after a scan and before the next write, the copy contains the reported content.

Invariants:

1. Between the end of `arm` and `close`, if a scan does not report a page, the page has not been written since the previous scan (or since
   `arm`, at the first scan).
2. A page that was never touched contains zeros. `WP_UNPOPULATED` also arms such pages, so the first write to them is reported.
3. Handles belong to a single process. After `fork()`, the memory of the child is not registered, and the handles inherited by the child
   still refer to the memory of the parent. So a tracker is valid only in the process in which it was armed (`is_armed`).

Some writes are not detected: writes by a device that bypasses the page tables (memory pinned for a GPU, RDMA, an `O_DIRECT` read that is in
progress during a scan), and writes to shared memory by another process. For this reason, this module registers only private anonymous
memory.

Huge pages may stay enabled: at a write, the kernel splits an armed huge page, so the reports always have a granularity of 4 KiB. Measured
on Linux 6.18 with 1 GiB of memory, arming takes 0.07 ms with huge pages and 8 ms without huge pages. If 1 % of the memory was written, a
scan takes 0.1 to 0.7 ms in both cases.

The constants come from the kernel's headers `userfaultfd.h` and `fs.h`. See also `Documentation/admin-guide/mm/pagemap.rst` and
`userfaultfd.rst`. This module alone guarantees nothing: G11 and G1 require that captures are complete, so `tracked_arrays.py` is tested
against a full comparison.
"""

import array
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import threading

from snapline.errors import ExternalFailureError, UsageError

_SYSCALL_USERFAULTFD = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
"""Map from machine to the number of the system call, for 64-bit processes. No other machine is supported, because its number may differ and
is untested."""

_UFFD_USER_MODE_ONLY = 1
"""Flag that makes privileges unnecessary. Faults in the kernel are also resolved asynchronously, so nothing is lost with the flag."""
_UFFD_API = 0xAA
_FEATURE_PAGEFAULT_FLAG_WP = 1 << 0
_FEATURE_WP_UNPOPULATED = 1 << 13  # The next feature implies this one, but invariant 2 needs it, so it is explicit.
_FEATURE_WP_ASYNC = 1 << 15
_FEATURES = _FEATURE_PAGEFAULT_FLAG_WP | _FEATURE_WP_UNPOPULATED | _FEATURE_WP_ASYNC
_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_UFFDIO_UNREGISTER = 0x8010AA01
_UFFDIO_WRITEPROTECT = 0xC018AA06
_REGISTER_MODE_WP = 1 << 1
_WRITEPROTECT_MODE_WP = 1 << 0

_PAGEMAP_SCAN = 0xC0606610
_SCAN_ARGUMENT = struct.Struct("=12Q")
_PAGE_IS_WRITTEN = 1 << 1
_SCAN_WP_MATCHING = 1 << 0
_SCAN_CHECK_WPASYNC = 1 << 1
_MADV_HUGEPAGE = 14

SCAN_REGIONS = 4096
"""Number of regions that one system call returns. The buffer takes 96 KiB, which fits into a core's cache. A scan repeats the call until
the end."""
REGION_WORDS = 3
"""Number of words in a `page_region`: start, end and categories."""

HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""Smallest mapping in bytes that asks for huge pages. A smaller mapping cannot contain any."""


class _Handles:
    """The two file descriptors that one process uses for all its trackers.

    Attributes:
        userfault: file descriptor for registering and arming memory.
        pagemap: file descriptor of the process's page map, which is used for scans.
        regions: buffer that receives the results of a scan.
        lock: lock for `regions`, because two hosts in the same process may scan on two threads.
    """

    def __init__(self, userfault: int, pagemap: int) -> None:
        self.userfault = userfault
        self.pagemap = pagemap
        self.process = os.getpid()
        self.regions = (ctypes.c_uint64 * (SCAN_REGIONS * REGION_WORDS))()
        self.lock = threading.Lock()


_handles_by_process: dict[int, _Handles] = {}
"""Map from process id to handles. The map has at most one entry for this process, and after a fork also unused entries of its ancestors."""
_verdicts: dict[int, str] = {}
"""Map from process id to the result of `is_supported`."""


def is_supported() -> str:
    """Return the reason why this process cannot track writes, or "" if it can.

    The first call in a process tests tracking with a few pages, because some systems accept the system calls but track nothing.
    """
    process = os.getpid()
    if process not in _verdicts:
        _verdicts[process] = _try_out()
    return _verdicts[process]


def map_memory(size_bytes: int) -> mmap.mmap:
    """Return zero-filled private memory that can be registered by a `WriteTracker`. The memory has at least `size_bytes` bytes.
    `size_bytes` must not be 0.

    Raises:
        ExternalFailureError: If the machine is out of memory.
    """
    try:
        memory = mmap.mmap(-1, page_rounded(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise ExternalFailureError(f"cannot map {size_bytes} bytes: {error}; make the array smaller") from error
    if size_bytes >= HUGE_PAGE_BYTES:
        _ask_for_huge_pages(memory)
    return memory


def page_rounded(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class WriteTracker:
    """Tracker that reports which pages of one memory mapping were written.

    Args:
        address: page-aligned start of the mapping, which `map_memory` must have created.
        size_bytes: length of the mapping in bytes, which is a multiple of the page size.

    The caller must keep the mapping alive until `close` is called, or drop the tracker and the mapping together, because unmapping also
    unregisters the memory.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        if address % mmap.PAGESIZE or size_bytes % mmap.PAGESIZE or not size_bytes:
            raise UsageError(f"cannot track {size_bytes} bytes at {address:#x}: not whole pages; use map_memory")
        self.address = address
        self.size_bytes = size_bytes
        self._handles: _Handles | None = None

    @property
    def is_armed(self) -> bool:
        """Return whether this tracker is tracking writes in the calling process."""
        return self._handles is not None and self._handles.process == os.getpid()

    def arm(self) -> None:
        """Start tracking writes. Call this method once.

        Raises:
            ExternalFailureError: If the system call fails.
        """
        reason = is_supported()
        if reason:
            raise ExternalFailureError(f"cannot track writes: {reason}; use an ordinary array")
        self._arm(_open_handles())

    def _arm(self, handles: _Handles) -> None:
        register = bytearray(struct.pack("=4Q", self.address, self.size_bytes, _REGISTER_MODE_WP, 0))
        protect = bytearray(struct.pack("=3Q", self.address, self.size_bytes, _WRITEPROTECT_MODE_WP))
        try:
            fcntl.ioctl(handles.userfault, _UFFDIO_REGISTER, register)
            self._handles = handles
            fcntl.ioctl(handles.userfault, _UFFDIO_WRITEPROTECT, protect)
        except OSError as error:
            self.close()
            raise ExternalFailureError(f"cannot track writes: {error}; use an ordinary array") from error

    def scan(self) -> list[tuple[int, int]]:
        """Return the byte ranges `(start, end)` that were written since the previous scan, or since `arm` if this is the first scan. Arm
        these ranges again.

        The ranges are given as offsets from the start of the mapping. The ranges consist of whole pages, are in ascending order, and do not
        overlap.

        Raises:
            ExternalFailureError: If the scan fails, as in `scan_words`.
        """
        words = self.scan_words()
        starts, ends = words[0::REGION_WORDS], words[1::REGION_WORDS]
        return [(start - self.address, end - self.address) for start, end in zip(starts, ends, strict=True)]

    def scan_words(self) -> "array.array[int]":
        """Scan like `scan`, but return the ranges as a flat array. Each range consists of three words: the start address, the end address,
        and a word that is not used.

        Raises:
            ExternalFailureError: If the scan fails. It is then unknown which pages were written, so treat all pages as written, and
                call `close`.
        """
        handles = self._handles
        if handles is None or handles.process != os.getpid():
            raise ExternalFailureError("cannot scan for writes: not armed in this process; arm the tracker first")
        found = array.array("Q")
        position, end = self.address, self.address + self.size_bytes
        # This loop is bounded, since each call advances by at least a page, and usually to the end.
        while position < end:
            with handles.lock:
                count, position = self._scan_from(handles, position)
                found.frombytes(memoryview(handles.regions).cast("B")[: count * REGION_WORDS * 8])
        return found

    def _scan_from(self, handles: _Handles, position: int) -> tuple[int, int]:
        """Scan once. Return the number of regions found, and the address at which the kernel stopped."""
        argument = bytearray(_SCAN_ARGUMENT.pack(*self._scan_argument(handles, position)))
        try:
            count = fcntl.ioctl(handles.pagemap, _PAGEMAP_SCAN, argument)
        except OSError as error:
            raise ExternalFailureError(f"cannot scan for writes: {error}; use an ordinary array") from error
        stopped = _SCAN_ARGUMENT.unpack(argument)[4]
        if stopped <= position:
            raise ExternalFailureError("cannot scan for writes: the kernel does not move on; use an ordinary array")
        return count, stopped

    def _scan_argument(self, handles: _Handles, position: int) -> tuple[int, ...]:
        flags = _SCAN_WP_MATCHING | _SCAN_CHECK_WPASYNC
        end = self.address + self.size_bytes
        regions = ctypes.addressof(handles.regions)
        written = _PAGE_IS_WRITTEN
        # size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any-of, returned
        return (_SCAN_ARGUMENT.size, flags, position, end, 0, regions, SCAN_REGIONS, 0, 0, written, 0, written)

    def close(self) -> None:
        """Stop tracking, so that writes have no additional cost any more. A second call has no effect, and neither does a call in a
        forked child."""
        handles, self._handles = self._handles, None
        if handles is None or handles.process != os.getpid():
            return
        try:
            fcntl.ioctl(handles.userfault, _UFFDIO_UNREGISTER, struct.pack("=2Q", self.address, self.size_bytes))
        except OSError:
            return  # The memory is gone, or was never registered. In both cases nothing is tracked.


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(_MADV_HUGEPAGE)
    except OSError:
        return  # Without huge pages, small pages suffice.


def _open_handles() -> _Handles:
    """Return the handles of this process, which are opened at the first call.

    Raises:
        OSError: If the system call fails, or if the kernel lacks the required features.
    """
    known = _handles_by_process.get(os.getpid())
    if known is not None:
        return known
    userfault = _open_userfault()
    try:
        fcntl.ioctl(userfault, _UFFDIO_API, bytearray(struct.pack("=3Q", _UFFD_API, _FEATURES, 0)))
        handles = _Handles(userfault, os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        os.close(userfault)
        raise
    kept = _handles_by_process.setdefault(handles.process, handles)
    if kept is not handles:  # Another thread has just opened the handles.
        os.close(handles.userfault)
        os.close(handles.pagemap)
    return kept


def _open_userfault() -> int:
    """Return a new userfaultfd.

    Raises:
        OSError: If the system call fails.
    """
    number = _SYSCALL_USERFAULTFD[platform.machine()]
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = int(library.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _UFFD_USER_MODE_ONLY))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def _try_out() -> str:
    """Return the reason why writes cannot be tracked in this process, or "" if they can."""
    if platform.machine() not in _SYSCALL_USERFAULTFD or struct.calcsize("P") != 8:
        return f"not known how to on {platform.machine()} ({platform.architecture()[0]})"
    try:
        handles = _open_handles()
    except OSError as error:
        return _reason_of(error)
    try:
        return "" if _is_seeing_writes(handles) else "the kernel accepts the calls, but does not report a write"
    except (ExternalFailureError, OSError) as error:
        return str(error)


def _reason_of(error: OSError) -> str:
    if error.errno == errno.EINVAL:
        return f"Linux {platform.release()} has no asynchronous write tracking: it needs 6.7"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{error}: a container's seccomp profile must allow userfaultfd"
    return str(error)


def _is_seeing_writes(handles: _Handles) -> bool:
    """Test whether a scan reports exactly the pages that were first written after arming."""
    page = mmap.PAGESIZE
    memory = map_memory(3 * page)
    memory[0] = 1  # One page is populated, two are untouched.
    anchor = ctypes.c_char.from_buffer(memory)
    tracker = WriteTracker(ctypes.addressof(anchor), 3 * page)
    try:
        tracker._arm(handles)
        if tracker.scan():
            return False
        memory[0], memory[2 * page] = 2, memory[page]
        return tracker.scan() == [(0, page), (2 * page, 3 * page)] and not tracker.scan()
    finally:
        tracker.close()
        del anchor
        memory.close()

"""The kernel's reports of written pages, against a model that knows what was written."""

import ctypes
import itertools
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import ExternalFailureError, UsageError
from snapline.storage.capture import write_tracking
from snapline.storage.capture.write_tracking import WriteTracker, is_supported, map_memory

PAGE = mmap.PAGESIZE
PAGES = 64
REASON = is_supported()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


class Memory:
    """A mapping with its tracker."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes = map_memory(size_bytes)
        self.anchor = ctypes.c_char.from_buffer(self.bytes)
        self.tracker = WriteTracker(ctypes.addressof(self.anchor), len(self.bytes))

    def close(self) -> None:
        self.tracker.close()
        del self.anchor
        self.bytes.close()


@pytest.fixture
def memory() -> Iterator[Memory]:
    result = Memory(PAGES * PAGE)
    result.tracker.arm()
    yield result
    result.close()


def pages_of(ranges: list[tuple[int, int]]) -> list[int]:
    assert all(start % PAGE == 0 and end % PAGE == 0 and start < end for start, end in ranges)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    return [page for start, end in ranges for page in range(start // PAGE, end // PAGE)]


rounds = st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, PAGES * PAGE - 1)), max_size=20), max_size=6)


@settings(max_examples=60, deadline=None)
@given(touched=st.sets(st.integers(0, PAGES - 1)), rounds=rounds)
def test_each_write_is_in_the_next_scan_and_nothing_else(
    touched: set[int], rounds: list[list[tuple[bool, int]]]
) -> None:
    """On pages that were there before, and on pages that nobody had touched. Reads are not writes."""
    memory = Memory(PAGES * PAGE)
    try:
        for page in touched:
            memory.bytes[page * PAGE] = 1
        memory.tracker.arm()
        for accesses in rounds:
            for is_write, place in accesses:
                if is_write:
                    memory.bytes[place] ^= 255
                else:
                    assert memory.bytes[place] in (0, 1, 254, 255)
            written = sorted({place // PAGE for is_write, place in accesses if is_write})
            assert pages_of(memory.tracker.scan()) == written
        assert memory.tracker.scan() == []
    finally:
        memory.close()


def test_writes_of_the_kernel_are_seen(memory: Memory) -> None:
    """`readinto` writes from inside a system call, where a handler in user space could not help."""
    reading, writing = os.pipe()
    os.write(writing, b"x" * 10)
    view = memoryview(memory.bytes)
    assert os.readv(reading, [view[3 * PAGE - 5 : 3 * PAGE + 5]]) == 10
    with open("/dev/zero", "rb", buffering=0) as zeros:
        assert zeros.readinto(view[7 * PAGE : 9 * PAGE]) == 2 * PAGE
    view.release()
    assert pages_of(memory.tracker.scan()) == [2, 3, 7, 8]
    os.close(reading)
    os.close(writing)


def test_write_of_the_same_value_is_a_write(memory: Memory) -> None:
    """The kernel sees writes, not contents: a report may be more than what differs, never less."""
    memory.bytes[5 * PAGE] = 0
    assert pages_of(memory.tracker.scan()) == [5]


def test_writes_of_other_threads_are_seen(memory: Memory) -> None:
    thread = threading.Thread(target=lambda: memory.bytes.__setitem__(9 * PAGE, 1))
    thread.start()
    thread.join()
    assert pages_of(memory.tracker.scan()) == [9]


def test_scans_race_with_writers_and_lose_nothing(memory: Memory) -> None:
    """A copy made after the scan and before the next is what the last writes left, page by page."""
    copy = bytearray(len(memory.bytes))
    is_over = threading.Event()

    def write() -> None:
        for number in range(20_000):
            memory.bytes[(number * 7919) % (PAGES * PAGE)] = number % 251
        is_over.set()

    thread = threading.Thread(target=write)
    thread.start()
    is_last = False
    while not is_last:
        is_last = is_over.is_set()
        for start, end in memory.tracker.scan():
            copy[start:end] = memory.bytes[start:end]
    thread.join()
    assert copy == memory.bytes[:]


def test_more_ranges_than_one_call_returns(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    monkeypatch.setattr(write_tracking, "SCAN_REGIONS", 3)
    for page in range(0, PAGES, 2):
        memory.bytes[page * PAGE] = 1
    assert pages_of(memory.tracker.scan()) == list(range(0, PAGES, 2))
    assert memory.tracker.scan() == []


@pytest.mark.parametrize("offset", [0, PAGE, 511 * PAGE, 512 * PAGE, 1024 * PAGE - 1])
def test_huge_pages_are_reported_by_small_ones(offset: int) -> None:
    memory = Memory(4 * write_tracking.HUGE_PAGE_BYTES)
    for place in range(0, len(memory.bytes), PAGE):
        memory.bytes[place] = 1
    memory.tracker.arm()
    memory.bytes[offset] = 2
    assert pages_of(memory.tracker.scan()) == [offset // PAGE]
    memory.close()


def test_trackers_do_not_see_each_other(memory: Memory) -> None:
    """Neighbouring mappings may be one to the kernel."""
    others = [Memory(PAGES * PAGE) for _ in range(4)]
    for other in others:
        other.tracker.arm()
    others[1].bytes[0] = 1
    others[2].bytes[PAGES * PAGE - 1] = 1
    others[1].tracker.close()
    assert pages_of(others[2].tracker.scan()) == [PAGES - 1]
    assert [other.tracker.scan() for other in (memory, others[0], others[3])] == [[], [], []]
    for other in others:
        other.close()


def test_closed_tracker_refuses_and_memory_lives_on(memory: Memory) -> None:
    memory.bytes[0] = 1
    memory.tracker.close()
    memory.tracker.close()
    memory.bytes[0] = 2
    assert memory.bytes[0] == 2 and not memory.tracker.is_armed
    with pytest.raises(ExternalFailureError, match="not armed"):
        memory.tracker.scan()


def test_tracker_of_the_parent_is_of_no_use_in_a_child(memory: Memory) -> None:
    """The child's handles are its parent's: a scan there would arm the parent's pages, and lose its writes."""
    memory.bytes[3 * PAGE] = 1
    child = os.fork()
    if not child:
        outcome = 1
        try:
            memory.bytes[5 * PAGE] = 1
            assert not memory.tracker.is_armed
            with pytest.raises(ExternalFailureError, match="in this process"):
                memory.tracker.scan()
            memory.tracker.close()
            own = Memory(PAGES * PAGE)
            own.tracker.arm()
            own.bytes[0] = 1
            assert own.tracker.scan() == [(0, PAGE)]
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    memory.bytes[4 * PAGE] = 1
    assert pages_of(memory.tracker.scan()) == [3, 4]


def test_fork_between_write_and_scan_loses_nothing(memory: Memory) -> None:
    """`fork` write-protects all pages for its own purpose."""
    memory.bytes[3 * PAGE] = 1
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert pages_of(memory.tracker.scan()) == [3]
    memory.bytes[3 * PAGE] = 2
    assert pages_of(memory.tracker.scan()) == [3]


def test_memory_given_back_to_the_kernel_is_reported(memory: Memory) -> None:
    """Its content is another afterwards: zeros. NumPy never does that; a report too many is all right, none is not."""
    memory.bytes[3 * PAGE] = 1
    memory.tracker.scan()
    memory.bytes.madvise(mmap.MADV_DONTNEED, 3 * PAGE, PAGE)
    memory.bytes[3 * PAGE] = 2
    assert 3 in pages_of(memory.tracker.scan())


@pytest.mark.parametrize(("address", "size_bytes"), [(1, PAGE), (PAGE, 1), (PAGE, 0)])
def test_only_whole_pages(address: int, size_bytes: int) -> None:
    with pytest.raises(UsageError, match="whole pages"):
        WriteTracker(address, size_bytes)


def test_memory_that_is_not_ours_is_refused() -> None:
    tracker = WriteTracker(PAGE, PAGE)
    with pytest.raises(ExternalFailureError, match="cannot track writes"):
        tracker.arm()
    assert not tracker.is_armed


def test_too_much_memory_is_refused() -> None:
    with pytest.raises(ExternalFailureError, match="make the array smaller"):
        map_memory(1 << 62)


class TestDetection:
    """`is_supported` says why not, and believes only what it has seen. That no privilege is needed was tried by hand."""

    @pytest.fixture(autouse=True)
    def forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_tracking, "_verdicts", {})
        monkeypatch.setattr(write_tracking, "_handles_by_process", {})

    def test_old_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_tracking, "_FEATURES", 1 << 63)
        assert "needs 6.7" in is_supported()

    def test_no_permission(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(write_tracking, "_open_userfault", refuse)
        assert "seccomp" in is_supported()

    def test_no_such_system_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_tracking, "_SYSCALL_USERFAULTFD", {"x86_64": 9999, "aarch64": 9999, "riscv64": 9999})
        assert "not implemented" in is_supported()

    def test_other_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "s390x")
        assert "s390x" in is_supported()

    @pytest.mark.parametrize("lie", [[], [(0, 3 * PAGE)]])
    def test_kernel_that_accepts_and_tracks_nothing(self, monkeypatch: pytest.MonkeyPatch, lie: Any) -> None:
        monkeypatch.setattr(WriteTracker, "scan", lambda self: lie)
        assert "does not report" in is_supported()

    def test_no_pagemap_scan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_tracking, "_PAGEMAP_SCAN", 0xC06066FF)
        assert "cannot scan for writes" in is_supported()

    def test_descriptors_are_not_leaked_where_it_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_tracking, "_FEATURES", 1 << 63)
        before = len(os.listdir("/proc/self/fd"))
        is_supported()
        assert len(os.listdir("/proc/self/fd")) == before


def test_import_touches_nothing() -> None:
    code = (
        "import sys, snapline.storage.capture.tracked_arrays as t, snapline.storage.capture.write_tracking as w;"
        "assert not w._verdicts and not w._handles_by_process and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

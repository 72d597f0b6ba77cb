"""The arena: no two takers share memory, nothing is kept that is not needed, and what is taken is warm.

Page faults are counted by the kernel (`getrusage`), so no clock is needed to see that memory is warm.
"""

import resource
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import StoreError
from snapline.storage.capture import image
from snapline.storage.capture.image import ArenaBuffer, ArenaBusyError, ArenaPool, class_of

KIB, MIB = 1024, 1024 * 1024


def address_of(buffer: ArenaBuffer) -> int:
    return int(np.frombuffer(buffer.view, np.uint8).__array_interface__["data"][0])


def fill(buffer: ArenaBuffer, mark: int) -> None:
    np.frombuffer(buffer.view, np.uint8)[:] = mark


def holds(buffer: ArenaBuffer, mark: int) -> bool:
    return bool((np.frombuffer(buffer.view, np.uint8) == mark).all())


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_classes_hold_what_was_asked_for_and_little_more(size: int, more: int) -> None:
    assert size <= class_of(size) <= max(image.BUFFER_BYTES_MIN, size * 9 // 8 + 4096)
    assert class_of(size) % 4096 == 0 and class_of(size) <= class_of(size + more)
    assert class_of(class_of(size)) == class_of(size)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nobody_gets_memory_that_is_out(data: Any) -> None:
    """Each taker fills its buffer with its own mark: whoever else wrote there would be seen."""
    pool = ArenaPool(bytes_max=4 * MIB)
    out: dict[int, ArenaBuffer] = {}
    peak = 0
    for mark in range(1, 25):
        if out and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(out)))
            buffer = out.pop(key)
            assert holds(buffer, key)
            buffer.release()
        else:
            size = data.draw(st.sampled_from([1, 20 * KIB, 70 * KIB, 100 * KIB, 300 * KIB]))
            out[mark] = pool.take(size)
            assert len(out[mark].view) == size and address_of(out[mark]) % 4096 == 0
            fill(out[mark], mark)
        peak = max(peak, pool.taken_bytes)
        assert pool.taken_bytes >= sum(len(buffer.view) for buffer in out.values())
        assert pool.taken_bytes + pool.idle_bytes <= min(image.RETAINED_PEAK_FACTOR * peak, 4 * MIB)
    for key, buffer in out.items():
        assert holds(buffer, key)
        buffer.release()
    assert pool.taken_bytes == 0


def test_what_was_given_back_is_used_again() -> None:
    pool = ArenaPool()
    first = pool.take(300 * KIB)
    place = address_of(first)
    first.release()
    again, other = pool.take(299 * KIB), pool.take(300 * KIB)
    assert address_of(again) == place and address_of(other) != place


def test_giving_back_twice_changes_nothing() -> None:
    """Else two later takers would get the same memory."""
    pool = ArenaPool()
    buffer = pool.take(MIB)
    buffer.release()
    buffer.release()
    assert (pool.taken_bytes, pool.idle_bytes) == (0, MIB)
    assert address_of(pool.take(MIB)) != address_of(pool.take(MIB))


def test_a_large_buffer_is_not_spent_on_a_small_image() -> None:
    pool = ArenaPool()
    pool.take(8 * MIB).release()
    small = pool.take(3 * MIB)
    assert (pool.taken_bytes, pool.idle_bytes) == (3 * MIB, 8 * MIB)
    small.release()
    assert pool.take(4 * MIB).view.nbytes == 4 * MIB and pool.taken_bytes == 8 * MIB


def test_a_buffer_is_kept_until_sixteen_times_its_size_was_copied_without_it() -> None:
    pool = ArenaPool()
    pool.take(8 * MIB).release()
    for _ in range(100):
        pool.take(MIB).release()
    assert pool.idle_bytes == 9 * MIB
    for _ in range(100):
        pool.take(MIB).release()
    assert pool.idle_bytes <= 2 * MIB


def test_more_than_the_limit_is_refused_and_comes_back_with_a_release() -> None:
    pool = ArenaPool(bytes_max=3 * MIB)
    held = [pool.take(MIB) for _ in range(3)]
    with pytest.raises(ArenaBusyError, match="store is slower than the checkpoints"):
        pool.take(1)
    assert pool.taken_bytes == 3 * MIB
    held[1].release()
    with pytest.raises(ArenaBusyError):
        pool.take(MIB + 1)
    assert (pool.taken_bytes, pool.idle_bytes) == (2 * MIB, MIB), "what is refused changes nothing"
    pool.take(MIB)


def test_idle_buffers_do_not_take_the_room_of_others() -> None:
    pool = ArenaPool(bytes_max=4 * MIB)
    pool.take(2 * MIB).release()
    held = [pool.take(900 * KIB), pool.take(900 * KIB)]
    assert pool.idle_bytes == 2 * MIB
    held.append(pool.take(900 * KIB))
    assert pool.idle_bytes == 0 and pool.taken_bytes == 3 * class_of(900 * KIB)


def test_memory_that_the_machine_has_not_is_an_error_of_the_store() -> None:
    pool = ArenaPool(bytes_max=1 << 62)
    with pytest.raises(StoreError, match="no memory"):
        pool.take(1 << 60)
    assert pool.taken_bytes == 0 and pool.reserve(1 << 60) is False


def test_a_reserved_buffer_serves_the_next_take() -> None:
    pool = ArenaPool(bytes_max=5 * MIB)
    assert pool.reserve(2 * MIB) and pool.reserve(2 * MIB) and not pool.reserve(2 * MIB)
    assert pool.idle_bytes == 4 * MIB
    first, second = pool.take(2 * MIB), pool.take(2 * MIB)
    assert pool.idle_bytes == 0 and address_of(first) != address_of(second)
    first.release()
    second.release()
    assert pool.idle_bytes == 4 * MIB


@pytest.mark.parametrize("has_madvise", [True, False])
def test_what_is_taken_is_warm(has_madvise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy into it meets no page faults; into fresh memory it would meet one for each page, 4 KiB or 2 MiB."""
    if not has_madvise:
        monkeypatch.setattr(image, "_madvise", lambda: None)
    monkeypatch.setattr(image, "HUGE_PAGE_BYTES", 1 << 60)
    pages = 512

    def faults_of_writing(view: memoryview) -> int:
        target = np.frombuffer(view, np.uint8)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        target[:] = 7
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    assert faults_of_writing(memoryview(image.map_memory(pages * 4096))) >= pages
    pool = ArenaPool()
    buffer = pool.take(pages * 4096)
    assert faults_of_writing(buffer.view) < pages // 10
    assert pool.reserve(pages * 4096)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    pool.take(pages * 4096)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < pages // 10


def test_warming_keeps_what_is_written() -> None:
    """A kept buffer that is taken for more bytes than before is warmed further."""
    memory = image.map_memory(64 * KIB)
    memory[:] = bytes(range(256)) * 256
    image._prefault(memory, 0, 64 * KIB)
    assert memory[:] == bytes(range(256)) * 256


def test_threads_do_not_share_buffers() -> None:
    pool, wrong = ArenaPool(), []

    def work(mark: int) -> None:
        for turn in range(60):
            buffer = pool.take((20 + 10 * (turn % 5)) * KIB)
            fill(buffer, mark)
            if not holds(buffer, mark):
                wrong.append(mark)
            buffer.release()

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong and pool.taken_bytes == 0

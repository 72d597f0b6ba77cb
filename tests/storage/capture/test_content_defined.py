"""Content-defined cuts: the same with and without NumPy, and at home in the content."""

import functools
import random
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from snapline.storage.capture.chunking import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNK_BYTES_NORMAL,
    cut,
    gear_table,
    plain_candidates,
    vector_candidates,
)
from snapline.storage.disk.record import digest_of

MIB = 1024 * 1024


def pieces(data: bytes) -> list[bytes]:
    result, start = [], 0
    for size in cut(data):
        result.append(data[start : start + size])
        start += size
    assert b"".join(result) == data
    return result


@functools.lru_cache(maxsize=16)
def digests(data: bytes) -> list[bytes]:
    return [digest_of(piece) for piece in pieces(data)]


@functools.cache
def prose(size_bytes: int, seed: int = 1) -> bytes:
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(500)]
    return " ".join(draw.choices(words, k=size_bytes // 5)).encode()[:size_bytes]


def hash_by_definition(window: bytes) -> int:
    """The sum that the loop amounts to: the last byte counts once, the one before twice, and so on."""
    return sum(gear_table()[byte] << age for age, byte in enumerate(reversed(window))) % 2**32


def test_cuts_never_change() -> None:
    """Pinned: with other cuts each blob of a running fleet would be stored again after an upgrade."""
    assert gear_table()[:3] == (3920963534, 2476909523, 3034305268)
    assert cut(random.Random(7).randbytes(MIB // 2)) == [88899, 66457, 20583, 66359, 105638, 79181, 97171]
    assert cut(prose(MIB // 2)) == [77610, 123992, 74666, 22935, 26771, 88563, 31776, 70965, 7010]


def test_a_candidate_depends_on_the_32_bytes_before_it() -> None:
    data = random.Random(2).randbytes(300_000)
    candidates = list(plain_candidates(memoryview(data)))
    assert len(candidates) > 5
    assert all(value == hash_by_definition(data[end - 32 : end]) < 2**18 for end, value in candidates)


def test_no_candidate_has_less_than_a_whole_window_before_it() -> None:
    """Else it would depend on where the data begins."""
    pytest.importorskip("numpy")
    pairs = [bytes((a, b)) for a in range(256) for b in range(256)]
    small = [pair for pair in pairs if hash_by_definition(pair) < 2**18]
    assert small
    for pair in small:
        data = memoryview(pair + bytes(40))
        assert [end for end, _ in plain_candidates(data) if end < 32] == []
        assert list(vector_candidates(data)) == list(plain_candidates(data))


@pytest.mark.parametrize(
    "size", [0, 1, 31, 32, 33, 65536, 65536 + 30, 65536 + 31, 65536 + 32, 131072, 131072 + 40, 200_001]
)
def test_candidates_are_the_same_with_and_without_numpy(size: int) -> None:
    """At the borders of NumPy's blocks above all."""
    pytest.importorskip("numpy")
    data = memoryview(random.Random(size).randbytes(size))
    assert list(vector_candidates(data)) == list(plain_candidates(data))


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(1, 3000), st.integers(0, 2**32))
def test_candidates_of_repetitive_data_are_the_same(unit: bytes, times: int, seed: int) -> None:
    pytest.importorskip("numpy")
    data = memoryview(unit * times + random.Random(seed).randbytes(20_000) + unit * times)[:150_000]
    assert list(vector_candidates(data)) == list(plain_candidates(data))


def test_cuts_are_the_same_where_numpy_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(3).randbytes(MIB) + bytes(MIB // 2)
    with_numpy = cut(data)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert cut(data) == with_numpy


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_any_buffer(kind: type) -> None:
    data = random.Random(4).randbytes(MIB)
    assert cut(kind(data)) == cut(data)


@pytest.mark.parametrize("data", [random.Random(5).randbytes(16 * MIB), prose(4 * MIB), bytes(MIB + 5), b"ab" * MIB])
def test_sizes_are_within_their_limits(data: bytes) -> None:
    sizes = cut(data)
    assert sum(sizes) == len(data)
    assert all(CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX for size in sizes[:-1]) and 0 < sizes[-1] <= CHUNK_BYTES_MAX


def test_sizes_of_random_data_are_close_to_the_middle() -> None:
    sizes = cut(random.Random(6).randbytes(16 * MIB))
    assert 0.9 * CHUNK_BYTES_NORMAL < sum(sizes) / len(sizes) < 1.3 * CHUNK_BYTES_NORMAL
    assert sum(size < CHUNK_BYTES_NORMAL // 2 for size in sizes) < len(sizes) / 8


def test_a_run_of_one_byte_is_cut_into_equal_pieces() -> None:
    """Whichever byte it is: so zeros are stored once."""
    assert all(-value % 2**32 >= 2**18 for value in gear_table()), "a run of a byte b has the hash -G[b]"
    assert cut(bytes(MIB)) == [CHUNK_BYTES_MAX] * 4 and cut(b"") == []


def test_100_bytes_inserted_into_16_mib_give_at_most_3_new_chunks() -> None:
    """At any place. Once in some 700 places the cuts take longer to meet again: those drawn here show no such one."""
    data, draw = random.Random(8).randbytes(16 * MIB), random.Random(9)
    old = set(digests(data))
    for _ in range(5):
        place = draw.randrange(len(data))
        assert sum(name not in old for name in digests(data[:place] + draw.randbytes(100) + data[place:])) <= 3


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 2 * MIB), st.integers(0, 500), st.binary(max_size=500))
def test_cuts_meet_again_behind_any_edit(seed: int, place: int, deleted: int, inserted: bytes) -> None:
    """An oracle for all examples: what is changed are bytes around the edit, and a bounded number of chunks behind it."""
    data = random.Random(seed % 4).randbytes(2 * MIB) if seed % 2 else prose(2 * MIB, seed % 4)
    old, new = digests(data), digests(data[:place] + inserted + data[place + deleted :])
    same_front = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    assert sum(cut(data)[:same_front]) >= place - CHUNK_BYTES_MAX, "chunks that end before the edit stay"
    assert sum(name not in set(old) for name in new) <= 10

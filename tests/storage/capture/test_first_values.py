"""The first values of arrays as NumPy finds them, and as files that NumPy reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent_runtime.test_difference import Memory

from snapline.errors import UsageError
from snapline.storage.capture.saved_value_formats import first_values, write_npy
from snapline.storage.capture.saved_values import Content, SavedArray
from snapline.storage.capture.values import ArrayHead

DTYPES = ["<f8", ">f4", "<f2", "<i8", ">u8", "|i1", "|u1", ">i4", "<c16", "<c8", "|b1", "<U5", ">U2", "|S3"]


def saved(array: Any, order: str, chunk_bytes: int) -> tuple[SavedArray, Memory]:
    """The array in a record of its own (`chunk_bytes` 0), or as a part in chunks."""
    data = array.tobytes(order="F" if order == "F" else "C")
    head, memory = ArrayHead(array.dtype.str, array.shape, order="F" if order == "F" else "C"), Memory()
    sizes = [min(chunk_bytes, len(data) - start) for start in range(0, len(data), chunk_bytes or 1)]
    content = memory.content(data, sizes, chunk_bytes=chunk_bytes) if chunk_bytes else Content(data, None, memory.read)
    return SavedArray(head, content, is_tensor=False), memory


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    count = int(np.prod(shape))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    if dtype.kind in "US":
        return np.array([str(n) for n in numbers.integers(0, 10**6, count)], dtype).reshape(shape)
    return numbers.integers(0, 120, count).astype(dtype).reshape(shape)


def told(value: object) -> object:
    return str(value) if isinstance(value, complex) else value


@settings(max_examples=200, deadline=None)
@given(arrays(), st.sampled_from("CF"), st.sampled_from([0, 8, 48, 1000]), st.integers(1, 10))
def test_the_first_values_are_those_that_numpy_finds(array: Any, order: str, chunk_bytes: int, count: int) -> None:
    found, _ = saved(array, order, chunk_bytes)
    assert first_values(found, count) == [told(value) for value in array.ravel()[:count].tolist()]


def test_no_more_than_the_chunks_of_these_values_is_read() -> None:
    array = np.arange(100_000.0).reshape(100, 1000)
    for order, most in (("C", 1), ("F", 8)):
        found, memory = saved(array, order, 1024)
        assert first_values(found, 8) == list(range(8))
        assert memory.read_bytes <= most * 1024


def test_a_type_without_values_for_people_has_none() -> None:
    found, _ = saved(np.array(["2025-01-01"], "M8[D]"), "C", 0)
    assert first_values(found, 8) is None


@pytest.mark.parametrize(
    ("name", "data", "values"), [("float32", b"\0\0\x80\x3f", [1.0]), ("bfloat16", b"\x80\x3f", [1.0])]
)
def test_tensors_are_told_by_the_names_of_torch(name: str, data: bytes, values: list[object]) -> None:
    content = Content(data, None, lambda part: b"")
    assert first_values(SavedArray(ArrayHead(name, (1,)), content, is_tensor=True), 8) == values


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays(), st.sampled_from("CF"), st.sampled_from([0, 48]))
def test_numpy_reads_the_file_that_is_written(tmp_path: Path, array: Any, order: str, chunk_bytes: int) -> None:
    path = tmp_path / "array.npy"
    path.unlink(missing_ok=True)
    found, _ = saved(array, order, chunk_bytes)
    assert write_npy(found, path) == path.stat().st_size
    read = np.load(path, allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape) and np.array_equal(read, array)


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    found, _ = saved(np.arange(3), "C", 0)
    path = tmp_path / "array.npy"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        write_npy(found, path)
    assert path.read_text() == "mine"
    with pytest.raises(UsageError, match=r"ends in \.npy"):
        write_npy(found, tmp_path / "array.csv")


def test_a_type_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    tensor = SavedArray(ArrayHead("bfloat16", (1,)), Content(b"ab", None, lambda part: b""), is_tensor=True)
    with pytest.raises(UsageError, match="bfloat16"):
        write_npy(tensor, tmp_path / "tensor.npy")

"""Bytes that are no history. The store compares digests before; but a file may come from a stranger."""

import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from tests.storage.capture.segments_kept import Message, read

from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture.history import History
from snapline.storage.capture.image import PART_HISTORY
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import StatePart


class Other(msgspec.Struct):
    text: str


def operation(code: int, body: bytes) -> bytes:
    return struct.pack("<BI", code, len(body)) + body


def restore_content(content: bytes, count: int = 0, record_type: Any = int) -> History[Any]:
    part = StatePart(
        *(PART_HISTORY, msgspec.msgpack.encode([count]), len(content), 0, [len(content)], digest_of(content))
    )
    return History.restore(record_type, part, content)


ONE = operation(1, b"\x91\x01")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x01", "cut off"),
        (operation(1, b"\x91\x01")[:-1], "longer than its segment"),
        (operation(9, b""), "unknown code 9"),
        (operation(0, b""), "unknown code 0"),
        (operation(1, b"\xc1"), "cannot be read"),
        (operation(1, b"\xdd\xff\xff\xff\xff\x01"), "cannot be read"),
        (operation(1, b"\x91\x01\x01"), "cannot be read"),
        (operation(2, b"123"), "no index"),
        (operation(2, struct.pack("<Q", 0) + b"\x91\x01"), "has those up to 1 replaced"),
        (ONE + operation(2, struct.pack("<Q", 2**64 - 1) + b"\x91\x01"), "changed at index"),
        (ONE + operation(3, struct.pack("<QQ", 0, 2)), "loses those up to 2"),
        (ONE + operation(3, struct.pack("<QQ", 2**64 - 1, 2**64 - 1)), "loses those"),
        (ONE + operation(3, b"123"), "wrong length"),
        (ONE + operation(4, struct.pack("<Q", 2) + b"\x91\x01"), "changed at index 2"),
        (ONE, "should have 0 records, its segments give 1"),
    ],
)
def test_refuses_bytes_that_are_no_history(content: bytes, message: str) -> None:
    with pytest.raises(DamagedDataError, match=message):
        restore_content(content)


@pytest.mark.parametrize(
    "part",
    [
        StatePart(PART_HISTORY, b"\x91\x01", 8, 0, [8], digest_of(ONE)),
        StatePart(PART_HISTORY, b"\x91\x01", 7, 0, [7, 1], digest_of(ONE)),
        StatePart(PART_HISTORY, b"\xc0", 7, 0, [7], digest_of(ONE)),
        StatePart(PART_HISTORY, b"", 7, 0, [7], digest_of(ONE)),
    ],
)
def test_refuses_a_part_that_does_not_fit(part: StatePart) -> None:
    with pytest.raises(DamagedDataError):
        History.restore(int, part, ONE)


def test_a_record_of_another_type_is_named() -> None:
    with pytest.raises(EncodingError, match="a record of a history is no <class 'str'>"):
        restore_content(ONE, 1, str)
    with pytest.raises(EncodingError, match="cannot be decoded"):
        restore_content(ONE, 1, Message | Other)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.binary(max_size=24)), max_size=5), st.integers(0, 3))
def test_no_bytes_make_it_fail_otherwise(operations: list[tuple[int, bytes]], cut: int) -> None:
    content = b"".join(operation(code, body) for code, body in [(1, b"\x93\x01\x02\x03"), *operations])
    content = content[: len(content) - cut]
    for record_type in (int, Any):
        try:
            back = restore_content(content, 3, record_type)
        except (DamagedDataError, EncodingError):
            continue
        assert list(back) == read([content], record_type)

"""JSON of strangers is what it says, or is refused."""

import pytest

from snapline.errors import UsageError
from snapline.messages.json_text import read_json

BAD: dict[bytes | str, str] = {
    b'{"a": "\xff"}': "it is not UTF-8",
    b"\xff\xfe{\x00}\x00": "it is not UTF-8",
    "\udcff": "Expecting value",
    '"\\ud800"': "it is not UTF-8",
    "[" * 100_000: "nested too deep",
    '{"a":' * 100_000: "nested too deep",
    "[NaN]": "NaN is no number of JSON",
    "[-Infinity]": "-Infinity is no number of JSON",
    "[1e999]": "1e999 is too large for a number",
    "[18446744073709551616]": "an integer has more than 64 bits",
    "[" + "9" * 10_000 + "]": "Exceeds the limit",
    '{"a": {"b": 1, "b": 2}}': "'b' stands twice in one object",
    '{"a": 1} x': "Extra data",
    "": "Expecting value",
}


@pytest.mark.parametrize(
    ("given", "reason"), BAD.items(), ids=[reason or str(n) for n, reason in enumerate(BAD.values())]
)
def test_what_is_no_json_of_a_message_is_refused(given: bytes | str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_json(given)


def test_the_rest_is_read() -> None:
    assert read_json('{"a": [1, -9223372036854775808, 18446744073709551615, 0.5, "ü", null, true]}'.encode()) == {
        "a": [1, -(2**63), 2**64 - 1, 0.5, "ü", None, True]
    }

"""Validation of untrusted JSON from HTTP request bodies and command-line arguments.

JSON parsers differ in what they accept. An unusual value that one parser accepts may cause a failure later. So this module rejects text
that is not UTF-8, duplicate keys in an object, and excessive nesting. It also rejects numbers that JSON or a message cannot represent, such
as NaN and infinity. The error message is a single sentence.
"""

import json
import math
from typing import Any

import msgspec

from snapline.errors import UsageError

NESTED = "it is nested too deep"


def read_json(given: bytes | str) -> Any:  # whatever it is
    """Parse a JSON text and return its value.

    Raises:
        UsageError: the text is invalid. The error message is a clause that callers insert into a sentence.
    """
    try:
        text = given.decode() if isinstance(given, bytes) else given
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
        msgspec.msgpack.encode(value)  # rejects integers that are too large, and unpaired surrogates
    except RecursionError:
        raise UsageError(NESTED) from None
    except UnicodeError:
        raise UsageError("it is not UTF-8") from None
    except OverflowError:
        raise UsageError("an integer has more than 64 bits") from None
    except ValueError as error:
        raise UsageError(str(error)) from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{duplicate[:40]!r} stands twice in one object")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number

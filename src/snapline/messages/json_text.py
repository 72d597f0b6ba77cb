"""JSON of strangers: requests over HTTP, and arguments of the command line.

Parsers differ in what they let pass, and what they let pass fails later, elsewhere. So it is refused at the border, with one sentence: what is not
UTF-8, a number that JSON does not know (NaN, an infinity) or that a message cannot hold, a key that occurs twice in an object, nesting without end.
"""

import json
import math
from typing import Any

import msgspec

from snapline.errors import UsageError

NESTED = "it is nested too deep"


def read_json(given: bytes | str) -> Any:  # whatever it is
    """The value of a JSON text.

    Raises:
        UsageError: it is none; says why, to be put into a sentence.
    """
    try:
        text = given.decode() if isinstance(given, bytes) else given
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
        msgspec.msgpack.encode(found)  # integers that are too large, and halves of surrogate pairs
    except RecursionError:
        raise UsageError(NESTED) from None
    except UnicodeError:
        raise UsageError("it is not UTF-8") from None
    except OverflowError:
        raise UsageError("an integer has more than 64 bits") from None
    except ValueError as error:
        raise UsageError(str(error)) from error
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:40]!r} stands twice in one object")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number

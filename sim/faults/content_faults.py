"""Faults in the content of recorded answers, as those of language models have them: cut off, of another shape, or a refusal.

A fault changes the longest text in an answer, which is where a model's own words are.
"""

from typing import Any

import msgspec

from snapline.storage.log.answer_files import RecordedAnswer

TRUNCATED, MISNAMED, REFUSED = "truncated", "under a wrong name", "a refusal"
CONTENT_FAULTS = (TRUNCATED, MISNAMED, REFUSED)

REFUSAL = "I cannot help with that."

_Path = tuple[Any, ...]
"""Keys and indexes that lead to a text."""


def with_content_fault(answer: RecordedAnswer, how: str) -> RecordedAnswer:
    """Return the answer with one of the `CONTENT_FAULTS`. An answer without any text is returned unchanged."""
    value: Any = msgspec.msgpack.decode(answer.result)
    path = max(_texts(value), key=lambda found: len(found[1]), default=None)
    if path is None:
        return answer
    return msgspec.structs.replace(answer, result=msgspec.msgpack.encode(_changed(value, path[0], how)))


def _texts(value: Any, path: _Path = ()) -> list[tuple[_Path, str]]:
    if isinstance(value, str):
        return [(path, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in _texts(inner, (*path, key))]


def _changed(value: Any, path: _Path, how: str) -> Any:
    if not path:
        return {"text": value} if how == MISNAMED else REFUSAL if how == REFUSED else value[: len(value) // 2]
    first, *rest = path
    if how == MISNAMED and not rest and isinstance(value, dict):
        return {f"{key}_" if key == first else key: inner for key, inner in value.items()}
    inner = _changed(value[first], tuple(rest), how)
    if isinstance(value, dict):
        return {**value, first: inner}
    return [*value[:first], inner, *value[first + 1 :]]

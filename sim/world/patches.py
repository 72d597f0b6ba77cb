"""Attributes of the product replaced for the time of a run, and put back."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

Patch = tuple[Any, str, Any]
"""Object, attribute, replacement."""


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Put replacements in, and take them out again."""
    before = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in reversed(before):
            if original is None:  # it was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)

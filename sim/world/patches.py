"""Temporary replacement of the product's attributes for one run."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

Patch = tuple[Any, str, Any]
"""Object, attribute, replacement."""


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Set the replacements while inside, and restore the originals afterwards."""
    before = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in reversed(before):
            if original is None:  # the attribute was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)

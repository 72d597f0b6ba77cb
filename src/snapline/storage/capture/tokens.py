"""Tokens: numbers that name one content, and are never used for another.

All parts of an agent's image share one table `token -> chunk`. So every kind of part must draw its tokens here: two counters
would give two contents one token, and a checkpoint would silently hold the wrong bytes.

A token means nothing outside the process that drew it, and is never stored.
"""

import itertools

BLOCK_TOKENS = 1 << 32
"""Tokens in a block: what is cut into pieces later, by another thread, numbers them `first`, `first + 1`, … itself. A blob
of 2**32 pieces of 16 KiB would have 64 TiB."""

_blocks = itertools.count(1)


def fresh_token() -> int:
    """Return the first number of a block that no other caller has. Never 0. Any thread may call it."""
    return next(_blocks) * BLOCK_TOKENS

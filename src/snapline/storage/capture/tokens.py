"""Tokens: numbers that identify one content each, and are never reused.

All parts of an agent's image share one table token → chunk. So every kind of part must draw its tokens here: with two counters,
two contents could have one token, and a checkpoint would silently hold the wrong bytes.

A token is meaningless outside the process that drew it, and is never stored.
"""

import itertools

BLOCK_TOKENS = 1 << 32
"""Tokens in a block. A blob that another thread cuts later numbers its chunks `first`, `first + 1`, …. A blob
of 2**32 chunks of 16 KiB would have 64 TiB."""

_blocks = itertools.count(1)


def fresh_token() -> int:
    """Return the first number of a block that no other caller has. Never 0. Any thread may call it."""
    return next(_blocks) * BLOCK_TOKENS

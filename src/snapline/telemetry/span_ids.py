"""What spans of epochs and recoveries are called.

The parts of an epoch, and of a recovery, are told by several processes and stand in one trace. Its ids follow from the store and the number, so nobody
has to tell anybody.
"""

from hashlib import blake2b

import msgspec


class SpanIds(msgspec.Struct, frozen=True):
    """Of one span, and of its trace."""

    trace: int
    span: int


def checkpoint_ids(store: str, epoch: int) -> SpanIds:
    """Of the span that is one epoch."""
    return _derived("checkpoint", store, epoch)


def recovery_ids(store: str, plan: int) -> SpanIds:
    """Of the span that is one recovery."""
    return _derived("recovery", store, plan)


def _derived(what: str, store: str, number: int) -> SpanIds:
    digest = blake2b(f"{what} {store} {number}".encode(), person=b"span", digest_size=24).digest()
    return SpanIds(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big"))

"""Ids of the spans of epochs and recoveries.

Several processes report parts of an epoch or of a recovery, which form one trace. The ids are derived from the store and the number, so
processes need not exchange them.
"""

from hashlib import blake2b

import msgspec


class SpanIds(msgspec.Struct, frozen=True):
    """Ids of one span, and of its trace."""

    trace: int
    span: int


def checkpoint_ids(store: str, epoch: int) -> SpanIds:
    """Return the ids of an epoch's span."""
    return _derived("checkpoint", store, epoch)


def recovery_ids(store: str, plan: int) -> SpanIds:
    """Return the ids of a recovery's span."""
    return _derived("recovery", store, plan)


def _derived(what: str, store: str, number: int) -> SpanIds:
    digest = blake2b(f"{what} {store} {number}".encode(), person=b"span", digest_size=24).digest()
    return SpanIds(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big"))

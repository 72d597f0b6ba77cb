"""Returns of a fleet to earlier snapshots, as the coordinator keeps them and agents learn of them."""

from collections.abc import Sequence

import msgspec

REQUESTS_BYTES_MAX = 8 * 1024
"""Largest encoded size of what a turn had requested before it asked for a rollback."""

_requests_encoder = msgspec.msgpack.Encoder()
_requests_decoder = msgspec.msgpack.Decoder(tuple[tuple[str, str, str], ...])


def encode_requests(requests: Sequence[tuple[str, str, str]]) -> bytes:
    """Encode kind, name and outcome of requests, oldest first. If they take more than 8 KiB, the oldest are left out."""
    kept = list(requests)
    while len(encoded := _requests_encoder.encode(kept)) > REQUESTS_BYTES_MAX:
        del kept[: 1 + len(kept) // 8]
    return encoded if kept else b""


class PastRollback(msgspec.Struct, frozen=True, gc=False):
    """A return of the whole fleet to an earlier snapshot (`Context.rolled_back`).

    Attributes:
        number: number of the return among the fleet's, starting at 1.
        epoch: epoch of the snapshot.
        agent, place: the agent that called `ctx.rollback`, and the function and line of the call. Both are "" if an operator restored the
            fleet.
        reason: the reason that the agent or the operator gave.
        done: `requests` in encoded form.
    """

    number: int
    epoch: int
    agent: str
    place: str
    reason: str
    done: bytes = b""

    @property
    def requests(self) -> tuple[tuple[str, str, str], ...]:
        """Return what the agent's turn had requested before it asked for the rollback: kind, name and outcome, oldest first. Plain turns
        have no requests. Of many requests, only the newest are kept."""
        return _requests_decoder.decode(self.done) if self.done else ()

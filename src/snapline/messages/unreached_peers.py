"""Hosts that a host reports as unreached in its heartbeats."""

import msgspec


class UnreachedPeer(msgspec.Struct, frozen=True, gc=False):
    """Peer host of the plan, and how long there has been no link to it. `is_waited`: a message or request waits for the link."""

    host: str
    host_start: int
    elapsed_ns: int
    is_waited: bool

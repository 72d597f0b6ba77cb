"""What a host says in its heartbeats of hosts that it does not reach."""

import msgspec


class UnreachedPeer(msgspec.Struct, frozen=True, gc=False):
    """Another host of the plan, and how long there has been no link to it. `is_waited`: something waits for the link."""

    host: str
    host_start: int
    elapsed_ns: int
    is_waited: bool

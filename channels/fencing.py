"""Fencing of links by cluster, hosts, host starts and recovery plan (G9).

The fence is two-sided. A peer older than this side's information has been replaced, so its refusal is final. A newer peer
is refused only until this side learns about it: the coordinator informs all hosts, but not at the same instant.
"""

from typing import NamedTuple

from snapline.channels.frame import LinkHello, Refused

LINK_VERSION = 2
"""Version of frames and rules; another one is refused permanently."""


class LinkIdentity(NamedTuple):
    """Identity on which both sides must agree for the whole life of a link."""

    cluster: str
    host: str
    host_start: int
    peer: str
    peer_start: int
    plan: int

    def hello(self, attempt: int, received: int, floor: int) -> LinkHello:
        """Return the first message on a stream: this side's identity, the highest link number received, and its floor."""
        return LinkHello(
            cluster=self.cluster,
            host=self.host,
            host_start=self.host_start,
            peer_start=self.peer_start,
            attempt=attempt,
            plan=self.plan,
            received=received,
            version=LINK_VERSION,
            floor=floor,
        )


def judge_identity(hello: LinkHello, link: LinkIdentity) -> Refused | None:
    """Return the refusal of a Hello whose identity does not match this link; None accepts it."""
    if hello.version != LINK_VERSION:
        return Refused(f"link version {hello.version}, {link.host} speaks {LINK_VERSION}: update the older", True)
    if hello.cluster != link.cluster:
        return Refused(f"cluster {hello.cluster!r}, but {link.host} belongs to {link.cluster!r}", True)
    if hello.host != link.peer:
        return Refused(f"host {hello.host!r}, but this link is for {link.peer!r}", True)
    for field, theirs, ours in (
        ("start", hello.host_start, link.peer_start),
        ("recovery plan", hello.plan, link.plan),
    ):
        if theirs < ours:
            return Refused(f"{field} {theirs} of {hello.host} has been replaced by {ours}", True)
        if theirs > ours:
            return Refused(f"{field} {theirs} of {hello.host} is not known here yet, only {ours}: try again", False)
    if hello.peer_start != link.host_start:
        return Refused(
            f"this is start {link.host_start} of {link.host}, {hello.host} looks for {hello.peer_start}", False
        )
    return None

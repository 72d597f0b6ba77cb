"""Parts of a link transport: the owner that feeds the cores, a stream, and a dialled peer."""

import asyncio
from typing import Protocol

import grpc
import grpc.aio

from snapline.channels.frame import Frame, LinkHello, Refused


class LinkOwner(Protocol):
    """Owner that feeds the cores. All calls come from the event loop, never overlap, and must not block.

    These methods may call `LinkTransport`'s methods.
    """

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        """Decide, on the accepting side, whether a peer's stream is refused; None accepts it. Has no side effects.

        Usually `core.judge(hello)`, or `Refused("… not known here yet", is_final=False)` if the peer has no core.
        After None, the transport calls `closed` (if the peer had a stream), `opened`, and `received` with the Hello.
        """

    def dial_requested(self, hello: LinkHello) -> None:
        """Dial a host that may not dial this one, at its request. The request is not authenticated; the address is already known."""

    def opened(self, peer: str, attempt: int) -> bool:
        """Feed `StreamOpened`: the stream is now the peer's current one, on either side. Returning False closes it silently."""

    def received(self, peer: str, frame: Frame) -> None:
        """Feed `FrameReceived`: a frame of the current stream."""

    def next_frame(self, peer: str) -> Frame | None:
        """Feed `WriteReady`: the writer is free. After None, the transport calls again on `LinkTransport.wake`."""

    def closed(self, peer: str, error: str | None) -> None:
        """Feed `StreamClosed`: the current stream is gone. Called once per `opened`; `error` is None if this side closed it."""

    def address_of(self, peer: str) -> str:
        """Return the peer's listening address ("host:port"); empty if unknown."""

    def is_remote(self, peer: str) -> bool:
        """Return whether the peer runs on another machine; only then are large frames compressed."""


class PeerStream:
    """One stream, on either side. `is_live` holds until the decision to end it; nothing is fed or written afterwards."""

    __slots__ = (
        "_waiter",
        "attempt",
        "ended",
        "error",
        "is_closing",
        "is_live",
        "is_writing",
        "peer",
        "refusal",
        "start",
    )

    def __init__(self, peer: str, *, start: int, attempt: int) -> None:
        self.peer = peer
        self.start = start
        self.attempt = attempt
        self.is_live = True
        self.is_closing = False
        self.is_writing = False
        self.refusal: Refused | None = None
        self.error: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None


class DialledPeer:
    """Dialling state of one peer."""

    __slots__ = ("address", "attempt", "channel", "generation", "is_renewing", "peer", "task")

    def __init__(self, peer: str, address: str) -> None:
        self.peer = peer
        self.address = address
        self.attempt = 0
        self.channel: grpc.aio.Channel | None = None
        self.generation = 0
        self.is_renewing = False
        self.task: asyncio.Task[None] | None = None

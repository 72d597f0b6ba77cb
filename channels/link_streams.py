"""Parts of a link transport: the owner that feeds the cores, one stream, one dialled peer."""

import asyncio
from typing import Protocol

import grpc
import grpc.aio

from snapline.channels.frame import Frame, LinkHello, Refused


class LinkOwner(Protocol):
    """Owner that feeds the cores. All calls come from the event loop, never overlap, and must not block.

    `LinkTransport`'s methods may be called from inside them.
    """

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        """Acceptor: a peer asks for a stream. Refuse it, or None to go on; without side effects.

        Usually `core.judge(hello)`, or `Refused("… not known here yet", is_final=False)` if there is no core for it.
        After None follow `closed` (if the peer had a stream), `opened`, and `received` with the Hello.
        """

    def knocked(self, hello: LinkHello) -> None:
        """A host that may not dial this one asks to be dialled. Anybody may say so; the address is known beforehand."""

    def opened(self, peer: str, attempt: int) -> bool:
        """A stream is now the peer's current one, on either side: `StreamOpened`. False closes it again, silently."""

    def received(self, peer: str, frame: Frame) -> None:
        """A frame of the current stream: `FrameReceived`."""

    def next_frame(self, peer: str) -> Frame | None:
        """The writer is free: `WriteReady`. None = nothing now; `LinkTransport.wake` makes it ask again."""

    def closed(self, peer: str, error: str | None) -> None:
        """The current stream is gone: `StreamClosed`. Once per `opened`; `error` is None if this side meant it."""

    def address_of(self, peer: str) -> str:
        """Return the peer's listening address ("host:port"); empty if unknown."""

    def is_remote(self, peer: str) -> bool:
        """Return whether the peer runs on another machine; only then are large frames compressed."""


class PeerStream:
    """One stream, on either side. `is_live` until it is decided that it ends; nothing is fed or written after that."""

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


class Dialling:
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

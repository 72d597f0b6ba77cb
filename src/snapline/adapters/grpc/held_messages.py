"""Frames of other hosts that announce an epoch are held until the service is ready for it; each link keeps its order.

The host records an epoch when it first learns of it, and refuses it if the service is not ready. The member can delay the coordinator's message and
the stamps of calls. Frames are delayed here, as if they were still in transit, but not so long that the link is suspected.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from snapline.channels.frame import Frame, Items, LinkHello, Marker, decode_control

HELD_S = 1.0
"""Longest time that a frame is held before it is delivered anyway. Links are suspected after 2 s of silence."""

HELD_CHECK_PERIOD_S = 0.005
"""Time between two checks, as `member.READY_LOOK_S`."""


class HeldFrames:
    """See the module. `receive`: passes a frame to the host; `may`: whether the service may record an epoch later than `begun()` now."""

    def __init__(
        self, receive: Callable[[str, Frame], None], begun: Callable[[], int], may: Callable[[], bool]
    ) -> None:
        self._receive, self._begun, self._may = receive, begun, may
        self._held: dict[str, deque[tuple[int, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, peer: str, frame: Frame) -> None:
        """Receive a frame. Raise ProtocolError if a control item in it is invalid."""
        held, newest = self._held.get(peer), newest_epoch(frame)
        if held is not None:
            held.append((newest, frame))
        elif newest <= self._begun() or self._may():
            self._receive(peer, frame)
        else:
            held = self._held[peer] = deque([(newest, frame)])
            task = asyncio.get_running_loop().create_task(self._release(peer, held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _release(self, peer: str, held: "deque[tuple[int, Frame]]") -> None:
        until_s = time.monotonic() + HELD_S
        while held and self._held.get(peer) is held:
            newest, frame = held[0]
            if newest > self._begun() and time.monotonic() < until_s and not self._may():
                await asyncio.sleep(HELD_CHECK_PERIOD_S)
            else:
                held.popleft()
                self._receive(peer, frame)
        if self._held.get(peer) is held:
            del self._held[peer]

    def drop(self, peer: str) -> None:
        """Drop the frames of a closed stream; the link sends unacknowledged frames again."""
        self._held.pop(peer, None)

    def drop_all(self) -> None:
        """Drop all frames: links end with their plan."""
        self._held.clear()


def newest_epoch(frame: Frame) -> int:
    """Return the newest epoch that a frame announces; 0: none."""
    match frame.body:
        case LinkHello(floor=floor):
            return floor
        case Items(channel=channels, payload=payloads, epoch=epochs):
            controls = [
                decode_control(payload) for channel, payload in zip(channels, payloads, strict=True) if not channel
            ]
            return max([0, *epochs, *(control.epoch for control in controls if isinstance(control, Marker))])
    return 0

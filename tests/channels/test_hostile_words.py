"""Numbers out of range on an established link: the stream may end, the core and the link go on (G9).

Everything passes through the codec, as on the wire. After each frame the real peer opens its next stream and is welcome.
"""

import random

import pytest

from snapline.channels.channel import WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import Bye, Frame, Items, LinkHello, decode_frame, encode_frame
from snapline.channels.link import LinkCore
from snapline.channels.link_events import (
    LINK_VERSION,
    ByeRequested,
    ChannelOpened,
    CloseStream,
    FrameReceived,
    ItemsSent,
    Refuse,
    ReportEstablished,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
)
from snapline.errors import ProtocolError

HUGE = 2**64 - 1
NUMBERS = (0, 1, 2, 3, 5, 1000, WINDOW_ITEMS, WINDOW_BYTES, 2**31, 2**32 - 1, 2**62, 2**63, HUGE)


class Link:
    """One side, `h2`, and what its peer `h1` says; `received` is what the peer has of it."""

    def __init__(self, *, is_dialler: bool) -> None:
        names = {"host": "h2", "host_start": 1, "peer": "h1", "peer_start": 1}
        self.core = LinkCore(cluster="c", plan=1, is_dialler=is_dialler, **names)  # type: ignore[arg-type]
        self.attempt = 0
        self.now_ns = 0
        self.open()

    def handle(self, event: object) -> list[object]:
        self.now_ns += 1000
        commands = self.core.handle(self.now_ns, event)  # type: ignore[arg-type]
        self.core.validate()
        return list(commands)

    def hear(self, frame: Frame) -> list[object]:
        try:
            frame = decode_frame(encode_frame(frame))
        except (ProtocolError, ValueError):
            return [CloseStream("it is not decoded", True)]
        return self.handle(FrameReceived(frame))

    def hello(self, **changes: int) -> Frame:
        facts = {"host_start": 1, "peer_start": 1, "attempt": self.attempt, "plan": 1, "received": self.core._out.acked}
        body = LinkHello("c", "h1", **facts | changes, version=LINK_VERSION)
        return Frame(0, 0, WINDOW_ITEMS, WINDOW_BYTES, body=body)

    def open(self) -> None:
        """The real peer's next stream."""
        self.attempt += 1
        self.handle(StreamOpened(self.attempt))
        self.handle(WriteReady())
        established = [type(each) for each in self.hear(self.hello())]
        self.handle(WriteReady())
        assert ReportEstablished in established and self.core.is_established, established

    def drain(self) -> None:
        while any(isinstance(each, WriteFrame) for each in self.handle(WriteReady())):
            pass


def hostile(chance: random.Random) -> Frame:
    def number() -> int:
        return chance.choice(NUMBERS)

    body: Items | LinkHello | Bye | None = None
    if chance.random() < 0.4:
        count = chance.randrange(1, 4)
        body = Items([chance.choice([0, 1, 7, 2**32 - 1]) for _ in range(count)], [b"x"] * count, [number()])
    elif chance.random() < 0.3:
        body = LinkHello("c", "h1", number(), number(), number(), number(), number(), LINK_VERSION)
    credits = chance.randrange(3)
    numbers = [number() for _ in range(credits)]
    return Frame(
        number(), number(), number(), number(), [chance.choice([0, 1, 9]) for _ in range(credits)], numbers, body
    )


@pytest.mark.parametrize("is_dialler", [False, True])
def test_no_number_kills_a_link_or_locks_the_peer_out(is_dialler: bool) -> None:
    chance = random.Random(3)
    ended = 0
    for _ in range(400):
        link = Link(is_dialler=is_dialler)
        if chance.random() < 0.7:
            link.handle(ChannelOpened(1, "x", "y", 1, 1, 1))
            link.handle(ItemsSent([1, 1], [b"a", b"b"], [1]))
            link.drain()
        for _ in range(chance.randrange(1, 5)):
            written = link.core._out.written
            commands = link.hear(hostile(chance))
            assert link.core.items_room <= written + WINDOW_ITEMS
            assert link.core.bytes_room <= link.core._out.size_bytes + WINDOW_BYTES
            if any(isinstance(each, CloseStream | Refuse) for each in commands):
                ended += 1
                link.handle(StreamClosed())
                link.open()
            link.handle(TimerFired())
            link.drain()
    assert ended > 200
    link.handle(ByeRequested())


class Generous(LinkCore):
    """Any grant is taken."""

    def _check_grants(self, frame: Frame) -> None: ...


def test_a_link_that_takes_any_grant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Link.__init__.__globals__, "LinkCore", Generous)
    with pytest.raises(AssertionError):
        test_no_number_kills_a_link_or_locks_the_peer_out(False)


@pytest.mark.parametrize(
    "changes",
    [{"attempt": HUGE}, {"received": HUGE}, {"host_start": HUGE}, {"plan": HUGE}, {"peer_start": HUGE}],
    ids=str,
)
def test_a_hello_out_of_range_is_refused_and_the_next_one_is_welcome(changes: dict[str, int]) -> None:
    link = Link(is_dialler=False)
    link.handle(StreamClosed())
    if "attempt" not in changes:
        body = link.hello(attempt=link.attempt + 1, **changes).body
        assert isinstance(body, LinkHello) and link.core.judge(body) is not None
    else:
        link.attempt = HUGE
        link.handle(StreamOpened(HUGE))
        link.handle(StreamClosed())
        link.attempt = 1
    link.open()

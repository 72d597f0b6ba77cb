"""Frames wait for a service that is not ready only if they bring news, each link's in its order, and none for ever."""

import asyncio
import random

import pytest

from snapline.adapters.grpc.member import HELD_S, HeldFrames, newest_epoch
from snapline.channels.frame import Frame, Items, LinkHello, Marker, OpenChannel, encode_marker, encode_open

OPEN = OpenChannel(1, "a", "b", 1, 1, 1)


def stamped(epoch: int) -> Frame:
    return Frame(body=Items([1, 1], [b"x", b"y"], [epoch]))


def marked(epoch: int, stamp: int) -> Frame:
    return Frame(body=Items([1, 0], [b"x", encode_marker(Marker(epoch, [1], [1]))], [stamp, 0]))


FRAMES = [
    (Frame(), 0),
    (Frame(body=LinkHello("c", "h", 1, 1, 1, 1, 0, 2, floor=6)), 6),
    (stamped(4), 4),
    (marked(5, 3), 5),
    (Frame(body=Items([0], [encode_open(OPEN)], [0])), 0),
]


@pytest.mark.parametrize(("frame", "newest"), FRAMES)
def test_what_a_frame_brings_news_of(frame: Frame, newest: int) -> None:
    assert newest_epoch(frame) == newest


async def test_news_waits_and_order_stays() -> None:
    """Three links by chance, and a service that is ready now and then. What it has begun it learns from frames, as a host does."""
    chance = random.Random(7)
    begun, is_ready = 0, False
    came: dict[str, list[Frame]] = {"x": [], "y": [], "z": []}
    sent: dict[str, list[Frame]] = {"x": [], "y": [], "z": []}

    def receive(peer: str, frame: Frame) -> None:
        nonlocal begun
        newest = newest_epoch(frame)
        assert newest <= begun or is_ready, "news of an epoch for which the service is not ready"
        begun = max(begun, newest)
        came[peer].append(frame)

    held = HeldFrames(receive, lambda: begun, lambda: is_ready)
    waited = 0
    for number in range(300):
        peer, epoch = chance.choice("xyz"), number // 6
        frame = chance.choice([stamped(epoch), marked(epoch, max(0, epoch - 1)), stamped(max(0, epoch - 1)), Frame()])
        sent[peer].append(frame)
        held.received(peer, frame)
        is_ready = chance.random() < 0.1
        waited += any(len(came[peer]) < len(sent[peer]) for peer in sent)
        await asyncio.sleep(chance.choice([0, 0, 0.01]))
    is_ready = True
    async with asyncio.timeout(HELD_S):
        while came != sent:
            await asyncio.sleep(0.01)
    assert all(one is other for peer in sent for one, other in zip(came[peer], sent[peer], strict=True))
    assert waited > 30, "hardly anything has waited: this shows little"


async def test_who_is_never_ready_has_it_all_the_same_and_a_stream_that_is_gone_takes_what_is_held_along() -> None:
    came: list[tuple[str, Frame]] = []
    held = HeldFrames(lambda peer, frame: came.append((peer, frame)), lambda: 0, lambda: False)
    for peer in ("x", "y"):
        held.received(peer, stamped(1))
        held.received(peer, Frame())
    held.drop("y")
    await asyncio.sleep(HELD_S / 2)
    assert not came
    await asyncio.sleep(HELD_S)
    assert [peer for peer, _ in came] == ["x", "x"]

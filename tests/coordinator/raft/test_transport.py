"""The tick thread's side: nothing leaves before the sync, one view of who is connected, and bounds."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.coordinator.raft.peers_of import End, FakeNode, Raw, number_of, numbered

from snapline.coordinator.raft import raft_streams as streams_module
from snapline.coordinator.raft.messages import Message, encode_message
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode
from snapline.coordinator.raft.raft_streams import IncomingStream
from snapline.coordinator.raft.transport import EMPTY_DUMP_S, GrpcTransport
from snapline.errors import UsageError

C2, STRANGER = RaftNode("c2", ""), RaftNode("c9", "")
EMPTY_DUMP: Message = {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": None}


class Wired:
    """A transport of `c1`, connected to an `End` that is `c2`, and a raw caller that is `c2` too."""

    def __init__(self, transport_class: type[GrpcTransport] = GrpcTransport) -> None:
        self.transport_class = transport_class

    async def start(self) -> "Wired":
        self.c2 = await End("c2", ["c1"]).start()
        self.c1 = await End("c1", ["c2"], is_pumped=False).start()
        self.node = FakeNode()
        self.clock_s = 0.0
        self.events: list[Any] = []
        nodes = [RaftNode("c2", self.c2.address)]
        self.transport = self.transport_class(
            self.node, RaftNode("c1", ""), nodes, streams=self.c1.streams, clock=lambda: self.clock_s
        )
        self.transport.setOnNodeConnectedCallback(lambda node: self.events.append(("up", node.id)))
        self.transport.setOnNodeDisconnectedCallback(lambda node: self.events.append(("down", node.id)))
        self.transport.setOnMessageReceivedCallback(self.receive)
        self.on_message: Any = lambda node, message: None
        await self.node.tick_until(lambda: ("up", "c2") in self.events)
        self.raw = Raw(self.c1.address)
        assert await self.raw.hello("c2", 1, 1)
        return self

    def receive(self, node: RaftNode, message: Message) -> None:
        self.events.append(number_of(message))
        self.on_message(node, message)

    async def stop(self) -> None:
        await self.raw.close()
        self.transport.destroy()
        await self.c1.stop()
        await self.c2.stop()


@pytest.fixture
async def wired() -> AsyncIterator[Wired]:
    made = await Wired().start()
    yield made
    await made.stop()


async def arrived(wired: Wired) -> list[int]:
    await asyncio.sleep(0.1)
    return [number_of(message) for _, message in wired.c2.received_from if "command" in message]


async def left_before_sync(wired: Wired) -> list[int]:
    """For each sync of a batch of three messages: bytes in the outbox that should have waited for it."""
    wired.on_message = lambda node, message: wired.transport.send(C2, numbered(100 + number_of(message)))
    seen: list[int] = []
    await wired.raw.write(numbered(1), numbered(2), numbered(3))
    await asyncio.sleep(0.1)
    wired.node.on_sync = lambda: seen.append(wired.c1.streams._outgoing["c2"]._pushed_bytes)
    await wired.node.tick_until(lambda: 3 in wired.events)
    assert await arrived(wired) == [101, 102, 103]
    return seen


async def test_replies_leave_after_one_sync_for_all(wired: Wired) -> None:
    assert await left_before_sync(wired) == [0]


class Eager(GrpcTransport):
    """Sends at once."""

    def send(self, node: RaftNode, message: Message) -> bool:
        stream = self._peers[node.id].stream
        assert stream is not None
        return stream.push(encode_message(message))


async def test_a_transport_that_does_not_wait_is_found() -> None:
    wired = await Wired(Eager).start()
    assert await left_before_sync(wired) != [0]
    await wired.stop()


async def test_nothing_leaves_if_the_sync_fails(wired: Wired) -> None:
    def fail() -> None:
        raise OSError("disk")

    wired.on_message = lambda node, message: wired.transport.send(C2, numbered(9))
    wired.node.on_sync = fail
    await wired.raw.write(numbered(1))
    with pytest.raises(OSError):
        await wired.node.tick_until(lambda: False)
    assert await arrived(wired) == []
    wired.node.on_sync = lambda: None
    wired.node.tick()
    assert await arrived(wired) == [], "what was held back is gone, not late"
    assert wired.transport.send(C2, numbered(2))
    assert await arrived(wired) == [2]


async def test_a_message_that_raises_does_not_take_the_others_with_it(wired: Wired) -> None:
    def handle(node: RaftNode, message: Message) -> None:
        if number_of(message) == 2:
            raise ValueError("two")
        wired.transport.send(C2, numbered(number_of(message)))

    wired.on_message = handle
    await wired.raw.write(numbered(1), numbered(2), numbered(3))
    with pytest.raises(ValueError, match="two"):
        await wired.node.tick_until(lambda: False)
    assert [each for each in wired.events if isinstance(each, int)] == [1, 2, 3]
    assert await arrived(wired) == [1, 3]


async def test_who_is_not_connected_is_not_sent_to(wired: Wired) -> None:
    assert not wired.transport.send(STRANGER, numbered(1))
    wired.c1.streams.cut("c2")
    await wired.node.tick_until(lambda: ("down", "c2") in wired.events)
    assert not wired.transport.send(C2, numbered(2))
    await wired.node.tick_until(lambda: wired.events.count(("up", "c2")) == 2)
    assert wired.transport.send(C2, numbered(3))
    assert await arrived(wired) == [3]


async def test_an_outbox_that_is_full_ends_the_stream_at_once(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library loops over `send` as long as it believes the peer connected: it must learn it inside the call."""
    monkeypatch.setattr(streams_module, "OUTBOX_BYTES_MAX", 10_000)
    sent = 0
    while ("down", "c2") not in wired.events:
        sent += 1
        wired.transport.send(C2, numbered(sent, 1000))
        assert sent < 20
    assert not wired.transport.send(C2, numbered(99))
    monkeypatch.undo()
    await wired.node.tick_until(lambda: wired.events.count(("up", "c2")) == 2)
    assert wired.transport.send(C2, numbered(100))
    assert (await arrived(wired))[-1] == 100


async def test_frames_without_a_dump_go_once_per_period(wired: Wired) -> None:
    for _ in range(1000):
        assert wired.transport.send(C2, EMPTY_DUMP)
    wired.clock_s += EMPTY_DUMP_S
    for _ in range(1000):
        assert wired.transport.send(C2, EMPTY_DUMP)
    await asyncio.sleep(0.1)
    assert len(wired.c2.received_from) == 2


async def test_a_message_is_encoded_when_it_is_sent(wired: Wired) -> None:
    """The library goes on using the list that it sends."""
    entries = [(b"\0a", 2, 1)]
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    wired.transport.send(C2, message | {"entries": entries})
    entries.clear()
    await asyncio.sleep(0.1)
    ((_, found),) = wired.c2.received_from
    assert found["entries"] == [(b"\0a", 2, 1)]


async def test_a_frame_that_would_be_unpickled_is_not_sent(wired: Wired) -> None:
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    with pytest.raises(UsageError):
        wired.transport.send(C2, message | {"transmission": "start", "data": b"\x80"})


async def test_messages_of_an_ended_stream_are_not_handled(wired: Wired) -> None:
    await wired.raw.write(numbered(1))
    await asyncio.sleep(0.1)
    wired.c1.streams.cut("c2")
    await wired.node.tick_until(lambda: ("down", "c2") in wired.events)
    assert 1 not in wired.events


class Careless(GrpcTransport):
    """Handles what an ended stream left behind."""

    def received(self, stream: IncomingStream, messages: list[Message], size_bytes: int) -> None:
        stream.is_live = True
        super().received(stream, messages, size_bytes)


async def test_a_transport_that_handles_them_is_found() -> None:
    wired = await Wired(Careless).start()
    with pytest.raises(AssertionError):
        await test_messages_of_an_ended_stream_are_not_handled(wired)
    await wired.stop()


async def test_destroyed_it_neither_takes_nor_sends(wired: Wired) -> None:
    wired.transport.destroy()
    wired.transport.destroy()
    wired.c1.streams.inbox.put(lambda: wired.events.append("late"))
    wired.node.tick()
    assert "late" not in wired.events

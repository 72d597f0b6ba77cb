"""Raft's transport over gRPC. This module runs on the tick thread and connects pysyncobj to the streams.

Theory of operation
-------------------
pysyncobj is single-threaded and runs entirely on the tick thread. The streams run on the event loop (`raft_streams.py`). The two threads
share only two structures: the `Inbox`, with calls for the tick thread, and one outbox per stream, with messages for the loop.

1. **Sync before reply (H2).** Messages that the library sends while it handles received messages are held back until the journal is synced
   once for all of them. The most important of the held messages is `next_node_idx`, which confirms entries. If the sync fails, none of the
   held messages is sent.
2. **A peer is connected** while it accepts this replica's stream. The library's list of peers and this module's list change in the same
   call on the tick thread, because the library calls `send` in a loop for each connected peer.
3. **Messages are lost with their stream.** When a stream to a peer ends, its outbox is dropped. When a stream from a peer ends, its
   messages in the inbox are dropped. The library resends the messages that it still needs, but it must never receive a mixture of old and
   new messages.

Bounds. A stream is ended when its outbox exceeds `OUTBOX_BYTES_MAX`. A frame that says "my dump cannot be sent yet" is forwarded only once
per period, because the library sends such frames in a busy loop. While too many of a peer's messages wait in the inbox, the peer's stream
is not read.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pysyncobj.poller import POLL_EVENT_TYPE  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.transport import Transport  # type: ignore[import-untyped]  # as above

from snapline.coordinator.raft.messages import Message, encode_message
from snapline.coordinator.raft.pysyncobj_adapter import HEARTBEAT_S, RaftNode
from snapline.coordinator.raft.raft_streams import IncomingStream, OutgoingStream, PeerStreams

_log = logging.getLogger("snapline.coordinator.raft")

EMPTY_DUMP_S = HEARTBEAT_S
"""Time, in seconds, between two frames that tell a peer that there is no dump yet. Without one frame per period, the follower would start
an election."""


class TickedNode(Protocol):
    """Interface of the Raft node as used by the transport."""

    _poller: Any
    _SyncObj__raftLog: Any
    """The node's journal. The journal's `boot` is a durable count of how often the journal with the id `log_id` has been opened."""

    def sync_journal(self) -> None:
        """Make everything durable that a reply could reveal. If the sync fails, end the process."""


class _Peer:
    """State that the tick thread keeps about one peer replica."""

    __slots__ = ("empty_dump_s", "node", "stream")

    def __init__(self, node: RaftNode) -> None:
        self.node = node
        self.stream: OutgoingStream | None = None
        """The stream for messages to the peer; None while the peer is not connected."""
        self.empty_dump_s = float("-inf")


class GrpcTransport(Transport):  # type: ignore[misc]  # its base is Any
    """Transport that carries messages between the node and its streams. All methods run on the tick thread.

    The library's parameter `transportClass` must be `functools.partial(GrpcTransport, streams=…)`.
    """

    def __init__(
        self,
        node: TickedNode,
        self_node: RaftNode,
        others: Iterable[RaftNode],
        *,
        streams: PeerStreams,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to connect to the peers. The node's constructor calls this constructor.

        Args:
            self_node: this replica's id and address.
            others: all other replicas; this set never changes.
            streams: the gRPC streams, which run on the event loop.
            clock: function that returns the time in seconds; tests replace it.
        """
        super().__init__(node, self_node, others)
        self._node = node
        self._streams = streams
        self._inbox = streams.inbox
        self._clock = clock
        self._peers = {other.id: _Peer(other) for other in others}
        self._held: list[tuple[OutgoingStream, bytes]] | None = None
        """Messages that the library sends while received messages are being handled; None at other times."""
        self._is_destroyed = False
        node._poller.subscribe(self._inbox.descriptor, self._drain, POLL_EVENT_TYPE.READ)
        entries = node._SyncObj__raftLog
        streams.attach(
            self, boot=entries.boot, log_id=entries.log_id, nodes=[peer.node for peer in self._peers.values()]
        )

    # ---- called by the library --------------------------------------------------------------------------------------

    def send(self, node: RaftNode, message: Message) -> bool:
        """Encode and queue `message`. Return False, so that the message is dropped, if `node` is not connected."""
        peer = self._peers.get(node.id)
        if peer is None or peer.stream is None:
            return False
        if "serialized" in message and message["serialized"] is None and not self._is_empty_dump_due(peer):
            return True
        piece = encode_message(message)
        if self._held is not None:
            self._held.append((peer.stream, piece))
        else:
            self._push(peer.stream, piece)
        return True

    def addNode(self, node: RaftNode) -> None:
        """Add another replica. The library never calls this method, because members are static."""
        self._peers.setdefault(node.id, _Peer(node))

    def dropNode(self, node: RaftNode) -> None:
        """Remove a replica. The library never calls this method, because members are static."""
        peer = self._peers.pop(node.id, None)
        if peer is not None and peer.stream is not None:
            self._streams.end(peer.stream, "this replica is no member any more")

    def destroy(self) -> None:
        """Close the streams and the pipe. A repeated call has no effect."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        self._node._poller.unsubscribe(self._inbox.descriptor)
        self._inbox.close()
        self._streams.detach()

    # ---- called through the inbox -----------------------------------------------------------------------------------

    def opened(self, stream: OutgoingStream) -> None:
        """Record that a peer has accepted this replica's stream. A newer stream replaces an older one."""
        peer = self._peers.get(stream.peer)
        if peer is None or not stream.is_live:
            return
        self._disconnect(peer)
        peer.stream = stream
        self._onNodeConnected(peer.node)

    def closed(self, stream: OutgoingStream) -> None:
        """Record that this replica's stream to a peer has ended."""
        peer = self._peers.get(stream.peer)
        if peer is not None and peer.stream is stream:
            self._disconnect(peer)

    def received(self, stream: IncomingStream, messages: list[Message], size_bytes: int) -> None:
        """Handle a received batch. If the batch's stream has ended, drop the batch."""
        peer = self._peers.get(stream.peer)
        failure: Exception | None = None
        for message in messages:
            if peer is None or not stream.is_live:
                break
            try:
                self._onMessageReceived(peer.node, message)
            except Exception as error:
                failure = error  # one invalid message must not cause the others to be dropped
                _log.exception("a %s of replica %s could not be handled", message.get("type"), stream.peer)
        stream.handled(len(messages), size_bytes)
        if failure is not None:
            raise failure

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _drain(self, _descriptor: int, _events: int) -> None:
        """Run all waiting calls, sync the journal, and then send the held replies (rule 1 of the module docstring)."""
        failure: Exception | None = None
        self._held = []
        try:
            for item in self._inbox.take():
                try:
                    item()
                except Exception as error:
                    failure = error
            self._node.sync_journal()
            held, self._held = self._held, None
        finally:
            self._held = None
        for stream, piece in held:
            self._push(stream, piece)
        if failure is not None:
            raise failure

    def _push(self, stream: OutgoingStream, piece: bytes) -> None:
        peer = self._peers.get(stream.peer)
        if peer is None or peer.stream is not stream:
            return  # the stream ended while the piece was held back
        if not stream.push(piece):
            _log.warning("replica %s is too slow: its stream is ended, and what waits for it dropped", stream.peer)
            self._streams.end(stream, "too much waits for it")
            self._disconnect(peer)

    def _disconnect(self, peer: _Peer) -> None:
        if peer.stream is not None:
            peer.stream = None
            self._onNodeDisconnected(peer.node)

    def _is_empty_dump_due(self, peer: _Peer) -> bool:
        now_s = self._clock()
        if now_s - peer.empty_dump_s < EMPTY_DUMP_S:
            return False
        peer.empty_dump_s = now_s
        return True

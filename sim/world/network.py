"""The simulated network. In the simulated network, pipes between nodes deliver items in order until the stream breaks.

Streams have the properties of gRPC streams. As long as a stream is open, it is reliable and ordered, so a lost packet only causes a delay.
When a stream breaks, only data in flight is lost. If two nodes cannot communicate in one or both directions, a stream between them stays
open until its keepalive fails. If the path between the nodes is healed before the keepalive fails, data sent in the meantime arrives.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping

from snapline.channels.frame import Frame, Items, Marker, decode_control
from snapline.sim.choices import Choices
from snapline.sim.world.kernel import Kernel

DELAY_STEPS = 16
"""Number of distinct jitter values. There are few, because a choice from few values shrinks well."""

RETRANSMIT_NS = 200_000_000
"""Delay of a lost packet. It equals the minimum TCP retransmission timeout on Linux."""

KEEPALIVE_NS = 1_900_000_000
"""Time after which a stream between nodes that cannot reach each other is closed, as measured with real network
namespaces (simulation.md, 4)."""

Pair = tuple[str, str]


class Pipe:
    """One direction of a stream."""

    __slots__ = ("_arrive", "_deliver", "_network", "_sent", "is_closed", "items", "key", "last_ns", "pair", "stalled")

    def __init__(self, network: "Network", pair: Pair, key: Hashable, deliver: Callable[[object], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._arrive = self.arrive
        self._sent = 0
        self.pair = pair
        self.key = key
        self.items: deque[object] = deque()
        self.last_ns = 0
        self.stalled = 0
        self.is_closed = False

    def send(self, item: object) -> None:
        """Send an item. The item either arrives after all earlier items or never arrives."""
        if self.is_closed:
            return
        self._sent += 1
        network = self._network
        at_ns = network.kernel.now_ns + network.delay_ns(self.pair, self.key, self._sent)
        if at_ns < self.last_ns:
            at_ns = self.last_ns
        self.last_ns = at_ns
        self.items.append(item)
        network.kernel.at(at_ns, self._arrive)

    def arrive(self, _: object = None) -> None:
        """Deliver the oldest item. If this direction is blocked, the item is kept."""
        if self.is_closed:
            return
        if self.stalled or (self._network.has_faults and self._network.is_stalled(self.pair, self.items[0])):
            self.stalled += 1
            self._network.stall(self)
            return
        self._deliver(self.items.popleft())

    def go_on(self) -> None:
        """Deliver the items that were kept because this direction was blocked."""
        waiting, self.stalled = self.stalled, 0
        for _ in range(waiting):
            self._network.kernel.at(self._network.kernel.now_ns, self._arrive)


class Stream:
    """Bidirectional stream between two nodes. When the stream breaks, `closed(node)` is called once for each of the two nodes."""

    def __init__(
        self,
        network: "Network",
        ends: Pair,
        key: Hashable,
        deliver: Callable[[str, object], None],
        closed: Callable[[str], None],
    ) -> None:
        one, other = self.ends = ends
        self._network = network
        self._closed = closed
        self.is_closed = False
        self.pipes = {
            one: Pipe(network, (one, other), (key, 0), lambda item: deliver(other, item)),
            other: Pipe(network, (other, one), (key, 1), lambda item: deliver(one, item)),
        }

    def send(self, sender: str, item: object) -> None:
        """Send an item from `sender` to the node at the other end of the stream."""
        self.pipes[sender].send(item)

    def other(self, node: str) -> str:
        return self.ends[1] if node == self.ends[0] else self.ends[0]

    def close(self, _: object = None) -> None:
        """Break the stream. Both nodes are notified that the stream is broken, and data in flight is lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self._network.forget(self)
        for pipe in self.pipes.values():
            pipe.is_closed = True
            pipe.items.clear()
        for node in self.ends:
            self._closed(node)


class Network:
    """All streams between nodes, and all faults that affect the paths between nodes. `has_faults` is True while a fault may block items."""

    def __init__(
        self,
        kernel: Kernel,
        choices: Choices,
        *,
        least_ns: int,
        jitter_ns: int,
        paths: Mapping[Pair, tuple[int, int]] | None = None,
    ) -> None:
        """`paths` contains the minimum delay and the jitter for each pair of nodes whose delay differs from the default."""
        self.kernel = kernel
        self._choices = choices
        self._usual = (least_ns, jitter_ns)
        self._paths = dict(paths or {})
        self._delays = dict(self._paths)
        self._losses: dict[Pair, int] = {}
        self._blocked: dict[Pair, int] = {}
        self._held: dict[Pair, None] = {}
        self._silent: dict[str, None] = {}
        self._streams: dict[int, Stream] = {}
        self._stalled: dict[Pair, dict[Hashable, Pipe]] = {}
        self._numbers = 0
        self.has_faults = False

    # ---- streams --------------------------------------------------------------------------------------------------

    def open(
        self, ends: Pair, key: Hashable, deliver: Callable[[str, object], None], closed: Callable[[str], None]
    ) -> Stream:
        """Open a stream. The caller must have verified with `can_reach` that the two nodes can connect."""
        stream = Stream(self, ends, key, deliver, closed)
        self._numbers += 1
        self._streams[self._numbers] = stream
        if self._is_cut(ends):
            self._watch(stream)
        return stream

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has been closed."""
        self._streams = {number: each for number, each in self._streams.items() if each is not stream}
        for pipe in stream.pipes.values():
            self._stalled.get(pipe.pair, {}).pop(pipe.key, None)

    def streams_of(self, node: str) -> list[Stream]:
        return [stream for stream in self._streams.values() if node in stream.ends]

    def streams_between(self, one: str, other: str) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.ends in ((one, other), (other, one))]

    def close_all(self, node: str) -> None:
        """Close all streams of a node whose process has ended."""
        for stream in self.streams_of(node):
            stream.close()

    def can_reach(self, one: str, other: str) -> bool:
        """Return whether two nodes can currently complete a handshake. This requires both directions."""
        return not self._is_cut((one, other))

    def _is_cut(self, ends: Pair) -> bool:
        one, other = ends
        return (
            (one, other) in self._blocked
            or (other, one) in self._blocked
            or one in self._silent
            or other in self._silent
        )

    # ---- pipes ----------------------------------------------------------------------------------------------------

    def delay_ns(self, pair: Pair, key: Hashable, number: int) -> int:
        """Return the delay of a single item in nanoseconds."""
        least_ns, jitter_ns = self._delays.get(pair, self._usual) if self._delays else self._usual
        delay = least_ns
        if jitter_ns:
            delay += jitter_ns * self._choices.pick("net", (key, number), DELAY_STEPS) // DELAY_STEPS
        loss = self._losses.get(pair, 0) if self._losses else 0
        while loss and self._choices.pick("net", ("loss", key, number, delay), 1000) > 1000 - loss:
            delay += RETRANSMIT_NS
        return delay

    def path_ns(self, one: str, other: str, key: Hashable) -> int | None:
        """Return the delay of a message that is sent without a stream, in nanoseconds, or None if the message cannot arrive."""
        if one == other:
            return 0
        if (one, other) in self._blocked or one in self._silent or other in self._silent:
            return None
        return self.delay_ns((one, other), key, 0)

    def is_stalled(self, pair: Pair, item: object) -> bool:
        if pair in self._blocked or pair[0] in self._silent or pair[1] in self._silent:
            return True
        return pair in self._held and has_marker(item)

    def stall(self, pipe: Pipe) -> None:
        self._stalled.setdefault(pipe.pair, {})[pipe.key] = pipe

    # ---- faults ---------------------------------------------------------------------------------------------------

    def set_delay(self, pair: Pair, least_ns: int, jitter_ns: int) -> None:
        self._delays[pair] = (least_ns, jitter_ns)

    def set_loss(self, pair: Pair, per_mille: int) -> None:
        self._losses[pair] = min(per_mille, 900)

    def hold(self, pair: Pair, is_held: bool) -> None:
        if is_held:
            self._held[pair] = None
            self.has_faults = True
        else:
            self._held.pop(pair, None)
            self._go_on()

    def block(self, pair: Pair) -> None:
        self._blocked[pair] = 1
        self.has_faults = True
        for stream in self.streams_between(*pair):
            self._watch(stream)

    def unblock(self, pair: Pair) -> None:
        self._blocked.pop(pair, None)
        self._go_on()

    def silence(self, node: str) -> None:
        """Make a paused node silent, so that it answers nothing."""
        self._silent[node] = None
        self.has_faults = True
        for stream in self.streams_of(node):
            self._watch(stream)

    def wake(self, node: str) -> None:
        self._silent.pop(node, None)
        self._go_on()

    def reset(self) -> None:
        """Remove all faults from the paths between nodes. After that, the scenario's own delays apply again."""
        for faults in (self._delays, self._losses, self._blocked, self._held):
            faults.clear()
        self._delays.update(self._paths)
        self._go_on()

    def _watch(self, stream: Stream) -> None:
        self.kernel.at(self.kernel.now_ns + KEEPALIVE_NS, self._give_up, stream)

    def _give_up(self, stream: Stream) -> None:
        """Close the stream if its path is currently cut. It does not matter whether the path was healed in the meantime."""
        if not stream.is_closed and self._is_cut(stream.ends):
            stream.close()

    def _go_on(self) -> None:
        self.has_faults = bool(self._blocked or self._silent or self._held)
        for pair in list(self._stalled):
            pipes = self._stalled.pop(pair)
            for pipe in pipes.values():
                pipe.go_on()


def has_marker(item: object) -> bool:
    """Return whether the item is a frame that contains a marker."""
    if not isinstance(item, Frame) or not isinstance(item.body, Items):
        return False
    body = item.body
    return any(
        not channel and isinstance(decode_control(payload), Marker)
        for channel, payload in zip(body.channel, body.payload, strict=True)
    )

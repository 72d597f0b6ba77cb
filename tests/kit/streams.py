"""Streams between host cores: each loses its tail when it is cut, and who dials may be ahead of who accepts."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from tests.kit.host import Host

from snapline.agent_runtime.host import host_events as ev
from snapline.channels.frame import Frame, LinkHello

Action = Callable[[], None]


class Stream:
    """One attempt of a link: frames in flight, both ways."""

    def __init__(self, dialler: str, acceptor: str, attempt: int) -> None:
        self.ends = (dialler, acceptor)
        self.attempt = attempt
        self.frames: dict[str, deque[Frame]] = {dialler: deque(), acceptor: deque()}  # by receiver
        self.is_accepted = False

    def other(self, host: str) -> str:
        return self.ends[1] if host == self.ends[0] else self.ends[0]

    def is_known_to(self, host: str) -> bool:
        return host == self.ends[0] or self.is_accepted


class Streams:
    """All streams of a fleet. `cuts` counts those that ended."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self._open: dict[tuple[str, str], Stream] = {}
        self.cuts = 0
        self.knocks: list[tuple[str, LinkHello]] = []

    def cut(self, one: str, other: str) -> None:
        """A stream ends: what was in flight on it is lost."""
        first, second = sorted((one, other))
        stream = self._open.pop((first, second), None)
        if stream is not None:
            self.cuts += 1
            for host in stream.ends:
                if stream.is_known_to(host) and stream.other(host) in self._hosts[host].core.peers:
                    self._hosts[host].feed(ev.StreamClosed(stream.other(host)))

    def dials(self, host: Host) -> Iterator[Action]:
        for peer in host.dialled:
            if (host.name, peer) not in self._open:
                yield lambda peer=peer: self._dial(host, peer)  # type: ignore[misc]

    def _knock(self) -> None:
        """The oldest knock is heard, or by nobody."""
        peer, hello = self.knocks.pop(0)
        if peer in self._hosts:
            self._hosts[peer].feed(ev.PeerKnocked(hello))

    def actions(self) -> Iterator[Action]:
        if self.knocks:
            yield self._knock
        for stream in self._open.values():
            for name in stream.ends:
                host = self._hosts[name]
                peer = host.core.peers.get(stream.other(name))
                if peer is not None and peer.link is not None and peer.link.wants_write:
                    yield lambda stream=stream, host=host: self._pull(stream, host)  # type: ignore[misc]
                if stream.frames[name]:
                    yield lambda stream=stream, host=host: self._deliver(stream, host)  # type: ignore[misc]

    def _dial(self, host: Host, peer: str) -> None:
        if (host.name, peer) not in self._open:
            attempt = host.dialled[peer] = host.dialled[peer] + 1
            self._open[host.name, peer] = Stream(host.name, peer, attempt)
            host.feed(ev.StreamOpened(peer, attempt))

    def _pull(self, stream: Stream, host: Host) -> None:
        """The writer asks the core for a frame."""
        peer = stream.other(host.name)
        if peer in host.core.peers and stream.is_known_to(host.name):
            host.frame = None
            host.feed(ev.WriteReady(peer))
            if host.frame is not None and self._open.get(stream.ends) is stream:
                stream.frames[peer].append(host.frame)

    def _deliver(self, stream: Stream, host: Host) -> None:
        frame = stream.frames[host.name].popleft()
        peer = stream.other(host.name)
        if isinstance(frame.body, LinkHello) and host.name == stream.ends[1]:
            if host.core.judge(frame.body) is not None:
                self.cut(*stream.ends)
                return
            stream.is_accepted = True
            host.feed(ev.StreamOpened(peer, frame.body.attempt))
        host.feed(ev.FrameReceived(peer, frame))

"""Streams of a simulated host: the links to other hosts, and the session with the coordinator.

Links reconnect as in `channels/grpc_link.py`, and the session reconnects as in `agent_runtime/host/coordinator_session.py`. Links and
sessions access the run of a host only through the interface `HostRun`.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from snapline.agent_runtime.host.driver import HostDriver
from snapline.channels.frame import Frame, Items, LinkHello, Refused
from snapline.messages.host_messages import HostMessage, Leave
from snapline.messages.wire import decode_directive, encode_host_message
from snapline.sim.world.network import Stream
from snapline.sim.world.world_observer import WorldObserver
from snapline.sim.world.world_state import WorldState


class HostRun(Protocol):
    """Interface of a host's run for links, sessions, steps and the coordinator. Implemented by `host.SimHost`."""

    @property
    def name(self) -> str: ...
    @property
    def instance(self) -> str:
        """Return the unique name of this run of the host."""
        ...

    @property
    def shared(self) -> WorldState: ...
    @property
    def notes(self) -> WorldObserver: ...
    @property
    def driver(self) -> HostDriver: ...
    def wall_ns(self) -> int:
        """Return the wall-clock time of the host."""
        ...

    def later(self, at_ns: int, function: Callable[[Any], object], argument: object = None) -> None:
        """Schedule a call. The call is dropped if this run ends before it, and is delayed if the run is paused."""
        ...

    def fire(self, call: tuple[Callable[[Any], object], object]) -> None:
        """Make the call now. If the run is paused, keep the call until the run resumes. If the run has ended, drop the call."""
        ...


LINK_RETRY_LEAST_NS, LINK_RETRY_STEP_NS, LINK_RETRY_STEPS = 50_000_000, 25_000_000, 18
"""Delay before a link reconnects. It is drawn from 0.05 s to 0.5 s, as in production."""

FRAMES_IN_A_ROW = 64
"""Maximum number of frames that a link writes at one instant before it yields."""


class LinkStream:
    """One attempt to open a link between two hosts. `is_accepted` is set when the other host has accepted the link."""

    def __init__(self, dialler: "SimTransport", acceptor: "SimTransport", attempt: int) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        self.attempt = attempt
        self.is_accepted = False
        one, other = dialler.host, acceptor.host
        key = ("link", one.instance, other.instance, attempt)
        self.stream: Stream = one.shared.network.open((one.name, other.name), key, self._deliver, self._closed)

    def _side_of(self, node: str) -> "SimTransport":
        return self.dialler if node == self.dialler.host.name else self.acceptor

    def _deliver(self, node: str, item: object) -> None:
        side = self._side_of(node)
        side.host.fire((side.take, (self, item)))

    def _closed(self, node: str) -> None:
        side = self._side_of(node)
        side.host.later(side.host.shared.kernel.now_ns, side.lost, self)


class SimTransport:
    """All links of a host's run."""

    def __init__(self, host: HostRun, find: Callable[[str], "SimTransport | None"]) -> None:
        """`find` returns the transport of a host's current run, given the host's name, or None if the host is down."""
        self.host = host
        self._find = find
        self._shared = host.shared
        self._dialled: dict[str, int] = {}
        self._streams: dict[str, LinkStream] = {}
        self._is_awake: dict[str, None] = {}
        self._written: dict[str, int] = {}
        # For each peer, the number of the newest item received on the peer's link.
        self._received: dict[str, int] = {}
        self._knocks = 0

    def _soon(self, function: Callable[..., object], argument: object = None) -> None:
        self.host.later(self._shared.kernel.now_ns, function, argument)

    # ---- requests of the driver -----------------------------------------------------------------------------------

    def wake(self, peer: str) -> None:
        if peer not in self._is_awake and peer in self._streams:
            self._is_awake[peer] = None
            self._soon(self._write, peer)

    def dial(self, peer: str, address: str) -> None:
        if peer not in self._dialled:
            self._dialled[peer] = 0
            self._soon(self._try, peer)

    def knock(self, peer: str, address: str, hello: LinkHello) -> None:
        acceptor = self._find(peer)
        self._knocks += 1
        if acceptor is not None and self._shared.network.can_reach(self.host.name, peer):
            LinkStream(self, acceptor, -self._knocks).stream.send(self.host.name, Frame(body=hello))

    def undial(self, peer: str) -> None:
        self._dialled.pop(peer, None)
        self._written.pop(peer, None)
        self.close_stream(peer)

    def close_stream(self, peer: str) -> None:
        link = self._streams.get(peer)
        if link is not None:
            self._soon(link.stream.close)

    def refuse_stream(self, peer: str, reason: str, is_final: bool) -> None:
        link = self._streams.get(peer)
        if link is not None:
            self._refuse(link, Refused(reason, is_final))

    def _refuse(self, found: LinkStream, refused: Refused) -> None:
        """Send the other host a refusal, and close the stream when the refusal has arrived."""
        found.stream.send(self.host.name, Frame(body=refused))
        pipe = found.stream.pipes[self.host.name]
        self.host.later(pipe.last_ns + 1, found.stream.close)

    # ---- the dialler ----------------------------------------------------------------------------------------------

    def _try(self, peer: str) -> None:
        if peer not in self._dialled or peer in self._streams:
            return
        self._dialled[peer] += 1
        acceptor = self._find(peer)
        if acceptor is None or not self._shared.network.can_reach(self.host.name, peer):
            self._retry(peer)
            return
        link = LinkStream(self, acceptor, self._dialled[peer])
        self._streams[peer] = link
        if self.host.driver.opened(peer, link.attempt):
            self._note_opened(peer)
            self.wake(peer)
        else:
            link.stream.close()

    def _retry(self, peer: str) -> None:
        key = ("dial", self.host.instance, peer, self._dialled[peer])
        wait_ns = LINK_RETRY_LEAST_NS + LINK_RETRY_STEP_NS * self._shared.choices.pick("net", key, LINK_RETRY_STEPS)
        self.host.later(self._shared.kernel.now_ns + wait_ns, self._try, peer)

    # ---- both sides -----------------------------------------------------------------------------------------------

    def _write(self, peer: str) -> None:
        self._is_awake.pop(peer, None)
        stream = self._streams.get(peer)
        if stream is None or stream.stream.is_closed:
            return
        driver = self.host.driver
        for _ in range(FRAMES_IN_A_ROW):
            state = driver.core.peers.get(peer)
            if state is None or state.link is None or not state.link.wants_write:
                return
            frame = driver.next_frame(peer)
            if frame is None:
                return
            self._note_written(peer, frame)
            stream.stream.send(self.host.name, frame)
        self.wake(peer)

    def _note_opened(self, peer: str) -> None:
        core = self.host.driver.core
        is_in_epoch = core.peers[peer].floor is None and core.mode.standing().open_epochs > 0
        self._shared.judge.probes.sometimes(is_in_epoch, "link in an epoch")

    def _note_written(self, peer: str, frame: Frame) -> None:
        """Record that a frame was written to a stream. If the frame's number is not new, the frame is being resent because the stream that
        carried it before has broken."""
        if isinstance(frame.body, Items):
            written = self._written.get(peer, 0)
            self._shared.judge.probes.sometimes(frame.first_number <= written, "resend after reset")
            self._written[peer] = max(written, frame.first_number)

    def _note_received(self, peer: str, frame: Frame) -> None:
        if isinstance(frame.body, Items):
            newest = self._received.get(peer, 0)
            self._shared.judge.probes.sometimes(frame.first_number <= newest, "duplicate frame dropped")
            self._received[peer] = max(newest, frame.first_number + len(frame.body.channel) - 1)
        self._shared.journal.add(
            (self._shared.kernel.now_ns, self.host.name, peer, "frame", frame.first_number, frame.ack)
        )

    def take(self, delivered: tuple[LinkStream, object]) -> None:
        """Handle a frame that has arrived on a link."""
        link, frame = delivered
        assert isinstance(frame, Frame)
        peer = link.stream.other(self.host.name)
        if link.stream.is_closed:  # the stream broke while this host was paused
            return
        if self is link.acceptor and not link.is_accepted:
            self._accept(link, peer, frame)
        elif self._streams.get(peer) is link:
            self._note_received(peer, frame)
            self.host.driver.received(peer, frame)

    def _accept(self, found: LinkStream, peer: str, frame: Frame) -> None:
        hello = frame.body
        assert isinstance(hello, LinkHello), "the first frame of a stream says who speaks"
        if hello.attempt == 0:
            found.stream.close()
            self.host.driver.dial_requested(hello)
            return
        refused = self._judge(found, peer, hello)
        if refused is not None:
            self._refuse(found, refused)
            return
        found.is_accepted = True
        older = self._streams.get(peer)
        self._streams[peer] = found
        if older is not None:
            older.stream.close()
            self.host.driver.closed(peer, None)
        if self.host.driver.opened(peer, hello.attempt):
            self._note_opened(peer)
            self.host.driver.received(peer, frame)
            self.wake(peer)
        else:
            found.stream.close()

    def _judge(self, found: LinkStream, peer: str, hello: LinkHello) -> Refused | None:
        current = self._streams.get(peer)
        if current is not None and current.dialler is found.dialler and hello.attempt <= current.attempt:
            return Refused(f"attempt {hello.attempt} of {peer}: {current.attempt} is newer", is_final=False)
        refused = self.host.driver.accepted(peer, hello)
        older = refused is not None and hello.plan < self.host.driver.core.plan
        self._shared.judge.probes.sometimes(older, "older incarnation refused")
        return refused

    def lost(self, found: LinkStream) -> None:
        """Handle a broken stream. If this host opened the broken stream, reconnect."""
        peer = found.stream.other(self.host.name)
        if self._streams.get(peer) is found:
            del self._streams[peer]
            self.host.driver.closed(peer, None)
        if self is found.dialler and peer in self._dialled:
            self._retry(peer)


SESSION_RETRY_LEAST_NS, SESSION_RETRY_STEP_NS, SESSION_RETRY_STEPS = 50_000_000, 50_000_000, 9
"""Delay before a session reconnects. It is drawn from 0.05 s to 0.5 s, as in production."""


class ReplicaSession(Protocol):
    """Interface that a host uses to access a replica of the coordinator. Implemented by `simulated_replica.SimulatedReplica`."""

    @property
    def is_up(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def known_leader(self) -> str:
        """Return the name of the leader that this replica knows, or "" if it knows none."""
        ...

    def open_session(
        self, host: HostRun, key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """Open a stream from a host to this replica's leader core."""
        ...

    def receive_busy_report(self, host: HostRun, busy_ns: int) -> None:
        """Handle a report from a host's watchdog thread that a handler is blocking the host."""
        ...


class SimSession:
    """Stream between a host's run and the coordinator. The stream is reopened after each failure as long as the run is alive."""

    def __init__(self, host: HostRun, replicas: Mapping[str, ReplicaSession]) -> None:
        self._host = host
        self._replicas = replicas
        self._nodes = tuple(replicas)
        self._node = self._nodes[0]
        self._tries = 0
        self._stream: Stream | None = None

    def send(self, message: HostMessage) -> None:
        """Send a message to the coordinator. If no stream is open, the message is lost."""
        if self._stream is not None:
            self._stream.send(self._host.name, encode_host_message(message))

    def dial(self, _: object = None) -> None:
        """Connect to the replica that is currently assumed to lead. If the replica does not lead, try the leader that it names, or the next
        replica if it names none."""
        host = self._host
        self._tries += 1
        node = self._node
        replica = self._replicas[node]
        if not host.shared.network.can_reach(host.name, node) or not replica.is_up:
            self._turn_to(self._next())
            return
        if not replica.leads:
            self._turn_to(replica.known_leader or self._next())
            return
        self._stream = replica.open_session(host, (host.instance, node, self._tries), self._received, self._closed)
        died, died_in = host.notes.died.get(host.name, ("", ()))
        hello = host.driver.hello(instance=host.instance, address=f"{host.name}:1")
        self.send(replace(hello, died=died, died_in=died_in))

    def _next(self) -> str:
        return self._nodes[(self._nodes.index(self._node) + 1) % len(self._nodes)]

    def _turn_to(self, node: str) -> None:
        self._node = node
        host = self._host
        wait_ns = SESSION_RETRY_LEAST_NS + SESSION_RETRY_STEP_NS * host.shared.choices.pick(
            "net", ("redial", host.instance, self._tries), SESSION_RETRY_STEPS
        )
        host.later(host.shared.kernel.now_ns + wait_ns, self.dial)

    def _received(self, item: object) -> None:
        if self._stream is not None:
            assert isinstance(item, bytes)
            self._host.driver.directive_received(decode_directive(item))

    def _closed(self, _: object = None) -> None:
        if self._stream is not None:
            self._stream = None
            self._turn_to(self._node)

    def report_busy(self, busy_ns: int) -> None:
        """Report to the leader that a handler is blocking this host. In production, a watchdog thread sends this report on a separate
        connection."""
        host = self._host
        for node, replica in self._replicas.items():
            if replica.is_up and replica.leads and host.shared.network.can_reach(host.name, node):
                replica.receive_busy_report(host, busy_ns)

    def leave(self, reason: str) -> None:
        """Tell the coordinator that this host is leaving the fleet."""
        self.send(Leave(reason))

"""The part of the host core that exchanges frames with other hosts over the links of the current plan.

Departing messages come from `channel_ends.py`, which knows each channel's owner.

A link to another host is created when the first channel to that host opens, or when that host dials. The link remains until the next plan.
Of the two hosts, the host with the smaller id dials. The other host *knocks*: it asks its peer to dial, and repeats this request until the
peer dials.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Mark
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, HostState, LocalAgent, Peer
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.channels import link_events as lk
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.channels.frame import LinkHello, Refused
from snapline.channels.link import LinkCore
from snapline.channels.link_events import judge_identity
from snapline.messages import host_messages as msg

KNOCK_NS, KNOCK_NS_MAX = 200_000_000, 2_000_000_000
"""Smallest and largest time between two knocks. Knocks are repeated, since a peer that has not applied the plan ignores them. The interval
grows while the peer is unreachable."""


class ChannelEndsInterface(Protocol):
    """Interface that `HostLinks` requires from `ChannelEnds`."""

    def accept(self, peer: Peer, command: lk.AcceptChannel) -> None:
        """Accept a channel that a peer opens to an agent on this host."""

    def settle_waiting(self, hosts: Collection[str]) -> None:
        """Open the channels that were waiting for the addresses of these hosts."""

    def hold(self, peer: Peer) -> None:
        """Hold back the messages of channels to the peer whose senders must not use the new link yet."""

    def end_inlet(self, inlet: AgentInlet | None) -> None:
        """Close an incoming channel whose sender has left the fleet."""

    def receiver_gone(self, peer: Peer, channel: int) -> None:
        """Close an outgoing channel whose receiver has left the fleet."""


class OutletUnparker(Protocol):
    """Interface that `HostLinks` requires from `Outlets`."""

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the outgoing channel's parked messages, as far as the channel's credit and the link's capacity allow."""

    def shrank(self, owner: LocalAgent) -> None:
        """Handle the shrinking of an agent's outbox."""


class MessageReceiver(Protocol):
    """Interface that `HostLinks` requires from `Mailboxes`."""

    def arrive(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Accept a message that has arrived."""


class HostLinks:
    """Manages this host's links to other hosts under the current plan.

    Attributes:
        roster: entries of all live hosts, by host id.
    """

    _mode: HostMode
    _ends: ChannelEndsInterface
    _outlets: OutletUnparker
    _mailboxes: MessageReceiver

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.roster: dict[str, msg.RosterEntry] = {}
        self._knocks: dict[str, int] = {}  # host that has not dialled yet → time of the next knock

    def wire(
        self, mode: HostMode, ends: ChannelEndsInterface, outlets: OutletUnparker, mailboxes: MessageReceiver
    ) -> None:
        """Store references to parts of the host core that are created after this part."""
        self._mode, self._ends, self._outlets, self._mailboxes = mode, ends, outlets, mailboxes

    def judge(self, hello: LinkHello) -> Refused | None:
        """Return the reason to reject a peer's stream, or None if the stream may be accepted. The network adapter calls this before it
        accepts the stream. The method changes no state."""
        shared = self._shared
        peer = shared.peers.get(hello.host)
        if peer is not None and peer.link is not None:
            return peer.link.judge(hello)
        entry = self._entry(hello.host)
        if entry is not None:
            return self._link(entry).judge(hello)
        if not shared.is_loaded or hello.plan > shared.plan or hello.host in shared.plan_hosts:
            return Refused(reason=f"host {shared.host} has not applied plan {hello.plan} yet", is_final=False)
        return Refused(reason=f"host {hello.host} is not part of plan {shared.plan}", is_final=True)

    # ---- making and dropping --------------------------------------------------------------------------------------

    def on_roster(self, event: msg.Roster) -> None:
        known, self.roster = self.roster, {entry.host: entry for entry in event.hosts}
        joined = [host for host in self._shared.plan_hosts if host in self.roster and host not in known]
        if self._shared.is_loaded and joined:
            self._ends.settle_waiting(joined)

    def _entry(self, host: str) -> msg.RosterEntry | None:
        """Return a host's roster entry if a link to the host is allowed, that is, if both hosts belong to the loaded plan. Otherwise return
        None."""
        shared = self._shared
        is_linked = host != shared.host and host in shared.plan_hosts and shared.host in shared.plan_hosts
        if not shared.is_loaded or not is_linked:
            return None
        return self.roster.get(host)

    def _link(self, entry: msg.RosterEntry) -> LinkCore:
        shared = self._shared
        return LinkCore(
            cluster=shared.cluster,
            host=shared.host,
            host_start=shared.start,
            peer=entry.host,
            peer_start=entry.host_start,
            plan=shared.plan,
            is_dialler=shared.host < entry.host,
        )

    def to(self, host: str) -> Peer | None:
        """Return the peer for a host, and open the link if there is none. Return None if the host's address is unknown."""
        peer = self._shared.peers.get(host)
        if peer is not None:
            return peer
        entry = self._entry(host)
        if entry is None:
            return None
        peer = self._make(entry)
        assert peer.link is not None
        if peer.link.is_dialler:
            self._shared.out.append(ev.DialPeer(host, entry.address))
        else:
            self._knock(peer)
        return peer

    def _make(self, entry: msg.RosterEntry) -> Peer:
        peer = self._shared.peers[entry.host] = Peer(entry.host, entry.host_start, self._link(entry))
        peer.broken_ns = self._shared.now
        peer.measure_room()
        return peer

    def _knock(self, peer: Peer) -> None:
        """Ask the peer to dial, and schedule the next such request. A lost host has no address, so it gets no request. The next plan ends
        the link to a lost host."""
        assert peer.link is not None and peer.broken_ns is not None
        waited_ns = self._shared.now - peer.broken_ns
        self._knocks[peer.host] = self._shared.now + min(max(KNOCK_NS, waited_ns // 2), KNOCK_NS_MAX)
        entry = self._entry(peer.host)
        if entry is not None:
            self._shared.out.append(ev.KnockAtPeer(peer.host, entry.address, peer.link.knock()))

    def on_peer_knocked(self, event: ev.PeerKnocked) -> None:
        """Open a link to a host that asks this host to dial, because the asking host has a channel to this host. Ignore the request if its
        plan or generation differs, since the host will repeat it."""
        hello, entry = event.hello, self._entry(event.hello.host)
        if entry is not None and judge_identity(hello, self._link(entry).identity) is None:
            self.to(hello.host)

    def is_expected(self, host: str) -> bool:
        """Return whether this host already has a link to the peer, or would accept a stream from it."""
        return host in self._shared.peers or (host < self._shared.host and self._entry(host) is not None)

    def drop(self) -> None:
        """Drop all links because their plan has ended."""
        for host in self._shared.peers:
            self._shared.out.append(ev.UndialPeer(host))
        self._shared.peers.clear()
        self._knocks.clear()

    def unreached(self) -> list[tuple[Peer, int]]:
        """Return each peer whose link is down, with the time at which the link went down."""
        return [(peer, peer.broken_ns) for peer in self._shared.peers.values() if peer.broken_ns is not None]

    # ---- streams and frames ---------------------------------------------------------------------------------------

    def on_stream_opened(self, event: ev.StreamOpened) -> None:
        entry = self._entry(event.peer)
        if event.peer not in self._shared.peers and entry is not None:
            self._make(entry)
        self._feed(event.peer, lk.StreamOpened(event.attempt))

    def on_stream_closed(self, event: ev.StreamClosed) -> None:
        self._feed(event.peer, lk.StreamClosed())

    def on_frame_received(self, event: ev.FrameReceived) -> None:
        self._feed(event.peer, lk.FrameReceived(event.frame))

    def on_write_ready(self, event: ev.WriteReady) -> None:
        self._feed(event.peer, lk.WriteReady())

    def clock_passed(self) -> None:
        """Fire the links' timers that are due, and repeat the requests to dial that are due."""
        now = self._shared.now
        for peer in self._shared.peers.values():
            if peer.link is not None and peer.link.wakeup_ns is not None and peer.link.wakeup_ns <= now:
                self._carry(peer, peer.link.handle(now, lk.TimerFired()))
        for host in [host for host, due_ns in self._knocks.items() if due_ns <= now]:
            self._knock(self._shared.peers[host])

    def _feed(self, host: str, event: lk.Event) -> None:
        peer = self._shared.peers.get(host)
        if peer is None or peer.link is None:
            self._shared.out.append(ev.CloseStream(host, "no link of this plan"))
            return
        peer.link.begun = self._shared.begun_epoch
        self._carry(peer, peer.link.handle(self._shared.now, event))
        peer.measure_room()
        self._drain(peer)

    def tell(self, peer: Peer, event: lk.Event) -> None:
        """Pass an event to a peer's link, after all items that are already queued for the link."""
        assert peer.link is not None
        self._flush(peer)
        self._carry(peer, peer.link.handle(self._shared.now, event))
        peer.measure_room()

    def _carry(self, peer: Peer, commands: Iterable[object]) -> None:
        for command in commands:
            if isinstance(command, lk.DeliverItems):
                self._deliver(peer, command)
            elif isinstance(command, lk.WriteFrame):
                self._shared.out.append(ev.WriteFrame(peer.host, command.frame))
            else:
                self._carry_control(peer, command)
        if peer.link is not None and peer.link.wants_write:
            self._shared.out.append(ev.WakeWriter(peer.host))

    def _carry_control(self, peer: Peer, command: object) -> None:
        shared = self._shared
        match command:
            case lk.RaiseCredit():
                for channel, number in zip(command.channels, command.numbers, strict=True):
                    outlet = peer.outlets.get(channel)
                    if outlet is not None:
                        self._raise_credit(outlet, number)
            case lk.AcceptChannel():
                self._ends.accept(peer, command)
            case lk.DropInlet():
                self._ends.end_inlet(peer.inlets.pop(command.channel))
            case lk.DropOutlet():
                self._ends.receiver_gone(peer, command.channel)
            case lk.DeliverMarker():
                self._mode.marker_received(peer, command)
            case lk.CloseStream():
                shared.out.append(ev.CloseStream(peer.host, command.reason))
            case lk.ReportEstablished():
                peer.is_reported = False
                peer.broken_ns = None
                self._knocks.pop(peer.host, None)
                if not command.resumed:
                    self._ends.hold(peer)
                    self._mode.linked(peer)
                shared.note("info", f"link to {peer.host} {'resumed' if command.resumed else 'established'}")
            case lk.ReportEnded():
                peer.broken_ns = shared.now if peer.broken_ns is None else peer.broken_ns
                self._suspect(peer, "stream broken")
            case lk.Refuse():
                shared.out.append(ev.RefuseStream(peer.host, command.reason, command.is_final))
            case lk.ReportRefused():
                if command.is_final:
                    shared.note("warning", f"link to {peer.host} refused: {command.reason}")
            case _:
                raise AssertionError(f"no such command of a link: {command!r}")

    def _raise_credit(self, outlet: AgentOutlet, number: int) -> None:
        """Raise the credit of a channel. With commits, a receiver raises it only when the consumption is durable, so the credit also tells
        which messages are not needed any more."""
        if self._shared.commits.is_on:
            outlet.acknowledge(number - CHANNEL_CREDIT)
        if outlet.raise_credit(number):
            self._outlets.unpark(outlet)
        elif self._shared.commits.is_on and outlet.owner.is_leaving:
            self._outlets.shrank(outlet.owner)

    def _suspect(self, peer: Peer, reason: str) -> None:
        if not peer.is_reported:
            peer.is_reported = True
            self._shared.out.append(msg.PeerSuspected(peer.host, peer.start, reason))

    def _deliver(self, peer: Peer, items: lk.DeliverItems) -> None:
        """Deliver the messages in a frame. This method is performance-critical."""
        inlets, arrive = peer.inlets, self._mailboxes.arrive
        for channel, payload, mark in zip(items.channels, items.payloads, self._mode.marks(items), strict=True):
            arrive(inlets[channel], mark, payload)

    def _drain(self, peer: Peer) -> None:
        """Send parked messages, channel by channel, while the link has capacity."""
        for _ in range(len(peer.waiting)):
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                return
            outlet = peer.waiting.popleft()
            outlet.is_waiting = False
            self._outlets.unpark(outlet)

    # ---- batches --------------------------------------------------------------------------------------------------

    @property
    def has_batch(self) -> bool:
        """Return whether BatchEnded would have an effect, because items are waiting to be sent or consumption must be reported to a
        peer."""
        return any(
            peer.out_channels or peer.owes_consumption_report or peer.waiting for peer in self._shared.peers.values()
        )

    def on_batch_ended(self, _event: ev.BatchEnded) -> None:
        for peer in self._shared.peers.values():
            if peer.out_channels:
                self._flush(peer)
            if peer.owes_consumption_report:
                self._tell_consumed(peer)
            peer.measure_room()
            if peer.waiting:
                self._drain(peer)
                self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        """Pass the items that are queued for this peer to the peer's link, as one batch."""
        if not peer.out_channels or peer.link is None:
            return
        sent = lk.ItemsSent(peer.out_channels, peer.out_payloads, *self._mode.columns(peer.out_marks))
        peer.out_channels, peer.out_payloads, peer.out_marks = [], [], []
        peer.pending_bytes = 0
        self._carry(peer, peer.link.handle(self._shared.now, sent))
        peer.measure_room()

    def _tell_consumed(self, peer: Peer) -> None:
        if not peer.owes_consumption_report or peer.link is None:
            return
        consumed = lk.ItemsConsumed(peer.consumed_items, peer.consumed_bytes, peer.credit_channels, peer.credit_numbers)
        peer.consumed_items = peer.consumed_bytes = 0
        peer.credit_channels, peer.credit_numbers = [], []
        self._carry(peer, peer.link.handle(self._shared.now, consumed))

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""
        times = [peer.link.wakeup_ns for peer in self._shared.peers.values() if peer.link is not None]
        return [*self._knocks.values(), *[time_ns for time_ns in times if time_ns is not None]]

    def validate(self) -> None:
        for peer in self._shared.peers.values():
            assert peer.link is not None
            peer.link.validate()
            assert len(peer.out_channels) == len(peer.out_payloads) == len(peer.out_marks)
            for channel, outlet in peer.outlets.items():
                assert outlet.channel == channel and outlet.peer is peer, (channel, outlet.receiver)
                assert outlet.number <= outlet.credit, (outlet.sender, outlet.receiver, outlet.number, outlet.credit)

"""The part of the host core that exchanges frames with other hosts over the links of the current plan.

Arriving messages are passed to `mailboxes.py`. Departing messages come from `channel_ends.py`, which knows each channel's owner.

A link to another host is created when the first channel leads to that host, or when that host dials. It remains until the next plan. Of the
two hosts, the host with the smaller id dials. The other host *knocks*, that is, it asks the first host to dial, and repeats this request
until the first host dials.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Mark
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, HostState, Peer
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.channels import link_events as lk
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
        """Accept a channel that the peer opens to an agent on this host."""

    def settle_waiting(self, hosts: Collection[str]) -> None:
        """Open the channels that wait for these hosts' addresses, which are now known."""

    def hold(self, peer: Peer) -> None:
        """Hold the channels to the peer whose senders must not use the new link yet."""

    def end_inlet(self, inlet: AgentInlet | None) -> None:
        """End an inlet whose sender has left."""

    def receiver_gone(self, peer: Peer, channel: int) -> None:
        """End the outlet of a channel whose receiver has left."""


class OutletUnparker(Protocol):
    """Interface that `HostLinks` requires from `Outlets`."""

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the outlet's parked messages, as far as the channel's credit and the link's room allow."""


class MessageReceiver(Protocol):
    """Interface that `HostLinks` requires from `Mailboxes`."""

    def arrive(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Accept a message that has arrived."""


class HostLinks:
    """Links of the current plan.

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
        """Connect this part of the host core to the parts above it."""
        self._mode, self._ends, self._outlets, self._mailboxes = mode, ends, outlets, mailboxes

    def judge(self, hello: LinkHello) -> Refused | None:
        """Return a refusal if the peer's stream must not be accepted, otherwise None. The adapter calls this before it accepts the stream.
        The method changes no state."""
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
        """Return a host's roster entry if this host may have a link to it, that is, if both belong to the loaded plan. Otherwise return
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
        """Knock at the peer, and schedule the next knock. A lost host has no address, so no knock is sent to it, and the next plan ends
        this link."""
        assert peer.link is not None and peer.broken_ns is not None
        waited_ns = self._shared.now - peer.broken_ns
        self._knocks[peer.host] = self._shared.now + min(max(KNOCK_NS, waited_ns // 2), KNOCK_NS_MAX)
        entry = self._entry(peer.host)
        if entry is not None:
            self._shared.out.append(ev.KnockAtPeer(peer.host, entry.address, peer.link.knock()))

    def on_peer_knocked(self, event: ev.PeerKnocked) -> None:
        """Open a link to a host that asks to be dialled, because it has a channel to this host. If its plan or generation differs, ignore
        the knock: the host will knock again."""
        hello, entry = event.hello, self._entry(event.hello.host)
        if entry is not None and judge_identity(hello, self._link(entry).identity) is None:
            self.to(hello.host)

    def is_expected(self, host: str) -> bool:
        """Return whether this host has, or would accept, a link for a stream with this peer."""
        return host in self._shared.peers or (host < self._shared.host and self._entry(host) is not None)

    def drop(self) -> None:
        """Drop all links when their plan ends."""
        for host in self._shared.peers:
            self._shared.out.append(ev.UndialPeer(host))
        self._shared.peers.clear()
        self._knocks.clear()

    def unreached(self) -> list[tuple[Peer, int]]:
        """Return the peers whose link is down, each with the time since when it is down."""
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
        """Fire the links' timers that are due, and send the knocks that are due."""
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
        """Pass an event to a link, after all items that are queued for the link."""
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
                    if outlet is not None and outlet.raise_credit(number):
                        self._outlets.unpark(outlet)
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

    def _suspect(self, peer: Peer, reason: str) -> None:
        if not peer.is_reported:
            peer.is_reported = True
            self._shared.out.append(msg.PeerSuspected(peer.host, peer.start, reason))

    def _deliver(self, peer: Peer, items: lk.DeliverItems) -> None:
        """Deliver the messages in a frame. This is on the hot path."""
        inlets, arrive = peer.inlets, self._mailboxes.arrive
        for channel, payload, mark in zip(items.channels, items.payloads, self._mode.marks(items), strict=True):
            arrive(inlets[channel], mark, payload)

    def _drain(self, peer: Peer) -> None:
        """Send parked messages, channel by channel, while the link has room."""
        for _ in range(len(peer.waiting)):
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                return
            outlet = peer.waiting.popleft()
            outlet.is_waiting = False
            self._outlets.unpark(outlet)

    # ---- batches --------------------------------------------------------------------------------------------------

    @property
    def has_batch(self) -> bool:
        """Return whether BatchEnded would have an effect, because items are queued for a link, wait for room on a link, or were
        consumed."""
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
        """Pass the items that are queued for this peer to its link, as one batch."""
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
        """Return the times at which `clock_passed` must be called."""
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

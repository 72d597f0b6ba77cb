"""The part of a host core that speaks with other hosts: links, channel ends, windows."""

from collections.abc import Iterable

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.local_agent import AgentInlet, AgentOutlet, LocalAgent, Peer
from snapline.agent_runtime.host.state import HostState
from snapline.channels import link_events as lk
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.channels.frame import LinkHello, Refused
from snapline.channels.link import LinkCore
from snapline.errors import ProtocolError


class HostLinks(HostState):
    """Links of the present plan. A link is made when both the plan and the peer's place in the roster are known."""

    def judge(self, hello: LinkHello) -> Refused | None:
        """May this peer's stream be taken? Reads only; asked by the adapter before it feeds the Hello in."""
        peer = self.peers.get(hello.host)
        if peer is not None and peer.link is not None:
            return peer.link.judge(hello)
        if not self.is_loaded or hello.plan > self.plan or hello.host in self.plan_hosts:
            return Refused(reason=f"host {self.host} has not applied plan {hello.plan} yet", is_final=False)
        return Refused(reason=f"host {hello.host} is not part of plan {self.plan}", is_final=True)

    # ---- making and dropping --------------------------------------------------------------------------------------

    def _on_roster_received(self, event: ev.RosterReceived) -> None:
        self.roster = {entry.host: entry for entry in event.hosts}
        if self.is_loaded:
            self._make_links()

    def _make_links(self) -> None:
        if self.host not in self.plan_hosts:
            return  # idle: nothing of this plan is placed here
        for host in self.plan_hosts:
            entry = self.roster.get(host)
            if host == self.host or host in self.peers or entry is None:
                continue
            is_dialler = self.host < host
            link = LinkCore(
                cluster=self.cluster,
                host=self.host,
                host_start=self.start,
                peer=host,
                peer_start=entry.start,
                plan=self.plan,
                is_dialler=is_dialler,
            )
            peer = self.peers[host] = Peer(host, entry.start, link)
            peer.broken_ns = self._now
            peer.measure_room()
            self._settle_outlets(peer)
            if is_dialler:
                self._out.append(ev.DialPeer(host, entry.address))

    def _settle_outlets(self, peer: Peer) -> None:
        """Outlets that waited for this link can open now."""
        for agent in list(self.agents.values()):
            for outlet in list(agent.outlets.values()):
                route = self.routes.get(outlet.receiver)
                if outlet.peer is None and outlet.queue and route is not None and route[0] == peer.host:
                    self._open_outlet(agent, outlet.receiver)
                    self._unpark(outlet)

    def _drop_links(self) -> None:
        for host in self.peers:
            self._out.append(ev.UndialPeer(host))
        self.peers.clear()
        self._ending.clear()

    def unreached(self) -> list[tuple[Peer, int]]:
        """Hosts of the plan that there is no link to, and since when."""
        return [(peer, peer.broken_ns) for peer in self.peers.values() if peer.broken_ns is not None]

    # ---- channel ends ---------------------------------------------------------------------------------------------

    def _new_outlet(self, agent: LocalAgent, receiver: str) -> AgentOutlet:
        outlet = agent.outlets[receiver] = AgentOutlet(channel=0, sender=agent.id, receiver=receiver)
        outlet.owner = agent
        outlet.peer = None
        outlet.inlet = None
        outlet.is_waiting = False
        return outlet

    def _new_inlet(self, agent: LocalAgent, sender: str) -> AgentInlet:
        inlet = agent.inlets[sender] = AgentInlet(channel=0, sender=sender, receiver=agent.id)
        inlet.owner = agent
        inlet.peer = self.local
        inlet.first_number = 1
        return inlet

    def _open_outlet(self, agent: LocalAgent, receiver: str) -> AgentOutlet:
        """The channel's sending end, connected as far as the receiver's whereabouts are known."""
        outlet = agent.outlets.get(receiver) or self._new_outlet(agent, receiver)
        route = self.routes.get(receiver)
        if route is None:
            self._locate(receiver)
        elif route[0] == self.host:
            self._connect_here(outlet)
        elif route[0] in self.peers:
            self._connect_there(outlet, self.peers[route[0]], route[1])
        return outlet

    def _connect_here(self, outlet: AgentOutlet) -> None:
        owner = self.agents.get(outlet.receiver)
        if owner is None:
            self.routes.pop(outlet.receiver, None)
            self._locate(outlet.receiver)
            return
        inlet = owner.inlets.get(outlet.sender) or self._new_inlet(owner, outlet.sender)
        self._check_first_number(inlet, outlet.number + 1)
        inlet.peer = outlet.peer = self.local
        inlet.credit_told = outlet.credit = outlet.number + CHANNEL_CREDIT
        outlet.inlet = inlet

    def _connect_there(self, outlet: AgentOutlet, peer: Peer, incarnation: int) -> None:
        assert peer.link is not None
        outlet.channel = peer.next_channel
        outlet.peer = peer
        outlet.credit = outlet.number + CHANNEL_CREDIT
        peer.next_channel += 1
        peer.outlets[outlet.channel] = outlet
        opened = lk.ChannelOpened(
            outlet.channel,
            outlet.sender,
            outlet.receiver,
            outlet.owner.incarnation,
            incarnation,
            outlet.number + 1,
        )
        self._flush(peer)
        self._carry_link(peer, peer.link.handle(self._now, opened))
        peer.measure_room()

    def _accept_channel(self, peer: Peer, command: lk.AcceptChannel) -> None:
        """The peer opens a channel to an agent here. One that is not here, or not in that incarnation, hears nothing."""
        owner = self.agents.get(command.receiver)
        if owner is not None and owner.incarnation != command.receiver_incarnation:
            owner = None
        if owner is None:
            inlet = AgentInlet(
                channel=command.channel,
                sender=command.sender,
                receiver=command.receiver,
                first_number=command.first_number,
            )
            inlet.owner = None
            if self._is_reserving(command.receiver):
                self._early.setdefault(command.receiver, []).append((inlet, 0, None))
            else:
                self._tell_closed(peer, command.channel, by_receiver=True)
        else:
            inlet = owner.inlets.get(command.sender) or self._new_inlet(owner, command.sender)
            self._check_first_number(inlet, command.first_number)
            inlet.channel = command.channel
            inlet.credit_told = inlet.arrived + CHANNEL_CREDIT
        inlet.peer = peer
        inlet.first_number = command.first_number
        peer.inlets[command.channel] = inlet

    def _check_first_number(self, inlet: AgentInlet, first_number: int) -> None:
        if first_number != inlet.arrived + 1:
            raise ProtocolError(
                f"channel {inlet.sender} → {inlet.receiver} opens with message {first_number}, "
                f"but {inlet.arrived} have arrived"
            )

    def _locate(self, receiver: str) -> None:
        if any(receiver in names for names in self._locating.values()):
            return
        self._requests += 1
        self._locating[self._requests] = (receiver,)
        self._out.append(ev.LocateAgents(self._requests, (receiver,)))

    # ---- agents that are gone -------------------------------------------------------------------------------------

    def _close_channels(self, gone: LocalAgent) -> None:
        """No epoch that is still to be decided holds this agent: other agents need not know its channels any longer.

        What other hosts have of them goes when they are told, behind all that is under way. Numbers of channels that were not
        used since a plan restored them stay until the next plan: nothing names them on a link.
        """
        for receiver, outlet in gone.outlets.items():
            self._end_inlet(self._inlet_here(receiver, gone.id))
            self._close_outlet(outlet)
        for sender, inlet in gone.inlets.items():
            if sender in self.agents:
                self._end_outlet(self.agents[sender].outlets.get(gone.id))
            elif inlet.channel and inlet.peer.link is not None:
                self._tell_closed(inlet.peer, inlet.channel, by_receiver=True)
        for other, awaited in list(self._ending.items()):
            if awaited.consumed == awaited.arrived:
                del self._ending[other]
                self._end_inlet(awaited)

    def _inlet_here(self, receiver: str, sender: str) -> AgentInlet | None:
        found = self.agents.get(receiver)
        return found.inlets.get(sender) if found is not None else None

    def _end_inlet(self, inlet: AgentInlet | None) -> None:
        """The sender is gone. The numbers go once its last message is consumed."""
        if inlet is None or inlet.owner is None:
            return
        if inlet.consumed < inlet.arrived:
            self._ending[inlet.sender, inlet.receiver] = inlet
        elif inlet.owner.inlets.get(inlet.sender) is inlet:
            del inlet.owner.inlets[inlet.sender]

    def _on_receiver_gone(self, peer: Peer, channel: int) -> None:
        outlet = peer.outlets.get(channel)
        if outlet is not None:
            self._end_outlet(outlet)
            self._close_outlet(outlet)

    def _end_outlet(self, outlet: AgentOutlet | None) -> None:
        """The receiver is gone: what waits for it, or is sent to it from now on, is dead letters."""
        if outlet is None:
            return
        owner, receiver = outlet.owner, outlet.receiver
        self.routes.pop(receiver, None)
        self.ordinals.pop(receiver, None)
        if owner.logged is not None:
            owner.logged.forget(receiver)
        if owner.outlets.get(receiver) is outlet:
            self._settle(owner, outlet, is_found=False)
            outlet.queue = None

    def _close_outlet(self, outlet: AgentOutlet) -> None:
        if outlet.channel and outlet.peer is not None and outlet.peer.outlets.pop(outlet.channel, None) is outlet:
            self._tell_closed(outlet.peer, outlet.channel, by_receiver=False)

    def _tell_closed(self, peer: Peer, channel: int, *, by_receiver: bool) -> None:
        assert peer.link is not None
        self._flush(peer)
        self._carry_link(peer, peer.link.handle(self._now, lk.ChannelClosed(channel, by_receiver)))
        peer.measure_room()

    # ---- streams and frames ---------------------------------------------------------------------------------------

    def _on_stream_opened(self, event: ev.StreamOpened) -> None:
        self._feed_link(event.peer, lk.StreamOpened(event.attempt))

    def _on_stream_closed(self, event: ev.StreamClosed) -> None:
        self._feed_link(event.peer, lk.StreamClosed())

    def _on_frame_received(self, event: ev.FrameReceived) -> None:
        self._feed_link(event.peer, lk.FrameReceived(event.frame))

    def _on_write_ready(self, event: ev.WriteReady) -> None:
        self._feed_link(event.peer, lk.WriteReady())

    def _tick_link(self, peer: Peer) -> None:
        if peer.link is not None and peer.link.wakeup_ns is not None and peer.link.wakeup_ns <= self._now:
            self._carry_link(peer, peer.link.handle(self._now, lk.TimerFired()))

    def _feed_link(self, host: str, event: lk.Event) -> None:
        peer = self.peers.get(host)
        if peer is None or peer.link is None:
            self._out.append(ev.CloseStream(host, "no link of this plan"))
            return
        self._carry_link(peer, peer.link.handle(self._now, event))
        peer.measure_room()
        self._drain(peer)

    def _carry_link(self, peer: Peer, commands: Iterable[object]) -> None:
        for command in commands:
            if isinstance(command, lk.DeliverItems):
                self._deliver(peer, command)
            elif isinstance(command, lk.WriteFrame):
                self._out.append(ev.WriteFrame(peer.host, command.frame))
            else:
                self._carry_control(peer, command)
        if peer.link is not None and peer.link.wants_write:
            self._out.append(ev.WakeWriter(peer.host))

    def _carry_control(self, peer: Peer, command: object) -> None:
        match command:
            case lk.RaiseCredit():
                for channel, number in zip(command.channels, command.numbers, strict=True):
                    outlet = peer.outlets.get(channel)
                    if outlet is not None and outlet.raise_credit(number):
                        self._unpark(outlet)
            case lk.AcceptChannel():
                self._accept_channel(peer, command)
            case lk.DropInlet():
                self._end_inlet(peer.inlets.pop(command.channel))
            case lk.DropOutlet():
                self._on_receiver_gone(peer, command.channel)
            case lk.DeliverMarker():
                self._on_marker(peer, command.epoch, command.channels, command.last_numbers, command.is_last)
            case lk.CloseStream():
                self._out.append(ev.CloseStream(peer.host, command.reason))
            case lk.ReportEstablished():
                peer.is_reported = False
                peer.broken_ns = None
                self._note("info", f"link to {peer.host} {'resumed' if command.resumed else 'established'}")
            case lk.ReportSilence() | lk.ReportEnded():
                peer.broken_ns = self._now if peer.broken_ns is None else peer.broken_ns
                self._suspect(peer, "silent for 2 s" if isinstance(command, lk.ReportSilence) else "stream broken")
            case lk.Refuse():
                self._out.append(ev.RefuseStream(peer.host, command.reason, command.is_final))
            case lk.ReportRefused():
                if command.is_final:
                    self._note("warning", f"link to {peer.host} refused: {command.reason}")
            case _:
                raise AssertionError(f"no such command of a link: {command!r}")

    def _suspect(self, peer: Peer, reason: str) -> None:
        if not peer.is_reported:
            peer.is_reported = True
            self._out.append(ev.ReportPeerSuspected(peer.host, peer.start, reason))

    def _deliver(self, peer: Peer, command: lk.DeliverItems) -> None:
        """The hot path: one call of `_arrive`, written out, for each message of a frame."""
        inlets = peer.inlets
        if self.is_logged:
            piggybacks = command.piggybacks or [b""] * len(command.channels)
            for channel, payload, piggyback in zip(command.channels, command.payloads, piggybacks, strict=True):
                self._arrive(inlets[channel], piggyback, payload)
            return
        epochs = command.epochs
        stamps = epochs if len(epochs) == len(command.channels) else epochs * len(command.channels)
        for channel, payload, stamp in zip(command.channels, command.payloads, stamps, strict=True):
            inlet = inlets[channel]
            owner = inlet.owner
            if owner is None or stamp != owner.protocol.recorded:
                self._arrive(inlet, stamp, payload)
                continue
            inlet.arrived += 1
            owner.mailbox.append((inlet, stamp, payload))
            if owner.current is None:
                self._next_turn(owner)

    def _drain(self, peer: Peer) -> None:
        """Room has grown: let parked messages go, channel by channel."""
        for _ in range(len(peer.waiting)):
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                return
            outlet = peer.waiting.popleft()
            outlet.is_waiting = False
            self._unpark(outlet)

    # ---- batches --------------------------------------------------------------------------------------------------

    def _on_batch_ended(self, _event: ev.BatchEnded) -> None:
        for peer in self.peers.values():
            if peer.out_channels:
                self._flush(peer)
            if peer.consumed_items:
                self._tell_consumed(peer)
            peer.measure_room()
            if peer.waiting:
                self._drain(peer)
                self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        """Hand what is queued for this peer to its link, as one batch of columns."""
        if not peer.out_channels or peer.link is None:
            return
        epochs = peer.out_epochs
        if epochs.count(epochs[0]) == len(epochs):
            epochs = epochs[:1]
        sent = lk.ItemsSent(peer.out_channels, peer.out_payloads, epochs, peer.out_piggybacks)
        peer.out_channels, peer.out_payloads, peer.out_epochs, peer.out_piggybacks = [], [], [], []
        peer.pending_bytes = 0
        self._carry_link(peer, peer.link.handle(self._now, sent))
        peer.measure_room()

    def _tell_consumed(self, peer: Peer) -> None:
        if not peer.consumed_items or peer.link is None:
            return
        consumed = lk.ItemsConsumed(peer.consumed_items, peer.consumed_bytes, peer.credit_channels, peer.credit_numbers)
        peer.consumed_items = peer.consumed_bytes = 0
        peer.credit_channels, peer.credit_numbers = [], []
        self._carry_link(peer, peer.link.handle(self._now, consumed))

    def _validate_links(self) -> None:
        for peer in self.peers.values():
            assert peer.link is not None
            peer.link.validate()
            assert len(peer.out_channels) == len(peer.out_payloads) == len(peer.out_epochs)
            for channel, outlet in peer.outlets.items():
                assert outlet.channel == channel and outlet.peer is peer, (channel, outlet.receiver)
                assert outlet.number <= outlet.credit, (outlet.sender, outlet.receiver, outlet.number, outlet.credit)

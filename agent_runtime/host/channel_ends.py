"""The host core's component for channels. The component creates and opens the sending and receiving ends of channels, locates receivers,
and closes channels when their sender or receiver has left.

Messages leave their agents through `Outlets`. A message leaves immediately if the channel has credit and the link has room. If the channel
has no credit or the link has no room, the message is parked until both are available.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Protocol

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import IDLE, Mark
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_outputs import AgentRetirement
from snapline.agent_runtime.host.host_state import (
    UNLIMITED,
    AgentInlet,
    AgentOutlet,
    HostState,
    LocalAgent,
    Peer,
)
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.channels import link_events as lk
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg


class OutboxReleaser(Protocol):
    """Interface that `ChannelEnds` requires from `Outlets`."""

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the messages parked at this sending end, as far as the channel's credit and the link's room allow."""

    def shrank(self, owner: LocalAgent) -> None:
        """Handle the shrinking of an agent's outbox."""


class CreationBuffer(Protocol):
    """Interface that `ChannelEnds` requires from the component that creates and removes agents."""

    def keep_early(self, inlet: AgentInlet, mark: Mark, payload: bytes | None) -> bool:
        """Keep a message whose receiver is still being created on this host. Return True if the message was kept. If `payload` is None,
        keep only the channel to the receiver."""


class ReplyWaitNotifier(Protocol):
    """Interface that `ChannelEnds` requires from the component that handles durable turns."""

    def gone(self, agent: LocalAgent, callee: str) -> None:
        """End the wait for a reply from `callee`, which does not exist or has left."""


class ChannelEnds:
    """Creates, opens and closes the sending and receiving ends of the channels of this host's agents.

    Attributes:
        ending: receiving ends of channels whose senders have left, but whose messages are not all consumed yet, by (sender, receiver).
        locating: agents whose location was requested from the coordinator, by the number of the unanswered request.
        held: for each sender that must first record its state, the sending ends that are blocked until then.
    """

    _mode: HostMode
    _outlets: OutboxReleaser
    _membership: CreationBuffer
    _durable: ReplyWaitNotifier

    def __init__(self, shared: HostState, links: HostLinks, failures: HostFailures) -> None:
        self._shared = shared
        self._links = links
        self._failures = failures
        self.ending: dict[tuple[str, str], AgentInlet] = {}
        self.locating: dict[int, tuple[str, ...]] = {}
        self.held: dict[str, list[AgentOutlet]] = {}

    def wire(
        self, mode: HostMode, outlets: OutboxReleaser, membership: CreationBuffer, durable: ReplyWaitNotifier
    ) -> None:
        """Connect this component to the components of the host core above it."""
        self._mode, self._outlets, self._membership = mode, outlets, membership
        self._durable = durable

    def reset(self) -> None:
        """Clear all channels when a recovery plan ends the history of all agents on this host."""
        self.ending.clear()
        self.locating.clear()
        self.held.clear()

    def detach_all(self) -> None:
        """Detach the channels to and from other hosts, because their links have ended, while the agents on this host go on. Messages that may
        have left, and whose consumption is not known to be durable, wait to leave again under their numbers."""
        self.locating.clear()
        self.held.clear()
        for agent in self._shared.agents.values():
            for outlet in agent.outlets.values():
                if outlet.inlet is None:
                    _detach(outlet)
            for inlet in agent.inlets.values():
                if inlet.peer.link is not None:
                    inlet.channel, inlet.peer = 0, self._shared.local
                    inlet.first_number = inlet.arrived + 1  # what has arrived does not occupy the window of a new link

    def detach_moved(self, agent: LocalAgent) -> None:
        """Detach the channels between an agent that moves to another host and those on this host. All that it has consumed is in a durable
        commit."""
        agents = self._shared.agents
        for sender, inlet in agent.inlets.items():
            inlet.owner = None
            outlet = agents[sender].outlets.get(agent.id) if sender in agents else None
            if outlet is not None and outlet.inlet is inlet:
                outlet.acknowledge(inlet.consumed)
                outlet.inlet = None
                outlet.released = outlet.number - len(outlet.kept)  # no commit may contain the others yet
                _detach(outlet)
        for receiver in agent.outlets:
            found = agents[receiver].inlets.get(agent.id) if receiver in agents else None
            if found is not None:
                found.channel, found.first_number = 0, found.arrived + 1

    # ---- making and opening ---------------------------------------------------------------------------------------

    def new_outlet(self, agent: LocalAgent, receiver: str) -> AgentOutlet:
        """Create the sending end of a channel whose receiver has not been located yet."""
        outlet = agent.outlets[receiver] = AgentOutlet(channel=0, sender=agent.id, receiver=receiver)
        outlet.owner = agent
        outlet.peer = None
        outlet.inlet = None
        outlet.is_waiting = False
        outlet.released = outlet.requested = 0 if self._shared.commits.is_on else UNLIMITED
        outlet.repeated = outlet.acked = 0
        outlet.kept = deque() if self._shared.commits.is_on else NOTHING_KEPT
        outlet.ordinal = -1
        return outlet

    def new_inlet(self, agent: LocalAgent, sender: str) -> AgentInlet:
        """Create the receiving end of a channel. Initially, the sender is assumed to be on this host."""
        inlet = agent.inlets[sender] = AgentInlet(channel=0, sender=sender, receiver=agent.id)
        inlet.owner = agent
        inlet.peer = self._shared.local
        inlet.first_number = 1
        inlet.durable = inlet.saved = 0
        inlet.next = None
        return inlet

    def open(self, agent: LocalAgent, receiver: str) -> AgentOutlet:
        """Return the sending end of the channel to a receiver. Connect the channel if the receiver's location is known, otherwise request
        the location from the coordinator."""
        shared = self._shared
        outlet = agent.outlets.get(receiver) or self.new_outlet(agent, receiver)
        route = shared.routes.get(receiver)
        if route is None:
            self._locate(receiver)
            return outlet
        # The outlet keeps the ordinal, because `_end_outlet` of another sender may delete it while this channel is still open.
        outlet.ordinal = shared.ordinals.get(receiver, -1)
        if route[0] == shared.host:
            self._connect_here(outlet)
        elif (peer := self._links.to(route[0])) is not None:
            self._connect_there(outlet, peer, route[1])
        return outlet

    def _connect_here(self, outlet: AgentOutlet) -> None:
        shared = self._shared
        owner = shared.agents.get(outlet.receiver)
        if owner is None and not shared.is_loaded:
            return  # the receiver is being loaded, and the channel is opened afterwards
        if owner is None:
            shared.routes.pop(outlet.receiver, None)
            self._locate(outlet.receiver)
            return
        inlet = owner.inlets.get(outlet.sender) or self.new_inlet(owner, outlet.sender)
        if shared.commits.is_on:
            outlet.released = outlet.requested = UNLIMITED  # both agents are in the same commits
            _skip_arrived(outlet, inlet)
        _check_first_number(inlet, outlet.number + 1)
        inlet.peer = outlet.peer = shared.local
        inlet.credit_sent = outlet.credit = outlet.number + CHANNEL_CREDIT
        outlet.inlet = inlet

    def _connect_there(self, outlet: AgentOutlet, peer: Peer, incarnation: int) -> None:
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
        self._links.tell(peer, opened)
        self._hold_if_due(outlet, peer)

    def hold(self, peer: Peer) -> None:
        """Hold every sender on a newly opened link that must first record an epoch that began before."""
        for outlet in peer.outlets.values():
            self._hold_if_due(outlet, peer)

    def _hold_if_due(self, outlet: AgentOutlet, peer: Peer) -> None:
        """Withdraw the credit of a sender that must first record its state. Its messages then stay in its outbox, and the recorded state
        includes them."""
        if self._mode.is_behind(outlet.owner, peer):
            outlet.credit = outlet.number
            self.held.setdefault(outlet.owner.id, []).append(outlet)

    def release(self, agent: str) -> None:
        """Release a sender that has recorded its state, so that its held messages can leave at the end of the current batch of turns."""
        for outlet in self.held.pop(agent):
            outlet.credit = max(outlet.credit, outlet.number + CHANNEL_CREDIT)
            if outlet.queue and outlet.peer is not None and not outlet.is_waiting:
                outlet.is_waiting = True
                outlet.peer.waiting.append(outlet)

    def accept(self, peer: Peer, command: lk.AcceptChannel) -> None:
        """Accept a channel that a peer host opens to an agent on this host. If the agent is not on this host, or not in the requested
        incarnation, the channel's messages are discarded."""
        owner = self._shared.agents.get(command.receiver)
        if owner is not None and owner.incarnation != command.receiver_incarnation:
            owner = None
        if owner is None:
            inlet = self._refuse(peer, command)
        else:
            inlet = owner.inlets.get(command.sender) or self.new_inlet(owner, command.sender)
            inlet.channel = command.channel
            inlet.credit_sent = inlet.arrived + CHANNEL_CREDIT
        inlet.peer = peer
        inlet.first_number = command.first_number
        peer.inlets[command.channel] = inlet
        if owner is not None and self._shared.commits.is_on:
            self._accept_repeated(peer, inlet)
        elif owner is not None:
            _check_first_number(inlet, command.first_number)

    def _accept_repeated(self, peer: Peer, inlet: AgentInlet) -> None:
        """Prepare the receiving end for messages that have arrived before, and tell the sender which messages it may forget."""
        first_number = inlet.first_number
        if first_number <= inlet.arrived:
            repeated = AgentInlet(
                channel=inlet.channel, sender=inlet.sender, receiver=inlet.receiver, first_number=first_number
            )
            repeated.owner, repeated.peer, repeated.next = None, peer, inlet
            peer.inlets[inlet.channel] = repeated
            inlet.first_number = inlet.arrived + 1
        else:
            _check_first_number(inlet, first_number)
        inlet.credit_sent = inlet.durable + CHANNEL_CREDIT
        peer.credit_channels.append(inlet.channel)
        peer.credit_numbers.append(inlet.credit_sent)

    def _refuse(self, peer: Peer, command: lk.AcceptChannel) -> AgentInlet:
        """Create the receiving end of a channel whose receiver is not on this host. Messages that arrive on this channel are discarded,
        unless the receiver is being created."""
        inlet = AgentInlet(
            channel=command.channel,
            sender=command.sender,
            receiver=command.receiver,
            first_number=command.first_number,
        )
        inlet.owner = None
        inlet.durable, inlet.saved, inlet.next = inlet.arrived, 0, None
        if not self._membership.keep_early(inlet, 0, None):
            self._tell_closed(peer, command.channel, by_receiver=True)
        return inlet

    # ---- finding the receiver -------------------------------------------------------------------------------------

    def _locate(self, receiver: str) -> None:
        if any(receiver in names for names in self.locating.values()):
            return
        request = self._shared.next_request()
        self.locating[request] = (receiver,)
        self._shared.out.append(msg.LocateAgents(request, (receiver,)))

    def welcomed(self) -> None:
        """Resend location requests that the coordinator may not have received."""
        for request, agents in self.locating.items():
            self._shared.out.append(msg.LocateAgents(request, agents))

    def on_agents_located(self, event: msg.AgentsLocated) -> None:
        shared = self._shared
        if self.locating.pop(event.request, None) is None:
            return
        for name, host, incarnation, ordinal in zip(
            event.agents, event.hosts, event.incarnations, event.ordinals, strict=True
        ):
            if host:
                shared.routes[name] = (host, incarnation)
                shared.ordinals[name] = ordinal
            for agent in list(shared.agents.values()):
                outlet = agent.outlets.get(name)
                if outlet is not None and outlet.peer is None:
                    self._settle(agent, outlet, is_found=name in shared.routes)

    def settle_waiting(self, hosts: Collection[str]) -> None:
        """Open the channels that waited for the addresses of these hosts."""
        for agent in list(self._shared.agents.values()):
            for outlet in list(agent.outlets.values()):
                route = self._shared.routes.get(outlet.receiver)
                if outlet.peer is None and outlet.queue and route is not None and route[0] in hosts:
                    self.open(agent, outlet.receiver)
                    self._outlets.unpark(outlet)

    def _settle(self, agent: LocalAgent, outlet: AgentOutlet, *, is_found: bool) -> None:
        """Handle the coordinator's reply to a location request. If the receiver was found, send its parked messages. Otherwise dead-letter
        them."""
        if is_found:
            self.open(agent, outlet.receiver)
            self._outlets.unpark(outlet)
            return
        del agent.outlets[outlet.receiver]
        for payload in outlet.queue or ():
            agent.parked -= 1
            reason = f"there is no agent {outlet.receiver!r}: check the id, or spawn it first"
            self._failures.void(agent, outlet.receiver, payload, reason)
        self._outlets.shrank(agent)
        self._durable.gone(agent, outlet.receiver)

    # ---- departed agents -----------------------------------------------------------------------------------------

    def close_all(self, gone: LocalAgent) -> None:
        """Close the channels of an agent that has left and is not part of any undecided epoch. No other agent needs the closed channels any
        longer.

        When other hosts receive `ChannelClosed`, which follows all messages in transit, they drop their ends of the closed channels. If a
        restored channel has not been used under this plan, other hosts keep its numbers until the next plan, because no link item can refer
        to the channel.
        """
        agents = self._shared.agents
        for receiver, outlet in gone.outlets.items():
            peer_agent = agents.get(receiver)
            self.end_inlet(peer_agent.inlets.get(gone.id) if peer_agent is not None else None)
            self._close_outlet(outlet)
        for sender, inlet in gone.inlets.items():
            if sender in agents:
                self._end_outlet(agents[sender].outlets.get(gone.id))
            elif inlet.channel and inlet.peer.link is not None:
                self._tell_closed(inlet.peer, inlet.channel, by_receiver=True)
        for other, awaited in list(self.ending.items()):
            if awaited.consumed == awaited.arrived:
                del self.ending[other]
                self.end_inlet(awaited)

    def end_inlet(self, inlet: AgentInlet | None) -> None:
        """Close the receiving end of a channel whose sender has left. The receiving end is removed once its last message has been
        consumed."""
        if inlet is None or inlet.owner is None:
            return
        if inlet.consumed < inlet.arrived:
            self.ending[inlet.sender, inlet.receiver] = inlet
        elif inlet.owner.inlets.get(inlet.sender) is inlet:
            del inlet.owner.inlets[inlet.sender]
            if self._shared.commits.is_on and inlet.consumed:
                inlet.owner.ended[inlet.sender] = (inlet.consumed, self._shared.commits.epochs)

    def receiver_gone(self, peer: Peer, channel: int) -> None:
        """Close a channel whose receiver has left."""
        outlet = peer.outlets.get(channel)
        if outlet is not None:
            self._end_outlet(outlet)
            self._close_outlet(outlet)

    def _end_outlet(self, outlet: AgentOutlet | None) -> None:
        """Close the sending end of a channel whose receiver has left, so that waiting and future messages to that receiver are
        dead-lettered."""
        if outlet is None:
            return
        owner, receiver = outlet.owner, outlet.receiver
        self._shared.routes.pop(receiver, None)
        self._shared.ordinals.pop(receiver, None)
        self._mode.receiver_gone(owner, receiver)
        if owner.outlets.get(receiver) is outlet:
            self._settle(owner, outlet, is_found=False)
            outlet.queue = None

    def _close_outlet(self, outlet: AgentOutlet) -> None:
        if outlet.channel and outlet.peer is not None and outlet.peer.outlets.pop(outlet.channel, None) is outlet:
            self._tell_closed(outlet.peer, outlet.channel, by_receiver=False)

    def _tell_closed(self, peer: Peer, channel: int, *, by_receiver: bool) -> None:
        self._links.tell(peer, lk.ChannelClosed(channel, by_receiver))


NOTHING_KEPT: deque[bytes] = deque()
"""Value of `AgentOutlet.kept` without commits. It is shared, because it stays empty."""


def _detach(outlet: AgentOutlet) -> None:
    owner = outlet.owner
    released = outlet.released if outlet.released < UNLIMITED else outlet.number
    outlet.repeated, outlet.requested = max(outlet.number, released), released
    outlet.released = released
    outlet.channel, outlet.peer, outlet.is_waiting = 0, None, False
    owner.is_repeating |= outlet.number - len(outlet.kept) < outlet.repeated
    outlet.number -= len(outlet.kept)
    owner.parked += len(outlet.kept)
    if outlet.kept:
        outlet.parked.extendleft(reversed(outlet.kept))
        outlet.kept.clear()


def _skip_arrived(outlet: AgentOutlet, inlet: AgentInlet) -> None:
    """Count the first parked messages as sent, because the receiver already has them from its checkpoint."""
    while outlet.number < inlet.arrived and outlet.queue:
        outlet.number += 1
        outlet.kept.append(outlet.queue.popleft())
        outlet.owner.parked -= 1
    outlet.queue = outlet.queue or None


def _check_first_number(inlet: AgentInlet, first_number: int) -> None:
    if first_number != inlet.arrived + 1:
        raise ProtocolError(
            f"channel {inlet.sender} → {inlet.receiver} opens with message {first_number}, "
            f"but {inlet.arrived} have arrived"
        )


class Outlets:
    """Sends the messages of this host's agents, and parks the messages that cannot be sent yet. A parked message has no sequence number and
    no protocol mark yet. The message is part of its sender's state while it is parked."""

    _mode: HostMode
    _membership: AgentRetirement

    def __init__(self, shared: HostState, ends: ChannelEnds, mailboxes: Mailboxes) -> None:
        self._shared = shared
        self._ends = ends
        self._mailboxes = mailboxes
        self._arrive = mailboxes.arrive

    def wire(self, mode: HostMode, membership: AgentRetirement) -> None:
        """Connect this component to the components of the host core above it. Functions that are called often are bound to attributes
        here."""
        self._mode, self._membership = mode, membership
        self._mark = mode.mark

    def leave(self, agent: LocalAgent, sends: Iterable[tuple[str, bytes]]) -> None:
        """Send all messages that a turn has produced. If a message's channel has no credit or its link has no room, park the message.

        While the messages are sent, the agent must count as busy. Otherwise, recording its state between two messages could split the turn.
        """
        assert agent.stage is not IDLE
        if self._shared.commits.is_on:
            self._shared.note_change(agent.id)
        outlets = agent.outlets
        for receiver, payload in sends:
            outlet = outlets.get(receiver)
            if outlet is None or outlet.peer is None:
                outlet = self._ends.open(agent, receiver)
                self.unpark(outlet)
            peer = outlet.peer
            if (
                peer is None
                or outlet.queue
                or outlet.number >= outlet.credit
                or outlet.number >= outlet.released
                or peer.items_room <= 0
                or peer.bytes_room <= 0
                or agent.is_held
                or agent.is_failed
            ):
                _park(outlet, payload)
                self._shared.commits.is_wanted = True
            else:
                self._depart(outlet, peer, payload)

    def _depart(self, outlet: AgentOutlet, peer: Peer, payload: bytes) -> None:
        """Send a message, and assign its sequence number and its protocol mark at the same time."""
        outlet.number += 1
        mark = self._mark(outlet, payload)
        shared = self._shared
        if shared.commits.is_on and outlet.number > outlet.acked:
            outlet.kept.append(payload)
        if shared.trace_every and outlet.number % shared.trace_every == 0:
            shared.out.append(ev.Trace("send", outlet.sender, outlet.receiver, outlet.number))
        if outlet.inlet is not None:
            self._arrive(outlet.inlet, mark, payload)
            return
        size = len(payload)
        peer.items_room -= 1
        peer.bytes_room -= size
        peer.pending_bytes += size
        peer.out_channels.append(outlet.channel)
        peer.out_payloads.append(payload)
        peer.out_marks.append(mark)

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the messages parked at this sending end, as far as the channel's credit and the link's room allow."""
        peer = outlet.peer
        owner = outlet.owner
        queue = outlet.queue
        if peer is None or not queue or owner.is_silent:
            return
        while queue and outlet.number < outlet.credit and outlet.number < outlet.released:
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                _wait_for_room(outlet, peer)
                break
            owner.parked -= 1
            self._depart(outlet, peer, queue.popleft())
        if not queue and outlet.queue is queue:
            outlet.queue = None
        if self._shared.commits.is_on:
            self._request_release(outlet)
        self.shrank(owner)

    def _request_release(self, outlet: AgentOutlet) -> None:
        """Let the next commit release parked messages for which there is credit now."""
        if outlet.queue and outlet.requested < min(outlet.credit, outlet.number + len(outlet.queue)):
            self._shared.note_change(outlet.owner.id)
            self._shared.commits.is_wanted = True

    def unpark_all(self, agent: LocalAgent) -> None:
        """Send the parked messages of an agent that may send again, as far as possible."""
        for outlet in list(agent.outlets.values()):
            self.unpark(outlet)

    def shrank(self, owner: LocalAgent) -> None:
        """Continue whatever waited for the agent's outbox to shrink: deferred entries, a durable turn, a checkpoint, or the agent's
        departure."""
        if owner.is_repeating and not any(each.number < each.repeated for each in owner.outlets.values()):
            owner.is_repeating = False
            self._mailboxes.next_turn(owner)
        if owner.deferred and not owner.is_crowded and not owner.is_full:
            self._mailboxes.go_on(owner)
        elif owner.turn is not None and not owner.is_crowded:
            self._mailboxes.next_turn(owner)
        elif owner.stage is IDLE:
            self._mode.outbox_shrank(owner)
        if owner.is_leaving:
            self._membership.retire_if_drained(owner)

    def validate(self) -> None:
        for agent in self._shared.agents.values():
            assert agent.parked == sum(len(outlet.queue or ()) for outlet in agent.outlets.values()), agent.id


def _park(outlet: AgentOutlet, payload: bytes) -> None:
    outlet.parked.append(payload)
    outlet.owner.parked += 1
    if outlet.peer is not None and outlet.number < outlet.credit and outlet.number < outlet.released:
        _wait_for_room(outlet, outlet.peer)


def _wait_for_room(outlet: AgentOutlet, peer: Peer) -> None:
    if not outlet.is_waiting:
        outlet.is_waiting = True
        peer.waiting.append(outlet)

"""The part of a host core where messages leave their agents: at once, or parked until the channel has credit and the link room."""

from collections.abc import Iterable

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import ChannelEnds
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import AgentOutlet, LocalAgent, Peer
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.outputs import AgentRetirement


class Outlets:
    """Outlets of the agents here. A waiting message has no number and no mark yet: it belongs to its sender's state."""

    _mode: HostMode
    _membership: AgentRetirement

    def __init__(self, shared: HostState, ends: ChannelEnds, mailboxes: Mailboxes) -> None:
        self._shared = shared
        self._ends = ends
        self._mailboxes = mailboxes
        self._arrive = mailboxes.arrive

    def wire(self, mode: HostMode, membership: AgentRetirement) -> None:
        """Connect the parts above this one. Functions that the hot path calls are bound once."""
        self._mode, self._membership = mode, membership
        self._mark = mode.mark

    def leave(self, agent: LocalAgent, sends: Iterable[tuple[str, bytes]]) -> None:
        """Send a turn's messages together, or park those whose channel has no credit or whose link has no room.

        Meanwhile the agent counts as busy: a record between the messages would split the turn.
        """
        assert agent.current is not None
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
                or peer.items_room <= 0
                or peer.bytes_room <= 0
                or agent.is_held
                or agent.is_failed
            ):
                _park(outlet, payload)
            else:
                self._depart(outlet, peer, payload)

    def _depart(self, outlet: AgentOutlet, peer: Peer, payload: bytes) -> None:
        """Number and mark a message, at one instant: this is the moment it leaves its sender."""
        outlet.number += 1
        mark = self._mark(outlet, payload)
        shared = self._shared
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
        """Let parked messages go as far as credit and room allow."""
        peer = outlet.peer
        owner = outlet.owner
        queue = outlet.queue
        if peer is None or not queue or owner.is_silent:
            return
        while queue and outlet.number < outlet.credit:
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                _wait_for_room(outlet, peer)
                break
            owner.parked -= 1
            self._depart(outlet, peer, queue.popleft())
        if not queue and outlet.queue is queue:
            outlet.queue = None
        self.shrank(owner)

    def unpark_all(self, agent: LocalAgent) -> None:
        """Release all parked messages of an agent that may send again."""
        for outlet in list(agent.outlets.values()):
            self.unpark(outlet)

    def shrank(self, owner: LocalAgent) -> None:
        """Resume turns that waited for the agent's outbox to shrink."""
        if owner.deferred and not owner.is_crowded and not owner.is_full:
            self._mailboxes.go_on(owner)
        elif owner.turn is not None and not owner.is_crowded:
            self._mailboxes.next_turn(owner)
        elif owner.current is None:
            self._mode.outbox_shrank(owner)
        if owner.is_leaving:
            self._membership.retire_if_drained(owner)

    def validate(self) -> None:
        for agent in self._shared.agents.values():
            assert agent.parked == sum(len(outlet.queue or ()) for outlet in agent.outlets.values()), agent.id


def _park(outlet: AgentOutlet, payload: bytes) -> None:
    outlet.parked.append(payload)
    outlet.owner.parked += 1
    if outlet.peer is not None and outlet.number < outlet.credit:
        _wait_for_room(outlet, outlet.peer)


def _wait_for_room(outlet: AgentOutlet, peer: Peer) -> None:
    if not outlet.is_waiting:
        outlet.is_waiting = True
        peer.waiting.append(outlet)

"""Host mode for chandy-lamport: records agents' states for epochs, exchanges marker items, and completes the host's contribution to each
epoch.

Each message carries a stamp: the newest epoch that its sender had recorded. If an epoch is known to have begun, an agent must record its
state for the epoch before the agent's next turn. The protocol of a single agent is in `protocols/epoch_stamped.py`.
"""

from collections.abc import Iterable, Sequence

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Entry, Mark, MessageEntry
from snapline.agent_runtime.host.host_state import (
    AgentInlet,
    AgentOutlet,
    HostEpoch,
    LocalAgent,
    Peer,
)
from snapline.agent_runtime.host.modes.mode import CheckpointCondition, Handlers
from snapline.agent_runtime.host.plans import HostParts
from snapline.channels.link_events import DeliverItems, DeliverMarker, MarkerSent
from snapline.messages import host_messages as msg
from snapline.protocols.epoch_stamped import (
    Command,
    EpochAnnounced,
    EpochEnded,
    EpochStampedCore,
    Event,
    LeaveCommitted,
    MarkersReceived,
    MessageArrived,
    RecordedPart,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
)
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

RECORDED_AT_ONCE = 32
"""Largest number of idle agents that record without a pause, when an epoch begins or between two passes of the event loop. These records
take one or two milliseconds. Thousands of records without a pause would delay all events."""


class CoordinatedMode:
    """Host mode for fleets with the protocol chandy-lamport.

    Attributes:
        epochs: open epochs by number, in ascending order.
        unasked: agents that may have to record their state and have not been checked since the epoch began. An agent that gets a message
            records its state before its turn anyway.
        departed: for each departed agent, the newest epoch that had begun when the agent departed. An agent is removed from `departed` when
            a later epoch is complete.
    """

    def __init__(self, parts: HostParts) -> None:
        self._shared = parts.shared
        self._links = parts.links
        self._ends = parts.ends
        self._mailboxes = parts.mailboxes
        self._membership = parts.membership
        self._log = parts.log
        self.epochs: dict[int, HostEpoch] = {}
        self.departed: dict[str, tuple[int, LocalAgent]] = {}
        self.unasked: dict[str, None] = {}

    def handlers(self) -> Handlers:
        return {
            msg.BeginEpoch: self._on_begin_epoch,
            ev.EpochStored: self._on_epoch_stored,
            ev.EpochNotStored: self._on_epoch_not_stored,
            ev.CaptureFailed: self._on_capture_failed,
            msg.FreezeAgents: self._on_freeze_agents,
            msg.ReportNumbers: self._on_report_numbers,
        }

    # ---- messages -------------------------------------------------------------------------------------------------

    def mark(self, outlet: AgentOutlet, payload: bytes) -> Mark:
        return outlet.owner.protocol.recorded

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        if marks.count(marks[0]) == len(marks):
            marks = marks[:1]
        return marks, []  # type: ignore[return-value]  # this mode's marks are stamps

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        epochs = items.epochs
        return epochs if len(epochs) == len(items.channels) else epochs * len(items.channels)

    def mark_of(self, message: InTransitMessage) -> Mark:
        return message.stamp

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        if mark != owner.protocol.recorded:
            assert isinstance(mark, int)
            self._show(owner, inlet, mark, payload)

    def _show(self, owner: LocalAgent, inlet: AgentInlet, stamp: int, payload: bytes) -> None:
        """Pass a message to the agent's epoch core, because it may belong to a channel state or announce an epoch."""
        _tell(owner, self._shared.now, MessageArrived(inlet.sender, inlet.arrived, stamp, payload))
        if stamp > self._shared.begun_epoch:
            self._begin(stamp)

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """Do nothing, because an agent's record contains all waiting messages, no matter how they are consumed later."""

    def consumed(self, inlet: AgentInlet) -> None:
        """Do nothing, because the incoming channel itself keeps the sequence numbers that a record needs."""

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        if agent.owes and agent.retired_in is None and not agent.is_repeating:
            self._record(agent)

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """Do nothing, since only the coordinator begins epochs."""

    def moved(self, agent: LocalAgent) -> None:
        """Note the change for the host's next commit. An epoch records all agents, whether they have changed or not."""
        self._shared.note_change(agent.id)

    def tried(self, agent: LocalAgent) -> None:
        """Do nothing, because this mode keeps no data about a turn that would have to be undone."""

    def awaited(self, agent: LocalAgent) -> None:
        """Do nothing, since the coordinator begins an epoch for the waiting client."""

    def outbox_shrank(self, owner: LocalAgent) -> None:
        """Do nothing, because a record contains the outbox as it is at the time of recording."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        agent.protocol = EpochStampedCore(agent.id, recorded=self._shared.begun_epoch)

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        """Create an agent. The new agent must record its state for open epochs that began after its creation was committed."""
        unborn_in = self._shared.not_ended(epoch for epoch in reserved.open_epochs if epoch <= reserved.recorded)
        child.protocol = EpochStampedCore(child.id, recorded=reserved.recorded, unborn_in=unborn_in)
        if reserved.recorded > self._shared.begun_epoch:
            self._begin(reserved.recorded)
        for ended_epoch in sorted(self._shared.ended):
            if ended_epoch > child.protocol.recorded:
                _tell(child, self._shared.now, EpochEnded(ended_epoch))
        for epoch in self.epochs.values():
            if epoch.number > child.protocol.recorded:
                epoch.unrecorded[child.id] = None
        if self._shared.begun_epoch > child.protocol.recorded:
            _tell(child, self._shared.now, EpochAnnounced(self._shared.begun_epoch))

    def created(self) -> None:
        self._check()

    def retiring(self, agent: LocalAgent) -> None:
        """Do nothing, because the agent's sequence numbers are final, and open epochs will record them."""

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        """Exclude the agent from all epochs that began after its departure was committed."""
        shared = self._shared
        newest = max(open_epochs, default=0)
        if newest > shared.begun_epoch:
            self._begin(newest)  # the agent is part of the epoch, whose BeginEpoch was lost with a stream
        agent.retired_in = shared.not_ended(open_epochs)
        last = max(open_epochs, default=agent.protocol.recorded)
        _tell(agent, shared.now, LeaveCommitted(last))
        for epoch in self.epochs.values():
            if epoch.number > last:
                epoch.unrecorded.pop(agent.id, None)
        self._check()

    def removed(self, agent: LocalAgent) -> None:
        """Remember a departed agent, since a later epoch must still cover the messages that it sent."""
        self.departed[agent.id] = (self._shared.begun_epoch, agent)

    def failed(self, agent: LocalAgent) -> None:
        """Do nothing, because the failed agent will not record, and the coordinator will therefore end the open epochs with a plan."""

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        """Do nothing, since this mode keeps no data about receivers."""

    # ---- plans ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        for epoch in self.epochs:
            self._shared.out.append(ev.DropEpoch(epoch))
        self.epochs.clear()
        self.departed.clear()
        self.unasked.clear()

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Do nothing, since the recovery line is an epoch that is already durable."""

    def welcomed(self) -> None:
        for epoch in self.epochs.values():
            if epoch.refusal:
                self._shared.out.append(msg.EpochRefused(epoch.number, epoch.refusal))
            elif epoch.is_reported:
                self._shared.out.append(ev.ReportEpoch(epoch.number))

    # ---- epochs: beginning ----------------------------------------------------------------------------------------

    def _on_begin_epoch(self, event: msg.BeginEpoch) -> None:
        if event.plan != self._shared.plan or not self._shared.is_loaded:
            return
        known = self.epochs.get(event.epoch)
        if event.epoch > self._shared.begun_epoch:
            self._begin(event.epoch)
        elif event.again and known is not None and known.is_reported:
            self._shared.out.append(ev.ReportEpoch(event.epoch))

    def _begin(self, epoch: int) -> None:
        """Begin an epoch when the first message about it arrives. All agents on this host must then record their state, and idle agents do
        so immediately."""
        shared = self._shared
        for number in range(shared.begun_epoch + 1, epoch + 1):
            if number in shared.ended:
                continue
            unrecorded = {
                agent.id: None
                for agent in shared.agents.values()
                if agent.protocol.recorded < number and agent.retired_in is None
            }
            awaited = {host: None for host, peer in shared.peers.items() if _is_marked(peer, number)}
            commits, start = shared.commits.captured, self._log.start_beyond_states() if shared.commits.is_on else 0
            self.epochs[number] = HostEpoch(number, unrecorded, awaited, shared.now, commits, start)
            if any(agent.is_repeating for agent in shared.agents.values()):
                self._refuse(number, f"host {shared.host} still repeats messages from before the recovery")
        shared.begun_epoch = epoch
        announced = EpochAnnounced(epoch)
        for agent in shared.agents.values():
            if agent.retired_in is None:
                _tell(agent, shared.now, announced)
                self.unasked[agent.id] = None
        self._ask()
        self._check()

    def _ask(self) -> None:
        """Let a limited number of idle agents record their state. The remaining agents record after the events that have arrived
        meanwhile."""
        count = 0
        while self.unasked and count < RECORDED_AT_ONCE:
            name = next(iter(self.unasked))
            del self.unasked[name]
            agent = self._shared.agents.get(name)
            if agent is not None and agent.owes and not agent.is_busy:
                self._mailboxes.next_turn(agent)
                count += 1

    # ---- epochs: recording ----------------------------------------------------------------------------------------

    def _record(self, agent: LocalAgent) -> None:
        """Between two turns, record the agent's image and sequence numbers for each epoch that the agent has not recorded yet."""
        shared = self._shared
        boundary = TurnBoundaryReached(agent.sent(), agent.received(), self._waiting_of(agent))
        for command in _tell(agent, shared.now, boundary):
            match command:
                case RecordState():
                    released = agent.released() if shared.commits.is_on else b""
                    control = agent.control(shared.now, protocol_state=released)
                    shared.out.append(ev.CaptureState(agent.id, command.epochs, control))
                    agent.checkpoints += 1
                case SendMarkers():
                    epoch = self.epochs.get(command.epoch)
                    if epoch is not None:
                        epoch.markers[agent.id] = command.last_numbers
                        epoch.unrecorded.pop(agent.id, None)
        self._check()

    def _waiting_of(self, agent: LocalAgent) -> tuple[WaitingMessage, ...]:
        numbers: dict[str, int] = {}
        waiting: list[WaitingMessage] = []
        for entry in [*agent.deferred, *agent.mailbox]:
            if not isinstance(entry, MessageEntry):
                continue
            sender = entry.inlet.sender
            number = numbers[sender] = numbers.get(sender, entry.inlet.consumed) + 1
            assert isinstance(entry.mark, int)
            waiting.append(WaitingMessage(sender, number, entry.mark, entry.payload))
        return tuple(waiting)

    # ---- epochs: links ----------------------------------------------------------------------------------------------

    def linked(self, peer: Peer) -> None:
        """When a new link opens, stop expecting markers on it for epochs that had already begun on either host."""
        assert peer.floor is not None
        if peer.floor > self._shared.begun_epoch:
            self._begin(peer.floor)
        for number, epoch in self.epochs.items():
            if number <= peer.floor:
                epoch.awaited.pop(peer.host, None)
        self._check()

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        if peer.floor is None or agent.protocol.recorded >= peer.floor or agent.retired_in is not None:
            return False
        return agent.owes or peer.floor > self._shared.begun_epoch

    def _release(self) -> None:
        """Let agents that have recorded their state use links that opened before they recorded."""
        for agent_id in list(self._ends.held):
            agent = self._shared.agents.get(agent_id)
            if agent is None or not agent.owes:
                self._ends.release(agent_id)

    # ---- epochs: markers ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Send the markers of each epoch that all agents have recorded, and complete this host's contribution to each epoch that is
        ready."""
        self._release()
        for epoch in list(self.epochs.values()):
            if not epoch.markers_sent and not epoch.unrecorded and not self._membership.reservations:
                self._send_markers(epoch)
            if epoch.markers_sent and not epoch.awaited and not epoch.is_stored and not epoch.refusal:
                self._close(epoch)

    def _send_markers(self, epoch: HostEpoch) -> None:
        """Send one marker item on each link, after all items with an older stamp, because all agents on this host have recorded the
        epoch."""
        epoch.markers_sent = True
        here: dict[str, dict[str, int]] = {}
        marked = [peer for peer in self._shared.peers.values() if _is_marked(peer, epoch.number)]
        items: dict[str, tuple[list[int], list[int]]] = {peer.host: ([], []) for peer in marked}
        for agent_id, last_numbers in epoch.markers.items():
            agent = self._shared.agents.get(agent_id)
            if agent is None:
                continue
            for receiver, last in last_numbers.items():
                outlet = agent.outlets.get(receiver)
                if outlet is None or outlet.peer is None:
                    continue
                if outlet.inlet is not None:
                    here.setdefault(receiver, {})[agent_id] = last
                elif outlet.channel and outlet.peer.host in items:
                    channels, numbers = items[outlet.peer.host]
                    channels.append(outlet.channel)
                    numbers.append(last)
        self._show_markers(epoch.number, here)
        for peer in marked:
            channels, numbers = items[peer.host]
            self._links.tell(peer, MarkerSent(epoch.number, channels, numbers))
            self._trace_marker("send_marker", peer.host, epoch.number)

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        epoch = marker.epoch
        if marker.is_last:
            self._trace_marker("receive_marker", peer.host, epoch)
        if epoch in self._shared.ended:
            return
        if epoch > self._shared.begun_epoch:
            self._begin(epoch)
        by_receiver: dict[str, dict[str, int]] = {}
        for channel, last in zip(marker.channels, marker.last_numbers, strict=True):
            inlet = peer.inlets[channel]
            inlet = inlet.next or inlet
            if inlet.owner is not None:
                by_receiver.setdefault(inlet.receiver, {})[inlet.sender] = last
        self._show_markers(epoch, by_receiver)
        host_epoch = self.epochs.get(epoch)
        if host_epoch is not None and marker.is_last:
            host_epoch.awaited.pop(peer.host, None)
            self._check()

    def _trace_marker(self, what: str, other: str, epoch: int) -> None:
        if self._shared.trace_every:
            self._shared.out.append(ev.Trace(what, self._shared.host, other, epoch))

    def _show_markers(self, epoch: int, by_receiver: dict[str, dict[str, int]]) -> None:
        for receiver, last_numbers in by_receiver.items():
            agent = self._shared.agents.get(receiver)
            if agent is not None and agent.retired_in is None:
                _tell(agent, self._shared.now, MarkersReceived(epoch, last_numbers))

    def _close(self, epoch: HostEpoch) -> None:
        """Complete and store this host's contribution to the epoch, because no message that belongs to it can arrive any more."""
        epoch.is_stored = True
        records: dict[str, RecordedPart] = {}
        for agent in self._shared.agents.values():
            if epoch.number not in agent.protocol.open_epochs():
                continue
            record = agent.protocol.record_of(epoch.number)
            if record.in_transit or not record.is_unborn:
                records[agent.id] = record
            # Otherwise no message in the cut is for this agent, so the agent is not part of the cut, not even as unborn.
        departed = {
            agent_id: sent for agent_id, (_, departed_agent) in self.departed.items() if (sent := departed_agent.sent())
        }
        floor = self._log.batch_of_commit(epoch.commits_before)
        self._shared.out.append(
            ev.StoreEpoch(epoch.number, self._shared.plan, records, departed, epoch.heard_ns, floor, epoch.log_start)
        )

    # ---- epochs: ending -------------------------------------------------------------------------------------------

    def _on_epoch_stored(self, event: ev.EpochStored) -> None:
        epoch = self.epochs.get(event.epoch)
        if epoch is not None and event.plan == self._shared.plan and not epoch.refusal:
            epoch.is_reported = True
            self._shared.out.append(ev.ReportEpoch(event.epoch))

    def _on_capture_failed(self, event: ev.CaptureFailed) -> None:
        """Refuse the epochs for which encoding an agent's state has failed. Without this state the agent would be stored as unborn, so this
        host must never report its contribution to such an epoch."""
        for number in event.epochs:
            self._refuse(number, event.reason)

    def _on_epoch_not_stored(self, event: ev.EpochNotStored) -> None:
        if event.plan == self._shared.plan:
            self._refuse(event.epoch, event.reason)

    def _refuse(self, number: int, reason: str) -> None:
        """Refuse the epoch. The refusal is repeated on each new stream until the epoch has ended, because a new leader has not received
        it."""
        epoch = self.epochs.get(number)
        if epoch is not None:
            epoch.refusal = reason
            self._shared.out.append(msg.EpochRefused(number, reason))

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        if event.epoch in self._shared.ended:
            return
        self._shared.ended.append(event.epoch)
        self.epochs.pop(event.epoch, None)
        self._shared.out.append(ev.DropEpoch(event.epoch))
        ended = EpochEnded(event.epoch)
        for agent in self._shared.agents.values():
            _tell(agent, self._shared.now, ended)
        self._membership.release_retired(event.epoch)
        if event.is_complete:
            # This epoch began after these agents left, so it has covered all their messages.
            covered = [
                (agent, departed_agent)
                for agent, (begun_epoch, departed_agent) in self.departed.items()
                if begun_epoch < event.epoch
            ]
            for agent_id, departed_agent in covered:
                del self.departed[agent_id]
                self._ends.close_all(departed_agent)
        self._release()
        for agent in [agent for agent in self._shared.agents.values() if agent.is_repeating and not agent.owes]:
            self._mailboxes.next_turn(agent)  # it waited to record its state

    # ---- the rest -------------------------------------------------------------------------------------------------

    def _on_freeze_agents(self, event: msg.FreezeAgents) -> None:
        """Report the freeze as complete immediately, because this mode needs no freeze."""
        self._shared.out.append(ev.ReportFrozen(event.plan, event.number, ()))

    def _on_report_numbers(self, event: msg.ReportNumbers) -> None:
        self._shared.out.append(msg.NumbersReported(event.request, event.plan))

    def clock_passed(self) -> None:
        if self.unasked:
            self._ask()
            self._check()

    def wakeups_ns(self) -> list[int]:
        """Return the current time if agents still have to record, so that the event loop handles other events between batches of
        records."""
        return [self._shared.now] if self.unasked else []

    def standing(self) -> CheckpointCondition:
        storing = [x for x in self.epochs.values() if x.is_stored and not x.is_reported and not x.refusal]
        return CheckpointCondition(open_epochs=len(self.epochs), storing=len(storing))

    def validate(self) -> None:
        shared = self._shared
        for agent in shared.agents.values():
            agent.protocol.validate()
            assert agent.owes == (agent.protocol.owed > agent.protocol.recorded), agent.id
            assert agent.protocol.recorded <= shared.begun_epoch, agent.id
        for number, epoch in self.epochs.items():
            assert number == epoch.number and number <= shared.begun_epoch
            assert not (epoch.is_stored and (epoch.unrecorded or epoch.awaited)), number
            for agent_id in epoch.unrecorded:
                owing = shared.agents.get(agent_id)
                assert owing is not None and owing.protocol.recorded < number, (number, agent_id)


def _is_marked(peer: Peer, epoch: int) -> bool:
    """Return whether the epoch has a marker on this link. The answer is True as well while the hosts have not agreed on the newest epoch
    that does not involve the link."""
    return peer.floor is None or epoch > peer.floor


def _tell(agent: LocalAgent, now_ns: int, event: Event) -> list[Command]:
    """Pass an event to the agent's epoch core, and update whether the agent still has to record an epoch."""
    commands = agent.protocol.handle(now_ns, event)
    agent.owes = agent.protocol.owed > agent.protocol.recorded
    return commands

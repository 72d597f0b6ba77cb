"""The part of a host core that takes part in epochs: records, marker items, and the closing of the host's part."""

from collections import deque

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.local_agent import HostEpoch, LocalAgent, Peer
from snapline.channels import link_events as lk
from snapline.protocols.epoch_stamped import (
    EpochAnnounced,
    EpochEnded,
    LeaveCommitted,
    MarkersReceived,
    RecordedPart,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
)
from snapline.storage.checkpoint import ParkedMessage, SavedTimer, SpawnRequest

ENDED_KEPT = 64
"""Ended epochs remembered, so that a late marker or word does not open one again; four are open at most."""


class HostEpochs(HostLinks):
    """One `HostEpoch` for each epoch that is open here."""

    def _init_epochs(self) -> None:
        self.epochs = {}
        self.departed = {}
        self._ended: deque[int] = deque(maxlen=ENDED_KEPT)

    def _has_ended(self, epoch: int) -> bool:
        return epoch in self._ended

    def _drop_epochs(self) -> None:
        for epoch in self.epochs:
            self._out.append(ev.DropEpoch(epoch))
        self._init_epochs()

    # ---- beginning ------------------------------------------------------------------------------------------------

    def _on_epoch_begun(self, event: ev.EpochBegun) -> None:
        if event.plan == self.plan and self.is_loaded and event.epoch > self.begun_epoch and not self.is_logged:
            self._begin_epoch(event.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """The first news of an epoch, from whom ever: all agents here owe it, idle ones record at once."""
        for number in range(self.begun_epoch + 1, epoch + 1):
            if number in self._ended:
                continue
            unrecorded = {
                agent.id: None
                for agent in self.agents.values()
                if agent.protocol.recorded < number and agent.retired_in is None
            }
            awaited = {host: None for host in self.plan_hosts if host != self.host}
            self.epochs[number] = HostEpoch(number, unrecorded, awaited)
        self.begun_epoch = epoch
        announced = EpochAnnounced(epoch)
        for agent in list(self.agents.values()):
            if agent.retired_in is None:
                agent.protocol.handle(self._now, announced)
                if agent.current is None:
                    self._next_turn(agent)
        self._check_epochs()

    def _join_epochs(self, child: LocalAgent) -> None:
        """A new agent owes what began after its creation was committed and has not ended."""
        for ended in sorted(self._ended):
            if ended > child.protocol.recorded:
                child.protocol.handle(self._now, EpochEnded(ended))
        for epoch in self.epochs.values():
            if epoch.number > child.protocol.recorded:
                epoch.unrecorded[child.id] = None
        if self.begun_epoch > child.protocol.recorded:
            child.protocol.handle(self._now, EpochAnnounced(self.begun_epoch))

    def _excuse(self, agent: LocalAgent, open_epochs: tuple[int, ...]) -> None:
        """The agent's leave is committed: it is in no epoch begun after that."""
        last = max(open_epochs, default=agent.protocol.recorded)
        agent.protocol.handle(self._now, LeaveCommitted(last))
        for epoch in self.epochs.values():
            if epoch.number > last:
                epoch.unrecorded.pop(agent.id, None)
        self._check_epochs()

    # ---- recording ------------------------------------------------------------------------------------------------

    def _record(self, agent: LocalAgent) -> None:
        """Between two turns: the agent's image and numbers, for every epoch it owes."""
        boundary = TurnBoundaryReached(
            {outlet.receiver: outlet.number for outlet in agent.outlets.values() if outlet.number},
            {inlet.sender: inlet.consumed for inlet in agent.inlets.values() if inlet.consumed},
            self._waiting_of(agent),
        )
        for command in agent.protocol.handle(self._now, boundary):
            match command:
                case RecordState():
                    self._out.append(ev.CaptureState(agent.id, command.epochs, self._control_of(agent)))
                    agent.checkpoints += 1
                case SendMarkers():
                    epoch = self.epochs.get(command.epoch)
                    if epoch is not None:
                        epoch.markers[agent.id] = command.last_numbers
                        epoch.unrecorded.pop(agent.id, None)
        self._check_epochs()

    def _waiting_of(self, agent: LocalAgent) -> tuple[WaitingMessage, ...]:
        numbers: dict[str, int] = {}
        waiting: list[WaitingMessage] = []
        for inlet, stamp, payload in [*agent.deferred, *agent.mailbox]:
            if inlet is None:
                continue
            number = numbers[inlet.sender] = numbers.get(inlet.sender, inlet.consumed) + 1
            assert isinstance(stamp, int)
            waiting.append(WaitingMessage(inlet.sender, number, stamp, payload))
        return tuple(waiting)

    def _control_of(self, agent: LocalAgent, number: int | None = None, protocol_state: bytes = b"") -> ev.Control:
        outbox = [
            ParkedMessage(outlet.receiver, payload)
            for outlet in agent.outlets.values()
            for payload in outlet.queue or ()
        ]
        outbox.extend(ParkedMessage(receiver, payload) for receiver, payload in agent.held)
        timers = [
            SavedTimer(name, max(0, due - self._now), payload) for name, (due, _, payload) in agent.timers.items()
        ]
        timers.extend(
            SavedTimer(str(name), 0, payload)
            for inlet, name, payload in [*agent.deferred, *agent.mailbox]
            if inlet is None and name != ""
        )
        return ev.Control(
            incarnation=agent.incarnation,
            number=agent.checkpoints + 1 if number is None else number,
            is_born=agent.is_born,
            is_started=agent.is_started,
            is_leaving=agent.is_leaving,
            outbox=outbox,
            spawns=[SpawnRequest(name, kind, state) for name, kind, state in agent.spawns],
            timers=timers,
            dead_letters=list(agent.dead_letters),
            dead_letter_count=agent.dead_letter_count,
            protocol_state=protocol_state,
        )

    # ---- markers --------------------------------------------------------------------------------------------------

    def _check_epochs(self) -> None:
        for epoch in list(self.epochs.values()):
            if not epoch.markers_sent and not epoch.unrecorded and not self._reservations:
                self._send_markers(epoch)
            if epoch.markers_sent and not epoch.awaited and not epoch.is_stored and not epoch.refusal:
                self._close(epoch)

    def _send_markers(self, epoch: HostEpoch) -> None:
        """All agents here have recorded: one marker item for each link, behind everything stamped older."""
        epoch.markers_sent = True
        here: dict[str, dict[str, int]] = {}
        items: dict[str, tuple[list[int], list[int]]] = {host: ([], []) for host in epoch.awaited}
        for host in self.peers:
            items.setdefault(host, ([], []))
        for agent_id, last_numbers in epoch.markers.items():
            agent = self.agents.get(agent_id)
            if agent is None:
                continue
            for receiver, last in last_numbers.items():
                outlet = agent.outlets.get(receiver)
                if outlet is None or outlet.peer is None:
                    continue
                if outlet.inlet is not None:
                    here.setdefault(receiver, {})[agent_id] = last
                elif outlet.channel:
                    channels, numbers = items[outlet.peer.host]
                    channels.append(outlet.channel)
                    numbers.append(last)
        self._show_markers(epoch.number, here)
        for host, (channels, numbers) in items.items():
            peer = self.peers.get(host)
            if peer is not None and peer.link is not None:
                self._flush(peer)
                self._carry_link(peer, peer.link.handle(self._now, lk.MarkerSent(epoch.number, channels, numbers)))
                peer.measure_room()

    def _on_marker(self, peer: Peer, epoch: int, channels: list[int], last_numbers: list[int], is_last: bool) -> None:
        if epoch in self._ended:
            return
        if epoch > self.begun_epoch:
            self._begin_epoch(epoch)
        by_receiver: dict[str, dict[str, int]] = {}
        for channel, last in zip(channels, last_numbers, strict=True):
            inlet = peer.inlets[channel]
            if inlet.owner is not None:
                by_receiver.setdefault(inlet.receiver, {})[inlet.sender] = last
        self._show_markers(epoch, by_receiver)
        found = self.epochs.get(epoch)
        if found is not None and is_last:
            found.awaited.pop(peer.host, None)
            self._check_epochs()

    def _show_markers(self, epoch: int, by_receiver: dict[str, dict[str, int]]) -> None:
        for receiver, last_numbers in by_receiver.items():
            agent = self.agents.get(receiver)
            if agent is not None and agent.retired_in is None:
                agent.protocol.handle(self._now, MarkersReceived(epoch, last_numbers))

    def _close(self, epoch: HostEpoch) -> None:
        """Nothing of this epoch can arrive here any more: the host's part goes to the store."""
        epoch.is_stored = True
        records: dict[str, RecordedPart] = {}
        for agent in self.agents.values():
            if epoch.number not in agent.protocol.open_epochs():
                continue
            record = agent.protocol.record_of(epoch.number)
            if record.in_transit or not record.is_unborn:
                records[agent.id] = record
            # else: nobody has sent it anything inside the cut, so there it does not exist, not even as unborn.
        departed = {agent_id: sent for agent_id, (_, gone) in self.departed.items() if (sent := _sent_by(gone))}
        self._out.append(ev.StoreEpoch(epoch.number, self.plan, records, departed))

    # ---- ending ---------------------------------------------------------------------------------------------------

    def _on_epoch_stored(self, event: ev.EpochStored) -> None:
        epoch = self.epochs.get(event.epoch)
        if epoch is not None and event.plan == self.plan and not epoch.refusal:
            epoch.is_reported = True
            self._out.append(ev.ReportEpoch(event.epoch))

    def _repeat_reports(self) -> None:
        for epoch in self.epochs.values():
            if epoch.refusal:
                self._out.append(ev.RefuseEpoch(epoch.number, epoch.refusal))
            elif epoch.is_reported:
                self._out.append(ev.ReportEpoch(epoch.number))

    def _on_capture_failed(self, event: ev.CaptureFailed) -> None:
        """Without its image the agent would be stored as one that is not created yet: such a part is never reported."""
        for number in event.epochs:
            self._refuse_epoch(number, event.reason)

    def _on_epoch_not_stored(self, event: ev.EpochNotStored) -> None:
        if event.plan == self.plan:
            self._refuse_epoch(event.epoch, event.reason)

    def _refuse_epoch(self, number: int, reason: str) -> None:
        """Said again on every new stream until the epoch has ended: a coordinator that was not there has not heard it."""
        epoch = self.epochs.get(number)
        if epoch is not None:
            epoch.refusal = reason
            self._out.append(ev.RefuseEpoch(number, reason))

    def _on_epoch_ended(self, event: ev.EpochEnded) -> None:
        if event.epoch in self._ended:
            return
        self._ended.append(event.epoch)
        if self.is_logged:
            self._on_round_ended(event)
            self._excuse_retired(event.epoch)
            return
        self.epochs.pop(event.epoch, None)
        self._out.append(ev.DropEpoch(event.epoch))
        ended = EpochEnded(event.epoch)
        for agent in self.agents.values():
            agent.protocol.handle(self._now, ended)
        self._excuse_retired(event.epoch)
        if event.is_complete:
            # An epoch begun after an agent left has covered all it ever sent.
            covered = [(agent, gone) for agent, (begun, gone) in self.departed.items() if begun < event.epoch]
            for agent_id, gone in covered:
                del self.departed[agent_id]
                self._close_channels(gone)

    def _excuse_retired(self, ended: int) -> None:
        for agent in [agent for agent in self.agents.values() if agent.retired_in is not None]:
            assert agent.retired_in is not None
            agent.retired_in.pop(ended, None)
            self._remove_if_done(agent)

    def _validate_epochs(self) -> None:
        for number, epoch in self.epochs.items():
            assert number == epoch.number and number <= self.begun_epoch
            assert not (epoch.is_stored and (epoch.unrecorded or epoch.awaited)), number
            for agent_id in epoch.unrecorded:
                agent = self.agents.get(agent_id)
                assert agent is not None and agent.protocol.recorded < number, (number, agent_id)


def _sent_by(agent: LocalAgent) -> dict[str, int]:
    return {outlet.receiver: outlet.number for outlet in agent.outlets.values() if outlet.number}

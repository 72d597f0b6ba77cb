"""Cores of Chandy and Lamport's algorithm as published, which no fleet runs, in one network."""

from collections import deque
from collections.abc import Iterable

from snapline.sim.explorer.chandy_lamport import (
    ChandyLamportCore,
    Command,
    CompleteSnapshot,
    MarkerReceived,
    MessageReceived,
    RecordState,
    SendMarker,
    SnapshotStarted,
)


class Network:
    """Several cores and their channels. It keeps what an oracle needs: messages, and when each was handled.

    Attributes:
        sent, received: by agent, in order.
        positions: by snapshot and agent, how many of both were before the record.
        complete: by snapshot and agent, the channel states.
    """

    core_type: type[ChandyLamportCore] = ChandyLamportCore

    def __init__(self, channels: Iterable[tuple[str, str]]) -> None:
        self.queues: dict[tuple[str, str], deque[bytes | int]] = {channel: deque() for channel in channels}
        names = sorted({name for channel in self.queues for name in channel})
        self.cores = {
            name: self.core_type(
                name,
                incoming=[sender for sender, receiver in self.queues if receiver == name],
                outgoing=[receiver for sender, receiver in self.queues if sender == name],
            )
            for name in names
        }
        self.sent: dict[str, list[tuple[str, bytes]]] = {name: [] for name in names}
        self.received: dict[str, list[bytes]] = {name: [] for name in names}
        self.positions: dict[tuple[int, str], tuple[int, int]] = {}
        self.complete: dict[tuple[int, str], dict[str, tuple[bytes, ...]]] = {}

    def send(self, sender: str, receiver: str, message: bytes) -> None:
        self.sent[sender].append((receiver, message))
        self.put((sender, receiver), message)

    def put(self, channel: tuple[str, str], item: bytes | int) -> None:
        self.queues[channel].append(item)

    def start(self, name: str, snapshot: int) -> None:
        self.carry_out(name, self.cores[name].handle(0, SnapshotStarted(snapshot)))

    def deliver(self, sender: str, receiver: str) -> None:
        item = self.queues[sender, receiver].popleft()
        core = self.cores[receiver]
        if isinstance(item, bytes):
            self.carry_out(receiver, core.handle(0, MessageReceived(sender, item)))
            self.received[receiver].append(item)
        else:
            self.carry_out(receiver, core.handle(0, MarkerReceived(sender, item)))

    def carry_out(self, name: str, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case RecordState():
                    assert (command.snapshot, name) not in self.positions, f"{name} records {command.snapshot} twice"
                    self.positions[command.snapshot, name] = (len(self.sent[name]), len(self.received[name]))
                case SendMarker():
                    self.send_marker(name, command)
                case CompleteSnapshot():
                    self.complete[command.snapshot, name] = command.channel_states
        self.cores[name].validate()

    def send_marker(self, name: str, command: SendMarker) -> None:
        self.put((name, command.channel), command.snapshot)

    def thaw(self, name: str) -> None:
        image = self.cores[name].freeze()
        self.cores[name] = self.core_type.restore(image)
        assert self.cores[name].freeze() == image


class FirstMarkersChannelLeftOpenCore(ChandyLamportCore):
    def _on_marker_received(self, event: MarkerReceived) -> list[Command]:
        if self._is_recorded(event.snapshot):
            return super()._on_marker_received(event)
        return self._start(event.snapshot)

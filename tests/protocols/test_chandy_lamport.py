"""The plain core: its rules, and G1 and G2 over random executions with the faults they must find."""

from collections.abc import Callable, Iterable
from random import Random

import msgspec
import pytest
from tests.protocols.plain_network import FirstMarkersChannelLeftOpenCore, Network

from snapline.errors import ProtocolError
from snapline.sim.explorer import chandy_lamport
from snapline.sim.explorer.chandy_lamport import (
    SNAPSHOTS_OPEN_MAX,
    ChandyLamportCore,
    ChandyLamportImage,
    Command,
    CompleteSnapshot,
    Event,
    MarkerReceived,
    MessageReceived,
    RecordState,
    SendMarker,
    SnapshotStarted,
)

EXECUTIONS, MUTANT_EXECUTIONS = 1_500, 300

MakeCore = Callable[..., ChandyLamportCore]


@pytest.fixture
def make_core(checked: Callable[[ChandyLamportCore], None]) -> MakeCore:
    def make(incoming: Iterable[str] = ("a", "c"), outgoing: Iterable[str] = ("c", "a")) -> ChandyLamportCore:
        core = ChandyLamportCore("b", incoming=incoming, outgoing=outgoing)
        checked(core)
        return core

    return make


def feed(core: ChandyLamportCore, *events: Event) -> list[Command]:
    """The commands of the last of `events`."""
    commands: list[Command] = []
    for event in events:
        commands = core.handle(0, event)
        core.validate()
    return commands


MARKERS = [SendMarker("a", 1), SendMarker("c", 1)]


def test_a_start_records_and_then_sends_a_marker_on_every_channel(make_core: MakeCore) -> None:
    assert feed(make_core(), SnapshotStarted(1)) == [RecordState(1), *MARKERS]


def test_the_first_marker_starts_the_snapshot_too(make_core: MakeCore) -> None:
    assert feed(make_core(), MarkerReceived("a", 1)) == [RecordState(1), *MARKERS]


def test_a_second_start_is_a_no_op_while_open_and_when_complete(make_core: MakeCore) -> None:
    core = make_core()
    assert feed(core, SnapshotStarted(1), SnapshotStarted(1)) == []
    assert feed(core, MarkerReceived("a", 1)) == []
    feed(core, MarkerReceived("c", 1))
    assert feed(core, SnapshotStarted(1)) == []


def test_without_incoming_channels_it_is_complete_at_once(make_core: MakeCore) -> None:
    core = make_core(incoming=())
    assert feed(core, SnapshotStarted(1)) == [RecordState(1), *MARKERS, CompleteSnapshot(1, {})]


@pytest.mark.parametrize("event", [MessageReceived("x", b""), MarkerReceived("x", 1)])
def test_an_unknown_channel_is_a_violation(make_core: MakeCore, event: Event) -> None:
    with pytest.raises(ProtocolError, match="no incoming channel from x"):
        feed(make_core(), event)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_second_marker_of_one_id_is_a_violation(make_core: MakeCore, is_complete: bool) -> None:
    core = make_core()
    feed(core, MarkerReceived("a", 1), *([MarkerReceived("c", 1)] if is_complete else []))
    with pytest.raises(ProtocolError, match="marker 1 a second time on the channel from a"):
        feed(core, MarkerReceived("a", 1))


def test_open_snapshots_are_bounded(make_core: MakeCore) -> None:
    core = make_core()
    for snapshot in range(SNAPSHOTS_OPEN_MAX):
        core.handle(0, SnapshotStarted(snapshot))
    with pytest.raises(ProtocolError, match="end some"):
        core.handle(0, SnapshotStarted(SNAPSHOTS_OPEN_MAX))


def test_remembered_snapshots_are_bounded_and_the_oldest_is_forgotten(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chandy_lamport, "SNAPSHOTS_REMEMBERED_MAX", 50)
    core = make_core(incoming=(), outgoing=())
    for snapshot in range(51):
        core.handle(0, SnapshotStarted(snapshot))
    assert core.handle(0, SnapshotStarted(1)) == []
    assert core.handle(0, SnapshotStarted(0)) != []


def test_an_image_survives_encoding(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, SnapshotStarted(1), MessageReceived("a", b"x"), MarkerReceived("c", 1), MarkerReceived("c", 2))
    encoded = msgspec.msgpack.encode(core.freeze())
    restored = ChandyLamportCore.restore(msgspec.msgpack.decode(encoded, type=ChandyLamportImage))
    restored.validate()
    assert restored.freeze() == core.freeze()
    assert feed(restored, MarkerReceived("a", 1)) == [CompleteSnapshot(1, {"a": (b"x",), "c": ()})]


# Random executions.


def run(network_type: type[Network], random: Random, *, steps: int = 60) -> Network:
    """Random channels, sends, deliveries and starts; then every agent hears of every snapshot and all is delivered."""
    names = ["a", "b", "c", "d"][: random.randint(2, 4)]
    pairs = [(sender, receiver) for sender in names for receiver in names]
    network = network_type(random.sample(pairs, random.randint(2, len(pairs))))
    snapshots = random.sample(range(9), random.randint(1, 4))
    for step in range(steps):
        sender, receiver = random.choice(list(network.queues))
        kind = random.random()
        if kind < 0.4:
            network.send(sender, receiver, b"%d" % step)
        elif kind < 0.8 and network.queues[sender, receiver]:
            network.deliver(sender, receiver)
        elif kind > 0.95:
            network.start(sender, random.choice(snapshots))
        elif kind > 0.93:
            network.thaw(receiver)
    for snapshot in snapshots:
        for name in network.cores:
            network.start(name, snapshot)
    while any(network.queues.values()):
        for channel, queue in network.queues.items():
            if queue:
                network.deliver(*channel)
    for snapshot in snapshots:
        check_snapshot(network, snapshot)
    return network


def check_snapshot(network: Network, snapshot: int) -> None:
    """G1 and G2, from unique messages and each agent's history."""
    sent, received = {}, set()
    for name in network.cores:
        sent_count, received_count = network.positions[snapshot, name]
        sent[name] = network.sent[name][:sent_count]
        received |= set(network.received[name][:received_count])
    all_sent = {message for messages in sent.values() for _, message in messages}
    assert received <= all_sent, f"G1, snapshot {snapshot}: orphans {received - all_sent}"
    for sender, receiver in network.queues:
        expected = tuple(message for to, message in sent[sender] if to == receiver and message not in received)
        assert (snapshot, receiver) in network.complete, f"snapshot {snapshot} never ends at {receiver}"
        recorded = network.complete[snapshot, receiver][sender]
        assert recorded == expected, f"G2, snapshot {snapshot}, {sender} to {receiver}: {recorded}, not {expected}"


def test_random_executions_have_neither_orphans_nor_wrong_channel_states() -> None:
    for seed in range(EXECUTIONS):
        try:
            run(Network, Random(seed))
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class MarkerAfterTheNextSend(Network):
    def __init__(self, channels: Iterable[tuple[str, str]]) -> None:
        super().__init__(channels)
        self.held: dict[tuple[str, str], list[int]] = {channel: [] for channel in self.queues}

    def send_marker(self, name: str, command: SendMarker) -> None:
        self.held[name, command.channel].append(command.snapshot)

    def send(self, sender: str, receiver: str, message: bytes) -> None:
        super().send(sender, receiver, message)
        held = self.held[sender, receiver]
        self.queues[sender, receiver].extend(held)
        held.clear()


class RecordingBeyondTheMarkerCore(ChandyLamportCore):
    def _record_message(self, channel: str, payload: bytes) -> None:
        super()._record_message(channel, payload)
        for recording in self._recordings.values():
            if channel in recording.closed:
                recording.closed[channel] += (payload,)


class OnlyTheNewestIdRecordsCore(ChandyLamportCore):
    def _record_message(self, channel: str, payload: bytes) -> None:
        if self._recordings and channel in self._recordings[max(self._recordings)].open:
            self._recordings[max(self._recordings)].open[channel].append(payload)


class SecondStartCore(ChandyLamportCore):
    def _is_recorded(self, snapshot: int) -> bool:
        return False


class FirstMarkersChannelLeftOpen(Network):
    core_type = FirstMarkersChannelLeftOpenCore


class RecordingBeyondTheMarker(Network):
    core_type = RecordingBeyondTheMarkerCore


class OnlyTheNewestIdRecords(Network):
    core_type = OnlyTheNewestIdRecordsCore


class SecondStart(Network):
    core_type = SecondStartCore


@pytest.mark.parametrize(
    "fault",
    [
        MarkerAfterTheNextSend,
        FirstMarkersChannelLeftOpen,
        RecordingBeyondTheMarker,
        OnlyTheNewestIdRecords,
        SecondStart,
    ],
)
def test_the_property_finds(fault: type[Network]) -> None:
    with pytest.raises((AssertionError, ProtocolError)):
        for seed in range(MUTANT_EXECUTIONS):
            run(fault, Random(seed))


def test_a_marker_after_the_next_send_makes_an_orphan() -> None:
    """The one ordering rule that safety hangs on: here G1 itself breaks."""
    found = set()
    for seed in range(MUTANT_EXECUTIONS):
        try:
            run(MarkerAfterTheNextSend, Random(seed))
        except AssertionError as error:
            found.add(str(error)[:2])
    assert "G1" in found

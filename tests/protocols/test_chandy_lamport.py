"""The plain core: its rules, our own vectors, and G1 and G2 over random executions with the faults they must find.

A vector is a text file. `channel a b` opens a channel. Then one step a line: `send a b x` (message x enters the
channel), `start a 1`, `deliver a b` (the head of that channel arrives). At last what is expected, whole:
`recorded 1 a x y` (the messages a had received when it recorded 1) and `state 1 a b x` (recorded on the channel from a
to b; every channel of every complete snapshot has its line). Comments open with `#`.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.plain_network import FirstMarkersChannelLeftOpenCore, Network

from snapline.errors import ProtocolError
from snapline.sim.explorer.chandy_lamport import (
    SNAPSHOTS_OPEN_MAX,
    SNAPSHOTS_REMEMBERED_MAX,
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

VECTORS = sorted((Path(__file__).parent / "vectors").glob("*.txt"))
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


def test_the_first_markers_channel_is_closed_empty(make_core: MakeCore) -> None:
    core = make_core()
    commands = feed(core, MarkerReceived("a", 1), MessageReceived("a", b"late"), MarkerReceived("c", 1))
    assert commands == [CompleteSnapshot(1, {"a": (), "c": ()})]


def test_a_channel_records_until_its_marker_in_order(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, MessageReceived("a", b"early"), SnapshotStarted(1), MessageReceived("a", b"x"))
    feed(core, MessageReceived("c", b"z"), MessageReceived("a", b"y"), MarkerReceived("a", 1))
    commands = feed(core, MessageReceived("a", b"late"), MarkerReceived("c", 1))
    assert commands == [CompleteSnapshot(1, {"a": (b"x", b"y"), "c": (b"z",)})]


def test_a_message_belongs_to_every_snapshot_in_which_its_channel_is_open(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, SnapshotStarted(5), SnapshotStarted(4), MarkerReceived("c", 5), MarkerReceived("c", 4))
    feed(core, MessageReceived("a", b"x"))
    assert feed(core, MarkerReceived("a", 4)) == [CompleteSnapshot(4, {"a": (b"x",), "c": ()})]
    feed(core, MessageReceived("a", b"y"))
    assert feed(core, MarkerReceived("a", 5)) == [CompleteSnapshot(5, {"a": (b"x", b"y"), "c": ()})]


def test_a_second_start_is_a_no_op_while_open_and_when_complete(make_core: MakeCore) -> None:
    core = make_core()
    assert feed(core, SnapshotStarted(1), SnapshotStarted(1)) == []
    assert feed(core, MarkerReceived("a", 1)) == []
    feed(core, MarkerReceived("c", 1))
    assert feed(core, SnapshotStarted(1)) == []


def test_without_incoming_channels_it_is_complete_at_once(make_core: MakeCore) -> None:
    core = make_core(incoming=())
    assert feed(core, SnapshotStarted(1)) == [RecordState(1), *MARKERS, CompleteSnapshot(1, {})]


def test_the_only_channels_marker_records_and_completes(make_core: MakeCore) -> None:
    core = make_core(incoming=["a"], outgoing=[])
    assert feed(core, MarkerReceived("a", 1)) == [RecordState(1), CompleteSnapshot(1, {"a": ()})]


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


def test_remembered_snapshots_are_bounded_and_the_oldest_is_forgotten(make_core: MakeCore) -> None:
    core = make_core(incoming=(), outgoing=())
    for snapshot in range(SNAPSHOTS_REMEMBERED_MAX + 1):
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


def run_vector(path: Path) -> tuple[set[str], set[str]]:
    """What the vector expects and what the cores did, as lines."""
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    network = Network([(line[1], line[2]) for line in lines if line[0] == "channel"])
    for line in lines:
        match line:
            case ["send", sender, receiver, message]:
                network.send(sender, receiver, message.encode())
            case ["start", name, snapshot]:
                network.start(name, int(snapshot))
            case ["deliver", sender, receiver]:
                network.deliver(sender, receiver)
            case ["channel" | "recorded" | "state", *_]:
                continue
            case _:
                raise AssertionError(f"{path.name}: cannot read {line}")
    expected = {" ".join(line) for line in lines if line[0] in ("recorded", "state")}
    actual = set()
    for (number, name), (_, received) in network.positions.items():
        messages = [message.decode() for message in network.received[name][:received]]
        actual.add(" ".join(["recorded", str(number), name, *messages]))
    for (number, name), states in network.complete.items():
        for sender, recorded in states.items():
            messages = [message.decode() for message in recorded]
            actual.add(" ".join(["state", str(number), sender, name, *messages]))
    return expected, actual


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector(path: Path) -> None:
    expected, actual = run_vector(path)
    assert actual == expected


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 6


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


@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 100))
def test_chosen_executions_have_neither_orphans_nor_wrong_channel_states(random: Random, steps: int) -> None:
    run(Network, random, steps=steps)


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

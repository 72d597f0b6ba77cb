"""Seven executions with 21 snapshots made by others, read where they lie; skipped where they do not.

The scheduler below follows the page that comes with the data. The faults are those of its table, and each must match
exactly as many snapshots as the table says.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.protocols.plain_network import FirstMarkersChannelLeftOpenCore, Network

from snapline.sim.explorer.chandy_lamport import (
    ChandyLamportCore,
    Command,
    CompleteSnapshot,
    MarkerReceived,
    MessageReceived,
)

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "chandy_lamport"

pytestmark = pytest.mark.skipif(
    not (DATA / "delays.txt").exists(), reason=f"the conformance data of others is not at {DATA}"
)

# By events file: topology, snapshots, delays drawn, tokens in total.
EXECUTIONS: dict[str, tuple[str, int, int, int]] = {
    "2nodes-simple": ("2nodes", 1, 2, 1),
    "2nodes-message": ("2nodes", 1, 3, 1),
    "3nodes-simple": ("3nodes", 1, 10, 13),
    "3nodes-bidirectional-messages": ("3nodes", 1, 12, 13),
    "8nodes-sequential-snapshots": ("8nodes", 2, 43, 40),
    "8nodes-concurrent-snapshots": ("8nodes", 5, 97, 40),
    "10nodes": ("10nodes", 10, 200, 1000),
}
TICKS_MAX = 1_000
"""A snapshot that is open after so many more ticks never ends; a correct one ends within some fifty."""

Snapshot = tuple[dict[str, int], dict[tuple[str, str], tuple[int, ...]]]  # tokens by agent, messages by channel


class NeverEndsError(Exception):
    pass


def lines_of(name: str) -> Iterator[list[str]]:
    for line in (DATA / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split()


class Scheduler(Network):
    """Ticks, one delivery per sender and tick, delays from the file."""

    def __init__(self, topology: str) -> None:
        lines = list(lines_of(f"{topology}.top"))
        count = int(lines[0][0])
        self.tokens = {agent: int(tokens) for agent, tokens in lines[1 : count + 1]}
        super().__init__(sorted((line[0], line[1]) for line in lines[count + 1 :]))
        self.due: dict[tuple[str, str], deque[int]] = {channel: deque() for channel in self.queues}
        self.delays = [int(delay) for delay in (DATA / "delays.txt").read_text().split()]
        self.delays_drawn = self.time = self.started = 0

    def run(self, events: str) -> None:
        for line in lines_of(f"{events}.events"):
            match line:
                case ["send", sender, receiver, tokens]:
                    self.send(sender, receiver, tokens.encode())
                case ["snapshot", name]:
                    self.started += 1
                    self.start(name, self.started - 1)
                case ["tick", *count]:
                    for _ in range(int(count[0]) if count else 1):
                        self.tick()
        for _ in range(TICKS_MAX):
            if len(self.complete) == self.started * len(self.cores):
                break
            self.tick()
        else:
            raise NeverEndsError(str(self.complete))
        for _ in range(6):
            self.tick()

    def put(self, channel: tuple[str, str], item: bytes | int) -> None:
        self.due[channel].append(self.time + 1 + self.delays[self.delays_drawn])
        self.delays_drawn += 1
        super().put(channel, item)

    def tick(self) -> None:
        self.time += 1
        for sender in self.cores:
            self.turn(sender)

    def turn(self, sender: str) -> None:
        for channel, due in self.due.items():
            if channel[0] == sender and due and due[0] <= self.time:
                self.deliver(*channel)
                return

    def deliver(self, sender: str, receiver: str) -> None:
        self.due[sender, receiver].popleft()
        super().deliver(sender, receiver)

    def tokens_of(self, name: str, sent: int | None = None, received: int | None = None) -> int:
        """At its end, or when it had sent and received so many messages."""
        gone = sum(int(message) for _, message in self.sent[name][:sent])
        return self.tokens[name] - gone + sum(map(int, self.received[name][:received]))

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        found: dict[int, Snapshot] = {number: ({}, {}) for number in range(self.started)}
        for (number, name), position in self.positions.items():
            found[number][0][name] = self.tokens_of(name, *position)
        for (number, name), states in self.complete.items():
            for sender, messages in states.items():
                if messages:
                    found[number][1][sender, name] = tuple(map(int, messages))
        return found


def expected_snapshots(events: str, count: int) -> dict[int, Snapshot]:
    names = [f"{events}.snap"] if count == 1 else [f"{events}{number}.snap" for number in range(count)]
    found: dict[int, Snapshot] = {}
    for name in names:
        lines = list(lines_of(name))
        tokens = {line[0]: int(line[1]) for line in lines if len(line) == 2}
        messages: dict[tuple[str, str], tuple[int, ...]] = {}
        for line in lines:
            if len(line) == 3:
                channel = line[0], line[1]
                number = int(line[2].removeprefix("token(").removesuffix(")"))
                messages[channel] = (*messages.get(channel, ()), number)
        found[int(lines[0][0])] = (tokens, messages)
    return found


def total(snapshot: Snapshot) -> int:
    return sum(snapshot[0].values()) + sum(sum(tokens) for tokens in snapshot[1].values())


@pytest.mark.parametrize("events", EXECUTIONS)
def test_the_plain_core_takes_the_expected_snapshots(events: str) -> None:
    topology, count, delays_drawn, tokens = EXECUTIONS[events]
    scheduler = Scheduler(topology)
    scheduler.run(events)
    assert scheduler.delays_drawn == delays_drawn, "the scheduler differs, look there first"
    assert sum(map(scheduler.tokens_of, scheduler.cores)) == tokens
    assert scheduler.snapshots == expected_snapshots(events, count)
    assert [total(snapshot) for snapshot in scheduler.snapshots.values()] == [tokens] * count


def test_there_are_twenty_one_snapshots() -> None:
    assert sum(count for _, count, _, _ in EXECUTIONS.values()) == 21


# The faults of the table.


class NoChannelStateCore(ChandyLamportCore):
    def _record_message(self, channel: str, payload: bytes) -> None:
        return None


class RecordingGoesOnCore(ChandyLamportCore):
    """What arrives behind the marker is recorded too, to the end of the run: the complete snapshot is told again."""

    __slots__ = ("goes_on",)

    def __init__(self, agent: str, *, incoming: Iterable[str], outgoing: Iterable[str]) -> None:
        super().__init__(agent, incoming=incoming, outgoing=outgoing)
        self.goes_on: dict[int, dict[str, tuple[bytes, ...]]] = {}

    def _start(self, snapshot: int) -> list[Command]:
        self.goes_on[snapshot] = dict.fromkeys(self.incoming, ())
        return super()._start(snapshot)

    def _on_message_received(self, event: MessageReceived) -> list[Command]:
        commands = super()._on_message_received(event)
        for snapshot, states in self.goes_on.items():
            if event.channel in states:
                states[event.channel] += (event.payload,)
                if snapshot in self._complete:
                    commands.append(CompleteSnapshot(snapshot, states))
        return commands

    def _complete_if_closed(self, snapshot: int) -> list[Command]:
        commands = super()._complete_if_closed(snapshot)
        return [CompleteSnapshot(snapshot, self.goes_on[snapshot])] if commands else []


class RecordingGoesOnExceptOnTheFirstCore(RecordingGoesOnCore):
    def _on_marker_received(self, event: MarkerReceived) -> list[Command]:
        is_first = not self._is_recorded(event.snapshot)
        commands = super()._on_marker_received(event)
        if is_first:
            del self.goes_on[event.snapshot][event.channel]
        return commands


class OneSnapshotRecordsCore(ChandyLamportCore):
    """Only the snapshot `chosen` by the scheduler records messages."""

    __slots__ = ("chosen",)
    chosen: int

    def _record_message(self, channel: str, payload: bytes) -> None:
        recording = self._recordings.get(self.chosen)
        if recording is not None and channel in recording.open:
            recording.open[channel].append(payload)


class OnlyTheFirstRecordsScheduler(Scheduler):
    core_type = OneSnapshotRecordsCore

    def choose(self) -> int:
        """The first snapshot that was started in the run."""
        return 0

    def deliver(self, sender: str, receiver: str) -> None:
        core = self.cores[receiver]
        assert isinstance(core, OneSnapshotRecordsCore)
        core.chosen = self.choose()
        super().deliver(sender, receiver)


class OnlyTheNewestRecordsScheduler(OnlyTheFirstRecordsScheduler):
    def choose(self) -> int:
        """The last snapshot that has been started by now."""
        return self.started - 1


class OnlyOneMessageCore(ChandyLamportCore):
    def _record_message(self, channel: str, payload: bytes) -> None:
        for recording in self._recordings.values():
            states = [*recording.open.values(), *recording.closed.values()]
            if channel in recording.open and not any(states):
                recording.open[channel].append(payload)


class DescendingMarkersCore(ChandyLamportCore):
    def _start(self, snapshot: int) -> list[Command]:
        record, *markers = super()._start(snapshot)
        return [record, *reversed(markers)]


class EveryDueChannelScheduler(Scheduler):
    def turn(self, sender: str) -> None:
        for channel, due in self.due.items():
            if channel[0] == sender and due and due[0] <= self.time:
                self.deliver(*channel)


def with_core(core_type: type[ChandyLamportCore]) -> type[Scheduler]:
    return type(f"Scheduler of {core_type.__name__}", (Scheduler,), {"core_type": core_type})


def matches_of(scheduler_type: Callable[[str], Scheduler]) -> int:
    matches = 0
    for events, (topology, count, _, _) in EXECUTIONS.items():
        scheduler = scheduler_type(topology)
        scheduler.run(events)
        for number, snapshot in expected_snapshots(events, count).items():
            matches += scheduler.snapshots[number] == snapshot
    return matches


def test_a_first_channel_left_open_never_ends() -> None:
    with pytest.raises(NeverEndsError):
        matches_of(with_core(FirstMarkersChannelLeftOpenCore))


@pytest.mark.parametrize(
    ("scheduler_type", "matches"),
    [
        (Scheduler, 21),
        (with_core(NoChannelStateCore), 2),
        (with_core(RecordingGoesOnCore), 4),
        (OnlyTheFirstRecordsScheduler, 8),
        (OnlyTheNewestRecordsScheduler, 9),
        (with_core(OnlyOneMessageCore), 9),
        (with_core(RecordingGoesOnExceptOnTheFirstCore), 18),
        (with_core(DescendingMarkersCore), 18),
        (EveryDueChannelScheduler, 20),
    ],
)
def test_a_fault_matches_as_many_snapshots_as_others_saw(scheduler_type: type[Scheduler], matches: int) -> None:
    assert matches_of(scheduler_type) == matches

"""The link over a network that cuts, loses and doubles: exactly once, FIFO, markers in place, everything arrives."""

from collections.abc import Callable

import pytest
from tests.channels.network import MS, SECOND, Faults, Workload, World

from snapline.channels import link, order
from snapline.channels.channel import PART_BYTES
from snapline.channels.frame import Frame, Items
from snapline.channels.incoming import IncomingOrder, UnsentControlState
from snapline.channels.link import LinkCore
from snapline.channels.link_events import Command
from snapline.channels.order import OutgoingOrder
from snapline.errors import ProtocolError

STORM = Faults(cut=0.02, lose=0.02, double=0.05)


def run(seed: int, *, work: Workload | None = None, faults: Faults | None = None) -> World:
    world = World(seed, work=work, faults=faults or STORM)
    world.run_all()
    return world


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 30))])
def test_exactly_once_in_order_under_cuts_losses_and_doubles(seed: int) -> None:
    world = run(seed)
    assert world.delivered == 2 * 300
    assert world.attempt > 1


@pytest.mark.parametrize("seed", range(6))
def test_large_messages_and_parts_survive_the_same(seed: int) -> None:
    run(seed, work=Workload(messages=60, large_share=0.2, markers=10))


def test_a_burst_above_the_window_arrives() -> None:
    world = World(1, work=Workload(channels=64, messages=10_000, size_max=20), faults=STORM)
    world.run_all(30 * MS)


def run_stalled() -> World:
    world = World(4, work=Workload(channels=40, messages=9000, size_max=20, stalled=tuple(range(1, 41))))
    world.run_all(200 * MS, settle_ns=SECOND)
    return world


def test_what_nobody_consumes_is_bounded_by_the_window() -> None:
    world = run_stalled()
    assert world.trouble == []
    # Each direction's 40 OpenChannel items and 5 markers were consumed on arrival.
    assert world.a.stalled_items == world.b.stalled_items == 8192
    assert world.b.markers_seen == 5


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_a_cut_at_any_frame_loses_nothing(first: int) -> None:
    for frame in range(first + 1, first + 11):
        world = World(7, work=Workload(messages=60, markers=6), faults=Faults(cut_after=frame))
        world.run_all(100 * MS)
        assert world.attempt == 2 or world.frames < frame


def test_one_seed_has_one_trace() -> None:
    traces = set()
    for _ in range(2):
        world = World(5, faults=STORM, is_traced=True)
        world.run_all()
        traces.add(tuple(world.trace))
    assert len(traces) == 1
    assert len(next(iter(traces))) > 1000


def test_a_stalled_agent_stops_neither_other_channels_nor_markers() -> None:
    world = run(3, work=Workload(channels=4, messages=4000, markers=20, stalled=(1,)))
    assert world.b.stalled_items == 256
    assert world.b.inlets[2].arrived > 500
    assert world.b.markers_seen == 20


def test_no_faults_no_trouble() -> None:
    world = run(1, faults=Faults())
    assert world.attempt == 1 and world.trouble == ["both said Bye"]


def test_a_message_of_16_mib_passes_a_window_of_3_mib() -> None:
    world = World(2, work=Workload(messages=20))
    world.at(50 * MS, lambda: world.a.send(0, bytes(16 * PART_BYTES)))
    world.run_all()


# Mutants: the oracles above must be able to fail.


def _no_removal_of_doubles(patch: pytest.MonkeyPatch) -> None:
    take = IncomingOrder.take

    def mutant(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        return take(self, max(first_number, self.received + 1), items)

    patch.setattr(IncomingOrder, "take", mutant)


def _gaps_pass(patch: pytest.MonkeyPatch) -> None:
    take = IncomingOrder.take

    def mutant(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        self.received = max(self.received, first_number - 1)
        return take(self, first_number, items)

    patch.setattr(IncomingOrder, "take", mutant)


def _acks_before_delivery(patch: pytest.MonkeyPatch) -> None:
    take = IncomingOrder.take

    def mutant(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        try:
            return take(self, first_number, items)
        except ProtocolError:
            self.received = first_number + len(items.channel) - 1
            raise

    patch.setattr(IncomingOrder, "take", mutant)


def _resends_nothing(patch: pytest.MonkeyPatch) -> None:
    rewind = OutgoingOrder.rewind
    patch.setattr(OutgoingOrder, "rewind", lambda self, received: rewind(self, self.written))


def _resends_all_unacked_as_new(patch: pytest.MonkeyPatch) -> None:
    rewind = OutgoingOrder.rewind
    patch.setattr(OutgoingOrder, "rewind", lambda self, received: rewind(self, self.acked))
    _no_removal_of_doubles(patch)


def _forgets_lost_credit(patch: pytest.MonkeyPatch) -> None:
    forget = UnsentControlState.forget_stream

    def mutant(self: UnsentControlState) -> None:
        unsent_credits = self.unsent_credits
        forget(self)
        self.unsent_credits = unsent_credits

    patch.setattr(UnsentControlState, "forget_stream", mutant)


def _markers_overtake(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: OutgoingOrder, payload: bytes) -> None:
        waiting = self._waiting
        self._waiting = Items([0], [payload], waiting.epoch[:1] or [0])
        order.append_items(self._waiting, waiting)
        self.last += 1

    patch.setattr(OutgoingOrder, "append_control", mutant)


def _parts_keep_the_window(patch: pytest.MonkeyPatch) -> None:
    take = IncomingOrder._take_mixed

    def mutant(self: IncomingOrder, items: Items) -> list[Command]:
        consumed = self.consumed_bytes
        commands = take(self, items)
        self.consumed_bytes = consumed
        return commands

    patch.setattr(IncomingOrder, "_take_mixed", mutant)


def _no_word_of_its_own(patch: pytest.MonkeyPatch) -> None:
    note = UnsentControlState.note

    def mutant(self: UnsentControlState, now_ns: int) -> None:
        note(self, now_ns)
        self.due_ns = now_ns + 3600 * SECOND
        self.is_due = False

    patch.setattr(UnsentControlState, "note", mutant)
    patch.setattr(UnsentControlState, "note_frame", lambda self, now_ns, is_small: mutant(self, now_ns))
    patch.setattr(link, "HEARTBEAT_NS", 3600 * SECOND)


def _one_stamp_for_all(patch: pytest.MonkeyPatch) -> None:
    append = order.append_items

    def mutant(queue: Items, items: Items) -> None:
        append(queue, items)
        del queue.epoch[1:]

    patch.setattr(order, "append_items", mutant)


def _grants_are_added_up(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: LinkCore, frame: Frame) -> None:
        self._grant_items += frame.grant_items
        self._grant_bytes += frame.grant_bytes

    patch.setattr(LinkCore, "_take_grants", mutant)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _no_removal_of_doubles,
    _gaps_pass,
    _acks_before_delivery,
    _resends_nothing,
    _resends_all_unacked_as_new,
    _forgets_lost_credit,
    _markers_overtake,
    _parts_keep_the_window,
    _no_word_of_its_own,
    _one_stamp_for_all,
    _grants_are_added_up,
]
SLOW = (_forgets_lost_credit, _grants_are_added_up)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW), id=each.__name__.strip("_")) for each in MUTANTS],
)
def test_mutants_are_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ProtocolError, IndexError)):
        for seed in range(4):
            run(seed, work=Workload(messages=40, large_share=0.2, markers=10))
        assert run_stalled().trouble == []
        for seed in range(4):
            run(seed, work=Workload(messages=1500, channels=2))

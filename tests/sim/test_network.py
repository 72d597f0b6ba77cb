"""Pipes and streams: what is in them comes out in order, late, or never."""

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from snapline.channels.frame import Frame, Items, Marker, encode_marker
from snapline.sim.choices import Key, RandomChoices
from snapline.sim.world.kernel import Kernel
from snapline.sim.world.network import DELAY_STEPS, KEEPALIVE_NS, RETRANSMIT_NS, Network, Stream, has_marker

LEAST_NS, JITTER_NS = 1_000_000, 4_000_000
SECOND_NS = 1_000_000_000


class Benign:
    """Always 0."""

    def pick(self, stream: str, key: Key, n: int) -> int:
        return 0


class Wire:
    """Two nodes with one stream. `got`: (time, node, item). `ended`: (time, node)."""

    def __init__(self, seed: int | None = None) -> None:
        self.kernel = Kernel()
        choices = Benign() if seed is None else RandomChoices(seed)
        self.network = Network(self.kernel, choices, least_ns=LEAST_NS, jitter_ns=JITTER_NS)
        self.got: list[tuple[int, str, object]] = []
        self.ended: list[tuple[int, str]] = []
        self.stream = self.open("s")

    def open(self, key: Hashable) -> Stream:
        def deliver(node: str, item: object) -> None:
            self.got.append((self.kernel.now_ns, node, item))

        def closed(node: str) -> None:
            self.ended.append((self.kernel.now_ns, node))

        return self.network.open(("a", "b"), key, deliver, closed)

    def send(self, at_ns: int, sender: str, item: object) -> None:
        self.kernel.at(at_ns, lambda _: self.stream.send(sender, item))

    def run(self) -> None:
        assert self.kernel.run(100_000)

    def items(self, node: str) -> list[object]:
        return [item for _, there, item in self.got if there == node]


@given(st.integers(0, 999), st.lists(st.integers(0, 20), max_size=30), st.integers(0, 900))
def test_a_direction_delivers_everything_once_in_order_and_not_too_early(
    seed: int, times_ms: list[int], per_mille: int
) -> None:
    wire = Wire(seed)
    wire.network.set_loss(("a", "b"), per_mille)
    sent = sorted([time_ms * 1_000_000 for time_ms in times_ms])
    for number, at_ns in enumerate(sent):
        wire.send(at_ns, "a", number)
        wire.send(at_ns, "b", number)
    wire.run()
    for node in ("a", "b"):
        assert wire.items(node) == list(range(len(sent)))
        assert all(at_ns >= sent[int(str(item))] + LEAST_NS for at_ns, there, item in wire.got if there == node)
    back = [at_ns - sent[int(str(item))] for at_ns, there, item in wire.got if there == "a"]
    assert not wire.ended and all(took_ns <= LEAST_NS + JITTER_NS for took_ns in back), "the loss is the other way"


def test_a_lost_packet_is_a_delay() -> None:
    class Unlucky:
        def pick(self, stream: str, key: Key, n: int) -> int:
            return n - 1 if "loss" in key and key[-1] == LEAST_NS else 0

    wire = Wire()
    wire.network._choices = Unlucky()
    wire.network.set_loss(("a", "b"), 10)
    wire.send(0, "a", "x")
    wire.run()
    assert wire.got == [(LEAST_NS + RETRANSMIT_NS, "b", "x")]


def test_jitter_has_few_steps_and_none_at_the_benign_choice() -> None:
    wire = Wire()
    assert wire.network.delay_ns(("a", "b"), "k", 1) == LEAST_NS
    wire.network._choices = RandomChoices(1)
    drawn = {wire.network.delay_ns(("a", "b"), "k", number): None for number in range(500)}
    assert len(drawn) == DELAY_STEPS and max(drawn) < LEAST_NS + JITTER_NS
    wire.network.set_delay(("a", "b"), 7, 0)
    assert wire.network.delay_ns(("a", "b"), "k", 1) == 7
    assert wire.network.delay_ns(("b", "a"), "k", 1) >= LEAST_NS


def test_what_was_held_up_by_a_block_comes_in_order_when_it_is_gone() -> None:
    wire = Wire(5)
    wire.kernel.at(0, lambda _: wire.network.block(("a", "b")))
    for number in range(5):
        wire.send(number * 1_000_000, "a", number)
        wire.send(number * 1_000_000, "b", number)
    wire.kernel.at(SECOND_NS, lambda _: wire.network.unblock(("a", "b")))
    wire.send(SECOND_NS, "a", 5)
    wire.run()
    assert wire.items("b") == list(range(6)) and min(at_ns for at_ns, node, _ in wire.got if node == "b") >= SECOND_NS
    assert wire.items("a") == list(range(5)) and not wire.ended, "the other direction was open all the time"
    assert not wire.network.has_faults


def test_a_stream_that_is_cut_for_long_dies_by_keepalive_at_both_ends() -> None:
    wire = Wire()
    wire.kernel.at(SECOND_NS, lambda _: wire.network.block(("b", "a")))
    wire.send(SECOND_NS, "b", "lost")
    wire.kernel.at(4 * SECOND_NS, lambda _: wire.network.unblock(("b", "a")))
    wire.run()
    assert wire.ended == [(SECOND_NS + KEEPALIVE_NS, "a"), (SECOND_NS + KEEPALIVE_NS, "b")]
    assert not wire.got and wire.stream.is_closed
    wire.stream.send("a", "after the end")
    wire.run()
    assert not wire.got


def test_a_node_that_stands_still_neither_hears_nor_is_heard() -> None:
    wire = Wire()
    wire.kernel.at(0, lambda _: wire.network.silence("b"))
    wire.send(1, "a", "to")
    wire.send(1, "b", "from")
    assert wire.network.can_reach("a", "b")
    wire.kernel.at(5, lambda _: wire.kernel.at(6, lambda _: None))
    wire.kernel.at(SECOND_NS // 2, lambda _: wire.network.wake("b"))
    wire.run()
    assert [(at_ns, node) for at_ns, node, _ in wire.got] == [(SECOND_NS // 2, "b"), (SECOND_NS // 2, "a")]


def test_closing_loses_what_is_in_flight_and_tells_each_end_once() -> None:
    wire = Wire()
    wire.send(0, "a", "arrives")
    wire.send(2 * LEAST_NS, "a", "is lost")
    for _ in range(2):
        wire.kernel.at(2 * LEAST_NS + 1, wire.stream.close)
    wire.run()
    assert wire.items("b") == ["arrives"]
    assert [node for _, node in wire.ended] == ["a", "b"]
    assert not wire.network.streams_of("a") and not wire.network.streams_between("b", "a")


def test_a_crashed_node_closes_its_streams_only() -> None:
    wire = Wire()
    other = wire.network.open(("c", "d"), "t", lambda node, item: None, lambda node: None)
    wire.network.close_all("b")
    assert wire.stream.is_closed and not other.is_closed
    assert wire.network.streams_between("d", "c") == [other]


def marker_frame() -> Frame:
    frame = Frame(1)
    frame.body = Items([0], [encode_marker(Marker(1, [], [], True))], [0], [])
    return frame


def plain_frame() -> Frame:
    frame = Frame(2)
    frame.body = Items([1], [b"payload"], [0], [])
    return frame


def test_holding_markers_holds_the_frames_that_have_one_and_all_behind_them() -> None:
    before, marker, behind = plain_frame(), marker_frame(), plain_frame()
    assert [has_marker(item) for item in (before, marker, behind, "other")] == [False, True, False, False]
    wire = Wire()
    wire.network.hold(("a", "b"), is_held=True)
    for item in (before, marker, behind):
        wire.send(0, "a", item)
    wire.kernel.at(SECOND_NS, lambda _: wire.network.hold(("a", "b"), is_held=False))
    wire.run()
    assert [at_ns for at_ns, _, _ in wire.got] == [LEAST_NS, SECOND_NS, SECOND_NS]
    assert wire.items("b") == [before, marker, behind]


def test_who_cannot_be_reached_has_no_path_and_a_reset_mends_all_wires() -> None:
    wire = Wire()
    network = wire.network
    network.block(("a", "b"))
    network.set_loss(("b", "a"), 1000)
    network.set_delay(("b", "a"), 9 * SECOND_NS, 0)
    assert not network.can_reach("a", "b") and not network.can_reach("b", "a")
    assert network.path_ns("a", "b", "k") is None and network.path_ns("a", "a", "k") == 0
    assert network.path_ns("b", "a", "k") == 9 * SECOND_NS
    network.reset()
    assert network.can_reach("a", "b") and network.path_ns("b", "a", "k") == LEAST_NS


@given(
    st.integers(0, 99), st.lists(st.sampled_from(["block", "unblock", "silence", "wake", "hold", "let"]), max_size=12)
)
def test_whatever_happens_to_the_wires_what_comes_is_a_prefix_and_all_of_it_if_they_are_mended(
    seed: int, faults: list[str]
) -> None:
    wire = Wire(seed)
    network = wire.network
    calls = {
        "block": lambda _: network.block(("a", "b")),
        "unblock": lambda _: network.unblock(("a", "b")),
        "silence": lambda _: network.silence("b"),
        "wake": lambda _: network.wake("b"),
        "hold": lambda _: network.hold(("a", "b"), is_held=True),
        "let": lambda _: network.hold(("a", "b"), is_held=False),
    }
    for number, fault in enumerate(faults):
        wire.kernel.at(number * SECOND_NS // 10, calls[fault])
        wire.send(number * SECOND_NS // 10 + 1, "a", number)
    for mend in ("unblock", "wake", "let"):
        wire.kernel.at(SECOND_NS * 3 // 2, calls[mend])
    wire.run()
    assert wire.items("b") == list(range(len(faults))) and not wire.ended, "mended before the keepalive"

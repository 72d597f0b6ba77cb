"""One link core, event by event: fences, numbers, words, silence, the end."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.channels import incoming
from snapline.channels.channel import MESSAGE_BYTES_MAX, PART_BYTES, WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import (
    LARGE_BYTES,
    LARGE_ITEMS,
    Bye,
    CloseChannel,
    Frame,
    Items,
    LinkHello,
    Marker,
    OpenChannel,
    Refused,
    encode_close,
    encode_marker,
    encode_open,
)
from snapline.channels.link import LinkCore
from snapline.channels.link_events import (
    LINK_VERSION,
    AcceptChannel,
    ByeRequested,
    ChannelClosed,
    ChannelOpened,
    CloseStream,
    Command,
    DeliverItems,
    DeliverMarker,
    DropInlet,
    DropOutlet,
    FrameReceived,
    ItemsConsumed,
    ItemsSent,
    MarkerSent,
    RaiseCredit,
    Refuse,
    ReportEnded,
    ReportEstablished,
    ReportRefused,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
)
from snapline.channels.order import FRAMES_UNACKED_MAX
from snapline.errors import MessageTooLargeError

MS = 1_000_000
SECOND = 1000 * MS


def make(*, is_dialler: bool) -> LinkCore:
    return LinkCore(cluster="c", host="h1", host_start=4, peer="h2", peer_start=7, plan=3, is_dialler=is_dialler)


def hello(**changes: object) -> LinkHello:
    fields: dict[str, object] = {
        "cluster": "c",
        "host": "h2",
        "host_start": 7,
        "peer_start": 4,
        "attempt": 1,
        "plan": 3,
        "received": 0,
        "version": LINK_VERSION,
    }
    return LinkHello(**{**fields, **changes})  # type: ignore[arg-type]  # a test names the field it changes


def hello_frame(**changes: object) -> Frame:
    return Frame(0, 0, WINDOW_ITEMS, WINDOW_BYTES, body=hello(**changes))


@pytest.fixture
def acceptor() -> Iterator[LinkCore]:
    core = make(is_dialler=False)
    yield core
    core.validate()


@pytest.fixture
def dialler() -> Iterator[LinkCore]:
    core = make(is_dialler=True)
    yield core
    core.validate()


def establish(core: LinkCore, now_ns: int = 0, attempt: int = 1, received: int = 0) -> list[Command]:
    core.handle(now_ns, StreamOpened(attempt))
    if core.is_dialler:
        assert isinstance(written(core, now_ns).body, LinkHello)
    commands = core.handle(now_ns, FrameReceived(hello_frame(attempt=attempt, received=received)))
    if not core.is_dialler:
        assert isinstance(written(core, now_ns).body, LinkHello)
    assert core.is_established
    return commands


def written(core: LinkCore, now_ns: int = 0) -> Frame:
    """The frame that the core wants to write."""
    assert core.wants_write
    first, *_ = core.handle(now_ns, WriteReady())
    assert isinstance(first, WriteFrame)
    return first.frame


def opened(core: LinkCore, channel: int = 1) -> None:
    """The peer opens a channel; item 1."""
    payload = encode_open(OpenChannel(channel, "x", "y", 1, 1, 1))
    core.handle(0, FrameReceived(Frame(1, body=Items([0], [payload], [0]))))


def test_the_dialler_speaks_first_and_the_acceptor_answers(dialler: LinkCore, acceptor: LinkCore) -> None:
    assert not dialler.wants_write
    dialler.handle(0, StreamOpened(1))
    assert isinstance(written(dialler).body, LinkHello)
    acceptor.handle(0, StreamOpened(1))
    assert not acceptor.wants_write
    commands = acceptor.handle(0, FrameReceived(hello_frame()))
    assert commands == [ReportEstablished(resumed=False)]
    frame = written(acceptor)
    assert isinstance(frame.body, LinkHello) and frame.body.attempt == 1
    assert (frame.grant_items, frame.grant_bytes) == (WINDOW_ITEMS, WINDOW_BYTES)


@pytest.mark.parametrize(("here", "there"), [(5, 2), (2, 5)])
def test_the_ends_agree_on_the_newest_epoch_of_both(
    dialler: LinkCore, acceptor: LinkCore, here: int, there: int
) -> None:
    dialler.begun, acceptor.begun = here, there
    dialler.handle(0, StreamOpened(1))
    said = written(dialler).body
    assert isinstance(said, LinkHello) and said.floor == here
    acceptor.handle(0, StreamOpened(1))
    acceptor.handle(0, FrameReceived(hello_frame(floor=said.floor)))
    answer = written(acceptor).body
    assert isinstance(answer, LinkHello)
    dialler.handle(0, FrameReceived(hello_frame(floor=answer.floor)))
    assert acceptor.floor == dialler.floor == 5


def test_what_was_agreed_upon_stays(dialler: LinkCore, acceptor: LinkCore) -> None:
    """The answer may be lost with its stream: who accepts gives the same one again, however far it is by then."""
    acceptor.begun = 3
    establish(acceptor)
    acceptor.handle(0, StreamClosed())
    acceptor.begun = 9
    acceptor.handle(0, StreamOpened(2))
    acceptor.handle(0, FrameReceived(hello_frame(attempt=2, floor=7)))
    answer = written(acceptor).body
    assert isinstance(answer, LinkHello) and answer.floor == acceptor.floor == 3
    dialler.handle(0, StreamOpened(1))
    dialler.handle(0, FrameReceived(hello_frame(floor=3)))
    dialler.handle(0, StreamClosed())
    dialler.begun = 9
    dialler.handle(0, StreamOpened(2))
    dialler.handle(0, FrameReceived(hello_frame(attempt=2, floor=4)))
    assert dialler.floor == 3


@pytest.mark.parametrize(
    ("changes", "is_final"),
    [
        ({"host_start": 6}, True),
        ({"host_start": 8}, False),
        ({"plan": 2}, True),
        ({"plan": 4}, False),
        ({"peer_start": 3}, False),
        ({"peer_start": 5}, False),
        ({"cluster": "other"}, True),
        ({"host": "h3"}, True),
        ({"version": LINK_VERSION + 1}, True),
        ({"received": 1}, True),
        ({"attempt": 0}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_dialler", [False, True])
def test_whoever_is_another_is_refused(changes: dict[str, object], is_final: bool, is_dialler: bool) -> None:
    core = make(is_dialler=is_dialler)
    core.handle(0, StreamOpened(1))
    (command,) = core.handle(0, FrameReceived(hello_frame(**changes)))
    assert isinstance(command, Refuse) and command.is_final is is_final
    assert not core.is_established and not core.wants_write
    items = Frame(1, body=Items([0], [encode_open(OpenChannel(1, "x", "y", 1, 1, 1))], [0]))
    assert core.handle(0, FrameReceived(items)) == [], "nothing of a refused peer is delivered"


def test_judge_changes_nothing_and_wants_a_newer_attempt(acceptor: LinkCore) -> None:
    image = acceptor.freeze()
    assert acceptor.judge(hello(attempt=1)) is None
    assert acceptor.freeze() == image
    establish(acceptor, attempt=5)
    for attempt in (4, 5):
        refused = acceptor.judge(hello(attempt=attempt))
        assert refused is not None and not refused.is_final
    assert acceptor.judge(hello(attempt=6)) is None


def test_an_attempt_far_ahead_shuts_the_peer_out_for_no_longer_than_its_stream_lives(acceptor: LinkCore) -> None:
    establish(acceptor, attempt=2**64 - 1)
    assert acceptor.judge(hello(attempt=2)) is not None
    acceptor.handle(3 * SECOND, StreamClosed())
    assert acceptor.judge(hello(attempt=2)) is None
    assert establish(acceptor, 3 * SECOND, attempt=2) == [ReportEstablished(resumed=True)]


def test_a_late_hello_of_an_older_stream_gives_way_to_the_next_one(acceptor: LinkCore) -> None:
    establish(acceptor, attempt=6)
    acceptor.handle(0, StreamClosed())
    assert acceptor.judge(hello(attempt=5)) is None
    assert establish(acceptor, attempt=5) == [ReportEstablished(resumed=True)]
    assert acceptor.judge(hello(attempt=7)) is None
    assert ReportEstablished(resumed=True) in establish(acceptor, attempt=7)


def test_a_dialler_never_goes_back(dialler: LinkCore) -> None:
    dialler.handle(0, StreamOpened(3))
    dialler.handle(0, StreamClosed())
    with pytest.raises(AssertionError):
        dialler.handle(0, StreamOpened(3))


def test_a_refused_dialler_reports_it(dialler: LinkCore) -> None:
    dialler.handle(0, StreamOpened(1))
    written(dialler)
    commands = dialler.handle(0, FrameReceived(Frame(body=Refused("older", True))))
    assert [type(command) for command in commands] == [CloseStream, ReportRefused]
    assert commands[1] == ReportRefused("older", True)


def test_data_flows_only_after_the_hello(acceptor: LinkCore) -> None:
    acceptor.handle(0, StreamOpened(1))
    (command,) = acceptor.handle(0, FrameReceived(Frame(1, body=Items([1], [b""], [1]))))
    assert isinstance(command, CloseStream) and command.is_protocol_error


def test_room_is_the_peers_grant_minus_what_was_sent(dialler: LinkCore) -> None:
    assert dialler.items_room == dialler.bytes_room == 0
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    dialler.handle(0, ItemsSent([1, 1], [b"abc", b"de"], [1]))
    assert dialler.items_room == WINDOW_ITEMS - 3
    assert dialler.bytes_room == WINDOW_BYTES - 5
    written(dialler)
    dialler.handle(0, FrameReceived(Frame(0, 3, WINDOW_ITEMS + 3, WINDOW_BYTES + 5)))
    assert (dialler.items_room, dialler.bytes_room) == (WINDOW_ITEMS, WINDOW_BYTES)
    dialler.handle(0, FrameReceived(Frame(0, 3, WINDOW_ITEMS, WINDOW_BYTES)))
    assert dialler.items_room == WINDOW_ITEMS, "an older word changes nothing"


def test_sending_without_room_is_our_own_bug(dialler: LinkCore) -> None:
    with pytest.raises(AssertionError):
        dialler.handle(0, ItemsSent([1], [b""], [1]))
    establish(dialler)
    with pytest.raises(AssertionError):
        dialler.handle(0, ItemsSent([1] * 2, [bytes(WINDOW_BYTES), b"x"], [1]))


def test_a_message_above_16_mib_is_refused_before_anything_changes(dialler: LinkCore) -> None:
    establish(dialler)
    image = dialler.freeze()
    with pytest.raises(MessageTooLargeError):
        dialler.handle(0, ItemsSent([1], [bytes(MESSAGE_BYTES_MAX + 1)], [1]))
    assert dialler.freeze() == image


def test_controls_stand_in_their_place_and_need_no_room(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 5, 6, 11))
    dialler.handle(0, ItemsSent([1] * (WINDOW_ITEMS - 1), [b""] * (WINDOW_ITEMS - 1), [1]))
    assert dialler.items_room == 0
    dialler.handle(0, MarkerSent(2, [1], [WINDOW_ITEMS + 9]))
    while dialler.wants_write:
        frame = written(dialler)
    assert isinstance(frame.body, Items)
    assert frame.body.channel[-1] == 0
    assert frame.body.payload[-1] == encode_marker(Marker(2, [1], [WINDOW_ITEMS + 9]))
    assert frame.first_number + len(frame.body.channel) - 1 == WINDOW_ITEMS + 1


def test_items_between_controls_are_delivered_between_them(acceptor: LinkCore) -> None:
    establish(acceptor)
    first = encode_open(OpenChannel(1, "x", "y", 5, 6, 11))
    marker = encode_marker(Marker(2, [1], [12]))
    body = Items([0, 1, 1, 0, 1], [first, b"a", b"b", marker, b"c"], [1, 1, 1, 1, 2])
    assert acceptor.handle(0, FrameReceived(Frame(1, body=body))) == [
        AcceptChannel(1, "x", "y", 5, 6, 11),
        DeliverItems([1, 1], [b"a", b"b"], [1], []),
        DeliverMarker(2, [1], [12]),
        DeliverItems([1], [b"c"], [2], []),
    ]


def test_a_closing_stands_behind_the_channels_last_message(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 5, 6, 1))
    dialler.handle(0, ItemsSent([1], [b"a"], [1]))
    dialler.handle(0, ChannelClosed(1))
    dialler.handle(0, ChannelClosed(4, by_receiver=True))
    body = written(dialler).body
    assert isinstance(body, Items) and body.channel == [0, 1, 0, 0]
    assert body.payload[2:] == [encode_close(CloseChannel(1, False)), encode_close(CloseChannel(4, True))]
    dialler.handle(0, FrameReceived(Frame(0, credit_channel=[1], credit_number=[300])))
    assert dialler.is_established, "a credit that was under way is no broken rule"


def test_a_closed_channel_carries_nothing_more_and_gets_no_credit(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    body = Items([1, 0, 0], [b"a", encode_close(CloseChannel(1, False)), encode_close(CloseChannel(7, True))], [1])
    commands = acceptor.handle(0, FrameReceived(Frame(2, body=body)))
    assert commands == [DeliverItems([1], [b"a"], [1], []), DropInlet(1), DropOutlet(7)]
    acceptor.handle(0, ItemsConsumed(1, 1, [1], [300]))
    acceptor.handle(SECOND, TimerFired())
    assert written(acceptor, SECOND).credit_channel == []
    (closed, _) = acceptor.handle(SECOND, FrameReceived(Frame(5, body=Items([1], [b"b"], [1]))))
    assert isinstance(closed, CloseStream) and closed.is_protocol_error


def test_a_plain_frame_is_one_command_with_its_own_lists(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    body = Items([1] * 3, [b"a", b"b", b"c"], [1])
    (command,) = acceptor.handle(0, FrameReceived(Frame(2, body=body)))
    assert isinstance(command, DeliverItems)
    assert command.channels is body.channel and command.payloads is body.payload


def test_what_came_before_is_skipped(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    acceptor.handle(0, FrameReceived(Frame(2, body=Items([1, 1], [b"a", b"b"], [1]))))
    assert acceptor.handle(0, FrameReceived(Frame(2, body=Items([1, 1], [b"a", b"b"], [1])))) == []
    commands = acceptor.handle(0, FrameReceived(Frame(3, body=Items([1, 1, 1], [b"b", b"c", b"d"], [1, 1, 2]))))
    assert commands == [DeliverItems([1, 1], [b"c", b"d"], [1, 2], [])]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(3, body=Items([1], [b"gap"], [1])),
        Frame(2, body=Items([2], [b"never opened"], [1])),
        Frame(2, body=Items([1, 0], [b"", b"no control"], [1])),
        Frame(2, body=Items([0], [encode_open(OpenChannel(1, "x", "y", 1, 1, 1))], [1])),
        Frame(2, body=Items([0], [encode_marker(Marker(1, [9], [1]))], [1])),
        Frame(2, body=Items([0], [encode_close(CloseChannel(9, False))], [1])),
        Frame(2, body=Items([1, 0], [b"", encode_marker(Marker(1, [1], [1]))], [1], [], [1, 0])),
        Frame(2, body=Items([1], [b""], [1], [], [1])),
        Frame(0, ack=1),
        Frame(0, grant_items=WINDOW_ITEMS + 1),
        Frame(0, credit_channel=[1], credit_number=[300]),
        Frame(0, body=hello()),
        Frame(2, body=Items([1] * 4, [bytes(PART_BYTES)] * 4 + [b"x"], [1])),
    ],
    ids=[
        "gap",
        "unknown channel",
        "bad control",
        "opened twice",
        "marker of unknown channel",
        "closing of unknown channel",
        "control within parts",
        "empty part",
        "ack of nothing",
        "too large a grant",
        "credit of unknown channel",
        "second hello",
        "columns",
    ],
)
def test_a_broken_rule_closes_the_stream_and_nothing_is_taken(acceptor: LinkCore, frame: Frame) -> None:
    establish(acceptor)
    opened(acceptor)
    if isinstance(frame.body, Items) and len(frame.body.channel) != len(frame.body.payload):
        frame.body = Items([1] * 6, [bytes(PART_BYTES)] * 6, [1])  # more bytes than were granted
    before = acceptor._in.freeze()
    first, *rest = acceptor.handle(0, FrameReceived(frame))
    assert isinstance(first, CloseStream) and first.is_protocol_error
    assert rest == [ReportEnded(is_clean=False)]
    assert acceptor._in.freeze() == before
    assert acceptor.handle(0, FrameReceived(Frame(2, body=Items([1], [b"a"], [1])))) == []


def test_words_get_a_frame_of_their_own_after_20_ms(acceptor: LinkCore) -> None:
    establish(acceptor)
    opening = encode_open(OpenChannel(1, "x", "y", 1, 1, 1))
    acceptor.handle(0, FrameReceived(Frame(1, body=Items([0, 1], [opening, b"abc"], [1]))))
    acceptor.handle(12 * MS, ItemsConsumed(1, 3, [1], [300]))
    assert not acceptor.wants_write
    wakeup_ns = acceptor.wakeup_ns
    assert wakeup_ns == 20 * MS, "counted from the first untold item"
    acceptor.handle(wakeup_ns, TimerFired())
    frame = written(acceptor, wakeup_ns)
    assert (frame.ack, frame.grant_items, frame.grant_bytes) == (2, WINDOW_ITEMS + 2, WINDOW_BYTES + 3)
    assert (frame.credit_channel, frame.credit_number) == ([1], [300])
    assert not acceptor.wants_write


def test_words_are_told_at_once_after_a_quarter_window(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    quarter = WINDOW_ITEMS // 4
    acceptor.handle(0, FrameReceived(Frame(2, body=Items([1] * quarter, [b""] * quarter, [1]))))
    acceptor.handle(0, ItemsConsumed(quarter - 2, 0))
    assert not acceptor.wants_write
    acceptor.handle(0, ItemsConsumed(1, 0))
    assert acceptor.wants_write


def test_words_ride_on_items(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    acceptor.handle(0, ChannelOpened(1, "y", "x", 1, 1, 1))
    frame = written(acceptor)
    assert isinstance(frame.body, Items) and frame.ack == 1
    acceptor.handle(20 * MS, TimerFired())
    assert not acceptor.wants_write, "the ack was told"


def test_parts_are_put_together_and_give_their_room_back_on_arrival(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    part = bytes(PART_BYTES)
    assert acceptor.handle(0, FrameReceived(Frame(2, body=Items([1], [b"xy"], [1], [], [1])))) == []
    assert acceptor.handle(0, FrameReceived(Frame(3, body=Items([1], [part], [1], [], [1])))) == []
    frame = written(acceptor)
    assert frame.grant_items == WINDOW_ITEMS + 3 and frame.grant_bytes == WINDOW_BYTES + PART_BYTES + 2
    acceptor.handle(0, StreamClosed())
    establish(acceptor, attempt=2)
    commands = acceptor.handle(0, FrameReceived(Frame(4, body=Items([1], [part], [1]))))
    assert commands == [DeliverItems([1], [b"xy" + part + part], [1], [])], "parts outlive the stream"
    acceptor.handle(0, ItemsConsumed(1, PART_BYTES))
    with pytest.raises(AssertionError):
        acceptor.handle(0, ItemsConsumed(1, 1))


def test_unacked_items_are_resent_under_their_numbers(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    dialler.handle(0, ItemsSent([1, 1, 1], [b"a", b"b", b"c"], [1]))
    written(dialler)
    dialler.handle(0, FrameReceived(Frame(0, ack=2, grant_items=WINDOW_ITEMS)))
    assert dialler.handle(0, StreamClosed()) == [ReportEnded(is_clean=False)]
    assert establish(dialler, attempt=2, received=3) == [ReportEstablished(resumed=True)]
    frame = written(dialler)
    assert frame.first_number == 4
    assert frame.body == Items([1], [b"c"], [1])


def test_a_peer_that_forgot_what_it_acked_is_refused(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    written(dialler)
    dialler.handle(0, FrameReceived(Frame(0, ack=1)))
    dialler.handle(0, StreamClosed())
    dialler.handle(0, StreamOpened(2))
    (command,) = dialler.handle(0, FrameReceived(hello_frame(attempt=2, received=0)))
    assert isinstance(command, Refuse) and command.is_final


def test_credits_are_told_again_after_a_break(acceptor: LinkCore) -> None:
    establish(acceptor)
    opened(acceptor)
    acceptor.handle(0, FrameReceived(Frame(2, body=Items([1], [b""], [1]))))
    acceptor.handle(0, ItemsConsumed(1, 0, [1], [384]))
    acceptor.handle(20 * MS, TimerFired())
    assert written(acceptor, 20 * MS).credit_number == [384]
    acceptor.handle(30 * MS, StreamClosed())
    establish(acceptor, 40 * MS, attempt=2)
    acceptor.handle(60 * MS, TimerFired())
    frame = written(acceptor, 60 * MS)
    assert (frame.credit_channel, frame.credit_number) == ([1], [384])


def test_the_peers_credit_is_passed_on(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    frame = Frame(0, credit_channel=[1], credit_number=[384])
    assert dialler.handle(0, FrameReceived(frame)) == [RaiseCredit([1], [384])]


def test_a_heartbeat_every_500_ms_and_a_silent_peer_is_busy(dialler: LinkCore) -> None:
    establish(dialler)
    assert dialler.wakeup_ns == 500 * MS
    dialler.handle(499 * MS, TimerFired())
    assert not dialler.wants_write
    dialler.handle(500 * MS, TimerFired())
    assert written(dialler, 500 * MS).body is None
    assert dialler.wakeup_ns == SECOND
    for number in range(2, 100):
        assert dialler.handle(number * 500 * MS, TimerFired()) == [], "the stream stands, so the peer lives"
        assert written(dialler, number * 500 * MS).body is None
    assert dialler.is_established


def test_a_stream_without_a_hello_is_closed(acceptor: LinkCore) -> None:
    acceptor.handle(0, StreamOpened(1))
    assert acceptor.wakeup_ns == 2 * SECOND
    (command,) = acceptor.handle(2 * SECOND, TimerFired())
    assert isinstance(command, CloseStream)
    assert acceptor.handle(2 * SECOND, StreamClosed()) == [], "it was never established"


def test_bye_waits_until_all_is_acked_and_ends_the_link(dialler: LinkCore) -> None:
    establish(dialler)
    dialler.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    dialler.handle(0, ByeRequested())
    assert dialler.items_room == 0
    assert isinstance(written(dialler).body, Items)
    assert not dialler.wants_write
    dialler.handle(0, FrameReceived(Frame(0, ack=1)))
    assert isinstance(written(dialler).body, Bye)
    assert dialler.handle(0, FrameReceived(Frame(0, ack=1, body=Bye()))) == []
    assert dialler.handle(0, StreamClosed()) == [ReportEnded(is_clean=True)]
    refused = dialler.judge(hello(attempt=2))
    assert refused is not None and refused.is_final


def test_the_acceptor_answers_bye_and_closes(acceptor: LinkCore) -> None:
    establish(acceptor)
    acceptor.handle(0, FrameReceived(Frame(0, body=Bye())))
    commands = acceptor.handle(0, WriteReady())
    assert [type(command) for command in commands] == [WriteFrame, CloseStream, ReportEnded]
    assert commands[2] == ReportEnded(is_clean=True)


def test_a_peer_that_ended_before_us_ends_us_cleanly(dialler: LinkCore) -> None:
    """The acceptor said Bye and was gone when the stream broke: its final refusal is the end, not a fault."""
    establish(dialler)
    dialler.handle(0, ByeRequested())
    assert isinstance(written(dialler).body, Bye)
    assert dialler.handle(0, StreamClosed()) == [ReportEnded(is_clean=False)]
    dialler.handle(0, StreamOpened(2))
    commands = dialler.handle(0, FrameReceived(Frame(body=Refused("this link has ended", True))))
    assert commands[-1] == ReportEnded(is_clean=True)


def test_end_of_stream_without_bye_is_reported(dialler: LinkCore) -> None:
    establish(dialler)
    assert dialler.handle(0, StreamClosed()) == [ReportEnded(is_clean=False)]
    assert dialler.handle(0, StreamClosed()) == []


def test_a_large_marker_travels_in_pieces() -> None:
    core, peer = make(is_dialler=True), make(is_dialler=False)
    establish(core)
    establish(peer)
    count = 70_000
    core._opened = count
    peer._in.opened.update(range(1, count + 1))
    core.handle(0, MarkerSent(1, list(range(1, count + 1)), list(range(count))))
    seen: list[int] = []
    while core.wants_write:
        for command in peer.handle(0, FrameReceived(written(core))):
            assert isinstance(command, DeliverMarker)
            seen += command.last_numbers
    assert seen == list(range(count))


def _play_one_way(bunches: list[tuple[int, int]]) -> tuple[int, int]:
    """Send these (items, bytes of each) from one core to another while no time passes: how many items went, and how many frames."""
    a, b = make(is_dialler=True), make(is_dialler=False)
    establish(a)
    establish(b)
    a.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    sent = delivered = frames = 0
    for count, size_bytes in bunches:
        room = min(count, a.items_room, max(0, a.bytes_room // size_bytes))
        if room:
            a.handle(0, ItemsSent([1] * room, [bytes(size_bytes)] * room, [1]))
            sent += room
        while a.wants_write or b.wants_write:
            for writer, reader in ((a, b), (b, a)):
                if not writer.wants_write:
                    continue
                commands = reader.handle(0, FrameReceived(written(writer)))
                taken = [x for command in commands if isinstance(command, DeliverItems) for x in command.payloads]
                if writer is a:
                    frames += 1
                    delivered += len(taken)
                if taken:
                    b.handle(0, ItemsConsumed(len(taken), sum(map(len, taken)), [], []))
    assert delivered == sent
    return sent, frames


BUNCHES = st.lists(st.sampled_from([(1, 64), (3, 64), (LARGE_ITEMS, 64), (1, LARGE_BYTES), (2, 40_000)]), max_size=30)


@given(BUNCHES)
def test_nothing_that_is_small_waits_for_a_timer(bunches: list[tuple[int, int]]) -> None:
    """The receiver acks as many small frames as the sender lets go: both count them alike."""
    _play_one_way(bunches)


def test_an_ack_that_is_told_late_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the receiver waits for one frame more than the sender writes."""
    monkeypatch.setattr(incoming, "TELL_FRAMES", FRAMES_UNACKED_MAX + 1)
    with pytest.raises(AssertionError):
        _play_one_way([(1, 64)] * (FRAMES_UNACKED_MAX + 1))


def test_large_frames_are_acked_by_their_bytes() -> None:
    """An ack for every second frame of 64 KiB would cost as much as the frame."""
    a, b = make(is_dialler=True), make(is_dialler=False)
    establish(a)
    establish(b)
    a.handle(0, ChannelOpened(1, "x", "y", 1, 1, 1))
    a.handle(0, ItemsSent([1] * 6, [bytes(LARGE_BYTES)] * 6, [1]))
    taken = 0
    while a.wants_write:
        for command in b.handle(0, FrameReceived(written(a))):
            taken += len(command.payloads) if isinstance(command, DeliverItems) else 0
    assert taken == 6 and not b.wants_write

"""The epoch-stamped core, rule by rule: event in, compare the command list."""

from collections.abc import Callable

import msgspec
import pytest

from snapline.errors import ProtocolError
from snapline.protocols.epoch_stamped import (
    EPOCHS_AHEAD_MAX,
    Command,
    EpochAnnounced,
    EpochEnded,
    EpochStampedCore,
    EpochStampedImage,
    Event,
    LeaveCommitted,
    MarkerReceived,
    MessageArrived,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
)

MakeCore = Callable[..., EpochStampedCore]


@pytest.fixture
def make_core(checked: Callable[[EpochStampedCore], None]) -> MakeCore:
    def make(recorded: int = 0, unborn_in: tuple[int, ...] = ()) -> EpochStampedCore:
        core = EpochStampedCore("b", recorded=recorded, unborn_in=unborn_in)
        checked(core)
        return core

    return make


def feed(core: EpochStampedCore, *events: Event) -> list[Command]:
    """The commands of the last of `events`; of the others only a record may ask for anything."""
    for event in events[:-1]:
        commands = core.handle(0, event)
        assert commands == [] or isinstance(event, TurnBoundaryReached)
        core.validate()
    return core.handle(0, events[-1])


def arrived(number: int, stamp: int, channel: str = "a") -> MessageArrived:
    return MessageArrived(channel, number, stamp, b"m%d" % number)


def waiting(number: int, stamp: int, channel: str = "a") -> WaitingMessage:
    return WaitingMessage(channel, number, stamp, b"m%d" % number)


def boundary(
    *messages: WaitingMessage, sent: dict[str, int] | None = None, received: dict[str, int] | None = None
) -> TurnBoundaryReached:
    return TurnBoundaryReached(sent or {}, received or {}, messages)


def in_transit(core: EpochStampedCore, epoch: int) -> list[int]:
    """Numbers recorded on the channel from a."""
    return [message.number for message in core.record_of(epoch).in_transit.get("a", [])]


@pytest.mark.parametrize("news", [EpochAnnounced(1), MarkerReceived("a", 1, 0), arrived(1, stamp=1)])
def test_word_marker_and_stamp_make_it_owe_the_epoch(make_core: MakeCore, news: Event) -> None:
    core = make_core()
    assert feed(core, news) == []
    assert (core.recorded, core.owed) == (0, 1)


def test_a_record_captures_and_then_sends_markers_with_the_last_numbers(make_core: MakeCore) -> None:
    core = make_core()
    commands = feed(core, EpochAnnounced(1), boundary(sent={"a": 3, "c": 1}, received={"a": 2}))
    assert commands == [RecordState((1,)), SendMarkers(1, {"a": 3, "c": 1})]
    assert (core.recorded, core.owed) == (1, 1)
    record = core.record_of(1)
    assert (record.sent, record.received, record.is_unborn) == ({"a": 3, "c": 1}, {"a": 2}, False)


def test_the_record_keeps_its_numbers_when_the_host_goes_on_counting(make_core: MakeCore) -> None:
    core = make_core()
    sent, received = {"a": 3}, {"a": 2}
    markers = feed(core, EpochAnnounced(1), TurnBoundaryReached(sent, received))[1]
    sent["a"] = received["a"] = 9
    assert (core.record_of(1).sent, core.record_of(1).received) == ({"a": 3}, {"a": 2})
    assert markers == SendMarkers(1, {"a": 3})


def test_a_turn_boundary_with_nothing_owed_is_a_no_op(make_core: MakeCore) -> None:
    assert feed(make_core(), boundary(sent={"a": 1})) == []


def test_one_image_serves_every_epoch_owed(make_core: MakeCore) -> None:
    """A turn that lasts minutes: three epochs begin meanwhile."""
    core = make_core()
    commands = feed(core, EpochAnnounced(1), EpochAnnounced(2), arrived(1, stamp=3), boundary(waiting(1, stamp=3)))
    assert commands == [RecordState((1, 2, 3)), SendMarkers(1, {}), SendMarkers(2, {}), SendMarkers(3, {})]
    assert core.open_epochs() == (1, 2, 3)


def test_payload_and_piggyback_are_recorded_as_they_came(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), boundary())
    feed(core, MessageArrived("a", 1, 0, b"payload", b"piggyback"))
    assert core.record_of(1).in_transit == {"a": [WaitingMessage("a", 1, 0, b"payload", b"piggyback")]}


def test_record_of_is_a_copy(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), boundary(waiting(1, stamp=0)))
    core.record_of(1).in_transit["a"].clear()
    assert in_transit(core, 1) == [1]


@pytest.mark.parametrize("last_number", [3, 5])
def test_a_marker_with_another_number_is_a_violation(make_core: MakeCore, last_number: int) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), boundary(waiting(3, stamp=0), received={"a": 2}), arrived(4, stamp=0))
    with pytest.raises(ProtocolError, match=f"b, epoch 1: the marker from a names {last_number} .* 2 were received"):
        feed(core, MarkerReceived("a", 1, last_number))


def test_a_marker_before_the_record_is_checked_at_the_record(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, MarkerReceived("a", 1, 3))
    assert core.owed == 1
    with pytest.raises(ProtocolError, match="names 3 as the last"):
        feed(core, boundary(waiting(2, stamp=0), received={"a": 1}))


def test_a_marker_before_the_record_closes_at_the_record(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, MarkerReceived("a", 2, 3), boundary(waiting(3, stamp=1), received={"a": 2}))
    assert (in_transit(core, 1), in_transit(core, 2)) == ([], [3])
    with pytest.raises(ProtocolError, match="behind the marker"):
        feed(core, arrived(4, stamp=1))


def test_a_message_below_the_epoch_behind_its_marker_is_a_violation(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), boundary(), MarkerReceived("a", 1, 0))
    with pytest.raises(ProtocolError, match="message 1 from a, stamped 0, came behind the marker"):
        feed(core, arrived(1, stamp=0))


def test_the_same_marker_twice_is_a_no_op_and_another_number_a_violation(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, MarkerReceived("a", 1, 2), MarkerReceived("a", 1, 2))
    with pytest.raises(ProtocolError, match="two markers from a name 2 and 3"):
        feed(core, MarkerReceived("a", 1, 3))


@pytest.mark.parametrize("number", [4, 6])
def test_a_gap_or_a_repeat_in_a_channel_state_is_a_violation(make_core: MakeCore, number: int) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), boundary(received={"a": 4}))
    with pytest.raises(ProtocolError, match=f"message {number} from a, stamped 0, does not follow 4"):
        feed(core, arrived(number, stamp=0))


def test_an_ended_epoch_is_forgotten(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(2), boundary(), EpochEnded(1), EpochEnded(1), arrived(1, stamp=0))
    assert core.open_epochs() == (2,)
    with pytest.raises(KeyError):
        core.record_of(1)
    assert feed(core, MarkerReceived("a", 1, 77)) == []


def test_an_epoch_aborted_before_its_record_is_not_owed(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), MarkerReceived("a", 1, 0), EpochEnded(1))
    assert (core.recorded, core.owed) == (0, 0)
    feed(core, EpochAnnounced(1), MarkerReceived("c", 1, 9), arrived(1, stamp=1))
    assert (core.recorded, core.owed) == (0, 0)


def test_an_aborted_epoch_leaves_a_smaller_one_owed(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), EpochAnnounced(2), EpochEnded(2))
    assert core.owed == 1
    assert feed(core, boundary())[0] == RecordState((1,))
    assert core.recorded == 1


def test_the_stamp_of_an_aborted_epoch_still_asks_for_smaller_open_ones(make_core: MakeCore) -> None:
    """Whoever stamps 2 has recorded 1 too, so we may not consume its message before we record 1."""
    core = make_core()
    feed(core, EpochEnded(2), arrived(1, stamp=2))
    assert core.owed == 1


def test_an_aborted_epoch_between_is_left_out_of_the_record(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(3), EpochEnded(2))
    commands = feed(core, boundary())
    assert commands == [RecordState((1, 3)), SendMarkers(1, {}), SendMarkers(3, {})]
    assert core.open_epochs() == (1, 3)
    assert core.recorded == 3


def test_an_abort_while_a_later_epoch_is_owed_changes_only_the_record(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(1), EpochAnnounced(2), EpochEnded(1))
    assert core.owed == 2
    assert feed(core, boundary())[0] == RecordState((2,))


def test_epochs_that_end_out_of_order_leave_nothing_behind(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(4), EpochEnded(2), EpochEnded(4), EpochEnded(3))
    assert core.owed == 1
    feed(core, EpochEnded(1))
    assert core.freeze() == EpochStampedImage("b", 0, 0, 4, (), None, (), ())


def test_an_unborn_agent_has_no_numbers_and_records_lower_stamps(make_core: MakeCore) -> None:
    """The message that created it, stamped 1, belongs to the channel states of 2 and 3, not to that of 1."""
    core = make_core(recorded=3, unborn_in=(3, 1, 2))
    feed(core, arrived(1, stamp=1), arrived(2, stamp=3), MarkerReceived("a", 2, 1), MarkerReceived("c", 3, 0))
    assert core.open_epochs() == (1, 2, 3)
    assert [in_transit(core, epoch) for epoch in (1, 2, 3)] == [[], [1], [1]]
    record = core.record_of(2)
    assert (record.is_unborn, record.sent, record.received) == (True, {}, {})
    assert core.owed == 3


def test_an_agent_cannot_be_unborn_above_its_first_stamp() -> None:
    with pytest.raises(ProtocolError, match="unborn"):
        EpochStampedCore("b", recorded=1, unborn_in=[2])


def test_a_leaver_owes_nothing_that_began_after_its_leave(make_core: MakeCore) -> None:
    core = make_core()
    feed(core, EpochAnnounced(3), MarkerReceived("a", 3, 0), LeaveCommitted(2))
    assert core.owed == 2
    feed(core, EpochAnnounced(4), arrived(1, stamp=5), MarkerReceived("a", 4, 0), EpochEnded(4))
    assert core.owed == 2
    assert feed(core, boundary())[0] == RecordState((1, 2))


@pytest.mark.parametrize("event", [EpochAnnounced, EpochEnded, lambda epoch: MarkerReceived("a", epoch, 0)])
def test_an_epoch_impossibly_far_ahead_is_a_violation(make_core: MakeCore, event: Callable[[int], Event]) -> None:
    core = make_core(recorded=5)
    feed(core, event(5 + EPOCHS_AHEAD_MAX))
    with pytest.raises(ProtocolError, match=f"epoch {6 + EPOCHS_AHEAD_MAX}"):
        feed(core, event(6 + EPOCHS_AHEAD_MAX))


def test_an_image_survives_encoding(make_core: MakeCore) -> None:
    core = make_core(recorded=2, unborn_in=(2,))
    feed(core, arrived(1, stamp=1), MarkerReceived("a", 2, 1), MarkerReceived("c", 4, 7), EpochEnded(3))
    encoded = msgspec.msgpack.encode(core.freeze())
    restored = EpochStampedCore.restore(msgspec.msgpack.decode(encoded, type=EpochStampedImage))
    restored.validate()
    assert restored.freeze() == core.freeze()


def test_images_do_not_depend_on_the_order_of_channels(make_core: MakeCore) -> None:
    first, second = make_core(), make_core()
    feed(first, EpochAnnounced(1), boundary(), arrived(1, 0, "a"), arrived(1, 0, "c"))
    feed(second, EpochAnnounced(1), boundary(), arrived(1, 0, "c"), arrived(1, 0, "a"))
    assert first.freeze() == second.freeze()

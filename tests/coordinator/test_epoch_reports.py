"""The quick look at an epoch's channels says the same as the thorough one."""

from hypothesis import given
from hypothesis import strategies as st

from snapline.conversation import messages as msg
from snapline.coordinator.leader.events import ManifestAgent
from snapline.coordinator.leader.modes.epoch_reports import _covered_channels, _take_channels
from snapline.protocols.coverage import AgentReport, uncovered

AGENTS = ("a", "b", "c")
CHANNELS = tuple((sender, receiver) for sender in range(3) for receiver in range(3) if sender != receiver)

numbers = st.integers(0, 2)
sent_columns = st.dictionaries(st.sampled_from(CHANNELS), numbers, max_size=4)
received_columns = st.dictionaries(st.sampled_from(CHANNELS), st.tuples(numbers, st.integers(0, 1)), max_size=4)


@given(sent_columns, received_columns, st.booleans())
def test_a_quick_yes_is_a_thorough_yes(
    sent: dict[tuple[int, int], int], received: dict[tuple[int, int], tuple[int, int]], is_balanced: bool
) -> None:
    if is_balanced:
        sent = {**sent, **{channel: number + count for channel, (number, count) in received.items()}}
        received = {**{channel: (number, 0) for channel, number in sent.items()}, **received}
    report = msg.EpochReport(
        1,
        1,
        msg.ReportedPack("p", 1, b""),
        names=AGENTS,
        agents=(0, 1, 2),
        unborn=(False,) * 3,
        sent_from=tuple(x for x, _ in sent),
        sent_to=tuple(x for _, x in sent),
        sent_number=tuple(sent.values()),
        received_from=tuple(x for x, _ in received),
        received_to=tuple(x for _, x in received),
        received_number=tuple(x for x, _ in received.values()),
        recorded_count=tuple(x for _, x in received.values()),
    )
    lines = {agent: ManifestAgent(agent, "m:A", "h", 1, False, 0) for agent in AGENTS}
    columns: dict[str, AgentReport] = {}
    _take_channels(report, columns)
    is_whole = uncovered(columns, ()).is_whole
    channels = _covered_channels({"h": report}, lines)
    assert channels is None or is_whole
    assert channels is not None or not is_balanced, "the usual case must be quick"
    if channels is not None:
        assert sorted(channels) == sorted((AGENTS[x], AGENTS[y]) for x, y in sent)
    assert not is_balanced or is_whole

"""What a host tells of channels, and when: on streams that break, to leaders that change, of epochs that end."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from snapline.agent_runtime.host.epoch_reports import ChannelNumbers, EpochReports, with_channels
from snapline.conversation.messages import BeginEpoch, EpochReport, ReportedPack

QUIET, BUSY = ("a", "z"), ("a", "y")


def told(reports: EpochReports, epoch: int, sent: Mapping[tuple[str, str], int]) -> EpochReport:
    """The report of an epoch in which the host's agent `a` had sent so much."""
    since, earlier = reports.earlier(epoch)
    numbers = ChannelNumbers(dict(sent))
    whole = EpochReport(epoch, 1, ReportedPack("p", 1, b""), names=("a",), agents=(0,), unborn=(False,))
    reports.written(with_channels(whole, numbers.since(earlier), since=since), numbers)
    report = reports.report_of(epoch)
    assert report is not None
    return report


def sent_in(report: EpochReport) -> dict[tuple[str, str], int]:
    ends = [(report.names[a], report.names[b]) for a, b in zip(report.sent_from, report.sent_to, strict=True)]
    return dict(zip(ends, report.sent_number, strict=True))


def test_what_the_leader_has_is_left_out() -> None:
    reports = EpochReports()
    reports.begun(BeginEpoch(1, 1))
    assert sent_in(told(reports, 1, {QUIET: 5, BUSY: 1})) == {QUIET: 5, BUSY: 1}
    reports.begun(BeginEpoch(2, 1, told=1))
    second = told(reports, 2, {QUIET: 5, BUSY: 2})
    assert second.since == 1 and sent_in(second) == {BUSY: 2} and second.names == ("a", "y")


def test_on_a_new_stream_all_is_told_until_its_leader_says_what_it_has() -> None:
    reports = EpochReports()
    told(reports, 1, {QUIET: 5})
    reports.begun(BeginEpoch(2, 1, told=1))
    assert told(reports, 2, {QUIET: 5}).since == 1
    reports.welcomed()
    again = reports.report_of(2)
    assert again is not None and again.since == 0 and sent_in(again) == {QUIET: 5}
    reports.begun(BeginEpoch(2, 1, told=1))
    short = reports.report_of(2)
    assert short is not None and short.since == 1 and not sent_in(short)


def test_an_epoch_whose_numbers_are_not_here_is_no_reason_to_leave_anything_out() -> None:
    reports = EpochReports()
    reports.begun(BeginEpoch(2, 1, told=1))
    assert told(reports, 2, {QUIET: 5}).since == 0


def test_of_an_epoch_that_has_ended_nothing_is_told_and_later_ones_are_told_against_it() -> None:
    reports = EpochReports()
    told(reports, 1, {QUIET: 5})
    reports.dropped(1)
    assert reports.report_of(1) is None
    reports.begun(BeginEpoch(2, 1, told=1))
    assert told(reports, 2, {QUIET: 5}).since == 1


def test_a_plan_ends_what_was_told() -> None:
    reports = EpochReports()
    told(reports, 1, {QUIET: 5})
    reports.plan_began()
    reports.begun(BeginEpoch(2, 2, told=1))
    assert told(reports, 2, {QUIET: 5}).since == 0


def test_only_a_few_epochs_numbers_are_kept() -> None:
    reports = EpochReports()
    for epoch in range(1, 100):
        told(reports, epoch, {QUIET: 5})
    reports.begun(BeginEpoch(100, 1, told=1))
    assert told(reports, 100, {QUIET: 5}).since == 0


numbers = st.dictionaries(st.sampled_from([QUIET, BUSY]), st.integers(0, 3))
consumed = st.dictionaries(st.sampled_from([QUIET, BUSY]), st.tuples(st.integers(0, 3), st.integers(0, 2)))


@given(st.builds(ChannelNumbers, numbers, consumed), st.builds(ChannelNumbers, numbers, consumed))
def test_the_earlier_numbers_with_what_has_changed_are_the_later_ones(
    earlier: ChannelNumbers, later: ChannelNumbers
) -> None:
    """Channels never end while their ends live, so `later` has all that `earlier` has."""
    later = ChannelNumbers({**earlier.sent, **later.sent}, {**earlier.received, **later.received})
    changed = later.since(earlier)
    assert {**earlier.sent, **changed.sent} == later.sent
    covered = {channel: sum(each) for channel, each in {**earlier.received, **changed.received}.items()}
    assert covered == {channel: sum(each) for channel, each in later.received.items()}

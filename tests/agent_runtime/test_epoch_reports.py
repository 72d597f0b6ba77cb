"""What a host tells of channels, and when: on streams that break, to leaders that change, of epochs that end."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from snapline.agent_runtime.host.epoch_files import (
    EPOCHS_KEPT,
    ChannelNumbers,
    EpochReports,
    Numbers,
    with_channels,
)
from snapline.messages.host_messages import BeginEpoch, EpochReport, ReportedPack

QUIET, BUSY = ("a", "z"), ("a", "y")


def told(reports: EpochReports, epoch: int, sent: Mapping[tuple[str, str], int]) -> EpochReport:
    """The report of an epoch in which the host's agent `a` had sent so much."""
    since, earlier = reports.earlier(epoch)
    numbers = ChannelNumbers(by_first(sent))
    whole = EpochReport(epoch, 1, ReportedPack("p", 1, b""), names=("a",), agents=(0,), unborn=(False,))
    reports.written(with_channels(whole, numbers.since(earlier), since=since), numbers)
    report = reports.report_of(epoch)
    assert report is not None
    return report


def by_first(flat: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (first, second), number in flat.items():
        found.setdefault(first, {})[second] = number
    return found


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
        reports.dropped(epoch)
    reports.begun(BeginEpoch(100, 1, told=1))
    assert told(reports, 100, {QUIET: 5}).since == 0


numbers = st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3), max_size=3))


def grown(earlier: Numbers, later: Numbers) -> Numbers:
    return {agent: {**earlier.get(agent, {}), **later.get(agent, {})} for agent in {**earlier, **later}}


def flat(numbers: Numbers) -> dict[tuple[str, str], int]:
    return {(agent, other): number for agent, others in numbers.items() for other, number in others.items()}


def covered(each: ChannelNumbers) -> dict[tuple[str, str], int]:
    """By receiver and sender."""
    return {
        (agent, sender): read.get(sender, 0) + each.recorded.get(agent, {}).get(sender, 0)
        for agent, read in each.received.items()
        for sender in [*read, *each.recorded.get(agent, {})]
    }


@given(st.builds(ChannelNumbers, numbers, numbers, numbers), st.builds(ChannelNumbers, numbers, numbers, numbers))
def test_the_earlier_numbers_with_what_has_changed_are_the_later_ones(
    earlier: ChannelNumbers, later: ChannelNumbers
) -> None:
    """Channels never end while their ends live, so `later` has all that `earlier` has, but for messages that wait."""
    read: Numbers = {**{agent: {} for agent in later.recorded}, **grown(earlier.received, later.received)}
    later = ChannelNumbers(grown(earlier.sent, later.sent), read, later.recorded)
    earlier = ChannelNumbers(
        earlier.sent, earlier.received, {a: x for a, x in earlier.recorded.items() if a in earlier.received}
    )
    changed = later.since(earlier)
    assert flat(grown(earlier.sent, changed.sent)) == flat(later.sent)
    before = {pair: number for pair, number in covered(earlier).items() if pair in covered(later)}
    assert {**before, **covered(changed)} == covered(later)
    told = {pair for pair, number in covered(later).items() if covered(earlier).get(pair) != number}
    assert set(covered(changed)) == told, "and nothing else is told"


def test_an_open_epoch_is_told_whole_however_many_have_ended_since() -> None:
    """The leader that hears it is a new one, which names none; the one before had named a later epoch as told."""
    reports = EpochReports()
    reports.begun(BeginEpoch(1, 1))
    told(reports, 1, {QUIET: 5})
    reports.begun(BeginEpoch(2, 1, told=1))
    told(reports, 2, {QUIET: 5, BUSY: 1})
    for epoch in range(3, 3 + EPOCHS_KEPT):
        reports.begun(BeginEpoch(epoch, 1, told=epoch - 1 if epoch > 3 else 1))
        told(reports, epoch, {QUIET: 5, BUSY: epoch})
        reports.dropped(epoch)
    reports.welcomed()
    again = reports.report_of(2)
    assert again is not None and again.since == 0 and sent_in(again) == {QUIET: 5, BUSY: 1}

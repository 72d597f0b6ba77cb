"""The quick look at an epoch's channels says the same as the thorough one, and reports of what has changed the same as whole ones."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.agent_runtime.host.epoch_files import ChannelNumbers, with_channels
from snapline.coordinator.leader.epochs.open_epochs import Channels, ReportedChannels
from snapline.coordinator.leader.events import ManifestAgent
from snapline.coordinator.leader.modes import coordinated_epochs
from snapline.coordinator.leader.modes.coordinated_epochs import (
    _covered_channels,
    _find_reported_channels,
    _take_channels,
)
from snapline.messages import host_messages as msg
from snapline.protocols.epoch_stamped import AgentReport, check_coverage

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
    is_whole = check_coverage(columns, ()).is_whole
    channels = _covered_channels({"h": report}, lines, {})
    assert channels is None or is_whole
    assert channels is not None or not is_balanced, "the usual case must be quick"
    if channels is not None:
        assert sorted(channels) == sorted((AGENTS[x], AGENTS[y]) for x, y in sent)
    assert not is_balanced or is_whole


# ---- reports of what has changed -----------------------------------------------------------------------------------

HOST_OF = {"a": "h1", "b": "h1", "c": "h2"}
PAIRS = tuple((sender, receiver) for sender in AGENTS for receiver in AGENTS if sender != receiver)
PLAN = 3
LINES = {agent: ManifestAgent(agent, "m:A", host, 1, False, 0) for agent, host in HOST_OF.items()}

totals = st.dictionaries(st.sampled_from(PAIRS), st.integers(0, 3), max_size=6)
shares = st.dictionaries(st.sampled_from(PAIRS), st.integers(0, 3))
"""Of each channel's messages, how many are in its channel state."""


def numbers_of(host: str, sent: Channels, received: Channels, recorded: Channels) -> ChannelNumbers:
    here = [agent for agent, place in HOST_OF.items() if place == host]
    waiting = {pair: min(number, recorded.get(pair, 0)) for pair, number in received.items()}
    return ChannelNumbers(
        {agent: {b: n for (a, b), n in sent.items() if a == agent} for agent in here},
        {agent: {a: n - waiting[a, b] for (a, b), n in received.items() if b == agent} for agent in here},
        {agent: {a: n for (a, b), n in waiting.items() if b == agent and n} for agent in here},
    )


def report_of(host: str, numbers: ChannelNumbers, since: int) -> msg.EpochReport:
    mine = tuple(agent for agent, place in HOST_OF.items() if place == host)
    pack = msg.ReportedPack("p", 1, b"")
    whole = msg.EpochReport(2, 1, pack, names=mine, agents=tuple(range(len(mine))), unborn=(False,) * len(mine))
    return with_channels(whole, numbers, since=since)


Case = tuple[Channels, Channels, Channels, Channels, Channels, set[str]]

cases: st.SearchStrategy[Case] = st.tuples(
    totals, totals, totals, shares, shares, st.sets(st.sampled_from(["h1", "h2"]))
)
"""The earlier epoch's numbers; how many more were sent; at which ends the receiver says otherwise; channel states then and now; who leaves out."""


def judged(case: Case) -> tuple[ReportedChannels | None, ReportedChannels | None]:
    """What is said of whole reports, and of those in which some hosts leave out what has not changed."""
    earlier, more, wrong, then, now, short = case
    sent = {pair: earlier.get(pair, 0) + more.get(pair, 0) for pair in {**earlier, **more}}
    received = {pair: number + wrong.get(pair, 0) for pair, number in sent.items()}
    whole: dict[str, msg.EpochReport] = {}
    told: dict[str, msg.EpochReport] = {}
    for host in ("h1", "h2"):
        before, numbers = numbers_of(host, earlier, earlier, then), numbers_of(host, sent, received, now)
        whole[host] = report_of(host, numbers, 0)
        told[host] = report_of(host, numbers.since(before), 1) if host in short else whole[host]
    known = ReportedChannels(1, PLAN, frozenset(AGENTS), earlier)
    return _find_reported_channels(PLAN, 2, whole, LINES, None), _find_reported_channels(PLAN, 2, told, LINES, known)


@given(cases)
def test_what_has_changed_says_the_same_as_all(case: Case) -> None:
    whole, told = judged(case)
    assert told == whole


@pytest.mark.parametrize(
    "name", ["forgets what was told before", "adds what both told", "takes whole reports as they are"]
)
def test_mutants_of_what_has_changed_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails the property, by a case that is written here."""
    real = coordinated_epochs._covered_channels

    def mutant(
        reports: Mapping[str, msg.EpochReport], lines: Mapping[str, ManifestAgent], known: Channels
    ) -> Channels | None:
        match name:
            case "forgets what was told before":
                return real(reports, lines, {})
            case "adds what both told":
                found = real(reports, lines, known)
                return None if found is None else {pair: number + known.get(pair, 0) for pair, number in found.items()}
            case _:
                as_told = {host: with_since(report) for host, report in reports.items()}
                return real(as_told, lines, known)

    monkeypatch.setattr(coordinated_epochs, "_covered_channels", mutant)
    one = ("a", "c")
    whole, told = judged(({one: 1}, {("c", "a"): 1}, {}, {}, {}, {"h1"}))
    assert whole != told


def with_since(report: msg.EpochReport) -> msg.EpochReport:
    return msgspec.structs.replace(report, since=1)


@pytest.mark.parametrize(
    "known",
    [
        None,
        ReportedChannels(7, PLAN, frozenset(AGENTS), {}),
        ReportedChannels(1, PLAN, frozenset("ab"), {}),
        ReportedChannels(1, PLAN, frozenset("abcd"), {}),
    ],
)
def test_against_another_epoch_or_other_members_nothing_is_said(known: ReportedChannels | None) -> None:
    """An agent that has left takes its channels with it: what is left out might be one of these."""
    reports = {host: report_of(host, ChannelNumbers(), 1) for host in ("h1", "h2")}
    assert _find_reported_channels(PLAN, 2, reports, LINES, known) is None

"""Reports of a host on open epochs: all of its agents, and the channels that the leader does not know yet.

The leader names an epoch of which it has all reports (`BeginEpoch.told`). A channel omitted by both of its ends has not changed since that epoch,
which covered it: so it is covered now (`coordinator/leader/modes/coordinated_epochs.py`). A host without that epoch's numbers reports all channels. A new
stream may lead to a new leader, which has no reports yet.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.messages.host_messages import BeginEpoch, EpochReport

EPOCHS_KEPT = 8
"""Number of epochs kept: all that may be open at once, and at least one earlier one."""

Numbers = Mapping[str, Mapping[str, int]]
"""Agent of this host → other end of the channel → number. These are the records' own, immutable dictionaries: a pair for each channel would be
allocated in each epoch, and traversed by the garbage collector."""


class ChannelNumbers(msgspec.Struct, frozen=True):
    """A host's ends of channels in one epoch.

    Attributes:
        sent: the last number sent inside the cut, by sender.
        received: the last one consumed inside the cut, by receiver.
        recorded: number of messages in the channel state, by receiver.
    """

    sent: Numbers = {}
    received: Numbers = {}
    recorded: Numbers = {}

    def since(self, earlier: "ChannelNumbers") -> "ChannelNumbers":
        """Return the channels of which more or less is covered than in `earlier`."""
        if not earlier.sent and not earlier.received and not earlier.recorded:
            return self
        sent: dict[str, Mapping[str, int]] = {}
        for agent, numbers in self.sent.items():
            before = earlier.sent.get(agent, NO_NUMBERS)
            if numbers != before:
                sent[agent] = {other: number for other, number in numbers.items() if before.get(other) != number}
        received: dict[str, Mapping[str, int]] = {}
        recorded: dict[str, Mapping[str, int]] = {}
        for agent, numbers in self.received.items():
            waiting = self.recorded.get(agent, NO_NUMBERS)
            read, waited = earlier.received.get(agent, NO_NUMBERS), earlier.recorded.get(agent, NO_NUMBERS)
            if numbers != read or waiting != waited:
                changed = [
                    other
                    for other in senders_of(numbers, waiting)
                    if (other not in read and other not in waited)
                    or numbers.get(other, 0) + waiting.get(other, 0) != read.get(other, 0) + waited.get(other, 0)
                ]
                received[agent] = {other: numbers.get(other, 0) for other in changed}
                recorded[agent] = {other: waiting[other] for other in changed if other in waiting}
        return ChannelNumbers(sent, received, recorded)


NO_NUMBERS: Mapping[str, int] = {}

NOTHING_REPORTED = 0, ChannelNumbers()
"""Placeholder for an earlier epoch and its numbers."""


def senders_of(received: Mapping[str, int], recorded: Mapping[str, int]) -> Iterable[str]:
    """Return all senders of messages to an agent."""
    return received if recorded.keys() <= received.keys() else dict.fromkeys([*received, *recorded])


def numbers_of(command: ev.StoreEpoch) -> ChannelNumbers:
    """Return the numbers of this host's agents, and of departed ones, whose messages still have to be covered."""
    records = command.records
    return ChannelNumbers(
        {**{agent: record.sent for agent, record in records.items()}, **command.departed},
        {agent: record.received for agent, record in records.items()},
        {
            agent: {sender: len(messages) for sender, messages in record.in_transit.items()}
            for agent, record in records.items()
            if record.in_transit
        },
    )


def with_channels(report: EpochReport, told: ChannelNumbers, *, since: int) -> EpochReport:
    """Return the report with its columns replaced by these channels; the report's agents are the first of its names."""
    places = NameIndex({name: place for place, name in enumerate(report.names[: len(report.agents)])})
    sent_from: list[int] = []
    sent_to: list[int] = []
    sent_number: list[int] = []
    received_from: list[int] = []
    received_to: list[int] = []
    received_number: list[int] = []
    recorded_count: list[int] = []
    for agent, numbers in told.sent.items():
        sent_from += [places[agent]] * len(numbers) if numbers else []
        sent_to += [places[receiver] for receiver in numbers]
        sent_number += numbers.values()
    for agent, numbers in told.received.items():
        waiting = told.recorded.get(agent, NO_NUMBERS)
        senders = list(senders_of(numbers, waiting))
        received_from += [places[sender] for sender in senders]
        received_to += [places[agent]] * len(senders) if senders else []
        received_number += [numbers.get(sender, 0) for sender in senders]
        recorded_count += [waiting.get(sender, 0) for sender in senders]
    return msgspec.structs.replace(
        report, since=since, names=tuple(places),
        sent_from=tuple(sent_from), sent_to=tuple(sent_to), sent_number=tuple(sent_number),
        received_from=tuple(received_from), received_to=tuple(received_to), received_number=tuple(received_number),
        recorded_count=tuple(recorded_count),
    )  # fmt: skip


class NameIndex(dict[str, int]):
    """Name → its place in the list of names, in order of first use."""

    def __missing__(self, name: str) -> int:
        place = self[name] = len(self)
        return place


class EpochReports:
    """The reports of one host."""

    def __init__(self) -> None:
        self._reports: dict[int, EpochReport] = {}
        self._numbers: dict[int, ChannelNumbers] = {}
        self._reported: dict[int, int] = {}

    def begun(self, begin: BeginEpoch) -> None:
        """Record the epoch that the leader of this stream has. The leader will name no older epoch; an open epoch may still need a full report."""
        self._reported[begin.epoch] = begin.told
        for epoch in [epoch for epoch in self._numbers if epoch < begin.told and epoch not in self._reports]:
            del self._numbers[epoch]

    def welcomed(self) -> None:
        """Forget which epochs the leader has: on a new stream that is unknown."""
        self._reported.clear()

    def earlier(self, epoch: int) -> tuple[int, ChannelNumbers]:
        """Return the epoch that a report of `epoch` may be relative to, and its numbers."""
        reported = self._reported.get(epoch, 0)
        numbers = self._numbers.get(reported)
        return NOTHING_REPORTED if numbers is None else (reported, numbers)

    def written(self, report: EpochReport, numbers: ChannelNumbers) -> None:
        """Keep the report of an epoch: this host's part of it is durable."""
        self._reports[report.epoch] = report
        self._numbers[report.epoch] = numbers
        ended_epochs = sorted([epoch for epoch in self._numbers if epoch not in self._reports])
        for epoch in ended_epochs[: max(0, len(self._numbers) - EPOCHS_KEPT)]:
            del self._numbers[epoch]

    def report_of(self, epoch: int) -> EpochReport | None:
        """Return the report as it is to be sent now; None: the epoch has ended here."""
        report = self._reports.get(epoch)
        if report is None:
            return None
        since, earlier = self.earlier(epoch)
        if report.since != since:
            report = self._reports[epoch] = with_channels(report, self._numbers[epoch].since(earlier), since=since)
        return report

    def dropped(self, epoch: int) -> None:
        """Drop the report of an ended epoch; later ones may still be relative to it."""
        self._reports.pop(epoch, None)
        self._reported.pop(epoch, None)

    def plan_began(self) -> None:
        """Drop all reports: they belong to another history."""
        self._reports.clear()
        self._numbers.clear()
        self._reported.clear()

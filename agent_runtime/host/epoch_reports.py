"""What this host reports of open epochs: its agents, always, and of channels what the leader has not been told before.

The leader names an epoch of which it has all reports (`BeginEpoch.told`). A channel that both its ends leave out has not changed since that one,
in which it was covered: so it is covered now (`coordinator/leader/modes/epoch_reports.py`). Whoever does not have that epoch's numbers any more tells all.
A new stream may lead to a new leader, which has been told nothing.
"""

import msgspec

from snapline.agent_runtime.host import events as ev
from snapline.conversation.messages import BeginEpoch, EpochReport

EPOCHS_KEPT = 8
"""More than may be open at once, and the one before them."""

Channel = tuple[str, str]
"""Sender, receiver."""


Consumed = tuple[int, int]
"""By a channel's receiver: the last number consumed inside the cut, and how many messages its channel state holds."""


class ChannelNumbers(msgspec.Struct, frozen=True):
    """A host's ends of channels in one epoch. `sent`: the last number sent inside the cut."""

    sent: dict[Channel, int] = {}
    received: dict[Channel, Consumed] = {}

    def since(self, earlier: "ChannelNumbers") -> "ChannelNumbers":
        """Those of which more or less is covered than there was."""
        sent, received = earlier.sent, earlier.received
        if not sent and not received:
            return self
        return ChannelNumbers(
            {channel: number for channel, number in self.sent.items() if sent.get(channel) != number},
            {
                channel: consumed
                for channel, consumed in self.received.items()
                if channel not in received or sum(received[channel]) != consumed[0] + consumed[1]
            },
        )


NOTHING_TOLD = 0, ChannelNumbers()
"""In the place of an earlier epoch and its numbers."""


def numbers_of(command: ev.StoreEpoch) -> ChannelNumbers:
    """Of all agents here, and of those that have left: what these have ever sent is still to be covered."""
    sent: dict[Channel, int] = {}
    received: dict[Channel, Consumed] = {}
    for agent, record in command.records.items():
        sent |= {(agent, receiver): number for receiver, number in record.sent.items()}
        consumed, waiting = record.received, record.in_transit
        for sender in consumed if waiting.keys() <= consumed.keys() else dict.fromkeys([*consumed, *waiting]):
            received[sender, agent] = consumed.get(sender, 0), len(waiting.get(sender, ()))
    for agent, numbers in command.departed.items():
        sent |= {(agent, receiver): number for receiver, number in numbers.items()}
    return ChannelNumbers(sent, received)


def with_channels(report: EpochReport, told: ChannelNumbers, *, since: int) -> EpochReport:
    """The report with these channels as its columns, in the place of those that it had; its agents are the first of its names."""
    places = Places({name: place for place, name in enumerate(report.names[: len(report.agents)])})
    return msgspec.structs.replace(
        report,
        since=since,
        sent_from=tuple([places[sender] for sender, _ in told.sent]),
        sent_to=tuple([places[receiver] for _, receiver in told.sent]),
        sent_number=tuple(told.sent.values()),
        received_from=tuple([places[sender] for sender, _ in told.received]),
        received_to=tuple([places[receiver] for _, receiver in told.received]),
        received_number=tuple([number for number, _ in told.received.values()]),
        recorded_count=tuple([recorded for _, recorded in told.received.values()]),
        names=tuple(places),  # the last one, when all have a place
    )


class Places(dict[str, int]):
    """Name → its place in the list of names, in order of first use."""

    def __missing__(self, name: str) -> int:
        place = self[name] = len(self)
        return place


class EpochReports:
    """The reports of one host."""

    def __init__(self) -> None:
        self._reports: dict[int, EpochReport] = {}
        self._numbers: dict[int, ChannelNumbers] = {}
        self._told: dict[int, int] = {}

    def begun(self, begin: BeginEpoch) -> None:
        """The leader of this stream tells what it has. Of older epochs it will name none."""
        self._told[begin.epoch] = begin.told
        for epoch in [epoch for epoch in self._numbers if epoch < begin.told]:
            del self._numbers[epoch]

    def welcomed(self) -> None:
        """On a new stream nothing is known to have been told."""
        self._told.clear()

    def earlier(self, epoch: int) -> tuple[int, ChannelNumbers]:
        """What a report of `epoch` may be told against, and its numbers."""
        told = self._told.get(epoch, 0)
        numbers = self._numbers.get(told)
        return NOTHING_TOLD if numbers is None else (told, numbers)

    def written(self, report: EpochReport, numbers: ChannelNumbers) -> None:
        """This host's part of an epoch is durable."""
        self._reports[report.epoch] = report
        self._numbers[report.epoch] = numbers
        while len(self._numbers) > EPOCHS_KEPT:
            del self._numbers[min(self._numbers)]

    def report_of(self, epoch: int) -> EpochReport | None:
        """As it is to be told now; None: the epoch has ended here."""
        report = self._reports.get(epoch)
        if report is None:
            return None
        since, earlier = self.earlier(epoch)
        if report.since != since:
            report = self._reports[epoch] = with_channels(report, self._numbers[epoch].since(earlier), since=since)
        return report

    def dropped(self, epoch: int) -> None:
        """It has ended; later ones may be told against it still."""
        self._reports.pop(epoch, None)
        self._told.pop(epoch, None)

    def plan_began(self) -> None:
        """What was told was of another history."""
        self._reports.clear()
        self._numbers.clear()
        self._told.clear()

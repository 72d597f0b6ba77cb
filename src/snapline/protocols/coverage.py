"""Completeness of an epoch: it is complete when every channel that a sender reported is covered by its receiver's report.

Theory of operation
-------------------
Every agent of an epoch reports, for its record: per outgoing channel the last number sent, per incoming channel the
last number received, and the current number of messages in its channel state. The channel i -> j is covered when
received_j + recorded_j = sent_i (F. Mattern, JPDC 18, 1993: balanced counts; here numbers, since channels are FIFO).
received_j > sent_i is an orphan (G1), and received_j + recorded_j > sent_i a channel state with a message from outside
the cut (G2): both mean that a peer broke the protocol, so the epoch is aborted and an alarm is raised.

*Senders* decide which channels exist: the receiver may not know a channel yet. So an epoch waits for every agent
that a reported sender names, in addition to the members it began with (those the caller checks, by name). Sent numbers are fixed
at the record and recorded counts only grow, so an outdated report delays completion but is never wrong.

The caller's duties:

1. Hand in the latest report of each agent in this epoch, unborn agents included.
2. An agent whose leave was committed before the epoch began is `gone`, and its committed numbers are its report here,
   until all its messages are received. Messages to it become dead letters: channels towards it are not checked.
3. The epoch is complete when every member has reported and `Coverage.is_whole`.
"""

from collections.abc import Collection, Mapping

import msgspec


class AgentReport(msgspec.Struct, frozen=True, gc=False):
    """One agent's numbers in one epoch.

    Attributes:
        is_unborn: created while the epoch was open: `sent` and `received` are empty.
        sent: by receiver, the last number sent before the record.
        received: by sender, the last number consumed before the record.
        recorded: by sender, the number of messages in the channel state so far.
    """

    agent: str
    is_unborn: bool
    sent: dict[str, int]
    received: dict[str, int]
    recorded: dict[str, int]


class Coverage(msgspec.Struct, frozen=True, gc=False):
    """Open channels of an epoch, and what makes it invalid.

    Attributes:
        missing: (sender, receiver, reason), one for each channel that is not covered yet.
        orphans: (sender, receiver, sent, received): the receiver has more than was sent inside the cut; `received`
            includes the channel state if that is too long.
    """

    missing: list[tuple[str, str, str]]
    orphans: list[tuple[str, str, int, int]]

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is missing and nothing is wrong."""
        return not self.missing and not self.orphans


def check_coverage(reports: Mapping[str, AgentReport], gone: Collection[str]) -> Coverage:
    """Compare all reported channels, in linear time. `gone` should be a set or a dictionary.

    Args:
        reports: by agent.
        gone: the agents that left before the epoch began.
    """
    coverage = Coverage([], [])
    for sender, report in reports.items():
        for receiver, sent in report.sent.items():
            if receiver not in gone:
                _check_channel(coverage, sender, receiver, sent, reports.get(receiver))
    for receiver, report in reports.items():
        if receiver not in gone:
            _check_receiver_only_channels(coverage, receiver, report, reports, gone)
    return coverage


def _check_channel(coverage: Coverage, sender: str, receiver: str, sent: int, report: AgentReport | None) -> None:
    if report is None:
        if sent:
            coverage.missing.append((sender, receiver, f"{receiver} has not reported"))
        return
    received = report.received.get(sender, 0)
    arrived = received + report.recorded.get(sender, 0)
    if arrived < sent:
        why = f"{sent} sent, {received} received, {arrived - received} recorded"
        coverage.missing.append((sender, receiver, why))
    elif arrived > sent:
        coverage.orphans.append((sender, receiver, sent, received if received > sent else arrived))


def _check_receiver_only_channels(
    coverage: Coverage, receiver: str, report: AgentReport, reports: Mapping[str, AgentReport], gone: Collection[str]
) -> None:
    """Check channels that only the receiver reported: their sender has sent nothing on them inside the cut."""
    claims = {**report.received, **report.recorded} if report.recorded else report.received
    for sender in claims:
        sender_report = reports.get(sender)
        if sender in gone or (sender_report is not None and receiver in sender_report.sent):
            continue  # checked by the first pass, or not to be checked
        arrived = report.received.get(sender, 0) + report.recorded.get(sender, 0)
        if arrived and sender_report is None:
            coverage.missing.append((sender, receiver, f"{sender} has not reported"))
        elif arrived:
            coverage.orphans.append((sender, receiver, 0, arrived))

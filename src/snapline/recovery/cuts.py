"""Cuts by numbers: messages that a set of checkpoints makes orphans, and messages in transit.

Theory of operation
-------------------
A checkpoint carries its dependency record: per outgoing channel the last number sent, per incoming channel the last
number received. Channels are FIFO and numbered 1, 2, 3 …, so both describe prefixes. For a cut, one record per agent:

- the channel i -> j has orphans iff received_j > sent_i: the numbers sent_i + 1 … received_j were consumed inside the
  cut and sent outside it. A cut is consistent iff no channel has one (G1);
- the messages in transit are exactly the numbers received_j + 1 … sent_i (G2).

This holds for checkpoints of any cause. Pure functions that do not change their arguments.
"""

from collections.abc import Collection, Mapping

import msgspec


class DependencyRecord(msgspec.Struct, frozen=True, gc=False):
    """Last numbers sent, by receiver, and received, by sender. No entry means 0."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


class Orphans(msgspec.Struct, frozen=True, gc=False):
    """The channel's messages `sent` + 1 … `received` are orphans."""

    sender: str
    receiver: str
    sent: int
    received: int


def orphans(cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()) -> list[Orphans]:
    """Return the channels that make `cut` inconsistent, in the order of the cut.

    Args:
        cut: records by agent. An agent without a record has sent and received nothing inside the cut.
        gone: agents outside the cut that had left before; their numbers are unknown and not checked.
    """
    violations = []
    for receiver, record in cut.items():
        for sender, received in record.received.items():
            if sender in cut:
                sent = cut[sender].sent.get(receiver, 0)
            elif sender in gone:
                continue
            else:
                sent = 0
            if received > sent:
                violations.append(Orphans(sender, receiver, sent, received))
    return violations


def is_consistent(cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()) -> bool:
    """Return whether no channel of `cut` has orphans."""
    return not orphans(cut, gone=gone)


def in_transit_numbers(
    cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()
) -> dict[tuple[str, str], range]:
    """Return, by (sender, receiver), the numbers sent and not received inside `cut`; channels without any have no entry.

    A receiver outside the cut has received nothing: the first message to an agent yet to be created is in transit.
    Messages to an agent in `gone` are dead letters.
    """
    in_transit = {}
    for sender, record in cut.items():
        for receiver, sent in record.sent.items():
            if receiver in gone and receiver not in cut:
                continue
            received = cut[receiver].received.get(sender, 0) if receiver in cut else 0
            if sent > received:
                in_transit[sender, receiver] = range(received + 1, sent + 1)
    return in_transit

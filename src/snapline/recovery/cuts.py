"""Cuts by numbers: which messages a set of checkpoints makes orphans, and which are in transit.

Theory of operation
-------------------
A checkpoint carries its dependency record: per outgoing channel the last number sent, per incoming channel the last
number received. Channels are FIFO and numbered 1, 2, 3 …, so both describe prefixes. For a cut, one record per agent:

- the channel i -> j has orphans iff received_j > sent_i: the numbers sent_i + 1 … received_j were consumed inside the
  cut and sent outside it. A cut is consistent iff no channel has one (G1);
- in transit are exactly the numbers received_j + 1 … sent_i (G2).

This holds whatever the cause of the checkpoints. Pure functions; every argument is only read.
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
    """The channels that make `cut` inconsistent, in the order of the cut.

    Args:
        cut: by agent. An agent that is not in it has sent nothing and received nothing inside it.
        gone: agents outside the cut that had left before; their numbers are no longer known and not checked.
    """
    found = []
    for receiver, record in cut.items():
        for sender, received in record.received.items():
            if sender in cut:
                sent = cut[sender].sent.get(receiver, 0)
            elif sender in gone:
                continue
            else:
                sent = 0
            if received > sent:
                found.append(Orphans(sender, receiver, sent, received))
    return found


def is_consistent(cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()) -> bool:
    """Return whether no channel of `cut` has orphans."""
    return not orphans(cut, gone=gone)


def in_transit_numbers(
    cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()
) -> dict[tuple[str, str], range]:
    """Return, by (sender, receiver), the numbers sent and not received inside `cut`; channels without any have no entry.

    A receiver outside the cut has received nothing: the first message to an agent yet to be created is in transit.
    What was sent to an agent of `gone` is a dead letter.
    """
    found = {}
    for sender, record in cut.items():
        for receiver, sent in record.sent.items():
            if receiver in gone and receiver not in cut:
                continue
            received = cut[receiver].received.get(sender, 0) if receiver in cut else 0
            if sent > received:
                found[sender, receiver] = range(received + 1, sent + 1)
    return found

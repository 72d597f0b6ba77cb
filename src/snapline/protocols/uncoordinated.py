"""Uncoordinated checkpointing: agents checkpoint by their policy, and nothing is ever forced.

Theory of operation
-------------------
The protocol does nothing while the fleet runs. A recovery needs only the *dependency record* that every checkpoint
holds under any protocol: per outgoing channel the last number sent, per incoming channel the last number received.
A set of checkpoints, one per agent, is a consistent cut iff no channel has more received than sent. The numbers in
between are in transit (`recovery.cuts`). The coordinator computes the recovery line from these
records, and senders deliver messages in transit again from their logs.

The price: checkpoints may be *useless*, members of no consistent cut, and a rollback may force further ones, at worst
to the initial states (the domino effect; B. Randell, "System Structure for Software Fault Tolerance", 1975). Rules that force
checkpoints prevent that. This one does not ensure G6.
"""

from typing import ClassVar

from snapline.protocols.rule import SilentRule


class UncoordinatedRule(SilentRule):
    """Never forces a checkpoint; empty piggybacks, no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"

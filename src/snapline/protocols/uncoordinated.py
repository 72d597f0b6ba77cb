"""Uncoordinated checkpointing: agents checkpoint by their policy, and nothing is ever forced.

Theory of operation
-------------------
There is nothing to do while the fleet runs: what makes a recovery possible is the *dependency record* that every
checkpoint holds, whatever the protocol. Per outgoing channel it has the last number sent, per incoming channel the last
number received. A set of checkpoints, one per agent, is a consistent cut iff no channel has more received than sent, and
in transit are exactly the numbers in between (`recovery.cuts`). The coordinator computes the recovery line from these
records, and senders deliver what is in transit again from their logs.

The price: checkpoints may be *useless*, members of no consistent cut, and a rollback may force further ones, at worst
to the initial states (the domino effect; B. Randell, "System Structure for Software Fault Tolerance", 1975). The rules of this package that force
checkpoints are there to prevent that. Carries nothing of G6.
"""

from typing import ClassVar

from snapline.protocols.rule import SilentRule


class UncoordinatedRule(SilentRule):
    """Never forces a checkpoint; empty piggybacks, no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"

"""Interface of the coordinator's log: operations, in one order, that survive the coordinator. `replicated.py` is the one."""

from typing import Protocol

from snapline.coordinator.state.fleet_records import ProposalOutcome


class ReplicatedLog(Protocol):
    """Log of a leader's decisions, written before anybody hears of them."""

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Have `entry` committed and applied.

        Returns Committed with the state machine's result, Rejected (it is not in the log, and never will be) or Unknown.
        After Unknown the caller proposes the same request again. Raises LogError if the log has ended permanently.
        """

    async def close(self) -> None:
        """Take no more proposals; what was proposed and not answered is unknown."""

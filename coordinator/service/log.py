"""Interface of the coordinator's log: totally ordered, durable operations. `replicated.py` implements it."""

from typing import Protocol

from snapline.coordinator.state.fleet_records import ProposalOutcome


class ReplicatedLog(Protocol):
    """Log of a leader's decisions, which are committed before they take effect."""

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Commit and apply `entry`.

        Return Committed with the state machine's result, Rejected (the entry is not in the log and never will be) or Unknown. After
        Unknown the caller proposes the same request again. Raise LogError if the log has ended permanently.
        """

    async def close(self) -> None:
        """Take no more proposals; the outcome of unanswered ones is unknown."""

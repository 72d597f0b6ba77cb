"""The coordinator's log, which is replicated with Raft (`raft/`). One replica and several replicas use the same code.

The state is kept twice. Raft applies entries, and freezes and restores the state, on a separate thread. The leader, the servicer and all
other code read the state on the event loop. So the loop has its own copy, to which the same entries are applied in the same order, each
before its proposer receives the outcome. Applying an entry is deterministic, so both copies are equal; it takes microseconds and needs no
lock.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from snapline.coordinator.raft import proposals
from snapline.coordinator.raft.raft_driver import RaftDriver
from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import LogError

_log = logging.getLogger("snapline.coordinator")

Post = Callable[[Callable[[], None]], None]


class MirroredMachine:
    """The state machine that Raft drives, and its copy on the event loop.

    Attributes:
        state: the copy, which may be read only on the event loop. The attribute always refers to the same object.
    """

    def __init__(self) -> None:
        self.state = FleetState()
        self._own = FleetState()
        self._post: Post = lambda _: None

    def post_with(self, post: Post) -> None:
        """Set the function that posts calls to the loop, in order. This method must be called before the replica starts."""
        self._post = post

    # ---- on the tick thread ---------------------------------------------------------------------------------------

    def apply(self, entry: bytes) -> OperationResult:
        """Apply one committed entry. Raise LogError if the entry is not an operation; the process must then end."""
        result = self._own.apply(decode_operation(entry))
        self._post(partial(self._follow, entry))
        return result

    def freeze(self) -> bytes:
        """Return the whole state as bytes."""
        return self._own.freeze()

    def restore(self, image: bytes) -> None:
        """Replace the state with the state in a dump of this replica or of the leader."""
        self._own = FleetState.restore(image)
        self._post(partial(self._take, image))

    # ---- on the loop ----------------------------------------------------------------------------------------------

    def _follow(self, entry: bytes) -> None:
        self.state.apply(decode_operation(entry))

    def _take(self, image: bytes) -> None:
        self.state.image = FleetState.restore(image).image


class RaftLog:
    """The log to which a leader proposes operations.

    A former leader's proposal may still be committed by its successor; the state machine refuses it if the state has changed.
    """

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Commit and apply `entry`; see `ReplicatedLog`."""
        outcome = await self._driver.propose(entry)
        match outcome:
            case proposals.Committed():
                if not isinstance(outcome.result, OperationResult):
                    raise LogError(f"an operation could not be applied: {outcome.result!r}")
                return Committed(outcome.result)
            case proposals.Rejected():
                return Rejected(outcome.reason)
            case proposals.Unknown():
                return Unknown(outcome.reason)


class ReplicatedLog(Protocol):
    """The log of a leader's decisions, which are committed before they take effect."""

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Commit and apply `entry`.

        Return Committed with the state machine's result, Rejected if the entry is not in the log and never will be, or otherwise Unknown.
        After Unknown, the caller proposes the same request again. Raise LogError if the log has ended permanently.
        """

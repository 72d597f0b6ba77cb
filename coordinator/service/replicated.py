"""The coordinator's log on Raft (`raft/`): one replica or several, the same code.

The state is kept twice. Raft applies entries, and freezes and restores the state, on its own thread; the leader, the
servicer and everything else read it on the event loop. So there is a second one that belongs to the loop: the same
entries are applied to it in the same order, each before its proposer hears the outcome. Applying is deterministic, so the
two are equal; it takes microseconds, and nobody needs a lock.
"""

import logging
from collections.abc import Callable
from functools import partial

from snapline.coordinator.raft import outcomes
from snapline.coordinator.raft.driver import RaftDriver
from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import LogError

_log = logging.getLogger("snapline.coordinator")

Post = Callable[[Callable[[], None]], None]


class MirroredMachine:
    """The state machine that Raft drives, and its mirror on the loop.

    Attributes:
        state: the mirror; read on the loop only. The same object for ever.
    """

    def __init__(self) -> None:
        self.state = FleetState()
        self._own = FleetState()
        self._post: Post = lambda _: None

    def post_with(self, post: Post) -> None:
        """Set how calls get to the loop, in order. Call it before the replica starts."""
        self._post = post

    # ---- on the tick thread ---------------------------------------------------------------------------------------

    def apply(self, entry: bytes) -> OperationResult:
        """Apply one committed entry. Raises LogError if it is none: the process must end."""
        result = self._own.apply(decode_operation(entry))
        self._post(partial(self._follow, entry))
        return result

    def freeze(self) -> bytes:
        """The whole state."""
        return self._own.freeze()

    def restore(self, image: bytes) -> None:
        """Take a whole state, of a dump of ours or of the leader's."""
        self._own = FleetState.restore(image)
        self._post(partial(self._take, image))

    # ---- on the loop ----------------------------------------------------------------------------------------------

    def _follow(self, entry: bytes) -> None:
        self.state.apply(decode_operation(entry))

    def _take(self, image: bytes) -> None:
        self.state.image = FleetState.restore(image).image


class RaftLog:
    """Log that a leader proposes to. A former leader's proposal may still be committed, through its successor:
    what it bases on has moved then, and the state machine refuses it."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    async def propose(self, entry: bytes) -> ProposalOutcome:
        """Have `entry` committed and applied; see `log.ReplicatedLog`."""
        outcome = await self._driver.propose(entry)
        match outcome:
            case outcomes.Committed():
                if not isinstance(outcome.result, OperationResult):
                    raise LogError(f"an operation could not be applied: {outcome.result!r}")
                return Committed(outcome.result)
            case outcomes.Rejected():
                return Rejected(outcome.reason)
            case outcomes.Unknown():
                return Unknown(outcome.reason)

    async def close(self) -> None:
        """The replica outlives its leaders."""

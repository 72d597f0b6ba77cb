"""Observer of hosts, the coordinator and its log: reports to the judge, the recording and the counters."""

from collections.abc import Callable

from snapline.coordinator.leader.events import AnswerMoves, AnswerRestore
from snapline.messages.turn_deaths import TurnDeath
from snapline.sim.world.host_log_oracle import HostLogOracle
from snapline.sim.world.log_observer import Freezing, LogObserver
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.snapshot_requests import SnapshotRequests
from snapline.sim.world.store_observer import StoreObserver
from snapline.sim.world.world_state import WorldState


class WorldObserver:
    """Parts of the observer. `on_restore_answered`, `on_moves_answered`: functions that receive the answers to operators."""

    on_restore_answered: Callable[[AnswerRestore], None]
    on_moves_answered: Callable[[AnswerMoves], None]

    def __init__(self, shared: WorldState, log: SimulatedLog, frozen: Freezing) -> None:
        self.store = StoreObserver(shared, log)
        self.host_logs = HostLogOracle(shared, log, self.store.flipped)
        self.log = LogObserver(shared, log, self.store, frozen)
        self.died: dict[str, tuple[str, tuple[TurnDeath, ...]]] = {}
        """Host → last run killed by a message, and the marks that this run leaves."""
        self.questions = SnapshotRequests(shared, log, self.log.completed_ns)

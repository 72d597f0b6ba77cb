"""Triggers of epochs: the period is over, or a tool requests a snapshot. The mode decides on other triggers.

A slow or failing store never stops the agents. Triggers are skipped while an epoch is being stored, so the interval adapts to the
store's speed. When epochs fail because of the store, `store_watch.py` decides when the next trigger counts. Manual epochs, and those for
a recovery, begin at once.
"""

from snapline.coordinator.leader.epochs.open_epochs import OpenEpochs
from snapline.coordinator.leader.epochs.publishing import RefPublisher, Snapshots
from snapline.coordinator.leader.epochs.store_watch import Period, StoreWatch
from snapline.coordinator.leader.fleet_end import Departures, StopQuestion
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.choice import ModeChoice
from snapline.coordinator.leader.modes.mode import Begun, Declined, EpochDemand, Later, Present
from snapline.coordinator.leader.plans.moves import Moves
from snapline.coordinator.state.fleet_records import RUNNING, OperationResult
from snapline.messages.host_messages import WantEpoch

EARLY_NS, EARLY_FACTOR = 10_000_000, 2
"""Shortest time between two early epochs (a client waits): in nanoseconds, and as a multiple of the last epoch's duration."""

OVERDUE_NS, AGAIN_NS = 1 * SECOND_NS, 1 * SECOND_NS
"""A request is overdue if a host has wanted an epoch for OVERDUE_NS and repeated the request within AGAIN_NS (or three times an epoch's
duration). Where agents checkpoint on their own, idle agents without a checkpoint of their last work may hold back the recovery line."""


class Triggers:
    """Decides whether an epoch begins now.

    Attributes:
        skipped: number of triggers that came while an epoch was being stored or about to begin, while four were open, or
            while the store failed.
    """

    def __init__(
        self,
        shared: LeaderState,
        modes: ModeChoice,
        open_epochs: OpenEpochs,
        publisher: RefPublisher,
        snapshots: Snapshots,
        store: StoreWatch,
        period: Period,
        moves: Moves,
        departures: Departures,
        stop_question: StopQuestion,
    ) -> None:
        self._shared = shared
        self._modes = modes
        self._open_epochs = open_epochs
        self._publisher = publisher
        self._snapshots = snapshots
        self._store = store
        self._period = period
        self._moves = moves
        self._departures = departures
        self._stop_question = stop_question
        self._is_held = False
        self._is_wanted = False
        self._waits: dict[str, tuple[int, int]] = {}
        """Host → (time since it wants an epoch, time of its last request)."""
        self._end_ns: int | None = None
        """Time since when the fleet's end waits for an epoch; None: it does not."""
        self._early_ns = 0
        self.skipped = 0

    def on_plan_demand_changed(self, *, is_wanted: bool) -> None:
        """Set whether a plan is wanted: a logged fleet then begins only the plan's epoch."""
        self._is_held = is_wanted

    def on_wanted(self, session: HostSession, message: WantEpoch) -> None:
        """Take the request of a host whose clients or agents wait for an epoch."""
        if message.plan != self._shared.state.plan_number:
            return
        now = self._shared.now
        since, last = self._waits.get(session.host, (now, now))
        is_again = now - last <= max(AGAIN_NS, 3 * self._last_took_ns())
        self._is_wanted = True
        self._waits[session.host] = (since if is_again else now, now)

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch."""
        self._snapshots.on_begin_ended(result)
        self._modes.mode.on_begin_ended(result)

    def evaluate(self) -> None:
        """Begin an epoch if one is wanted and possible."""
        state = self._shared.state
        if state.phase != RUNNING or self._shared.ending is not None:
            self._period.stop()
            self._waits.clear()
            phase = "ending" if state.phase == RUNNING else state.phase
            self._snapshots.refuse(f"the fleet is {phase}: snapshots are taken while it runs")
            return
        if self._stop_question.is_checking_candidate:
            return
        count, is_last = self._snapshots.count, self._departures.wants_epoch
        is_due = self._is_due() or is_last
        is_overdue, is_of_all = self._is_overdue(), is_last or self._is_end_overdue()
        demand = EpochDemand(count > 0, is_due, self._is_held, is_of_all=is_of_all, is_overdue=is_overdue)
        match self._modes.mode.try_begin(demand):
            case Begun():
                self._snapshots.assign()
                self._is_wanted = False
                if is_overdue:
                    self._waits.clear()
                self._early_ns = self._shared.now + max(EARLY_NS, EARLY_FACTOR * self._last_took_ns())
            case Later():
                self.skipped += is_due
            case Declined(reason):
                self.skipped += is_due + count
                self._snapshots.refuse(reason)
            case Present(epoch, reason):
                self._departures.on_present(epoch)
                self._snapshots.wait_for(epoch)
                if epoch not in self._publisher.unpublished:
                    self._snapshots.answer(epoch, is_complete=True, reason=reason)

    def _is_due(self) -> bool:
        """Return whether an epoch is due and the store can take it; count a skipped trigger if it cannot."""
        if not self._period.is_over() or self._moves.is_moving:
            return self._is_early()
        is_allowed = self._store.allows_trigger()
        if is_allowed and not self._open_epochs.is_storing:
            return True
        self.skipped += 1
        return False

    def _is_early(self) -> bool:
        """Return whether an epoch may begin early: a client, a move or the fleet's end waits, and the last epoch is long enough ago."""
        is_wanted = self._is_wanted or self._moves.wants_epoch or self._stop_question.wants_epoch
        if not is_wanted or self._shared.now < self._early_ns or self._open_epochs.is_storing:
            return False
        return self._store.allows_trigger()

    def _is_overdue(self) -> bool:
        now = self._shared.now
        return self._is_wanted and any(now - since >= OVERDUE_NS for since, _ in self._waits.values())

    def _is_end_overdue(self) -> bool:
        """Return whether the end of the fleet has waited for an epoch for OVERDUE_NS."""
        if not self._stop_question.wants_epoch:
            self._end_ns = None
            return False
        self._end_ns = self._shared.now if self._end_ns is None else self._end_ns
        return self._shared.now - self._end_ns >= OVERDUE_NS

    def _last_took_ns(self) -> int:
        """Return how long the newest complete epoch took."""
        newest = self._shared.state.image.epochs.get(self._shared.state.newest_complete())
        return 0 if newest is None else max(0, newest.ended_ns - newest.begun_ns)

"""When an epoch begins: the period is over, or a tool asks. What else makes one begin is the mode's affair.

A slow or failing store never stops the agents. While an epoch is being stored a trigger that comes is skipped, so the period
stretches to what the store can do. When epochs fail because of the store, `store_watch.py` says when the next trigger counts.
Epochs by hand, and those that a recovery wants, begin at once.
"""

from snapline.coordinator.leader.departures import Departures
from snapline.coordinator.leader.epochs.open_epochs import OpenEpochs
from snapline.coordinator.leader.epochs.period import Period
from snapline.coordinator.leader.epochs.publishing import Refs
from snapline.coordinator.leader.epochs.snapshots import Snapshots
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, Desk
from snapline.coordinator.leader.modes.choice import ModeChoice
from snapline.coordinator.leader.modes.mode import Begun, Declined, Later, Present, Wish
from snapline.coordinator.leader.plans.moves import Moves
from snapline.coordinator.leader.stop_question import StopQuestion
from snapline.coordinator.state.fleet_records import RUNNING, OperationResult
from snapline.messages.host_messages import WantEpoch

EARLY_NS, EARLY_FACTOR = 10_000_000, 2
"""Between two epochs that begin since somebody waits: so long at least, and so many times as long as the last one took."""

OVERDUE_NS, AGAIN_NS = 1 * SECOND_NS, 1 * SECOND_NS
"""A host whose agents have waited for an epoch for so long, asking again at most so long (or thrice an epoch) after the last time, may wait for
a line that other agents hold back: those that rest, and have not checkpointed what they did last. It matters to agents that checkpoint by themselves."""


class Triggers:
    """Looks for reasons.

    Attributes:
        skipped: triggers that came while an epoch was being stored, four were open, another one was about to begin, or the
            store failed.
    """

    def __init__(
        self,
        desk: Desk,
        modes: ModeChoice,
        underway: OpenEpochs,
        refs: Refs,
        snapshots: Snapshots,
        store: StoreWatch,
        period: Period,
        moves: Moves,
        departures: Departures,
        stop_question: StopQuestion,
    ) -> None:
        self._desk = desk
        self._modes = modes
        self._underway = underway
        self._refs = refs
        self._snapshots = snapshots
        self._store = store
        self._period = period
        self._moves = moves
        self._departures = departures
        self._stop_question = stop_question
        self._is_held = False
        self._is_wanted = False
        self._waits: dict[str, tuple[int, int]] = {}
        """Host → since when it has wanted an epoch, and when it said so last."""
        self._end_ns: int | None = None
        """Since when an epoch is wanted that may be the fleet's last one."""
        self._early_ns = 0
        self.skipped = 0

    def on_plan_judged(self, *, is_wanted: bool) -> None:
        """While a plan is wanted no epoch of a logged fleet begins but for its sake."""
        self._is_held = is_wanted

    def on_wanted(self, session: HostSession, message: WantEpoch) -> None:
        """A host has clients, or agents, that wait for an epoch."""
        if message.plan != self._desk.state.plan_number:
            return
        now = self._desk.now
        since, last = self._waits.get(session.host, (now, now))
        is_again = now - last <= max(AGAIN_NS, 3 * self._last_took_ns())
        self._is_wanted = True
        self._waits[session.host] = (since if is_again else now, now)

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """BeginEpoch came back."""
        self._snapshots.on_begin_ended(result)
        self._modes.mode.on_begin_ended(result)

    def evaluate(self) -> None:
        """Begin an epoch, if one is wanted and can be."""
        state = self._desk.state
        if state.phase != RUNNING or self._desk.ending is not None:
            self._period.stop()
            self._waits.clear()
            phase = "ending" if state.phase == RUNNING else state.phase
            self._snapshots.refuse(f"the fleet is {phase}: snapshots are taken while it runs")
            return
        if self._stop_question.is_judging:
            return
        count, is_last = self._snapshots.count, self._departures.wants_epoch
        is_due = self._is_due() or is_last
        is_overdue, is_of_all = self._is_overdue(), is_last or self._is_end_overdue()
        wish = Wish(count > 0, is_due, self._is_held, is_of_all=is_of_all, is_overdue=is_overdue)
        match self._modes.mode.try_begin(wish):
            case Begun():
                self._snapshots.assign()
                self._is_wanted = False
                if is_overdue:
                    self._waits.clear()
                self._early_ns = self._desk.now + max(EARLY_NS, EARLY_FACTOR * self._last_took_ns())
            case Later():
                self.skipped += is_due
            case Declined(reason):
                self.skipped += is_due + count
                self._snapshots.refuse(reason)
            case Present(epoch, reason):
                self._departures.on_present(epoch)
                self._snapshots.wait_for(epoch)
                if epoch not in self._refs.owed:
                    self._snapshots.answer(epoch, is_complete=True, reason=reason)

    def _is_due(self) -> bool:
        """Is the period over, and can the store take another epoch? If it cannot, the trigger is skipped."""
        if not self._period.is_over() or self._moves.is_moving:
            return self._is_early()
        is_allowed = self._store.allows_trigger()
        if is_allowed and not self._underway.is_storing:
            return True
        self.skipped += 1
        return False

    def _is_early(self) -> bool:
        """Does somebody wait, or agents that are to move, and is it not too soon? Then an epoch begins before its time."""
        is_wanted = self._is_wanted or self._moves.wants_epoch or self._stop_question.wants_epoch
        if not is_wanted or self._desk.now < self._early_ns or self._underway.is_storing:
            return False
        return self._store.allows_trigger()

    def _is_overdue(self) -> bool:
        now = self._desk.now
        return self._is_wanted and any(now - since >= OVERDUE_NS for since, _ in self._waits.values())

    def _is_end_overdue(self) -> bool:
        """Has the end of the fleet waited for an epoch, though nobody saves anything?"""
        if not self._stop_question.wants_epoch:
            self._end_ns = None
            return False
        self._end_ns = self._desk.now if self._end_ns is None else self._end_ns
        return self._desk.now - self._end_ns >= OVERDUE_NS

    def _last_took_ns(self) -> int:
        """The newest complete epoch, from begin to end."""
        newest = self._desk.state.image.epochs.get(self._desk.state.newest_complete())
        return 0 if newest is None else max(0, newest.ended_ns - newest.begun_ns)

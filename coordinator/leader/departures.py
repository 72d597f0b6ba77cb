"""Planned ends: a host that must stop, or this coordinator, waits for a snapshot of the work done until then.

First effects are held (`quiescence.py`), so none is in doubt afterwards. Then an epoch of all agents begins, also where they
checkpoint on their own. When the epoch is complete, the waiting hosts receive MayLeave. Later work is lost with its host, but none of
its answers was sent as final, and it called no effect.

In a fleet that does not run, hosts may leave at once: there is no work to lose. A failed epoch is retried; the waiting process bounds its
own wait.
"""

import msgspec

from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.quiescence import Quiescence
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.messages.planned_ends import MayLeave, WantLeave

REASON = "leave"


class _LastEpoch(msgspec.Struct, frozen=True):
    """Mark of the last epoch: epochs begun after `begun`, under this plan, hold all work done until effects were held."""

    plan: int
    begun: int


class Departures:
    """Processes that wait to leave. Volatile: hosts repeat the request on every new stream."""

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, publisher: RefPublisher, quiescence: Quiescence
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._quiescence = quiescence
        self._waiting: dict[int, None] = {}
        """Sessions of hosts that wait for MayLeave."""
        self._may_leave_sent: dict[int, None] = {}
        """Sessions that were sent MayLeave; effects are held until they are closed."""
        self._is_ending = False
        """True if this coordinator is to stop."""
        self._last: _LastEpoch | None = None
        self._present = 0
        """An epoch that holds the fleet's present state, so no new one is needed; 0: none."""
        self.is_saved = False
        """The last epoch that this coordinator waited for is complete, or there is nothing to wait for."""

    def on_wanted(self, session: HostSession, message: WantLeave) -> None:
        """Take the request of a host that must stop."""
        self._shared.note("info", f"host {session.host} is to stop ({message.reason}): a snapshot is taken before")
        self._waiting[session.id] = None

    def on_coordinator_stop_requested(self) -> None:
        """Note that this coordinator is to stop."""
        self._is_ending = True

    def on_present(self, epoch: int) -> None:
        """Note that this epoch holds the fleet's whole present state, according to the mode."""
        self._present = epoch

    @property
    def wants_epoch(self) -> bool:
        """Return whether an epoch of all agents is to begin now."""
        state, last = self._shared.state, self._last
        if last is None or last.plan != state.plan_number or self._shared.is_pending("begin"):
            return False
        return not self._present and max(state.newest_complete(), *state.open_epochs(), 0) <= last.begun

    def evaluate(self) -> None:
        """Advance the wait: hold effects, request an epoch, send MayLeave."""
        state = self._shared.state
        for sessions in (self._waiting, self._may_leave_sent):
            for number in [number for number in sessions if self._host_sessions.session(number) is None]:
                del sessions[number]
        if not (self._waiting or self._is_ending):
            self._last, self._present = None, 0
            if not self._may_leave_sent or state.phase != RUNNING:
                self._may_leave_sent.clear()
                self._quiescence.drop(REASON)
            return
        if state.phase != RUNNING or state.image.outcome or self._host_sessions.is_empty:
            self._send_may_leave(state.newest_complete())
            return
        self._quiescence.want(REASON, effects=True)
        if self._last is None or self._last.plan != state.plan_number:
            if not self._quiescence.is_quiet:
                return
            self._last, self._present = _LastEpoch(state.plan_number, state.image.begun), 0
        newest = self._publisher.newest_published()
        if newest > self._last.begun or (self._present and self._present == newest):
            self._send_may_leave(newest)

    def _send_may_leave(self, epoch: int) -> None:
        self._shared.send(tuple(self._waiting), MayLeave(epoch))
        self._may_leave_sent.update(self._waiting)
        self._waiting.clear()
        self.is_saved, self._is_ending = self.is_saved or self._is_ending, False

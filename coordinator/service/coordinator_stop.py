"""Planned stop of a coordinator: after a signal, a running fleet takes a last snapshot.

The hosts may be stopping, too, and need a coordinator for their last epoch. The leader begins one (`leader/fleet_end.py`). The other replicas stay
until it is complete, because it cannot be committed without them. A coordinator ends at once if its fleet has no hosts or does not run.
"""

import asyncio
import logging

from snapline.coordinator.leader.events import CoordinatorStopRequested
from snapline.coordinator.service.leadership import LeaderRunner, Leadership
from snapline.coordinator.state.fleet_records import ALIVE, RUNNING
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import SAME_SIGNAL_S

LOOK_S = 0.05
"""Interval of checks whether the epoch is complete, which takes some tens of milliseconds."""

_log = logging.getLogger("snapline.coordinator")


class CoordinatorStop:
    """Planned stop of one process."""

    def __init__(self, leadership: Leadership, state: FleetView, limit_s: float) -> None:
        self._leadership = leadership
        self._state = state
        self._limit_s = limit_s
        self._signal_s = 0.0
        self._waiting: asyncio.Task[None] | None = None

    def asked(self) -> None:
        """Handle a signal: end after a last snapshot or the time limit; after a second signal, end at once."""
        now_s = asyncio.get_running_loop().time()
        if self._waiting is not None and now_s < self._signal_s + SAME_SIGNAL_S:
            return
        if self._waiting is not None or not self._limit_s or not self._is_fleet_running():
            self._leadership.end(0)
            return
        self._signal_s = now_s
        self._waiting = asyncio.create_task(self._end_saved())

    def _is_fleet_running(self) -> bool:
        driver, hosts = self._leadership.driver, self._state.image.hosts.values()
        has_hosts = driver is None or driver.has_hosts
        return self._state.phase == RUNNING and any(host.state == ALIVE for host in hosts) and has_hosts

    async def _end_saved(self) -> None:
        state, begun = self._state, self._state.image.begun
        wait = f"for {self._limit_s:g} s at most; a second signal ends it at once"
        _log.info("a last snapshot is taken before this coordinator stops, %s", wait)
        asked_driver: LeaderRunner | None = None
        while self._is_fleet_running():
            driver = self._leadership.driver
            if driver is not None and driver is not asked_driver:
                asked_driver = driver
                driver.feed(CoordinatorStopRequested())
            if state.newest_complete() > begun if driver is None else driver.is_saved:
                _log.info("epoch %d is the last snapshot", state.newest_complete())
                break
            if asyncio.get_running_loop().time() > self._signal_s + self._limit_s:
                epoch = state.newest_complete()
                lost = f"what the fleet has done since epoch {epoch} is lost if its hosts stop too"
                _log.warning("no last snapshot within %g s: %s", self._limit_s, lost)
                break
            await asyncio.sleep(LOOK_S)
        self._leadership.end(0)

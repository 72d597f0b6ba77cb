"""Leadership of this replica: while it leads, a leader core runs here; otherwise hosts and tools are referred to the leader.

A new leader must see everything acknowledged before it, so it waits until an entry of its own (a barrier) is applied. It ends when another
replica leads, or when it has heard no majority for a while. In between, two replicas may both believe that they lead. The older one is
harmless: its proposals are committed by the newer leader or not at all, and are refused if the state has changed. Its messages to hosts
follow from committed operations, and directives are idempotent.
"""

import asyncio
import logging
from collections.abc import Callable

from snapline.coordinator.raft.raft_driver import RaftDriver
from snapline.coordinator.service.leader_runner import LeaderRunner
from snapline.errors import CoordinatorUnavailableError, SnaplineError
from snapline.messages.status import Standing

_log = logging.getLogger("snapline.coordinator")


class Leadership:
    """Runs a leader core while this replica leads.

    Attributes:
        driver: driver of the leader core; None while this replica does not lead.
        ended: set when the run is over; `exit_code` or `failure` says how.
        led: set once this replica has led.
    """

    def __init__(self, make: Callable[[], LeaderRunner]) -> None:
        """`make` makes the driver of a new leader; it raises SnaplineError if this replica cannot lead."""
        self._make = make
        self._changed = asyncio.Event()
        self._standing = Standing()
        self.driver: LeaderRunner | None = None
        self.ended = asyncio.Event()
        self.led = asyncio.Event()
        self.exit_code = 0
        self.failure: BaseException | None = None

    @property
    def leader(self) -> str:
        """Id of the leading replica, as far as known here; empty: none."""
        return self._standing.leader

    def on_standing(self, standing: Standing) -> None:
        """Note a change of leader, as this replica sees it."""
        self._standing = standing
        self._changed.set()

    def end(self, exit_code: int) -> None:
        """End the run."""
        self.exit_code = exit_code
        self.ended.set()

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        self.failure = self.failure or error
        self.ended.set()

    async def run(self, raft: RaftDriver) -> None:
        """Lead whenever this replica is elected, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._standing.is_leader and self.driver is None:
                    await self._begin(raft)
                elif not self._standing.is_leader and self.driver is not None:
                    await self._stop_leading(f"{self._standing.leader or 'nobody'} leads now")
        except SnaplineError as error:
            self.fail(error)
        finally:
            await self._stop_leading("the coordinator ends")

    async def _begin(self, raft: RaftDriver) -> None:
        standing = self._standing
        try:
            await raft.wait_ready()
        except CoordinatorUnavailableError as error:
            _log.warning("elected in term %d, but %s", standing.term, error)
            self._changed.set()
            return
        if self._standing != standing:
            return
        _log.info("leading in term %d", standing.term)
        self.driver = self._make()
        self.driver.on_ended = self._on_driver_ended
        self.driver.start()
        self.led.set()

    def _on_driver_ended(self, driver: LeaderRunner) -> None:
        if driver is not self.driver:
            return
        if driver.failure is not None:
            self.fail(driver.failure)
        else:
            self.end(driver.exit_code)

    async def _stop_leading(self, why: str) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            _log.info("leadership ended: %s", why)
            await driver.stop()

"""Shutdown of the fleet: the end is proposed until it is in the log, hosts receive Finish, and the run ends once they have left.

A fleet that stops in an epoch ends when the outputs of that epoch are released.
"""

from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.epochs.releases import Releases
from snapline.coordinator.leader.epochs.snapshots import Snapshots
from snapline.coordinator.leader.events import EndRun
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OperationResult
from snapline.messages.host_messages import Finish

SHUTDOWN_NS = 5 * SECOND_NS
"""Time for hosts to receive Finish, and to leave."""


class Shutdown:
    """Shutdown of the fleet and of this run."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        publisher: RefPublisher,
        releases: Releases,
        snapshots: Snapshots,
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._releases = releases
        self._snapshots = snapshots
        self._finish_sent_ns: int | None = None
        """Time when Finish was sent; None: the fleet has not ended."""
        self._is_over = False

    def on_end_ended(self, result: OperationResult) -> None:
        """Drop the requested end if EndFleet was refused: its reason does not hold any more."""
        if result.is_refused:
            self._shared.ending = None

    def directives_for(self) -> list[Finish]:
        """Return Finish, once sent, for a host that has just come back."""
        return [] if self._finish_sent_ns is None else [self._finish()]

    def evaluate(self) -> None:
        """Propose the end that a part has requested; once it is in the log, send Finish and end the run."""
        shared, image = self._shared, self._shared.state.image
        if not image.outcome:
            if shared.ending is not None and not self._is_awaited(*shared.ending):
                shared.propose("end", op.EndFleet(*shared.ending, is_newest=bool(shared.ending[0])))
            return
        if self._finish_sent_ns is None:
            self._finish_sent_ns = shared.now
            shared.note("info", f"the fleet has {image.outcome}: {image.ending}")
            shared.send(self._host_sessions.all_sessions(), self._finish())
        is_time_over = shared.now >= self._finish_sent_ns + SHUTDOWN_NS
        is_stored = not self._publisher.unpublished and self._releases.is_settled
        is_settled = self._host_sessions.is_empty and is_stored and self._snapshots.is_settled
        if shared.options.exit_when_finished and not self._is_over and (is_time_over or is_settled):
            self._is_over = True
            shared.out.append(EndRun(0 if image.outcome == "stopped" else 1, image.ending))

    def _is_awaited(self, epoch: int, outcome: str, _reason: str) -> bool:
        """Return whether the end must wait: a fleet that stops first releases all outputs of its last epoch."""
        return outcome == "stopped" and self._releases.has_unreleased_up_to(epoch)

    def _finish(self) -> Finish:
        image = self._shared.state.image
        return Finish(image.outcome_epoch, image.outcome, image.ending)

"""Publishing of complete epochs: write the ref, then notify the hosts, then the tools that requested the snapshot.

A crash between the operation and the ref leaves a complete epoch without a ref. The next leader publishes it, since the ref's bytes
follow from the operation. A new leader does not know which refs exist, so it publishes every complete epoch again.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from snapline.coordinator.leader.epochs.snapshots import Snapshots
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.events import EpochPublished, PublishEpoch
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE
from snapline.messages.host_messages import EndEpoch

NO_INPUTS: Mapping[str, int] = MappingProxyType({})

PUBLISH_RETRY_NS = 1 * SECOND_NS
"""Time between two tries: a full disk is not cleared faster."""


class Due(msgspec.Struct, frozen=True):
    """The ref must be written, at `at_ns` or later."""

    at_ns: int


class Publishing(msgspec.Struct, frozen=True):
    """The ref is being written."""


class RefPublisher:
    """Publisher of refs, and of the notices about ended epochs."""

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, snapshots: Snapshots, store: StoreWatch, lines: Lines
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._snapshots = snapshots
        self._store = store
        self._lines = lines
        self._unpublished: dict[int, Due | Publishing] = {}
        self._aborts_notified = 0

    # ---- queries --------------------------------------------------------------------------------------------------

    @property
    def unpublished(self) -> tuple[int, ...]:
        """Complete epochs without a ref, as far as known."""
        return tuple(self._unpublished)

    def newest_published(self) -> int:
        """Return the newest epoch that is complete, not condemned, and has its ref; 0 = none."""
        return next((x for x in reversed(self._shared.state.complete_epochs()) if x not in self._unpublished), 0)

    # ---- events ---------------------------------------------------------------------------------------------------

    def on_started(self) -> None:
        """Start without knowledge of refs. Earlier aborts are not sent: hosts know them, or receive them when they reconnect."""
        self._unpublished = {epoch: Due(self._shared.now) for epoch in self._shared.state.complete_epochs()}
        self._aborts_notified = self._shared.state.image.aborted

    def on_completed(self, epoch: int) -> None:
        """Note a complete epoch, which needs a ref."""
        self._unpublished[epoch] = Due(self._shared.now)

    def on_forgotten(self, epochs: Iterable[int]) -> None:
        """Drop forgotten epochs."""
        for epoch in epochs:
            self._unpublished.pop(epoch, None)

    def on_published(self, event: EpochPublished) -> None:
        """Take the result of a PublishEpoch."""
        epoch = event.epoch
        if epoch not in self._unpublished:
            return
        if not event.error:
            del self._unpublished[epoch]
            self._store.stored(epoch)
            self._notify_end(epoch, is_complete=True, reason="", inputs=event.inputs)
            self._lines.on_published(epoch)
            return
        self._unpublished[epoch] = Due(self._shared.now + PUBLISH_RETRY_NS)
        if event.is_final:
            self._shared.end(0, "failed", op.clip(event.error))
        elif event.damaged_path:
            self._shared.condemn(epoch, event.damaged_path, event.error)
        else:
            self._store.failed(epoch, f"the ref of epoch {epoch} cannot be written: {event.error}", is_news=True)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Notify hosts of condemned and aborted epochs; answer tools that wait for epochs that have ended already."""
        image = self._shared.state.image
        for epoch in list(self._unpublished):
            record = image.epochs.get(epoch)
            if record is None or record.status != COMPLETE:
                del self._unpublished[epoch]
                self._store.ended(epoch)
                self._notify_end(epoch, is_complete=record is not None, reason="condemned")
        self._notify_aborts()
        for epoch in self._snapshots.epochs:
            outcome = self._shared.state.outcome_of(epoch)
            if outcome is not None and epoch not in self._unpublished:
                self._snapshots.answer(epoch, is_complete=outcome.is_complete, reason=outcome.reason)

    def _notify_aborts(self) -> None:
        image = self._shared.state.image
        fresh, self._aborts_notified = image.aborted - self._aborts_notified, image.aborted
        for outcome in [x for x in image.outcomes if not x.is_complete][-fresh:] if fresh else []:
            self._shared.note("warning", f"epoch {outcome.epoch} is aborted: {outcome.reason}")
            self._notify_end(outcome.epoch, is_complete=False, reason=outcome.reason)

    def _notify_end(self, epoch: int, *, is_complete: bool, reason: str, inputs: Mapping[str, int] = NO_INPUTS) -> None:
        ended = EndEpoch(epoch, is_complete, reason, tuple(inputs), tuple(inputs.values()))
        self._shared.send(self._host_sessions.all_sessions(), ended)
        self._snapshots.answer(epoch, is_complete=is_complete, reason=reason)

    def publish(self) -> None:
        """Write the refs that are due."""
        for epoch, stage in self._unpublished.items():
            if isinstance(stage, Due) and stage.at_ns <= self._shared.now:
                self._unpublished[epoch] = Publishing()
                self._shared.out.append(PublishEpoch(epoch, self._shared.state.image.epochs[epoch].root))

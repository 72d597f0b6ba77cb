"""Publishing complete epochs, releasing their outputs, and answering snapshot requests.

*Publishing* an epoch means to write its ref, notify the hosts, and answer the tools that requested the snapshot, in this order. If the
leader crashes between CompleteEpoch and writing the ref, the epoch is complete but has no ref. The next leader publishes that epoch,
because the ref's content is determined by the operation. A new leader does not know which refs exist, so it publishes every complete epoch
again.

*Snapshot requests* are numbered, and each request is answered as soon as the outcome of its epoch is known. All snapshot requests that are
waiting when an epoch begins are assigned to that epoch. Until BeginEpoch is committed, these requests wait for the log to assign the
epoch's number.

*Releases.* Outputs are released in ascending order of epochs. Consumers receive each release exactly once, even if the leader changes. An
epoch may be released when its ref is written, all lower epochs have ended, and all lower complete epochs have been released. Outputs must
be released in order, because several epochs may be open at once. If the order were not kept, a consumer that has read epoch 6 would miss
outputs of epoch 5 that were released later. A release contains the outputs that agents emitted between the preceding epoch and this one
(`state/fleet_view.py`). The store keeper reads the outputs from the epoch's checkpoints and writes the release. After a release, the
leader sends hosts the number of each agent's last released output, and the hosts discard the released outputs.

All state in this module is volatile. A new leader releases all known complete epochs again, in order. Repeating a release is safe, because
the replicated state and the epoch's data determine the release. If the predecessors of an epoch are forgotten, the epoch has been released,
because `pins` keeps all epochs that an unreleased epoch needs. A condemned epoch is never released. The outputs of a condemned epoch are
either included in the next release or reverted.

Hosts that load a recovery line also load its unreleased outputs, so the newest release is sent again under each plan and on each new
stream.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.events import (
    AnswerSnapshot,
    EpochPublished,
    EpochReleased,
    OutputReadersChanged,
    PublishEpoch,
    ReleaseEpoch,
)
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, OperationResult
from snapline.coordinator.state.fleet_view import forgettable_below, has_fallen_back, lineage_of
from snapline.messages.host_messages import Directive, EndEpoch, OutputsWatched

REQUESTS_MAX = 256
"""Largest number of snapshot requests that may wait for an epoch to begin."""


class Snapshots:
    """Snapshot requests that are waiting, and the epochs assigned to them. This state need not be durable, because tools repeat their
    requests to a new leader."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._requests: list[int] = []
        self._assigned: list[int] = []
        """Requests that wait for the epoch whose BeginEpoch is pending."""
        self._waiting: dict[int, list[int]] = {}
        """Epoch → requests that wait for its outcome."""

    @property
    def count(self) -> int:
        """Return the number of requests that are waiting for an epoch to begin."""
        return len(self._requests)

    @property
    def epochs(self) -> Iterable[int]:
        """Return the epochs on whose outcome requests are waiting."""
        return list(self._waiting)

    @property
    def is_settled(self) -> bool:
        """Return whether no snapshot request is waiting."""
        return not self._waiting and not self._requests

    def on_requested(self, request: int) -> None:
        """Handle a tool's request for a snapshot."""
        self._requests.append(request)
        if len(self._requests) > REQUESTS_MAX:
            self.refuse(f"{REQUESTS_MAX} others are waiting for a snapshot")

    def assign(self) -> None:
        """Assign all waiting requests to the epoch that is about to begin."""
        self._assigned, self._requests = self._requests, []

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch. If BeginEpoch succeeded, the assigned requests wait for its epoch. If BeginEpoch failed, the
        assigned requests wait for the next epoch."""
        requests, self._assigned = self._assigned, []
        if result is None or result.is_refused:
            self._requests = requests + self._requests
        elif requests:
            self._waiting[result.number] = requests

    def wait_for(self, epoch: int) -> None:
        """Assign all waiting requests to an existing epoch, which is complete and contains the fleet's current state."""
        self._waiting[epoch] = self._waiting.get(epoch, []) + self._requests
        self._requests = []

    def answer(self, epoch: int, *, is_complete: bool, reason: str) -> None:
        """Answer the requests that are waiting for this epoch; its outcome has already been sent to the hosts."""
        record = self._shared.state.image.epochs.get(epoch)
        root = record.root if record is not None and is_complete else ""
        for request in self._waiting.pop(epoch, []):
            self._shared.out.append(AnswerSnapshot(request, epoch, is_complete, reason, root))

    def refuse(self, reason: str) -> None:
        """Refuse all requests that are waiting for an epoch to begin."""
        requests, self._requests = self._requests, []
        for request in requests:
            self._shared.out.append(AnswerSnapshot(request, 0, False, reason, ""))


NO_INPUTS: Mapping[str, int] = MappingProxyType({})

PUBLISH_RETRY_NS = 1 * SECOND_NS
"""Time, in nanoseconds, between two attempts to write a ref. A full disk is rarely cleared faster."""


class Due(msgspec.Struct, frozen=True):
    """State of an epoch whose ref must be written, but not before `at_ns`."""

    at_ns: int


class Publishing(msgspec.Struct, frozen=True):
    """State of an epoch whose ref is being written."""


class RefPublisher:
    """Writer of complete epochs' refs, which also notifies hosts of ended epochs."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        snapshots: Snapshots,
        store: StoreWatch,
        lines: RecoveryLines,
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
        """Return the complete epochs whose refs this leader has not yet written."""
        return tuple(self._unpublished)

    def newest_published(self) -> int:
        """Return the newest complete epoch that has a ref and is not condemned, or 0 if there is none."""
        return next((x for x in reversed(self._shared.state.complete_epochs()) if x not in self._unpublished), 0)

    # ---- events ---------------------------------------------------------------------------------------------------

    def on_started(self) -> None:
        """Mark all complete epochs as unpublished. Do not notify hosts of earlier aborts, which they already know or learn when they
        reconnect."""
        self._unpublished = {epoch: Due(self._shared.now) for epoch in self._shared.state.complete_epochs()}
        self._aborts_notified = self._shared.state.image.aborted

    def on_completed(self, epoch: int) -> None:
        """Record a newly completed epoch, whose ref must now be written."""
        self._unpublished[epoch] = Due(self._shared.now)

    def on_forgotten(self, epochs: Iterable[int]) -> None:
        """Drop forgotten epochs."""
        for epoch in epochs:
            self._unpublished.pop(epoch, None)

    def on_published(self, event: EpochPublished) -> None:
        """Handle the result of a PublishEpoch command."""
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
        """Notify hosts of condemned and aborted epochs, and answer tools whose epoch has ended."""
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
        """Write all refs that are due."""
        for epoch, stage in self._unpublished.items():
            if isinstance(stage, Due) and stage.at_ns <= self._shared.now:
                self._unpublished[epoch] = Publishing()
                self._shared.out.append(PublishEpoch(epoch, self._shared.state.image.epochs[epoch].root))


RELEASE_RETRY_NS = 1 * SECOND_NS
"""Time, in nanoseconds, between two attempts to write a release, which is the same as for refs."""


class ReleasedEpoch(msgspec.Struct, frozen=True):
    """A released epoch, with the numbers of each agent's last consumed input and last emitted output in that epoch."""

    epoch: int
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}


class Releases:
    """Queue that releases complete epochs in order.

    The queue tracks which epochs this leader must still release, and whether any consumer follows the outputs.
    """

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, publisher: RefPublisher, store: StoreWatch
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._store = store
        self._unreleased: dict[int, int] = {}
        """Unreleased epoch → earliest time at which it may be released."""
        self._releasing = 0
        """The epoch whose release is being written; 0 if there is none."""
        self._silent: dict[int, dict[str, int]] = {}
        """Published epoch in which no agent has emitted an output → agent → last input consumed."""
        self._is_watched = False
        self._newest = ReleasedEpoch(0)
        self._sent_release = (0, 0)
        """(plan, epoch) of the newest release that was sent to the hosts."""

    # ---- queries --------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Return whether this leader has released all complete epochs."""
        return not self._unreleased

    def has_unreleased_up_to(self, epoch: int) -> bool:
        """Return whether any complete epoch up to and including `epoch` is unreleased."""
        return any(unreleased <= epoch for unreleased in self._unreleased)

    def pins(self) -> int | None:
        """Return the lowest epoch that a future release needs, or None if releases need no epoch."""
        state = self._shared.state
        pending = [epoch for epoch in (*state.open_epochs(), *self._unreleased) if epoch in state.image.epochs]
        return forgettable_below(state.image, pending)

    def directives_for(self) -> list[Directive]:
        """Return the directives about releases for a host that has just reconnected."""
        watched: list[Directive] = [OutputsWatched(is_watched=True)] if self._is_watched else []
        return [self._directive(), *watched] if self._newest.inputs or self._newest.outputs else watched

    # ---- events ---------------------------------------------------------------------------------------------------

    def on_started(self) -> None:
        """Mark all complete epochs as unreleased, because a new leader does not know which of them have been released."""
        self._unreleased = dict.fromkeys(self._shared.state.complete_epochs(), self._shared.now)

    def on_completed(self, epoch: int) -> None:
        """Record a complete epoch whose outputs must be released."""
        self._unreleased[epoch] = self._shared.now

    def on_published(self, event: EpochPublished) -> None:
        """Record that a published epoch contains no outputs."""
        if not event.error and event.outputs == {}:
            self._silent[event.epoch] = event.inputs

    def on_readers_changed(self, event: OutputReadersChanged) -> None:
        """Notify hosts when the first consumer starts to follow the outputs or the last consumer stops.

        While consumers follow the outputs, hosts request epochs for them.
        """
        if event.is_watched != self._is_watched:
            self._is_watched = event.is_watched
            self._shared.send(self._host_sessions.all_sessions(), OutputsWatched(event.is_watched))

    def on_released(self, event: EpochReleased) -> None:
        """Handle the result of a ReleaseEpoch command."""
        epoch = event.epoch
        if epoch != self._releasing:
            return
        self._releasing = 0
        if event.error:
            self._unreleased[epoch] = self._shared.now + RELEASE_RETRY_NS
            self._on_failed(event)
        else:
            self._store.stored(epoch)
            self._settle(ReleasedEpoch(epoch, event.inputs, event.outputs))
            if not self._is_complete(epoch):
                self._notify_condemned(epoch)

    def _on_failed(self, event: EpochReleased) -> None:
        if event.damaged_path:
            self._shared.condemn(event.damaged_epoch, event.damaged_path, event.error)
        else:
            problem = f"the outputs of epoch {event.epoch} cannot be released: {event.error}"
            self._store.failed(event.epoch, problem, is_news=True)

    def _settle(self, released: ReleasedEpoch) -> None:
        self._drop(released.epoch)
        if released.epoch > self._newest.epoch and self._is_complete(released.epoch):
            self._newest = released

    def _is_complete(self, epoch: int) -> bool:
        record = self._shared.state.image.epochs.get(epoch)
        return record is not None and record.status == COMPLETE

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Release the next epoch if allowed, and send the newest release to the hosts."""
        if self._newest.epoch and not self._is_complete(self._newest.epoch):
            self._go_back()
        self._drop_condemned()
        while epoch := self._next():
            self._release(epoch)
        self._send_release()

    def _go_back(self) -> None:
        """Drop the newest release, because its epoch is no longer complete, and release the newest complete epoch again."""
        self._newest = ReleasedEpoch(0)
        newest = self._shared.state.newest_complete()
        if newest:
            self._unreleased.setdefault(newest, self._shared.now)

    def _drop_condemned(self) -> None:
        for epoch in [epoch for epoch in self._unreleased if epoch != self._releasing and not self._is_complete(epoch)]:
            self._drop(epoch)
            if epoch not in self._publisher.unpublished:  # otherwise the publisher notifies the hosts
                self._notify_condemned(epoch)

    def _drop(self, epoch: int) -> None:
        del self._unreleased[epoch]
        self._silent.pop(epoch, None)

    def _notify_condemned(self, epoch: int) -> None:
        """Notify the hosts that this epoch is condemned, because they are waiting for its release."""
        self._shared.send(self._host_sessions.all_sessions(), EndEpoch(epoch, is_complete=True, reason="condemned"))

    def _next(self) -> int:
        """Return the lowest unreleased epoch if it may be released now, otherwise 0."""
        epoch = min(self._unreleased, default=0)
        if not epoch or self._releasing or not self._may_be_released(epoch):
            return 0
        return epoch if all(opened > epoch for opened in self._shared.state.open_epochs()) else 0

    def _may_be_released(self, epoch: int) -> bool:
        """Return whether the epoch has a ref, and any retry delay after a failed release has passed."""
        return epoch not in self._publisher.unpublished and self._unreleased[epoch] <= self._shared.now

    def _release(self, epoch: int) -> None:
        image = self._shared.state.image
        ancestors = lineage_of(image, epoch)
        if ancestors is None:
            self._drop(epoch)
            return
        after = ancestors[0].epoch if ancestors else 0
        is_fall_back = has_fallen_back(image, epoch, after)
        if epoch in self._silent and not is_fall_back:
            self._settle(ReleasedEpoch(epoch, self._silent[epoch]))
            self._sent_release = (self._shared.state.plan_number, epoch)
            return
        self._releasing = epoch
        self._shared.out.append(ReleaseEpoch(epoch, image.epochs[epoch].root, ancestors, is_fall_back))

    def _send_release(self) -> None:
        newest, (plan, epoch) = self._newest, self._sent_release
        is_news = newest.epoch > epoch and bool(newest.inputs or newest.outputs)
        is_again = self._shared.state.plan_number != plan and bool(newest.outputs)
        if is_news or is_again:
            self._sent_release = (self._shared.state.plan_number, newest.epoch)
            self._shared.send(self._host_sessions.all_sessions(), self._directive())

    def _directive(self) -> EndEpoch:
        newest = self._newest
        return EndEpoch(
            newest.epoch,
            is_complete=True,
            agents=tuple(newest.inputs),
            inputs=tuple(newest.inputs.values()),
            emitters=tuple(newest.outputs),
            outputs=tuple(newest.outputs.values()),
        )

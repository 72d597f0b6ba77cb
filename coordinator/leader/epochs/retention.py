"""Retention of epochs: the newest ones are kept, and unreferenced data in the store is deleted.

The log forgets old epochs first, then their files are deleted. A sweep deletes data of aborted epochs, and files that were left behind
by a crash.
"""

from snapline.coordinator.leader.epochs.open_epochs import OpenEpochs
from snapline.coordinator.leader.epochs.publishing import RefPublisher, Releases
from snapline.coordinator.leader.events import DeleteEpochs, SweepLogs, SweepStore
from snapline.coordinator.leader.fleet_end import StopQuestion
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OPEN, RUNNING, VOID, OperationResult

FORGET_AT_ONCE = 5
"""Number of old epochs that are forgotten at a time: they share one log entry and one pass over the directories."""

SETTLED_EPOCHS = 1000
"""Number of epochs after a plan's beginning until undone turns are not expected any more. Far fewer epochs lie between a recovery line and
its failure, so all undone work has been redone by then."""

SWEEP_NS = 30 * SECOND_NS
"""Time between two sweeps while epochs abort; each sweep lists the store's directories."""

SWEEP_IDLE_NS = 600 * SECOND_NS
"""Time between two sweeps otherwise: they delete late writes of hosts that were presumed dead."""


class Retention:
    """Retention: decides when to forget, and when to sweep."""

    def __init__(
        self,
        shared: LeaderState,
        open_epochs: OpenEpochs,
        publisher: RefPublisher,
        releases: Releases,
        stop_question: StopQuestion,
    ) -> None:
        self._shared = shared
        self._open_epochs = open_epochs
        self._publisher = publisher
        self._releases = releases
        self._stop_question = stop_question
        self._sweep_ns = 0
        self._aborts_seen = 0

    def on_started(self) -> None:
        """Sweep at once: an earlier leader may have died between log and store."""
        self._sweep_ns, self._aborts_seen = self._shared.now, self._shared.state.image.aborted

    def on_forgotten(self, result: OperationResult) -> None:
        """Delete the files after ForgetEpochs is committed."""
        self._publisher.on_forgotten(result.epochs)
        if result.epochs:
            self._shared.out.append(DeleteEpochs(result.epochs))
            if self._shared.state.image.logs:
                self._sweep_logs()

    def evaluate(self) -> None:
        """Forget old epochs, and sweep unreferenced data."""
        self._forget()
        self._sweep()

    def _forget(self) -> None:
        needed = dict.fromkeys((*self._stop_question.epochs_read, *self._publisher.unpublished))
        candidates = dict.fromkeys((*self._old(), *self._void()))  # a dict: some epochs are in both
        old = tuple([epoch for epoch in candidates if epoch not in needed])
        if old and self._shared.state.phase == RUNNING:
            self._shared.propose("forget", op.ForgetEpochs(old))

    def _old(self) -> list[int]:
        state = self._shared.state
        complete = state.complete_epochs()
        keep = max(2, self._shared.options.keep_epochs)
        if len(complete) < keep + FORGET_AT_ONCE:
            return []
        pin = self._releases.pins()
        end = complete[-keep] if pin is None else min(complete[-keep], pin)
        return [epoch for epoch, record in state.image.epochs.items() if record.status != OPEN and epoch < end]

    def _void(self) -> list[int]:
        """Return the void epochs to forget. Releases need them to revert outputs, until a later epoch is released."""
        newest, records = self._shared.state.newest_complete(), self._shared.state.image.epochs
        if self._releases.has_unreleased_up_to(newest):
            return []
        return [epoch for epoch, record in records.items() if record.status == VOID and epoch < newest]

    def _sweep(self) -> None:
        """Delete data that belongs to no epoch.

        Sweeps are slow and run one at a time, so manifests and refs may be written before a sweep starts. So its lists come from
        the log, not from this leader: epochs that are complete, open or not begun when it is requested are kept.
        """
        image, now = self._shared.state.image, self._shared.now
        if image.aborted != self._aborts_seen:
            self._aborts_seen, self._sweep_ns = image.aborted, min(self._sweep_ns, now + SWEEP_NS)
        if now < self._sweep_ns or self._open_epochs.is_deciding:
            return
        self._sweep_ns = now + SWEEP_IDLE_NS
        kept = tuple([epoch for epoch, record in image.epochs.items() if record.status != OPEN])
        undecided = (*self._shared.state.open_epochs(), *self._publisher.unpublished)
        self._shared.out.append(SweepStore(kept, undecided, image.begun))
        self._sweep_logs()

    def _sweep_logs(self) -> None:
        """Delete log entries of inputs and turns that are consumed, or ended, in all kept epochs."""
        state = self._shared.state
        epochs = {epoch: state.image.epochs[epoch].root for epoch in state.complete_epochs()}
        plan = state.plan
        settled_epoch = plan.begun_epoch + SETTLED_EPOCHS if plan is not None else 0
        self._shared.out.append(SweepLogs(state.plan_number, epochs, state.left_before(), settled_epoch))

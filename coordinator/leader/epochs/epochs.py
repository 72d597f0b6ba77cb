"""Epochs between their two operations: BeginEpoch, and CompleteEpoch or AbortEpoch.

An epoch that has begun in the log is opened here, moved from stage to stage (`open_epochs.py`) by the fleet's mode (`modes/`), and
decided; `publishing.py` follows a decision. An error before the decision, or the timeout, fails
the epoch: nothing refers to it then, and its data is garbage.
"""

from snapline.coordinator.leader.epochs.accounts import add_report
from snapline.coordinator.leader.epochs.open_epochs import (
    STORING,
    WAITING,
    Collecting,
    Deciding,
    Failing,
    OpenEpoch,
    OpenEpochs,
)
from snapline.coordinator.leader.epochs.publishing import RefPublisher, Releases
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.choice import ModeChoice
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OPEN
from snapline.messages.host_messages import EndEpoch, EpochRefused, EpochReport

EPOCH_TIMEOUT_NS = 60 * SECOND_NS
"""Timeout if the fleet's definition names none: several times the longest expected turn."""


class Epochs:
    """Lifecycle of epochs: follows the log, and decides."""

    def __init__(
        self,
        shared: LeaderState,
        modes: ModeChoice,
        open_epochs: OpenEpochs,
        publisher: RefPublisher,
        releases: Releases,
        store: StoreWatch,
    ) -> None:
        self._shared = shared
        self._modes = modes
        self._open_epochs = open_epochs
        self._publisher = publisher
        self._releases = releases
        self._store = store

    def ended_since(self, epoch: int) -> list[EndEpoch]:
        """Return the ends of the epochs after `epoch`, for a host that has just reconnected."""
        return [
            EndEpoch(x.epoch, x.is_complete, x.reason)
            for x in self._shared.state.image.outcomes
            if x.epoch > epoch and x.epoch not in self._publisher.unpublished and self._open_epochs.get(x.epoch) is None
        ]

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_report(self, session: HostSession, report: EpochReport) -> None:
        """Take the report that a host's part of an epoch is durable."""
        if report.host_start != session.start:
            return
        entry = self._open_epochs.get(report.epoch)
        if entry is None:
            outcome = self._shared.state.outcome_of(report.epoch)
            if outcome is not None and report.epoch not in self._publisher.unpublished:
                self._shared.send((session.id,), EndEpoch(report.epoch, outcome.is_complete, outcome.reason))
        elif (
            isinstance(entry.stage, Collecting)
            and session.host in entry.hosts
            and entry.stage.take(session.host, report)
        ):
            after_ns = self._shared.now - entry.opened_ns
            entry.account = add_report(entry.account, session.host, report, after_ns=after_ns)

    def on_refused(self, session: HostSession, message: EpochRefused) -> None:
        """Fail an epoch that a host cannot take part in."""
        entry = self._open_epochs.get(message.epoch)
        reason = f"host {session.host}: {message.reason}"
        if entry is not None and isinstance(entry.stage, (*WAITING, Failing)):
            self._open_epochs.fail_to_store(entry, reason)
            self._shared.note("warning", f"epoch {message.epoch} is refused: {reason}")
        if message.is_final:
            self._shared.end(0, "failed", op.clip(f"no epoch can complete: {reason}"))

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Follow the state: end, open and advance epochs, then publish."""
        self._close_ended_epochs()
        self._publisher.tell()
        self._open_begun_epochs()
        for entry in self._open_epochs:
            self._move_on(entry)
        self._publisher.publish()

    def _close_ended_epochs(self) -> None:
        for entry in self._open_epochs:
            record = self._shared.state.image.epochs.get(entry.epoch)
            if record is not None and record.status == OPEN:
                continue
            self._open_epochs.end(entry)
            self._modes.mode.on_ended(entry, is_complete=record is not None)
            if record is not None:
                self._publisher.on_completed(entry.epoch)
                self._releases.on_completed(entry.epoch)
            else:
                self._store.ended(entry.epoch)

    def _open_begun_epochs(self) -> None:
        state = self._shared.state
        plan = state.plan
        if plan is None:
            return
        timeout_ns = state.image.epoch_timeout_ns or EPOCH_TIMEOUT_NS
        for epoch in state.open_epochs():
            stage = self._modes.mode.start(epoch, plan) if self._open_epochs.get(epoch) is None else None
            if stage is not None:
                trigger = state.image.epochs[epoch].trigger
                now = self._shared.now
                self._open_epochs.begin(
                    OpenEpoch(epoch, list(plan.hosts), trigger, now + timeout_ns, stage, opened_ns=now)
                )

    def _move_on(self, entry: OpenEpoch) -> None:
        is_waiting = isinstance(entry.stage, WAITING)
        if self._shared.now >= entry.deadline_ns and (is_waiting or isinstance(entry.stage, STORING)):
            self._time_out(entry)
        elif is_waiting:
            self._modes.mode.collect(entry)
        if isinstance(entry.stage, Deciding):
            self._decide(entry, entry.stage.completion)
        elif isinstance(entry.stage, Failing):
            self._decide(entry, op.AbortEpoch(entry.epoch, op.clip(entry.stage.problem), entry.account))

    def _decide(self, entry: OpenEpoch, outcome: op.CompleteEpoch | op.AbortEpoch) -> None:
        self._shared.propose(f"epoch/{entry.epoch}", outcome)

    def _time_out(self, entry: OpenEpoch) -> None:
        """Fail an epoch that has taken too long; if it waits for the store, count it as a failure of the store."""
        reports = entry.stage.reports if isinstance(entry.stage, Collecting) else dict.fromkeys(entry.hosts)
        absent = [host for host in entry.hosts if host not in reports]
        storing = [host for host in absent if self._store.is_storing(host)]
        is_storing = isinstance(entry.stage, STORING)
        missing = (
            f"no report of {', '.join(absent)}"
            if absent
            else f"it is still {'storing' if is_storing else 'collecting'}"
        )
        problem = f"not complete in time: {missing}{' (still storing)' if storing else ''}"
        if storing or is_storing:
            self._open_epochs.fail_to_store(entry, problem)
        else:
            self._open_epochs.fail(entry, problem)

"""Lifecycle of epochs: when an epoch begins, how it completes or aborts, and when it is deleted.

*Triggers.* An epoch begins when the period has elapsed, or when a tool requests a snapshot. The checkpoint mode may add further triggers.
A slow or failing store never blocks the agents. While an epoch is being stored, triggers are skipped, so the interval adapts to the
store's speed. If the store makes epochs fail, `store_watch.py` decides when the next trigger may begin an epoch. Epochs requested
manually or needed for a recovery begin at once.

*Between begin and end.* Once the log contains BeginEpoch, this module opens the epoch. The fleet's checkpoint mode (`modes/`) advances an
open epoch through its stages (`open_epochs.py`) until its outcome can be decided. An epoch fails if an error or the timeout occurs before
its outcome is decided. Complete epochs are published by `publishing.py`. The data of a failed epoch is garbage, because nothing refers to
it. From the hosts' reports, the leader computes a time account, which names the last host to report and the host whose agent recorded last.
The time account compares durations measured on different hosts, but never their clock times.

*Retention.* Only the newest epochs are kept. Older epochs are first removed from the log, and then their files are deleted from the store.
A sweep deletes the data of aborted epochs and files left behind by a crash.
"""

from snapline.coordinator.leader.agent_moves import Moves
from snapline.coordinator.leader.epochs.open_epochs import (
    STORING,
    WAITING,
    Collecting,
    Deciding,
    Failing,
    OpenEpoch,
    OpenEpochs,
)
from snapline.coordinator.leader.epochs.publishing import RefPublisher, Releases, Snapshots
from snapline.coordinator.leader.epochs.store_watch import Period, StoreWatch
from snapline.coordinator.leader.events import DeleteEpochs, SweepLogs, SweepStore
from snapline.coordinator.leader.fleet_end import Departures, StopQuestion
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import Begun, Declined, EpochDemand, Later, ModeChoice, Present
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OPEN, RUNNING, VOID, EpochAccount, OperationResult, PartTimes
from snapline.messages.host_messages import EndEpoch, EpochRefused, EpochReport, WantEpoch

EARLY_NS, EARLY_FACTOR = 10_000_000, 2
"""Shortest time between two early epochs, which begin because a client waits: in nanoseconds, and as a multiple of the last epoch's
duration."""

OVERDUE_NS, AGAIN_NS = 1 * SECOND_NS, 1 * SECOND_NS
"""A host's request for an epoch is overdue if the host has repeated it for OVERDUE_NS, with at most AGAIN_NS or three times an epoch's
duration between repetitions. If agents checkpoint on their own, an idle agent that has not checkpointed its last work may hold back the
recovery line."""


class Triggers:
    """Decides when an epoch begins.

    Attributes:
        skipped: number of triggers that began no epoch, because an epoch was being stored or about to begin, four epochs were open, or the
            store failed.
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
        """Host → (time since which it has requested an epoch, time of its last request)."""
        self._end_ns: int | None = None
        """Time since which the fleet's end has waited for an epoch; None if the end does not wait."""
        self._early_ns = 0
        self.skipped = 0

    def on_plan_demand_changed(self, *, is_wanted: bool) -> None:
        """Record whether a recovery plan is currently needed. While a plan is needed, a fleet with sender logs begins no epoch except the
        one for that plan."""
        self._is_held = is_wanted

    def on_wanted(self, session: HostSession, message: WantEpoch) -> None:
        """Handle a host's request for an epoch, on which the host's clients or agents are waiting."""
        if message.plan != self._shared.state.plan_number:
            return
        now = self._shared.now
        since, last = self._waits.get(session.host, (now, now))
        is_again = now - last <= max(AGAIN_NS, 3 * self._last_took_ns())
        self._is_wanted = True
        self._waits[session.host] = (since if is_again else now, now)

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch."""
        self._snapshots.on_begin_ended(result)
        self._modes.mode.on_begin_ended(result)

    def evaluate(self) -> None:
        """Begin an epoch if one is due and allowed."""
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
        """Return whether an epoch is due and the store can accept it. If the store cannot accept an epoch that is due, count a skipped
        trigger."""
        if not self._period.is_over() or self._moves.is_moving:
            return self._is_early()
        is_allowed = self._store.allows_trigger()
        if is_allowed and not self._open_epochs.is_storing:
            return True
        self.skipped += 1
        return False

    def _is_early(self) -> bool:
        """Return whether a client, a move or the fleet's end is waiting for an epoch, and enough time has passed since the last one."""
        is_wanted = self._is_wanted or self._moves.wants_epoch or self._stop_question.wants_epoch
        if not is_wanted or self._shared.now < self._early_ns or self._open_epochs.is_storing:
            return False
        return self._store.allows_trigger()

    def _is_overdue(self) -> bool:
        now = self._shared.now
        return self._is_wanted and any(now - since >= OVERDUE_NS for since, _ in self._waits.values())

    def _is_end_overdue(self) -> bool:
        """Return whether the fleet's end has been waiting for an epoch for at least OVERDUE_NS."""
        if not self._stop_question.wants_epoch:
            self._end_ns = None
            return False
        self._end_ns = self._shared.now if self._end_ns is None else self._end_ns
        return self._shared.now - self._end_ns >= OVERDUE_NS

    def _last_took_ns(self) -> int:
        """Return the duration, in nanoseconds, of the newest complete epoch, or 0 if no epoch is complete."""
        newest = self._shared.state.image.epochs.get(self._shared.state.newest_complete())
        return 0 if newest is None else max(0, newest.ended_ns - newest.begun_ns)


EPOCH_TIMEOUT_NS = 60 * SECOND_NS
"""Default timeout of an epoch, in nanoseconds, which is several times the longest expected turn."""


class Epochs:
    """Manager of open epochs, which follows the replicated state and decides whether epochs complete or abort."""

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
        """Return the outcomes of all ended epochs after `epoch`, to be sent to a host that has just reconnected."""
        return [
            EndEpoch(x.epoch, x.is_complete, x.reason)
            for x in self._shared.state.image.outcomes
            if x.epoch > epoch and x.epoch not in self._publisher.unpublished and self._open_epochs.get(x.epoch) is None
        ]

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_report(self, session: HostSession, report: EpochReport) -> None:
        """Handle a host's report that it has durably stored its part of an epoch."""
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
        """Fail the epoch because a host cannot take part in it. If the host's refusal is final, end the fleet."""
        entry = self._open_epochs.get(message.epoch)
        reason = f"host {session.host}: {message.reason}"
        if entry is not None and isinstance(entry.stage, (*WAITING, Failing)):
            self._open_epochs.fail_to_store(entry, reason)
            self._shared.note("warning", f"epoch {message.epoch} is refused: {reason}")
        if message.is_final:
            self._shared.end(0, "failed", op.clip(f"no epoch can complete: {reason}"))

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Follow the replicated state: drop ended epochs, open new ones, advance the open ones, and publish complete ones."""
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
        """Fail an epoch that has exceeded its timeout. If the epoch was being stored, count the timeout as a failure of the store."""
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


def add_report(account: EpochAccount | None, host: str, report: EpochReport, *, after_ns: int) -> EpochAccount:
    """Add a host's report to the epoch's time account, and return the new account."""
    known = account or EpochAccount()
    times = PartTimes(
        host=host,
        agent=report.slowest,
        after_ns=after_ns,
        start_delay_ns=report.start_delay_ns,
        capture_ns=report.slowest_capture_ns,
        alignment_ns=report.alignment_ns,
        store_ns=report.store_ns,
    )
    is_latest = known.late is None or times.recorded_ns > known.late.recorded_ns
    return EpochAccount(
        reports=known.reports + 1,
        new_bytes=known.new_bytes + (report.new_bytes or report.pack.size_bytes),
        last=times,
        late=times if is_latest else known.late,
    )


FORGET_AT_ONCE = 5
"""Number of old epochs that are forgotten together, so that they share one log entry and one pass over the directories."""

SETTLED_EPOCHS = 1000
"""Number of epochs after the start of a plan from which on no undone turn is expected to run again. Far fewer epochs lie between a recovery
line and its failure, so all undone work has been redone by then."""

SWEEP_NS = 30 * SECOND_NS
"""Time, in nanoseconds, between an aborted epoch and the next sweep. Each sweep lists the store's directories."""

SWEEP_IDLE_NS = 600 * SECOND_NS
"""Time, in nanoseconds, between two sweeps if no epoch aborts. The sweeps delete late writes of hosts that were presumed dead."""


class Retention:
    """Decides when to forget old epochs and when to sweep the store."""

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
        """Sweep at once, because an earlier leader may have died after changing the log but before changing the store."""
        self._sweep_ns, self._aborts_seen = self._shared.now, self._shared.state.image.aborted

    def on_forgotten(self, result: OperationResult) -> None:
        """Delete the files of forgotten epochs after ForgetEpochs is committed."""
        self._publisher.on_forgotten(result.epochs)
        if result.epochs:
            self._shared.out.append(DeleteEpochs(result.epochs))
            if self._shared.state.image.logs:
                self._sweep_logs()

    def evaluate(self) -> None:
        """Forget old epochs, and request a sweep of unreferenced data when it is due."""
        self._forget()
        self._sweep()

    def _forget(self) -> None:
        needed = dict.fromkeys((*self._stop_question.epochs_read, *self._publisher.unpublished))
        candidates = dict.fromkeys((*self._old(), *self._void()))  # a dict, because some epochs are both old and void
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
        """Return the void epochs that may be forgotten. Void epochs are kept until a later epoch is released, because that release must
        revert their outputs."""
        newest, records = self._shared.state.newest_complete(), self._shared.state.image.epochs
        if self._releases.has_unreleased_up_to(newest):
            return []
        return [epoch for epoch, record in records.items() if record.status == VOID and epoch < newest]

    def _sweep(self) -> None:
        """Request the deletion of data that belongs to no epoch.

        Sweeps are slow and run one at a time, so new manifests and refs may be written after the request for a sweep but before it runs.
        The lists of epochs to keep therefore come from the log rather than from volatile state. Epochs complete, open or not yet begun at
        the time of the request are kept.
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
        """Request the deletion of host log entries that no recovery needs: inputs consumed and turns ended in all kept epochs, and
        commits that the second newest epoch covers."""
        state = self._shared.state
        epochs = {epoch: state.image.epochs[epoch].root for epoch in state.complete_epochs()}
        plan = state.plan
        settled_epoch = plan.begun_epoch + SETTLED_EPOCHS if plan is not None else 0
        sweep = SweepLogs(state.plan_number, epochs, state.left_before(), settled_epoch, state.image.era)
        self._shared.out.append(sweep)

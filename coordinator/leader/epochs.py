"""Epochs on their way: triggers, reports, deadlines, manifests, refs, and what is kept of them.

An epoch's life here, between its two operations:

    collecting   BeginEpoch is committed and the hosts know; their reports come in (and come again after a broken stream)
    storing      every host has reported and every channel is covered; packs are read back, the manifest is written
    deciding     CompleteEpoch is on its way. From here on no timeout aborts it

In logged protocols hosts make no epochs: collecting is the koo-toueg round, or nothing, and storing makes the recovery line
an epoch (`line_epochs.py`).

Completed, its ref is published, then the hosts are told, then whoever asked for the snapshot. A crash between the operation and
the ref leaves a decision without a ref: the next leader publishes it, since the ref's bytes follow from the operation.
Collected reports are volatile; hosts repeat them, so a leader's death costs an epoch nothing.

A slow or failing store never stops the agents. While an epoch is being stored a trigger that comes is skipped, so the period
stretches to what the store can do. When epochs fail because of the store, `store_watch.py` says when the next trigger counts.
Epochs by hand, and those that a recovery wants, begin at once.
"""

import msgspec

from snapline.conversation.messages import BeginEpoch, EndEpoch, EpochRefused, EpochReport
from snapline.coordinator.leader.attendance import Attendance, Session
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.epoch_reports import judge
from snapline.coordinator.leader.events import (
    AnswerSnapshot,
    DeleteEpochs,
    EpochPublished,
    LineMaterialised,
    ManifestWritten,
    PublishEpoch,
    SweepStore,
)
from snapline.coordinator.leader.line_epochs import LineEpochs
from snapline.coordinator.leader.lines import Lines
from snapline.coordinator.leader.open_epoch import COLLECTING, DECIDING, STORING, OpenEpoch
from snapline.coordinator.leader.period import Period
from snapline.coordinator.leader.store_watch import StoreWatch
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    CONDEMNED,
    EPOCHS_OPEN_MAX,
    OPEN,
    RECOVERY_TRIGGER,
    RUNNING,
    OperationResult,
)

EPOCH_TIMEOUT_NS = 60 * SECOND_NS
"""If the fleet's definition names none: several times the longest turn that is expected."""

PUBLISH_RETRY_NS = 1 * SECOND_NS
"""A full disk is not emptied faster."""

REQUESTS_MAX = 256
"""Tools waiting for a snapshot; all that wait when an epoch begins share it."""

UNBORN_BYTES_MAX = 48 * 1024
"""Of names in one CompleteEpoch, so that it stays below 64 KiB."""

FORGET_AT_ONCE = 5
"""Old epochs are forgotten by so many at a time: one entry of the log and one pass over the directories for all of them."""

SWEEP_NS = 30 * SECOND_NS
"""Between two sweeps of the store while epochs abort; each lists its directories."""

SWEEP_IDLE_NS = 600 * SECOND_NS
"""Between two sweeps otherwise: finds what a host that was thought dead wrote late."""


class Epochs:
    """Epochs on their way.

    Attributes:
        skipped: triggers that came while an epoch was being stored, four were open, another one was about to begin, or the
            store failed.
        store: the store's health.
        in_use: epochs that must not be forgotten just now, since a host reads them.
        is_held: a plan is wanted: no epoch begins but for its sake.
        recovery_failures: epochs before the next plan that could not be stored.
    """

    def __init__(self, desk: Desk, attendance: Attendance, lines: Lines, line_epochs: LineEpochs) -> None:
        self._desk = desk
        self._attendance = attendance
        self._lines = lines
        self._line_epochs = line_epochs
        self._period = Period(desk)
        self.store = StoreWatch(desk, attendance, self._period)
        self._open: dict[int, OpenEpoch] = {}
        self._unpublished: dict[int, int] = {}
        """Complete epochs without a ref, as far as known: epoch → when to try again; 0 = it is being tried."""
        self._requests: list[int] = []
        self._assigned: list[int] = []
        self._waiting: dict[int, list[int]] = {}
        self._sweep_ns = 0
        self._aborted = 0
        self.skipped = 0
        self.in_use: tuple[int, ...] = ()
        self.is_held = False
        self.recovery_failures = 0

    # ---- questions ------------------------------------------------------------------------------------------------

    def newest_published(self) -> int:
        """The newest epoch that is complete, not condemned, and has its ref; 0 = none."""
        for epoch in reversed(self._desk.state.complete_epochs()):
            if epoch not in self._unpublished:
                return epoch
        return 0

    @property
    def is_settled(self) -> bool:
        """Whether every complete epoch has its ref, and nobody waits."""
        return not self._unpublished and not self._waiting and not self._requests

    def next_trigger_ns(self) -> int:
        """When the next epoch is due; 0 = not known."""
        return self._period.next_ns

    def directives_for(self, host: str, plan_begun: int) -> list[BeginEpoch | EndEpoch]:
        """What a host that has just come back must hear: what has ended under this plan, then what is open."""
        ended: list[BeginEpoch | EndEpoch] = [
            EndEpoch(x.epoch, x.is_complete, x.reason)
            for x in self._desk.state.image.outcomes
            if x.epoch > plan_begun and x.epoch not in self._unpublished and x.epoch not in self._open
        ]
        if self._desk.state.is_logged:
            return ended
        number = self._desk.state.plan_number
        return ended + [BeginEpoch(x.epoch, number, tuple(x.hosts)) for x in self._open.values() if host in x.hosts]

    # ---- what is heard --------------------------------------------------------------------------------------------

    def on_started(self) -> None:
        """Nothing is known of refs: every complete epoch is published again."""
        self._unpublished = dict.fromkeys(self._desk.state.complete_epochs(), self._desk.now)
        self._unpublished = {epoch: max(1, at) for epoch, at in self._unpublished.items()}
        self._sweep_ns = self._desk.now
        self._aborted = -1

    def on_report(self, session: Session, report: EpochReport) -> None:
        """A host's part of an epoch is durable."""
        entry = self._open.get(report.epoch)
        if report.host_start != session.start:
            return
        if entry is None:
            outcome = self._desk.state.outcome_of(report.epoch)
            if outcome is not None and report.epoch not in self._unpublished:
                self._desk.send((session.id,), EndEpoch(report.epoch, outcome.is_complete, outcome.reason))
        elif entry.stage == COLLECTING and session.host in entry.hosts:
            entry.reports[session.host] = report

    def on_refused(self, session: Session, message: EpochRefused) -> None:
        """A host cannot take part in an epoch."""
        entry = self._open.get(message.epoch)
        reason = f"host {session.host}: {message.reason}"
        if entry is not None and entry.stage == COLLECTING:
            self._give_up(entry, reason)
            self._desk.note("warning", f"epoch {message.epoch} is refused: {reason}")
        if message.is_final:
            self._desk.end(0, "failed", op.clip(f"no epoch can complete: {reason}"))

    def on_requested(self, request: int) -> None:
        """A tool wants a snapshot."""
        self._requests.append(request)
        if len(self._requests) > REQUESTS_MAX:
            self._refuse_requests(f"{REQUESTS_MAX} others are waiting for a snapshot")

    def on_manifest_written(self, event: ManifestWritten) -> None:
        """The manifest is durable, or the epoch fails."""
        entry = self._open.get(event.epoch)
        if entry is None or entry.stage != STORING:
            return
        if event.error:
            self._give_up(entry, f"it could not be stored: {event.error}")
            entry.stage = COLLECTING
            self._desk.note("error", f"epoch {event.epoch}: {entry.problem}")
        else:
            assert entry.manifest is not None, "storing without a manifest"
            manifest = entry.manifest
            unborn = tuple([x.agent for x in manifest.agents if x.is_unborn])
            sizes = (manifest.state_bytes, manifest.channel_state_bytes, manifest.channel_state_messages)
            self._decide(entry, op.CompleteEpoch(entry.epoch, event.root, unborn, *sizes))

    def on_line_materialised(self, event: LineMaterialised) -> None:
        """The line is an epoch, or the epoch fails."""
        entry = self._open.get(event.epoch)
        if entry is None or entry.stage != STORING:
            return
        if not event.error and not event.damaged_path:
            sizes = (event.state_bytes, event.channel_state_bytes, event.channel_state_messages)
            self._lines.on_materialised(event)
            self._decide(entry, op.CompleteEpoch(entry.epoch, event.root, event.unborn, *sizes))
            return
        problem = f"its line could not be stored: {event.error or event.damaged_path}"
        entry.stage = COLLECTING
        self._desk.note("error", f"epoch {event.epoch}: {problem}")
        if event.damaged_path:
            entry.problem = problem
            self._lines.on_damaged(event)
        else:
            self._give_up(entry, problem)
            self.recovery_failures += entry.trigger == RECOVERY_TRIGGER
            self._line_epochs.on_failed()

    def _decide(self, entry: OpenEpoch, completion: op.CompleteEpoch) -> None:
        if sum(len(agent) + 4 for agent in completion.unborn_agents) > UNBORN_BYTES_MAX:
            entry.problem = f"{len(completion.unborn_agents)} agents are unborn in it: too many at once"
            entry.stage = COLLECTING
        else:
            entry.completion, entry.stage = completion, DECIDING

    def on_published(self, event: EpochPublished) -> None:
        """The ref is there, or not."""
        epoch = event.epoch
        if epoch not in self._unpublished:
            return
        if event.is_final:
            self._desk.end(0, "failed", op.clip(event.error))
            self._unpublished[epoch] = self._desk.now + PUBLISH_RETRY_NS
        elif event.damaged_path:
            self._desk.condemn(epoch, event.damaged_path, event.error)
            self._unpublished[epoch] = self._desk.now + PUBLISH_RETRY_NS
        elif event.error:
            self.store.failed(epoch, f"the ref of epoch {epoch} cannot be written: {event.error}", is_news=True)
            self._unpublished[epoch] = self._desk.now + PUBLISH_RETRY_NS
        else:
            del self._unpublished[epoch]
            self.store.stored(epoch)
            self._tell_end(epoch, is_complete=True, reason="")
            self._lines.on_published(epoch)

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """BeginEpoch came back: those who asked wait for that epoch, or ask again."""
        requests, self._assigned = self._assigned, []
        self._line_epochs.on_begin_ended(result)
        if result is None or result.is_refused:
            self._requests = requests + self._requests
        elif requests:
            self._waiting[result.number] = requests

    def on_forgotten(self, result: OperationResult) -> None:
        """ForgetEpochs is committed: the files may go."""
        for epoch in result.epochs:
            self._unpublished.pop(epoch, None)
        if result.epochs:
            self._desk.out.append(DeleteEpochs(result.epochs))

    # ---- deciding -------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Compare with the state, and do what is due."""
        self._line_epochs.evaluate()
        self._end_what_ended()
        self._open_what_began()
        for entry in list(self._open.values()):
            self._move_on(entry)
        self._publish()
        self.store.evaluate()
        self._trigger()
        self._forget()
        self._sweep()

    def _open_what_began(self) -> None:
        state = self._desk.state
        plan = state.plan
        if state.is_logged and self._desk.is_on_its_way("begin"):
            return  # Is it ours? Its answer will tell.
        for epoch in state.open_epochs():
            if epoch not in self._open and plan is not None:
                timeout = state.image.epoch_timeout_ns or EPOCH_TIMEOUT_NS
                entry = self._open[epoch] = OpenEpoch(epoch, list(plan.hosts), self._desk.now + timeout)
                self.store.begun(epoch)
                if state.is_logged:
                    self._start_line(entry)
                    continue
                sessions = self._attendance.sessions_of(plan.hosts)
                self._desk.send(sessions, BeginEpoch(epoch, plan.number, tuple(plan.hosts)))

    def _start_line(self, entry: OpenEpoch) -> None:
        entry.trigger = self._desk.state.image.epochs[entry.epoch].trigger
        entry.problem = self._line_epochs.start(entry.epoch)
        if not entry.problem and self._desk.state.is_autonomous:
            entry.stage = STORING

    def _end_what_ended(self) -> None:
        image = self._desk.state.image
        for epoch in list(self._open):
            record = image.epochs.get(epoch)
            if record is not None and record.status == OPEN:
                continue
            entry = self._open.pop(epoch)
            if self._desk.state.is_logged:
                self._line_epochs.on_ended(epoch, entry.trigger, is_complete=record is not None)
            if record is not None:
                self._unpublished[epoch] = max(1, self._desk.now)
            else:
                self.store.ended(epoch)
        for epoch in list(self._unpublished):
            record = image.epochs.get(epoch)
            if record is None or record.status == CONDEMNED:
                del self._unpublished[epoch]
                self.store.ended(epoch)
                self._tell_end(epoch, is_complete=record is not None, reason="condemned")
        self._tell_aborts()

    def _tell_aborts(self) -> None:
        image = self._desk.state.image
        if self._aborted < 0:
            self._aborted = image.aborted
        fresh = image.aborted - self._aborted
        self._aborted = image.aborted
        if fresh:
            aborts = [x for x in image.outcomes if not x.is_complete][-fresh:]
            for outcome in aborts:
                self._desk.note("warning", f"epoch {outcome.epoch} is aborted: {outcome.reason}")
                self._tell_end(outcome.epoch, is_complete=False, reason=outcome.reason)
            self._sweep_ns = min(self._sweep_ns, self._desk.now + SWEEP_NS)
        for epoch in list(self._waiting):
            outcome_or_none = self._desk.state.outcome_of(epoch)
            if outcome_or_none is not None and epoch not in self._unpublished and epoch not in self._open:
                self._answer(epoch, is_complete=outcome_or_none.is_complete, reason=outcome_or_none.reason)

    def _tell_end(self, epoch: int, *, is_complete: bool, reason: str) -> None:
        self._desk.send(self._attendance.all_sessions(), EndEpoch(epoch, is_complete, reason))
        self._answer(epoch, is_complete=is_complete, reason=reason)

    def _answer(self, epoch: int, *, is_complete: bool, reason: str) -> None:
        record = self._desk.state.image.epochs.get(epoch)
        root = record.root if record is not None and is_complete else ""
        for request in self._waiting.pop(epoch, []):
            self._desk.out.append(AnswerSnapshot(request, epoch, is_complete, reason, root))

    def _move_on(self, entry: OpenEpoch) -> None:
        epoch, key = entry.epoch, f"epoch/{entry.epoch}"
        if entry.stage == DECIDING:
            self._complete(entry)
        elif entry.problem:
            self._desk.propose(key, op.AbortEpoch(epoch, op.clip(entry.problem)))
        elif self._desk.now >= entry.deadline_ns:
            self._time_out(entry)
        elif self._desk.state.is_logged:
            if entry.stage == COLLECTING:
                self._follow_round(entry)
        elif entry.stage == COLLECTING and len(entry.reports) == len(entry.hosts):
            self._judge(entry)

    def _give_up(self, entry: OpenEpoch, problem: str) -> None:
        """The epoch fails because of the store; the first reason counts."""
        if not entry.problem:
            entry.problem = problem
            self.store.failed(entry.epoch, problem)

    def _time_out(self, entry: OpenEpoch) -> None:
        """The epoch has taken too long: because of the store, if that is what it waits for."""
        is_waiting = entry.stage == COLLECTING and not self._desk.state.is_logged
        absent = [host for host in entry.hosts if host not in entry.reports] if is_waiting else []
        storing = [host for host in absent if self.store.is_storing(host)]
        waited = f"no report of {', '.join(absent)}" if absent else f"it is still {entry.stage}"
        problem = f"not complete in time: {waited}{' (still storing)' if storing else ''}"
        if storing or entry.stage == STORING:
            self._give_up(entry, problem)
        entry.problem = problem
        self._desk.propose(f"epoch/{entry.epoch}", op.AbortEpoch(entry.epoch, op.clip(problem)))

    def _follow_round(self, entry: OpenEpoch) -> None:
        """A round asks on, or its line is to be stored. It ends if a host cannot store: its agents would stay blocked."""
        if reason := self.store.host_problem(entry.hosts):
            self._give_up(entry, f"it could not be stored: {reason}")
            return
        entry.problem = self._line_epochs.problem()
        entry.stage = COLLECTING if self._line_epochs.is_collecting(entry.epoch) else STORING

    def _judge(self, entry: OpenEpoch) -> None:
        plan = self._desk.state.plan
        assert plan is not None, "an epoch is open without a plan"
        reports = {host: entry.reports[host] for host in entry.hosts}
        verdict = judge(self._desk.state, plan, entry.epoch, reports)
        if verdict.manifest is not None:
            entry.stage, entry.manifest = STORING, msgspec.structs.replace(verdict.manifest, bases=self._bases())
            entry.reports = {}
            self._desk.out.append(entry.manifest)
            return
        entry.problem = verdict.problem
        level = "error" if verdict.is_alarm else "warning"
        self._desk.note(level, f"epoch {entry.epoch} is NOT consistent and is aborted: {verdict.problem}")
        self._desk.propose(f"epoch/{entry.epoch}", op.AbortEpoch(entry.epoch, op.clip(entry.problem)))

    def _bases(self) -> dict[int, str]:
        """The epochs whose chunks a new one may reuse."""
        state = self._desk.state
        return {epoch: state.image.epochs[epoch].root for epoch in state.complete_epochs()}

    def _complete(self, entry: OpenEpoch) -> None:
        assert entry.completion is not None, "deciding without a root"
        self._desk.propose(f"epoch/{entry.epoch}", entry.completion)

    def _publish(self) -> None:
        for epoch, at in self._unpublished.items():
            if 0 < at <= self._desk.now:
                self._unpublished[epoch] = 0
                self._desk.out.append(PublishEpoch(epoch, self._desk.state.image.epochs[epoch].root))

    # ---- triggers -------------------------------------------------------------------------------------------------

    def _trigger(self) -> None:
        state, desk = self._desk.state, self._desk
        if state.phase != RUNNING or desk.ending is not None:
            self._period.stop()
            phase = "ending" if state.phase == RUNNING else state.phase
            self._refuse_requests(f"the fleet is {phase}: snapshots are taken while it runs")
            return
        is_due = self._is_due()
        if state.is_logged:
            self._trigger_line(is_due=is_due)
            return
        if not is_due and not self._requests:
            return
        if desk.is_on_its_way("begin"):
            self.skipped += is_due
        elif len(state.open_epochs()) >= EPOCHS_OPEN_MAX:
            self.skipped += is_due + len(self._requests)
            self._refuse_requests(f"{EPOCHS_OPEN_MAX} epochs are open: try again when one has ended")
        elif desk.propose("begin", op.BeginEpoch(state.image.begun, "hand" if self._requests else "period")):
            self._assigned, self._requests = self._requests, []

    def _trigger_line(self, *, is_due: bool) -> None:
        # Every host must have heard how a round ended before it is asked in the next one.
        is_round_told = self._desk.state.is_autonomous or not self._unpublished
        if self.is_busy or not is_round_told:
            self.skipped += is_due
            return
        is_asked = bool(self._requests)
        # A freeze for the logs that has begun must go on to its end, even if its epoch comes to nothing.
        is_wanted = not self.is_held and (is_asked or self._line_epochs.is_freezing or self.store.allows())
        trigger = self._line_epochs.trigger(is_asked=is_asked, is_due=is_due) if is_wanted else ""
        if trigger:
            if self._line_epochs.propose(trigger):
                self._assigned, self._requests = self._requests, []
        elif self._requests and not self.is_held and self._lines.is_settled:
            self._answer_with_base(self._line_epochs.base_for_requests())

    def _answer_with_base(self, base: int) -> None:
        """The line has not moved: the newest epoch is the snapshot that is asked for."""
        if base < 0:
            return
        requests, self._requests = self._requests, []
        self._waiting[base] = self._waiting.get(base, []) + requests
        if base not in self._unpublished:
            self._answer(base, is_complete=True, reason=self._line_epochs.why_base())

    def begin_recovery(self) -> None:
        """The hosts are frozen and a plan is wanted: make what survives an epoch, unless one is on its way."""
        if not self.is_busy:
            self._line_epochs.propose(RECOVERY_TRIGGER)

    @property
    def is_busy(self) -> bool:
        """Whether an epoch is open, or about to be."""
        return bool(self._desk.state.open_epochs()) or self._desk.is_on_its_way("begin")

    def _is_due(self) -> bool:
        """Is the period over, and can the store take another epoch? If it cannot, the trigger is skipped."""
        if not self._period.is_over():
            return False
        is_allowed = self.store.allows_trigger()
        if is_allowed and not any(entry.stage == STORING for entry in self._open.values()):
            return True
        self.skipped += 1
        return False

    def _refuse_requests(self, reason: str) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            self._desk.out.append(AnswerSnapshot(request, 0, False, reason, ""))

    # ---- keeping and forgetting -----------------------------------------------------------------------------------

    def _forget(self) -> None:
        state = self._desk.state
        complete = state.complete_epochs()
        keep = max(2, self._desk.options.keep_epochs)
        if state.phase != RUNNING or len(complete) < keep + FORGET_AT_ONCE:
            return
        oldest_kept = complete[-keep]
        old = tuple(
            [
                epoch
                for epoch, record in state.image.epochs.items()
                if epoch < oldest_kept
                and record.status != OPEN
                and epoch not in self.in_use
                and epoch not in self._unpublished
            ]
        )
        if old:
            self._desk.propose("forget", op.ForgetEpochs(old))

    def _sweep(self) -> None:
        """Delete what can be no epoch any more.

        Sweeps are slow and wait for each other: manifests may be written and refs published before one is carried out. So its
        lists are the log's, not this leader's: whatever is complete, open or not begun yet when it is asked for is spared.
        """
        image, now = self._desk.state.image, self._desk.now
        if now < self._sweep_ns or any(entry.stage != COLLECTING for entry in self._open.values()):
            return
        self._sweep_ns = now + SWEEP_IDLE_NS
        kept = tuple([epoch for epoch, record in image.epochs.items() if record.status != OPEN])
        undecided = (*self._desk.state.open_epochs(), *self._unpublished)
        self._desk.out.append(SweepStore(kept, undecided, image.begun))

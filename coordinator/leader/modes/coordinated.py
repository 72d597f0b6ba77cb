"""Epochs that the hosts make (chandy-lamport): all receive BeginEpoch, each reports its part, and a manifest combines the parts.

Several epochs may be open at once. A plan starts from the newest complete one; no agent keeps a live state.
"""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import (
    Collecting,
    OpenEpoch,
    OpenEpochs,
    ReportedChannels,
    Stage,
    StoringManifest,
)
from snapline.coordinator.leader.events import ManifestWritten
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import Begun, Declined, EpochDemand, Later, LossReport
from snapline.coordinator.leader.modes.epoch_reports import judge
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import EPOCHS_OPEN_MAX, OperationResult, PlanRecord
from snapline.messages.host_messages import BeginEpoch, RetireAgent


class Coordinated:
    """Mode of fleets whose hosts make epochs."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, open_epochs: OpenEpochs) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._open_epochs = open_epochs
        self._reported_channels: ReportedChannels | None = None

    def evaluate(self) -> None:
        """Do nothing between epochs."""

    # ---- begin ----------------------------------------------------------------------------------------------------

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Declined | None:
        """Propose one epoch at a time, unless EPOCHS_OPEN_MAX are open."""
        shared, state = self._shared, self._shared.state
        if not demand.is_due and not demand.is_asked:
            return None
        if shared.is_pending("begin"):
            return Later()
        if len(state.open_epochs()) >= EPOCHS_OPEN_MAX:
            return Declined(f"{EPOCHS_OPEN_MAX} epochs are open: try again when one has ended")
        begin = op.BeginEpoch(state.image.begun, "hand" if demand.is_asked else "period")
        return Begun() if shared.propose("begin", begin) else None

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Do nothing: the state shows the new epoch."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage:
        """Send BeginEpoch to the hosts."""
        base = (
            self._reported_channels
            if self._reported_channels is not None and self._reported_channels.plan == plan.number
            else None
        )
        self._shared.send(self._host_sessions.sessions_of(plan.hosts), self._begin(epoch, plan.hosts, base))
        return Collecting(told=base)

    def _begin(self, epoch: int, hosts: Sequence[str], told: ReportedChannels | None) -> BeginEpoch:
        state = self._shared.state
        told_epoch = told.epoch if told is not None else 0
        return BeginEpoch(epoch, state.plan_number, tuple(hosts), state.newest_complete(), told_epoch)

    def directives_for(self, host: str) -> Sequence[BeginEpoch]:
        """Return BeginEpoch for each open epoch of the host."""
        entries = [self._open_epochs.get(epoch) for epoch in self._shared.state.open_epochs()]
        host_entries = [entry for entry in entries if entry is not None and host in entry.hosts]
        return [self._begin(entry.epoch, entry.hosts, _reported_channels_in(entry.stage)) for entry in host_entries]

    # ---- reports --------------------------------------------------------------------------------------------------

    def collect(self, entry: OpenEpoch) -> None:
        """Judge the epoch once every host has reported, including repeated reports."""
        stage = entry.stage
        if isinstance(stage, Collecting) and len(stage.reports) == len(entry.hosts) and not stage.asked_again:
            self._check_reports(entry, stage)

    def _check_reports(self, entry: OpenEpoch, stage: Collecting) -> None:
        plan = self._shared.state.plan
        assert plan is not None, "an epoch is open without a plan"
        reports = {host: stage.reports[host] for host in entry.hosts}
        verdict = judge(self._shared.state, plan, entry.epoch, reports, stage.told)
        if verdict.is_open:
            self._ask_again(entry, stage)
            return
        if verdict.manifest is None:
            if verdict.is_alarm:
                self._shared.note("error", f"epoch {entry.epoch} is NOT consistent: {verdict.problem}")
            self._open_epochs.fail(entry, verdict.problem)
            return
        manifest = msgspec.structs.replace(verdict.manifest, bases=self._bases())
        entry.stage = StoringManifest(manifest)
        self._reported_channels = verdict.told
        self._shared.out.append(manifest)

    def _ask_again(self, entry: OpenEpoch, stage: Collecting) -> None:
        """Request full reports from the hosts that have left channels out."""
        stage.told = None
        stage.asked_again = {host for host, report in stage.reports.items() if report.since}
        begin = msgspec.structs.replace(self._begin(entry.epoch, entry.hosts, None), again=True)
        self._shared.send(self._host_sessions.sessions_of(sorted(stage.asked_again)), begin)

    def _bases(self) -> dict[int, str]:
        """Return the epochs whose chunks a new one may reuse."""
        state = self._shared.state
        return {epoch: state.image.epochs[epoch].root for epoch in state.complete_epochs()}

    def on_manifest_written(self, event: ManifestWritten) -> None:
        """Decide the epoch once its manifest is durable, or fail it. A damaged base is condemned: otherwise every later epoch would fail too."""
        if event.damaged_base:
            self._shared.condemn(event.damaged_base, event.damaged_path, event.error)
        entry = self._open_epochs.get(event.epoch)
        if entry is None or not isinstance(entry.stage, StoringManifest):
            return
        if event.error:
            problem = f"it could not be stored: {event.error}"
            self._open_epochs.fail_to_store(entry, problem)
            self._shared.note("error", f"epoch {event.epoch}: {problem}")
            return
        manifest = entry.stage.manifest
        unborn = tuple([x.agent for x in manifest.agents if x.is_unborn])
        sizes = (manifest.state_bytes, manifest.channel_state_bytes, manifest.channel_state_messages)
        self._open_epochs.decide(entry, op.CompleteEpoch(entry.epoch, event.root, unborn, *sizes))

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """Do nothing: the mode keeps no state of an epoch."""

    # ---- plans and agents -------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Return True: the line is the newest complete epoch."""
        return True

    def on_plan_ended(self) -> None:
        """Do nothing: no epoch was made for the plan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return the losses: all living agents go back."""
        return LossReport(len(list(self._shared.state.living_agents())))

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent:
        """Return the removal: the agent leaves at once, but open epochs still have it."""
        return op.RemoveAgent(session.host, session.start, message.plan, message.agent)


def _reported_channels_in(stage: Stage) -> ReportedChannels | None:
    return stage.told if isinstance(stage, Collecting) else None

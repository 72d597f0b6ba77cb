"""Coordinated epochs (Chandy-Lamport): all hosts receive BeginEpoch and report their parts, which the leader combines into a manifest.

Several coordinated epochs may be open at once. Every recovery plan starts from the newest complete epoch, and no agent keeps its live
state.

*Check of the reports.* The hosts' reports must include all members and cover all channels. The leader checks the reports by rule 6 of
`docs/protocols.md`, 2.2, applied to the columns in several hosts' reports. An epoch that passes this check is complete in the sense of G1
and G2. The store separately checks that the epoch is durable and complete (G4).

A report may be relative to an earlier epoch: it then omits all channels that have not changed since that epoch. Relative reports require
that the earlier epoch had the same members, and that all its channels connect members. In the earlier epoch, the sender's and the
receiver's reports agreed on every channel. A channel is therefore covered if both reports omit it, but not if only one of them lists a
change. If relative reports do not prove that all channels are covered, the leader requests full reports.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import add

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import (
    Channels,
    Collecting,
    OpenEpoch,
    OpenEpochs,
    ReportedChannels,
    Stage,
    StoringManifest,
)
from snapline.coordinator.leader.events import ManifestAgent, ManifestWritten, WriteManifest
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.modes.checkpoint_modes import Begun, Declined, EpochDemand, Later, LossReport
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import EPOCHS_OPEN_MAX, OperationResult, PlanRecord
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import BeginEpoch, EpochReport, ReportedPack, RetireAgent
from snapline.protocols.epoch_stamped import AgentReport, check_coverage


class Coordinated:
    """Checkpoint mode of fleets with coordinated epochs."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, open_epochs: OpenEpochs) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._open_epochs = open_epochs
        self._reported_channels: ReportedChannels | None = None

    def evaluate(self) -> None:
        """Do nothing, because this mode has no work to do between epochs."""

    # ---- begin ----------------------------------------------------------------------------------------------------

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Declined | None:
        """Propose an epoch if one is due or requested, unless a BeginEpoch is pending or EPOCHS_OPEN_MAX epochs are open."""
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
        """Do nothing, because the replicated state shows the new epoch."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage:
        """Send BeginEpoch to the hosts."""
        base = (
            self._reported_channels
            if self._reported_channels is not None and self._reported_channels.plan == plan.number
            else None
        )
        self._shared.send(self._host_sessions.sessions_of(plan.hosts), self._begin(epoch, plan.hosts, base))
        return Collecting(reported=base)

    def _begin(self, epoch: int, hosts: Sequence[str], reported: ReportedChannels | None) -> BeginEpoch:
        state = self._shared.state
        reported_epoch = reported.epoch if reported is not None else 0
        return BeginEpoch(epoch, state.plan_number, tuple(hosts), state.newest_complete(), reported_epoch)

    def directives_for(self, host: str) -> Sequence[BeginEpoch]:
        """Return BeginEpoch for each open epoch in which the host takes part."""
        entries = [self._open_epochs.get(epoch) for epoch in self._shared.state.open_epochs()]
        host_entries = [entry for entry in entries if entry is not None and host in entry.hosts]
        return [self._begin(entry.epoch, entry.hosts, _reported_channels_in(entry.stage)) for entry in host_entries]

    # ---- reports --------------------------------------------------------------------------------------------------

    def collect(self, entry: OpenEpoch) -> None:
        """Check the epoch once every host has reported and no requested full report is outstanding."""
        stage = entry.stage
        if isinstance(stage, Collecting) and len(stage.reports) == len(entry.hosts) and not stage.asked_again:
            self._check_reports(entry, stage)

    def _check_reports(self, entry: OpenEpoch, stage: Collecting) -> None:
        plan = self._shared.state.plan
        assert plan is not None, "an epoch is open without a plan"
        reports = {host: stage.reports[host] for host in entry.hosts}
        verdict = judge(self._shared.state, plan, entry.epoch, reports, stage.reported)
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
        self._reported_channels = verdict.reported
        self._shared.out.append(manifest)

    def _ask_again(self, entry: OpenEpoch, stage: Collecting) -> None:
        """Request a full report from each host that sent a relative report."""
        stage.reported = None
        stage.asked_again = {host for host, report in stage.reports.items() if report.since}
        begin = msgspec.structs.replace(self._begin(entry.epoch, entry.hosts, None), again=True)
        self._shared.send(self._host_sessions.sessions_of(sorted(stage.asked_again)), begin)

    def _bases(self) -> dict[int, str]:
        """Return the roots of the epochs whose chunks a new epoch may reuse, by epoch number."""
        state = self._shared.state
        return {epoch: state.image.epochs[epoch].root for epoch in state.complete_epochs()}

    def on_manifest_written(self, event: ManifestWritten) -> None:
        """Move the epoch to Deciding if its manifest is durable, otherwise fail it.

        If a base epoch is damaged, condemn it, because otherwise every later epoch would fail too.
        """
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
        """Do nothing, because this mode keeps no state about an epoch."""

    # ---- plans and agents -------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Return True, because the recovery line is always the newest complete epoch."""
        return True

    def on_plan_ended(self) -> None:
        """Do nothing, because no epoch was made for the plan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan loses: in this mode, all living agents lose their live state."""
        return LossReport(len(list(self._shared.state.living_agents())))

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent:
        """Return an operation that removes the agent at once. Epochs that are already open still include the agent."""
        return op.RemoveAgent(session.host, session.start, message.plan, message.agent)


def _reported_channels_in(stage: Stage) -> ReportedChannels | None:
    return stage.reported if isinstance(stage, Collecting) else None


SHOWN_MAX = 5
"""Largest number of channels or agents that a reason names. Further channels or agents are only counted."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The result of checking an epoch.

    Attributes:
        manifest: the manifest to store; None if the epoch cannot be stored.
        problem: why the epoch must be aborted; "" if there is no reason.
        is_alarm: whether the reports violate the protocol in a way that no crash or timeout can explain.
        is_open: whether full reports are needed, because the relative reports do not prove coverage.
        reported: channels on which later relative reports may be based; None if there are none.
    """

    manifest: WriteManifest | None = None
    problem: str = ""
    is_alarm: bool = False
    is_open: bool = False
    reported: ReportedChannels | None = None


def judge(
    state: FleetView,
    plan: PlanRecord,
    epoch: int,
    reports: Mapping[str, EpochReport],
    earlier: ReportedChannels | None = None,
) -> Verdict:
    """Check an epoch after every host has reported. `reports` contains each host's report, which is either full or relative to
    `earlier`."""
    packs: list[ReportedPack] = []
    lines: dict[str, ManifestAgent] = {}
    members = dict.fromkeys(state.members_of(epoch))
    for host, report in reports.items():
        problem = _shape_problem(report)
        if problem:
            return Verdict(problem=f"the report of host {host} is wrong: {problem}", is_alarm=True)
        if report.pack.path:
            packs.append(report.pack)
        problem = _take_agents(state, epoch, host, report, len(packs) - 1, members, lines)
        if problem:
            return Verdict(problem=problem, is_alarm=True)
    absent = [agent for agent in members if agent not in lines]
    if absent:
        # A crash cannot cause this, because a host sends no markers until the creation of its agents is committed.
        return Verdict(problem=f"no report on {_summarise_names(absent)}", is_alarm=True)
    reported = (
        _find_reported_channels(plan.number, epoch, reports, lines, earlier) if len(lines) == len(members) else None
    )
    if reported is not None:
        channels = list(reported.channels)
    elif any(report.since for report in reports.values()):
        return Verdict(is_open=True)
    else:
        columns: dict[str, AgentReport] = {}
        for report in reports.values():
            _take_channels(report, columns)
        verdict = _check_coverage(state, epoch, reports, lines, columns)
        if verdict is not None:
            return verdict
        lines = _drop_unreferenced_unborn(members, lines, columns)
        channels = [(sender, receiver) for sender, entry in columns.items() for receiver in entry.sent]
    return Verdict(_manifest(state, plan, epoch, reports, packs, lines, channels), reported=reported)


def _find_reported_channels(
    plan: int,
    epoch: int,
    reports: Mapping[str, EpochReport],
    lines: Mapping[str, ManifestAgent],
    earlier: ReportedChannels | None,
) -> ReportedChannels | None:
    """Return the channels if each is exactly covered and connects two members. Return None if only the full check can decide."""
    against = {report.since for report in reports.values()}
    if against == {0}:
        earlier = None
    elif earlier is None or not against <= {0, earlier.epoch} or earlier.members != lines.keys():
        return None
    channels = _covered_channels(reports, lines, earlier.channels if earlier is not None else {})
    if channels is None:
        return None
    members = earlier.members if earlier is not None else frozenset(lines)
    return ReportedChannels(epoch, plan, members, channels)


def _covered_channels(
    reports: Mapping[str, EpochReport], lines: Mapping[str, ManifestAgent], known: Channels
) -> Channels | None:
    """Return `known` updated with all reported changes, if sender and receiver have reported the same number for every channel. Return
    None if only the full check can decide.

    This function runs up to ten times per second with several thousand channels, and usually needs no full check. Its loops therefore run
    in C: they fill and compare two dictionaries that map (sender, receiver) to a number.
    """
    sent: dict[tuple[str, str], int] = {}
    received: dict[tuple[str, str], int] = {}
    for report in reports.values():
        names = report.names
        if not all(names[index] in lines for index in {*report.sent_from, *report.received_to}):
            return None
        name = names.__getitem__
        ends = zip(map(name, report.sent_from), map(name, report.sent_to), strict=True)
        sent_here = zip(ends, report.sent_number, strict=True)
        ends = zip(map(name, report.received_from), map(name, report.received_to), strict=True)
        received_here = zip(ends, map(add, report.received_number, report.recorded_count), strict=True)
        if known and not report.since:
            sent.update([(channel, number) for channel, number in sent_here if known.get(channel) != number])
            received.update([(channel, number) for channel, number in received_here if known.get(channel) != number])
        else:
            sent.update(sent_here)
            received.update(received_here)
    if sent != received:
        return None
    return {**known, **sent} if known and sent else known or sent


def _check_coverage(
    state: FleetView,
    epoch: int,
    reports: Mapping[str, EpochReport],
    lines: Mapping[str, ManifestAgent],
    columns: Mapping[str, AgentReport],
) -> Verdict | None:
    """Return a verdict that fails the epoch if some channel is not covered, otherwise None."""
    names = {name: None for report in reports.values() for name in report.names}
    gone = {name: None for name in names if name not in lines and state.has_left_before(name, epoch)}
    unknown = [name for name in columns if name not in lines and name not in gone]
    if unknown:
        return Verdict(problem=f"channels, but no report, of {_summarise_names(unknown)}", is_alarm=True)
    coverage = check_coverage(columns, gone)
    if coverage.orphans:
        shown = [f"{a}→{b}: {sent} sent, {received} received" for a, b, sent, received in coverage.orphans]
        return Verdict(problem=f"orphan messages on {_summarise_names(shown)}", is_alarm=True)
    if coverage.missing:
        return Verdict(
            problem=f"channels not covered: {_summarise_names([f'{a}→{b}: {x}' for a, b, x in coverage.missing])}"
        )
    return None


def _shape_problem(report: EpochReport) -> str:
    names = len(report.names)
    if len(report.agents) != len(report.unborn):
        return "the columns of its agents differ in length"
    if len(report.sent_from) != len(report.sent_to) or len(report.sent_from) != len(report.sent_number):
        return "the columns of channels sent on differ in length"
    lengths = {len(x) for x in (report.received_from, report.received_to, report.received_number)}
    if lengths != {len(report.recorded_count)}:
        return "the columns of channels received on differ in length"
    if len(report.input_of) != len(report.input_number):
        return "the columns of inputs differ in length"
    if len(report.output_of) != len(report.output_number):
        return "the columns of outputs differ in length"
    if len(report.durable_of) != len(report.durable_number):
        return "the columns of durable turns differ in length"
    columns = (
        report.agents,
        report.sent_from,
        report.sent_to,
        report.received_from,
        report.received_to,
        report.input_of,
        report.output_of,
        report.durable_of,
    )
    for column in columns:
        if column and max(column) >= names:
            return f"name {max(column)} of {names}"
    return ""


def _take_agents(
    state: FleetView,
    epoch: int,
    host: str,
    report: EpochReport,
    pack: int,
    members: Mapping[str, None],
    lines: dict[str, ManifestAgent],
) -> str:
    agents = state.image.agents
    for index, is_unborn in zip(report.agents, report.unborn, strict=True):
        name = report.names[index]
        record = agents.get(name)
        if state.has_left_before(name, epoch):
            continue  # The agent has taken its last turn, but its host does not know yet that its removal is committed.
        if record is None or (name not in members and record.born_epoch < epoch):
            return f"host {host} reports agent {name}, which is not in epoch {epoch}"
        if name in lines or record.host != host:
            return f"host {host} reports agent {name}, which is on host {record.host}"
        if not report.pack.path:
            return f"host {host} reports agent {name} without a pack"
        lines[name] = ManifestAgent(name, record.kind, host, record.incarnation, is_unborn or name not in members, pack)
    return ""


def _take_channels(report: EpochReport, columns: dict[str, AgentReport]) -> None:
    names = report.names
    for index in report.agents:
        _columns_of(columns, names[index])
    for sender, receiver, number in zip(report.sent_from, report.sent_to, report.sent_number, strict=True):
        _columns_of(columns, names[sender]).sent[names[receiver]] = number
    received = zip(report.received_from, report.received_to, report.received_number, report.recorded_count, strict=True)
    for sender, receiver, number, count in received:
        entry = _columns_of(columns, names[receiver])
        entry.received[names[sender]] = number
        if count:
            entry.recorded[names[sender]] = count


def _columns_of(columns: dict[str, AgentReport], name: str) -> AgentReport:
    entry = columns.get(name)
    if entry is None:
        entry = columns[name] = AgentReport(name, False, {}, {}, {})
    return entry


def _drop_unreferenced_unborn(
    members: Mapping[str, None], lines: Mapping[str, ManifestAgent], columns: Mapping[str, AgentReport]
) -> dict[str, ManifestAgent]:
    """Return all members, and each unborn agent to which a message was sent before the cut.

    All other unborn agents were created by turns after the cut. After a recovery, those turns run again and create the agents again.
    """
    unborn = {name for name in lines if name not in members}
    if not unborn:
        return dict(lines)
    receivers = {receiver for entry in columns.values() for receiver, number in entry.sent.items() if number}
    return {name: line for name, line in lines.items() if name not in unborn or name in receivers}


def _manifest(
    state: FleetView,
    plan: PlanRecord,
    epoch: int,
    reports: Mapping[str, EpochReport],
    packs: list[ReportedPack],
    lines: Mapping[str, ManifestAgent],
    channels: list[tuple[str, str]],
) -> WriteManifest:
    starts = {host: state.image.hosts[host].start for host in reports}
    return WriteManifest(
        epoch=epoch,
        plan=plan.number,
        trigger=state.image.epochs[epoch].trigger,
        hosts=starts,
        packs=tuple(packs),
        agents=tuple(lines.values()),
        channels=tuple(channels),
        state_bytes=sum(x.state_bytes for x in reports.values()),
        channel_state_bytes=sum(x.channel_state_bytes for x in reports.values()),
        channel_state_messages=sum(x.channel_state_messages for x in reports.values()),
        inputs=_numbers([(x.names, x.input_of, x.input_number) for x in reports.values()], lines),
        outputs=_numbers([(x.names, x.output_of, x.output_number) for x in reports.values()], lines),
        durable_turns=_numbers([(x.names, x.durable_of, x.durable_number) for x in reports.values()], lines),
        log_floors={f"{host}-{starts[host]}": x.log_floor for host, x in reports.items() if x.log_floor},
        log_starts={f"{host}-{starts[host]}": x.log_start for host, x in reports.items() if x.log_start},
    )


def _numbers(
    columns: Iterable[tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]], lines: Mapping[str, ManifestAgent]
) -> dict[str, int]:
    """Return the number of each agent in `lines`. For each host, `columns` contains the names, a column of indices into the names, and a
    column of numbers."""
    numbered = [
        (names[index], number) for names, of, numbers in columns for index, number in zip(of, numbers, strict=True)
    ]
    return {agent: number for agent, number in numbered if agent in lines}


def _summarise_names(names: list[str]) -> str:
    rest = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + rest
